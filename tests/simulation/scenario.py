"""One seed: a plan of work, weather, people and accidents, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from forbear.rules.decisions import Wish
from forbear.rules.escalations import TREATABLE
from forbear.rules.model import Case, Operation, Option, Priority, Refusal
from forbear.server import worker
from forbear.server.app import open_store
from forbear.server.config import Settings
from forbear.storage.deciding import Decided
from forbear.tools.caller import LOCAL, Caller
from forbear.tools.record import Record
from tests.simulation import contract as published
from tests.simulation.laws import Laws
from tests.simulation.loop import Gone, Job, Lane, Spinning, VirtualLoop
from tests.simulation.network import Network, Socket
from tests.simulation.process import Host, Process, replaced
from tests.simulation.provider import FATES, Provider, Weather

POINTS = ("before-commit", "after-commit", "reserved", "connect", "first-byte", "write", "answer")
"""Where accidents happen, beside any moment."""

PATIENCE = 240
"""How long a pause that nobody ended lasts on when all else is over, seconds."""

OPENS_AGAIN = (Option.SEND_NEW, Option.RESUBMIT, Option.CONFIRM_NOT_DONE)
"""After these the same intent may take effect again, and a person said so."""


@dataclass(frozen=True, slots=True)
class Accident:
    """What happens to a process: at the `count`-th time that one comes to `point`, or at a time."""

    what: str
    """kill, freeze or stop."""
    lasts: float
    """How long it is gone or stands still, seconds."""
    point: str | None = None
    count: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that an agent asks for."""

    at: float
    what: str
    action: str
    item: str
    key: str | None = None
    task: str = "a"
    waits: float = 0.0
    background: bool = False


