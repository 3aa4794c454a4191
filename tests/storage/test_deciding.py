"""Decisions: once, on the facts that were shown, granting exactly what the option says."""

from __future__ import annotations

import pytest
from tests.storage.house import (
    ACCEPTED,
    CONTRACT,
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

from forbear.rules.decisions import Wish
from forbear.rules.model import (
    Certainty,
    Code,
    DelaySource,
    Kind,
    Notice,
    Operation,
    Option,
    Reason,
    Refusal,
    State,
    Step,
)
from forbear.storage.deciding import Decided
from forbear.storage.reserving import Reserved


def decided(answer: Decided | Refusal) -> Operation:
    assert isinstance(answer, Decided), answer
    return answer.operation


def refused(answer: Decided | Refusal) -> Code:
    assert isinstance(answer, Refusal), answer
    return answer.code


def exhausted(house: House) -> Operation:
    """A job whose last allowed request brought no end."""
    op = house.waiting()
    for _ in range(4):
        op = house.poll(op, RUNNING)
    assert op.state is State.ESCALATED
    return op


@pytest.mark.requirement("W17")
def test_extend_grants_its_time_and_requests_once_and_lowers_no_counter(house: House) -> None:
    op = exhausted(house)
    now = house.clock.now().wall
    after = decided(house.decide(op, Option.EXTEND))
    assert after.deadline_at == max(now, op.deadline_at) + 15 * MINUTE
    assert (after.status_requests.used, after.status_requests.max) == (4, 8)
    assert after.transport_failures.max == op.transport_failures.max + 1
    assert after.rate_limited.max == op.rate_limited.max + 1
    assert (after.extensions.used, after.extensions.max) == (1, 1)
    assert (after.state, after.next_at, after.step) == (State.WAITING, now, Step.STATUS)
    assert after.delay_source is DelaySource.MANUAL_EXTENSION
    for _ in range(4):
        op = house.poll(op, RUNNING)
    assert op.state is State.ESCALATED
    assert refused(house.decide(op, Option.EXTEND)) is Code.OPTION_NOT_OFFERED


def test_extend_after_the_deadline_counts_from_the_decision(house: House) -> None:
    op = house.waiting()
    house.clock.advance(60 * MINUTE)
    house.reserve(op)
    now = house.clock.now().wall
    after = decided(house.decide(op, Option.EXTEND, extend_by=5 * MINUTE, requests=2))
    assert after.deadline_at == now + 5 * MINUTE
    assert after.status_requests.max == op.status_requests.max + 2


def test_a_wish_above_the_contract_gets_what_the_contract_grants(house: House) -> None:
    op = exhausted(house)
    after = decided(house.decide(op, Option.EXTEND, extend_by=900 * MINUTE, requests=500))
    assert after.deadline_at == max(house.clock.now().wall, op.deadline_at) + 15 * MINUTE
    assert after.status_requests.max == 8


@pytest.mark.parametrize(
    ("said", "state"), [(RUNNING, State.ESCALATED), (DONE, State.SUCCEEDED)], ids=["no end", "end"]
)
def test_check_again_is_one_request_beyond_the_spent_maximum(
    house: House, said: Said, state: State
) -> None:
    op = exhausted(house)
    first = house.case(op)
    assert first is not None
    after = decided(house.decide(op, Option.CHECK_AGAIN))
    assert (after.status_requests.max, after.once) == (4, "request_budget_exhausted")
    assert house.send(op, said).state is state
    assert house.read(op).status_requests.used == 5
    if state is State.ESCALATED:
        second = house.case(op)
        assert second is not None
        assert (second.reason, second.id == first.id) == (first.reason, False)
        assert house.reserve(op) is False


def test_check_again_goes_past_the_deadline_once(house: House) -> None:
    op = house.waiting()
    house.clock.advance(60 * MINUTE)
    house.reserve(op)
    decided(house.decide(op, Option.CHECK_AGAIN))
    assert house.send(op, RUNNING).state is State.ESCALATED
    assert len(house.cases(op)) == 2


def test_hold_waits_for_its_time_and_then_looks_once(house: House) -> None:
    op = house.waiting()
    op = house.poll(op, LIMITED)
    op = house.poll(op, Said(429, {}, (("Retry-After", "60"),)))
    assert op.state is State.ESCALATED
    until = house.clock.now().wall + 120 * MINUTE
    after = decided(house.decide(op, Option.HOLD, until=until))
    assert (after.state, after.next_at) == (State.WAITING, until)
    assert house.reserve(op) is False
    assert house.poll(op, DONE).state is State.SUCCEEDED


@pytest.mark.parametrize("ahead", [-1, 0, 24 * 60 * MINUTE + 1])
def test_hold_lies_within_a_day(house: House, ahead: int) -> None:
    op = house.waiting()
    house.poll(op, LIMITED)
    house.poll(op, LIMITED)
    until = house.clock.now().wall + ahead
    assert refused(house.decide(op, Option.HOLD, until=until)) is Code.INVALID_ARGUMENTS
    assert house.case(op) is not None


@pytest.mark.parametrize(
    ("as_class", "state"),
    [("waiting", State.WAITING), ("failed", State.FAILED), ("cancelled", State.CANCELLED)],
)
def test_treat_as_counts_the_word_for_this_operation_alone(
    house: House, as_class: str, state: State
) -> None:
    odd = Said(200, {"id": "exp_1", "state": "odd"})
    op = house.poll(house.waiting(), odd)
    assert op.state is State.ESCALATED
    before = op.deadline_at
    after = decided(house.decide(op, Option.TREAT_AS, treat_as=as_class))
    assert (after.treat, after.deadline_at) == ({"odd": as_class}, before)
    assert house.send(op, odd).state is state
    other = house.waiting("other", "exp_2")
    assert house.poll(other, Said(200, {"id": "exp_2", "state": "odd"})).state is State.ESCALATED


@pytest.mark.parametrize("as_class", ["succeeded", "done", "", None])
def test_treat_as_never_makes_a_success(house: House, as_class: str | None) -> None:
    op = house.poll(house.waiting(), Said(200, {"id": "exp_1", "state": "odd"}))
    answer = house.decide(op, Option.TREAT_AS, treat_as=as_class)
    assert refused(answer) is Code.INVALID_ARGUMENTS


@pytest.mark.requirement("R24")
def test_confirm_done_observes_the_job_that_a_person_found(house: House) -> None:
    op = house.send(house.new(), LOST)
    after = decided(house.decide(op, Option.CONFIRM_DONE, reference="exp_7"))
    assert (after.state, after.provider_job, after.certainty) == (
        State.WAITING,
        "exp_7",
        Certainty.APPLIED,
    )
    reserved = house.permit(op)
    assert (reserved.request.method, reserved.request.url) == (
        "GET",
        "https://api.exp.example/v1/exports/exp_7",
    )


def test_confirm_done_needs_an_id_that_nobody_watches(house: House) -> None:
    house.waiting("a", "exp_1")
    op = house.send(house.new("b"), LOST)
    for reference in (None, "", "exp_1"):
        answer = house.decide(op, Option.CONFIRM_DONE, reference=reference)
        assert refused(answer) is Code.INVALID_ARGUMENTS
    assert house.read(op).state is State.ESCALATED
    assert house.case(op) is not None


@pytest.mark.requirement("R24")
def test_confirm_not_done_ends_without_a_request(house: House) -> None:
    op = house.send(house.new(), LOST)
    after = decided(house.decide(op, Option.CONFIRM_NOT_DONE))
    assert (after.state, after.certainty) == (State.FAILED, Certainty.NOT_APPLIED)
    assert len(house.attempts(op)) == 1


def test_abandon_says_what_may_still_run(house: House) -> None:
    op = exhausted(house)
    after = decided(house.decide(op, Option.ABANDON))
    assert after.state is State.DISCARDED
    assert Notice.MAY_STILL_RUN in after.notices


@pytest.mark.requirement("W17")
def test_a_submission_that_was_never_sent_goes_on_with_one_more_of_each_spent_maximum(
    house: House,
) -> None:
    op = house.new()
    for _ in range(3):
        op = house.poll(op, UNSENT)
    assert op.state is State.ESCALATED
    after = decided(house.decide(op, Option.EXTEND))
    assert (after.state, after.step) == (State.DELAYED, Step.SEND)
    assert (after.transport_failures.used, after.transport_failures.max) == (3, 4)
    assert house.send(op, ACCEPTED).state is State.WAITING


def test_an_unclear_submission_is_never_resumed_by_sending_it(house: House) -> None:
    op = house.send(house.new(), LOST)
    for option in (Option.EXTEND, Option.CHECK_AGAIN, Option.HOLD, Option.RESUBMIT):
        assert refused(house.decide(op, option)) is Code.OPTION_NOT_OFFERED
    assert house.read(op) == op


def test_rebind_goes_on_at_the_present_contract(house: House) -> None:
    op = house.waiting()
    house.clock.advance(2 * MINUTE)
    house.reserve(op, None)
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.CONTRACT_CHANGED
    now = holding(text=CONTRACT.replace("GET /exports/{id}", "GET /new/{id}"))
    by = {"by": "operator"}
    answer = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, Wish(Option.REBIND), now, by)
    )
    assert decided(answer).binding == now.action.binding
    reserved = house.reserve(op, now)
    assert isinstance(reserved, Reserved)
    assert reserved.request.url.endswith("/new/exp_1")


