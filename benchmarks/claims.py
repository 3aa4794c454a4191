"""(d) How long a claim takes with a thousand, a hundred thousand and a million waiting operations.

A claim is what a worker does for an operation that became due: find it, and reserve its request.
The waiting operations are copies of a job that is polled; none is due but the one in hand.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Connection

from benchmarks.tables import Figure, Row, Table
from benchmarks.units import CLOCK, Polled, Unit, holding, submitted
from benchmarks.waiting import copy
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.store import Store

NOTES = (
    "`due`: the worker's question what is due; `next due`: its question when anything will be; "
    "`reserve`: transaction 1 of one that is due, with its fsync; `settle`: transaction 2. Median "
    "ms, the stores in turns.",
)
STEPS = ("due", "next due", "reserve", "settle")


class Bench:
    """A store on which many jobs wait and one is due now and then."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store(home, SystemClock(), SystemRandom())
        self.store.liveness.claim()
        self.took: dict[str, list[float]] = {step: [] for step in STEPS}
        self._job: Polled

    async def fill(self, waiting: int) -> None:
        held = holding()
        model = await self.store.read.operation(
            (await submitted(self.store, held, "model")).operation_id
        )
        assert model is not None
        copy(self.store.path, model, waiting - 1)
        self._job = await submitted(self.store, held, "in hand")

        def later(connection: Connection) -> None:
            """Far enough that nothing but the job in hand becomes due."""
            connection.exec_driver_sql(
                "UPDATE operations SET next_at = next_at + 36000000 WHERE next_at IS NOT NULL"
            )

        await self.store.write(later)

    async def claim(self) -> None:
        await self.store.write(self._make_due)
        began = time.perf_counter()
        due = await self.store.read.due(CLOCK.now().wall)
        found = time.perf_counter()
        await self.store.read.next_due(CLOCK.now().wall)
        seen = time.perf_counter()
        assert [one.id for one in due] == [self._job.operation_id], due
        reserved, settled = await self._timed_request()
        for step, seconds in zip(
            STEPS, (found - began, seen - found, reserved, settled), strict=True
        ):
            self.took[step].append(seconds * 1_000)

    async def _timed_request(self) -> tuple[float, float]:
        times: list[float] = []

        async def run(unit: Unit) -> Any:
            began = time.perf_counter()
            done = await self.store.write(unit)
            times.append(time.perf_counter() - began)
            return done

        self._job.run = run
        await self._job.request()
        reserved, settled = times
        return reserved, settled

    def _make_due(self, connection: Connection) -> None:
        due = "UPDATE operations SET next_at = ? WHERE id = ?"
        connection.exec_driver_sql(due, (CLOCK.now().wall, self._job.operation_id))


async def measured(numbers: tuple[int, ...], rounds: int) -> dict[int, dict[str, list[float]]]:
    async with AsyncExitStack() as stack:
        benches: dict[int, Bench] = {}
        for number in numbers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="forbear-bench-"))
            bench = benches[number] = Bench(Path(folder))
            stack.push_async_callback(bench.store.close)
            await bench.fill(number)
        for turn in range(rounds):
            order = list(benches.values())
            for bench in order if turn % 2 else reversed(order):
                await bench.claim()
        return {number: bench.took for number, bench in benches.items()}


def table(quick: bool) -> Table:
    numbers = (1_000, 100_000) if quick else (1_000, 100_000, 1_000_000)
    found = asyncio.run(measured(numbers, 20 if quick else 60))
    rows: list[Row] = [
        {"waiting": number, **{f"{step} ms": median(times) for step, times in took.items()}}
        for number, took in found.items()
    ]
    most, before = (_claims(found[number]) for number in (numbers[-1], numbers[-2]))
    value = median(a / b for a, b in zip(most, before, strict=True))
    name = f"due + reserve at {numbers[-1]:,} against {numbers[-2]:,}"
    figure = Figure(name, value, 2.0, 1.2, less_is_better=True)
    return Table("claims", "claims among many that wait", rows, [figure], NOTES)


def _claims(took: dict[str, list[float]]) -> list[float]:
    return [due + reserve for due, reserve in zip(took["due"], took["reserve"], strict=True)]
