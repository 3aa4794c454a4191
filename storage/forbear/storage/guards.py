"""Triggers that refuse what no statement of ours may do: the store looks twice at every change."""

from __future__ import annotations

from forbear.storage.schema import BUDGETS, FINAL_STATES
from forbear.storage.triggers import POSTGRESQL, SQLITE, Spelling

_IDENTITY = (
    *("number", "id", "principal", "provider", "account", "action", "kind", "intent", "key", "ref"),
    *("wire_key", "request_digest", "parent_id", "created_at"),
)
"""What an operation is; it never changes, whatever becomes of it."""

_PRUNED = "coalesce((SELECT max(sequence) FROM prunings), 0)"
_APPENDED = "the audit trail is only appended to"
_STAYS = "a row that counts requests stays"
_EMPTIED = "(SELECT emptied_at FROM operations WHERE id = OLD.operation_id) IS NULL"


def _guards(spelled: Spelling) -> tuple[str, ...]:
    told = "nullif(told.header, '')"
    guards = (
        *(
            (f"{table}_no_{verb.lower()}", verb, table, "", _APPENDED)
            for table, verb in (
                *((one, "UPDATE") for one in ("events", "checkpoints", "audit_logs", "prunings")),
                ("audit_operations", "UPDATE"),
                *((one, "DELETE") for one in ("audit_logs", "prunings")),
            )
        ),
        ("events_no_delete", "DELETE", "events", f"OLD.sequence > {_PRUNED}", _APPENDED),
        (
            "audit_operations_no_delete",
            "DELETE",
            "audit_operations",
            "EXISTS (SELECT 1 FROM events WHERE operation = OLD.number)",
            _APPENDED,
        ),
        # The checkpoint that the rest begins at stays, and so do those that say whose signature
        # counts.
        (
            "checkpoints_no_delete",
            "DELETE",
            "checkpoints",
            f"OLD.sequence >= {_PRUNED} OR OLD.next_key IS NOT NULL",
            _APPENDED,
        ),
        (
            "prunings_are_signed",
            "INSERT",
            "prunings",
            f"NOT EXISTS (SELECT 1 FROM checkpoints AS start {spelled.each} events AS told"
            " JOIN checkpoints AS after ON after.sequence = told.sequence"
            " WHERE start.sequence = NEW.sequence AND start.hash = NEW.hash"
            ' AND told.sequence = NEW."row" AND told.sequence > start.sequence'
            f" AND {spelled.field(told, 'code')} = 'log_pruned'"
            f" AND {spelled.number(spelled.field(told, 'start', 'sequence'))} = start.sequence"
            f" AND {spelled.field(told, 'start', 'hash')} = start.hash)",
            "the audit log is pruned only to a signed checkpoint",
        ),
        (
            "counters_never_fall",
            "UPDATE",
            "operations",
            " OR ".join(
                f"NEW.{name}_used < OLD.{name}_used" for name in BUDGETS if name != "attempts"
            )
            + " OR NEW.attempts_used < OLD.attempts_used - 1"
            " OR (NEW.attempts_used < OLD.attempts_used"
            " AND NEW.transport_failures_used <= OLD.transport_failures_used)"
            " OR NEW.fence < OLD.fence",
            "a counter never falls",
        ),
        (
            "identity_stays",
            "UPDATE",
            "operations",
            " OR ".join(f'NEW."{name}" {spelled.differs} OLD."{name}"' for name in _IDENTITY),
            "what an operation is never changes",
        ),
        (
            "ended_stays",
            "UPDATE OF state",
            "operations",
            f"OLD.state IN ({FINAL_STATES}) AND NEW.state <> OLD.state",
            "an operation that is over is over",
        ),
        # An unknown outcome alone may take late evidence, and once.
        (
            "closed_attempts_stay",
            "UPDATE",
            "attempts",
            f"OLD.closed_at IS NOT NULL AND (NEW.closed_at {spelled.differs} OLD.closed_at OR "
            f"(NEW.outcome {spelled.differs} OLD.outcome"
            " AND (OLD.outcome <> 'unknown' OR NOT NEW.late)))",
            "an attempt is closed once",
        ),
        ("operations_stay", "DELETE", "operations", "OLD.emptied_at IS NULL", _STAYS),
        ("attempts_stay", "DELETE", "attempts", _EMPTIED, _STAYS),
        (
            "only_what_is_over_is_emptied",
            "UPDATE OF emptied_at",
            "operations",
            f"OLD.emptied_at IS NOT NULL OR OLD.state NOT IN ({FINAL_STATES})",
            "only what is over is emptied, and once",
        ),
        ("token_requests_stay", "DELETE", "token_requests", _EMPTIED, _STAYS),
    )
    return tuple(statement for guard in guards for statement in spelled.refusing(*guard))


GUARDS_SQLITE = _guards(SQLITE)
GUARDS_POSTGRESQL = _guards(POSTGRESQL)
"""Guards that no statement of ours may trip."""
