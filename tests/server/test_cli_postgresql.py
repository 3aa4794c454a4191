"""The commands that look at a store as a whole, where it is on a server."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests import stores
from tests.server.commanding import Run, drive, stops, waits
from tests.server.test_cli_pruning import old_rows

pytestmark = [
    pytest.mark.only_postgresql,
    pytest.mark.requirement("D07"),
    pytest.mark.usefixtures("operator"),
]


def test_the_doctor_names_the_database_without_its_password(home: Path, run: Run) -> None:
    drive(home, waits)
    (home / "config.toml").chmod(0o600)
    ran = run("doctor")
    assert ran.code == 0, ran.out + ran.err
    assert "PostgreSQL: 1" in ran.out
    assert str(stores.url_of(home)).rpartition("/")[0].partition("@")[2] in ran.out


def test_operations_are_listed_shown_and_decided(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    assert op_id in run("ls").out
    assert "unknown state paused" in run("inbox").out
    assert "escalated" in run("show", op_id).out
    ran = run("decide", "1", "abandon", "--yes", "--comment", "over")
    assert ran.code == 0, ran.out + ran.err
    assert run("show", op_id, "--json").json()["state"] == "discarded"
    assert run("stats").code == 0


@pytest.mark.requirement("A05", "A06")
def test_the_log_is_verified_exported_shown_and_pruned(
    home: Path, run: Run, tmp_path: Path
) -> None:
    op_id = drive(home, waits)
    old_rows(home)
    whole = run("audit", "verify")
    assert whole.code == 0, whole.out + whole.err
    assert op_id in run("audit", "show", "--operation", op_id).out
    exported = tmp_path / "log.jsonl"
    assert run("audit", "export", str(exported)).code == 0
    assert run("audit", "verify", str(exported)).code == 0
    looks = run("audit", "show", "--code", "audit_read", "--json").json()["events"]
    assert [one["code"] for one in looks] == ["audit_read"] * len(looks) != []
    pruned = run("audit", "prune", "--before", "200d", "--export", str(tmp_path / "old"), "--yes")
    assert pruned.code == 0, pruned.out + pruned.err
    assert run("audit", "verify").code == 0


@pytest.mark.requirement("A05")
def test_keys_are_shown_rotated_and_backed_up(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, waits)
    before = run("keys", "show").out
    for what in ("sealing", "signing", "epoch"):
        ran = run("keys", "rotate", what, "--yes")
        assert ran.code == 0, ran.out + ran.err
    assert run("keys", "show").out != before
    assert "waiting" in run("show", op_id).out
    assert run("audit", "verify").code == 0
    monkeypatch.setenv("PASS", "a long passphrase of a test")
    kept = run("keys", "backup", str(tmp_path / "keys.backup"), "--passphrase-env", "PASS")
    assert kept.code == 0, kept.out + kept.err

    (home / "keys" / "audit-seal.key").unlink()
    assert run("ls").code == 3
    ran = run("keys", "replace", "sealing", "--lost", "--yes")
    assert ran.code == 0, ran.out + ran.err
    assert run("ls").code == 0
    assert run("audit", "verify").code == 0


@pytest.mark.requirement("D07")
def test_a_backup_is_the_servers_work_and_the_command_says_how(
    home: Path, run: Run, tmp_path: Path
) -> None:
    drive(home, waits)
    ran = run("backup", str(tmp_path / "backup"))
    assert ran.code == 2
    assert "pg_dump" in ran.err
    assert "keys/" in ran.err
    assert not (tmp_path / "backup").exists()


@pytest.mark.requirement("D07")
def test_a_second_host_is_brought_up_by_a_backup_of_the_keys(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, waits)
    monkeypatch.setenv("PASS", "a long passphrase of a test")
    kept = str(tmp_path / "keys.backup")
    assert run("keys", "backup", kept, "--passphrase-env", "PASS").code == 0

    other = tmp_path / "other"
    (other / "contracts").mkdir(parents=True)
    other.chmod(0o700)
    shutil.copy(home / "contracts" / "exp.toml", other / "contracts")
    monkeypatch.setenv("FORBEAR_HOME", str(other))
    refused = run("doctor")
    assert refused.code == 3, refused.out
    assert "store.key is missing" in refused.out
    for reading in (("ls",), ("inbox",), ("ps",), ("stats",)):
        ran = run(*reading)
        assert ran.code == 3, (reading, ran.out, ran.err)
        assert "store.key is missing" in ran.err, reading
    assert not list(other.glob("keys/*")), "it makes none of its own"

    ran = run("keys", "restore", kept, "--passphrase-env", "PASS")
    assert ran.code == 0, ran.out + ran.err
    told = run("doctor")
    assert told.code == 0, told.out + told.err
    assert "waiting" in run("show", op_id).out
    names = {"store.key", "audit-seal.key", "audit-sign.key"}
    assert names <= {path.name for path in (other / "keys").iterdir()}
    for name in names:
        assert (other / "keys" / name).read_text() == (home / "keys" / name).read_text()


@pytest.mark.requirement("D11")
def test_a_restored_database_is_held_until_a_person_adopts_it(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, waits)
    server = stores.current.server
    assert server is not None
    server.copy(home, home.with_name("restored"))
    server.share(home.with_name("restored"), home)
    for setting, value in stores.environment(home).items():
        monkeypatch.setenv(setting, value)
    name = server.database_name(home)
    (home / "config.toml").chmod(0o600)

    told = run("doctor")
    assert told.code == 1
    assert "its database is a copy of another one: only lookups are sent" in told.out
    ran = run("adopt", "--yes")
    assert ran.code == 0, ran.out + ran.err
    assert re.search(rf"{name}\S* is held as a copy: its database is a copy of another", ran.out)
    assert "What the other database accepted or sent since is not known here." in ran.out
    assert "is the living database; what waits goes on." in ran.out
    assert "copy" not in run("doctor").out
    assert "is no copy: it is the living database already." in run("adopt", "--yes").out
    assert "waiting" in run("show", op_id).out
