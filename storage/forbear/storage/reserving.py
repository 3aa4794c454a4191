"""What a reservation uses up, and what the request it pays for is."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.contract import Action
from forbear.rules.model import DelaySource, Kind, Operation, Step, Trigger, WaitingFor
from forbear.storage.outcomes import spend
from forbear.storage.schema import attempts


def counted(op: Operation, step: Step, now: int) -> dict[str, object]:
    """What a reservation of this step uses up."""
    match step:
        case Step.SEND:
            return {
                "attempts": spend(op.attempts),
                "sent_at": op.sent_at or now,
                "waiting_for": None,
            }
        case Step.STATUS:
            return {
                "status_requests": spend(op.status_requests),
                "waiting_for": WaitingFor.PROVIDER,
            }
        case Step.LOOKUP:
            # The pages of one lookup count as one.
            under_way = (op.search or {}).get("cursor") is not None
            return {} if under_way else {"lookups": spend(op.lookups)}


def repeats_aloud(op: Operation, action: Action) -> bool:
    """Whether the provider wants to be told that a request is a repetition (`on_repeat`)."""
    repeats = op.attempts.used > 0 and op.kind in (Kind.JOB, Kind.CALL)
    return repeats and action.idempotency is not None and bool(action.idempotency.on_repeat)


def trigger_of(op: Operation, number: int) -> Trigger:
    if op.delay_source is DelaySource.MANUAL_EXTENSION:
        return Trigger.OPERATOR
    return Trigger.AGENT if number == 1 else Trigger.SCHEDULE


def attempts_so_far(connection: Connection, operation_id: str) -> int:
    query = sa.select(sa.func.count()).where(attempts.c.operation_id == operation_id)
    return connection.execute(query).scalar_one()
