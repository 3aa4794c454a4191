"""Several processes on one home, clocks that jump, owners that come late."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    STATUS,
    SUBMIT,
    error,
    furnished,
    process,
    says,
    stage,
)
from tests.support import ManualClock

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

ACCEPTED = {"id": "exp_1", "state": "queued"}


@pytest.mark.requirement("D02")
async def test_db_04_a_late_owner_decides_nothing_and_its_evidence_is_kept(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        furnished(tmp_path, NO_RESULT, states=FOREVER) as provider,
        process(provider, tmp_path, clock) as first,
    ):
        provider.script(SUBMIT, Answer(202, ACCEPTED, gate="slow", effect=True))
        answer = await first.call(
            "submit_job", provider="exp", job="export", arguments={"dataset": "x"}, wait_seconds=0
        )
        job = answer["operation_id"]
        await provider.arrived(SUBMIT)
        async with process(provider, tmp_path, clock) as second:
            clock.advance(2 * MINUTE)  # beyond the lease of the first
            second.app.store.wake()
            await second.becomes(job, "escalated")
            taken = await second.full(job)
            assert (taken["state"], taken["escalation"]["reason"]) == (
                "escalated",
                "unclear_write",
            )
            provider.release("slow")
            await first.settled()
            after = await second.full(job)

            assert after["state"] == "escalated"
            assert after["notices"] == ["late_evidence"]
            assert "exp_1" in after["escalation"]["text"]
            assert after["escalation"]["revision"] == taken["escalation"]["revision"] + 1
        assert provider.count(SUBMIT) == 1


@pytest.mark.requirement("D02", "W15", "D03")
async def test_db_06_two_processes_make_each_check_of_one_job_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        furnished(tmp_path, NO_RESULT, states=FOREVER) as provider,
        process(provider, tmp_path, clock) as one,
        process(provider, tmp_path, clock) as two,
    ):
        provider.script(STATUS, *[Answer(503, headers=(("Retry-After", "120"),))] * 3)
        job = await one.submit()
        for _ in range(12):
            op = await one.operation(job)
            assert op.next_at is not None
            clock.advance(op.next_at - one.now + 1)
            for each in (one, two):
                each.app.store.wake()
            await one.settled()
            await two.settled()
            used = (await two.full(job))["budgets"]["status_requests"]["used"]
            assert provider.count(STATUS) == used
        assert provider.count(STATUS) == 12


@pytest.mark.requirement("D01", "W17")
async def test_a_job_goes_on_in_the_next_process_with_all_that_was_counted(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, NO_RESULT, states=("queued", "running", "done")) as provider:
        provider.script(STATUS, says("running"), Answer(503), Answer(429))
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit()
            for _ in range(3):
                await on.due(job)
            before = (await on.full(job))["budgets"]
        async with process(provider, tmp_path, clock) as on:
            assert (await on.full(job))["budgets"] == before
            ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert ended["budgets"]["status_requests"]["used"] == provider.count(STATUS) == 6
        assert ended["budgets"]["transport_failures"]["used"] == 1
        assert ended["budgets"]["rate_limited"]["used"] == 1


@pytest.mark.requirement("W11")
async def test_a_process_that_starts_late_checks_the_deadline_first(tmp_path: Path) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, states=FOREVER) as provider:
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit()
        clock.advance(3 * HOUR)
        clock.reboot("boot-2")
        async with process(provider, tmp_path, clock) as on:
            await on.settled()
            assert await on.reason(job) == "deadline_exceeded"
        assert provider.count(STATUS) == 0


@pytest.mark.requirement("W11")
async def test_cl_02_a_clock_set_forward_is_just_late(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        on.clock.jump(20 * MINUTE)
        await on.at(on.now)
        assert on.count() == 1
        on.clock.jump(HOUR)
        await on.at(on.now)

        assert await on.reason(job) == "deadline_exceeded"
        assert on.count() == 1


async def test_a_job_is_watched_on_only_where_a_worker_outlives_the_client(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        furnished(tmp_path, states=FOREVER) as provider,
        process(provider, tmp_path, clock) as on,
    ):
        job = await on.submit()
        assert (await on.check(job))["watched_until_client_closes"] is True
        async with process(provider, tmp_path, clock, role="worker") as resident:
            await resident.app.store.read.processes()
            await resident.clock.asleep(6)
            assert "watched_until_client_closes" not in await on.check(job)
            await on.passes(0)


@pytest.mark.sqlite
@pytest.mark.requirement("D09")
async def test_a_store_that_cannot_be_used_refuses_and_sends_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        with closing(sqlite3.connect(tmp_path / "forbear.db")) as connection:
            connection.execute("ALTER TABLE operations RENAME TO lost")
        refusals = [
            error(await on.call("check_status", operation_id=job)),
            error(await on.call("operation_status")),
            error(
                await on.call(
                    "submit_job", provider="exp", job="export", arguments={"dataset": "other"}
                )
            ),
        ]
        with closing(sqlite3.connect(tmp_path / "forbear.db")) as connection:
            connection.execute("ALTER TABLE lost RENAME TO operations")

        assert {refused["code"] for refused in refusals} == {"store_unavailable"}
        assert all("forbear doctor" in refused["next_step"] for refused in refusals)
        assert len(on.provider.arrivals) == 1
        assert (await on.check(job))["state"] == "waiting"
