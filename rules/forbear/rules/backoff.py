"""How long to wait: the schedule of checks and retries (behaviour.md, section 3).

All times are milliseconds. `u` is a uniform draw in [0, 1) made by the caller.
"""

from __future__ import annotations

from forbear.rules.contract import Backoff, ClassLimits
from forbear.rules.model import DelaySource

LONGEST = 10**13
"""A bound for exponents, so that no schedule ever overflows (about 300 years)."""

PROVIDER_JITTER = 0.1
"""Share by which waits stated by a provider are lengthened, so that many do not wake at once."""

MODERATE = 1_000
"""The least wait after a Retry-After that lies in the past."""


def doubled(base: int, exponent: int, limit: int) -> int:
    """min(limit, base · 2^exponent), for any exponent."""
    return min(limit, base << exponent if exponent < 64 else LONGEST)


def poll_cap(backoff: Backoff, time_left: int, requests_left: int) -> int:
    """M of requirement W09: so large that the requests left last for the time left."""
    pace = time_left // requests_left if requests_left > 0 else 0
    return max(backoff.max, pace)


def raw_poll_delay(backoff: Backoff, parsed: int, time_left: int, requests_left: int) -> int:
    """min(M, base · 2^k), before jitter; k = answers with a parsed state."""
    return doubled(backoff.base, parsed, poll_cap(backoff, time_left, requests_left))


def poll_delay(
    backoff: Backoff, parsed: int, time_left: int, requests_left: int, u: float
) -> tuple[int, DelaySource]:
    """The wait before the next status request: uniform in [50 %, 100 %] of the raw delay.

    The source is `budget_pace` where the budget, not the contract's maximum, set the cap.
    """
    raw = raw_poll_delay(backoff, parsed, time_left, requests_left)
    paced = raw > backoff.max
    delay = round(raw * (0.5 + u / 2))
    return delay, DelaySource.BUDGET_PACE if paced else DelaySource.LOCAL_BACKOFF


def first_delay(backoff: Backoff, u: float) -> int:
    """The wait between acceptance and the first check, without an estimate."""
    return round(backoff.first * (0.5 + u / 2))


def rate_limited_poll_delay(
    backoff: Backoff, parsed: int, time_left: int, requests_left: int, u: float
) -> int:
    """After a 429 without a hint: sharply more than the current delay, at least the floor."""
    raw = raw_poll_delay(backoff, parsed, time_left, requests_left)
    return round(max(4 * raw, backoff.rate_limited) * (1 + u / 4))


def stretched(minimum: int, u: float) -> int:
    """A provider's minimum, jittered upwards only."""
    return minimum + round(minimum * PROVIDER_JITTER * u)


def retry_delay(limits: ClassLimits, retries: int, u: float) -> int:
    """Full jitter: uniform in [0, min(max_delay, base · 2^n)], n = retries so far."""
    return round(doubled(limits.base, retries, limits.max_delay) * u)


def rate_limited_retry_delay(limits: ClassLimits, retries: int, u: float) -> int:
    """After a 429 without a hint, for calls, results and cancellations."""
    raw = doubled(limits.base, retries, limits.max_delay)
    return round(max(4 * raw, limits.rate_limited) * (1 + u / 4))
