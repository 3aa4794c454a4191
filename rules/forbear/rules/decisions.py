"""What a decision grants (behaviour.md, section 7). Used counters never fall."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from forbear.rules.breaker import FORGIVEN
from forbear.rules.conclusions import REST, SUCCESS, Changes, Verdict
from forbear.rules.contract import Action, Job
from forbear.rules.escalations import (
    DEFAULT_HOLD,
    LONGEST_HOLD,
    TREATABLE,
    has_handle,
    may_send_again,
)
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Notice,
    Operation,
    Option,
    Reason,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.reconciliation import Search
from forbear.rules.redirects import forgotten
from forbear.rules.schedule import end_of, end_reason

AFTERWARDS = 900_000
"""Time that lookups and a resend get where a decision comes after the deadline, ms."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An option with its parameters, as a person gave them. Times in ms."""

    option: Option
    extend_by: int | None = None
    requests: int | None = None
    until: int | None = None
    treat_as: str | None = None
    reference: str | None = None
    beyond_contract: bool = False
    """`extend` once more than the contract's `times`; an operator says why."""


def objection(wish: Wish, now: int) -> str | None:
    """What is wrong with the parameters of a wish, and the fix, or None."""
    match wish.option:
        case Option.EXTEND if wish.extend_by is not None and wish.extend_by <= 0:
            return "--minutes must be above 0"
        case Option.EXTEND if wish.requests is not None and wish.requests <= 0:
            return "--requests must be above 0"
        case Option.HOLD if wish.until is not None and wish.until <= now:
            return "--until must lie in the future"
        case Option.HOLD if wish.until is not None and wish.until > now + LONGEST_HOLD:
            return "--until must lie within 24 hours"
        case Option.TREAT_AS if wish.treat_as not in TREATABLE:
            return f"treat_as needs --as with one of {', '.join(TREATABLE)}"
        case Option.CONFIRM_DONE if not wish.reference:
            return "confirm_done needs --reference with the provider's id"
        case _:
            return None


def grant(
    op: Operation,
    reason: Reason,
    wish: Wish,
    case_id: str,
    action: Action | None,
    now: int,
    *,
    follow_up: str | None = None,
) -> Verdict:
    """The transition a valid decision makes. The option was offered and `objection` is None.

    The step that stopped goes on: a submission or call that was not sent or not applied is sent
    again, a job with a handle is observed again. `follow_up` is the id of the operation that
    `send_new` or `resubmit` puts in the place of this one.
    """
    if op.final and wish.option in (Option.ABANDON, Option.REJECT):
        return Verdict(Event.NOTED)
    if op.state is State.WAITING and wish.option in (Option.EXTEND, Option.CANCEL_AT_PROVIDER):
        return _while_waiting(op, wish, action, now, case_id)
    match wish.option:
        case Option.EXTEND:
            return _resume(op, now, _extension(op, wish, action, now), case_id)
        case Option.HOLD:
            until = wish.until or _known_reset(op, now) or now + DEFAULT_HOLD
            return _resume(op, until, _single(reason, until), case_id)
        case Option.CHECK_AGAIN:
            return _resume(op, now, _single(reason, now), case_id)
        case Option.RETRY_WITH_NEW_CREDENTIAL:
            return _resume(op, now, _one_look(op, now), case_id)
        case Option.TREAT_AS:
            treat = {**op.treat, op.provider_state or "": wish.treat_as or ""}
            return _resume(op, now, {"treat": treat, **_one_look(op, now)}, case_id)
        case Option.REBIND:
            if action is None:
                raise ValueError("rebinding needs the contract in force")
            bound: Changes = {"binding": action.binding, "section": action.section}
            return _resume(op, now, bound, case_id)
        case Option.CANCEL_AT_PROVIDER:
            at = now + (action.backoff.first if isinstance(action, Job) else 0)
            return _resume(op, at, _two_checks(op, action, at), case_id)
        case Option.CONFIRM_DONE:
            return _confirm_done(op, wish.reference or "", now, case_id)
        case Option.CONFIRM_NOT_DONE:
            changes: Changes = {
                **REST,
                "certainty": Certainty.NOT_APPLIED,
                "failure": {"message": "confirmed as not done"},
                "authorisation": case_id,
            }
            return Verdict(Event.RULED_OUT, changes)
        case Option.USE_UNVALIDATED_RESULT:
            return Verdict(
                Event.SUCCEEDED, {**SUCCESS, "validated": False, "authorisation": case_id}
            )
        case Option.APPROVE:
            return approved(op, case_id, now)
        case Option.REJECT if reason is Reason.REQUESTED:
            return Verdict(Event.NOTED)
        case Option.ABANDON | Option.REJECT:
            return discard(op, f"{wish.option} by a person", case_id)
        case Option.RECONCILE:
            looked: Changes = {
                "lookups": _raised(op.lookups, 3),
                "search": Search.of(op).ended().kept(),
                "step": Step.LOOKUP,
                "waiting_for": WaitingFor.SETTLE,
            }
            return Verdict(Event.LOOKUP_RESUMED, _again(op, looked, now, case_id))
        case Option.RESEND_SAME_KEY:
            resent: Changes = {
                "attempts": _raised(op.attempts, 1),
                "transport_failures": _one_more(op.transport_failures),
                "search": Search.of(op).sent_again().kept(),
                "step": Step.SEND,
                "waiting_for": None,
            }
            return Verdict(Event.RESEND_APPROVED, _again(op, resent, now, case_id))
        case Option.SEND_NEW:
            given_up = discard(op, "a person let a new one be sent", case_id)
            return replace(given_up, changes={**given_up.changes, "superseded_by": follow_up})
        case Option.RESUBMIT:
            return Verdict(Event.NOTED, {"superseded_by": follow_up})
        case Option.CLOSE_CIRCUIT:
            return Verdict(Event.NOTED, {"failure": {**(op.failure or {}), FORGIVEN: case_id}})
        case _:
            assert_never(wish.option)


