"""(k) Where the processor's time of a request goes in the two transactions of the ledger."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.tables import Row, Table
from benchmarks.units import holding, many
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.database import Database
from forbear.storage.store import Store
from forbear.storage.writer import FileWriter, Outcome, Unit

TICK = 0.0005
"""Seconds of processor time between two looks."""

OPERATIONS = 50

NOTES = (
    f"The storage path of `storage`, {OPERATIONS} at once, all on one thread: a timer of processor "
    "time looks which function runs. What it calls in C or in a library counts as its own.",
    "`SQLite`: executing statements, 36 in a request. `batch`: lock, BEGIN, SAVEPOINTs, COMMIT "
    "with its share of fsync, mark. `sealing`: columns, and the row of the audit log. "
    "`operation`: reading, changing and comparing its row. `caller`: the answer, the event loop.",
)


class _Here(FileWriter):
    """Writes on the thread of the loop."""

    async def _store(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        return self._write(units)


_PARTS: tuple[tuple[str, str, str], ...] = (
    ("storage/statements.py", "_on_sqlite", "SQLite"),
    ("storage/statements.py", "", "parameters and rows"),
    ("storage/writer.py", "", "batch"),
    ("storage/mark.py", "", "batch"),
    ("storage/database.py", "", "batch"),
    ("storage/files.py", "", "batch"),
    ("storage/vault.py", "", "sealing"),
    ("storage/sealing.py", "", "sealing"),
    ("storage/packing.py", "", "sealing"),
    ("storage/audit.py", "", "sealing"),
    ("storage/rows.py", "", "operation"),
    ("storage/transitions.py", "", "operation"),
    ("/storage/", "", "other storage"),
    ("/rules/", "", "rules"),
)
"""By a part of the file's path and the function, "" for any: what a look counts for."""


def part_of(frame: FrameType | None) -> str:
    """What runs, by the innermost function of ours."""
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if "/forbear/" in path:
            for place, function, part in _PARTS:
                if place in path and function in ("", name):
                    return part
        frame = frame.f_back
    return "caller"


@contextmanager
def looking() -> Generator[Counter[str]]:
    """Looks at this thread while it computes."""
    seen: Counter[str] = Counter()

    def look(_number: int, frame: FrameType | None) -> None:
        seen[part_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


async def measured(home: Path, rounds: int) -> tuple[Counter[str], float]:
    """Looks by part, and the processor time of a request in microseconds."""
    store = Store(home, SystemClock(), SystemRandom())
    store.liveness.claim()
    jobs = await many(store, holding(), range(OPERATIONS))
    database = Database(store.path)
    writer = _Here(database)
    for job in jobs:
        job.run = writer.run
    await asyncio.gather(*(job.request() for job in jobs))  # compiles what is compiled once
    with looking() as seen:
        began = time.process_time()
        for _ in range(rounds):
            await asyncio.gather(*(job.request() for job in jobs))
        took = time.process_time() - began
    await writer.close()
    await database.close()
    await store.close()
    return seen, took / (rounds * OPERATIONS) * 1_000_000


def table(quick: bool) -> Table:
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        seen, each = asyncio.run(measured(Path(folder), 20 if quick else 200))
    rows: list[Row] = [
        {"part": part, "CPU us a request": each * looks / seen.total(), "share": f"{share:.0%}"}
        for part, looks in seen.most_common()
        for share in [looks / seen.total()]
    ]
    rows.append({"part": "all", "CPU us a request": each, "share": "100%"})
    return Table("shares", "where a request's processor time goes in the store", rows, (), NOTES)
