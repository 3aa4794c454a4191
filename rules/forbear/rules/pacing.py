"""When the next request of a shared scope may leave: rate, provider's word, slots, turn, outage.

All of it is arithmetic on what the register knows. The token bucket is one number, its theoretical
arrival time (GCRA): the time at which a scope that is never idle would send next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from forbear.rules.contract import Scope
from forbear.rules.model import DelaySource, Operation, Priority, WaitingFor

RATE_SHARE = 0.9
"""The share of a published rate that is used."""

SLOWEST = 3
"""How often a 429 halves the local rate at most: to an eighth."""

RECOVERY = 60_000
"""How long after a 429 the local rate doubles again, ms."""

WRITE_AFTER_PROBE = 10_000
"""How long a write leaves it to reads to find out whether an outage is over, ms."""


@dataclass(frozen=True, slots=True)
class Circuit:
    """An outage of one scope and host: only a probe goes out, at `probe_at` or later."""

    probe_at: int


@dataclass(frozen=True, slots=True)
class ScopeState:
    """What the register knows of a scope, read inside the admitting transaction."""

    next_allowed_at: int = 0
    """Nothing leaves before it: a 429 or an exhausted quota."""
    theoretical_arrival: int = 0
    """Microseconds since the epoch."""
    background_arrival: int = 0
    """The same for background work alone, which leaves a reserve."""
    remaining: int | None = None
    """Requests that the provider said may still leave before `reset_at`."""
    reset_at: int | None = None
    slowed: int = 0
    """How often the rate was halved by 429s, as of `slowed_at`."""
    slowed_at: int = 0
    open_attempts: int = 0
    next_free_at: int | None = None
    """When the first occupied slot is free at the latest."""
    extra: int = 0
    """Repeated requests inside the window of the retry budget."""
    extra_free_at: int | None = None
    """When the first of them leaves that window."""
    first: bool = True
    """Whether it is the asking operation's turn."""
    ahead: int = 0
    """About how many operations are served before it."""
    most_ahead: int = 0
    """No more are served before it than so many."""
    circuit: Circuit | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A scope that a request counts in: its key in the register, its limits, and its state."""

    key: str
    scope: Scope
    seen: ScopeState


@dataclass(frozen=True, slots=True)
class Later:
    """Why a scope does not let a request leave now."""

    until: int
    waiting_for: WaitingFor
    source: DelaySource = DelaySource.SCOPE_LIMIT
    known: bool = False
    """The provider itself said so: nothing can leave before."""
    queued: bool = True
    """The request gets a place in the queue of the scope."""
    firm: bool = False
    """It is the first there and waits for the rate alone: when that is over is known."""


LOOKS_APART = 1_000_000
"""Time from one place in a queue to the next, us, at which they look whether it is their turn."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One request's mark on a scope: the bucket as it is after it."""

    key: str
    arrival: int
    background_arrival: int | None
    next_at: int
    """When the scope can let the next request leave, ms."""
    room: int = 0
    """How many more it can let leave at once."""
    probes: bool = False
    """The request finds out whether an outage is over."""


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


def slowness(seen: ScopeState, now: int) -> int:
    """How often the rate is halved now: once per 429, undone once per `RECOVERY` without one."""
    return max(0, seen.slowed - max(0, now - seen.slowed_at) // RECOVERY)


def after_limit(seen: ScopeState, now: int) -> int:
    """`slowed` after one more 429. Those that were under way when the first came do not count."""
    level = slowness(seen, now)
    return level if now < seen.next_allowed_at else min(SLOWEST, level + 1)


def spacing(scope: Scope, seen: ScopeState, now: int) -> tuple[int, int]:
    """Microseconds between two requests at this time, and how many may leave at once.

    The published rate, made slower by 429s, or what the provider says is left, spread over the
    time that it must last (RateLimit draft -11, section 2: not more than r within t).
    """
    own = own_spacing(scope, seen, now)
    left = _left(seen, now)
    stated = (seen.reset_at - now) * 1_000 // max(1, left) if left and seen.reset_at else 0
    if stated > own:
        return stated, 1
    return own, 1 if slowness(seen, now) else burst(scope)


def own_spacing(scope: Scope, seen: ScopeState, now: int) -> int:
    """Microseconds between two requests by the published rate, as 429s have slowed it."""
    return pace(scope) << slowness(seen, now)


def _left(seen: ScopeState, now: int) -> int | None:
    """What the provider says is left of its quota; None if it said nothing that still holds."""
    if seen.remaining is None or seen.reset_at is None or seen.reset_at <= now:
        return None
    return seen.remaining


def take(one: Shared, op: Operation, now: int, *, observes: bool) -> Taken | Later:
    """One request of `op` through one scope. `observes` is False for what may have an effect.

    The order: outage, provider's word, rate, slot, turn.
    """
    scope, seen = one.scope, one.seen
    if seen.circuit is not None:
        opens = seen.circuit.probe_at + (0 if observes else WRITE_AFTER_PROBE)
        if opens > now:
            return Later(opens, WaitingFor.SCOPE, DelaySource.CIRCUIT_OPEN, queued=False)
    step, at_once = spacing(scope, seen, now)
    if seen.next_allowed_at > now:
        return Later(seen.next_allowed_at + _queue(one, step), WaitingFor.SCOPE, known=seen.first)
    if _left(seen, now) == 0 and seen.reset_at is not None:
        return Later(seen.reset_at + _queue(one, step), WaitingFor.SCOPE, known=seen.first)
    least, until_reset = own_spacing(scope, seen, now), _quota_ends(seen, now)
    taken, early = _arrival(seen.theoretical_arrival, now, step, at_once, least, until_reset)
    room = 1 if _left(seen, now) is not None or seen.circuit is not None else 1 + -early // step
    reserved, keeps = None, _reserved(scope, op)
    if keeps:
        slower, less = ceil(step / (1 - keeps)), ceil(least / (1 - keeps))
        reserved, late = _arrival(seen.background_arrival, now, slower, 1, less, until_reset)
        early, room = max(early, late), 1
    if early > 0:
        until = now + -(-early // 1_000) + _queue(one, step)
        return Later(until, WaitingFor.SCOPE, firm=seen.first)
    if seen.open_attempts >= slots(scope, op):
        until = seen.next_free_at if seen.next_free_at is not None else now + 1_000
        return Later(until, WaitingFor.SLOT)
    room = min(room, slots(scope, op) - seen.open_attempts)
    if not seen.first and seen.most_ahead >= room:
        # There is no room for all before it. Who is first is called; the others look again in case
        # nobody does, and not all at once.
        return Later(now + _queue(one, max(step, LOOKS_APART)), WaitingFor.SCOPE)
    next_at = now + max(0, -(-(taken - step * (at_once - 1) - now * 1_000) // 1_000))
    probes = seen.circuit is not None
    return Taken(one.key, taken, reserved, next_at, room - 1, probes)


def _arrival(
    theoretical: int, now: int, step: int, at_once: int, least: int, until: int | None
) -> tuple[int, int]:
    """The bucket after one more request, and by how many microseconds that is too early.

    A quota is spread over the time until its reset (`until`, microseconds) and no further; the
    published rate (`least`) counts in any case.
    """
    arrival = max(theoretical, now * 1_000)
    if until is not None:
        step = max(least, min(step, until - arrival))
    return arrival + step, arrival - step * (at_once - 1) - now * 1_000


def _quota_ends(seen: ScopeState, now: int) -> int | None:
    """When a quota that the provider told of is whole again, microseconds."""
    return None if not _left(seen, now) or seen.reset_at is None else seen.reset_at * 1_000


def _queue(one: Shared, step: int) -> int:
    """How long those before it take, ms."""
    return step * one.seen.ahead // 1_000


def _reserved(scope: Scope, op: Operation) -> float:
    """The share of a scope that this operation leaves to others."""
    return scope.reserve if rank_of(op) == BACKGROUND else 0.0


def slots(scope: Scope, op: Operation) -> int:
    """How many requests of a scope may be open when one more of this operation leaves."""
    share = 1 - _reserved(scope, op)
    return max(1, int(scope.max_concurrent_requests * share))


APPROVED, INTERACTIVE, BACKGROUND = 0, 1, 2


def rank_of(op: Operation) -> int:
    """Who goes first in a queue: what a person approved, then what an agent waits for.

    A session grant allows a client and puts nothing before what others wait for.
    """
    approved = op.authorisation != "contract" and not op.authorisation.startswith("gra_")
    if approved or op.priority is Priority.APPROVED:
        return APPROVED
    return BACKGROUND if op.priority is Priority.BACKGROUND else INTERACTIVE


def scope_key(scope: Scope, provider: str, account: str, action: str) -> str:
    """The register's key of a scope; the same text in every process on the store."""
    match scope.per:
        case "provider" | "host":
            return f"{provider}/{scope.name}"
        case "account+action":
            return f"{provider}/{account}/{action}/{scope.name}"
        case _:
            return f"{provider}/{account}/{scope.name}"
