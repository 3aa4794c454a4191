"""Keys that are rotated, lost and replaced, with several processes on the store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.storage.auditing import (
    SECRET,
    Attack,
    attacked,
    checked,
    copied,
    exported,
    headers,
    note,
    notes,
    rows_of,
)
from tests.storage.house import House
from tests.storage.test_pruning import prune
from tests.support import FixedRandom, ManualClock

from forbear.storage import audit, keyfiles, rekeying, sealing
from forbear.storage.audit import Code
from forbear.storage.database import Database
from forbear.storage.errors import KeyInUse, StoreUnavailable
from forbear.storage.keyfiles import Elsewhere, Name, Places

BY = {"operator": "ada", "channel": "terminal"}
SEAL, SIGN = "audit-seal.key", "audit-sign.key"
MONTH = 30 * 86_400_000


def key_file(house: House, name: str) -> Path:
    return house.home / "keys" / name


def rotate(house: House, name: Name, *, promoted: bool = True) -> None:
    """Change a key as the store does; without `promoted`, die right after the commit."""
    unit = {Name.SEALING: rekeying.rotate_sealing, Name.SIGNING: rekeying.rotate_signing}[name]
    key = house.write(partial(unit, at=house.clock.now().wall, by=BY))
    if promoted:
        house.database.promote(name, key)


def new_epoch(house: House) -> None:
    house.write(partial(rekeying.rotate_epoch, at=house.clock.now().wall, by=BY))


def epochs_used(house: House) -> list[int]:
    return [header["epoch"] for header in headers(house.database.path)]


def readable(house: House) -> bool:
    return all(event.unreadable is None for event in house.trail())


def reopened(house: House) -> House:
    return House(house.home, house.clock, house.random, "own_later", claimed=False)


# --- epochs ---------------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_a_new_epoch_begins_every_thirty_days(house: House) -> None:
    note(house)
    house.clock.advance(MONTH - 1)
    note(house)
    house.clock.advance(1)
    note(house)
    note(house)
    assert epochs_used(house) == [1, 1, 2, 2]
    assert [row[1:] for row in house.sql("SELECT number, first FROM audit_epochs")] == [(1,), (3,)]
    assert readable(house)


def test_an_epoch_has_at_most_so_many_rows() -> None:
    epoch = sealing.Epoch(1, "", since=0, first=5)
    assert not epoch.is_over(1, 5 + sealing.ROWS - 1)
    assert epoch.is_over(1, 5 + sealing.ROWS)


@pytest.mark.requirement("A05", "D05")
def test_a_process_goes_on_in_the_epoch_that_another_began(house: House) -> None:
    with house.neighbour() as other:
        note(house)
        note(other)
        new_epoch(other)
        note(house)
        assert epochs_used(house) == [1, 1, 2, 2]
        notes(other, 101)
        assert prune(other, destroy=True).epochs == (1,)
        note(house)
        note(other)
        assert set(epochs_used(house)) == {2}
        assert readable(house)
        assert readable(other)
    assert checked(house.database.path).broken is None


def test_an_epoch_that_was_undone_is_not_used(house: House) -> None:
    """The same number was given to another key meanwhile."""

    def fails(connection: sa.Connection) -> None:
        audit.begin_epoch(connection, house.clock.now().wall)
        audit.append(connection, None, house.clock.now().wall, Code.PAUSED, {})
        raise ValueError

    note(house)
    with house.neighbour() as other:
        with pytest.raises(ValueError, match=r"^$"):
            house.write(fails)
        new_epoch(other)
        note(house)
        assert epochs_used(house) == [1, 2, 2]
        assert readable(other)


# --- the sealing key ------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_a_new_sealing_key_opens_everything_and_the_old_one_nothing(house: House) -> None:
    note(house)
    new_epoch(house)
    old = key_file(house, SEAL).read_text()
    rotate(house, Name.SEALING)
    assert key_file(house, SEAL).read_text() != old
    assert key_file(house, SEAL).stat().st_mode & 0o777 == 0o600
    assert not key_file(house, f"{SEAL}.next").exists()
    note(house)
    later = reopened(house)
    assert readable(later)
    assert later.trail()[2].body == {**BY, "key": "sealing", "how": "rotated"}
    for (wrapped,) in house.sql("SELECT wrapped_key FROM audit_epochs"):
        assert sealing.unwrap(bytes.fromhex(old), wrapped) is None
    later.close()
    key_file(house, SEAL).write_text(old)
    with pytest.raises(StoreUnavailable, match=f"{SEAL} is not the key of this audit log"):
        Database(house.file)


@pytest.mark.requirement("A05", "D05")
@pytest.mark.parametrize("name", [Name.SEALING, Name.SIGNING])
@pytest.mark.parametrize("promoted", [True, False])
def test_processes_go_on_while_another_changes_a_key(
    house: House, name: Name, promoted: bool
) -> None:
    with house.neighbour() as other:
        note(house)
        note(other)
        for one in (other, house):
            rotate(one, name, promoted=promoted)
            new_epoch(other)
            notes(house, 3)
            note(other, Code.DECIDED)
            note(house, Code.DECIDED)
        assert readable(house)
        assert readable(other)
    report = checked(house.database.path)
    assert (report.broken, report.keys) == (None, 3 if name is Name.SIGNING else 1)


@pytest.mark.requirement("D01", "D09")
@pytest.mark.parametrize("name", [Name.SEALING, Name.SIGNING])
def test_a_process_that_dies_after_the_commit_leaves_a_store_that_opens(
    house: House, name: Name
) -> None:
    note(house)
    before = house.database.log.places.file(name).read_text()
    rotate(house, name, promoted=False)
    assert house.database.log.places.file(name).read_text() == before
    later = reopened(house)
    assert later.database.log.places.file(name).read_text() != before
    assert not list((house.home / "keys").glob("*.next"))
    note(later, Code.DECIDED)
    assert readable(later)
    later.close()
    assert checked(house.database.path).broken is None


@pytest.mark.requirement("D01", "D05")
@pytest.mark.parametrize("name", [Name.SEALING, Name.SIGNING])
def test_two_that_change_a_key_at_the_same_time_lose_neither(house: House, name: Name) -> None:
    """The second changes it when the first has committed, and has not put its key in place yet."""
    note(house)
    with house.neighbour() as other:
        rotate(house, name, promoted=False)
        rotate(other, name, promoted=False)
        note(house, Code.DECIDED)
        note(other, Code.DECIDED)
    later = reopened(house)
    assert readable(later)
    later.close()
    assert checked(house.database.path).broken is None


@pytest.mark.requirement("D01", "D09")
@pytest.mark.parametrize("name", [Name.SEALING, Name.SIGNING])
def test_a_process_that_dies_before_the_commit_changed_nothing(house: House, name: Name) -> None:
    note(house)
    before = house.database.log.places.file(name).read_text()
    unit = {Name.SEALING: rekeying.rotate_sealing, Name.SIGNING: rekeying.rotate_signing}[name]

    def dies(connection: sa.Connection) -> None:
        unit(connection, house.clock.now().wall, BY)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        house.write(dies)
    assert list((house.home / "keys").glob("*.next"))
    note(house, Code.DECIDED)
    later = reopened(house)
    assert later.database.log.places.file(name).read_text() == before
    assert not list((house.home / "keys").glob("*.next"))
    note(later, Code.DECIDED)
    assert readable(later)
    later.close()
    assert checked(house.database.path).broken is None


_WORKS = """
import asyncio, sys
from functools import partial
from pathlib import Path
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import audit
from forbear.storage.keyfiles import Name
from forbear.storage.store import Store

