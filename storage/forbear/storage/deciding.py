"""Decisions of people, and ends on request: the transitions that no answer of a provider causes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import conclusions, decisions, escalations
from forbear.rules.decisions import Wish
from forbear.rules.lifecycle import advance
from forbear.rules.model import Case, Code, Kind, Operation, Option, Reason, Refusal, State, Step
from forbear.storage import audit, authority, circuits, intents, register, rows
from forbear.storage.intents import watching
from forbear.storage.schema import cases, operations
from forbear.storage.transitions import (
    Holding,
    Ids,
    about_of,
    apply,
    asked_for,
    case_text,
    listed,
    load,
    must_load,
    open_attempt,
)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision made of its operation; with `dry_run`, what it would make."""

    operation: Operation
    case: Case
    follow_up: Operation | None = None
    """The operation that was queued with the decision: a cancellation at the provider."""


REPLACES = (Option.SEND_NEW, Option.RESUBMIT)
"""Options that put another operation in the place of this one."""


def decide(
    connection: Connection,
    case_id: str,
    revision: int,
    wish: Wish,
    holding: Holding | None,
    by: Mapping[str, object],
    now: int,
    ids: Ids,
    *,
    replacement: str | None = None,
    dry_run: bool = False,
) -> Decided | Refusal:
    """Carry out a person's choice, once, on the facts that were shown (`revision`).

    `by` says who decided and through which channel. The second of two decisions is refused.
    `replacement` is the id of the operation that `send_new` or `resubmit` makes.
    """
    row = connection.execute(sa.select(cases).where(cases.c.id == case_id)).mappings().first()
    if row is None:
        return Refusal(Code.UNKNOWN_OPERATION, f"no case {case_id}", "forbear inbox lists them")
    case = rows.case(row)
    op = must_load(connection, case.operation_id)
    refusal = (
        _not_decidable(case, revision, op, now)
        or _not_offered(connection, op, case, wish, holding, by, now)
        or _taken(connection, op, wish)
        or _same_user(op, holding, by)
        or _request_out(connection, op, case, wish)
    )
    if refusal is not None:
        return refusal
    if wish.option in REPLACES and replacement is None and not dry_run:
        raise ValueError(f"{wish.option} needs the operation that takes the place of {op.id}")
    if case.reason is Reason.PROVIDER_UNREACHABLE:
        return _about_outage(connection, op, case, wish, by, now, ids, dry_run=dry_run)
    action = holding.action if holding is not None else None
    verdict = decisions.grant(op, case.reason, wish, case.id, action, now, follow_up=replacement)
    if dry_run:
        state = advance(op.state, verdict.event)
        return Decided(replace(op, **fields(verdict.changes), state=state), case)
    body = _close(connection, case, wish, by, now)
    # What is out keeps its lease: only maxima change under it.
    lease = None if open_attempt(connection, op.id) is None else dict[str, object]()
    code = audit.Code.DECIDED
    after = apply(connection, op, verdict, code, now, ids, holding=holding, body=body, lease=lease)
    if wish.option in authority.ALLOWS and replacement is None:
        authority.authorise(connection, case, after, wish.option, _given(wish), by, now)
    if wish.option is Option.APPROVE and holding is not None:
        _grant_session(connection, case, after, wish, holding, by, now, ids)
    return Decided(after, case)


def _grant_session(
    connection: Connection,
    case: Case,
    op: Operation,
    wish: Wish,
    holding: Holding,
    by: Mapping[str, object],
    now: int,
    ids: Ids,
) -> None:
    """Where a session was approved, keep the grant, and let the rest of that client go on too."""
    session = op.kind in (Kind.JOB, Kind.CALL) and holding.action.send.approval.mode == "session"
    if not session or op.client is None or holding.credential is None:
        return
    grant_id = authority.grant_session(
        connection, case, op, holding.credential, wish.until, by, now, ids
    )
    for operation_id, case_id in authority.waiting_for_session(connection, op):
        other = must_load(connection, operation_id)
        connection.execute(
            sa.update(cases)
            .where(cases.c.id == case_id, cases.c.closed_at.is_(None))
            .values(closed_at=now, closed_because=f"covered by session grant {grant_id}")
        )
        freed = decisions.approved(other, grant_id, now)
        body = {"case": case_id, "grant": grant_id}
        apply(connection, other, freed, audit.Code.DECIDED, now, ids, holding=holding, body=body)


def _close(
    connection: Connection, case: Case, wish: Wish, by: Mapping[str, object], now: int
) -> dict[str, object]:
    """Close a case as decided; returns what the event tells."""
    decision = {"option": str(wish.option), "at": now, **_given(wish), **by}
    connection.execute(
        sa.update(cases)
        .where(cases.c.id == case.id, cases.c.closed_at.is_(None))
        .values(closed_at=now, closed_because="decided", decision=decision)
    )
    return {"case": case.id, **decision}


