"""Which older programs may still store what came of their requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "compatibility",
        sa.Column("outcomes_from", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("outcomes_from", name=op.f("pk_compatibility")),
    )
    op.execute("INSERT INTO compatibility (outcomes_from) VALUES ('0010')")