async def writes(store):
    at = SystemClock().now().wall
    row = partial(audit.append, operation_id=None, at=at, code=audit.Code.DECIDED, body={})
    await store.write(row)

async def rotates(store):
    for name in Name:
        await store.rotate(name, {"operator": "ada"})
    await store.rotate_epoch({"operator": "ada"})

async def main():
    store = Store(Path(sys.argv[1]), SystemClock(), SystemRandom())
    while True:
        await {"writes": writes, "rotates": rotates}[sys.argv[2]](store)
        print("done", flush=True)

asyncio.run(main())
"""


@pytest.mark.requirement("D01", "D05", "A05")
@pytest.mark.sqlite
def test_a_process_that_is_killed_while_it_rotates_loses_nothing(house: House) -> None:
    """At whatever moment, with another process that writes on through all of it."""
    note(house)
    key_file(house, "store.key").write_text("k" * 52)

    def started(what: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _WORKS, str(house.home), what],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            text=True,
        )

    def did(process: subprocess.Popen[str], times: int) -> None:
        assert process.stdout is not None
        for _ in range(times):
            assert process.stdout.readline() == "done\n"

    with started("writes") as writer:
        for number in range(1, 4):
            with started("rotates") as rotator:
                did(rotator, number)
                rotator.kill()
            note(house)
            did(writer, 5)
        writer.kill()
    later = reopened(house)
    assert readable(later)
    note(later)
    later.close()
    report = checked(house.database.path)
    assert (report.broken, report.keys > 3) == (None, True)


# --- the signing key ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of a log whose signing key was changed twice: with rows 51 and 102."""
    folder = tmp_path_factory.mktemp("changed")
    with closing(House(folder / "home", ManualClock(), FixedRandom())) as house:
        for _ in range(2):
            notes(house, 50)
            rotate(house, Name.SIGNING)
        notes(house, 50)
        yield copied(house, folder / "copy.db")


