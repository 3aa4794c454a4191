"""Reads that somebody breaks off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.e2e.harness import stage

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M05")]


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
