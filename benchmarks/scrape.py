"""How long one scrape of /metrics takes on a store with many operations.

The operations are copies of real ones, each with its attempts.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.tables import Table
from benchmarks.units import holding, submitted
from forbear.server.app import running
from forbear.server.config import Settings
from forbear.server.console import meters


def _copy(file: Path, model: int, count: int, *, live: bool) -> None:
    """Copy the operation with the number `model` and its attempts so many times."""
    with closing(sqlite3.connect(file)) as store, store:
        [(model_id,)] = store.execute("SELECT id FROM operations WHERE number = ?", (model,))
        kind = "live" if live else "over"
        for table, fresh in (
            ("operations", {"id": "'op_{kind}_' || n", "number": "NULL", "key": "NULL"}),
            ("attempts", {"id": "id || '_{kind}_' || n", "operation_id": "'op_{kind}_' || n"}),
        ):
            names = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
            if table == "operations":
                fresh["provider_job"] = "'job_{kind}_' || n"
                if live:
                    fresh |= {"state": "'delayed'", "next_at": "updated_at + n"}
            values = ", ".join(fresh.get(name, f'"{name}"').format(kind=kind) for name in names)
            where = "id" if table == "operations" else "operation_id"
            store.execute(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
                f"WHERE n < {count}) INSERT INTO {table} SELECT {values} FROM {table}, numbers "
                f"WHERE {where} = ?",
                (model_id,),
            )


async def measure(ended: int, live: int) -> dict[str, float | int]:
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        home = Path(folder)
        async with running(Settings(home=home), role="console", worker=False) as app:
            app.store.liveness.claim()
            job = await submitted(app.store, holding(), "model")
            for poll in range(5):
                await job.request("done" if poll == 4 else "running")
        _copy(home / "forbear.db", 1, ended, live=False)
        _copy(home / "forbear.db", 1, live, live=True)
        size = (home / "forbear.db").stat().st_size / 1e6
        async with running(Settings(home=home), role="console", worker=False) as app:
            took = []
            for _ in range(10):
                started = time.perf_counter()
                meters.exposition(await meters.meters(app))
                took.append((time.perf_counter() - started) * 1_000)
    return {
        "operations over": ended,
        "live": live,
        "MB": size,
        "median ms": statistics.median(took),
        "worst ms": max(took),
    }


def table(quick: bool) -> Table:
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    rows = [asyncio.run(measure(size, size // 100)) for size in sizes]
    return Table("scrape", "one scrape of /metrics", rows)
