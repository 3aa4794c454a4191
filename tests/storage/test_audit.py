"""The sealed log: what a copy of it proves without a key, and what only a kept head proves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import sqlite3
import tracemalloc
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.auditing import (
    SECRET,
    Attack,
    attacked,
    checked,
    copied,
    exported,
    hash_at,
    headers,
    note,
    notes,
    older,
    plain_store,
    rechained,
    rows_of,
    signed,
)
from tests.storage.house import LOST, House
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Option
from forbear.storage import audit, packing, sealing, verifying
from forbear.storage.audit import Code
from forbear.storage.database import Database
from forbear.storage.errors import LogUnreadable, StoreUnavailable
from forbear.storage.store import Store

ROWS = 250


@pytest.fixture(scope="module", params=[0, ROWS, 120], ids=["new", "old", "old and new"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, Path]]:
    """A log of 250 rows and a copy of it: operations, a decision, an unclear write, and many
    pauses. The last checkpoint is over row 242. An older program wrote it up to some row."""
    folder = tmp_path_factory.mktemp("recorded")
    with closing(House(folder / "home", ManualClock(), FixedRandom())) as house:
        house.clock.advance(12_345)
        first = house.send(house.new("sales"), LOST)
        house.decide(first, Option.ABANDON)
        house.waiting("costs")
        notes(house, 241 - rows_of(house))
        note(house, Code.DECIDED)
        notes(house, ROWS - rows_of(house))
        assert signed(house)[-1] == 242
        if request.param:
            older(house, request.param)
        yield house, copied(house, folder / "copy.db")


@pytest.fixture
def history(recorded: tuple[House, Path], tmp_path: Path) -> Path:
    """A copy of that log for one test."""
    return Path(shutil.copy(recorded[1], tmp_path / "copy.db"))


# --- what is written ------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_a_log_is_whole_and_tells_where_it_is_signed(history: Path) -> None:
    report = checked(history)
    assert report.broken is None
    assert (report.head.sequence, report.signed, report.plain) == (ROWS, 242, 0)


@pytest.mark.requirement("A05")
def test_nothing_of_a_body_and_no_exact_time_is_in_the_file(
    recorded: tuple[House, Path],
) -> None:
    house, history = recorded
    assert all(event.body["target"] == SECRET for event in house.trail() if event.code == "paused")
    with closing(sqlite3.connect(history)) as store:
        rows = store.execute("SELECT body, sealed FROM events").fetchall()
    for body, sealed in rows:
        assert body == ""
        assert SECRET.encode() not in sealed
    for header in headers(history):
        assert header["at"] % 60_000 == 0
        assert "op_" not in str(header)
    assert SECRET.encode() not in history.read_bytes()


def test_the_header_of_a_row_says_what_the_page_shows_and_no_more(house: House) -> None:
    op = house.new()
    [header] = headers(house.database.path)
    assert header.keys() == {"at", "code", "epoch", "format", "log", "operation", "sequence"}
    assert (header["code"], header["sequence"], header["epoch"]) == ("accepted", 1, 1)
    assert op.id not in str(header)


@pytest.mark.requirement("A05")
def test_a_checkpoint_comes_with_the_first_row_every_hundred_rows_and_after_a_minute(
    house: House,
) -> None:
    notes(house, 203)
    assert signed(house) == [1, 101, 201]
    house.clock.advance(audit.SIGNED_WITHIN - 1)
    note(house)
    assert signed(house)[-1] == 201
    house.clock.advance(1)
    note(house)
    assert signed(house)[-1] == 205


@pytest.mark.requirement("A05")
def test_a_decision_and_an_unclear_write_are_signed_at_once(house: House) -> None:
    op = house.send(house.new(), LOST)
    codes = house.codes(op)
    unclear = codes.index("reconciliation_required") + 1
    assert signed(house)[-1] == unclear
    house.decide(op, Option.ABANDON)
    decided = house.codes(op).index("decided") + 1
    assert decided > unclear
    assert decided in signed(house)


def test_events_that_nothing_follows_are_signed_with_a_sign_of_life_and_when_leaving(
    house: House,
) -> None:
    note(house)
    note(house)
    house.sign_on()
    assert signed(house) == [1]
    house.clock.advance(audit.SIGNED_WITHIN)
    house.sign_on()
    house.sign_on()
    assert signed(house) == [1, 2]
    note(house)
    house.write(house.ledger.unregister)
    assert signed(house) == [1, 2, 3]


def test_processes_on_one_store_go_on_from_one_anothers_head(house: House) -> None:
    with house.neighbour() as other:
        for _ in range(5):
            note(house)
            note(other)
    assert house.verified() is None
    assert rows_of(house) == 10


def test_what_is_undone_leaves_no_row(house: House) -> None:
    def fails(connection: sa.Connection) -> None:
        audit.append(connection, None, 0, Code.PAUSED, {})
        raise ValueError

    note(house)
    with pytest.raises(ValueError, match=r"^$"):
        house.write(fails)
    note(house)
    assert rows_of(house) == 2
    assert house.verified() is None


# --- attacks on a copy ----------------------------------------------------------------------

_OTHERS = (
    "operation_id, header, body, previous, hash, sealed, operation, code, minute, epoch, digest"
)


def edits(column: str, value: str) -> Attack:
    return lambda store: store.execute(f"UPDATE events SET {column} = {value} WHERE sequence = 57")


def deletes(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM events WHERE sequence = 57")


def deletes_and_closes_the_gap(store: sqlite3.Connection) -> None:
    deletes(store)
    for sequence in range(58, ROWS + 1):
        store.execute(
            "UPDATE events SET sequence = sequence - 1, "
            "header = replace(header, '\"sequence\":' || sequence, '\"sequence\":' || "
            "(sequence - 1)) WHERE sequence = ?",
            (sequence,),
        )
    rechained(store, 57)


def swaps(store: sqlite3.Connection) -> None:
    store.execute("UPDATE events SET sequence = -1 WHERE sequence = 57")
    store.execute("UPDATE events SET sequence = 57 WHERE sequence = 58")
    store.execute("UPDATE events SET sequence = 58 WHERE sequence = -1")


def swaps_bodies(store: sqlite3.Connection) -> None:
    (one,), (two,) = store.execute(
        "SELECT sealed FROM events WHERE sequence IN (57, 58) ORDER BY sequence"
    ).fetchall()
    store.execute("UPDATE events SET sealed = ? WHERE sequence = 57", (two,))
    store.execute("UPDATE events SET sealed = ? WHERE sequence = 58", (one,))
    rechained(store, 57)


def inserts(store: sqlite3.Connection) -> None:
    for sequence in range(ROWS, 56, -1):
        store.execute("UPDATE events SET sequence = sequence + 1 WHERE sequence = ?", (sequence,))
    store.execute(
        f"INSERT INTO events (sequence, {_OTHERS}) SELECT 57, {_OTHERS} FROM events "
        "WHERE sequence = 56"
    )


def truncates(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM events WHERE sequence >= 150")


def forges(store: sqlite3.Connection) -> None:
    store.execute("UPDATE events SET sealed = zeroblob(64) WHERE sequence = 120")
    rechained(store, 120)


def forges_without_checkpoints(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM checkpoints WHERE sequence >= 120")
    forges(store)


def drops_a_checkpoint(store: sqlite3.Connection) -> None:
    (middle,) = store.execute(
        "SELECT number FROM checkpoints WHERE sequence < 200 ORDER BY number DESC LIMIT 1"
    ).fetchone()
    store.execute("DELETE FROM checkpoints WHERE number = ?", (middle,))


def drops_all_checkpoints(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM checkpoints")


def signs_with_another_key(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET signature = ? WHERE sequence = 242", ("00" * 64,))


def unseals(store: sqlite3.Connection) -> None:
    """Put a plain row in the place of a sealed one, as before sealing, well hashed."""
    previous = hash_at(store, 56)
    header = '{"at":0,"code":"paused","format":1,"operation":null}'
    whole = sealing.plain_hash(previous, header, "{}")
    store.execute(
        "UPDATE events SET header = ?, body = '{}', sealed = NULL, previous = ?, hash = ?, "
        "digest = NULL WHERE sequence = 57",
        (header, previous, whole),
    )


def forges_a_decision_at_the_end(store: sqlite3.Connection) -> None:
    """After the last checkpoint anybody can write a row, but not one that must be signed."""
    store.execute(
        "UPDATE events SET header = replace(header, 'paused', 'decided'), code = ? "
        "WHERE sequence = 249",
        (audit.NUMBER[Code.DECIDED],),
    )
    rechained(store, 249)


def writes_nonsense(store: sqlite3.Connection) -> None:
    store.execute("UPDATE events SET header = x'00', sealed = 7 WHERE sequence = 57")


def gives_to_another(store: sqlite3.Connection) -> None:
    """Let a row of the first operation be one of the second."""
    one, two = store.execute(
        f"SELECT max(sequence), {_NAME} AS name FROM events WHERE name IS NOT NULL GROUP BY name "
        "ORDER BY min(sequence)"
    ).fetchall()
    store.execute(
        "UPDATE events SET operation = (SELECT operation FROM events WHERE sequence = ?), "
        "operation_id = (SELECT operation_id FROM events WHERE sequence = ?) WHERE sequence = ?",
        (two[0], two[0], one[0]),
    )


_NAME = "coalesce(operation_id, (SELECT id FROM audit_operations WHERE number = events.operation))"


def renames_an_operation(store: sqlite3.Connection) -> None:
    store.execute("UPDATE audit_operations SET id = 'op_x' WHERE number = 1")
    store.execute("UPDATE events SET operation_id = 'op_x' WHERE operation_id IS NOT NULL")


_FOLLOWS = "does not follow|was changed"
_MOVED = "moved to another operation|was changed"
"""What is said of a row of an older program, or else of a new one."""


@pytest.mark.requirement("A05")
@pytest.mark.parametrize(
    ("attack", "row", "why"),
    [
        pytest.param(edits("sealed", "zeroblob(80)"), 57, "was changed", id="edit the body"),
        pytest.param(edits("header", "header || ' '"), 57, "was changed", id="edit the header"),
        pytest.param(edits("hash", "'00'"), 57, "was changed", id="edit the hash"),
        pytest.param(edits("previous", "hash || '0'"), 57, _FOLLOWS, id="edit the link"),
        pytest.param(edits("operation_id", "'op_x'"), 57, _MOVED, id="edit the operation"),
        pytest.param(gives_to_another, None, _MOVED, id="give to another operation"),
        pytest.param(renames_an_operation, None, _MOVED, id="rename an operation"),
        pytest.param(edits("body", "'{}'"), 57, "beside its sealed", id="edit the plain body"),
        pytest.param(edits("sequence", "900"), 57, "is missing", id="move a row"),
        pytest.param(writes_nonsense, 57, "no row", id="nonsense"),
        pytest.param(deletes, 57, "is missing", id="delete"),
        pytest.param(swaps, 57, _FOLLOWS, id="swap"),
        pytest.param(inserts, 57, _FOLLOWS, id="insert"),
        pytest.param(unseals, 57, "not sealed", id="unseal"),
        pytest.param(truncates, 150, "is missing", id="truncate"),
        pytest.param(deletes_and_closes_the_gap, None, "are not those", id="delete and chain"),
        pytest.param(swaps_bodies, None, "are not those", id="swap and chain"),
        pytest.param(forges, None, "are not those", id="forge without the key"),
        pytest.param(forges_without_checkpoints, None, "no checkpoint", id="forge, no checkpoints"),
        pytest.param(drops_a_checkpoint, None, "checkpoint", id="drop a checkpoint"),
        pytest.param(drops_all_checkpoints, 1, "no checkpoint", id="drop all checkpoints"),
        pytest.param(signs_with_another_key, 242, "not signed by the key", id="sign anew"),
        pytest.param(forges_a_decision_at_the_end, 249, "no checkpoint", id="forge a decision"),
    ],
)
def test_an_attack_on_a_copy_is_named_without_a_key(
    history: Path, attack: Attack, row: int | None, why: str
) -> None:
    broken = checked(attacked(history, attack)).broken
    assert broken is not None
    assert re.search(why, broken.why)
    assert broken.row is not None
    assert broken.row == row if row is not None else 1 <= broken.row <= 242


@pytest.mark.requirement("A05")
@pytest.mark.parametrize(
    "change",
    [
        *("code = code + 1", "minute = minute + 1", "epoch = 2", "digest = zeroblob(32)"),
        *("digest = x'00'", "digest = 7", "digest = NULL", "code = 99", "code = NULL"),
        *("minute = 'x'", "hash = lower(hex(digest)), digest = NULL", "operation = 1"),
        'header = \'{"at":0,"start":{"sequence":1}}\'',
    ],
)
def test_nothing_that_a_header_is_made_of_can_be_changed(house: House, change: str) -> None:
    house.new()
    notes(house, 70)
    path = copied(house, house.home / "copy.db")
    broken = checked(attacked(path, edits(*change.split(" = ", 1)))).broken
    assert broken is not None
    assert broken.row == 57


@pytest.mark.requirement("A05")
def test_no_row_of_an_older_format_follows_a_newer_one(house: House) -> None:
    """At the end that nothing signs, anybody can write a row of an older program."""
    notes(house, 3)
    path = copied(house, house.home / "copy.db")
    (header,) = headers(path)[2:]
    older = sealing.compact({**header, "format": sealing.WIDE})

    def replaces(store: sqlite3.Connection) -> None:
        previous, sealed = hash_at(store, 2), b"x" * 80
        whole = sealing.sealed_hash(previous, older, sealed)
        store.execute(
            "UPDATE events SET header = ?, previous = ?, hash = ?, sealed = ?, code = NULL, "
            "minute = NULL, epoch = NULL, digest = NULL WHERE sequence = 3",
            (older, previous, whole, sealed),
        )

    broken = checked(attacked(path, replaces)).broken
    assert broken is not None
    assert (broken.row, "has another format" in broken.why) == (3, True)


def truncates_with_checkpoints(store: sqlite3.Connection) -> None:
    (last,) = store.execute("SELECT max(sequence) FROM checkpoints WHERE sequence < 200").fetchone()
    store.execute("DELETE FROM checkpoints WHERE sequence > ?", (last,))
    store.execute("DELETE FROM events WHERE sequence > ?", (last,))


def truncates_the_unsigned_end(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM events WHERE sequence > 242")


def forges_the_unsigned_end(store: sqlite3.Connection) -> None:
    store.execute("UPDATE events SET sealed = zeroblob(64) WHERE sequence = 245")
    rechained(store, 245)


@pytest.mark.requirement("A05")
@pytest.mark.parametrize(
    ("attack", "row"),
    [
        (truncates_with_checkpoints, None),
        (truncates_the_unsigned_end, 243),
        (forges_the_unsigned_end, 250),
    ],
)
def test_what_the_file_alone_cannot_show_is_shown_by_a_head_kept_elsewhere(
    history: Path, attack: Attack, row: int | None
) -> None:
    kept = checked(history).head
    path = attacked(history, attack)
    assert checked(path).broken is None, "docs/audit.md lists this as not protected"
    broken = checked(path, kept).broken
    assert broken is not None
    assert row is None or broken.row == row


@pytest.mark.requirement("A05")
def test_a_store_that_was_rolled_back_is_found_by_a_head_kept_elsewhere(
    house: House, tmp_path: Path
) -> None:
    note(house)
    old = copied(house, tmp_path / "old.db")
    kept = checked(old).head
    note(house)
    new = copied(house, tmp_path / "new.db")
    later = checked(new).head
    assert checked(new, kept).broken is None, "a log that only grew is at every head it had"
    rolled = checked(old, later).broken
    assert rolled is not None
    assert (rolled.row, "had 2 rows" in rolled.why) == (2, True)


@pytest.mark.requirement("A05")
def test_a_whole_log_under_another_key_is_another_log(house: House, tmp_path: Path) -> None:
    note(house)
    kept = checked(house.database.path).head
    with closing(House(tmp_path / "other", ManualClock(), FixedRandom())) as thief:
        note(thief)
        forged = copied(thief, tmp_path / "forged.db")
    assert checked(forged).broken is None
    broken = checked(forged, kept).broken
    assert broken is not None
    assert (broken.row, kept.log in broken.why) == (None, True)


@pytest.mark.requirement("A05")
def test_a_swapped_public_key_signs_nothing_that_is_there(history: Path, tmp_path: Path) -> None:
    thief = House(tmp_path / "other", ManualClock(), FixedRandom())
    (key,) = thief.sql("SELECT public_key FROM audit_logs")[0]
    thief.close()
    path = attacked(history, lambda s: s.execute("UPDATE audit_logs SET public_key = ?", (key,)))
    broken = checked(path).broken
    assert broken is not None
    assert broken.row == 1


@pytest.mark.requirement("A05")
def test_a_copy_on_a_medium_that_cannot_be_written_is_verified_and_left_alone(
    history: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "medium"
    folder.mkdir()
    path = Path(shutil.copy(history, folder / "forbear.db"))
    before = hashlib.sha256(path.read_bytes()).digest()
    folder.chmod(0o500)
    try:
        assert checked(path).head.sequence == ROWS
        assert [one.name for one in folder.iterdir()] == ["forbear.db"]
    finally:
        folder.chmod(0o700)
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_a_damaged_file_is_named_and_no_crash(history: Path, tmp_path: Path) -> None:
    path = tmp_path / "torn.db"
    path.write_bytes(history.read_bytes()[: history.stat().st_size // 2])
    try:
        broken = checked(path).broken
    except StoreUnavailable:
        return
    assert broken is not None
    assert "cannot be read" in broken.why


# --- opening --------------------------------------------------------------------------------


@pytest.mark.sqlite
def test_a_row_that_was_changed_does_not_open(house: House) -> None:
    op = house.waiting()
    house.sql("DROP TRIGGER events_no_update")
    house.sql("DROP TRIGGER events_no_delete")
    house.sql("INSERT INTO audit_operations (id) VALUES ('op_x')")
    header = "header = replace(header, 'answered', 'no_answer')"
    wide = (header, "previous = hash", "operation_id = 'op_x'")
    narrow = ("code = 5", "code = 99", "minute = 7", "epoch = 2", "operation = 2")
    for until, changes in ((0, narrow), (3, wide)):
        if until:
            older(house, until)
        for change in ("sealed = zeroblob(80)", "sealed = zeroblob(3)", "header = '{}'", *changes):
            house.sql("DROP TABLE IF EXISTS kept")
            house.sql("CREATE TABLE kept AS SELECT * FROM events WHERE sequence = 3")
            house.sql(f"UPDATE events SET {change} WHERE sequence = 3")
            with pytest.raises(LogUnreadable, match=r"row 3 .*audit verify"):
                house.trail()
            house.sql("DELETE FROM events WHERE sequence = 3")
            house.sql("INSERT INTO events SELECT * FROM kept")
        assert len(house.events(op)) == 3


_DEFLATED = zlib.compressobj(9, zlib.DEFLATED, -12)
_TEXT = _DEFLATED.compress(b"{" + b" " * 100_000_000 + b"}") + _DEFLATED.flush()


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0\0\0", id="no text"),
        pytest.param(b"\0\0\0[]", id="no object"),
        pytest.param(b"\x63\0\0" + packing.packed(0, None, {"a": 1})[3:], id="no such dictionary"),
        pytest.param(packing.packed(0, None, {"target": SECRET})[:-1], id="cut off"),
        pytest.param(packing.packed(0, None, {"target": SECRET}) + b"x", id="followed by more"),
        pytest.param(b"\1\0\0" + b"\xff" * 40, id="no deflate stream"),
        pytest.param(b"\1\0\0" + _TEXT, id="bomb"),
    ],
)
def test_what_was_sealed_and_is_no_body_is_refused_within_bounds(
    house: House, whole: bytes
) -> None:
    note(house)
    note(house)
    epoch = house.sql("SELECT wrapped_key FROM audit_epochs")[0][0]
    key = house.database.log.unwrapped(epoch)
    assert key is not None
    header = json.dumps(headers(house.database.path)[1], separators=(",", ":"))
    bound = f"{header}\n{_hash_at(house, 1)}".encode()
    house.sql("DROP TRIGGER events_no_update")
    sealed = sealing.EpochKey(key).seal(bound, whole)
    house.sql("UPDATE events SET sealed = ? WHERE sequence = 2", sealed)
    tracemalloc.start()
    with pytest.raises(LogUnreadable, match="row 2"):
        house.trail()
    assert tracemalloc.get_traced_memory()[1] < 4 * packing.MOST
    tracemalloc.stop()


def _hash_at(house: House, sequence: int) -> str:
    with closing(sqlite3.connect(house.file)) as store:
        return hash_at(store, sequence)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)
    | st.text() | st.sampled_from(["\x01", "\x02", "5e" * 32, "op_aaaaaaaaaaaaaaab", '"', "\\"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip
_NAMES = st.sampled_from(["next_at", "send_by", "binding", "set", "attempt"]) | st.text()


@pytest.mark.requirement("A10")
@settings(max_examples=200, deadline=None)
@given(
    at=st.integers(0, 2**45),
    of=st.sampled_from([None, "op_aaaaaaaaaaaaaaab", "op_x", "op_", "5e5e5e5e5e5e5e5e"]),
    body=st.dictionaries(_NAMES, _VALUES | st.dictionaries(_NAMES, _VALUES)),
)
def test_whatever_is_told_is_read_as_it_was_told(
    at: int, of: str | None, body: dict[str, Any]
) -> None:
    whole = packing.packed(at, of, body)
    assert packing.unpacked(at // 60_000 * 60_000, of, whole) == (at, body)


def test_the_format_of_rows_that_are_written_never_changes() -> None:
    """A row of today is read by every later program: another dictionary gets another number, and
    another code goes to the end."""
    digests = {
        number: hashlib.sha256(dictionary).hexdigest()[:16]
        for number, dictionary in packing.DICTIONARIES.items()
    }
    assert digests == {1: "97e4dcea1fda2042", 2: "96112bee0c329dba"}
    codes = hashlib.sha256(" ".join(audit.CODES[:38]).encode()).hexdigest()
    assert codes[:16] == "773466d641e48881"
    assert set(audit.CODES) == set(Code)
    assert len(audit.CODES) == len(Code)


@pytest.mark.parametrize("name", ["audit-seal.key", "audit-sign.key"])
def test_a_missing_key_of_a_log_is_said_with_its_fix_and_none_is_made(
    house: House, name: str
) -> None:
    note(house)
    path = house.home / "keys" / name
    key = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreUnavailable, match=rf"{name} is missing: restore it with forbear\.db"):
        Database(house.file)
    assert not path.exists()
    path.touch(0o600)
    path.write_bytes(b"short")
    with pytest.raises(StoreUnavailable, match=f"{name} is not a key"):
        Database(house.file)
    other = "5e" * 32
    path.write_text(other)
    with pytest.raises(StoreUnavailable, match=f"{name} is not the key of this audit log"):
        Database(house.file)
    path.write_bytes(key)
    Database(house.file).close_writer()


# --- stores that are older than sealing -----------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A store of the generation before sealing, with three plain rows."""
    return plain_store(tmp_path / "old", "0004")


