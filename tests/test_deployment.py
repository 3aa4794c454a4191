"""The files that run Forbear elsewhere: Dockerfile, compose.yaml and the units of docs/workers.md.

No image is built here, for there is no container runtime. What is checked is what can be: that
every command, setting and path in them is one of the program.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from forbear.server import cli
from forbear.server.config import KNOWN, Settings, host_and_port
from forbear.server.http.gate import is_loopback
from forbear.server.http.serving import refuse_strangers

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
HOME = "/var/lib/forbear"

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
OURS = {
    name: cast(dict[str, Any], service)
    for name, service in COMPOSE["services"].items()
    if service["image"] == "forbear"
}


def instructions() -> Iterator[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


DOCKERFILE = list(instructions())


def last(name: str) -> str:
    return [rest for each, rest in DOCKERFILE if each == name][-1]


def takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The program has this command and these options."""
    command = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    named = [word for word in words if word.startswith("--")]
    depth = next(n for n in (2, 1) if cli.run([*command[:n], "--help"]) == 0)
    told = capsys.readouterr().out
    assert depth or not command
    for option in named:
        assert option in told, f"{words} has no {option}"


# --- image ----------------------------------------------------------------------------------


def test_the_image_runs_a_command_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(last("ENTRYPOINT")) == ["forbear"]
    takes(json.loads(last("CMD")), capsys)
    probe = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert probe[0] == "forbear"
    takes(probe[1:], capsys)


def test_the_image_is_not_root_and_writes_to_its_home_alone() -> None:
    user, _, group = last("USER").partition(":")
    assert int(user) > 999
    assert int(group) > 999
    assert last("VOLUME") == HOME
    environment = dict(word.split("=", 1) for word in shlex.split(last("ENV")))
    assert environment["FORBEAR_HOME"] == HOME
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    made = next(rest for name, rest in DOCKERFILE if name == "RUN" and "install -d" in rest)
    assert f"-m 0700 -o {user} -g {group} {HOME}" in made


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    stated = [line for line in lines if line and not line.startswith("#")]
    assert stated[0] == "*"
    seen = {line.removeprefix("!") for line in stated if line.startswith("!")}
    assert seen == {
        name
        for each, rest in DOCKERFILE
        if each == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }


# --- compose --------------------------------------------------------------------------------


