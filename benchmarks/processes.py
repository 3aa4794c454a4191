"""(f) One, two and four processes on one store, each with requests of its own.

    python -m benchmarks.processes HOME AT_ONCE SECONDS [DATABASE_URL]

is one of them: it waits for a line, sends requests through its ledger, and prints what it did.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT
from benchmarks.environments import Missing, postgres
from benchmarks.tables import Figure, Row, Table
from benchmarks.units import Unit, holding, many
from forbear.server.app import open_store
from forbear.server.config import Settings

AT_ONCE = 48
"""Requests under way in all processes together."""

NOTES = (
    f"The storage path of `storage`, {AT_ONCE} requests at once, shared among the processes. "
    "`worst wait` is the longest that one transaction took, from asking for it until it is "
    "durable, of any process; the median over the rounds.",
)


@dataclass(frozen=True, slots=True)
class Done:
    """What all processes of one trial did together."""

    rate: float
    worst_ms: float


async def one(home: Path, at_once: int, seconds: float, url: str | None) -> None:
    store = open_store(Settings(home=home, database=url))
    store.liveness.claim()
    held, worst, done = holding(), 0.0, 0

    async def write(unit: Unit) -> Any:
        nonlocal worst
        began = time.perf_counter()
        result = await store.write(unit)
        worst = max(worst, time.perf_counter() - began)
        return result

    names = [f"{store.liveness.owner} {number}" for number in range(2 * at_once)]
    jobs = await many(store, held, names)
    for job in jobs:
        job.run = write
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ends = time.perf_counter() + seconds

    async def loop(number: int) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            for job in jobs[number::at_once]:
                await job.request()
                done += 1

    began = time.perf_counter()
    await asyncio.gather(*(loop(number) for number in range(at_once)))
    took = time.perf_counter() - began
    await store.close()
    print(json.dumps({"rate": done / took, "worst_ms": worst * 1_000}), flush=True)


def trial(processes: int, seconds: float, url: str | None) -> Done:
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        at_once = AT_ONCE // processes
        command = [sys.executable, "-m", "benchmarks.processes", folder, f"{at_once}", f"{seconds}"]
        running = [
            subprocess.Popen(
                [*command, *([] if url is None else [url])],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a process did not start"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [json.loads(process.communicate()[0]) for process in running]
    return Done(sum(one["rate"] for one in told), max(one["worst_ms"] for one in told))


async def _database(address: str, number: int) -> str:
    """The address of a new database on a server."""
    asyncpg = import_module("asyncpg")
    connection = await asyncpg.connect(address)
    await connection.execute(f"CREATE DATABASE bench_{number}")
    await connection.close()
    return address.replace("/postgres?", f"/bench_{number}?")


def table(quick: bool) -> Table:
    rounds, seconds = (1, 2.0) if quick else (3, 6.0)
    numbers = (1, 4) if quick else (1, 2, 4)
    with ExitStack() as stack:
        address: str | None = None
        notes: tuple[str, ...] = NOTES
        try:
            address = stack.enter_context(postgres())
        except Missing as error:
            notes = (*NOTES, f"PostgreSQL was not measured: {error}")
        stores = ("SQLite",) if address is None else ("SQLite", "PostgreSQL")
        found: dict[tuple[str, int], list[Done]] = {
            (store, number): [] for store in stores for number in numbers
        }
        made = count()
        for _ in range(rounds):
            for (store, number), trials in found.items():
                url = None
                if address is not None and store == "PostgreSQL":
                    url = asyncio.run(_database(address, next(made)))
                trials.append(trial(number, seconds, url))
    rows: list[Row] = [
        {
            "store": store,
            "processes": number,
            "requests/s": median(one.rate for one in trials),
            "of one process": _share(trials, found[store, 1]),
            "worst wait ms": median(one.worst_ms for one in trials),
        }
        for (store, number), trials in found.items()
    ]
    most = found["SQLite", 4]
    worst = median(one.worst_ms for one in most) / 1_000
    figures = [
        Figure("SQLite, 4 processes against 1", _share(most, found["SQLite", 1]), 0.8, 1.0),
        Figure("SQLite, 4 processes, worst wait", worst, 1.0, 0.3, "s", True),
    ]
    return Table("processes", "several processes on one store", rows, figures, notes)


def _share(many: list[Done], alone: list[Done]) -> float:
    return median(a.rate / b.rate for a, b in zip(many, alone, strict=True))


if __name__ == "__main__":
    home, at_once, seconds, *rest = sys.argv[1:]
    asyncio.run(one(Path(home), int(at_once), float(seconds), rest[0] if rest else None))
