"""The queue of each scope: who waits for its next request, and whose turn it is (R21).

What a person approved goes first, then what an agent waits for, then background work. Among equals
the principals take turns, and each principal's tasks take turns among themselves, so that nobody
waits longer than one round while another has more than its own. A queue is rows: what waits costs
no memory in any process.

The first of a queue is told when to look again, and as many after it as there is room for, so that
a queue is served no more slowly than what comes where there is none. Whoever comes later has an
estimate of its own, so that a queue goes on when the process that carried its first is gone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.model import Operation
from forbear.rules.pacing import rank_of
from forbear.storage.schema import operations, scopes, task_turns, tasks, turns, waits
from forbear.storage.statements import Statement

STUCK = 3_000
"""An operation that is due for so long, ms, is run by nobody: others go before it."""

COUNTED = 10_000
"""A queue is not counted further than this."""

CALLED = 8
"""How many are called at once at the most: each of them calls as many when it leaves."""

LAST = 2**62
"""A number after that of every operation."""

_SCOPE = sa.bindparam("of_s", type_=sa.Text)
_RANK = sa.bindparam("of_r", type_=sa.Integer)
_PRINCIPAL = sa.bindparam("of_p", type_=sa.Text)
_TASK = sa.bindparam("of_t", type_=sa.Text)

_ID = sa.bindparam("id", type_=sa.Text)


def _lane(table: sa.Table) -> sa.ColumnElement[bool]:
    """The rows of one principal in one queue, among its equals."""
    return sa.and_(table.c.scope == _SCOPE, table.c.rank == _RANK, table.c.principal == _PRINCIPAL)


_MINE = Statement(sa.select(waits).where(waits.c.operation_id == _ID))
_OTHERS = Statement(
    sa.select(sa.literal(1)).where(waits.c.scope == _SCOPE, waits.c.operation_id != _ID).limit(1)
)
_CALLERS = Statement(
    sa.select(turns.c.rank, turns.c.principal)
    .where(turns.c.scope == _SCOPE)
    .order_by(turns.c.rank, turns.c.turn)
)
_TASKS = Statement(
    sa.select(task_turns.c.task).where(_lane(task_turns)).order_by(task_turns.c.turn)
)
_PLACES = sa.select(
    waits.c.operation_id,
    waits.c.rank,
    waits.c.principal,
    waits.c.task,
    waits.c.number,
    operations.c.next_at,
).join(operations, operations.c.id == waits.c.operation_id)
_OWN = Statement(_PLACES.where(waits.c.scope == _SCOPE, waits.c.operation_id == _ID))
_READY = Statement(
    _PLACES.where(
        _lane(waits),
        waits.c.task == _TASK,
        sa.not_(waits.c.parked),
        waits.c.number < sa.bindparam("before"),
        operations.c.next_at > sa.bindparam("stuck"),
    )
    .order_by(waits.c.number)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_FIRST_TASK = Statement(sa.select(sa.func.min(tasks.c.task)).where(tasks.c.operation_id == _ID))
_NEXT_TURN = (
    sa.update(scopes)
    .where(scopes.c.key == _SCOPE)
    .values(turn=scopes.c.turn + 1)
    .returning(scopes.c.turn)
)
_OF_CALLER, _OF_TASK = _lane(turns), sa.and_(_lane(task_turns), task_turns.c.task == _TASK)
_ANY_OF_TASK = sa.select(sa.literal(1)).where(_lane(waits), waits.c.task == _TASK).limit(1)
_ANY_OF_CALLER = sa.select(sa.literal(1)).where(_lane(waits)).limit(1)


def _counted(table: sa.Table, name: str, *where: sa.ColumnElement[bool]) -> sa.Label[Any]:
    some = sa.select(sa.literal(1)).select_from(table).where(*where).limit(COUNTED).subquery()
    return sa.select(sa.func.count()).select_from(some).scalar_subquery().label(name)


_HERE, _EQUAL = waits.c.scope == _SCOPE, waits.c.rank == _RANK
_EARLIER = waits.c.number < sa.bindparam("of_n", type_=sa.BigInteger)
_AHEAD = Statement(
    sa.select(
        _counted(waits, "urgent", _HERE, waits.c.rank < _RANK),
        _counted(waits, "equal", _HERE, _EQUAL),
        _counted(waits, "earlier", _HERE, _EQUAL, _EARLIER),
        _counted(waits, "own", _lane(waits), waits.c.task == _TASK, _EARLIER),
        _counted(turns, "callers", turns.c.scope == _SCOPE, turns.c.rank == _RANK),
        _counted(task_turns, "tasks", _lane(task_turns)),
        _counted(task_turns, "lanes", task_turns.c.scope == _SCOPE, task_turns.c.rank <= _RANK),
    )
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an operation stands in a queue."""

    first: bool
    ahead: int
    """About how many are served before it."""
    most: int
    """No more are served before it than so many."""


