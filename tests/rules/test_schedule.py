"""When the next check is due: hints, minima, ends (behaviour.md, section 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.operations import (
    DEADLINE,
    HOUR,
    JOB,
    MIDDLE,
    MINUTE,
    NOW,
    SECOND,
    after,
    hinted,
    queued,
    sending,
    told,
    waiting,
)

from forbear.rules.contract import Hints
from forbear.rules.model import (
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
)
from forbear.rules.schedule import Plan, end_of, last_start, plan_check
from forbear.rules.signals import Meaning, Signal

LOCAL = (20 * SECOND, DelaySource.LOCAL_BACKOFF)
RUNNING = told(Meaning.WAITING)
LAST_CHECK = DEADLINE - 31 * SECOND
"""Deadline, less the status request's timeout of 30 s, less a second."""


def plan(
    signal: Signal,
    *,
    op: Operation | None = None,
    local: tuple[int, DelaySource] = LOCAL,
    now: int = NOW,
    u: float = 0.0,
) -> Plan:
    made = plan_check(op or waiting(), JOB, signal, now, u, local)
    assert isinstance(made, Plan)
    return made


def told_by(made: Plan) -> object:
    return made.story.get("told")


def test_without_a_word_from_the_provider_our_own_delay_counts() -> None:
    made = plan(RUNNING)
    assert (made.at, made.source, told_by(made)) == (NOW + 20 * SECOND, LOCAL[1], None)


# --- hints ----------------------------------------------------------------------------------


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("hint", "delay"),
    [
        (1, 2 * SECOND),
        (2 * SECOND, 2 * SECOND),
        (7 * SECOND, 7 * SECOND),
        (10 * MINUTE, 10 * MINUTE),
        (10 * MINUTE + 1, 10 * MINUTE),
        (39 * MINUTE, 10 * MINUTE),
    ],
)
def test_a_hint_counts_between_floor_and_ceiling(hint: int, delay: int) -> None:
    made = plan(replace(RUNNING, hints=hinted(hint)))
    assert (made.delay, made.source) == (delay, DelaySource.PROVIDER_POLL_HINT)
    if hint > 10 * MINUTE:
        assert told_by(made) == ["hint /poll_after_seconds rejected: above the ceiling"]
    else:
        assert told_by(made) is None


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("delay", "rejected", "why"),
    [
        (None, "negative", "negative"),
        (None, "past", "past"),
        (None, "unreadable", "unreadable"),
        (40 * MINUTE, None, "beyond the deadline"),
        (100 * HOUR, None, "beyond the deadline"),
    ],
)
def test_a_bad_hint_is_rejected_with_its_reason_for_our_own_delay(
    delay: int | None, rejected: str | None, why: str
) -> None:
    made = plan(replace(RUNNING, hints=hinted(delay, rejected)))
    assert (made.delay, made.source) == LOCAL
    assert told_by(made) == [f"hint /poll_after_seconds rejected: {why}"]


def test_of_several_hints_the_longest_usable_one_counts() -> None:
    hints = hinted(5 * SECOND) + hinted(9 * SECOND) + hinted(None, "past") + hinted(HOUR)
    assert plan(replace(RUNNING, hints=hints)).delay == 9 * SECOND


@pytest.mark.requirement("W09")
def test_a_stated_estimate_moves_the_first_check_and_no_other() -> None:
    soon = replace(told(Meaning.ACCEPTED), estimate=5 * MINUTE)
    made = plan(soon, op=sending())
    assert (made.delay, made.source) == (5 * MINUTE, DelaySource.PROVIDER_POLL_HINT)
    assert plan(replace(RUNNING, estimate=5 * MINUTE)).delay == LOCAL[0]
    assert (
        plan(replace(RUNNING, estimate=5 * MINUTE), op=waiting(observed_at=None)).delay == LOCAL[0]
    )
    never = plan(replace(soon, estimate=HOUR), op=sending())
    assert never.delay == LOCAL[0]
    assert told_by(never) == ["estimate rejected: beyond the deadline"]


def test_a_hint_beats_an_estimate() -> None:
    both = replace(told(Meaning.ACCEPTED), estimate=5 * MINUTE, hints=hinted(MINUTE))
    assert plan(both, op=sending()).delay == MINUTE


# --- Retry-After ----------------------------------------------------------------------------


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("wait", "delay", "source"),
    [
        (30 * SECOND, 30 * SECOND, DelaySource.PROVIDER_RETRY_AFTER),
        (20 * SECOND, 20 * SECOND, DelaySource.PROVIDER_RETRY_AFTER),
        (5 * SECOND, 20 * SECOND, DelaySource.LOCAL_BACKOFF),
        (0, 20 * SECOND, DelaySource.LOCAL_BACKOFF),
    ],
)
def test_retry_after_is_a_minimum_on_any_status(wait: int, delay: int, source: DelaySource) -> None:
    for meaning in (Meaning.WAITING, Meaning.SERVER_ERROR, Meaning.RATE_LIMITED):
        made = plan(told(meaning, retry_after=after(wait)))
        assert (made.delay, made.source) == (delay, source)


@pytest.mark.requirement("W19")
def test_a_wait_in_the_past_leaves_at_least_a_second() -> None:
    made = plan(replace(RUNNING, retry_after=after(0)), local=(3, DelaySource.LOCAL_BACKOFF))
    assert made.delay == SECOND


MS = st.integers(1, 3 * HOUR)


