"""`forbear install` on the files of a user: what it writes, what it refuses, and its way back."""

from __future__ import annotations

import asyncio
import json
import os
import plistlib
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from tests.server.commanding import Ran, Run, child_environment

from forbear.server.service import MARK, service

OTHER = '{\n  // mine\n  "mcpServers": {\n    "a": { "command": "a" } // first\n  }\n}\n'


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has all clients, and neither `claude` nor `systemctl`."""
    user = tmp_path / "user"
    for folder in (".cursor", ".codex", ".claude", ".config/Code/User", ".config/Claude"):
        (user / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(user / "bin"))
    return user


FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "codex": ".codex/config.toml",
}
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the places of Linux")
pytestmark = [needs_linux, pytest.mark.sqlite]


def read(file: Path) -> dict[str, object]:
    text = file.read_text(encoding="utf-8")
    return tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)


@pytest.mark.parametrize("client", FILES)
def test_a_client_gets_an_entry_that_starts_this_program_on_this_home(
    client: str, user: Path, home: Path, run: Run
) -> None:
    file = user / FILES[client]
    done = run("install", client)
    assert done.code == 0, done.err
    assert str(file) in done.out
    [(_, servers)] = read(file).items()
    assert isinstance(servers, dict)
    entry = servers["forbear"]
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-1] == "serve"
    assert entry["env"]["FORBEAR_HOME"] == str(home)
    assert "secret-of-exp" not in file.read_text(encoding="utf-8")
    assert "EXP_TOKEN" in done.out
    again = run("install", client)
    assert (again.code, "Nothing was changed" in again.out) == (0, True)
    assert f"{client} " in run("install").out
    undone = run("install", client, "--undo")
    assert (undone.code, file.exists()) == (0, False)
    assert not (home / "installed.json").exists()
    assert "has no entry of Forbear" in run("install", client, "--undo").out


def test_what_is_written_starts_a_server_that_a_client_speaks_with(
    user: Path, home: Path, run: Run
) -> None:
    run("install", "vscode")
    servers = json.loads((user / FILES["vscode"]).read_text())["servers"]
    entry = servers["forbear"]

    async def offered() -> str:
        env = child_environment() | entry["env"]
        parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=env)
        async with Client(stdio_client(parameters)) as client:
            answer = await client.call_tool("list_actions", {})
            return json.dumps(answer.structured_content)

    assert "export" in asyncio.run(offered())


def test_the_list_says_what_each_client_has(user: Path, home: Path, run: Run) -> None:
    run("install", "cursor")
    (user / FILES["codex"]).write_text("[mcp_servers.forbear]\ncommand = 'x'\n")
    (user / FILES["vscode"]).write_text("{")
    (user / ".config/Claude").rmdir()
    listed = run("install", "--json").json()["clients"]
    assert {one["client"]: one["state"] for one in listed} == {
        "claude-code": "not registered",
        "claude-desktop": "not found",
        "cursor": "registered",
        "vscode": "unreadable",
        "codex": "another entry",
    }


@pytest.mark.parametrize("client", FILES)
def test_printing_changes_nothing(client: str, user: Path, home: Path, run: Run) -> None:
    shown = run("install", client, "--print")
    assert shown.code == 0
    assert "forbear" in shown.out
    assert FILES[client] in shown.err
    assert not (user / FILES[client]).exists()
    told = run("install", client, "--print", "--json").json()
    assert told["file"] == str(user / FILES[client])
    assert told["entry"]["args"][-1] == "serve"


def test_a_file_of_others_keeps_all_it_has_and_a_copy_lies_beside_it(
    user: Path, home: Path, run: Run
) -> None:
    file = user / FILES["cursor"]
    file.write_text(OTHER)
    file.chmod(0o640)
    assert run("install", "cursor").code == 0
    text = file.read_text()
    assert "// mine" in text
    assert '"a": { "command": "a" } // first' in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert (user / ".cursor/mcp.json.forbear-backup").read_text() == OTHER
    assert sorted(one.name for one in file.parent.iterdir()) == [
        "mcp.json",
        "mcp.json.forbear-backup",
    ]
    run("install", "cursor", "--undo")
    assert file.read_text() == OTHER
    assert [one.name for one in file.parent.iterdir()] == ["mcp.json"]


def test_undo_takes_out_the_entry_alone_where_the_file_was_changed_since(
    user: Path, home: Path, run: Run
) -> None:
    file = user / FILES["claude-desktop"]
    run("install", "claude-desktop")
    whole = json.loads(file.read_text())
    whole["mcpServers"]["forbear"]["env"]["EXP_TOKEN"] = "filled in"
    whole["mcpServers"]["b"] = {"command": "b"}
    file.write_text(json.dumps(whole, indent=4))
    assert run("install", "claude-desktop", "--undo").code == 0
    assert json.loads(file.read_text()) == {"mcpServers": {"b": {"command": "b"}}}


def test_another_entry_of_our_name_is_shown_and_replaced_only_by_force(
    user: Path, home: Path, run: Run
) -> None:
    file = user / FILES["claude-desktop"]
    text = '{"mcpServers": {"forbear": {"command": "/old", "env": {"EXP_TOKEN": "k3y", "B": "c"}}}}'
    file.write_text(text)
    for words in (("install", "claude-desktop"), ("install", "claude-desktop", "--undo")):
        refused = run(*words)
        assert refused.code == 1
        assert '"command": "/old"' in refused.err
        assert "k3y" not in refused.out + refused.err
        assert file.read_text() == text
    assert run("install", "claude-desktop", "--force").code == 0
    entry = json.loads(file.read_text())["mcpServers"]["forbear"]
    assert entry["env"] == {"FORBEAR_HOME": str(home), "EXP_TOKEN": "k3y"}
    assert (file.parent / f"{file.name}.forbear-backup").read_text() == text
    assert run("install", "claude-desktop", "--undo").code == 0
    assert json.loads(file.read_text()) == {"mcpServers": {}}


def test_a_contract_of_today_whose_key_an_older_entry_lacks_is_told(
    user: Path, home: Path, run: Run
) -> None:
    run("install", "codex")
    (home / "contracts" / "new.toml").write_text(
        (home / "contracts" / "exp.toml").read_text().replace("EXP_TOKEN", "NEW_TOKEN")
    )
    told = run("install", "codex")
    assert "does not pass on NEW_TOKEN" in told.err
    assert run("install", "codex", "--force").code == 0
    entry = tomllib.loads((user / FILES["codex"]).read_text())["mcp_servers"]["forbear"]
    assert entry["env_vars"] == ["EXP_TOKEN", "NEW_TOKEN"]


def test_a_link_is_followed_and_stays_a_link(user: Path, home: Path, run: Run) -> None:
    kept = user / "dotfiles" / "mcp.json"
    kept.parent.mkdir()
    kept.write_text("{}\n")
    (user / FILES["cursor"]).symlink_to(kept)
    assert run("install", "cursor").code == 0
    assert (user / FILES["cursor"]).is_symlink()
    assert "forbear" in kept.read_text()
    assert run("install", "cursor", "--undo").code == 0
    assert kept.read_text() == "{}\n"


def changes(file: Path) -> tuple[int, ...]:
    status = os.lstat(file)
    return status.st_ino, status.st_mode, status.st_mtime_ns, status.st_size


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.write_text("{"), "is not JSON with comments (line 1)"),
        (lambda file: file.write_bytes(b'{"a": "\xff"}'), "is not UTF-8 text"),
        (lambda file: file.mkdir(), "is a folder"),
        (lambda file: (file.write_text("{}"), file.chmod(0o444)), "is read-only"),
        (lambda file: file.symlink_to(file), "cannot be read"),
    ],
    ids=["broken", "bytes", "folder", "read-only", "loop"],
)
def test_a_file_that_cannot_be_written_is_left_as_it_is_and_says_why(
    spoil: Callable[[Path], object], why: str, user: Path, home: Path, run: Run
) -> None:
    file = user / FILES["cursor"]
    spoil(file)
    before = changes(file)
    refused = run("install", "cursor")
    assert refused.code == 1
    assert why in refused.err
    assert "It was left as it is" in refused.err
    assert changes(file) == before
    assert [one.name for one in file.parent.iterdir()] == ["mcp.json"]


def test_nothing_is_put_in_that_could_not_be_taken_out(
    user: Path, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = user / FILES["cursor"]
    file.write_text(OTHER)
    (user / "file").touch()
    monkeypatch.setenv("FORBEAR_HOME", str(user / "file" / "home"))
    refused = run("install", "cursor")
    assert refused.code == 1
    assert "which cannot be written (Not a directory)" in refused.err
    assert file.read_text() == OTHER
    assert [one.name for one in file.parent.iterdir()] == ["mcp.json"]


def test_a_client_that_is_not_here_is_named_with_what_to_do(
    user: Path, home: Path, run: Run
) -> None:
    (user / ".cursor").rmdir()
    refused = run("install", "cursor")
    assert refused.code == 1
    assert "Cursor was not found" in refused.err
    assert "--print" in refused.err
    assert not (user / ".cursor").exists()
    assert run("install", "emacs").code == 2


def test_a_project_gets_a_file_of_its_own_which_goes_with_the_entry(
    user: Path, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(user)
    for client, name in (("vscode", ".vscode/mcp.json"), ("claude-code", ".mcp.json")):
        assert run("install", client, "--project").code == 0
        assert "forbear" in (user / name).read_text()
        assert run("install", client, "--project", "--undo").code == 0
        assert not (user / name).exists()
    assert not (user / ".vscode").exists()
    assert run("install", "claude-desktop", "--project").code == 2


# --- Claude Code's own command --------------------------------------------------------------

CLAUDE = """\
#!{python}
import json, pathlib, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
file = pathlib.Path({file!r})
words = sys.argv[1:]
if {fails}:
    sys.exit("no such thing")
