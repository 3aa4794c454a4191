"""Group commit: many transactions, one fsync, and each still stands or falls alone.

A unit is a plain function of a connection. Units queued while a batch is being written form the
next batch: one hop to the writer thread, the lock between processes, BEGIN IMMEDIATE, a SAVEPOINT
around each unit, one COMMIT. A future resolves only after that COMMIT.

A unit that raises is undone alone. But a full disk rolls back the whole transaction under the unit,
and the next SAVEPOINT would silently open and commit one of its own; so after any error the driver
is asked whether the transaction is still there. If it is gone the batch is dead: all its units run
again one by one, each in a transaction of its own. Units are therefore written to be repeatable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from forbear.storage.database import Database
from forbear.storage.errors import StoreTooNew, StoreUnavailable
from forbear.storage.generations import Terms
from forbear.storage.tallies import bound_of

T = TypeVar("T")

BATCH = 256
"""Units in one COMMIT at the most."""

UPGRADED = (
    "a newer forbear upgraded the store: this process stores what comes of its requests, and sends "
    "no more -> restart it with the newer program"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A transaction of the ledger."""

    run: Callable[[Connection], Any]
    outcome: bool = False
    """It stores what came of a request that is out, or that the process ends."""

    def may_run(self, terms: Terms) -> bool:
        """Whether this program may still write it."""
        return terms is Terms.ALL or (terms is Terms.OUTCOMES and self.outcome)


@dataclass(slots=True)
class _Job:
    unit: Unit
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one unit of a batch."""

    value: Any = None
    error: BaseException | None = None


class BatchDead(Exception):
    """The transaction under a batch is gone, and nothing of it was stored."""


class Writer(ABC):
    """What a process writes with: units in, batches out. Use it from one event loop."""

    def __init__(self) -> None:
        self._queue: list[_Job] = []
        self._flushing: asyncio.Task[None] | None = None
        self._closed = False
        self.took: Counter[str] = Counter()
        """Batches by how long they took, from asking for the lock until durable (see
        `tallies.bound_of`); under `ms` the sum of it."""

    async def run(self, unit: Callable[[Connection], T], *, outcome: bool = False) -> T:
        """Run `unit` in a transaction and return its value once it is durable.

        `outcome`: see `Unit`. Where a newer program upgraded the store, nothing else is written.

        The unit runs to its end even if the caller is cancelled. It may run twice if a disk fills
        up under a batch, so it must be repeatable.

        Raises:
            StoreUnavailable: nothing of it was stored.
            StoreTooNew: nor will anything be by this process.
        """
        if self._closed:
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # A cancelled caller never looks at its future, and that is no error.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._queue.append(_Job(Unit(unit, outcome), future))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Write what is queued and close the connection."""
        if self._closed:
            return
        self._closed = True
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self._end()

    @abstractmethod
    async def _store(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        """Run a batch; what came of each unit, once that is durable."""

    @abstractmethod
    async def _end(self) -> None:
        """Give up what was written with."""

    async def _flush(self) -> None:
        """Write batch after batch until the queue is empty. Every future gets its outcome."""
        loop = asyncio.get_running_loop()
        batch: list[_Job] = []
        try:
            while self._queue:
                batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
                units = [job.unit for job in batch]
                began = loop.time()
                try:
                    outcomes = await self._store(units)
                except Exception as error:
                    outcomes = [Outcome(error=unavailable(error))] * len(batch)
                self._note(round((loop.time() - began) * 1_000))
                for job, outcome in zip(batch, outcomes, strict=True):
                    _resolve(job.future, outcome)
        except asyncio.CancelledError:
            # The loop is being closed under a batch: nobody can say what became of it.
            for job in (*batch, *self._queue):
                job.future.cancel()
            self._queue = []
            raise
        finally:
            self._flushing = None

    def _note(self, ms: int) -> None:
        self.took[bound_of(ms)] += 1
        self.took["ms"] += ms


class FileWriter(Writer):
    """The one writing connection of a process to a file, on a thread of its own."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forbear-writer")
        self._connection: Connection | None = None

    async def _store(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, units)

    async def _end(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    # --- on the thread ------------------------------------------------------------------------

    def _write(self, units: Sequence[Unit]) -> list[Outcome]:
        try:
            return self._transact(units)
        except BatchDead as dead:
            if len(units) == 1:
                return [Outcome(error=unavailable(dead.__cause__))]
        return [self._write([unit])[0] for unit in units]

    def _transact(self, units: Sequence[Unit]) -> list[Outcome]:
        """One batch in one transaction.

        Raises:
            BatchDead: nothing of the batch was stored.
        """
        try:
            with self._database.lock.held():
                try:
                    connection = self._connect()
                    driver = _driver(connection)
                    driver.execute("BEGIN IMMEDIATE")
                    terms = self._database.entered(connection)
                    outcomes = [self._step(connection, unit, terms) for unit in units]
                    head = self._database.mark.head(connection)
                    driver.execute("COMMIT")
                    self._database.came_to(head)
                    return outcomes
                except BaseException:
                    self._undo()
                    raise
        except (DBAPIError, sqlite3.Error, OSError) as error:
            raise BatchDead from error

    def _step(self, connection: Connection, unit: Unit, terms: Terms) -> Outcome:
        if not unit.may_run(terms):
            return Outcome(error=StoreTooNew(UPGRADED))
        driver = _driver(connection)
        driver.execute("SAVEPOINT unit")
        try:
            value = unit.run(connection)
        except BaseException as error:
            if not driver.in_transaction:
                raise BatchDead from error
            driver.execute("ROLLBACK TO unit")
            driver.execute("RELEASE unit")
            driven = isinstance(error, DBAPIError | sqlite3.Error)
            return Outcome(error=unavailable(error) if driven else error)
        if not driver.in_transaction:
            raise BatchDead
        driver.execute("RELEASE unit")
        return Outcome(value=value)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.writer.connect()
        return self._connection

    def _undo(self) -> None:
        """Leave no transaction open; a connection that cannot do that is given up."""
        connection = self._connection
        if connection is None:
            return
        try:
            driver = _driver(connection)
            if driver.in_transaction:
                driver.execute("ROLLBACK")
        except (DBAPIError, sqlite3.Error):
            connection.invalidate()
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _driver(connection: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.driver_connection)


def _is_defect(error: BaseException | None) -> bool:
    """Constraint violations are defects of ours, not a store that is unavailable."""
    defects = IntegrityError | ProgrammingError
    return isinstance(error, defects | sqlite3.IntegrityError | sqlite3.ProgrammingError)


def unavailable(error: BaseException | None) -> BaseException:
    """What is raised where a batch or a unit failed: `StoreUnavailable`, but for defects."""
    if error is not None and _is_defect(error):
        return error
    cause = error.orig if isinstance(error, DBAPIError) else error
    unavailable = StoreUnavailable(f"nothing was stored: {cause or 'the transaction was lost'}")
    unavailable.__cause__ = error
    return unavailable


def _resolve(future: asyncio.Future[Any], outcome: Outcome) -> None:
    if future.done():
        return
    match outcome.error:
        case None:
            future.set_result(outcome.value)
        case Exception() as error if not isinstance(error, StopIteration):
            future.set_exception(error)
        case error:  # what a future cannot carry, or what would end the loop
            future.set_exception(RuntimeError(f"a transaction raised {error!r}"))
