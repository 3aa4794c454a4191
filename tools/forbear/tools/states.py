"""What an operation's state allows, and when a caller's wait for it is over."""

from __future__ import annotations

from forbear.rules.contract import Job
from forbear.rules.escalations import may_be_resubmitted
from forbear.rules.model import (
    Kind,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.paging import reads_on
from forbear.rules.steps import reachable

UNSENT = frozenset({State.QUEUED, State.DELAYED})


SEARCHED = frozenset({Reason.UNCLEAR_WRITE, Reason.CONFLICT, Reason.RECONCILIATION_CONFLICT})


def submission_answered(op: Operation) -> bool:
    """The submission is over, or waits for something that a caller's wait cannot bring."""
    return _needs_a_person(op) or op.state not in (State.QUEUED, State.SENDING)


def call_answered(op: Operation) -> bool:
    """A call is over, or its next step is the schedule's; a read that reads on is neither."""
    goes_on = reads_on(op) or op.state in (State.QUEUED, State.SENDING)
    return op.approve_by is not None or not goes_on


def at_rest(op: Operation) -> bool:
    return op.final or op.state is State.ESCALATED or _needs_a_person(op)


def _needs_a_person(op: Operation) -> bool:
    """Whether only an approval or another credential lets the operation go on."""
    return op.approve_by is not None or op.waiting_for is WaitingFor.CREDENTIAL


def cancellable(op: Operation) -> bool:
    return (
        op.kind is Kind.JOB
        and op.provider_job is not None
        and op.state in (State.WAITING, State.ESCALATED)
    )


def results_of(op: Operation, job: Job) -> tuple[str, ...]:
    """Names of the results that a job in its state has: an address may be one that never came."""
    return tuple(
        name
        for name, request in job.results.items()
        if str(op.state) in request.when and reachable(request, op)
    )


def allowed_actions(op: Operation, job: Job | None) -> tuple[str, ...]:
    """Tools that would do something for an operation in its state (behaviour.md, section 5)."""
    allowed: list[str] = []
    if op.emptied_at is not None:
        return ()
    if not op.final:
        allowed.append("check_status")
    if op.state is State.UNCLEAR and op.step is Step.LOOKUP:
        allowed.append("reconcile_write")
    if op.kind is Kind.JOB and job is not None:
        if results_of(op, job):
            allowed.append("fetch_result")
        if op.state in (State.QUEUED, State.DELAYED) or (
            job.cancel is not None and cancellable(op)
        ):
            allowed.append("cancel_job")
    if _may_ask(op):
        allowed.append("request_decision")
    return tuple(allowed)


def _may_ask(op: Operation) -> bool:
    """Whether a person can be asked for something: an option of the case, more time, a new run."""
    if op.final:
        return op.request_class is not RequestClass.READ and may_be_resubmitted(op)
    return op.state is State.ESCALATED or (op.state is State.WAITING and op.approve_by is None)
