"""What a program may write into a store that a newer one upgraded while it ran."""

from __future__ import annotations

from enum import Enum, auto

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.storage import schema
from forbear.storage.statements import Statement

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
    generation = _GENERATION.scalar(connection)
    if generation <= schema.GENERATION:
        return Terms.ALL
    oldest = _OUTCOMES_FROM.scalar(connection)
    return Terms.OUTCOMES if oldest <= schema.GENERATION else Terms.NOTHING


_GENERATION = Statement(
    sa.select(sa.column("version_num", sa.Text)).select_from(sa.table("alembic_version"))
)
_OUTCOMES_FROM = Statement(sa.select(compatibility.c.outcomes_from))
