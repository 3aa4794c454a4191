"""The audit log: one function appends, nothing else writes; one function reads.

A row is a public header, a sealed body, the hash of the row before and its own hash over all three
(`sealing`). Stores that are older than sealing begin with plain rows; the chain goes on from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from forbear.rules.model import AuditEvent
from forbear.storage.errors import LogUnreadable
from forbear.storage.schema import audit_epochs, audit_logs, checkpoints, events
from forbear.storage.sealing import (
    GENESIS,
    Checkpoint,
    EpochKey,
    Keys,
    Log,
    log_id,
)

SIGNED_EVERY = 100
"""Rows between two checkpoints at the most."""
SIGNED_WITHIN = 60_000
"""How old the last checkpoint may be when a row is added, ms."""


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
    AUDIT_READ = "audit_read"
    """A person looked into this log or exported it; the body says who, how, and at what."""
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


SIGNED_AT_ONCE = frozenset({Code.DECIDED, Code.RECONCILIATION_REQUIRED})
"""A decision, or a write that may have been applied: what somebody might want to have undone."""

_LAST = sa.select(checkpoints).order_by(checkpoints.c.number.desc()).limit(1)
_SIGNED = _LAST.with_only_columns(checkpoints.c.sequence).scalar_subquery()
_SIGNED_AT = _LAST.with_only_columns(checkpoints.c.at).scalar_subquery()
_HEAD = (
    sa.select(
        events.c.sequence, events.c.hash, _SIGNED.label("signed"), _SIGNED_AT.label("signed_at")
    )
    .order_by(events.c.sequence.desc())
    .limit(1)
)
_INSERT = sa.insert(events)


def opened(connection: Connection, keys: Path, store: str) -> Log:
    """The log of this store with its keys; both are made at the first start.

    Raises:
        StoreUnavailable: a key of an existing log is missing, or not its own.
        OSError: the folder of the keys cannot be used.
    """
    public = connection.execute(sa.select(audit_logs.c.public_key)).scalar()
    found = Keys.of(keys, store, used=public is not None)
    if public is None:
        public = found.public
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(sa.insert(audit_logs), {"id": log_id(public), "public_key": public})
        first = {"number": 1, "wrapped_key": EpochKey.made(found.wrapping)}
        connection.execute(sa.insert(audit_epochs), first)
        connection.exec_driver_sql("COMMIT")
    epochs = connection.execute(sa.select(audit_epochs.c.number, audit_epochs.c.wrapped_key))
    return Log(found, public, {row.number: row.wrapped_key for row in epochs}, keys)


def append(
    connection: Connection,
    operation_id: str | None,
    at: int,
    code: Code,
    body: Mapping[str, object],
) -> None:
    """Add one row at the head. Runs inside the transaction that changes the state."""
    log = _log(connection)
    head = connection.execute(_HEAD).first()
    previous = GENESIS if head is None else head.hash
    sequence = 1 if head is None else head.sequence + 1
    row = log.seal(previous, sequence, at, code, operation_id, body)
    connection.execute(
        _INSERT,
        {
            "sequence": sequence,
            "operation_id": operation_id,
            "header": row.header,
            "body": "",
            "sealed": row.sealed,
            "previous": previous,
            "hash": row.hash,
        },
    )
    signed, signed_at = (None, None) if head is None else (head.signed, head.signed_at)
    if code in SIGNED_AT_ONCE or _is_due(signed, signed_at, sequence, at):
        _sign(connection, log, sequence, row.hash, at)


def _is_due(signed: int | None, signed_at: int | None, sequence: int, at: int) -> bool:
    """Whether the last checkpoint, if any, is too far from this row and time."""
    if signed is None or signed_at is None:
        return True
    return sequence - signed >= SIGNED_EVERY or abs(at - signed_at) >= SIGNED_WITHIN


def sign(connection: Connection, at: int, *, at_once: bool = False) -> None:
    """Sign the head, if rows have waited for it long enough or shall not wait."""
    head = connection.execute(_HEAD).first()
    if head is None or head.sequence == head.signed:
        return
    if at_once or _is_due(head.signed, head.signed_at, head.sequence, at):
        _sign(connection, _log(connection), head.sequence, head.hash, at)


def _sign(connection: Connection, log: Log, sequence: int, row: str, at: int) -> None:
    last = connection.execute(_LAST).mappings().first()
    before = None if last is None else Checkpoint(**last)
    made = log.sign(
        1 if before is None else before.number + 1,
        sequence,
        row,
        at,
        GENESIS if before is None else before.digest(log.id),
    )
    connection.execute(sa.insert(checkpoints), asdict(made))


def _log(connection: Connection) -> Log:
    """The log that the database hands out with each of its writing connections."""
    log: Log = connection.get_execution_options()["audit"]
    return log


def event(row: RowMapping, log: Log) -> AuditEvent:
    """What a row of the table says, with its seal opened.

    Raises:
        LogUnreadable: the row was changed, or its key is gone.
    """
    sequence = row["sequence"]
    if row["sealed"] is None:
        header = json.loads(row["header"])
        told = {**header, "body": json.loads(row["body"])}
    else:
        told = log.open(sequence, row["previous"], row["header"], row["sealed"])
        header = json.loads(row["header"])
    if told["operation"] != row["operation_id"]:
        raise LogUnreadable(f"row {sequence} of the audit log is of another operation")
    return AuditEvent(
        sequence=sequence,
        operation_id=told["operation"] or "",
        at=told["at"],
        code=header["code"],
        body=told["body"],
    )
