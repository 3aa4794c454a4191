"""What follows from an answer: settle, wait, try again, stop and ask (behaviour.md, sections 3-6).

A verdict is a value: the event, the fields that change, and what else the ledger must write in the
same transaction. Order within one answer: authorisation, binding, terminal, contradictory, unknown,
unreadable, blocked, deadline, rate, transport, request budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from forbear.rules import backoff
from forbear.rules.contract import Action, ClassLimits, Contract, Job
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Notice,
    Operation,
    Reason,
    RequestClass,
    Step,
    WaitingFor,
)
from forbear.rules.signals import Meaning, Signal

Changes = dict[str, object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One transition and everything that is written with it."""

    event: Event
    changes: Mapping[str, object] = field(default_factory=Changes)
    """New values of fields of `Operation`."""
    reason: Reason | None = None
    """With `Event.STOPPED`: why a person is asked."""
    notice: Notice | None = None
    scope_until: int | None = None
    """The scope of the attempt admits nothing before this time."""
    block_credential: bool = False
    """The provider refused the credential itself (401)."""
    story: Mapping[str, object] = field(default_factory=Changes)
    """What the rules saw and chose, for the audit event."""


def after_attempt(
    op: Operation, contract: Contract, action: Action, signal: Signal, now: int, u: float
) -> Verdict:
    """The verdict on one closed attempt of `op.step`.

    `op` is the record as it stands, with the attempt already counted; `u` is uniform in [0, 1).
    """
    if isinstance(action, Job) and op.kind is Kind.JOB:
        if op.step is Step.STATUS:
            return _after_status(op, action, signal, now, u)
        return _after_submission(op, contract, action, signal, now, u)
    return _after_request(op, contract, signal, now, u)


# --- what every verdict records -------------------------------------------------------------

_ORDER = (
    Certainty.NOT_SENT,
    Certainty.NOT_APPLIED,
    Certainty.MAYBE_APPLIED,
    Certainty.APPLIED,
)


def strongest(one: Certainty, other: Certainty) -> Certainty:
    """What is known after two attempts: the one that leaves more behind at the provider."""
    return max(one, other, key=_ORDER.index)


def _seen(op: Operation, signal: Signal, now: int) -> Changes:
    seen: Changes = {"delay": None, "delay_source": None, "once": None}
    if signal.retry_after is not None and not signal.retry_after.past:
        seen["not_before"] = now + signal.retry_after.delay
    if signal.meaning is not Meaning.NOT_SENT:
        seen["sent"] = True
        seen["answered"] = signal.answered
    if signal.status is not None:
        seen["http_status"] = signal.status
        seen["http_at"] = now
    if signal.provider_request_id is not None:
        seen["provider_request_id"] = signal.provider_request_id
    if signal.state is not None:
        seen["provider_state"] = signal.state
        if signal.state != op.provider_state:
            seen["progress_at"] = now
    if signal.progress is not None and signal.progress != op.progress:
        seen["progress"] = signal.progress
        seen["progress_at"] = now
    if signal.expiry_at is not None:
        seen["provider_expiry_at"] = signal.expiry_at
    if signal.take:
        seen["take"] = {**op.take, **signal.take}
        if op.kind is Kind.JOB and op.provider_job is None and "id" in signal.take:
            seen["provider_job"] = signal.take["id"]
    return seen


def _failure(signal: Signal) -> Changes:
    detail: dict[str, object] = {}
    if signal.failure_code is not None:
        detail["code"] = signal.failure_code
    if signal.failure_message is not None:
        detail["message"] = signal.failure_message
    if signal.status is not None:
        detail["http_status"] = signal.status
    return {"failure": detail}


REST: Changes = {"next_at": None, "waiting_for": None, "delay": None, "delay_source": None}
"""What a state that plans nothing has."""


def _story(signal: Signal, **chosen: object) -> Changes:
    told: Changes = {"meaning": str(signal.meaning)}
    if signal.status is not None:
        told["http"] = signal.status
    if signal.state is not None:
        told["state"] = signal.state
    if signal.fault is not None:
        told["fault"] = signal.fault
    if signal.retry_after is not None:
        told["retry_after_ms"] = signal.retry_after.delay
    if signal.hints:
        told["hints"] = [
            {"read": hint.text, "ms": hint.delay, "rejected": hint.rejected}
            for hint in signal.hints
        ]
    if signal.missing:
        told["missing"] = list(signal.missing)
    if signal.mismatch is not None:
        told["mismatch"] = signal.mismatch
    if signal.anomalies:
        told["anomalies"] = list(signal.anomalies)
    if signal.failure_code is not None:
        told["code"] = signal.failure_code
    if signal.provider_request_id is not None:
        told["provider_request_id"] = signal.provider_request_id
    told.update({key: value for key, value in chosen.items() if value is not None})
    return told


