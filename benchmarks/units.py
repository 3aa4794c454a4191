"""The ledger's own two transactions around a canned answer, for whoever runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection

from forbear.rules import signals
from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse
from forbear.rules.facts import facts_of
from forbear.rules.model import Priority
from forbear.rules.ports import Reply
from forbear.rules.steps import request_of
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.reserving import Reserved
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools.drafts import Drafter, Given, bounds

CONTRACT = """
contract = 1
base_url = "{base_url}"
auth = "none"
[scopes.all]
per = "provider"
rate = "1000000/1s"
max_concurrent_requests = 100000
max_delayed_requests = 100000
[jobs.export]
usual = "10m"
deadline = "10h"
submit = "POST /exports"
body = {{ dataset = "{{arg.dataset}}" }}
repeat = "free"
id = "/id"
status = "GET /exports/{{id}}"
state = "/state"
waiting = ["running"]
succeeded = ["done"]
[jobs.export.backoff]
base = "1ms"
max = "1ms"
first = "1ms"
[jobs.export.limits]
max_status_requests = 1000000
[calls.item]
method = "GET"
path = "/items/{{arg.id}}"
deadline = "1h"
"""
"""A provider whose limits are never met: what is measured is the path, not the waiting."""

CLOCK = SystemClock()

Unit = Callable[[Connection], Any]
Run = Callable[[Unit], Awaitable[Any]]
"""Runs a ledger transaction and returns when it is durable."""


class Work(Protocol):
    """One operation that can be asked for request after request."""

    async def request(self) -> None: ...


def holding(base_url: str = "http://127.0.0.1:1") -> Holding:
    contract = parse(CONTRACT.format(base_url=base_url), "bench.toml")
    assert isinstance(contract, Contract), contract
    return Holding(contract, contract.jobs["export"], "fingerprint")


@dataclass(slots=True)
class Polled:
    """A job of the ledger that is polled: two transactions a request, and no network."""

    store: Store
    held: Holding
    run: Run
    operation_id: str
    name: str

    async def request(self, state: str = "running") -> None:
        """Transaction 1, a canned answer, transaction 2."""
        ledger, job = self.store.ledger, self.held.contract.jobs["export"]
        reserve = partial(ledger.reserve, operation_id=self.operation_id, holding=self.held)
        while not isinstance(reserved := await self.run(reserve), Reserved):
            await CLOCK.sleep(0.001)
        now = CLOCK.now().wall
        body = f'{{"id":"exp_{self.name}","state":"{state}"}}'
        reply = Reply(True, True, now, now, 200, (("Content-Length", "9"),), body.encode())
        op = reserved.operation
        facts = facts_of(op, self.held.contract)
        signal = signals.read(reply, self.held.contract, job, request_of(op, job), facts, now)
        await self.run(partial(ledger.settle, reserved=reserved, reply=reply, signal=signal))


async def submitted(store: Store, held: Holding, name: str) -> Polled:
    """A job that was accepted and submitted, so that polls are due."""
    job = held.contract.jobs["export"]
    draft = Drafter(store.key, SystemRandom(), "bench").submission(
        held,
        job,
        {"dataset": name},
        bounds(job, None, None, None),
        Given(purpose=None, key=None, priority=Priority.INTERACTIVE, task=None),
    )
    assert isinstance(draft, Draft), draft
    accepted = await store.write(partial(store.ledger.accept, draft=draft, holding=held))
    assert isinstance(accepted, Accepted), accepted
    polled = Polled(store, held, store.write, accepted.operation.id, name)
    await polled.request()
    return polled


async def many(store: Store, held: Holding, names: Iterable[object]) -> list[Polled]:
    """One submitted job for each name, made together."""
    return list(await asyncio.gather(*(submitted(store, held, f"{name}") for name in names)))
