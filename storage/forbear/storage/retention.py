"""What goes when it was kept long enough: first what was said, much later that it was done.

    empty     arguments, requests, answers, results and texts of an operation that is over
    forget    the operation itself, with its attempts and cases

An operation with an open case, or one that another still needs, waits for that. The audit log is
not touched here: `forbear audit prune` shortens it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.model import FINAL
from forbear.storage import audit
from forbear.storage.schema import FULL, cases, metadata, operations, requests
from forbear.storage.transitions import description
from forbear.storage.vault import Sealed

_OVER = [str(state) for state in FINAL]
_children = operations.alias("children")


@dataclass(frozen=True, slots=True)
class Term:
    """Operations of one provider that ended before a time."""

    provider: str | None
    """None is all providers but the `others`."""
    before: int
    others: tuple[str, ...] = ()

    @property
    def where(self) -> sa.ColumnElement[bool]:
        ended = operations.c.updated_at < self.before
        if self.provider is None:
            return sa.and_(operations.c.provider.not_in(self.others), ended)
        return sa.and_(operations.c.provider == self.provider, ended)


def full(term: Term) -> sa.Select[str]:
    """Ids of operations that are over and whose payloads are kept; longest first."""
    asked = sa.exists().where(cases.c.operation_id == operations.c.id, cases.c.closed_at.is_(None))
    needed = sa.exists().where(
        _children.c.parent_id == operations.c.id, _children.c.state.not_in(_OVER)
    )
    return (
        sa.select(operations.c.id)
        .where(term.where, sa.text(FULL), ~asked, ~needed)
        .order_by(operations.c.updated_at)
    )


def emptied(term: Term) -> sa.Select[str]:
    """Ids of operations whose payloads are gone, and that no other comes from; longest first."""
    followed = sa.exists().where(_children.c.parent_id == operations.c.id)
    return (
        sa.select(operations.c.id)
        .where(term.where, operations.c.emptied_at.is_not(None), ~followed)
        .order_by(operations.c.updated_at)
    )


def empty(connection: Connection, term: Term, ids: Collection[str], now: int) -> None:
    """Take what was sent and answered of those that are still due."""
    due = full(term).where(operations.c.id.in_(ids))
    for operation_id in connection.execute(due).scalars().all():
        _empty(connection, operation_id, now)


def _empty(connection: Connection, operation_id: str, now: int) -> None:
    here = operations.c.id == operation_id
    result = connection.execute(sa.select(operations.c.result).where(here)).scalar_one()
    for table, gone in _EMPTIED:
        connection.execute(sa.update(table).where(_hanging_on(table, [operation_id])).values(gone))
    kept = None if result is None else description(result)
    connection.execute(sa.update(operations).where(here).values(result=kept, emptied_at=now))
    connection.execute(sa.delete(requests).where(requests.c.operation_id == operation_id))
    audit.append(connection, operation_id, now, audit.Code.EMPTIED, {})


def forget(connection: Connection, term: Term, most: int, now: int) -> int:
    """Take operations that are due, and all that hangs on them; how many there were."""
    ids = connection.execute(emptied(term).limit(most)).scalars().all()
    for operation_id in ids:
        audit.append(connection, operation_id, now, audit.Code.FORGOTTEN, {})
    _delete(connection, ids)
    return len(ids)


def _delete(connection: Connection, ids: Sequence[str]) -> None:
    for table in _HANGING:
        connection.execute(sa.delete(table).where(_hanging_on(table, ids)))


def _hanging_on(table: sa.Table, ids: Sequence[str]) -> sa.ColumnElement[bool]:
    """The rows that are these operations, or refer to them by foreign keys over any number of
    tables. A table with no way there has none."""
    if table is operations:
        return operations.c.id.in_(ids)
    ways = (
        key.parent.in_(sa.select(key.column).where(_hanging_on(key.column.table, ids)))
        for key in table.foreign_keys
    )
    return sa.or_(sa.false(), *ways)


_HANGING = [
    table for table in reversed(metadata.sorted_tables) if table is operations or table.foreign_keys
]
"""Every table with rows of operations, what refers before what is referred to."""


def _gone(table: sa.Table) -> dict[str, object]:
    """Nothing, for each sealed column of a table."""
    return {
        column.name: None if column.nullable else column.type.nothing()
        for column in table.columns
        if isinstance(column.type, Sealed)
    }


_EMPTIED = [(table, _gone(table)) for table in _HANGING if table is not requests and _gone(table)]
