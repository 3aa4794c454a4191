"""A backup is a whole home of one moment, for its user alone, and overwrites nothing."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from tests.server.commanding import Ran, Run, drive, stops, waits
from tests.tools.driving import Driver

SENT_LATER = "INSERT INTO later VALUES (?)"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def modes(folder: Path) -> set[tuple[bool, int]]:
    return {(one.is_dir(), one.stat().st_mode & 0o777) for one in (folder, *folder.rglob("*"))}


def test_a_backup_is_a_home_of_its_own_that_only_its_user_can_read(
    home: Path, run: Run, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = drive(home, stops)
    (home / "config.toml").write_text('log = "info"\n', encoding="utf-8")
    (home / "keys" / "console").mkdir()
    (home / "keys" / "console" / "links").write_text("x", encoding="utf-8")
    before = os.umask(0)
    try:
        made = run("backup", str(target))
    finally:
        os.umask(before)

    assert made.code == 0, made
    assert "1 operation, 1 open case, 1 contract" in made.out
    assert "keys are inside" in made.err
    assert f"FORBEAR_HOME={target} forbear adopt" in made.err
    assert modes(target) == {(True, 0o700), (False, 0o600)}
    assert list(target.parent.glob(".backup*")) == []
    for name in ("keys/store.key", "keys/console/links", "contracts/exp.toml", "config.toml"):
        assert (target / name).read_bytes() == (home / name).read_bytes()
    monkeypatch.setenv("FORBEAR_HOME", str(target))
    assert stopped in run("ls", "--json").out
    told = run("doctor")
    assert (told.code, "-> forbear adopt" in told.out) == (1, True)


def test_a_copy_taken_while_a_process_writes_is_of_one_moment(
    home: Path, run: Run, target: Path
) -> None:
    async def made(job: Driver) -> Ran:
        await waits(job)
        writing = sqlite3.connect(home / "forbear.db", isolation_level=None, timeout=0)
        writing.execute("CREATE TABLE later (n)")
        writing.execute("BEGIN IMMEDIATE")
        writing.execute(SENT_LATER, (1,))
        try:
            return await asyncio.to_thread(run, "backup", str(target))
        finally:
            writing.execute("COMMIT")
            writing.close()

    assert drive(home, made).code == 0
    for path, rows in ((target, 0), (home, 1)):
        looked = sqlite3.connect(path / "forbear.db")
        assert looked.execute("SELECT count(*) FROM later").fetchone() == (rows,)
        looked.close()


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_a_backup_overwrites_nothing(home: Path, run: Run, target: Path, there: str) -> None:
    drive(home, waits)
    match there:
        case "file":
            target.write_text("mine", encoding="utf-8")
        case "folder":
            target.mkdir()
        case _:
            target.symlink_to(target.parent / "nowhere")
    refused = run("backup", str(target))
    assert refused.code == 2
    assert "overwrites nothing" in refused.err
    assert not (target / "forbear.db").exists()


def test_where_no_backup_can_be_made_nothing_is_left(home: Path, run: Run, target: Path) -> None:
    assert run("backup", str(target)).code == 1
    drive(home, waits)
    inside = run("backup", str(home / "backup"))
    assert (inside.code, "outlives" in inside.err) == (2, True)
    assert run("backup", str(target / "not" / "there")).code == 2
    assert not target.exists()


def test_a_damaged_store_gives_no_backup(home: Path, run: Run, target: Path) -> None:
    drive(home, waits)
    path = home / "forbear.db"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40_960] = b"\xff" * 40_960
    path.write_bytes(content)
    assert run("backup", str(target)).code == 3
    assert not target.exists()
    assert list(target.parent.glob(".backup*")) == []
