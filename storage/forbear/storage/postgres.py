"""A store on a PostgreSQL server: any number of hosts and processes on one database.

One writer at a time, as on SQLite: every batch of units is one transaction that first takes one
advisory lock (`pg_advisory_xact_lock`), which the server hands out in the order it was asked for.
READ COMMITTED gives every statement after it all that was ever committed, and nobody else writes.
So what the ledger reads and then writes (identities, slots, rates, budgets, queues, the head of the
audit log) is as certain as under SQLite's file lock, with nothing to prove for each statement:
there is no row lock to take in a wrong order, and no deadlock. What it costs is that the units of
all hosts run one after the other; a batch shares one lock, one commit and one flush
(docs/postgresql.md has figures). Claims need no SKIP LOCKED: who comes second finds the operation
leased.

A transaction is bounded from three sides, so that a host that hangs or is cut off within one holds
up nobody for long: `statement_timeout`, `lock_timeout`, `idle_in_transaction_session_timeout`. They
are set inside each transaction, by the statement that takes the lock: a pooler between transactions
needs nothing of them.

A batch that fails for a reason that passes (the server restarts, a time-out, a lost connection) is
run again, for `PATIENCE` at the most. A connection that is lost at COMMIT leaves open whether it
was committed; then the server is asked by the number of the transaction (`pg_xact_status`), so that
nothing is lost or done twice, whatever a unit does.

The time of all transactions is that of the server (`ServerClock`), read after the lock was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from forbear.rules.ports import Clock, Moment
from forbear.storage import encrypting, rekeying, schema
from forbear.storage.database import said, stored_generation
from forbear.storage.errors import StoreError, StoreTooNew, StoreUnavailable
from forbear.storage.generations import Terms, terms
from forbear.storage.keyfiles import Name, Places
from forbear.storage.schema import data_keys
from forbear.storage.sealing import EpochKey, Log
from forbear.storage.vault import Vault, unlock
from forbear.storage.writer import UPGRADED, BatchDead, Outcome, Unit, Writer, unavailable

T = TypeVar("T")

LOCK = 0x666F7262656172
"""The advisory lock of a store: "forbear" in ASCII. One store in a database."""

CHANNEL = "forbear"
"""What a commit is announced on, without a word of what it was."""

STATEMENT, WAITS, IDLE = 30_000, 20_000, 10_000
"""Bounds within a transaction, ms: of a statement, of the wait for the lock, and of a silence of
ours while the lock is held."""

CONNECT = 10.0
"""Seconds for one try to reach the server."""

READERS = 3
"""Connections of a process for reading. With one for writing and one that listens it has 5."""

PATIENCE = 20.0
"""Seconds for which a batch is run again before it is given up."""

UNHEARD = 5.0
"""Seconds after which an own commit should have been heard of."""

SAFETY, SLOW = 30.0, 1.0
"""Seconds between two looks without news, where commits are heard of and where they are not."""

_PASSES = frozenset(
    {
        *("40001", "40P01"),  # serialization failure, deadlock
        *("55P03", "57014", "25P03"),  # lock, statement and idle time-out
        *("57P01", "57P02", "57P03", "57P05"),  # the server stops, crashed, starts, was idle
        *("53300", "08000", "08001", "08003", "08004", "08006"),  # no connection to be had
    }
)
"""SQLSTATEs after which the same may succeed."""

_BEGIN = sa.text(
    f"""\
SELECT set_config('lock_timeout', '{WAITS}', true),
  set_config('statement_timeout', '{STATEMENT}', true),
  set_config('idle_in_transaction_session_timeout', '{IDLE}', true),
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
    THEN set_config('synchronous_commit', 'on', true) END,
  pg_advisory_xact_lock({LOCK}),
  pg_backend_pid() AS pid,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now"""
)
"""The first statement of every transaction that writes. Its columns are evaluated in their order:
the time is read when the lock is held."""

_END = sa.text(
    f"""\
