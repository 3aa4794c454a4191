"""Whether a store is the living one, or a copy that may only look.

A store that its mark is not of (`mark`) may be behind what was sent since. It is held: the pause
`COPY` lets nothing leave but lookups, no new work is taken, and each unfinished write is unclear.
A person who knows that no other home goes on with the same operations adopts it.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.reconciliation import doubted
from forbear.storage import audit, rows
from forbear.storage.brakes import COPY, is_copy
from forbear.storage.database import Database
from forbear.storage.schema import LIVE, WRITES, attempts, operations, pauses
from forbear.storage.transitions import Ids, apply

_OUT = sa.exists().where(attempts.c.operation_id == operations.c.id, attempts.c.closed_at.is_(None))


def opened(database: Database, now: int, ids: Ids) -> None:
    """Hold a store that its mark is not of. From then on the mark is of this store.

    Called with each opening, before anything is written. What cannot be held is not opened.
    """
    with database.apart(), database.writer.connect() as connection:
        why = database.mark.doubt(connection)
        if why is not None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                hold(connection, why, now, ids)
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
        database.mark.set(database.mark.head(connection))


def hold(connection: Connection, why: str, now: int, ids: Ids) -> None:
    """Let nothing leave this store but lookups. Safe to run again."""
    if not is_copy(connection):
        row = {"target": COPY, "since": now, "by": {"why": why}}
        connection.execute(sa.insert(pauses), row)
        audit.append(connection, None, now, audit.Code.STORE_HELD, {"why": why})
    unfinished = sa.select(operations, _OUT.label("out")).where(sa.text(LIVE), sa.text(WRITES))
    for found in connection.execute(unfinished).mappings().all():
        op, out = rows.operation(found), bool(found["out"])
        verdict = doubted(op, now, out=out)
        # What is out keeps its lease.
        lease = dict[str, object]() if out else None
        if verdict is not None:
            apply(connection, op, verdict, audit.Code.STORE_HELD, now, ids, lease=lease)


def adopt(connection: Connection, by: Mapping[str, object], now: int) -> bool:
    """Make a held store the living one; what waits goes on. False if it is the living one."""
    if connection.execute(sa.delete(pauses).where(pauses.c.target == COPY)).rowcount == 0:
        return False
    audit.append(connection, None, now, audit.Code.STORE_ADOPTED, by)
    return True
