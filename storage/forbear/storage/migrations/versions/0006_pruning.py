"""The audit log can be pruned, its signing key changed, and its epochs have an age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_PRUNED = "coalesce((SELECT max(sequence) FROM prunings), 0)"
_APPENDED = "BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END"


def upgrade() -> None:
    op.add_column(
        "audit_epochs", sa.Column("since", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column(
        "audit_epochs", sa.Column("first", sa.Integer(), nullable=False, server_default="1")
    )
    op.add_column("checkpoints", sa.Column("next_key", sa.Text(), nullable=True))
    op.create_index("ix_checkpoints_sequence", "checkpoints", ["sequence"])
    named = sa.text("next_key IS NOT NULL")
    op.create_index(
        "ix_checkpoints_next_key",
        "checkpoints",
        ["number"],
        sqlite_where=named,
        postgresql_where=named,
    )
    op.create_table(
        "prunings",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_prunings")),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER events_no_delete")
        op.execute("DROP TRIGGER checkpoints_no_delete")
        for statement in (
            f"CREATE TRIGGER prunings_no_update BEFORE UPDATE ON prunings {_APPENDED}",
            f"CREATE TRIGGER prunings_no_delete BEFORE DELETE ON prunings {_APPENDED}",
            "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
            f"WHEN OLD.sequence > {_PRUNED} {_APPENDED}",
            "CREATE TRIGGER checkpoints_no_delete BEFORE DELETE ON checkpoints "
            f"WHEN OLD.sequence >= {_PRUNED} OR OLD.next_key IS NOT NULL {_APPENDED}",
            "CREATE TRIGGER prunings_are_signed BEFORE INSERT ON prunings "
            "WHEN NOT EXISTS (SELECT 1 FROM checkpoints AS start JOIN events AS told"
            " JOIN checkpoints AS after ON after.sequence = told.sequence"
            " WHERE start.sequence = NEW.sequence AND start.hash = NEW.hash"
            ' AND told.sequence = NEW."row" AND told.sequence > start.sequence'
            " AND json_extract(told.header, '$.code') = 'log_pruned'"
            " AND json_extract(told.header, '$.start.sequence') = start.sequence"
            " AND json_extract(told.header, '$.start.hash') = start.hash) "
            "BEGIN SELECT RAISE(ABORT, 'the audit log is pruned only to a signed checkpoint'); END",
        ):
            op.execute(statement)
