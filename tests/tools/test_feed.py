"""Followers of operations share what is read of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.e2e.harness import Stage, stage

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


async def test_any_number_of_followers_costs_no_more_reads_than_one(tmp_path: Path) -> None:
    many = 300
    async with stage(tmp_path) as on:
        record = await on.app.desk.record(await on.operation(await on.submit()))
        following = [asyncio.create_task(last_word(on, record)) for _ in range(many)]
        on.app.store.wake()
        with statements() as ran:
            await on.end_of(record.operation.id)
            heard = await asyncio.gather(*following)

        assert {one.operation.state for one in heard} == {"succeeded"}
        assert len([one for one in ran if one.startswith("SELECT")]) < many


async def test_a_follower_that_came_late_hears_of_what_changed_meanwhile(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        first, second = await on.submit(), await on.submit("costs", wait_seconds=0)
        before = [await on.app.desk.record(await on.operation(one)) for one in (first, second)]
        early = asyncio.create_task(last_word(on, before[0]))
        await on.end_of(first)
        await early

        assert (await last_word(on, before[0])).operation.id == first