# --- once, and on what was shown ------------------------------------------------------------


def test_the_second_of_two_decisions_is_refused_and_changes_nothing(house: House) -> None:
    op = exhausted(house)
    case = house.case(op)
    assert case is not None
    decided(house.decide(op, Option.EXTEND))
    before = house.read(op)
    wish, by = Wish(Option.ABANDON), {"by": "other"}
    answer = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, wish, holding(), by)
    )
    assert refused(answer) is Code.NOT_ALLOWED_IN_STATE
    assert house.read(op) == before


def test_a_decision_on_facts_that_changed_is_refused(house: House) -> None:
    op = exhausted(house)
    assert refused(house.decide(op, Option.EXTEND, revision=0)) is Code.NOT_ALLOWED_IN_STATE
    assert house.read(op) == op


def test_an_unknown_case_is_refused(house: House) -> None:
    wish = Wish(Option.ABANDON)
    answer = house.write(
        lambda c: house.ledger.decide(c, "esc_no", 1, wish, None, {"by": "operator"})
    )
    assert refused(answer) is Code.UNKNOWN_OPERATION


def test_a_decision_records_who_what_and_when(house: House) -> None:
    op = exhausted(house)
    case = house.case(op)
    assert case is not None
    house.decide(op, Option.EXTEND, requests=2)
    (closed,) = house.cases(op)
    assert closed.decision == {
        "option": "extend",
        "requests": 2,
        "at": house.clock.now().wall,
        "by": "operator",
        "channel": "test",
    }
    assert closed.closed_because == "decided"
    body = house.events(op)[-1].body
    assert (body["case"], body["option"], body["by"]) == (case.id, "extend", "operator")
    assert house.read(op).authorisation == case.id


