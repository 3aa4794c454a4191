"""The high-water mark: how far a store has come, kept beside the store and not in it.

After each commit the head of the audit log is written into `NAME.mark`, for a file under the lock
of the store. Whoever then puts an older file in the place of the store's, or copies both elsewhere,
has a store that the mark is not of. Nothing is synced for it: a mark that lags after a power loss
is of an earlier row of the same log, which proves nothing against the store. It is never ahead of
what is durable.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from forbear.storage import files
from forbear.storage.sealing import GENESIS

SINCE = "0010"
"""The first generation of a store whose program keeps a mark."""

_SIZE = 256
"""Bytes of a mark, fixed, inside one sector: a power loss leaves the old one or the new one."""

_HASH = "CASE WHEN digest IS NULL THEN hash ELSE lower(hex(digest)) END"
"""The hash of a row of the log."""

_MACHINE_ID = Path("/etc/machine-id")
_CONTAINER = (Path("/.dockerenv"), Path("/run/.containerenv"))


@dataclass(frozen=True, slots=True)
class Head:
    """The last row of an audit log. Its hash covers all rows before it."""

    sequence: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Marked:
    """What a mark says."""

    head: Head
    file: str = "-"
    """Inode number and time of birth of the store: a copy of a file is another file."""
    machine: str | None = None


class MarkFile:
    """Where a mark is kept. A file that cannot be read, or is no mark, counts as none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def read(self) -> Marked | None:
        try:
            words = files.read_start(self._opened(create=False), _SIZE).decode("ascii").split()
            name, sequence, row, file, known = words
            head = Head(int(sequence), row)
        except (OSError, ValueError):
            return None
        if name != "forbear-mark-1":
            return None
        return Marked(head, file, None if known == "-" else known)

    def write(self, marked: Marked) -> None:
        """Raises OSError: the mark stays as it was."""
        head = marked.head
        words = f"forbear-mark-1 {head.sequence} {head.hash} {marked.file} {marked.machine or '-'}"
        files.write_start(self._opened(), words.ljust(_SIZE - 1).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self, *, create: bool = True) -> int:
        """The file, opened anew where somebody took it away."""
        if self._descriptor is not None and not files.is_linked(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._descriptor = files.open_private(self.path, create=create)
        return self._descriptor


def behind(marked: Head, found: str | None, first: int | None, last: int | None) -> str | None:
    """Why a log is not the one that was at `marked`; None if it may be.

    `found` is the hash of its row of that number, `first` and `last` its first and last row.
    """
    if (last or 0) < marked.sequence:
        return f"it ends at row {last or 0} of its audit log and was at row {marked.sequence}"
    pruned = found is None and marked.sequence < (first or 0)
    if marked.sequence == 0 or pruned or found == marked.hash:
        return None
    return f"row {marked.sequence} of its audit log is another one than it was"


class Mark:
    """The mark of the store at `path`. Every method runs under the lock of the store."""

    def __init__(self, path: Path) -> None:
        self.store = path
        self._kept = MarkFile(path.with_name(path.name + ".mark"))
        self.path = self._kept.path
        self._inode = path.stat().st_ino
        self._file = f"{self._inode}.{_born(path)}"
        self._machine = machine()

    def begin(self) -> None:
        """Make the mark of a store that has none because nothing wrote one so far."""
        if not self.path.exists():
            self.set(Head())

    def doubt(self, connection: Connection) -> str | None:
        """Why this store may not be the one that its mark is of; None if it is.

        A store in which nothing ever happened is a new one, wherever it comes from.
        """
        kept = self._kept.read()
        if self.head(connection) == (Head() if kept is None else kept.head) == Head():
            return None
        if kept is None:
            return f"it has no high-water mark ({self.path.name}), as a restored backup has none"
        if self._machine is not None and kept.machine not in (None, self._machine):
            return "it was last used on another machine"
        if not _same_file(kept.file, self._file):
            return "it is a copy of another file"
        return self._behind(connection, kept.head)

    def check(self, connection: Connection) -> str | None:
        """Why the file that this process writes is no longer its store; cheap, for each batch."""
        try:
            moved = self.store.stat().st_ino != self._inode
        except OSError:
            moved = True
        if moved:
            return "another file is in its place"
        kept = self._kept.read()
        return None if kept is None else self._behind(connection, kept.head)

    def set(self, head: Head) -> None:
        """Write that the store has come to `head`, which is durable.

        Raises:
            OSError: the mark stays where it was.
        """
        kept = self._kept.read()
        known = kept.machine if kept is not None and self._machine is None else self._machine
        self._kept.write(Marked(head, self._file, known))

    def close(self) -> None:
        self._kept.close()

    @staticmethod
    def head(connection: Connection) -> Head:
        """How far the store has come."""
        query = f"SELECT sequence, {_HASH} FROM events ORDER BY sequence DESC LIMIT 1"
        row = _driver(connection).execute(query).fetchone()
        return Head() if row is None else Head(*row)

    @staticmethod
    def _behind(connection: Connection, marked: Head) -> str | None:
        query = (
            f"SELECT (SELECT {_HASH} FROM events WHERE sequence = ?), "
            "(SELECT min(sequence) FROM events), (SELECT max(sequence) FROM events)"
        )
        return behind(marked, *_driver(connection).execute(query, (marked.sequence,)).fetchone())


def _same_file(one: str, other: str) -> bool:
    """Whether two files are one, as far as both file systems told when it was born.

    An inode number alone is given to another file soon after one was deleted.
    """
    (inode, born), (other_inode, other_born) = one.split("."), other.split(".")
    return inode == other_inode and (born == other_born or "0" in (born, other_born))


def _born(path: Path) -> int:
    """When a file was made, ns; no copy and no restored archive keeps that. 0: nobody knows."""
    born = getattr(path.stat(), "st_birthtime", None)
    if isinstance(born, float):
        return int(born * 1_000_000_000)
    if sys.platform == "win32":  # has st_birthtime
        return 0
    buffer = ctypes.create_string_buffer(256)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return 0
    told: int = struct.unpack_from("I", buffer)[0]
    seconds, nanoseconds = struct.unpack_from("qI", buffer, _BTIME)
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if told & _STATX_BTIME else 0


_AT_FDCWD, _STATX_BTIME, _BTIME = -100, 0x800, 80
"""As statx(2) of Linux has them, and where the time of birth lies in what it writes."""


def machine() -> str | None:
    """What names this machine across restarts; None where nothing does, as in a container.

    A container's image may bring an id of its own and its host name is new with each start. What
    lies on a volume is the same files wherever it is attached.
    """
    contained = "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ
    if contained or any(path.exists() for path in _CONTAINER):
        return None
    with suppress(OSError, UnicodeDecodeError):
        found = _MACHINE_ID.read_text("ascii").strip()
        return found if found.isalnum() else None
    return None


def _driver(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw
