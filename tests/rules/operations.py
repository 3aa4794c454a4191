"""Operations and signals in the shapes that the tests of the decision rules start from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.rules.contracts import FULL, loaded

from forbear.rules.contract import CLASSES, Contract, Job
from forbear.rules.model import (
    Budget,
    Certainty,
    Kind,
    Operation,
    Priority,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.signals import Meaning, Signal
from forbear.rules.timing import Hint, RetryAfter

NOW = 1_796_034_000_000
"""2026-11-30 10:20:00 UTC."""

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
DEADLINE = NOW + 40 * MINUTE

CONTRACT: Contract = replace(loaded(FULL), classes=CLASSES)
FINDABLE: Job = CONTRACT.jobs["export"]
"""Has a lookup."""
JOB: Job = replace(FINDABLE, lookup=None)
"""base 5 s, max 2 m, first 5 s, 12 checks, 3 transport, 3 rate, extension 15 m and 4 checks once,
status timeout 30 s, hints 2 s to 10 m."""

MIDDLE = 0.5
"""An ordinary draw."""

ATTEMPTS = {
    RequestClass.READ: (4, 90 * SECOND),
    RequestClass.IDEMPOTENT_WRITE: (3, 120 * SECOND),
    RequestClass.UNCERTAIN_WRITE: (1, 0),
}
"""Attempts and waited time of the classes (requirement R06)."""


def waiting(**changes: Any) -> Operation:
    """A job that the provider took two minutes ago; the second check is being answered."""
    return replace(
        Operation(
            id="op_k3v7q2m9x4t6",
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
            binding=JOB.binding,
            section=JOB.section,
            request_digest="r1",
            parent_id=None,
            superseded_by=None,
            result_name=None,
            authorisation="contract",
            deadline_at=DEADLINE,
            useful_until=None,
            approve_by=None,
            approve_deadline=None,
            timeout=30 * SECOND,
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
            created_at=NOW - 2 * MINUTE,
            updated_at=NOW - 10 * SECOND,
            next_at=NOW,
            delay=None,
            delay_source=None,
            waiting_for=WaitingFor.PROVIDER,
            sent_at=NOW - 2 * MINUTE,
            accepted_at=NOW - 2 * MINUTE,
            observed_at=NOW - 10 * SECOND,
            parsed=1,
            provider_job="exp_71c",
            provider_state="queued",
            terminal_seen=False,
            progress=None,
            progress_at=None,
            take={"id": "exp_71c"},
            certainty=Certainty.APPLIED,
            http_status=200,
            http_at=NOW - 10 * SECOND,
            provider_request_id=None,
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
        ),
        **changes,
    )


_NOTHING_YET: dict[str, Any] = {
    "step": Step.SEND,
    "certainty": Certainty.NOT_SENT,
    "status_requests": Budget(0, 12),
    "accepted_at": None,
    "observed_at": None,
    "parsed": 0,
    "provider_job": None,
    "provider_state": None,
    "take": {},
    "http_status": None,
    "http_at": None,
    "sent": False,
    "answered": False,
    "waiting_for": None,
}


def sending(
    kind: Kind = Kind.JOB,
    request_class: RequestClass = RequestClass.UNCERTAIN_WRITE,
    **changes: Any,
) -> Operation:
    """An operation whose first own request is out: the attempt is counted, nothing is known."""
    most, wait = ATTEMPTS[request_class]
    own: dict[str, Any] = {
        **_NOTHING_YET,
        "kind": kind,
        "state": State.SENDING,
        "request_class": request_class,
        "attempts": Budget(1, most),
        "wait": Budget(0, wait),
        "sent_at": NOW - SECOND,
    }
    if kind is not Kind.JOB:
        own |= {"parent_id": "op_parent", "status_requests": Budget(0, 0)}
        own |= {"transport_failures": Budget(0, 5), "extensions": Budget(0, 0)}
    return waiting(**(own | changes))


def queued(
    kind: Kind = Kind.JOB,
    request_class: RequestClass = RequestClass.UNCERTAIN_WRITE,
    **changes: Any,
) -> Operation:
    """An operation that is stored and due, with nothing sent."""
    own: dict[str, Any] = {
        "state": State.QUEUED,
        "attempts": Budget(0, ATTEMPTS[request_class][0]),
        "sent_at": None,
    }
    return sending(kind, request_class, **(own | changes))


_LIKE: dict[Meaning, dict[str, Any]] = {
    Meaning.NOT_SENT: {"certainty": Certainty.NOT_SENT, "status": None, "fault": "dns"},
    Meaning.NO_ANSWER: {"certainty": Certainty.MAYBE_APPLIED, "status": None, "fault": "closed"},
    Meaning.ACCEPTED: {"status": 202, "take": {"id": "exp_71c"}},
    Meaning.UNTRACKED: {"status": 202},
    Meaning.WAITING: {"state": "running"},
    Meaning.BLOCKED: {"state": "needs_input"},
    Meaning.SUCCEEDED: {"state": "done", "take": {"id": "exp_71c"}},
    Meaning.FAILED: {"state": "failed", "failure_code": "E7", "failure_message": "no such set"},
    Meaning.CANCELLED: {"state": "cancelled"},
    Meaning.EXPIRED: {"state": "expired"},
    Meaning.UNKNOWN_STATE: {"state": "paused"},
    Meaning.CONTRADICTORY: {
        "state": "done",
        "missing": ("/result/url",),
        "take": {"id": "exp_71c"},
    },
    Meaning.INVALID: {"certainty": Certainty.MAYBE_APPLIED},
    Meaning.MISMATCH: {"certainty": Certainty.MAYBE_APPLIED, "mismatch": "/job_id reads exp_99"},
    Meaning.DONE: {},
    Meaning.INCOMPLETE: {"certainty": Certainty.MAYBE_APPLIED},
    Meaning.EMPTY: {"status": 204},
    Meaning.RATE_LIMITED: {"certainty": Certainty.NOT_APPLIED, "status": 429},
    Meaning.QUOTA_EXHAUSTED: {"certainty": Certainty.NOT_APPLIED, "status": 429},
    Meaning.RETRY_LATER: {"certainty": Certainty.MAYBE_APPLIED, "status": 503},
    Meaning.SERVER_ERROR: {"certainty": Certainty.MAYBE_APPLIED, "status": 503},
    Meaning.REJECTED: {"certainty": Certainty.NOT_APPLIED, "status": 422},
    Meaning.AUTH: {"certainty": Certainty.NOT_APPLIED, "status": 401},
    Meaning.NOT_FOUND: {"certainty": Certainty.NOT_APPLIED, "status": 404},
    Meaning.NOT_YET_VISIBLE: {"status": 404},
    Meaning.GONE: {"certainty": Certainty.NOT_APPLIED, "status": 410},
    Meaning.CONFLICT: {"certainty": Certainty.MAYBE_APPLIED, "status": 409},
    Meaning.IN_FLIGHT: {"certainty": Certainty.MAYBE_APPLIED, "status": 409},
    Meaning.ALREADY_EXISTS: {"certainty": Certainty.MAYBE_APPLIED, "status": 409},
    Meaning.KEY_REUSED: {"certainty": Certainty.MAYBE_APPLIED, "status": 422},
    Meaning.ALREADY_TERMINAL: {"certainty": Certainty.NOT_APPLIED, "status": 409},
    Meaning.UNCLEAR: {"certainty": Certainty.MAYBE_APPLIED, "status": 500},
    Meaning.REDIRECT: {"certainty": Certainty.MAYBE_APPLIED, "status": 302},
}
"""What an ordinary answer of each meaning looks like, as `signals.read` makes it."""


def told(meaning: Meaning, **changes: Any) -> Signal:
    """The signal of an ordinary answer with this meaning."""
    like: dict[str, Any] = {"certainty": Certainty.APPLIED, "status": 200} | _LIKE[meaning]
    filled: dict[str, Any] = {"answered": like["status"] is not None, **like, **changes}
    return Signal(meaning, **filled)


def after(ms: int) -> RetryAfter:
    """A `Retry-After` of so many milliseconds."""
    return RetryAfter(ms, past=ms == 0)


def hinted(ms: int | None, rejected: str | None = None) -> tuple[Hint, ...]:
    """One poll hint as it was read."""
    return (Hint("/poll_after_seconds", ms, rejected),)
