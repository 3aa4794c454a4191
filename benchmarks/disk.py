"""(j) Disk that an operation takes once it is over, with twelve sealed events."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.tables import Figure, Row, Table
from benchmarks.units import holding, many
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.store import Store

POLLS = 5
"""With them a job has as near to twelve events as whole requests allow."""
EVENTS = 12

NOTES = (
    "A job that was accepted, submitted and polled until it was done. Bytes of the file once all "
    f"is checkpointed, over those of an empty store; the figure is scaled to {EVENTS} events.",
    "`by table` counts the pages of a table and its indexes.",
)


async def filled(home: Path, operations: int) -> Path:
    store = Store(home, SystemClock(), SystemRandom())
    store.liveness.claim()
    held = holding()

    jobs = await many(store, held, range(operations))
    for poll in range(POLLS):
        state = "done" if poll == POLLS - 1 else "running"
        await asyncio.gather(*(job.request(state) for job in jobs))
    await store.close()
    return store.path


def table(quick: bool) -> Table:
    operations = 50 if quick else 1_000
    with (
        tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="forbear-bench-") as other,
    ):
        path = asyncio.run(filled(Path(folder), operations))
        empty = asyncio.run(filled(Path(other), 0)).stat().st_size
        with closing(sqlite3.connect(path)) as connection:
            [(events,)] = connection.execute("SELECT count(*) FROM events").fetchall()
            sizes = _sizes(connection)
        each = (path.stat().st_size - empty) / operations
    rows: list[Row] = [{"what": "whole file, over an empty store", "bytes each": each}]
    rows += [{"what": f"table {name}", "bytes each": size / operations} for name, size in sizes]
    scaled = each * EVENTS / (events / operations)
    figure = Figure("a finished operation, 12 events", scaled, 3_000, 2_200, "B", True)
    title = f"disk of {operations} finished operations, {events / operations:.1f} events each"
    return Table("disk", title, rows, [figure], NOTES)


def _sizes(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """The largest tables with their indexes, where SQLite can tell."""
    try:
        return connection.execute(
            "SELECT tbl_name, sum(pgsize) FROM dbstat JOIN sqlite_schema USING (name)"
            " GROUP BY tbl_name ORDER BY 2 DESC LIMIT 6"
        ).fetchall()
    except sqlite3.OperationalError:
        return []
