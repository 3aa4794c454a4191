"""When the next check of a job is due (behaviour.md, section 3).

Three voices, in rising order: our own backoff; the provider's recommendations (estimate and poll
hints, with a floor and a ceiling); its minimum (`Retry-After`), which nothing shortens. What a
provider states is only ever jittered upwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forbear.rules import backoff
from forbear.rules.contract import Job
from forbear.rules.model import DelaySource, Operation, Reason, RequestClass, Step
from forbear.rules.signals import Meaning, Signal

MARGIN = 1_000
"""Kept free around an end: the last check is over this long before it, ms."""


def end_of(op: Operation) -> int:
    """Whichever comes first of the operation's deadline and the workflow's `useful_until`."""
    return op.deadline_at if op.useful_until is None else min(op.deadline_at, op.useful_until)


def end_reason(op: Operation) -> Reason:
    """Which of the two ends the wait."""
    if op.useful_until is not None and op.useful_until < op.deadline_at:
        return Reason.USEFUL_UNTIL_PASSED
    return Reason.DEADLINE_EXCEEDED


def last_start(op: Operation) -> int:
    """The last moment at which the next request may start.

    A write must have its whole timeout before the end; a read or an observation only some of it.
    """
    if op.step is Step.SEND and op.request_class is not RequestClass.READ:
        return end_of(op) - op.timeout
    return end_of(op) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """When the next check is due and why then."""

    at: int
    delay: int
    source: DelaySource
    minimum: int
    """What the provider itself asked for, ms; 0 if nothing."""
    story: Mapping[str, object]


def plan_check(
    op: Operation, job: Job, signal: Signal, now: int, u: float, local: tuple[int, DelaySource]
) -> Plan | Reason:
    """The next check after an answer that ended nothing, or why there can be none.

    `local` is our own delay, already jittered; `u` is uniform in [0, 1). A check that would fall
    on or beyond the end is moved to the last useful moment, or left out if that has passed.
    """
    end, told = end_of(op), list[str]()
    asked = stated_wait(signal)
    if asked is not None and now + asked >= end:
        return beyond_end(op, signal)

    delay, source = local
    minimum = _recommended(op, job, signal, end - now, told)
    if minimum:
        delay, source = backoff.stretched(minimum, u), DelaySource.PROVIDER_POLL_HINT
    if asked is not None and asked >= delay:
        delay, source = backoff.stretched(asked, u), DelaySource.PROVIDER_RETRY_AFTER
    elif asked is None and signal.retry_after is not None:
        delay = max(delay, backoff.MODERATE)
    minimum = max(minimum, asked or 0)

    at = now + delay
    expiry = known_expiry(op, signal)
    if expiry is not None and now < expiry < at:
        at = max(expiry + MARGIN, now + minimum)
        told.append("moved to just after the provider's own expiry")
    if at >= end:
        last = end - job.status.timeout - MARGIN
        wanted = max(last, now + minimum)
        at = end if last <= now else wanted if wanted < end else last
        told.append("last check before the end" if at < end else "no check fits before the end")
    return Plan(at, at - now, source, minimum, {"told": told} if told else {})


def stated_wait(signal: Signal) -> int | None:
    """The provider's minimum wait, ms; None without a `Retry-After`, or with one in the past."""
    asked = signal.retry_after
    return None if asked is None or asked.past else asked.delay


def beyond_end(op: Operation, signal: Signal) -> Reason:
    """Why an operation stops at once when the provider's wait passes its end."""
    if signal.meaning is Meaning.RATE_LIMITED:
        return Reason.RATE_LIMITED
    if signal.status is not None and signal.status >= 500:
        return Reason.TRANSPORT_BUDGET_EXHAUSTED
    return end_reason(op)


def known_expiry(op: Operation, signal: Signal) -> int | None:
    """The provider's own end of the job as last stated, epoch ms."""
    return op.provider_expiry_at if signal.expiry_at is None else signal.expiry_at


def _recommended(op: Operation, job: Job, signal: Signal, time_left: int, told: list[str]) -> int:
    """The wait that the provider recommends, ms; 0 if none can be used.

    Why a recommendation was not followed as stated goes into `told`. Of several hints the longest
    counts. An estimate moves the first check only, and a hint beats it.
    """
    usable: list[int] = []
    for hint in signal.hints:
        if hint.delay is None:
            told.append(f"hint {hint.text} rejected: {hint.rejected or 'unreadable'}")
        elif hint.delay >= time_left:
            told.append(f"hint {hint.text} rejected: beyond the deadline")
        elif hint.delay > job.hints.ceiling:
            told.append(f"hint {hint.text} rejected: above the ceiling")
            usable.append(job.hints.ceiling)
        else:
            usable.append(max(hint.delay, job.hints.floor))
    if usable:
        return max(usable)
    if signal.estimate is None or op.accepted_at is not None:
        return 0
    if signal.estimate >= time_left:
        told.append("estimate rejected: beyond the deadline")
        return 0
    return max(signal.estimate, job.hints.floor)
