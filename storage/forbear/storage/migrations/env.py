"""Alembic's entry: the connection comes from `upgrade`, which also holds the transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
