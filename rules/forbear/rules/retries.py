"""After an answer that is not the effect we wanted: try again, end, or ask (section 4).

Retry what certainly did nothing, never repeat what may have done it.
"""

from __future__ import annotations

from dataclasses import replace

from forbear.rules import backoff
from forbear.rules.conclusions import (
    REST,
    Changes,
    Verdict,
    blocking_scope,
    failure_of,
    spend,
    stopped,
    story_of,
)
from forbear.rules.contract import Action, ClassLimits, Contract
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
)
from forbear.rules.reconciliation import made_unclear
from forbear.rules.schedule import beyond_end, end_reason, last_start, stated_wait
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import scope_of


def without_effect(
    op: Operation,
    contract: Contract,
    action: Action,
    signal: Signal,
    seen: Changes,
    now: int,
    u: float,
) -> Verdict:
    """Outcome by class: retry what certainly did nothing, never repeat what may have done it."""
    read = op.request_class is RequestClass.READ
    repeated = op.certainty is Certainty.MAYBE_APPLIED
    match signal.meaning:
        case Meaning.AUTH:
            return stopped(Reason.AUTHORIZATION_DENIED, seen, signal)
        case Meaning.NOT_SENT if signal.fault == "egress_refused":
            return stopped(Reason.EGRESS_REFUSED, _not_sent(op, seen), signal)
        case Meaning.NOT_SENT:
            return _retry_unsent(op, contract, signal, seen, now, u)
        case Meaning.RATE_LIMITED:
            return _retry_limited(op, contract, signal, seen, now, u)
        case Meaning.QUOTA_EXHAUSTED:
            return _wait_for_quota(op, contract, signal, seen, now, u)
        case Meaning.REDIRECT:
            return stopped(Reason.INTEGRATION_FAILURE, seen, signal)
        case Meaning.REJECTED | Meaning.NOT_FOUND | Meaning.GONE:
            refused = {**seen, **REST, **failure_of(signal)}
            return Verdict(Event.FAILED, refused, story=story_of(signal))
        case Meaning.ALREADY_EXISTS if repeated and action.lookup is not None:
            # Most likely our own earlier attempt; only the lookup knows (section 4).
            return made_unclear(op, contract, action, signal, seen, now, u)
        case (
            Meaning.CONFLICT
            | Meaning.KEY_REUSED
            | Meaning.ALREADY_EXISTS
            | Meaning.ALREADY_TERMINAL
        ):
            return stopped(Reason.CONFLICT, seen, signal, **failure_of(signal))
        case _ if read and signal.meaning in (Meaning.INVALID, Meaning.INCOMPLETE):
            return stopped(Reason.INVALID_RESPONSE, seen, signal)
        case _ if read or signal.certainty is Certainty.NOT_APPLIED:
            return _retry_failed(op, contract, signal, seen, now, u)
        case _:
            return made_unclear(op, contract, action, signal, seen, now, u)


def _not_sent(op: Operation, seen: Changes) -> Changes:
    """Move a proven not-sent from attempts to transport failures: the only decrease there is."""
    return seen | {
        "attempts": replace(op.attempts, used=op.attempts.used - 1),
        "transport_failures": spend(op.transport_failures),
    }