@pytest.mark.requirement("W19")
@given(
    asked=st.none() | MS,
    hints=st.lists(MS, max_size=3),
    estimate=st.none() | MS,
    expiry=st.none() | st.integers(NOW - HOUR, NOW + 3 * HOUR),
    own=st.integers(0, HOUR),
    left=st.integers(1, 2 * HOUR),
    useful=st.none() | st.integers(1, 2 * HOUR),
    u=st.floats(0, 1, exclude_max=True),
    accepted=st.booleans(),
)
def test_a_providers_minimum_is_never_shortened_and_no_plan_passes_the_end(
    asked: int | None,
    hints: list[int],
    estimate: int | None,
    expiry: int | None,
    own: int,
    left: int,
    useful: int | None,
    u: float,
    accepted: bool,
) -> None:
    useful_until = None if useful is None else NOW + useful
    make = waiting if accepted else sending
    op = make(deadline_at=NOW + left, useful_until=useful_until)
    signal = replace(
        RUNNING,
        retry_after=None if asked is None else after(asked),
        hints=tuple(one for delay in hints for one in hinted(delay)),
        estimate=estimate,
        expiry_at=expiry,
    )
    made = plan_check(op, JOB, signal, NOW, u, (own, DelaySource.LOCAL_BACKOFF))
    end = end_of(op)
    if asked is not None and NOW + asked >= end:
        assert isinstance(made, Reason)
        return
    assert isinstance(made, Plan)
    assert NOW <= made.at <= end
    assert made.delay == made.at - NOW
    if asked is not None:
        assert made.at >= NOW + asked


@given(minimum=st.integers(1, 30 * MINUTE), u=st.floats(0, 1, exclude_max=True))
def test_jitter_on_a_providers_word_goes_up_by_a_tenth_at_most(minimum: int, u: float) -> None:
    own = (0, DelaySource.LOCAL_BACKOFF)
    asked = plan(replace(RUNNING, retry_after=after(minimum)), local=own, u=u)
    assert minimum <= asked.delay <= minimum * 1.1 + 1
    hint = max(2 * SECOND, min(minimum, 10 * MINUTE))
    hint_plan = plan(replace(RUNNING, hints=hinted(minimum)), local=own, u=u)
    assert hint <= hint_plan.delay <= hint * 1.1 + 1


# --- the last check -------------------------------------------------------------------------


@pytest.mark.requirement("W09", "W16")
@pytest.mark.parametrize("delay", [40 * MINUTE, 41 * MINUTE, 10 * HOUR])
def test_a_check_beyond_the_deadline_becomes_the_last_one_before_it(delay: int) -> None:
    made = plan(RUNNING, local=(delay, DelaySource.BUDGET_PACE))
    assert made.at == LAST_CHECK
    assert told_by(made) == ["last check before the end"]


def test_a_check_inside_the_deadline_stays_where_it_is() -> None:
    made = plan(RUNNING, local=(40 * MINUTE - 1, DelaySource.LOCAL_BACKOFF))
    assert made.at == DEADLINE - 1


@pytest.mark.parametrize("now", [LAST_CHECK, LAST_CHECK + 1, DEADLINE - 1])
def test_once_the_last_moment_has_passed_the_deadline_is_all_that_comes(now: int) -> None:
    made = plan(RUNNING, now=now, local=(MINUTE, DelaySource.LOCAL_BACKOFF))
    assert made.at == DEADLINE
    assert told_by(made) == ["no check fits before the end"]


@pytest.mark.requirement("W27")
def test_the_last_check_is_before_the_useful_time_where_that_is_earlier() -> None:
    op = waiting(useful_until=NOW + 10 * MINUTE)
    made = plan(RUNNING, op=op, local=(HOUR, DelaySource.LOCAL_BACKOFF))
    assert made.at == NOW + 10 * MINUTE - 31 * SECOND


def test_the_last_check_waits_as_long_as_the_provider_asked() -> None:
    asked = replace(RUNNING, retry_after=after(40 * MINUTE - 10 * SECOND))
    assert plan(asked, u=0.99).at == DEADLINE - 10 * SECOND


def test_a_floor_does_not_cost_the_last_check() -> None:
    job = replace(JOB, hints=Hints((), 10 * MINUTE, 20 * MINUTE))
    op = waiting(deadline_at=NOW + 5 * MINUTE)
    signal = replace(RUNNING, hints=hinted(SECOND))
    made = plan_check(op, job, signal, NOW, MIDDLE, LOCAL)
    assert isinstance(made, Plan)
    assert made.at == NOW + 5 * MINUTE - 31 * SECOND


def test_a_check_past_the_providers_expiry_moves_to_just_after_it() -> None:
    expiring = replace(RUNNING, expiry_at=NOW + 10 * SECOND)
    made = plan(expiring)
    assert made.at == NOW + 11 * SECOND
    asked = plan(replace(expiring, retry_after=after(15 * SECOND)))
    assert asked.at == NOW + 15 * SECOND, "but never before the provider's minimum"


# --- ends -----------------------------------------------------------------------------------


def test_a_write_starts_only_with_its_whole_timeout_left() -> None:
    assert last_start(queued()) == DEADLINE - 30 * SECOND
    assert last_start(queued(Kind.RESULT, RequestClass.READ)) == DEADLINE - 1
    assert last_start(waiting()) == DEADLINE - 1
    assert last_start(queued(useful_until=NOW + MINUTE)) == NOW + 30 * SECOND
