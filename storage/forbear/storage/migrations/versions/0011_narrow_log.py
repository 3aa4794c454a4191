"""Rows of the audit log keep only what cannot be told from the rest; older ones stay as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_APPENDED = "the audit trail is only appended to"
_NAMED = "EXISTS (SELECT 1 FROM events WHERE operation = OLD.number)"
_UNSIGNED = (
    "NOT EXISTS (SELECT 1 FROM checkpoints AS start {join} events AS told"
    " JOIN checkpoints AS after ON after.sequence = told.sequence"
    " WHERE start.sequence = NEW.sequence AND start.hash = NEW.hash"
    ' AND told.sequence = NEW."row" AND told.sequence > start.sequence'
    " AND {code} = 'log_pruned' AND {row} = start.sequence AND {hash} = start.hash)"
)
_TOLD = "nullif(told.header, '')"
_REFUSED = "the audit log is pruned only to a signed checkpoint"
_UNSIGNED_SQLITE = _UNSIGNED.format(
    join="JOIN",
    code=f"json_extract({_TOLD}, '$.code')",
    row=f"json_extract({_TOLD}, '$.start.sequence')",
    hash=f"json_extract({_TOLD}, '$.start.hash')",
)
_UNSIGNED_POSTGRESQL = _UNSIGNED.format(
    join="CROSS JOIN",
    code=f"({_TOLD}::json ->> 'code')",
    row=f"({_TOLD}::json -> 'start' ->> 'sequence')::bigint",
    hash=f"({_TOLD}::json -> 'start' ->> 'hash')",
)
_SQLITE = (
    "DROP TRIGGER prunings_are_signed",
    f"CREATE TRIGGER prunings_are_signed BEFORE INSERT ON prunings WHEN {_UNSIGNED_SQLITE} "
    f"BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END",
    "CREATE TRIGGER audit_operations_no_update BEFORE UPDATE ON audit_operations "
    f"BEGIN SELECT RAISE(ABORT, '{_APPENDED}'); END",
    "CREATE TRIGGER audit_operations_no_delete BEFORE DELETE ON audit_operations WHEN "
    f"{_NAMED} BEGIN SELECT RAISE(ABORT, '{_APPENDED}'); END",
)


def _refusing(name: str, when: str, says: str, row: str, verb: str = "CREATE") -> str:
    checks = f"RAISE EXCEPTION '{says}' USING ERRCODE = 'integrity_constraint_violation';"
    checks = f"IF {when} THEN {checks} END IF;" if when else checks
    return (
        f"{verb} FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN {checks} RETURN {row}; END$$"
    )


_POSTGRESQL = (
    _refusing("prunings_are_signed", _UNSIGNED_POSTGRESQL, _REFUSED, "NEW", "CREATE OR REPLACE"),
    _refusing("audit_operations_no_update", "", _APPENDED, "NEW"),
    "CREATE TRIGGER audit_operations_no_update BEFORE UPDATE ON audit_operations "
    "FOR EACH ROW EXECUTE FUNCTION audit_operations_no_update()",
    _refusing("audit_operations_no_delete", _NAMED, _APPENDED, "OLD"),
    "CREATE TRIGGER audit_operations_no_delete BEFORE DELETE ON audit_operations "
    "FOR EACH ROW EXECUTE FUNCTION audit_operations_no_delete()",
)


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit_operations",
        sa.Column("number", number, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_operations")),
        sa.UniqueConstraint("id", name=op.f("uq_audit_operations_id")),
        sqlite_autoincrement=True,
    )
    op.add_column("events", sa.Column("operation", number, nullable=True))
    for name in ("code", "minute", "epoch"):
        op.add_column("events", sa.Column(name, sa.Integer(), nullable=True))
    op.add_column("events", sa.Column("digest", sa.LargeBinary(), nullable=True))
    op.drop_index("ix_events_operation", "events")
    for index, columns in (
        ("ix_events_operation", ["operation_id", "sequence"]),
        ("ix_events_of", ["operation"]),
    ):
        there = sa.text(f"{columns[0]} IS NOT NULL")
        op.create_index(index, "events", columns, sqlite_where=there, postgresql_where=there)
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(sa.text(statement.replace(":", "\\:")))
    # An older program would chain its row to a hash that it does not find.
    op.execute("UPDATE compatibility SET outcomes_from = '0011'")