@pytest.mark.requirement("A05", "D08")
@pytest.mark.sqlite
def test_plain_rows_stay_readable_and_the_chain_goes_on_from_them(
    plain: Path, tmp_path: Path
) -> None:
    before = checked(plain / "forbear.db")
    assert (before.broken, before.head.sequence, before.plain) == (None, 3, 3)
    house = House(plain, ManualClock(), FixedRandom())
    note(house)
    told = [event.body["target"] for event in house.trail()]
    assert told == ["provider-0", "provider-1", "provider-2", SECRET]
    path = copied(house, tmp_path / "copy.db")
    house.close()
    report = checked(path)
    assert (report.broken, report.head.sequence, report.plain, report.signed) == (None, 4, 3, 4)
    edit = attacked(path, lambda s: s.execute("UPDATE events SET body = '{}' WHERE sequence = 2"))
    broken = checked(edit).broken
    assert broken is not None
    assert broken.row == 2


# --- exports --------------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_an_export_is_verified_by_itself_and_opens_no_seal(history: Path) -> None:
    path = exported(history)
    assert checked(path) == checked(history)
    text = path.read_text()
    assert SECRET not in text
    assert "op_" not in text


def _of(lines: list[str], row: int) -> int:
    return next(i for i, line in enumerate(lines) if line.startswith(f'{{"row":{row},'))


