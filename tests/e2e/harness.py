"""The whole product on one stage: a home, a provider on real sockets, a process, MCP clients.

    async with stage(tmp_path) as on:
        on.provider.job("exp_1", ["queued", "running", "done"], result={"rows": 3})
        job = await on.submit()
        await on.end_of(job)
        assert on.provider.count("POST /exports") == 1

Time stands still unless a test moves it: `due` goes to the next planned moment of the store,
`passes` lets a length of time go by with everything that falls into it. Requests, the store and
the protocol are real, so the answers of a provider arrive while the clock stands.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult
from sqlalchemy import Connection
from tests import stores
from tests.support import FixedRandom, ManualClock

from forbear.rules.decisions import Wish
from forbear.rules.model import AuditEvent, Operation, Option, Refusal
from forbear.server.app import App, open_store, running
from forbear.server.clock import SystemRandom
from forbear.server.config import Settings
from forbear.server.fake import Answer, FakeProvider, Step
from forbear.storage.schema import operations
from forbear.storage.transitions import BESIDE
from forbear.storage.vault import Sealed
from forbear.tools.caller import only
from forbear.tools.surface import build

Data = dict[str, Any]

SUBMIT = "POST /exports"
STATUS = "GET /exports/exp_1"
CANCEL = "POST /exports/exp_1/cancel"
RESULT = "GET /files/exp_1"

PATIENCE = 20.0
"""Real seconds after which something that should have happened did not."""

MINUTE, HOUR = 60_000, 3_600_000

EXPORT: Data = {
    "title": "Export a data set",
    "label": "Export {arg.dataset}",
    "usual": "10m",
    "deadline": "40m",
    "submit": "POST /exports",
    "body": {"dataset": "{arg.dataset}", "client_ref": "{ref}"},
    "id": "/id",
    "status": "GET /exports/{id}",
    "state": "/state",
    "waiting": ["queued", "running"],
    "succeeded": ["done"],
    "failed": ["failed"],
    "cancelled": ["cancelled"],
    "expired": ["expired"],
    "result": "GET {/result/url}",
}
"""A job as the fake provider keeps it. Tests change it with `EXPORT | {…}`."""

NO_RESULT: Data = {name: value for name, value in EXPORT.items() if name != "result"}

TRANSFER: Data = {
    "method": "POST",
    "path": "/transfers",
    "label": "Transfer {arg.amount}",
    "body": {"amount": "{arg.amount}", "client_ref": "{ref}"},
    "take": {"id": "/id"},
    "require": {"/id": "non_empty"},
    "approval": "none",
    "timeout": "1s",
}
"""A write that can neither be recognised nor found again. Tests change it with `TRANSFER | {…}`."""

UNHURRIED: Data = {"timeout": "1m"}
"""For a request whose answer a test holds back while it does something else."""

KEYED: Data = {"idempotency": {"at": "header:Idempotency-Key", "format": "uuid", "window": "24h"}}
"""What makes a write one that the provider recognises by its key."""

LOOKUP: Data = {
    "method": "GET",
    "path": "/transfers",
    "items": "/items",
    "match": {"/client_ref": "{ref}"},
    "take": {"id": "/id"},
    "page": {"query": "cursor", "at": "/next", "max_pages": 3},
}
"""How a write is found again by its reference: every page of the whole list is read."""

FINDABLE: Data = {"lookup": LOOKUP}
PROVABLE: Data = {"lookup": LOOKUP | {"absence_proves": True}}

WRITE = "POST /transfers"
LOOK = "GET /transfers"

STATES = ("queued", "running", "done")
FOREVER = ("queued", *["running"] * 500)

QUICK: Data = {"base": "200ms", "max": "1s", "first": "200ms", "rate_limited": "500ms"}
"""A backoff for tests that live in real time."""


# --- contracts ------------------------------------------------------------------------------


def toml(value: object) -> str:
    """A value of a contract, as TOML writes it inside a line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{_key(k)} = {toml(v)}" for k, v in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value)


def _key(name: object) -> str:
    return json.dumps(str(name))


def contract(job: Data = EXPORT, **top: Any) -> str:
    """The text of a contract with one job, `export`; `top` are the other keys of the file."""
    whole = {
        "contract": 1,
        "auth": "none",
        "scopes": {"account": {"per": "account", "rate": "1000/1s"}},
        "jobs": {"export": job},
        **top,
    }
    return "".join(f"{name} = {toml(value)}\n" for name, value in whole.items())