def standing(connection: Connection, scope: str, op: Operation, now: int) -> Standing:
    """Where `op` stands in the queue of a scope; a newcomer stands behind its equals."""
    if _OTHERS.first(connection, of_s=scope, id=op.id) is None:
        return Standing(first=True, ahead=0, most=0)
    first = _first(connection, scope, now, op.id)
    if first is None or first.operation_id == op.id or first.rank > rank_of(op):
        return Standing(first=True, ahead=0, most=0)
    return _behind(connection, scope, op)


def _first(connection: Connection, scope: str, now: int, id: str = "") -> Any:
    """Whose turn it is. What is parked or runs nowhere is passed over, unless it is `id` itself."""
    own = _OWN.first(connection, of_s=scope, id=id) if id else None
    mine = None if own is None else (own.rank, own.principal, own.task)
    for rank, principal in _CALLERS.all(connection, of_s=scope):
        lane = {"of_s": scope, "of_r": rank, "of_p": principal}
        for (task,) in _TASKS.all(connection, **lane):
            here = own if mine == (rank, principal, task) else None
            before = LAST if here is None else here.number
            asked = {**lane, "of_t": task, "before": before, "stuck": now - STUCK, "most": 1}
            first = _READY.first(connection, **asked) or here
            if first is not None:
                return first
    return None


def _behind(connection: Connection, scope: str, op: Operation) -> Standing:
    lane = {"of_s": scope, "of_r": rank_of(op), "of_p": op.principal}
    lane["of_t"] = _first_task(connection, op)
    found = _AHEAD.first(connection, of_n=op.number, **lane)
    # A round for each of its own task before it.
    in_order, rounds = found.urgent + found.earlier, (found.own + 1) * found.lanes
    # Between two of one task come all tasks of its principal, and between those all principals.
    # A newcomer is not counted among them yet.
    turns_between = (found.callers + 1) * (found.tasks + 1)
    others = min(found.equal - found.own, (found.own + 1) * turns_between)
    return Standing(
        first=False,
        ahead=max(1, min(in_order, rounds)),
        most=max(1, found.urgent + found.own + others),
    )


def _first_task(connection: Connection, op: Operation) -> str:
    return _FIRST_TASK.scalar(connection, id=op.id) or ""


def hold(
    connection: Connection, scope: str, op: Operation, now: int, *, firm: Collection[str]
) -> None:
    """Let `op` wait in the queue of a scope. A place that it holds there is kept.

    Places in other queues are parked, so that they hold up nobody, but for the scopes in `firm`:
    there it keeps its turn, and those behind it wait as well.
    """
    places = _places(connection, op.id)
    for place in places:
        parked = place.scope != scope and place.scope not in firm
        if place.rank != rank_of(op):
            leave(connection, op.id, now)
            places = []
            break
        if place.parked != parked:
            here = sa.and_(waits.c.operation_id == op.id, waits.c.scope == place.scope)
            connection.execute(sa.update(waits).where(here).values(parked=parked))
            if parked:
                call_next(connection, place.scope, now, now)
    if all(place.scope != scope for place in places):
        _enter(connection, scope, op, now)


