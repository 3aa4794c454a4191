"""The sealed audit log: ciphertext beside plain bodies, its public key, epochs, checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("events", sa.Column("sealed", sa.LargeBinary(), nullable=True))
    op.create_table(
        "audit_logs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_logs")),
    )
    op.create_table(
        "audit_epochs",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("wrapped_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_epochs")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_checkpoints")),
    )
    if op.get_bind().dialect.name == "sqlite":
        for table in ("checkpoints", "audit_logs"):
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END"
                )
