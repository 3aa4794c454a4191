"""An event loop on virtual time whose every choice comes from a seed.

Each callback belongs to a lane: one simulated operating-system process, or the world around them.
Inside a lane callbacks run in the order that asyncio promises; which lane goes next is drawn. A
lane can be killed between any two callbacks (nothing of it ever runs again, not even a `finally`)
and frozen (what comes due waits). Threads do not exist: what goes to an executor runs as one step
of its lane, some time later, and its outcome arrives some time after that.
"""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_AT_ONCE = 20_000
"""Steps at one moment after which somebody must be spinning."""


_lane: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("lane", default=None)


MOST = 150_000
"""Steps of one seed, ten times what a busy one takes."""


class Spinning(AssertionError):
    """Steps follow each other for ever, and nothing comes of it."""


class Lane:
    """What runs in one simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[events.Handle] = deque()
        self.tasks: list[tuple[asyncio.Task[Any], contextvars.Context]] = []
        """All its tasks, held until the end: what is killed must not even be tidied up."""
        self.dead = False
        self.frozen = False
        self.context = contextvars.copy_context()
        self.context.run(_lane.set, self)

    @property
    def runs(self) -> bool:
        return not (self.dead or self.frozen)

    def kill(self) -> None:
        self.dead = True
        self.ready.clear()


def lane() -> Lane:
    """The lane that runs now."""
    found = _lane.get(None)
    if found is None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.world
    return found


Job = Callable[[], Any]


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `draws` decides everything that is left open."""

    def __init__(self, draws: Random) -> None:
        super().__init__()
        self.world = Lane("world")
        self.steps = 0
        self._draws = draws
        self._now = 0.0
        self._order = count()
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._lanes: list[Lane] = [self.world]
        self._at_once = 0
        self._ended = False
        self.stalls: Callable[[Job], tuple[float, float]] = lambda job: (0.0005, 0.0005)
        """How long a job waits for its thread, and how long its outcome takes to be heard."""
        self.around: Callable[[Lane, Job], Any] = lambda lane, job: job()
        """Runs a job of a lane; raises `Gone` if the lane died of it."""

    # --- lanes --------------------------------------------------------------------------------

    def add_lane(self, name: str) -> Lane:
        made = Lane(name)
        self._lanes.append(made)
        return made

    def spawn(
        self, lane: Lane, coro: Coroutine[Any, Any, T], name: str | None = None
    ) -> asyncio.Task[T]:
        """Run something in a lane."""
        return self.create_task(coro, name=name, context=lane.context.copy())

    def later(self, lane: Lane, seconds: float, act: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call something in a lane after a while."""
        self.call_at(self._now + seconds, act, *args, context=lane.context)

    def hasten(self, lane: Lane, seconds: float) -> None:
        """Let what waits in a lane come so much earlier: for it, that time has gone by."""
        moved: list[tuple[float, int, events.TimerHandle]] = []
        for when, order, timer in self._timers:
            own = timer._context.get(_lane) is lane  # type: ignore[attr-defined]
            moved.append((max(self._now, when - seconds) if own else when, order, timer))
        heapify(moved)
        self._timers = moved

    def at_once(self) -> bool:
        """Whether something takes no time at all, for once."""
        return self._draws.random() < 0.6

    def end(self) -> None:
        """Stop after this step, whatever is still to be done."""
        self._ended = True

    # --- what asyncio asks for ----------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        mine = contextvars.copy_context() if context is None else context
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=mine)
        (mine.get(_lane) or self.world).tasks.append((task, mine))
        return task

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def _enqueue(self, handle: events.Handle) -> None:
        owner: Lane = handle._context.get(_lane) or self.world  # type: ignore[attr-defined]
        if not owner.dead:
            owner.ready.append(handle)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        pass  # found out when it is due

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run `func` as one step, and tell its outcome in another."""
        mine = lane()
        future: asyncio.Future[T] = self.create_future()

        def job() -> Any:
            return func(*args)

        job.__name__ = getattr(func, "__name__", type(func).__name__)
        wait, hear = self.stalls(job)

        def run() -> None:
            try:
                value, error = self.around(mine, job), None
            except Gone:
                return
            except Exception as raised:
                value, error = None, raised
            self.later(mine, hear, tell, value, error)

        def tell(value: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self.later(mine, wait, run)
        return future

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: Any = None) -> None:
        pass

    # --- time goes by -------------------------------------------------------------------------

    def _run_once(self) -> None:
        runnable = [lane for lane in self._lanes if lane.ready and not lane.frozen]
        if not runnable:
            if not self._timers:
                self._stopping = True
                return
            self._now = max(self._now, self._timers[0][0])
            self._at_once = 0
        while self._timers and self._timers[0][0] <= self._now:
            timer = heappop(self._timers)[2]
            if not timer._cancelled:
                self._enqueue(timer)
        if not runnable:
            return
        chosen = runnable[0] if len(runnable) == 1 else self._draws.choice(runnable)
        handle = chosen.ready.popleft()
        if not handle._cancelled:
            self.steps += 1
            self._at_once += 1
            if self._at_once > MOST_AT_ONCE or self.steps > MOST:
                raise Spinning(f"{chosen.name} spins: {handle!r}")
            handle._run()
        if self._ended:
            self._stopping = True

    def bury(self) -> None:
        """Let go of everything that never ended; nothing of it may touch what comes later."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they begin on their way out is never awaited
            for each in self._lanes:
                for task, context in each.tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _close(task.get_coro(), context)
                each.tasks.clear()
            # Only then: closing what one lane had begins something in others.
            for each in self._lanes:
                each.ready.clear()
            self._timers.clear()


def _close(coro: Any, context: contextvars.Context) -> None:
    for _ in range(100):
        try:
            context.run(coro.close)
        except RuntimeError:  # it wants to wait for something on its way out
            continue
        except BaseException:
            pass
        return


class Gone(BaseException):
    """The lane died in the middle of a job."""
