"""An aiosqlite connection that gives all rows of a statement in one hop between threads.

Through SQLAlchemy a query takes four of them (a cursor, the statement, its rows, the end of the
cursor), and a hop costs more than a read by a key. Whoever reads here wants all rows anyhow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import aiosqlite

Answer = tuple[Any, list[Any]]
"""What the columns are, as `sqlite3.Cursor.description` tells it, and the rows."""


def connect(path: str, **options: Any) -> aiosqlite.Connection:
    """A connection, once awaited; `options` are those of `sqlite3.connect`."""
    return Prefetching(partial(sqlite3.connect, path, factory=_Whole, **options))


class Prefetching(aiosqlite.Connection):
    """Its cursors hold their rows as soon as they have executed a statement."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=1)
        self._thread.daemon = True  # as SQLAlchemy does with a connection of its own making

    def cursor(self) -> Any:
        return _Held(self)


class _Held:
    """What SQLAlchemy asks of a cursor. Only `execute` goes to the thread."""

    arraysize = 1
    rowcount = -1
    lastrowid = None

    def __init__(self, connection: Prefetching) -> None:
        self._connection = connection
        self.description: Any = None
        self._rows: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def execute(self, statement: str, parameters: Iterable[Any] = ()) -> Self:
        found = await self._connection.execute_fetchall(statement, parameters)
        self.description, self._rows = cast(Answer, found)
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._rows = []


class _Whole(sqlite3.Connection):
    """Gives a cursor whose rows come with what their columns are."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return _Fetched(super().execute(sql, parameters))


class _Fetched:
    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def fetchall(self) -> Answer:
        with_rows = self._cursor.description
        rows = self._cursor.fetchall()
        self._cursor.close()
        return with_rows, rows
