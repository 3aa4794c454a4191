"""Sealing at rest: which columns, with which key, and what an older program left in plain."""

from __future__ import annotations

import gc
import json
import sqlite3
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.storage.auditing import wide_sealed
from tests.storage.house import DONE, House
from tests.support import FixedRandom, ManualClock

from forbear.storage import packing
from forbear.storage.errors import StoreUnavailable
from forbear.storage.retention import Term
from forbear.storage.schema import metadata
from forbear.storage.sealing import EpochKey
from forbear.storage.vault import GONE, Sealed, SealedJSON, Vault

pytestmark = pytest.mark.requirement("A06")

SEALED = [column for table in metadata.sorted_tables for column in table.columns
          if isinstance(column.type, Sealed)]  # fmt: skip

OPEN = {
    "alembic_version", "attempts", "audit_epochs", "audit_logs", "authorisations", "cases",
    "audit_operations", "checkpoints", "circuits", "compatibility", "credentials", "data_keys",
    "ended_tasks", "events", "grants", "operations", "pauses", "processes", "prunings",
    "requests", "reservations", "scopes",
    "tallies", "task_turns", "tasks", "token_requests", "token_slots", "turns", "waits",
    "whereabouts",
}  # fmt: skip
"""Every table, so that whoever adds one thinks of what it may say."""


def everything(house: House) -> dict[str, list[dict[str, Any]]]:
    return {
        table.name: [dict(row) for row in house.rows(sa.select(table))]
        for table in metadata.sorted_tables
    }


def unsealed(house: House) -> None:
    """Make a store as it was before there was a seal."""
    values = everything(house)
    for column in SEALED:
        table = column.table
        assert isinstance(table, sa.Table)
        keys = [key.name for key in table.primary_key.columns]
        where = " AND ".join(f'"{key}" = ?' for key in keys)
        for row in values[table.name]:
            value = row[column.name]
            if value is not None and isinstance(column.type, SealedJSON):
                value = json.dumps(value)
            change = f'UPDATE {table.name} SET "{column.name}" = ? WHERE {where}'
            house.sql(change, value, *(row[key] for key in keys))
    house.sql("DELETE FROM data_keys")


def test_no_column_of_json_or_bytes_is_forgotten() -> None:
    plain = [
        f"{column.table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, sa.JSON | sa.LargeBinary)
    ]
    # Closed words, names of processes, times of failures; the log has a seal of its own.
    assert sorted(plain) == [
        "circuits.failures",
        "events.digest",
        "events.sealed",
        "operations.notices",
        "processes.bindings",
    ]
    assert {table.name for table in metadata.sorted_tables} | {"alembic_version"} == OPEN
    for column in SEALED:
        assert isinstance(column.type, Sealed)
        assert column.type.column == f"{column.table.name}.{column.name}"


@pytest.mark.sqlite
def test_what_an_older_program_left_in_plain_is_sealed_when_the_store_is_opened(
    tmp_path: Path,
) -> None:
    house = House(tmp_path, ManualClock(), FixedRandom())
    op = house.waiting("an-old-argument")
    house.poll(op, DONE)
    unsealed(house)
    house.close()
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert any(b"an-old-argument" in path.read_bytes() for path in files)

    house = House(tmp_path, ManualClock(), FixedRandom())
    assert dict(house.read(op).arguments) == {"dataset": "an-old-argument"}
    before = everything(house)
    assert before["attempts"][0]["body"]
    house.close()
    for path in tmp_path.iterdir():
        assert not path.is_file() or b"an-old-argument" not in path.read_bytes(), path
    with closing(sqlite3.connect(tmp_path / "forbear.db")) as store:
        for column in SEALED:
            query = f'SELECT "{column.name}" FROM {column.table.name}'
            found = [value for (value,) in store.execute(query) if value is not None]
            assert all(isinstance(value, bytes) for value in found), column
    house = House(tmp_path, ManualClock(), FixedRandom())
    after = everything(house)
    assert {**after, "processes": []} == {**before, "processes": []}
    house.close()


@pytest.mark.sqlite
def test_free_pages_are_cleaned_out_by_whoever_opens_the_store_next(tmp_path: Path) -> None:
    House(tmp_path, ManualClock(), FixedRandom()).close()
    with closing(sqlite3.connect(tmp_path / "forbear.db", isolation_level=None)) as store:
        # As a process leaves it that dies between the sealing and the cleaning.
        store.execute("PRAGMA secure_delete=OFF")
        store.execute("CREATE TABLE gone (said TEXT)")
        store.execute("INSERT INTO gone VALUES ('an-old-argument')")
        store.execute("DROP TABLE gone")
        store.execute("PRAGMA user_version=1")
    assert b"an-old-argument" in (tmp_path / "forbear.db").read_bytes()
    House(tmp_path, ManualClock(), FixedRandom()).close()
    for path in tmp_path.glob("forbear.db*"):
        assert b"an-old-argument" not in path.read_bytes()


