"""The audit trail: one function appends, nothing else writes.

A row is a public header, a body, the hash of the row before and its own hash over all three. The
format leaves room for sealing: the body may become ciphertext without the chain changing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from forbear.rules.model import AuditEvent
from forbear.storage.rows import compact
from forbear.storage.schema import events

FORMAT = 1
GENESIS = "0" * 64


class Code(StrEnum):
    """Every event there is. Closed: state and budgets can be rebuilt from these alone."""

    ACCEPTED = "accepted"
    """An operation was stored; the body has its first state and budgets."""
    JOINED = "joined"
    """The same action was asked for again and met this operation."""
    HELD = "held"
    """Due, but a token, slot, credential or approval is missing."""
    RESERVED = "reserved"
    """A request was counted and may leave: written before it does."""
    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    """The request left and no complete answer came."""
    NOT_SENT = "not_sent"
    """Proven: no byte of the request left."""
    LOST = "lost"
    """The owner of an open attempt is gone; its outcome is unknown."""
    RECONCILIATION_REQUIRED = "reconciliation_required"
    """A write may have been applied: nothing but a lookup or a decision follows."""
    ENDED = "ended"
    """Over before anything more was sent: deadline, approval or attempts."""
    CONTRACT_NOTED = "contract_noted"
    """The contract changed: its states, hints, texts and rules count from the next request on."""
    STRANDED = "stranded"
    """No living process can run this operation's contract."""
    DECIDED = "decided"
    """A person chose an option of a case."""
    WISHED = "wished"
    """An agent asked for an option; a person decides."""
    RAW_SHOWN = "raw_shown"
    """A person looked at raw requests and answers; the body says who, and why."""
    ANNOUNCED = "announced"
    """People were told of an open case, once more."""
    DROPPED = "dropped"
    """Ended on request, or by the contract's rule, before or instead of another attempt."""
    END_ASKED = "end_asked"
    """An end was asked for while a request is out; it counts when the outcome is known."""
    LATE_EVIDENCE = "late_evidence"
    """An answer of an attempt that had been closed as unknown."""
    PAUSED = "paused"
    """A person stopped a provider, a scope or all."""
    RESUMED = "resumed"
    SCOPE_RESET = "scope_reset"
    """A person let a scope forget its limits."""
    CREDENTIAL_ACCEPTED = "credential_accepted"
    """A person let another credential be used for a provider and account."""
    CIRCUIT_OPENED = "circuit_opened"
    """A provider's host failed so often that only probes go out."""
    CIRCUIT_CLOSED = "circuit_closed"
    CASE_OPENED = "case_opened"
    """A person is asked about something that does not stop the operation."""
    CASE_CLOSED = "case_closed"
    """Such a question ended without a decision; the operation stays as it is."""
    CHECK_MOVED = "check_moved"
    """A related operation, or a clock that was set back, made the next check due earlier."""


_HEAD = sa.select(events.c.hash).order_by(events.c.sequence.desc()).limit(1)
_INSERT = sa.insert(events)


def append(
    connection: Connection,
    operation_id: str | None,
    at: int,
    code: Code,
    body: Mapping[str, object],
) -> None:
    """Add one row at the head. Runs inside the transaction that changes the state."""
    previous = connection.execute(_HEAD).scalar() or GENESIS
    header = compact({"format": FORMAT, "at": at, "code": str(code), "operation": operation_id})
    text = compact(body)
    connection.execute(
        _INSERT,
        {
            "operation_id": operation_id,
            "header": header,
            "body": text,
            "previous": previous,
            "hash": chained(previous, header, text),
        },
    )


def chained(previous: str, header: str, body: str) -> str:
    """The hash of a row: SHA-256 over the hash before, the header and the body."""
    parts = "\n".join((previous, header, body))
    return hashlib.sha256(parts.encode()).hexdigest()


def event(row: RowMapping) -> AuditEvent:
    header = json.loads(row["header"])
    return AuditEvent(
        sequence=row["sequence"],
        operation_id=row["operation_id"] or "",
        at=header["at"],
        code=header["code"],
        body=json.loads(row["body"]),
    )
