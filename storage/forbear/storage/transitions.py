"""The one writer of state: `apply` changes an operation and appends its event, or does neither."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import escalations, reminders
from forbear.rules.contract import Action, Contract
from forbear.rules.facts import facts_of
from forbear.rules.lifecycle import advance
from forbear.rules.model import (
    FINAL,
    Attempt,
    Case,
    Certainty,
    Kind,
    Notice,
    Operation,
    Option,
    Reason,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.requests import link, shape
from forbear.rules.verdicts import Verdict
from forbear.storage import audit, queueing, rows
from forbear.storage.errors import LostUpdate
from forbear.storage.schema import BUDGETS, attempts, cases, operations
from forbear.storage.statements import Statement


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process brings to run an operation: its contract, and whether it has the key."""

    contract: Contract
    action: Action
    credential: str | None
    """Keyed fingerprint of the credential; None if there is none to be had."""
    version: str | None = None
    """Keyed digest of the very secret in use: what a provider's 401 refuses."""
    lacks_token: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Whether the credential is there, and the token that it is used by has to be fetched.

    Asked inside the transaction: one that came meanwhile must not be fetched again. Never blocks.
    """


_QUEUED = (WaitingFor.SCOPE, WaitingFor.SLOT)
"""What an operation waits for in the queue of a scope."""


class Ids(Protocol):
    """Unguessable names."""

    def token(self, size: int) -> str: ...


_LOAD = Statement(sa.select(operations).where(operations.c.id == sa.bindparam("id")))
_OPEN_CASE = Statement(
    sa.select(cases).where(
        cases.c.operation_id == sa.bindparam("operation_id"), cases.c.closed_at.is_(None)
    )
)
_OPEN_ATTEMPT = Statement(
    sa.select(attempts).where(
        attempts.c.operation_id == sa.bindparam("operation_id"), attempts.c.closed_at.is_(None)
    )
)


def load(connection: Connection, operation_id: str) -> Operation | None:
    found = _LOAD.mappings(connection, id=operation_id)
    return rows.operation(found[0]) if found else None


def must_load(connection: Connection, operation_id: str) -> Operation:
    """The operation, which is known to be there."""
    op = load(connection, operation_id)
    if op is None:
        raise LookupError(operation_id)
    return op


BESIDE = ("next_at", "not_before", "updated_at", "pending")
"""What others may change of an operation without a new revision: when it is looked at again, and
that its end was asked for."""
_BESIDE = Statement(
    sa.select(operations.c.revision, *(operations.c[name] for name in BESIDE)).where(
        operations.c.id == sa.bindparam("id")
    )
)


def as_now(connection: Connection, known: Operation) -> Operation:
    """An operation that was read or written before, as it is now; read whole only if it went on."""
    found = _BESIDE.first(connection, id=known.id)
    if found is None or found[0] != known.revision:
        return must_load(connection, known.id)
    beside = dict(zip(BESIDE, found[1:], strict=True))
    if all(getattr(known, name) == value for name, value in beside.items()):
        return known
    return replace(known, **beside)


def open_attempt(connection: Connection, operation_id: str) -> Attempt | None:
    """The attempt whose outcome nobody has stored yet."""
    found = _OPEN_ATTEMPT.mappings(connection, operation_id=operation_id)
    return rows.attempt(found[0]) if found else None


def open_case(connection: Connection, operation_id: str) -> Case | None:
    found = _OPEN_CASE.mappings(connection, operation_id=operation_id)
    return rows.case(found[0]) if found else None


def apply(
    connection: Connection,
    op: Operation,
    verdict: Verdict,
    code: audit.Code,
    now: int,
    ids: Ids,
    *,
    holding: Holding | None = None,
    body: Mapping[str, object] | None = None,
    lease: Mapping[str, object] | None = None,
) -> Operation:
    """Make one transition: state, fields, event, case, scope and what hangs on them.

    `op` must be the row as this transaction read it. `lease` takes the lease (its columns); without
    it the lease is given back.

    Raises:
        LostUpdate: the row has moved on since it was read.
        Impossible: the state table has no such transition.
    """
    state = advance(op.state, verdict.event)
    released = {"lease_owner": None, "lease_boot": None, "lease_until": None}
    changes: dict[str, object] = {**verdict.changes, **(released if lease is None else lease)}
    if verdict.notice is not None and verdict.notice not in op.notices:
        changes["notices"] = (*op.notices, str(verdict.notice))
    if state in FINAL or state is State.ESCALATED:
        changes |= {"next_at": None, "waiting_for": None, "once": None, "once_until": None}
    changes |= {"state": state, "revision": op.revision + 1, "updated_at": now}
    after = _update(connection, op, changes)
    if lease is None and op.waiting_for in _QUEUED and after.waiting_for not in _QUEUED:
        queueing.leave(connection, op.id, now)
    told: dict[str, object] = {"event": str(verdict.event), **verdict.story, **(body or {})}
    if verdict.reason is not None:
        about = About(verdict.about)
        case = _open(connection, after, verdict.reason, now, ids, holding, about)
        told |= {"reason": str(verdict.reason), "case": case.id}
    elif state is not State.ESCALATED:
        kept = _beside(after, ends=state in FINAL and not op.final)
        _close_case(connection, op.id, now, f"the operation is {state}", beside=kept)
    if verdict.notice is not None:
        told["notice"] = str(verdict.notice)
    told["set"] = _recorded(op, after, changes)
    audit.append(connection, op.id, now, code, told)
    asks = verdict.reason is Reason.UNCLEAR_WRITE and op.certainty is not Certainty.MAYBE_APPLIED
    looks = state is State.UNCLEAR and after.step is Step.LOOKUP and op.state is State.SENDING
    if asks or looks:
        audit.append(
            connection, op.id, now, audit.Code.RECONCILIATION_REQUIRED, {"certainty": "unknown"}
        )
    return after


@dataclass(frozen=True, slots=True)
class About:
    """What a case says beside what its operation says."""

    shared: str | None = None
    """A scope or a host that others share."""
    wish: Mapping[str, Any] | None = None
    """What an agent asks for."""
    evidence: str | None = None
    """What came in late."""
    asked_again: int | None = None
    """When people are told of it again, if nobody decides."""
    abandoned_at: int | None = None
    """When the contract gives it up then."""


def insert_case(
    connection: Connection,
    op: Operation,
    reason: Reason,
    now: int,
    ids: Ids,
    holding: Holding | None,
    about: About | None = None,
) -> Case:
    """Open a case beside an operation that it does not stop: an approval, an outage, a wish."""
    return _open(connection, op, reason, now, ids, holding, about or About())


def note(connection: Connection, op: Operation, notice: Notice, now: int) -> Operation:
    """Add a notice; the caller appends the event that tells why."""
    notices = op.notices if notice in op.notices else (*op.notices, str(notice))
    changes = {"notices": notices, "revision": op.revision + 1, "updated_at": now}
    return _update(connection, op, changes)


def move_next(
    connection: Connection, op: Operation, at: int, now: int, waiting_for: WaitingFor | None
) -> None:
    """Change only when an operation is looked at again."""
    changes: dict[str, object] = {"next_at": at, "waiting_for": waiting_for, "updated_at": now}
    _update(connection, op, {**changes, "revision": op.revision + 1})


def _update(connection: Connection, op: Operation, changes: Mapping[str, object]) -> Operation:
    """Change the row if it is still the one that was read; returns it as it is then."""
    values = rows.columns(changes)
    seen = {
        "seen_id": op.id,
        "seen_state": str(op.state),
        "seen_fence": op.fence,
        "seen_revision": op.revision,
    }
    changed = _guarded_update(tuple(sorted(values))).mappings(connection, **values, **seen)
    if not changed:
        raise LostUpdate(f"{op.id} is no longer at revision {op.revision}")
    return rows.changed(op, changed[0])


@lru_cache(maxsize=256)
def _guarded_update(names: tuple[str, ...]) -> Statement:
    """UPDATE of these columns, guarded by what was seen. Few sets of columns ever occur."""
    seen = (
        operations.c.id == sa.bindparam("seen_id"),
        operations.c.state == sa.bindparam("seen_state"),
        operations.c.fence == sa.bindparam("seen_fence"),
        operations.c.revision == sa.bindparam("seen_revision"),
    )
    updated = sa.update(operations).where(*seen)
    return Statement(updated.returning(*(operations.c[name] for name in names)), *names)


_UNRECORDED = frozenset(
    {
        *("arguments", "purpose", "label", "number", "emptied_at", "revision", "updated_at"),
        *("lease_owner", "lease_boot", "lease_until"),
    }
)
"""Not needed to rebuild state and budgets, said by the event itself, or for a shorter time."""


_RECORDED = tuple(name for name in Operation.__slots__ if name not in _UNRECORDED)


def recorded(op: Operation) -> dict[str, object]:
    """The fields of a new operation that its first event keeps."""
    return {name: getattr(op, name) for name in _RECORDED if getattr(op, name) is not None}


def _recorded(before: Operation, after: Operation, names: Collection[str]) -> dict[str, object]:
    """The new values of those of these fields that changed."""
    changed = {
        name: getattr(after, name)
        for name in names
        if name not in _UNRECORDED and getattr(before, name) != getattr(after, name)
    }
    if after.result is not None and "result" in changed:
        changed["result"] = description(after.result)
    told = rows.columns(changed)
    for name in BUDGETS:
        if name in changed and getattr(before, name).max == getattr(after, name).max:
            del told[f"{name}_max"]
    return told


_DESCRIPTION = ("name", "content_type", "bytes", "sha256", "partial", "pages", "truncated")


def description(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a result was, without what it says: that is kept for a shorter time."""
    return {name: result[name] for name in _DESCRIPTION if name in result}


