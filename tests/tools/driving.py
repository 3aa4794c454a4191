"""One job driven by hand on a real store: what a worker does, with the answers a test gives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import stores
from tests.support import FixedRandom, ManualClock

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse
from forbear.rules.decisions import Wish
from forbear.rules.facts import facts_of
from forbear.rules.model import AuditEvent, Operation, Option, Priority, Refusal
from forbear.rules.ports import Reply
from forbear.rules.signals import read
from forbear.rules.steps import request_of
from forbear.storage.reserving import Reserved
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools.caller import Caller
from forbear.tools.desk import Desk, Setting
from forbear.tools.record import Record

CONTRACT = """\
contract = 1
title = "Report exports"
base_url = "https://api.exp.example/v1"
auth = "bearer env:EXP_TOKEN"

[account]
id = "acct_17"

[jobs.export]
title = "Export a data set"
description = "Start an export; takes 2 to 30 minutes."
label = "Export {arg.dataset}"
usual = "10m"
deadline = "40m"
submit = "POST /exports"
body = { dataset = "{arg.dataset}" }
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
result = "GET {/result/url}"

[jobs.export.limits]
max_status_requests = 12
extension = { by = "15m", status_requests = 4, times = 1 }

[jobs.export.cancel]
method = "POST"
path = "/exports/{id}/cancel"
consequence = "Work so far is lost."

[calls.customer]
title = "One customer"
path = "/customers/{arg.id}"
method = "GET"
"""


def contract(text: str = CONTRACT, file: str = "exp.toml") -> Contract:
    found = parse(text, file)
    assert not isinstance(found, tuple), [str(each) for each in found]
    return found


@dataclass
class Shelf:
    """A book with the contracts that a test lays into it."""

    held: Mapping[str, Contract]
    credential: str | None = "fp"
    broken: Mapping[str, Sequence[ContractError]] | None = None

    def contracts(self) -> Mapping[str, Contract]:
        return self.held

    def errors(self) -> Mapping[str, Sequence[ContractError]]:
        return self.broken or {}

    async def arrived(self, provider: str) -> None:
        """Nothing here takes time."""

    def holding(self, provider: str, action: str) -> Holding | None:
        found = self.held.get(provider)
        named = found.action(action) if found is not None else None
        if found is None or named is None:
            return None
        return Holding(found, named, self.credential)


def shelf(text: str = CONTRACT, **changes: Any) -> Shelf:
    held = contract(text)
    return Shelf({held.provider: held}, **changes)


@dataclass
class Driver:
    """One job of the contract: each method is one transaction of a worker or a person."""

    store: Store
    book: Shelf
    clock: ManualClock
    desk: Desk
    op_id: str = ""

    async def submit(self, **arguments: Any) -> Operation:
        record = await self.desk.submit_job(
            provider="exp",
            job="export",
            arguments=arguments or {"dataset": "sales-2026"},
            purpose="month-end report",
            task="month-end",
            idempotency_key=None,
            depends_on=(),
            deadline_seconds=None,
            max_status_requests=None,
            useful_for_seconds=None,
            priority=Priority.INTERACTIVE,
            wait_seconds=0,
            caller=Caller("local", "test", "test"),
            report=None,
        )
        assert isinstance(record, Record), record
        self.op_id = record.operation.id
        return record.operation

    async def operation(self) -> Operation:
        found = await self.store.read.operation(self.op_id)
        assert found is not None
        return found

    async def reserve(self) -> Reserved:
        """Let the clock come to the next request and reserve it."""
        op = await self.operation()
        now = self.clock.now().wall
        if op.next_at is not None and op.next_at > now:
            self.clock.advance(op.next_at - now)
        held = self.book.holding(op.provider, op.action)
        reserved = await self.store.write(lambda c: self.store.ledger.reserve(c, op.id, held))
        assert isinstance(reserved, Reserved), reserved
        return reserved

    async def settle(self, reserved: Reserved, reply: Reply) -> Operation:
        op, held = reserved.operation, reserved.holding
        facts = facts_of(op, held.contract, reserved.parent)
        request = request_of(op, held.action)
        now = self.clock.now().wall
        signal = read(reply, held.contract, held.action, request, facts, now)
        return await self.store.write(
            lambda c: self.store.ledger.settle(c, reserved, reply, signal)
        )

    async def answer(self, status: int, body: Any = None, **headers: str) -> Operation:
        """The next request is due and is answered so."""
        return await self.settle(await self.reserve(), self.reply(status, body, **headers))

    async def silence(self, fault: str = "closed") -> Operation:
        """The next request leaves and no answer comes."""
        now = self.clock.now().wall
        reply = Reply(sent=True, complete=False, started_at=now, ended_at=now, fault=fault)
        return await self.settle(await self.reserve(), reply)

    async def unsent(self, fault: str = "dns") -> Operation:
        """The next request is reserved and provably never leaves."""
        now = self.clock.now().wall
        reply = Reply(sent=False, complete=False, started_at=now, ended_at=now, fault=fault)
        return await self.settle(await self.reserve(), reply)

    def reply(self, status: int, body: Any = None, **headers: str) -> Reply:
        now = self.clock.now().wall
        sent = json.dumps({} if body is None else body).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(sent))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        return Reply(
            sent=True,
            complete=True,
            started_at=now,
            ended_at=now,
            status=status,
            headers=tuple(fields.items()),
            body=sent,
            url="https://api.exp.example/v1/exports",
        )

    async def accepted(self) -> Operation:
        """Submitted, and taken by the provider as job exp_71c."""
        await self.submit()
        return await self.answer(202, {"id": "exp_71c", "state": "queued"})

    async def decide(self, option: Option, **wish: Any) -> None:
        """A person at a terminal chooses."""
        case = await self.store.read.open_case(self.op_id)
        assert case is not None
        held = self.book.holding("exp", "export")
        by = {"operator": "anna", "channel": "terminal"}
        decided = await self.store.write(
            lambda c: self.store.ledger.decide(
                c, case.id, case.revision, Wish(option, **wish), held, by
            )
        )
        assert not isinstance(decided, Refusal), decided

    async def events(self) -> list[AuditEvent]:
        return await self.store.read.events_of(self.op_id)


@asynccontextmanager
async def driver(home: Path, text: str = CONTRACT, **changes: Any) -> AsyncIterator[Driver]:
    clock, random, book = ManualClock(), FixedRandom(), shelf(text, **changes)
    store = Store(home, clock, random, url=stores.url_of(home), own_time=True)
    store.liveness.claim()
    try:
        yield Driver(store, book, clock, Desk(store, book, clock, random, Setting()))
    finally:
        await store.close()
