"""The first transaction of every operation: insert it, join the one it is, or refuse it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import breaker, sameness
from forbear.rules.model import Operation, Reason, WaitingFor
from forbear.rules.ports import Outbound
from forbear.storage import audit, rows
from forbear.storage.brakes import Paused, paused
from forbear.storage.intents import (
    EndedTask,
    add_task,
    ended_task,
    inherit,
    judge,
    plain,
    same_intent,
)
from forbear.storage.schema import operations, requests
from forbear.storage.transitions import Holding, Ids, insert_case, must_load, recorded


@dataclass(frozen=True, slots=True)
class Draft:
    """A new operation as a use case wants it: nothing is stored yet."""

    operation: Operation
    """Complete but for `number`; `created_at` and all times are set by the ledger's clock."""
    request: Outbound
    deadline: int
    """Length of the deadline, ms."""
    useful_for: int | None
    approve_within: int | None
    """Set if a person must approve first, ms."""
    repeat: str
    repeat_window: int
    task: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    operation: Operation
    joined: bool


NotAccepted = sameness.KeyConflict | sameness.Duplicate | breaker.Tripped | EndedTask | Paused
"""Why nothing was stored."""


def accept(
    connection: Connection, draft: Draft, holding: Holding, now: int, ids: Ids
) -> Accepted | NotAccepted:
    """Insert, join or refuse. A new operation is `queued` and due at once."""
    stopped = paused(connection, draft.operation.provider)
    if stopped is not None:
        return stopped
    if draft.task is not None:
        ended = ended_task(connection, draft.operation.principal, draft.task)
        if ended is not None:
            return ended
    op = draft.operation
    earlier = same_intent(connection, op)
    match judge(connection, op, draft.repeat, draft.repeat_window, earlier, now):
        case sameness.Join(known):
            return _join(connection, known, draft.task, now)
        case sameness.KeyConflict() | sameness.Duplicate() as other:
            return other
        case sameness.New(inherits):
            failing = breaker.tripped(earlier, op.principal, now)
            return failing or _insert(connection, draft, inherits, holding, now, ids)


def _join(connection: Connection, known: Operation, task: str | None, now: int) -> Accepted:
    if task is not None and add_task(connection, known.id, task):
        audit.append(connection, known.id, now, audit.Code.JOINED, {"task": task})
    return Accepted(known, joined=True)


def _insert(
    connection: Connection,
    draft: Draft,
    inherits: Operation | None,
    holding: Holding,
    now: int,
    ids: Ids,
) -> Accepted:
    approve_by = None if draft.approve_within is None else now + draft.approve_within
    op = replace(
        draft.operation,
        created_at=now,
        updated_at=now,
        deadline_at=now + draft.deadline,
        useful_until=None if draft.useful_for is None else now + draft.useful_for,
        approve_by=approve_by,
        approve_deadline=None if approve_by is None else draft.deadline,
        next_at=now if approve_by is None else approve_by,
        waiting_for=None if approve_by is None else WaitingFor.APPROVAL,
    )
    if inherits is not None:
        op = inherit(op, inherits)
    values = {name: getattr(op, name) for name in Operation.__slots__ if name != "number"}
    connection.execute(sa.insert(operations), rows.columns(values))
    connection.execute(
        sa.insert(requests),
        {"operation_id": op.id, "request": plain(draft.request), "body": draft.request.body},
    )
    if draft.task is not None:
        add_task(connection, op.id, draft.task)
    stored = must_load(connection, op.id)
    body: dict[str, object] = {"set": rows.columns(recorded(stored))}
    if draft.task is not None:
        body["task"] = draft.task
    if approve_by is not None:
        reason = Reason.APPROVAL_REQUIRED
        case = insert_case(connection, stored, reason, now, ids, holding)
        body |= {"reason": str(reason), "case": case.id}
    audit.append(connection, op.id, now, audit.Code.ACCEPTED, body)
    return Accepted(stored, joined=False)