# --- cases ----------------------------------------------------------------------------------


def _open(
    connection: Connection,
    op: Operation,
    reason: Reason,
    now: int,
    ids: Ids,
    holding: Holding | None,
    about: About,
) -> Case:
    replaced = open_case(connection, op.id)
    _close_case(connection, op.id, now, "replaced by a new case")
    contract = holding.contract if holding is not None else None
    asked = asked_for(op, about.wish)
    offered = escalations.offers(op, reason, contract, now, asked=asked)
    if about.wish is None and replaced is not None and replaced.wish is not None:
        # What an agent asked for is still asked for, where the new question offers it.
        still = replaced.wish["option"] in [str(offer.option) for offer in offered]
        about = replace(about, wish=replaced.wish if still else None)
    about = replace(
        about,
        asked_again=reminders.next_reminder(reminders.schedule(contract), now, 0, now),
        abandoned_at=reminders.abandoned_at(contract, reason, now),
    )
    values: dict[str, object] = {
        "id": f"esc_{ids.token(16)}",
        "operation_id": op.id,
        "reason": str(reason),
        "urgency": escalations.urgency(reason),
        "text": case_text(op, reason, offered, now, holding, about),
        "about": about.shared,
        "wish": None if about.wish is None else dict(about.wish),
        "announce_at": now,
        "options": listed(offered),
        "opened_at": now,
        "revision": 1,
    }
    connection.execute(sa.insert(cases), values)
    case = open_case(connection, op.id)
    if case is None:
        raise LostUpdate(f"the case of {op.id} is not there")
    return case


