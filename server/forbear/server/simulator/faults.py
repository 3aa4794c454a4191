"""What goes wrong on purpose: `[WHERE:]KIND[:COUNT]`, such as `submit:lost:1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

REQUESTS = ("submit", "status", "result", "cancel", "lookup", "call")


class Fault(StrEnum):
    """Of one request, or of a job as a whole."""

    RATE_LIMITED = "429"
    UNAVAILABLE = "503"
    LOST = "lost"
    DROPPED = "dropped"
    REFUSED = "refused"
    SLOW = "slow"
    STUCK = "stuck"
    FAILS = "fails"
    UNKNOWN_STATE = "unknown-state"
    CONTRADICTORY = "contradictory"
    GONE = "gone"


WHAT: Mapping[Fault, str] = {
    Fault.RATE_LIMITED: "answers 429 with Retry-After, and does nothing",
    Fault.UNAVAILABLE: "answers 503, and does nothing",
    Fault.LOST: "does it, and closes the connection without an answer",
    Fault.DROPPED: "does nothing, and closes the connection without an answer",
    Fault.REFUSED: "answers that it will not do it, and does nothing",
    Fault.SLOW: "does it, and answers seconds later",
    Fault.STUCK: "the job never ends",
    Fault.FAILS: "the job fails",
    Fault.UNKNOWN_STATE: "the job gets a state that the contract does not name",
    Fault.CONTRADICTORY: "the job succeeds without a field that a success needs",
    Fault.GONE: "the job is not found any more",
}

OF_JOBS: Final = frozenset(
    {Fault.STUCK, Fault.FAILS, Fault.UNKNOWN_STATE, Fault.CONTRADICTORY, Fault.GONE}
)
"""Decided when a job is made: the count is one of jobs."""


_COUNT = re.compile(r"\*|\d{1,9}", re.ASCII)


class BadFault(ValueError):
    """A fault that is none; the message says what one looks like."""


@dataclass(slots=True)
class Planned:
    """One fault that has yet to come."""

    fault: Fault
    action: str | None = None
    request: str | None = None
    left: int | None = 1
    """None: every time."""

    def hits(self, action: str, request: str) -> bool:
        here = self.action in (None, action) and self.request in (None, request)
        return here and self.left != 0


@dataclass(slots=True)
class Plan:
    """The faults to come, in the order in which they were asked for."""

    planned: list[Planned] = field(default_factory=list[Planned])

    def next(self, action: str, request: str, *, of_jobs: bool = False) -> Fault | None:
        """The fault that a request meets, or the one of a job that is made now."""
        for one in self.planned:
            if (one.fault in OF_JOBS) is of_jobs and one.hits(action, request):
                if one.left is not None:
                    one.left -= 1
                return one.fault
        return None


def parse(texts: Iterable[str], actions: Iterable[str]) -> Plan:
    """Read faults as they are typed. Raises `BadFault`."""
    known = frozenset(actions)
    return Plan([_parse(text, known) for text in texts])


def _parse(text: str, actions: frozenset[str]) -> Planned:
    parts = text.split(":")
    count: int | None = 1
    if len(parts) > 1 and _COUNT.fullmatch(parts[-1]) and _is_kind(parts[-2]):
        last = parts.pop()
        count = None if last == "*" else int(last)
    if not _is_kind(parts[-1]) or len(parts) > 2 or count == 0:
        kinds = ", ".join(Fault)
        raise BadFault(
            f"{text!r} is no fault; write [WHERE:]KIND[:COUNT], such as submit:lost:1 or fails:*. "
            f"KIND is one of {kinds}"
        )
    fault = Fault(parts[-1])
    action, request = _where(text, parts[0], actions) if len(parts) == 2 else (None, None)
    if fault in OF_JOBS:
        if request not in (None, "status", "submit"):
            raise BadFault(f"{text!r}: {fault} is about a job; leave {request} out")
        return Planned(fault, action, None, count)
    return Planned(fault, action, request, count)


def _is_kind(text: str) -> bool:
    return text in set(Fault)


def _where(text: str, place: str, actions: frozenset[str]) -> tuple[str | None, str | None]:
    """`submit`, `export` or `export.submit`."""
    if place in REQUESTS and place not in actions:
        return None, place
    action, dot, request = place.partition(".")
    if action in actions and (not dot or request in REQUESTS):
        return action, request or None
    raise BadFault(
        f"{text!r}: {place!r} is no request and no action; write one of {', '.join(REQUESTS)}, "
        f"or {', '.join(sorted(actions))}, or both as in {min(actions, default='export')}.submit"
    )
