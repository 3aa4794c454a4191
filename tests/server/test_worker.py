"""The worker: carries what is due, keeps what it learnt, and lets nobody starve."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Any

import anyio.lowlevel
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    NO_RESULT,
    SUBMIT,
    TRANSFER,
    WRITE,
    Stage,
    contract,
    furnished,
    process,
    stage,
    write_contract,
)
from tests.support import ManualClock

from forbear.server.fake import Answer, FakeProvider
from forbear.storage.brakes import Brakes
from forbear.storage.database import FileLock
from forbear.storage.schema import operations
from forbear.storage.store import Store

pytestmark = pytest.mark.anyio

STATUS = "GET /exports/exp_1"
LARGE_END = {"id": "exp_1", "state": "done", "padding": Random(1).randbytes(150_000).hex()}


async def limit_disk(store: Store, pages: int | None) -> None:
    """Leave room for so many more pages; None for all it wants."""

    def unit(connection: Connection) -> None:
        used = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        most = 1_000_000 if pages is None else used + pages
        connection.exec_driver_sql(f"PRAGMA max_page_count = {most}")

    await store.write(unit)


async def heard(caplog: pytest.LogCaptureFixture, words: str, times: int = 1) -> None:
    async with asyncio.timeout(10):
        while sum(words in one.getMessage() for one in caplog.records) < times:
            await anyio.lowlevel.checkpoint()


@pytest.mark.requirement("D09", "D06", "W15")
async def test_an_outcome_that_finds_the_disk_full_is_kept_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        on.script(Answer(200, LARGE_END, gate="end"))
        op = await on.operation(job)
        assert op.next_at is not None
        on.clock.advance(op.next_at - on.now)
        on.app.store.wake()
        await on.provider.arrived(STATUS)
        await limit_disk(on.app.store, 0)
        with caplog.at_level(logging.ERROR):
            on.provider.release("end")
            await heard(caplog, "not stored yet")
            on.clock.advance(HOUR)
            await heard(caplog, "not stored yet", 2)
        assert (await on.operation(job)).state == "waiting"
        assert on.count() == 1
        await limit_disk(on.app.store, None)
        on.clock.advance(HOUR)
        await on.settled()
        after = await on.operation(job)
        assert (after.state, after.status_requests.used) == ("succeeded", 1)
        assert on.count() == 1


@pytest.mark.requirement("D09", "W15")
async def test_nothing_is_sent_that_cannot_be_recorded_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        before = await on.operation(job)
        assert before.next_at is not None
        with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
            broken.setattr("fcntl.flock", refuse)
            on.clock.advance(before.next_at - on.now)
            on.app.store.wake()
            await heard(caplog, "No locks available")
            answer = await on.call(
                "submit_job",
                provider="exp",
                job="export",
                arguments={"dataset": "other"},
                wait_seconds=0,
            )
            assert answer["error"]["code"] == "store_unavailable"
            assert await on.operation(job) == before
        assert on.count() == 0
        on.clock.advance(2_000)
        on.app.store.wake()
        await on.settled()
        assert on.count() == (await on.operation(job)).status_requests.used == 1
        assert on.count(SUBMIT) == 1


@pytest.mark.sqlite
async def test_a_process_that_ends_while_it_waits_for_the_store_reserves_nothing_more(
    tmp_path: Path,
) -> None:
    clock, up, over = ManualClock(), asyncio.Queue[Stage](), asyncio.Event()

    async def serve(provider: FakeProvider) -> None:
        async with process(provider, tmp_path, clock) as on:
            up.put_nowait(on)
            await over.wait()

    async with furnished(tmp_path, states=None, calls={"transfer": TRANSFER}) as provider:
        serving = asyncio.create_task(serve(provider))
        on = await up.get()
        lock = FileLock(tmp_path / "forbear.db.lock")
        with lock.held():
            passed = {"provider": "exp", "call": "transfer", "arguments": {"amount": 5}}
            asked = asyncio.create_task(on.call("write_api", **passed, wait_seconds=0))
            while not (carried := in_hand()):
                await anyio.lowlevel.checkpoint()
            over.set()
            await asyncio.wait(carried)
        lock.close()
        await asyncio.gather(serving, asked, return_exceptions=True)
        assert provider.count(WRITE) == 0
        async with process(provider, tmp_path, clock) as on:
            await on.settled()
            (op,) = await on.app.store.read.find()
        assert (op.state, op.attempts.used, provider.count(WRITE)) == ("succeeded", 1, 1)


def in_hand() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("op_")]


async def test_operations_that_nobody_here_can_run_do_not_starve_the_others(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        furnished(tmp_path, NO_RESULT, states=None) as provider,
        process(provider, tmp_path, clock) as on,
    ):
        for number in range(60):
            provider.job(f"exp_{number}", FOREVER)
            await on.submit(f"set-{number}")
        other = NO_RESULT | {"submit": "POST /others", "status": "GET /others/{id}"}
        write_contract(tmp_path, contract(other, base_url=provider.base_url), "other")
        (tmp_path / "contracts" / "exp.toml").unlink()
        clock.advance(10 * 60_000)
        on.app.store.wake()
        answer = await on.call(
            "submit_job", provider="other", job="export", arguments={"dataset": "x"}, wait_seconds=0
        )
        assert "error" not in answer, answer
        async with asyncio.timeout(10):
            await provider.arrived("POST /others")
        assert provider.count(SUBMIT) == 60


@pytest.mark.parametrize("case", ["CL-02"])
async def test_a_clock_that_is_set_back_while_a_job_waits_delays_no_check(
    tmp_path: Path, case: str
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        op = await on.operation(job)
        assert op.next_at is not None
        wait = op.next_at - on.now
        on.clock.jump(-HOUR)
        on.clock.advance(250)
        async with asyncio.timeout(10):
            while (await on.operation(job)).updated_at > on.now:
                await anyio.lowlevel.checkpoint()
        moved = await on.operation(job)
        assert moved.next_at is not None
        assert moved.next_at - on.now <= wait
        on.clock.advance(wait)
        on.app.store.wake()
        async with asyncio.timeout(10):
            await on.provider.arrived(STATUS)


@pytest.mark.requirement("D06")
async def test_what_becomes_due_while_it_is_still_in_hand_is_carried_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot is freed for it just then: nobody else will ever wake the schedule for it."""
    in_hand, let_go = asyncio.Event(), asyncio.Event()
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        op = await on.operation(job)
        assert op.next_at is not None
        brakes, by = Brakes(on.clock), {"operator": "ann"}
        await on.app.store.write(lambda c: brakes.pause(c, "all", by))
        write = on.app.store.write

        async def slowly(unit: Any, **how: Any) -> Any:
            done = await write(unit, **how)
            if done == (False, False):  # nothing to do: it is about to be let go
                in_hand.set()
                await let_go.wait()
            return done

        monkeypatch.setattr(on.app.store, "write", slowly)
        on.clock.advance(op.next_at - on.now)
        on.app.store.wake()
        await asyncio.wait_for(in_hand.wait(), 10)

        def freed(connection: Connection) -> None:
            brakes.resume(connection, "all", by)
            due = sa.update(operations).where(operations.c.id == op.id)
            connection.execute(due.values(next_at=on.now))

        await on.app.store.write(freed)
        for _ in range(200):  # the schedule looks, and passes it over
            await anyio.lowlevel.checkpoint()
        let_go.set()
        await on.provider.arrived(STATUS)


async def test_a_process_that_ends_after_its_worker_failed_stores_what_comes_of_its_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> int:
        raise RuntimeError("a defect")

    clock = ManualClock()
    async with furnished(tmp_path, NO_RESULT, states=FOREVER) as provider:
        async with process(provider, tmp_path, clock) as on:
            said = {"id": "exp_1", "state": "queued"}
            on.script(Answer(202, said, gate="slow", effect=True), route=SUBMIT)
            asked = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}
            await on.call("submit_job", **asked, wait_seconds=0)
            await provider.arrived(SUBMIT)
            monkeypatch.setattr(on.app.store.liveness, "sweep", broken)
            clock.advance(2_000)
            await heard(caplog, "the worker failed and starts again")
            asyncio.get_running_loop().call_later(0.3, provider.release, "slow")
        async with process(provider, tmp_path, clock) as on:
            await on.settled()
            (op,) = await on.app.store.read.find()
        assert (op.state, op.provider_job, provider.count(SUBMIT)) == ("waiting", "exp_1", 1)
