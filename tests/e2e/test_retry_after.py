"""Field cases of `Retry-After`: what one answer to a poll makes of the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import EXPORT, FOREVER, SUBMIT, Stage, says, stage

from forbear.rules.model import Operation
from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

JOB = EXPORT | {"backoff": {"base": "10s", "max": "2m", "first": "10s"}}
RAW = 10_000
"""The delay of `JOB` before any state was parsed, ms, without jitter."""
NOON = ("Date", "Mon, 30 Nov 2026 12:00:00 GMT")
OWN = "local_backoff"
ASKED = "provider_retry_after"


def later(status: int, *fields: tuple[str, str]) -> Answer:
    return Answer(status, {"error": "later"}, fields)


async def polled(on: Stage, *answers: Answer) -> Operation:
    """A job whose first poll was answered so."""
    on.script(*answers)
    job = await on.submit()
    await on.due(job)
    assert on.count() == 1
    return await on.operation(job)


def wait(on: Stage, op: Operation) -> int:
    assert op.next_at is not None
    return op.next_at - on.now


async def noted(on: Stage, op: Operation) -> list[str]:
    """What the trail says was odd about the answers."""
    return [odd for event in await on.events(op.id) for odd in event.body.get("anomalies", [])]


@dataclass(frozen=True, slots=True)
class Wait:
    """A poll is answered `status` with `fields`: the next comes in [least, most] ms, and why."""

    fields: tuple[tuple[str, str], ...]
    least: int
    most: int
    source: str = OWN
    status: int = 429
    odd: bool = False


def value(text: str) -> tuple[tuple[str, str], ...]:
    return (("Retry-After", text),)


UNHEARD = 60_000, 75_000
"""A 429 without a hint: at least `rate_limited` (60 s), jittered upwards by a quarter."""

WAITS: dict[str, Wait] = {
    "RA-01 a Go duration": Wait(value("1m0s"), *UNHEARD, odd=True),
    "RA-01 two fields": Wait((*value("90"), *value("5")), 90_000, 99_000, ASKED, odd=True),
    "RA-02 negative": Wait(value("-1"), *UNHEARD, odd=True),
    "RA-02 a sign": Wait(value("+5"), *UNHEARD, odd=True),
    "RA-02 hexadecimal": Wait(value("0x10"), *UNHEARD, odd=True),
    "RA-02 an exponent": Wait(value("1e3"), *UNHEARD, odd=True),
    "RA-02 bytes beyond ASCII": Wait(value("\xb2"), *UNHEARD, odd=True),
    "RA-06 a fraction": Wait(value("0.493"), *UNHEARD, odd=True),
    "RA-07 a date that is none": Wait(value("Wed, 99 Foo 2026 00:00:00 GMT"), *UNHEARD, odd=True),
    "RA-09 a year beyond 9999": Wait(value("Fri, 31 Dec 99999 23:59:59 GMT"), *UNHEARD, odd=True),
    "RA-10 a date in the past": Wait((NOON, *value("Mon, 30 Nov 2026 11:59:00 GMT")), *UNHEARD),
    "RA-10 zero": Wait(value("0"), *UNHEARD),
    "RA-10 zero on a 503": Wait(value("0"), RAW // 2, RAW, status=503),
    "RA-12 a date two minutes ahead": Wait(
        (NOON, *value("Mon, 30 Nov 2026 12:02:00 GMT")), 120_000, 132_000, ASKED
    ),
    "RA-12 a word": Wait(value("soon"), *UNHEARD, odd=True),
    "RA-13 just above a usual cap": Wait(value("61"), 61_000, 67_100, ASKED),
    "RA-16 a year of two digits": Wait(
        (NOON, *value("Monday, 30-Nov-26 12:01:00 GMT")), 60_000, 66_000, ASKED
    ),
    "RA-16 more than fifty years ahead is the past": Wait(
        (NOON, *value("Wednesday, 01-Dec-76 12:00:00 GMT")), *UNHEARD
    ),
    "RA-16 the day's name decides nothing": Wait(
        (NOON, *value("Friday, 30-Nov-26 12:01:00 GMT")), 60_000, 66_000, ASKED
    ),
    # Our clock shows 10:20; the provider's own `Date` says how late it is there.
    "RA-17 a clock of ours that is wrong": Wait(
        (NOON, *value("Mon, 30 Nov 2026 12:00:30 GMT")), 30_000, 33_000, ASKED
    ),
    "RA-17 asctime": Wait((NOON, *value("Mon Nov 30 12:00:30 2026")), 30_000, 33_000, ASKED),
    "RA-17 seconds need no clock": Wait(
        (("Date", "Mon, 30 Nov 2020 12:00:00 GMT"), *value("30")), 30_000, 33_000, ASKED
    ),
    "RA-18 a vendor's field that no contract names": Wait(
        (("retry-after-ms", "1500"), *value("90")), 90_000, 99_000, ASKED
    ),
    "RA-18 only a vendor's field": Wait((("x-amz-retry-after", "1500"),), *UNHEARD),
}


@pytest.mark.requirement("W19", "W20", "A01")
@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
async def test_the_next_poll_comes_when_the_provider_or_else_the_schedule_says(
    tmp_path: Path, case: Wait
) -> None:
    async with stage(tmp_path, JOB, states=FOREVER) as on:
        op = await polled(on, later(case.status, *case.fields))

        assert case.least <= wait(on, op) <= case.most
        assert (op.state, op.delay_source) == ("waiting", case.source)
        assert bool(await noted(on, op)) is case.odd
        await on.passes(case.least - 1_000)
        assert on.count() == 1
        await on.passes(case.most - case.least + 1_000)
        assert on.count() == 2


@dataclass(frozen=True, slots=True)
class Stop:
    """A wait beyond the deadline: a person is asked at once, and nothing is sent any more."""

    status: int
    fields: tuple[tuple[str, str], ...]
    reason: str


STOPS: dict[str, Stop] = {
    "RA-04 an hour on a 503": Stop(503, value("3600"), "transport_budget_exhausted"),
    "RA-05 ten digits": Stop(429, value("9999999999"), "rate_limited"),
    "RA-05 twenty-five digits": Stop(429, value("9" * 25), "rate_limited"),
    # The case wants such a value treated as absent; behaviour.md, section 3, takes any digits as
    # a delay, so that nobody polls a provider that asks for ever so long a pause.
    "RA-09 five thousand digits": Stop(429, value("9" * 5000), "rate_limited"),
    "RA-12 a day": Stop(429, value("86400"), "rate_limited"),
    "RA-16 not more than fifty years ahead": Stop(
        429, (NOON, *value("Sunday, 29-Nov-76 12:00:00 GMT")), "rate_limited"
    ),
    "an hour on a 200": Stop(200, value("3600"), "deadline_exceeded"),
}


@pytest.mark.requirement("W19", "W24")
@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS)
async def test_a_wait_beyond_the_deadline_asks_a_person_at_once(tmp_path: Path, case: Stop) -> None:
    async with stage(tmp_path, JOB, states=FOREVER) as on:
        body: dict[str, Any] = {"id": "exp_1", "state": "running"}
        op = await polled(on, Answer(case.status, body, case.fields))

        full = await on.full(op.id)
        assert (full["state"], full["escalation"]["reason"]) == ("escalated", case.reason)
        assert full["http"]["status"] == case.status
        assert full["next_check_at"] is None
        await on.passes(60 * 60_000)
        assert on.count() == 1


@pytest.mark.requirement("W19")
async def test_ra_04_a_deadline_that_the_agent_tightened_is_the_one_that_counts(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, JOB, states=FOREVER) as on:
        on.script(later(503, ("Retry-After", "600")))
        job = await on.submit(deadline_seconds=300)
        await on.due(job)

        assert await on.reason(job) == "transport_budget_exhausted"
        assert on.count() == 1


@pytest.mark.requirement("W20")
async def test_ra_07_unreadable_hints_for_ever_end_at_the_rate_limit_budget(
    tmp_path: Path,
) -> None:
    # The case wants growing waits. By behaviour.md, section 3, each is at least four times the
    # current delay and at least a minute, and the budget of three ends it instead.
    async with stage(tmp_path, JOB, states=FOREVER) as on:
        broken = later(429, ("Retry-After", "Wed, 99 Foo 2026 00:00:00 GMT"))
        op = await polled(on, *[broken] * 5)
        assert wait(on, op) >= 60_000
        await on.due(op.id)
        assert wait(on, await on.operation(op.id)) >= 60_000
        ended = await on.due(op.id)

        assert ended["escalation"]["reason"] == "rate_limited"
        assert ended["budgets"]["rate_limited"] == {"used": 3, "max": 3}
        assert ended["budgets"]["status_requests"]["used"] == on.count() == 3


@pytest.mark.requirement("W19")
@pytest.mark.parametrize("status", [200, 500, 503], ids="RA-13 on {}".format)
async def test_a_minimum_counts_on_any_status(tmp_path: Path, status: int) -> None:
    async with stage(tmp_path, JOB, states=FOREVER) as on:
        body = {"id": "exp_1", "state": "running"}
        op = await polled(on, Answer(status, body, value("61")))

        assert 61_000 <= wait(on, op) <= 67_100
        assert op.delay_source == ASKED


async def test_ra_14_one_refusal_holds_all_jobs_of_its_scope_and_lets_them_go_one_by_one(
    tmp_path: Path,
) -> None:
    scopes = {"account": {"per": "account", "rate": "2/1s", "max_concurrent_requests": 2}}
    async with stage(tmp_path, JOB, states=None, scopes=scopes) as on:
        for number in range(20):
            on.provider.job(f"exp_{number}", FOREVER)
            await on.asked(f"set-{number}", wait_seconds=0)
        while on.count(SUBMIT) < 20:
            await _step(on)
        on.script(*[later(429, ("Retry-After", "10"))], route="GET /exports/")
        before = on.count("GET /exports/")
        while on.count("GET /exports/") == before:
            await _step(on)
        refused = on.now

        moments: list[int] = []
        while on.now < refused + 60_000 and len(moments) < 20:
            seen = on.count("GET /exports/")
            await _step(on)
            moments += [on.now - refused] * (on.count("GET /exports/") - seen)
        assert len(moments) == 20
        assert moments[0] >= 10_000
        crowd = max(sum(at <= other < at + 1_000 for other in moments) for at in moments)
        assert crowd <= 3


async def _step(on: Stage) -> None:
    planned = await on.app.store.read.next_due(on.now)
    assert planned is not None
    await on.at(planned)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ((("retry-after-ms", "1500"), ("retry-after", "2")), 1_500),
        ((("retry-after-ms", "abc"), ("retry-after", "2")), 2_000),
        ((("x-amz-retry-after", "1500"),), 1_500),
    ],
    ids=["RA-18 the more exact field", "RA-18 unreadable", "RA-18 without the standard field"],
)
async def test_a_vendors_field_counts_in_its_own_unit_where_the_contract_names_it(
    tmp_path: Path, fields: tuple[tuple[str, str], ...], asked: int
) -> None:
    named = ("retry-after-ms", "x-amz-retry-after")
    hints = {"next": [{"at": f"header:{name}", "unit": "ms"} for name in named]}
    brisk = JOB | {"backoff": {"base": "200ms", "max": "2m", "first": "5s", "rate_limited": "1s"}}
    async with stage(tmp_path, brisk | {"hints": hints}, states=FOREVER) as on:
        op = await polled(on, later(429, *fields))

        assert asked <= wait(on, op) <= asked * 1.1
        assert op.delay_source == ASKED


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("hint", "rejected"),
    [("-5", "negative"), ("soon", "unreadable"), ("0", "past"), ("999999", "beyond the deadline")],
)
async def test_a_bad_hint_is_rejected_with_its_reason_in_the_trail(
    tmp_path: Path, hint: str, rejected: str
) -> None:
    hints = {"next": [{"at": "/poll_after", "unit": "s"}]}
    async with stage(tmp_path, JOB | {"hints": hints}, states=FOREVER) as on:
        on.script(says("running", poll_after=hint))
        job = await on.submit()
        await on.due(job)

        op = await on.operation(job)
        assert op.delay_source == OWN
        assert wait(on, op) <= 20_000
        told = [text for event in await on.events(job) for text in event.body.get("told", [])]
        assert any(rejected in text for text in told)
