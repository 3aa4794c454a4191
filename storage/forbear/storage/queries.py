"""What is read without changing anything: from a small pool of read-only connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from forbear.rules.model import Attempt, AuditEvent, Case, Kind, Operation
from forbear.rules.paging import Progress
from forbear.rules.ports import Outbound
from forbear.storage import audit, retention, rows
from forbear.storage.brakes import COPY
from forbear.storage.dialects import members
from forbear.storage.intents import outbound
from forbear.storage.readers import Readers
from forbear.storage.retention import Term
from forbear.storage.schema import (
    LIVE,
    NO_TASK,
    attempts,
    cases,
    circuits,
    credentials,
    events,
    operations,
    pauses,
    processes,
    requests,
    scopes,
    tasks,
    waits,
)
from forbear.storage.sealing import Log
from forbear.storage.statements import Statement

_ACTIVE = sa.literal_column(f"({LIVE})", sa.Boolean)
_RANKS = (_ACTIVE, sa.not_(_ACTIVE))
"""Active operations come first. Each rank is read for itself: the few by their index, the many in
the order of their numbers, so that no page sorts all there are."""

_OPEN = cases.c.closed_at.is_(None)
_SEARCHED = ("id", "label", "purpose", "action", "key", "provider_job")
_PAGE = 500
"""Operations that are read at a time."""

_REMEMBERED = 100
"""Operations whose dossiers are kept at the most."""

_DIGITS = 18
"""Digits of a number that a column surely holds; no longer one is the number of anything."""


Version = tuple[int, str | None, int | None]
"""The revision of an operation, its open case, and the revision of that."""


@dataclass(frozen=True, slots=True)
class Due:
    """An operation that is due, and what a process must hold to run it."""

    id: str
    provider: str
    account: str
    action: str
    binding: str
    next_at: int


@dataclass(frozen=True, slots=True)
class Process:
    owner: str
    role: str
    pid: int
    started_at: int
    seen_at: int
    bindings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One attempt and what the provider answered."""

    attempt: Attempt
    headers: list[list[str]]
    body: bytes


def _mentions(row: sa.RowMapping, folded: str) -> bool:
    texts: list[str | None] = [row[name] for name in _SEARCHED]
    return any(text is not None and folded in text.casefold() for text in texts)


@dataclass(frozen=True, slots=True)
class Dossier:
    """An operation with its open case and its tasks."""

    operation: Operation
    case: Case | None
    tasks: tuple[str, ...]
    copy: bool
    """Whether the store is held as a copy."""


