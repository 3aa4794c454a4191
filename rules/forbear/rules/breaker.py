"""The failure breaker: the same request that failed the same way is not tried a fourth time.

It works on what the store knows of one intent of one principal, so neither a new task name nor
reordered arguments go past it (behaviour.md, section 8). A changed request is another intent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forbear.rules.model import Certainty, Operation, RequestClass, State

FORGIVEN = "forgiven_by"
"""In the failure of an operation: the case in which a person let the same be tried again."""

IDENTICAL = 3
"""So many identical failures open it."""

WINDOW = 600_000
"""In so many ms; and for so long it stays open."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """The breaker is open: nothing is stored or sent before `until`, or while a probe is out."""

    operation: Operation
    """The newest of the failures."""
    code: str | None
    times: int
    until: int
    """When it lets one attempt go, or when the one that it let go is over at the latest."""


def tripped(same_intent: Sequence[Operation], principal: str, now: int) -> Tripped | None:
    """Whether the breaker is open for an intent, whose operations are given in any order.

    After its time one attempt goes out, and no other beside it; if that fails the same way it is
    open again at once.
    """
    mine = [op for op in same_intent if op.principal == principal]
    streak: list[Operation] = []
    open_until = 0
    ended = (op for op in mine if op.final)
    for op in sorted(ended, key=lambda op: (op.updated_at, op.number)):
        if not _failed(op) or FORGIVEN in (op.failure or {}):
            streak, open_until = [], 0
            continue
        if streak and _code(op) != _code(streak[-1]):
            streak, open_until = [], 0
        streak.append(op)
        recent = [one for one in streak if op.updated_at - one.updated_at < WINDOW]
        if open_until or len(recent) >= IDENTICAL:
            open_until = op.updated_at + WINDOW
    if open_until:
        open_until = max([open_until, *(op.deadline_at for op in mine if not op.final)])
    if now >= open_until:
        return None
    return Tripped(streak[-1], _code(streak[-1]), len(streak), open_until)


def _failed(op: Operation) -> bool:
    """A definite failure. What may have been applied is another question, asked elsewhere."""
    known = op.certainty is Certainty.NOT_APPLIED or op.request_class is RequestClass.READ
    return op.state is State.FAILED and known and _code(op) is not None


def _code(op: Operation) -> str | None:
    """The normalised error: the provider's code, else the status."""
    failure = op.failure or {}
    code = failure.get("code", failure.get("http_status"))
    return None if code is None else str(code)
