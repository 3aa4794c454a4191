"""`forbear adopt`: who may, and what every other command says of a copy before it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.server.commanding import Run, at_a_terminal, drive, waits

pytestmark = [pytest.mark.sqlite, pytest.mark.requirement("D11")]


@pytest.fixture
def copy(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a home with one job that is waited for, and the home of every command."""
    drive(home, waits)
    copy = Path(shutil.copytree(home, home.with_name("copy")))
    monkeypatch.setenv("FORBEAR_HOME", str(copy))
    return copy


def test_where_nothing_was_stored_there_is_nothing_to_adopt(home: Path, run: Run) -> None:
    refused = run("adopt", "--yes")
    assert (refused.code, (home / "forbear.db").exists()) == (1, False)


def test_a_living_home_is_told_so(home: Path, run: Run) -> None:
    drive(home, waits)
    told = run("adopt")
    assert (told.code, "living home already" in told.out) == (0, True)


def test_without_terminal_or_token_nobody_adopts(copy: Path, run: Run) -> None:
    for words in (("adopt",), ("adopt", "--yes")):
        refused = run(*words)
        assert (refused.code, "operator token" in refused.err) == (2, True)
    assert "see `forbear adopt`" in run("ps").out
    refused = run("resume", "a copy")
    assert (refused.code, "forbear adopt" in refused.err) == (2, True)
    assert "see `forbear adopt`" in run("ps").out


@pytest.mark.usefixtures("operator")
def test_whoever_has_the_token_adopts_and_is_named_in_the_log(
    copy: Path, home: Path, run: Run
) -> None:
    (copy / "config.toml").write_text((home / "config.toml").read_text(), encoding="utf-8")
    adopted = run("adopt", "--yes")
    assert (adopted.code, "is the living home" in adopted.out) == (0, True), adopted.err
    assert "adopt" not in run("ps").out
    [event] = run("audit", "show", "--code", "store_adopted", "--json").json()["events"]
    assert event["body"]["channel"] == "command line"
    assert run("audit", "verify").code == 0


def test_a_person_at_a_terminal_is_asked(copy: Path, run: Run) -> None:
    with at_a_terminal("adopt", FORBEAR_HOME=str(copy)) as terminal:
        terminal.until("stopped for good? [y/N]")
        terminal.type("n\n")
        assert terminal.end() == 1
    assert "see `forbear adopt`" in run("ps").out
    with at_a_terminal("adopt", FORBEAR_HOME=str(copy)) as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert "adopt" not in run("ps").out


def test_every_view_says_that_it_is_a_copy(copy: Path, run: Run) -> None:
    [op] = run("ls", "--json").json()["operations"]
    why = run("why", op["operation_id"]).out
    assert "This store is a copy (it is a copy of another file)" in why
    shown = run("show", op["operation_id"], "--json").json()
    assert "`forbear adopt`, run by a person" in shown["next_step"]
    doctor = run("doctor")
    assert (doctor.code, "-> forbear adopt" in doctor.out) == (1, True)
    tried = run("try", "exp.export", "dataset=other")
    assert "is a copy" in tried.out + tried.err
    assert os.environ["FORBEAR_HOME"] == str(copy)