servers = {{}}
if words[:2] == ["mcp", "add"]:
    at = words.index("--")
    env = dict(word.split("=", 1) for word in words[5:at] if "=" in word)
    command, args = words[at + 1], words[at + 2:]
    servers["forbear"] = {{"type": "stdio", "command": command, "args": args, "env": env}}
file.write_text(json.dumps({{"mcpServers": servers, "numStartups": 7}}))
"""


def claude(user: Path, *, fails: bool = False) -> Path:
    """A command like that of Claude Code, and the log of what it was asked."""
    program = user / "bin" / "claude"
    program.parent.mkdir(exist_ok=True)
    told = {"log": str(user / "log"), "file": str(user / ".claude.json"), "fails": fails}
    program.write_text(CLAUDE.format(python=sys.executable, **told))
    program.chmod(0o755)
    return user / "log"


def test_claude_code_is_asked_to_write_its_own_file(user: Path, home: Path, run: Run) -> None:
    log = claude(user)
    shown = run("install", "claude-code", "--print").out
    assert shown.startswith("claude mcp add --scope user forbear --env FORBEAR_HOME=")
    assert not log.exists()
    assert run("install", "claude-code").code == 0
    assert "Nothing was changed" in run("install", "claude-code").out
    [added] = [json.loads(line) for line in log.read_text().splitlines()]
    assert added[:5] == ["mcp", "add", "--scope", "user", "forbear"]
    assert added[-1] == "serve"
    assert run("install", "claude-code", "--undo").code == 0
    assert json.loads((user / ".claude.json").read_text())["mcpServers"] == {}
    assert "has no entry" in run("install", "claude-code", "--undo").out


def test_what_claude_code_says_is_passed_on_when_it_refuses(
    user: Path, home: Path, run: Run
) -> None:
    claude(user, fails=True)
    refused = run("install", "claude-code")
    assert refused.code == 1
    assert "ended with 1: no such thing" in refused.err


# --- the worker -----------------------------------------------------------------------------


def manager(user: Path, name: str, code: int = 0) -> Path:
    program = user / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$@" >> {user}/log\nexit {code}\n')
    program.chmod(0o755)
    return user / "log"


def test_the_worker_becomes_a_service_and_goes_again(user: Path, home: Path, run: Run) -> None:
    log = manager(user, "systemctl")
    done = run("install", "worker")
    assert done.code == 0, done.err
    unit = user / ".config/systemd/user/forbear-worker.service"
    text = unit.read_text()
    assert f"Environment=FORBEAR_HOME={home}" in text
    keys = user / ".config/forbear/worker.env"
    assert "#EXP_TOKEN=\n" in keys.read_text()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert "write EXP_TOKEN into" in done.out
    assert "secret-of-exp" not in text + keys.read_text()
    assert log.read_text() == ("--user daemon-reload\n--user enable --now forbear-worker\n")
    keys.write_text("EXP_TOKEN=mine\n")
    again = run("install", "worker")
    assert (again.code, "write EXP_TOKEN" in again.out) == (0, False)
    undone = run("install", "worker", "--undo")
    assert (undone.code, unit.exists()) == (0, False)
    assert keys.read_text() == "EXP_TOKEN=mine\n"
    assert "has keys of yours" in undone.out
    assert "--user disable --now forbear-worker" in log.read_text()
    assert "is not there" in run("install", "worker", "--undo").out


def test_a_manager_that_cannot_start_it_is_said_with_what_to_do(
    user: Path, home: Path, run: Run
) -> None:
    refused = run("install", "worker")
    assert refused.code == 1
    assert "not started: there is no systemctl here" in refused.err
    assert "`systemctl --user enable --now forbear-worker`" in refused.err
    assert run("install", "worker", "--undo").code == 0
    assert not (user / ".config/forbear/worker.env").exists()


def test_a_unit_of_somebody_else_is_left(user: Path, home: Path, run: Run) -> None:
    manager(user, "systemctl")
    unit = user / ".config/systemd/user/forbear-worker.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/mine\n")
    for words in (("install", "worker"), ("install", "worker", "--undo")):
        assert run(*words).code == 1
        assert unit.read_text() == "[Service]\nExecStart=/mine\n"
    assert run("install", "worker", "--force").code == 0
    assert MARK in unit.read_text()


def of(platform: str, environment: dict[str, str], words: list[str], home: str) -> tuple[str, str]:
    made = service(platform, environment, Path("/u"), words, Path(home), usual=False)
    return str(made.file), made.text


def test_the_unit_for_systemd_quotes_what_it_must(tmp_path: Path) -> None:
    file, text = of("linux", {}, ["/opt/for bear/%i/$x"], "/srv/my home")
    assert file == "/u/.config/systemd/user/forbear-worker.service"
    assert 'ExecStart="/opt/for bear/%%i/$$x" worker\n' in text
    assert 'Environment="FORBEAR_HOME=/srv/my home"\n' in text
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        unit = tmp_path / "forbear-worker.service"
        unit.write_text(of("linux", {}, [sys.executable], "/srv/my home")[1])
        ran = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
        assert unit.name not in ran.stderr, ran.stderr


def test_the_agent_for_launchd_takes_its_keys_from_the_file(tmp_path: Path) -> None:
    program = tmp_path / "forbear"
    program.write_text('#!/bin/sh\necho "$1 $EXP_TOKEN"\n')
    program.chmod(0o755)
    keys = tmp_path / "config" / "forbear" / "worker.env"
    file, text = of("darwin", {"XDG_CONFIG_HOME": str(tmp_path / "config")}, [str(program)], "/h")
    told = plistlib.loads(text.encode())
    assert file == "/u/Library/LaunchAgents/forbear.worker.plist"
    assert told["EnvironmentVariables"] == {"FORBEAR_HOME": "/h"}
    assert told["KeepAlive"] is True

    def started() -> Ran:
        ran = subprocess.run(
            told["ProgramArguments"], capture_output=True, text=True, env={}, check=False
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    assert started() == Ran(0, "worker \n", "")
    keys.parent.mkdir(parents=True)
    keys.write_text("# a remark\nEXP_TOKEN='a b'\n")
    assert started() == Ran(0, "worker a b\n", "")


def test_the_task_for_windows_runs_at_the_log_in_of_its_user() -> None:
    environment = {"USERDOMAIN": "PC", "USERNAME": "a&b"}
    _, text = of("win32", environment, [r"C:\for & bear\forbear.exe"], "/h")
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    task = ElementTree.fromstring(text.encode())
    found = {one.tag.removeprefix(space): one.text for one in task.iter()}
    assert found["Command"] == r"C:\for & bear\forbear.exe"
    assert found["Arguments"] == "worker"
    assert found["UserId"] == r"PC\a&b"
    assert found["ExecutionTimeLimit"] == "PT0S"
