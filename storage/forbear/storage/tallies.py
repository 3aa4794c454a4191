"""Counts of what happened, kept by day: they outlive the operations they were counted from.

Most are counted by triggers (`counters`), in the transaction that makes the change. The labels of
a count are few and known, or names of providers; never an id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from forbear.storage.schema import tallies

DAY = 86_400_000
"""Milliseconds."""

DECISION_BOUNDS = (60, 300, 900, 3_600, 14_400, 86_400, 259_200, 604_800)
"""Upper bounds of the time to a decision that are counted apart, seconds."""

COMMIT_BOUNDS = (2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
"""Upper bounds of the time of a commit that are counted apart, ms."""


class Tally(StrEnum):
    """What is counted, with its labels in order."""

    ACCEPTED = "accepted"
    """Operations stored: provider, kind."""
    ENDED = "ended"
    """Operations that reached a final state: provider, state."""
    WAITS = "waits"
    """Waits that were planned: delay source."""
    WAIT_MS = "wait_ms"
    """How long those waits were to be, ms: delay source."""
    REQUESTS = "requests"
    """Attempts whose outcome is stored, late evidence not counted anew: provider, outcome, status
    (`429`, `503`, the class of any other, or `none`)."""
    TOKEN_REQUESTS = "token_requests"
    """The same for requests for an access token."""
    SAVED = "saved"
    """Requests that an agent asked for and that did not leave: how (see `Saved`)."""
    CASES = "cases"
    """Cases opened: reason."""
    DECISIONS = "decisions"
    """Cases that a person decided: reason."""
    DECISION_TIMES = "decision_times"
    """Decisions by the time from opening to deciding: the least bound that it is within, or
    `+Inf`."""
    DECISION_MS = "decision_ms"
    """The sum of those times, ms."""
    COMMIT_TIMES = "commit_times"
    """Commits by how long they took: the least bound, or `+Inf`."""
    COMMIT_MS = "commit_ms"
    """The sum of those times, ms."""


class Saved(StrEnum):
    """Why a request that an agent asked for did not leave."""

    JOINED = "joined"
    """The same job or write was there already."""
    COALESCED = "coalesced"
    """The same read was under way."""
    STORED = "stored"
    """The same read had been answered a moment before."""


@dataclass(frozen=True, slots=True)
class Count:
    """One count with its labels."""

    tally: Tally
    labels: tuple[str, ...]
    value: int


def add(
    connection: Connection, at: int, tally: Tally, labels: Sequence[str], value: int = 1
) -> None:
    """Count something inside the transaction in which it happens."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    told = {
        "day": at // DAY,
        "name": str(tally),
        # Spelled as SQLite's json_array does, so that the triggers count in the same rows.
        "labels": json.dumps(list(labels), ensure_ascii=False, separators=(",", ":")),
        "value": value,
    }
    statement = insert(tallies).values(told)
    key = [tallies.c.day, tallies.c.name, tallies.c.labels]
    grown = {"value": tallies.c.value + statement.excluded.value}
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=grown))


def add_commits(connection: Connection, at: int, times: Mapping[str, int], ms: int) -> None:
    """Count commits: how many took how long, by bound, and the sum of it."""
    for bound, number in times.items():
        add(connection, at, Tally.COMMIT_TIMES, [bound], number)
    add(connection, at, Tally.COMMIT_MS, [], ms)


def counts(since: int | None = None) -> sa.Select[str, str, int]:
    """All counts, or those from the day on that the time `since` (ms) lies in."""
    total = sa.func.sum(tallies.c.value).label("value")
    query = sa.select(tallies.c.name, tallies.c.labels, total)
    if since is not None:
        query = query.where(tallies.c.day >= since // DAY)
    return query.group_by(tallies.c.name, tallies.c.labels)


def count_of(row: sa.RowMapping) -> Count:
    return Count(Tally(row["name"]), tuple(json.loads(row["labels"])), int(row["value"]))


def bound_of(ms: int) -> str:
    """The least bound that a commit of this length is within."""
    return next((str(bound) for bound in COMMIT_BOUNDS if ms <= bound), "+Inf")