def listed(offered: tuple[escalations.Offer, ...]) -> list[dict[str, object]]:
    """Offers as a case keeps them."""
    return [
        {
            "id": str(offer.option),
            "label": offer.label,
            "effect": offer.effect,
            "parameters": dict(offer.parameters),
        }
        for offer in offered
    ]


def case_text(
    op: Operation,
    reason: Reason,
    offered: tuple[escalations.Offer, ...],
    now: int,
    holding: Holding | None,
    about: About,
) -> str:
    """The case text with what the contract adds: the provider's page and the request's shape."""
    console = sent_as = None
    if holding is not None:
        send = holding.action.send
        account = {**holding.contract.account, "id": op.account}
        where = shape(send.path, account) if send.path else "the address of the answer"
        sent_as = f"{send.method} {where}"
        if holding.contract.console is not None:
            console = link(holding.contract.console, facts_of(op, holding.contract))
    return escalations.case_text(
        op,
        reason,
        offered,
        now,
        console=console,
        sent_as=sent_as if op.kind is not Kind.JOB or op.accepted_at is None else None,
        action=holding.action if holding is not None else None,
        evidence=about.evidence,
        about=about.shared,
        wish=about.wish,
        asked_again=about.asked_again,
        abandoned_at=about.abandoned_at,
    )


def asked_for(op: Operation, wish: Mapping[str, Any] | None) -> Option | None:
    """The option that a case of its own is about: what was asked for, or doing it anew."""
    if wish is not None:
        return Option(wish["option"])
    return Option.RESUBMIT if op.final else None


def about_of(case: Case, holding: Holding | None, now: int) -> About:
    """What an open case says beside its operation, as it is now."""
    contract = holding.contract if holding is not None else None
    remind = reminders.schedule(contract)
    return About(
        case.about,
        case.wish,
        asked_again=reminders.next_reminder(remind, case.opened_at, case.announced, now),
        abandoned_at=reminders.abandoned_at(contract, case.reason, case.opened_at),
    )


def _beside(op: Operation, *, ends: bool) -> tuple[Reason, ...]:
    """Reasons of cases that an operation may have without being stopped by them.

    An outage is not over because one of those that it held up has ended, nor is a breaker.
    """
    asks = (Reason.APPROVAL_REQUIRED,) if op.approve_by is not None and not op.final else ()
    wishes = () if ends else (Reason.REQUESTED,)
    return (Reason.PROVIDER_UNREACHABLE, Reason.REPEATED_FAILURE, *asks, *wishes)


def _close_case(
    connection: Connection,
    operation_id: str,
    now: int,
    because: str,
    *,
    beside: tuple[Reason, ...] = (),
) -> None:
    """Close the open case, if any, unless it has one of the reasons `beside`."""
    _closing(beside).run(connection, of=operation_id, closed_at=now, closed_because=because)


@lru_cache(maxsize=64)
def _closing(beside: tuple[Reason, ...]) -> Statement:
    still = cases.c.operation_id == sa.bindparam("of"), cases.c.closed_at.is_(None)
    others = cases.c.reason.not_in([sa.literal(str(reason)) for reason in beside])
    closed = sa.update(cases).where(*still, *((others,) if beside else ()))
    return Statement(closed, "closed_at", "closed_because")
