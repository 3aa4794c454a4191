"""Verdicts as values, and what all of them record of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forbear.rules.contract import Action, ClassLimits, Contract, Job
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    Kind,
    Notice,
    Operation,
    Reason,
    RequestClass,
    Step,
    WaitingFor,
)
from forbear.rules.ports import Moment
from forbear.rules.schedule import end_of, stated_wait
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
    about: str | None = None
    """What a case is about beside the operation: what it shares with others."""
    story: Mapping[str, object] = field(default_factory=Changes)
    """What the rules saw and chose, for the audit event."""


_ORDER = (
    Certainty.NOT_SENT,
    Certainty.NOT_APPLIED,
    Certainty.MAYBE_APPLIED,
    Certainty.APPLIED,
)


def strongest(one: Certainty, other: Certainty) -> Certainty:
    """What is known after two attempts: the one that leaves more behind at the provider."""
    return max(one, other, key=_ORDER.index)


@dataclass(frozen=True, slots=True)
class Tried:
    """One closed attempt, and all that its verdict is made of."""

    op: Operation
    """The record as it stands, with the attempt already counted."""
    contract: Contract
    action: Action
    signal: Signal
    seen: Changes
    """What every verdict on the attempt records."""
    now: int
    u: float
    """A uniform draw in [0, 1)."""
    clocks: Moment | None = None
    """All clocks at `now`: the wall clock alone may have been set."""

    def noting(self, **more: object) -> Tried:
        """The same with more on the record."""
        return replace(self, seen=self.seen | more)

    @property
    def limits(self) -> ClassLimits:
        return self.contract.classes[self.op.request_class]

    @property
    def in_doubt(self) -> bool:
        """Whether this attempt or an earlier one may have changed something at the provider."""
        certainty = strongest(self.op.certainty, self.signal.certainty)
        harmless = certainty in (Certainty.NOT_SENT, Certainty.NOT_APPLIED)
        return self.op.request_class is not RequestClass.READ and not harmless


def seen_in(op: Operation, signal: Signal, now: int) -> Changes:
    """What every answer leaves on the record. A decision's single permit is used up by it."""
    seen = seen_in_lookup(signal, now)
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


def seen_in_lookup(signal: Signal, now: int) -> Changes:
    """What the answer to a lookup leaves on the record: nothing of it is the write's own answer."""
    seen: Changes = {"delay": None, "delay_source": None, "once": None, "once_until": None}
    asked = stated_wait(signal)
    if asked is not None:
        seen["not_before"] = now + asked
    return seen


def failure_of(signal: Signal, **more: object) -> Changes:
    """The provider's own words about a failure, or how the request went astray."""
    detail: dict[str, object] = {**more}
    if signal.failure_code is not None:
        detail["code"] = signal.failure_code
    message = signal.failure_message or _undelivered(signal)
    if message is not None:
        detail["message"] = message
    if signal.status is not None:
        detail["http_status"] = signal.status
    return {"failure": detail}


def _undelivered(signal: Signal) -> str | None:
    """What to say where no provider said anything."""
    match signal.meaning:
        case Meaning.NOT_SENT:
            return f"never sent: {signal.fault}"
        case Meaning.NO_ANSWER:
            return f"no answer: {signal.fault}"
        case Meaning.REDIRECT if signal.missing:
            return signal.missing[0]
        case _:
            return None


REST: Changes = {"next_at": None, "waiting_for": None, "delay": None, "delay_source": None}
"""What a state that plans nothing has."""

SUCCESS: Changes = {**REST, "failure": None}
"""What every success leaves: a failure of an earlier attempt is the story's, not the outcome's."""


def story_of(signal: Signal, **chosen: object) -> Changes:
    """The inputs of the rules as the audit event keeps them."""
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
    if signal.quotas:
        told["limits"] = [
            {
                "scope": scope,
                "read": str(quota.source),
                "remaining": quota.remaining,
                "reset_ms": quota.reset_after,
            }
            for scope, quota in signal.quotas
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


def stop(reason: Reason, changes: Mapping[str, object] | None = None, **story: object) -> Verdict:
    """Ask a person, and plan nothing."""
    return Verdict(Event.STOPPED, {**(changes or {}), **REST}, reason=reason, story=story)


def stopped(reason: Reason, seen: Changes, signal: Signal, **more: object) -> Verdict:
    """Ask a person because of an answer."""
    return stop(reason, seen | more, **story_of(signal))


def spend(budget: Budget) -> Budget:
    """One more used."""
    return replace(budget, used=budget.used + 1)


def blocking_scope(verdict: Verdict, now: int, wait: int | None) -> Verdict:
    """A 429 or a quota answer moves the scope by the same time; a 503 never does."""
    return verdict if wait is None else replace(verdict, scope_until=now + wait)


def approved_again(
    op: Operation, action: Action, covers: str, verdict: Verdict, now: int
) -> Verdict:
    """Ask a person before another try, where an approval covers one send only (E18).

    What may have been applied is never left to an approval that may not come: it asks as unclear,
    and so does what was looked for and is not there.
    """
    absent = verdict.event is Event.OBSERVED and op.step is Step.LOOKUP
    goes_on = absent or verdict.event in (Event.POSTPONED, Event.MADE_UNCLEAR)
    sends = verdict.changes.get("step", op.step) is Step.SEND
    if covers != "attempt" or op.authorisation == "contract" or not (goes_on and sends):
        return verdict
    if verdict.event is not Event.POSTPONED:
        return stop(Reason.UNCLEAR_WRITE, verdict.changes, **verdict.story)
    by = now + action.approve_within
    asking: Changes = {
        "approve_by": by,
        "approve_deadline": max(0, op.deadline_at - now),
        "next_at": by,
        "waiting_for": WaitingFor.APPROVAL,
        "delay": None,
        "delay_source": None,
    }
    changes = {**verdict.changes, **asking}
    return replace(verdict, changes=changes, reason=Reason.APPROVAL_REQUIRED)


def approved_first(op: Operation, job: Job, verdict: Verdict, *, first: bool) -> Verdict:
    """Ask a person before the next status request, where the contract wants that.

    `session` asks once for a job's whole observation, `per_call` before each request. The job's
    own end still counts while the question is open.
    """
    mode = job.status.approval.mode
    if mode == "none" or (mode == "session" and not first):
        return verdict
    end = end_of(op)
    asking: Changes = {"approve_by": end, "next_at": end, "waiting_for": WaitingFor.APPROVAL}
    changes = {**verdict.changes, **asking, "delay": None, "delay_source": None}
    return replace(verdict, changes=changes, reason=Reason.APPROVAL_REQUIRED)
