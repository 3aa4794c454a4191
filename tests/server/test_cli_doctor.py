"""What `doctor` finds around a home, and how to mend it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.server.commanding import RUNNING, Run, drive
from tests.server.test_simulating import ACCOUNT, SMALLEST, simulated, tried
from tests.tools.driving import Driver

from forbear.server.cli.surroundings import clock, database

HOUR = 3_600_000
AT = 1_000_000 * HOUR
"""2084-01-29T16:00Z"""


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has Cursor and Codex."""
    for name in (".cursor", ".codex"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def finding(run: Run, what: str) -> tuple[bool | None, str, str | None] | None:
    found = run("doctor", "--json").json()["findings"]
    one = next((one for one in found if one["what"] == what), None)
    return None if one is None else (one["ok"], one["told"], one["fix"])


@pytest.mark.parametrize(
    ("written", "fix"),
    [("consle = '1'", "write console"), ("console = ", "mend this line, or put a # before it")],
)
def test_settings_that_do_not_load_are_a_finding_with_its_fix(
    written: str, fix: str, home: Path, run: Run
) -> None:
    (home / "config.toml").write_text(written)
    told = finding(run, "settings")
    assert told is not None
    assert (told[0], str(home / "config.toml") in told[1], told[2]) == (False, True, fix)
    assert run("doctor").code == 1


def test_a_key_that_others_can_read_has_one_fix(home: Path, run: Run) -> None:
    run("pause")
    key = home / "keys" / "audit-seal.key"
    key.chmod(0o644)
    told = finding(run, "store")
    assert told is not None
    assert told[2] is not None
    assert told[2].startswith(f"chmod 600 {key}")


def test_the_python_that_runs_is_named(home: Path, run: Run) -> None:
    told = finding(run, "Python")
    assert told is not None
    assert told[:2] == (True, f"{sys.version.split()[0]}, {sys.executable}")


@pytest.mark.parametrize(
    ("version", "ok"),
    [
        *(("3.6.23", True), ("3.7.0", None), ("3.40.1", None), ("3.44.5", None), ("3.44.6", True)),
        *(("3.45.0", None), ("3.50.6", None), ("3.50.7", True), ("3.51.0", None), ("3.51.2", None)),
        *(("3.51.3", True), ("3.53.0", True), ("4.0.0", True)),
    ],
)
def test_a_version_of_sqlite_with_a_known_fault_is_told(version: str, ok: bool | None) -> None:
    found = database("SQLite", version)
    assert found.ok is ok
    assert (found.fix is None) is (ok is True)
    assert database("PostgreSQL", version).ok is True


@pytest.mark.parametrize(
    ("dates", "ok", "told"),
    [
        ([], None, None),
        (["no date"], None, None),
        (["Sat, 29 Jan 2084 15:59:30 GMT"], True, "within 60 s of that of exp"),
        (["Sat, 29 Jan 2084 15:50:00 GMT"], False, "600 s ahead of that of exp"),
        (["Sat, 29 Jan 2084 16:10:00 GMT"], False, "600 s behind that of exp"),
        (
            ["Sat, 29 Jan 2084 10:00:00 GMT", "Sat, 29 Jan 2084 15:59:59 GMT"],
            True,
            "within 60 s of that of exp",
        ),
    ],
    ids=["none", "no date", "right", "fast", "slow", "one was from a cache"],
)
def test_the_clock_is_held_against_the_date_of_answers(
    dates: list[str], ok: bool | None, told: str | None
) -> None:
    found = clock({"exp": [(AT, [["Date", date]]) for date in dates], "other": []})
    assert (None if found is None else found.ok) is ok
    assert told is None or (found is not None and found.told.startswith(told))


def test_a_clock_that_is_wrong_is_a_problem_with_its_fix(home: Path, run: Run) -> None:
    async def answered(job: Driver) -> None:
        await job.accepted()
        await job.answer(200, RUNNING, Date="Mon, 06 Jan 2020 10:00:00 GMT")

    drive(home, answered)
    looked = run("doctor")
    assert looked.code == 1
    assert "s ahead of that of exp, by the Date of its answers -> let the system set it" in (
        looked.out
    )


def test_a_pause_in_force_is_told_with_what_ends_it(home: Path, run: Run) -> None:
    assert finding(run, "pause") is None
    assert run("pause", "exp").code == 0
    told = finding(run, "pause")
    assert told is not None
    assert told[1].startswith("exp since ")
    assert told[2] == "forbear resume exp"


@pytest.mark.parametrize("stated", ["acct_17", "acct_18"])
def test_online_asks_each_provider_once_and_otherwise_nobody(tmp_path: Path, stated: str) -> None:
    path = tmp_path / "exp.toml"
    path.write_text(SMALLEST.replace("[jobs.export]", ACCOUNT, 1), encoding="utf-8")
    with simulated(str(path), "--home", str(tmp_path / "sim")) as simulation:
        copied = tmp_path / "sim" / "contracts" / "exp.toml"
        copied.write_text(copied.read_text(encoding="utf-8").replace("acct_17", stated))
        command = simulation.call("exp.export")
        place = [word for word in command if word.startswith("FORBEAR_HOME=")]
        offline = json.loads(tried([*place, "forbear", "doctor", "--json"]).stdout)
        ran = tried([*place, "forbear", "doctor", "--json", "--online"])
        requests = simulation.end()
    assert not any(one["what"].startswith("reach ") for one in offline["findings"])
    [found] = [one for one in json.loads(ran.stdout)["findings"] if one["what"] == "reach exp"]
    right = stated == "acct_17"
    assert (ran.returncode, found["ok"]) == ((0, True) if right else (1, False))
    assert found["told"].startswith("GET /me: 200, ")
    assert (found["fix"] is None) is right
    assert "1 x account.check" in requests


@pytest.mark.sqlite
@pytest.mark.skipif(sys.platform != "linux", reason="the places of Linux")
def test_clients_are_told_with_what_their_entries_start(
    user: Path, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = finding(run, "clients")
    assert nobody is not None
    assert nobody[2] == "forbear install"
    run("install", "cursor")
    file = user / ".cursor" / "mcp.json"
    assert finding(run, "clients") is None
    assert finding(run, "client codex") is None
    assert finding(run, "client cursor") == (True, f"registered ({file})", None)
    whole = json.loads(file.read_text())
    entry = whole["mcpServers"]["forbear"]

    def told(**changed: object) -> tuple[bool | None, str, str | None]:
        file.write_text(json.dumps({"mcpServers": {"forbear": {**entry, **changed}}}))
        found = finding(run, "client cursor")
        assert found is not None
        return found

    anew = "forbear install cursor --force"
    gone = told(command="/gone/forbear")
    assert gone == (False, f"its entry starts /gone/forbear, which is not there ({file})", anew)
    assert run("doctor").code == 1
    home_of_another = told(env={"FORBEAR_HOME": "/another"})
    assert home_of_another[::2] == (None, anew)
    assert "on another home" in home_of_another[1]
    lacks = told(env={"FORBEAR_HOME": str(home)})
    assert lacks == (None, f"its entry does not pass on EXP_TOKEN ({file})", anew)
    assert "another server" in told(command=None)[1]
    file.write_text("{")
    broken = finding(run, "client cursor")
    assert broken == (None, f"{file} is not JSON with comments (line 1)", "mend the file")
    assert "secret-of-exp" not in run("doctor").out


@pytest.mark.sqlite
@pytest.mark.skipif(sys.platform != "linux", reason="the places of Linux")
def test_the_worker_as_a_service_is_told(user: Path, home: Path, run: Run) -> None:
    assert finding(run, "worker") is None
    run("install", "worker")
    unit = user / ".config/systemd/user/forbear-worker.service"
    assert finding(run, "worker") == (True, f"written as a service of systemd: {unit}", None)
    unit.write_text(unit.read_text().replace(str(home), "/another"))
    other = finding(run, "worker")
    assert other is not None
    assert other[0] is None
    assert str(other[2]).startswith("forbear install worker")
