"""Real processes of the product, quickly: a parent that has imported everything and only forks.

Each line on standard input is a `Birth` as JSON; the answer is the pid of a new process that runs
`forbear serve` without a client on a home, with a worker and, if asked, a point at which it kills
or stops itself. What such a process says goes into its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forbear.rules.model import Priority, Step
from forbear.rules.ports import Moment, Outbound, Permit, Reply
from forbear.server import app, upstream, worker
from forbear.server.clock import SystemClock
from forbear.server.config import Settings
from forbear.storage import ledger, migrations, reserving, store
from forbear.tools.caller import Caller
from forbear.tools.record import Record

BEFORE_RESERVATION = "before the reservation commits"
BEFORE_FIRST_BYTE = "before the first byte"
AFTER_ANSWER = "after the answer"
BEFORE_OUTCOME = "before the outcome commits"
AFTER_OUTCOME = "after the outcome commits"


@dataclass(frozen=True, slots=True)
class Birth:
    """One process to start."""

    home: str
    log: str
    store: dict[str, str] = field(default_factory=dict)
    """What tells it where the store is, if it is not in the home."""
    datasets: tuple[str, ...] = ()
    """Exports that it submits, all at once."""
    reads: tuple[str, ...] = ()
    """Calls that it makes, all at once."""
    writes: tuple[str, ...] = ()
    """The same for calls that change something."""
    worker: bool = True
    """Whether it sends, and not only takes what is asked for."""
    point: str = ""
    step: str = "send"
    signal: int = signal.SIGKILL
    """What it does to itself at the point, the first time it gets there."""
    spared: int = 0
    """How often it gets there before without doing so."""
    epoch: tuple[int, int] | None = None
    """Wall and boot clock, ms, from which the clock runs `speed` times as fast."""
    speed: int = 1
    stepped: str = ""
    """A file that says how far the wall clock was set, ms, as whoever keeps it sets it."""
    every: float = 0.0
    """Seconds between two rounds of asking for something new, for ever: a wait, a job, a read and
    a write; 0: never."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Its own part of the environment: the secrets of contracts."""
    hangs: str = ""
    """A host whose name nobody ever resolves."""


class FastClock(SystemClock):
    """The system's clock, running faster from a moment on that several processes share, and with
    a wall clock that can be set."""

    __slots__ = ("_epoch", "_speed", "_stepped")

    def __init__(self, epoch: tuple[int, int] | None, speed: int, stepped: str) -> None:
        super().__init__()
        self._epoch, self._speed, self._stepped = epoch, speed, Path(stepped)

    def now(self) -> Moment:
        now = super().now()
        if self._epoch is not None:
            gone = (now.boot - self._epoch[1]) * self._speed
            now = Moment(self._epoch[0] + gone, self._epoch[1] + gone, now.boot_id)
        if not self._stepped.name:
            return now
        return replace(now, wall=now.wall + int(self._stepped.read_text()))

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self._speed)


# --- points ---------------------------------------------------------------------------------


def arm(birth: Birth) -> None:
    """Make this process meet its signal at the point."""
    met: list[int] = []

    def meet(step: Step) -> None:
        if step != birth.step:
            return
        met.append(1)
        if len(met) == birth.spared + 1:
            os.kill(os.getpid(), birth.signal)

    def after_reserve(reserved: reserving.Reserved | bool) -> None:
        if isinstance(reserved, reserving.Reserved):
            meet(reserved.operation.step)

    match birth.point:
        case "":
            pass
        case "before the reservation commits":
            _after(ledger.Ledger, "_next_request", lambda out, _: after_reserve(out))
        case "before the first byte" | "after the answer":
            app.__dict__["open_store"] = _opened(app.open_store)
            app.__dict__["Upstream"] = _upstream(birth.point, meet)
        case "before the outcome commits":
            _after(ledger.Ledger, "settle", lambda _, given: meet(given["reserved"].operation.step))
        case "after the outcome commits":
            _after_await(
                worker.Worker, "_store_outcome", lambda given: meet(given[0].operation.step)
            )
        case unknown:
            raise ValueError(unknown)


async def _end_of_writing() -> None:
    """Wait until no batch is being written, nor handed over to be.

    A process that is stopped in the middle of one keeps the store's lock, and everybody waits for
    it. That is another story than the one of a request on its way.
    """
    for one in _STORES:
        while one._writer._flushing is not None:
            await asyncio.wait([one._writer._flushing])


_STORES: list[store.Store] = []


def _opened(open_store: Callable[..., store.Store]) -> Callable[..., store.Store]:
    def opened(*args: Any, **given: Any) -> store.Store:
        _STORES.append(open_store(*args, **given))
        return _STORES[-1]

    return opened


