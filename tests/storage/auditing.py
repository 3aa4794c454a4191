"""A log that grows, copies of it, and what somebody without a key can do to a copy."""

from __future__ import annotations

import hmac
import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.storage.house import House

from forbear.rules.model import AuditEvent
from forbear.storage import audit, mark, migrations, packing, sealing, verifying
from forbear.storage.audit import Code
from forbear.storage.database import Database
from forbear.storage.schema import audit_epochs
from forbear.storage.sealing import Epoch, Log
from forbear.storage.verifying import Head, Report

SECRET = "the-canary-of-this-test"
Attack = Callable[[sqlite3.Connection], object]


def note(house: House, code: Code = Code.PAUSED, operation_id: str | None = None) -> None:
    """One more row."""
    body = {"target": SECRET, "by": {"operator": "ada"}}
    at = house.clock.now().wall
    house.write(partial(audit.append, operation_id=operation_id, at=at, code=code, body=body))


def notes(house: House, count: int) -> None:
    """Many more rows, in one transaction."""

    def write(connection: sa.Connection) -> None:
        for _ in range(count):
            audit.append(connection, None, house.clock.now().wall, Code.PAUSED, {"target": SECRET})

    house.write(write)


def rows_of(house: House) -> int:
    return int(house.sql("SELECT count(*) FROM events")[0][0])


def signed(house: House) -> list[int]:
    """The rows that checkpoints are over."""
    return [row[0] for row in house.sql("SELECT sequence FROM checkpoints ORDER BY number")]


def checked(path: Path, expected: Head | None = None) -> Report:
    with verifying.read(path) as evidence:
        return verifying.verify(evidence, expected)


def copied(house: House, path: Path) -> Path:
    assert house.file.exists()
    house.sql("VACUUM INTO ?", str(path))
    return path


def attacked(history: Path, attack: Attack, folder: Path | None = None) -> Path:
    """A copy on which somebody who can write the file, and has no key, did something."""
    path = (folder or history.parent) / "attacked.db"
    shutil.copy(history, path)
    with closing(sqlite3.connect(path)) as store, store:
        guards = store.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in guards:
            store.execute(f"DROP TRIGGER {name}")
        attack(store)
    return path


def rechained(store: sqlite3.Connection, begin: int) -> None:
    """Compute the hashes anew from a row on: what anybody can do."""
    (public,) = store.execute("SELECT public_key FROM audit_logs").fetchone()
    log = sealing.log_id(public)
    previous = hash_at(store, begin - 1)
    query = (
        "SELECT sequence, header, sealed, operation_id, digest, code, minute, epoch, "
        "(SELECT id FROM audit_operations WHERE number = operation) "
        "FROM events WHERE sequence >= ? ORDER BY sequence"
    )
    for sequence, header, sealed, of, digest, *columns, named in store.execute(
        query, (begin,)
    ).fetchall():
        if digest is not None:
            code, minute, epoch = columns
            marked = None if named is None else sealing.mark(previous, named)
            at = minute * packing.MINUTE
            text = sealing.header_of(log, sequence, at, audit.CODES[code], epoch, marked)
            if header:
                start = header[header.index(',"start"') :]
                text = header = f"{text[:-1]}{start}"
            whole = sealing.sealed_hash(previous, text, sealed)
            store.execute(
                "UPDATE events SET header = ?, digest = ? WHERE sequence = ?",
                (header, bytes.fromhex(whole), sequence),
            )
        else:
            told = json.loads(header)
            if of is not None:
                told["operation"] = sealing.mark(previous, of)
            header = sealing.compact(told)
            whole = sealing.sealed_hash(previous, header, sealed)
            store.execute(
                "UPDATE events SET header = ?, previous = ?, hash = ? WHERE sequence = ?",
                (header, previous, whole, sequence),
            )
        previous = whole


def hash_at(store: sqlite3.Connection, sequence: int) -> str:
    query = "SELECT digest, hash FROM events WHERE sequence = ?"
    found = store.execute(query, (sequence,)).fetchone()
    return audit.hash_of(*found) if found else sealing.GENESIS