def stop(
    reason: Reason, changes: Mapping[str, object] | None = None, **story: object
) -> Verdict:
    """Ask a person, and plan nothing."""
    return Verdict(Event.STOPPED, {**(changes or {}), **REST}, reason=reason, story=story)


def _stop(reason: Reason, seen: Changes, signal: Signal, **more: object) -> Verdict:
    return Verdict(
        Event.STOPPED,
        {**seen, **REST, **more},
        reason=reason,
        block_credential=signal.meaning is Meaning.AUTH and signal.status == 401,
        story=_story(signal),
    )


def _spend(budget: Budget) -> Budget:
    return replace(budget, used=budget.used + 1)


# --- the next check of a job ----------------------------------------------------------------


def end_of(op: Operation) -> int:
    """Whichever comes first of the job's deadline and the workflow's `useful_until`."""
    return op.deadline_at if op.useful_until is None else min(op.deadline_at, op.useful_until)


def end_reason(op: Operation) -> Reason:
    """Which of the two ends the wait."""
    if op.useful_until is not None and op.useful_until < op.deadline_at:
        return Reason.USEFUL_UNTIL_PASSED
    return Reason.DEADLINE_EXCEEDED


@dataclass(frozen=True, slots=True)
class Plan:
    """When the next check is due and why then."""

    at: int
    delay: int
    source: DelaySource
    story: Mapping[str, object]


def plan_check(
    op: Operation, job: Job, signal: Signal, now: int, u: float, local: tuple[int, DelaySource]
) -> Plan | Reason:
    """The next check after an answer that ended nothing, or why there can be none.

    Provider minima are never shortened and only jittered upwards; hints are recommendations with a
    floor and a ceiling; a check that would fall beyond the end is moved to the last useful moment.
    """
    end = end_of(op)
    delay, source = local
    told: list[str] = []
    minimum = 0

    if signal.estimate is not None and op.observed_at is None and now + signal.estimate < end:
        delay, source = signal.estimate, DelaySource.PROVIDER_POLL_HINT

    hint = _hint(job, signal, end - now, told)
    if hint is not None and signal.meaning is not Meaning.RATE_LIMITED:
        delay, source = hint, DelaySource.PROVIDER_POLL_HINT
    if source is DelaySource.PROVIDER_POLL_HINT:
        minimum, delay = delay, backoff.stretched(delay, u)

    asked = signal.retry_after
    if asked is not None and asked.past:
        delay = max(delay, backoff.MODERATE)
    elif asked is not None:
        if now + asked.delay > end:
            return _beyond(op, signal)
        minimum = max(minimum, asked.delay)
        if asked.delay >= delay or signal.meaning is Meaning.RATE_LIMITED:
            delay, source = backoff.stretched(asked.delay, u), DelaySource.PROVIDER_RETRY_AFTER

    at = now + delay
    expiry = op.provider_expiry_at if signal.expiry_at is None else signal.expiry_at
    if expiry is not None and now < expiry < at:
        at = max(expiry + 1_000, now + minimum)
    if at > end:
        last = end - job.status.timeout - 1_000
        at = min(max(last, now + minimum), end) if last > now else end
        told.append("last check before the end" if at < end else "no check fits before the end")
    return Plan(at, at - now, source, {"told": told} if told else {})


def _hint(job: Job, signal: Signal, time_left: int, told: list[str]) -> int | None:
    """The largest usable hint in ms; what was rejected and why goes into `told`."""
    usable: list[int] = []
    for hint in signal.hints:
        if hint.delay is None:
            told.append(f"hint {hint.text} rejected: {hint.rejected or 'unreadable'}")
        elif hint.delay > time_left:
            told.append(f"hint {hint.text} rejected: beyond the deadline")
        elif hint.delay > job.hints.ceiling:
            told.append(f"hint {hint.text} rejected: above the ceiling")
            usable.append(job.hints.ceiling)
        else:
            usable.append(max(hint.delay, job.hints.floor))
    return max(usable, default=None)


