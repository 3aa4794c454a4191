"""The sealed columns of a home's store, for tests that look past the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from forbear.rules.model import AuditEvent, Operation
from forbear.server.clock import SystemClock
from forbear.storage import audit, rows
from forbear.storage.database import Database
from forbear.storage.keyfiles import Places
from forbear.storage.postgres import Postgres
from forbear.storage.schema import events, operations
from forbear.storage.sealing import Log
from tests import stores

T = TypeVar("T")


def opened(home: Path, query: sa.Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The rows of a query, unsealed."""
    return _with(home, lambda c, _: [dict(row) for row in c.execute(query).mappings()])


def histories(home: Path) -> list[tuple[Operation, list[AuditEvent]]]:
    """Every operation with its events."""

    def read(connection: sa.Connection, log: Log) -> list[tuple[Operation, list[AuditEvent]]]:
        found: list[tuple[Operation, list[AuditEvent]]] = []
        for row in connection.execute(sa.select(operations)).mappings():
            mine = audit.TOLD.where(audit.of_operation(row["id"]))
            told = connection.execute(mine.order_by(events.c.sequence)).mappings()
            found.append((rows.operation(row), [audit.event(one, log) for one in told]))
        return found

    return _with(home, read)


def rewrite(home: Path, statement: sa.Update | sa.Insert) -> None:
    """Change what is stored, as nothing in the program does."""
    _with(home, lambda c, _: c.execute(statement))


def _with(home: Path, work: Callable[[sa.Connection, Log], T]) -> T:
    url = stores.url_of(home)
    if url is not None:
        return stores.apart(_on_server(url, home, work))
    database = Database(home / "forbear.db")
    try:
        with database.writer.connect() as connection:
            return work(connection, database.log)
    finally:
        database.close_writer()


async def _on_server(url: str, home: Path, work: Callable[[sa.Connection, Log], T]) -> T:
    database = Postgres(url, home, Places(home / "keys"), SystemClock())
    try:
        async with database.writers.begin() as connection:
            return await connection.run_sync(work, database.log)
    finally:
        await database.close()
