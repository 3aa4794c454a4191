"""What SQLite and PostgreSQL spell differently in statements: one place for each difference.

Triggers are in `triggers`, how a store is opened and written in `database` and `postgres`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeDecorator

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A number that the database gives out or that counts rows: SQLite's own row numbers are INTEGER,
and hold 64 bits."""


class Digest(TypeDecorator[str]):
    """A SHA-256 digest, hex. SQLite keeps its 32 bytes, and any other text as it is."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        if value is None or len(value) != _HEX or dialect.name != "sqlite":
            return value
        return bytes.fromhex(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return value.hex() if isinstance(value, bytes) else value


_HEX = 64


class parsed(GenericFunction[Any]):  # a function of SQL, and named like one
    """A text of JSON, to take members from."""

    type = sa.JSON()
    inherit_cache = True


@compiles(parsed)
def _as_it_is(element: parsed, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(parsed, "postgresql")
def _cast(element: parsed, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS JSON)"


class members(GenericFunction[Any]):
    """The members of a text of JSON, which is a list of texts: what a column may be IN."""

    inherit_cache = True


@compiles(members)
def _each(element: members, compiler: SQLCompiler, **options: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(element.clauses, **options)}))"


@compiles(members, "postgresql")
def _elements(element: members, compiler: SQLCompiler, **options: Any) -> str:
    given = compiler.process(element.clauses, **options)
    return f"(SELECT jsonb_array_elements_text(CAST({given} AS JSONB)))"


def partial(
    name: str,
    *columns: sa.Column[Any],
    where: str | sa.ColumnElement[bool],
    unique: bool = False,
    postgresql: str | None = None,
) -> sa.Index:
    """An index of the rows that a condition holds for. `postgresql` is the condition there, where
    the planner would not know it again as it is spelled for SQLite."""
    condition = sa.text(where) if isinstance(where, str) else where
    there = condition if postgresql is None else sa.text(postgresql)
    return sa.Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=there)


@contextmanager
def whole(connection: Connection) -> Generator[None]:
    """All that is done in it or nothing, where no unit for the writer does it. A connection of
    SQLite begins nothing of its own; one of PostgreSQL is in a transaction already."""
    if connection.dialect.name != "sqlite":
        yield
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def overwrite_what_is_deleted(connection: Connection) -> None:
    """Let what is deleted from here on be overwritten in the file, not only be free for use.

    PostgreSQL has no such thing (docs/postgresql.md): there it is gone with the key it was sealed
    with, or when its page is used again.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("PRAGMA secure_delete=ON")
