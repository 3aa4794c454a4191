"""Is this the same action? One operation per intent (behaviour.md, section 1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forbear.rules.model import Certainty, Kind, Operation, RequestClass, State

LONG_MEMORY = 86_400_000
"""How long an accepted job that did not succeed keeps its intent to itself, ms (24 hours)."""

INHERITANCE = 900_000
"""How long used failures of an attempt without effect are inherited, ms (15 minutes)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, as far as identity goes."""

    principal: str
    kind: Kind
    request_class: RequestClass
    intent: str
    key: str | None
    repeat: str
    """`ask`, `join`, `key` or `free`."""
    repeat_window: int


@dataclass(frozen=True, slots=True)
class New:
    """A new operation; what an earlier one without effect used up is inherited from it."""

    inherits: Operation | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """The same action already has an operation."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """The key names another intent."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The same action may already have been done; only a decision goes past it, or a key."""

    operation: Operation
    own: bool
    """Whether the asking principal may see more of it than that it exists."""
    keyed: bool = False
    """A key of its own would make the ask a new one (`repeat = "key"`)."""


Sameness = New | Join | KeyConflict | Duplicate


def judge(
    ask: Ask, by_key: Operation | None, same_intent: Sequence[Operation], now: int
) -> Sameness:
    """Which operation an ask is. A job is never a read, whatever the class of its submission.

    `by_key` is the operation that holds the key for this principal, provider, account and action;
    `same_intent` are all operations of that intent, newest first, whoever owns them.
    """
    if by_key is not None:
        return Join(by_key) if by_key.intent == ask.intent else KeyConflict(by_key)
    if ask.kind is Kind.RESULT:
        return _judge_result(ask, same_intent)
    if ask.kind is Kind.CALL and ask.request_class is RequestClass.READ:
        return New()
    for op in same_intent:
        if not op.final and ask.key is None and op.principal == ask.principal:
            return Join(op)
    for op in same_intent:
        if not op.final or op.certainty is Certainty.MAYBE_APPLIED:
            return Duplicate(op, op.principal == ask.principal)
    for op in same_intent:
        if op.certainty is not Certainty.APPLIED or now - op.updated_at >= _window(
            ask.repeat_window, op
        ):
            continue
        mine = op.principal == ask.principal
        match ask.repeat:
            case "free":
                continue
            case "key" if ask.key is not None:
                continue
            case "join" if mine:
                return Join(op)
            case _:
                return Duplicate(op, mine, keyed=ask.repeat == "key")
    return New(_without_effect(same_intent, ask.principal, now))


def _judge_result(ask: Ask, same_intent: Sequence[Operation]) -> Sameness:
    """A result of a job: one operation that runs, succeeded or found the result gone."""
    for op in same_intent:
        if op.principal == ask.principal and (
            not op.final or op.state in (State.SUCCEEDED, State.EXPIRED)
        ):
            return Join(op)
    return New()


def answered_by(
    earlier: Sequence[Operation],
    now: int,
    *,
    coalesce: int | None,
    last_write: int | None,
    own: Collection[str],
) -> Operation | None:
    """The earlier read that answers an equal one, or None if a request must go out for it.

    `earlier` are the reads of one principal that differ in nothing, newest first; `own` are the
    ids of those whose failure answers the asker. `coalesce` is how old a shared answer may be, ms;
    None where freshness matters. `last_write` is when the account was last written to, as far as
    that may have been applied.
    """
    for op in earlier:
        if coalesce is not None and _shared(op, coalesce, last_write, now):
            return op
        if op.state is State.SUCCEEDED:
            return None  # whatever was read or failed before it is out of date
        if op.state is State.FAILED and op.id in own and now < _retry_at(op):
            return op
    return None


def _shared(op: Operation, coalesce: int, last_write: int | None, now: int) -> bool:
    """Whether the answer that `op` has, or will have, is as good as one asked for now."""
    if op.final:
        if op.state is not State.SUCCEEDED or op.http_at is None:
            return False
        if not 0 <= now - op.http_at < coalesce:
            return False
    elif op.end_asked is not None:
        return False  # its end was asked for: it would not be tried again
    if op.sent_at is None:
        return True  # nothing was read yet
    return last_write is None or last_write < op.sent_at


def _retry_at(op: Operation) -> int:
    stated = (op.failure or {}).get("retry_at")
    return stated if isinstance(stated, int) else 0


def remembered_until(op: Operation, repeat_window: int, key_window: int) -> int:
    """Until when an operation that is over may still meet a repetition of itself, epoch ms.

    `repeat_window` and `key_window` (0 if there is no key) are those of its action, ms.
    """
    begun = op.created_at if op.sent_at is None else op.sent_at
    return max(op.updated_at + _window(repeat_window, op), begun + key_window)


def _window(repeat_window: int, op: Operation) -> int:
    if op.kind is Kind.JOB and op.state is not State.SUCCEEDED:
        return max(LONG_MEMORY, repeat_window)
    return repeat_window


def _without_effect(same_intent: Sequence[Operation], principal: str, now: int) -> Operation | None:
    for op in same_intent:
        if (
            op.principal == principal
            and op.certainty in (Certainty.NOT_SENT, Certainty.NOT_APPLIED)
            and now - op.updated_at < INHERITANCE
        ):
            return op
    return None
