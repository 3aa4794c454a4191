"""What is counted over the whole store, for people and for monitoring; nothing is kept twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from forbear.rules.model import State
from forbear.storage.readers import Readers
from forbear.storage.schema import LIVE, attempts, cases, events, operations, waits


@dataclass(frozen=True, slots=True)
class Heading:
    """The public header of an audit event; its body may be sealed."""

    sequence: int
    at: int
    code: str
    operation_id: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """Open cases of one reason."""

    reason: str
    count: int
    oldest: int
    """When the oldest of them was opened, epoch ms."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that came to one end. Only answered ones have a status."""

    outcome: str
    """`answered`, `no_answer`, `not_sent`, `unknown`, or `open`."""
    status: str | None
    """`429`, `503`, or the class of any other: `2xx` to `5xx`."""
    count: int


_ENDED = sa.func.coalesce(operations.c.http_at, operations.c.updated_at)
_BEGAN = sa.func.coalesce(operations.c.sent_at, operations.c.created_at)
_OUTCOME: sa.ColumnElement[str] = sa.func.coalesce(attempts.c.outcome, "open").label("outcome")
_STATUS: sa.ColumnElement[str] = sa.case(
    (attempts.c.status.in_([429, 503]), sa.cast(attempts.c.status, sa.Text)),
    (attempts.c.status.is_not(None), sa.cast(attempts.c.status // 100, sa.Text) + "xx"),
).label("status")


class Figures(Readers):
    """Queries that count or sum; each looks at the rows themselves."""

    async def durations(self, provider: str, action: str, most: int = 200) -> list[int]:
        """How long the newest successes of an action took, ms: from the first request of its own
        to the provider's last answer."""
        query = (
            sa.select((_ENDED - _BEGAN).label("took"))
            .where(
                operations.c.state == str(State.SUCCEEDED),
                operations.c.provider == provider,
                operations.c.action == action,
                operations.c.parent_id.is_(None),
            )
            .order_by(operations.c.number.desc())
            .limit(most)
        )
        return [max(0, row["took"]) for row in await self._rows(query)]

    async def headings(
        self, *, operation_id: str | None = None, before: int | None = None, limit: int = 50
    ) -> list[Heading]:
        """Audit events, newest first, without their bodies."""
        query = sa.select(events.c.sequence, events.c.operation_id, events.c.header)
        if operation_id is not None:
            query = query.where(events.c.operation_id == operation_id)
        if before is not None:
            query = query.where(events.c.sequence < before)
        found = await self._rows(query.order_by(events.c.sequence.desc()).limit(limit))
        return [_heading(row) for row in found]

    async def by_state(self) -> dict[str, int]:
        """How many operations are in each state that any is in."""
        query = sa.select(operations.c.state, sa.func.count().label("number"))
        found = await self._rows(query.group_by(operations.c.state))
        return {row["state"]: row["number"] for row in found}

    async def asked(self) -> list[Asked]:
        """Open cases by reason."""
        query = (
            sa.select(
                cases.c.reason,
                sa.func.count().label("count"),
                sa.func.min(cases.c.opened_at).label("oldest"),
            )
            .where(cases.c.closed_at.is_(None))
            .group_by(cases.c.reason)
            .order_by(cases.c.reason)
        )
        return [Asked(**row) for row in await self._rows(query)]

    async def requests(self) -> list[Requests]:
        """All requests ever reserved, by what came of them; 429 and 503 apart from the rest."""
        query = (
            sa.select(_OUTCOME, _STATUS, sa.func.count().label("count"))
            .group_by(_OUTCOME, _STATUS)
            .order_by(_OUTCOME, _STATUS)
        )
        return [Requests(**row) for row in await self._rows(query)]

    async def queues(self) -> dict[str, int]:
        """How many operations wait in the queue of each scope that any waits for."""
        query = sa.select(waits.c.scope, sa.func.count().label("number"))
        found = await self._rows(query.group_by(waits.c.scope).order_by(waits.c.scope))
        return {row["scope"]: row["number"] for row in found}

    async def oldest_due(self, now: int) -> int | None:
        """Since when the longest due operation has been due, epoch ms; None if nothing is due."""
        query = sa.select(sa.func.min(operations.c.next_at).label("at")).where(
            sa.text(LIVE), operations.c.next_at <= now
        )
        at: int | None = (await self._rows(query))[0]["at"]
        return at


def _heading(row: sa.RowMapping) -> Heading:
    header: dict[str, Any] = json.loads(row["header"])
    return Heading(row["sequence"], header["at"], header["code"], row["operation_id"])
