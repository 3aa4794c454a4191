"""Random histories of writes against an honest provider that counts what it did.

The provider keeps its promises and nothing more: it recognises a key for the stated window, it
lists every effect at once, and a refusal means that nothing was done. Answers get lost on the way,
processes stall, die and come back, clocks jump, people decide.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.storage.house import KEY, House, Quarter, Said, contract, used

from forbear.rules.decisions import Wish
from forbear.rules.model import Certainty, Operation, Option, Priority, State, Step
from forbear.rules.ports import Outbound
from forbear.storage.accepting import Draft
from forbear.storage.reserving import Reserved
from forbear.storage.transitions import Holding
from forbear.tools import drafts

MINUTE = 60_000
WINDOW = 2 * MINUTE
"""How long the provider recognises a key, ms; the contract says so."""

PAGE_SIZE = 2
OTHERS = 2
"""Effects of somebody else, listed first: one page of them."""

CONTRACT = """\
contract = 1
provider = "exp"
base_url = "https://api.exp.example/v1"
auth = "none"

[scopes.account]
per = "account"
rate = "1000/1s"
max_concurrent_requests = 3
"""

WRITE = """
[calls.{name}]
title = "Transfer"
method = "POST"
path = "/transfers"
body = {{ amount = "{{arg.amount}}", reference = "{{ref}}" }}
take = {{ id = "/id" }}
require = {{ "/id" = "non_empty" }}
deadline = "3h"
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
page = {{ query = "cursor", at = "/next", max_pages = 9 }}
settle = "30s"
absence_proves = true
"""

KINDS = {
    "plain": WRITE,
    "keyed": WRITE + KEYED,
    "findable": WRITE + FINDABLE,
    "both": WRITE + KEYED + FINDABLE,
}
TEXT = CONTRACT + "".join(text.format(name=name) for name, text in KINDS.items())
RULES = contract(TEXT)

LEASE = 45_001
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def held(name: str) -> Holding:
    return Holding(RULES, RULES.calls[name], "fp-1", "v-1")


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Quarter:
    return Quarter(tmp_path_factory.mktemp("write-histories"))


# --- the provider ---------------------------------------------------------------------------

REFUSED = {"limited": 429, "rejected": 422, "forbidden": 403, "conflict": 409}
"""What is refused before anything is done."""

LOST_ON_THE_WAY = ("lost", "undone")

FATES = [
    *("done", "done", "lost", "lost", "lost", "undone", "undone", "undone"),
    *("busy", "busy_done", "error", "error_done", "no_id", "unsent"),
    *REFUSED,
]


@dataclass
class Provider:
    """What it did, by reference; what it remembers, by key."""

    effects: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    arrivals: Counter[str] = field(default_factory=Counter[str])
    doubtful: Counter[str] = field(default_factory=Counter[str])
    """Arrivals that were not definitely refused."""
    keys: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def answer(self, request: Outbound, fate: str, now: int) -> Said:
        """Do what a request asks, and what of it the sender hears."""
        if fate == "unsent":
            return Said(None, sent=False, fault="connect")
        if request.method == "GET":
            return self._list(request, fate)
        return self._write(request, fate, now)

    def _write(self, request: Outbound, fate: str, now: int) -> Said:
        body = json.loads(request.body or b"")
        key, ref = dict(request.headers).get("Idempotency-Key"), body["reference"]
        self.arrivals[ref] += 1
        since, known = self.keys.get(key or "", (now - WINDOW, ""))
        replayed = known if now < since + WINDOW else None
        if fate in REFUSED and replayed is None:
            return Said(REFUSED[fate], {"error": {"code": fate}})
        self.doubtful[ref] += 1
        if replayed is None and fate not in ("undone", "busy", "error"):
            replayed = f"tr_{sum(map(len, self.effects.values()))}"
            self.effects[ref].append(replayed)
            if key is not None:
                self.keys[key] = now, replayed
        match fate:
            case "lost" | "undone":
                return Said(None, fault="closed")
            case "busy" | "busy_done":
                return Said(503, {}, (("Retry-After", "7"),))
            case "error" | "error_done":
                return Said(500, {})
            case "no_id":
                return Said(202, {"state": "taken"})
            case _:
                return Said(201, {"id": replayed})

    def _list(self, request: Outbound, fate: str) -> Said:
        """Most lookups are answered; how often they fail is in the fates of writes too."""
        match fate:
            case "lost":
                return Said(None, fault="closed")
            case "busy":
                return Said(503, {}, (("Retry-After", "7"),))
            case "limited":
                return Said(429, {}, (("Retry-After", "7"),))
            case "no_id":
                return Said(200, {"page": "under maintenance"})
            case _:
                pass
        items = [{"id": f"other_{n}", "reference": f"of others {n}"} for n in range(OTHERS)]
        items += [
            {"id": one, "reference": ref} for ref, made in self.effects.items() for one in made
        ]
        start = int(dict(parse_qsl(urlsplit(request.url).query)).get("cursor", "0"))
        more = str(start + PAGE_SIZE) if start + PAGE_SIZE < len(items) else None
        return Said(200, {"items": items[start : start + PAGE_SIZE], "next": more})


# --- what happens ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens, and what it picks from."""

    what: str
    who: int
    pick: int
    fate: str