def _while_waiting(
    op: Operation, wish: Wish, action: Action | None, now: int, case_id: str
) -> Verdict:
    """What a job gets that nothing has stopped: its maxima grow, and it goes on as before."""
    if wish.option is Option.EXTEND:
        granted = _extension(op, wish, action, now)
    else:
        granted = _two_checks(op, action, now)
    return Verdict(Event.NOTED, {**granted, "authorisation": case_id})


def _again(op: Operation, granted: Changes, now: int, case_id: str) -> Changes:
    """What is granted, due now, and time for it where none is left."""
    enough = now + AFTERWARDS + 2 * op.timeout
    return granted | {
        "deadline_at": max(op.deadline_at, enough),
        "useful_until": None if op.useful_until is None else max(op.useful_until, enough),
        "next_at": now,
        "delay": None,
        "delay_source": DelaySource.MANUAL_EXTENSION,
        "authorisation": case_id,
    }


def discard(op: Operation, why: str, authorisation: str | None = None) -> Verdict:
    """Drop what has not been sent and stop watching; says so where something may still run."""
    changes: Changes = {**REST, "approve_by": None, "once": None, "failure": {"message": why}}
    if authorisation is not None:
        changes["authorisation"] = authorisation
    left_behind = has_handle(op) or not may_send_again(op)
    notice = Notice.MAY_STILL_RUN if left_behind and not op.terminal_seen else None
    return Verdict(Event.DISCARDED, changes, notice=notice, story={"why": why})


def _resume(op: Operation, at: int, granted: Changes, case_id: str) -> Verdict:
    """Let the step that stopped go on at `at`.

    Every exhausted maximum is raised by one, so that it can, unless more is granted or a single
    permit ignores them.
    """
    look = has_handle(op)
    if not look and not may_send_again(op):
        raise ValueError("an action that may have been applied is never resumed by sending it")
    spent = ("transport_failures", "rate_limited", "status_requests" if look else "attempts")
    raised: Changes = {name: _one_more(getattr(op, name)) for name in spent}
    changes: Changes = {
        **({} if look and "once" in granted else raised),
        **granted,
        "next_at": at,
        "delay": None,
        "delay_source": DelaySource.MANUAL_EXTENSION,
        "authorisation": case_id,
        "step": Step.STATUS if look else Step.SEND,
        "waiting_for": WaitingFor.PROVIDER if look else None,
        **forgotten(op),
    }
    return Verdict(Event.WAIT_RESUMED if look else Event.SEND_RESUMED, changes)