SELECT pg_current_xact_id_if_assigned()::text AS number,
  CASE WHEN pg_current_xact_id_if_assigned() IS NOT NULL
    THEN pg_notify('{CHANNEL}', '') END"""
)
"""The last: the number of the transaction, if it changed anything, which then is announced."""

_FATE = sa.text("SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8))")
_TIME = sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")


class ServerClock:
    """The time of the database server, between two looks carried on by the clocks of this machine.

    It is never ahead of the server's. Both clocks of a moment are the server's time: one goes on
    with this machine's wall clock, the other with the clock that counts suspend, so that each
    stays a witness against the other. The moments of all hosts can be compared.
    """

    BOOT = "server"
    """All moments are of one boot: leases end by time, wherever they are looked at."""

    def __init__(self, local: Clock) -> None:
        self._local = local
        self._wall = self._boot = 0

    def set(self, server: int) -> None:
        """`server` was the server's time a moment ago, ms."""
        here = self._local.now()
        self._wall, self._boot = server - here.wall, server - here.boot

    def now(self) -> Moment:
        here = self._local.now()
        return Moment(here.wall + self._wall, here.boot + self._boot, self.BOOT)

    async def sleep(self, seconds: float) -> None:
        await self._local.sleep(seconds)


class Postgres:
    """A store's database on a server, and the keys of its audit log, which lie in the home.

    `clock` is that of this machine; the store's own is `clock` of the instance. With `own_time`
    the store goes by the clock that was given, as tests do.

    Raises:
        StoreUnavailable: the server cannot be reached or used, or a key is missing.
        StoreTooNew: it was written by a newer program.
    """

    def __init__(
        self,
        url: str,
        places: Places,
        clock: Clock,
        opening: Callable[[Connection, Places, str], Log] = rekeying.opened,
        *,
        own_time: bool = False,
    ) -> None:
        self._url = url
        self.place = shown(url)
        self._server_clock = None if own_time else ServerClock(clock)
        self.clock: Clock = self._server_clock or clock
        with failing(self.place):
            self.log, keys = _apart(self._open(places, opening))
        vault = Vault(keys)
        self.readers = engine(self._url, pool_size=READERS, isolation_level="AUTOCOMMIT")
        self.writers = engine(self._url, pool_size=1).execution_options(audit=self.log)
        for one in (self.readers, self.writers):
            unlock(one.sync_engine.dialect, vault)
        self.ear = Ear(url)

    async def _open(
        self, places: Places, opening: Callable[[Connection, Places, str], Log]
    ) -> tuple[Log, Callable[[], dict[int, EpochKey]]]:
        opener = engine(self._url, poolclass=NullPool)
        try:
            async with opener.begin() as connection:
                self.begin((await connection.execute(_BEGIN)).one())
                log = await connection.run_sync(_prepared, places, opening, self.place)
        finally:
            await opener.dispose()
        return log, partial(_data_keys, self._url, log)

    def begin(self, row: sa.Row[Any]) -> None:
        """What the first statement of a transaction told."""
        if self._server_clock is not None:
            self._server_clock.set(row.now)

    def forget_deleted(self) -> None:
        """Let the room of what was deleted be used again.

        Raises:
            StoreUnavailable: the server cannot do it now; it does so by itself in time.
        """
        with failing(self.place):
            _apart(self._vacuum())

    async def _vacuum(self) -> None:
        cleaner = engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        try:
            async with cleaner.connect() as connection:
                for table in schema.metadata.sorted_tables:
                    await connection.exec_driver_sql(f"VACUUM {table.name}")
        finally:
            await cleaner.dispose()

    def promote(self, name: Name, key: bytes) -> None:
        """Put a key in its place in this home that the store was just wrapped or signed with."""
        self.log.places.promote(name, key)

    def changed_elsewhere(self) -> bool:
        """Whether another process may have committed something since the last call."""
        return self.ear.heard()

    def version(self) -> int | None:
        """Nothing says at once whether anything was committed."""
        return None

    async def close(self) -> None:
        await self.ear.close()
        await self.readers.dispose()
        await self.writers.dispose()
        await parted()


def shown(url: str) -> str:
    """An address without its password."""
    return re.sub(r"(?<=[?&]password=)[^&]*|(?<=:)[^:@/]*(?=@)", "***", url)


def driver() -> ModuleType:
    """The module that speaks to servers; it is an optional part of the installation.

    Raises:
        StoreUnavailable: it is not installed.
    """
    try:
        return import_module("asyncpg")
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            "PostgreSQL needs a driver -> pip install 'forbear[postgresql]'"
        ) from error


