"""One scope, several real processes: slots, quotas and the turn of each are one for all of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from mcp import Client
from tests import stores
from tests.crash.nursery import BEFORE_FIRST_BYTE
from tests.crash.world import Nursery, World, fast, nursed, stopped, world
from tests.e2e.harness import (
    HOUR,
    KEYED,
    LOOKUP,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    call,
    contract,
    furnished,
    several,
    stage,
    stdio,
)
from tests.opened import opened

from forbear.server.fake import Answer, FakeProvider
from forbear.storage.schema import attempts, operations

pytestmark = pytest.mark.anyio

READ = "GET /items"
ITEM: Data = {"method": "GET", "path": "/items", "deadline": "10m", "timeout": "1m"}
HELD = ("slot", "scope")


def shared(slots: int) -> Data:
    """A scope of one account that lets so many requests be open, at any rate."""
    limits = {"rate": "1000/1s", "max_concurrent_requests": slots, "max_delayed_requests": 100}
    return {"account": {"per": "account", **limits}}


def gated(provider: FakeProvider, count: int) -> list[str]:
    """Let each of so many reads wait at a gate of its own before it is answered."""
    gates = [f"item {number}" for number in range(count)]
    provider.script(READ, *(Answer(json={}, gate=gate) for gate in gates))
    return gates


async def ask(client: Client, count: int) -> None:
    """Make so many reads and wait for none of them."""
    for _ in range(count):
        wish: Data = {"provider": "exp", "call": "item", "arguments": {}, "wait_seconds": 0}
        told = await call(client, "read_api", **wish)
        assert "error" not in told, told


async def seen(home: Path, query: str, wanted: object) -> None:
    """Look until the store says so: other processes tell nobody what they do."""
    found: object = None
    for _ in range(1_500):
        (row,) = stores.rows(home, query)
        (found,) = row.values()
        if found == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{query}: {found}, not {wanted}")


WAITING = f"SELECT count(*) FROM operations WHERE waiting_for IN {HELD} AND attempts_used = 0"
DONE = "SELECT count(*) FROM operations WHERE state = 'succeeded'"


# --- slots ----------------------------------------------------------------------------------


@pytest.mark.requirement("R07", "R10", "D05")
async def test_two_processes_never_have_more_requests_open_than_their_scope_allows(
    tmp_path: Path,
) -> None:
    async with (
        furnished(tmp_path, states=None, calls={"item": ITEM}, scopes=shared(2)) as provider,
        several(tmp_path, 2) as clients,
    ):
        gates = gated(provider, 20)
        await asyncio.gather(*(ask(client, 10) for client in clients))
        # Each of the others was looked at, and there was no slot for it.
        await seen(tmp_path, WAITING, 18)
        assert provider.count(READ) == provider.most_open == 2
        for number, gate in enumerate(gates):
            await provider.arrived(READ, min(20, number + 2))
            provider.release(gate)
        await seen(tmp_path, DONE, 20)

        assert provider.count(READ) == 20
        assert provider.most_open == 2


@pytest.mark.requirement("R07", "R21")
async def test_what_waits_is_rows_and_nothing_in_the_process(tmp_path: Path) -> None:
    slow = {"account": {"per": "account", "rate": "1/1h", "max_delayed_requests": 100}}
    calls: Data = {"item": ITEM | {"deadline": "200h"}}
    async with stage(tmp_path, states=None, calls=calls, scopes=slow) as on:
        await ask(on.client, 2)
        await on.settled()
        with_one = held_by_process(on)
        assert "Worker._schedule" in with_one
        await ask(on.client, 60)
        await on.settled()

        assert held_by_process(on) == with_one
        assert len(await on.app.store.read.due(on.now + 400 * HOUR)) == 50, "of 61 that wait"
        assert on.provider.count(READ) == 1


def held_by_process(on: Stage) -> list[str]:
    """The tasks of the product in this process: one per thing it carries or waits for.

    Not the writer's: while a batch is written it has one, whatever waits.
    """
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return sorted(name for name in names if name.startswith(("Worker.", "Store.")))


# --- processes that stop --------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def home_of(transfer: Data) -> str:
    """What a home says of a read and a write in one scope with two slots."""
    return contract(calls={"item": ITEM, "transfer": transfer}, scopes=shared(2))


def transfer(**more: object) -> Data:
    return {**TRANSFER, "label": "Transfer", "body": {"client_ref": "{ref}"}, **more}


@pytest.mark.requirement("R07", "D02")
async def test_a_process_that_stopped_before_its_first_byte_keeps_its_slot(
    tmp_path: Path, nursery: Nursery
) -> None:
    """Its request may leave until its time to send is over, so a place must be left for it."""
    async with world(tmp_path, nursery, home_of(transfer(timeout="2m"))) as on:
        gates = gated(on.provider, 6)
        frozen = on.start(writes=("transfer",), point=BEFORE_FIRST_BYTE, signal=int(signal.SIGSTOP))
        await on.until(lambda: stopped(frozen))
        on.start(reads=("item",) * 6)
        await seen(tmp_path, WAITING, 5)
        for number, gate in enumerate(gates):
            await on.provider.arrived(READ, number + 1)
            on.provider.release(gate)
        await seen(tmp_path, DONE, 6)

        assert on.provider.count(READ) == 6
        assert on.provider.most_open == 1
        assert on.provider.count(WRITE) == 0


@pytest.mark.requirement("D02", "R07", "R13", "R16", "R24")
@pytest.mark.parametrize(
    ("kind", "more", "state", "effects"),
    [
        ("unkeyed", {}, "escalated", 0),
        ("keyed", KEYED, "succeeded", 1),
        ("findable", {"lookup": {**LOOKUP, "settle": "1s"}}, "escalated", 0),
    ],
)
async def test_cl_01_a_write_that_comes_late_is_not_sent_and_is_done_once_or_asks(
    tmp_path: Path, nursery: Nursery, kind: str, more: Data, state: str, effects: int
) -> None:
    clock = fast(20)
    async with world(tmp_path, nursery, home_of(transfer(**more))) as on:
        on.provider.script(READ, *[Answer(json={}, drip="head", pace=0.001)] * 40)
        frozen = on.start(
            reads=("item",) * 10,
            writes=("transfer",),
            point=BEFORE_FIRST_BYTE,
            signal=int(signal.SIGSTOP),
            **clock,
        )
        await on.until(lambda: stopped(frozen))
        on.start(reads=("item",) * 10, **clock)
        await on.until(lambda: _write(on)["state"] == state)
        assert on.provider.count(WRITE) == len(on.provider.effects) == effects
        before = _write(on)
        os.kill(frozen, signal.SIGCONT)
        await on.until(lambda: on.rows("SELECT 1 FROM attempts WHERE late AND step = 'send'"))
        await on.at_rest(len(on.rows("SELECT id FROM operations")))

        (late,) = opened(on.home, _LATE)
        assert late["outcome"] == "not_sent"
        assert "time to send" in late["note"]
        after = _write(on)
        assert (after["state"], after["attempts_used"]) == (state, before["attempts_used"])
        assert on.provider.count(WRITE) == len(on.provider.effects) == effects
        assert on.provider.most_open <= 2
        assert "Traceback" not in on.logs(), on.logs()


_LATE = (
    sa.select(attempts.c.outcome, attempts.c.note)
    .join(operations)
    .where(attempts.c.late, operations.c.action == "transfer")
)


def _write(on: World) -> Data:
    (row,) = on.rows("SELECT * FROM operations WHERE action = 'transfer'")
    return row


# --- one quota ------------------------------------------------------------------------------

LIMIT = 2
"""Seconds for which the provider wants to be left alone."""

ROUNDING = 0.05
"""Two clocks are compared, and the store counts whole milliseconds."""


@pytest.mark.requirement("R02", "R11", "D05")
@pytest.mark.parametrize(
    ("said", "more"),
    [
        (Answer(429, {}, (("Retry-After", str(LIMIT)),), gate="limit"), 1),
        (Answer(200, {}, (("RateLimit", f'"default";r=0;t={LIMIT}'),), gate="limit"), 0),
    ],
    ids=["429", "nothing left"],
)
async def test_what_one_process_is_told_of_a_quota_holds_back_the_other(
    tmp_path: Path, said: Answer, more: int
) -> None:
    calls: Data = {"item": ITEM}
    async with (
        furnished(tmp_path, states=None, calls=calls, scopes=shared(1)) as provider,
        stdio(tmp_path) as told,
    ):
        provider.script(READ, said, *[Answer(json={})] * 6)
        await ask(told, 1)
        await provider.arrived(READ)
        async with stdio(tmp_path) as other:
            await ask(other, 4)
            await seen(tmp_path, WAITING, 4)
            before = asyncio.get_running_loop().time()
            provider.release("limit")
            await seen(tmp_path, DONE, 5)

            assert provider.count(READ) == 5 + more
            later = [one.at - before for one in provider.arrivals[1:]]
            assert min(later) >= LIMIT - ROUNDING
            assert provider.most_open == 1