_CASE_COLUMNS = tuple((column.name, f"case_{column.name}") for column in cases.c)
_DOSSIER = Statement(
    sa.select(
        operations,
        *(column.label(f"case_{column.name}") for column in cases.c),
        tasks.c.task,
        sa.exists().where(pauses.c.target == COPY).label("copy"),
    )
    .select_from(operations)
    .join(cases, sa.and_(cases.c.operation_id == operations.c.id, _OPEN), isouter=True)
    .join(tasks, tasks.c.operation_id == operations.c.id, isouter=True)
    .where(operations.c.id == sa.bindparam("operation"))
    .order_by(tasks.c.task)
)
_OPERATION = Statement(sa.select(operations).where(operations.c.id == sa.bindparam("operation")))
_VERSIONS = Statement(
    sa.select(
        operations.c.id,
        operations.c.revision,
        cases.c.id.label("case_id"),
        cases.c.revision.label("case_revision"),
    )
    .join(cases, sa.and_(cases.c.operation_id == operations.c.id, _OPEN), isouter=True)
    .where(operations.c.id.op("IN")(members(sa.bindparam("these", type_=sa.Text()))))
)
_DUE = Statement(
    sa.select(
        operations.c.id,
        operations.c.provider,
        operations.c.account,
        operations.c.action,
        operations.c.binding,
        operations.c.next_at,
    )
    .where(
        sa.text(LIVE),
        operations.c.next_at <= sa.bindparam("now"),
        operations.c.id.op("NOT IN")(members(sa.bindparam("without", type_=sa.Text()))),
    )
    .order_by(operations.c.next_at)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_NEXT_DUE = Statement(
    sa.select(sa.func.min(operations.c.next_at).label("at")).where(
        sa.text(LIVE), operations.c.next_at > sa.bindparam("after")
    )
)


class Queries(Readers):
    """What there is: operations, cases, events, scopes and processes.

    Events need the keys of the log, and raise `LogUnreadable` where a row was changed; one whose
    key is gone says so (`AuditEvent.unreadable`).
    """

    def __init__(
        self,
        readers: AsyncEngine,
        log: Log,
        version: Callable[[], int | None] = lambda: None,
        near: Connection | None = None,
    ) -> None:
        """`version` differs after any commit to the store; None where that cannot be asked.
        `near`: see `Readers`."""
        super().__init__(readers, near)
        self._log = log
        self._version = version
        self._known: tuple[int | None, dict[str, Dossier]] = None, {}

    async def operation(self, operation_id: str) -> Operation | None:
        found = await self._keyed(_OPERATION, operation=operation_id)
        return rows.operation(found[0]) if found else None

    async def versions(self, operation_ids: Collection[str]) -> dict[str, Version]:
        """What differs for each of these once anything differs that a record shows.

        What is not there is left out.
        """
        found: dict[str, Version] = {}
        ids = sorted(operation_ids)
        for begin in range(0, len(ids), _PAGE):
            these = json.dumps(ids[begin : begin + _PAGE])
            for row in await self._keyed(_VERSIONS, these=these):
                found[row["id"]] = (row["revision"], row["case_id"], row["case_revision"])
        return found

    async def by_prefix(self, prefix: str) -> list[Operation]:
        """Operations whose id starts so, with or without its `op_`; at most 10."""
        full = prefix if prefix.startswith("op_") else f"op_{prefix}"
        query = sa.select(operations).where(operations.c.id.startswith(full, autoescape=True))
        return [rows.operation(row) for row in await self._rows(query.limit(10))]

    async def find(
        self,
        *,
        principal: str | None = None,
        state: str | None = None,
        provider: str | None = None,
        task: str | None = None,
        text: str | None = None,
        after: tuple[int, int] | None = None,
        limit: int = 10,
    ) -> list[Operation]:
        """A page, active ones first, newest first; `after` is `(rank, number)` of the last seen.

        `text` occurs in an id, a name or the agent's purpose, in any case of its letters.
        """
        query = sa.select(operations)
        if principal is not None:
            query = query.where(operations.c.principal == principal)
        if state is not None:
            query = query.where(operations.c.state == state)
        if provider is not None:
            query = query.where(operations.c.provider == provider)
        if task is not None:
            mine = sa.select(tasks.c.operation_id).where(tasks.c.task == task)
            query = query.where(operations.c.id.in_(mine))
        query = query.order_by(operations.c.number.desc())
        found: list[Operation] = []
        for rank, these in enumerate(_RANKS):
            seen, before = after or (0, None)
            if rank < seen or len(found) == limit:
                continue
            ranked = query.where(these)
            if rank == seen and before is not None:
                ranked = ranked.where(operations.c.number < before)
            if text is not None:
                numbers = await self._mentioning(ranked, text.casefold(), limit - len(found))
                ranked = ranked.where(operations.c.number.in_(numbers))
            page = await self._rows(ranked.limit(limit - len(found)))
            found += [rows.operation(row) for row in page]
        return found

    async def _mentioning(
        self, query: sa.Select[*tuple[Any, ...]], folded: str, limit: int
    ) -> list[int]:
        """Numbers of the first operations of a query that mention a text."""
        query = query.with_only_columns(
            operations.c.number, *(operations.c[name] for name in _SEARCHED)
        ).limit(_PAGE)
        found: list[int] = []
        page = await self._rows(query)
        while page and len(found) < limit:
            found += [row["number"] for row in page if _mentions(row, folded)]
            behind = operations.c.number < page[-1]["number"]
            page = await self._rows(query.where(behind)) if len(page) == _PAGE else []
        return found[:limit]

    async def full(self, term: Term, limit: int) -> list[str]:
        """See `retention.full`."""
        return [row["id"] for row in await self._rows(retention.full(term).limit(limit))]

    async def due(self, now: int, limit: int = 50, *, without: Collection[str] = ()) -> list[Due]:
        """What is due, longest first. `without` are ids that the caller has in hand already."""
        found = await self._keyed(_DUE, now=now, without=json.dumps(list(without)), most=limit)
        return [Due(**row) for row in found]

    async def next_due(self, after: int) -> int | None:
        """The first time after `after` at which anything is due."""
        at: int | None = (await self._keyed(_NEXT_DUE, after=after))[0]["at"]
        return at

    async def tasks_of(self, operation_id: str) -> tuple[str, ...]:
        query = sa.select(tasks.c.task).where(
            tasks.c.operation_id == operation_id, tasks.c.task != NO_TASK
        )
        return tuple(row["task"] for row in await self._rows(query.order_by(tasks.c.task)))

    async def dossier(self, operation_id: str) -> Dossier | None:
        """An operation and what stands beside it, as of one moment.

        Who asks again and again is answered from memory, as long as nothing at all was committed.
        """
        version = self._version()
        if version is None or version != self._known[0]:
            self._known = version, {}
        _, known = self._known
        if operation_id in known:
            return known[operation_id]
        found = await self._keyed(_DOSSIER, operation=operation_id)
        if not found:
            return None
        first = found[0]
        case = None
        if first["case_id"] is not None:
            case = rows.case({name: first[shown] for name, shown in _CASE_COLUMNS})
        named = tuple(row["task"] for row in found if row["task"] not in (None, NO_TASK))
        # What was read may be newer than `version`, never older: then the next one reads again.
        if len(known) >= _REMEMBERED:
            known.clear()
        known[operation_id] = Dossier(rows.operation(first), case, named, first["copy"])
        return known[operation_id]

    async def children(self, operation_id: str, kind: Kind | None = None) -> list[Operation]:
        query = sa.select(operations).where(operations.c.parent_id == operation_id)
        if kind is not None:
            query = query.where(operations.c.kind == str(kind))
        return [
            rows.operation(row) for row in await self._rows(query.order_by(operations.c.number))
        ]

    async def open_case(self, operation_id: str) -> Case | None:
        query = sa.select(cases).where(cases.c.operation_id == operation_id, _OPEN)
        found = await self._rows(query)
        return rows.case(found[0]) if found else None

    async def open_cases(self) -> list[Case]:
        query = sa.select(cases).where(_OPEN).order_by(cases.c.number)
        return [rows.case(row) for row in await self._rows(query)]

    async def cases_of(self, operation_id: str) -> list[Case]:
        query = sa.select(cases).where(cases.c.operation_id == operation_id)
        return [rows.case(row) for row in await self._rows(query.order_by(cases.c.number))]

    async def case_by(self, name: str) -> list[Case]:
        """Cases by inbox number or by a prefix of the id; at most 10."""
        if name.isdecimal() and len(name) <= _DIGITS:
            query = sa.select(cases).where(cases.c.number == int(name))
        else:
            full = name if name.startswith("esc_") else f"esc_{name}"
            query = sa.select(cases).where(cases.c.id.startswith(full, autoescape=True))
        return [rows.case(row) for row in await self._rows(query.limit(10))]

    async def events_of(self, operation_id: str) -> list[AuditEvent]:
        query = audit.TOLD.where(audit.of_operation(operation_id))
        return self._told(await self._rows(query.order_by(events.c.sequence)))

    async def trail(
        self,
        *,
        operation_id: str | None = None,
        code: str | None = None,
        since: int | None = None,
        limit: int = 100,
    ) -> list[AuditEvent]:
        """The newest events of the whole log that are asked for, in their order."""
        query = audit.TOLD
        if operation_id is not None:
            query = query.where(audit.of_operation(operation_id))
        if code is not None:
            query = query.where(audit.with_code(code))
        if since is not None:
            query = query.where(audit.not_before(since))
        found = await self._rows(query.order_by(events.c.sequence.desc()).limit(limit))
        told = self._told(reversed(found))
        return [one for one in told if since is None or one.at >= since]

    def _told(self, found: Iterable[sa.RowMapping]) -> list[AuditEvent]:
        return [audit.event(row, self._log) for row in found]

    async def attempts_of(self, operation_id: str) -> list[Attempt]:
        query = sa.select(attempts).where(attempts.c.operation_id == operation_id)
        return [rows.attempt(row) for row in await self._rows(query.order_by(attempts.c.number))]

    async def pages_of(self, op: Operation) -> list[bytes]:
        """The pages that a read under way has read, in order, each as `paging.items_text`."""
        progress = Progress.of(op)
        read = () if progress is None else progress.pages
        query = sa.select(attempts.c.body).where(
            attempts.c.operation_id == op.id, attempts.c.fence.in_(read)
        )
        return [row["body"] or b"" for row in await self._rows(query.order_by(attempts.c.fence))]

    async def exchanges_of(self, operation_id: str) -> list[Exchange]:
        """Every attempt with the answer as it was kept; secrets were hidden before that."""
        query = sa.select(attempts).where(attempts.c.operation_id == operation_id)
        return [
            Exchange(rows.attempt(row), row["headers"] or [], row["body"] or b"")
            for row in await self._rows(query.order_by(attempts.c.reserved_at, attempts.c.number))
        ]

    async def last_answer(self, operation_id: str) -> tuple[list[list[str]], bytes] | None:
        """Headers and body of the newest answered attempt."""
        query = (
            sa.select(attempts.c.headers, attempts.c.body)
            .where(attempts.c.operation_id == operation_id, attempts.c.outcome == "answered")
            .order_by(attempts.c.number.desc())
            .limit(1)
        )
        found = await self._rows(query)
        return (found[0]["headers"] or [], found[0]["body"] or b"") if found else None

    async def recent_answers(
        self, provider: str, most: int = 200
    ) -> list[tuple[int, list[list[str]]]]:
        """When the newest answers of a provider came (ms), with their headers if they had any."""
        query = (
            sa.select(attempts.c.headers, attempts.c.closed_at)
            .join(operations, operations.c.id == attempts.c.operation_id)
            .where(operations.c.provider == provider, attempts.c.status.is_not(None))
            .order_by(attempts.c.closed_at.desc())
            .limit(most)
        )
        rows = await self._rows(query)
        return [(row["closed_at"], row["headers"]) for row in rows if row["headers"]]

    async def request_of(self, operation_id: str) -> Outbound | None:
        found = await self._rows(sa.select(requests).where(requests.c.operation_id == operation_id))
        if not found or found[0]["request"] is None:  # removed, or sealed with a key that is lost
            return None
        return outbound(found[0]["request"], found[0]["body"])

    async def processes(self) -> list[Process]:
        return [
            Process(
                row["owner"],
                row["role"],
                row["pid"],
                row["started_at"],
                row["seen_at"],
                tuple(row["bindings"]),
            )
            for row in await self._rows(sa.select(processes).order_by(processes.c.started_at))
        ]

    async def pauses(self) -> list[Mapping[str, Any]]:
        """What people stopped: target, since, by. And whether the store is held as a copy, why."""
        return [dict(row) for row in await self._rows(sa.select(pauses).order_by(pauses.c.since))]

    async def scopes(self) -> list[Mapping[str, Any]]:
        """What is known of each scope, with `waiting`: how many operations are in its queue."""
        waiting = (
            sa.select(sa.func.count())
            .where(waits.c.scope == scopes.c.key)
            .scalar_subquery()
            .label("waiting")
        )
        found = await self._rows(sa.select(scopes, waiting).order_by(scopes.c.key))
        return [dict(row) for row in found]

    async def outages(self) -> list[Mapping[str, Any]]:
        """Open circuits: scope, host, open_since, probe_at, probes."""
        query = sa.select(circuits).where(circuits.c.open_since.is_not(None))
        return [dict(row) for row in await self._rows(query.order_by(circuits.c.open_since))]

    async def credentials(self) -> list[Mapping[str, Any]]:
        return [dict(row) for row in await self._rows(sa.select(credentials))]
