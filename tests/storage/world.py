"""A store that two processes share, a provider that counts what reaches it, and a virtual clock.

Drives the real ledger: what is due is reserved in the order of its time by either process, a
request arrives and takes effect, or does not, as its fate says, and its answer is stored by its
owner if that still lives. Processes die at any point and come back, clocks jump, people decide.

`World.true` is time as it really goes by (that of the boot clock): what is measured is measured on
it, whatever the wall clock says.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from tests import stores
from tests.storage.house import KEY, House, Quarter, Said, contract, rebuilt, told, used
from tests.support import FixedRandom

from forbear.rules.contract import Action, Call, Job
from forbear.rules.decisions import Wish
from forbear.rules.model import Operation, Option, Priority, State, Step, WaitingFor
from forbear.rules.ports import Outbound
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.brakes import Brakes
from forbear.storage.reserving import Reserved
from forbear.storage.schema import LIVE, operations
from forbear.storage.transitions import Holding
from forbear.tools import drafts

SECOND = 1_000
MINUTE = 60_000
HOUR = 3_600_000

WINDOW = 2 * MINUTE
"""How long the provider recognises a key, ms; the contract says so."""

CONTRACT = """\
contract = 1
provider = "exp"
base_url = "https://api.exp.example/v1"
auth = "bearer env:EXP_TOKEN"
account = { id = "acct_17" }

[scopes.account]
per = "account"
rate = "20/1m"
max_concurrent_requests = 3
max_delayed_requests = 1000
retry_budget = "4/1m"
reserve = 0.25

[scopes.search]
per = "account"
actions = ["search"]
rate = "8/1m"
max_concurrent_requests = 1
max_delayed_requests = 1000

[scopes.rare]
per = "account"
actions = ["rare"]
rate = "3/1h"
max_delayed_requests = 1000

[jobs.export]
usual = "1m"
deadline = "40m"
submit = "POST /exports"
body = { dataset = "{arg.id}", reference = "{ref}" }
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]

[jobs.export.limits]
max_status_requests = 8
"""

READ = """
[calls.{name}]
path = "/{name}/{{arg.id}}"
method = "GET"
deadline = "1h"
"""

WRITE = """
[calls.{name}]
method = "POST"
path = "/transfers"
body = {{ amount = "{{arg.id}}", reference = "{{ref}}" }}
take = {{ id = "/id" }}
require = {{ "/id" = "non_empty" }}
deadline = "1h"
approval = "none"
"""

KEYED = """
[calls.{name}.idempotency]
at = "header:Idempotency-Key"
format = "uuid"
window = "2m"
"""

FINDABLE = """
[calls.{name}.lookup]
method = "GET"
path = "/transfers"
items = "/items"
match = {{ "/reference" = "{{ref}}" }}
take = {{ id = "/id" }}
settle = "30s"
absence_proves = true
"""

PAGED = """
page = {{ query = "cursor", at = "/next", items = "/data", max_pages = 9 }}
"""

CALLS = {
    "item": READ,
    "pages": READ + PAGED,
    "search": READ,
    "rare": READ,
    "plain": WRITE,
    "keyed": WRITE + KEYED,
    "findable": WRITE + FINDABLE,
    "both": WRITE + KEYED + FINDABLE,
}
ACTIONS = (*CALLS, "export")
LATER = """
[[rules]]
http = 423
means = "retry_later"
"""
RULES = contract(CONTRACT + LATER + "".join(text.format(name=name) for name, text in CALLS.items()))

ACCOUNT = "account"
NARROW = ("search", "rare")
"""Actions that count in a scope of their own name too."""

PUBLISHED = {one.name: one for one in RULES.scopes}


def scopes_of(action: str) -> tuple[str, ...]:
    return (ACCOUNT, action) if action in NARROW else (ACCOUNT,)


# --- the provider ---------------------------------------------------------------------------

RETRY_AFTER = {"limited": None, "limited_20": "20", "limited_4000": "4000"}
QUOTAS = {"r=3": "r=3;t=30", "r=0": "r=0;t=20", "r=1": "r=1;t=86400"}


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request."""

    what: str = "done"
    late: int = 0
    """How long its owner takes before it sends, ms."""
    takes: int = 200
    """How long the answer takes, ms."""


