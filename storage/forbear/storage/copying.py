"""A copy of the store's file, taken while others write, and opened to see that it is one."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from forbear.storage.database import BUSY, said
from forbear.storage.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy was found to hold."""

    operations: int
    open_cases: int


def copy(source: Path, target: Path) -> Copied:
    """Copy a store as it stands at one moment into a new file of this user alone, and check it.

    SQLite's online backup reads in one transaction, so writers go on and the copy is of one moment
    (sqlite.org/backup.html). The caller holds the store open: else the end of this reading would
    be the last connection's, which checkpoints without the lock.

    Raises:
        StoreUnavailable: it could not be copied, or the copy is damaged. What was written remains.
        FileExistsError: there is something at `target`.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(sqlite3.connect(source, timeout=BUSY / 1_000)) as read,
            closing(sqlite3.connect(target)) as written,
        ):
            read.execute("PRAGMA query_only=ON")
            read.backup(written)
        with closing(sqlite3.connect(target)) as opened:
            return _checked(opened, target)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{target}: {said(error)}") from error


def _checked(opened: sqlite3.Connection, path: Path) -> Copied:
    [(verdict,)] = opened.execute("PRAGMA integrity_check(1)").fetchall()
    if verdict != "ok":
        raise StoreUnavailable(f"{path}: {verdict}")
    [(operations,)] = opened.execute("SELECT count(*) FROM operations")
    [(cases,)] = opened.execute("SELECT count(*) FROM cases WHERE closed_at IS NULL")
    return Copied(operations, cases)