def write_contract(home: Path, text: str, name: str = "exp") -> Path:
    """Put a contract into a home, whole or not at all, as an editor would."""
    folder = home / "contracts"
    folder.mkdir(parents=True, exist_ok=True)
    draft, path = folder / f".{name}", folder / f"{name}.toml"
    draft.write_text(text)
    draft.replace(path)
    return path


# --- MCP ------------------------------------------------------------------------------------


async def call(client: Client, tool: str, **arguments: Any) -> Data:
    """The structured content of a call, after a look at what every answer owes."""
    result = await client.call_tool(tool, arguments)
    return content(result)


def content(result: CallToolResult) -> Data:
    told: Data | None = result.structured_content
    assert told is not None, result
    assert ("error" in told) is bool(result.is_error)
    return told


def error(answer: Data) -> Data:
    """The refusal of a call that must have been refused; it always names a next step."""
    assert "error" in answer, answer
    refused: Data = answer["error"]
    assert refused["message"]
    assert 0 < len(refused["next_step"]) <= 300
    return refused


def serving(home: Path, **environment: str) -> StdioServerParameters:
    """How an MCP client starts `forbear serve` on a home."""
    roots = [
        str(Path(root).resolve())
        for root in ("contracts", "rules", "storage", "tools", "server", ".")
    ]
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "forbear", "serve"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(roots),
            "FORBEAR_HOME": str(home),
            **stores.environment(home),
            **environment,
        },
    )


@asynccontextmanager
async def stdio(home: Path, **environment: str) -> AsyncIterator[Client]:
    """A client of a `forbear serve` process of its own."""
    with (home / "stderr").open("a") as errors:
        async with Client(stdio_client(serving(home, **environment), errlog=errors)) as client:
            yield client


@asynccontextmanager
async def several(home: Path, count: int, **environment: str) -> AsyncIterator[list[Client]]:
    """Clients of so many `forbear serve` processes on one home, all started at once."""
    clients: list[Client] = []
    up, over = asyncio.Event(), asyncio.Event()

    async def serve_one() -> None:
        async with stdio(home, **environment) as client:
            clients.append(client)
            if len(clients) == count:
                up.set()
            await over.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(serve_one())
        try:
            await up.wait()
            yield clients
        finally:
            over.set()