WEIGHTS = {
    "ask": 3,
    "carry": 10,
    "stall": 4,
    "answer": 3,
    "hear": 3,
    "overtake": 3,
    "send_and_vanish": 2,
    "time_goes_by": 3,
    "somebody_sets_the_clock": 1,
    "die_and_come_back": 2,
    "start_the_machine_again": 1,
    "decide": 4,
    "end": 1,
}

HAPPENINGS = st.builds(
    Happening,
    what=st.sampled_from([what for what, weight in WEIGHTS.items() for _ in range(weight)]),
    who=st.integers(0, 1),
    pick=st.integers(0, 59),
    fate=st.sampled_from(FATES),
)

PEOPLE = (
    *(Option.RECONCILE, Option.RESEND_SAME_KEY, Option.CHECK_AGAIN, Option.HOLD),
    *(Option.CONFIRM_DONE, Option.CONFIRM_NOT_DONE, Option.ABANDON),
)


@dataclass(slots=True)
class Out:
    """A permit whose outcome its owner has not stored yet."""

    who: int
    reserved: Reserved
    said: Said | None = None
    """The answer, once the request was sent."""


class History:
    """Two processes and one provider; either process may stall or die while a request is out."""

    def __init__(self, first: House, kind: str) -> None:
        """Most writes are of one `kind`; the answer of the first is lost."""
        self.kind = kind
        self.births = 0
        self.boots = 1
        self.houses = [first, self.born(first)]
        self.provider = Provider()
        self.seen: dict[str, Operation] = {}
        self.out: list[Out] = []
        self.happens(Happening("ask", 0, 0, "done"))
        self.happens(Happening("carry", 0, 1, "lost"))

    def born(self, beside: House) -> House:
        self.births += 1
        return House(beside.home, beside.clock, beside.random, f"own_{self.births}")

    def close(self) -> None:
        for house in self.houses:
            house.close()

    @property
    def any(self) -> House:
        return self.houses[0]

    def happens(self, one: Happening) -> None:
        getattr(self, one.what)(one)
        self.holds()

    def live(self) -> list[Operation]:
        return [op for op in self.seen.values() if not op.final]

    # --- asking and sending -----------------------------------------------------------------

    def ask(self, one: Happening) -> None:
        name = [self.kind, self.kind, *KINDS][one.pick % 6]
        key = [None, None, "k1", "k2"][one.pick // 12 % 4]
        draft = self.draft(name, one.pick // 6 % 2, key)
        house = self.houses[one.who]
        house.write(lambda c: house.ledger.accept(c, draft, held(name)))

    def draft(self, name: str, amount: int, key: str | None) -> Draft:
        call = RULES.calls[name]
        made = drafts.Drafter(KEY, self.any.random, "local").call(
            held(name),
            call,
            {"amount": amount},
            drafts.call_bounds(call, None, None),
            drafts.Given(purpose=None, key=key, priority=Priority.INTERACTIVE, task=None),
        )
        assert isinstance(made, Draft), made
        return made

    def stall(self, one: Happening) -> bool:
        """A process gets a permit and does not use it yet."""
        due = [op for op in self.live() if op.next_at is not None]
        if not due:
            return False
        op = due[one.pick % len(due)]
        if op.lease_owner is None and one.pick % 7:
            self.any.due(op)
        got = self.houses[one.who].reserve(op, held(op.action))
        if isinstance(got, Reserved):
            self.out.append(Out(one.who, got))
        return isinstance(got, Reserved)

    def carry(self, one: Happening) -> None:
        """What a worker does: a permit, when it is due, and its outcome."""
        if self.stall(one):
            self.comes_in(self.out.pop(), one.fate)

    def answer(self, one: Happening) -> None:
        if self.out:
            self.comes_in(self.out.pop(one.pick % len(self.out)), one.fate)

    def hear(self, one: Happening) -> None:
        """A request leaves and is answered; its owner stalls before the answer is stored."""
        waiting = [out for out in self.out if out.said is None]
        if waiting:
            out = waiting[one.pick % len(waiting)]
            out.said = self.sent(out, one.fate)

    def overtake(self, one: Happening) -> None:
        """An owner stalls for longer than its lease, and another process goes on."""
        if self.out:
            operation_id = self.out[one.pick % len(self.out)].reserved.permit.operation_id
            self.any.clock.suspend(LEASE)
            op = self.any.read(operation_id)
            self.houses[one.who].reserve(op, held(op.action))

    def comes_in(self, out: Out, fate: str) -> None:
        self.houses[out.who].settle(out.reserved, out.said or self.sent(out, fate))

    def sent(self, out: Out, fate: str) -> Said:
        """The sender compares `send_by` before the first byte."""
        now = self.any.clock.now()
        permit = out.reserved.permit
        if now.boot_id != permit.boot_id or now.boot > permit.send_by_boot:
            return Said(None, sent=False, fault="too_late")
        return self.provider.answer(out.reserved.request, fate, now.boot)

    # --- processes and clocks ---------------------------------------------------------------

    def send_and_vanish(self, one: Happening) -> None:
        """A request leaves and does what it does; nobody is left to store the answer."""
        mine = [out for out in self.out if out.who == one.who and out.said is None]
        if mine:
            self.sent(mine[one.pick % len(mine)], one.fate)
        self.die_and_come_back(one)

    def die_and_come_back(self, one: Happening) -> None:
        self.dies(one.who)
        if one.pick % 2:
            self.houses[one.who].recover()

    def dies(self, who: int) -> None:
        self.out = [out for out in self.out if out.who != who]
        dead = self.houses[who]
        dead.close()
        self.houses[who] = self.born(dead)

    def start_the_machine_again(self, one: Happening) -> None:
        for who in (0, 1):
            self.dies(who)
        self.boots += 1
        before = self.any.clock.now().boot
        self.any.clock.reboot(f"boot-{self.boots}")
        self.any.clock.suspend(before)  # so that one clock orders what the provider did
        self.any.clock.jump([0, -24 * 60 * MINUTE, 10 * MINUTE][one.pick % 3])  # it comes up wrong
        self.houses[one.who].recover()

    def time_goes_by(self, one: Happening) -> None:
        self.any.clock.suspend([1, 1_000, 10_001, LEASE, 5 * MINUTE, 15 * MINUTE][one.pick % 6])

    def somebody_sets_the_clock(self, one: Happening) -> None:
        self.any.clock.jump([-60 * MINUTE, -5_000, 5_000, 10 * MINUTE][one.pick % 4])
        self.any.recover()

    # --- people -----------------------------------------------------------------------------

    def decide(self, one: Happening) -> None:
        """A person who looks at the provider before saying what is there."""
        asked = [op for op in self.live() if self.any.case(op) is not None]
        if not asked:
            return
        op = asked[one.pick % len(asked)]
        case = self.any.case(op)
        assert case is not None
        made = self.provider.effects[op.ref]
        untrue = Option.CONFIRM_NOT_DONE if made else Option.CONFIRM_DONE
        offered = {option["id"] for option in case.options}
        chosen = [option for option in PEOPLE if option in offered and option is not untrue]
        if not chosen:
            return
        option = chosen[one.pick // 3 % len(chosen)]
        reference = made[0] if made and option is Option.CONFIRM_DONE else None
        wish, by = Wish(option, reference=reference), {"operator": "anna"}
        house, holding = self.houses[one.who], held(op.action)
        house.write(lambda c: house.ledger.decide(c, case.id, case.revision, wish, holding, by))

    def end(self, one: Happening) -> None:
        if self.seen:
            op = list(self.seen.values())[one.pick % len(self.seen)]
            house = self.houses[one.who]
            house.write(lambda c: house.ledger.drop(c, op.id, "no longer wanted", held(op.action)))

    # --- what must hold ---------------------------------------------------------------------

    def holds(self) -> None:
        self.nothing_is_done_twice()
        for op in self.any.all():
            if op.id in self.seen:
                self.counters_only_grow(self.seen[op.id], op)
            self.seen[op.id] = op
            self.is_sent_as_often_as_it_may(op)
            self.says_what_is_true(op)
            self.goes_on_or_asks(op)

    def nothing_is_done_twice(self) -> None:
        assert all(len(made) <= 1 for made in self.provider.effects.values())
        intents = Counter(
            op.intent for op in self.seen.values() for _ in self.provider.effects[op.ref]
        )
        assert all(count <= 1 for count in intents.values())

    def is_sent_as_often_as_it_may(self, op: Operation) -> None:
        doubtful = self.provider.doubtful[op.ref]
        sends = sum(one.step is Step.SEND for one in self.any.attempts(op))
        assert self.provider.arrivals[op.ref] <= sends
        if op.action == "plain":
            assert doubtful <= 1
        if op.action == "findable":
            assert doubtful <= 2

    def says_what_is_true(self, op: Operation) -> None:
        """Nothing is said of an effect that is not so, once no request is out."""
        if op.lease_owner is not None:
            return
        made = len(self.provider.effects[op.ref])
        if op.certainty in (Certainty.NOT_SENT, Certainty.NOT_APPLIED):
            assert made == 0, f"{op.state}: {op.certainty}"
        if op.certainty is Certainty.APPLIED or op.state is State.SUCCEEDED:
            assert made == 1, f"{op.state}: {op.certainty}"

    def goes_on_or_asks(self, op: Operation) -> None:
        asks = self.any.case(op) is not None
        assert asks is (op.state is State.ESCALATED)
        assert op.final or asks or op.next_at is not None

    def counters_only_grow(self, before: Operation, op: Operation) -> None:
        fell = {name for name, count in used(op).items() if count < used(before)[name]}
        assert fell <= {"attempts"}
        if fell:  # a proven not-sent: the only decrease there is
            assert op.attempts.used == before.attempts.used - 1
            assert op.transport_failures.used == before.transport_failures.used + 1
        assert (op.wire_key, op.ref) == (before.wire_key, before.ref)
        if before.final:
            assert op.state is before.state

    # --- the end ----------------------------------------------------------------------------

    def comes_to_rest(self) -> None:
        """Left to itself, everything ends or asks."""
        for fate in self.fates_at_the_end():
            due = [op for op in self.live() if op.next_at is not None]
            if not due:
                return
            op = min(due, key=lambda one: one.next_at or 0)
            self.any.clock.suspend(max(0, (op.next_at or 0) - self.any.clock.now().wall))
            got = self.any.reserve(op, held(op.action))
            if isinstance(got, Reserved):
                self.comes_in(Out(0, got), fate)
            self.holds()
        raise AssertionError(f"no end: {[(op.action, op.state) for op in self.live()]}")

    @staticmethod
    def fates_at_the_end() -> Iterator[str]:
        for number in range(300):
            yield LOST_ON_THE_WAY[number % 2] if number % 3 else "busy"


@pytest.mark.requirement("R13", "R14", "R15", "R24", "R25", "W17")
@settings(
    max_examples=60, deadline=None, database=None, print_blob=True, suppress_health_check=SLOW
)
@given(st.sampled_from(list(KINDS)), st.lists(HAPPENINGS, min_size=30, max_size=30))
def test_no_write_is_done_twice_whatever_happens(
    quarter: Quarter, kind: str, happenings: list[Happening]
) -> None:
    history = History(quarter.build(), kind)
    try:
        for one in happenings:
            note(str(one))
            history.happens(one)
        history.comes_to_rest()
        assert history.any.verified() is None
    finally:
        history.close()
        shutil.rmtree(history.any.home)


@pytest.mark.requirement("R13")
def test_a_clock_that_is_set_back_does_not_lengthen_the_life_of_a_key(quarter: Quarter) -> None:
    history = History(quarter.build(), "keyed")
    try:
        history.any.clock.suspend(WINDOW + MINUTE)
        history.happens(Happening("somebody_sets_the_clock", 0, 0, "done"))
        history.happens(Happening("carry", 0, 1, "done"))

        (op,) = history.seen.values()
        assert op.state is State.ESCALATED
        assert history.provider.arrivals[op.ref] == 1
    finally:
        history.close()


@pytest.mark.requirement("R24", "R25", "D02")
@pytest.mark.parametrize(
    ("others", "made", "state"),
    [(0, False, State.UNCLEAR), (0, True, State.SUCCEEDED), (PAGE_SIZE, True, State.UNCLEAR)],
    ids=["nothing there", "there", "on the next page"],
)
def test_a_late_answer_to_a_lookup_never_tells_more_than_it_found(
    quarter: Quarter, monkeypatch: pytest.MonkeyPatch, others: int, made: bool, state: State
) -> None:
    """Found by seed 23070 of the simulation: an empty list, late, was taken for the effect."""
    monkeypatch.setattr(sys.modules[__name__], "OTHERS", others)
    history = History(quarter.build(), "findable")
    try:
        if not made:
            history.provider.effects.clear()
        for what, who in (("stall", 0), ("hear", 0), ("overtake", 1), ("answer", 0)):
            assert len(history.out) == (0 if what == "stall" else 1)
            history.happens(Happening(what, who, 1, "done"))
        (op,) = history.seen.values()
        assert history.any.attempts(op)[-1].late
        assert op.state is state
        history.comes_to_rest()
        assert history.any.verified() is None
    finally:
        history.close()
