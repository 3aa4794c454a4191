"""When people are told of an open case again, and when its contract ends it (requirement E13).

Silence never approves: all that time does to a case is to be told of again, on a list that ends,
and to be abandoned where the contract states after how long.
"""

from __future__ import annotations

from collections.abc import Sequence

from forbear.rules.breaker import WINDOW
from forbear.rules.contract import Contract
from forbear.rules.model import Case, Reason

USUAL = (3_600_000, 86_400_000, 3 * 86_400_000)
"""When a case is told of again where no contract says it, ms after it was opened."""

TRIES = 5
"""So often one telling is sent to a place that does not take it; then the next reminder comes."""

_BETWEEN = (30_000, 120_000, 300_000, 900_000)
"""Time between two tries of one telling, ms."""

_ENDS_ITSELF = frozenset({Reason.PROVIDER_UNREACHABLE, Reason.REPEATED_FAILURE})
"""Cases that end with what they tell of; nobody has to give anything up."""


def schedule(contract: Contract | None) -> Sequence[int]:
    """The reminders of a contract, ms after a case was opened."""
    return USUAL if contract is None else contract.remind


def next_reminder(remind: Sequence[int], opened_at: int, told: int, now: int) -> int | None:
    """When people are told again who were told `told` times; None once the list is over.

    The first telling is that of the opening itself. What was slept through is not made up for.
    """
    ahead = (opened_at + after for after in remind[max(0, told - 1) :])
    return next((at for at in ahead if at > now), None)


def next_try(tries: int, now: int) -> int | None:
    """When a telling is sent again that was tried so often; None if it was tried enough."""
    return now + _BETWEEN[tries - 1] if 0 < tries < TRIES else None


def abandoned_at(contract: Contract | None, reason: Reason, opened_at: int) -> int | None:
    """When the contract ends a case that nobody decided; None if it never does."""
    if contract is None or contract.abandon_after is None or reason in _ENDS_ITSELF:
        return None
    return opened_at + contract.abandon_after


def is_due(case: Case, contract: Contract | None, now: int) -> bool:
    """Whether an open case may have to be told of, or may end by rule."""
    if case.announce_at is not None and case.announce_at <= now:
        return True
    if case.reason is Reason.REPEATED_FAILURE:
        return now >= case.opened_at + WINDOW
    ends = abandoned_at(contract, case.reason, case.opened_at)
    return ends is not None and ends <= now
