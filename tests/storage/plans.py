"""How SQLite carries out what the writer executes; its own word, whoever executes it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from tests.storage.house import House

_LITERAL = re.compile(r"x?'(?:[^']|'')*'|\b\d+\b", re.IGNORECASE)


@contextmanager
def plans(house: House) -> Iterator[dict[str, list[str]]]:
    """The plan of each kind of statement that is executed meanwhile; filled at the end."""
    executed: dict[str, str] = {}
    found: dict[str, list[str]] = {}

    def note(statement: str) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            executed.setdefault(_LITERAL.sub("?", statement), statement)

    with house.database.writer.connect() as connection:
        driver = cast(sqlite3.Connection, connection.connection.driver_connection)
    driver.set_trace_callback(note)
    try:
        yield found
    finally:
        driver.set_trace_callback(None)
    for kind, statement in executed.items():
        found[kind] = [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}")]
