"""The sealed columns of a home's store, for tests that look past the program."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from forbear.rules.model import AuditEvent, Operation
from forbear.storage import audit, rows
from forbear.storage.database import Database
from forbear.storage.schema import events, operations


def opened(home: Path, query: sa.Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The rows of a query, unsealed."""
    with _connection(home) as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def histories(home: Path) -> Iterator[tuple[Operation, list[AuditEvent]]]:
    """Every operation with its events."""
    database = Database(home / "forbear.db")
    try:
        with database.writer.connect() as connection:
            for row in connection.execute(sa.select(operations)).mappings():
                mine = audit.TOLD.where(events.c.operation_id == row["id"])
                found = connection.execute(mine.order_by(events.c.sequence)).mappings()
                yield rows.operation(row), [audit.event(one, database.log) for one in found]
    finally:
        database.close_writer()


def rewrite(home: Path, statement: sa.Update | sa.Insert) -> None:
    """Change what is stored, as nothing in the program does."""
    with _connection(home) as connection:
        connection.execute(statement)


@contextmanager
def _connection(home: Path) -> Generator[sa.Connection]:
    database = Database(home / "forbear.db")
    try:
        with database.writer.connect() as connection:
            yield connection
    finally:
        database.close_writer()
