"""Simulated processes: the real composition root on a home, with clocks and threads of our own.

`replaced` puts in place what a simulation replaces, for as long as it lasts. The store is the real
one on a real file: what is committed there survives the death of a process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import httpcore2
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import StaticPool

from forbear.rules import contract_file
from forbear.rules.ports import Moment
from forbear.server import app as root
from forbear.server.config import Settings
from forbear.server.retention import Keeper
from forbear.storage import database as databases
from forbear.storage.database import Database
from forbear.storage.store import Store
from forbear.storage.writer import FileWriter
from tests.simulation.loop import Lane, VirtualLoop, lane
from tests.support import BASE32

TOKEN = {"FORBEAR_SIMULATED_TOKEN": "s3cr3t-T0ken"}
START = 1_796_034_000_000
"""The wall clock at the beginning, ms."""
BOOTED = 3_600_000


# --- clocks and randomness ----------------------------------------------------------------------


class Host:
    """The clocks of the machine that all processes run on. `ports.Clock` for each of them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.asleep = 0
        """How long the machine slept, ms: only timers stood still."""
        self.set = 0
        """By how much the wall clock was set, ms."""

    @property
    def true(self) -> int:
        """Milliseconds that really went by."""
        return int(self._loop.time() * 1_000) + self.asleep

    def now(self) -> Moment:
        true = self.true
        return Moment(START + true + self.set, BOOTED + true, "boot-1")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Dice:
    """`ports.Random` of one process."""

    def __init__(self, seed: str) -> None:
        self._draws = Random(seed)

    def uniform(self) -> float:
        return self._draws.random()

    def token(self, size: int) -> str:
        return "".join(self._draws.choices(BASE32, k=size))


# --- the store without threads ------------------------------------------------------------------


class _Rows:
    def __init__(self, rows: list[sa.RowMapping]) -> None:
        self._rows = rows

    def mappings(self) -> list[sa.RowMapping]:
        return self._rows


class _Readers:
    """What `Readers` needs of an asynchronous engine: each query is one step of its lane."""

    def __init__(self, engine: sa.Engine) -> None:
        self.dialect = engine.dialect
        self._engine = engine
        self._connection: sa.Connection | None = None
        self._over = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[_Readers]:
        yield self

    async def execute(
        self, query: sa.Select[*tuple[Any, ...]], values: Mapping[str, object]
    ) -> _Rows:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if loop.at_once():
            return _Rows(self._fetch(query, values))
        fetched = await loop.run_in_executor(None, self._fetch, query, values)
        return _Rows(fetched)

    def _fetch(
        self, query: sa.Select[*tuple[Any, ...]], values: Mapping[str, object]
    ) -> list[sa.RowMapping]:
        assert not self._over
        if self._connection is None:
            self._connection = self._engine.connect()
        return list(self._connection.execute(query, values).mappings())

    def shut(self) -> None:
        self._over = True
        if self._connection is not None:
            with suppress(Exception):  # what a dead process leaves may have closed it
                self._connection.close()
            self._connection = None

    async def dispose(self) -> None:
        self.shut()


_free: dict[tuple[str, bool], list[sa.Engine]] = {}
"""Engines of earlier processes: what they compiled is of use to later ones."""
_taken: dict[Database, list[tuple[tuple[str, bool], sa.Engine]]] = {}


def _engine(database: Database, pragmas: tuple[str, ...], *, reads: bool) -> sa.Engine:
    key = str(database.path), reads
    free = _free.setdefault(key, [])
    if free:
        engine = free.pop()
    else:
        engine = sa.create_engine(
            f"sqlite+pysqlite:///{database.path}",
            isolation_level="AUTOCOMMIT",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False, "timeout": 1.0},
            skip_autocommit_rollback=reads,
        )
        event.listen(engine, "connect", databases._pragmas(pragmas))
    _taken.setdefault(database, []).append((key, engine))
    return engine


def _writing_engine(database: Database) -> sa.Engine:
    # Processes die here, machines do not.
    return _engine(database, (*databases._WRITER_PRAGMAS, "synchronous=OFF"), reads=False)


def _reading_engine(database: Database) -> _Readers:
    return _Readers(_engine(database, databases._READER_PRAGMAS, reads=True))


def _near_engine(database: Database) -> sa.Engine:
    return _engine(database, databases._READER_PRAGMAS, reads=True)


