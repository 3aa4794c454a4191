"""Token requests: reserved before they leave, one at a time for each credential, never forgotten.

A token is fetched for one operation's next request and serves all of the same credential. Its
request counts in that operation's scopes where it goes to the provider's own host; elsewhere the
provider's published limits do not count it, and "one at a time" and the waits here bound it. No
token is ever in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from forbear.rules import tokens
from forbear.rules.admission import HANDOVER, SETTLING, Admit, Hold, in_doubt
from forbear.rules.model import DelaySource, Operation, Reason, State, WaitingFor
from forbear.rules.ports import Moment, Outbound, Permit, Random, Reply
from forbear.rules.verdicts import stop
from forbear.storage import audit, register
from forbear.storage.liveness import Liveness
from forbear.storage.outcomes import outcome_of
from forbear.storage.schema import (
    LIVE,
    attempts,
    credentials,
    operations,
    token_requests,
    token_slots,
    waits,
)
from forbear.storage.transitions import Holding, apply, load

_LEASE = HANDOVER + tokens.TIMEOUT + SETTLING
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TokenReserved:
    """A committed reservation: one token request may leave, once."""

    operation: Operation
    permit: Permit
    request: Outbound
    holding: Holding
    hold_until: int


# --- before ---------------------------------------------------------------------------------


def wait_for(
    connection: Connection, op: Operation, holding: Holding, liveness: Liveness, now: Moment
) -> Hold | None:
    """What stands between `op` and a token request: one under way, or a wait after a failure.

    A request whose process is gone is closed as unknown here.
    """
    flight = _flight(connection, op, holding)
    if flight is not None:
        if not _over(flight, liveness, now):
            return Hold(flight.hold_until, WaitingFor.SLOT)
        _lose(connection, flight, now.wall)
    row = connection.execute(sa.select(credentials).where(_whose(op, holding))).first()
    if row is None or row.token_next_at is None or row.token_failed_at > now.wall:
        return None
    if row.token_next_at <= now.wall:
        return None
    return Hold(row.token_next_at, WaitingFor.SCOPE, DelaySource(row.token_source))


def reserve(
    connection: Connection,
    op: Operation,
    admitted: Admit,
    holding: Holding,
    now: Moment,
    owner: str,
    ids: Random,
) -> TokenReserved:
    """Book a token request for what `op` may send now. The permit counts after the commit."""
    auth = holding.contract.auth
    request_id, send_by = f"tok_{ids.token(20)}", now.wall + HANDOVER
    hold_until = now.wall + _LEASE
    row: dict[str, object] = {
        "id": request_id,
        "operation_id": op.id,
        "provider": op.provider,
        "account": op.account,
        "credential": holding.credential,
        "owner": owner,
        "boot_id": now.boot_id,
        "reserved_at": now.wall,
        "send_by": send_by,
        "hold_until": hold_until,
        "hold_until_boot": now.boot + _LEASE,
    }
    connection.execute(sa.insert(token_requests), row)
    host = tokens.token_host(auth)
    ours = host == tokens.host_of(holding.contract.base_url)
    if ours:
        register.take_beside(connection, admitted, now.wall)
        for one in admitted.taken:
            slot = {"request_id": request_id, "scope": one.key, "hold_until": hold_until}
            connection.execute(sa.insert(token_slots), slot)
    body = {
        "token_request": request_id,
        "host": host,
        "send_by": send_by,
        "scope": [one.key for one in admitted.taken] if ours else [],
    }
    audit.append(connection, op.id, now.wall, audit.Code.TOKEN_RESERVED, body)
    permit = Permit(
        attempt_id=request_id,
        operation_id=op.id,
        fence=op.fence,
        send_by=send_by,
        send_by_boot=now.boot + HANDOVER,
        boot_id=now.boot_id,
        provider=op.provider,
        account=op.account,
        for_token=True,
    )
    return TokenReserved(op, permit, tokens.token_request(auth), holding, hold_until)


def may_renew(
    connection: Connection, op: Operation, attempt_id: str, holding: Holding, reply: Reply
) -> bool:
    """Whether a 401 may be about the token: not if the request before this one met a 401 too."""
    if reply.status != 401 or not tokens.uses_tokens(holding.contract.auth):
        return False
    before = (
        sa.select(attempts.c.status)
        .where(attempts.c.operation_id == op.id, attempts.c.id != attempt_id)
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    return connection.execute(before).scalar() != 401


# --- after ----------------------------------------------------------------------------------


def settle(
    connection: Connection, reserved: TokenReserved, reply: Reply, now: int, ids: Random
) -> None:
    """Store what came of a token request, and let go what waits for it.

    No token means: what cannot help itself asks one question and blocks the credential, as a 401
    does; all else waits, longer with each failure. What comes to a store that was set back to
    before the reservation counts as a late answer does. Safe to run again.
    """
    outcome, host = outcome_of(reply), tokens.token_host(reserved.holding.contract.auth)
    granted = reply.token is not None and not reply.token.why
    why = _in_words(reply)
    op, holding, request_id = reserved.operation, reserved.holding, reserved.permit.attempt_id
    late = _close(connection, request_id, outcome, reply.status, why, now)
    if late is None:
        return
    body: dict[str, object] = {"token_request": request_id, "host": host, "outcome": outcome}
    body |= {"http": reply.status, "why": why or None, "late": late or None}
    told = {name: value for name, value in body.items() if value is not None}
    audit.append(connection, op.id, now, audit.Code.TOKEN_SETTLED, told)
    if late:
        return  # the next request for a token tells more
    if granted:
        _note(connection, _whose(op, holding))
    elif not _asks(connection, reserved, reply, f"{host}: {why}", now, ids):
        asked = reply.token.wait if reply.token is not None else None
        _fail(connection, _whose(op, holding), asked, now, ids.uniform(), f"{host}: {why}")
    _wake(connection, op.provider, op.account, now)


def _in_words(reply: Reply) -> str:
    if reply.token is not None:
        return reply.token.why
    return f"{reply.fault or 'no answer'}" + (f" ({reply.detail})" if reply.detail else "")


def _asks(
    connection: Connection,
    reserved: TokenReserved,
    reply: Reply,
    why: str,
    now: int,
    ids: Random,
) -> bool:
    """Stop one operation with a question about what no repetition can mend.

    False where there is none to be asked, or none that could be stopped.
    """
    egress = reply.fault == "egress_refused"
    if not egress and (reply.token is None or reply.token.later):
        return False
    op = _spokesman(connection, reserved.operation)
    if op is None:
        return False
    reason = Reason.EGRESS_REFUSED if egress else Reason.AUTHORIZATION_DENIED
    if in_doubt(op):
        reason = Reason.UNCLEAR_WRITE
    verdict = replace(stop(reason, fault="token"), about=f"no token from {why}")
    apply(connection, op, verdict, audit.Code.ENDED, now, ids, holding=reserved.holding)
    if egress:
        return False
    register.refuse_credential(connection, reserved.operation, reserved.holding, now)
    _note(connection, _whose(reserved.operation, reserved.holding), why)
    return True


def _spokesman(connection: Connection, asked: Operation) -> Operation | None:
    """Who is stopped for all that wait for the same token: who asked for it, or the first other."""
    waiting = (
        sa.select(operations.c.id)
        .where(
            *_waits(asked.provider, asked.account),
            operations.c.state != str(State.ESCALATED),
        )
        .order_by(operations.c.id != asked.id, operations.c.number)
        .limit(1)
    )
    found = connection.execute(waiting).scalar()
    return None if found is None else load(connection, found)


def recover(connection: Connection, liveness: Liveness, now: Moment) -> int:
    """Close the token requests whose process is gone, and let go what waits for them."""
    out = connection.execute(sa.select(token_requests).where(token_requests.c.closed_at.is_(None)))
    gone = [row for row in out.all() if _over(row, liveness, now)]
    for row in gone:
        _lose(connection, row, now.wall)
        _wake(connection, row.provider, row.account, now.wall)
    return len(gone)


# --- rows -----------------------------------------------------------------------------------


def _whose(op: Operation, holding: Holding) -> sa.ColumnElement[bool]:
    return _row_of(op.provider, op.account, holding.credential)


def _row_of(provider: str, account: str, fingerprint: str | None) -> sa.ColumnElement[bool]:
    return sa.and_(
        credentials.c.provider == provider,
        credentials.c.account == account,
        credentials.c.fingerprint == fingerprint,
    )


def _flight(connection: Connection, op: Operation, holding: Holding) -> Row[Any] | None:
    return connection.execute(
        sa.select(token_requests).where(
            token_requests.c.provider == op.provider,
            token_requests.c.account == op.account,
            token_requests.c.credential == holding.credential,
            token_requests.c.closed_at.is_(None),
        )
    ).first()


def _over(flight: Row[Any], liveness: Liveness, now: Moment) -> bool:
    late = flight.boot_id != now.boot_id or now.boot >= flight.hold_until_boot
    return late or not liveness.alive(flight.owner)


def _close(
    connection: Connection, request_id: str, outcome: str, status: int | None, note: str, now: int
) -> bool | None:
    """Whether it comes late: the request was given up, or this store never heard of it.

    None: it is settled already.
    """
    mine = token_requests.c.id == request_id
    row = connection.execute(sa.select(token_requests).where(mine)).first()
    if row is None:
        return True
    if row.closed_at is not None and row.outcome != _UNKNOWN:
        return None
    values: Mapping[str, object] = {"outcome": outcome, "status": status, "note": note or None}
    connection.execute(sa.update(token_requests).where(mine).values(closed_at=now, **values))
    connection.execute(sa.delete(token_slots).where(token_slots.c.request_id == request_id))
    return row.closed_at is not None


def _lose(connection: Connection, flight: Row[Any], now: int) -> None:
    """Close a request whose process is gone; the next waits as after any failure."""
    why = "its process is gone"
    _close(connection, flight.id, _UNKNOWN, None, why, now)
    body = {"token_request": flight.id, "outcome": _UNKNOWN, "why": why}
    audit.append(connection, flight.operation_id, now, audit.Code.TOKEN_SETTLED, body)
    whose = _row_of(flight.provider, flight.account, flight.credential)
    _fail(connection, whose, None, now, 0.0, why)


def _fail(
    connection: Connection,
    whose: sa.ColumnElement[bool],
    asked: int | None,
    now: int,
    u: float,
    why: str,
) -> None:
    row = connection.execute(sa.select(credentials).where(whose)).first()
    failures = 1 if row is None else row.token_failures + 1
    source = DelaySource.LOCAL_BACKOFF if asked is None else DelaySource.PROVIDER_RETRY_AFTER
    connection.execute(
        sa.update(credentials)
        .where(whose)
        .values(
            token_failures=failures,
            token_failed_at=now,
            token_next_at=now + tokens.next_wait(failures, asked, u),
            token_source=str(source),
            token_note=why,
        )
    )


def _note(connection: Connection, whose: sa.ColumnElement[bool], why: str | None = None) -> None:
    """Nothing is to be waited for: there is a token, or somebody has to change something."""
    fresh = {"token_failures": 0, "token_failed_at": None, "token_next_at": None}
    values = {**fresh, "token_source": None, "token_note": why}
    connection.execute(sa.update(credentials).where(whose).values(**values))


_IN_A_QUEUE = sa.exists().where(waits.c.operation_id == operations.c.id)


def _waits(provider: str, account: str) -> tuple[sa.ColumnElement[bool], ...]:
    """What waits for a token: held like the others that share a limit, and in no scope's queue."""
    held = sa.or_(
        operations.c.waiting_for == str(WaitingFor.SLOT),
        sa.and_(
            operations.c.waiting_for == str(WaitingFor.SCOPE),
            operations.c.delay_source.is_not(None),
        ),
    )
    return (
        sa.literal_column(f"({LIVE})", sa.Boolean),
        operations.c.provider == provider,
        operations.c.account == account,
        operations.c.lease_owner.is_(None),
        held,
        sa.not_(_IN_A_QUEUE),
    )


def _wake(connection: Connection, provider: str, account: str, now: int) -> None:
    """Make due what waits for a token; what must wait on is held again with its reason."""
    connection.execute(
        sa.update(operations)
        .where(*_waits(provider, account), operations.c.next_at > now)
        .values(next_at=now)
    )
