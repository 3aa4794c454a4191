"""How long one scrape of /metrics takes on a store with many operations.

    python benchmarks/scrape.py [--ended 100000] [--live 1000]

Prints the milliseconds of a scrape, median and worst of ten.
The operations are copies of real ones, each with its attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(ROOT / layer) for layer in ("rules", "storage", "tools", "server", "benchmarks")
]

from ledger import CONTRACT, polls  # noqa: E402

from forbear.rules.contract import Contract  # noqa: E402
from forbear.rules.contract_file import parse  # noqa: E402
from forbear.server.app import running  # noqa: E402
from forbear.server.clock import SystemRandom  # noqa: E402
from forbear.server.config import Settings  # noqa: E402
from forbear.server.console import meters  # noqa: E402
from forbear.storage.transitions import Holding  # noqa: E402
from forbear.tools.drafts import Drafter  # noqa: E402


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


async def measure(ended: int, live: int) -> str:
    contract = parse(CONTRACT, "bench.toml")
    assert isinstance(contract, Contract), contract
    holding = Holding(contract, contract.jobs["export"], "fingerprint")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        async with running(Settings(home=home), role="console", worker=False) as app:
            app.store.liveness.claim()
            drafter = Drafter(app.store.key, SystemRandom(), "bench")
            await polls(app.store, holding, drafter, 1, 5)
        _copy(home / "forbear.db", 1, ended, live=False)
        _copy(home / "forbear.db", 1, live, live=True)
        size = (home / "forbear.db").stat().st_size / 1e6
        async with running(Settings(home=home), role="console", worker=False) as app:
            took = []
            for _ in range(10):
                started = time.perf_counter()
                meters.exposition(await meters.meters(app))
                took.append((time.perf_counter() - started) * 1_000)
    return (
        f"{ended} operations over, {live} live, {size:.0f} MB: "
        f"a scrape {statistics.median(took):.1f} ms, worst {max(took):.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, default=100_000)
    parser.add_argument("--live", type=int, default=1_000)
    given = parser.parse_args()
    print(asyncio.run(measure(given.ended, given.live)))


if __name__ == "__main__":
    main()
