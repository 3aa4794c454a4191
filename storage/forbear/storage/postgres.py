"""A store on a PostgreSQL server: any number of hosts and processes on one database.

One writer at a time, as on SQLite: every batch of units is one transaction that first takes one
advisory lock (`pg_advisory_xact_lock`), which the server hands out in the order it was asked for.
READ COMMITTED gives every statement after it all that was ever committed, and nobody else writes.
So what the ledger reads and then writes (identities, slots, rates, budgets, queues, the head of the
audit log) is as certain as under SQLite's file lock, with nothing to prove for each statement:
there is no row lock to take in a wrong order, and no deadlock. What it costs is that the units of
all hosts run one after the other; a batch shares one lock, one commit and one flush. Claims need no
SKIP LOCKED: who comes second finds the operation leased.

A transaction is bounded, so that a host that hangs or is cut off within one holds up nobody for
long: by `statement_timeout`, `lock_timeout` and `idle_in_transaction_session_timeout`, which are
set inside each transaction by the statement that takes the lock (a pooler between transactions
needs nothing of them), and by whoever waits. For none of the three ends a server process that has
parsed a statement and waits for its values, nor one that cannot get rid of its answer. So who did
not get the lock in time ends the session that has it, if that has waited for its host for too long.

A batch that fails for a reason that passes (the server restarts, a time-out, a lost connection) is
run again, for `PATIENCE` at the most. A connection that is lost at COMMIT leaves open whether it
was committed; then the server is asked by the number of the transaction (`pg_xact_status`), so that
nothing is lost or done twice, whatever a unit does.

The time of all transactions is that of the server (`ServerClock`), read after the lock was taken.

Each batch looks whether the database is still the one that this home knows (`servermark`). One that
was set back is held from then on, in the same transaction, and what the batch brings is stored in
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import NullPool

from forbear.rules.ports import Clock
from forbear.storage import encrypting, rekeying, schema, servermark
from forbear.storage.connecting import (
    PATIENCE,
    apart,
    at_once,
    engine,
    failing,
    parted,
    passes,
    shown,
    state_of,
)
from forbear.storage.database import said, stored_generation
from forbear.storage.errors import StoreTooNew, StoreUnavailable
from forbear.storage.generations import Terms, terms
from forbear.storage.keyfiles import Name, Places
from forbear.storage.listening import CHANNEL, Ear
from forbear.storage.mark import Head
from forbear.storage.schema import data_keys
from forbear.storage.sealing import GENESIS, EpochKey, Log
from forbear.storage.serverclock import ServerClock
from forbear.storage.servermark import ServerMark
from forbear.storage.vault import Vault, unlock
from forbear.storage.writer import UPGRADED, BatchDead, Outcome, Unit, Writer, unavailable

LOCK = 0x666F7262656172
"""The advisory lock of a store: "forbear" in ASCII. One store in a database."""

_NOT_HAD = "55P03"
"""SQLSTATE: the lock was not to be had in time."""

ISOLATION = "READ COMMITTED"
"""Whatever the server is set to: a statement sees what was committed before the lock was had."""

STATEMENT, IDLE, WAITS = 30_000, 10_000, 12_000
"""Bounds within a transaction, ms: of a statement, of a silence of ours while the lock is held, and
of the wait for the lock. Who waits longer than somebody may be silent can tell that he was."""

READERS = 3
"""Connections of a process for reading. With one for writing and one that listens it has 5."""

_BEGIN = f"""\
SELECT set_config('lock_timeout', '{WAITS}', true),
  set_config('statement_timeout', '{STATEMENT}', true),
  set_config('idle_in_transaction_session_timeout', '{IDLE}', true),
  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
    THEN set_config('synchronous_commit', 'on', true) END,
  pg_advisory_xact_lock({LOCK}),
  pg_backend_pid() AS pid,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now"""

BEGIN = sa.text(_BEGIN)
"""The first statement of every transaction that writes. Its columns are evaluated in their order:
the time is read when the lock is held."""

ENTER = sa.text(
    f"{_BEGIN}, (SELECT {servermark.HASH} FROM events WHERE sequence = CAST(:marked AS bigint))"
    " AS found"
)
"""The same for a batch, which also looks for the row that this home saw last."""

_END = sa.text(
    f"""\
SELECT pg_current_xact_id_if_assigned()::text AS number,
  CASE WHEN pg_current_xact_id_if_assigned() IS NOT NULL
    THEN pg_notify('{CHANNEL}', '') END,
  last.sequence, last.hash
FROM (VALUES (1)) AS once LEFT JOIN LATERAL
  (SELECT sequence, {servermark.HASH} AS hash FROM events ORDER BY sequence DESC LIMIT 1) AS last
  ON true"""
)
"""The last: the number of the transaction, if it changed anything, which then is announced; and how
far the store has come."""

_SILENT = sa.text(
    f"""\
