"""Random histories of several processes on one store, with what must hold after every step."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
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
    rebuilt,
    told,
    used,
)

from forbear.rules.model import Attempt, Kind, Operation, Option, State, Step
from forbear.storage.deciding import Decided
from forbear.storage.ledger import Accepted, Reserved

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

_quarters: list[Quarter] = []


@pytest.fixture(scope="module", autouse=True)
def quarter() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="forbear-histories-"))
    _quarters.append(Quarter(folder))
    yield
    _quarters.clear()
    shutil.rmtree(folder)


class Histories(RuleBasedStateMachine):
    """Two processes; either may stall, die and come back while requests are out."""

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Operation] = {}
        self.arrived: Counter[tuple[str, Step]] = Counter()
        self.effects: Counter[str] = Counter()
        self.births = 0

    @initialize()
    def open(self) -> None:
        first = _quarters[0].build()
        self.houses = [first, self.born(first)]

    def born(self, beside: House) -> House:
        self.births += 1
        return House(beside.home, beside.clock, beside.random, f"own_{self.births}")

    def teardown(self) -> None:
        if hasattr(self, "houses"):
            assert self.houses[0].verified() is None
            home = self.houses[0].home
            for house in self.houses:
                house.close()
            shutil.rmtree(home)

    @property
    def any(self) -> House:
        return self.houses[0]

    # --- what happens -----------------------------------------------------------------------

    @rule(
        dataset=st.sampled_from(["a", "b", "c"]),
        key=st.sampled_from([None, None, "k1", "k2"]),
        principal=st.sampled_from(["p1", "p1", "p2"]),
        job=st.sampled_from(["export", "export", "payout"]),
    )
    def ask(self, dataset: str, key: str | None, principal: str, job: str) -> None:
        answer = self.any.ask(dataset, job=job, key=key, principal=principal)
        if isinstance(answer, Accepted) and not answer.joined:
            others = [one for one in self.seen.values() if one.intent == answer.operation.intent]
            assert all(one.final for one in others), "a second operation beside a running one"

    @rule(
        target=permits,
        who=st.integers(0, 1),
        pick=st.integers(0, 20),
        on_time=st.sampled_from([True, True, True, False]),
    )
    @precondition(lambda self: self.seen)
    def reserve(self, who: int, pick: int, on_time: bool) -> Any:
        op = list(self.seen.values())[pick % len(self.seen)]
        if on_time and op.next_at is not None and not op.lease_owner:
            self.any.due(op)
        before = self.any.read(op)
        left = self.open_attempt(op)
        got = self.houses[who].reserve(op)
        if left is not None and self.is_held(before):
            assert got is False
            assert self.open_attempt(op) == left, "taken from a living owner"
        if not isinstance(got, Reserved):
            note(f"{op.id}: {got}, {self.any.read(op).state}")
            return multiple()
        note(f"{op.id}: permit {got.permit.attempt_id} for {got.operation.step}")
        assert before.lease_owner is None
        assert not before.final
        if got.permit.fence > 1 and before.step is Step.SEND:
            assert self.effects[op.id] == 0, "sent again what may have been applied"
        return got

    @rule(target=permits, reserved=permits, who=st.integers(0, 1))
    def overtake(self, reserved: Reserved, who: int) -> Any:
        """The owner stalls for longer than its lease, and another process goes on."""
        self.any.clock.suspend(45_001)
        operation_id = reserved.permit.operation_id
        self.houses[who].reserve(operation_id)
        if self.any.read(operation_id).next_at is None:
            return multiple()
        self.any.due(operation_id)
        newer = self.houses[who].reserve(operation_id)
        return newer if isinstance(newer, Reserved) else multiple()

    def open_attempt(self, op: Operation) -> Attempt | None:
        return next((one for one in self.any.attempts(op) if one.closed_at is None), None)

    def is_held(self, op: Operation) -> bool:
        """Whether the lease is not over and its owner lives."""
        now = self.any.clock.now()
        owners = {house.ledger.owner for house in self.houses}
        return op.lease_owner in owners and op.lease_until is not None and now.boot < op.lease_until

    @rule(reserved=consumes(permits), said=st.sampled_from(ANSWERS), who=st.integers(0, 1))
    def answer(self, reserved: Reserved, said: Said, who: int) -> None:
        self.comes_in(reserved, said, who)

    @rule(reserved=consumes(permits), dies=st.booleans())
    def send_and_vanish(self, reserved: Reserved, dies: bool) -> None:
        """The request leaves and has its effect; nobody is left to store the answer."""
        if self.any.clock.now().boot <= reserved.permit.send_by_boot:
            self.count(reserved.permit.operation_id, reserved.operation.step, LOST)
        if dies:
            for who in range(2):
                self.die_and_come_back(who, True)

    def count(self, operation_id: str, step: Step, said: Said) -> None:
        if said.sent:
            self.arrived[operation_id, step] += 1
            if step is Step.SEND and said in (TAKEN, LOST, BUSY, NONSENSE):
                self.effects[operation_id] += 1

    @rule(who=st.integers(0, 1), pick=st.integers(0, 20), said=st.sampled_from(ANSWERS))
    @precondition(lambda self: self.seen)
    def carry(self, who: int, pick: int, said: Said) -> None:
        """What a worker does: a permit, when it is due, and its outcome."""
        got = self.reserve(who, pick, True)
        if isinstance(got, Reserved):
            self.comes_in(got, said, who)

    def comes_in(self, reserved: Reserved, said: Said, who: int) -> None:
        """The sender compares `send_by`; any process may be the one whose answer comes in."""
        if self.any.clock.now().boot > reserved.permit.send_by_boot:
            said = TOO_LATE
        operation_id, step = reserved.permit.operation_id, reserved.operation.step
        self.count(operation_id, step, said)
        number = reserved.operation.number
        job = self.seen[operation_id].provider_job or f"exp_{number}"
        if isinstance(said.body, dict) and said is not FOREIGN:
            said = Said(said.status, {**said.body, "id": job}, said.headers)
        after = self.houses[who].settle(reserved, said)
        note(f"{operation_id}: {step} {said.status} -> {after.state}")

    @rule(ms=st.sampled_from([1, 1_000, 9_999, 10_001, 45_000, 61_000, 900_000, 3_600_000]))
    def time_goes_by(self, ms: int) -> None:
        self.any.clock.suspend(ms)

    @rule(ms=st.sampled_from([-3_600_000, -5_000, 5_000, 3_600_000]))
    def somebody_sets_the_clock(self, ms: int) -> None:
        self.any.clock.jump(ms)
        self.any.recover()

    @rule(who=st.integers(0, 1), recovers=st.booleans())
    def die_and_come_back(self, who: int, recovers: bool) -> None:
        dead = self.houses[who]
        dead.close()
        self.houses[who] = self.born(dead)
        if recovers:
            self.houses[who].recover()

    @rule(pick=st.integers(0, 20), option=st.sampled_from(list(Option)), word=st.integers(0, 3))
    @precondition(
        lambda self: any(
            one.state is State.ESCALATED or one.approve_by for one in self.seen.values()
        )
    )
    def decide(self, pick: int, option: Option, word: int) -> None:
        asked = [op for op in self.seen.values() if self.any.case(op) is not None]
        if not asked:
            return
        op = asked[pick % len(asked)]
        case = self.any.case(op)
        assert case is not None
        offered = [Option(one["id"]) for one in case.options]
        chosen = option if option in offered else offered[pick % len(offered)]
        given: dict[str, Any] = {}
        if chosen is Option.TREAT_AS:
            given["treat_as"] = ["waiting", "blocked", "failed", "cancelled"][word]
        if chosen is Option.CONFIRM_DONE:
            given["reference"] = f"exp_{op.number}"
        answer = self.houses[word % 2].decide(op, chosen, **given)
        note(f"{op.id}: {chosen}, {type(answer).__name__}")
        if isinstance(answer, Decided):
            assert not op.final

    @rule(pick=st.integers(0, 20))
    @precondition(lambda self: self.seen)
    def drop(self, pick: int) -> None:
        self.any.drop(list(self.seen.values())[pick % len(self.seen)])

    @rule(pick=st.integers(0, 20), kind=st.sampled_from([Kind.CANCEL, Kind.RESULT]))
    def follow_up(self, pick: int, kind: Kind) -> None:
        fit = [
            op
            for op in self.seen.values()
            if op.action == "export"
            and op.kind is Kind.JOB
            and op.provider_job is not None
            and (op.state is State.SUCCEEDED if kind is Kind.RESULT else not op.final)
            and (kind is Kind.CANCEL or "result.url" in op.take)
        ]
        if fit:
            job = fit[pick % len(fit)]
            answer = self.any.ask_follow_up(job, kind)
            assert answer is not None

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "houses"):
            return
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
def test_whatever_happens_nothing_is_lost_doubled_or_forgotten() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            database=None,
        ),
    )
