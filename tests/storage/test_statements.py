"""Statements that are compiled once stay planned."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect
from tests.storage.house import House
from tests.support import FixedRandom, ManualClock

from forbear.storage.schema import operations
from forbear.storage.statements import Statement

pytestmark = pytest.mark.sqlite


def by_parameter(sql: str) -> list[str]:
    """Conditions on columns of operations that a partial index is about, where a parameter decides.

    SQLite plans such a statement anew whenever it is executed: whether the index serves depends on
    the value.
    """
    partial = [index.dialect_options["sqlite"]["where"] for index in operations.indexes]
    about = " ".join(str(where) for where in partial if where is not None)
    columns = set(re.findall(r"(\w+) = '", about))
    assert {"kind", "request_class", "step"} <= columns
    return re.findall(rf"operations\.(?:{'|'.join(sorted(columns))}) = \?", sql)


def test_no_parameter_decides_whether_a_partial_index_serves(house: House) -> None:
    house.waiting()  # makes what is made at first use
    made = [one for one in gc.get_objects() if isinstance(one, Statement)]
    spelled = {str(one.written.compile(dialect=sqlite.dialect())) for one in made}
    assert len(spelled) > 30
    assert {sql: by_parameter(sql) for sql in spelled if by_parameter(sql)} == {}


def test_a_store_that_was_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    left = []
    for number in range(3):
        house = House(tmp_path / f"home-{number}", ManualClock(), FixedRandom())
        house.waiting()
        house.close()
        del house
        gc.collect()
        left.append(sum(isinstance(one, Dialect) for one in gc.get_objects()))
    assert left[0] == left[2], left


def test_such_a_condition_is_found() -> None:
    asked = sa.select(operations.c.id).where(operations.c.kind == sa.bindparam("kind"))
    assert by_parameter(str(asked.compile(dialect=sqlite.dialect())))
