"""Followers of operations share what is read of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, event
from tests.e2e.harness import PATIENCE, Stage, process, stage

from forbear.rules.model import Notice, Operation
from forbear.storage.errors import StoreUnavailable
from forbear.storage.queries import Version
from forbear.storage.transitions import must_load, note
from forbear.tools.record import Record

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M02")]


@contextmanager
def statements() -> Iterator[list[str]]:
    """What any engine of this process runs meanwhile."""
    ran: list[str] = []

    def note(*told: object) -> None:
        ran.append(str(told[2]))

    event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield ran
    finally:
        event.remove(sa.Engine, "before_cursor_execute", note)


async def last_word(on: Stage, record: Record) -> Record:
    """The record with which a follower hears of the end."""
    async for now in on.app.desk.follow([record]):
        assert isinstance(now, Record)
        if now.operation.final:
            return now
    raise AssertionError("a feed does not end")


async def test_any_number_of_followers_costs_no_more_reads_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, looks = 300, 0
    async with stage(tmp_path) as on:
        read = on.app.store.read.versions

        async def counted(operation_ids: Collection[str]) -> dict[str, Version]:
            nonlocal looks
            looks += 1
            return await read(operation_ids)

        monkeypatch.setattr(on.app.store.read, "versions", counted)
        record = await on.app.desk.record(await on.operation(await on.submit()))
        following = [asyncio.create_task(last_word(on, record)) for _ in range(many)]
        on.app.store.wake()
        with statements() as ran:
            await on.end_of(record.operation.id)
            heard = await asyncio.gather(*following)

        assert {one.operation.state for one in heard} == {"succeeded"}
        assert len([one for one in ran if one.startswith("SELECT")]) < many
        assert looks < many


async def test_a_follower_that_came_late_hears_of_what_changed_meanwhile(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        first, second = await on.submit(), await on.submit("costs", wait_seconds=0)
        before = [await on.app.desk.record(await on.operation(one)) for one in (first, second)]
        early = asyncio.create_task(last_word(on, before[0]))
        await on.end_of(first)
        await early

        assert (await last_word(on, before[0])).operation.id == first


async def changed(on: Stage, operation_id: str, notice: Notice) -> None:
    """A change of an operation that nothing follows from."""

    def unit(connection: Connection) -> None:
        note(connection, must_load(connection, operation_id), notice, on.now)

    await on.app.store.write(unit)


async def noticed(on: Stage, record: Record, notice: Notice) -> Record:
    """The record with which a follower hears of a notice."""
    async with asyncio.timeout(PATIENCE):
        async for now in on.app.desk.follow([record]):
            assert isinstance(now, Record)
            if notice in now.operation.notices:
                return now
    raise AssertionError("a feed does not end")


async def test_a_follower_hears_of_a_change_whose_record_could_not_be_read_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as on:
        record = await on.app.desk.record(await on.operation(await on.submit()))
        following = asyncio.create_task(noticed(on, record, Notice.LATE_EVIDENCE))
        failed = asyncio.Event()

        async def unreadable(operation_id: str) -> Operation | None:
            failed.set()
            raise StoreUnavailable(f"{operation_id}: the disk is away")

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(on.app.store.read, "operation", unreadable)
            await changed(on, record.operation.id, Notice.LATE_EVIDENCE)
            await failed.wait()
        on.app.store.wake()
        await following


async def test_a_follower_that_came_between_a_commit_and_its_news_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as on, process(on.provider, on.home, on.clock) as other:
        known = await on.app.desk.record(await on.operation(await on.submit()))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(on.app.store, "look_elsewhere", lambda: False)
            early = asyncio.create_task(noticed(on, known, Notice.LATE_EVIDENCE))
            await changed(on, known.operation.id, Notice.LATE_EVIDENCE)
            record = await early
            await changed(other, known.operation.id, Notice.MAY_STILL_RUN)
            late = on.app.desk.follow([record])
            heard = await anext(late)
        on.app.store.wake()
        async with asyncio.timeout(PATIENCE):
            while isinstance(heard, Record) and heard.operation.notices == record.operation.notices:
                heard = await anext(late)
        await late.aclose()


async def test_whatever_goes_wrong_with_a_look_is_told_to_all_who_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as on:
        record = await on.app.desk.record(await on.operation(await on.submit()))
        following = [
            asyncio.create_task(noticed(on, record, Notice.LATE_EVIDENCE)) for _ in range(2)
        ]

        async def broken(operation_ids: object) -> dict[str, Version]:
            raise RuntimeError("a defect")

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(on.app.store.read, "versions", broken)
            await changed(on, record.operation.id, Notice.LATE_EVIDENCE)
            heard = await asyncio.gather(*following, return_exceptions=True)
        assert [str(one) for one in heard] == ["a defect"] * 2
