"""What the sealed audit log costs: microseconds to seal a row, and rows verified in a second.

    python benchmarks/audit.py [--rows 50000] [--bytes 512 2048]

There is no provider and no fsync in it: rows are appended in one transaction. `chained alone` is
the same row with a plain body. Rates depend on the machine; compare lines of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / layer) for layer in ("rules", "storage", "tools", "server")]

from forbear.storage import audit, sealing, verifying  # noqa: E402
from forbear.storage.database import Database  # noqa: E402
from forbear.storage.sealing import compact  # noqa: E402


def micros(work: Callable[[int], object], times: int) -> float:
    started = time.perf_counter()
    for number in range(1, times + 1):
        work(number)
    return (time.perf_counter() - started) / times * 1e6


def measure(rows: int, size: int) -> str:
    body = {"event": "waiting", "state": "x" * size}
    with tempfile.TemporaryDirectory() as folder:
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
    return (
        f"body {size:5} B: chained alone {chained:5.1f} us, sealed {sealed:5.1f} us, "
        f"appended and signed {appended:6.1f} us a row; verified {rows / took:8.0f} rows/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, nargs="*", default=[512, 2048])
    given = parser.parse_args()
    for size in given.bytes:
        print(measure(given.rows, size))


if __name__ == "__main__":
    main()
