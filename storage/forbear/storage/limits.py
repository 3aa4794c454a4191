"""What an answer teaches about the scopes that its request counted in, beside its own operation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import outage, pacing
from forbear.rules.contract import ACCOUNT_CHECK, Job, Scope
from forbear.rules.escalations import length
from forbear.rules.lifecycle import Event
from forbear.rules.model import Operation, Reason
from forbear.rules.ports import Random, Reply
from forbear.rules.quotas import Quota
from forbear.rules.schedule import stated_wait
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, stop
from forbear.storage import audit, circuits, queueing, register
from forbear.storage.reserving import Reserved
from forbear.storage.schema import cases, scopes


def exhausted(
    connection: Connection,
    op: Operation,
    reserved: Reserved,
    verdict: Verdict,
    signal: Signal,
    now: int,
) -> Verdict:
    """`verdict`, or the one case of a scope that is blocked for long or limited again and again.

    Whoever meets it first is stopped and asks; the others wait for the scope (R31).
    """
    if signal.meaning is not Meaning.RATE_LIMITED or verdict.scope_until is None:
        return verdict
    if verdict.event not in _GIVES_WAY:
        return verdict
    stops = verdict.event in (Event.STOPPED, Event.FAILED)
    for key, scope in _limited(reserved, signal):
        long = verdict.scope_until - now > scope.max_block
        if not long and not (stops and register.slowness(connection, key, now) >= pacing.SLOWEST):
            continue
        if _open_case(connection, key) is None:
            asked = stop(Reason.SCOPE_EXHAUSTED, verdict.changes, **verdict.story, scope=key)
            if long and verdict.reason is Reason.RATE_LIMITED:
                asked = verdict  # it stops in any case; its question stands for the scope
            wait = length(verdict.scope_until - now)
            about = (
                f"nothing of {key} leaves for {wait}; look at what the account is allowed, and at "
                f"[scopes.{scope.name}] of the contract"
            )
            return replace(asked, scope_until=verdict.scope_until, about=about)
    return verdict


_GIVES_WAY = frozenset({Event.POSTPONED, Event.OBSERVED, Event.STOPPED, Event.FAILED})


def learn(
    connection: Connection,
    op: Operation,
    reserved: Reserved,
    verdict: Verdict,
    signal: Signal,
    reply: Reply,
    now: int,
    random: Random,
) -> None:
    """Keep what the answer says of limits, outages and whose credential it is, and let the next of
    each queue look."""
    if op.action == ACCOUNT_CHECK and verdict.event is Event.SUCCEEDED:
        _accept_credential(connection, op, reserved, now)
    quotas = dict(signal.quotas)
    limited = [key for key, _ in _limited(reserved, signal)]
    works = outage.verdict_on(signal, reply)
    for key, scope in register.keyed(reserved.holding, op):
        quota = quotas.get(scope.name)
        if quota is not None:
            register.note_quota(connection, key, quota, now)
        if verdict.scope_until is not None and key in limited:
            register.block(connection, key, verdict.scope_until, str(signal.meaning), now)
        if key in limited:
            _mark_case(connection, op, verdict, key)
        if works is not None:
            circuits.record(
                connection,
                key,
                reserved.host,
                op,
                works=works,
                reserved_at=reserved.operation.updated_at,
                spread=_spread(reserved),
                holding=reserved.holding,
                now=now,
                u=random.uniform(),
                ids=random,
            )
        queueing.call_next(connection, key, now, now)


def _accept_credential(connection: Connection, op: Operation, reserved: Reserved, now: int) -> None:
    """The provider named the account that the contract states: the credential may be used."""
    fingerprint = reserved.holding.credential
    if fingerprint is None:
        return
    register.accept_credential(connection, op.provider, op.account, fingerprint, now)
    body = {"provider": op.provider, "account": op.account, "fingerprint": fingerprint}
    code = audit.Code.CREDENTIAL_ACCEPTED
    audit.append(connection, op.id, now, code, {**body, "operator": ACCOUNT_CHECK})


def learn_late(connection: Connection, reserved: Reserved, signal: Signal, now: int) -> None:
    """A 429 that comes after its attempt was given up still closes the scope that it is about."""
    wait = stated_wait(signal)
    if signal.meaning is not Meaning.RATE_LIMITED or wait is None:
        return
    for key, _ in _limited(reserved, signal):
        register.block(connection, key, now + wait, str(signal.meaning), now)


def _limited(reserved: Reserved, signal: Signal) -> list[tuple[str, Scope]]:
    """The scopes that a 429 is about: those whose own limit reads as spent, or all of them."""
    keyed = register.keyed(reserved.holding, reserved.operation)
    quotas: Mapping[str, Quota] = dict(signal.quotas)
    spent = [
        (key, scope)
        for key, scope in keyed
        if scope.name in quotas and quotas[scope.name].remaining == 0
    ]
    return spent or keyed


def _open_case(connection: Connection, key: str) -> str | None:
    """The open case about this scope, if there is one."""
    query = (
        sa.select(cases.c.id)
        .join(scopes, scopes.c.exhausted_case == cases.c.id)
        .where(scopes.c.key == key, cases.c.closed_at.is_(None))
    )
    return connection.execute(query).scalar()


def _mark_case(connection: Connection, op: Operation, verdict: Verdict, key: str) -> None:
    """Group the cases that one limit caused, and remember which one speaks for the scope."""
    if verdict.reason not in _OF_A_LIMIT:
        return
    mine = sa.and_(cases.c.operation_id == op.id, cases.c.closed_at.is_(None))
    group = f"grp_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    connection.execute(sa.update(cases).where(mine).values(group=group))
    if verdict.about is not None:
        case = connection.execute(sa.select(cases.c.id).where(mine)).scalar()
        connection.execute(sa.update(scopes).where(scopes.c.key == key).values(exhausted_case=case))


_OF_A_LIMIT = (Reason.SCOPE_EXHAUSTED, Reason.RATE_LIMITED, Reason.QUOTA_EXHAUSTED)


def _spread(reserved: Reserved) -> int:
    """Over what time those who waited for the end of an outage go on, ms: one longest delay."""
    action = reserved.holding.action
    if isinstance(action, Job):
        return action.backoff.max
    return reserved.holding.contract.classes[reserved.operation.request_class].max_delay
