"""What bounds how much may be asked for: walks, the budget of a task, the queue of a scope.

Each is counted in the transaction that accepts, so that two processes cannot both take the last
place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.contract import Action, Call, Contract
from forbear.rules.model import Kind, Operation
from forbear.rules.pacing import scope_key
from forbear.rules.steps import scopes_of
from forbear.rules.taskbudget import TaskFull, TaskLimits, TaskUse, full
from forbear.storage.schema import LIVE, PLAIN_READ, UNSENT, attempts, operations, tasks
from forbear.storage.statements import Statement

WALK = 600_000
"""How long an item that was read one by one counts, ms."""


@dataclass(frozen=True, slots=True)
class WalkOver:
    """A call was asked for more items one by one than its contract allows."""

    items: int
    """How many were read."""


@dataclass(frozen=True, slots=True)
class ScopeFull:
    """As many calls and submissions as a scope allows wait already."""

    scope: str
    """The key of the register."""
    waiting: int
    first_at: int | None
    """About when the first of them leaves; None if that is not known."""


# --- walks ----------------------------------------------------------------------------------


def walked(connection: Connection, op: Operation, action: Action, now: int) -> int | WalkOver:
    """How many distinct items of a call its principal asks for one by one, `op` included.

    0 where the contract does not mind. An item that was read before is never one too many.
    """
    if op.kind is not Kind.CALL or not isinstance(action, Call):
        return 0
    if action.instead_of_many is None and action.walk_limit is None:
        return 0
    query = sa.select(operations.c.intent).where(
        operations.c.principal == op.principal,
        operations.c.provider == op.provider,
        operations.c.action == op.action,
        operations.c.created_at > now - WALK,
        sa.text(PLAIN_READ),
    )
    seen = set(connection.execute(query.distinct()).scalars())
    if op.intent in seen:
        return len(seen)
    if action.walk_limit is not None and len(seen) >= action.walk_limit:
        return WalkOver(len(seen))
    return len(seen) + 1


# --- tasks ----------------------------------------------------------------------------------

_OF_TASK = sa.select(tasks.c.operation_id).where(tasks.c.task == sa.bindparam("task"))
_MINE = sa.and_(
    operations.c.principal == sa.bindparam("principal"),
    sa.or_(operations.c.id.in_(_OF_TASK), operations.c.parent_id.in_(_OF_TASK)),
)
_PLANNED = sa.select(
    sa.func.count().filter(sa.text(UNSENT)),
    sa.func.coalesce(sa.func.sum(operations.c.wait_used), 0),
    sa.func.count().filter(sa.text(LIVE)),
).where(_MINE)
_LEFT = (
    sa.select(sa.func.count())
    .select_from(attempts)
    .where(
        attempts.c.operation_id.in_(sa.select(operations.c.id).where(_MINE)),
        sa.or_(attempts.c.closed_at.is_(None), attempts.c.outcome != "not_sent"),
    )
)


def task_full(
    connection: Connection, principal: str, task: str | None, limits: TaskLimits
) -> TaskFull | None:
    """Whether a task has used up its budget. Results and cancellations count with their job."""
    if task is None:
        return None
    whose = {"principal": principal, "task": task}
    unsent, wait, live = connection.execute(_PLANNED, whose).one()
    left = connection.execute(_LEFT, whose).scalar_one()
    return full(task, limits, TaskUse(left + unsent, int(wait), live))


# --- scopes ---------------------------------------------------------------------------------


def scope_full(
    connection: Connection, op: Operation, contract: Contract, now: int
) -> ScopeFull | None:
    """Whether one more call or submission would wait in a scope that has no more room."""
    if op.kind not in _COUNTED:
        return None
    whose = {"of_provider": op.provider, "of_account": op.account, "of_action": op.action}
    for scope in scopes_of(contract.scopes, op.action):
        most = scope.max_delayed_requests
        waiting, first = _waiting(scope.per, tuple(scope.actions))
        count = waiting.scalar(connection, most=most, **whose)
        if count >= most:
            first_at = first.scalar(connection, **whose)
            key = scope_key(scope, op.provider, op.account, op.action)
            return ScopeFull(key, count, first_at if first_at > now else None)
    return None


_COUNTED = (Kind.CALL, Kind.JOB)


@cache
def _waiting(per: str, actions: tuple[str, ...]) -> tuple[Statement, Statement]:
    """How many of a scope wait, not counted further than `most`, and when the first of them goes.

    Of the operations that share a scope, as `scope_key` tells scopes apart.
    """
    members = [operations.c.provider == sa.bindparam("of_provider")]
    if per not in ("provider", "host"):
        members.append(operations.c.account == sa.bindparam("of_account"))
    if per == "account+action":
        members.append(operations.c.action == sa.bindparam("of_action"))
    elif "*" not in actions:
        members.append(operations.c.action.in_([sa.literal(action) for action in actions]))
    waiting = sa.and_(
        sa.text(UNSENT),
        operations.c.kind.in_([sa.literal(str(kind)) for kind in _COUNTED]),
        operations.c.approve_by.is_(None),
        *members,
    )
    some = sa.select(sa.literal(1)).select_from(operations).where(waiting)
    counted = some.limit(sa.bindparam("most", type_=sa.Integer)).subquery()
    return (
        Statement(sa.select(sa.func.count()).select_from(counted)),
        Statement(sa.select(sa.func.min(operations.c.next_at)).where(waiting)),
    )
