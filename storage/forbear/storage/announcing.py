"""Telling people of open cases, and the ends that need no decision (requirements E13, E14).

A telling is committed before anything of it leaves: it is counted, and the next one is planned,
so that of several processes one sends it, and one that dies in between loses no reminder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import breaker, decisions, escalations, reminders
from forbear.rules.model import Case, Certainty, Operation, Reason, State
from forbear.storage import audit, rows
from forbear.storage.intents import same_intent
from forbear.storage.schema import cases, operations
from forbear.storage.transitions import (
    About,
    Holding,
    Ids,
    apply,
    insert_case,
    must_load,
    open_attempt,
    open_case,
)

RULE = "contract"
"""The authorisation of an end that the contract states."""


@dataclass(frozen=True, slots=True)
class Telling:
    """That people are told of a case, once more."""

    case: Case
    times: int
    """How often they were told, this one included; the first is that of the opening."""
    tries: int
    """How often this one was sent, this time included; 0 where nothing is to be sent."""
    at: int
    """When, ms."""


def announce(
    connection: Connection,
    case_id: str,
    holding: Holding | None,
    now: int,
    ids: Ids,
    *,
    sends: bool,
) -> Telling | None:
    """Do what time makes of an open case: its end by rule, or another telling; None if neither.

    With `sends` the caller sends the telling after the commit and says with `delivered` that it
    arrived; without that it is due again soon, at most `reminders.TRIES` times in all.
    Nothing here grants anything: silence never approves.
    """
    row = connection.execute(sa.select(cases).where(cases.c.id == case_id)).mappings().first()
    if row is None or row["closed_at"] is not None:
        return None
    case, op = rows.case(row), must_load(connection, row["operation_id"])
    if case.reason is Reason.REPEATED_FAILURE and _breaker_over(connection, op, now):
        _end(connection, case, "the breaker's time is over", now)
        return None
    contract = holding.contract if holding is not None else None
    ends = reminders.abandoned_at(contract, case.reason, case.opened_at)
    if ends is not None and ends <= now:
        _abandon(connection, case, op, holding, ends - case.opened_at, now, ids)
        return None
    if case.announce_at is None or case.announce_at > now:
        return None
    before: int = row["announce_failures"]
    again = 0 < before < reminders.TRIES
    times = case.announced if again else case.announced + 1
    tries = (before + 1 if again else 1) if sends else 0
    reminder = reminders.next_reminder(reminders.schedule(contract), case.opened_at, times, now)
    changes: dict[str, object] = {
        "announced": times,
        "announce_failures": tries,
        "announce_at": reminders.next_try(tries, now) or reminder,
        "text": escalations.with_reminder(case.text, reminder, now),
    }
    _change(connection, case, changes)
    if again and not sends:
        return None
    if not again:
        told = {"case": case.id, "times": times, "sent": sends, "again_at": reminder}
        audit.append(connection, op.id, now, audit.Code.ANNOUNCED, told)
    return Telling(_read(connection, case), times, tries, now)


def delivered(connection: Connection, telling: Telling, holding: Holding | None, now: int) -> None:
    """A telling arrived: it is not sent again. The next one is the contract's next reminder."""
    case = telling.case
    contract = holding.contract if holding is not None else None
    reminder = reminders.next_reminder(
        reminders.schedule(contract), case.opened_at, telling.times, now
    )
    connection.execute(
        sa.update(cases)
        .where(
            cases.c.id == case.id,
            cases.c.announced == telling.times,
            cases.c.announce_failures == telling.tries,
        )
        .values(announce_failures=0, announce_at=reminder)
    )


def tell_of_breaker(
    connection: Connection, op: Operation, holding: Holding, now: int, ids: Ids
) -> None:
    """Open the one case of an intent whose failure breaker just opened, beside what failed last.

    It asks for nothing: it says what is refused until when, and lets a person end that.
    """
    if op.state is not State.FAILED:
        return
    known = same_intent(connection, op)
    open_now = breaker.tripped(known, op.principal, now)
    if open_now is None or open_case(connection, op.id) is not None:
        return
    asked = sa.select(cases.c.id).where(
        cases.c.reason == str(Reason.REPEATED_FAILURE),
        cases.c.closed_at.is_(None),
        cases.c.operation_id.in_(
            sa.select(operations.c.id).where(
                operations.c.intent == op.intent, operations.c.principal == op.principal
            )
        ),
    )
    if connection.execute(asked).first() is not None:
        return
    until = datetime.fromtimestamp(open_now.until / 1_000, UTC).strftime("%H:%M")
    shared = f"the same request failed {open_now.times} times ({open_now.code}); "
    about = About(f"{shared}it is refused until {until}Z")
    case = insert_case(connection, op, Reason.REPEATED_FAILURE, now, ids, holding, about)
    body = {"reason": str(case.reason), "case": case.id, "until": open_now.until}
    audit.append(connection, op.id, now, audit.Code.CASE_OPENED, body)


def _breaker_over(connection: Connection, op: Operation, now: int) -> bool:
    return breaker.tripped(same_intent(connection, op), op.principal, now) is None


def _abandon(
    connection: Connection,
    case: Case,
    op: Operation,
    holding: Holding | None,
    after: int,
    now: int,
    ids: Ids,
) -> None:
    """End a case as its contract states; what it stopped is given up with it."""
    why = f"nobody decided in {escalations.length(after)} (abandon_after)"
    if op.final or case.reason is Reason.REQUESTED:
        _end(connection, case, why, now)
        return
    if open_attempt(connection, op.id) is not None:
        return  # its outcome comes first
    if op.certainty is Certainty.MAYBE_APPLIED:
        why += "; it may have been done"
    _close(connection, case, why, now)
    discarded = decisions.discard(op, why, RULE)
    body = {"case": case.id, "abandoned": True}
    code = audit.Code.DROPPED
    apply(connection, op, discarded, code, now, ids, holding=holding, body=body)


def _end(connection: Connection, case: Case, why: str, now: int) -> None:
    """Close a case whose operation stays as it is."""
    _close(connection, case, why, now)
    body = {"case": case.id, "why": why}
    audit.append(connection, case.operation_id, now, audit.Code.CASE_CLOSED, body)


def _close(connection: Connection, case: Case, why: str, now: int) -> None:
    _change(connection, case, {"closed_at": now, "closed_because": why})


def _change(connection: Connection, case: Case, changes: Mapping[str, object]) -> None:
    connection.execute(sa.update(cases).where(cases.c.id == case.id).values(**changes))


def _read(connection: Connection, case: Case) -> Case:
    row = connection.execute(sa.select(cases).where(cases.c.id == case.id)).mappings().one()
    return rows.case(row)
