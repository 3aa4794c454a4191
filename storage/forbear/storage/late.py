"""Answers to attempts that are not open any more, or that the store does not know.

The fence guards the decision, never the evidence: what comes late goes into its own row, or into
the log where there is none, and is judged where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.model import Certainty, Notice, Operation, RequestClass, State, Step
from forbear.rules.ports import Reply
from forbear.rules.reconciliation import effect_in, found_late
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict
from forbear.storage import audit, deciding, limits
from forbear.storage.outcomes import (
    add_evidence,
    evidence_of,
    in_words,
    outcome_of,
    watched_already,
    with_pending,
    with_result,
)
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts
from forbear.storage.transitions import Holding, Ids, apply, load, must_load, note, open_attempt

Judge = Callable[[Connection, Operation, Holding, Signal, int], Verdict]


@dataclass(frozen=True, slots=True)
class Late:
    """What came of a request whose attempt is not open."""

    reserved: Reserved
    reply: Reply
    signal: Signal
    result: Mapping[str, object] | None
    """The fetched result, if that is what it brought."""


def settle(connection: Connection, came: Late, judge: Judge, now: int, ids: Ids) -> Operation:
    """Keep it as evidence, and judge it if nothing is out. Safe to run again.

    While another attempt is out, an effect that it tells of waits for that one to close.
    """
    reserved, signal = came.reserved, came.signal
    mine = attempts.c.id == reserved.permit.attempt_id
    row = connection.execute(sa.select(attempts.c.outcome, attempts.c.late).where(mine)).first()
    if row is None:
        return _unknown(connection, came, now)
    op = must_load(connection, reserved.operation.id)
    if row.late or row.outcome != "unknown":
        return op
    outcome = outcome_of(came.reply)
    facts = evidence_of(reserved.operation, came.reply, signal, late=True)
    stored = sa.update(attempts).where(mine).values(late=True, outcome=outcome, **facts)
    connection.execute(stored)
    limits.learn_late(connection, reserved, signal, now)
    verdict = None
    if open_attempt(connection, op.id) is None:
        verdict = _judged(connection, op, came, judge, now)
    else:
        _leave(connection, op, came)
    if verdict is not None:
        code, body = audit.Code.LATE_EVIDENCE, _told(came)
        return apply(connection, op, verdict, code, now, ids, holding=reserved.holding, body=body)
    return _noted(connection, op, came, now)


def _judged(
    connection: Connection, op: Operation, came: Late, judge: Judge, now: int
) -> Verdict | None:
    """The verdict on it where nothing else is out; None: it decides nothing."""
    holding, signal = came.reserved.holding, came.signal
    if op.state is State.WAITING and signal.meaning in _ENDS and _of_the_job(op, came):
        return judge(connection, op, holding, signal, now)
    if op.state is not State.UNCLEAR:
        return None
    found = found_late(op, came.reserved.operation, holding.action, signal, now)
    if found is None:
        return None
    verdict = with_pending(op, with_result(found, came.result), holding.action, now)
    return watched_already(connection, op, verdict)


_ENDS = frozenset({Meaning.SUCCEEDED, Meaning.FAILED, Meaning.CANCELLED, Meaning.EXPIRED})


def _of_the_job(op: Operation, came: Late) -> bool:
    """Whether it is about the job that is watched now: a decision may have named another."""
    asked = came.reserved.operation
    if asked.step is Step.STATUS:
        return asked.provider_job == op.provider_job
    return came.signal.take.get("id") == op.provider_job


def _leave(connection: Connection, op: Operation, came: Late) -> None:
    """Leave the effect of a write in doubt to whoever closes the attempt that is out."""
    if op.request_class is RequestClass.READ or op.certainty is not Certainty.MAYBE_APPLIED:
        return
    effect = effect_in(came.reserved.operation, came.signal)
    if effect is not None:
        left = {"take": dict(effect), "result": came.result}
        deciding.leave(connection, op, {"effect": left})


def _noted(connection: Connection, op: Operation, came: Late, now: int) -> Operation:
    op = note(connection, op, Notice.LATE_EVIDENCE, now)
    audit.append(connection, op.id, now, audit.Code.LATE_EVIDENCE, _told(came))
    add_evidence(connection, op, came.reserved.holding, in_words(came.signal), now)
    return op


def _unknown(connection: Connection, came: Late, now: int) -> Operation:
    """Keep what came of a request that this store never heard of.

    The store was set back to before the reservation, by a restored dump or a replica that lacks the
    last commits. There is no row that the answer could go into, perhaps not even an operation. The
    log has it all the same, and whoever decides is told.
    """
    op = load(connection, came.reserved.operation.id)
    if op is not None:
        return _noted(connection, op, came, now)
    asked = came.reserved.operation
    audit.append(connection, asked.id, now, audit.Code.LATE_EVIDENCE, _told(came))
    return asked


def _told(came: Late) -> dict[str, object]:
    """The event that tells of it."""
    signal = came.signal
    body: dict[str, object] = {
        "attempt": came.reserved.permit.attempt_id,
        "outcome": outcome_of(came.reply),
        "meaning": str(signal.meaning),
        "http": signal.status,
        "state": signal.state,
    }
    if signal.page is not None:
        body["found"] = len(signal.page.matches)
    return {**body, "take": dict(signal.take)} if signal.take else body
