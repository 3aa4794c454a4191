"""The audit log: one function appends, nothing else writes; one function reads.

A row is a public header, a sealed body, the hash of the row before and its own hash over all three
(`sealing`). The store keeps of it what cannot be told from the rest: the hash before is that of the
row before, and `header_text` makes the header from columns. Stores that are older have rows with
all of it, or plain ones; the chain goes on from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, RowMapping

from forbear.rules.model import AuditEvent
from forbear.storage.dialects import parsed
from forbear.storage.errors import StoreUnavailable
from forbear.storage.keyfiles import Name
from forbear.storage.packing import MINUTE
from forbear.storage.schema import (
    audit_epochs,
    audit_logs,
    audit_operations,
    checkpoints,
    events,
)
from forbear.storage.sealing import (
    GENESIS,
    NOT_ITS_KEY,
    Checkpoint,
    Epoch,
    Log,
    header_of,
    mark,
    new_epoch_key,
    sealed_hash,
    unreadable,
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


CODES: tuple[Code, ...] = (
    *(Code.ACCEPTED, Code.JOINED, Code.HELD, Code.RESERVED, Code.ANSWERED, Code.NO_ANSWER),
    *(Code.NOT_SENT, Code.LOST, Code.TOKEN_RESERVED, Code.TOKEN_SETTLED),
    *(Code.RECONCILIATION_REQUIRED, Code.ENDED, Code.CONTRACT_NOTED, Code.STRANDED, Code.DECIDED),
    *(Code.WISHED, Code.RAW_SHOWN, Code.AUDIT_READ, Code.AUDIT_REFUSED, Code.LOG_PRUNED),
    *(Code.KEYS_CHANGED, Code.ANNOUNCED, Code.DROPPED, Code.END_ASKED, Code.LATE_EVIDENCE),
    *(Code.PAUSED, Code.RESUMED, Code.STORE_HELD, Code.STORE_ADOPTED, Code.SCOPE_RESET),
    *(Code.CREDENTIAL_ACCEPTED, Code.CIRCUIT_OPENED, Code.CIRCUIT_CLOSED, Code.CASE_OPENED),
    *(Code.CASE_CLOSED, Code.EMPTIED, Code.FORGOTTEN, Code.CHECK_MOVED),
)
"""A row has the place of its code in this list. Part of the format: what is new goes to the end."""
NUMBER = {code: number for number, code in enumerate(CODES)}

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


_LAST = Statement(sa.select(checkpoints).where(_newest(checkpoints.c.number)))
_SIGN = Statement(sa.insert(checkpoints), *(one.name for one in fields(Checkpoint)))
_EPOCH = sa.select(audit_epochs).where(_newest(audit_epochs.c.number))
_NAMED = sa.select(audit_operations.c.number).where(
    audit_operations.c.id == sa.bindparam("operation_id", type_=sa.Text)
)
_HEAD = Statement(
    sa.select(
        events.c.sequence,
        events.c.hash,
        sa.type_coerce(events.c.digest, sa.types.NullType()).label("digest"),
        _NAMED.scalar_subquery().label("named"),
        checkpoints.c.sequence.label("signed"),
        checkpoints.c.at.label("signed_at"),
        *audit_epochs.c,
    )
    .select_from(events)
    .outerjoin(checkpoints, _newest(checkpoints.c.number))
    .outerjoin(audit_epochs, _newest(audit_epochs.c.number))
    .where(_newest(events.c.sequence))
)
"""The last row, the number of an operation in the log, how far it is signed, the epoch in use."""
_NAME = Statement(sa.insert(audit_operations), "id")
_NUMBER_OF = Statement(_NAMED)
_COLUMNS = ("sequence", "operation", "code", "minute", "epoch", "sealed", "digest")
_NOTHING = sa.literal_column("''", sa.Text)
_BARE = sa.insert(events).values(body=_NOTHING, previous=_NOTHING, hash=_NOTHING)
_INSERT = Statement(_BARE.values(header=_NOTHING), *_COLUMNS)
_INSERT_TOLD = Statement(_BARE, *_COLUMNS, "header")
"""With a header that says more than columns do."""
_SIGNING_KEY = Statement(
    sa.select(checkpoints.c.next_key)
    .where(checkpoints.c.next_key.is_not(None))
    .order_by(checkpoints.c.number.desc())
    .limit(1)
)
_FIRST_KEY = Statement(sa.select(audit_logs.c.public_key))


def log_of(connection: Connection) -> Log:
    """The log that the database hands out with each of its writing connections."""
    log: Log = connection.get_execution_options()["audit"]
    return log


def signing_key(connection: Connection) -> str | None:
    """The public half of the key that signs from here on; None in a store without a log."""
    changed: str | None = _SIGNING_KEY.scalar(connection)
    return changed or _FIRST_KEY.scalar(connection)


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
    previous, sequence, named, current, signed, signed_at = GENESIS, 1, None, None, None, None
    head = _HEAD.first(connection, operation_id=operation_id)
    if head is not None:
        last, text, digest, named, signed, signed_at, number, *key = head
        previous, sequence = hash_of(digest, text), last + 1
        if number is not None:
            current = Epoch(number, *key)
    if current is None or current.is_over(at, sequence):
        current = begin_epoch(connection, at)
    if operation_id is not None and named is None:
        _NAME.run(connection, id=operation_id)
        named = _NUMBER_OF.scalar(connection, operation_id=operation_id)
    row = log.seal(current, previous, sequence, at, code, operation_id, body, start)
    values: dict[str, object] = {
        "sequence": sequence,
        "operation": named,
        "code": NUMBER[code],
        "minute": at // MINUTE,
        "epoch": current.number,
        "sealed": row.sealed,
        "digest": bytes.fromhex(row.hash),
    }
    if start is None:
        _INSERT.run(connection, **values)
    else:
        _INSERT_TOLD.run(connection, **values, header=row.header)
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
    head = _HEAD.first(connection, operation_id=None)
    if head is None or head.sequence == head.signed:
        return
    if at_once or _is_due(head.signed, head.signed_at, head.sequence, at):
        _sign(connection, head.sequence, hash_of(head.digest, head.hash), at)


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
    _SIGN.run(connection, **asdict(made))


def last_checkpoint(connection: Connection) -> Checkpoint | None:
    last = _LAST.first(connection)
    return None if last is None else Checkpoint(*last)


# --- reading --------------------------------------------------------------------------------

_BEFORE = events.alias("before")
_START = (
    sa.select(checkpoints.c.hash)
    .where(checkpoints.c.sequence == events.c.sequence - 1)
    .limit(1)
    .scalar_subquery()
)
_OLDER = parsed(sa.func.nullif(events.c.header, ""))
"""The header of a row that has all of it as a text."""
_EPOCH_OF = sa.case((events.c.epoch.is_(None), _OLDER["epoch"].as_integer()), else_=events.c.epoch)

_AT = sa.case(
    (events.c.minute.is_(None), sa.cast(_OLDER["at"].as_string(), sa.BigInteger)),
    else_=sa.cast(events.c.minute, sa.BigInteger) * MINUTE,
)
"""The minute of a row, ms."""
OPERATION = sa.func.coalesce(events.c.operation_id, audit_operations.c.id)
"""The operation of a row of `NAMED`, NULL if it has none."""
NAMED = events.outerjoin(audit_operations, audit_operations.c.number == events.c.operation)
HEADINGS = sa.select(
    events.c.sequence,
    _AT.label("at"),
    sa.case((events.c.code.is_(None), _OLDER["code"].as_string())).label("word"),
    events.c.code,
    OPERATION.label("operation_id"),
).select_from(NAMED)
"""What the headers of rows say: the code in `word`, or its number in `code`."""
TOLD = (
    sa.select(
        events,
        audit_epochs.c.wrapped_key,
        OPERATION.label("named"),
        _BEFORE.c.digest.label("digest_before"),
        sa.func.coalesce(_BEFORE.c.hash, _START).label("hash_before"),
    )
    .select_from(NAMED)
    .outerjoin(audit_epochs, audit_epochs.c.number == _EPOCH_OF)
    .outerjoin(_BEFORE, _BEFORE.c.sequence == events.c.sequence - 1)
)
"""Rows with all that `event` needs to read them."""


def of_operation(operation_id: str) -> sa.ColumnElement[bool]:
    """Whether a row is of this operation."""
    number = sa.select(audit_operations.c.number).where(audit_operations.c.id == operation_id)
    return sa.or_(
        events.c.operation_id == operation_id, events.c.operation == number.scalar_subquery()
    )


def not_before(at: int) -> sa.ColumnElement[bool]:
    """Whether a row may be of this time, ms, or a later one: a header has only the minute."""
    return at - MINUTE < _AT


def with_code(code: str) -> sa.ColumnElement[bool]:
    """Whether a row has this code."""
    older = sa.and_(events.c.code.is_(None), _OLDER["code"].as_string() == code)
    return sa.or_(events.c.code == NUMBER.get(Code(code)), older)


def hash_of(digest: bytes | None, text: str) -> str:
    """The hash of a row, hex, of which the store has either."""
    return text if digest is None else bytes(digest).hex()


def header_text(
    log: str,
    row: tuple[int, int, int, int, str],
    previous: str,
    operation_id: str | None,
) -> str:
    """The header of a row, of which the store has number, code, minute, epoch, and a text if it
    says more than those.

    Raises:
        ValueError: the text says other things, or there is no such code.
    """
    sequence, code, minute, epoch, text = row
    if not 0 <= code < len(CODES):
        raise ValueError(f"there is no code {code}")
    marked = None if operation_id is None else mark(previous, operation_id)
    told = header_of(log, sequence, minute * MINUTE, CODES[code], epoch, marked)
    if not text:
        return told
    if not text.startswith(f"{told[:-1]},"):
        raise ValueError("the header does not say what its columns say")
    return text


def event(row: RowMapping, log: Log) -> AuditEvent:
    """What a row of `TOLD` says, with its seal opened; see `AuditEvent.unreadable`.

    Raises:
        LogUnreadable: the row was changed.
    """
    sequence, wrapped, operation_id = row["sequence"], row["wrapped_key"], row["named"]
    previous, header = row["previous"], row["header"]
    if row["digest"] is not None:
        previous = hash_of(row["digest_before"], row["hash_before"] or GENESIS)
        columns = sequence, row["code"], row["minute"], row["epoch"], header
        try:
            header = header_text(log.id, columns, previous, operation_id)
        except (ValueError, TypeError):
            raise unreadable(sequence) from None
    public = json.loads(header)
    if row["sealed"] is None:
        if public["operation"] != operation_id:
            raise unreadable(sequence)
        at, body = public["at"], json.loads(row["body"])
    else:
        told = log.open(sequence, previous, header, row["sealed"], wrapped, operation_id)
        if told is None:
            return _closed(row, public, previous, header)
        at, body = told
    return AuditEvent(
        sequence=sequence,
        operation_id=operation_id or "",
        at=at,
        code=public["code"],
        body=body,
    )


def _closed(row: RowMapping, header: Mapping[str, Any], previous: str, text: str) -> AuditEvent:
    """What the header alone says of a row whose key is gone."""
    named = row["named"]
    changed = header.get("operation") != (None if named is None else mark(previous, named))
    if row["digest"] is not None:  # the header was made of what is asked
        changed = sealed_hash(previous, text, row["sealed"]) != bytes(row["digest"]).hex()
    if changed:
        raise unreadable(row["sequence"])
    gone = "was destroyed" if row["wrapped_key"] is None else "was lost"
    return AuditEvent(
        sequence=row["sequence"],
        operation_id=named or "",
        at=header["at"],
        code=header["code"],
        unreadable=f"the key of epoch {header['epoch']} {gone}",
    )
