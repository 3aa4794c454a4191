"""Connections to a PostgreSQL server, and what its errors mean.

The driver is an optional part of the installation and reads an address as libpq does: with several
hosts, `sslmode`, `target_session_attrs` and the like.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Coroutine, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, cast

from alembic.util import CommandError
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from forbear.storage.database import said
from forbear.storage.errors import StoreError, StoreUnavailable
from forbear.storage.statements import DIRECT, Found, Plan

T = TypeVar("T")

CONNECT = 10.0
"""Seconds for one try to reach the server."""

GONE = 20
"""Seconds after which a server that nothing is heard of counts as gone."""

PATIENCE = 20.0
"""Seconds for which what may pass is waited for."""

_PASSES = frozenset(
    {
        *("40001", "40P01"),  # serialization failure, deadlock
        *("55P03", "57014", "25P03"),  # lock, statement and idle time-out
        *("57P01", "57P02", "57P03", "57P05"),  # the server stops, crashed, starts, was idle
        *("53300", "08000", "08001", "08003", "08004", "08006"),  # no connection to be had
    }
)
"""SQLSTATEs after which the same may succeed."""


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
        connection = await speaks.connect(url, timeout=CONNECT)
        try:
            await _end_when_gone(connection)
        except BaseException:
            connection.terminate()
            raise
    except (OSError, TimeoutError, speaks.PostgresError, speaks.InterfaceError) as error:
        raise Unreached(error) from error
    return connection


async def _end_when_gone(connection: Any) -> None:
    """Let both systems end a connection whose other side is gone, as no program does.

    Without, what was sent is repeated for 15 minutes, at ever longer intervals, and an answer that
    will never come is waited for without an end. The server keeps its side for hours, and has
    only so many.
    """
    wire: socket.socket = connection._transport.get_extra_info("socket")
    if wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    bounds = (
        ("TCP_KEEPIDLE", "tcp_keepalives_idle", GONE // 2),
        ("TCP_KEEPINTVL", "tcp_keepalives_interval", max(1, GONE // 4)),
        ("TCP_KEEPCNT", "tcp_keepalives_count", 2),
        ("TCP_USER_TIMEOUT", "tcp_user_timeout", GONE * 1_000),
    )
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for here, _, value in bounds:
        if hasattr(socket, here):  # not every system has all of them
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, here), value)
    there = (f"set_config('{name}', '{value}', false)" for _, name, value in bounds)
    await connection.execute(f"SELECT {', '.join(there)}", timeout=CONNECT)


def engine(url: str, **options: Any) -> AsyncEngine:
    """An engine on a database. The driver reads the address as libpq does, with several hosts and
    `sslmode`, `target_session_attrs` and the like.

    Raises:
        StoreUnavailable: the driver is not installed.
    """
    driver()
    if "pool_size" in options:
        options |= {"max_overflow": 0, "pool_timeout": PATIENCE}
    made = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": partial(connected, url)},
        **options,
    )
    event.listen(made.sync_engine, "before_cursor_execute", _without_nul, retval=True)
    return made


def _without_nul(
    _connection: object, _cursor: object, statement: str, given: Any, _context: object, _many: bool
) -> tuple[str, Any]:
    return statement, cleaned(given)


def cleaned(given: Any) -> Any:
    """Parameters of a statement as PostgreSQL takes them: a text holds every character but one,
    which agents may write into a name."""
    if isinstance(given, str):
        return given.replace("\0", "\ufffd")
    if isinstance(given, list | tuple):
        return tuple(map(cleaned, cast(Iterable[Any], given)))
    return given


@contextmanager
def failing(place: str) -> Generator[None]:
    """Turn what the driver raises into `StoreUnavailable`."""
    try:
        yield
    except StoreError:
        raise
    except (*FAILURES, CommandError) as error:
        raise StoreUnavailable(f"{place}: {said(error)}{_fix(error)}") from error


FAILURES = (DBAPIError, NoConnection, OSError)
"""TimeoutError is one of the last."""


def state_of(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of the driver."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    return state if isinstance(state, str) else None


def _fix(error: BaseException) -> str:
    match state_of(error):
        case "3D000":
            return " -> create it: createdb NAME"
        case "28000" | "28P01":
            return " -> check user and password in FORBEAR_DATABASE_URL"
        case "25006":
            return " -> name the primary server, not a read-only replica"
        case "42501":
            return " -> let this user create tables in the schema: it must own the database"
        case "42P05" | "26000":
            return (
                " -> a pooler between transactions must know prepared statements (PgBouncer 1.21 "
                "or newer, max_prepared_statements above 0); or name the server itself"
            )
        case _ if isinstance(error, OSError):
            return " -> start the server, or correct FORBEAR_DATABASE_URL"
        case _:
            return ""


def passes(error: BaseException) -> bool:
    """Whether the same may succeed if it is tried again."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = state_of(error)
    if isinstance(error, OSError | NoConnection):
        return state is None or state in _PASSES
    return state in _PASSES


def apart(work: Coroutine[Any, Any, T]) -> T:
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


# --- statements without a detour ----------------------------------------------------------------


def _executed(connection: Connection, plan: Plan, values: Mapping[str, object]) -> Found:
    raw = cast(Any, connection.connection.driver_connection)
    given = cleaned(plan.given(values))
    try:
        if plan.gives_rows:
            rows = await_only(raw.fetch(plan.sql, *given))
            return [tuple(row) for row in rows], len(rows)
        status = await_only(raw.execute(plan.sql, *given))
        return (), int(status.rpartition(" ")[2])
    except Exception as error:
        raise _wrapped(connection, raw, error) from error


def at_once(connection: Connection, statements: str) -> None:
    """Execute statements that take and give nothing, in one round trip.

    Raises:
        DBAPIError: as for any statement of SQLAlchemy.
    """
    raw = cast(Any, connection.connection.driver_connection)
    try:
        await_only(raw.execute(statements))
    except Exception as error:
        raise _wrapped(connection, raw, error) from error


def _wrapped(connection: Connection, raw: Any, error: Exception) -> Exception:
    """An error of asyncpg as SQLAlchemy raises it."""
    speaks = driver()
    if not isinstance(error, speaks.PostgresError | speaks.InterfaceError | OSError):
        return error
    gone = raw.is_closed()
    if gone:
        connection.invalidate(error)
    kind = DBAPIError
    if isinstance(error, speaks.IntegrityConstraintViolationError):
        kind = IntegrityError
    elif isinstance(error, speaks.SyntaxOrAccessError):
        kind = ProgrammingError
    return kind(None, None, error, connection_invalidated=gone)


DIRECT["asyncpg"] = _executed
