"""Answers to attempts that are not open any more, or that the store does not know."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.model import Notice, Operation
from forbear.rules.signals import Signal
from forbear.storage import audit
from forbear.storage.outcomes import add_evidence, in_words
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts
from forbear.storage.transitions import load, note


def told(reserved: Reserved, outcome: str, signal: Signal) -> dict[str, object]:
    """The event that tells of it."""
    body: dict[str, object] = {
        "attempt": reserved.permit.attempt_id,
        "outcome": outcome,
        "meaning": str(signal.meaning),
        "http": signal.status,
        "state": signal.state,
    }
    if signal.page is not None:
        body["found"] = len(signal.page.matches)
    return {**body, "take": dict(signal.take)} if signal.take else body


def unknown(
    connection: Connection, reserved: Reserved, outcome: str, signal: Signal, now: int
) -> Operation | None:
    """Keep what came of a request that this store never heard of; None if it knows the attempt.

    The store was set back to before the reservation, by a restored dump or a replica that lacks the
    last commits. There is no row that the answer could go into, perhaps not even an operation. The
    log has it all the same, and whoever decides is told.
    """
    mine = sa.select(attempts.c.id).where(attempts.c.id == reserved.permit.attempt_id)
    if connection.execute(mine).first() is not None:
        return None
    of = reserved.operation.id
    audit.append(connection, of, now, audit.Code.LATE_EVIDENCE, told(reserved, outcome, signal))
    op = load(connection, of)
    if op is None:
        return reserved.operation
    op = note(connection, op, Notice.LATE_EVIDENCE, now)
    add_evidence(connection, op, reserved.holding, in_words(signal), now)
    return op
