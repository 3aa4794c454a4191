"""The story and the receipt of operations that a real ledger wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.tools.driving import CONTRACT, driver

from forbear.rules.model import AuditEvent, Option
from forbear.storage.audit import Code
from forbear.storage.brakes import Brakes
from forbear.tools import story

DONE = {
    "id": "exp_71c",
    "state": "done",
    "result": {"url": "https://api.exp.example/v1/files/1"},
}
RUNNING = {"id": "exp_71c", "state": "running"}
QUEUED = {"id": "exp_71c", "state": "queued"}

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("A03")
async def test_the_trail_of_a_job_reads_as_a_story_with_one_line_per_event(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(200, QUEUED)
        await job.answer(503, {}, Retry_After="120")
        await job.answer(200, DONE)
        told = story.lines(await job.events())
    assert told == (
        "2026-11-30",
        "10:20:00Z asked for exp.export, task month-end",
        "10:20:00Z submitted job exp_71c, deadline 11:00:00Z, budget 12, "
        "next poll 10:21:52Z from local backoff",
        "10:21:52Z polled, state queued, next poll 10:22:37Z from local backoff",
        "10:22:37Z polled, 503, to wait 2 m, failures 1 of 5, "
        "next poll 10:24:43Z from the provider's Retry-After",
        "10:24:43Z polled, state done, all required fields present: succeeded",
    )


async def test_a_new_day_gets_its_date_and_times_of_another_day_carry_theirs(
    tmp_path: Path,
) -> None:
    text = CONTRACT.replace('deadline = "40m"', 'deadline = "2d"')
    async with driver(tmp_path, text) as job:
        job.clock.advance(13 * 3_600_000 + 38 * 60_000)  # 23:58 of the same day
        await job.accepted()
        await job.answer(200, RUNNING)
        told = story.lines(await job.events())
    assert [line for line in told if re.fullmatch(r"\d{4}-\d\d-\d\d", line)] == ["2026-11-30"]
    assert "deadline 2026-12-02 23:58:00Z" in told[2]
    assert told[3].startswith("23:59:52Z polled")
    assert "next poll 2026-12-01 00:00:37Z" in told[3]


async def test_two_days_are_two_chapters() -> None:
    first = AuditEvent(1, "op", 1_796_034_000_000, "accepted", {"set": {}})
    second = AuditEvent(2, "op", 1_796_034_000_000 + 86_400_000, "joined", {"task": "t"})
    told = story.lines([first, second])
    assert told[0] == "2026-11-30"
    assert told[2:] == ("2026-12-01", "10:20:00Z asked for again, joined by task t")


async def test_a_reservation_without_outcome_is_told_alone(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(200, QUEUED)
        await job.reserve()
        told = story.lines(await job.events())
    assert told[-1] == "10:22:37Z sent poll 2, no outcome yet"


async def test_a_reservation_and_its_outcome_are_one_line_even_with_something_between(
    tmp_path: Path,
) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        reserved = await job.reserve()
        await job.store.write(
            lambda c: job.store.ledger.drop(c, job.op_id, "the task ended", reserved.holding)
        )
        await job.settle(reserved, job.reply(200, RUNNING))
        told = story.lines(await job.events())
    assert [line.split(" ", 1)[1] for line in told[3:]] == [
        "end asked for (the task ended); a request is out, so its outcome comes first",
        "polled, state running, discarded (the task ended)",
    ]


async def test_failures_say_what_they_cost(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(429, {})
        await job.silence("closed")
        await job.unsent("dns")
        told = story.lines(await job.events())
    assert "polled, 429 without a hint, rate limits 1 of 3, next poll" in told[3]
    assert "polled, no answer (closed), failures 1 of 5, next poll" in told[4]
    assert "poll 3 not sent (dns), failures 2 of 5, next poll" in told[5]


async def test_a_stop_names_its_reason_and_case_and_a_decision_names_its_person(
    tmp_path: Path,
) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(200, {"id": "exp_71c", "state": "paused"})
        case = await job.store.read.open_case(job.op_id)
        await job.decide(Option.TREAT_AS, treat_as="waiting")
        told = story.lines(await job.events())
    assert case is not None
    assert told[3].endswith(
        "polled, state paused, which the contract does not know, "
        f"escalated: unknown_state, case {case.id}"
    )
    assert told[4].endswith(
        "anna decided treat_as (as waiting) at a terminal, next poll 10:21:52Z from a decision"
    )


async def test_an_extension_shows_what_it_granted(tmp_path: Path) -> None:
    text = CONTRACT.replace("max_status_requests = 12", "max_status_requests = 1")
    async with driver(tmp_path, text) as job:
        await job.accepted()
        await job.answer(200, RUNNING)
        await job.decide(Option.EXTEND, extend_by=300_000, requests=2)
        told = story.lines(await job.events())
    assert "escalated: request_budget_exhausted" in told[3]
    assert (
        "decided extend (5 minutes, 2 checks) at a terminal, deadline 11:05:00Z, budget 3"
        in (told[4])
    )


async def test_a_lost_answer_of_a_write_is_said_to_be_possible(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.submit()
        await job.silence("timeout")
        told = story.lines(await job.events())
    assert "submitted, no answer (timeout), escalated: unclear_write" in told[2]
    assert told[3].endswith("it may have been done: only a lookup or a decision follows")


async def test_words_of_a_provider_are_inert_and_short(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(200, {"id": "exp_71c", "state": "\x1b[31m" + "spam " * 100})
        told = story.lines(await job.events())
    assert "\x1b" not in told[3]
    assert len(told[3]) < 250


async def test_a_held_operation_says_for_what(tmp_path: Path) -> None:
    async with driver(tmp_path, credential=None) as job:
        job.book.credential = "fp"
        await job.submit()
        job.book.credential = None
        held = job.book.holding("exp", "export")
        assert not await job.store.write(lambda c: job.store.ledger.reserve(c, job.op_id, held))
        told = story.lines(await job.events())
    assert told[-1] == "10:20:00Z held for a credential, looked at again 10:20:15Z"


async def test_an_operation_that_a_person_paused_says_so(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.store.write(lambda c: Brakes(job.clock).pause(c, "exp", {"operator": "anna"}))
        job.clock.advance(113_000)
        held = job.book.holding("exp", "export")
        assert not await job.store.write(lambda c: job.store.ledger.reserve(c, job.op_id, held))
        told = story.lines(await job.events())
    assert told[-1] == "10:21:53Z held by a pause, looked at again 10:21:58Z"


@pytest.mark.parametrize("code", [*Code, "from_the_future"])
def test_every_event_has_a_sentence_even_with_an_empty_body(code: str) -> None:
    told = story.lines([AuditEvent(1, "op", 0, str(code), {})])
    assert told[0] == "1970-01-01"
    assert re.fullmatch(r"00:00:00Z \S.*", told[1])


# --- the receipt ----------------------------------------------------------------------------


@pytest.mark.requirement("A03")
async def test_the_receipt_counts_what_the_provider_can_count(tmp_path: Path) -> None:
    async with driver(tmp_path) as job:
        await job.accepted()
        await job.answer(200, QUEUED)
        await job.answer(503, {}, Retry_After="120")
        await job.answer(429, {})
        await job.silence()
        await job.unsent()
        await job.answer(200, DONE)
        told = story.receipt(await job.events())
    assert told == (
        "1 submit · 5 checks · 1 \N{MULTIPLICATION SIGN} 503 obeyed · "
        "1 \N{MULTIPLICATION SIGN} 429 backed off · 1 without an answer · 1 not sent · "
        "0 repeats · 10 m 43 s"
    )


def test_a_request_before_the_time_asked_for_is_not_called_obedient() -> None:
    def event(number: int, at: int, code: str, **body: Any) -> AuditEvent:
        return AuditEvent(number, "op", at, code, body)

    told = story.receipt(
        [
            event(1, 0, "reserved", attempt="a", step="status"),
            event(2, 0, "answered", attempt="a", http=503, retry_after_ms=5_000),
            event(3, 4_999, "reserved", attempt="b", step="status"),
            event(4, 4_999, "answered", attempt="b", http=200),
        ]
    )
    assert "503 not obeyed" in told


def test_nothing_that_happened_has_a_receipt_too() -> None:
    assert story.receipt([]) == "nothing sent"
    assert story.lines([]) == ()