def test_a_value_is_read_with_its_own_key_in_its_own_column_or_not_at_all(house: House) -> None:
    op = house.new("sales")
    column = "arguments"
    ((sealed,),) = house.sql("SELECT arguments FROM operations")
    house.sql("UPDATE operations SET arguments = ?", sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(StoreUnavailable, match=f"operations.{column} was changed outside"):
        house.read(op)
    house.sql("UPDATE operations SET arguments = take, take = ?", sealed)
    with pytest.raises(StoreUnavailable, match=r"operations\.take was changed outside"):
        house.read(op)
    house.sql("UPDATE operations SET arguments = ?, take = ?", sealed, GONE)
    assert dict(house.read(op).arguments) == {"dataset": "sales"}
    # A key that was destroyed leaves nothing behind.
    assert sealed[1] == 1
    house.sql("UPDATE operations SET arguments = ?", sealed[:1] + b"\x09" + sealed[2:])
    assert house.read(op).arguments == {}


@pytest.mark.parametrize("text", ["", "s", "sales" * 400, "\x00 ü€" * 9, "0123456789abcdef"])
def test_a_value_is_read_as_it_was_stored(house: House, text: str) -> None:
    assert dict(house.read(house.new(text)).arguments) == {"dataset": text}


def test_a_value_that_can_be_shortened_is(house: House) -> None:
    house.new("sales" * 400)
    ((sealed,),) = house.sql("SELECT arguments FROM operations")
    assert len(sealed) < 100


_SHORT = packing.shortened(b"x" * packing.MOST) or b""


@pytest.mark.parametrize("short", [b"", b"\x63" + _SHORT[1:], _SHORT[:-1], _SHORT + b"x"])
def test_a_value_that_was_shortened_otherwise_is_refused(house: House, short: bytes) -> None:
    op = house.new("sales")
    ((wrapped,),) = house.sql("SELECT wrapped_key FROM data_keys")
    key = house.database.log.unwrapped(wrapped)
    assert key is not None
    sealed = b"\x81\1" + EpochKey(key).seal(b"operations.arguments", short)
    house.sql("UPDATE operations SET arguments = ?", sealed)
    with pytest.raises(StoreUnavailable, match=r"operations\.arguments was changed outside"):
        house.read(op)


def test_what_was_sealed_with_a_nonce_is_read_and_tampering_is_seen(house: House) -> None:
    op = house.new("sales")
    ((wrapped,),) = house.sql("SELECT wrapped_key FROM data_keys")
    key = house.database.log.unwrapped(wrapped)
    assert key is not None
    wide = (1).to_bytes(4) + wide_sealed(key, "operations.arguments\n", '{"dataset":"older"}')
    house.sql("UPDATE operations SET arguments = ?", wide)
    assert dict(house.read(op).arguments) == {"dataset": "older"}
    for changed in (wide[:-1] + bytes([wide[-1] ^ 1]), wide[:7], b"\1\1", b"\1\1short"):
        house.sql("UPDATE operations SET arguments = ?", changed)
        with pytest.raises(StoreUnavailable, match=r"operations\.arguments was changed outside"):
            house.read(op)
    house.sql("UPDATE operations SET arguments = ?", (9).to_bytes(4) + wide[4:])
    assert house.read(op).arguments == {}


def test_whatever_hangs_on_an_operation_goes_with_it(house: House) -> None:
    op = house.waiting("sales")
    house.poll(op, DONE)
    other = house.waiting("others", "exp_2")
    token = (
        "INSERT INTO token_requests SELECT 'tok_1', id, provider, account, 'c', 'o', 'b', 1, 2, 3,"
        " 4, 5, 'answered', 200, NULL FROM operations WHERE id = ?"
    )
    house.sql(token, op.id)
    house.sql("INSERT INTO token_slots (request_id, scope, hold_until) VALUES ('tok_1', 's', 9)")
    extra = "INSERT INTO reservations SELECT id, 's', 1, 0, TRUE FROM attempts WHERE number = 1"
    house.sql(extra)
    held = {table.name for table in metadata.sorted_tables if house.rows(sa.select(table))}
    assert {"requests", "attempts", "tasks", "reservations", "token_slots"} <= held
    everybody = Term(None, house.clock.now().wall + 1)
    house.write(lambda c: house.ledger.empty(c, everybody, [op.id, other.id]))
    assert house.write(lambda c: house.ledger.forget(c, everybody, 10)) == 1
    for table in metadata.sorted_tables:
        if "operation_id" in table.columns and table.name != "events":
            left = {row["operation_id"] for row in house.rows(sa.select(table))}
            assert left <= {other.id}, table.name
    assert house.sql("SELECT count(*) FROM token_slots") == [(0,)]
    assert house.verified() is None


@pytest.mark.sqlite
def test_a_store_that_is_closed_leaves_nothing_in_memory(tmp_path: Path) -> None:
    house = House(tmp_path, ManualClock(), FixedRandom())
    dialect = weakref.ref(house.database.writer.dialect)
    house.close()
    del house
    gc.collect()
    assert dialect() is None


def test_what_is_sealed_while_another_thread_takes_up_new_keys_can_be_opened() -> None:
    sealed: list[bytes] = []

    class Number(int):
        """Whoever counts with it is interrupted by a thread that seals."""

        def bit_length(self) -> int:
            sealed.append(vault.seal("attempts.body", b"said"))
            return super().bit_length()

    keys = {1: EpochKey(b"1" * 64)}
    vault = Vault(lambda: keys)
    keys[Number(2)] = EpochKey(b"2" * 64)
    made = b"\1\2" + keys[2].seal(b"attempts.body", b"of another process")
    assert vault.open("attempts.body", made) == b"of another process"
    sealed.append(vault.seal("attempts.body", b"said"))

    assert sealed[0] != sealed[-1]
    assert [vault.open("attempts.body", one) for one in sealed] == [b"said"] * 2
