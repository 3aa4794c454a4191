"""(g) What the sealed audit log costs: time to seal a row, and rows verified in a second.

There is no provider and no fsync in it: rows are appended in one transaction.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.tables import Row, Table
from forbear.storage import audit, sealing, verifying
from forbear.storage.database import Database
from forbear.storage.sealing import compact

NOTES = (
    "Microseconds a row: `chained` is a plain body and its hash, `sealed` the same with AES-GCM, "
    "`appended` what the ledger does: read the head, seal, insert, now and then sign.",
)


def micros(work: Callable[[int], object], times: int) -> float:
    started = time.perf_counter()
    for number in range(1, times + 1):
        work(number)
    return (time.perf_counter() - started) / times * 1e6


def measured(rows: int, size: int) -> Row:
    body = {"event": "waiting", "state": "x" * size}
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        path = Path(folder) / "forbear.db"
        database = Database(path)
        log = database.log

        def plain(number: int) -> str:
            header = compact({"format": 1, "at": number, "code": "answered", "operation": "op_1"})
            return sealing.plain_hash(sealing.GENESIS, header, compact(body))

        chained = micros(plain, rows)
        epoch = sealing.Epoch(1, log.wrapped(sealing.new_epoch_key()), 0, 1)

        def seal(number: int) -> sealing.Sealed:
            return log.seal(epoch, sealing.GENESIS, number, number, "answered", "op_1", body)

        sealed = micros(seal, rows)
        with database.writer.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            appended = micros(
                lambda n: audit.append(connection, None, n, audit.Code.ANSWERED, body), rows
            )
            connection.exec_driver_sql("COMMIT")
        started = time.perf_counter()
        with verifying.read(path, live=True) as evidence:
            report = verifying.verify(evidence)
        took = time.perf_counter() - started
        assert report.broken is None, report
        asyncio.run(database.close())
    return {
        "rows": rows,
        "body bytes": size,
        "chained us": chained,
        "sealed us": sealed,
        "appended us": appended,
        "verified rows/s": rows / took,
    }


def table(quick: bool) -> Table:
    rows = 2_000 if quick else 50_000
    return Table(
        "audit", "the sealed audit log", [measured(rows, size) for size in (512, 2_048)], (), NOTES
    )
