"""Scopes that are shared for real: reservations, queues with turns, circuits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "circuits",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("failures", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("open_since", sa.BigInteger(), nullable=True),
        sa.Column("probe_at", sa.BigInteger(), nullable=True),
        sa.Column("probes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("page_at", sa.BigInteger(), nullable=True),
        sa.Column("case_id", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "host", name=op.f("pk_circuits")),
    )
    op.create_table(
        "task_turns",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "rank", "principal", "task", name=op.f("pk_task_turns")),
    )
    op.create_index(
        "ix_task_turns_next", "task_turns", ["scope", "rank", "principal", "turn"], unique=True
    )
    op.create_table(
        "turns",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "rank", "principal", name=op.f("pk_turns")),
    )
    op.create_index("ix_turns_next", "turns", ["scope", "rank", "turn"], unique=True)
    op.create_table(
        "waits",
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parked", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_waits_operation_id")
        ),
        sa.PrimaryKeyConstraint("operation_id", "scope", name=op.f("pk_waits")),
    )
    op.create_index(
        "ix_waits_queue", "waits", ["scope", "rank", "principal", "task", "number"], unique=False
    )
    op.create_table(
        "reservations",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("hold_until", sa.BigInteger(), nullable=False),
        sa.Column("extra", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_reservations_attempt_id")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "scope", name=op.f("pk_reservations")),
    )
    op.create_index(
        "ix_reservations_extra",
        "reservations",
        ["scope", "reserved_at"],
        unique=False,
        sqlite_where=sa.text("extra"),
        postgresql_where=sa.text("extra"),
    )
    op.create_index("ix_reservations_slots", "reservations", ["scope", "hold_until"], unique=False)
    op.drop_index(
        op.f("ix_attempts_scope_open"),
        table_name="attempts",
        sqlite_where=sa.text("closed_at IS NULL"),
    )
    op.drop_index(
        op.f("ix_operations_queue"),
        table_name="operations",
        sqlite_where=sa.text("waiting_for IS NOT NULL"),
    )
    op.create_index(
        "ix_operations_unsent",
        "operations",
        ["provider", "account", "action"],
        unique=False,
        sqlite_where=sa.text("step = 'send' AND state IN ('queued', 'delayed')"),
        postgresql_where=sa.text("step = 'send' AND state IN ('queued', 'delayed')"),
    )
    op.create_index(
        "ix_operations_walk",
        "operations",
        ["principal", "provider", "action", "created_at"],
        unique=False,
        sqlite_where=sa.text("kind = 'call' AND request_class = 'read'"),
        postgresql_where=sa.text("kind = 'call' AND request_class = 'read'"),
    )
    op.create_index(
        "ix_operations_writes",
        "operations",
        ["provider", "account", "updated_at"],
        unique=False,
        sqlite_where=sa.text("request_class <> 'read'"),
        postgresql_where=sa.text("request_class <> 'read'"),
    )
    op.add_column("requests", sa.Column("credential", sa.Text(), nullable=True))
    op.add_column(
        "scopes",
        sa.Column("background_arrival", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.add_column("scopes", sa.Column("slowed", sa.Integer(), server_default="0", nullable=False))
    op.add_column(
        "scopes", sa.Column("slowed_at", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column("cases", sa.Column("about", sa.Text(), nullable=True))
    op.add_column("scopes", sa.Column("exhausted_case", sa.Text(), nullable=True))
    op.add_column("scopes", sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False))
    # What is out while the store is upgraded goes on occupying its slot.
    op.execute(
        "INSERT INTO reservations (attempt_id, scope, reserved_at, hold_until, extra) "
        "SELECT id, scope, reserved_at, hold_until, false FROM attempts WHERE closed_at IS NULL"
    )
