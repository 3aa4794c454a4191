"""Rounds of a process: a short-lived one leaves tellings to a resident, but not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.commanding import stops
from tests.tools.driving import CONTRACT, Driver, driver

from forbear.server.credentials import Credentials
from forbear.server.providers import Contracts
from forbear.server.rounds import DEFERENCE, Rounds
from forbear.server.standing import Clerk
from forbear.tools.office import Office

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("E14")]


async def announced(job: Driver) -> int:
    case = await job.store.read.open_case(job.op_id)
    assert case is not None
    return case.announced


async def test_a_telling_is_left_to_a_resident_worker_that_holds_the_contract(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "exp.toml").write_text(CONTRACT)
    async with driver(tmp_path) as job:
        await stops(job)
        contracts = Contracts(folder, Credentials({"EXP_TOKEN": "x" * 20}), job.store.key)
        office = Office(job.store, contracts, job.clock, job.desk)
        rounds = Rounds(
            job.store, contracts, job.clock, Clerk((), job.store, office, job.clock), None
        )
        held = {(await job.operation()).binding}

        await rounds.go(held)
        assert await announced(job) == 0
        await rounds.go({"of another contract"})
        assert await announced(job) == 1

        job.clock.advance(3_600_000)
        await rounds.go(held)
        assert await announced(job) == 1
        job.clock.advance(DEFERENCE)
        await rounds.go(held)
        assert await announced(job) == 2
