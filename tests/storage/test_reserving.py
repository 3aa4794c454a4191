"""Transaction 1: one permit or none, leases, and what an owner left open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection
from tests.storage.calls import Calls, transfers
from tests.storage.house import (
    ACCEPTED,
    CONTRACT,
    DENIED,
    DONE,
    LIMITED,
    LOST,
    MINUTE,
    RUNNING,
    UNSENT,
    House,
    Said,
    holding,
    used,
)
from tests.support import FixedRandom

from forbear.rules.model import (
    Certainty,
    DelaySource,
    Option,
    Reason,
    State,
    Step,
    Trigger,
    WaitingFor,
)
from forbear.storage.errors import LostUpdate
from forbear.storage.ledger import Ledger
from forbear.storage.reserving import Reserved
from forbear.storage.roster import pairing
from forbear.storage.transitions import Holding, move_next

LEASE = 45_000
"""10 s to hand over, 30 s for the answer, 5 s to settle."""


@pytest.mark.requirement("W15", "A02", "D01")
def test_a_permit_is_counted_leased_and_told_of_in_one_transaction(house: House) -> None:
    op = house.new()
    reserved = house.permit(op)
    now = house.clock.now()
    after = house.read(op)
    assert (after.state, after.attempts.used, after.fence) == (State.SENDING, 1, 1)
    assert (after.lease_owner, after.lease_until) == ("own_a", now.boot + LEASE)
    assert after.next_at == now.wall + LEASE
    assert reserved.permit.send_by == now.wall + 10_000
    assert reserved.permit.send_by_boot == now.boot + 10_000
    (attempt,) = house.attempts(op)
    assert (attempt.closed_at, attempt.hold_until) == (None, now.wall + LEASE)
    assert house.codes(op) == ["accepted", "reserved"]


@pytest.mark.requirement("W15", "D03")
def test_a_reservation_that_is_not_committed_makes_nothing(house: House) -> None:
    op = house.new()

    def interrupted(connection: Connection) -> None:
        assert isinstance(house.ledger.reserve(connection, op.id, holding()), Reserved)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        house.write(interrupted)
    assert house.read(op) == op
    assert house.attempts(op) == []


@pytest.mark.requirement("W15", "D05")
def test_two_reserves_in_a_row_yield_one_permit(house: House) -> None:
    op = house.new()
    assert isinstance(house.reserve(op), Reserved)
    assert house.reserve(op) is False
    with house.neighbour() as other:
        assert other.reserve(op) is False
    assert len(house.attempts(op)) == 1


@pytest.mark.parametrize("case", ["BU-01"])
@pytest.mark.requirement("W15", "D05")
def test_of_five_who_see_one_unit_left_one_gets_it(house: House, case: str) -> None:
    op = house.waiting()
    for _ in range(3):
        house.poll(op, RUNNING)
    assert house.read(op).status_requests.left == 1
    house.due(op)
    with house.neighbour() as other:
        got = [one.reserve(op) for one in (house, other, house, other, house)]
    assert [isinstance(one, Reserved) for one in got] == [True, False, False, False, False]
    assert house.read(op).status_requests.used == 4


@pytest.mark.requirement("W15")
def test_nothing_is_reserved_before_it_is_due(house: House) -> None:
    op = house.waiting()
    assert op.next_at is not None
    house.clock.advance(op.next_at - house.clock.now().wall - 1)
    assert house.reserve(op) is False
    house.clock.advance(1)
    assert isinstance(house.reserve(op), Reserved)


@pytest.mark.requirement("W15", "W11")
def test_the_deadline_is_looked_at_before_the_budget_and_before_anything_is_sent(
    house: House,
) -> None:
    op = house.waiting()
    house.sql("UPDATE operations SET status_requests_used = 4")
    house.clock.advance(41 * MINUTE)
    assert house.reserve(op) is True
    assert house.read(op).state is State.ESCALATED
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.requirement("W15", "W17")
def test_a_spent_budget_reserves_nothing_and_asks(house: House) -> None:
    op = house.waiting()
    house.sql("UPDATE operations SET status_requests_used = 4")
    house.due(op)
    assert house.reserve(op) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.REQUEST_BUDGET_EXHAUSTED
    assert len(house.attempts(op)) == 1


@pytest.mark.requirement("W11")
def test_a_late_wake_up_sends_one_request_and_catches_nothing_up(house: House) -> None:
    op = house.waiting()
    house.clock.suspend(20 * MINUTE)
    house.send(op, RUNNING)
    after = house.read(op)
    assert after.status_requests.used == 1
    assert after.next_at is not None
    assert after.next_at > house.clock.now().wall


@pytest.mark.requirement("A09", "A04")
def test_every_attempt_names_who_caused_it_and_what_allowed_it(house: House) -> None:
    op = house.waiting()
    house.poll(op, Said(200, {"id": "exp_1", "state": "odd"}))
    case = house.case(op)
    assert case is not None
    house.decide(op, Option.TREAT_AS, treat_as="waiting")
    house.send(op, RUNNING)
    house.poll(op, DONE)
    told = [(one.number, one.step, one.trigger, one.authorisation) for one in house.attempts(op)]
    assert told == [
        (1, Step.SEND, Trigger.AGENT, "contract"),
        (2, Step.STATUS, Trigger.SCHEDULE, "contract"),
        (3, Step.STATUS, Trigger.OPERATOR, case.id),
        (4, Step.STATUS, Trigger.SCHEDULE, case.id),
    ]
    reserved = [one for one in house.events(op) if one.code == "reserved"]
    assert [one.body["trigger"] for one in reserved] == [str(one[2]) for one in told]
    assert [one.body["authorisation"] for one in reserved] == [one[3] for one in told]


# --- leases ---------------------------------------------------------------------------------


@pytest.mark.requirement("D02")
def test_a_living_owner_keeps_its_lease_to_the_last_millisecond(house: House) -> None:
    op = house.new()
    house.permit(op)
    with house.neighbour() as other:
        house.clock.advance(LEASE - 1)
        assert other.reserve(op) is False
        assert house.read(op).state is State.SENDING
        house.clock.advance(1)
        assert other.reserve(op) is True
    assert house.read(op).state is State.ESCALATED


@pytest.mark.requirement("D02", "R24")
@pytest.mark.parametrize("end", ["lease over", "another boot", "owner dead"])
def test_a_lost_submission_is_closed_as_unknown_once_and_never_repeated(
    house: House, end: str
) -> None:
    op = house.new()
    house.permit(op)
    match end:
        case "lease over":
            house.clock.advance(LEASE)
        case "another boot":
            house.clock.reboot("boot-2")
        case _:
            house.liveness.release()
    with house.neighbour() as other:
        assert other.reserve(op) is True
        assert [other.reserve(op) for _ in range(3)] == [False, False, False]
    after = house.read(op)
    assert (after.state, after.certainty) == (State.ESCALATED, Certainty.MAYBE_APPLIED)
    assert (after.attempts.used, after.lease_owner) == (1, None)
    (attempt,) = house.attempts(op)
    assert attempt.outcome == "unknown"
    assert house.codes(op) == ["accepted", "reserved", "lost", "reconciliation_required"]


@pytest.mark.requirement("W13", "D02")
def test_a_lost_poll_was_counted_already_and_the_job_waits_on(house: House) -> None:
    op = house.waiting()
    house.due(op)
    house.permit(op)
    house.liveness.release()
    with house.neighbour() as other:
        assert other.reserve(op) is True
        after = other.read(op)
        assert after.state is State.WAITING
        assert (after.status_requests.used, after.transport_failures.used) == (1, 1)
        assert after.next_at is not None
        assert after.next_at > other.clock.now().wall
        assert len(other.attempts(op)) == 2


@pytest.mark.requirement("D02")
def test_what_a_dead_owner_held_is_due_at_once(house: House) -> None:
    op = house.new()
    house.permit(op)
    with house.neighbour() as other:
        other.sign_on()
        assert other.recover() == 0
        house.liveness.release()
        assert other.recover() == 1
        assert other.read(op).next_at == other.clock.now().wall
        assert other.recover() == 0


@pytest.mark.parametrize("case", ["DB-06"])
@pytest.mark.requirement("D04")
def test_a_wait_longer_than_any_lease_holds_none_and_runs_once(house: House, case: str) -> None:
    op = house.waiting()
    after = house.poll(op, Said(503, {}, (("Retry-After", "120"),)))
    assert after.lease_owner is None
    assert after.next_at is not None
    assert after.next_at >= house.clock.now().wall + 120_000
    with house.neighbour() as other:
        house.clock.advance(60_000)
        assert (house.reserve(op), other.reserve(op)) == (False, False)
        house.due(op)
        got = [house.reserve(op), other.reserve(op)]
    assert [isinstance(one, Reserved) for one in got] == [True, False]


@pytest.mark.requirement("D02")
def test_fences_only_grow(house: House) -> None:
    op = house.waiting()
    for _ in range(3):
        house.poll(op, RUNNING)
    fences = [one.fence for one in house.attempts(op)]
    assert fences == sorted(set(fences)) == [1, 2, 3, 4]


@pytest.mark.requirement("D03", "D05")
def test_a_change_made_on_a_row_that_moved_on_is_refused(house: House) -> None:
    op = house.waiting()
    stale = replace(op, revision=op.revision - 1)
    with pytest.raises(LostUpdate):
        house.write(lambda c: move_next(c, stale, 1, 1, None))
    assert house.read(op) == op


# --- scopes ---------------------------------------------------------------------------------


@pytest.mark.requirement("W15")
def test_slots_are_the_open_attempts_whose_hold_is_not_over(house: House) -> None:
    ops = [house.new(f"set-{n}") for n in range(3)]
    first = house.permit(ops[0])
    house.permit(ops[1])
    assert house.reserve(ops[2]) is False
    held = house.read(ops[2])
    assert (held.state, held.waiting_for) == (State.QUEUED, WaitingFor.SLOT)
    house.settle(first, ACCEPTED)
    assert house.read(ops[2]).next_at == house.clock.now().wall
    assert isinstance(house.reserve(ops[2]), Reserved)


def test_a_slot_that_nobody_frees_is_free_when_its_hold_is_over(house: House) -> None:
    ops = [house.new(f"set-{n}") for n in range(3)]
    house.permit(ops[0])
    house.permit(ops[1])
    assert house.reserve(ops[2]) is False
    house.due(ops[2])
    assert isinstance(house.reserve(ops[2]), Reserved)


def test_a_429_holds_the_whole_scope(house: House) -> None:
    op, other = house.waiting("a", "exp_1"), house.waiting("b", "exp_2")
    house.poll(op, LIMITED)
    blocked = house.clock.now().wall + 30_000
    assert house.sql("SELECT next_allowed_at FROM scopes") == [(blocked,)]
    third = house.new("c")
    for one in (other, third):
        assert house.reserve(one) is False
        held = house.read(one)
        assert (held.waiting_for, held.delay_source) == (WaitingFor.SCOPE, DelaySource.SCOPE_LIMIT)
        assert held.next_at is not None
        assert held.next_at >= blocked


def test_a_shorter_block_leaves_a_longer_one_in_place(house: House) -> None:
    a, b = house.waiting("a", "exp_1"), house.waiting("b", "exp_2")
    house.due(a)
    house.due(b)
    first, second = house.permit(a), house.permit(b)
    house.settle(first, Said(429, {}, (("Retry-After", "300"),)))
    long = house.sql("SELECT next_allowed_at FROM scopes")
    house.settle(second, Said(429, {}, (("Retry-After", "5"),)))
    assert house.sql("SELECT next_allowed_at FROM scopes") == long


# --- what a process holds -------------------------------------------------------------------

OTHER_BINDING = CONTRACT.replace('status = "GET /exports/{id}"', 'status = "GET /other/{id}"')


@pytest.mark.requirement("D10")
@pytest.mark.parametrize("held", [None, holding(text=OTHER_BINDING)], ids=["none", "another"])
def test_a_process_without_the_contract_reserves_nothing(
    house: House, held: Holding | None
) -> None:
    op = house.new()
    assert house.reserve(op, held) is False
    assert house.read(op) == op


@pytest.mark.requirement("D10", "W08")
def test_what_no_living_process_can_run_asks_after_a_minute(house: House) -> None:
    op = house.new()
    house.clock.advance(59_999)
    assert house.reserve(op, None) is False
    house.clock.advance(1)
    assert house.reserve(op, None) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.CONTRACT_CHANGED
    assert house.codes(op) == ["accepted", "stranded"]


@pytest.mark.requirement("D10")
def test_what_another_living_process_can_run_is_left_to_it(house: House) -> None:
    op = house.new()
    with house.neighbour() as other:
        other.sign_on(op.binding)
        house.clock.advance(10 * MINUTE)
        assert house.reserve(op, None) is False
        other.liveness.release()
        assert house.reserve(op, None) is True
    assert house.read(op).state is State.ESCALATED


@pytest.mark.requirement("D10", "W11")
def test_a_stranded_operation_still_ends_by_its_deadline(house: House) -> None:
    op = house.waiting()
    with house.neighbour() as other:
        other.sign_on(op.binding)
        house.clock.advance(41 * MINUTE)
        assert house.reserve(op, None) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.requirement("D10")
def test_the_first_credential_is_registered_and_another_one_sends_nothing(house: House) -> None:
    op, other = house.new("a"), house.new("b")
    house.permit(op)
    assert house.sql("SELECT fingerprint FROM credentials") == [("fp-1",)]
    assert house.reserve(other, holding(credential="fp-2")) is False
    held = house.read(other)
    assert (held.state, held.waiting_for) == (State.QUEUED, WaitingFor.CREDENTIAL)
    assert house.sql("SELECT fingerprint FROM credentials") == [("fp-1",)]
    house.due(other)
    assert isinstance(house.reserve(other), Reserved)


@pytest.mark.requirement("D10")
def test_a_missing_credential_sends_nothing_and_waits(house: House) -> None:
    op = house.new()
    assert house.reserve(op, holding(credential=None)) is False
    assert house.read(op).waiting_for is WaitingFor.CREDENTIAL
    assert house.sql("SELECT * FROM credentials") == []


@pytest.mark.requirement("D10")
@pytest.mark.parametrize("credential", [None, "fp-2"])
def test_a_process_without_the_credential_leaves_work_to_a_living_one_that_has_it(
    house: House, credential: str | None
) -> None:
    op = house.waiting()
    house.sign_on(op.binding, pairing(op.binding, "fp-1"))
    house.due(op)
    with house.neighbour() as poor:
        before = poor.read(op)
        assert poor.reserve(op, holding(credential=credential)) is False
        assert poor.read(op) == before
        house.liveness.release()
        assert poor.reserve(op, holding(credential=credential)) is False
        assert poor.read(op).waiting_for is WaitingFor.CREDENTIAL


@pytest.mark.requirement("D10", "W11")
def test_a_process_without_the_credential_still_ends_what_is_over(house: House) -> None:
    op = house.waiting()
    house.sign_on(op.binding, pairing(op.binding, "fp-1"))
    house.clock.advance(41 * MINUTE)
    with house.neighbour() as poor:
        assert poor.reserve(op, holding(credential=None)) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.requirement("D10")
def test_a_first_submission_is_left_to_the_process_that_has_a_credential(house: House) -> None:
    op = house.new()
    house.sign_on(op.binding, pairing(op.binding, "fp-1"))
    with house.neighbour() as poor:
        assert poor.reserve(op, holding(credential=None)) is False
    assert house.read(op).waiting_for is None
    assert isinstance(house.reserve(op), Reserved)


@pytest.mark.requirement("D10")
def test_a_refused_credential_is_blocked_for_every_process_until_it_changes(house: House) -> None:
    op, other = house.waiting("a", "exp_1"), house.waiting("b", "exp_2")
    assert house.poll(op, DENIED).state is State.ESCALATED
    with house.neighbour() as neighbour:
        neighbour.due(other)
        assert neighbour.reserve(other) is False
        assert neighbour.read(other).waiting_for is WaitingFor.CREDENTIAL
        neighbour.due(other)
        assert isinstance(neighbour.reserve(other, holding(version="v-2")), Reserved)


def test_a_403_blocks_no_credential(house: House) -> None:
    op, other = house.waiting("a", "exp_1"), house.waiting("b", "exp_2")
    house.poll(op, Said(403, {}))
    house.due(other)
    assert isinstance(house.reserve(other), Reserved)


# --- clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["CL-02"])
def test_a_clock_set_back_an_hour_lengthens_no_wait(house: House, case: str) -> None:
    op = house.waiting()
    house.poll(op, LIMITED)
    planned = house.read(op).next_at
    assert planned is not None
    wait = planned - house.clock.now().wall
    house.clock.jump(-60 * MINUTE)
    assert house.recover() == 1
    now = house.clock.now().wall
    after = house.read(op)
    assert (after.next_at, after.not_before) == (now + wait, now + 30_000)
    assert house.sql("SELECT next_allowed_at FROM scopes") == [(now + 30_000,)]
    assert house.recover() == 0
    assert house.codes(op)[-1] == "check_moved"
    house.due(op)
    assert isinstance(house.reserve(op), Reserved)


@pytest.mark.parametrize("case", ["CL-02"])
def test_a_clock_set_forward_is_only_late(house: House, case: str) -> None:
    op = house.waiting()
    house.clock.jump(30 * MINUTE)
    assert house.recover() == 0
    assert house.poll(op, RUNNING).status_requests.used == 1


@pytest.mark.parametrize("case", ["CL-02"])
def test_a_token_bucket_survives_a_clock_that_is_set_back(house: House, case: str) -> None:
    slow = CONTRACT.replace('rate = "1000/1s"', 'rate = "1/10s"')
    held = holding(text=slow)
    ops = [house.new(f"set-{n}", held=held) for n in range(2)]
    house.settle(house.permit(ops[0], held), UNSENT)
    house.clock.jump(-60 * MINUTE)
    house.recover()
    assert house.reserve(ops[1], held) is False
    at = house.read(ops[1]).next_at
    assert at is not None
    assert at - house.clock.now().wall < 15_000


def test_a_lease_is_counted_on_the_clock_that_nobody_sets(house: House) -> None:
    op = house.new()
    house.permit(op)
    with house.neighbour() as other:
        house.clock.jump(60 * MINUTE)
        assert other.reserve(op) is False
        house.clock.jump(-120 * MINUTE)
        house.clock.suspend(LEASE)
        assert other.reserve(op) is True


@pytest.mark.requirement("W11", "R13")
@pytest.mark.parametrize("behind", [21 * MINUTE, 24 * 60 * MINUTE])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_key_is_not_younger_because_a_clock_was_set_back(
    house: House, behind: int, restarts: bool
) -> None:
    """The provider knows it for two minutes; twenty went by, and the clock tells another story."""
    calls = Calls(house, CONTRACT + transfers())
    op = calls.new("keyed", id="9")
    calls.send(op, Said(503, {}))
    house.clock.advance(20 * MINUTE)
    if restarts:
        house.clock.reboot("boot-2")
    house.clock.jump(-behind)
    house.recover()
    house.due(op)
    assert calls.reserve(op) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.UNCLEAR_WRITE


@pytest.mark.parametrize("case", ["DB-04"])
@pytest.mark.requirement("D02")
def test_a_namesake_that_took_over_is_not_undone_by_the_one_that_stalled(
    house: House, case: str
) -> None:
    op = house.waiting()
    house.due(op)
    stalled = house.permit(op)
    house.clock.advance(LEASE)
    namesake = House(house.home, house.clock, house.random, "own_a", claimed=False)
    assert namesake.reserve(op) is True
    namesake.due(op)
    newer = namesake.permit(op)
    late = house.settle(stalled, RUNNING)
    assert (late.fence, late.lease_owner) == (newer.operation.fence, "own_a")
    assert namesake.settle(newer, DONE).state is State.SUCCEEDED
    assert [one.late for one in house.attempts(op)] == [False, True, False]
    namesake.close()


def test_the_ledger_of_one_process_reads_its_clock_inside_the_transaction(house: House) -> None:
    """A unit that is run again, later, decides by the later time."""
    op = house.waiting()
    ledger = Ledger(house.clock, FixedRandom(), house.liveness)
    assert house.write(lambda c: ledger.reserve(c, op.id, holding())) is False
    house.due(op)
    assert isinstance(house.write(lambda c: ledger.reserve(c, op.id, holding())), Reserved)


def test_a_used_counter_is_the_number_of_reservations(house: House) -> None:
    op = house.waiting()
    house.poll(op, LOST)
    house.poll(op, RUNNING)
    steps = [one.step for one in house.attempts(op)]
    assert used(house.read(op))["status_requests"] == steps.count(Step.STATUS) == 2