def values(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment as compose would fill it in from a file `.env`."""
    told = {"FORBEAR_CONSOLE_URL": "https://forbear.example"}

    def fill(found: re.Match[str]) -> str:
        return told.get(found[1], "5" * 64)

    return {
        name: re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", fill, text)
        for name, text in environment.items()
    }


def settings(service: Mapping[str, Any], home: Path) -> Settings:
    (source,) = service["configs"]
    assert source["target"] == f"{HOME}/config.toml"
    content = COMPOSE["configs"][source["source"]]["content"]
    (home / "config.toml").write_text(content, encoding="utf-8")
    return Settings.load({**values(service["environment"]), "FORBEAR_HOME": str(home)})


def test_there_are_a_database_two_servers_and_two_workers() -> None:
    roles = sorted(service["command"][0] for service in OURS.values())
    assert roles == ["serve", "serve", "worker", "worker"]
    (other,) = set(COMPOSE["services"]) - set(OURS)
    assert COMPOSE["services"][other]["image"].startswith("postgres:")


@pytest.mark.parametrize("name", OURS)
def test_a_container_has_no_more_rights_than_it_needs(name: str) -> None:
    service = OURS[name]
    assert service["user"] == last("USER")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    targets = [volume.split(":") for volume in service["volumes"]]
    assert [target for _, target, *mode in targets if "ro" not in mode] == [HOME]
    for source, _, *_ in targets:
        assert source.startswith("./") or source in COMPOSE["volumes"]
    for place in service.get("ports", ()):
        assert is_loopback(place.split(":")[0]), "what is not encrypted stays on this machine"


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_a_command_with_settings_that_exist(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = OURS[name]
    takes([word for word in service["command"] if ":" not in word], capsys)
    found = settings(service, tmp_path)
    named = set(re.findall(r"env:(\w+)", (tmp_path / "config.toml").read_text(encoding="utf-8")))
    for variable in service["environment"]:
        known = variable.removeprefix("FORBEAR_").lower() in KNOWN
        assert known or variable in named or variable == "EXP_TOKEN", variable
    assert named <= set(service["environment"])
    server = COMPOSE["services"]["postgres"]
    assert found.database is not None
    assert found.database.endswith(f"@postgres/{server['environment']['POSTGRES_DB']}")
    assert found.database.startswith(f"postgresql://{server['environment']['POSTGRES_USER']}:")


def test_a_server_may_listen_where_it_does_and_either_answers_any_call(tmp_path: Path) -> None:
    servers = [service for service in OURS.values() if service["command"][0] == "serve"]
    for service in servers:
        place = next(word for word in service["command"] if ":" in word)
        found = settings(service, tmp_path)
        refuse_strangers(found, place)
        assert found.console_url.startswith("https://")
        assert found.http is not None
        assert found.http.stateless
        (port,) = service["ports"]
        assert int(port.rpartition(":")[2]) == host_and_port(place)[1]
    assert len({service["ports"][0] for service in servers}) == 2


# --- systemd --------------------------------------------------------------------------------

UNITS = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("unit", UNITS, ids=["system"])
def test_a_unit_starts_a_worker_that_can_write_to_its_home_alone(
    unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = dict(
        line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#")
    )
    program, *words = stated["ExecStart"].split()
    assert program.endswith("/bin/forbear")
    takes(words, capsys)
    assert (stated["NoNewPrivileges"], stated["ProtectSystem"]) == ("yes", "strict")
    assert stated["Restart"] == "always"
    assert "[Install]" in unit
    if "Environment" in stated:
        assert stated["Environment"] == f"FORBEAR_HOME={stated['ReadWritePaths']}"
    checked = shutil.which("systemd-analyze")
    if checked is not None:
        file = tmp_path / "forbear-worker.service"
        here = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit, flags=re.MULTILINE)
        file.write_text(here, encoding="utf-8")
        ran = subprocess.run([checked, "verify", file], capture_output=True, text=True, check=False)
        assert str(file.name) not in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    "line", re.findall(r"^(?:.*&& )?(forbear [a-z].*)$", PAGE, re.MULTILINE), ids=str
)
def test_the_commands_of_the_page_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    takes(line.partition("#")[0].split()[1:], capsys)


# --- a read-only root -----------------------------------------------------------------------

SEALED = """
set -e
mount --make-rprivate /
mount --bind "$FORBEAR_HOME" "$FORBEAR_HOME"
mount -o remount,ro,bind /
if touch "$(dirname "$FORBEAR_HOME")/written" 2>/dev/null; then exit 77; fi
cd /
exec "$@"
"""


def test_a_worker_runs_where_nothing_but_its_home_can_be_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "contracts").mkdir(parents=True)
    home.chmod(0o700)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FORBEAR_HOME": str(home),
    }

    def started(*words: str) -> subprocess.Popen[str]:
        program = ("sh", "-c", SEALED, "sh", sys.executable, "-m", "forbear", *words)
        return subprocess.Popen(
            ["unshare", "--mount", *program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a mount of one's own needs root and unshare")
    doctor = started("doctor")
    told, said = doctor.communicate()
    if doctor.returncode == 77 or "mount" in said:
        pytest.skip(f"no mount can be made read-only here: {said}")
    assert doctor.returncode == 0, told + said
    worker = started("worker")
    assert worker.stderr is not None
    assert "Watching" in worker.stderr.readline()
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate()
    assert worker.returncode == 0, said
    assert (home / "forbear.db").exists()
