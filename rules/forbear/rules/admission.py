"""Whether a request may leave now (behaviour.md, sections 2 and 3).

The order is fixed: approval, deadline, budgets, due, provider's minimum, credential, scope, slot;
what is final never comes here. Nothing here reserves; the ledger does that in the same transaction,
and only then a permit exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from forbear.rules.conclusions import Verdict, stop
from forbear.rules.contract import Action, Job, Scope
from forbear.rules.escalations import LONGEST_HOLD, has_handle, may_send_again
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.reconciliation import Search
from forbear.rules.schedule import end_of, end_reason, last_start
from forbear.rules.steps import key_honoured_until, key_of, lookup_of
from forbear.rules.steps import scope_of as scope_of

HANDOVER = 10_000
"""How long after its reservation a request may hand over its first byte, ms."""

SETTLING = 5_000
"""Time between the end of the send window and the end of the lease, ms."""

CREDENTIAL_RECHECK = 15_000
"""How often an operation that waits for a credential looks for it, ms."""

PAUSE_RECHECK = 5_000
"""How often paused work looks whether the pause is over, ms."""

RATE_SHARE = 0.9
"""The share of a published rate that is used."""


@dataclass(frozen=True, slots=True)
class Admit:
    """A permit may be made for `step`."""

    step: Step
    timeout: int
    """Total time of the request, ms."""
    send_by: int
    lease: int
    """Length of the lease, ms: the send window, the timeout and time to settle."""
    theoretical_arrival: int
    """The scope's new theoretical arrival time (GCRA), microseconds."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now: look again at `until`."""

    until: int
    waiting_for: WaitingFor
    source: DelaySource | None = None


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What the register knows of a scope, read inside the admitting transaction."""

    next_allowed_at: int = 0
    theoretical_arrival: int = 0
    """Microseconds since the epoch; the token bucket as one number."""
    open_attempts: int = 0
    next_free_at: int | None = None
    """When the first occupied slot is free at the latest."""
    ahead: int = 0
    """Operations of the scope that already wait for a token."""


def admit(
    op: Operation,
    action: Action,
    scope: Scope,
    seen: ScopeState,
    now: int,
    *,
    credential_ready: bool,
    paused: bool = False,
) -> Admit | Hold | Verdict:
    """Decide about the request that `op` would send next. `op` is live and has no open attempt."""
    ended = overdue(op, now)
    if ended is not None:
        return ended
    if op.approve_by is not None:
        return Hold(op.approve_by, WaitingFor.APPROVAL)
    spent = exhausted(op) or _window_over(op, action, now)
    if spent is not None:
        return spent
    if op.next_at is not None and op.next_at > now:
        return Hold(op.next_at, op.waiting_for or WaitingFor.PROVIDER, op.delay_source)
    if op.not_before is not None and op.not_before > now:
        source = DelaySource.PROVIDER_RETRY_AFTER
        return _hold(op, now, op.not_before, WaitingFor.PROVIDER, source)
    if paused and op.step is not Step.LOOKUP:
        # A person stopped it; deadlines and lookups go on (behaviour.md, section 2).
        return _hold(op, now, now + PAUSE_RECHECK, WaitingFor.SCOPE, None)
    if not credential_ready:
        return _hold(op, now, now + CREDENTIAL_RECHECK, WaitingFor.CREDENTIAL, None)
    spacing = pace(scope)
    queue = spacing * seen.ahead // 1_000
    if seen.next_allowed_at > now:
        until = seen.next_allowed_at + queue
        return _hold(op, now, until, WaitingFor.SCOPE, DelaySource.SCOPE_LIMIT)
    arrival = max(seen.theoretical_arrival, now * 1_000)
    early = arrival - spacing * (burst(scope) - 1) - now * 1_000
    if early > 0:
        until = now + early // 1_000 + 1 + queue
        return _hold(op, now, until, WaitingFor.SCOPE, DelaySource.SCOPE_LIMIT)
    if seen.open_attempts >= scope.max_concurrent_requests:
        until = seen.next_free_at if seen.next_free_at is not None else now + 1_000
        return _hold(op, now, until, WaitingFor.SLOT, DelaySource.SCOPE_LIMIT)
    return _grant(op, action, now, arrival + spacing)


def overdue(op: Operation, now: int) -> Verdict | None:
    """How an operation ends whose time is over before anything more is sent, if it is over."""
    if op.approve_by is not None:
        if now < op.approve_by:
            return None
        if has_handle(op):
            return stop(end_reason(op), {"approve_by": None}, why="approval")
        return Verdict(Event.DISCARDED, _ended("not approved in time"), story={"why": "approval"})
    if op.once is not None:
        if op.once_until is None or now < op.once_until:
            return None
        return stop(Reason(op.once), why="the single permit could not be used in time")
    if now <= last_start(op):
        return None
    if _in_doubt(op):
        return stop(Reason.UNCLEAR_WRITE, why=str(end_reason(op)))
    if op.kind is Kind.JOB:
        return stop(end_reason(op))
    if _is_read(op):
        return Verdict(Event.FAILED, _ended("deadline exceeded"), story={"why": "deadline"})
    return Verdict(Event.DISCARDED, _ended("deadline exceeded"), story={"why": "deadline"})


def exhausted(op: Operation) -> Verdict | None:
    """A spent maximum that forbids the next request. A decision's single permit ignores it."""
    if op.once is not None:
        return None
    if op.step is Step.STATUS:
        if op.transport_failures.spent:
            return stop(Reason.TRANSPORT_BUDGET_EXHAUSTED)
        if op.status_requests.spent:
            return stop(Reason.REQUEST_BUDGET_EXHAUSTED)
        return None
    if op.step is Step.LOOKUP:
        # A lookup of several pages is one lookup.
        under_way = Search.of(op).cursor is not None
        return stop(Reason.UNCLEAR_WRITE) if op.lookups.spent and not under_way else None
    if not op.attempts.spent:
        return None
    if _in_doubt(op):
        return stop(Reason.UNCLEAR_WRITE)
    if op.kind is Kind.JOB:
        return stop(Reason.TRANSPORT_BUDGET_EXHAUSTED)
    event = Event.FAILED if _is_read(op) else Event.DISCARDED
    return Verdict(event, _ended("no attempt left"), story={"why": "attempts"})