class _Store(Store):
    """A store that its process can leave without a word."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        stores.setdefault(lane(), []).append(self)

    def vanish(self) -> None:
        """What the kernel does for a process that is gone."""
        database, writer = self._database, self._writer
        assert isinstance(database, Database)
        assert isinstance(writer, FileWriter)
        writer._closed = True
        with suppress(Exception):
            writer._disconnect()
        assert isinstance(database.readers, _Readers)
        database.readers.shut()
        database.near.close()
        database._watch.close()
        with suppress(OSError):
            database.lock.close()
        if self.liveness._descriptor is not None:
            os.close(self.liveness._descriptor)
            self.liveness._descriptor = None
        for key, engine in _taken.pop(database, ()):
            engine.dispose()
            _free[key].append(engine)


stores: dict[Lane, list[_Store]] = {}


async def _uncounted(store: Store, sign: Callable[[sa.Connection], object]) -> None:
    """Without the figures of how long commits took: costly, and nothing rests on them."""
    await store.write(sign)


async def _kept(keeper: Keeper) -> None:
    """No seed is as long as anything is kept."""


_trust = functools.cache(ssl.create_default_context)
_parsed = functools.lru_cache(maxsize=64)(contract_file.parse)


class Complaints(logging.Handler):
    """What the program itself takes for a mistake: it logs an exception that nobody expected."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._hear(f"{record.getMessage()}: {type(error).__name__}: {error}")
            if os.environ.get("FORBEAR_SIMULATION_RAISES"):
                import traceback

                traceback.print_exception(error)


@contextmanager
def replaced(hear: Callable[[str], None]) -> Iterator[None]:
    """Put what a simulation needs in the place of threads, environment and logs."""
    complaints = Complaints(hear)
    log = logging.getLogger("forbear")
    level, propagate = log.level, log.propagate
    log.setLevel(logging.WARNING)
    log.addHandler(complaints)
    log.propagate = False
    try:
        with (
            mock.patch.object(Database, "_writing_engine", _writing_engine),
            mock.patch.object(Database, "_reading_engine", _reading_engine),
            mock.patch.object(Database, "_near_engine", _near_engine),
            mock.patch.object(root, "Store", _Store),
            mock.patch.object(_Store, "sign_of_life", _uncounted),
            mock.patch("forbear.server.providers.parse", _parsed),
            mock.patch.object(Keeper, "go", _kept),
            mock.patch.object(httpcore2, "default_ssl_context", _trust),
            mock.patch.dict(os.environ, TOKEN),
        ):
            yield
    finally:
        log.removeHandler(complaints)
        log.setLevel(level)
        log.propagate = propagate
        for found in stores.values():
            for store in found:
                store.vanish()
        stores.clear()


# --- processes ----------------------------------------------------------------------------------


class Process:
    """One start of a program, from `exec` to its end."""

    def __init__(
        self, loop: VirtualLoop, host: Host, home: Path, name: str, role: str, seed: str
    ) -> None:
        self.name = name
        self.role = role
        self.lane = loop.add_lane(name)
        self.app: root.App | None = None
        self.owner = ""
        self.started = host.true
        self._loop = loop
        self._host = host
        self._home = home
        self._dice = Dice(seed)
        self._asked = asyncio.Event()
        self.over: asyncio.Task[None] = loop.spawn(self.lane, self._run(), name)

    @property
    def up(self) -> bool:
        """Whether it takes calls now."""
        return self.app is not None and self.lane.runs and not self._asked.is_set()

    @property
    def alive(self) -> bool:
        return not self.lane.dead and not self.over.done()

    async def _run(self) -> None:
        running = root.running(
            Settings(self._home), role=self.role, worker=True, clock=self._host, random=self._dice
        )
        async with running as app:
            self.app = app
            self.owner = app.store.liveness.owner
            await self._asked.wait()
        self.kill()  # with the end of a program all of it ends

    def stop(self) -> None:
        """Ask it to end in order."""
        self._loop.call_soon(self._asked.set, context=self.lane.context)

    def kill(self) -> None:
        self.lane.kill()
        for store in stores.pop(self.lane, ()):
            store.vanish()
        self.app = None

    def do(self, coro: Any, name: str) -> asyncio.Task[Any]:
        """Run something in it: a call of its client, a click in its console."""
        return self._loop.spawn(self.lane, coro, name)
