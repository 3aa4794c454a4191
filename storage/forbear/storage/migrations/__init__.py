"""Schema changes, from the first version on. A store is brought up to date when it is opened."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection, generation: str | None, to: str = "head") -> None:
    """Run all migrations from `generation` on, in one transaction, or none of them."""
    del generation  # alembic reads it from the store itself
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        command.upgrade(config, to)
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")
