"""Payloads are sealed at rest: the data keys. What lies in plain is sealed when the keys are read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "data_keys",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("wrapped_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_data_keys")),
    )
