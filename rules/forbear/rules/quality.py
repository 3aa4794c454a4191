"""How good the waiting was: measures over what was answered, sent and decided."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that left, or may have."""

    operation_id: str
    number: int
    """Of the attempt, counted within its operation."""
    scope: str
    at: int
    """When it was reserved, epoch ms."""
    by_person: bool
    """A person's decision caused it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What an answer said about the next request."""

    operation_id: str
    number: int
    """Of the attempt that was answered."""
    scope: str
    at: int
    """When the answer was stored, epoch ms."""
    minimum: int | None
    """A `Retry-After` in the future, ms."""
    hint: int | None
    """The longest usable poll hint, ms."""
    shared: bool
    """The minimum holds for the whole scope: it came with 429."""
    excused: bool
    """The event names a reason why a hint was not followed as it stood."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """How many pieces of advice were followed."""

    honoured: int = 0
    """Nothing was sent before the time that the provider named."""
    declined: int = 0
    """A hint was not followed, and the event says why, or a person asked sooner."""
    not_honoured: int = 0


def advice(body: Mapping[str, Any], sent: Sent, at: int) -> Advice | None:
    """What the event of an answer (its body) tells of the provider's advice, None if nothing."""
    minimum = body.get("retry_after_ms")
    minimum = minimum if isinstance(minimum, int) and minimum > 0 else None
    hints: Sequence[Mapping[str, Any]] = body.get("hints") or ()
    usable = [hint["ms"] for hint in hints if hint.get("ms") is not None]
    if minimum is None and not hints:
        return None
    return Advice(
        operation_id=sent.operation_id,
        number=sent.number,
        scope=sent.scope,
        at=at,
        minimum=minimum,
        hint=max(usable, default=None),
        shared=body.get("http") == 429,
        excused=bool(body.get("told")) or len(usable) < len(hints),
    )


def guidance(given: Iterable[Advice], requests: Iterable[Sent]) -> Guidance:
    """Judge each piece of advice by what was sent after it."""
    by_scope: defaultdict[str, list[int]] = defaultdict(list)
    by_operation: defaultdict[str, dict[int, Sent]] = defaultdict(dict)
    for one in requests:
        by_scope[one.scope].append(one.at)
        by_operation[one.operation_id][one.number] = one
    for times in by_scope.values():
        times.sort()
    honoured = declined = not_honoured = 0
    for told in given:
        following = by_operation[told.operation_id].get(told.number + 1)
        if told.minimum is not None:
            until = told.at + told.minimum
            broken = following is not None and following.at < until
            if told.shared:
                times = by_scope[told.scope]
                after = bisect_right(times, told.at)
                broken = broken or (after < len(times) and times[after] < until)
            honoured, not_honoured = honoured + (not broken), not_honoured + broken
        elif told.hint is None or (following is not None and following.at < told.at + told.hint):
            excused = told.excused or (following is not None and following.by_person)
            declined, not_honoured = declined + excused, not_honoured + (not excused)
        else:
            honoured += 1
    return Guidance(honoured, declined, not_honoured)


def quantile(values: Iterable[int], share: float) -> int | None:
    """The least value that at least this share of all are within (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