def test_a_dry_run_shows_the_outcome_and_stores_nothing(house: House) -> None:
    op = exhausted(house)
    case = house.case(op)
    assert case is not None
    wish, by = Wish(Option.EXTEND), {"by": "operator"}
    answer = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, wish, holding(), by, dry_run=True)
    )
    shown = decided(answer)
    assert (shown.state, shown.status_requests.max) == (State.WAITING, 8)
    assert (house.read(op), house.case(op)) == (op, case)


@pytest.mark.parametrize("option", [Option.APPROVE, Option.REJECT])
def test_an_approval_after_its_time_sends_nothing(house: House, option: Option) -> None:
    op = house.new(job="payout")
    house.clock.advance(120 * MINUTE)
    assert refused(house.decide(op, option)) is Code.NOT_ALLOWED_IN_STATE
    assert house.reserve(op) is True
    assert house.read(op).state is State.DISCARDED


def test_reject_discards_what_was_never_sent(house: House) -> None:
    op = house.new(job="payout")
    after = decided(house.decide(op, Option.REJECT))
    assert (after.state, after.certainty) == (State.DISCARDED, Certainty.NOT_SENT)
    assert house.attempts(op) == []
    assert house.case(op) is None


def test_a_case_closes_itself_when_its_operation_ends_another_way(house: House) -> None:
    op = house.new(job="payout")
    house.drop(op)
    (case,) = house.cases(op)
    assert case.closed_at is not None
    assert case.decision is None
    assert case.closed_because is not None
    assert "discarded" in case.closed_because


# --- ends on request ------------------------------------------------------------------------


def test_what_was_not_sent_is_dropped_at_once(house: House) -> None:
    assert house.drop(house.new()).state is State.DISCARDED
    delayed = house.send(house.new("other"), UNSENT)
    assert house.drop(delayed).state is State.DISCARDED


def test_what_may_have_been_applied_stays(house: House) -> None:
    op = house.send(house.new(), LOST)
    assert house.drop(op) == op


def test_dropping_what_has_ended_changes_nothing(house: House) -> None:
    op = house.poll(house.waiting(), DONE)
    events = house.codes(op)
    assert house.drop(op) == op
    assert house.codes(op) == events
    assert house.write(lambda c: house.ledger.drop(c, "op_no", "why")) is None


def test_a_dropped_job_is_not_watched_and_said_to_run_on(house: House) -> None:
    op = house.drop(house.waiting())
    assert (op.state, op.next_at) == (State.DISCARDED, None)
    assert Notice.MAY_STILL_RUN in op.notices


def test_counters_of_a_decided_operation_are_the_ones_it_had(house: House) -> None:
    op = exhausted(house)
    before = used(op)
    after = decided(house.decide(op, Option.CHECK_AGAIN))
    assert used(after) == before


# --- a decision with an operation of its own ------------------------------------------------


def test_a_cancellation_is_queued_with_its_decision(house: House) -> None:
    op = exhausted(house)
    case = house.case(op)
    assert case is not None
    answer = house.cancel_by_decision(op, case)
    assert isinstance(answer, Decided), answer
    assert answer.follow_up is not None
    assert (answer.follow_up.kind, answer.follow_up.parent_id) == (Kind.CANCEL, op.id)
    after = house.read(op)
    assert (after.state, after.status_requests.max) == (State.WAITING, 6)


def test_a_cancellation_that_may_have_been_done_is_not_repeated_and_decides_nothing(
    house: House,
) -> None:
    op = house.waiting()
    lost = house.follow_up(op, Kind.CANCEL)
    house.send(lost, LOST)
    house.decide(lost, Option.ABANDON)
    for _ in range(4):
        op = house.poll(op, RUNNING)
    case = house.case(op)
    assert case is not None
    assert refused(house.cancel_by_decision(op, case)) is Code.POSSIBLE_DUPLICATE
    assert (house.read(op), house.case(op)) == (op, case)
