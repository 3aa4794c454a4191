"""`forbear audit prune`, and who may look into the audit log."""

from __future__ import annotations

import asyncio
import os
import pwd
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection
from tests import stores
from tests.server.commanding import Run, at_a_terminal, drive, waits

from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import audit
from forbear.storage.store import Store

ME = pwd.getpwuid(os.getuid()).pw_name
DAY = 86_400_000


def old_rows(home: Path, count: int = 150, days: int = 400) -> None:
    """Rows as a store has them that was used so many days ago."""

    async def write() -> None:
        store = Store(home, SystemClock(), SystemRandom(), url=stores.url_of(home))
        at = SystemClock().now().wall - days * DAY

        def add(connection: Connection) -> None:
            for number in range(count):
                audit.append(connection, None, at, audit.Code.PAUSED, {"target": f"p{number}"})

        await store.write(add)
        await store.close()

    asyncio.run(write())


def sql(home: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(home / "forbear.db")) as store:
        return store.execute(statement).fetchall()


@pytest.mark.requirement("A06")
@pytest.mark.usefixtures("operator")
def test_old_rows_go_after_an_export_and_both_parts_are_verified(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_rows(home)
    op_id = drive(home, waits)
    head = run("audit", "head").out.strip()
    kept = tmp_path / "log.jsonl"
    ran = run("audit", "prune", "--before", "90d", "--export", str(kept), "--yes")
    assert (ran.code, "101 rows are deleted" in ran.out) == (0, True), ran
    assert kept.stat().st_mode & 0o777 == 0o600
    assert sql(home, "SELECT min(sequence) FROM events") == [(102,)]
    told = run("audit", "verify", "--expect-head", head, "--json").json()
    assert (told["ok"], told["pruned_rows"]) == (True, 101)
    assert "Rows 1 to 101 were pruned; a signed row" in run("audit", "verify").out
    shown = run("audit", "show", "--code", "log_pruned", "--json").json()["events"]
    assert [event["body"]["rows"] for event in shown] == [101]
    assert shown[0]["body"]["exported"] == str(kept)
    assert shown[0]["body"]["account"] == ME
    assert run("show", op_id).code == 0
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "elsewhere"))
    assert run("audit", "verify", str(kept), "--expect-head", head).code == 0


@pytest.mark.requirement("A06")
def test_a_dry_run_says_what_would_go_and_what_holds_it(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    old_rows(home)
    before = sql(home, "SELECT count(*) FROM events")
    ran = run("audit", "prune", "--before", "2036-01-01", "--dry-run")
    assert ran.code == 0
    assert f"Row 1 and all after it stay: {op_id} is not over (waiting)." in ran.out
    assert "Nothing older than 2036-01-01 can be deleted." in ran.out
    assert sql(home, "SELECT count(*) FROM events") == before
    slip = run("audit", "prune", "--before", "tomorrow")
    assert (slip.code, "--before 'tomorrow' is no time" in slip.err) == (2, True)


@pytest.mark.requirement("A06")
def test_rows_that_nobody_keeps_go_only_when_somebody_says_so(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_rows(home)
    ran = run("audit", "prune", "--before", "90d")
    assert (ran.code, "gone for good. Add --export FILE" in ran.err) == (2, True)
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", "a-token-of-the-operator")
    (home / "config.toml").write_text('operator_token = "another"\n', encoding="utf-8")
    ran = run("audit", "prune", "--before", "90d", "--yes")
    assert (ran.code, "needs the operator token" in ran.err) == (2, True)
    assert sql(home, "SELECT min(sequence) FROM events") == [(1,)]
    with at_a_terminal("audit", "prune", "--before", "90d", "--yes") as screen:
        screen.until("rows are deleted")
        assert screen.end() == 0
    assert sql(home, "SELECT min(sequence) FROM events") == [(102,)]


@pytest.mark.requirement("A06")
@pytest.mark.usefixtures("operator")
def test_nothing_is_deleted_from_a_broken_log(home: Path, run: Run) -> None:
    old_rows(home)
    with closing(sqlite3.connect(home / "forbear.db")) as store, store:
        store.execute("DROP TRIGGER events_no_update")
        store.execute("UPDATE events SET sealed = zeroblob(80) WHERE sequence = 7")
    ran = run("audit", "prune", "--before", "90d", "--yes")
    assert (ran.code, "row 7 was changed" in ran.err) == (1, True)
    assert "Nothing is deleted from a broken log" in ran.err
    assert sql(home, "SELECT min(sequence) FROM events") == [(1,)]


@pytest.mark.requirement("A06")
@pytest.mark.usefixtures("operator")
def test_a_head_of_what_was_pruned_is_checked_against_the_export(
    home: Path, run: Run, tmp_path: Path
) -> None:
    old_rows(home, 50)
    head = run("audit", "head").out.strip()
    old_rows(home)
    kept = tmp_path / "log.jsonl"
    assert run("audit", "prune", "--before", "90d", "--export", str(kept), "--yes").code == 0
    ran = run("audit", "verify", "--expect-head", head)
    assert (ran.code, "that was pruned: give it with the export" in ran.out) == (1, True)
    told = run("audit", "verify", "--expect-head", head, "--json").json()
    assert (told["ok"], told["expected_head_pruned"], told["broken"]) == (False, True, None)
    assert run("audit", "verify", str(kept), "--expect-head", head).code == 0


# --- who may --------------------------------------------------------------------------------

ACTS = {
    "show": ("show",),
    "export": ("export", "-"),
    "prune": ("prune", "--before", "1d", "--dry-run"),
}


@pytest.mark.requirement("A06")
@pytest.mark.parametrize("act", ACTS)
def test_who_is_not_named_is_not_let_in_and_that_is_recorded(
    home: Path, run: Run, act: str
) -> None:
    drive(home, waits)
    config = home / "config.toml"
    config.write_text(f'[audit]\n{act} = ["ada"]\n', encoding="utf-8")
    ran = run("audit", *ACTS[act])
    assert (ran.code, ran.out) == (1, "")
    assert f"{ME} may not {act} the audit log: [audit] {act} in {config} names ada" in ran.err
    assert f'add "{ME}" there' in ran.err
    for other in ACTS.keys() - {act}:
        assert run("audit", *ACTS[other]).code == 0
    config.write_text(f'[audit]\n{act} = ["ada", "{ME}"]\n', encoding="utf-8")
    assert run("audit", *ACTS[act]).code == 0
    refused = run("audit", "show", "--code", "audit_refused", "--json").json()["events"]
    assert [(one["body"]["how"], one["body"]["account"]) for one in refused] == [(act, ME)]
    assert run("audit", "verify").code == 0, "whoever has the file may verify it"


def test_a_wrong_table_is_said_with_its_place(home: Path, run: Run) -> None:
    drive(home, waits)
    for text, said in (
        ("audit = 7", "audit must be a table: [audit]"),
        ("[audit]\nlook = []", "audit.look is no setting; there are show, export, prune"),
        ('[audit]\nshow = "ada"', 'audit.show must be a list of texts, such as ["ada"]'),
        ("[audit]\nshow = [7]", "audit.show must be a list"),
    ):
        (home / "config.toml").write_text(text, encoding="utf-8")
        ran = run("audit", "show")
        assert (ran.code, said in ran.err) == (2, True), ran.err
