"""Clocks that are set, disks that are full, pages that are damaged, names that nobody resolves."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.crash.test_copies import commanded
from tests.crash.test_crash import CONTRACT, STATUS, SUBMIT, no_request_is_hidden
from tests.crash.world import Nursery, fast, nursed, world

from forbear.server.fake import Answer

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite]

HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


@contextmanager
def mounted(*words: str) -> Generator[None]:
    """A mount for the length of the block; the test is skipped where this user may make none."""
    made = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"this user may not mount: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", words[-1]], check=False)


# --- clocks ---------------------------------------------------------------------------------

LONG = CONTRACT.replace('deadline = "10m"', 'deadline = "72h"')


@pytest.mark.requirement("W11", "W09", "D02")
@pytest.mark.parametrize("case", ["CL-02"])
@pytest.mark.parametrize("step", [HOUR, -HOUR, DAY, -DAY], ids=["+1h", "-1h", "+1d", "-1d"])
async def test_a_wall_clock_that_is_set_makes_no_request_more_and_none_late(
    tmp_path: Path, nursery: Nursery, step: int, case: str
) -> None:
    async with world(tmp_path / "home", nursery, LONG, jobs=0) as on:
        states = ["running"] * 4 + ["done"]
        on.provider.job("exp_0", states)
        stepped = tmp_path / "stepped"
        stepped.write_text("0")
        on.start("sales", stepped=str(stepped))
        await on.provider.arrived(STATUS, 2)
        (draft := stepped.with_suffix(".new")).write_text(str(step))
        draft.rename(stepped)
        await on.at_rest()
        assert on.operation()["state"] == "succeeded", case
        assert on.provider.count(STATUS) == len(states)
        assert on.operation()["status_requests_used"] <= len(states) + 1
        no_request_is_hidden(on)


@pytest.mark.requirement("W11")
async def test_a_deadline_that_a_set_clock_jumps_over_is_looked_at_before_anything_is_sent(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT, jobs=0) as on:
        on.provider.job("exp_0", ["running"] * 40)
        stepped = tmp_path / "stepped"
        stepped.write_text("0")
        pid = on.start("sales", stepped=str(stepped))
        await on.provider.arrived(STATUS, 3)
        os.kill(pid, signal.SIGSTOP)
        polls = on.provider.count(STATUS)
        stepped.write_text(str(HOUR))
        os.kill(pid, signal.SIGCONT)
        await on.at_rest()
        assert on.rows("SELECT reason FROM cases") == [{"reason": "deadline_exceeded"}]
        assert on.provider.count(STATUS) <= polls + 1, "one may have been on its way"
        no_request_is_hidden(on)


# --- disks ----------------------------------------------------------------------------------


@pytest.mark.requirement("D09", "D01", "W15")
async def test_a_disk_that_is_full_stops_everything_until_there_is_room_again(
    tmp_path: Path, nursery: Nursery
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)):
        async with world(small / "home", nursery, CONTRACT) as on:
            on.notes = tmp_path
            body = {"id": "exp_0", "state": "queued"}
            on.provider.script(SUBMIT, Answer(202, body, gate="full", effect=True))
            on.start("sales", **fast(5))
            await on.provider.arrived(SUBMIT)
            filler = small / "filler"
            _fill(filler)
            on.provider.release("full")
            await on.until(lambda: "not stored yet" in on.logs())
            [attempt] = on.rows("SELECT outcome FROM attempts")
            assert attempt == {"outcome": None}
            assert len(on.provider.arrivals) == 1
            assert commanded(on.home, "pause", "all").returncode == 3
            filler.unlink()
            await on.at_rest()
            assert on.operation()["state"] == "succeeded"
            assert on.provider.count(SUBMIT) == len(on.provider.effects) == 1
            no_request_is_hidden(on)


def _fill(path: Path) -> None:
    """Take all the room that there is."""
    with suppress(OSError), path.open("wb", 0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.requirement("D09")
async def test_on_a_read_only_file_nothing_starts_and_nothing_is_sent(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT) as on:
        pid = on.start("sales", worker=False)
        await on.until(lambda: {"ready": True} in on.said(0))
        os.kill(pid, signal.SIGTERM)
        await on.dead(pid)
        store = str(on.home / "forbear.db")
        with mounted("--bind", store, store), mounted("-o", "remount,ro,bind", store):
            told = commanded(on.home, "worker")
            assert told.returncode == 3
            assert f"{store}: " in told.stderr
            assert "make it writable to this user" in told.stderr
        assert on.provider.arrivals == []
        on.start()
        await on.at_rest()
        assert on.operation()["state"] == "succeeded"


@pytest.mark.requirement("D09", "D11", "W17")
async def test_a_damaged_store_sends_nothing_and_its_backup_goes_on(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT) as on:
        pid = on.start("sales")
        await on.provider.arrived(STATUS)
        os.kill(pid, signal.SIGKILL)
        await on.dead(pid)
        assert commanded(on.home, "backup", str(tmp_path / "backup")).returncode == 0
        sent = len(on.provider.arrivals)
        _damage(on.home / "forbear.db", "operations")
        hurt = on.start()
        await on.until(lambda: "malformed" in on.logs())
        os.kill(hurt, signal.SIGKILL)
        await on.dead(hurt)
        assert len(on.provider.arrivals) == sent

        shutil.move(on.home, tmp_path / "damaged")
        shutil.move(tmp_path / "backup", on.home)
        assert commanded(on.home, "adopt", "--yes").returncode == 0
        on.start()
        await on.at_rest()
        assert on.operation()["state"] == "succeeded"
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == 1
        assert on.operation()["status_requests_used"] >= on.provider.count(STATUS)


def _damage(store: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    connection = sqlite3.connect(store)
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    (page,) = connection.execute(query, (table,)).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with store.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


# --- providers ------------------------------------------------------------------------------

SLOW = """\
contract = 1
base_url = "https://slow.example"
auth = "none"

[scopes.account]
per = "account"
rate = "1000/1s"
max_concurrent_requests = 50

[calls.a]
method = "GET"
path = "/a"
timeout = "1s"
deadline = "3s"
"""
DRIPS = """
[calls.drips]
method = "GET"
path = "/drips"
timeout = "1s"
deadline = "3s"
"""


@pytest.mark.requirement("D05", "C04", "R16")
async def test_names_and_answers_that_never_come_hold_up_nobody_else(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT + DRIPS) as on:
        calls = "".join(
            SLOW.partition("[calls.a]")[2].replace("/a", f"/{name}").join((f"\n[calls.{name}]", ""))
            for name in "bcdefghijkl"
        )
        (on.home / "contracts" / "slow.toml").write_text(SLOW + calls)
        drip = Answer(json={"n": 1}, drip="body", pace=1.0)
        on.provider.script("GET /drips", *[drip] * 10)
        reads = ("drips", *(f"slow.{name}" for name in "abcdefghijkl"))
        on.start("sales", reads=reads, hangs="slow.example")
        await on.until(
            lambda: on.rows("SELECT 1 FROM operations WHERE kind = 'job' AND state = 'succeeded'")
        )
        await on.until(lambda: not on.works())
        rows = on.rows(
            "SELECT provider, outcome FROM attempts JOIN operations ON operations.id = operation_id"
        )
        assert {one["outcome"] for one in rows if one["provider"] == "slow"} == {"not_sent"}
        assert on.rows("SELECT count(*) AS n FROM operations")[0]["n"] == 14
        assert "Traceback" not in on.logs()