def _about_outage(
    connection: Connection,
    op: Operation,
    case: Case,
    wish: Wish,
    by: Mapping[str, object],
    now: int,
    ids: Ids,
    *,
    dry_run: bool,
) -> Decided:
    """A decision on an outage stops and sends nothing: the operation waits as before, or ends."""
    if dry_run:
        return Decided(op, case)
    body = _close(connection, case, wish, by, now)
    audit.append(connection, op.id, now, audit.Code.DECIDED, body)
    circuits.ask_again(connection, case.id, wish.until or now + escalations.DEFAULT_HOLD)
    if wish.option is Option.ABANDON:
        op = drop(connection, op.id, "abandon by a person", None, now, ids) or op
    return Decided(op, case)


def drop(
    connection: Connection,
    operation_id: str,
    why: str,
    holding: Holding | None,
    now: int,
    ids: Ids,
    *,
    only: Collection[State] = frozenset(State),
) -> Operation | None:
    """End an operation without another request, if it is in one of the states `only`.

    While an attempt is open only its owner changes the state, so the wish is left on the row and
    counts when the outcome is known: an effect is kept, a retry is not made. What may have been
    applied is never dropped: it is looked for until it is known, but not sent again.
    """
    op = load(connection, operation_id)
    if op is None or op.final or op.state not in only:
        return op
    looked_for = op.state is State.UNCLEAR and op.step is Step.LOOKUP
    if looked_for or open_attempt(connection, operation_id) is not None:
        if op.end_asked is not None:
            return op
        leave(connection, op, {"end": why})
        audit.append(connection, op.id, now, audit.Code.END_ASKED, {"why": why})
        return must_load(connection, operation_id)
    undone = escalations.may_send_again(op)
    if op.state in (State.ESCALATED, State.QUEUED) and not undone:
        return op
    if op.state is State.UNCLEAR and not undone:  # it was to be sent again under its key
        verdict = conclusions.stop(Reason.UNCLEAR_WRITE, why=why)
    else:
        verdict = decisions.discard(op, why)
    return apply(connection, op, verdict, audit.Code.DROPPED, now, ids, holding=holding)


def leave(connection: Connection, op: Operation, more: Mapping[str, object]) -> None:
    """Leave on the row what counts once the open attempt is closed: see `Operation.pending`."""
    pending = {**(op.pending or {}), **more}
    mine = operations.c.id == op.id
    connection.execute(sa.update(operations).where(mine).values(pending=pending))


def wanted_again(connection: Connection, op: Operation) -> None:
    """Take back the wish that it ends: somebody else asks for it now."""
    left = {name: value for name, value in (op.pending or {}).items() if name != "end"}
    mine = operations.c.id == op.id
    connection.execute(sa.update(operations).where(mine).values(pending=left or None))


def end_task(
    connection: Connection, principal: str, task: str, why: str, now: int, ids: Ids
) -> list[Operation]:
    """Take no new work for a task, and drop what has not been sent of it.

    Returns the operations that this touched, as they are now. One that also belongs to another
    task goes on.
    """
    touched = [
        drop(connection, operation_id, why, None, now, ids)
        for operation_id in intents.end_task(connection, principal, task, why, now)
    ]
    return [op for op in touched if op is not None]


def fields(changes: Mapping[str, object]) -> dict[str, Any]:
    """Those changes that are fields of an operation."""
    return {name: value for name, value in changes.items() if name in Operation.__slots__}


def _not_decidable(case: Case, revision: int, op: Operation, now: int) -> Refusal | None:
    if case.closed_at is not None:
        told = case.closed_because or "closed"
        return Refusal(
            Code.NOT_ALLOWED_IN_STATE,
            f"case {case.id} is closed ({told}); the operation is {op.state}",
            f"forbear show {op.id}",
            op.id,
        )
    if case.revision != revision:
        return Refusal(
            Code.NOT_ALLOWED_IN_STATE,
            f"case {case.id} changed since it was shown (revision {case.revision})",
            f"read it again: forbear show {op.id}",
            op.id,
        )
    if op.approve_by is not None and now >= op.approve_by:
        return Refusal(
            Code.NOT_ALLOWED_IN_STATE,
            f"the time to approve case {case.id} is over; nothing is sent",
            "ask for the action again",
            op.id,
        )
    return None


def _taken(connection: Connection, op: Operation, wish: Wish) -> Refusal | None:
    """A provider job has one operation that watches it."""
    if wish.option is not Option.CONFIRM_DONE or wish.reference is None:
        return None
    other = watching(connection, op, wish.reference)
    if other is None:
        return None
    return Refusal(
        Code.INVALID_ARGUMENTS,
        f"{other.id} watches the provider's {wish.reference} already",
        f"look at it (forbear show {other.id}), or name another --reference",
        op.id,
    )


