"""Which processes live and what they can run; what dead ones leave behind."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.model import Operation, WaitingFor
from forbear.storage import audit
from forbear.storage import register as shared
from forbear.storage.liveness import Liveness
from forbear.storage.schema import LIVE, attempts, operations, processes


def register(
    connection: Connection, owner: str, role: str, pid: int, bindings: Sequence[str], now: int
) -> None:
    """Say that a process lives and what it can run; repeated as a heartbeat."""
    known = {"role": role, "pid": pid, "seen_at": now, "bindings": list(bindings)}
    mine = processes.c.owner == owner
    if not connection.execute(sa.update(processes).where(mine).values(**known)).rowcount:
        values = {"owner": owner, "started_at": now, **known}
        connection.execute(sa.insert(processes), values)


def unregister(connection: Connection, owner: str) -> None:
    connection.execute(sa.delete(processes).where(processes.c.owner == owner))


def holds(connection: Connection, binding: str, liveness: Liveness, now: int) -> bool:
    """Whether any living process can run operations of this binding."""
    return any(
        binding in row.bindings and liveness.answers(row.owner, now - row.seen_at)
        for row in connection.execute(sa.select(processes))
    )


def pairing(binding: str, credential: str) -> str:
    """How the list of a process names a binding with the credential that it has for it."""
    return f"{binding}/{credential}"


def left_to_others(
    connection: Connection, op: Operation, waiting_for: WaitingFor, liveness: Liveness, now: int
) -> bool:
    """Whether a process that lacks the credential for `op` leaves it to a living one that has it.

    While nobody has used any, a credential that another process has is as good as the first.
    """
    if waiting_for is not WaitingFor.CREDENTIAL:
        return False
    usable = shared.usable_credentials(connection, op)
    if usable is None:
        return False
    able = {pairing(op.binding, credential) for credential in usable} or {op.binding}
    others = sa.select(processes).where(processes.c.owner != liveness.owner)
    return any(
        not able.isdisjoint(row.bindings) and liveness.answers(row.owner, now - row.seen_at)
        for row in connection.execute(others)
    )


def rewind(connection: Connection, now: int) -> int:
    """Keep planned waits after the wall clock was set back. Returns how many operations that are.

    A row written in what is now the future shows it; its wait is counted again from now, so that
    nothing waits longer than was planned. Safe for every process to do: the first one moves all.
    """
    ahead = operations.c.updated_at - now
    moved = connection.execute(
        sa.update(operations)
        .where(sa.text(LIVE), operations.c.updated_at > now, operations.c.next_at.is_not(None))
        .values(
            next_at=operations.c.next_at - ahead,
            not_before=operations.c.not_before - ahead,
            updated_at=now,
        )
        .returning(operations.c.id, operations.c.next_at)
    ).all()
    for row in moved:
        body = {"because": "the clock was set back", "next_at": row.next_at}
        audit.append(connection, row.id, now, audit.Code.CHECK_MOVED, body)
    shared.rewind(connection, now)
    return len(moved)


def recover(connection: Connection, liveness: Liveness, now: int) -> int:
    """Make due what dead processes held, and forget them. Returns how many operations that are."""
    known = connection.execute(sa.select(processes.c.owner, processes.c.seen_at)).all()
    dead = [row.owner for row in known if not liveness.answers(row.owner, now - row.seen_at)]
    if dead:
        connection.execute(sa.delete(processes).where(processes.c.owner.in_(dead)))
    # Who holds a lease has an open attempt, and of those there are few.
    out = sa.select(attempts.c.owner).where(attempts.c.closed_at.is_(None))
    holders = connection.execute(out.distinct()).scalars()
    gone = [owner for owner in holders if not liveness.alive(owner)]
    if not gone:
        return 0
    left = sa.select(attempts.c.operation_id).where(
        attempts.c.closed_at.is_(None), attempts.c.owner.in_(gone)
    )
    return connection.execute(
        sa.update(operations)
        .where(
            operations.c.id.in_(left),
            operations.c.lease_owner.in_(gone),
            operations.c.next_at > now,
        )
        .values(next_at=now)
    ).rowcount