@pytest.mark.requirement("A05")
@pytest.mark.parametrize("attack", ["edit", "delete", "cut", "garble", "header"])
def test_an_export_that_was_changed_is_named(history: Path, attack: str) -> None:
    path = exported(history)
    lines = path.read_text().splitlines()
    at = _of(lines, 57)
    told: dict[str, Any] = json.loads(lines[at])
    if attack == "edit":
        sealed = b64decode(told["sealed"])
        told["sealed"] = b64encode(bytes([sealed[0] ^ 1]) + sealed[1:]).decode()
        lines[at] = json.dumps(told)
    elif attack == "header":
        lines[at] = json.dumps(told | {"header": 7})
    elif attack == "delete":
        del lines[at]
    elif attack == "cut":
        del lines[at:]
    else:
        lines[at] = lines[at][:40]
    path.write_text("\n".join(lines))
    broken = checked(path).broken
    assert broken is not None
    assert broken.row == 57


def test_what_is_neither_store_nor_export_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"{}", b"SQLite format 3\0", b'{"log":"x","public_key":"y"}'):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(StoreUnavailable), verifying.read(path):
            pass


# --- from outside ---------------------------------------------------------------------------


@pytest.mark.requirement("A05")
@pytest.mark.sqlite
def test_the_trail_is_read_by_operation_code_and_time(tmp_path: Path) -> None:
    asyncio.run(_filtered(Store(tmp_path / "home", ManualClock(), FixedRandom())))


async def _filtered(store: Store) -> None:
    for at in range(0, 180_000, 30_000):
        body = {"at": at}
        add = partial(audit.append, operation_id=None, at=at, code=Code.PAUSED, body=body)
        await store.write(add)
    other = partial(audit.append, operation_id="op_x", at=180_000, code=Code.RESUMED, body={})
    await store.write(other)
    read = store.read
    assert [one.sequence for one in await read.trail(limit=3)] == [5, 6, 7]
    assert [one.code for one in await read.trail(operation_id="op_x")] == ["resumed"]
    paused = await read.trail(code="paused", since=90_000)
    assert [one.at for one in paused] == [90_000, 120_000, 150_000]
    await store.close()
