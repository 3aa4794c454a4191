"""The outcome of an attempt: the evidence that is kept, and where the store bends the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import decisions, escalations
from forbear.rules.contract import Action
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    Kind,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.paging import Progress, items_text
from forbear.rules.ports import Reply
from forbear.rules.reconciliation import conflict, found_before
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, stop
from forbear.storage import audit
from forbear.storage.deciding import fields
from forbear.storage.intents import watching
from forbear.storage.schema import attempts, cases
from forbear.storage.transitions import (
    Holding,
    about_of,
    asked_for,
    case_text,
    load,
    move_next,
    open_case,
)


def outcome_of(reply: Reply) -> str:
    """`not_sent`, `answered` (completely) or `no_answer`."""
    if not reply.sent:
        return "not_sent"
    return "answered" if reply.complete else "no_answer"


_KEPT = 65_536
"""Bytes of an answer's body that are stored."""


def evidence_of(
    op: Operation, reply: Reply, signal: Signal, *, late: bool = False
) -> dict[str, object]:
    """The columns of an attempt that tell what came of it.

    Of a page of a read all items are kept, until the whole is a result.
    """
    # A body that only says "still running" is not worth its space; a result is an artifact, but
    # what comes late may never become one.
    artifact = op.kind in (Kind.RESULT, Kind.CALL) and signal.meaning is Meaning.DONE and not late
    kept = signal.meaning is not Meaning.WAITING and not artifact
    body = (reply.body[:_KEPT] or None) if kept else None
    if signal.turn is not None and Progress.of(op) is not None:
        body = items_text(signal.turn)
    return {
        "certainty": str(signal.certainty),
        "status": reply.status,
        "provider_request_id": signal.provider_request_id,
        "note": reply.detail or reply.fault,
        "headers": [list(pair) for pair in reply.headers] or None,
        "body": body,
    }


def let_go(connection: Connection, op: Operation) -> None:
    """Give up the pages of a read that succeeded: all their items stand in its result."""
    progress = Progress.of(op)
    if progress is None or op.state is not State.SUCCEEDED:
        return
    mine = attempts.c.operation_id == op.id, attempts.c.fence.in_(progress.pages)
    connection.execute(sa.update(attempts).where(*mine).values(body=None))


def with_result(verdict: Verdict, result: Mapping[str, object] | None) -> Verdict:
    """A success with what it brought, if that was kept."""
    if result is None or verdict.event is not Event.SUCCEEDED or "result" in verdict.changes:
        return verdict
    return replace(verdict, changes={**verdict.changes, "result": result})


def watched_already(connection: Connection, op: Operation, verdict: Verdict) -> Verdict:
    """A submission that returns a job id we already watch is not a second job."""
    job = verdict.changes.get("provider_job")
    watched = watching(connection, op, job) if isinstance(job, str) else None
    if watched is None:
        return verdict
    kept = ("provider_job", "accepted_at", "step", "approve_by")
    changes = {name: value for name, value in verdict.changes.items() if name not in kept}
    story = {**verdict.story, "watched_by": watched.id}
    if watched.intent != op.intent:
        other = stop(Reason.BINDING_MISMATCH, changes)
        asks = replace(verdict, event=other.event, changes=other.changes, reason=other.reason)
        return replace(asks, story=story)
    ended = decisions.discard(op, f"the provider returned the job of {watched.id}")
    changes = {**changes, **ended.changes, "superseded_by": watched.id}
    return replace(verdict, event=Event.DISCARDED, changes=changes, reason=None, story=story)


def add_evidence(
    connection: Connection, op: Operation, holding: Holding, words: str, now: int
) -> None:
    """Put late evidence into the open case, as another revision of it."""
    case = open_case(connection, op.id)
    if case is None:
        return
    asked = asked_for(op, case.wish)
    offered = escalations.offers(op, case.reason, holding.contract, now, asked=asked)
    about = replace(about_of(case, holding, now), evidence=words)
    text = case_text(op, case.reason, offered, now, holding, about)
    connection.execute(
        sa.update(cases).where(cases.c.id == case.id).values(text=text, revision=case.revision + 1)
    )


