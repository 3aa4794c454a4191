"""`pause`, `resume`, `ps`, `scopes`, `end-task`, `credential accept`, as an operator types them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text
from tests import stores

from forbear.server import cli
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import register
from forbear.storage.store import Store

CONTRACT = """
contract = 1
base_url = "https://api.exp.example"
auth = "bearer env:EXP_TOKEN"
[calls]
customer = "GET /customers/{arg.id}"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "contracts").mkdir(parents=True)
    (home / "contracts" / "exp.toml").write_text(CONTRACT, encoding="utf-8")
    monkeypatch.setenv("FORBEAR_HOME", str(home))
    monkeypatch.setenv("EXP_TOKEN", "secret-of-exp")
    return home


def typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_no_help_text_loses_a_word_in_brackets_to_markup() -> None:
    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(one, "help", None) or "" for one in command.params)
        for below in getattr(command, "commands", {}).values():
            yield from texts(below)

    told = list(texts(typer.main.get_command(cli.app)))
    assert len(told) > 50
    assert [text for text in told if Text.from_markup(text).plain != text] == []


@pytest.mark.requirement("D12")
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("target", ["all", "exp"])
def test_a_pause_is_shown_until_it_is_undone(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    assert typed(capsys, "pause", target)[0] == 0
    assert "paused already" in typed(capsys, "pause", target)[1]
    (paused,) = json.loads(typed(capsys, "ps", "--json")[1])["paused"]
    assert (paused["target"], paused["by"]["channel"]) == (target, "terminal")
    assert typed(capsys, "resume", target)[0] == 0
    assert json.loads(typed(capsys, "ps", "--json")[1])["paused"] == []
    code, _, err = typed(capsys, "resume", target)
    assert (code, "is not paused" in err) == (1, True)


@pytest.mark.usefixtures("home")
def test_a_slip_in_a_name_pauses_nothing_and_names_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = typed(capsys, "pause", "epx")
    assert code == 2
    assert "all, exp" in err
    assert json.loads(typed(capsys, "ps", "--json")[1])["paused"] == []


@pytest.mark.usefixtures("home")
def test_an_empty_home_has_nothing_to_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(typed(capsys, "scopes", "--json")[1]) == {"scopes": []}
    assert json.loads(typed(capsys, "ps", "--json")[1]) == {"processes": [], "paused": []}


@pytest.mark.requirement("R31")
def test_a_closed_scope_is_shown_and_reset_with_a_reason(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_close_scope(home))
    code, out, _ = typed(capsys, "scopes")
    assert code == 0
    assert "exp/default/account" in out
    assert "closed until 2" in out
    assert "at 0.5 of its rate" in out
    assert typed(capsys, "scopes", "reset", "exp/default/account")[0] == 2, "a reason is needed"
    code, _, err = typed(capsys, "scopes", "reset", "exp/nowhere", "--reason", "a slip")
    assert (code, "there is: exp/default/account" in err) == (2, True)
    code, out, _ = typed(capsys, "scopes", "reset", "exp/default/account", "--reason", "raised")
    assert (code, "is open" in out) == (0, True)
    [scope] = json.loads(typed(capsys, "scopes", "--json")[1])["scopes"]
    assert scope["next_allowed_at"] is None
    assert scope["slowed_to"] == 1


async def _close_scope(home: Path) -> None:
    """As a 429 leaves it."""
    clock = SystemClock()
    store = Store(home, clock, SystemRandom(), url=stores.url_of(home), own_time=True)
    now = clock.now().wall
    await store.write(
        lambda c: register.block(c, "exp/default/account", now + 3_600_000, "rate_limited", now)
    )
    await store.close()


@pytest.mark.usefixtures("home")
def test_a_key_is_accepted_by_name_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, "credential", "accept", "exp")
    assert (code, "accepted for account default" in out) == (0, True)
    assert "secret-of-exp" not in out + err
    code, _, err = typed(capsys, "credential", "accept", "epx")
    assert (code, "there is: exp" in err) == (2, True)


@pytest.mark.usefixtures("home")
def test_a_task_that_is_ended_takes_no_new_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "end-task", "month-end")
    assert (code, out) == (0, "Task month-end takes no new work.\n")
