"""Indexes for long queues: who is ready in one, what was written last, which requests repeat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

LIVE = "state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')"


def upgrade() -> None:
    op.create_index(
        "ix_waits_ready",
        "waits",
        ["scope", "rank", "principal", "task", "number"],
        unique=False,
        sqlite_where=sa.text("parked = 0"),
        postgresql_where=sa.text("NOT parked"),
    )
    op.create_index(
        "ix_operations_written",
        "operations",
        ["updated_at"],
        unique=False,
        sqlite_where=sa.text(LIVE),
        postgresql_where=sa.text(LIVE),
    )
    op.drop_index("ix_reservations_extra", "reservations")
    op.create_index(
        "ix_reservations_extra",
        "reservations",
        ["scope", "reserved_at"],
        unique=False,
        sqlite_where=sa.text("extra = 1"),
        postgresql_where=sa.text("extra"),
    )
