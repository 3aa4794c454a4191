"""The first transaction of every operation: insert it, join the one it is, or refuse it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import breaker, sameness
from forbear.rules.contract import Call
from forbear.rules.decisions import Wish, approved
from forbear.rules.model import (
    FINAL,
    Certainty,
    Kind,
    Operation,
    Reason,
    RequestClass,
    WaitingFor,
)
from forbear.rules.ports import Outbound
from forbear.rules.taskbudget import TaskFull, TaskLimits
from forbear.storage import audit, authority, caps, rows, tallies
from forbear.storage.brakes import Paused, paused
from forbear.storage.caps import ScopeFull, WalkOver
from forbear.storage.deciding import Decided, wanted_again
from forbear.storage.intents import (
    EndedTask,
    add_task,
    answered_read,
    ended_task,
    has_task,
    inherit,
    judge,
    plain,
    same_intent,
)
from forbear.storage.schema import operations, requests, tasks
from forbear.storage.statements import Statement
from forbear.storage.tallies import Saved, Tally
from forbear.storage.transitions import Holding, Ids, apply, insert_case, recorded


@dataclass(frozen=True, slots=True)
class FreeSum:
    """What is free without approval: amounts of an argument up to `most` within `per` ms."""

    argument: str
    amount: Decimal
    most: Decimal
    per: int


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
    session: bool
    """The approval is for the client's session: a grant of it stands for one more question."""
    free: FreeSum | None
    """Set if no approval is needed as long as a sum over time is not passed."""
    repeat: str
    repeat_window: int
    task: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    operation: Operation
    joined: bool
    items: int = 0
    """Distinct items that the principal reads one by one where a better call exists."""


NotAccepted = (
    Paused
    | EndedTask
    | WalkOver
    | sameness.KeyConflict
    | sameness.Duplicate
    | breaker.Tripped
    | TaskFull
    | ScopeFull
)
"""Why nothing was stored."""


def accept(
    connection: Connection,
    draft: Draft,
    holding: Holding,
    limits: TaskLimits,
    now: int,
    ids: Ids,
) -> Accepted | NotAccepted:
    """Insert, join or refuse. A new operation is `queued` and due at once.

    First what stops every request, then which operation it is, then what would be one too many.
    """
    op = draft.operation
    stopped = paused(connection, op.provider) or _ended(connection, draft)
    if stopped is not None:
        return stopped
    items = caps.walked(connection, op, holding.action, now)
    if isinstance(items, WalkOver):
        return items
    earlier = same_intent(connection, op)
    match _sameness(connection, draft, holding, earlier, now):
        case sameness.Join(known):
            full = _no_room_to_join(connection, draft, known, limits)
            return full or _join(connection, known, draft.task, items, now)
        case sameness.KeyConflict() | sameness.Duplicate() as other:
            return other
        case sameness.New(inherits):
            refused = (
                breaker.tripped(earlier, op.principal, now)
                or caps.task_full(connection, op.principal, draft.task, limits)
                or caps.scope_full(connection, op, holding.contract, now)
            )
            return refused or _insert(connection, draft, inherits, holding, items, now, ids)


def replace_by(
    connection: Connection,
    decided: Decided,
    draft: Draft,
    wish: Wish,
    holding: Holding,
    by: Mapping[str, object],
    now: int,
    ids: Ids,
) -> Operation:
    """Store the operation that a person let take the place of another, under that decision."""
    old, case = decided.operation, decided.case
    operation = replace(draft.operation, principal=old.principal, authorisation=case.id)
    of_old = sa.select(tasks.c.task).where(tasks.c.operation_id == old.id).order_by(tasks.c.task)
    first, *others = connection.execute(of_old).scalars().all() or [None]
    plainly = replace(
        draft, operation=operation, approve_within=None, session=False, free=None, task=first
    )
    made = _insert(connection, plainly, None, holding, 0, now, ids).operation
    for task in others:
        add_task(connection, made.id, task)
    authority.authorise(connection, case, made, wish.option, {"of": old.id}, by, now)
    return made


def follow(connection: Connection, draft: Draft, holding: Holding, now: int, ids: Ids) -> Operation:
    """Store or join the operation that a decision makes beside the one it is about.

    A person wanted it: a pause holds it back, and nothing refuses it. What another key or principal
    asked for was ruled out before.
    """
    op = draft.operation
    earlier = same_intent(connection, op)
    match judge(connection, op, draft.repeat, draft.repeat_window, earlier, now):
        case sameness.Join(known):
            joined = _join(connection, known, draft.task, 0, now).operation
            if joined.approve_by is None:
                return joined
            allowed = approved(joined, op.authorisation, now)
            code = audit.Code.DECIDED
            return apply(connection, joined, allowed, code, now, ids, holding=holding)
        case sameness.New(inherits):
            return _insert(connection, draft, inherits, holding, 0, now, ids).operation
        case other:
            raise ValueError(f"{other} was to be refused")