def _beyond(op: Operation, signal: Signal) -> Reason:
    """Why an operation stops at once when the provider's wait passes the end."""
    if signal.meaning is Meaning.RATE_LIMITED:
        return Reason.RATE_LIMITED
    if signal.status is not None and signal.status >= 500:
        return Reason.TRANSPORT_BUDGET_EXHAUSTED
    return end_reason(op)


# --- a status answer ------------------------------------------------------------------------


def _after_status(op: Operation, job: Job, signal: Signal, now: int, u: float) -> Verdict:
    seen = _seen(op, signal, now)
    if signal.answered:
        seen["observed_at"] = now
    match signal.meaning:
        case Meaning.AUTH:
            return _stop(Reason.AUTHORIZATION_DENIED, seen, signal)
        case Meaning.MISMATCH:
            return _stop(Reason.BINDING_MISMATCH, seen, signal)
        case Meaning.SUCCEEDED | Meaning.EMPTY | Meaning.DONE:
            return _job_succeeded(seen, signal)
        case Meaning.FAILED | Meaning.CANCELLED | Meaning.EXPIRED:
            return _job_ended(seen, signal)
        case Meaning.GONE:
            if op.terminal_seen:
                return _job_ended(seen, replace(signal, meaning=Meaning.EXPIRED))
            return _stop(Reason.NOT_FOUND, seen, signal)
        case Meaning.CONTRADICTORY:
            seen["terminal_seen"] = True
            if job.success.when_missing != "wait":
                return _stop(Reason.CONTRADICTORY_RESPONSE, seen, signal)
            return _keep_waiting(op, job, signal, seen, now, u)
        case Meaning.UNKNOWN_STATE:
            return _stop(Reason.UNKNOWN_STATE, seen, signal)
        case Meaning.INVALID:
            return _stop(Reason.INVALID_RESPONSE, seen, signal)
        case Meaning.BLOCKED:
            return _stop(Reason.BLOCKED_STATE, seen, signal)
        case Meaning.NOT_FOUND:
            return _stop(Reason.NOT_FOUND, seen, signal)
        case Meaning.QUOTA_EXHAUSTED:
            return _stop(Reason.QUOTA_EXHAUSTED, seen, signal)
        case (
            Meaning.REDIRECT
            | Meaning.REJECTED
            | Meaning.CONFLICT
            | Meaning.KEY_REUSED
            | Meaning.ALREADY_EXISTS
            | Meaning.ACCEPTED
            | Meaning.UNTRACKED
            | Meaning.INCOMPLETE
        ):
            return _stop(Reason.INTEGRATION_FAILURE, seen, signal)
        case Meaning.NOT_SENT if signal.fault == "egress_refused":
            return _stop(Reason.EGRESS_REFUSED, seen, signal)
        case (
            Meaning.WAITING
            | Meaning.NOT_YET_VISIBLE
            | Meaning.RATE_LIMITED
            | Meaning.NOT_SENT
            | Meaning.NO_ANSWER
            | Meaning.SERVER_ERROR
            | Meaning.RETRY_LATER
            | Meaning.UNCLEAR
            | Meaning.IN_FLIGHT
            | Meaning.ALREADY_TERMINAL
        ):
            return _keep_waiting(op, job, signal, seen, now, u)
        case _:
            assert_never(signal.meaning)


