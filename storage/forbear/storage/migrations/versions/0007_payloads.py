"""Payloads are sealed at rest, and go when they were kept long enough.

What lies in plain is sealed when the store is opened with its keys.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

FINAL = "'succeeded', 'failed', 'cancelled', 'expired', 'discarded'"


def upgrade() -> None:
    op.create_table(
        "data_keys",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("wrapped_key", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_data_keys")),
    )
    op.add_column("operations", sa.Column("emptied_at", sa.BigInteger(), nullable=True))
    full = sa.text(f"state IN ({FINAL}) AND emptied_at IS NULL")
    emptied = sa.text("emptied_at IS NOT NULL")
    for name, where in (("ix_operations_kept", full), ("ix_operations_emptied", emptied)):
        op.create_index(
            name,
            "operations",
            ["provider", "updated_at"],
            sqlite_where=where,
            postgresql_where=where,
        )
    if op.get_bind().dialect.name == "sqlite":
        for table in ("operations", "attempts"):
            op.execute(f"DROP TRIGGER {table}_stay")
        op.execute(
            "CREATE TRIGGER operations_stay BEFORE DELETE ON operations "
            "WHEN OLD.emptied_at IS NULL "
            "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END"
        )
        op.execute(
            "CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts WHEN (SELECT emptied_at "
            "FROM operations WHERE id = OLD.operation_id) IS NULL "
            "BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END"
        )
        op.execute(
            "CREATE TRIGGER only_what_is_over_is_emptied BEFORE UPDATE OF emptied_at ON operations "
            f"WHEN OLD.emptied_at IS NOT NULL OR OLD.state NOT IN ({FINAL}) "
            "BEGIN SELECT RAISE(ABORT, 'only what is over is emptied, and once'); END"
        )
