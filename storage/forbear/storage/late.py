"""Answers to attempts that are not open any more, or that the store does not know.

The fence guards the decision, never the evidence: what comes late goes into its own row, or into
the log where there is none, and is judged where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules.escalations import has_handle
from forbear.rules.lifecycle import Event
from forbear.rules.model import Certainty, Notice, Operation, RequestClass, State, Step
from forbear.rules.ports import Reply
from forbear.rules.reconciliation import differ, effect_in, found_late
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict
from forbear.storage import audit, deciding, limits
from forbear.storage.outcomes import (
    add_evidence,
    after_cancel,
    evidence_of,
    in_words,
    outcome_of,
    watched_already,
    with_pending,
    with_result,
)
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts
from forbear.storage.transitions import Holding, Ids, apply, load, open_attempt

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
    op = load(connection, reserved.operation.id)
    if op is None:
        # The store was set back to before the operation. The log has it all the same.
        asked = reserved.operation
        audit.append(connection, asked.id, now, audit.Code.LATE_EVIDENCE, _told(came))
        return asked
    if row is not None:
        if row.late or row.outcome != "unknown":
            return op
        outcome = outcome_of(came.reply)
        facts = evidence_of(reserved.operation, came.reply, signal, late=True)
        if op.emptied_at is not None:
            facts |= {"headers": None, "body": None, "note": None}
        stored = sa.update(attempts).where(mine).values(late=True, outcome=outcome, **facts)
        connection.execute(stored)
        limits.learn_late(connection, reserved, signal, now)
    out = open_attempt(connection, op.id) is not None
    to_be_repeated = op.state is State.QUEUED and op.certainty is Certainty.MAYBE_APPLIED
    if to_be_repeated and effect_in(reserved.operation, signal) is not None:
        # A person let it be sent again under its key: that is not needed any more.
        unclear, why = Verdict(Event.MADE_UNCLEAR), audit.Code.RECONCILIATION_REQUIRED
        op = apply(connection, op, unclear, why, now, ids, holding=reserved.holding)
    verdict = _evidence(op, came) if out else _judged(connection, op, came, judge, now)
    if out:
        _leave(connection, op, came)
    code, body = audit.Code.LATE_EVIDENCE, _told(came)
    lease = dict[str, object]() if out else None  # only its owner changes what becomes of it
    after = apply(
        connection,
        op,
        verdict,
        code,
        now,
        ids,
        holding=reserved.holding,
        body=body,
        lease=lease,
    )
    after_cancel(connection, after, now)
    if after.state is op.state:
        add_evidence(connection, after, reserved.holding, in_words(signal), now)
    return after


def _judged(connection: Connection, op: Operation, came: Late, judge: Judge, now: int) -> Verdict:
    """The verdict on it where nothing else is out."""
    holding, signal = came.reserved.holding, came.signal
    if op.state is State.WAITING and signal.meaning in _ENDS and _of_the_job(op, came):
        return judge(connection, op, holding, signal, now)
    if op.state is State.UNCLEAR:
        found = found_late(op, came.reserved.operation, holding.action, signal, now)
        if found is not None:
            verdict = with_pending(op, with_result(found, came.result), holding.action, now)
            return watched_already(connection, op, verdict)
    return _evidence(op, came)


_ENDS = frozenset({Meaning.SUCCEEDED, Meaning.FAILED, Meaning.CANCELLED, Meaning.EXPIRED})


def _of_the_job(op: Operation, came: Late) -> bool:
    """Whether it is about the job that is watched now: a decision may have named another."""
    asked = came.reserved.operation
    if asked.step is Step.STATUS:
        return asked.provider_job == op.provider_job
    return came.signal.take.get("id") == op.provider_job


def _evidence(op: Operation, came: Late) -> Verdict:
    """What it says where it decides nothing: it stays on the record, and no lookup denies it."""
    changes: dict[str, object] = {}
    effect = effect_in(came.reserved.operation, came.signal)
    writes = op.request_class is not RequestClass.READ
    if effect is not None and writes and op.state is State.ESCALATED and not has_handle(op):
        changes = {"certainty": Certainty.APPLIED, "take": {**effect, **op.take}}
    elif op.state is State.WAITING and came.signal.meaning in _ENDS and _of_the_job(op, came):
        changes = {"terminal_seen": True}
    return Verdict(Event.NOTED, changes, notice=Notice.LATE_EVIDENCE)


def _leave(connection: Connection, op: Operation, came: Late) -> None:
    """Leave the effect of a write to whoever closes the attempt that is out."""
    if op.request_class is RequestClass.READ or op.state not in (State.SENDING, State.UNCLEAR):
        return
    effect = effect_in(came.reserved.operation, came.signal)
    if effect is None:
        return
    left: dict[str, object] = {"take": dict(effect), "result": came.result}
    before = (op.pending or {}).get("effect")
    if before is not None:
        left = {**before, "differs": before.get("differs") or differ(effect, before["take"])}
    deciding.leave(connection, op, {"effect": left})


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
