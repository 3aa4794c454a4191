"""Whether an audit log is whole: from a file alone, on any machine, with no key.

The file is a store or an export of its log. An export is JSON Lines: one line that names the log
and its public key, one line for each row and each checkpoint in the order of the log, and one last
line with the head. What is proven, and what needs a head that was kept elsewhere, stands in
`docs/audit.md`.
"""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from forbear.storage.audit import SIGNED_AT_ONCE, SIGNED_EVERY, Code, hash_of, header_text
from forbear.storage.errors import StoreUnavailable
from forbear.storage.sealing import (
    FORMAT,
    GENESIS,
    PLAIN,
    WIDE,
    Checkpoint,
    log_id,
    mark,
    plain_hash,
    sealed_hash,
)

if TYPE_CHECKING:
    from forbear.storage.looking import Look

_SQLITE = b"SQLite format 3\0"
_AT_ONCE = frozenset(str(code) for code in SIGNED_AT_ONCE)
_STEP = 10_000
"""Rows between two tellings of progress."""


class Row(NamedTuple):
    """A row with all that it says, wherever it is from."""

    sequence: int
    header: str
    body: str
    sealed: bytes | None
    previous: str
    hash: str
    operation_id: str | None


Item = Row | Checkpoint


@dataclass(frozen=True, slots=True)
class Head:
    """One point of a log: a line to keep where whoever could change the log cannot reach."""

    log: str
    sequence: int
    hash: str

    def __str__(self) -> str:
        return f"{self.log}:{self.sequence}:{self.hash}"

    @staticmethod
    def parse(text: str) -> Head:
        """Raises ValueError: `text` is no head."""
        log, sequence, row = text.strip().split(":")
        if not log.startswith("log_") or len(row) != len(GENESIS):
            raise ValueError(text)
        return Head(log, int(sequence), row)


@dataclass(frozen=True, slots=True)
class Broken:
    """The first row that is not as it was written, and why."""

    row: int | None
    """None if it is another log altogether."""
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What can be said of a log without its keys."""

    head: Head
    """The last row that follows from the one before it."""
    signed: int
    """The last row under a checkpoint. What lies after it needs a head from elsewhere."""
    plain: int
    """The last row that is older than sealing, 0 if there is none; anybody can read those."""
    start: int
    """The log begins after this row; what was before was deleted, as a signed row of it says."""
    keys: int
    """How many signing keys it had, each named by a checkpoint under the one before."""
    told: bool
    """Whether the head that was expected is one that the log was at. False if it lies in the part
    that was deleted: only an export of that part can tell."""
    broken: Broken | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The log in a file."""

    public_key: str | None
    """None in a store that is older than signing."""
    rows: int | None
    """How many rows there are, where the file tells."""
    tells_operations: bool
    """Whether rows stand beside the ids of their operations; in an export they do not."""
    items: Iterator[Item]
    """Rows and checkpoints, each after the row that it signs."""

    @property
    def log(self) -> str:
        return "log_unsigned" if self.public_key is None else log_id(self.public_key)


class _Break(Exception):
    def __init__(self, row: int | None, why: str) -> None:
        super().__init__(why)
        self.broken = Broken(row, why)


# --- verifying ------------------------------------------------------------------------------


def verify(
    evidence: Evidence,
    expected: Head | None = None,
    tell: Callable[[int], None] = lambda _rows: None,
) -> Report:
    """Follow the log from its first row to its end, or to the first row that is broken.

    `expected` is a head taken earlier: the log must have been at it. `tell` hears how many rows
    were seen so far.
    """
    chain = _Chain(evidence, expected)
    try:
        chain.begins()
        for item in evidence.items:
            if isinstance(item, Row):
                chain.row(item)
                if item.sequence % _STEP == 0:
                    tell(item.sequence)
            else:
                chain.checkpoint(item)
        chain.ends()
    except _Break as found:
        return chain.report(found.broken)
    except (sqlite3.Error, TypeError) as error:
        return chain.report(Broken(chain.last + 1, f"cannot be read: {error}"))
    return chain.report(None)