@dataclass(slots=True)
class Plan:
    """All that is decided before the first step."""

    seed: int
    active: float
    roles: tuple[str, ...]
    pulse: float
    heartbeat: float
    weather: Weather
    asks: list[Ask] = field(default_factory=list[Ask])
    accidents: list[Accident] = field(default_factory=list[Accident])
    people: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When somebody does something, and what."""
    clocks: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])
    """When the wall clock is set or the machine sleeps, and by how many ms."""
    slow_disk: float = 0.0

    @staticmethod
    def of(seed: int) -> Plan:
        draws = Random(f"plan {seed}")
        active = draws.choice((10.0, 25.0, 50.0))
        storms = tuple(
            (begins, begins + draws.uniform(2, 25), draws.choice(("429", "429_soon", "503", "500")))
            for begins in (draws.uniform(0, active) for _ in range(draws.choice((0, 0, 0, 1, 2))))
        )
        fates = FATES if draws.random() < 0.6 else tuple(draws.sample(FATES, 4))
        weather = Weather(
            faults=draws.choice((0.0, 0.1, 0.3, 0.6)),
            connects=draws.choice((0.0, 0.0, 0.1, 0.3)),
            fates=fates,
            storms=storms,
            clear_from=active,
            lag=draws.choice((0.0, 2.0, 12.0)),
        )
        plan = Plan(
            seed,
            active,
            tuple(
                draws.choice(
                    (
                        ("serve",),
                        ("serve", "serve"),
                        ("serve", "worker"),
                        ("worker", "serve", "serve"),
                    )
                )
            ),
            draws.choice((0.5, 2.0, 4.0, 4.0)),
            draws.choice((15.0, 30.0, 60.0)),
            weather,
            slow_disk=draws.choice((0.0, 0.0, 0.05, 0.2)),
        )
        plan._work(draws)
        plan._trouble(draws)
        return plan

    def _work(self, draws: Random) -> None:
        actions: tuple[str, ...] = (*published.JOBS, *published.READS, *published.WRITES)
        if draws.random() < 0.4:  # more of the same
            actions = tuple(draws.sample(actions, 2))
        first = draws.choice((1.0, self.active * 0.7))
        for number in range(draws.randrange(2, 11)):
            action = draws.choice(actions)
            at = draws.uniform(0, first)
            key = draws.choice((None, None, f"k{number}"))
            again = draws.choice((0, 0, 0, 1, 2))
            for turn in range(1 + again):
                self.asks.append(
                    Ask(
                        at,
                        "job" if action in published.JOBS else "call",
                        action,
                        f"{action}-{number}",
                        key if turn == 0 or draws.random() < 0.7 else f"other{turn}",
                        draws.choice("ab"),
                        draws.choice((0.0, 0.0, 5.0, 20.0)),
                        draws.random() < 0.2,
                    )
                )
                at += draws.uniform(0, 1) if draws.random() < 0.5 else draws.uniform(0, 30)
        for _ in range(draws.choice((0, 1, 3))):
            what = draws.choice(
                ("check", "cancel", "end", "end_task", "wish", "fetch", "reconcile")
            )
            self.asks.append(
                Ask(draws.uniform(1, self.active), what, "", "", task=draws.choice("ab"))
            )

    def _trouble(self, draws: Random) -> None:
        for _ in range(draws.choice((0, 1, 2, 3))):
            what = draws.choice(("kill", "kill", "freeze", "stop"))
            lasts = draws.choice((0.5, 5.0, 12.0, 25.0, 45.0))
            if draws.random() < 0.75:
                point = draws.choice(POINTS)
                count = draws.randrange(1, 30 if "commit" in point else 8)
                self.accidents.append(Accident(what, lasts, point, count))
            else:
                self.accidents.append(Accident(what, lasts, at=draws.uniform(0, self.active)))
        if draws.random() < 0.6:
            for _ in range(draws.randrange(1, 8)):
                what = draws.choice(("decide", "decide", "decide", "decide", "twice", "unasked"))
                self.people.append((draws.uniform(2, self.active), what))
        if draws.random() < 0.25:
            begins = draws.uniform(0, self.active)
            self.people.append((begins, "pause"))
            self.people.append((begins + draws.uniform(0, 30), "resume"))
        for _ in range(draws.choice((0, 0, 0, 1, 2))):
            how = draws.choice(("set", "set", "sleep"))
            by = draws.choice((-600_000, -30_000, -2_000, 2_000, 30_000, 3_600_000))
            self.clocks.append(
                (draws.uniform(0, self.active), how, abs(by) if how == "sleep" else by)
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    broken: tuple[str, ...]
    trace: tuple[str, ...]
    steps: int
    requests: int
    commits: int

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class Ground:
    """Where seeds run: a home made once and copied for each."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._template = folder / "template"

    def fresh(self) -> Path:
        if not self._template.exists():
            self._make()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self._template, self.home)
        return self.home

    def _make(self) -> None:
        loop = VirtualLoop(Random("template"))
        host = Host(loop)

        async def make() -> None:
            from tests.simulation.process import Dice

            store = open_store(Settings(self.home), host, Dice("template"))
            await store.close()

        try:
            loop.run_until_complete(make())
        finally:
            loop.close()
        contracts = self.home / "contracts"
        contracts.mkdir(parents=True)
        (contracts / f"{published.PROVIDER}.toml").write_text(published.TEXT)
        for left in (*self.home.glob("*.lock"), *self.home.glob("run/*")):
            left.unlink()
        self.home.rename(self._template)


