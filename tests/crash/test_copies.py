"""Homes that were restored or copied while the one they come from went on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import stores
from tests.crash.world import Nursery, World, fast, nursed, world
from tests.server.commanding import TOKEN, child_environment

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("D11")]

CONTRACT = """\
contract = 1
auth = "none"

[jobs.export]
usual = "10s"
deadline = "10m"
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]

[jobs.export.submit]
method = "POST"
path = "/exports"
body = { dataset = "{arg.dataset}", client_ref = "{ref}" }
timeout = "2s"

[jobs.export.backoff]
base = "100ms"
max = "300ms"
first = "100ms"

[jobs.export.lookup]
method = "GET"
path = "/exports"
items = "/items"
match = { "/client_ref" = "{ref}" }
take = { id = "/id" }
settle = "1s"
absence_proves = true

[calls.keyed]
method = "POST"
path = "/keyed"
timeout = "2s"
idempotency = { at = "header:Idempotency-Key", format = "uuid", window = "24h" }

[calls.bare]
method = "POST"
path = "/bare"
approval = "none"
timeout = "2s"
"""

EFFECTS = ("POST /exports", "POST /keyed", "POST /bare")
LOOK = "GET /exports"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def states(on: World) -> dict[str, str]:
    return {row["action"]: row["state"] for row in on.rows("SELECT action, state FROM operations")}


async def accepted(on: World) -> None:
    """One operation of each kind is stored, and nothing is sent."""
    pid = on.start("sales", writes=("keyed", "bare"), worker=False)
    await on.until(lambda: {"ready": True} in on.said(0))
    os.kill(pid, signal.SIGTERM)
    await on.dead(pid)
    assert states(on) == {"export": "queued", "keyed": "queued", "bare": "queued"}, on.logs()


async def finished(on: World) -> None:
    pid = on.start()
    await on.until(lambda: set(states(on).values()) == {"succeeded"})
    os.kill(pid, signal.SIGTERM)
    await on.dead(pid)


def commanded(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of ours in a process of its own, with the operator's token."""
    environment = child_environment() | {
        "FORBEAR_HOME": str(home),
        "FORBEAR_OPERATOR_TOKEN": TOKEN,
        **stores.environment(home),
    }
    command = [sys.executable, "-m", "forbear", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def backed_up(home: Path) -> Path:
    """Restored from `forbear backup` into a home of its own."""
    target = home.with_name("restored")
    made = commanded(home, "backup", str(target))
    assert made.returncode == 0, made.stderr
    return target


def copied(home: Path) -> Path:
    """The whole folder, with its mark and all, and the database where there is one."""
    target = Path(shutil.copytree(home, home.with_name("copied")))
    stores.copy(home, target)
    return target


@pytest.mark.sqlite
@pytest.mark.parametrize("how", [backed_up, copied], ids=["backup", "copy"])
async def test_a_home_that_comes_back_sends_only_lookups_until_it_is_adopted(
    tmp_path: Path, nursery: Nursery, how: Callable[[Path], Path]
) -> None:
    await comes_back(tmp_path / "home", nursery, how)


@pytest.mark.only_postgresql
@pytest.mark.requirement("D07")
async def test_a_database_that_comes_back_sends_only_lookups_until_it_is_adopted(
    tmp_path: Path, nursery: Nursery
) -> None:
    await comes_back(tmp_path / "home", nursery, copied)


async def comes_back(home: Path, nursery: Nursery, how: Callable[[Path], Path]) -> None:
    async with world(home, nursery, CONTRACT) as living:
        await accepted(living)
        copy = World(living.provider, how(living.home), nursery)
        await finished(living)
        clock = fast(10)
        polls = living.provider.count("GET /exports/")
        sent = {route: living.provider.count(route) for route in EFFECTS}
        assert sent == dict.fromkeys(EFFECTS, 1)

        try:
            copy.start(**clock)
            await copy.until(
                lambda: (
                    states(copy) == {"export": "waiting", "keyed": "unclear", "bare": "escalated"}
                )
            )
            await copy.until(
                lambda: copy.rows("SELECT 1 FROM operations WHERE waiting_for = 'scope'")
            )
            assert living.provider.count(LOOK) >= 1
            assert {route: living.provider.count(route) for route in EFFECTS} == sent
            assert living.provider.count("GET /exports/") == polls
            [case] = copy.rows("SELECT reason FROM cases WHERE closed_at IS NULL")
            assert case["reason"] == "unclear_write"

            adopted = commanded(copy.home, "adopt", "--yes")
            assert adopted.returncode == 0, adopted.stderr
            await copy.until(
                lambda: (
                    states(copy)
                    == {"export": "succeeded", "keyed": "succeeded", "bare": "escalated"}
                )
            )
            assert (
                living.provider.count("POST /bare") == living.provider.count("POST /exports") == 1
            )
            keys = {
                one.headers["idempotency-key"]
                for one in living.provider.arrivals
                if one.path == "/keyed"
            }
            assert (living.provider.count("POST /keyed"), len(keys)) == (2, 1)
            assert len(living.provider.effects) == 3
            assert "Traceback" not in copy.logs()
        finally:
            for pid in copy.pids:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.sqlite
async def test_absence_in_a_copy_proves_nothing_while_the_other_home_may_still_send(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT) as living:
        await accepted(living)
        copy = World(living.provider, copied(living.home), nursery)
        try:
            copy.start()
            await copy.until(lambda: copy.rows("SELECT 1 FROM operations WHERE lookups_used >= 3"))
            [row] = copy.rows("SELECT state, certainty FROM operations WHERE action = 'export'")
            assert row == {"state": "unclear", "certainty": "maybe_applied"}
            assert [living.provider.count(route) for route in EFFECTS] == [0, 0, 0]
        finally:
            for pid in copy.pids:
                os.kill(pid, signal.SIGKILL)
