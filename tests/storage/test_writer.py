"""Group commit: many units, one COMMIT, and each stands or falls alone."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from forbear.storage.database import Database
from forbear.storage.errors import StoreUnavailable
from forbear.storage.writer import BATCH, FileWriter

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite]

Unit = Callable[[Connection], int]


class Bench:
    """A writer on a file of its own, whose statements are overheard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        self.statements: list[str] = []
        with self.database.writer.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE t (n INTEGER PRIMARY KEY, fill BLOB)")
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.set_trace_callback(self.statements.append)
        self.writer = FileWriter(self.database)

    def commits(self) -> int:
        return self.statements.count("COMMIT")

    def stored(self) -> list[int]:
        """What another connection sees, in order."""
        other = Database(self.path)
        try:
            with other.writer.connect() as connection:
                found = connection.exec_driver_sql("SELECT n FROM t ORDER BY n").scalars()
                return list(found)
        finally:
            other.close_writer()

    async def together(self, *units: Unit) -> list[int | BaseException]:
        """Hand all units over in one tick of the loop."""
        return await asyncio.gather(*map(self.writer.run, units), return_exceptions=True)

    def fill(self, left: int) -> None:
        """Let the disk have room for `left` more pages."""
        with self.database.writer.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + left}")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    built = Bench(tmp_path / "store.db")
    yield built
    await built.writer.close()
    await built.database.close()


def put(n: int, size: int = 0) -> Unit:
    def unit(connection: Connection) -> int:
        connection.exec_driver_sql("INSERT INTO t VALUES (?, zeroblob(?))", (n, size))
        return n

    return unit


def put_and_raise(n: int, error: BaseException) -> Unit:
    def unit(connection: Connection) -> int:
        put(n)(connection)
        raise error

    return unit


async def test_units_of_one_tick_share_one_commit(bench: Bench) -> None:
    assert await bench.together(*map(put, range(200))) == list(range(200))
    assert bench.commits() == 1
    assert bench.stored() == list(range(200))


async def test_units_that_come_while_a_batch_is_written_make_the_next_one(bench: Bench) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> int:
        entered.set()
        assert go.wait(10)
        return put(0)(connection)

    first = asyncio.ensure_future(bench.writer.run(slow))
    await asyncio.to_thread(entered.wait, 10)
    rest = [asyncio.ensure_future(bench.writer.run(put(n))) for n in range(1, 51)]
    await asyncio.sleep(0)
    go.set()
    assert await first == 0
    await asyncio.gather(*rest)
    assert bench.commits() == 2


async def test_a_batch_has_a_bound(bench: Bench) -> None:
    await bench.together(*map(put, range(BATCH + 1)))
    assert bench.commits() == 2


@pytest.mark.requirement("D01")
async def test_a_caller_learns_its_result_only_after_the_commit(bench: Bench) -> None:
    seen: list[tuple[int, list[int]]] = []

    async def ask(n: int) -> None:
        await bench.writer.run(put(n))
        seen.append((bench.commits(), bench.stored()))

    await asyncio.gather(*map(ask, range(5)))
    assert seen == [(1, [0, 1, 2, 3, 4])] * 5


@pytest.mark.parametrize("position", [0, 3, 6])
async def test_a_unit_that_raises_is_undone_alone(bench: Bench, position: int) -> None:
    units: list[Unit] = [put(n) for n in range(6)]
    units.insert(position, put_and_raise(99, LookupError("no such thing")))
    outcomes = await bench.together(*units)
    assert isinstance(outcomes.pop(position), LookupError)
    assert outcomes == list(range(6))
    assert bench.stored() == list(range(6))
    assert bench.commits() == 1


async def test_a_broken_constraint_is_a_defect_and_no_unavailable_store(bench: Bench) -> None:
    first, second = await bench.together(put(1), put(1))
    assert first == 1
    assert isinstance(second, IntegrityError)
    assert bench.stored() == [1]


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyboardInterrupt()], ids=repr)
async def test_whatever_a_unit_raises_the_others_are_stored_and_every_caller_gets_an_answer(
    bench: Bench, error: BaseException
) -> None:
    outcomes = await bench.together(put(1), put_and_raise(99, error), put(2))
    assert (outcomes[0], outcomes[2]) == (1, 2)
    assert isinstance(outcomes[1], RuntimeError)
    assert await bench.writer.run(put(3)) == 3
    assert bench.stored() == [1, 2, 3]


