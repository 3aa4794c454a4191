"""Outages as the store keeps them: failures of a scope and host, the open circuit, its one case."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import outage
from forbear.rules.model import DelaySource, Operation, Reason
from forbear.rules.pacing import Circuit
from forbear.storage import audit
from forbear.storage.schema import LIVE, cases, circuits, operations
from forbear.storage.statements import Statement
from forbear.storage.transitions import About, Holding, Ids, insert_case, open_case

_CIRCUIT = Statement(
    sa.select(circuits).where(
        circuits.c.scope == sa.bindparam("of_scope"), circuits.c.host == sa.bindparam("of_host")
    )
)
_HELD = sa.select(operations.c.id, operations.c.number, operations.c.next_at).where(
    operations.c.provider == sa.bindparam("provider"),
    operations.c.delay_source == str(DelaySource.CIRCUIT_OPEN),
    sa.text(LIVE),
)


def open_circuit(connection: Connection, scope: str, host: str, now: int) -> Circuit | None:
    """The circuit of a scope and host, if it is open."""
    row = _known(connection, scope, host, now)
    return None if row is None or row.open_since is None else Circuit(row.probe_at)


def _known(connection: Connection, scope: str, host: str, now: int) -> Any:
    """What is known of a scope and host. Where the clock was set back, its times move with it."""
    here = {"of_scope": scope, "of_host": host}
    row = _CIRCUIT.first(connection, **here)
    if row is None or row.updated_at <= now:
        return row
    ahead, moved = row.updated_at - now, {"updated_at": now}
    if row.open_since is not None:
        for time in ("open_since", "probe_at", "page_at"):
            moved[time] = getattr(row, time) - ahead
    _update(connection, scope, host, **moved)
    return _CIRCUIT.first(connection, **here)


def probing(connection: Connection, scope: str, host: str, until: int, now: int) -> None:
    """A probe is out: no other leaves before `until`."""
    _update(connection, scope, host, probe_at=until, updated_at=now)


def record(
    connection: Connection,
    scope: str,
    host: str,
    op: Operation,
    *,
    works: bool,
    reserved_at: int,
    spread: int,
    holding: Holding,
    now: int,
    u: float,
    ids: Ids,
) -> None:
    """Note what an attempt says about a host. The first success ends an outage, or its beginning.

    One that was reserved before the outage was known is no probe: its failure moves none.
    `spread` is the time over which those who waited for its end go on, ms.
    """
    row = _known(connection, scope, host, now)
    if works:
        if row is not None and row.open_since is not None:
            because = "the provider answers again"
            _close(connection, scope, host, row.case_id, because, spread, now)
        elif row is not None:
            here = sa.and_(circuits.c.scope == scope, circuits.c.host == host)
            connection.execute(sa.delete(circuits).where(here))
        return
    if row is None:
        values = {"scope": scope, "host": host, "failures": [now], "updated_at": now}
        connection.execute(sa.insert(circuits), values)
        return
    if row.open_since is not None:
        if reserved_at <= row.open_since:
            return
        probe_at = outage.next_probe(row.probes + 1, now, u)
        _update(connection, scope, host, probes=row.probes + 1, probe_at=probe_at, updated_at=now)
        if now >= row.page_at:
            _tell(connection, scope, host, row.case_id, row.open_since, op, holding, now, ids)
        return
    failures = outage.recent(row.failures, now)
    opens = len(failures) >= outage.FAILURES
    changes: dict[str, object] = {"failures": failures, "updated_at": now}
    if opens:
        page_at = now + outage.PAGE_AFTER
        changes |= {"open_since": now, "probes": 0, "page_at": page_at}
        changes["probe_at"] = outage.next_probe(0, now, u)
        told = {"scope": scope, "host": host}
        audit.append(connection, None, now, audit.Code.CIRCUIT_OPENED, told)
    _update(connection, scope, host, **changes)


def _update(connection: Connection, scope: str, host: str, **changes: object) -> None:
    here = sa.and_(circuits.c.scope == scope, circuits.c.host == host)
    connection.execute(sa.update(circuits).where(here).values(**changes))


def forget(connection: Connection, scope: str, now: int) -> None:
    """Take the provider for reachable again; those who waited go on, spread over a minute."""
    open_ones = sa.select(circuits).where(circuits.c.scope == scope)
    for row in connection.execute(open_ones).all():
        because = "a person reset the scope"
        _close(connection, scope, row.host, row.case_id, because, outage.WINDOW, now)


def _close(
    connection: Connection,
    scope: str,
    host: str,
    case_id: str | None,
    because: str,
    spread: int,
    now: int,
) -> None:
    here = sa.and_(circuits.c.scope == scope, circuits.c.host == host)
    connection.execute(sa.delete(circuits).where(here))
    connection.execute(
        sa.update(cases)
        .where(cases.c.id == case_id, cases.c.closed_at.is_(None))
        .values(closed_at=now, closed_because=because)
    )
    told = {"scope": scope, "host": host}
    audit.append(connection, None, now, audit.Code.CIRCUIT_CLOSED, told)
    for held in connection.execute(_HELD, {"provider": scope.split("/")[0]}).all():
        goes_on = outage.let_go(held.number, now, spread)
        if goes_on < held.next_at:
            wake = sa.update(operations).where(operations.c.id == held.id)
            connection.execute(wake.values(next_at=goes_on))


def _tell(
    connection: Connection,
    scope: str,
    host: str,
    case_id: str | None,
    since: int,
    op: Operation,
    holding: Holding,
    now: int,
    ids: Ids,
) -> None:
    """Open the one case of an outage, beside an operation that goes on waiting."""
    still = sa.select(cases.c.id).where(cases.c.id == case_id, cases.c.closed_at.is_(None))
    if case_id is not None and connection.execute(still).first() is not None:
        return
    if op.final or open_case(connection, op.id) is not None:
        return
    about = f"{host} has answered nobody since {_minute(since)}Z; one request at a time tries"
    reason = Reason.PROVIDER_UNREACHABLE
    case = insert_case(connection, op, reason, now, ids, holding, About(about))
    body = {"reason": str(case.reason), "case": case.id, "scope": scope, "host": host}
    audit.append(connection, op.id, now, audit.Code.CASE_OPENED, body)
    _update(connection, scope, host, case_id=case.id)


def _minute(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).strftime("%H:%M")


def ask_again(connection: Connection, case_id: str, at: int) -> None:
    """Ask nobody about this outage before `at`."""
    connection.execute(sa.update(circuits).where(circuits.c.case_id == case_id).values(page_at=at))
