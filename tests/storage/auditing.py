"""A log that grows, copies of it, and what somebody without a key can do to a copy."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from tests.storage.house import House

from forbear.storage import audit, sealing, verifying
from forbear.storage.audit import Code
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
    found = store.execute("SELECT hash FROM events WHERE sequence = ?", (begin - 1,)).fetchone()
    previous = found[0] if found else sealing.GENESIS
    query = "SELECT sequence, header, sealed, operation_id FROM events WHERE sequence >= ?"
    for sequence, header, sealed, operation_id in store.execute(query, (begin,)).fetchall():
        told = json.loads(header)
        if operation_id is not None:
            told["operation"] = sealing.mark(previous, operation_id)
        header = json.dumps(told, sort_keys=True, separators=(",", ":"))
        whole = sealing.sealed_hash(previous, header, sealed)
        store.execute(
            "UPDATE events SET header = ?, previous = ?, hash = ? WHERE sequence = ?",
            (header, previous, whole, sequence),
        )
        previous = whole


def exported(path: Path) -> Path:
    target = path.with_suffix(".jsonl")
    with verifying.read(path) as evidence:
        target.write_text("".join(f"{line}\n" for line in verifying.lines(evidence)))
    return target