class Simulation:
    """One run of one plan."""

    def __init__(self, plan: Plan, home: Path) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.loop = VirtualLoop(Random(f"order {plan.seed}"))
        self.host = Host(self.loop)
        self.processes: list[Process] = []
        self.commits = 0
        self._over = False
        self._home = home
        self._draws = Random(f"world {plan.seed}")
        self._stalls = Random(f"stalls {plan.seed}")
        self._ids: list[str] = []
        self._came: dict[str, int] = {}
        self._accidents = [one for one in plan.accidents if one.point is not None]
        provider = Provider(
            self.loop, Random(f"provider {plan.seed}"), plan.weather, self._true, self.note
        )
        self.provider = provider
        draws = Random(f"network {plan.seed}")
        self.network = Network(self.loop, draws, provider.accepts, self._true)
        provider.lane = self.network.outside
        self.laws = Laws(
            home / "forbear.db",
            self.host,
            self.loop,
            provider,
            published.RULES,
            self.processes,
            self.note,
            self.loop.end,
        )
        self.network.wrote = self._wrote
        self.network.heard = self._heard
        self.network.connecting = lambda lane: self._point("connect", lane)
        self.loop.around = self._around
        self.loop.stalls = self._stalling
        self.loop.set_exception_handler(self._unexpected)

    def _true(self) -> float:
        return self.host.true / 1_000

    def note(self, text: str) -> None:
        self.trace.append(f"{self.host.true / 1_000:9.3f} {text}")

    def complaint(self, text: str) -> None:
        if not self._over:  # what is buried may well complain
            self.laws.must(False, "an unexpected exception", text)

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaint(f"{context.get('message')}: {context.get('exception')!r}")

    # --- where accidents happen ---------------------------------------------------------------

    def _around(self, lane: Lane, job: Job) -> Any:
        if job.__name__ != "_write":
            return job()
        self._point("before-commit", lane)
        if lane.dead:
            raise Gone
        value = job()
        self.commits += 1
        if self.laws.committed():
            self._point("reserved" if self.laws.fresh else "after-commit", lane)
        if lane.dead:
            raise Gone
        return value

    def _stalling(self, job: Job) -> tuple[float, float]:
        draws = self._stalls
        if self.plan.slow_disk and draws.random() < self.plan.slow_disk:
            return draws.uniform(0, 0.05), draws.choice((0.01, 0.5, 6.0, 15.0)) * draws.random()
        return 0.0002 + draws.random() * 0.001, 0.0001 + draws.random() * 0.001

    def _wrote(self, socket: Socket, data: bytes) -> None:
        begun = self.laws.first_byte(socket, data)
        if begun is not None:
            begun.began = self.loop.time() if socket.began is None else socket.began
            socket.began = None
        self._point("write" if begun is None else "first-byte", socket.lane)

    def _heard(self, socket: Socket, data: bytes) -> None:
        for one in reversed(self.provider.exchanges):
            if one.socket is socket:
                one.length -= len(data)
                if one.answered and one.length <= 0:
                    one.heard, one.heard_at = True, self.loop.time()
                    one.in_time = self.loop.time() - one.began < published.TIMEOUT - 0.1
                    self._point("answer", socket.lane)
                break

    def _point(self, point: str, lane: Lane) -> None:
        count = self._came[point] = self._came.get(point, 0) + 1
        for one in self._accidents:
            if one.point == point and one.count == count:
                self._accident(one, next(each for each in self.processes if each.lane is lane))

    def _accident(self, accident: Accident, process: Process) -> None:
        if not process.alive or self._true() > self.plan.active:
            return
        where = accident.point or "any moment"
        self.note(f"{accident.what} {process.name} at {where} for {accident.lasts} s")
        match accident.what:
            case "kill":
                process.kill()
                self.network.drop(process.lane)
                self._later(accident.lasts, self._start, process.role)
            case "freeze":
                process.lane.frozen = True
                self._later(accident.lasts, self._thaw, process)
            case _:
                process.stop()
                self._later(accident.lasts, self._start, process.role)
        self.laws.at_work()

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        self.loop.later(self.loop.world, seconds, act, *args)

    def _start(self, role: str) -> None:
        name = f"p{len(self.processes) + 1}"
        self.note(f"{name} starts ({role})")
        seed = f"{self.plan.seed} {name}"
        process = Process(self.loop, self.host, self._home, name, role, seed)
        self.processes.append(process)
        process.over.add_done_callback(lambda task: self._ended(process, task))

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        self.note(f"{process.name} is over")
        if not task.cancelled() and task.exception() is not None:
            self.complaint(f"{process.name} failed: {task.exception()!r}")
        self.laws.at_work()

    def _thaw(self, process: Process) -> None:
        if process.lane.frozen:
            self.note(f"{process.name} goes on")
            process.lane.frozen = False
            self.laws.at_work()

    # --- what agents ask ----------------------------------------------------------------------

    def _up(self) -> Process | None:
        up = [one for one in self.processes if one.up]
        return self._draws.choice(up) if up else None

    def _ask(self, ask: Ask) -> None:
        process = self._up()
        if process is None:
            self._later(self._draws.uniform(0.5, 3), self._ask, ask)
            return
        name = f"{process.name} {ask.what} {ask.item or ask.task}"
        process.do(self._asking(process, ask, name), name)

    async def _asking(self, process: Process, ask: Ask, name: str) -> None:
        assert process.app is not None
        desk, caller = process.app.desk, Caller(LOCAL, process.owner, process.owner)
        priority = Priority.BACKGROUND if ask.background else Priority.INTERACTIVE
        usual: dict[str, Any] = {
            "task": ask.task,
            "depends_on": (),
            "deadline_seconds": None,
            "useful_for_seconds": None,
            "priority": priority,
            "wait_seconds": ask.waits,
            "caller": caller,
            "report": None,
        }
        waits: dict[str, Any] = {"wait_seconds": ask.waits, "caller": caller, "report": None}
        arguments = {"item": ask.item}
        operation = self._draws.choice(self._ids) if self._ids else "op_none"
        answer: Any
        match ask.what:
            case "job":
                answer = await desk.submit_job(
                    provider=published.PROVIDER,
                    job=ask.action,
                    arguments=arguments,
                    purpose=None,
                    idempotency_key=ask.key,
                    max_status_requests=None,
                    **usual,
                )
            case "call" if ask.action in published.READS:
                answer = await desk.read_api(
                    provider=published.PROVIDER, call=ask.action, arguments=arguments, **usual
                )
            case "call":
                answer = await desk.write_api(
                    provider=published.PROVIDER,
                    call=ask.action,
                    arguments=arguments,
                    purpose=None,
                    idempotency_key=ask.key,
                    **usual,
                )
            case "check":
                answer = await desk.check_status(operation, **waits)
            case "reconcile":
                answer = await desk.reconcile_write(operation, **waits)
            case "fetch":
                answer = await desk.fetch_result(operation, name=None, offset=None, **waits)
            case "cancel":
                answer = await desk.cancel_job(operation, reason="no longer wanted", **waits)
            case "end":
                answer = await desk.end_task(
                    task=None, operation_id=operation, reason=None, caller=caller
                )
            case "end_task":
                answer = await desk.end_task(
                    task=ask.task, operation_id=None, reason="done", caller=caller
                )
            case _:
                option = self._draws.choice(("extend", "cancel_at_provider", "resubmit"))
                answer = await desk.request_decision(
                    operation, option=option, reason="please", parameters={}, caller=caller
                )
        match answer:
            case Refusal():
                told = str(answer.code)
            case Record(operation=op):
                told = f"{op.id} {op.state}"
                if op.id not in self._ids:
                    self._ids.append(op.id)
            case _:
                told = "answered"
        self.note(f"{name}: {told}")

    # --- what people do -----------------------------------------------------------------------

    def _person(self, what: str) -> None:
        process = self._up()
        if process is None:
            self._later(2.0, self._person, what)
        elif what in ("pause", "resume"):
            process.do(self._brake(process, what), what)
        else:
            pick = self._draws.random()
            process.do(self._decide(process, what, pick), what)
            other = self._up()
            if what == "twice" and other is not None:
                other.do(self._decide(other, "decide", pick), what)

    async def _brake(self, process: Process, what: str) -> None:
        assert process.app is not None
        brakes = process.app.store.brakes
        act = brakes.pause if what == "pause" else brakes.resume
        done = await process.app.store.write(
            lambda c: act(c, published.PROVIDER, {"operator": "ada"})
        )
        self.note(f"ada: {what} {done}")

    async def _decide(self, process: Process, what: str, pick: float) -> None:
        """Somebody who looks at the provider first decides about something."""
        assert process.app is not None
        app, now = process.app, self.host.now().wall
        by = {"operator": "ada", "channel": "console"}
        if what == "unasked":
            if not self._ids:
                return
            op = await app.store.read.operation(self._draws.choice(self._ids))
            if op is None:
                return
            option = Option.RESUBMIT if op.final else Option.CANCEL_AT_PROVIDER
            self._allowed(op, option)
            told = await app.office.decide_unasked(op, Wish(option), by)
            self.note(f"ada, unasked: {option} of {op.id}: {_words(told)}")
            return
        cases = await app.store.read.open_cases()
        if not cases:
            return
        case = cases[int(pick * len(cases))]
        op = await app.store.read.operation(case.operation_id)
        wish = None if op is None else self._wish(case, op, now)
        if op is None or wish is None:
            return
        self._allowed(op, wish.option)
        told = await app.office.decide(case, op, wish, by)
        self.note(f"ada: {wish.option} of {op.id} ({case.reason}): {_words(told)}")
        if isinstance(told, Decided):
            self.laws.decided[case.id] += 1

    def _allowed(self, op: Operation, option: Option) -> None:
        self.laws.touched.add(op.id)
        self.laws.grants[op.id] += 1
        if option in OPENS_AGAIN:
            self.laws.approved.add(str(op.arguments.get("item")))

    def _wish(self, case: Case, op: Operation, now: int) -> Wish | None:
        made = self.provider.made(op.ref)
        untrue = Option.CONFIRM_NOT_DONE if made else Option.CONFIRM_DONE
        offered = [Option(one["id"]) for one in case.options]
        choices = [one for one in offered if one is not untrue]
        if not choices:
            return None
        option = self._draws.choice(choices)
        return Wish(
            option,
            until=now + self._draws.choice((1_000, 20_000)) if option is Option.HOLD else None,
            treat_as=self._draws.choice(TREATABLE) if option is Option.TREAT_AS else None,
            reference=made[0].id if option is Option.CONFIRM_DONE else None,
        )

    # --- time ---------------------------------------------------------------------------------

    def _set_clock(self, how: str, ms: int) -> None:
        self.note(f"the clock: {how} {ms} ms")
        if how == "sleep":
            self.host.asleep += ms
            self.loop.hasten(self.network.outside, ms / 1_000)
            self.laws.jumps.append(self.host.true)
        else:
            self.host.set += ms
            if ms > 0:
                self.laws.jumps.append(self.host.true)
            else:
                self.laws.set_back(-ms)

    async def _live(self) -> None:
        """The whole story."""
        plan = self.plan
        for role in plan.roles:
            self._start(role)
        for ask in plan.asks:
            self._later(ask.at, self._ask, ask)
        for at, what in plan.people:
            self._later(at, self._person, what)
        for at, how, ms in plan.clocks:
            self._later(at, self._set_clock, how, ms)
        for one in plan.accidents:
            if one.point is None:
                self._later(one.at, self._somewhere, one)
        times = [ask.at for ask in plan.asks] + [one.at for one in plan.accidents]
        times += [at for at, _ in plan.people] + [at for at, _, _ in plan.clocks]
        last = max(times, default=0.0)
        while self.loop.time() < plan.active and not (self.loop.time() > last and self._quiet()):
            await asyncio.sleep(2)
            self.laws.at_work()
            self.laws.nothing_is_forgotten()
        await self._settle_down()

    def _somewhere(self, accident: Accident) -> None:
        process = self._up()
        if process is not None:
            self._accident(accident, process)

    def _quiet(self) -> bool:
        """Whether nothing goes on any more."""
        under_way = any(
            one.socket.open and not one.heard and not one.socket.lane.dead
            for one in self.provider.exchanges
        )
        return self.laws.rest() and not under_way and not self.laws.unkept(within=30.0)

    async def _settle_down(self) -> None:
        """No more accidents: whatever is left must come to its end."""
        self.note("from here on nothing goes wrong")
        for process in self.processes:
            if process.lane.frozen and process.alive:
                self._thaw(process)
        if not any(one.up for one in self.processes):
            self._start("serve")
        ends = self.loop.time()
        while True:
            await self._calm(ends)
            up = self._up()
            if up is not None and up.app is not None:
                await self.laws.audited(up.app.store)
            if self._quiet():  # nothing was asked meanwhile
                return

    async def _calm(self, since: float) -> None:
        """Until nothing goes on any more."""
        calm = 0
        while calm < 2:
            await asyncio.sleep(3)
            self.laws.at_work()
            self.laws.nothing_is_forgotten()
            calm = calm + 1 if self._quiet() else 0
            up = self._up()
            if self.laws.pauses and up is not None and self.loop.time() > PATIENCE + since:
                # Only then: deadlines fall while paused, and a single permit waits for a day.
                await self._brake(up, "resume")

    def run(self) -> Outcome:
        with replaced(self.complaint), self._paced():
            try:
                self.loop.run_until_complete(self._live())
            except Spinning as spinning:
                self.laws.must(False, "somebody spins", str(spinning)[:200])
            except RuntimeError:
                if not self.laws.broken:
                    raise
            if not self.laws.broken:
                self.laws.at_the_end()
            self._over = True
            self.loop.bury()
        self.loop.close()
        if not self.laws.broken:
            self.laws.verified()
        self.laws.close()
        return Outcome(
            self.plan.seed,
            tuple(self.laws.broken),
            tuple(self.trace),
            self.loop.steps,
            len(self.provider.exchanges),
            self.commits,
        )

    @contextmanager
    def _paced(self) -> Iterator[None]:
        with (
            mock.patch.object(worker, "PULSE", self.plan.pulse),
            mock.patch.object(worker, "HEARTBEAT", self.plan.heartbeat),
        ):
            yield


def _words(told: object) -> str:
    return str(told.code) if isinstance(told, Refusal) else type(told).__name__


def run(seed: int, ground: Ground) -> Outcome:
    """Run one seed."""
    return Simulation(Plan.of(seed), ground.fresh()).run()
