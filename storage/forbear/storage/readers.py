"""The pool of read-only connections that every query goes through."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as NoReader
from sqlalchemy.ext.asyncio import AsyncEngine

from forbear.storage.database import said
from forbear.storage.errors import StoreUnavailable
from forbear.storage.statements import Statement

_ENGINES: Mapping[str, tuple[str, sa.ColumnElement[str]]] = {
    "sqlite": ("SQLite", sa.func.sqlite_version()),
    "postgresql": ("PostgreSQL", sa.func.current_setting("server_version")),
}


class Readers:
    """Reads of one store. Every answer is a committed state; two answers may be of two moments.

    Every method of what is built on this raises `StoreUnavailable` if the file cannot be read.
    """

    def __init__(self, readers: AsyncEngine, near: Connection | None = None) -> None:
        """`near` reads a file on the thread of the caller, and waits for nobody."""
        self._readers = readers
        self._near = near
        self._under_way: set[asyncio.Task[list[sa.RowMapping]]] = set()

    async def settled(self) -> None:
        """Wait for the reads under way, whose connections the end of the store needs back."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def engine(self) -> tuple[str, str]:
        """The name of the database and its version."""
        name, version = _ENGINES[self._readers.dialect.name]
        [row] = await self._rows(sa.select(version.label("version")))
        return name, row["version"]

    async def _keyed(
        self, statement: Statement, /, **values: object
    ) -> Sequence[Mapping[Any, Any]]:
        """The few rows that a key leads to, here and now where that can be had: to hand such a read
        to another thread costs ten times as much as the read.
        """
        if self._near is not None:
            # Whatever is wrong with the file, the pool waits for it or says so.
            with suppress(sqlite3.Error, ResourceClosedError):
                return statement.mappings(self._near, **values)
        assert isinstance(statement.written, sa.Select)
        return await self._rows(statement.written, **values)

    async def _rows(
        self, query: sa.Select[*tuple[Any, ...]], **values: object
    ) -> list[sa.RowMapping]:
        """A caller that is cancelled leaves its read to end by itself: one that is broken off would
        cost the pool its connection.
        """
        reading = asyncio.create_task(self._read(query, values))
        self._under_way.add(reading)
        reading.add_done_callback(self._under_way.discard)
        return await asyncio.shield(reading)

    async def _read(
        self, query: sa.Select[*tuple[Any, ...]], values: Mapping[str, object]
    ) -> list[sa.RowMapping]:
        fresh = False
        while True:
            try:
                async with self._readers.connect() as connection:
                    return list((await connection.execute(query, values)).mappings())
            except (DBAPIError, NoReader, OSError) as error:
                # A server that was restarted meanwhile has ended the connections of the pool.
                stale = isinstance(error, DBAPIError) and error.connection_invalidated
                if fresh or not stale:
                    raise StoreUnavailable(f"the store cannot be read: {said(error)}") from error
                fresh = True
