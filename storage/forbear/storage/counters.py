"""Triggers that count what happens, as the rows themselves tell it.

They count in the transaction that makes the change, on whatever path it comes, and
retention takes nothing of them: a figure for monitoring never falls. What they mean is told by
`tallies`.
"""

from __future__ import annotations

from forbear.rules.model import FINAL, State
from forbear.storage.tallies import DECISION_BOUNDS, Tally
from forbear.storage.triggers import POSTGRESQL, SQLITE, Spelling

_FINAL = ", ".join(f"'{state}'" for state in State if state in FINAL)

_DAY = 86_400_000


_STATUS = (
    "CASE WHEN NEW.status IS NULL THEN 'none' "
    "WHEN NEW.status IN (429, 503) THEN CAST(NEW.status AS TEXT) "
    "ELSE (NEW.status / 100) || 'xx' END"
)
_PROVIDER = "(SELECT provider FROM operations WHERE id = NEW.operation_id)"


def _counters(spelled: Spelling) -> tuple[str, ...]:
    def count(tally: Tally, at: str, *labels: str, value: str = "1") -> str:
        return (
            "INSERT INTO tallies (day, name, labels, value) "
            f"VALUES ({at} / {_DAY}, '{tally}', {spelled.array(labels)}, {value}) "
            "ON CONFLICT (day, name, labels) DO UPDATE "
            f"SET value = {spelled.grown} + excluded.value; "
        )

    took = f"{spelled.most}(0, NEW.closed_at - NEW.opened_at)"
    bounds = " ".join(f"WHEN {took} <= {bound * 1_000} THEN '{bound}'" for bound in DECISION_BOUNDS)
    bound = f"CASE {bounds} ELSE '+Inf' END"
    closes = "NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL"
    counters = (
        (
            "accepted_is_counted",
            "INSERT",
            "operations",
            "",
            count(Tally.ACCEPTED, "NEW.created_at", "NEW.provider", "NEW.kind"),
        ),
        (
            "ended_is_counted",
            "UPDATE OF state",
            "operations",
            f"NEW.state IN ({_FINAL}) AND OLD.state NOT IN ({_FINAL})",
            count(Tally.ENDED, "NEW.updated_at", "NEW.provider", "NEW.state"),
        ),
        (
            "wait_is_counted",
            "UPDATE OF delay_source",
            "operations",
            "NEW.delay_source IS NOT NULL AND NEW.lease_owner IS NULL "
            f"AND NEW.next_at IS NOT NULL AND NEW.next_at {spelled.differs} OLD.next_at",
            count(Tally.WAITS, "NEW.updated_at", "NEW.delay_source")
            + count(
                Tally.WAIT_MS,
                "NEW.updated_at",
                "NEW.delay_source",
                value=f"{spelled.most}(0, NEW.next_at - NEW.updated_at)",
            ),
        ),
        (
            "request_is_counted",
            "UPDATE OF closed_at",
            "attempts",
            closes,
            count(Tally.REQUESTS, "NEW.closed_at", _PROVIDER, "NEW.outcome", _STATUS),
        ),
        (
            "token_request_is_counted",
            "UPDATE OF closed_at",
            "token_requests",
            closes,
            count(Tally.TOKEN_REQUESTS, "NEW.closed_at", "NEW.provider", "NEW.outcome", _STATUS),
        ),
        (
            "case_is_counted",
            "INSERT",
            "cases",
            "",
            count(Tally.CASES, "NEW.opened_at", "NEW.reason"),
        ),
        (
            "decision_is_counted",
            "UPDATE OF decision",
            "cases",
            "NEW.decision IS NOT NULL AND OLD.decision IS NULL",
            count(Tally.DECISIONS, "NEW.closed_at", "NEW.reason")
            + count(Tally.DECISION_TIMES, "NEW.closed_at", bound)
            + count(Tally.DECISION_MS, "NEW.closed_at", value=took),
        ),
    )
    return tuple(statement for counter in counters for statement in spelled.counting(*counter))


COUNTERS_SQLITE = _counters(SQLITE)
COUNTERS_POSTGRESQL = _counters(POSTGRESQL)
"""Counters of what rows tell; what no row tells is counted by `tallies.add`."""
