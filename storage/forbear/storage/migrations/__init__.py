"""Schema changes, from the first version on. A store is brought up to date when it is opened.

On PostgreSQL a store begins with the schema as it was when PostgreSQL came (`baseline`), and goes
on from there by the same migrations as any other.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from forbear.storage.dialects import whole


def upgrade(connection: Connection, generation: str | None, to: str = "head") -> None:
    """Run all migrations from `generation` on, in one transaction, or none of them."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    with whole(connection):
        if generation is None and connection.dialect.name == "postgresql":
            from forbear.storage.migrations import baseline

            for statement in baseline.STATEMENTS:
                connection.exec_driver_sql(statement)
            command.stamp(config, baseline.GENERATION)
        command.upgrade(config, to)
