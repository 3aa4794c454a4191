"""What a reservation uses up, and what the request it pays for is."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import paging, steps
from forbear.rules.admission import Admit
from forbear.rules.contract import Action, Job
from forbear.rules.facts import facts_of
from forbear.rules.identity import request_digest
from forbear.rules.model import DelaySource, Kind, Operation, Step, Trigger, WaitingFor
from forbear.rules.ports import Moment, Outbound, Permit
from forbear.rules.redirects import Hop
from forbear.rules.requests import render
from forbear.storage.intents import stored_request
from forbear.storage.liveness import Liveness
from forbear.storage.outcomes import spend
from forbear.storage.schema import attempts, reservations
from forbear.storage.statements import Statement
from forbear.storage.transitions import Holding


@dataclass(frozen=True, slots=True)
class Reserved:
    """A committed reservation: one request may leave, once."""

    operation: Operation
    permit: Permit
    request: Outbound
    holding: Holding
    parent: Operation | None
    host: str
    """Where it goes, as circuits know it."""
    number: int
    """Of the attempt, counted within its operation."""


def host_of(op: Operation, holding: Holding, parent: Operation | None) -> str:
    """The host that the next request of `op` goes to."""
    hop = Hop.due(op)
    if hop is not None:
        return hop.host
    facts = facts_of(op, holding.contract, parent)
    return steps.host_of(holding.contract, steps.request_of(op, holding.action), facts)


def counted(op: Operation, step: Step, now: int) -> dict[str, object]:
    """What a reservation of this step uses up."""
    match step:
        case Step.SEND:
            return {
                "attempts": spend(op.attempts),
                "sent_at": op.sent_at or now,
                "waiting_for": None,
            }
        case Step.STATUS:
            return {
                "status_requests": spend(op.status_requests),
                "waiting_for": WaitingFor.PROVIDER,
            }
        case Step.LOOKUP:
            # The pages of one lookup count as one; where a redirect leads is one more.
            under_way = (op.search or {}).get("cursor") is not None and Hop.due(op) is None
            return {} if under_way else {"lookups": spend(op.lookups)}


def repeats_aloud(op: Operation, action: Action) -> bool:
    """Whether the provider wants to be told that a request is a repetition (`on_repeat`)."""
    repeats = op.attempts.used > 0 and op.kind in (Kind.JOB, Kind.CALL)
    return repeats and action.idempotency is not None and bool(action.idempotency.on_repeat)


def request_for(
    connection: Connection,
    op: Operation,
    admitted: Admit,
    holding: Holding,
    parent: Operation | None,
) -> Outbound:
    """The request of the step, or the one that follows the redirect of the last.

    Raises:
        RenderError: it cannot be made from what is known.
    """
    request = _stated(connection, op, admitted, holding, parent)
    hop = Hop.due(op)
    if hop is None:
        return request
    return hop.requested(request, steps.request_of(op, holding.action).redirect)


def _stated(
    connection: Connection,
    op: Operation,
    admitted: Admit,
    holding: Holding,
    parent: Operation | None,
) -> Outbound:
    """The stored request of the action; an observation is rendered from the contract."""
    contract, action = holding.contract, holding.action
    # Read for each step: where its key is lost, the arguments are not known either.
    first = stored_request(connection, op.id)
    facts = facts_of(op, contract, parent)
    if admitted.step is Step.STATUS and isinstance(action, Job):
        return render(contract, action.status, facts, timeout=admitted.timeout)
    if admitted.step is Step.LOOKUP and action.lookup is not None:
        cursor = (op.search or {}).get("cursor")
        page = action.lookup.paged(cursor)
        return render(contract, page, facts, timeout=admitted.timeout)
    if repeats_aloud(op, action):
        again = replace(facts, attempt=op.attempts.used + 1)
        return render(contract, action.send, again, timeout=admitted.timeout)
    stored = paging.turned(first, op, action)
    return replace(stored, timeout=admitted.timeout)


def digest_of(request: Outbound, step: Step, action: Action) -> str:
    """What is kept of a request that acts; one that observes follows from its contract."""
    return request_digest(request, action.section) if step is Step.SEND else ""


def name_of(op: Operation, owner: str, now: Moment) -> str:
    """The name of the next attempt of `op`.

    Of its process and moment too: a store that was set back comes to the same fence again, and
    what is still out from before is another attempt.
    """
    maker = blake2b(f"{owner} {now.boot_id} {now.boot}".encode(), digest_size=5).digest()
    drawn = b32encode(maker).decode().lower()[:4]
    return f"att_{op.id.removeprefix('op_')}_{op.fence + 1}_{drawn}"


def trigger_of(op: Operation, number: int) -> Trigger:
    if op.delay_source is DelaySource.MANUAL_EXTENSION:
        return Trigger.OPERATOR
    return Trigger.AGENT if number == 1 else Trigger.SCHEDULE


def with_age_of_key(connection: Connection, op: Operation, now: Moment) -> Operation:
    """`op` as admission is to see it: its key is at least as old as the boot clock says.

    A wall clock that was set back would make the provider's memory of a key seem longer than it is.
    Where the machine was started since and its clock came up behind what was stored then, nobody
    knows the age: it is beyond every window.
    """
    if op.wire_key is None or op.sent_at is None:
        return op
    query = sa.select(sa.func.min(attempts.c.reserved_boot)).where(
        attempts.c.operation_id == op.id,
        attempts.c.step == str(Step.SEND),
        attempts.c.boot_id == now.boot_id,
    )
    first = connection.execute(query).scalar()
    if first is None:
        last = sa.func.max(sa.func.coalesce(attempts.c.closed_at, attempts.c.reserved_at))
        known = connection.execute(sa.select(last).where(attempts.c.operation_id == op.id)).scalar()
        return replace(op, sent_at=0) if now.wall < max(op.sent_at, known or 0) else op
    return replace(op, sent_at=min(op.sent_at, now.wall - (now.boot - first)))


def can_still_send(connection: Connection, op: Operation, liveness: Liveness) -> bool:
    """Whether a process that may be alive holds an attempt of this write that others closed.

    Asked only of an operation that is looked up: nothing else rests on it.
    """
    if op.step is not Step.LOOKUP:
        return False
    lost = sa.select(attempts.c.owner).where(
        attempts.c.operation_id == op.id,
        attempts.c.step == str(Step.SEND),
        attempts.c.outcome == "unknown",
        attempts.c.late.is_(False),
    )
    return any(liveness.alive(owner) for owner in connection.execute(lost).scalars())


OPEN = Statement(
    sa.insert(attempts),
    *("id", "operation_id", "number", "step", "trigger", "authorisation", "owner", "fence"),
    *("scope", "reserved_at", "reserved_boot", "boot_id", "send_by", "hold_until"),
    "request_digest",
)
"""A new attempt, whose outcome nobody knows."""


def close(
    connection: Connection, attempt_id: str, now: int, outcome: str, facts: Mapping[str, object]
) -> bool:
    """Store what came of an open attempt, and give its slots back. False: it is not open."""
    told = {"closed_at": now, "outcome": outcome, **facts}
    if not _closed(tuple(sorted(told))).run(connection, of=attempt_id, **told):
        return False
    if not _GIVE_BACK.run(connection, of=attempt_id):
        _RELEASE.run(connection, of=attempt_id)
    return True


@cache
def _closed(names: tuple[str, ...]) -> Statement:
    still = attempts.c.id == sa.bindparam("of"), attempts.c.closed_at.is_(None)
    # With which boot a clock counted matters for the age of a key alone.
    boot = sa.case((attempts.c.step == str(Step.SEND), attempts.c.boot_id))
    return Statement(sa.update(attempts).where(*still).values(boot_id=boot), *names)


_MINE = reservations.c.attempt_id == sa.bindparam("of")
_GIVE_BACK = Statement(sa.delete(reservations).where(_MINE, ~reservations.c.extra))
_RELEASE = Statement(sa.update(reservations).where(_MINE).values(hold_until=0))
"""Of what holds nothing any more only repetitions still count."""


def attempts_so_far(connection: Connection, operation_id: str) -> int:
    counted: int = _ATTEMPTS.scalar(connection, of=operation_id)
    return counted


_ATTEMPTS = Statement(
    sa.select(sa.func.count())
    .select_from(attempts)
    .where(attempts.c.operation_id == sa.bindparam("of"))
)
