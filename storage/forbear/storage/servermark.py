"""How far a store on a server has come, as each home saw it, and which database it lies in.

A database has no file whose place could be taken, but it can be set back or multiplied all the
same: by a restored dump, a recovery to an earlier time, a clone, a replica that took over without
the last commits. Two things tell:

- Each home keeps a high-water mark (see `mark`). A database that lacks the row which this home saw
  committed, or has another in its place, was set back.
- The database holds what the server calls it. Restored or cloned elsewhere it is called otherwise.

A home without a mark is that of a new host, and knows nothing. A copy of the whole server, files
and all, is called the same: only a mark tells it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.storage.mark import Head, Marked, MarkFile, behind
from forbear.storage.schema import whereabouts

NAME = "postgresql.mark"
"""The mark in its home."""

HASH = "CASE WHEN digest IS NULL THEN hash ELSE encode(digest, 'hex') END"
"""The hash of a row of the log."""

_HEAD = sa.text(f"SELECT sequence, {HASH} FROM events ORDER BY sequence DESC LIMIT 1")
_AROUND = sa.text(
    f"SELECT (SELECT {HASH} FROM events WHERE sequence = :sequence),"
    " (SELECT min(sequence) FROM events), (SELECT max(sequence) FROM events)"
)
_MAY_ASK = sa.text("SELECT has_function_privilege('pg_control_system()', 'EXECUTE')")
_NAMED = sa.text(
    "SELECT system_identifier || '.' || oid FROM pg_control_system(), pg_database"
    " WHERE datname = current_database()"
)


class ServerMark:
    """The mark of one home. Its processes share it without a lock."""

    def __init__(self, home: Path) -> None:
        self._kept = MarkFile(home / NAME)

    def read(self) -> Head:
        """How far the store had come when a process of this home last committed something.

        What was read while it was written counts as nothing.
        """
        kept = self._kept.read()
        return kept.head if kept is not None and kept.file == _sum(kept.head) else Head()

    def set(self, head: Head, *, back: bool = False) -> None:
        """Write that the store has come to `head`, which is durable.

        It goes `back` only if told to: whoever commits first may come here last. Where it cannot be
        written it stays, which is as true.
        """
        with suppress(OSError):
            if back or head.sequence > self.read().sequence:
                self._kept.write(Marked(head, _sum(head)))

    def doubt(self, connection: Connection) -> str | None:
        """Why this database may not be the living store; None if it is, as far as anything tells.

        A store in which nothing ever happened is a new one.
        """
        marked = self.read()
        if head(connection) == marked == Head():
            return None
        stored = connection.execute(sa.select(whereabouts.c.database)).scalar()
        if stored not in (None, _named(connection) or stored):
            return "its database is a copy of another one"
        return behind(marked, *connection.execute(_AROUND, {"sequence": marked.sequence}).one())

    @staticmethod
    def claim(connection: Connection) -> None:
        """Note which database the store lies in."""
        here = _named(connection)
        if here is None or connection.execute(sa.select(whereabouts.c.database)).scalar() == here:
            return
        connection.execute(sa.delete(whereabouts))
        connection.execute(sa.insert(whereabouts), {"database": here})

    def close(self) -> None:
        self._kept.close()


def head(connection: Connection) -> Head:
    """How far the store has come."""
    row = connection.execute(_HEAD).first()
    return Head() if row is None else Head(*row)


def _named(connection: Connection) -> str | None:
    """What no other database is called, on this server or another; None if it may not be asked."""
    if not connection.execute(_MAY_ASK).scalar_one():
        return None
    named: str = connection.execute(_NAMED).scalar_one()
    return named


def _sum(head: Head) -> str:
    return hashlib.sha256(f"{head.sequence} {head.hash}".encode()).hexdigest()[:16]
