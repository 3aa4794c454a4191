"""One operation per intent: the identity rules, on stored rows."""

from __future__ import annotations

import pytest
from tests.storage.house import (
    ACCEPTED,
    DONE,
    FAILED,
    LOST,
    MINUTE,
    UNSENT,
    House,
    Said,
    holding,
    used,
)

from forbear.rules.model import Certainty, Operation, Option, State
from forbear.rules.sameness import Duplicate, KeyConflict
from forbear.storage.accepting import Accepted

REJECTED = Said(422, {"error": "no"})


def joined(answer: object) -> Operation:
    assert isinstance(answer, Accepted), answer
    assert answer.joined
    return answer.operation


@pytest.mark.requirement("W12", "R13", "D01")
def test_everything_that_bounds_an_operation_is_stored_before_anything_is_sent(
    house: House,
) -> None:
    op = house.new()
    now = house.clock.now().wall
    assert (op.state, op.next_at, op.deadline_at) == (State.QUEUED, now, now + 40 * MINUTE)
    maxima = (op.status_requests.max, op.transport_failures.max, op.rate_limited.max)
    assert maxima == (4, 3, 2)
    assert (op.attempts.max, op.extensions.max) == (1, 1)
    assert set(used(op).values()) == {0}
    assert house.attempts(op) == []
    assert house.codes(op) == ["accepted"]
    assert house.sql("SELECT count(*) FROM requests") == [(1,)]


@pytest.mark.requirement("W08")
def test_what_must_agree_is_stored_as_one_row(house: House) -> None:
    op = house.waiting()
    action = holding().action
    assert (op.account, op.provider_job, op.binding) == ("acct_17", "exp_1", action.binding)
    assert len(op.intent) == 64


@pytest.mark.requirement("R14")
def test_the_same_action_joins_while_it_runs(house: House) -> None:
    op = house.new(task="month-end")
    assert joined(house.ask(task="audit")).id == op.id
    house.send(op, ACCEPTED)
    assert joined(house.ask(task="audit")).state is State.WAITING
    assert house.sql("SELECT task FROM tasks ORDER BY task") == [("audit",), ("month-end",)]
    assert house.codes(op).count("joined") == 1
    assert len(house.all()) == 1


@pytest.mark.requirement("R14", "W17")
def test_joining_leaves_every_counter_and_limit_as_it_was(house: House) -> None:
    op = house.waiting()
    before = house.poll(op, LOST)
    assert joined(house.ask()) == before


@pytest.mark.requirement("R14")
def test_another_action_is_another_operation(house: House) -> None:
    assert house.new("sales").id != house.new("costs").id


@pytest.mark.requirement("R14")
def test_a_known_key_joins_and_with_another_intent_conflicts(house: House) -> None:
    op = house.new("sales", key="mine")
    assert joined(house.ask("sales", key="mine")).id == op.id
    conflict = house.ask("costs", key="mine")
    assert isinstance(conflict, KeyConflict)
    assert conflict.operation.id == op.id
    assert len(house.all()) == 1


@pytest.mark.requirement("R14")
def test_a_known_key_joins_even_long_after_the_end(house: House) -> None:
    op = house.new(key="mine")
    house.send(op, ACCEPTED)
    house.poll(op, DONE)
    house.clock.advance(400 * 24 * 60 * MINUTE)
    assert joined(house.ask(key="mine")).state is State.SUCCEEDED


@pytest.mark.requirement("R14")
@pytest.mark.parametrize("wishes", [{"key": "minted"}, {"principal": "agent-2"}], ids=str)
def test_a_minted_key_or_another_principal_does_not_go_past_a_running_operation(
    house: House, wishes: dict[str, str]
) -> None:
    op = house.new()
    answer = house.ask(**wishes)
    assert isinstance(answer, Duplicate)
    assert answer.operation.id == op.id
    assert answer.own is ("principal" not in wishes)
    assert len(house.all()) == 1


@pytest.mark.requirement("R14")
def test_keys_of_two_principals_are_two_keys(house: House) -> None:
    house.new("sales", key="mine")
    other = house.new("costs", key="mine", principal="agent-2")
    assert other.principal == "agent-2"