class Unreached(OSError):
    """No connection could be had; `sqlstate` says why, if the server did."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.sqlstate = getattr(error, "sqlstate", None)


async def connected(url: str) -> Any:
    """A connection of the driver.

    Raises:
        Unreached
    """
    speaks = driver()
    try:
        return await speaks.connect(url, timeout=CONNECT)
    except (OSError, TimeoutError, speaks.PostgresError, speaks.InterfaceError) as error:
        raise Unreached(error) from error


def engine(url: str, **options: Any) -> AsyncEngine:
    """An engine on a database. The driver reads the address as libpq does, with several hosts and
    `sslmode`, `target_session_attrs` and the like.

    Raises:
        StoreUnavailable: the driver is not installed.
    """
    driver()
    if "pool_size" in options:
        options |= {"max_overflow": 0, "pool_timeout": PATIENCE}
    return create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": partial(connected, url)},
        **options,
    )


@contextmanager
def failing(place: str) -> Generator[None]:
    """Turn what the driver raises into `StoreUnavailable`."""
    try:
        yield
    except StoreError:
        raise
    except (*_FAILURES, CommandError) as error:
        raise StoreUnavailable(f"{place}: {said(error)}{_fix(error)}") from error


_FAILURES = (DBAPIError, NoConnection, OSError)
"""TimeoutError is one of the last."""


def _state(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of the driver."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    return state if isinstance(state, str) else None


def _fix(error: BaseException) -> str:
    match _state(error):
        case "3D000":
            return " -> create it: createdb NAME"
        case "28000" | "28P01":
            return " -> check user and password in FORBEAR_DATABASE_URL"
        case "25006":
            return " -> name the primary server, not a read-only replica"
        case "42501":
            return " -> let this user create tables in the schema: it must own the database"
        case _ if isinstance(error, OSError):
            return " -> start the server, or correct FORBEAR_DATABASE_URL"
        case _:
            return ""


def _passes(error: BaseException) -> bool:
    """Whether the same may succeed if it is tried again."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = _state(error)
    if isinstance(error, OSError | NoConnection):
        return state is None or state in _PASSES
    return state in _PASSES


def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Run something to its end on a loop of its own, whether or not this thread has one."""

    async def whole() -> T:
        try:
            return await work
        finally:
            await parted()

    with ThreadPoolExecutor(1, thread_name_prefix="forbear-apart") as thread:
        return thread.submit(asyncio.run, whole()).result()


async def parted() -> None:
    """Let the loop see the end of connections that were closed, before it ends itself."""
    for _ in range(2):
        await asyncio.sleep(0)


# --- opening --------------------------------------------------------------------------------


def _prepared(
    connection: Connection,
    places: Places,
    opening: Callable[[Connection, Places, str], Log],
    place: str,
) -> Log:
    """Create or migrate the schema and find the keys, once, under the lock."""
    generation = stored_generation(connection)
    if generation != schema.GENERATION:
        from forbear.storage.migrations import upgrade

        upgrade(connection, generation)
    log = opening(connection, places, place)
    if connection.execute(sa.select(data_keys.c.number).limit(1)).first() is None:
        encrypting.make_first_key(connection, log)
    return log


def _data_keys(url: str, log: Log) -> dict[int, EpochKey]:
    """The keys of a store's columns that can be opened."""

    async def fetch() -> Sequence[sa.Row[int, str]]:
        reader = engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        try:
            async with reader.connect() as connection:
                query = sa.select(data_keys.c.number, data_keys.c.wrapped_key)
                return (await connection.execute(query)).all()
        finally:
            await reader.dispose()

    with failing(shown(url)):
        rows = _apart(fetch())
    found = {row.number: log.unwrapped(row.wrapped_key) for row in rows}
    return {number: EpochKey(key) for number, key in found.items() if key is not None}


# --- writing --------------------------------------------------------------------------------


class _InDoubt(Exception):
    """The connection was lost at COMMIT."""

    def __init__(self, number: str, outcomes: Sequence[Outcome]) -> None:
        super().__init__(number)
        self.number = number
        self.outcomes = outcomes