def _one_more(budget: Budget) -> Budget:
    return _raised(budget, 1) if budget.spent else budget


def _raised(budget: Budget, by: int) -> Budget:
    """`by` more than there was, and usable although single permits went beyond the maximum."""
    return replace(budget, max=max(budget.max, budget.used) + by)


def _extension(op: Operation, wish: Wish, action: Action | None, now: int) -> Changes:
    granted = action.limits.extension if isinstance(action, Job) else None
    by = granted.by if granted is not None else 0
    requests = granted.status_requests if granted is not None else 0
    by = min(wish.extend_by, by) if wish.extend_by is not None else by
    requests = min(wish.requests, requests) if wish.requests is not None else requests
    deadline = max(now, op.deadline_at) + by
    changes: Changes = {
        "deadline_at": deadline,
        "status_requests": _raised(op.status_requests, requests),
        "transport_failures": _raised(op.transport_failures, 1),
        "rate_limited": _raised(op.rate_limited, 1),
        "extensions": replace(op.extensions, used=op.extensions.used + 1),
    }
    if op.useful_until is not None:
        changes["useful_until"] = max(op.useful_until, deadline)
    return changes


def _two_checks(op: Operation, action: Action | None, at: int) -> Changes:
    """Two checks from `at` on to see the job end, and time for them where none is left."""
    by = action.limits.extension.by if isinstance(action, Job) else 0
    deadline = max(op.deadline_at, at + by)
    changes: Changes = {
        "status_requests": _raised(op.status_requests, 2),
        "deadline_at": deadline,
    }
    if op.useful_until is not None and op.useful_until < at + by:
        changes["useful_until"] = at + by
    return changes


def _confirm_done(op: Operation, reference: str, now: int, case_id: str) -> Verdict:
    if op.kind is not Kind.JOB:
        changes: Changes = {
            **SUCCESS,
            "validated": False,
            "certainty": Certainty.APPLIED,
            "take": {**op.take, "id": reference},
            "authorisation": case_id,
        }
        return Verdict(Event.SUCCEEDED, changes)
    changes = {
        "step": Step.STATUS,
        "provider_job": reference,
        "take": {**op.take, "id": reference},
        "accepted_at": op.accepted_at or now,
        "certainty": Certainty.APPLIED,
        "next_at": now,
        "delay": None,
        "delay_source": DelaySource.MANUAL_EXTENSION,
        "waiting_for": WaitingFor.PROVIDER,
        "authorisation": case_id,
        **_one_look(op, now),
    }
    return Verdict(Event.WAIT_RESUMED, changes)


def _one_look(op: Operation, now: int) -> Changes:
    """A decision that comes after the end still gets one request: people decide late by nature.

    What it brings settles; anything else asks again, with the end as the reason.
    """
    return _single(end_reason(op), now) if now >= end_of(op) else {}


def _single(reason: Reason, at: int) -> Changes:
    """One permit, due at `at`, that ignores the end and spent maxima; unused it lapses in a day."""
    return {"once": str(reason), "once_until": at + LONGEST_HOLD}


def approved(op: Operation, authorisation: str, now: int) -> Verdict:
    """What waits for an approval is due; its deadline runs from here."""
    changes: Changes = {
        "approve_by": None,
        "deadline_at": op.deadline_at if has_handle(op) else now + (op.approve_deadline or 0),
        "next_at": now,
        "waiting_for": None,
        "authorisation": authorisation,
    }
    return Verdict(Event.APPROVED, changes)


def _known_reset(op: Operation, now: int) -> int | None:
    """The provider's own minimum, if it lies ahead within a hold's reach."""
    if op.not_before is None or not now < op.not_before <= now + LONGEST_HOLD:
        return None
    return op.not_before