def in_words(signal: Signal) -> str:
    """A late answer in one line of a case."""
    if signal.meaning is Meaning.NOT_SENT:
        return "the request was never sent"
    told = f"late answer {signal.status}" if signal.status is not None else "late, no answer"
    if signal.page is not None:
        return f"{told} to a lookup, which found {len(signal.page.matches) or 'nothing'}"
    if "id" in signal.take:
        told += f", provider id {signal.take['id']}"
    return f"{told} ({signal.meaning})"


def with_pending(op: Operation, verdict: Verdict, action: Action | None, now: int) -> Verdict:
    """Apply what was left while the attempt was out: an effect that a late answer told of, and an
    end that was asked for. Effects are kept, no retry is made.
    """
    if op.pending is None:
        return verdict
    effect = op.pending.get("effect")
    if effect is not None:
        verdict = found_before(op, action, effect["take"], verdict, now)
        verdict = with_result(verdict, effect.get("result"))
        verdict = conflict(verdict) if effect.get("differs") else verdict
    changes = {**verdict.changes, "pending": None}
    if op.end_asked is None:
        return replace(verdict, changes=changes)
    unclear = verdict.event is Event.MADE_UNCLEAR or (
        verdict.event is Event.OBSERVED and op.state is State.UNCLEAR
    )
    if unclear and changes.get("step", op.step) is Step.LOOKUP:
        return verdict  # it stays, with the wish, until what it did is known (section 5)
    # What is asked about stays, with the wish, for what is decided then.
    stays = {**changes, "pending": {"end": op.end_asked}}
    if unclear and changes.get("certainty") is not Certainty.NOT_APPLIED:
        return stop(Reason.UNCLEAR_WRITE, stays, **verdict.story)
    judged = replace(op, **fields(changes))
    goes_on = verdict.event in _GOES_ON
    asks_for_nothing = verdict.event is Event.STOPPED and escalations.may_send_again(judged)
    if verdict.reason is Reason.UNCLEAR_WRITE and not asks_for_nothing:
        return replace(verdict, changes=stays)
    if not goes_on and not asks_for_nothing:
        return replace(verdict, changes=changes)
    ended = decisions.discard(judged, op.end_asked)
    return replace(
        verdict,
        event=ended.event,
        changes={**changes, **ended.changes},
        reason=None,
        notice=ended.notice,
    )


_GOES_ON = frozenset({Event.POSTPONED, Event.OBSERVED, Event.ACCEPTED, Event.MADE_UNCLEAR})


def after_cancel(connection: Connection, op: Operation, now: int) -> None:
    """A cancellation that the provider took makes the job's next check due."""
    if op.kind is not Kind.CANCEL or op.state is not State.SUCCEEDED or op.parent_id is None:
        return
    job = load(connection, op.parent_id)
    if job is None or job.state is not State.WAITING or job.lease_owner is not None:
        return
    if job.next_at is not None and job.next_at > now:
        move_next(connection, job, now, now, WaitingFor.PROVIDER)
        audit.append(
            connection, job.id, now, audit.Code.CHECK_MOVED, {"because": op.id, "next_at": now}
        )


def without_contract(op: Operation, signal: Signal, now: int) -> Verdict:
    """What follows when the contract that could read the answer is not at hand."""
    if op.step is Step.LOOKUP:
        return stop(Reason.UNCLEAR_WRITE)
    if op.step is Step.STATUS:
        changes = {
            "transport_failures": spend(op.transport_failures),
            "next_at": now,
            "once": None,
            "delay": None,
            "delay_source": None,
        }
        return Verdict(Event.OBSERVED, changes)
    if op.request_class is RequestClass.READ:
        return Verdict(Event.POSTPONED, {"next_at": now, "once": None})
    return stop(Reason.UNCLEAR_WRITE, {"certainty": Certainty.MAYBE_APPLIED, "sent": True})


def spend(budget: Budget) -> Budget:
    """One unit more."""
    return replace(budget, used=budget.used + 1)
