"""Statements that are compiled once, and on SQLite executed without a detour.

SQLAlchemy writes the SQL and knows how each type is stored. What it does around every execution
costs ten times what SQLite takes for a read by a key, and a transaction has twenty of those. So
what the hot transactions execute stands at the head of its module as a `Statement`, with bind
parameters; where the driver can be called directly it is, elsewhere SQLAlchemy executes it. NULL is
None for every type.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import ref

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import result_tuple
from sqlalchemy.engine.interfaces import Dialect

Written = sa.Select[*tuple[Any, ...]] | sa.Insert | sa.Update | sa.Delete
_Processor = Callable[[Any], Any]

_PLANS = "forbear_plans"
"""The attribute of a dialect that has the plans made for it."""


class Statement:
    """One statement. `sets` are the columns whose values an INSERT or UPDATE gets.

    Values go by the names of the bind parameters and of `sets`. Rows are tuples with the names of
    their columns. Every method raises what the driver raises.
    """

    def __init__(self, written: Written, *sets: str) -> None:
        self.written = written
        self._sets = sets
        self._last: tuple[ref[Dialect], Plan] | None = None

    def all(self, connection: Connection, /, **values: object) -> Sequence[Any]:
        """All rows."""
        run = DIRECT.get(connection.dialect.driver)
        if run is None:
            return connection.execute(self.written, values).all()
        plan = self._plan(connection.dialect)
        return [plan.row(plan.opened(one)) for one in run(connection, plan, values)[0]]

    def first(self, connection: Connection, /, **values: object) -> Any:
        """The first row, or None."""
        found = self.all(connection, **values)
        return found[0] if found else None

    def scalar(self, connection: Connection, /, **values: object) -> Any:
        """The first value of the first row, or None."""
        found = self.all(connection, **values)
        return found[0][0] if found else None

    def mappings(self, connection: Connection, /, **values: object) -> Sequence[Mapping[Any, Any]]:
        """All rows, by the names of their columns."""
        run = DIRECT.get(connection.dialect.driver)
        if run is None:
            return connection.execute(self.written, values).mappings().all()
        plan = self._plan(connection.dialect)
        found, _ = run(connection, plan, values)
        return [dict(zip(plan.names, plan.opened(one), strict=True)) for one in found]

    def run(self, connection: Connection, /, **values: object) -> int:
        """Execute what gives no rows, and return how many it changed."""
        run = DIRECT.get(connection.dialect.driver)
        if run is None:
            return connection.execute(self.written, values).rowcount
        return run(connection, self._plan(connection.dialect), values)[1]

    def _plan(self, dialect: Dialect) -> Plan:
        last = self._last
        if last is not None and last[0]() is dialect:
            return last[1]
        # A plan refers to its dialect, so it lies there: by a weak key it would keep it for ever.
        plans: dict[Statement, Plan] = vars(dialect).setdefault(_PLANS, {})
        plan = plans.get(self)
        if plan is None:
            plan = plans[self] = Plan(self.written, self._sets, dialect)
        self._last = ref(dialect), plan
        return plan


class Plan:
    """A statement as one driver takes it."""

    def __init__(self, written: Written, sets: Sequence[str], dialect: Dialect) -> None:
        compiled = written.compile(dialect=dialect, column_keys=list(sets) if sets else None)
        self.sql = str(compiled)
        takes = [compiled.binds[name] for name in compiled.positiontup or ()]
        self._takes = [(bind.key, _storing(bind.type, dialect)) for bind in takes]
        self._given = {bind.key: bind.effective_value for bind in takes if not bind.required}
        columns = list(written.exported_columns)
        self.names = tuple(column.key or "" for column in columns)
        self.row = result_tuple(self.names)
        self.gives_rows = bool(columns)
        opens = [_opening(column.type, dialect) for column in columns]
        self._opens = [(place, open) for place, open in enumerate(opens) if open is not None]

    def given(self, values: Mapping[str, object]) -> list[object]:
        """The parameters, as the driver stores them."""
        known = {**self._given, **values}
        given: list[object] = []
        for name, store in self._takes:
            value = known[name]
            given.append(value if store is None or value is None else store(value))
        return given

    def opened(self, row: Sequence[Any]) -> Sequence[Any]:
        """The values of a row as the types of their columns read them."""
        if not self._opens:
            return row
        values = list(row)
        for place, open in self._opens:
            if values[place] is not None:
                values[place] = open(values[place])
        return values


Found = tuple[Sequence[Sequence[Any]], int]
"""Rows, and how many were changed."""


def _on_sqlite(connection: Connection, plan: Plan, values: Mapping[str, object]) -> Found:
    raw = cast(sqlite3.Connection, connection.connection.driver_connection)
    cursor = raw.execute(plan.sql, plan.given(values))
    return cursor.fetchall(), cursor.rowcount


Direct = Callable[[Connection, Plan, Mapping[str, object]], Found]

DIRECT: dict[str, Direct] = {"pysqlite": _on_sqlite}
"""How a driver is called without a detour, by its name."""


def _storing(of: sa.types.TypeEngine[Any], dialect: Dialect) -> _Processor | None:
    return of.dialect_impl(dialect).bind_processor(dialect)


def _opening(of: sa.types.TypeEngine[Any], dialect: Dialect) -> _Processor | None:
    return of.dialect_impl(dialect).result_processor(dialect, None)