class ServerWriter(Writer):
    """Writes batches of one process on one connection."""

    def __init__(self, database: Postgres) -> None:
        super().__init__()
        self._database = database

    async def _end(self) -> None:
        """The connections end with the database."""

    async def _store(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        try:
            return await self._durably(units)
        except BatchDead as dead:
            if len(units) == 1:
                return [Outcome(error=unavailable(dead.__cause__))]
        return [(await self._store([unit]))[0] for unit in units]

    async def _durably(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        """One batch in one transaction, which is repeated while that may help.

        Raises:
            BatchDead: nothing of it was stored.
            StoreUnavailable: nobody can say whether it was stored: the server is not there.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + PATIENCE, 0.02
        while True:
            try:
                return await self._transact(units)
            except _InDoubt as doubt:
                if await self._was_committed(doubt.number):
                    return doubt.outcomes
            except Exception as error:
                if not _passes(error) or loop.time() > until:
                    raise BatchDead from error
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def _transact(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        database = self._database
        async with database.writers.connect() as connection:
            transaction = await connection.begin()
            begun = (await connection.execute(_BEGIN)).one()
            database.begin(begun)
            outcomes = await connection.run_sync(_steps, units)
            number: str | None = (await connection.execute(_END)).scalar_one_or_none()
            try:
                await transaction.commit()
            except Exception as error:
                if number is not None and _passes(error):
                    raise _InDoubt(number, outcomes) from error
                raise
        if number is not None:
            database.ear.expect(begun.pid)
        return outcomes

    async def _was_committed(self, number: str) -> bool:
        """What became of a transaction, as soon as the server can say.

        Raises:
            StoreUnavailable: it is not there.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while True:
            try:
                async with self._database.readers.connect() as connection:
                    fate = (await connection.execute(_FATE, {"number": number})).scalar()
                if fate != "in progress":
                    return fate == "committed"
            except Exception as error:
                if _state(error) == "22023":  # a server that never heard of it took over
                    return False
                if not _passes(error):
                    raise
                if loop.time() > until:
                    told = f"nobody can say whether it was stored: {said(error)}"
                    raise StoreUnavailable(told) from error
            await asyncio.sleep(0.1)


def _steps(connection: Connection, units: Sequence[Unit]) -> Sequence[Outcome]:
    """The units of a batch, each undone alone if it raises."""
    allowed = terms(connection)
    return [_step(connection, unit, allowed) for unit in units]


def _step(connection: Connection, unit: Unit, allowed: Terms) -> Outcome:
    if not unit.may_run(allowed):
        return Outcome(error=StoreTooNew(UPGRADED))
    connection.exec_driver_sql("SAVEPOINT unit")
    try:
        value = unit.run(connection)
    except BaseException as error:
        if _passes(error):
            raise
        connection.exec_driver_sql("ROLLBACK TO unit")
        connection.exec_driver_sql("RELEASE unit")
        return Outcome(error=unavailable(error) if isinstance(error, DBAPIError) else error)
    connection.exec_driver_sql("RELEASE unit")
    return Outcome(value=value)


# --- hearing of others ----------------------------------------------------------------------


class Ear:
    """Hears of commits, on a connection of its own that is made anew when it is lost.

    A pooler between transactions takes LISTEN and delivers nothing. Own commits show that: while
    they are not heard, everybody looks again every second instead.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._task: asyncio.Task[None] | None = None
        self._news: Callable[[], None] = lambda: None
        self._changed = False
        self._listens = False
        self._own: int | None = None
        self._awaited: float | None = None
        """Since when an own commit was not heard of."""
        self._looked = 0.0

    def call(self, news: Callable[[], None]) -> None:
        """Call `news` on the loop at each commit of another process."""
        self._news = news

    def expect(self, pid: int) -> None:
        """An own commit was made by this backend."""
        self._own = pid
        if self._listens and self._awaited is None:
            self._awaited = asyncio.get_running_loop().time()

    def heard(self) -> bool:
        """Whether there may be news since the last call; starts to listen at the first."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._listen(), name="listening")
        deaf = not self._listens or (
            self._awaited is not None and loop.time() - self._awaited > UNHEARD
        )
        changed = self._changed or loop.time() - self._looked >= (SLOW if deaf else SAFETY)
        if changed:
            self._changed, self._looked = False, loop.time()
        return changed

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        speaks = driver()
        while True:
            with contextlib.suppress(*_FAILURES, speaks.PostgresError, speaks.InterfaceError):
                connection = await connected(self._url)
                try:
                    await self._stay(connection)
                finally:
                    self._listens = False
                    connection.terminate()
            await asyncio.sleep(1.0)

    async def _stay(self, connection: Any) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()

        def end(_: object) -> None:
            lost.set()

        connection.add_termination_listener(end)
        await connection.add_listener(CHANNEL, self._hear)
        self._listens, self._awaited, self._changed = True, None, True
        self._news()
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), SAFETY)
            if not lost.is_set():
                await connection.fetchval("SELECT 1", timeout=CONNECT)

    def _hear(self, _connection: object, pid: int, _channel: str, _payload: str) -> None:
        self._awaited = None
        if pid != self._own:
            self._changed = True
            self._news()