def _keep_waiting(
    op: Operation, job: Job, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """Count what this answer costs, then stop at the first spent bound or plan the next check."""
    parsed, rate, transport = op.parsed, op.rate_limited, op.transport_failures
    match signal.meaning:
        case Meaning.WAITING | Meaning.CONTRADICTORY:
            parsed += 1
        case Meaning.RATE_LIMITED:
            rate = _spend(rate)
        case Meaning.NOT_YET_VISIBLE:
            pass
        case _:
            transport = _spend(transport)
    seen |= {"parsed": parsed, "rate_limited": rate, "transport_failures": transport}
    after = replace(op, parsed=parsed, rate_limited=rate, transport_failures=transport)

    reason = _spent(after, signal, now)
    if reason is not None:
        return _with_scope(_stop(reason, seen, signal), after, signal, now, None)
    left = end_of(op) - now, op.status_requests.left
    if signal.meaning is Meaning.RATE_LIMITED and not _stated(signal):
        local = (
            backoff.rate_limited_poll_delay(job.backoff, parsed, *left, u),
            DelaySource.LOCAL_BACKOFF,
        )
    else:
        local = backoff.poll_delay(job.backoff, parsed, *left, u)
    plan = plan_check(op, job, signal, now, u, local)
    if isinstance(plan, Reason):
        return _with_scope(_stop(plan, seen, signal), after, signal, now, None)
    seen |= _planned(plan)
    verdict = Verdict(Event.OBSERVED, seen, story={**_story(signal), **plan.story})
    return _with_scope(verdict, after, signal, now, local[0])


def _stated(signal: Signal) -> bool:
    return signal.retry_after is not None and not signal.retry_after.past


def _spent(op: Operation, signal: Signal, now: int) -> Reason | None:
    """The first bound that this answer, having ended nothing, ran into."""
    if op.once is not None:
        return Reason(op.once)
    if now >= end_of(op):
        return end_reason(op)
    if signal.meaning is Meaning.RATE_LIMITED and op.rate_limited.spent:
        return Reason.RATE_LIMITED
    if op.transport_failures.spent:
        return Reason.TRANSPORT_BUDGET_EXHAUSTED
    if op.status_requests.spent:
        return Reason.REQUEST_BUDGET_EXHAUSTED
    expiry = op.provider_expiry_at if signal.expiry_at is None else signal.expiry_at
    if expiry is not None and now >= expiry:
        return Reason.PAST_PROVIDER_EXPIRY
    return None


def _planned(plan: Plan) -> Changes:
    return {
        "next_at": plan.at,
        "delay": plan.delay,
        "delay_source": plan.source,
        "waiting_for": WaitingFor.PROVIDER,
    }


def _with_scope(
    verdict: Verdict, op: Operation, signal: Signal, now: int, local: int | None
) -> Verdict:
    """A 429 or a quota answer moves the scope by the same time; a 503 never does."""
    if signal.meaning not in (Meaning.RATE_LIMITED, Meaning.QUOTA_EXHAUSTED):
        return verdict
    if signal.retry_after is not None and not signal.retry_after.past:
        return replace(verdict, scope_until=now + signal.retry_after.delay)
    return verdict if local is None else replace(verdict, scope_until=now + local)


def _job_succeeded(seen: Changes, signal: Signal) -> Verdict:
    changes = {**seen, **REST, "validated": True, "terminal_seen": True, "step": Step.STATUS}
    if signal.partial:
        changes["result"] = {"partial": True}
    return Verdict(Event.SUCCEEDED, changes, story=_story(signal, partial=signal.partial or None))


def _job_ended(seen: Changes, signal: Signal) -> Verdict:
    """The provider's own end: final, with a notice and its own words."""
    event, notice = {
        Meaning.FAILED: (Event.FAILED, Notice.PROVIDER_FAILURE),
        Meaning.CANCELLED: (Event.CANCELLED, Notice.ENDED_AT_PROVIDER),
    }.get(signal.meaning, (Event.EXPIRED, Notice.ENDED_AT_PROVIDER))
    changes = {**seen, **REST, **_failure(signal), "terminal_seen": True, "step": Step.STATUS}
    return Verdict(event, changes, notice=notice, story=_story(signal))


# --- the answer to a submission -------------------------------------------------------------


def _after_submission(
    op: Operation, contract: Contract, job: Job, signal: Signal, now: int, u: float
) -> Verdict:
    seen = _seen(op, signal, now)
    seen["certainty"] = strongest(op.certainty, signal.certainty)
    match signal.meaning:
        case Meaning.ACCEPTED:
            return _accepted(op, job, signal, seen, now, u)
        case Meaning.SUCCEEDED | Meaning.DONE | Meaning.EMPTY:
            return _job_succeeded({**seen, "accepted_at": now}, signal)
        case Meaning.FAILED | Meaning.CANCELLED | Meaning.EXPIRED:
            return _job_ended({**seen, "accepted_at": now}, signal)
        case Meaning.CONTRADICTORY:
            return _stop(
                Reason.CONTRADICTORY_RESPONSE,
                seen,
                signal,
                accepted_at=now,
                terminal_seen=True,
                step=Step.STATUS,
            )
        case Meaning.UNTRACKED:
            return _stop(Reason.ACCEPTED_UNTRACKED, seen, signal)
        case Meaning.MISMATCH:
            return _stop(Reason.BINDING_MISMATCH, seen, signal)
        case _:
            return _without_effect(op, contract, signal, seen, now, u)


def _accepted(
    op: Operation, job: Job, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    seen |= {"accepted_at": now, "step": Step.STATUS}
    if job.limits.usual is not None:
        seen["expected_at"] = now + job.limits.usual
    if signal.estimate is not None:
        seen["expected_at"] = now + signal.estimate
    local = backoff.first_delay(job.backoff, u), DelaySource.LOCAL_BACKOFF
    plan = plan_check(op, job, signal, now, u, local)
    if isinstance(plan, Reason):
        return _stop(plan, seen, signal)
    return Verdict(Event.ACCEPTED, seen | _planned(plan), story={**_story(signal), **plan.story})


# --- the answer to a call, a result fetch or a cancellation ---------------------------------


def _after_request(
    op: Operation, contract: Contract, signal: Signal, now: int, u: float
) -> Verdict:
    seen = _seen(op, signal, now)
    seen["certainty"] = strongest(op.certainty, signal.certainty)
    match signal.meaning:
        case Meaning.DONE | Meaning.EMPTY | Meaning.SUCCEEDED | Meaning.ACCEPTED:
            return Verdict(
                Event.SUCCEEDED, {**seen, **REST, "validated": True}, story=_story(signal)
            )
        case Meaning.ALREADY_TERMINAL if op.kind is Kind.CANCEL:
            return Verdict(Event.SUCCEEDED, {**seen, **REST}, story=_story(signal))
        case Meaning.NOT_FOUND | Meaning.GONE if op.kind is Kind.RESULT:
            return Verdict(
                Event.EXPIRED, {**seen, **REST, **_failure(signal)}, story=_story(signal)
            )
        case Meaning.MISMATCH:
            return _stop(Reason.BINDING_MISMATCH, seen, signal)
        case _:
            return _without_effect(op, contract, signal, seen, now, u)


# --- answers that are not the effect we wanted ----------------------------------------------


def _without_effect(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """Outcome by class: retry what certainly did nothing, never repeat what may have done it."""
    read = op.request_class is RequestClass.READ
    match signal.meaning:
        case Meaning.AUTH:
            return _stop(Reason.AUTHORIZATION_DENIED, seen, signal)
        case Meaning.NOT_SENT if signal.fault == "egress_refused":
            return _stop(Reason.EGRESS_REFUSED, _not_sent(op, seen), signal)
        case Meaning.NOT_SENT:
            return _retry_unsent(op, contract, signal, seen, now, u)
        case Meaning.RATE_LIMITED:
            return _retry_limited(op, contract, signal, seen, now, u)
        case Meaning.QUOTA_EXHAUSTED:
            return _wait_for_quota(op, contract, signal, seen, now)
        case Meaning.REDIRECT:
            return _stop(Reason.INTEGRATION_FAILURE, seen, signal)
        case Meaning.REJECTED | Meaning.NOT_FOUND | Meaning.GONE:
            return Verdict(
                Event.FAILED, {**seen, **REST, **_failure(signal)}, story=_story(signal)
            )
        case (
            Meaning.CONFLICT
            | Meaning.KEY_REUSED
            | Meaning.ALREADY_EXISTS
            | Meaning.ALREADY_TERMINAL
        ):
            return _stop(Reason.CONFLICT, seen, signal, **_failure(signal))
        case _ if read and signal.meaning in (Meaning.INVALID, Meaning.INCOMPLETE):
            return _stop(Reason.INVALID_RESPONSE, seen, signal)
        case _ if read or signal.certainty is Certainty.NOT_APPLIED:
            return _retry_failed(op, contract, signal, seen, now, u)
        case _:
            return _stop(Reason.UNCLEAR_WRITE, seen, signal, **_failure(signal))


def _not_sent(op: Operation, seen: Changes) -> Changes:
    """Move a proven not-sent from attempts to transport failures: the only decrease there is."""
    return seen | {
        "attempts": replace(op.attempts, used=op.attempts.used - 1),
        "transport_failures": _spend(op.transport_failures),
    }


def _retry_unsent(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    changes = _not_sent(op, seen)
    transport = _spend(op.transport_failures)
    limits = contract.classes[op.request_class]
    delay = backoff.retry_delay(limits, transport.used, u)
    if transport.spent or op.once is not None or not _starts_in_time(op, now + delay):
        return _out_of_attempts(op, signal, changes, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    return _postpone(signal, changes, now, delay, DelaySource.LOCAL_BACKOFF, wait=None)


def _retry_limited(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    limits = contract.classes[op.request_class]
    rate = _spend(op.rate_limited)
    seen["rate_limited"] = rate
    delay, source = _limited_delay(op, contract, limits, signal, u)
    allowed = 429 in limits.retry_statuses and not op.attempts.spent and not rate.spent
    if not allowed or op.once is not None or not _affordable(op, now, delay):
        verdict = _out_of_attempts(op, signal, seen, Reason.RATE_LIMITED)
    else:
        verdict = _postpone(signal, seen, now, delay, source, wait=op.wait)
    return _with_scope(verdict, op, signal, now, delay)


def _limited_delay(
    op: Operation, contract: Contract, limits: ClassLimits, signal: Signal, u: float
) -> tuple[int, DelaySource]:
    if signal.retry_after is not None and not signal.retry_after.past:
        stretched = backoff.stretched(signal.retry_after.delay, u)
        return stretched, DelaySource.PROVIDER_RETRY_AFTER
    tries = max(0, op.attempts.used - 1)
    job = contract.jobs.get(op.action) if op.kind is Kind.JOB else None
    if job is not None:
        floor = replace(limits, rate_limited=job.backoff.rate_limited)
        return backoff.rate_limited_retry_delay(floor, tries, u), DelaySource.LOCAL_BACKOFF
    return backoff.rate_limited_retry_delay(limits, tries, u), DelaySource.LOCAL_BACKOFF


def _wait_for_quota(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int
) -> Verdict:
    """A known reset inside all bounds is waited for; any other exhausted quota asks."""
    longest = max((scope.wait_until_reset for scope in contract.scopes), default=0)
    asked = signal.retry_after
    known = asked is not None and not asked.past and asked.delay <= longest
    if not known or asked is None or not _starts_in_time(op, now + asked.delay):
        return _with_scope(_stop(Reason.QUOTA_EXHAUSTED, seen, signal), op, signal, now, None)
    source = DelaySource.PROVIDER_RETRY_AFTER
    verdict = _postpone(signal, seen, now, asked.delay, source, wait=None)
    return _with_scope(verdict, op, signal, now, None)


def _retry_failed(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    limits = contract.classes[op.request_class]
    retryable = (
        signal.status is None
        or signal.status in limits.retry_statuses
        or signal.meaning in (Meaning.RETRY_LATER, Meaning.NOT_YET_VISIBLE, Meaning.IN_FLIGHT)
        or signal.meaning is Meaning.NO_ANSWER
    )
    delay = backoff.retry_delay(limits, max(0, op.attempts.used - 1), u)
    source = DelaySource.LOCAL_BACKOFF
    asked = signal.retry_after
    if asked is not None and asked.past:
        delay = max(delay, backoff.MODERATE)
    elif asked is not None and asked.delay >= delay:
        delay, source = backoff.stretched(asked.delay, u), DelaySource.PROVIDER_RETRY_AFTER
    if not retryable or op.attempts.spent or op.once or not _affordable(op, now, delay):
        return _out_of_attempts(op, signal, seen, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    return _postpone(signal, seen, now, delay, source, wait=op.wait)


def _affordable(op: Operation, now: int, delay: int) -> bool:
    return delay <= op.wait.left and _starts_in_time(op, now + delay)


def _starts_in_time(op: Operation, at: int) -> bool:
    """Whether a request that starts at `at` may still start (a write needs its whole timeout)."""
    least = 0 if op.request_class is RequestClass.READ else op.timeout
    return at + least <= end_of(op)


def _postpone(
    signal: Signal,
    seen: Changes,
    now: int,
    delay: int,
    source: DelaySource,
    *,
    wait: Budget | None,
) -> Verdict:
    changes = seen | {
        "next_at": now + delay,
        "delay": delay,
        "delay_source": source,
        "waiting_for": None,
    }
    if wait is not None:
        changes["wait"] = replace(wait, used=wait.used + delay)
    return Verdict(Event.POSTPONED, changes, story=_story(signal))


def _out_of_attempts(op: Operation, signal: Signal, seen: Changes, reason: Reason) -> Verdict:
    """No further attempt may be made: reads fail, unsent writes are dropped, the rest asks."""
    if op.once is not None:
        return _stop(Reason(op.once), seen, signal)
    if op.request_class is RequestClass.READ:
        return Verdict(
            Event.FAILED, {**seen, **REST, **_failure(signal)}, story=_story(signal, why=reason)
        )
    if op.kind is not Kind.JOB and seen.get("certainty") is Certainty.NOT_SENT:
        changes = {**seen, **REST, **_failure(signal)}
        return Verdict(Event.DISCARDED, changes, story=_story(signal, why=reason))
    return _stop(reason, seen, signal, **_failure(signal))