@pytest.mark.requirement("D09")
@pytest.mark.parametrize("room", range(0, 30, 3))
async def test_a_disk_that_fills_up_anywhere_in_a_batch_loses_halves_and_doubles_nothing(
    bench: Bench, room: int
) -> None:
    """Each unit needs about three pages; `room` pages are left when the batch starts."""
    bench.fill(room)
    outcomes = await bench.together(*(put(n, 12_000) for n in range(10)))
    stored = [n for n in outcomes if isinstance(n, int)]
    failed = [error for error in outcomes if not isinstance(error, int)]
    assert all(isinstance(error, StoreUnavailable) for error in failed), failed
    assert all("full" in str(error) for error in failed)
    assert bench.stored() == stored
    assert failed, "the disk was not full"
    bench.fill(1_000)
    again = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, int)]
    assert await bench.together(*(put(n, 12_000) for n in again)) == again
    assert bench.stored() == list(range(10))


@pytest.mark.requirement("D09")
@pytest.mark.parametrize("room", [0, 1_000, 20_000, 60_000, 100_000])
async def test_a_file_that_may_not_grow_loses_halves_and_doubles_nothing(
    bench: Bench, room: int
) -> None:
    """Here the system refuses the bytes, in the log, at the COMMIT or in the middle of a unit."""
    with bench.database.writer.connect() as connection:
        connection.exec_driver_sql("PRAGMA cache_size = 4")  # spill early, as a large batch does
    log = bench.path.with_name(bench.path.name + "-wal")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + room, limit[1]))
    try:
        outcomes = await bench.together(*(put(n, 12_000) for n in range(10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    failed = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, int)]
    assert failed, "the file was not full"
    assert all(isinstance(outcomes[n], StoreUnavailable) for n in failed), outcomes
    assert bench.stored() == [n for n in range(10) if n not in failed]
    assert await bench.together(*(put(n, 12_000) for n in failed)) == failed
    assert bench.stored() == list(range(10))


@pytest.mark.requirement("D09")
@pytest.mark.parametrize("position", range(5))
async def test_a_unit_that_kills_the_transaction_takes_no_other_with_it(
    bench: Bench, position: int
) -> None:
    """What a full disk does under a unit: the whole transaction is gone, not only its savepoint."""
    runs: list[int] = []

    def fatal(connection: Connection) -> int:
        runs.append(len(runs))
        put(99)(connection)
        connection.exec_driver_sql("ROLLBACK")
        raise OSError("disk")

    units: list[Unit] = [put(n) for n in range(4)]
    units.insert(position, fatal)
    outcomes = await bench.together(*units)
    assert isinstance(outcomes.pop(position), StoreUnavailable)
    assert outcomes == list(range(4))
    assert bench.stored() == list(range(4))
    assert len(runs) == 2


async def test_a_unit_whose_transaction_went_away_unseen_is_not_reported_as_stored(
    bench: Bench,
) -> None:
    def unseen(connection: Connection) -> int:
        connection.exec_driver_sql("ROLLBACK")
        return 99

    outcomes = await bench.together(put(1), unseen, put(2))
    assert (outcomes[0], outcomes[2]) == (1, 2)
    assert isinstance(outcomes[1], StoreUnavailable)
    assert bench.stored() == [1, 2]


@pytest.mark.requirement("D06")
async def test_a_cancelled_caller_loses_nothing(bench: Bench) -> None:
    caller = asyncio.ensure_future(bench.writer.run(put(1)))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await bench.writer.run(put(2))
    assert bench.stored() == [1, 2]


@pytest.mark.requirement("D06")
async def test_a_cancelled_caller_whose_unit_fails_troubles_nobody(bench: Bench) -> None:
    caller = asyncio.ensure_future(bench.writer.run(put_and_raise(1, LookupError())))
    await asyncio.sleep(0)
    caller.cancel()
    assert await bench.writer.run(put(2)) == 2
    assert bench.stored() == [2]


async def test_closing_writes_what_is_queued_and_then_refuses(bench: Bench) -> None:
    callers = [asyncio.ensure_future(bench.writer.run(put(n))) for n in range(20)]
    await asyncio.sleep(0)
    await bench.writer.close()
    assert await asyncio.gather(*callers) == list(range(20))
    with pytest.raises(StoreUnavailable, match="closed"):
        await bench.writer.run(put(99))
    assert bench.stored() == list(range(20))
    assert not [t for t in threading.enumerate() if t.name.startswith("forbear-writer")]


async def test_a_writer_goes_on_after_the_lock_file_failed_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as broken:
        broken.setattr("fcntl.flock", refuse)
        with pytest.raises(StoreUnavailable, match="No locks available"):
            await bench.writer.run(put(1))
    assert await bench.writer.run(put(2)) == 2
    assert bench.stored() == [2]
