"""The SQLite file: how it is opened, locked between processes, and brought up to date.

Several processes on one file are the normal case. Every write batch, checkpoint and close runs
under one lock file: it is fairer than SQLite's busy handler, whose tails are seconds long with many
writers, and it keeps two connections from checkpointing at once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from errno import EACCES, EPERM, EROFS
from functools import partial
from pathlib import Path

from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from forbear.storage import encrypting, files, prefetching, rekeying, schema
from forbear.storage.errors import StoreError, StoreTooNew, StoreUnavailable
from forbear.storage.generations import Terms, terms
from forbear.storage.keyfiles import Name, Places
from forbear.storage.mark import SINCE, Head, Mark
from forbear.storage.sealing import EpochKey, Log
from forbear.storage.vault import Vault, unlock

BUSY = 10_000
"""SQLite's own busy time-out, ms: a second line behind the lock file."""

_WRITER_PRAGMAS = (
    "synchronous=FULL",
    f"busy_timeout={BUSY}",
    "foreign_keys=ON",
    "wal_autocheckpoint=1000",
    "temp_store=MEMORY",
)
_READER_PRAGMAS = ("query_only=ON", f"busy_timeout={BUSY}")


class FileLock:
    """One lock between all processes on a store. Held for one write batch at a time."""

    def __init__(self, path: Path) -> None:
        self._descriptor = files.open_private(path)

    @contextmanager
    def held(self) -> Generator[None]:
        files.lock(self._descriptor)
        try:
            yield
        finally:
            files.unlock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Database:
    """A store's file, the connections to it, and the keys of its audit log.

    `places` says where the keys are; without it, in `keys` beside the file. `opening` finds them.

    Raises:
        StoreUnavailable: the file cannot be opened or is no database, or a key is missing.
        StoreTooNew: it was written by a newer program.
    """

    def __init__(
        self,
        path: Path,
        places: Places | None = None,
        opening: Callable[[Connection, Places, str], Log] = rekeying.opened,
    ) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.lock = FileLock(_lock_file(path))
        except OSError as error:
            raise StoreUnavailable(f"{error} -> make the folder writable to this user") from error
        self.writer = self._writing_engine()
        try:
            _create(path)
            self.mark = Mark(path)
            with self.lock.held():
                self._prepare()
                with self.writer.connect() as connection:
                    found = places or Places(path.parent / "keys")
                    self.log = opening(connection, found, path.name)
                    encrypting.encrypt(connection, self.log)
            vault = Vault(partial(_data_keys, path, self.log))
            unlock(self.writer.dialect, vault)
            self.writer = self.writer.execution_options(audit=self.log)
            self._watch = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error, DBAPIError, CommandError, StoreError) as error:
            self.writer.dispose()
            self.lock.close()
            if isinstance(error, StoreError):
                raise
            closed = isinstance(error, OSError) and error.errno in (EACCES, EPERM, EROFS)
            shut = closed or "readonly" in said(error)
            fix = " -> make it writable to this user" if shut else ""
            raise StoreUnavailable(f"{path}: {said(error)}{fix}") from error
        self.readers = self._reading_engine()
        unlock(self.readers.dialect, vault)
        near = self._near_engine()
        unlock(near.dialect, vault)
        self.near = near.connect()
        """Reads here and now, on the thread of the caller, and waits for nobody."""
        self._seen_version = self.version()

    def _writing_engine(self) -> Engine:
        engine = create_engine(
            f"sqlite+pysqlite:///{self.path}",
            isolation_level="AUTOCOMMIT",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False, "timeout": BUSY / 1_000},
        )
        event.listen(engine, "connect", _pragmas(_WRITER_PRAGMAS))
        return engine

    def _reading_engine(self) -> AsyncEngine:
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{self.path}",
            isolation_level="AUTOCOMMIT",
            pool_size=2,
            max_overflow=0,
            skip_autocommit_rollback=True,  # nothing is ever begun
            connect_args={"async_creator_fn": prefetching.connect},
        )
        event.listen(engine.sync_engine, "connect", _pragmas(_READER_PRAGMAS))
        return engine

    def _near_engine(self) -> Engine:
        engine = create_engine(
            f"sqlite+pysqlite:///{self.path}",
            isolation_level="AUTOCOMMIT",
            poolclass=StaticPool,
            skip_autocommit_rollback=True,
            connect_args={"check_same_thread": False, "timeout": 0},
        )
        event.listen(engine, "connect", _pragmas(("query_only=ON",)))
        return engine

    def _prepare(self) -> None:
        """Create or migrate the schema, once, under the lock."""
        with self.writer.connect() as connection:
            generation = stored_generation(connection)
            if generation == schema.GENERATION:
                return
            if generation is None or generation < SINCE:
                self.mark.begin()
            from forbear.storage.migrations import upgrade

            if generation is None:
                mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar_one()
                if mode != "wal":
                    raise OSError("this file system cannot hold a store -> use a local disk")
            upgrade(connection, generation)

    def entered(self, connection: Connection) -> Terms:
        """Look around at the beginning of each batch, under the lock: what may be written in it.

        Raises:
            StoreUnavailable: the file is not the store any more that this process opened.
        """
        why = self.mark.check(connection)
        if why is not None:
            raise StoreUnavailable(f"{self.path} was replaced: {why} -> restart this process")
        return terms(connection)

    def came_to(self, head: Head) -> None:
        """Note how far the store is now, under the lock."""
        with suppress(OSError):  # an earlier row is as true, and the next batch tries again
            self.mark.set(head)

    def forget_deleted(self) -> None:
        """Let nothing of what was deleted stay in the file of changes beside the store.

        Raises:
            StoreUnavailable: somebody reads; what was deleted goes with the next changes.
        """
        with self.apart(), closing(sqlite3.connect(self.path, timeout=BUSY / 1_000)) as store:
            [(busy, _, _)] = store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if busy:
            raise StoreUnavailable(f"{self.path} is being read")

    def promote(self, name: Name, key: bytes) -> None:
        """Put a key in its place that the store was just wrapped or signed with."""
        with self.apart():
            self.log.places.promote(name, key)

    @contextmanager
    def apart(self) -> Generator[None]:
        """The lock between processes, held against the writer of this one too."""
        lock = FileLock(_lock_file(self.path))
        try:
            with lock.held():
                yield
        finally:
            lock.close()

    def changed_elsewhere(self) -> bool:
        """Whether another connection committed since the last call; a few microseconds.

        Raises:
            StoreUnavailable: the file cannot be read.
        """
        version = self.version()
        changed = version != self._seen_version
        self._seen_version = version
        return changed

    def version(self) -> int:
        """A number that differs after any commit, of this process too; a few microseconds.

        Raises:
            StoreUnavailable: the file cannot be read.
        """
        try:
            return int(self._watch.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.path}: {error}") from error

    def abandon(self) -> None:
        """Close all but the readers, without the lock."""
        self._disconnect()
        self.mark.close()
        self.lock.close()

    async def close(self) -> None:
        """Close all connections; the last one out checkpoints, under the lock."""
        await self.readers.dispose()
        self.close_writer()

    def close_writer(self) -> None:
        """Close everything but the readers, which need a running loop."""
        with self.lock.held():
            self._disconnect()
        self.abandon()

    def _disconnect(self) -> None:
        self._watch.close()
        self.near.close()
        self.near.engine.dispose()
        self.writer.dispose()


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _data_keys(path: Path, log: Log) -> dict[int, EpochKey]:
    """The keys of a store's columns that can be opened. Refers to no engine, so that a vault does
    not keep alive what it belongs to."""
    with closing(sqlite3.connect(path, timeout=BUSY / 1_000)) as connection:
        rows = connection.execute("SELECT number, wrapped_key FROM data_keys").fetchall()
    found = {number: log.unwrapped(wrapped) for number, wrapped in rows}
    return {number: EpochKey(key) for number, key in found.items() if key is not None}


def _create(path: Path) -> None:
    """Make an empty file that only its user may read; SQLite's side files take its mode."""
    os.close(files.open_private(path))


def said(error: BaseException) -> str:
    """What the driver says, without the statement and its parameters."""
    return str(error.orig if isinstance(error, DBAPIError) else error)


def stored_generation(connection: Connection) -> str | None:
    """The migration a store is at, or None for an empty one.

    Raises:
        StoreTooNew: a generation that this program does not know.
    """
    if not inspect(connection).has_table("alembic_version"):
        return None
    row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").first()
    generation = None if row is None else str(row[0])
    if generation is not None and generation > schema.GENERATION:
        raise StoreTooNew(
            f"the store has schema {generation}, this program knows {schema.GENERATION}: "
            "use the newer forbear, or another FORBEAR_HOME"
        )
    return generation


def _pragmas(pragmas: tuple[str, ...]) -> Callable[[DBAPIConnection, object], None]:
    def apply(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return apply