def _window_over(op: Operation, action: Action, now: int) -> Verdict | None:
    """A repetition that rests on a key alone is refused once the provider forgot the key."""
    if not _rests_on_key(op, action):
        return None
    until = key_honoured_until(op, action)
    if until is not None and now < until:
        return None
    return stop(Reason.UNCLEAR_WRITE, why="the provider no longer honours the key")


def _rests_on_key(op: Operation, action: Action) -> bool:
    repeats = op.step is Step.SEND and op.attempts.used > 0 and _in_doubt(op)
    return repeats and key_of(op, action) is not None


def _in_doubt(op: Operation) -> bool:
    """Whether a write may have been applied that we hold no handle of: it is never dropped."""
    return op.state is State.UNCLEAR or not (has_handle(op) or may_send_again(op))


def _is_read(op: Operation) -> bool:
    return op.request_class is RequestClass.READ


def _ended(message: str) -> dict[str, object]:
    return {
        "next_at": None,
        "waiting_for": None,
        "approve_by": None,
        "delay": None,
        "delay_source": None,
        "failure": {"message": message},
    }


def _hold(
    op: Operation, now: int, until: int, waiting_for: WaitingFor, source: DelaySource | None
) -> Hold | Verdict:
    """Wait, but never past the operation's own end.

    A decision's single permit has an end of its own; where a wait is known to pass it, the person
    is asked again at once.
    """
    if op.once is None:
        return Hold(min(until, last_start(op) + 1), waiting_for, source)
    lapses = op.once_until if op.once_until is not None else now + LONGEST_HOLD
    if until > lapses:
        return stop(Reason(op.once), why=f"{waiting_for} until {until}")
    return Hold(until, waiting_for, source)


def burst(scope: Scope) -> int:
    """How many requests may leave at once after a pause: a tenth of the published count."""
    return max(1, scope.rate[0] // 10)


def pace(scope: Scope) -> int:
    """Microseconds between two requests of a scope that is never idle.

    With `burst` it makes this promise: no stretch of the published length, wherever it begins,
    has more than 90 % of the published count (rounded up).
    """
    count, per = scope.rate
    steady = count * RATE_SHARE - (burst(scope) - 1)
    return ceil(per * 1_000 / steady)


def _grant(op: Operation, action: Action, now: int, arrival: int) -> Admit:
    timeout, latest = op.timeout, now + HANDOVER
    if op.step is Step.STATUS and isinstance(action, Job):
        timeout = action.status.timeout
        if op.once is None:
            timeout = min(timeout, end_of(op) - now)
    lookup = lookup_of(op, action)
    if op.step is Step.LOOKUP and lookup is not None:
        timeout = min(lookup.request.timeout, end_of(op) - now)
    if op.once is None:
        latest = min(latest, last_start(op))
    until = key_honoured_until(op, action)
    if until is not None and _rests_on_key(op, action):
        latest = min(latest, until)
    return Admit(op.step, timeout, latest, HANDOVER + timeout + SETTLING, arrival)


def scope_key(scope: Scope, provider: str, account: str, action: str) -> str:
    """The register's key of a scope; the same text in every process on the store."""
    match scope.per:
        case "provider" | "host":
            return f"{provider}/{scope.name}"
        case "account+action":
            return f"{provider}/{account}/{action}/{scope.name}"
        case _:
            return f"{provider}/{account}/{scope.name}"
