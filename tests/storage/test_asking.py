"""Wishes of agents: an agent asks, a person decides, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.storage.house import BUSY, LOST, MINUTE, RUNNING, House, holding

from forbear.rules.decisions import Wish
from forbear.rules.model import Case, Code, Operation, Option, Reason, Refusal, State
from forbear.storage.deciding import Decided

BY = {"operator": "ann", "channel": "test"}


def ask(house: House, op: Operation, option: Option, **parameters: Any) -> Case | Refusal:
    held = holding(op.action)
    return house.write(
        lambda c: house.ledger.ask(c, op.id, option, "nearly done", parameters, held)
    )


def asked(house: House, op: Operation, option: Option, **parameters: Any) -> Case:
    case = ask(house, op, option, **parameters)
    assert isinstance(case, Case), case
    return case


def refused(found: Case | Refusal) -> Code:
    assert isinstance(found, Refusal), found
    return found.code


def decide(house: House, op: Operation, option: Option, **given: Any) -> Operation:
    found = house.decide(op, option, **given)
    assert isinstance(found, Decided), found
    return house.read(op)


@pytest.mark.requirement("E12")
def test_more_time_for_a_job_is_asked_for_while_it_goes_on(house: House) -> None:
    job = house.waiting()
    case = asked(house, job, Option.EXTEND, minutes=15)
    assert case.reason is Reason.REQUESTED
    assert [option["id"] for option in case.options] == ["extend", "reject"]
    for line in (
        "Asked for: extend by 15 minutes with 4 more status requests (minutes 15)",
        'Because: "nearly done" (agent\'s words)',
        "If nobody decides: it goes on as before",
        "Status requests: 0 of 4",
    ):
        assert line in case.text
    assert house.read(job) == job, "asking changes nothing"
    house.poll(job, RUNNING)
    assert house.case(job) is not None, "a poll closes no question"
    before = house.read(job)
    after = decide(house, job, Option.EXTEND)
    assert after.deadline_at == before.deadline_at + 15 * MINUTE
    assert after.status_requests.max == before.status_requests.max + 4
    assert (after.state, after.next_at) == (before.state, before.next_at)
    assert after.authorisation == case.id


@pytest.mark.requirement("E12")
def test_a_decision_while_a_check_is_out_leaves_the_check_its_lease(house: House) -> None:
    job = house.waiting()
    asked(house, job, Option.EXTEND)
    house.due(job)
    reserved = house.permit(job)
    before = house.read(job)
    after = decide(house, job, Option.EXTEND)
    assert (after.lease_owner, after.fence) == (before.lease_owner, before.fence)
    settled = house.settle(reserved, RUNNING)
    assert settled.state is State.WAITING
    assert settled.deadline_at == after.deadline_at


@pytest.mark.requirement("E12")
def test_one_wish_is_open_at_a_time_and_a_rejected_one_is_not_asked_again(house: House) -> None:
    job = house.waiting()
    asked(house, job, Option.EXTEND)
    assert refused(ask(house, job, Option.EXTEND)) is Code.ALREADY_ASKED
    assert refused(ask(house, job, Option.CANCEL_AT_PROVIDER)) is Code.OPTION_NOT_OFFERED
    rejected = decide(house, job, Option.REJECT)
    assert rejected.state is State.WAITING
    assert refused(ask(house, job, Option.EXTEND)) is Code.ALREADY_ASKED
    asked(house, job, Option.CANCEL_AT_PROVIDER)
    decide(house, job, Option.REJECT)
    house.poll(job, RUNNING)
    asked(house, job, Option.EXTEND)  # the provider says something new


@pytest.mark.requirement("E12")
def test_a_wish_joins_the_question_that_is_open_already(house: House) -> None:
    op = house.send(house.new(), LOST)
    before = house.case(op)
    assert before is not None
    assert before.reason is Reason.UNCLEAR_WRITE
    case = asked(house, op, Option.CONFIRM_NOT_DONE)
    assert (case.id, case.revision) == (before.id, before.revision + 1)
    assert "Asked for: mark as not done" in case.text
    assert refused(ask(house, op, Option.EXTEND)) is Code.OPTION_NOT_OFFERED
    assert refused(ask(house, op, Option.CONFIRM_NOT_DONE)) is Code.ALREADY_ASKED
    # Who saw the question without the wish sees it again first.
    stale = house.decide(op, Option.CONFIRM_NOT_DONE, revision=before.revision)
    assert isinstance(stale, Refusal)


@pytest.mark.requirement("E12")
def test_what_the_state_or_the_contract_rules_out_is_not_asked_for(house: House) -> None:
    queued = house.new("other")
    assert refused(ask(house, queued, Option.EXTEND)) is Code.NOT_ALLOWED_IN_STATE
    job = house.waiting()
    for option in (Option.CHECK_AGAIN, Option.ABANDON, Option.APPROVE, Option.SEND_NEW):
        assert refused(ask(house, job, option)) is Code.NOT_ALLOWED_IN_STATE
    decide_extend = asked(house, job, Option.EXTEND)
    decide(house, job, Option.EXTEND)
    assert decide_extend.closed_at is None
    house.poll(job, RUNNING)
    assert refused(ask(house, job, Option.EXTEND)) is Code.OPTION_NOT_OFFERED  # once only
    assert house.case(job) is None


@pytest.mark.requirement("E12")
def test_a_question_closes_itself_when_its_job_ends_or_stops(house: House) -> None:
    job = house.waiting()
    case = asked(house, job, Option.EXTEND)
    for _ in range(3):
        job = house.poll(job, BUSY)
    assert job.state is State.ESCALATED
    [old] = [one for one in house.cases(job) if one.id == case.id]
    assert old.closed_at is not None
    now = house.case(job)
    assert now is not None
    assert now.reason is Reason.TRANSPORT_BUDGET_EXHAUSTED
    assert "Asked for: extend by 15 minutes" in now.text, "what was asked for is still asked for"


@pytest.mark.requirement("E12")
def test_an_approved_cancellation_is_queued_and_the_job_gets_two_checks(house: House) -> None:
    job = house.waiting()
    case = asked(house, job, Option.CANCEL_AT_PROVIDER)
    found = house.cancel_by_decision(job, case)
    assert isinstance(found, Decided)
    assert found.follow_up is not None
    after = house.read(job)
    assert after.status_requests.max == job.status_requests.max + 2
    assert after.state is State.WAITING


@pytest.mark.requirement("E05", "E12")
def test_a_wish_alone_never_leads_to_a_request(house: House) -> None:
    job = house.waiting()
    asked(house, job, Option.EXTEND)
    house.clock.advance(41 * MINUTE)
    assert house.reserve(job) is True
    assert house.read(job).state is State.ESCALATED, "its deadline stands until a person decides"
    assert len(house.attempts(job)) == 1


def test_a_decision_that_would_end_it_waits_for_the_request_that_is_out(house: House) -> None:
    """While a request is out only its owner changes the state."""
    op = house.send(house.new("x", job="export"), LOST)
    assert house.case(op) is not None
    wish = Wish(Option.CONFIRM_NOT_DONE)
    case = house.case(op)
    assert case is not None
    found = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, wish, holding(), BY)
    )
    assert isinstance(found, Decided)
    assert found.operation.state is State.FAILED