def _retry_unsent(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    changes = _not_sent(op, seen)
    limits = contract.classes[op.request_class]
    delay = backoff.retry_delay(limits, op.transport_failures.used, u)
    if spend(op.transport_failures).spent or op.once is not None:
        return _given_up(op, signal, changes, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    if not _starts_in_time(op, now + delay):
        return _given_up(op, signal, changes, end_reason(op))
    return _postpone(signal, changes, now, delay, DelaySource.LOCAL_BACKOFF)


def _retry_limited(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    limits = contract.classes[op.request_class]
    rate = spend(op.rate_limited)
    seen["rate_limited"] = rate
    own = _unasked_delay(op, contract, limits, u) if stated_wait(signal) is None else 0
    local = own, DelaySource.LOCAL_BACKOFF
    delay, source = _at_least_asked(op, signal, local, now, u)
    allowed = 429 in limits.retry_statuses and not op.attempts.spent and not rate.spent
    if not allowed or op.once is not None or not _affordable(op, now, delay):
        verdict = _given_up(op, signal, seen, Reason.RATE_LIMITED)
    else:
        verdict = _postpone(signal, seen, now, delay, source, wait=op.wait)
    return blocking_scope(verdict, now, stated_wait(signal) or delay)


def _unasked_delay(op: Operation, contract: Contract, limits: ClassLimits, u: float) -> int:
    """The wait after a 429 without a hint; a job's submission has the job's own least wait."""
    job = contract.jobs.get(op.action) if op.kind is Kind.JOB else None
    if job is not None:
        limits = replace(limits, rate_limited=job.backoff.rate_limited)
    return backoff.rate_limited_retry_delay(limits, max(0, op.attempts.used - 1), u)


def _wait_for_quota(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """A known reset inside all bounds is waited for; any other exhausted quota asks."""
    asked = stated_wait(signal)
    longest = scope_of(contract.scopes, op.action).wait_until_reset
    may = op.once is None and not op.attempts.spent
    if not may or asked is None or asked > longest or not _starts_in_time(op, now + asked):
        verdict = stopped(Reason.QUOTA_EXHAUSTED, seen, signal)
    else:
        jittered = backoff.stretched(asked, u)
        delay = jittered if _starts_in_time(op, now + jittered) else asked
        verdict = _postpone(signal, seen, now, delay, DelaySource.PROVIDER_RETRY_AFTER)
    return blocking_scope(verdict, now, asked)


def _retry_failed(
    op: Operation, contract: Contract, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """After an answer, or the lack of one, that left no effect: a read, or so proven."""
    limits = contract.classes[op.request_class]
    retryable = signal.status in limits.retry_statuses or signal.meaning in _RETRYABLE
    own = backoff.retry_delay(limits, max(0, op.attempts.used - 1), u)
    local = own, DelaySource.LOCAL_BACKOFF
    delay, source = _at_least_asked(op, signal, local, now, u)
    if not retryable or op.attempts.spent or op.once is not None:
        return _given_up(op, signal, seen, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    if not _starts_in_time(op, now + delay):
        stated = stated_wait(signal) is not None
        return _given_up(op, signal, seen, beyond_end(op, signal) if stated else end_reason(op))
    if not _affordable(op, now, delay):
        return _given_up(op, signal, seen, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    return _postpone(signal, seen, now, delay, source, wait=op.wait)


_RETRYABLE = frozenset(
    {
        Meaning.NO_ANSWER,
        Meaning.UNCLEAR,
        Meaning.RETRY_LATER,
        Meaning.NOT_YET_VISIBLE,
        Meaning.IN_FLIGHT,
    }
)
"""Meanings that are tried again whatever the status code was."""


def _at_least_asked(
    op: Operation, signal: Signal, local: tuple[int, DelaySource], now: int, u: float
) -> tuple[int, DelaySource]:
    """Our own delay, or the provider's minimum where that is longer, jittered if there is room."""
    delay, source = local
    asked = stated_wait(signal)
    if asked is not None and asked >= delay:
        jittered = backoff.stretched(asked, u)
        delay = jittered if _affordable(op, now, jittered) else asked
        return delay, DelaySource.PROVIDER_RETRY_AFTER
    if asked is None and signal.retry_after is not None:
        delay = max(delay, backoff.MODERATE)
    return delay, source


def _affordable(op: Operation, now: int, delay: int) -> bool:
    return delay <= op.wait.left and _starts_in_time(op, now + delay)


def _starts_in_time(op: Operation, at: int) -> bool:
    return at <= last_start(op)


def _postpone(
    signal: Signal,
    seen: Changes,
    now: int,
    delay: int,
    source: DelaySource,
    *,
    wait: Budget | None = None,
) -> Verdict:
    """Try again after `delay`; `wait` is the budget it counts against, if it does."""
    changes = seen | {
        "next_at": now + delay,
        "delay": delay,
        "delay_source": source,
        "waiting_for": None,
    }
    if wait is not None:
        changes["wait"] = replace(wait, used=wait.used + delay)
    return Verdict(Event.POSTPONED, changes, story=story_of(signal))


def _given_up(op: Operation, signal: Signal, seen: Changes, reason: Reason) -> Verdict:
    """No further attempt may be made: reads fail, unsent writes are dropped, the rest asks."""
    if op.once is not None:
        return stopped(Reason(op.once), seen, signal)
    changes, story = {**seen, **failure_of(signal)}, story_of(signal, why=reason)
    if op.request_class is RequestClass.READ:
        return Verdict(Event.FAILED, {**changes, **REST}, story=story)
    if op.kind is not Kind.JOB and seen.get("certainty") is Certainty.NOT_SENT:
        return Verdict(Event.DISCARDED, {**changes, **REST}, story=story)
    return stopped(reason, changes, signal)