class _Chain:
    """How far a log was followed."""

    def __init__(self, evidence: Evidence, expected: Head | None) -> None:
        self.last = 0
        self._head = GENESIS
        self._expected = expected
        self._log = evidence.log
        self._public: Ed25519PublicKey | None = None
        self._public_key = evidence.public_key
        self._tells_operations = evidence.tells_operations
        self._start: Checkpoint | None = None
        self._named = False
        self._format = WIDE
        self._keys = 1
        self._rows = False
        self._plain = 0
        self._signed = 0
        self._number = 0
        self._before = GENESIS
        self._due = False

    def report(self, broken: Broken | None) -> Report:
        head = Head(self._log, self.last, self._head)
        start = 0 if self._start is None else self._start.sequence
        told = self._expected is None or self._expected.sequence >= start
        return Report(head, self._signed, self._plain, start, self._keys, told, broken)

    def begins(self) -> None:
        self._public = None if self._public_key is None else _key(self._public_key)
        if self._expected is not None and self._expected.log != self._log:
            raise _Break(None, f"this is {self._log}, and the head is of {self._expected.log}")

    def row(self, row: Row) -> None:
        number = self.last + 1
        if self._due:
            self._unsigned()
        if row.sequence != number:
            raise _Break(number, f"is missing: row {row.sequence} is there instead")
        try:
            header = self._header_of(row)
            code = None if row.sealed is None else str(header["code"])
            if code == Code.LOG_PRUNED:
                self._names_start(header["start"])
        except (TypeError, AttributeError, ValueError, KeyError, RecursionError):
            raise _Break(number, "is no row that this program writes") from None
        self._meets(number, row.hash)
        self.last, self._head, self._rows = number, row.hash, True
        self._due = code is not None and (
            code in _AT_ONCE or not self._signed or number - self._signed >= SIGNED_EVERY
        )

    def _meets(self, number: int, row: str) -> None:
        expected = self._expected
        if expected is not None and expected.sequence == number and expected.hash != row:
            raise _Break(number, "is another than when the head was taken: history was rewritten")

    def _names_start(self, told: dict[str, Any]) -> None:
        """A row says where the log begins; the checkpoint that must follow it signs that."""
        start = self._start
        if start is not None and (told["sequence"], told["hash"]) == (start.sequence, start.hash):
            self._named = True

    def _header_of(self, row: Row) -> dict[str, Any]:
        """What anybody can read of a row; raises _Break if it is not whole."""
        number = row.sequence
        if row.previous != self._head:
            raise _Break(number, "does not follow from the row before it")
        plain = row.sealed is None
        if row.sealed is None:
            hashed = plain_hash(row.previous, row.header, row.body)
        else:
            hashed = sealed_hash(row.previous, row.header, row.sealed)
        if hashed != row.hash:
            raise _Break(number, "was changed: it has not the hash that it was written with")
        header: dict[str, Any] = json.loads(row.header)
        marked, told = header.get("operation"), row.operation_id
        if plain:
            if header["format"] != PLAIN or self._sealed:
                raise _Break(number, "is not sealed, and rows before it are")
        else:
            if (header["log"], header["sequence"]) != (self._log, number):
                raise _Break(number, "was written for another place or another log")
            if header["format"] not in (FORMAT, self._format):
                raise _Break(number, "has another format than the rows around it")
            self._format = header["format"]
            if row.body:
                raise _Break(number, "has a plain body beside its sealed one")
            told = None if told is None else mark(row.previous, told)
        if self._tells_operations and told != marked:
            raise _Break(number, "was moved to another operation")
        if plain:
            self._plain = number
        return header

    def checkpoint(self, made: Checkpoint) -> None:
        """Raises _Break with the row that it speaks of, or the first that is missing."""
        place = self.last
        try:
            place = int(made.sequence)
            follows = (made.number, made.previous) == (self._number + 1, self._before)
            signed = self._public is not None and made.is_signed(self._log, self._public)
            digest = made.digest(self._log) if signed else ""
            follower = self._public if made.next_key is None else _key(made.next_key)
        except (TypeError, AttributeError, ValueError):
            follows, signed, digest, follower = False, False, "", None
        named = f"checkpoint {made.number}"
        if not signed:
            raise _Break(place, f"{named} over it is not signed by the key of this log")
        if not self._rows:
            self._begins_after(made)
        elif made.sequence > self.last:
            raise _Break(self.last + 1, f"is missing: {named} signed {made.sequence} rows")
        elif not follows:
            raise _Break(made.sequence, f"a checkpoint before {named} over it is missing")
        if (made.sequence, made.hash) != (self.last, self._head):
            told = f"rows {self._signed + 1} to {made.sequence} are not those that {named} signed"
            raise _Break(self._signed + 1, told)
        self._number, self._before = made.number, digest
        self._signed, self._due = made.sequence, False
        self._keys += made.next_key is not None
        self._public = follower

    def _begins_after(self, made: Checkpoint) -> None:
        """A checkpoint before any row: the last one is where the log begins, those before it were
        kept since they name a key. That it may begin there, a later row must say."""
        self._start = made
        self.last, self._head = made.sequence, made.hash
        self._meets(made.sequence, made.hash)

    def ends(self) -> None:
        if self._due:
            self._unsigned()
        if self._start is not None and not self._named:
            told = f"the log begins after row {self._start.sequence}, and no signed row says so"
            raise _Break(1, f"is missing: {told}")
        if self._expected is not None and self._expected.sequence > self.last:
            told = f"the log had {self._expected.sequence} rows when the head was taken"
            raise _Break(self.last + 1, f"is missing: {told}")

    @property
    def _sealed(self) -> bool:
        """Whether a row so far was sealed."""
        start = 0 if self._start is None else self._start.sequence
        return self.last > max(self._plain, start)

    def _unsigned(self) -> None:
        raise _Break(self.last, "has no checkpoint, and is never written without one")


