"""What makes an operation's identity in the store: its key, its intent, its stored request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import sameness
from forbear.rules.model import Budget, Certainty, Kind, Operation, State, Step
from forbear.rules.ports import Outbound
from forbear.rules.requests import RenderError
from forbear.storage import rows
from forbear.storage.schema import (
    LIVE,
    NO_TASK,
    WRITES,
    attempts,
    ended_tasks,
    operations,
    requests,
    tasks,
)
from forbear.storage.statements import Statement


@dataclass(frozen=True, slots=True)
class EndedTask:
    """The task was ended: it takes no new work."""

    task: str
    at: int


def ended_task(connection: Connection, principal: str, task: str) -> EndedTask | None:
    query = sa.select(ended_tasks.c.ended_at).where(
        ended_tasks.c.principal == principal, ended_tasks.c.task == task
    )
    at = connection.execute(query).scalar()
    return None if at is None else EndedTask(task, at)


def end_task(connection: Connection, principal: str, task: str, why: str, now: int) -> list[str]:
    """Close a task for new work; returns its operations that are not over and are in no other."""
    if ended_task(connection, principal, task) is None:
        row = {"principal": principal, "task": task, "ended_at": now, "why": why}
        connection.execute(sa.insert(ended_tasks), row)
    ended = sa.select(ended_tasks.c.task).where(ended_tasks.c.principal == principal)
    mine = sa.select(tasks.c.operation_id).where(tasks.c.task == task)
    alive = sa.select(tasks.c.operation_id).where(
        sa.or_(tasks.c.task == NO_TASK, tasks.c.task.not_in(ended))
    )
    query = sa.select(operations.c.id).where(
        operations.c.principal == principal,
        sa.text(LIVE),
        operations.c.id.in_(mine),
        operations.c.id.not_in(alive),
    )
    return list(connection.execute(query.order_by(operations.c.number)).scalars())


def by_key(connection: Connection, op: Operation) -> Operation | None:
    if op.key is None:
        return None
    row = (
        connection.execute(
            sa.select(operations).where(
                operations.c.principal == op.principal,
                operations.c.provider == op.provider,
                operations.c.account == op.account,
                operations.c.action == op.action,
                operations.c.key == op.key,
            )
        )
        .mappings()
        .first()
    )
    return None if row is None else rows.operation(row)


def same_intent(connection: Connection, op: Operation) -> list[Operation]:
    found = _same_intent(op.kind).mappings(connection, of_intent=op.intent)
    return [rows.operation(row) for row in found]


def _of_kind(kind: Kind) -> sa.ColumnElement[bool]:
    """Spelled out: a parameter that could decide whether a partial index serves makes SQLite plan
    the statement anew at each execution, which takes ten times as long as the read."""
    return operations.c.kind == sa.literal_column(f"'{kind}'")


@cache
def _same_intent(kind: Kind) -> Statement:
    return Statement(
        sa.select(operations)
        .where(operations.c.intent == sa.bindparam("of_intent"), _of_kind(kind))
        .order_by(operations.c.number.desc())
        .limit(50)
    )


def judge(
    connection: Connection,
    op: Operation,
    repeat: str,
    repeat_window: int,
    earlier: Sequence[Operation],
    now: int,
) -> sameness.Sameness:
    """Which operation a new one is, by the identity rules; `earlier` are those of its intent."""
    ask = sameness.Ask(
        op.principal, op.kind, op.request_class, op.intent, op.key, repeat, repeat_window
    )
    return sameness.judge(ask, by_key(connection, op), earlier, now)


# --- reads that answer each other -------------------------------------------------------------


def answered_read(
    connection: Connection,
    op: Operation,
    task: str | None,
    credential: str | None,
    coalesce: int | None,
    now: int,
) -> Operation | None:
    """The earlier read that answers `op`; see `sameness.answered_by`.

    Never one of another principal, account or credential, nor one that ran under another binding
    or with arguments that do not count for its identity.
    """
    earlier = [one for one in _reads(connection, op, credential) if one.arguments == op.arguments]
    if not earlier:
        return None
    since = min((one.sent_at for one in earlier if one.sent_at is not None), default=now)
    return sameness.answered_by(
        earlier,
        now,
        coalesce=coalesce,
        last_write=None if coalesce is None else _last_write(connection, op, since, now),
        own={
            one.id
            for one in earlier
            if one.state is State.FAILED and (task is None or has_task(connection, one.id, task))
        },
    )


def _reads(connection: Connection, op: Operation, credential: str | None) -> list[Operation]:
    """Newest first; 20 of them reach back far enough."""
    found = _READS.mappings(
        connection,
        of_intent=op.intent,
        of_principal=op.principal,
        of_binding=op.binding,
        of_credential=credential,
    )
    return [rows.operation(row) for row in found]


_READS = Statement(
    sa.select(operations)
    .join(requests, requests.c.operation_id == operations.c.id)
    .where(
        operations.c.intent == sa.bindparam("of_intent"),
        _of_kind(Kind.CALL),
        operations.c.principal == sa.bindparam("of_principal"),
        operations.c.binding == sa.bindparam("of_binding"),
        requests.c.credential.is_not_distinct_from(sa.bindparam("of_credential")),
    )
    .order_by(operations.c.number.desc())
    .limit(20)
)


def _last_write(connection: Connection, op: Operation, since: int, now: int) -> int | None:
    """When the account of `op` was last written to, after `since`, whoever did it.

    A write that is out, or of which nobody knows whether it was applied, may take effect now.
    """
    account = sa.and_(
        operations.c.provider == op.provider, operations.c.account == op.account, sa.text(WRITES)
    )
    unsettled = sa.or_(
        operations.c.state == str(State.SENDING),
        operations.c.certainty == str(Certainty.MAYBE_APPLIED),
    )
    if connection.execute(
        sa.select(operations.c.id).where(account, sa.text(LIVE), unsettled).limit(1)
    ).first():
        return now
    # What closes an attempt also updates its operation.
    at: int | None = connection.execute(
        sa.select(sa.func.max(attempts.c.closed_at))
        .join(operations, operations.c.id == attempts.c.operation_id)
        .where(
            account,
            operations.c.updated_at >= since,
            attempts.c.step == str(Step.SEND),
            attempts.c.certainty.in_([str(Certainty.MAYBE_APPLIED), str(Certainty.APPLIED)]),
        )
    ).scalar()
    return at


# --- jobs -------------------------------------------------------------------------------------


def watching(connection: Connection, op: Operation, job: str) -> Operation | None:
    """Another operation that is not over and watches this job of the provider."""
    if op.kind is not Kind.JOB:
        return None
    found = _WATCHING.mappings(
        connection,
        of_provider=op.provider,
        of_account=op.account,
        of_action=op.action,
        job=job,
        own=op.id,
    )
    return rows.operation(found[0]) if found else None


_WATCHING = Statement(
    sa.select(operations).where(
        operations.c.provider == sa.bindparam("of_provider"),
        operations.c.account == sa.bindparam("of_account"),
        operations.c.action == sa.bindparam("of_action"),
        operations.c.provider_job == sa.bindparam("job"),
        operations.c.kind == sa.literal_column(f"'{Kind.JOB}'"),
        sa.text(LIVE),
        operations.c.id != sa.bindparam("own"),
    )
)


def inherit(op: Operation, earlier: Operation) -> Operation:
    """Used failures of an attempt without effect go on counting (section 1, rule 5)."""

    def carried(name: str) -> Budget:
        own: Budget = getattr(op, name)
        before: Budget = getattr(earlier, name)
        return replace(own, used=min(before.used, max(0, own.max - 1)))

    return replace(
        op,
        transport_failures=carried("transport_failures"),
        rate_limited=carried("rate_limited"),
        wait=carried("wait"),
    )


def add_task(connection: Connection, operation_id: str, task: str | None) -> bool:
    """Note who wants an operation, so that it goes on for each; False if that was known."""
    holder = NO_TASK if task is None else task
    if has_task(connection, operation_id, holder):
        return False
    _ADD_TASK.run(connection, operation_id=operation_id, task=holder)
    return True


def has_task(connection: Connection, operation_id: str, task: str) -> bool:
    return _TASK.first(connection, of=operation_id, named=task) is not None


_ADD_TASK = Statement(sa.insert(tasks), "operation_id", "task")
_TASK = Statement(
    sa.select(tasks.c.task).where(
        tasks.c.operation_id == sa.bindparam("of"), tasks.c.task == sa.bindparam("named")
    )
)


def plain(request: Outbound) -> dict[str, object]:
    return {
        "method": request.method,
        "url": request.url,
        "headers": [list(pair) for pair in request.headers],
        "authenticate": request.authenticate,
        "secret": request.secret,
        "allow_hosts": list(request.allow_hosts),
        "from_answer": request.from_answer,
        "max_bytes": request.max_bytes,
        "timeout": request.timeout,
        "fresh_connection": request.fresh_connection,
    }


_REQUEST = Statement(sa.select(requests).where(requests.c.operation_id == sa.bindparam("of")))


def stored_request(connection: Connection, operation_id: str) -> Outbound:
    """The request of an operation exactly as it was accepted and shown.

    Raises:
        RenderError: the key that it was sealed with is gone.
    """
    row = _REQUEST.first(connection, of=operation_id)
    if row.request is None:
        raise RenderError("what was asked for was sealed with a key that is lost")
    return outbound(row.request, row.body)


def outbound(plain: Mapping[str, Any], body: bytes | None) -> Outbound:
    """A stored request as a value."""
    return Outbound(
        method=plain["method"],
        url=plain["url"],
        headers=tuple((name, value) for name, value in plain["headers"]),
        body=body,
        authenticate=plain["authenticate"],
        secret=plain["secret"],
        allow_hosts=tuple(plain["allow_hosts"]),
        from_answer=plain["from_answer"],
        max_bytes=plain["max_bytes"],
        timeout=plain["timeout"],
        fresh_connection=plain["fresh_connection"],
    )