SELECT pg_terminate_backend(pid)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND database = datid AND datname = current_database()
  AND (classid::bigint << 32) + objid::bigint = {LOCK}
  AND wait_event_type = 'Client'
  AND state_change < clock_timestamp() - interval '{IDLE} ms'"""
)
"""End the session that has the lock, if its host was not heard of for so long."""

_FATE = sa.text("SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8))")


Hold = Callable[[Connection, str, int], object]
"""Hold the store as one that may not be the living one: why, and when (see `custody.hold`)."""


class Postgres:
    """A store's database on a server, and what lies in the home beside it: how far it has come, and
    the keys of its audit log, unless `places` says otherwise.

    `clock` is that of this machine; the store's own is `clock` of the instance. With `own_time`
    the store goes by the clock that was given, as tests do.

    Raises:
        StoreUnavailable: the server cannot be reached or used, or a key is missing.
        StoreTooNew: it was written by a newer program.
    """

    def __init__(
        self,
        url: str,
        home: Path,
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
        self.mark = ServerMark(home)
        self._doubted = False
        with failing(self.place):
            self.log, keys = apart(self._open(places, opening))
        self._vault = vault = Vault(keys)
        self.readers = engine(self._url, pool_size=READERS, isolation_level="AUTOCOMMIT")
        self.near = None
        """A server is never so near that nobody waits."""
        writers = engine(self._url, pool_size=1, isolation_level=ISOLATION)
        self.writers = writers.execution_options(audit=self.log)
        for one in (self.readers, self.writers):
            unlock(one.sync_engine.dialect, vault)
        self.ear = Ear(url)

    async def _open(
        self, places: Places, opening: Callable[[Connection, Places, str], Log]
    ) -> tuple[Log, Callable[[], dict[int, EpochKey]]]:
        opener = engine(self._url, poolclass=NullPool, isolation_level=ISOLATION)
        try:
            try:
                log = await self._prepare(opener, places, opening)
            except DBAPIError as error:
                if not await freed(opener, error):
                    raise
                log = await self._prepare(opener, places, opening)
        finally:
            await opener.dispose()
        return log, partial(_data_keys, self._url, log)

    async def _prepare(
        self,
        opener: AsyncEngine,
        places: Places,
        opening: Callable[[Connection, Places, str], Log],
    ) -> Log:
        async with opener.begin() as connection:
            self.begin((await connection.execute(BEGIN)).one())
            log = await connection.run_sync(_prepared, places, opening, self.place)
            head = await connection.run_sync(self._known)
        if head is not None:
            self.mark.set(head)
        return log

    def _known(self, connection: Connection) -> Head | None:
        """How far the store has come, if it is the living one."""
        self._doubted = self.mark.doubt(connection) is not None
        if self._doubted:
            return None
        self.mark.claim(connection)
        return servermark.head(connection)

    def opened(self, hold: Hold) -> None:
        """Hold a store that may not be the living one, before anything else is written.

        Raises:
            StoreUnavailable: it cannot be held.
        """
        if self._doubted:
            with failing(self.place):
                apart(self._hold(hold))

    async def _hold(self, hold: Hold) -> None:
        holder = engine(self._url, poolclass=NullPool, isolation_level=ISOLATION)
        unlock(holder.sync_engine.dialect, self._vault)
        try:
            async with holder.execution_options(audit=self.log).begin() as connection:
                self.begin((await connection.execute(BEGIN)).one())
                head = await connection.run_sync(self.take_custody, hold)
            self.mark.set(head, back=True)
        finally:
            await holder.dispose()

    def take_custody(self, connection: Connection, hold: Hold) -> Head:
        """Hold the store if it may not be the living one; from then on it is the one known."""
        why = self.mark.doubt(connection)
        if why is not None:
            hold(connection, why, self.clock.now().wall)
        self.mark.claim(connection)
        return servermark.head(connection)

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
            apart(self._vacuum())

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
        self.mark.close()
        await self.ear.close()
        await self.readers.dispose()
        await self.writers.dispose()
        await parted()


async def freed(through: AsyncEngine, error: Exception) -> bool:
    """Whether what failed was the wait for the lock, because of a host that fell silent while it
    had it, and has it no more."""
    if state_of(error) != _NOT_HAD:
        return False
    async with through.connect() as connection:
        return (await connection.execute(_SILENT)).first() is not None


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
        rows = apart(fetch())
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

    def __init__(self, database: Postgres, hold: Hold) -> None:
        super().__init__()
        self._database = database
        self._hold = hold

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
                if not passes(error) or loop.time() > until:
                    raise BatchDead from error
                await freed(self._database.readers, error)
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def _transact(self, units: Sequence[Unit]) -> Sequence[Outcome]:
        database = self._database
        known = database.mark.read()
        async with database.writers.connect() as connection:
            transaction = await connection.begin()
            begun = (await connection.execute(ENTER, {"marked": known.sequence})).one()
            database.begin(begun)
            lost = known != Head() and begun.found != known.hash
            if lost:
                await connection.run_sync(database.take_custody, self._hold)
            outcomes = await connection.run_sync(_steps, units)
            ended = (await connection.execute(_END)).one()
            number: str | None = ended.number
            try:
                await transaction.commit()
            except Exception as error:
                if number is not None and passes(error):
                    raise _InDoubt(number, outcomes) from error
                raise
        if number is not None:
            database.ear.expect(begun.pid)
            database.mark.set(Head(ended.sequence or 0, ended.hash or GENESIS), back=lost)
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
                if state_of(error) == "22023":  # a server that never heard of it took over
                    return False
                if not passes(error):
                    raise
                if loop.time() > until:
                    told = f"nobody can say whether it was stored: {said(error)}"
                    raise StoreUnavailable(told) from error
            await asyncio.sleep(0.1)


def _steps(connection: Connection, units: Sequence[Unit]) -> Sequence[Outcome]:
    """The units of a batch, each undone alone if it raises."""
    allowed = terms(connection)
    at_once(connection, "SAVEPOINT unit")
    return [_step(connection, unit, allowed) for unit in units]


def _step(connection: Connection, unit: Unit, allowed: Terms) -> Outcome:
    if not unit.may_run(allowed):
        return Outcome(error=StoreTooNew(UPGRADED))
    try:
        value = unit.run(connection)
    except BaseException as error:
        if passes(error):
            raise
        at_once(connection, "ROLLBACK TO unit")
        return Outcome(error=unavailable(error) if isinstance(error, DBAPIError) else error)
    at_once(connection, "RELEASE unit; SAVEPOINT unit")
    return Outcome(value=value)
