"""Whether a request may leave now (behaviour.md, sections 2 and 3).

The order is fixed: approval, deadline, budgets, due, provider's minimum, pause, credential, the
scope's retry budget, then each scope's outage, rate, slot and turn; what is final never comes here.
Nothing here reserves; the ledger does that in the same transaction, and only then a permit exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forbear.rules import pacing, paging
from forbear.rules.conclusions import Verdict, stop
from forbear.rules.contract import Action, Job
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
from forbear.rules.pacing import Later, Shared, Taken
from forbear.rules.reconciliation import Search
from forbear.rules.redirects import Hop
from forbear.rules.schedule import end_of, end_reason, last_start
from forbear.rules.steps import key_honoured_until, key_of, lookup_of

HANDOVER = 10_000
"""How long after its reservation a request may hand over its first byte, ms."""

SETTLING = 5_000
"""Time between the end of the send window and the end of the lease, ms."""

CREDENTIAL_RECHECK = 15_000
"""How often an operation that waits for a credential looks for it, ms."""

PAUSE_RECHECK = 5_000
"""How often paused work looks whether the pause is over, ms."""


@dataclass(frozen=True, slots=True)
class Admit:
    """A permit may be made for `step`."""

    step: Step
    timeout: int
    """Total time of the request, ms."""
    send_by: int
    lease: int
    """Length of the lease, ms: the send window, the timeout and time to settle."""
    taken: tuple[Taken, ...]
    """What it takes of each scope that it counts in."""
    extra: bool
    """It repeats a request: it counts in the scopes' retry budgets."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now: look again at `until`."""

    until: int
    waiting_for: WaitingFor
    source: DelaySource | None = None
    queue: str | None = None
    """The key of the scope in whose queue it waits."""
    firm: frozenset[str] = frozenset()
    """Keys of other scopes in whose queues it keeps its turn meanwhile."""


def admit(
    op: Operation,
    action: Action,
    scopes: Sequence[Shared],
    now: int,
    *,
    credential_ready: bool,
    paused: bool = False,
    token: Hold | None = None,
) -> Admit | Hold | Verdict:
    """Decide about the request that `op` would send next. `op` is live and has no open attempt.

    `token` is the wait for a token that is being fetched, or cannot be fetched yet.
    """
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
    if token is not None:
        return awaiting_token(op, now, token)
    extra = is_extra(op)
    refused = _scope_spent(op, scopes, now) if extra and op.once is None else None
    if refused is not None:
        return refused
    observes = op.step is not Step.SEND or _is_read(op)
    taken: list[Taken] = []
    for one in scopes:
        match pacing.take(one, op, now, observes=observes):
            case Later() as later:
                return _wait(op, now, one, scopes, later)
            case Taken() as mark:
                taken.append(mark)
    return _grant(op, action, now, tuple(taken), extra=extra)


def awaiting_token(op: Operation, now: int, token: Hold) -> Hold | Verdict:
    """Wait for a token, though never past the operation's own end."""
    return _hold(op, now, token.until, token.waiting_for, token.source)


def in_doubt(op: Operation) -> bool:
    """Whether a write may have been applied that we hold no handle of: it is never dropped."""
    return op.state is State.UNCLEAR or not (has_handle(op) or may_send_again(op))


def is_extra(op: Operation) -> bool:
    """Whether the next request repeats one of this operation that left already.

    Scheduled checks and lookups are no repetitions, however often they are made, and where a
    redirect leads was not tried yet.
    """
    return op.step is Step.SEND and paging.repeats(op) and Hop.due(op) is None


def _scope_spent(op: Operation, scopes: Sequence[Shared], now: int) -> Hold | Verdict | None:
    """What follows where a scope allows no more repetitions inside its window (R05).

    What is in doubt waits for the window: neither dropping it nor asking would be right.
    """
    for one in scopes:
        budget, seen = one.scope.retry_budget, one.seen
        if budget is None or seen.extra < budget[0]:
            continue
        free_at = now + budget[1] if seen.extra_free_at is None else seen.extra_free_at
        if in_doubt(op):
            return _hold(op, now, free_at, WaitingFor.SCOPE, DelaySource.SCOPE_LIMIT)
        if op.kind is Kind.JOB:
            return stop(Reason.TRANSPORT_BUDGET_EXHAUSTED, why=f"retry budget of {one.key}")
        event = Event.FAILED if _is_read(op) else Event.DISCARDED
        message = f"the retry budget that all work on {one.scope.name} shares is used up"
        return Verdict(event, _ended(message, free_at), story={"why": "scope"})
    return None