def _after(owner: type, name: str, then: Callable[[Any, dict[str, Any]], None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **given: Any) -> Any:
        outcome = original(*args, **given)
        then(outcome, given)
        return outcome

    setattr(owner, name, wrapped)


def _after_await(owner: type, name: str, then: Callable[[tuple[Any, ...]], None]) -> None:
    original = getattr(owner, name)

    async def wrapped(self: Any, *args: Any) -> None:
        await original(self, *args)
        then(args)

    setattr(owner, name, wrapped)


def _upstream(point: str, meet: Callable[[Step], None]) -> type[upstream.Upstream]:
    class Mortal(upstream.Upstream):
        async def send(self, permit: Permit, request: Outbound) -> Reply:
            step = Step.SEND if request.method == "POST" else Step.STATUS
            if point == BEFORE_FIRST_BYTE:
                await _end_of_writing()
                meet(step)
            reply = await super().send(permit, request)
            if point == AFTER_ANSWER:
                await _end_of_writing()
                meet(step)
            return reply

    return Mortal


# --- a process ------------------------------------------------------------------------------


async def serve(birth: Birth) -> None:
    """Run until told to end."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    clock = FastClock(birth.epoch, birth.speed, birth.stepped)
    settings = Settings.load({"FORBEAR_HOME": birth.home, **birth.store})
    async with app.running(settings, role="serve", worker=birth.worker, clock=clock) as running:
        await asyncio.gather(
            *(submit(running, dataset) for dataset in birth.datasets),
            *(read(running, call) for call in birth.reads),
            *(write(running, call) for call in birth.writes),
        )
        say(ready=True)
        asking = asyncio.create_task(keep_asking(running, birth.every))
        await app.first_of(told, running.superseded)
        if running.superseded.is_set():
            say(superseded=True)
        asking.cancel()
    say(ended=True)


async def keep_asking(running: app.App, every: float) -> None:
    """Ask for new work round by round; each call is read at most once a second anyway."""
    number = 0
    while every:
        number += 1
        one = f"{os.getpid()}-{number}"
        await submit(running, f"wait-{one}", job="wait")
        await submit(running, f"job-{one}")
        await read(running, "rows")
        await write(running, "note")
        await asyncio.sleep(every)


async def submit(running: app.App, dataset: str, *, job: str = "export") -> None:
    answer = await running.desk.submit_job(
        provider="exp",
        job=job,
        arguments={"dataset": dataset},
        purpose=None,
        task=None,
        idempotency_key=None,
        depends_on=(),
        deadline_seconds=None,
        max_status_requests=None,
        useful_for_seconds=None,
        priority=Priority.INTERACTIVE,
        wait_seconds=0,
        caller=Caller("local", "crash", "crash"),
        report=None,
    )
    if isinstance(answer, Record):
        say(operation=answer.operation.id, joined=answer.joined)
    else:
        say(refused=str(answer.code))


async def read(running: app.App, call: str) -> None:
    """Make a call of `exp`, or of the provider that stands before its name."""
    provider, _, name = call.rpartition(".")
    await running.desk.read_api(
        provider=provider or "exp",
        call=name,
        arguments={},
        task=None,
        depends_on=(),
        deadline_seconds=None,
        useful_for_seconds=None,
        priority=Priority.INTERACTIVE,
        wait_seconds=0,
        caller=Caller("local", "crash", "crash"),
        report=None,
    )


async def write(running: app.App, call: str) -> None:
    await running.desk.write_api(
        provider="exp",
        call=call,
        arguments={},
        purpose=None,
        task=None,
        idempotency_key=None,
        depends_on=(),
        deadline_seconds=None,
        useful_for_seconds=None,
        priority=Priority.INTERACTIVE,
        wait_seconds=0,
        caller=Caller("local", "crash", "crash"),
        report=None,
    )


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _hanging(host: str, resolve: Callable[..., Any]) -> Callable[..., Any]:
    def hang(name: Any, *args: Any, **given: Any) -> Any:
        if name in (host, host.encode()):
            threading.Event().wait()
        return resolve(name, *args, **given)

    return hang


def be_born(birth: Birth) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    arm(birth)
    os.environ.update(birth.environment)
    if birth.hangs:
        socket.getaddrinfo = _hanging(birth.hangs, socket.getaddrinfo)
    asyncio.run(serve(birth))


def main() -> None:
    assert migrations.__doc__
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        wish = json.loads(line)
        for name in ("datasets", "reads", "writes"):
            wish[name] = tuple(wish[name])
        wish["epoch"] = wish["epoch"] and tuple(wish["epoch"])
        pid = os.fork()
        if pid == 0:
            try:
                be_born(Birth(**wish))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        say(pid=pid)


if __name__ == "__main__":
    main()
