"""Processes that cannot run what is due: another credential, or a contract that changed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.test_crash import CONTRACT, STATUS, SUBMIT, no_request_is_hidden
from tests.crash.world import Nursery, fast, nursed, world

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("D10")]

BEARER = CONTRACT.replace('auth = "none"', 'auth = "bearer env:EXP_TOKEN"')
OURS: dict[str, Any] = {"environment": {"EXP_TOKEN": "secret-one"}}
OTHER: dict[str, Any] = {"environment": {"EXP_TOKEN": "secret-two"}}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


async def test_a_process_with_another_credential_leaves_a_job_to_the_one_that_began_it(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, BEARER) as on:
        first = on.start("sales", **OURS)
        await on.provider.arrived(STATUS)
        os.kill(first, signal.SIGKILL)
        await on.dead(first)
        sent = len(on.provider.arrivals)
        on.start(**OTHER)
        await on.until(lambda: on.operation()["waiting_for"] == "credential")
        assert len(on.provider.arrivals) == sent
        on.start(**OURS)
        await on.at_rest()
        assert on.operation()["state"] == "succeeded"
        used = {one.headers["authorization"] for one in on.provider.arrivals}
        assert used == {"Bearer secret-one"}
        no_request_is_hidden(on)


async def test_a_job_whose_contract_changed_is_sent_by_no_process_and_asked_about(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path / "home", nursery, CONTRACT) as on:
        pid = on.start("sales", worker=False)
        await on.until(lambda: {"ready": True} in on.said(0))
        os.kill(pid, signal.SIGTERM)
        path = on.home / "contracts" / "exp.toml"
        path.write_text(path.read_text().replace('path = "/exports"', 'path = "/other"'))
        clock = fast(40)
        for _ in range(2):
            on.start(**clock)
        await on.at_rest()
        assert on.rows("SELECT reason FROM cases") == [{"reason": "contract_changed"}]
        assert on.provider.arrivals == []
        assert on.provider.count(SUBMIT) == 0