@pytest.mark.requirement("R14", "R24")
@pytest.mark.parametrize("wishes", [{}, {"key": "minted"}, {"principal": "agent-2"}], ids=str)
def test_what_may_have_been_applied_is_never_a_new_operation(
    house: House, wishes: dict[str, str]
) -> None:
    op = house.new()
    house.send(op, LOST)
    house.decide(op, Option.ABANDON)
    assert house.read(op).certainty is Certainty.MAYBE_APPLIED
    house.clock.advance(400 * 24 * 60 * MINUTE)
    answer = house.ask(**wishes)
    assert isinstance(answer, Duplicate)
    assert answer.operation.id == op.id


@pytest.mark.requirement("R14")
def test_a_success_blocks_its_repetition_inside_the_window_and_not_after(house: House) -> None:
    op = house.waiting()
    house.poll(op, DONE)
    house.clock.advance(10 * MINUTE - 1)
    assert isinstance(house.ask(), Duplicate)
    assert isinstance(house.ask(key="minted"), Duplicate)
    house.clock.advance(1)
    assert house.new().id != op.id


@pytest.mark.requirement("R14")
def test_an_accepted_job_that_failed_blocks_its_repetition_for_a_day(house: House) -> None:
    op = house.waiting()
    house.poll(op, FAILED)
    house.clock.advance(24 * 60 * MINUTE - 1)
    assert isinstance(house.ask(), Duplicate)
    house.clock.advance(1)
    assert house.new().id != op.id


@pytest.mark.requirement("R14")
def test_a_contract_may_let_a_repetition_join_the_earlier_end(house: House) -> None:
    op = house.new(job="payout")
    house.decide(op, Option.APPROVE)
    house.send(op, ACCEPTED)
    house.poll(op, DONE)
    assert joined(house.ask(job="payout")).id == op.id


@pytest.mark.requirement("W17")
def test_a_repetition_of_what_had_no_effect_starts_with_what_was_used_up(house: House) -> None:
    first = house.new()
    house.send(first, UNSENT)
    house.drop(first)
    second = house.new()
    assert second.transport_failures.used == 1
    house.clock.advance(15 * MINUTE)
    house.drop(second)
    house.clock.advance(15 * MINUTE)
    assert house.new().transport_failures.used == 0


def test_a_definite_rejection_blocks_nothing(house: House) -> None:
    first = house.new()
    assert house.send(first, REJECTED).state is State.FAILED
    assert house.new().id != first.id


@pytest.mark.requirement("R13")
def test_the_request_that_was_stored_is_the_one_that_is_sent_also_again(house: House) -> None:
    op = house.new()
    first = house.permit(op)
    house.settle(first, UNSENT)
    house.due(op)
    with house.neighbour() as other:
        second = other.permit(op)
    assert second.request == first.request
    assert second.request.body is not None
    assert op.ref.encode() in second.request.body


def test_an_action_that_a_person_must_approve_waits_for_that_and_not_for_its_deadline(
    house: House,
) -> None:
    op = house.new(job="payout")
    now = house.clock.now().wall
    assert (op.state, op.waiting_for, op.next_at) == (
        State.QUEUED,
        "approval",
        now + 120 * MINUTE,
    )
    case = house.case(op)
    assert case is not None
    assert case.reason == "approval_required"
    assert house.reserve(op) is False
    house.clock.advance(50 * MINUTE)
    house.decide(op, Option.APPROVE)
    after = house.read(op)
    assert after.deadline_at == house.clock.now().wall + 40 * MINUTE
    assert after.authorisation == case.id
    assert house.send(op, ACCEPTED).state is State.WAITING


def test_what_nobody_approves_in_time_is_discarded_and_its_case_closed(house: House) -> None:
    op = house.new(job="payout")
    house.clock.advance(120 * MINUTE)
    assert house.reserve(op) is True
    assert house.read(op).state is State.DISCARDED
    assert house.case(op) is None
    assert house.attempts(op) == []


@pytest.mark.requirement("R22")
def test_who_joins_what_is_to_end_takes_the_wish_back(house: House) -> None:
    op = house.new(task="a")
    out = house.permit(op)
    house.write(lambda c: house.ledger.end_task(c, "local", "a", "over"))
    assert house.read(op).end_asked is not None
    joined = house.ask(task="b")
    assert joined.joined
    assert house.read(op).end_asked is None
    assert house.settle(out, UNSENT).state is State.DELAYED