async def forbear(home: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """A command on a home: its exit code and what it said."""
    wanted = serving(home, **environment)
    ran = await asyncio.create_subprocess_exec(
        wanted.command,
        "-m",
        "forbear",
        *arguments,
        env=wanted.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(ran.communicate(), PATIENCE)
    return ran.returncode or 0, out.decode()


# --- the stage ------------------------------------------------------------------------------


@dataclass
class Stage:
    """A provider, one process on a home, and a client of it."""

    provider: FakeProvider
    home: Path
    clock: ManualClock
    app: App
    client: Client

    # --- tools ------------------------------------------------------------------------------

    async def call(self, tool: str, **arguments: Any) -> Data:
        return await call(self.client, tool, **arguments)

    async def submit(self, dataset: str = "sales", **more: Any) -> str:
        """Submit one export and wait for the provider's answer; its operation id."""
        answer = await self.asked(dataset, **more)
        assert "error" not in answer, answer
        operation_id: str = answer["operation_id"]
        return operation_id

    async def asked(self, dataset: str = "sales", **more: Any) -> Data:
        """What `submit_job` says, whatever it is, once nothing is under way any more."""
        passed: Data = {"provider": "exp", "job": "export", "arguments": {"dataset": dataset}}
        answer = await self.call("submit_job", **{**passed, "wait_seconds": 20, **more})
        await self.settled()
        return answer

    async def read(self, name: str, wait_seconds: float = 20, **more: Any) -> Data:
        """What `read_api` says, once nothing is under way any more."""
        passed: Data = {"provider": "exp", "call": name, "arguments": {}, **more}
        answer = await self.call("read_api", wait_seconds=wait_seconds, **passed)
        await self.settled()
        return answer

    async def write(self, amount: int = 5, wait_seconds: float = 20, **more: Any) -> Data:
        """What `write_api` says of the call `transfer`, once nothing is under way any more."""
        passed: Data = {
            "provider": "exp",
            "call": "transfer",
            "arguments": {"amount": amount},
            **more,
        }
        answer = await self.call("write_api", wait_seconds=wait_seconds, **passed)
        await self.settled()
        return answer

    async def check(self, operation_id: str, wait_seconds: float = 0) -> Data:
        return await self.call("check_status", operation_id=operation_id, wait_seconds=wait_seconds)

    async def full(self, operation_id: str, *, timeline: bool = False) -> Data:
        """The full record."""
        return await self.call("operation_status", operation_id=operation_id, timeline=timeline)

    async def reason(self, operation_id: str) -> str:
        """Why a person is asked about an operation."""
        case: Data | None = (await self.full(operation_id))["escalation"]
        assert case is not None
        why: str = case["reason"]
        return why

    # --- time -------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now().wall

    async def settled(self) -> None:
        """Wait until nothing is due and no request is out."""
        roused = False
        async with asyncio.timeout(PATIENCE):
            while True:
                news = self.app.store.news
                carried = [task for task in asyncio.all_tasks() if task.get_name()[:3] == "op_"]
                if carried:
                    await asyncio.wait(carried)
                elif not await self.app.store.read.due(self.now):
                    return
                elif roused:
                    await news.wait()
                else:  # the clock may have moved while the worker slept
                    self.app.store.wake()
                    roused = True

    async def passes(self, milliseconds: int) -> None:
        """Let time go by, stopping at every moment for which something is planned."""
        await self.settled()
        end = self.now + milliseconds
        while (planned := await self.app.store.read.next_due(self.now)) is not None:
            if planned >= end:
                break
            await self.at(planned)
        await self.at(end)

    async def at(self, moment: int) -> None:
        """Go to a moment at once, and see through what is due there."""
        await self.settled()
        self.clock.advance(max(0, moment - self.now) + 1)
        await self.settled()

    async def due(self, operation_id: str) -> Data:
        """Go to the next planned moment of an operation; its full record after that."""
        await self.settled()
        op = await self.operation(operation_id)
        assert op.next_at is not None, f"nothing is planned: {op.state}"
        await self.at(op.next_at)
        return await self.full(operation_id)

    async def end_of(self, operation_id: str, most: int = 100) -> Data:
        """Go from moment to moment until nothing more is planned; the full record then."""
        for _ in range(most):
            await self.settled()
            op = await self.operation(operation_id)
            if op.next_at is None:
                return await self.full(operation_id)
            await self.at(op.next_at)
        raise AssertionError(f"{operation_id} did not come to an end")

    async def becomes(self, operation_id: str, state: str) -> None:
        """Wait while the clock stands until an operation is in a state."""
        async with asyncio.timeout(PATIENCE):
            while True:
                news = self.app.store.news
                if (await self.operation(operation_id)).state == state:
                    return
                await news.wait()

    async def until(self, operation_id: str, moment: int) -> None:
        """Go on until a moment or the operation's end, though nobody may be able to carry it.

        What a process cannot run stays due, so that `settled` would wait for it for ever: time
        goes by in steps of five seconds instead, each followed by the looks that it causes.
        """
        while self.now < moment and (await self.operation(operation_id)).next_at is not None:
            self.clock.advance(min(5_001, moment - self.now))
            self.app.store.wake()
            await self._looks()

    async def _looks(self) -> None:
        """See through what the worker has begun and what it begins after that."""
        for _ in range(3):
            carried = [task for task in asyncio.all_tasks() if task.get_name()[:3] == "op_"]
            if carried:
                await asyncio.wait(carried, timeout=PATIENCE)
            await self.app.store.read.next_due(self.now)
            await asyncio.sleep(0)

    # --- behind the tools -------------------------------------------------------------------

    async def operation(self, operation_id: str) -> Operation:
        op = await self.app.store.read.operation(operation_id)
        assert op is not None
        return op

    async def events(self, operation_id: str) -> list[AuditEvent]:
        return await self.app.store.read.events_of(operation_id)

    async def decide(self, operation_id: str, option: Option, **wish: Any) -> None:
        """A person at a terminal chooses an option of the open case."""
        case = await self.app.store.read.open_case(operation_id)
        assert case is not None
        op = await self.operation(operation_id)
        held = self.app.contracts.holding(op.provider, op.action)
        by = {"operator": "anna", "channel": "terminal"}
        decided = await self.app.store.write(
            lambda c: self.app.store.ledger.decide(
                c, case.id, case.revision, Wish(option, **wish), held, by
            )
        )
        assert not isinstance(decided, Refusal), decided
        await self.settled()

    def count(self, route: str = STATUS) -> int:
        return self.provider.count(route)

    def script(self, *steps: Step, route: str = STATUS) -> None:
        self.provider.script(route, *steps)


_first_start: dict[str, bytes] = {}


async def _furnish(home: Path) -> None:
    """Lay a store as a first start leaves it: made once, it saves all tests much of their time."""
    files = ("forbear.db", "keys/store.key", "keys/audit-seal.key", "keys/audit-sign.key")
    if stores.on_server():
        return
    if not _first_start:
        with TemporaryDirectory() as folder:
            model = Path(folder)
            await open_store(Settings(home=model)).close()
            _first_start.update({name: (model / name).read_bytes() for name in files})
    for name in files:
        path = home / name
        path.parent.mkdir(exist_ok=True, mode=0o700)
        path.touch(0o600)
        path.write_bytes(_first_start[name])


@asynccontextmanager
async def furnished(
    home: Path, job: Data = EXPORT, *, states: Sequence[str] | None = STATES, **top: Any
) -> AsyncIterator[FakeProvider]:
    """A provider, and a home with its contract, for processes that come and go.

    `states` is what the first job, `exp_1`, goes through; None plans no job.
    """
    await _furnish(home)
    async with FakeProvider() as provider:
        if states is not None:
            provider.job("exp_1", list(states), result={"rows": 3})
        write_contract(home, contract(job, **{"base_url": provider.base_url, **top}))
        yield provider


@asynccontextmanager
async def stage(
    home: Path,
    job: Data = EXPORT,
    *,
    states: Sequence[str] | None = STATES,
    clock: ManualClock | None = None,
    **top: Any,
) -> AsyncIterator[Stage]:
    """`furnished` with one process on the home and a client of it."""
    async with (
        furnished(home, job, states=states, **top) as provider,
        process(provider, home, clock or ManualClock()) as on,
    ):
        yield on


@asynccontextmanager
async def process(
    provider: FakeProvider,
    home: Path,
    clock: ManualClock,
    *,
    role: str = "serve",
) -> AsyncIterator[Stage]:
    """One more process on a home, with a worker and a client of its own."""
    settings = Settings.load({"FORBEAR_HOME": str(home), **stores.environment(home)})
    async with (
        running(settings, role=role, worker=True, clock=clock, random=_Luck()) as app,
        _client(app) as client,
    ):
        await app.store.write(_refuse_unrevised)
        pulse = asyncio.create_task(_pulse(app))
        try:
            yield Stage(provider, home, clock, app, client)
        finally:
            pulse.cancel()


def _refuse_unrevised(connection: Connection) -> None:
    """Let no operation change without a new revision, but for what may (`transitions.BESIDE`).

    Who holds an operation that it read goes by its revision.
    """
    if connection.dialect.name != "sqlite":
        return
    free = {*BESIDE, "revision", "emptied_at"}
    fixed = [
        column.name
        for column in operations.c
        if column.name not in free and not isinstance(column.type, Sealed)
    ]
    differs = " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in fixed)
    connection.exec_driver_sql(
        "CREATE TRIGGER IF NOT EXISTS unrevised BEFORE UPDATE ON operations"
        f" WHEN NEW.revision = OLD.revision AND ({differs})"
        " BEGIN SELECT RAISE(ABORT, 'changed without a revision'); END"
    )


async def _pulse(app: App) -> None:
    """Hear of other processes while the clock stands; the worker does it on its clock."""
    while True:
        await asyncio.sleep(0.02)
        app.store.look_elsewhere()


class _Luck:
    """A known schedule, and ids that no other process on the home makes."""

    def __init__(self, seed: int = 1) -> None:
        self._schedule = FixedRandom.seeded(seed)
        self._ids = SystemRandom()

    def uniform(self) -> float:
        return self._schedule.uniform()

    def token(self, size: int) -> str:
        return self._ids.token(size)


@asynccontextmanager
async def _client(app: App) -> AsyncIterator[Client]:
    server = build(app.desk, version="0", caller_of=only(app.store.liveness.owner))
    async with Client(server) as client:
        await client.list_tools()
        yield client


@asynccontextmanager
async def another_chat(on: Stage) -> AsyncIterator[Client]:
    """A second client of the same process."""
    async with _client(on.app) as client:
        yield client


@asynccontextmanager
async def bank(home: Path, transfer: Data, **top: Any) -> AsyncIterator[Stage]:
    """A stage whose provider makes transfers, the first of them `tr_1`."""
    async with stage(home, states=None, calls={"transfer": transfer}, **top) as on:
        on.provider.job("tr_1", ["done"], collection="/transfers")
        yield on


def says(state: str, **more: Any) -> Answer:
    """A status answer about job `exp_1`."""
    return Answer(json={"id": "exp_1", "state": state, **more})
