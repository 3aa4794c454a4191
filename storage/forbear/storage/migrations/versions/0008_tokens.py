"""Requests for tokens, the slots they hold, and the waits after failed ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column(
        "credentials",
        sa.Column("token_failures", sa.Integer(), server_default="0", nullable=False),
    )
    for name in ("token_failed_at", "token_next_at"):
        op.add_column("credentials", sa.Column(name, sa.BigInteger(), nullable=True))
    for name in ("token_source", "token_note"):
        op.add_column("credentials", sa.Column(name, sa.Text(), nullable=True))
    op.create_table(
        "token_requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("send_by", sa.BigInteger(), nullable=False),
        sa.Column("hold_until", sa.BigInteger(), nullable=False),
        sa.Column("hold_until_boot", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (outcome IS NULL)",
            name=op.f("ck_token_requests_closed_has_outcome"),
        ),
        sa.CheckConstraint(
            "outcome IN ('answered', 'no_answer', 'not_sent', 'unknown')",
            name=op.f("ck_token_requests_outcome"),
        ),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_token_requests_operation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_requests")),
    )
    op.create_index("ix_token_requests_operation", "token_requests", ["operation_id"])
    op.create_index(
        "uq_token_requests_open",
        "token_requests",
        ["provider", "account", "credential"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "token_slots",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("hold_until", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["token_requests.id"], name=op.f("fk_token_slots_request_id")
        ),
        sa.PrimaryKeyConstraint("request_id", "scope", name=op.f("pk_token_slots")),
    )
    op.create_index("ix_token_slots_scope", "token_slots", ["scope", "hold_until"])
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE TRIGGER token_requests_stay BEFORE DELETE ON token_requests WHEN "
            "(SELECT emptied_at FROM operations WHERE id = OLD.operation_id) IS NULL "
            "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END"
        )
