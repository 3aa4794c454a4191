"""After an answer that is not the effect we wanted: try again, end, look, or ask (section 4).

Retry what certainly did nothing. What may have done it is never sent again, except under a key that
the provider promised to recognise, or where the write is idempotent by its nature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forbear.rules import backoff
from forbear.rules.conclusions import (
    REST,
    Changes,
    Tried,
    Verdict,
    blocking_scope,
    failure_of,
    spend,
    stopped,
    story_of,
)
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
    Step,
)
from forbear.rules.paging import tried_before
from forbear.rules.reconciliation import Search, look
from forbear.rules.schedule import beyond_end, end_reason, last_start, stated_wait
from forbear.rules.signals import Meaning
from forbear.rules.steps import key_honoured_until, key_of, lookup_of, scopes_of

RESENT_BY = frozenset({408, 502, 503, 504})
"""Answers after which a keyed write is sent again under its key before anything is looked up."""


def without_effect(tried: Tried) -> Verdict:
    """Outcome by class: retry what certainly did nothing, never guess about what may have done it.

    `tried.seen["certainty"]` is what is known of all attempts together.
    """
    op, signal, seen = tried.op, tried.signal, tried.seen
    read = op.request_class is RequestClass.READ
    doubtful = not read and op.certainty is Certainty.MAYBE_APPLIED
    match signal.meaning:
        case Meaning.AUTH:
            # As after a lookup: an earlier attempt in doubt is the question, and has a way out.
            reason = Reason.UNCLEAR_WRITE if doubtful else Reason.AUTHORIZATION_DENIED
            return stopped(reason, seen, signal)
        case Meaning.NOT_SENT if signal.fault == "egress_refused":
            reason = Reason.UNCLEAR_WRITE if doubtful else Reason.EGRESS_REFUSED
            return stopped(reason, seen | _not_sent(op), signal)
        case Meaning.NOT_SENT:
            return _retry_unsent(tried)
        case Meaning.RATE_LIMITED:
            return _retry_limited(tried)
        case Meaning.QUOTA_EXHAUSTED:
            return _wait_for_quota(tried)
        case Meaning.REDIRECT if doubtful:
            return _looked_for(tried)
        case Meaning.REDIRECT:
            return stopped(Reason.INTEGRATION_FAILURE, seen, signal, **failure_of(signal))
        case Meaning.REJECTED | Meaning.NOT_FOUND | Meaning.GONE:
            return _refused(tried)
        case Meaning.ALREADY_EXISTS if doubtful:
            # Most likely our own earlier attempt; only a lookup knows.
            return look(tried) or stopped(Reason.CONFLICT, seen, signal, **failure_of(signal))
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
            return _retry_failed(tried)
        case _:
            return _made_unclear(tried)


# --- what may have been applied -------------------------------------------------------------


def _made_unclear(tried: Tried) -> Verdict:
    """A write whose attempt may have been applied: the first way that is open, else a person."""
    for way in _ways(tried):
        verdict = way(tried)
        if verdict is not None:
            return verdict
    return _asked(tried)


def _ways(tried: Tried) -> tuple[Callable[[Tried], Verdict | None], ...]:
    signal = tried.signal
    match signal.meaning:
        case _ if signal.certainty is Certainty.APPLIED:
            return (look,)
        case Meaning.SERVER_ERROR if signal.status in RESENT_BY:
            return _resend, look
        case (
            Meaning.SERVER_ERROR
            | Meaning.NO_ANSWER
            | Meaning.INVALID
            | Meaning.UNCLEAR
            | Meaning.IN_FLIGHT
            | Meaning.RETRY_LATER
        ):
            return (look,) if _replays(tried) else (look, _resend)
        case _:
            return (look,)


def _replays(tried: Tried) -> bool:
    """Whether the same key would only bring back the error that the provider stored under it."""
    promise, status = key_of(tried.op, tried.action), tried.signal.status
    if promise is None or not promise.stores_errors or not tried.signal.answered:
        return False
    return status is not None and status >= 500 and status not in RESENT_BY


def _resend(tried: Tried) -> Verdict | None:
    """The same request again under its key, or because its nature allows it; None if neither.

    The answer that follows the one resend after a proven absence is never followed by another.
    """
    op, signal, limits = tried.op, tried.signal, tried.limits
    if op.request_class is not RequestClass.IDEMPOTENT_WRITE or op.attempts.spent:
        return None
    if op.once is not None or Search.of(op).proven:
        return None
    if signal.status in RESENT_BY - limits.retry_statuses:
        return None
    own = backoff.retry_delay(limits, tried_before(op), tried.u)
    if signal.meaning is Meaning.IN_FLIGHT:
        own = max(own, backoff.MODERATE)
    delay, source = _at_least_asked(tried, (own, DelaySource.LOCAL_BACKOFF))
    if not _affordable(tried, delay) or not _recognised(tried, tried.now + delay):
        return None
    return _postpone(tried.noting(**failure_of(signal)), delay, source, wait=op.wait)


def _recognised(tried: Tried, at: int) -> bool:
    """Whether a repetition at this time does nothing twice."""
    if key_of(tried.op, tried.action) is None:
        return True
    until = key_honoured_until(tried.op, tried.action)
    return until is not None and at < until


def _refused(tried: Tried) -> Verdict:
    """A definite refusal. It says nothing about an earlier attempt that may have been applied.

    Unless it came under the same key: then it is the provider's word on that key, where no lookup
    knows more.
    """
    op, signal = tried.op, tried.signal
    keyed = key_of(op, tried.action) is not None and _recognised(tried, tried.now)
    if tried.in_doubt and (lookup_of(op, tried.action) is not None or not keyed):
        return _looked_for(tried)
    refused = {**tried.seen, **REST, **failure_of(signal)}
    return Verdict(Event.FAILED, refused, story=story_of(signal))


def _looked_for(tried: Tried) -> Verdict:
    return look(tried) or _asked(tried)


def _asked(tried: Tried) -> Verdict:
    changes = tried.seen | failure_of(tried.signal)
    return stopped(Reason.UNCLEAR_WRITE, changes, tried.signal)


# --- what certainly did nothing -------------------------------------------------------------


def _not_sent(op: Operation) -> Changes:
    """Move a proven not-sent from attempts to transport failures: the only decrease there is."""
    return {
        "attempts": replace(op.attempts, used=op.attempts.used - 1),
        "transport_failures": spend(op.transport_failures),
    }


def _retry_unsent(tried: Tried) -> Verdict:
    op, moved = tried.op, tried.noting(**_not_sent(tried.op))
    delay = backoff.retry_delay(tried.limits, op.transport_failures.used, tried.u)
    if spend(op.transport_failures).spent or op.once is not None:
        return _given_up(moved, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    if not _starts_in_time(tried, delay):
        return _given_up(moved, end_reason(op))
    return _postpone(moved, delay, DelaySource.LOCAL_BACKOFF)


def _retry_limited(tried: Tried) -> Verdict:
    op, signal, limits = tried.op, tried.signal, tried.limits
    rate = spend(op.rate_limited)
    tried = tried.noting(rate_limited=rate)
    own = _unasked_delay(tried) if stated_wait(signal) is None else 0
    delay, source = _at_least_asked(tried, (own, DelaySource.LOCAL_BACKOFF))
    allowed = 429 in limits.retry_statuses and not op.attempts.spent and not rate.spent
    if not allowed or op.once is not None or not _affordable(tried, delay):
        verdict = _given_up(tried, Reason.RATE_LIMITED)
    else:
        verdict = _postpone(tried, delay, source, wait=op.wait)
    return blocking_scope(verdict, tried.now, stated_wait(signal) or delay)


def _unasked_delay(tried: Tried) -> int:
    """The wait after a 429 without a hint; a job's submission has the job's own least wait."""
    op, limits = tried.op, tried.limits
    job = tried.contract.jobs.get(op.action) if op.kind is Kind.JOB else None
    if job is not None:
        limits = replace(limits, rate_limited=job.backoff.rate_limited)
    return backoff.rate_limited_retry_delay(limits, tried_before(op), tried.u)


def _wait_for_quota(tried: Tried) -> Verdict:
    """A known reset inside all bounds is waited for; any other exhausted quota asks."""
    op, asked = tried.op, stated_wait(tried.signal)
    shared = scopes_of(tried.contract.scopes, op.action)
    longest = min(scope.wait_until_reset for scope in shared)
    may = op.once is None and not op.attempts.spent
    if may and asked is not None and asked <= longest and _starts_in_time(tried, asked):
        jittered = backoff.stretched(asked, tried.u)
        delay = jittered if _starts_in_time(tried, jittered) else asked
        verdict = _postpone(tried, delay, DelaySource.PROVIDER_RETRY_AFTER)
    elif tried.in_doubt:
        verdict = _looked_for(tried)
    else:
        verdict = stopped(Reason.QUOTA_EXHAUSTED, tried.seen, tried.signal)
    return blocking_scope(verdict, tried.now, asked or _unasked_delay(tried))


def _retry_failed(tried: Tried) -> Verdict:
    """After an answer, or the lack of one, that left no effect: a read, or so proven."""
    op, signal, limits = tried.op, tried.signal, tried.limits
    retryable = signal.status in limits.retry_statuses or signal.meaning in _RETRYABLE
    own = backoff.retry_delay(limits, tried_before(op), tried.u)
    delay, source = _at_least_asked(tried, (own, DelaySource.LOCAL_BACKOFF))
    if not retryable or op.attempts.spent or op.once is not None:
        return _given_up(tried, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    if not _starts_in_time(tried, delay):
        stated = stated_wait(signal) is not None
        return _given_up(tried, beyond_end(op, signal) if stated else end_reason(op))
    if not _affordable(tried, delay):
        return _given_up(tried, Reason.TRANSPORT_BUDGET_EXHAUSTED)
    return _postpone(tried, delay, source, wait=op.wait)


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


# --- when, or not at all --------------------------------------------------------------------


def _at_least_asked(tried: Tried, local: tuple[int, DelaySource]) -> tuple[int, DelaySource]:
    """Our own delay, or the provider's minimum where that is longer, jittered if there is room."""
    delay, source = local
    asked = stated_wait(tried.signal)
    if asked is not None and asked >= delay:
        jittered = backoff.stretched(asked, tried.u)
        delay = jittered if _affordable(tried, jittered) else asked
        return delay, DelaySource.PROVIDER_RETRY_AFTER
    if asked is None and tried.signal.retry_after is not None:
        delay = max(delay, backoff.MODERATE)
    return delay, source


