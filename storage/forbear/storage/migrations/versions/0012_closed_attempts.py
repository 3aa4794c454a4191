"""What a closed attempt needs no more is gone, and digests take half their room."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_DIGESTS = ("intent", "binding", "section", "request_digest")


def upgrade() -> None:
    op.execute("DELETE FROM reservations WHERE hold_until = 0 AND NOT extra")
    if op.get_bind().dialect.name == "sqlite":
        _shorten(op.get_bind())
    # An older program would look for a digest that it does not find.
    op.execute("UPDATE compatibility SET outcomes_from = '0012'")


def _shorten(connection: sa.Connection) -> None:
    """Let SQLite have the bytes of what operations are found by; others are read in both forms."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.create_function("forbear_bytes", 1, _bytes, deterministic=True)
    guard = "SELECT sql FROM sqlite_master WHERE name = 'identity_stays'"
    statement = connection.exec_driver_sql(guard).scalar_one()
    connection.exec_driver_sql("DROP TRIGGER identity_stays")
    changes = ", ".join(f'"{name}" = forbear_bytes("{name}")' for name in _DIGESTS)
    connection.exec_driver_sql(f"UPDATE operations SET {changes}")
    connection.exec_driver_sql(statement)


def _bytes(text: str | bytes) -> str | bytes:
    """As `dialects.Digest` stores it."""
    return bytes.fromhex(text) if isinstance(text, str) and len(text) == 64 else text
