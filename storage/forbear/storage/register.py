"""Registers that operations share: scopes with their slots and tokens, and credentials."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import admission
from forbear.rules.model import Operation, WaitingFor
from forbear.storage.schema import attempts, credentials, operations, scopes
from forbear.storage.transitions import Holding


def scope_state(connection: Connection, key: str, op: Operation, now: int) -> admission.ScopeState:
    row = connection.execute(sa.select(scopes).where(scopes.c.key == key)).first()
    busy = connection.execute(
        sa.select(sa.func.count(), sa.func.min(attempts.c.hold_until)).where(
            attempts.c.scope == key,
            attempts.c.closed_at.is_(None),
            attempts.c.hold_until > now,
        )
    ).one()
    ahead = connection.execute(
        sa.select(sa.func.count()).where(
            operations.c.provider == op.provider,
            operations.c.account == op.account,
            operations.c.waiting_for == str(WaitingFor.SCOPE),
            operations.c.next_at > now,
            operations.c.id != op.id,
        )
    ).scalar_one()
    return admission.ScopeState(
        next_allowed_at=row.next_allowed_at if row is not None else 0,
        theoretical_arrival=row.theoretical_arrival if row is not None else 0,
        open_attempts=busy[0],
        next_free_at=busy[1],
        ahead=ahead,
    )


def take_token(connection: Connection, key: str, arrival: int, now: int) -> None:
    values = {"theoretical_arrival": arrival, "updated_at": now}
    if not connection.execute(
        sa.update(scopes).where(scopes.c.key == key).values(**values)
    ).rowcount:
        connection.execute(sa.insert(scopes), {"key": key, **values})


def block_scope(connection: Connection, key: str, until: int, source: str, now: int) -> None:
    """Admit nothing of a scope before `until`; an earlier end never shortens a later one."""
    known = connection.execute(
        sa.update(scopes)
        .where(scopes.c.key == key)
        .values(
            next_allowed_at=sa.case(
                (scopes.c.next_allowed_at < until, until), else_=scopes.c.next_allowed_at
            ),
            source=source,
            updated_at=now,
        )
    ).rowcount
    if known == 0:
        connection.execute(
            sa.insert(scopes),
            {"key": key, "next_allowed_at": until, "source": source, "updated_at": now},
        )


def scope_of_attempt(connection: Connection, attempt_id: str) -> str:
    query = sa.select(attempts.c.scope).where(attempts.c.id == attempt_id)
    scope: str = connection.execute(query).scalar_one()
    return scope


def free_slot(connection: Connection, op: Operation, now: int) -> None:
    """Let the oldest operation of this account that waits for a slot look again."""
    first = connection.execute(
        sa.select(operations.c.id)
        .where(
            operations.c.provider == op.provider,
            operations.c.account == op.account,
            operations.c.waiting_for == str(WaitingFor.SLOT),
            operations.c.next_at > now,
        )
        .order_by(operations.c.number)
        .limit(1)
    ).scalar()
    if first is not None:
        connection.execute(
            sa.update(operations).where(operations.c.id == first).values(next_at=now)
        )


def refuse_credential(connection: Connection, op: Operation, holding: Holding, now: int) -> None:
    """Block the very secret in use for every process, until it changes."""
    connection.execute(
        sa.update(credentials)
        .where(
            credentials.c.provider == op.provider,
            credentials.c.account == op.account,
            credentials.c.fingerprint == holding.credential,
        )
        .values(refused_at=now, refused_version=holding.version)
    )


def credential_ready(connection: Connection, op: Operation, holding: Holding, now: int) -> bool:
    """Whether the process holds a credential that this store accepts and nobody refused.

    The first use for a provider and account registers it; another one sends nothing.
    """
    if holding.credential is None:
        return False
    mine = sa.and_(credentials.c.provider == op.provider, credentials.c.account == op.account)
    known = {row.fingerprint: row for row in connection.execute(sa.select(credentials).where(mine))}
    if not known:
        connection.execute(
            sa.insert(credentials),
            {
                "provider": op.provider,
                "account": op.account,
                "fingerprint": holding.credential,
                "accepted_at": now,
            },
        )
        return True
    row = known.get(holding.credential)
    return row is not None and (row.refused_at is None or row.refused_version != holding.version)