def _same_user(op: Operation, holding: Holding | None, by: Mapping[str, object]) -> Refusal | None:
    """A contract may demand an operator whom the agents' user cannot pass for (E07)."""
    if holding is None or not holding.contract.separate_operator or not by.get("same_user", False):
        return None
    return Refusal(
        Code.NOT_ALLOWED_IN_STATE,
        f"the contract of {op.provider} wants an operator of another user than the store's",
        "decide as another user, or in a console that runs as one",
        op.id,
    )


def _request_out(connection: Connection, op: Operation, case: Case, wish: Wish) -> Refusal | None:
    """While a request is out only its owner changes what becomes of it; maxima may grow."""
    if case.reason is not Reason.REQUESTED or open_attempt(connection, op.id) is None:
        return None
    if wish.option in (Option.EXTEND, Option.CANCEL_AT_PROVIDER, Option.REJECT):
        return None
    return Refusal(
        Code.NOT_ALLOWED_IN_STATE,
        "a request of it is out, and its answer may settle this",
        "decide again in a few seconds",
        op.id,
    )


def offers(
    connection: Connection,
    op: Operation,
    reason: Reason,
    holding: Holding | None,
    now: int,
    *,
    asked: Option | None = None,
) -> tuple[escalations.Offer, ...]:
    """What may be chosen now: the contract, the facts and the credential as they are."""
    contract = holding.contract if holding is not None else None
    about_key = reason in (Reason.AUTHORIZATION_DENIED, Reason.CREDENTIAL_MISSING)
    renewed = (
        about_key
        and holding is not None
        and register.credential_ready(connection, op, holding, now)
    )
    return escalations.offers(op, reason, contract, now, new_credential=renewed, asked=asked)


def reoffer(connection: Connection, case_id: str, holding: Holding | None, now: int) -> bool:
    """Bring an open case up to date with a changed contract or key, as another revision of it."""
    row = connection.execute(sa.select(cases).where(cases.c.id == case_id)).mappings().first()
    case = None if row is None else rows.case(row)
    if case is None or case.closed_at is not None:
        return False
    op = must_load(connection, case.operation_id)
    asked = asked_for(op, case.wish)
    offered = offers(connection, op, case.reason, holding, now, asked=asked)
    if [str(offer.option) for offer in offered] == [option["id"] for option in case.options]:
        return False
    connection.execute(
        sa.update(cases)
        .where(cases.c.id == case.id)
        .values(
            options=listed(offered),
            text=case_text(op, case.reason, offered, now, holding, about_of(case, holding, now)),
            revision=case.revision + 1,
        )
    )
    return True


def _not_offered(
    connection: Connection,
    op: Operation,
    case: Case,
    wish: Wish,
    holding: Holding | None,
    by: Mapping[str, object],
    now: int,
) -> Refusal | None:
    asked = asked_for(op, case.wish)
    may = offers(connection, op, case.reason, holding, now, asked=asked)
    offered = [str(offer.option) for offer in may]
    beyond = _beyond_contract(op, case, wish, holding, by)
    if isinstance(beyond, Refusal):
        return beyond
    if str(wish.option) not in offered and not beyond:
        return Refusal(
            Code.OPTION_NOT_OFFERED,
            f"{wish.option} is not offered for {case.reason}",
            f"choose one of: {', '.join(offered)}",
            op.id,
        )
    wrong = decisions.objection(wish, now)
    if wrong is not None:
        return Refusal(Code.INVALID_ARGUMENTS, wrong, "decide again with that option", op.id)
    return None


def _beyond_contract(
    op: Operation,
    case: Case,
    wish: Wish,
    holding: Holding | None,
    by: Mapping[str, object],
) -> Refusal | bool:
    """Whether an operator gives one extension that the contract no longer does, and says why."""
    if not wish.beyond_contract or wish.option is not Option.EXTEND:
        return False
    fixed = Option.EXTEND in escalations.OPTIONS[case.reason]
    action = holding.action if holding is not None else None
    if not fixed or not escalations.may_go_beyond(op, action):
        return False
    if by.get("comment"):
        return True
    return Refusal(
        Code.INVALID_ARGUMENTS,
        "an extension beyond the contract needs a reason",
        "add --comment with it",
        op.id,
    )


def _given(wish: Wish) -> dict[str, object]:
    given = {
        "extend_by": wish.extend_by,
        "requests": wish.requests,
        "until": wish.until,
        "treat_as": wish.treat_as,
        "reference": wish.reference,
        "beyond_contract": wish.beyond_contract or None,
    }
    return {name: value for name, value in given.items() if value is not None}
