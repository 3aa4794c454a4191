"""Every shipped contract can be simulated, and every action of it ends where its rules say.

The contracts are taken through side by side in one event loop: what takes time is waiting.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.contracts.library import NAMES

from forbear.rules.contract import Contract, Request
from forbear.rules.contract_file import parse
from forbear.server.explaining import explain
from forbear.server.simulator.copies import copy
from forbear.server.simulator.routes import routes
from forbear.server.simulator.source import Source, find
from forbear.server.simulator.trial import Row, scenarios, trial

EACH = pytest.mark.parametrize("name", NAMES)
AT_ONCE = 4
ADDRESS = "http://127.0.0.1:8400"
NOWHERE = Path("there-is-no-such-folder")


def source(name: str) -> Source:
    return find(name, NOWHERE)


async def through(name: str, folder: Path, room: asyncio.Semaphore) -> list[Row]:
    async with room:
        return await trial(source(name), folder / name)


def test_every_action_of_every_contract_ends_where_its_rules_say(tmp_path: Path) -> None:
    async def all_of_them() -> list[list[Row]]:
        room = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(through(name, tmp_path, room) for name in NAMES))

    rows = dict(zip(NAMES, asyncio.run(all_of_them()), strict=True))
    wrong = [(name, row) for name in NAMES for row in rows[name] if not row.ok]
    assert wrong == []
    assert [(name, row) for name in NAMES for row in rows[name] if not row.simulated] == []
    for name in NAMES:
        contract = source(name).contract
        for action in (*contract.jobs.values(), *contract.calls.values()):
            tried = [row for row in rows[name] if row.action == action.name]
            assert len(tried) == len([*scenarios(contract, action)]) >= 4
            assert max(row.effects for row in tried) <= 1


@EACH
@pytest.mark.requirement("C04")
def test_no_request_of_a_copy_leaves_this_machine_or_has_a_key_of_the_user(name: str) -> None:
    text = copy(source(name), ADDRESS, Path("/dummy"))
    copied = parse(text, f"{name}.toml")
    assert isinstance(copied, Contract), copied
    assert copied.base_url.startswith(ADDRESS)
    assert copied.allow_hosts == ()
    assert (copied.auth.token_url or ADDRESS).startswith(ADDRESS)
    assert set(re.findall(r"\b(?:env|keyring|exec):\S", text)) == set()
    for route in routes(copied):
        assert goes_here(route.request), route.on


def goes_here(request: Request) -> bool:
    head = request.url.parts[0] if request.url is not None else ADDRESS
    return request.hosts == () and (not isinstance(head, str) or head.startswith(ADDRESS))


@EACH
def test_every_action_can_be_explained(name: str) -> None:
    contract = source(name).contract
    for action in (*contract.jobs.values(), *contract.calls.values()):
        told = explain(contract, action)
        assert all(text for section in told.sections for _, text in section.lines)
        assert all(event.options for event in told.events if event.reason is not None)
