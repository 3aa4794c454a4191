"""Registers that operations share: scopes with their slots and tokens, and credentials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import pacing
from forbear.rules.admission import Admit
from forbear.rules.contract import ACCOUNT_CHECK, Scope
from forbear.rules.model import Operation, WaitingFor
from forbear.rules.pacing import ScopeState, Shared, Taken, scope_key
from forbear.rules.quotas import Quota
from forbear.rules.steps import scopes_of
from forbear.rules.tokens import uses_tokens
from forbear.storage import circuits, queueing
from forbear.storage.schema import (
    LIVE,
    attempts,
    credentials,
    operations,
    reservations,
    scopes,
    token_slots,
)
from forbear.storage.statements import Statement
from forbear.storage.transitions import Holding

_NOW = sa.bindparam("now", type_=sa.BigInteger)
_KEY = sa.bindparam("scope_key", type_=sa.Text)

_SCOPE = Statement(sa.select(scopes).where(scopes.c.key == _KEY))
_OPEN = reservations.join(attempts, attempts.c.id == reservations.c.attempt_id)
_BUSY = Statement(
    sa.select(sa.func.count(), sa.func.min(reservations.c.hold_until)).where(
        reservations.c.scope == _KEY, reservations.c.hold_until > _NOW
    )
)
_HOLD = Statement(
    sa.insert(reservations), "attempt_id", "scope", "reserved_at", "hold_until", "extra"
)
_CREDENTIALS = Statement(
    sa.select(credentials).where(
        credentials.c.provider == sa.bindparam("of_provider", type_=sa.Text),
        credentials.c.account == sa.bindparam("of_account", type_=sa.Text),
    )
)
_FETCHING = sa.select(sa.func.count(), sa.func.min(token_slots.c.hold_until)).where(
    token_slots.c.scope == _KEY, token_slots.c.hold_until > _NOW
)
_EXTRA = (
    sa.select(sa.func.count(), sa.func.min(reservations.c.reserved_at))
    .select_from(_OPEN)
    .where(
        reservations.c.scope == _KEY,
        reservations.c.extra,
        reservations.c.reserved_at > sa.bindparam("since", type_=sa.BigInteger),
        sa.func.coalesce(attempts.c.outcome, "") != "not_sent",
    )
)


def keyed(holding: Holding, op: Operation) -> list[tuple[str, Scope]]:
    """The scopes that an operation counts in, with their keys in the register."""
    return [
        (scope_key(scope, op.provider, op.account, op.action), scope)
        for scope in scopes_of(holding.contract.scopes, op.action)
    ]


def shared(
    connection: Connection, holding: Holding, op: Operation, host: str, now: int, *, extra: bool
) -> list[Shared]:
    """What admission must know of the scopes of `op`, as they are in this transaction."""
    found = [
        Shared(key, scope, _state(connection, key, scope, op, host, now, extra=extra))
        for key, scope in keyed(holding, op)
    ]
    if not uses_tokens(holding.contract.auth):
        return found
    return [replace(one, seen=_with_tokens(connection, one, now)) for one in found]


def _with_tokens(connection: Connection, one: Shared, now: int) -> ScopeState:
    """Token requests hold slots beside the attempts that do."""
    held, free_at = connection.execute(_FETCHING, {"scope_key": one.key, "now": now}).one()
    if not held:
        return one.seen
    first = min(at for at in (free_at, one.seen.next_free_at) if at is not None)
    return replace(one.seen, open_attempts=one.seen.open_attempts + held, next_free_at=first)


def _state(
    connection: Connection,
    key: str,
    scope: Scope,
    op: Operation,
    host: str,
    now: int,
    *,
    extra: bool,
) -> ScopeState:
    row = _record(connection, key, now)
    open_attempts, next_free_at = _BUSY.first(connection, scope_key=key, now=now)
    place = queueing.standing(connection, key, op, now)
    repeated, free_at = 0, None
    if extra and scope.retry_budget is not None:
        window = scope.retry_budget[1]
        asked = {"scope_key": key, "since": now - window}
        repeated, oldest = connection.execute(_EXTRA, asked).one()
        free_at = None if oldest is None else oldest + window
    known = ScopeState(
        open_attempts=open_attempts,
        next_free_at=next_free_at,
        extra=repeated,
        extra_free_at=free_at,
        first=place.first,
        ahead=place.ahead,
        most_ahead=place.most,
        circuit=circuits.open_circuit(connection, key, host, now),
    )
    return known if row is None else _with_record(known, row)


def _record(connection: Connection, key: str, now: int) -> Any:
    row = _SCOPE.first(connection, scope_key=key)
    if row is None or row.updated_at <= now:
        return row
    rewind(connection, now)
    return _SCOPE.first(connection, scope_key=key)


def rewind(connection: Connection, now: int) -> None:
    """Let the times of all scopes keep their distance from now, where the clock was set back.

    A row that was written in what is now the future shows it. Safe to run again.
    """
    written = sa.select(scopes.c.key, scopes.c.updated_at).where(scopes.c.updated_at > now)
    for key, updated_at in connection.execute(written).all():
        ahead = updated_at - now
        moved: dict[str, object] = {name: scopes.c[name] - ahead for name in _MILLISECONDS}
        moved |= {name: scopes.c[name] - ahead * 1_000 for name in _MICROSECONDS}
        connection.execute(
            sa.update(scopes).where(scopes.c.key == key).values(**moved, updated_at=now)
        )
        mine = sa.update(reservations).where(
            reservations.c.scope == key, reservations.c.reserved_at > now
        )
        at, until = reservations.c.reserved_at - ahead, reservations.c.hold_until - ahead
        held = mine.where(reservations.c.hold_until > now)
        connection.execute(held.values(reserved_at=at, hold_until=until))
        # Of what holds nothing any more only repetitions still count.
        connection.execute(mine.where(reservations.c.extra).values(reserved_at=at))


_MILLISECONDS = ("next_allowed_at", "reset_at", "slowed_at")
_MICROSECONDS = ("theoretical_arrival", "background_arrival")


def _with_record(known: ScopeState, row: Any) -> ScopeState:
    return replace(
        known,
        next_allowed_at=row.next_allowed_at,
        theoretical_arrival=row.theoretical_arrival,
        background_arrival=row.background_arrival,
        remaining=row.remaining,
        reset_at=row.reset_at,
        slowed=row.slowed,
        slowed_at=row.slowed_at,
    )


def take(
    connection: Connection,
    attempt_id: str,
    admitted: Admit,
    op: Operation,
    host: str,
    now: int,
    hold_until: int,
) -> None:
    """Reserve a slot and a token in each scope, and tell the next in its queue when to look."""
    queueing.leave(connection, op.id, now, served=True)
    for one in admitted.taken:
        row: dict[str, object] = {
            "attempt_id": attempt_id,
            "scope": one.key,
            "reserved_at": now,
            "hold_until": hold_until,
            "extra": admitted.extra,
        }
        _HOLD.run(connection, **row)
        if one.probes:
            circuits.probing(connection, one.key, host, now + admitted.lease, now)
        mark: dict[str, object] = {"theoretical_arrival": one.arrival}
        if one.background_arrival is not None:
            mark["background_arrival"] = one.background_arrival
        _set(connection, one.key, now, mark, taking=True)
        _call_next(connection, one, now)


def _call_next(connection: Connection, one: Taken, now: int) -> None:
    """Tell those who can leave at once to look now, or the next one when it can."""
    if one.room:
        queueing.call_next(connection, one.key, now, now, one.room)
    else:
        queueing.call_next(connection, one.key, one.next_at, now)


def take_beside(connection: Connection, admitted: Admit, now: int) -> None:
    """Take from each scope what one more request takes, for one that is no attempt."""
    for one in admitted.taken:
        _set(connection, one.key, now, {"theoretical_arrival": one.arrival}, taking=True)
        _call_next(connection, one, now)


def _set(
    connection: Connection,
    key: str,
    now: int,
    values: Mapping[str, object],
    *,
    taking: bool = False,
) -> None:
    """Change the record of a scope, which may not be there yet; `taking` one of what remains."""
    values = {**values, "updated_at": now}
    update = _update(tuple(sorted(values)), taking)
    if not update.run(connection, scope_key=key, **values):
        connection.execute(sa.insert(scopes), {**values, "key": key})


@lru_cache(maxsize=64)
def _update(names: tuple[str, ...], taking: bool) -> Statement:
    update = sa.update(scopes).where(scopes.c.key == _KEY)
    if taking:
        left = sa.case((scopes.c.remaining > 0, scopes.c.remaining - 1), else_=scopes.c.remaining)
        update = update.values(remaining=left)
    return Statement(update, *names)


def block(connection: Connection, key: str, until: int, source: str, now: int) -> None:
    """Admit nothing of a scope before `until`, and then one at a time, more slowly than before.

    An earlier end never shortens a later one, and nothing that waited leaves in a burst.
    """
    row = _record(connection, key, now)
    seen = ScopeState() if row is None else _with_record(ScopeState(), row)
    ends = max(seen.next_allowed_at, until)
    blocked = {
        "next_allowed_at": ends,
        "theoretical_arrival": max(seen.theoretical_arrival, ends * 1_000),
        "slowed": pacing.after_limit(seen, now),
        "slowed_at": ends,
        "source": source,
    }
    _set(connection, key, now, blocked)


def slowness(connection: Connection, key: str, now: int) -> int:
    """How often 429s halved the rate of a scope, as it is now."""
    row = _record(connection, key, now)
    return 0 if row is None else pacing.slowness(_with_record(ScopeState(), row), now)


def note_quota(connection: Connection, key: str, quota: Quota, now: int) -> None:
    """Keep what the provider says is left; of two words on one window the smaller counts."""
    reset_at = now + quota.reset_after
    row = _record(connection, key, now)
    left = quota.remaining
    if row is not None and row.remaining is not None and row.reset_at is not None:
        same = row.reset_at > now and abs(row.reset_at - reset_at) <= SAME_WINDOW
        left = min(left, row.remaining) if same else left
    said = {"remaining": left, "reset_at": reset_at, "source": quota.source}
    _set(connection, key, now, said)


def forget(connection: Connection, key: str, now: int) -> bool:
    """Drop what 429s, quotas and outages said about a scope. False if it was never used."""
    row = _record(connection, key, now)
    if row is None:
        return False
    # One at a time from here on: what waited must not leave in a burst.
    arrivals = dict.fromkeys(_MICROSECONDS, now * 1_000)
    step = {"next_allowed_at": 0, "slowed": 0, **arrivals}
    word = {"remaining": None, "reset_at": None, "source": None}
    _set(connection, key, now, {**step, **word})
    circuits.forget(connection, key, now)
    queueing.call_next(connection, key, now, now)
    return True


SAME_WINDOW = 1_500
"""Two resets this close, ms, are the same: providers round to whole seconds."""


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

    The first use for a provider and account registers it; another one sends nothing but the
    request that shows whose it is.
    """
    if holding.credential is None:
        return False
    if op.action == ACCOUNT_CHECK:
        return op.arguments.get("credential") == holding.credential
    found = _CREDENTIALS.all(connection, of_provider=op.provider, of_account=op.account)
    known = {row.fingerprint: row for row in found}
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
    fresh |= {"token_failures": 0, "token_next_at": None, "token_note": None}
    if not connection.execute(sa.update(credentials).where(mine).values(**fresh)).rowcount:
        connection.execute(sa.insert(credentials), {**row, **fresh})
    connection.execute(
        sa.update(operations)
        .where(
            sa.text(LIVE),
            operations.c.provider == provider,
            operations.c.account == account,
            operations.c.waiting_for == str(WaitingFor.CREDENTIAL),
            operations.c.lease_owner.is_(None),
            operations.c.next_at > now,
        )
        .values(next_at=now)
    )
