"""(f) One, two and four processes on one store, each with requests of its own.

    python -m benchmarks.processes HOME AT_ONCE SECONDS

is one of them: it waits for a line, sends requests through its ledger, and prints what it did.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ROOT
from benchmarks.tables import Figure, Row, Table
from benchmarks.units import Unit, holding, submitted
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.store import Store

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


async def one(home: Path, at_once: int, seconds: float) -> None:
    store = Store(home, SystemClock(), SystemRandom())
    store.liveness.claim()
    held, worst, count = holding(), 0.0, 0

    async def write(unit: Unit) -> Any:
        nonlocal worst
        began = time.perf_counter()
        done = await store.write(unit)
        worst = max(worst, time.perf_counter() - began)
        return done

    names = [f"{store.liveness.owner} {number}" for number in range(2 * at_once)]
    jobs = [await submitted(store, held, name) for name in names]
    for job in jobs:
        job.run = write
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ends = time.perf_counter() + seconds

    async def loop(number: int) -> None:
        nonlocal count
        while time.perf_counter() < ends:
            for job in jobs[number::at_once]:
                await job.request()
                count += 1

    began = time.perf_counter()
    await asyncio.gather(*(loop(number) for number in range(at_once)))
    took = time.perf_counter() - began
    await store.close()
    print(json.dumps({"rate": count / took, "worst_ms": worst * 1_000}), flush=True)


def trial(processes: int, seconds: float) -> Done:
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        at_once = AT_ONCE // processes
        command = [sys.executable, "-m", "benchmarks.processes", folder, f"{at_once}", f"{seconds}"]
        running = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a process did not start"
        told = []
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            told.append(json.loads(process.communicate()[0]))
    return Done(sum(one["rate"] for one in told), max(one["worst_ms"] for one in told))


def table(quick: bool) -> Table:
    rounds, seconds = (1, 2.0) if quick else (3, 8.0)
    numbers = (1, 2, 4)
    found: dict[int, list[Done]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number in numbers:
            found[number].append(trial(number, seconds))
    rows: list[Row] = [
        {
            "store": "SQLite",
            "processes": number,
            "requests/s": median(one.rate for one in found[number]),
            "of one process": _share(found[number], found[1]),
            "worst wait ms": median(one.worst_ms for one in found[number]),
        }
        for number in numbers
    ]
    worst = median(one.worst_ms for one in found[4]) / 1_000
    figures = [
        Figure("SQLite, 4 processes against 1", _share(found[4], found[1]), 0.8, 1.0),
        Figure("SQLite, 4 processes, worst wait", worst, 1.0, 0.3, "s", True),
    ]
    return Table("processes", "several processes on one store", rows, figures, NOTES)


def _share(many: list[Done], alone: list[Done]) -> float:
    return median(a.rate / b.rate for a, b in zip(many, alone, strict=True))


if __name__ == "__main__":
    asyncio.run(one(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
