"""A look at a database on a server that is not opened for it: no keys, nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from forbear.storage.connecting import connected, failing, parted, shown
from forbear.storage.errors import StoreUnavailable

T = TypeVar("T")

_PAGE = 5_000
"""Rows that are fetched at a time."""


class Look:
    """What is in a database, as of one moment."""

    def __init__(self, url: str) -> None:
        self.place = shown(url)
        self._url = url
        self._loop = asyncio.new_event_loop()
        # A caller may be in a loop of its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forbear-look")
        self._connection: Any = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with failing(self.place):
            return self._thread.submit(self._loop.run_until_complete, work).result()

    def open(self) -> None:
        self._connection = self._run(connected(self._url))
        self._run(self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._run(parted())
        self._thread.submit(self._loop.close).result()
        self._thread.shutdown()

    def has(self, table: str) -> bool:
        return self.rows("SELECT 1 WHERE to_regclass($1) IS NOT NULL", table) != []

    def rows(self, statement: str, *given: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._run(self._connection.fetch(statement, *given))]

    def pages(self, columns: str, table: str, key: str) -> Iterator[tuple[Any, ...]]:
        """All rows of a table in the order of `key`, which must be the first of the columns."""
        after = -1
        while True:
            page = self.rows(
                f"SELECT {columns} FROM {table} WHERE {key} > $1 ORDER BY {key} LIMIT {_PAGE}",
                after,
            )
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]


@contextmanager
def look(url: str) -> Generator[Look]:
    """Look into a store on a server.

    Raises:
        StoreUnavailable: it cannot be reached, or there is no store.
    """
    found = Look(url)
    try:
        found.open()
        if not (found.has("audit_logs") and found.rows("SELECT 1 FROM audit_logs")):
            raise StoreUnavailable(f"{found.place} has no audit log yet")
        yield found
    finally:
        found.close()
