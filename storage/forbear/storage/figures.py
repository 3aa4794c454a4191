"""What is counted over the whole store, for people and for monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from forbear.rules.model import FINAL, Certainty, State, Trigger
from forbear.rules.quality import Sent
from forbear.storage import audit, tallies
from forbear.storage.readers import Readers
from forbear.storage.schema import LIVE, attempts, cases, events, operations, waits
from forbear.storage.tallies import Count


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
class Standing:
    """Operations that are not over and stand alike."""

    state: str
    reason: str
    """What it waits for, why it is delayed, or why a person is asked; `due` if nothing of it."""
    binding: str
    count: int


@dataclass(frozen=True, slots=True)
class Unclear:
    """Operations of one age of which nobody knows whether they were applied."""

    within: int | None
    """The least bound on the time since they were first sent, ms; None if they are older."""
    count: int
    oldest: int
    """When the oldest of them was sent, epoch ms."""


@dataclass(frozen=True, slots=True)
class Course:
    """Operations of one provider in one state, by what becomes of them."""

    provider: str
    state: str
    asks: bool
    """A person is asked about them."""
    overdue: bool
    """They are beyond their end, neither over nor with a person."""
    count: int

    @property
    def over(self) -> bool:
        return self.state in FINAL


_ENDED = sa.func.coalesce(operations.c.http_at, operations.c.updated_at)
_BEGAN = sa.func.coalesce(operations.c.sent_at, operations.c.created_at)
_SINCE = sa.func.coalesce(operations.c.sent_at, operations.c.created_at)
_LIVE = sa.text(LIVE)
_UNCLEAR = sa.and_(
    operations.c.certainty == str(Certainty.MAYBE_APPLIED),
    operations.c.state.in_([str(State.UNCLEAR), str(State.ESCALATED)]),
)


class Figures(Readers):
    """Queries that count or sum. What is over is counted in `tallies`, what is not in its rows."""

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
        query = audit.HEADINGS
        if operation_id is not None:
            query = query.where(audit.of_operation(operation_id))
        if before is not None:
            query = query.where(events.c.sequence < before)
        found = await self._rows(query.order_by(events.c.sequence.desc()).limit(limit))
        return [_heading(row) for row in found]

    async def tallies(self, since: int | None = None) -> list[Count]:
        """All that was counted, or what was from the UTC day on that `since` (ms) lies in."""
        return [tallies.count_of(row) for row in await self._rows(tallies.counts(since))]

    async def standing(self) -> list[Standing]:
        """The operations that are not over."""
        reason = sa.func.coalesce(
            cases.c.reason, operations.c.waiting_for, operations.c.delay_source, "due"
        ).label("reason")
        asks = sa.and_(cases.c.operation_id == operations.c.id, cases.c.closed_at.is_(None))
        query = (
            sa.select(
                operations.c.state, reason, operations.c.binding, sa.func.count().label("count")
            )
            .select_from(operations)
            .outerjoin(cases, sa.and_(asks, operations.c.state == str(State.ESCALATED)))
            .where(_LIVE)
            .group_by(operations.c.state, reason, operations.c.binding)
        )
        return [Standing(**row) for row in await self._rows(query)]

    async def unclear(self, now: int, bounds: Sequence[int]) -> list[Unclear]:
        """Writes whose effect is unknown, looked up or waiting for a person, by `bounds` on their
        age (ms, ascending)."""
        age = now - _SINCE
        within = sa.case(*((age < bound, bound) for bound in bounds)).label("within")
        query = (
            sa.select(within, sa.func.count().label("count"), sa.func.min(_SINCE).label("oldest"))
            .where(_LIVE, _UNCLEAR)
            .group_by(within)
        )
        return [Unclear(**row) for row in await self._rows(query)]

    async def courses(self, since: int, now: int) -> list[Course]:
        """The operations that were stored from `since` on."""
        asks = (
            sa.exists()
            .where(cases.c.operation_id == operations.c.id, cases.c.closed_at.is_(None))
            .correlate(operations)
        )
        useful = sa.func.coalesce(operations.c.useful_until, operations.c.deadline_at)
        past = sa.or_(operations.c.deadline_at < now, useful < now)
        live = sa.and_(_LIVE, operations.c.state != str(State.ESCALATED))
        waits = sa.and_(_LIVE, asks).label("asks")
        overdue = sa.and_(live, sa.not_(asks), past).label("overdue")
        columns = operations.c.provider, operations.c.state, waits, overdue
        query = (
            sa.select(*columns, sa.func.count().label("count"))
            .where(operations.c.created_at >= since)
            .group_by(*columns)
            .order_by(operations.c.provider, operations.c.state)
        )
        return [
            Course(
                provider=row["provider"],
                state=row["state"],
                asks=bool(row["asks"]),
                overdue=bool(row["overdue"]),
                count=row["count"],
            )
            for row in await self._rows(query)
        ]

    async def sent(self, since: int) -> dict[str, Sent]:
        """The requests that left or may have, reserved from `since` on, by the attempt's id."""
        named = (
            *(attempts.c.id, attempts.c.operation_id, attempts.c.number, attempts.c.scope),
            *(attempts.c.reserved_at, attempts.c.trigger),
        )
        query = sa.select(*named).where(
            attempts.c.reserved_at >= since,
            sa.func.coalesce(attempts.c.outcome, "open") != "not_sent",
        )
        return {
            row["id"]: Sent(
                row["operation_id"],
                row["number"],
                row["scope"],
                row["reserved_at"],
                row["trigger"] == str(Trigger.OPERATOR),
            )
            for row in await self._rows(query)
        }

    async def requests_of(self, since: int) -> dict[str, int]:
        """How many requests left for the operations that were stored from `since` on, by
        provider."""
        query = (
            sa.select(operations.c.provider, sa.func.count().label("count"))
            .join(attempts, attempts.c.operation_id == operations.c.id)
            .where(
                operations.c.created_at >= since,
                sa.func.coalesce(attempts.c.outcome, "open") != "not_sent",
            )
            .group_by(operations.c.provider)
        )
        return {row["provider"]: row["count"] for row in await self._rows(query)}

    async def decision_times(self, since: int) -> list[int]:
        """From opening to decision, ms, of the cases that a person decided from `since` on."""
        query = sa.select((cases.c.closed_at - cases.c.opened_at).label("took")).where(
            cases.c.closed_at >= since, cases.c.closed_because == "decided"
        )
        return [max(0, row["took"]) for row in await self._rows(query)]

    async def out(self) -> int:
        """How many requests are reserved and have no outcome yet."""
        query = sa.select(sa.func.count().label("count")).where(attempts.c.closed_at.is_(None))
        return int((await self._rows(query))[0]["count"])

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
    word: str = row["word"] or ""
    number: int | None = row["code"]
    code = word if number is None else str(audit.CODES[number])
    return Heading(row["sequence"], row["at"], code, row["operation_id"])
