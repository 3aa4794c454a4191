"""A pruned log: what may go, what stays, and that nobody else can make it begin later."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from tests.storage.auditing import (
    SECRET,
    Attack,
    attacked,
    checked,
    copied,
    exported,
    note,
    notes,
    older,
    rechained,
    rows_of,
    signed,
)
from tests.storage.house import ACCEPTED, DONE, LOST, House
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Option
from forbear.storage import pruning, rekeying
from forbear.storage.audit import Code
from forbear.storage.pruning import Plan, Windows
from forbear.storage.verifying import Head

HOUR = 3_600_000
DAY = 24 * HOUR
WINDOWS = Windows({("exp", "export"): (HOUR, 0)}, (30 * DAY, 0))
BY = {"operator": "ada", "channel": "terminal"}


def prune(house: House, before: int | None = None, *, destroy: bool = False) -> Plan:
    """Prune up to a time; all that may go by default."""
    now = house.clock.now().wall
    unit = partial(
        pruning.prune,
        before=now + DAY if before is None else before,
        now=now,
        windows=WINDOWS,
        body=BY,
        last=rows_of(house) + pruned(house),
        destroy_keys=destroy,
    )
    return house.write(unit)


def pruned(house: House) -> int:
    return int(house.sql("SELECT coalesce(max(sequence), 0) FROM prunings")[0][0])


@pytest.fixture(scope="module", params=[0, 220], ids=["new", "old and new"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path, Head]]:
    """A log that was pruned to row 201, a copy from before that, and a head from before it. An
    older program wrote it up to some row."""
    folder = tmp_path_factory.mktemp("pruned")
    with closing(House(folder / "home", ManualClock(), FixedRandom())) as house:
        notes(house, 250)
        if request.param:
            older(house, request.param)
        whole = copied(house, folder / "whole.db")
        plan = prune(house)
        assert plan.start is not None
        assert (plan.start.sequence, plan.rows, plan.held) == (201, 201, None)
        notes(house, 149)
        yield copied(house, folder / "copy.db"), whole, checked(whole).head


@pytest.fixture
def history(recorded: tuple[Path, Path, Head]) -> Path:
    return recorded[0]


# --- what goes ------------------------------------------------------------------------------


@pytest.mark.requirement("A06")
def test_a_pruned_log_begins_at_a_signed_checkpoint_and_is_whole_from_there(
    recorded: tuple[Path, Path, Head],
) -> None:
    history, whole, head = recorded
    report = checked(history)
    assert (report.broken, report.start, report.head.sequence) == (None, 201, 400)
    later = checked(history, head)
    assert (later.broken, later.told) == (None, True)
    early = Head(head.log, 150, "0" * 64)
    beyond = checked(history, early)
    assert (beyond.broken, beyond.told) == (None, False), "only the old export can tell"
    assert checked(whole, early).broken is not None


@pytest.mark.requirement("A06")
def test_the_start_of_a_pruned_log_is_at_a_head_that_was_kept_of_it(house: House) -> None:
    notes(house, 100)
    note(house)
    kept = checked(house.database.path).head
    notes(house, 60)
    prune(house)
    report = checked(house.database.path, kept)
    assert (report.start, report.broken, report.told) == (101, None, True)
    forged = checked(house.database.path, Head(kept.log, 101, "0" * 64)).broken
    assert forged is not None
    assert "another than when the head was taken" in forged.why


@pytest.mark.requirement("A06")
def test_an_export_of_a_pruned_log_is_verified_by_itself(history: Path) -> None:
    path = exported(history)
    assert checked(path) == checked(history)
    lines = path.read_text().splitlines()
    assert lines[1].startswith('{"checkpoint":')
    path.write_text("\n".join([lines[0], *lines[2:]]))
    broken = checked(path).broken
    assert broken is not None
    assert (broken.row, "row 202 is there instead" in broken.why) == (1, True)


@pytest.mark.requirement("A06")
def test_a_log_is_pruned_again_and_by_time(house: House) -> None:
    for _ in range(6):
        notes(house, 60)
        house.clock.advance(DAY)
    now = house.clock.now().wall
    first = prune(house, now - 4 * DAY)
    assert first.start is not None
    assert first.start.sequence == 61, "the last checkpoint before the row that is too young"
    notes(house, 60)
    second = prune(house, now - 2 * DAY)
    assert second.start is not None
    assert (second.start.sequence, second.rows) == (181, 120)
    report = checked(house.database.path)
    assert (report.broken, report.start) == (None, 181)
    assert signed(house)[0] == 181
    told = [event for event in house.trail() if event.code == Code.LOG_PRUNED]
    assert [event.body["rows"] for event in told] == [61, 120]
    assert told[0].body["operator"] == "ada"
    nothing = prune(house, now - 2 * DAY)
    assert (nothing.start, house.trail()[-1].code) == (None, Code.LOG_PRUNED)


@pytest.mark.requirement("A06")
def test_what_was_pruned_is_not_in_the_file_any_more(house: House) -> None:
    notes(house, 200)
    (sealed,) = house.sql("SELECT sealed FROM events WHERE sequence = 50")[0]
    (wrapped,) = house.sql("SELECT wrapped_key FROM audit_epochs")[0]
    house.write(partial(rekeying.rotate_epoch, at=house.clock.now().wall, by=BY))
    assert prune(house, destroy=True).epochs == (1,)
    house.database.forget_deleted()
    for file in house.home.glob("forbear.db*"):
        content = file.read_bytes()
        assert sealed not in content
        assert wrapped.encode() not in content


# --- what stays -----------------------------------------------------------------------------


@pytest.mark.requirement("A06")
def test_an_operation_that_is_not_over_keeps_its_rows_and_all_after_them(house: House) -> None:
    notes(house, 150)
    op = house.waiting()
    notes(house, 150)
    plan = prune(house)
    assert plan.start is not None
    assert plan.start.sequence == 101
    assert plan.held is not None
    assert plan.held == pruning.Held(151, f"{op.id} is not over (waiting)")
    assert house.codes(op)[0] == "accepted"
    assert house.trail()[-1].body["held"] == plan.held.why


@pytest.mark.requirement("A06")
def test_an_unclear_write_holds_until_it_is_decided_and_forgotten(house: House) -> None:
    notes(house, 101)
    op = house.send(house.new(), LOST)
    notes(house, 200)
    held = prune(house).held
    assert held is not None
    assert op.id in held.why
    house.decide(op, Option.ABANDON)
    held = prune(house).held
    assert held is not None
    assert "may still meet a repetition of itself" in held.why
    house.clock.advance(DAY)
    assert house.sql("SELECT id FROM audit_operations") == [(op.id,)]
    assert prune(house).held is None
    assert house.sql("SELECT id FROM audit_operations") == []
    assert checked(house.database.path).broken is None


@pytest.mark.requirement("A06")
def test_an_ended_operation_holds_for_its_repeat_window_and_its_key_window(house: House) -> None:
    house.clock.advance(12 * HOUR)
    op = house.poll(house.waiting(), DONE)
    assert op.state == "succeeded"
    notes(house, 100)

    def held(windows: Windows) -> bool:
        now = house.clock.now().wall
        plan = house.write(lambda c: pruning.plan(c, now + DAY, now, windows))
        return plan.held is not None

    house.clock.advance(HOUR - 1)
    assert held(WINDOWS)
    house.clock.advance(1)
    assert not held(WINDOWS)
    assert held(Windows({("exp", "export"): (HOUR, DAY)}, (0, 0))), "the provider knows the key"
    assert held(Windows({}, (30 * DAY, 0))), "nobody knows how long it is remembered"


@pytest.mark.requirement("A06")
def test_nothing_is_pruned_below_the_first_checkpoint_that_is_free(house: House) -> None:
    op = house.send(house.new(), ACCEPTED)
    notes(house, 150)
    before = rows_of(house)
    plan = prune(house)
    assert plan.start is None
    assert plan.held is not None
    assert op.id in plan.held.why
    assert rows_of(house) == before


# --- keys of epochs -------------------------------------------------------------------------


@pytest.mark.requirement("A06")
def test_an_epoch_without_rows_can_be_destroyed_and_its_export_stays_verifiable(
    house: House, tmp_path: Path
) -> None:
    notes(house, 101)
    whole = exported(copied(house, tmp_path / "old.db"))
    assert prune(house, destroy=True).epochs == (), "later rows are sealed with the same key"
    house.write(partial(rekeying.rotate_epoch, at=house.clock.now().wall, by=BY))
    notes(house, 101)
    assert prune(house).epochs == (1,)
    assert house.sql("SELECT number FROM audit_epochs") == [(1,), (2,)]
    house.write(partial(rekeying.rotate_epoch, at=house.clock.now().wall, by=BY))
    notes(house, 101)
    assert prune(house, destroy=True).epochs == (1, 2)
    assert house.sql("SELECT number FROM audit_epochs") == [(3,)]
    assert house.trail()[-1].body["epochs_destroyed"] == [1, 2]
    assert checked(whole).broken is None
    assert checked(house.database.path).broken is None


def test_a_row_whose_epoch_has_no_key_says_so_and_the_others_are_read(house: House) -> None:
    op = house.waiting()
    house.write(partial(rekeying.rotate_epoch, at=house.clock.now().wall, by=BY))
    note(house, Code.WISHED, op.id)
    house.sql("DELETE FROM audit_epochs WHERE number = 1")
    told = house.events(op)
    assert [event.code for event in told] == ["accepted", "reserved", "answered", "wished"]
    assert told[0].unreadable == "the key of epoch 1 was destroyed"
    assert (told[0].body, told[-1].unreadable, told[-1].body["target"]) == ({}, None, SECRET)


# --- attacks on a copy ----------------------------------------------------------------------


def edits_the_first_row(store: sqlite3.Connection) -> None:
    store.execute("UPDATE events SET sealed = zeroblob(80) WHERE sequence = 202")


def edits_the_start(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET hash = ? WHERE sequence = 201", ("1" * 64,))


def moves_the_start(store: sqlite3.Connection) -> None:
    """The start says another row, and the rows up to it are gone."""
    store.execute("DELETE FROM events WHERE sequence <= 220")
    store.execute("UPDATE checkpoints SET sequence = 220 WHERE sequence = 201")


def takes_the_next_checkpoint(store: sqlite3.Connection) -> None:
    """Begin at a checkpoint that is signed, but that no row says the log begins at."""
    (later,) = store.execute(
        "SELECT sequence FROM checkpoints WHERE sequence > 300 ORDER BY sequence LIMIT 1"
    ).fetchone()
    store.execute("DELETE FROM events WHERE sequence <= ?", (later,))
    store.execute("DELETE FROM checkpoints WHERE sequence < ?", (later,))


def removes_the_start(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM checkpoints WHERE sequence = 201")


def removes_the_rows_after_the_start(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM events WHERE sequence BETWEEN 202 AND 210")


def removes_the_row_that_says_so(store: sqlite3.Connection) -> None:
    """The end is cut off, with its checkpoints, before the row that names the start."""
    store.execute("DELETE FROM events WHERE sequence > 250")
    store.execute("DELETE FROM checkpoints WHERE sequence > 250")


def forges_the_row_that_says_so(store: sqlite3.Connection) -> None:
    """Make the log begin later: the signed row is rewritten to name a later checkpoint."""
    (sequence, whole) = store.execute(
        "SELECT sequence, hash FROM checkpoints WHERE sequence > 201 ORDER BY sequence LIMIT 1"
    ).fetchone()
    named = f'"start":{{"hash":"{whole}","sequence":{sequence}}}}}'
    assert sequence == 251, "the row that says so is the first that is signed after the start"
    store.execute(
        "UPDATE events SET header = substr(header, 1, instr(header, '\"start\"') - 1) || ? "
        "WHERE sequence = 251",
        (named,),
    )
    rechained(store, 251)


def changes_a_column_of_the_row_that_says_so(store: sqlite3.Connection) -> None:
    """Its header is a text, and its columns are what it is found by."""
    store.execute("UPDATE events SET minute = minute + 1 WHERE sequence = 251")


def removes_everything(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM events")
    store.execute("DELETE FROM checkpoints WHERE sequence > 201")


@pytest.mark.requirement("A06")
@pytest.mark.parametrize(
    ("attack", "row", "why"),
    [
        (edits_the_first_row, 202, "was changed"),
        (edits_the_start, 201, "not signed by the key"),
        (moves_the_start, 220, "not signed by the key"),
        (takes_the_next_checkpoint, 1, "no signed row says so"),
        (removes_the_start, 1, "row 202 is there instead"),
        (removes_the_rows_after_the_start, 202, "is missing"),
        (removes_the_row_that_says_so, 1, "no signed row says so"),
        (forges_the_row_that_says_so, 202, "are not those"),
        (changes_a_column_of_the_row_that_says_so, 251, "was changed"),
        (removes_everything, 1, "no signed row says so"),
    ],
)
def test_another_beginning_of_a_pruned_log_is_named(
    history: Path, tmp_path: Path, attack: Attack, row: int, why: str
) -> None:
    broken = checked(attacked(history, attack, tmp_path)).broken
    assert broken is not None
    assert why in broken.why
    assert broken.row == row


@pytest.mark.requirement("A06")
@pytest.mark.parametrize("end", [50, 101, 150, 201, 240])
def test_an_unsigned_removal_of_the_beginning_is_a_break(
    recorded: tuple[Path, Path, Head], tmp_path: Path, end: int
) -> None:
    whole = recorded[1]

    def removes(store: sqlite3.Connection) -> None:
        store.execute("DELETE FROM events WHERE sequence <= ?", (end,))

    def removes_with_checkpoints(store: sqlite3.Connection) -> None:
        removes(store)
        kept = "SELECT max(sequence) FROM checkpoints WHERE sequence <= ?"
        store.execute(f"DELETE FROM checkpoints WHERE sequence < ({kept})", (end,))

    for attack in (removes, removes_with_checkpoints):
        broken = checked(attacked(whole, attack, tmp_path)).broken
        assert broken is not None
        assert "is missing" in broken.why


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE sequence = 202",
        "DELETE FROM events",
        "DELETE FROM checkpoints WHERE sequence = 201",
        "DELETE FROM prunings",
        "UPDATE prunings SET sequence = 300",
        "INSERT INTO prunings SELECT sequence, hash, 251 FROM checkpoints WHERE sequence = 351",
        "INSERT INTO prunings SELECT sequence, hash, 251 FROM events WHERE sequence = 240",
        "INSERT INTO prunings SELECT sequence, hash, 301 FROM checkpoints WHERE sequence = 251",
    ],
)
def test_no_statement_of_ours_deletes_more_than_a_signed_row_says(
    house: House, statement: str
) -> None:
    notes(house, 250)
    prune(house)
    notes(house, 149)
    assert pruned(house) == 201
    with pytest.raises(IntegrityError, match=r"only appended to|only to a signed"):
        house.sql(statement)
