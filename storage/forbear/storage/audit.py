"""The audit log: one function appends, nothing else writes; one function reads.

A row is a public header, a sealed body, the hash of the row before and its own hash over all three
(`sealing`). Stores that are older than sealing begin with plain rows; the chain goes on from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from forbear.rules.model import AuditEvent
from forbear.storage.dialects import parsed
from forbear.storage.errors import LogUnreadable, StoreUnavailable
from forbear.storage.keyfiles import Name
from forbear.storage.schema import audit_epochs, audit_logs, checkpoints, events
from forbear.storage.sealing import (
    GENESIS,
    NOT_ITS_KEY,
    Checkpoint,
    Epoch,
    Log,
    mark,
    new_epoch_key,
)
from forbear.storage.statements import Statement

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
    TOKEN_RESERVED = "token_reserved"
    """A request for a token was counted and may leave: written before it does."""
    TOKEN_SETTLED = "token_settled"
    """What came of a request for a token; the body says the outcome, never the token."""
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
    AUDIT_REFUSED = "audit_refused"
    """Somebody was not let into this log; the body says who, and what was asked for."""
    LOG_PRUNED = "log_pruned"
    """Old rows are deleted: the header says where the log begins from now on, the body who did it,
    and why no more was deleted."""
    KEYS_CHANGED = "keys_changed"
    """A key was changed, replaced or destroyed; the body says which one, and who did it."""
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
    STORE_HELD = "store_held"
    """The store may not be the living one: nothing but lookups leaves, and a write that was not
    finished in it is unclear."""
    STORE_ADOPTED = "store_adopted"
    """A person made it the living one."""
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
    EMPTIED = "emptied"
    """Retention took what was sent and answered of an operation that is over."""
    FORGOTTEN = "forgotten"
    """Retention took the operation itself."""
    CHECK_MOVED = "check_moved"
    """A related operation, or a clock that was set back, made the next check due earlier."""


SIGNED_AT_ONCE = frozenset(
    {
        *(Code.DECIDED, Code.RECONCILIATION_REQUIRED, Code.STORE_ADOPTED),
        *(Code.LOG_PRUNED, Code.KEYS_CHANGED),
    }
)
"""A decision, or a write that may have been applied: what somebody might want to have undone. And
what changes the log itself."""


def _newest(number: sa.Column[int]) -> sa.ColumnElement[bool]:
    return number == sa.select(sa.func.max(number)).scalar_subquery()


_LAST = sa.select(checkpoints).where(_newest(checkpoints.c.number))
_EPOCH = sa.select(audit_epochs).where(_newest(audit_epochs.c.number))
_HEAD = Statement(
    sa.select(
        events.c.sequence,
        events.c.hash,
        checkpoints.c.sequence.label("signed"),
        checkpoints.c.at.label("signed_at"),
        *audit_epochs.c,
    )
    .select_from(events)
    .outerjoin(checkpoints, _newest(checkpoints.c.number))
    .outerjoin(audit_epochs, _newest(audit_epochs.c.number))
    .where(_newest(events.c.sequence))
)
"""The last row, how far it is signed, and the epoch in use."""
_INSERT = Statement(
    sa.insert(events), "sequence", "operation_id", "header", "body", "previous", "hash", "sealed"
)
_SIGNING_KEY = (
    sa.select(checkpoints.c.next_key)
    .where(checkpoints.c.next_key.is_not(None))
    .order_by(checkpoints.c.number.desc())
    .limit(1)
)


def log_of(connection: Connection) -> Log:
    """The log that the database hands out with each of its writing connections."""
    log: Log = connection.get_execution_options()["audit"]
    return log


def signing_key(connection: Connection) -> str | None:
    """The public half of the key that signs from here on; None in a store without a log."""
    changed = connection.execute(_SIGNING_KEY).scalar()
    first = sa.select(audit_logs.c.public_key)
    return changed or connection.execute(first).scalar()


def epoch(connection: Connection) -> Epoch | None:
    """The epoch in use, None before the first row."""
    found = connection.execute(_EPOCH).mappings().first()
    return None if found is None else Epoch(**found)


def append(
    connection: Connection,
    operation_id: str | None,
    at: int,
    code: Code,
    body: Mapping[str, object],
    *,
    start: Checkpoint | None = None,
    next_key: str | None = None,
) -> int:
    """Add one row at the head, and return its number. Runs inside the transaction that changes the
    state. `start` is where the log begins from now on, in the header for everybody; `next_key` is
    what signs all that follows (public, hex), said by the checkpoint over this row.

    Raises:
        StoreUnavailable: the keys that are there are not those of this log.
    """
    log = log_of(connection)
    head = _HEAD.first(connection)
    previous = GENESIS if head is None else head.hash
    sequence = 1 if head is None else head.sequence + 1
    current = None
    if head is not None and head.number is not None:
        current = Epoch(head.number, head.wrapped_key, head.since, head.first)
    if current is None or current.is_over(at, sequence):
        current = begin_epoch(connection, at)
    row = log.seal(current, previous, sequence, at, code, operation_id, body, start)
    _INSERT.run(
        connection,
        sequence=sequence,
        operation_id=operation_id,
        header=row.header,
        body="",
        sealed=row.sealed,
        previous=previous,
        hash=row.hash,
    )
    signed, signed_at = (None, None) if head is None else (head.signed, head.signed_at)
    if code in SIGNED_AT_ONCE or _is_due(signed, signed_at, sequence, at):
        _sign(connection, sequence, row.hash, at, next_key)
    return sequence


def begin_epoch(connection: Connection, at: int) -> Epoch:
    """A new key for all rows from here on.

    Raises:
        StoreUnavailable: the sealing key is not that of the epoch before.
    """
    log, before = log_of(connection), epoch(connection)
    if before is not None and log.unwrapped(before.wrapped_key) is None:
        # Sealing under a key that nobody else has would part the processes of this store.
        raise StoreUnavailable(NOT_ITS_KEY.format(log.places.where(Name.SEALING)))
    return start_epoch(connection, before, log.wrapped(new_epoch_key()), at)


def start_epoch(connection: Connection, before: Epoch | None, wrapped: str, at: int) -> Epoch:
    last = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar()
    made = Epoch(1 if before is None else before.number + 1, wrapped, at, 1 + (last or 0))
    connection.execute(sa.insert(audit_epochs), asdict(made))
    return made


def _is_due(signed: int | None, signed_at: int | None, sequence: int, at: int) -> bool:
    """Whether the last checkpoint, if any, is too far from this row and time."""
    if signed is None or signed_at is None:
        return True
    return sequence - signed >= SIGNED_EVERY or abs(at - signed_at) >= SIGNED_WITHIN


def sign(connection: Connection, at: int, *, at_once: bool = False) -> None:
    """Sign the head, if rows have waited for it long enough or shall not wait."""
    head = _HEAD.first(connection)
    if head is None or head.sequence == head.signed:
        return
    if at_once or _is_due(head.signed, head.signed_at, head.sequence, at):
        _sign(connection, head.sequence, head.hash, at)


def _sign(
    connection: Connection, sequence: int, row: str, at: int, next_key: str | None = None
) -> None:
    log, public = log_of(connection), signing_key(connection)
    assert public is not None
    before = last_checkpoint(connection)
    made = log.sign(
        public,
        1 if before is None else before.number + 1,
        sequence,
        row,
        at,
        GENESIS if before is None else before.digest(log.id),
        next_key,
    )
    connection.execute(sa.insert(checkpoints), asdict(made))


def last_checkpoint(connection: Connection) -> Checkpoint | None:
    last = connection.execute(_LAST).mappings().first()
    return None if last is None else Checkpoint(**last)


# --- reading --------------------------------------------------------------------------------

TOLD = sa.select(events, audit_epochs.c.wrapped_key).outerjoin(
    audit_epochs,
    audit_epochs.c.number == parsed(events.c.header)["epoch"].as_integer(),
)
"""Rows with the key that each is sealed with, as `event` needs them."""


def event(row: RowMapping, log: Log) -> AuditEvent:
    """What a row of `TOLD` says, with its seal opened; see `AuditEvent.unreadable`.

    Raises:
        LogUnreadable: the row was changed.
    """
    sequence, wrapped = row["sequence"], row["wrapped_key"]
    header = json.loads(row["header"])
    if row["sealed"] is None:
        told = {**header, "body": json.loads(row["body"])}
    else:
        opened = log.open(sequence, row["previous"], row["header"], row["sealed"], wrapped)
        if opened is None:
            return _closed(row, header)
        told = opened
    if told["operation"] != row["operation_id"]:
        raise _moved(sequence)
    return AuditEvent(
        sequence=sequence,
        operation_id=told["operation"] or "",
        at=told["at"],
        code=header["code"],
        body=told["body"],
    )


def _closed(row: RowMapping, header: Mapping[str, Any]) -> AuditEvent:
    """What the header alone says of a row whose key is gone."""
    named = row["operation_id"]
    if header.get("operation") != (None if named is None else mark(row["previous"], named)):
        raise _moved(row["sequence"])
    gone = "was destroyed" if row["wrapped_key"] is None else "was lost"
    return AuditEvent(
        sequence=row["sequence"],
        operation_id=named or "",
        at=header["at"],
        code=header["code"],
        unreadable=f"the key of epoch {header['epoch']} {gone}",
    )


def _moved(sequence: int) -> LogUnreadable:
    return LogUnreadable(f"row {sequence} of the audit log is of another operation")
