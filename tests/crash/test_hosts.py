"""Hosts that share one database, each with a home of its own: leases end by time, slots are shared.

Hosts are homes here. What a host can know of another goes through the database alone, whether or
not the same kernel runs both.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import stores
from tests.crash.nursery import AFTER_ANSWER, BEFORE_FIRST_BYTE
from tests.crash.test_crash import CONTRACT as JOBS
from tests.crash.world import Nursery, World, fast, nursed, stopped, world
from tests.e2e.harness import KEYED, LOOKUP, TRANSFER, WRITE, Data, contract

from forbear.server.app import open_store
from forbear.server.config import Settings
from forbear.server.fake import Answer

pytestmark = [pytest.mark.anyio, pytest.mark.only_postgresql, pytest.mark.requirement("D07")]

READ = "GET /items"
ITEM: Data = {"method": "GET", "path": "/items", "deadline": "10m", "timeout": "1m"}
LONG: Data = {"timeout": "20s"}
"""Of a transfer: a second of a fast clock, in which a busy machine answers."""
LEASE = 35_000
"""That and 15 seconds, ms."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def shop(slots: int = 2, **transfer: object) -> str:
    limits = {"rate": "1000/1s", "max_concurrent_requests": slots, "max_delayed_requests": 100}
    calls = {"item": ITEM, "transfer": {**TRANSFER, **BARE, **transfer}}
    return contract(calls=calls, scopes={"account": {"per": "account", **limits}})


BARE: Data = {"label": "Transfer", "body": {"client_ref": "{ref}"}}


async def another_host(on: World, home: Path) -> Path:
    """A home with the keys and contracts of the first, on the same database."""
    settings = Settings.load({"FORBEAR_HOME": str(on.home), **stores.environment(on.home)})
    await (await asyncio.to_thread(open_store, settings)).close()
    for name in ("keys", "contracts"):
        shutil.copytree(on.home / name, home / name)
    assert stores.current.server is not None
    stores.current.server.share(on.home, home)
    return home


def write_of(on: World) -> Data:
    (row,) = on.rows("SELECT * FROM operations WHERE action = 'transfer'")
    return row


@pytest.mark.requirement("D02", "R13", "R16")
@pytest.mark.parametrize(
    ("more", "point", "state", "sent"),
    [
        ({}, AFTER_ANSWER, "escalated", 1),
        (KEYED, AFTER_ANSWER, "succeeded", 2),
        # Nobody here can know that the other host will never send it.
        (
            {"lookup": {**LOOKUP, "absence_proves": True, "settle": "1s"}},
            BEFORE_FIRST_BYTE,
            "escalated",
            0,
        ),
    ],
    ids=["unkeyed", "keyed", "absent"],
)
async def test_a_host_that_dies_keeps_its_lease_until_its_time_is_over(
    tmp_path: Path, nursery: Nursery, more: Data, point: str, state: str, sent: int
) -> None:
    async with world(tmp_path / "a", nursery, shop(**more, **LONG)) as on:
        other = await another_host(on, tmp_path / "b")
        clock = fast(20)
        await on.dead(on.start(writes=("transfer",), point=point, **clock))
        on.start(at=other, **clock)
        await on.at_rest()

        assert write_of(on)["state"] == state
        assert on.provider.count(WRITE) == sent
        assert len(on.provider.effects) == min(sent, 1)
        first = on.rows("SELECT * FROM attempts ORDER BY reserved_at LIMIT 1")[0]
        assert (first["outcome"], first["step"]) == ("unknown", "send")
        assert first["closed_at"] - first["reserved_at"] >= LEASE


@pytest.mark.requirement("D02", "R13", "R24")
async def test_a_host_that_was_cut_off_comes_back_and_sends_nothing_late(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "a", nursery, shop()) as on:
        other = await another_host(on, tmp_path / "b")
        clock, stop = fast(20), int(signal.SIGSTOP)
        frozen = on.start(writes=("transfer",), point=BEFORE_FIRST_BYTE, signal=stop, **clock)
        await on.until(lambda: stopped(frozen))
        on.start(at=other, **clock)
        await on.until(lambda: write_of(on)["state"] == "escalated")
        os.kill(frozen, signal.SIGCONT)
        await on.until(lambda: on.rows("SELECT 1 FROM attempts WHERE late"))

        (late,) = on.rows("SELECT * FROM attempts WHERE late")
        assert late["outcome"] == "not_sent"
        assert write_of(on)["state"] == "escalated"
        assert on.provider.count(WRITE) == len(on.provider.effects) == 0


@pytest.mark.requirement("D05", "R07", "R10")
async def test_hosts_never_have_more_requests_open_than_their_scope_allows(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "a", nursery, shop(slots=2)) as on:
        other = await another_host(on, tmp_path / "b")
        on.provider.script(READ, *[Answer(json={}, drip="head", pace=0.002)] * 40)
        for home in (on.home, other) * 2:
            on.start(at=home, reads=("item",) * 10)
        await on.until(lambda: on.provider.count(READ) == 40)
        await on.at_rest(40)

        assert on.provider.most_open == 2
        assert on.provider.count(READ) == 40
        told = on.rows(
            "SELECT state, attempts_used AS used, count(*) AS n FROM operations GROUP BY 1, 2"
        )
        assert told == [{"state": "succeeded", "used": 1, "n": 40}]
        assert on.rows("SELECT count(*) AS n FROM attempts") == [{"n": 40}]
        assert on.rows("SELECT sum(value) AS n FROM tallies WHERE name = 'requests'") == [{"n": 40}]


@pytest.mark.requirement("D05", "R13")
async def test_the_same_job_from_many_hosts_is_one_operation(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "a", nursery, JOBS) as on:
        other = await another_host(on, tmp_path / "b")
        for home in (on.home, other) * 2:
            on.start("sales", "sales", at=home)
        await on.until(lambda: on.rows("SELECT 1 FROM operations WHERE state = 'succeeded'"))

        assert on.provider.count("POST /exports") == 1
        assert on.operation()["status_requests_used"] == on.provider.count("GET /exports/exp_0")
        joined = [line for number in range(4) for line in on.said(number) if "operation" in line]
        assert sorted(line["joined"] for line in joined) == [False] + [True] * 7
