"""Very many operations that are due at the same moment, as after a night of sleep.

FORBEAR_TEST_WAKING is how many; the suite makes do with a few hundred.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.test_crash import CONTRACT, SUBMIT, no_request_is_hidden
from tests.crash.world import Nursery, nursed, world

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

MANY = int(os.environ.get("FORBEAR_TEST_WAKING", "200"))
SLOTS = 8

WAKING = CONTRACT.replace(
    "max_concurrent_requests = 50\nmax_delayed_requests = 100",
    f"max_concurrent_requests = {SLOTS}\nmax_delayed_requests = {MANY + 10}",
).replace('deadline = "10m"', 'deadline = "72h"')
OTHER = """\
contract = 1
base_url = "{base_url}"
auth = "none"

[calls.beside]
method = "GET"
path = "/beside"
timeout = "5s"
"""
MEMORY = 48 * 1024
"""Kilobytes that a process may grow by, however many are due."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def resident(pid: int, what: str) -> int:
    """Memory of a process, kB: `VmRSS` now, `VmHWM` at the most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1])
    raise LookupError(what)


@pytest.mark.requirement("W11", "R07", "R10", "R21", "D05")
async def test_very_many_that_wake_at_once_keep_the_scope_and_starve_nobody(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, WAKING, jobs=0) as on:
        for number in range(MANY):
            on.provider.job(f"exp_{number}", ["done"])
        on.provider.script("GET /beside", Answer(json={"n": 1}))
        other = OTHER.format(base_url=on.provider.base_url)
        (on.home / "contracts" / "other.toml").write_text(other)
        idle = on.start(worker=False)
        await on.until(lambda: {"ready": True} in on.said(0))
        before = resident(idle, "VmRSS")
        on.start(*(f"set-{number}" for number in range(MANY)), worker=False)
        await on.until(lambda: {"ready": True} in on.said(1), patience=1 + MANY // 500)
        assert on.rows("SELECT count(*) AS n FROM operations")[0]["n"] == MANY

        woken = on.start()
        on.start(reads=("other.beside",))
        await on.provider.arrived("GET /beside")
        assert on.provider.count(SUBMIT) < MANY, "another provider's call waits for none of them"
        await on.at_rest(MANY + 1, patience=1 + MANY // 50)
        assert on.provider.most_open <= SLOTS + 1, "and the call beside"
        assert resident(woken, "VmHWM") - before < MEMORY
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == MANY
        rows = on.rows("SELECT DISTINCT state, attempts_used FROM operations")
        assert rows == [{"state": "succeeded", "attempts_used": 1}]
        no_request_is_hidden(on)