@dataclass
class Provider:
    """What it did, by reference; what it remembers, by key; how often each job was asked for."""

    effects: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    doubtful: Counter[str] = field(default_factory=Counter[str])
    """Arrivals of writes that were not definitely refused, by reference."""
    keys: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    polls: Counter[str] = field(default_factory=Counter[str])

    def answer(self, request: Outbound, what: str, now: int) -> Said:
        """Do what a request asks, and what of it the sender hears."""
        if what in RETRY_AFTER:
            after = RETRY_AFTER[what]
            return Said(429, {}, () if after is None else (("Retry-After", after),))
        if what == "later":
            return Said(423, {})
        headers = (("RateLimit", f'"default";{QUOTAS[what]}'),) if what in QUOTAS else ()
        if request.method == "POST":
            return replace(self._write(request, what, now), headers=headers)
        match what:
            case "lost" | "undone":
                return Said(None, fault="closed")
            case "busy":
                return Said(503, {})
            case "error":
                return Said(500, {})
            case _:
                return Said(200, self._found(request), headers)

    def _found(self, request: Outbound) -> dict[str, object]:
        if "/exports/" in request.url:
            job = request.url.rpartition("/")[2]
            self.polls[job] += 1
            return {"id": job, "state": "done" if self.polls[job] > 2 else "running"}
        if "/pages/" in request.url:
            page = int(dict(parse_qsl(urlsplit(request.url).query)).get("cursor", "1"))
            more = str(page + 1) if page < PAGES else None
            return {"data": [{"page": page}], "next": more}
        every = [(ref, one) for ref, made in self.effects.items() for one in made]
        return {"items": [{"reference": ref, "id": one} for ref, one in every]}

    def _write(self, request: Outbound, what: str, now: int) -> Said:
        key, ref = (
            dict(request.headers).get("Idempotency-Key"),
            json.loads(request.body or b"")["reference"],
        )
        since, known = self.keys.get(key or "", (now - WINDOW, ""))
        made = known if now < since + WINDOW else None
        self.doubtful[ref] += 1
        if made is None and what not in ("undone", "busy", "error"):
            made = f"exp_{sum(map(len, self.effects.values()))}"
            self.effects[ref].append(made)
            if key is not None:
                self.keys[key] = now, made
        match what:
            case "lost" | "undone":
                return Said(None, fault="closed")
            case "busy":
                return Said(503, {})
            case "error":
                return Said(500, {})
            case _:
                return Said(201, {"id": made, "state": "queued"})


PAGES = 6


# --- what is measured -----------------------------------------------------------------------


@dataclass(slots=True)
class Permit:
    """A request that may leave, and what became of it."""

    at: int
    """When its reservation was made, true time."""
    op: Operation
    task: str
    step: Step
    url: str
    background: bool
    repeats: bool
    """The same request left before, as far as anybody knew then."""
    hold_until: int
    """True time."""
    owner: str
    closed: bool = False
    left: bool = True
    """False once it is proven that it never left."""

    @property
    def scopes(self) -> tuple[str, ...]:
        return scopes_of(self.op.action)


def most_in_any(times: Sequence[int], length: int, breaks: Sequence[int] = ()) -> int:
    """The most of `times` in any stretch of this length with none of `breaks` in it."""
    return max((len(_within(times, start, length, breaks)) for start in times), default=0)


def _within(times: Sequence[int], start: int, length: int, breaks: Sequence[int]) -> list[int]:
    counted = [at for at in times if start <= at < start + length]
    return [at for at in counted if not _between(breaks, start, at)]


def _between(breaks: Sequence[int], start: int, end: int) -> bool:
    return any(start < one <= end for one in breaks)


# --- the world ------------------------------------------------------------------------------


@dataclass
class Process:
    """A place where one process after another runs."""

    house: House | None
    dies: str | None = None
    """Where the one that runs there dies next: `reserved`, `sent` or `answered`."""
    away: int = 0
    """How long it is gone then, ms."""


COOLING = 5_000
NOTICED = 250
"""When others notice that a process died or a clock was set back, ms."""


