"""`forbear audit`: what an auditor types, with a home and with nothing but a copied file."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.commanding import Run, drive, ends, is_unclear, waits


def copy_of(home: Path, path: Path) -> Path:
    with closing(sqlite3.connect(home / "forbear.db")) as store:
        store.execute("VACUUM INTO ?", (str(path),))
    return path


@pytest.mark.requirement("A05")
def test_a_copied_file_is_verified_on_a_machine_without_home_and_keys(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(home, ends)
    copied = copy_of(home, tmp_path / "copy.db")
    head = run("audit", "head").out.strip()
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "elsewhere"))
    ran = run("audit", "verify", str(copied), "--expect-head", head)
    assert ran.code == 0
    assert head in ran.out
    assert "each follows from the one before" in ran.out
    assert not (tmp_path / "elsewhere").exists()
    told = run("audit", "verify", str(copied), "--json").json()
    assert (told["ok"], told["head"], told["broken"]) == (True, head, None)


@pytest.mark.requirement("A05")
def test_the_first_broken_row_is_named_and_the_exit_code_says_so(
    home: Path, run: Run, tmp_path: Path
) -> None:
    drive(home, ends)
    copied = copy_of(home, tmp_path / "copy.db")
    with closing(sqlite3.connect(copied)) as store, store:
        store.execute("DROP TRIGGER events_no_update")
        store.execute("UPDATE events SET sealed = zeroblob(90) WHERE sequence IN (3, 4)")
    ran = run("audit", "verify", str(copied))
    assert ran.code == 1
    assert "BROKEN: row 3 was changed" in ran.out
    assert "Rows 1 to 2 are whole." in ran.out
    assert run("audit", "verify", str(copied), "--json").json()["broken"]["row"] == 3
    refused = run("audit", "head", str(copied))
    assert (refused.code, refused.out, "row 3" in refused.err) == (1, "", True)


@pytest.mark.requirement("A05")
def test_a_rolled_back_store_does_not_reach_the_head_that_was_kept(
    home: Path, run: Run, tmp_path: Path
) -> None:
    drive(home, waits)
    old = copy_of(home, tmp_path / "old.db")
    drive(home, is_unclear)
    head = run("audit", "head").out.strip()
    assert run("audit", "verify", "--expect-head", head).code == 0
    ran = run("audit", "verify", str(old), "--expect-head", head)
    assert (ran.code, "is missing: the log had" in ran.out) == (1, True)
    slip = run("audit", "verify", "--expect-head", "deadbeef")
    assert (slip.code, "forbear audit head" in slip.err) == (2, True)


@pytest.mark.requirement("A05")
def test_rows_after_the_last_checkpoint_are_said(home: Path, run: Run) -> None:
    drive(home, waits)
    told = run("audit", "verify", "--json").json()
    assert 0 < told["signed_rows"] < told["rows"]
    ran = run("audit", "verify")
    assert f"signs row {told['signed_rows']}" in ran.out
    assert "only a head kept elsewhere can show" in ran.out


@pytest.mark.requirement("A05")
def test_who_looks_into_the_log_is_in_the_log(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    told = run("audit", "show", "--operation", op_id[:9], "--json").json()["events"]
    assert {event["operation_id"] for event in told} == {op_id}
    assert [event["code"] for event in told][:2] == ["accepted", "reserved"]
    assert told[0]["body"]["set"]["state"] == "queued"
    looks = run("audit", "show", "--code", "audit_read", "--json").json()["events"]
    assert [look["body"]["how"] for look in looks] == ["show", "show"]
    assert looks[0]["body"]["operation_asked"] == op_id
    assert looks[1]["body"]["code"] == "audit_read"
    assert looks[0]["body"]["operator"]
    assert run("audit", "verify").code == 0


def test_events_are_listed_newest_last_within_what_was_asked_for(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    lines = run("audit", "show", "--limit", "2").out.splitlines()
    assert len(lines) == 2
    assert "audit_read" in lines[1]
    assert op_id in lines[0]
    assert "No such event." in run("audit", "show", "--code", "stranded").out
    assert len(run("audit", "show", "--since", "2030-01-01T00:00:00Z").out.splitlines()) == 1
    assert "audit_read" in run("audit", "show", "--since", "1h").out
    for slip, fix in ((("--since", "noon"), "2h (ago)"), (("--code", "x"), "accepted, joined")):
        ran = run("audit", "show", *slip)
        assert (ran.code, fix in ran.err) == (2, True)


@pytest.mark.requirement("A05")
def test_an_export_is_verified_by_itself_and_is_recorded(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(home, ends)
    target = tmp_path / "log.jsonl"
    assert run("audit", "export", str(target)).code == 0
    assert target.stat().st_mode & 0o777 == 0o600
    again = run("audit", "export", str(target))
    assert (again.code, "is there already" in again.err) == (2, True)
    piped = run("audit", "export", "-").out
    assert (
        piped.splitlines()[: len(target.read_text().splitlines()) - 1]
        == (target.read_text().splitlines()[:-1])
    )
    looks = run("audit", "show", "--code", "audit_read", "--json").json()["events"]
    assert [look["body"]["how"] for look in looks] == ["export", "export", "show"]
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "elsewhere"))
    assert run("audit", "verify", str(target)).code == 0
    lines = target.read_text().splitlines()
    target.write_text("\n".join([*lines[:4], *lines[5:]]))
    ran = run("audit", "verify", str(target))
    assert (ran.code, "BROKEN: row" in ran.out) == (1, True)


@pytest.mark.requirement("A05")
@pytest.mark.parametrize("name", ["audit-seal.key", "audit-sign.key"])
def test_without_a_key_nothing_is_shown_or_written_but_the_log_is_still_verified(
    home: Path, run: Run, name: str
) -> None:
    op_id = drive(home, waits)
    (home / "keys" / name).unlink()
    for command in (("audit", "show"), ("audit", "export", "-"), ("show", op_id), ("pause",)):
        ran = run(*command)
        assert (ran.code, ran.out) == (3, ""), command
        assert f"{name} is missing: restore it with forbear.db from a backup" in ran.err
    assert run("audit", "verify").code == 0
    assert not (home / "keys" / name).exists()


def test_where_there_is_no_log_the_command_says_what_is_missing(
    home: Path, run: Run, tmp_path: Path
) -> None:
    for command in (("verify",), ("head",), ("show",), ("export", str(tmp_path / "x"))):
        ran = run("audit", *command)
        assert (ran.code, "no audit log" in ran.err) == (2, True), command
    ran = run("audit", "verify", str(tmp_path / "nothing"))
    assert (ran.code, "There is no file" in ran.err) == (2, True)
    text = tmp_path / "text"
    text.write_text("hello")
    ran = run("audit", "verify", str(text))
    assert (ran.code, "neither a store nor an export" in ran.err) == (3, True)
    assert not (home / "forbear.db").exists()


def test_a_live_store_is_verified_while_it_is_written(home: Path, run: Run) -> None:
    drive(home, waits)
    with closing(sqlite3.connect(home / "forbear.db")) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert run("audit", "verify").code == 0
        writer.execute("ROLLBACK")
    shutil.copy(home / "forbear.db", home / "copy.db")
    assert json.loads(run("audit", "verify", str(home / "copy.db"), "--json").out)["ok"]
