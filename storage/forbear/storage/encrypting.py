"""The first data key of a store, and the sealing of what an older program left in plain."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from forbear.storage.dialects import whole
from forbear.storage.schema import data_keys, metadata
from forbear.storage.sealing import EpochKey, Log, new_epoch_key
from forbear.storage.vault import Sealed, SealedJSON, Vault, unlock


def encrypt(connection: Connection, log: Log) -> None:
    """Make the first data key and seal every sealed column with it, in one transaction.

    Does nothing in a store that has one: then nothing of it lies in plain but, where an older
    program wrote it, in pages that are free again. Those are cleaned out here, also where a process
    died before it had done so.
    """
    if connection.execute(sa.select(data_keys.c.number).limit(1)).first() is None:
        _encrypt(connection, log)
    if connection.exec_driver_sql("PRAGMA user_version").scalar_one() == _WRITTEN_PLAIN:
        with suppress(OperationalError):  # the next process that opens the store does it
            connection.exec_driver_sql("VACUUM")
            if connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0] == 0:
                connection.exec_driver_sql(f"PRAGMA user_version={_CLEAN}")


_CLEAN, _WRITTEN_PLAIN = 0, 1
"""Values of `user_version`."""


def _encrypt(connection: Connection, log: Log) -> None:
    with whole(connection):
        key = make_first_key(connection, log)
        unlock(connection.dialect, Vault(lambda: {1: key}))
        if sum(_sealed(connection, table) for table in metadata.sorted_tables):
            connection.exec_driver_sql(f"PRAGMA user_version={_WRITTEN_PLAIN}")


def make_first_key(connection: Connection, log: Log) -> EpochKey:
    """The key that columns are sealed with from the beginning, in a store that has none."""
    made = new_epoch_key()
    first = {"number": 1, "wrapped_key": log.wrapped(made)}
    connection.execute(sa.insert(data_keys), first)
    return EpochKey(made)


def _sealed(connection: Connection, table: sa.Table) -> int:
    """Seal the columns of one table; the number of its rows."""
    columns = [column for column in table.columns if isinstance(column.type, Sealed)]
    if not columns:
        return 0
    key = list(table.primary_key.columns)
    raw = [sa.type_coerce(column, sa.types.NullType()).label(column.name) for column in columns]
    rows = connection.execute(sa.select(*key, *raw)).mappings().all()
    for row in rows:
        values = {
            column.name: _parsed(column, row[column.name])
            for column in columns
            if row[column.name] is not None
        }
        if values:
            one = sa.and_(*(column == row[column.name] for column in key))
            connection.execute(sa.update(table).where(one).values(values))
    return len(rows)


def _parsed(column: sa.Column[Any], value: str | bytes) -> object:
    return json.loads(value) if isinstance(column.type, SealedJSON) else value
