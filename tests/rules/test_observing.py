"""Where a contract asks for more care: costly looks, approved looks, failures that page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.rules.operations import CONTRACT, DEADLINE, JOB, MIDDLE, NOW, waiting

from forbear.rules import admission
from forbear.rules.contract import Approval, Effect, Job
from forbear.rules.decisions import Wish, grant
from forbear.rules.lifecycle import Event
from forbear.rules.model import Certainty, Notice, Operation, Option, Reason, Step, WaitingFor
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, after_attempt


def observed(job: Job, meaning: Meaning, op: Operation | None = None) -> Verdict:
    signal = Signal(meaning, Certainty.APPLIED, status=200, answered=True, state="running")
    return after_attempt(op or waiting(), CONTRACT, job, signal, NOW, MIDDLE)


def with_status(**changes: Any) -> Job:
    return replace(JOB, status=replace(JOB.status, **changes))


@pytest.mark.requirement("W18")
@pytest.mark.parametrize("effect", [Effect.BILLED, Effect.MUTATING])
@pytest.mark.parametrize("meaning", [Meaning.NO_ANSWER, Meaning.SERVER_ERROR, Meaning.UNCLEAR])
def test_a_costly_status_request_is_not_repeated_after_an_unknown_outcome(
    effect: Effect, meaning: Meaning
) -> None:
    verdict = observed(with_status(effect=effect), meaning)
    assert (verdict.event, verdict.reason) == (Event.STOPPED, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    assert observed(JOB, meaning).event is Event.OBSERVED


@pytest.mark.requirement("W18")
@pytest.mark.parametrize("meaning", [Meaning.WAITING, Meaning.RATE_LIMITED, Meaning.NOT_SENT])
def test_a_costly_status_request_goes_on_after_a_known_outcome(meaning: Meaning) -> None:
    assert observed(with_status(effect=Effect.BILLED), meaning).event is Event.OBSERVED


@pytest.mark.requirement("W31")
@pytest.mark.parametrize(
    ("mode", "asks"), [("per_call", True), ("session", False), ("none", False)]
)
def test_each_look_may_need_its_own_approval(mode: str, asks: bool) -> None:
    verdict = observed(with_status(approval=Approval(mode)), Meaning.WAITING)
    assert verdict.event is Event.OBSERVED
    assert (verdict.reason is Reason.APPROVAL_REQUIRED) is asks
    assert (verdict.changes["waiting_for"] is WaitingFor.APPROVAL) is asks
    assert ("approve_by" in verdict.changes) is asks


@pytest.mark.requirement("W31")
@pytest.mark.parametrize("mode", ["per_call", "session"])
def test_the_first_look_is_approved_before_anything_is_asked(mode: str) -> None:
    op = waiting(step=Step.SEND, accepted_at=None, provider_job=None, parsed=0)
    job = with_status(approval=Approval(mode))
    signal = Signal(Meaning.ACCEPTED, Certainty.APPLIED, 202, True, take={"id": "exp_71c"})
    verdict = after_attempt(op, CONTRACT, job, signal, NOW, MIDDLE)
    assert (verdict.event, verdict.reason) == (Event.ACCEPTED, Reason.APPROVAL_REQUIRED)
    assert verdict.changes["approve_by"] == verdict.changes["next_at"] == DEADLINE


@pytest.mark.requirement("W31")
def test_an_approved_look_is_due_at_once_and_leaves_the_deadline_alone() -> None:
    op = waiting(approve_by=DEADLINE, waiting_for=WaitingFor.APPROVAL, next_at=DEADLINE)
    wish = Wish(Option.APPROVE)
    verdict = grant(op, Reason.APPROVAL_REQUIRED, wish, "esc_1", JOB, NOW)
    assert (verdict.event, verdict.changes["next_at"]) == (Event.APPROVED, NOW)
    assert verdict.changes["deadline_at"] == DEADLINE


@pytest.mark.requirement("W31")
def test_a_look_that_nobody_allows_ends_with_the_jobs_own_deadline() -> None:
    op = waiting(approve_by=DEADLINE, waiting_for=WaitingFor.APPROVAL, next_at=DEADLINE)
    assert admission.overdue(op, DEADLINE - 1) is None
    ended = admission.overdue(op, DEADLINE)
    assert ended is not None
    assert (ended.event, ended.reason) == (Event.STOPPED, Reason.DEADLINE_EXCEEDED)
    assert ended.changes["approve_by"] is None


@pytest.mark.requirement("W05")
@pytest.mark.parametrize(("on_failure", "reason"), [("note", None), ("ask", Reason.REQUESTED)])
def test_a_failure_is_a_case_only_where_the_contract_says_so(
    on_failure: str, reason: Reason | None
) -> None:
    verdict = observed(replace(JOB, on_failure=on_failure), Meaning.FAILED)
    assert (verdict.event, verdict.reason) == (Event.FAILED, reason)
    assert verdict.notice is Notice.PROVIDER_FAILURE