@pytest.mark.requirement("A05")
def test_a_change_of_the_signing_key_is_followed(changed: Path) -> None:
    report = checked(changed)
    assert (report.broken, report.keys, report.signed) == (None, 3, 102)
    assert checked(exported(changed)) == report


@pytest.mark.requirement("A05", "A06")
def test_a_pruned_log_keeps_the_line_of_its_signing_keys(house: House, tmp_path: Path) -> None:
    for _ in range(3):
        notes(house, 120)
        rotate(house, Name.SIGNING)
    assert prune(house).start is not None
    notes(house, 50)
    report = checked(house.database.path)
    assert (report.broken, report.start, report.keys) == (None, 363, 4)
    copy = copied(house, tmp_path / "copy.db")
    assert checked(exported(copy)) == report
    second = "DELETE FROM checkpoints WHERE sequence = 242"
    broken = checked(attacked(copy, lambda store: store.execute(second))).broken
    assert broken is not None
    assert "not signed by the key of this log" in broken.why


def _thief(store: sqlite3.Connection, sequence: int, *, named_by: int | None) -> None:
    """Sign all checkpoints from a row on with a key of one's own, named by one of them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    (first,) = store.execute("SELECT public_key FROM audit_logs").fetchone()
    log = sealing.log_id(first)
    previous = sealing.GENESIS
    for row in store.execute("SELECT * FROM checkpoints ORDER BY number").fetchall():
        made = sealing.Checkpoint(*row)
        if made.sequence >= sequence:
            named = public if made.sequence == named_by else None
            made = sealing.Checkpoint(
                made.number, made.sequence, made.hash, made.at, previous, "", named
            )
            signature = key.sign(made.statement(log)).hex()
            store.execute(
                "UPDATE checkpoints SET previous = ?, signature = ?, next_key = ? WHERE number = ?",
                (previous, signature, named, made.number),
            )
            made = sealing.Checkpoint(
                made.number, made.sequence, made.hash, made.at, previous, signature, named
            )
        previous = made.digest(log)


def names_a_key_of_their_own(store: sqlite3.Connection) -> None:
    """A checkpoint names a key without the signature of the one before."""
    _thief(store, 51, named_by=51)


def signs_on_with_a_key_of_their_own(store: sqlite3.Connection) -> None:
    _thief(store, 102, named_by=None)


def swaps_the_named_key(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET next_key = ? WHERE sequence = 51", ("11" * 32,))


def forgets_the_named_key(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET next_key = NULL WHERE sequence = 51")


def adds_a_named_key(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET next_key = ? WHERE sequence = 1", ("11" * 32,))


def names_nonsense(store: sqlite3.Connection) -> None:
    store.execute("UPDATE checkpoints SET next_key = 'none' WHERE sequence = 51")


@pytest.mark.requirement("A05")
@pytest.mark.parametrize(
    ("attack", "row"),
    [
        (names_a_key_of_their_own, 51),
        (signs_on_with_a_key_of_their_own, 102),
        (swaps_the_named_key, 51),
        (forgets_the_named_key, 51),
        (adds_a_named_key, 1),
        (names_nonsense, 51),
    ],
)
def test_a_change_of_the_key_without_the_old_ones_signature_is_named(
    changed: Path, tmp_path: Path, attack: Attack, row: int
) -> None:
    broken = checked(attacked(changed, attack, tmp_path)).broken
    assert broken is not None
    assert (broken.row, "is not signed by the key of this log" in broken.why) == (row, True)


# --- a lost key -----------------------------------------------------------------------------


def replaced(house: House) -> None:
    opening = partial(rekeying.replacing_sealing, at=house.clock.now().wall, by=BY)
    Database(house.file, opening=opening).close_writer()


@pytest.mark.requirement("D09", "A05")
@pytest.mark.parametrize("wrong", [False, True])
def test_a_lost_sealing_key_is_replaced_and_the_old_rows_say_so(house: House, wrong: bool) -> None:
    op = house.waiting()
    path = key_file(house, SEAL)
    lost = path.read_text()
    path.unlink()
    if wrong:
        path.touch(0o600)
        path.write_text("5e" * 32)
    with pytest.raises(StoreUnavailable, match=r"keys replace sealing --lost --yes"):
        Database(house.file)
    assert path.exists() == wrong
    replaced(house)
    aside = key_file(house, f"{SEAL}.set-aside-1")
    assert (aside.read_text() if wrong else aside.exists()) == ("5e" * 32 if wrong else False)
    later = reopened(house)
    told = later.events(op)
    assert [event.code for event in told] == ["accepted", "reserved", "answered"]
    assert {event.unreadable for event in told} == {"the key of epoch 1 was lost"}
    note(later)
    assert later.trail()[-2].body == {**BY, "key": "sealing", "how": "replaced", "because": "lost"}
    assert later.trail()[-1].body["target"] == SECRET
    assert checked(house.database.path).broken is None
    rotate(later, Name.SEALING)
    note(later)
    later.close()
    new = path.read_text()
    path.write_text(lost)
    with pytest.raises(StoreUnavailable, match="is not the key of this audit log"):
        Database(house.file)
    path.write_text(new)


@pytest.mark.requirement("D09", "W01")
@pytest.mark.parametrize("begun", [False, True])
def test_nothing_is_sent_for_an_operation_whose_arguments_are_lost(
    house: House, begun: bool
) -> None:
    """Neither its own request nor a look at its job: a person is asked."""
    op = house.waiting() if begun else house.new()
    key_file(house, SEAL).unlink()
    replaced(house)
    later = reopened(house)
    later.due(op)
    assert later.reserve(op) is True
    stopped, case = later.read(op), later.case(op)
    assert case is not None
    assert (stopped.state, case.reason) == ("escalated", "integration_failure")
    assert len(later.attempts(op)) == begun
    assert "sealed with a key that is lost" in str(later.events(op)[-1].body)
    later.close()


@pytest.mark.requirement("D10")
def test_a_process_without_the_key_in_use_claims_nothing_that_others_can_run(house: House) -> None:
    key_file(house, SEAL).unlink()
    replaced(house)
    other = House(house.home, house.clock, house.random, "own_b")
    op = other.new()
    hidden = key_file(house, SEAL).rename(house.home / "hidden")
    with pytest.raises(StoreUnavailable, match="is not the key"):
        house.reserve(op)
    assert other.read(op) == op
    assert other.attempts(op) == []
    hidden.rename(key_file(house, SEAL))
    house.reserve(op)
    assert len(other.attempts(op)) == 1
    other.close()


def test_a_key_that_is_there_is_not_replaced(house: House) -> None:
    note(house)
    before = key_file(house, SEAL).read_text()
    with pytest.raises(KeyInUse):
        replaced(house)
    assert key_file(house, SEAL).read_text() == before
    assert rows_of(house) == 1
    key_file(house, SIGN).unlink()
    key_file(house, SEAL).unlink()
    with pytest.raises(StoreUnavailable, match=f"{SIGN} is missing"):
        replaced(house)


def test_a_key_that_others_can_read_is_refused_with_the_fix(house: House) -> None:
    note(house)
    key_file(house, SEAL).chmod(0o640)
    with pytest.raises(StoreUnavailable, match=rf"mode 0640, .*chmod 600 .*{SEAL}"):
        Database(house.file)


# --- keys elsewhere -------------------------------------------------------------------------


@pytest.mark.requirement("A05")
def test_keys_that_live_elsewhere_are_read_there_and_never_written(tmp_path: Path) -> None:
    values = {"seal": "ab" * 32, "sign": "cd" * 32}

    def at(name: str) -> Elsewhere:
        def read() -> str:
            if name not in values:
                raise StoreUnavailable(f"vault:{name}: it is gone")
            return values[name]

        return Elsewhere(f"vault:{name}", read)

    def opened(*sealing_keys: str) -> Database:
        found = {Name.SEALING: [at(one) for one in sealing_keys], Name.SIGNING: [at("sign")]}
        return Database(tmp_path / "forbear.db", Places(tmp_path / "keys", found))

    first = opened("seal")
    house = House.__new__(House)
    house.database, house.clock = first, ManualClock()
    note(house)
    with pytest.raises(KeyInUse, match=r"vault:seal is the sealing key in use"):
        rotate(house, Name.SEALING)
    first.close_writer()
    values["new"] = "ef" * 32
    second = opened("new", "seal")
    house.database = second
    rotate(house, Name.SEALING)
    note(house)
    second.close_writer()
    del values["seal"]
    opened("new").close_writer()
    assert not list(tmp_path.glob("keys/*"))
    del values["new"]
    with pytest.raises(StoreUnavailable, match="vault:new: it is gone"):
        opened("new")
    assert not list(tmp_path.glob("keys/*"))


@pytest.mark.requirement("A05")
def test_a_home_that_is_made_for_its_keys_is_its_users_alone(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    assert keyfiles.create(home / "keys" / "store.key", "k" * 52)
    for made in (home, home / "keys"):
        assert made.stat().st_mode & 0o777 == 0o700, made
