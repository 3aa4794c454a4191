"""(a) The storage path: two durable transactions around a canned answer; (j) disk per operation.

No network is in it. Each variant keeps `concurrency` requests under way at any time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.tables import Figure, Stopwatch, Table, Trial, cpu_us, in_turns, rate, ratio
from benchmarks.units import Unit, Work, holding, many
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.database import Database, _data_keys
from forbear.storage.store import Store
from forbear.storage.vault import Vault, unlock

OURS = "forbear"
SAME_UNITS = "the same units, one by one, SQLAlchemy async"
NAIVE = "naive rows, SQLAlchemy async + aiosqlite"
RAW = "naive rows, sqlite3 in a thread"

NOTES = (
    "`forbear is`: how many times as fast; `in CPU`: how many times as much CPU the other needs "
    "for a request, which other load on the machine hardly changes.",
    f"`{OURS}`: the ledger as it runs. Transaction 1 checks state, lease, budgets, scopes and "
    "pause, renders the request, writes operation, attempt, scope register and slot; "
    "transaction 2 judges the answer, writes the same and learns from limits. Columns are sealed "
    "(AES-GCM), each transaction appends a sealed row to the audit chain. Many share one COMMIT.",
    f"`{SAME_UNITS}`: the very same functions through `AsyncConnection.run_sync` on aiosqlite, "
    "pool of one, BEGIN IMMEDIATE, FULL. The fairest comparison of the path alone.",
    f"`{NAIVE}`: what one writes first: each transaction is one UPDATE of an operation and one "
    "INSERT of an event, plain JSON, nothing checked, sealed or chained. Pool of one, "
    "BEGIN IMMEDIATE, FULL.",
    f"`{RAW}`: the same two statements with sqlite3 in one thread, one transaction each.",
)

_SCHEMA = (
    "CREATE TABLE op (id INTEGER PRIMARY KEY, state TEXT, next_at INTEGER, attempts INTEGER,"
    " body TEXT)",
    "CREATE TABLE event (id INTEGER PRIMARY KEY, op INTEGER, at INTEGER, code TEXT, body TEXT)",
)
_UPDATE = "UPDATE op SET state = :state, next_at = :at, attempts = attempts + 1 WHERE id = :id"
_INSERT = "INSERT INTO event (op, at, code, body) VALUES (:id, :at, :code, :body)"
_BODY = '{"attempt":"att_abcdefghijklmnopqrst","number":7,"step":"status","elapsed_ms":12}' * 3


def _writing(engine: AsyncEngine) -> AsyncEngine:
    """BEGIN IMMEDIATE and FULL, so that read-then-write holds and a commit survives power loss."""

    def connected(raw: Any, _record: object) -> None:
        raw.isolation_level = None
        cursor = raw.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begun)
    return engine


# --- the variants -----------------------------------------------------------------------------


@asynccontextmanager
async def forbear(home: Path, operations: int) -> AsyncGenerator[Sequence[Work]]:
    store = Store(home, SystemClock(), SystemRandom())
    store.liveness.claim()
    held = holding()
    try:
        yield await many(store, held, range(operations))
    finally:
        await store.close()


@asynccontextmanager
async def same_units(home: Path, operations: int) -> AsyncGenerator[Sequence[Work]]:
    store = Store(home, SystemClock(), SystemRandom())
    store.liveness.claim()
    held = holding()
    database = Database(store.path)
    engine = _writing(
        create_async_engine(f"sqlite+aiosqlite:///{store.path}", pool_size=1, max_overflow=0)
    )
    unlock(engine.dialect, Vault(lambda: _data_keys(store.path, database.log)))
    engine = engine.execution_options(audit=database.log)

    async def run(unit: Unit) -> Any:
        async with engine.begin() as connection:
            return await connection.run_sync(unit)

    try:
        jobs = await many(store, held, range(operations))
        for job in jobs:
            job.run = run
        yield jobs
    finally:
        await engine.dispose()
        await database.close()
        await store.close()


class _Rows:
    """A naive request: two transactions of two statements."""

    def __init__(self, number: int, write: Callable[..., Any]) -> None:
        self._id = number
        self._write = write

    async def request(self) -> None:
        for state in ("sending", "waiting"):
            at = SystemClock().now().wall
            changed = {"id": self._id, "state": state, "at": at}
            await self._write(changed, {"id": self._id, "at": at, "code": state, "body": _BODY})


def _prepare(file: Path, operations: int) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        rows = [(number, "waiting", 0, 0, _BODY) for number in range(operations)]
        connection.executemany("INSERT INTO op VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()


@asynccontextmanager
async def naive(home: Path, operations: int) -> AsyncGenerator[Sequence[Work]]:
    file = home / "naive.db"
    _prepare(file, operations)
    made = create_async_engine(f"sqlite+aiosqlite:///{file}", pool_size=1, max_overflow=0)
    engine = _writing(made)
    meta = sa.MetaData()
    async with engine.connect() as connection:
        await connection.run_sync(meta.reflect)
    op, happened = meta.tables["op"], meta.tables["event"]
    update = (
        sa.update(op)
        .where(op.c.id == sa.bindparam("which"))
        .values(state=sa.bindparam("state"), next_at=sa.bindparam("at"), attempts=op.c.attempts + 1)
    )
    insert = sa.insert(happened)

    async def write(changed: dict[str, Any], told: dict[str, Any]) -> None:
        async with engine.begin() as connection:
            values = {"which": changed["id"], "state": changed["state"], "at": changed["at"]}
            await connection.execute(update, values)
            row = {"op": told["id"], "at": told["at"], "code": told["code"], "body": told["body"]}
            await connection.execute(insert, row)

    try:
        yield [_Rows(number, write) for number in range(operations)]
    finally:
        await engine.dispose()


@asynccontextmanager
async def raw(home: Path, operations: int) -> AsyncGenerator[Sequence[Work]]:
    file = home / "raw.db"
    _prepare(file, operations)
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    loop = asyncio.get_running_loop()

    def unit(changed: dict[str, Any], told: dict[str, Any]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_UPDATE, changed)
        connection.execute(_INSERT, told)
        connection.execute("COMMIT")

    with ThreadPoolExecutor(1) as thread, closing(connection):

        async def write(changed: dict[str, Any], told: dict[str, Any]) -> None:
            await loop.run_in_executor(thread, unit, changed, told)

        yield [_Rows(number, write) for number in range(operations)]


VARIANTS = {OURS: forbear, SAME_UNITS: same_units, NAIVE: naive, RAW: raw}


# --- the table --------------------------------------------------------------------------------


async def hammer(works: Sequence[Work], concurrency: int, requests: int) -> Trial:
    """So many requests, so many at any time; each goes to the operation that rested longest."""
    idle = asyncio.Queue[Work]()
    for work in works:
        idle.put_nowait(work)
    left = iter(range(requests))

    async def one() -> None:
        for _ in left:
            work = idle.get_nowait()
            await work.request()
            idle.put_nowait(work)

    watch = Stopwatch()
    await asyncio.gather(*(one() for _ in range(concurrency)))
    return watch.trial(requests)


async def path(concurrency: int, rounds: int, seconds: float) -> tuple[list[dict[str, Any]], Any]:
    """All variants at one concurrency, in turns; each trial takes about so many seconds."""
    async with AsyncExitStack() as stack:
        variants = {}
        for name, variant in VARIANTS.items():
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forbear-bench-")))
            works = await stack.enter_async_context(variant(home, concurrency + 20))
            warm = await hammer(works, concurrency, max(20, concurrency))
            count = max(20, concurrency, round(warm.rate * seconds))
            variants[name] = partial(hammer, works, concurrency, count)
        trials = await in_turns(variants, rounds)
    rows = [
        {
            "at once": concurrency,
            "variant": name,
            "requests/s": rate(found),
            "CPU us each": cpu_us(found),
            "forbear is": ratio(trials[OURS], found),
            "in CPU": cpu_us(found) / cpu_us(trials[OURS]),
        }
        for name, found in trials.items()
    ]
    return rows, trials


def table(quick: bool) -> Table:
    rows, figures = [], []
    for concurrency in (1, 50) if quick else (1, 50, 500):
        size = (3, 0.5) if quick else (3 if concurrency == 500 else 5, 1.5)
        found, trials = asyncio.run(path(concurrency, *size))
        rows += found
        if concurrency == 50:
            for name in (NAIVE, SAME_UNITS):
                value = ratio(trials[OURS], trials[name])
                figures.append(Figure(f"storage path against {name}, 50 at once", value, 15, 40))
    return Table("storage", "two durable transactions around a canned answer", rows, figures, NOTES)
