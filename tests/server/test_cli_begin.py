"""`contract add` and `init`: from nothing to a home with contracts of real providers."""

from __future__ import annotations

import re
import shlex
import stat
import tomllib
from pathlib import Path

import pytest
from tests.server.commanding import Run, at_a_terminal

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse
from forbear.server.cli.first import FIRST_SETTINGS
from forbear.server.config import Settings
from forbear.server.library import library
from forbear.server.providers import shipped, shipped_names

NAMES = shipped_names()


@pytest.fixture
def fresh(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that is not there yet."""
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "fresh"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "fresh"


def values(name: str) -> list[str]:
    one = next(one for one in library() if one.name == name)
    return [f"{key}={'a.example' if 'host' in key else 'x1'}" for key in one.asked]


# --- add ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_contract_is_switched_on_by_one_command(
    name: str, fresh: Path, run: Run
) -> None:
    done = run("contract", "add", name, *values(name))
    assert done.code == 0, done.err
    file = fresh / "contracts" / f"{name}.toml"
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 30
    found = parse(text, str(file), shipped)
    assert isinstance(found, Contract)
    assert found.account["id"] == "main"
    # What stands in remarks is right as well: the same credential, and limits that load.
    remarks = r"^# (?=auth = |host = |login = |\[jobs|deadline|max_)"
    uncommented = re.sub(remarks, "", text, flags=re.M)
    assert uncommented != text
    again = parse(uncommented, str(file), shipped)
    assert isinstance(again, Contract), "\n".join(map(str, again))
    assert again.auth == found.auth
    assert run("contract", "check", str(file)).code == 0
    assert f"forbear contract check {file}" in done.out
    tried = re.search(r"forbear try (\S+)", done.out)
    assert tried is not None
    provider, _, action = tried[1].partition(".")
    assert provider == name
    assert found.action(action) is not None


def test_the_key_is_named_and_whether_it_is_here(
    fresh: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPLICATE_API_TOKEN", raising=False)
    assert "export REPLICATE_API_TOKEN=…" in run("contract", "add", "replicate").out
    monkeypatch.setenv("REPLICATE_API_TOKEN", "s3cr3t")
    told = run("contract", "add", "replicate", "--as", "second", "id=work")
    assert "REPLICATE_API_TOKEN is set here" in told.out
    assert "s3cr3t" not in told.out
    made = (fresh / "contracts" / "second.toml").read_text(encoding="utf-8")
    assert tomllib.loads(made) == {"contract": 1, "use": "replicate", "account": {"id": "work"}}


def test_json_has_what_was_done_and_what_comes_next(fresh: Path, run: Run) -> None:
    told = run("contract", "add", "replicate", "--json").json()
    assert told["file"] == str(fresh / "contracts" / "replicate.toml")
    assert told["unset"] == ["REPLICATE_API_TOKEN"]
    assert all(line.startswith("forbear ") for line in told["next"])
    listed = run("contract", "add", "--json").json()["shipped"]
    assert [one["name"] for one in listed] == NAMES
    assert [one["name"] for one in listed if one["switched_on"]] == ["replicate"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("databricks",), "forbear contract add databricks host=dbc-1234abcd"),
        (("databricks", "host="), "needs host of your account"),
        (("databricks", "host=https://x/y"), "write host without scheme"),
        (("databricks", "host=a.b", "hots=c"), "has no hots of an account; it has id, host"),
        (("databricks", "host=a..b"), "names no host that there can be"),
        (("databricks", "host=-"), "names no host that there can be"),
        (("databricks", "host=a.b\udcff"), "host has a character that cannot be printed"),
        (("databricks", "host=a.b\nauth='none'"), "host has a character that cannot be printed"),
        (("databricks", "host"), "'host' is not KEY=VALUE; write id=… or host=…"),
        (("twilio",), "sid is used in "),
        (("databricks", "host=a.b", "host=c.d"), "host is named twice"),
        (("data-bricks",), "databricks is one"),
        (("../databricks",), "No shipped contract is named"),
        (("replicate", "--as", "a.b"), "--as 'a.b' is no name that a contract can have; use"),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_nothing_is_written(
    words: tuple[str, ...], why: str, fresh: Path, run: Run
) -> None:
    refused = run("contract", "add", *words)
    assert refused.code == 2
    assert why in refused.err
    assert not (fresh / "contracts").exists()


def test_the_line_that_is_proposed_works(fresh: Path, run: Run) -> None:
    proposed = run("contract", "add", "dbt-cloud").err.splitlines()[-1]
    assert run(*shlex.split(proposed)[1:]).code == 0


def test_what_is_there_is_never_changed(fresh: Path, run: Run) -> None:
    assert run("contract", "add", "replicate").code == 0
    file = fresh / "contracts" / "replicate.toml"
    file.write_text("# mine\n" + file.read_text())
    refused = run("contract", "add", "replicate")
    assert (refused.code, "--as NAME" in refused.err) == (1, True)
    assert file.read_text().startswith("# mine\n")
    file.rename(file.with_name("other.toml"))
    text = file.with_name("other.toml").read_text()
    file.with_name("other.toml").write_text(text.replace("\nuse", '\nprovider = "replicate"\nuse'))
    assert "describes replicate already" in run("contract", "add", "replicate").err


def test_a_value_that_is_missing_is_asked_for_on_a_terminal(fresh: Path) -> None:
    with at_a_terminal("contract", "add", "databricks", FORBEAR_HOME=str(fresh)) as terminal:
        terminal.until("such as dbc-1234abcd-56ef.cloud.databricks.com: ")
        terminal.type("dbc.example\n")
        assert terminal.end() == 0
    made = tomllib.loads((fresh / "contracts" / "databricks.toml").read_text())
    assert made["account"] == {"id": "main", "host": "dbc.example"}


def test_the_list_has_shipped_contracts_that_are_not_switched_on(
    home: Path, fresh: Path, run: Run
) -> None:
    for before in (True, False):
        told = run("contract", "list")
        assert ("replicate, " in told.out) is before
        names = [one["name"] for one in run("contract", "list", "--json").json()["shipped"]]
        assert ("replicate" in names) is before
        assert "stripe" in names
        run("contract", "add", "replicate")
    (fresh / "contracts" / "bad.toml").write_text('contract = 1\nuse = "nobody"\n')
    assert "see `forbear contract list` for their names" in run("contract", "list").out


# --- init -----------------------------------------------------------------------------------


def test_init_makes_what_it_is_told_and_leaves_what_is_there(fresh: Path, run: Run) -> None:
    fresh.mkdir()
    (fresh / "config.toml").write_text("[task]\nmax_requests = 9\n")
    words = ("--yes", "--contract", "databricks,host=a.example,id=work", "--contract", "github")
    for told in ("Databricks jobs is switched on", "databricks.toml (it was already there"):
        done = run("init", *words)
        assert (done.code, done.err) == (0, "")
        assert told in done.out
        assert "\n\n\n" not in done.out
        assert (fresh / "config.toml").read_text() == "[task]\nmax_requests = 9\n"
    assert sorted(one.name for one in (fresh / "contracts").iterdir()) == [
        "databricks.toml",
        "first.sample",
        "github.toml",
    ]
    other = run("init", "--yes", "--contract", "databricks,host=b.example")
    assert (other.code, "is there already and was not changed" in other.err) == (1, True)


def test_init_says_what_comes_next_within_80_columns(fresh: Path, run: Run) -> None:
    told = run("init").out.partition("Next:\n")[2].splitlines()
    assert any("forbear contract simulate NAME" in line for line in told)
    assert all(len(line) <= 80 for line in told if str(fresh) not in line)
    columns = {
        line.index(what)
        for line in told
        for what in ("plays", "one job", "and write")
        if what in line
    }
    assert len(columns) == 1


def test_init_does_what_it_can_and_names_the_rest(
    fresh: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cursor").mkdir()
    monkeypatch.setenv("PATH", "")
    words = (
        "--contract",
        "jira",
        "--contract",
        "nobody",
        "--client",
        "cursor",
        "--client",
        "codex",
    )
    done = run("init", *words)
    assert done.code == 2
    for why in ("jira host=acme.atlassian.net", "named 'nobody'", "Codex was not found"):
        assert why in done.err
    assert (tmp_path / ".cursor" / "mcp.json").exists()
    assert "Next:" in done.out


def test_the_settings_that_init_writes_are_remarks_which_load(fresh: Path, run: Run) -> None:
    assert run("init").code == 0
    config = fresh / "config.toml"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert Settings.load({"FORBEAR_HOME": str(fresh)}) == Settings(home=fresh)
    stated = re.sub(r"^# (?=\[|\w+ = )", "", FIRST_SETTINGS, flags=re.M)
    config.write_text(stated.replace('"postgresql://…"', '"postgresql://db.example/forbear"'))
    found = Settings.load({"FORBEAR_HOME": str(fresh)})
    assert (found.operator_token, found.task.max_requests) == ("…", 500)
    assert found.notify is not None
    assert found.proxy is not None


def test_init_asks_little_on_a_terminal(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    given = {"FORBEAR_HOME": str(fresh), "HOME": str(tmp_path), "CODEX_HOME": str(tmp_path / "no")}
    with at_a_terminal("init", **given) as terminal:
        terminal.until("Which of these providers do you use")
        terminal.type("databricks, gitub\n")
        terminal.until("github is one")
        terminal.until("Which of these providers do you use")
        terminal.type("databricks, github\n")
        terminal.until("Register Forbear in a client")
        terminal.type("cursor\n")
        terminal.until("as a service of yours? [y/N]")
        terminal.type("\n")
        terminal.until("host of your Databricks jobs account")
        terminal.type("dbc.example\n")
        assert terminal.end() == 0
    names = sorted(one.name for one in (fresh / "contracts").glob("*.toml"))
    assert names == ["databricks.toml", "github.toml"]
    assert (tmp_path / ".cursor" / "mcp.json").exists()


def test_init_that_is_interrupted_changes_nothing(fresh: Path, tmp_path: Path) -> None:
    with at_a_terminal("init", FORBEAR_HOME=str(fresh), HOME=str(tmp_path)) as terminal:
        terminal.until("Which of these providers do you use")
        terminal.type("\x03")
        assert terminal.end() == 130
    assert not fresh.exists()
