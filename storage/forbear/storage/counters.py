"""Triggers that count what happens, of which SQLite knows by the rows themselves.

They count in the transaction that makes the change, on whatever path it comes, and
retention takes nothing of them: a figure for monitoring never falls. What they mean is told by
`tallies`.
"""

from __future__ import annotations

from forbear.rules.model import FINAL, State
from forbear.storage.tallies import DECISION_BOUNDS, Tally

_FINAL = ", ".join(f"'{state}'" for state in State if state in FINAL)

_DAY = 86_400_000


def _count(tally: Tally, at: str, *labels: str, value: str = "1") -> str:
    return (
        "INSERT INTO tallies (day, name, labels, value) "
        f"VALUES ({at} / {_DAY}, '{tally}', json_array({', '.join(labels)}), {value}) "
        "ON CONFLICT (day, name, labels) DO UPDATE SET value = value + excluded.value; "
    )


_STATUS = (
    "CASE WHEN NEW.status IS NULL THEN 'none' "
    "WHEN NEW.status IN (429, 503) THEN CAST(NEW.status AS TEXT) "
    "ELSE (NEW.status / 100) || 'xx' END"
)
_TOOK = "max(0, NEW.closed_at - NEW.opened_at)"
_BOUND = (
    "CASE "
    + " ".join(f"WHEN {_TOOK} <= {bound * 1_000} THEN '{bound}'" for bound in DECISION_BOUNDS)
    + " ELSE '+Inf' END"
)
_PROVIDER = "(SELECT provider FROM operations WHERE id = NEW.operation_id)"

COUNTERS_SQLITE = (
    "CREATE TRIGGER accepted_is_counted AFTER INSERT ON operations BEGIN "
    + _count(Tally.ACCEPTED, "NEW.created_at", "NEW.provider", "NEW.kind")
    + "END",
    "CREATE TRIGGER ended_is_counted AFTER UPDATE OF state ON operations "
    f"WHEN NEW.state IN ({_FINAL}) AND OLD.state NOT IN ({_FINAL}) BEGIN "
    + _count(Tally.ENDED, "NEW.updated_at", "NEW.provider", "NEW.state")
    + "END",
    "CREATE TRIGGER wait_is_counted AFTER UPDATE OF delay_source ON operations "
    "WHEN NEW.delay_source IS NOT NULL AND NEW.lease_owner IS NULL "
    "AND NEW.next_at IS NOT NULL AND NEW.next_at IS NOT OLD.next_at BEGIN "
    + _count(Tally.WAITS, "NEW.updated_at", "NEW.delay_source")
    + _count(
        Tally.WAIT_MS,
        "NEW.updated_at",
        "NEW.delay_source",
        value="max(0, NEW.next_at - NEW.updated_at)",
    )
    + "END",
    "CREATE TRIGGER request_is_counted AFTER UPDATE OF closed_at ON attempts "
    "WHEN NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL BEGIN "
    + _count(Tally.REQUESTS, "NEW.closed_at", _PROVIDER, "NEW.outcome", _STATUS)
    + "END",
    "CREATE TRIGGER token_request_is_counted AFTER UPDATE OF closed_at ON token_requests "
    "WHEN NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL BEGIN "
    + _count(Tally.TOKEN_REQUESTS, "NEW.closed_at", "NEW.provider", "NEW.outcome", _STATUS)
    + "END",
    "CREATE TRIGGER case_is_counted AFTER INSERT ON cases BEGIN "
    + _count(Tally.CASES, "NEW.opened_at", "NEW.reason")
    + "END",
    "CREATE TRIGGER decision_is_counted AFTER UPDATE OF decision ON cases "
    "WHEN NEW.decision IS NOT NULL AND OLD.decision IS NULL BEGIN "
    + _count(Tally.DECISIONS, "NEW.closed_at", "NEW.reason")
    + _count(Tally.DECISION_TIMES, "NEW.closed_at", _BOUND)
    + _count(Tally.DECISION_MS, "NEW.closed_at", value=_TOOK)
    + "END",
)
"""Counters of what rows tell; what no row tells is counted by `tallies.add`."""