def _affordable(tried: Tried, delay: int) -> bool:
    return delay <= tried.op.wait.left and _starts_in_time(tried, delay)


def _starts_in_time(tried: Tried, delay: int) -> bool:
    return tried.now + delay <= last_start(tried.op)


def _postpone(
    tried: Tried, delay: int, source: DelaySource, *, wait: Budget | None = None
) -> Verdict:
    """Try again after `delay`; `wait` is the budget it counts against, if it does.

    What may have been applied is not merely delayed: it stays unclear until its answer.
    """
    changes = tried.seen | {
        "next_at": tried.now + delay,
        "delay": delay,
        "delay_source": source,
        "waiting_for": None,
    }
    if wait is not None:
        changes["wait"] = replace(wait, used=wait.used + delay)
    if tried.in_doubt:
        event, changes["step"] = Event.MADE_UNCLEAR, Step.SEND
    else:
        event = Event.POSTPONED
    return Verdict(event, changes, story=story_of(tried.signal))


def _given_up(tried: Tried, reason: Reason) -> Verdict:
    """No further attempt may be made: reads fail, unsent writes are dropped, the rest asks."""
    op, signal = tried.op, tried.signal
    if op.once is not None:
        return stopped(Reason(op.once), tried.seen, signal)
    if tried.in_doubt:
        return _looked_for(tried)
    changes, story = tried.seen | failure_of(signal), story_of(signal, why=reason)
    if op.request_class is RequestClass.READ:
        if op.kind is Kind.CALL:
            changes |= failure_of(signal, retry_at=_ask_again_at(tried))
        return Verdict(Event.FAILED, {**changes, **REST}, story=story)
    if op.kind is not Kind.JOB and tried.seen.get("certainty") is Certainty.NOT_SENT:
        return Verdict(Event.DISCARDED, {**changes, **REST}, story=story)
    return stopped(reason, changes, signal)


def _ask_again_at(tried: Tried) -> int:
    """When the same read may be sent anew: not before the provider's minimum, and not sooner than
    the class would have tried again itself, or asking again would be the faster retry.
    """
    floor = tried.now + tried.limits.max_delay
    stated = tried.seen.get("not_before", tried.op.not_before)
    return max(floor, stated) if isinstance(stated, int) else floor
