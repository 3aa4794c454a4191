"""What the README and the tutorial tell people to type works, in this order, and prints what they
show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.house import free_port
from tests.shown import ROOT, alike, blocks, follow, terminal

TUTORIAL = "docs/tutorial.md"

TOKEN = "a-token-of-thirty-two-characters"
"""Stands for the `y` that a person types: there is no terminal here."""

NOT_RUN = {
    "python3 -m venv": "the tests have an environment already",
    ". .venv": "the same",
    "pip install": "needs a network; `.ci/release` installs what is built",
    "python -m pytest": "is what runs here",
    "forbear demo": "tests/server/test_demo.py runs it",
    "forbear install worker": "starts a service of whoever runs the tests",
    "forbear review": "asks at a terminal",
    "claude ": "a program of others",
}


def test_the_tutorial_from_nothing_to_a_finished_job(tmp_path: Path) -> None:
    page = (ROOT / TUTORIAL).read_text(encoding="utf-8")
    asks = ("forbear decide 1 confirm_done", "forbear decide --yes 1 confirm_done")
    more = {"FORBEAR_OPERATOR_TOKEN": TOKEN}
    # `try` says with 1 that it did not succeed, and `inbox` that something waits for a person.
    allowed = {"forbear try exp.export dataset=orders": 1, "forbear inbox": 1}
    with terminal(tmp_path, more=more, allowed=allowed) as shell:
        ran = follow(page, shell, NOT_RUN, [asks])
        told = shell.interrupt()
    assert len(ran) > 12
    assert "1 x export.submit" in told
    assert "nothing was made twice" in told


def test_the_readme_on_a_home_with_an_open_case(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (contract,) = (one for one in blocks(page) if one.title == "exp.toml")
    (tmp_path / "exp.toml").write_text(contract.text, encoding="utf-8")
    (tmp_path / "answer.json").write_text('{"job_id": "7", "state": "running"}', encoding="utf-8")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".claude.json").write_text("{}", encoding="utf-8")  # a client is here
    console = f"127.0.0.1:{free_port()}"
    more = {
        "FORBEAR_OPERATOR_TOKEN": TOKEN,
        "FORBEAR_HOME": str(tmp_path / "sim"),
        "FORBEAR_CONSOLE": console,
    }
    asks = {
        **{"forbear try exp.export dataset=stuck": 1, "forbear inbox": 1, "forbear wait": 1},
        "forbear cancel": 2,  # it says that this contract has no way to cancel
    }
    with terminal(tmp_path, more, asks) as provider, terminal(tmp_path, more, asks) as shell:
        provider.start("forbear contract simulate exp.toml --home sim --fault status:unknown-state")
        shell.run("forbear try exp.export dataset=stuck")
        (stuck,) = json.loads(shell.run("forbear ls --json"))["operations"]
        instead = [
            ("op_k3v", stuck["operation_id"]),
            ("decide 3", "decide --yes 1"),
            ("show 3", "show 1"),
            ("forbear cancel", "forbear cancel --yes"),
        ]
        stays = ("forbear serve --http", "forbear watch", "forbear console")
        ran = follow(page, shell, NOT_RUN, instead, stays)
    assert len(ran) > 20


def test_nothing_is_left_out_that_no_page_shows() -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", TUTORIAL)]
    shown = [
        command
        for page in pages
        for block in blocks(page)
        for line in block.commands()
        for command in line.split(" && ")
    ]
    for begin in NOT_RUN:
        assert any(command.startswith(begin) for command in shown), begin


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("10:20:00Z asked, 3 s\n", "19:30:11Z asked, 12 s\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\n", True),
        ("size … bytes\n", "size 17 bytes\n", True),
        ("a\nb\n", "a\n", False),
        ("op_k3v waits\n", "op_6plyeb6ysi3a2wro ends\n", False),
    ],
)
def test_a_page_shows_what_is_printed_but_for_times_and_ids(
    shown: str, printed: str, same: bool
) -> None:
    assert alike(shown, printed) is same


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with terminal(tmp_path, {}, {"false": 1}) as shell:
        assert shell.run("echo said; echo remark >&2") == "said\n"
        shell.run("false")
        with pytest.raises(AssertionError, match=r"ended with 3:\nremark"):
            shell.run("(echo remark >&2; exit 3)")
        with pytest.raises(AssertionError, match="ended: at once"):
            shell.start("echo at once")
