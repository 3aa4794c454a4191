"""Records for tests: one ordinary operation, and any change of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forbear.rules.model import (
    Budget,
    Case,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Priority,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.tools.record import Record

AS_OF = 1_796_034_014_600  # 2026-11-30T10:20:14.6Z
MINUTE = 60_000
ID = "op_k3v7q2m9x4t6w8r5y1z0abcd"

WAITING = Operation(
    id=ID,
    number=1,
    principal="local",
    provider="exp",
    account="acct_17",
    action="export",
    kind=Kind.JOB,
    request_class=RequestClass.UNCERTAIN_WRITE,
    priority=Priority.INTERACTIVE,
    label="Export sales-2026",
    purpose="month-end report",
    arguments={"dataset": "sales-2026"},
    intent="5f2c" * 16,
    key=None,
    ref="fb-k3v7q2",
    wire_key=None,
    binding="b1",
    request_digest="r1",
    parent_id=None,
    superseded_by=None,
    result_name=None,
    authorisation="contract",
    deadline_at=AS_OF + 40 * MINUTE,
    useful_until=None,
    approve_by=None,
    approve_deadline=None,
    timeout=30_000,
    status_requests=Budget(2, 12),
    transport_failures=Budget(0, 3),
    rate_limited=Budget(0, 3),
    attempts=Budget(1, 1),
    wait=Budget(0, 0),
    lookups=Budget(0, 6),
    extensions=Budget(0, 1),
    state=State.WAITING,
    step=Step.STATUS,
    revision=7,
    created_at=AS_OF - 2 * MINUTE,
    updated_at=AS_OF - 5_000,
    next_at=AS_OF + 16_800,
    delay=16_800,
    delay_source=DelaySource.LOCAL_BACKOFF,
    waiting_for=WaitingFor.PROVIDER,
    sent_at=AS_OF - 2 * MINUTE,
    accepted_at=AS_OF - 2 * MINUTE,
    observed_at=AS_OF - 5_000,
    parsed=2,
    provider_job="exp_71c",
    provider_state="running",
    terminal_seen=False,
    progress=None,
    progress_at=None,
    take={"id": "exp_71c"},
    certainty=Certainty.APPLIED,
    http_status=200,
    http_at=AS_OF - 5_000,
    provider_request_id="req_9",
    sent=True,
    answered=True,
    provider_expiry_at=None,
    expected_at=None,
    failure=None,
    result=None,
    validated=None,
    notices=(),
    treat={},
    once=None,
    pending=None,
    emptied_at=None,
    lease_owner=None,
    lease_boot=None,
    lease_until=None,
    fence=3,
)

ESCALATED: dict[str, Any] = {"state": State.ESCALATED, "waiting_for": None, "next_at": None}

SUCCEEDED: dict[str, Any] = {
    "state": State.SUCCEEDED,
    "waiting_for": None,
    "next_at": None,
    "delay_source": None,
    "provider_state": "done",
    "terminal_seen": True,
    "validated": True,
}

NOT_SENT: dict[str, Any] = {
    "state": State.QUEUED,
    "step": Step.SEND,
    "waiting_for": WaitingFor.SLOT,
    "certainty": Certainty.NOT_SENT,
    "delay_source": None,
    "sent": False,
    "answered": False,
    "sent_at": None,
    "accepted_at": None,
    "observed_at": None,
    "provider_job": None,
    "provider_state": None,
    "http_status": None,
    "http_at": None,
    "provider_request_id": None,
    "attempts": Budget(0, 1),
}


def record(*, allowed: tuple[str, ...] = ("check_status", "cancel_job"), **changes: Any) -> Record:
    """The ordinary waiting job with some of its fields changed."""
    return Record(replace(WAITING, **changes), AS_OF, allowed_actions=allowed, console_served=True)


def case(reason: Reason = Reason.REQUEST_BUDGET_EXHAUSTED, **changes: Any) -> Case:
    ordinary = Case(
        id="esc_h2n8c4",
        number=1,
        operation_id=ID,
        reason=reason,
        urgency="today",
        text="External job needs a decision",
        options=(
            {
                "id": "check_again",
                "label": "look once more",
                "effect": "one status request now",
                "parameters": {},
            },
            {"id": "abandon", "label": "abandon", "effect": "no request", "parameters": {}},
        ),
        opened_at=AS_OF - 1_000,
        revision=1,
    )
    return replace(ordinary, **changes)


def escalated(reason: Reason = Reason.REQUEST_BUDGET_EXHAUSTED) -> Record:
    """The same job, stopped for a reason, with the page where a person decides."""
    return replace(
        record(**ESCALATED, allowed=("check_status",)),
        case=case(reason),
        decide_at="http://127.0.0.1:8377/escalations/esc_h2n8c4",
        console_served=True,
    )


# --- calls -----------------------------------------------------------------------------------

_CALL: dict[str, Any] = {
    **NOT_SENT,
    "kind": Kind.CALL,
    "provider": "pay",
    "deadline_at": AS_OF + 15 * MINUTE,
    "status_requests": Budget(0, 0),
    "take": {},
}

READ: dict[str, Any] = {
    **_CALL,
    "action": "customer",
    "label": "One customer",
    "request_class": RequestClass.READ,
    "attempts": Budget(0, 4),
    "wait": Budget(0, 90_000),
}

WRITE: dict[str, Any] = {
    **_CALL,
    "action": "transfer",
    "label": "Transfer 125.00 EUR to acct_42",
    "request_class": RequestClass.IDEMPOTENT_WRITE,
    "attempts": Budget(0, 3),
    "wait": Budget(0, 120_000),
    "wire_key": "5b1c9d2e-0000-4000-8000-000000000000",
}

ANSWERED: dict[str, Any] = {
    "sent": True,
    "answered": True,
    "sent_at": AS_OF - 5_000,
    "http_status": 200,
    "http_at": AS_OF - 4_000,
    "attempts": Budget(1, 4),
}

UNCLEAR: dict[str, Any] = {
    **ANSWERED,
    "answered": False,
    "http_status": None,
    "http_at": None,
    "state": State.UNCLEAR,
    "step": Step.LOOKUP,
    "waiting_for": WaitingFor.SETTLE,
    "certainty": Certainty.MAYBE_APPLIED,
    "next_at": AS_OF + 16_800,
    "lookups": Budget(0, 6),
}

DONE: dict[str, Any] = {
    **ANSWERED,
    "state": State.SUCCEEDED,
    "waiting_for": None,
    "next_at": None,
    "certainty": Certainty.APPLIED,
    "validated": True,
    "take": {"id": "tr_9"},
}


def read(*, allowed: tuple[str, ...] = ("check_status",), **changes: Any) -> Record:
    """A read that was stored and not sent yet, with some of its fields changed."""
    return record(allowed=allowed, **{**READ, **changes})


def write(*, allowed: tuple[str, ...] = ("check_status",), **changes: Any) -> Record:
    """A keyed write that was stored and not sent yet, with some of its fields changed."""
    return record(allowed=allowed, **{**WRITE, **changes})
