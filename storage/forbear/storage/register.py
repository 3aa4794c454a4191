"""Registers that operations share: scopes with their slots and tokens, and credentials."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import admission
from forbear.rules.model import Operation, WaitingFor
from forbear.storage.schema import attempts, credentials, operations, scopes
from forbear.storage.transitions import Holding

_NOW = sa.bindparam("now", type_=sa.BigInteger)
_KEY = sa.bindparam("scope_key", type_=sa.Text)

_SCOPE = sa.select(scopes).where(scopes.c.key == _KEY)
_BUSY = sa.select(sa.func.count(), sa.func.min(attempts.c.hold_until)).where(
    attempts.c.scope == _KEY, attempts.c.closed_at.is_(None), attempts.c.hold_until > _NOW
)
_QUEUE = sa.and_(
    operations.c.provider == sa.bindparam("provider"),
    operations.c.account == sa.bindparam("account"),
    operations.c.waiting_for == sa.bindparam("waiting_for"),
    operations.c.next_at > _NOW,
)
_AHEAD = sa.select(sa.func.count()).where(_QUEUE, operations.c.id != sa.bindparam("id"))
_FIRST = sa.select(operations.c.id).where(_QUEUE).order_by(operations.c.number).limit(1)
_WAKE = sa.update(operations).where(operations.c.id == sa.bindparam("first")).values(next_at=_NOW)
_TAKE = (
    sa.update(scopes)
    .where(scopes.c.key == _KEY)
    .values(theoretical_arrival=sa.bindparam("arrival"), updated_at=_NOW)
)
_UNTIL = sa.bindparam("until", type_=sa.BigInteger)
_BLOCK = (
    sa.update(scopes)
    .where(scopes.c.key == _KEY)
    .values(
        next_allowed_at=sa.case(
            (scopes.c.next_allowed_at < _UNTIL, _UNTIL), else_=scopes.c.next_allowed_at
        ),
        source=sa.bindparam("because"),
        updated_at=_NOW,
    )
)
_SCOPE_OF_ATTEMPT = sa.select(attempts.c.scope).where(attempts.c.id == sa.bindparam("attempt_id"))


def scope_state(connection: Connection, key: str, op: Operation, now: int) -> admission.ScopeState:
    """What admission must know of a scope, as it is in this transaction."""
    row = connection.execute(_SCOPE, {"scope_key": key}).first()
    busy = connection.execute(_BUSY, {"scope_key": key, "now": now}).one()
    ahead = connection.execute(_AHEAD, {**_queue(op, WaitingFor.SCOPE, now), "id": op.id})
    return admission.ScopeState(
        next_allowed_at=row.next_allowed_at if row is not None else 0,
        theoretical_arrival=row.theoretical_arrival if row is not None else 0,
        open_attempts=busy[0],
        next_free_at=busy[1],
        ahead=ahead.scalar_one(),
    )


def take_token(connection: Connection, key: str, arrival: int, now: int) -> None:
    """Move the token bucket of a scope on."""
    taken = {"scope_key": key, "arrival": arrival, "now": now}
    if not connection.execute(_TAKE, taken).rowcount:
        values = {"key": key, "theoretical_arrival": arrival, "updated_at": now}
        connection.execute(sa.insert(scopes), values)


def block_scope(connection: Connection, key: str, until: int, source: str, now: int) -> None:
    """Admit nothing of a scope before `until`; an earlier end never shortens a later one."""
    blocked = {"scope_key": key, "until": until, "because": source, "now": now}
    if not connection.execute(_BLOCK, blocked).rowcount:
        values = {"key": key, "next_allowed_at": until, "source": source, "updated_at": now}
        connection.execute(sa.insert(scopes), values)


def scope_of_attempt(connection: Connection, attempt_id: str) -> str:
    scope: str = connection.execute(_SCOPE_OF_ATTEMPT, {"attempt_id": attempt_id}).scalar_one()
    return scope


def free_slot(connection: Connection, op: Operation, now: int) -> None:
    """Let the oldest operation of this account that waits for a slot look again."""
    first = connection.execute(_FIRST, _queue(op, WaitingFor.SLOT, now)).scalar()
    if first is not None:
        connection.execute(_WAKE, {"first": first, "now": now})


def _queue(op: Operation, waiting_for: WaitingFor, now: int) -> dict[str, object]:
    return {
        "provider": op.provider,
        "account": op.account,
        "waiting_for": str(waiting_for),
        "now": now,
    }


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


def usable_credentials(connection: Connection, op: Operation) -> list[str] | None:
    """Fingerprints that this store accepts and the provider did not refuse; None if all of them
    were refused. An empty list means that none was ever used.
    """
    mine = sa.and_(credentials.c.provider == op.provider, credentials.c.account == op.account)
    known = connection.execute(sa.select(credentials).where(mine)).all()
    usable = [row.fingerprint for row in known if row.refused_at is None]
    return usable if usable or not known else None


def accept_credential(
    connection: Connection, provider: str, account: str, fingerprint: str, now: int
) -> None:
    """Let a credential be used for a provider and account, also one that was refused before."""
    row = {"provider": provider, "account": account, "fingerprint": fingerprint}
    mine = sa.and_(*(credentials.c[name] == value for name, value in row.items()))
    fresh = {"accepted_at": now, "refused_at": None, "refused_version": None}
    if not connection.execute(sa.update(credentials).where(mine).values(**fresh)).rowcount:
        connection.execute(sa.insert(credentials), {**row, **fresh})