def _enter(connection: Connection, scope: str, op: Operation, now: int) -> None:
    task, rank = _first_task(connection, op), rank_of(op)
    place = {"scope": scope, "rank": rank, "principal": op.principal}
    connection.execute(
        sa.insert(waits), {**place, "operation_id": op.id, "task": task, "number": op.number}
    )
    lane = {"of_s": scope, "of_r": rank, "of_p": op.principal, "of_t": task}
    if connection.execute(sa.select(turns.c.turn).where(_OF_CALLER), lane).first() is None:
        turn = _next_turn(connection, scope, now)
        connection.execute(sa.insert(turns), {**place, "turn": turn})
    if connection.execute(sa.select(task_turns.c.turn).where(_OF_TASK), lane).first() is None:
        turn = _next_turn(connection, scope, now)
        connection.execute(sa.insert(task_turns), {**place, "task": task, "turn": turn})


def _places(connection: Connection, operation_id: str) -> list[Any]:
    return list(_MINE.all(connection, id=operation_id))


def leave(connection: Connection, operation_id: str, now: int, *, served: bool = False) -> None:
    """Give up all places of an operation. Who was served goes to the end of the round."""
    for place in _places(connection, operation_id):
        lane = {"of_s": place.scope, "of_r": place.rank, "of_p": place.principal}
        lane["of_t"] = place.task
        mine = sa.and_(waits.c.operation_id == operation_id, waits.c.scope == place.scope)
        connection.execute(sa.delete(waits).where(mine))
        if connection.execute(_ANY_OF_TASK, lane).first() is None:
            connection.execute(sa.delete(task_turns).where(_OF_TASK), lane)
        elif served:
            turn = _next_turn(connection, place.scope, now)
            connection.execute(sa.update(task_turns).where(_OF_TASK).values(turn=turn), lane)
        if connection.execute(_ANY_OF_CALLER, lane).first() is None:
            connection.execute(sa.delete(turns).where(_OF_CALLER), lane)
        elif served:
            turn = _next_turn(connection, place.scope, now)
            connection.execute(sa.update(turns).where(_OF_CALLER).values(turn=turn), lane)
        if not served:
            call_next(connection, place.scope, now, now)


def call_next(connection: Connection, scope: str, at: int, now: int, most: int = 1) -> None:
    """Let the first of a queue look again at `at`, if they would look later: `most` of them."""
    for place in _foremost(connection, scope, now, min(most, CALLED)):
        if place.next_at > at:
            wake = sa.update(operations).where(operations.c.id == place.operation_id)
            connection.execute(wake.values(next_at=max(at, now)))


def _foremost(connection: Connection, scope: str, now: int, most: int) -> list[Any]:
    """Whose turn it is, and who comes next, about as they would be served one by one."""
    found: list[Any] = []
    by_rank: dict[int, list[Any]] = {}
    for rank, principal in _CALLERS.all(connection, of_s=scope):
        by_rank.setdefault(rank, []).append(principal)
    for rank, principals in by_rank.items():
        lanes: list[Any] = []
        for principal in principals:
            lane = {"of_s": scope, "of_r": rank, "of_p": principal}
            for (task,) in _TASKS.all(connection, **lane):
                asked = {**lane, "of_t": task, "before": LAST, "stuck": now - STUCK, "most": most}
                ready = _READY.all(connection, **asked)
                lanes += [ready] if ready else []
                if len(found) + len(lanes) >= most:
                    break
            if len(found) + len(lanes) >= most:
                break
        found += [one for round in zip_longest(*lanes) for one in round if one is not None]
        if len(found) >= most:
            break
    return found[:most]


def _next_turn(connection: Connection, scope: str, now: int) -> int:
    turn = connection.execute(_NEXT_TURN, {"of_s": scope}).scalar()
    if turn is None:
        connection.execute(sa.insert(scopes), {"key": scope, "turn": 1, "updated_at": now})
        turn = 1
    return int(turn)
