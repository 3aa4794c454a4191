"""(e) What waiting operations cost: memory and CPU of an idle worker, and time of transactions.

The waiting operations stand in the queue of one scope. They are copies of one that the ledger
accepted and held; none is due while the worker is watched. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from sqlalchemy import Connection

from benchmarks import LAYERS
from benchmarks.tables import Figure, Row, Table
from forbear.rules import signals
from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse
from forbear.rules.facts import facts_of
from forbear.rules.model import Operation, Priority
from forbear.rules.ports import Reply
from forbear.rules.steps import request_of
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.reserving import Reserved
from forbear.storage.store import Store
from forbear.storage.tokens import TokenReserved
from forbear.storage.transitions import Holding
from forbear.tools.drafts import Drafter, Given, call_bounds

T = TypeVar("T")

CONTRACT = """
contract = 1
base_url = "http://127.0.0.1:1"
auth = "none"
[scopes.all]
per = "provider"
rate = "1/1h"
max_concurrent_requests = 100
max_delayed_requests = 1000000
[calls.item]
method = "GET"
path = "/items/{arg.id}"
deadline = "1000h"
"""

TIMES = 9
"""How often each transaction is timed; the median is printed."""

COPIES = (
    "INSERT INTO requests SELECT 'op_' || i, request, body, credential"
    " FROM requests, counted WHERE operation_id = :model",
    "INSERT INTO tasks SELECT 'op_' || i, task FROM tasks, counted WHERE operation_id = :model",
    "INSERT INTO waits (operation_id, scope, rank, principal, task, number, parked)"
    " SELECT 'op_' || i, scope, rank, principal, task, :first + i, parked"
    " FROM waits, counted WHERE operation_id = :model",
)


def copy(path: Path, model: Operation, copies: int) -> None:
    """Let so many operations wait behind `model`, an hour from one to the next."""
    with closing(sqlite3.connect(path)) as connection:
        columns = [f'"{row[1]}"' for row in connection.execute("PRAGMA table_info(operations)")]
        own = {
            '"number"': ":first + i",
            '"id"': "'op_' || i",
            '"intent"': "'intent ' || i",
            '"ref"': "'ref ' || i",
            '"next_at"': "next_at + i * 3600000",
            '"provider_job"': "provider_job || '-' || i",
        }
        values = ", ".join(own.get(name, name) for name in columns)
        operations = (
            f"INSERT INTO operations ({', '.join(columns)}) "
            f"SELECT {values} FROM operations, counted WHERE id = :model"
        )
        connection.execute(
            "CREATE TEMP TABLE counted AS WITH RECURSIVE c(i) AS "
            f"(SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {copies}) SELECT i FROM c"
        )
        for statement in (operations, *COPIES):
            connection.execute(statement, {"model": model.id, "first": model.number})
        connection.commit()


class Bench:
    """A store with a queue, as the process sees it that carries its operations."""

    def __init__(self, home: Path) -> None:
        contract = parse(CONTRACT, "bench.toml")
        assert isinstance(contract, Contract), contract
        self.holding = Holding(contract, contract.calls["item"], "fingerprint")
        self.store = Store(home, SystemClock(), SystemRandom())
        self.store.liveness.claim()
        self._drafter = Drafter(self.store.key, SystemRandom(), "bench")
        self._numbers = count()

    async def accept(self) -> Operation:
        action = self.holding.contract.calls["item"]
        draft = self._drafter.call(
            self.holding,
            action,
            {"id": f"new {next(self._numbers)}"},
            call_bounds(action, None, None),
            Given(purpose=None, key=None, priority=Priority.INTERACTIVE, task=None),
        )
        assert isinstance(draft, Draft), draft
        write = partial(self.store.ledger.accept, draft=draft, holding=self.holding)
        accepted = await self.store.write(write)
        assert isinstance(accepted, Accepted), accepted
        return accepted.operation

    async def reserve(self, operation_id: str) -> Reserved | TokenReserved | bool:
        ledger = self.store.ledger
        write = partial(ledger.reserve, operation_id=operation_id, holding=self.holding)
        return await self.store.write(write)

    async def settle(self, reserved: Reserved) -> None:
        now = SystemClock().now().wall
        reply = Reply(True, True, now, now, 200, (("Content-Length", "2"),), b"{}")
        op, held = reserved.operation, self.holding
        facts, request = facts_of(op, held.contract), request_of(op, held.action)
        signal = signals.read(reply, held.contract, held.action, request, facts, now)
        await self.store.write(
            partial(self.store.ledger.settle, reserved=reserved, reply=reply, signal=signal)
        )

    async def open_the_scope(self) -> str:
        """Let the rate allow a request now; returns the operation whose turn it is."""

        def make_due(connection: Connection) -> str:
            connection.exec_driver_sql("UPDATE scopes SET theoretical_arrival = 0")
            (first,) = connection.exec_driver_sql(
                "SELECT operation_id FROM waits ORDER BY number LIMIT 1"
            ).one()
            due = "UPDATE operations SET next_at = ? WHERE id = ?"
            connection.exec_driver_sql(due, (SystemClock().now().wall, first))
            return str(first)

        return await self.store.write(make_due)


async def fill(home: Path, waiting: int) -> None:
    """A home on which so many operations wait for one scope."""
    (home / "contracts").mkdir()
    (home / "contracts" / "bench.toml").write_text(CONTRACT)
    bench = Bench(home)
    sent = await bench.reserve((await bench.accept()).id)
    assert isinstance(sent, Reserved), sent
    await bench.settle(sent)
    if waiting:
        model = await bench.accept()
        assert await bench.reserve(model.id) is False
        held = await bench.store.read.operation(model.id)
        assert held is not None
        if waiting > 1:
            copy(bench.store.path, held, waiting - 1)
    await bench.store.close()


def watch(home: Path, seconds: float) -> tuple[float, float]:
    """Resident MB of an idle worker process on a home, and the share of a CPU that it takes."""
    environment = {**os.environ, "FORBEAR_HOME": str(home), "PYTHONPATH": os.pathsep.join(LAYERS)}
    with (home / "log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "forbear", "worker"], env=environment, stdout=log, stderr=log
        )
    try:
        _wait_for(home / "forbear.db")
        time.sleep(2)  # its start is not what is measured
        before = _cpu(worker.pid)
        time.sleep(seconds)
        used = _cpu(worker.pid) - before
        status = Path(f"/proc/{worker.pid}/status").read_text()
        (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(resident.split()[1]) / 1024, used / seconds
    finally:
        worker.terminate()
        worker.wait()


def _wait_for(path: Path) -> None:
    """Wait until a worker has signed on."""
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        while not connection.execute("SELECT 1 FROM processes WHERE role = 'worker'").fetchone():
            time.sleep(0.1)


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def timed(home: Path) -> dict[str, float]:
    """Milliseconds to accept, hold, reserve and settle, each with its fsync."""
    bench = Bench(home)
    took: dict[str, list[float]] = {"accept": [], "hold": [], "reserve": [], "settle": []}

    async def measure(name: str, work: Coroutine[Any, Any, T]) -> T:
        started = time.perf_counter()
        done = await work
        took[name].append((time.perf_counter() - started) * 1_000)
        return done

    for _ in range(TIMES):
        new = await measure("accept", bench.accept())
        assert await measure("hold", bench.reserve(new.id)) is False
        first = await bench.open_the_scope()
        reserved = await measure("reserve", bench.reserve(first))
        assert isinstance(reserved, Reserved), reserved
        await measure("settle", bench.settle(reserved))
    await bench.store.close()
    return {name: median(each) for name, each in took.items()}


NOTES = (
    "An idle `forbear worker` in its own process, two seconds after its start. Then the median "
    "time of each transaction that meets the queue, ms with its fsync: accept one more, hold one "
    "whose turn it is not, reserve for the one whose turn it is, and store its outcome.",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What one number of waiting operations costs; `times` in ms."""

    mb: float
    cpu: float
    """Percent of a core."""
    times: dict[str, float]


def measured(waiting: int, seconds: float) -> Found:
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        home = Path(folder)
        asyncio.run(fill(home, waiting))
        resident, share = watch(home, seconds)
        return Found(resident, share * 100, asyncio.run(timed(home)))


def table(quick: bool) -> Table:
    numbers, seconds = ((0, 1_000), 3.0) if quick else ((0, 1_000, 100_000), 30.0)
    found = [measured(number, seconds) for number in numbers]
    most = f"{numbers[-1]:,} waiting"
    figures = [
        Figure(f"{most}: CPU of a core", found[-1].cpu, 0.1, 0.05, "%", True),
        Figure(f"{most}: memory over an empty store", found[-1].mb - found[0].mb, 5, 1, "MB", True),
    ]
    rows: list[Row] = [
        {
            "waiting": number,
            "worker MB": one.mb,
            "CPU %": one.cpu,
            **{f"{name} ms": ms for name, ms in one.times.items()},
        }
        for number, one in zip(numbers, found, strict=True)
    ]
    return Table("waiting", "an idle worker, and a long queue", rows, figures, NOTES)
