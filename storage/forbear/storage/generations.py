"""What a program may write into a store that a newer one upgraded while it ran."""

from __future__ import annotations

from enum import Enum, auto

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.storage import schema

compatibility = sa.Table(
    "compatibility",
    schema.metadata,
    sa.Column("outcomes_from", sa.Text, primary_key=True),
)
"""One row: the oldest generation whose programs may still store what came of their requests. A
migration after which they could not do that any more says so here."""


class Terms(Enum):
    """What may be written."""

    ALL = auto()
    OUTCOMES = auto()
    """A newer program upgraded the store: what comes of requests that are out, and no more."""
    NOTHING = auto()
    """The same, and it changed how that is written."""


def terms(connection: Connection) -> Terms:
    """What this program may write now. Asked at the beginning of each batch."""
    generation = connection.exec_driver_sql(_GENERATION).scalar_one()
    if generation <= schema.GENERATION:
        return Terms.ALL
    oldest = connection.exec_driver_sql(_OUTCOMES_FROM).scalar_one()
    return Terms.OUTCOMES if oldest <= schema.GENERATION else Terms.NOTHING


_GENERATION = "SELECT version_num FROM alembic_version"
_OUTCOMES_FROM = "SELECT outcomes_from FROM compatibility"
