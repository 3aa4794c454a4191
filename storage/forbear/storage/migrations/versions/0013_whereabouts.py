"""A store on a server says which database it lies in, so that a copy of it is known as one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "whereabouts",
        sa.Column("database", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("database", name=op.f("pk_whereabouts")),
    )