def plain_store(home: Path, generation: str) -> Path:
    """The home of a store of an older generation, with three plain rows."""
    home.mkdir()
    engine = sa.create_engine(f"sqlite:///{home / 'forbear.db'}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        migrations.upgrade(connection, None, generation)
        previous = sealing.GENESIS
        for number in range(3):
            told = {"at": 1_000 + number, "code": "paused", "format": 1, "operation": None}
            header, body = sealing.compact(told), json.dumps({"target": f"provider-{number}"})
            whole = sealing.plain_hash(previous, header, body)
            connection.exec_driver_sql(
                "INSERT INTO events (header, body, previous, hash) VALUES (?, ?, ?, ?)",
                (header, body, previous, whole),
            )
            previous = whole
    engine.dispose()
    return home


def older(house: House, until: int) -> None:
    """Let the log be one that an older program wrote up to a row: format 2. All keys are there."""
    file = house.file
    assert isinstance(house.database, Database)
    log, told = house.database.log, house.trail()
    epochs = {one["number"]: Epoch(**one) for one in house.rows(sa.select(audit_epochs))}
    with closing(sqlite3.connect(file)) as store, store:
        guards = store.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = guards.fetchall()
        for name, _ in triggers:
            store.execute(f"DROP TRIGGER {name}")
        hashes = [sealing.GENESIS]
        for event in told:
            hashes.append(
                _rewritten(store, log, epochs, event, hashes[-1], event.sequence <= until)
            )
        before = sealing.GENESIS
        (public,) = store.execute("SELECT public_key FROM audit_logs").fetchone()
        for row in store.execute("SELECT * FROM checkpoints ORDER BY number").fetchall():
            one = sealing.Checkpoint(*row)
            made = log.sign(public, one.number, one.sequence, hashes[one.sequence], one.at, before)
            before = made.digest(log.id)
            store.execute(
                "UPDATE checkpoints SET hash = ?, previous = ?, signature = ? WHERE number = ?",
                (made.hash, made.previous, made.signature, made.number),
            )
        for _, trigger in triggers:
            store.execute(trigger)
    house.database.mark.set(mark.Head(len(told), hashes[-1]))


def _rewritten(
    store: sqlite3.Connection,
    log: Log,
    epochs: Mapping[int, Epoch],
    event: AuditEvent,
    previous: str,
    wide: bool,
) -> str:
    """One row of a log that is written anew; its hash."""
    of = event.operation_id or None
    ((number,),) = store.execute(
        "SELECT epoch FROM events WHERE sequence = ?", (event.sequence,)
    ).fetchall()
    epoch = epochs[number]
    if not wide:
        row = log.seal(epoch, previous, event.sequence, event.at, event.code, of, event.body)
        store.execute(
            "UPDATE events SET sealed = ?, digest = ? WHERE sequence = ?",
            (row.sealed, bytes.fromhex(row.hash), event.sequence),
        )
        return row.hash
    told = {
        "at": event.at // packing.MINUTE * packing.MINUTE,
        "code": event.code,
        "epoch": number,
        "format": 2,
        "log": log.id,
        "sequence": event.sequence,
    }
    if of is not None:
        told["operation"] = sealing.mark(previous, of)
    header = sealing.compact(told)
    body = {"at": event.at, "operation": of, "body": event.body}
    key = log.unwrapped(epoch.wrapped_key)
    assert key is not None
    sealed = wide_sealed(key, f"{header}\n{previous}", sealing.compact(body))
    whole = sealing.sealed_hash(previous, header, sealed)
    store.execute(
        "UPDATE events SET operation_id = ?, header = ?, previous = ?, hash = ?, sealed = ?, "
        "operation = NULL, code = NULL, minute = NULL, epoch = NULL, digest = NULL "
        "WHERE sequence = ?",
        (of, header, previous, whole, sealed, event.sequence),
    )
    return whole


def wide_sealed(key: bytes, bound: str, text: str) -> bytes:
    """As the program before sealed: with AES-GCM, and a nonce that is a keyed digest."""
    nonce = hmac.digest(key[32:], f"{bound}\n{text}".encode(), "sha256")[:12]
    return nonce + AESGCM(key[:32]).encrypt(nonce, text.encode(), bound.encode())


def headers(path: Path) -> list[dict[str, Any]]:
    """The public headers of all rows, as an export has them."""
    with verifying.read(path) as evidence:
        rows = [json.loads(line) for line in verifying.lines(evidence)]
    return [json.loads(row["header"]) for row in rows if "row" in row]


def exported(path: Path) -> Path:
    target = path.with_suffix(".jsonl")
    with verifying.read(path) as evidence:
        target.write_text("".join(f"{line}\n" for line in verifying.lines(evidence)))
    return target