def _key(public: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))


# --- reading --------------------------------------------------------------------------------


@contextmanager
def read(where: Path | str, *, live: bool = False) -> Generator[Evidence]:
    """The log in a store or in an export, which is left as it is. A text is the address of a store
    on a server.

    `live` says that processes may use the store meanwhile; a copy needs not even a writable folder.

    Raises:
        StoreUnavailable: the file is neither, or cannot be read.
    """
    if isinstance(where, str):
        from forbear.storage.looking import look

        with look(where) as found:
            yield _served(found)
        return
    path = where
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
        if start != _SQLITE:
            with path.open(encoding="utf-8", errors="replace") as lines:
                yield _exported(lines, path)
            return
        # With changes beside it, or with processes on it, a store is read as SQLite reads it.
        aside = path.with_name(path.name + "-wal")
        how = "mode=ro" if live or aside.exists() else "mode=ro&immutable=1"
        address = f"{path.absolute().as_uri()}?{how}"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            evidence = _stored(connection, path)
            yield evidence
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"{path}: {error}") from error


def _stored(connection: sqlite3.Connection, path: Path) -> Evidence:
    columns = {row[1] for row in connection.execute("PRAGMA table_info(events)")}
    if not columns:
        raise StoreUnavailable(f"{path} has no audit log")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    public: str | None = None
    checkpoints: Iterator[Checkpoint] = iter(())
    if "audit_logs" in tables:
        found = connection.execute("SELECT public_key FROM audit_logs").fetchone()
        public = None if found is None else _public(found[0], path)
    if "checkpoints" in tables:
        named = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
        next_key = "next_key" if "next_key" in named else "NULL"
        listed = connection.execute(
            f"SELECT number, sequence, hash, at, previous, signature, {next_key} FROM checkpoints "
            "ORDER BY number"
        )
        checkpoints = (Checkpoint(*one) for one in listed)
    sealed = "sealed" if "sealed" in columns else "NULL"
    narrow = _NARROW if "digest" in columns else _WITHOUT
    rows = connection.execute(f"SELECT {_WIDE}, {sealed}, {narrow} FROM events ORDER BY sequence")
    count = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    log = "log_unsigned" if public is None else log_id(public)
    return Evidence(public, count, True, _merged(log, map(_Stored._make, rows), checkpoints))


def _served(found: Look) -> Evidence:
    from_keys = found.rows("SELECT public_key FROM audit_logs")
    public = _public(from_keys[0][0], found.place) if from_keys else None
    columns = "number, sequence, hash, at, previous, signature, next_key"
    checkpoints = (Checkpoint(*one) for one in found.pages(columns, "checkpoints", "number"))
    columns = f"{_WIDE}, sealed, {_NARROW if found.has('audit_operations') else _WITHOUT}"
    rows = map(_Stored._make, found.pages(columns, "events", "sequence"))
    [(count,)] = found.rows("SELECT count(*) FROM events")
    log = "log_unsigned" if public is None else log_id(public)
    return Evidence(public, count, True, _merged(log, rows, checkpoints))


_WIDE = "sequence, header, body, previous, hash, operation_id"
_NARROW = (
    "digest, code, minute, epoch, "
    "(SELECT id FROM audit_operations WHERE number = events.operation) AS named"
)

_WITHOUT = "NULL, NULL, NULL, NULL, NULL"
"""The same in a store of an older program."""


