"""How long to wait: bounds of every delay, and how far a budget reaches."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.library import NAMES, contract_of
from tests.rules.contracts import FULL, SMALL, loaded

from forbear.rules import backoff
from forbear.rules.contract import Backoff, ClassLimits, Job
from forbear.rules.contract_file import parse_all
from forbear.rules.contract_report import covered
from forbear.rules.model import DelaySource

SCHEDULES = st.builds(
    Backoff,
    base=st.integers(1, 3_600_000),
    max=st.integers(1, 86_400_000),
    rate_limited=st.integers(1, 3_600_000),
    first=st.integers(1, 86_400_000),
)
LIMITS = st.builds(
    ClassLimits,
    max_attempts=st.integers(1, 10),
    max_wait=st.integers(0, 3_600_000),
    base=st.integers(1, 60_000),
    max_delay=st.integers(1, 3_600_000),
    rate_limited=st.integers(1, 3_600_000),
)
DRAWS = st.floats(0, 1, exclude_max=True)
COUNTS = st.integers(0, 10_000)
TIMES = st.integers(-86_400_000, 10**13)


@pytest.mark.requirement("W09")
@given(SCHEDULES, COUNTS, TIMES, COUNTS, DRAWS)
def test_a_poll_delay_is_between_half_and_all_of_the_doubled_base_under_its_cap(
    schedule: Backoff, parsed: int, time_left: int, requests_left: int, u: float
) -> None:
    delay, source = backoff.poll_delay(schedule, parsed, time_left, requests_left, u)
    pace = time_left // requests_left if requests_left else 0
    cap = max(schedule.max, pace)
    raw = min(cap, schedule.base * 2 ** min(parsed, 100))
    assert raw // 2 <= delay <= raw
    paced = source is DelaySource.BUDGET_PACE
    assert paced is (raw > schedule.max)


@pytest.mark.requirement("W20")
@given(SCHEDULES, COUNTS, TIMES, COUNTS, DRAWS)
def test_a_429_never_shortens_a_wait(
    schedule: Backoff, parsed: int, time_left: int, requests_left: int, u: float
) -> None:
    ordinary = backoff.raw_poll_delay(schedule, parsed, time_left, requests_left)
    delay = backoff.rate_limited_poll_delay(schedule, parsed, time_left, requests_left, u)
    least = max(4 * ordinary, schedule.rate_limited)
    assert least <= delay <= least * 5 // 4 + 1


@given(st.integers(0, 10**12), DRAWS)
def test_a_providers_minimum_is_only_ever_lengthened(minimum: int, u: float) -> None:
    assert minimum <= backoff.stretched(minimum, u) <= minimum + minimum // 10 + 1


@given(LIMITS, COUNTS, DRAWS)
def test_retries_have_full_jitter_under_their_cap(
    limits: ClassLimits, retries: int, u: float
) -> None:
    raw = min(limits.max_delay, limits.base * 2 ** min(retries, 100))
    assert 0 <= backoff.retry_delay(limits, retries, u) <= raw
    least = max(4 * raw, limits.rate_limited)
    limited = backoff.rate_limited_retry_delay(limits, retries, u)
    assert least <= limited <= least * 5 // 4 + 1


@given(SCHEDULES, DRAWS)
def test_the_first_check_comes_after_half_to_all_of_its_wait(schedule: Backoff, u: float) -> None:
    assert schedule.first // 2 <= backoff.first_delay(schedule, u) <= schedule.first


# --- how far a budget reaches ---------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "survey").glob("*.toml"))
SURVEYED, _ = parse_all({path.name: path.read_text(encoding="utf-8") for path in FILES})
SHIPPED = {name: contract_of(name) for name in NAMES}
EXAMPLES = {"smallest": loaded(SMALL), "long form": loaded(FULL)}
JOBS = [
    pytest.param(job, id=f"{name}.{job.name}")
    for name, contract in {**EXAMPLES, **SURVEYED, **SHIPPED}.items()
    for job in contract.jobs.values()
]


def draws(seed: int) -> Iterator[float]:
    return iter(Random(seed).random, None)


@pytest.mark.requirement("W09")
@pytest.mark.parametrize("job", JOBS)
def test_a_budget_lasts_about_as_long_as_its_deadline(job: Job) -> None:
    """Of 10,000 schedules without hints, 19 in 20 reach 85 % of the deadline and half reach 90 %.

    A small budget cannot promise more, because its last checks are far apart; where a contract
    states no number of requests, the loader takes as many as reach the end in nearly every run.
    """
    deadline = job.limits.deadline
    shares = sorted(covered(job, draws(seed)) / deadline for seed in range(10_000))
    assert shares[500] >= 0.85
    assert shares[5_000] >= 0.9
    assert shares[-1] <= 1


@pytest.mark.requirement("W09")
@pytest.mark.parametrize("job", JOBS)
def test_no_schedule_at_all_ends_before_three_quarters_of_its_deadline(job: Job) -> None:
    """The worst draws there are: every delay is half of what it may be."""
    assert covered(job, iter(lambda: 0.0, None)) >= job.limits.deadline * 3 / 4


@pytest.mark.requirement("W09")
@given(st.integers(1, 60), st.integers(60_000, 10**9))
def test_what_the_pace_guarantees(requests: int, deadline: int) -> None:
    """With `n` requests left and delays at the pace, at least 1 - C(2n, n) / 4^n is covered."""
    schedule = Backoff(base=deadline, max=1)
    elapsed = 0
    for left in range(requests, 0, -1):
        delay, source = backoff.poll_delay(schedule, 1, deadline - elapsed, left, 0.0)
        assert source is DelaySource.BUDGET_PACE
        elapsed += delay
    guaranteed = 1 - comb(2 * requests, requests) / 4**requests
    assert elapsed >= deadline * guaranteed - 2 * requests
    assert elapsed <= deadline
