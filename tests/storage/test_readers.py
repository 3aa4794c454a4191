"""Reads that somebody breaks off, and reads that are not made."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.e2e.harness import stage
from tests.storage.house import House
from tests.support import FixedRandom, ManualClock

from forbear.storage.database import Database
from forbear.storage.queries import Queries

pytestmark = pytest.mark.requirement("M05")


@pytest.mark.anyio
async def test_a_read_that_is_broken_off_costs_no_connection(tmp_path: Path) -> None:
    lost: list[object] = []

    def note(*told: object) -> None:
        lost.append(told)

    async with stage(tmp_path) as on:
        job, read = await on.submit(), on.app.store.read
        event.listen(sa.Pool, "invalidate", note)
        try:
            for steps in range(60):
                asking = asyncio.create_task(read.operation(job))
                for _ in range(steps):
                    await asyncio.sleep(0.0001)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert await read.operation(job) is not None
        finally:
            event.remove(sa.Pool, "invalidate", note)

    assert not lost


@pytest.mark.sqlite
def test_asking_again_reads_nothing_until_anything_was_committed(tmp_path: Path) -> None:
    own = House(tmp_path, ManualClock(), FixedRandom(), "own_a")
    assert isinstance(own.database, Database)
    other = House(tmp_path, own.clock, own.random, "own_b")
    read = Queries(own.database.readers, own.database.log, own.database.version, own.database.near)
    statements: list[str] = []
    raw = own.database.near.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.set_trace_callback(statements.append)
    job, bystander = own.new("a").id, own.new("b").id

    async def seen(one: str) -> tuple[int, int]:
        """The revision that is read, twice, and how many statements that took."""
        statements.clear()
        first, again = await read.dossier(one), await read.dossier(one)
        assert first is not None
        assert first == again
        return first.operation.revision, len(statements)

    async def look() -> None:
        revision, _ = await seen(job)
        assert await seen(job) == (revision, 0)
        for changing in (own, other):
            await seen(bystander)
            changing.sql("UPDATE operations SET revision = revision + 1 WHERE id = ?", job)
            revision += 1
            assert await seen(job) == (revision, 1)
        await own.database.readers.dispose()

    asyncio.run(look())
    own.close()
    other.close()