class _Stored(NamedTuple):
    """A row as it lies in a store."""

    sequence: int
    header: str
    body: str
    previous: str
    hash: str
    operation_id: str | None
    sealed: bytes | None
    digest: bytes | None
    code: int
    minute: int
    epoch: int
    named: str | None

    def whole(self, log: str, previous: str) -> Row:
        """All that it says, where `previous` is the hash of the row before; without a header where
        it was changed so that it says nothing."""
        if self.digest is None:
            wide = self.sealed, self.previous, self.hash, self.operation_id
            return Row(self.sequence, self.header, self.body, *wide)
        header = own = ""
        with suppress(TypeError, AttributeError, ValueError):
            own = hash_of(self.digest, "")
            if not (self.previous or self.hash or self.operation_id):
                columns = self.sequence, self.code, self.minute, self.epoch, self.header
                header = header_text(log, columns, previous, self.named)
        return Row(self.sequence, header, self.body, self.sealed, previous, own, self.named)


def _merged(log: str, rows: Iterator[_Stored], checkpoints: Iterator[Checkpoint]) -> Iterator[Item]:
    pending = next(checkpoints, None)
    head = GENESIS
    for stored in rows:
        while pending is not None and pending.sequence < stored.sequence:
            yield pending
            head = pending.hash
            pending = next(checkpoints, None)
        row = stored.whole(log, head)
        yield row
        head = row.hash
        while pending is not None and pending.sequence == row.sequence:
            yield pending
            pending = next(checkpoints, None)
    if pending is not None:
        yield pending
        yield from checkpoints


def _public(key: object, path: Path | str) -> str:
    try:
        text = str(key)
        _key(text)
    except ValueError:
        raise StoreUnavailable(f"{path} does not tell the public key of its audit log") from None
    return text


# --- exports --------------------------------------------------------------------------------


def lines(evidence: Evidence) -> Iterator[str]:
    """The export of a log, line by line. No key is needed: what is sealed stays sealed."""
    yield _line({"log": evidence.log, "public_key": evidence.public_key})
    head = Head(evidence.log, 0, GENESIS)
    for item in evidence.items:
        if isinstance(item, Row):
            head = Head(head.log, item.sequence, item.hash)
            row: dict[str, object] = {"row": item.sequence, "header": item.header}
            if item.sealed is None:
                row["body"] = item.body
            else:
                row["sealed"] = b64encode(item.sealed).decode()
            yield _line(row | {"previous": item.previous, "hash": item.hash})
        else:
            made: dict[str, object] = {
                "checkpoint": item.number,
                "sequence": item.sequence,
                "hash": item.hash,
                "at": item.at,
                "previous": item.previous,
                "signature": item.signature,
            }
            yield _line(made if item.next_key is None else made | {"next_key": item.next_key})
    yield _line({"head": str(head)})


def _line(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _exported(lines: Iterator[str], path: Path) -> Evidence:
    try:
        first = json.loads(next(lines, ""))
        key, log = first["public_key"], first["log"]
    except (ValueError, KeyError, TypeError):
        raise StoreUnavailable(f"{path} is neither a store nor an export of one") from None
    public = None if key is None else _public(key, path)
    evidence = Evidence(public, None, False, _items(lines))
    if evidence.log != log:
        raise StoreUnavailable(f"{path} names {log}, and its key is of {evidence.log}")
    return evidence


def _items(lines: Iterator[str]) -> Iterator[Item]:
    last = 0
    for line in lines:
        try:
            told: dict[str, Any] = json.loads(line)
            if "head" in told:
                if Head.parse(told["head"]).sequence != last or next(lines, None) is not None:
                    raise _Break(last + 1, "is not where the export ends")
                return
            item = _item(told)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Break(last + 1, "is no line of an export") from None
        if isinstance(item, Row):
            last = item.sequence
        yield item
    raise _Break(last + 1, "is missing: the export is cut off")


def _item(told: dict[str, Any]) -> Item:
    if "checkpoint" in told:
        names = ("checkpoint", "sequence", "hash", "at", "previous", "signature")
        made = Checkpoint(*(told[name] for name in names))
        return replace(made, next_key=told.get("next_key"))
    return Row(
        told["row"],
        told["header"],
        told.get("body", ""),
        b64decode(told["sealed"], validate=True) if "sealed" in told else None,
        told["previous"],
        told["hash"],
        None,
    )
