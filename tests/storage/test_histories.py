"""Random histories of several processes on one store, with what must hold after every step."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.storage.house import (
    BUSY,
    DENIED,
    DONE,
    FAILED,
    LIMITED,
    LOST,
    RUNNING,
    UNSENT,
    House,
    Quarter,
    Said,
    holding,
    rebuilt,
    told,
    used,
)

from forbear.rules.model import Attempt, Kind, Operation, Option, Reason, RequestClass, State, Step
from forbear.storage.accepting import Accepted
from forbear.storage.deciding import REPLACES, Decided
from forbear.storage.reserving import Reserved

TAKEN = Said(202, {"id": "{id}", "state": "queued"})
ODD = Said(200, {"id": "{id}", "state": "odd"})
GONE = Said(404, {})
REJECTED = Said(422, {})
NONSENSE = Said(200, ["\ud800"])
FOREIGN = Said(200, {"id": "exp_other", "state": "done"})

ANSWERS = [
    *(TAKEN, RUNNING, RUNNING, DONE, FAILED, LOST, UNSENT, LIMITED, BUSY, DENIED),
    *(ODD, GONE, REJECTED, NONSENSE, FOREIGN),
]
TOO_LATE = Said(None, sent=False, fault="too_late")

LEASE = 45_001

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Quarter:
    return Quarter(tmp_path_factory.mktemp("histories"))


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens, and what it picks from."""

    what: str
    who: int
    pick: int
    said: Said
    late: bool


WEIGHTS = {
    "ask": 3,
    "carry": 7,
    "reserve": 4,
    "answer": 5,
    "overtake": 3,
    "send_and_vanish": 1,
    "time_goes_by": 1,
    "somebody_sets_the_clock": 1,
    "die_and_come_back": 2,
    "decide": 4,
    "drop": 1,
    "follow_up": 2,
}

HAPPENINGS = st.builds(
    Happening,
    what=st.sampled_from([what for what, weight in WEIGHTS.items() for _ in range(weight)]),
    who=st.integers(0, 1),
    pick=st.integers(0, 59),
    said=st.sampled_from(ANSWERS),
    late=st.booleans(),
)


class History:
    """Two processes; either may stall, die and come back while requests are out."""

    def __init__(self, first: House) -> None:
        self.births = 0
        self.houses = [first, self.born(first)]
        self.seen: dict[str, Operation] = {}
        self.out: list[Reserved] = []
        self.arrived: Counter[tuple[str, Step]] = Counter()
        self.effects: Counter[str] = Counter()
        for number in (1, 2):
            op = first.waiting(f"running-{number}", f"exp_{number}")
            self.count(op.id, Step.SEND, TAKEN)
        first.new("a")
        self.holds()

    def born(self, beside: House) -> House:
        self.births += 1
        return House(beside.home, beside.clock, beside.random, f"own_{self.births}")

    def close(self) -> None:
        for house in self.houses:
            house.close()

    @property
    def any(self) -> House:
        return self.houses[0]

    def picked(self, one: Happening) -> Operation:
        """Those that are not over more often than the others."""
        ops = list(self.seen.values())
        live = [op for op in ops if not op.final]
        among = live if live and one.pick % 5 else ops
        return among[one.pick % len(among)]

    def happens(self, one: Happening) -> None:
        getattr(self, one.what)(one)
        self.holds()

    # --- what happens -----------------------------------------------------------------------

    def ask(self, one: Happening) -> None:
        answer = self.any.ask(
            ["a", "b", "running-1"][one.pick % 3],
            job=["export", "export", "payout"][one.pick // 3 % 3],
            key=[None, None, "k1", "k2"][one.pick % 4],
            principal=["local", "local", "p2"][one.pick // 7 % 3],
        )
        if isinstance(answer, Accepted) and not answer.joined:
            others = [op for op in self.seen.values() if op.intent == answer.operation.intent]
            assert all(op.final for op in others), "a second operation beside a running one"

    def reserve(self, one: Happening) -> Reserved | None:
        op = self.picked(one)
        if op.next_at is not None and not op.lease_owner and one.pick % 7:
            self.any.due(op)
        before = self.any.read(op)
        left = self.open_attempt(op)
        got = self.houses[one.who].reserve(op)
        if left is not None and self.is_held(before):
            assert got is False
            assert self.open_attempt(op) == left, "taken from a living owner"
        if not isinstance(got, Reserved):
            return None
        assert before.lease_owner is None
        assert not before.final
        if before.step is Step.SEND:
            assert self.effects[op.id] == 0, "sent again what may have been applied"
        self.out.append(got)
        return got

    def open_attempt(self, op: Operation) -> Attempt | None:
        return next((one for one in self.any.attempts(op) if one.closed_at is None), None)

    def is_held(self, op: Operation) -> bool:
        """Whether the lease is not over and its owner lives."""
        now = self.any.clock.now()
        owners = {house.ledger.owner for house in self.houses}
        return op.lease_owner in owners and op.lease_until is not None and now.boot < op.lease_until

    def overtake(self, one: Happening) -> None:
        """An owner stalls for longer than its lease, and another process goes on."""
        if not self.out:
            return
        operation_id = self.out[one.pick % len(self.out)].permit.operation_id
        self.any.clock.suspend(LEASE)
        self.houses[one.who].reserve(operation_id)
        if self.any.read(operation_id).next_at is not None:
            self.any.due(operation_id)
            newer = self.houses[one.who].reserve(operation_id)
            if isinstance(newer, Reserved):
                self.out.append(newer)

    def answer(self, one: Happening) -> None:
        """The sender compares `send_by`, but an answer may take its time."""
        if not self.out:
            return
        reserved = self.out.pop(one.pick % len(self.out))
        self.comes_in(reserved, one, sent_in_time=one.late)

    def carry(self, one: Happening) -> None:
        """What a worker does: a permit, when it is due, and its outcome."""
        got = self.reserve(one)
        if got is not None:
            self.comes_in(self.out.pop(), one)

    def comes_in(self, reserved: Reserved, one: Happening, *, sent_in_time: bool = False) -> None:
        said = one.said
        if self.any.clock.now().boot > reserved.permit.send_by_boot and not sent_in_time:
            said = TOO_LATE
        operation_id, step = reserved.permit.operation_id, reserved.operation.step
        self.count(operation_id, step, said)
        job = self.seen[operation_id].provider_job or f"exp_{reserved.operation.number}"
        if isinstance(said.body, dict) and said is not FOREIGN:
            said = Said(said.status, {**said.body, "id": job}, said.headers)
        self.houses[one.who].settle(reserved, said)

    def count(self, operation_id: str, step: Step, said: Said) -> None:
        if said.sent:
            self.arrived[operation_id, step] += 1
            writes = self.any.read(operation_id).request_class is not RequestClass.READ
            if writes and step is Step.SEND and said in (TAKEN, LOST, BUSY, NONSENSE):
                self.effects[operation_id] += 1

    def send_and_vanish(self, one: Happening) -> None:
        """The request leaves and has its effect; nobody is left to store the answer."""
        if not self.out:
            return
        reserved = self.out.pop(one.pick % len(self.out))
        if self.any.clock.now().boot <= reserved.permit.send_by_boot:
            self.count(reserved.permit.operation_id, reserved.operation.step, LOST)
        self.out.clear()
        self.die_and_come_back(one)
        self.die_and_come_back(replace(one, who=1 - one.who))

    def time_goes_by(self, one: Happening) -> None:
        self.any.clock.suspend([1, 1_000, 10_001, LEASE, 61_000, 900_000][one.pick % 6])

    def somebody_sets_the_clock(self, one: Happening) -> None:
        self.any.clock.jump([-3_600_000, -5_000, 5_000, 600_000][one.pick % 4])
        self.any.recover()

    def die_and_come_back(self, one: Happening) -> None:
        dead = self.houses[one.who]
        dead.close()
        self.houses[one.who] = self.born(dead)
        if one.late:
            self.houses[one.who].recover()

    def decide(self, one: Happening) -> None:
        asked = [op for op in self.seen.values() if self.any.case(op) is not None]
        if not asked:
            return
        op = asked[one.pick % len(asked)]
        case = self.any.case(op)
        assert case is not None
        offered = [Option(each["id"]) for each in case.options if each["id"] not in REPLACES]
        chosen = offered[one.pick // 2 % len(offered)]
        given: dict[str, Any] = {}
        if chosen is Option.TREAT_AS:
            given["treat_as"] = ["waiting", "blocked", "failed", "cancelled"][one.pick % 4]
        if chosen is Option.CONFIRM_DONE:
            given["reference"] = f"exp_{op.number}"
        if isinstance(self.houses[one.who].decide(op, chosen, **given), Decided):
            assert not op.final or case.reason is Reason.REPEATED_FAILURE

    def drop(self, one: Happening) -> None:
        self.any.drop(self.picked(one))

    def follow_up(self, one: Happening) -> None:
        jobs = [op for op in self.seen.values() if op.kind is Kind.JOB and op.action == "export"]
        done = [op for op in jobs if "result.url" in op.take and op.state is State.SUCCEEDED]
        running = [op for op in jobs if op.provider_job is not None and not op.final]
        if done and one.late:
            self.any.ask_follow_up(done[one.pick % len(done)], Kind.RESULT)
        elif running:
            draft = self.any.draft_follow_up(running[one.pick % len(running)], Kind.CANCEL)
            self.any.write(lambda c: self.any.ledger.accept(c, draft, holding()))

    # --- what must hold ---------------------------------------------------------------------

    def holds(self) -> None:
        house = self.any
        for op in house.all():
            before = self.seen.get(op.id)
            if before is not None:
                self.only_grows(before, op)
            self.seen[op.id] = op
            attempts = house.attempts(op)
            assert sum(one.closed_at is None for one in attempts) <= 1
            assert len(attempts) == op.fence
            for step in Step:
                reserved = sum(one.step is step for one in attempts)
                assert self.arrived[op.id, step] <= reserved
            assert op.status_requests.used == sum(one.step is Step.STATUS for one in attempts)
            assert self.effects[op.id] <= 1
            rests = op.final or op.state is State.ESCALATED
            assert (op.next_at is None) is rests
            case = house.case(op)
            asks = op.state is State.ESCALATED or op.approve_by is not None
            assert (case is not None) is asks
            is_open = any(one.closed_at is None for one in attempts)
            assert (op.lease_owner is not None) is is_open
            assert (op.state is State.SENDING) <= is_open
            kept = rebuilt(house.events(op))
            assert {name: kept.get(name) for name in told(op)} == told(op)

    def only_grows(self, before: Operation, op: Operation) -> None:
        assert op.fence >= before.fence
        fell = {name for name, count in used(op).items() if count < used(before)[name]}
        assert fell <= {"attempts"}
        if fell:
            assert op.attempts.used == before.attempts.used - 1
            assert op.transport_failures.used == before.transport_failures.used + 1
        if before.final:
            assert op.state is before.state
        if before.approve_by is None:  # else the deadline starts at the approval
            assert op.deadline_at >= before.deadline_at
        assert (op.wire_key, op.ref, op.intent) == (before.wire_key, before.ref, before.intent)


@pytest.mark.requirement("A10", "A02", "W15", "W17", "D02", "R24")
@settings(max_examples=25, deadline=None, database=None, suppress_health_check=SLOW)
@given(st.lists(HAPPENINGS, min_size=40, max_size=40))
def test_whatever_happens_nothing_is_lost_doubled_or_forgotten(
    quarter: Quarter, happenings: list[Happening]
) -> None:
    history = History(quarter.build())
    try:
        for one in happenings:
            note(str(one))
            history.happens(one)
        assert history.any.verified() is None
    finally:
        history.close()
        shutil.rmtree(history.any.home)