def _wait(
    op: Operation, now: int, one: Shared, scopes: Sequence[Shared], later: Later
) -> Hold | Verdict:
    """Wait for a scope; a call or submission that is known to come too late ends at once (R12)."""
    beyond = later.known and later.until > last_start(op)
    if beyond and op.once is None and op.step is Step.SEND and not in_doubt(op):
        return _too_late(op, later.until)
    held = _hold(op, now, later.until, later.waiting_for, later.source)
    if isinstance(held, Hold) and later.queued:
        return replace(held, queue=one.key, firm=_keeps_turn(now, one, scopes, later))
    return held


def _keeps_turn(now: int, one: Shared, scopes: Sequence[Shared], later: Later) -> frozenset[str]:
    """Which other queues wait for a request that waits for `one`.

    Those that lose no more than one request by it: else who waits long for a narrow scope would
    hold up everybody in a wide one. Without it two busy scopes might never have room for the same
    request at the same time.
    """
    if not later.firm:
        return frozenset()
    wait = (later.until - now) * 1_000
    others = (other for other in scopes if other is not one)
    return frozenset(
        other.key for other in others if wait <= pacing.spacing(other.scope, other.seen, now)[0]
    )


def _too_late(op: Operation, until: int) -> Verdict:
    if op.kind is Kind.JOB:
        return stop(Reason.SCOPE_EXHAUSTED, why=f"nothing of the scope leaves before {until}")
    event = Event.FAILED if _is_read(op) else Event.DISCARDED
    message = "the provider's limit lasts beyond the deadline"
    return Verdict(event, _ended(message, until), story={"why": "scope"})


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
    if in_doubt(op):
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
        # A lookup of several pages is one lookup; where a redirect leads is one more.
        under_way = Search.of(op).cursor is not None and Hop.due(op) is None
        return stop(Reason.UNCLEAR_WRITE) if op.lookups.spent and not under_way else None
    if not op.attempts.spent:
        return None
    if in_doubt(op):
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
    repeats = op.step is Step.SEND and op.sent_at is not None and in_doubt(op)
    return repeats and key_of(op, action) is not None


def _is_read(op: Operation) -> bool:
    return op.request_class is RequestClass.READ


def _ended(message: str, retry_at: int | None = None) -> dict[str, object]:
    failure: dict[str, object] = {"message": message}
    if retry_at is not None:
        failure["retry_at"] = retry_at
    return {
        "next_at": None,
        "waiting_for": None,
        "approve_by": None,
        "delay": None,
        "delay_source": None,
        "failure": failure,
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


def _grant(
    op: Operation, action: Action, now: int, taken: tuple[Taken, ...], *, extra: bool
) -> Admit:
    timeout, latest = _timeout(op, action, now), now + HANDOVER
    if op.once is None:
        latest = min(latest, last_start(op))
    until = key_honoured_until(op, action)
    if until is not None and _rests_on_key(op, action):
        latest = min(latest, until)
    lease = HANDOVER + timeout + SETTLING
    return Admit(op.step, timeout, latest, lease, taken, extra)


def _timeout(op: Operation, action: Action, now: int) -> int:
    """How long the next request may take, ms.

    What only looks ends with the operation at the latest; a write that has started has its whole
    timeout, and so has the single permit of a decision.
    """
    whole, lookup = op.timeout, lookup_of(op, action)
    if op.step is Step.STATUS and isinstance(action, Job):
        whole = action.status.timeout
    elif op.step is Step.LOOKUP and lookup is not None:
        whole = lookup.request.timeout
    looks = op.step is not Step.SEND or _is_read(op)
    return min(whole, end_of(op) - now) if looks and op.once is None else whole
