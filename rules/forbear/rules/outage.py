"""When an outage is one: the circuit of a scope and host (behaviour.md, section 8; R32)."""

from __future__ import annotations

from collections.abc import Sequence

from forbear.rules.backoff import doubled
from forbear.rules.ports import Reply
from forbear.rules.signals import Meaning, Signal

FAILURES = 5
"""So many transport failures and 5xx of all operations together open the circuit.

An answer between them shows that the provider is there: what fails here and there is no outage.
"""

WINDOW = 60_000
"""In so many ms."""

PAGE_AFTER = 900_000
"""How long an outage lasts before a person is told, ms."""

_PROBE_BASE, _PROBE_MAX = 2_000, 120_000

_UNREACHED = frozenset({"dns", "connect", "proxy", "tls"})
"""Faults of a request that was never sent which say that the provider cannot be reached."""


def verdict_on(signal: Signal, reply: Reply) -> bool | None:
    """Whether an attempt reached a provider that works; None if it says nothing about that."""
    match signal.meaning:
        case Meaning.NOT_SENT:
            return False if reply.fault in _UNREACHED else None
        case Meaning.SERVER_ERROR if signal.status == 408:
            return None  # it answered; what it waited for was our request
        case Meaning.NO_ANSWER | Meaning.SERVER_ERROR:
            return False
        case _:
            return True


def recent(failures: Sequence[int], now: int) -> list[int]:
    """The failures that still count, with one more at `now`."""
    counting = [at for at in failures if now - WINDOW < at <= now]
    return [*counting[1 - FAILURES :], now]


def next_probe(probes: int, now: int, u: float) -> int:
    """When the next probe may leave after so many that failed."""
    return now + round(doubled(_PROBE_BASE, probes, _PROBE_MAX) * (0.5 + u / 2))


def let_go(number: int, now: int, spread: int) -> int:
    """When operation `number` goes on after an outage: all of them spread over `spread` ms."""
    return now + number * 7_919 % max(1, spread)
