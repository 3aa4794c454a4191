"""The beginning of the audit log is deleted, up to a checkpoint, and the rest stays verifiable.

First a row at the head says where the log begins from now on, in its header for everybody; it is
signed at once. Then the rows before go, in the same transaction. What an operation that is not
over, or that may still meet a repetition of itself, has in the log stays, and all that follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import sameness
from forbear.storage import audit, rows
from forbear.storage.dialects import overwrite_what_is_deleted
from forbear.storage.schema import (
    LIVE,
    attempts,
    audit_epochs,
    audit_operations,
    cases,
    checkpoints,
    events,
    operations,
    prunings,
)
from forbear.storage.sealing import Checkpoint


@dataclass(frozen=True, slots=True)
class Windows:
    """For how long actions are remembered, as the contracts say, ms."""

    actions: Mapping[tuple[str, str], tuple[int, int]]
    """Repeat window and key window by provider and action."""
    other: tuple[int, int]
    """Those of an action whose contract is not there."""

    def of(self, provider: str, action: str) -> tuple[int, int]:
        return self.actions.get((provider, action), self.other)

    @property
    def longest(self) -> int:
        every = (*self.actions.values(), self.other)
        return max(sameness.LONG_MEMORY, *(max(pair) for pair in every))


@dataclass(frozen=True, slots=True)
class Held:
    """What keeps a row, and so all that follow it, in the log."""

    sequence: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be deleted."""

    start: Checkpoint | None
    """The log begins after the row that this signs; None if nothing can be deleted."""
    rows: int
    held: Held | None
    """What stopped it before the time that was asked for."""
    epochs: tuple[int, ...]
    """Epochs of which no row would be left, and whose keys are still there."""


def plan(
    connection: Connection, before: int, now: int, windows: Windows, last: int | None = None
) -> Plan:
    """What can be deleted of what is older than `before`; nothing after the row `last`."""
    young = sa.select(sa.func.min(events.c.sequence)).where(audit.not_before(before))
    end = connection.execute(young).scalar()
    if end is None:
        end = 1 + (connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar() or 0)
    held = _held(connection, end, now, windows)
    if held is not None:
        end = held.sequence
    if last is not None:
        end = min(end, last + 1)
    return _up_to(connection, end, held)


def _up_to(connection: Connection, end: int, held: Held | None) -> Plan:
    first = connection.execute(sa.select(sa.func.min(events.c.sequence))).scalar() or 1
    found = (
        connection.execute(
            sa.select(checkpoints)
            .where(checkpoints.c.sequence < end, checkpoints.c.sequence >= first)
            .order_by(checkpoints.c.number.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )
    if found is None:
        return Plan(None, 0, held, ())
    start = Checkpoint(**found)
    after = audit_epochs.alias("after")
    begun = (
        sa.select(sa.func.min(after.c.first))
        .where(after.c.number > audit_epochs.c.number)
        .scalar_subquery()
    )
    past = sa.select(audit_epochs.c.number).where(begun <= start.sequence + 1)
    epochs = connection.execute(past.order_by(audit_epochs.c.number)).scalars()
    return Plan(start, start.sequence - first + 1, held, tuple(epochs))


_OUT = sa.exists().where(attempts.c.operation_id == operations.c.id, attempts.c.closed_at.is_(None))
_ASKED = sa.exists().where(cases.c.operation_id == operations.c.id, cases.c.closed_at.is_(None))


def _held(connection: Connection, end: int, now: int, windows: Windows) -> Held | None:
    """The first row before `end` that must stay, and why."""
    since = now - windows.longest
    young = sa.or_(operations.c.updated_at > since, operations.c.sent_at > since)
    first = sa.func.min(events.c.sequence).label("first")
    query = (
        sa.select(operations, first, _OUT.label("out"), _ASKED.label("asked"))
        .select_from(audit.NAMED.join(operations, operations.c.id == audit.OPERATION))
        .where(events.c.sequence < end, sa.or_(sa.text(LIVE), young, _OUT, _ASKED))
        .group_by(operations.c.number)
        .order_by(first)
    )
    with connection.execute(query) as found:
        for row in found.mappings():
            why = _why(row, now, windows)
            if why is not None:
                return Held(row["first"], why)
    return None


def _why(row: sa.RowMapping, now: int, windows: Windows) -> str | None:
    op = rows.operation(row)
    if not op.final:
        return f"{op.id} is not over ({op.state})"
    if row["out"]:
        return f"a request of {op.id} may still be out"
    if row["asked"]:
        return f"{op.id} has an open case"
    until = sameness.remembered_until(op, *windows.of(op.provider, op.action))
    if until > now:
        return f"{op.id} may still meet a repetition of itself, until {_utc(until)}"
    return None


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def prune(
    connection: Connection,
    before: int,
    now: int,
    windows: Windows,
    body: Mapping[str, object],
    *,
    last: int,
    destroy_keys: bool,
) -> Plan:
    """Delete what `plan` says. `body` says who does it, and where an export went.

    With `destroy_keys` the keys of epochs without a row are deleted too: nobody can open what an
    export has of them any more. Deleted text is overwritten in the file.
    """
    found = plan(connection, before, now, windows, last)
    if found.start is None:
        return found
    end = found.start.sequence
    destroyed = found.epochs if destroy_keys else ()
    told = {
        **body,
        "before": before,
        "rows": found.rows,
        "held": None if found.held is None else found.held.why,
        "epochs_destroyed": list(destroyed),
    }
    code = audit.Code.LOG_PRUNED
    row = audit.append(connection, None, now, code, told, start=found.start)
    pruned = {"sequence": end, "hash": found.start.hash, "row": row}
    connection.execute(sa.insert(prunings), pruned)
    overwrite_what_is_deleted(connection)
    connection.execute(sa.delete(events).where(events.c.sequence <= end))
    named = sa.exists().where(events.c.operation == audit_operations.c.number)
    connection.execute(sa.delete(audit_operations).where(~named))
    # Those that name a key stay: they are how a reader knows whose signature counts.
    gone = sa.and_(checkpoints.c.sequence < end, checkpoints.c.next_key.is_(None))
    connection.execute(sa.delete(checkpoints).where(gone))
    connection.execute(sa.delete(audit_epochs).where(audit_epochs.c.number.in_(destroyed)))
    return found