def _within(connection: Connection, op: Operation, free: FreeSum, now: int) -> bool:
    """Whether one more amount keeps the sum over time; not in it is what waits for a
    person, or certainly did nothing.
    """
    query = sa.select(operations.c.arguments).where(
        operations.c.principal == op.principal,
        operations.c.provider == op.provider,
        operations.c.account == op.account,
        operations.c.action == op.action,
        operations.c.created_at > now - free.per,
        operations.c.approve_by.is_(None),
        sa.not_(
            sa.and_(
                operations.c.state.in_([str(state) for state in FINAL]),
                operations.c.certainty.in_(_HARMLESS),
            )
        ),
    )
    amounts = (row[0].get(free.argument) for row in connection.execute(query))
    numbers = [Decimal(str(one)) for one in amounts if isinstance(one, int | float)]
    return sum(numbers, free.amount) <= free.most


_HARMLESS = (str(Certainty.NOT_SENT), str(Certainty.NOT_APPLIED))


def _ended(connection: Connection, draft: Draft) -> EndedTask | None:
    if draft.task is None:
        return None
    return ended_task(connection, draft.operation.principal, draft.task)


def _sameness(
    connection: Connection,
    draft: Draft,
    holding: Holding,
    earlier: Sequence[Operation],
    now: int,
) -> sameness.Sameness:
    """Which operation it is. A read has no identity, but an earlier one may answer it."""
    op, action = draft.operation, holding.action
    if not _is_read(op):
        return judge(connection, op, draft.repeat, draft.repeat_window, earlier, now)
    coalesce = action.coalesce if isinstance(action, Call) else None
    known = answered_read(connection, op, draft.task, holding.credential, coalesce, now)
    return sameness.New() if known is None else sameness.Join(known)


def _is_read(op: Operation) -> bool:
    return op.kind is Kind.CALL and op.request_class is RequestClass.READ


def _no_room_to_join(
    connection: Connection, draft: Draft, known: Operation, limits: TaskLimits
) -> TaskFull | None:
    """A read that is new to a task is new work of it, shared or not.

    A job or write is joined in any case: who asks must learn that it is there already.
    """
    op, task = draft.operation, draft.task
    if task is None or not _is_read(op) or has_task(connection, known.id, task):
        return None
    return caps.task_full(connection, op.principal, task, limits)


def _join(
    connection: Connection, known: Operation, task: str | None, items: int, now: int
) -> Accepted:
    if add_task(connection, known.id, task):
        audit.append(connection, known.id, now, audit.Code.JOINED, {"task": task})
    if known.end_asked is not None and not known.final:
        wanted_again(connection, known)
    saved = Saved.JOINED
    if _is_read(known):
        saved = Saved.STORED if known.final else Saved.COALESCED
    tallies.add(connection, now, Tally.SAVED, [saved])
    return Accepted(known, joined=True, items=items)


@cache
def _operation_of(names: tuple[str, ...]) -> Statement:
    return Statement(sa.insert(operations).returning(operations.c.number), *names)


_REQUEST = Statement(sa.insert(requests), "operation_id", "request", "body", "credential")


def _insert(
    connection: Connection,
    draft: Draft,
    inherits: Operation | None,
    holding: Holding,
    items: int,
    now: int,
    ids: Ids,
) -> Accepted:
    grant = None
    if draft.session:
        grant = authority.session_of(connection, draft.operation, holding.credential, now)
    asks = draft.approve_within is not None and grant is None
    if asks and draft.free is not None:
        asks = not _within(connection, draft.operation, draft.free, now)
    approve_by = now + draft.approve_within if asks and draft.approve_within is not None else None
    op = replace(
        draft.operation,
        authorisation=grant or draft.operation.authorisation,
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
    row = rows.columns(values)
    op = replace(op, number=_operation_of(tuple(row)).scalar(connection, **row))
    _REQUEST.run(
        connection,
        operation_id=op.id,
        request=plain(draft.request),
        body=draft.request.body,
        credential=holding.credential,
    )
    add_task(connection, op.id, draft.task)
    body: dict[str, object] = {"set": rows.columns(recorded(op))}
    if draft.task is not None:
        body["task"] = draft.task
    if approve_by is not None:
        reason = Reason.APPROVAL_REQUIRED
        case = insert_case(connection, op, reason, now, ids, holding)
        body |= {"reason": str(reason), "case": case.id}
    audit.append(connection, op.id, now, audit.Code.ACCEPTED, body)
    return Accepted(op, joined=False, items=items)