class World:
    """See the module. `fates` are those of the next requests, in turn."""

    def __init__(self, quarter: Quarter, seed: int = 0) -> None:
        built = quarter.build()
        self.home, self.clock, self.random = built.home, built.clock, FixedRandom.seeded(seed)
        self.births = 0
        self.processes = [Process(self._born()), Process(self._born())]
        built.close()
        self.provider = Provider()
        self.fates: Sequence[Fate] = (Fate(),)
        self.permits: list[Permit] = []
        self.forward: list[int] = []
        """When the wall clock was set forward, true time."""
        self.set_back = 0
        """By how much it was set back in all, ms."""
        self.seen: dict[str, Operation] = {}
        self.tasks: dict[str, str] = {}
        self.decided: set[str] = set()
        self.asked = 0
        self._drawn = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._counted = 0
        self._cooling: dict[str, int] = {}
        self._refs: dict[str, str] = {}

    # --- processes and clocks ---------------------------------------------------------------

    def _born(self) -> House:
        self.births += 1
        house = House(self.home, self.clock, self.random, f"own_{self.births}")
        if not stores.on_server():
            house.sql("PRAGMA synchronous = OFF")  # processes die here, machines do not
        return house

    @property
    def true(self) -> int:
        return self.clock.now().boot

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if one.house is not None]

    @property
    def any(self) -> House:
        """Any process that lives; one is started if none does."""
        if not self.living:
            self.processes[0].house = self._born()
        house = self.living[0].house
        assert house is not None
        return house

    def dies(self, who: int, away: int) -> None:
        process = self.processes[who]
        if process.house is None:
            return
        process.house.close()
        process.house, process.dies = None, None
        self._later(NOTICED, self._recover)
        self._later(away, lambda: self._back(process))

    def _back(self, process: Process) -> None:
        if process.house is None:
            process.house = self._born()
            process.house.recover()

    def _recover(self) -> None:
        for process in self.living:
            assert process.house is not None
            process.house.recover()

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock; the processes notice soon if it is set back."""
        self.clock.jump(ms)
        if ms > 0:
            self.forward.append(self.true)
        else:
            self.set_back -= ms
            self._later(NOTICED, self._recover)

    def close(self) -> None:
        for process in self.living:
            assert process.house is not None
            process.house.close()
        shutil.rmtree(self.home)

    # --- asking, and what people do ---------------------------------------------------------

    def ask(
        self,
        action: str = "item",
        *,
        task: str = "a",
        principal: str = "local",
        priority: Priority = Priority.INTERACTIVE,
        item: str | None = None,
    ) -> Operation | None:
        """Ask for an action; None where it is refused or is one that was asked for before."""
        self.asked += 1
        held = self.holding(action)
        drafter = drafts.Drafter(KEY, self.random, principal)
        given = drafts.Given(purpose=None, key=None, priority=priority, task=task)
        arguments = {"id": item or f"i{self.asked}"}
        if isinstance(held.action, Job):
            bounds = drafts.bounds(held.action, None, None, None)
            made = drafter.submission(held, held.action, arguments, bounds, given)
        else:
            assert isinstance(held.action, Call)
            bounds = drafts.call_bounds(held.action, None, None)
            made = drafter.call(held, held.action, arguments, bounds, given)
        assert isinstance(made, Draft), made
        house = self.any
        accepted = house.write(lambda c: house.ledger.accept(c, made, held))
        if not isinstance(accepted, Accepted) or accepted.joined:
            return None
        self.tasks[accepted.operation.id] = task
        return accepted.operation

    @staticmethod
    def holding(action: str) -> Holding:
        found: Action | None = RULES.action(action)
        assert found is not None
        return Holding(RULES, found, "fp-1", "v-1")

    def decide(self, pick: int, options: Sequence[Option]) -> None:
        """A person who looks at the provider before saying what is there."""
        house = self.any
        asked = [op for op in self.all() if not op.final and house.case(op) is not None]
        if not asked:
            return
        op = asked[pick % len(asked)]
        case = house.case(op)
        assert case is not None
        made = self.provider.effects[op.ref]
        untrue = Option.CONFIRM_NOT_DONE if made else Option.CONFIRM_DONE
        offered = {option["id"] for option in case.options}
        chosen = [option for option in options if option in offered and option is not untrue]
        if not chosen:
            return
        option = chosen[pick // 7 % len(chosen)]
        reference = made[0] if made and option is Option.CONFIRM_DONE else None
        wish, by, held = Wish(option, reference=reference), {"by": "anna"}, self.holding(op.action)
        self.decided.add(op.id)
        house.write(lambda c: house.ledger.decide(c, case.id, case.revision, wish, held, by))

    def drop(self, pick: int) -> None:
        live = [op for op in self.all() if not op.final]
        if live:
            op, house = live[pick % len(live)], self.any
            house.write(lambda c: house.ledger.drop(c, op.id, "no longer wanted"))

    def end_task(self, principal: str, task: str) -> None:
        house = self.any
        house.write(lambda c: house.ledger.end_task(c, principal, task, "the task is over"))

    def pause(self, target: str) -> None:
        self.any.write(lambda c: Brakes(self.clock).pause(c, target, {"by": "anna"}))

    def resume(self) -> None:
        for (target,) in self.any.sql("SELECT target FROM pauses"):
            self.any.write(partial(Brakes(self.clock).resume, target=target, by={"by": "anna"}))

    # --- time goes by -----------------------------------------------------------------------

    def all(self) -> list[Operation]:
        return self.any.all()

    def run(self, ms: int) -> None:
        """Carry what is due for so long."""
        until = self.true + ms
        while (at := self._next()) is not None and at <= until:
            self.clock.advance(max(0, at - self.true))
            if self._events and self._events[0][0] <= self.true:
                heappop(self._events)[2]()
            else:
                self._carry()
        self.clock.advance(max(0, until - self.true))

    def _later(self, ms: int, act: Callable[[], None]) -> None:
        self._counted += 1
        heappush(self._events, (self.true + ms, self._counted, act))

    def _next(self) -> int | None:
        """When anything happens next, true time."""
        times = [at for at, _, _ in self._events[:1]]
        if self.living:
            lead = self.clock.now().wall - self.true
            due = [(op_id, next_at - lead) for op_id, _, next_at in self._due()]
            times += [max(at, self._cooling.get(op_id, 0)) for op_id, at in due]
        return min(times, default=None)

    def _due(self) -> list[tuple[str, str, int]]:
        query = (
            sa.select(operations.c.id, operations.c.action, operations.c.next_at)
            .where(sa.text(LIVE), operations.c.next_at.is_not(None))
            .order_by(operations.c.next_at, operations.c.number)
        )
        with self.any.database.writer.connect() as connection:
            return [(row.id, row.action, row.next_at) for row in connection.execute(query)]

    def _carry(self) -> None:
        for op_id, action, next_at in self._due():
            if next_at > self.clock.now().wall:
                break
            if not self.living:
                return
            if self._cooling.get(op_id, 0) > self.true:
                continue
            self._drawn += 1
            process = self.living[self._drawn % len(self.living)]
            house = process.house
            assert house is not None
            got = house.reserve(op_id, self.holding(action))
            if isinstance(got, Reserved):
                self._permitted(process, house, got)
            elif got is False and house.read(op_id).next_at == next_at:
                self._cooling[op_id] = self.true + COOLING

    # --- one request ------------------------------------------------------------------------

    def _permitted(self, process: Process, house: House, reserved: Reserved) -> None:
        op = reserved.operation
        url = reserved.request.url
        again = any(
            one.op.id == op.id and one.step is Step.SEND and one.url == url and one.left
            for one in self.permits
        )
        permit = Permit(
            self.true,
            op,
            self.tasks[op.id],
            op.step,
            url,
            op.authorisation == "contract" and op.priority is Priority.BACKGROUND,
            op.step is Step.SEND and again,
            reserved.permit.send_by_boot + reserved.request.timeout + 5 * SECOND,
            house.ledger.owner,
        )
        self.permits.append(permit)
        self._holds_slots(permit)
        fate = self.fates[len(self.permits) % len(self.fates)]
        if process.dies == "reserved":
            self.dies(self.processes.index(process), process.away)
        elif fate.late:
            self._later(fate.late, lambda: self._send(process, house, reserved, permit, fate))
        else:
            self._send(process, house, reserved, permit, fate)

    def _send(
        self, process: Process, house: House, reserved: Reserved, permit: Permit, fate: Fate
    ) -> None:
        """The sender compares `send_by` before the first byte."""
        if process.house is not house:
            return
        if self.true > reserved.permit.send_by_boot:
            said = Said(None, sent=False, fault="too_late")
        elif fate.what == "unsent":
            said = Said(None, sent=False, fault="connect")
        else:
            said = self.provider.answer(reserved.request, fate.what, self.true)
        if process.dies == "sent":
            self.dies(self.processes.index(process), process.away)
            return
        self._later(fate.takes, lambda: self._settle(process, house, reserved, permit, said))

    def _settle(
        self, process: Process, house: House, reserved: Reserved, permit: Permit, said: Said
    ) -> None:
        if process.house is not house:
            return
        if process.dies == "answered":
            self.dies(self.processes.index(process), process.away)
            return
        permit.closed, permit.left = True, said.sent
        house.settle(reserved, said)

    # --- what must hold ---------------------------------------------------------------------

    def _holds_slots(self, new: Permit) -> None:
        """What is out with its owner alive, and within the time that it is given, has a slot."""
        owners = {one.house.ledger.owner for one in self.living if one.house is not None}
        for scope in new.scopes:
            out = [
                one
                for one in self.permits
                if scope in one.scopes
                and not one.closed
                and one.owner in owners
                and one.hold_until > self.true
                and not _between(self.forward, one.at, self.true)
            ]
            most = PUBLISHED[scope].max_concurrent_requests
            assert len(out) <= most, f"{len(out)} of {scope} are out"
            if new.background:
                share = 1 - PUBLISHED[scope].reserve
                assert len(out) <= max(1, int(most * share)), f"no slot of {scope} is left over"

    def holds(self) -> None:
        """Everything that must be true between any two happenings."""
        for op in self.all():
            if op.id in self.seen:
                self._only_grows(self.seen[op.id], op)
            self.seen[op.id] = op
            self._goes_on_or_asks(op)
            self._says_what_is_true(op)
        self._does_nothing_twice()
        self._keeps_its_limits()
        self._queues_are_of_those_who_wait()

    def _only_grows(self, before: Operation, op: Operation) -> None:
        fell = {name for name, count in used(op).items() if count < used(before)[name]}
        assert fell <= {"attempts"}
        if fell:  # a proven not-sent: the only decrease there is
            assert op.transport_failures.used > before.transport_failures.used
        assert op.fence >= before.fence
        assert (op.wire_key, op.ref, op.intent) == (before.wire_key, before.ref, before.intent)
        if before.final:
            assert op.state is before.state

    def _goes_on_or_asks(self, op: Operation) -> None:
        asks = op.state is State.ESCALATED
        assert op.final or asks or op.next_at is not None
        assert not asks or self.any.case(op) is not None
        if op.next_at is not None and op.lease_owner is None:
            ends = max(op.deadline_at, op.once_until or 0)
            assert op.next_at <= ends + 1, f"{op.id} sleeps beyond its end"

    def _says_what_is_true(self, op: Operation) -> None:
        """Nothing is said of an effect that is not so, once no request is out."""
        made = len(self.provider.effects[op.ref])
        if op.lease_owner is None and op.certainty.value in ("not_sent", "not_applied"):
            assert made == 0 or op.request_class.value == "read"

    def _does_nothing_twice(self) -> None:
        for op in self.seen.values():
            made = self.provider.effects[op.ref]
            if op.action in ("keyed", "both", "findable"):
                assert len(made) <= 1, f"{op.action} {op.id} is done twice"
            if op.action in ("plain", "export") and op.id not in self.decided:
                assert self.provider.doubtful[op.ref] <= 1, f"{op.id} was sent again unasked"

    def _keeps_its_limits(self) -> None:
        for name, scope in PUBLISHED.items():
            mine = [one for one in self.permits if name in one.scopes and one.left]
            count, per = scope.rate
            most = most_in_any([one.at for one in mine], per, self.forward)
            assert most <= count, f"{most} of {name} in one {per} ms"
            background = [one.at for one in mine if one.background]
            most = most_in_any(background, per, self.forward)
            share = max(1, round(count * (1 - scope.reserve)))
            assert most <= share, f"{most} of background work in {name}: the reserve is not left"
            if scope.retry_budget is not None:
                budget, per = scope.retry_budget
                again = [one for one in mine if one.repeats and one.op.id not in self.decided]
                most = most_in_any([one.at for one in again], per, self.forward)
                assert most <= budget, f"{most} repetitions in {name}"

    def _queues_are_of_those_who_wait(self) -> None:
        waiting = {
            op.id
            for op in self.seen.values()
            if op.waiting_for in (WaitingFor.SCOPE, WaitingFor.SLOT) and not op.final
        }
        places = self.any.sql("SELECT operation_id, scope, rank, principal, task FROM waits")
        assert {place[0] for place in places} <= waiting
        lanes = self.any.sql("SELECT scope, rank, principal, task FROM task_turns")
        assert set(lanes) == {place[1:] for place in places}
        callers = self.any.sql("SELECT scope, rank, principal FROM turns")
        assert set(callers) == {lane[:3] for lane in lanes}

    def verified(self) -> None:
        """The trail is whole, and tells state and budgets of every operation."""
        assert self.any.verified() is None
        for op in self.all():
            kept = rebuilt(self.any.events(op))
            assert {name: kept.get(name) for name in told(op)} == told(op)
