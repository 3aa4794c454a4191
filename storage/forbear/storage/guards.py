"""Triggers that refuse what no statement of ours may do: SQLite's second look at every change."""

from __future__ import annotations

from forbear.storage.schema import BUDGETS, FINAL_STATES

_IDENTITY = (
    *("number", "id", "principal", "provider", "account", "action", "kind", "intent", "key", "ref"),
    *("wire_key", "request_digest", "parent_id", "created_at"),
)
"""What an operation is; it never changes, whatever becomes of it."""

_PRUNED = "coalesce((SELECT max(sequence) FROM prunings), 0)"

GUARDS_SQLITE = (
    *(
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END"
        for table, verb in (
            *((table, "UPDATE") for table in ("events", "checkpoints", "audit_logs", "prunings")),
            *((table, "DELETE") for table in ("audit_logs", "prunings")),
        )
    ),
    "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
    f"WHEN OLD.sequence > {_PRUNED} "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END",
    # The checkpoint that the rest begins at stays, and so do those that say whose signature counts.
    "CREATE TRIGGER checkpoints_no_delete BEFORE DELETE ON checkpoints "
    f"WHEN OLD.sequence >= {_PRUNED} OR OLD.next_key IS NOT NULL "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END",
    "CREATE TRIGGER prunings_are_signed BEFORE INSERT ON prunings "
    "WHEN NOT EXISTS (SELECT 1 FROM checkpoints AS start JOIN events AS told"
    " JOIN checkpoints AS after ON after.sequence = told.sequence"
    " WHERE start.sequence = NEW.sequence AND start.hash = NEW.hash"
    ' AND told.sequence = NEW."row" AND told.sequence > start.sequence'
    " AND json_extract(told.header, '$.code') = 'log_pruned'"
    " AND json_extract(told.header, '$.start.sequence') = start.sequence"
    " AND json_extract(told.header, '$.start.hash') = start.hash) "
    "BEGIN SELECT RAISE(ABORT, 'the audit log is pruned only to a signed checkpoint'); END",
    "CREATE TRIGGER counters_never_fall BEFORE UPDATE ON operations WHEN "
    + " OR ".join(f"NEW.{name}_used < OLD.{name}_used" for name in BUDGETS if name != "attempts")
    + " OR NEW.attempts_used < OLD.attempts_used - 1"
    + " OR (NEW.attempts_used < OLD.attempts_used"
    " AND NEW.transport_failures_used <= OLD.transport_failures_used)"
    " OR NEW.fence < OLD.fence"
    " BEGIN SELECT RAISE(ABORT, 'a counter never falls'); END",
    "CREATE TRIGGER identity_stays BEFORE UPDATE ON operations WHEN "
    + " OR ".join(f'NEW."{name}" IS NOT OLD."{name}"' for name in _IDENTITY)
    + " BEGIN SELECT RAISE(ABORT, 'what an operation is never changes'); END",
    "CREATE TRIGGER ended_stays BEFORE UPDATE OF state ON operations "
    f"WHEN OLD.state IN ({FINAL_STATES}) AND NEW.state <> OLD.state "
    "BEGIN SELECT RAISE(ABORT, 'an operation that is over is over'); END",
    # An unknown outcome alone may take late evidence, and once.
    "CREATE TRIGGER closed_attempts_stay BEFORE UPDATE ON attempts "
    "WHEN OLD.closed_at IS NOT NULL AND (NEW.closed_at IS NOT OLD.closed_at OR "
    "(NEW.outcome IS NOT OLD.outcome AND (OLD.outcome <> 'unknown' OR NOT NEW.late))) "
    "BEGIN SELECT RAISE(ABORT, 'an attempt is closed once'); END",
    "CREATE TRIGGER operations_stay BEFORE DELETE ON operations WHEN OLD.emptied_at IS NULL "
    "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END",
    "CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts WHEN (SELECT emptied_at "
    "FROM operations WHERE id = OLD.operation_id) IS NULL "
    "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END",
    "CREATE TRIGGER only_what_is_over_is_emptied BEFORE UPDATE OF emptied_at ON operations "
    f"WHEN OLD.emptied_at IS NOT NULL OR OLD.state NOT IN ({FINAL_STATES}) "
    "BEGIN SELECT RAISE(ABORT, 'only what is over is emptied, and once'); END",
    "CREATE TRIGGER token_requests_stay BEFORE DELETE ON token_requests WHEN (SELECT emptied_at "
    "FROM operations WHERE id = OLD.operation_id) IS NULL "
    "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END",
)
"""Guards that no statement of ours may trip."""
