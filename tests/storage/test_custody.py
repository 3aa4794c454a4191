"""Which stores are held as copies, and that the living one never is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.storage.auditing import plain_store
from tests.storage.house import House
from tests.storage.plans import plans
from tests.support import FixedRandom, ManualClock

from forbear.storage import keyfiles, mark
from forbear.storage.audit import Code
from forbear.storage.brakes import COPY
from forbear.storage.database import Database
from forbear.storage.errors import StoreUnavailable
from forbear.storage.store import Store

pytestmark = [pytest.mark.anyio, pytest.mark.sqlite, pytest.mark.requirement("D11")]

T = TypeVar("T")
BY = {"operator": "anna"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that names this machine."""
    monkeypatch.setattr(mark, "_CONTAINER", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("container", raising=False)
    path = tmp_path / "machine-id"
    named(path, "aaaa")
    monkeypatch.setattr(mark, "_MACHINE_ID", path)
    return path


async def on(home: Path, then: Callable[[Store], Awaitable[T]]) -> T:
    store = Store(home, ManualClock(), FixedRandom())
    try:
        return await then(store)
    finally:
        await store.close()


async def act(store: Store) -> None:
    """One event of the audit log."""
    await store.write(lambda c: store.brakes.pause(c, "exp", BY))
    await store.write(lambda c: store.brakes.resume(c, "exp", BY))


async def why(store: Store) -> str | None:
    """Why it is held, if it is."""
    found = [one["by"]["why"] for one in await store.read.pauses() if one["target"] == COPY]
    return found[0] if found else None


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A home that was used."""
    home = tmp_path / "home"
    await on(home, act)
    return home


def copied(home: Path, name: str = "elsewhere") -> Path:
    return Path(shutil.copytree(home, home.with_name(name)))


async def older(home: Path) -> Path:
    before = copied(home, "before")
    await on(home, act)
    _put_into(home, before)
    return home


def _put_into(home: Path, other: Path) -> None:
    """Write another store over the file of this one."""
    (home / "forbear.db").write_bytes((other / "forbear.db").read_bytes())


async def older_by_another_file(home: Path) -> Path:
    before = copied(home, "before")
    await on(home, act)
    (before / "forbear.db").replace(home / "forbear.db")
    return home


async def from_another_history(home: Path) -> Path:
    other = copied(home, "other")
    await on(home, act)
    await on(other, lambda store: store.adopt(BY))
    await on(other, act)
    _put_into(home, other)
    return home


async def from_a_whole_copy_in_its_place(home: Path) -> Path:
    before = copied(home, "before")
    shutil.rmtree(home)
    return Path(shutil.copytree(before, home))


async def without_its_mark(home: Path) -> Path:
    (home / "forbear.db.mark").unlink()
    return home


async def with_a_torn_mark(home: Path) -> Path:
    (home / "forbear.db.mark").write_bytes(b"\0" * 256)
    return home


async def without_its_file(home: Path) -> Path:
    (home / "forbear.db").unlink()
    return home


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (older, "ends at row"),
        (older_by_another_file, "a copy of another file"),
        (from_another_history, "another one than it was"),
        (from_a_whole_copy_in_its_place, "a copy of another file"),
        (without_its_mark, "no high-water mark"),
        (with_a_torn_mark, "no high-water mark"),
        (without_its_file, "of"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
async def test_a_store_that_its_mark_is_not_of_is_held_until_it_is_adopted(
    home: Path, happens: Callable[[Path], Awaitable[Path]], says: str
) -> None:
    where = await happens(home)
    told = await on(where, why)
    assert told is not None
    assert says in told
    assert await on(where, why) == told, "it stays so"

    async def adopts(store: Store) -> tuple[bool, bool]:
        return await store.adopt(BY), await store.adopt(BY)

    assert await on(where, adopts) == (True, False)
    assert await on(where, why) is None

    async def trail(store: Store) -> list[str]:
        return [event.code for event in await store.read.trail(limit=50)]

    assert (await on(where, trail))[-2:] == [Code.STORE_HELD, Code.STORE_ADOPTED]


def named(machine: Path, name: str) -> None:
    machine.write_text(f"{name}\n")


async def test_a_home_on_another_machine_is_held(home: Path, machine: Path) -> None:
    named(machine, "bbbb")
    told = await on(home, why)
    assert told is not None
    assert "another machine" in told
    await on(home, lambda store: store.adopt(BY))
    assert await on(home, why) is None


def content(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.glob("forbear.db*")}


async def test_a_copy_is_held_and_its_original_goes_on_unharmed(home: Path) -> None:
    before = content(home)
    elsewhere = copied(home)
    assert await on(elsewhere, why) is not None
    await on(elsewhere, lambda store: store.adopt(BY))
    assert content(home) == before
    assert await on(home, why) is None


async def test_nothing_that_happens_to_a_living_home_holds_it(
    home: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pair(store: Store) -> None:
        async def beside(other: Store) -> None:
            await act(other)
            await act(store)

        await on(home, beside)
        await act(store)

    async def killed_after_its_commit(store: Store) -> None:
        was = (home / "forbear.db.mark").read_bytes()
        await act(store)
        (home / "forbear.db.mark").write_bytes(was)

    await on(home, pair)
    assert await on(home, why) is None
    await on(home, killed_after_its_commit)
    assert await on(home, why) is None
    os.rename(home, elsewhere := home.with_name("renamed"))
    home = elsewhere
    assert await on(home, why) is None
    monkeypatch.setenv("container", "podman")
    named(machine, "ofanimage")
    assert await on(home, why) is None, "a container has no id of its own"
    monkeypatch.delenv("container")
    named(machine, "aaaa")
    assert await on(home, why) is None, "and it does not make the machine forget its own"


async def test_a_copy_of_a_store_in_which_nothing_ever_happened_is_a_new_one(
    tmp_path: Path, machine: Path
) -> None:
    home = tmp_path / "home"
    assert await on(home, why) is None
    for name in ("forbear.db", "forbear.db.mark"):
        copy = copied(home, f"without-{name}")
        (copy / name).unlink()
        assert await on(copy, why) is None
    named(machine, "bbbb")
    assert await on(copied(home), why) is None


async def test_a_mark_that_goes_while_the_store_is_open_is_written_again(home: Path) -> None:
    async def loses_it(store: Store) -> None:
        (home / "forbear.db.mark").unlink()
        await act(store)

    await on(home, loses_it)
    assert await on(home, why) is None


async def test_a_process_writes_nothing_into_a_file_that_takes_the_place_of_its_store(
    home: Path,
) -> None:
    other = copied(home)

    async def is_replaced(store: Store) -> None:
        (other / "forbear.db").replace(home / "forbear.db")
        with pytest.raises(StoreUnavailable, match=r"was replaced.*restart"):
            await act(store)

    before = os.stat(home / "forbear.db").st_ino
    await on(home, is_replaced)
    assert os.stat(home / "forbear.db").st_ino != before
    assert await on(home, why) is not None


async def test_a_home_of_a_program_without_marks_gets_its_first_one(
    tmp_path: Path,
) -> None:
    home = plain_store(tmp_path / "home", "0009")
    keyfiles.kept(home / "keys" / "store.key", lambda: "k" * 52, lost=None)
    assert await on(home, why) is None
    assert (home / "forbear.db.mark").stat().st_mode & 0o777 == 0o600


def test_looking_around_before_a_batch_reads_no_more_of_a_long_log(house: House) -> None:
    house.new()
    assert isinstance(house.database, Database)
    with plans(house) as seen, house.database.writer.connect() as connection:
        assert isinstance(house.database, Database)
        house.database.entered(connection)
    steps = [step for plan in seen.values() for step in plan]
    assert any("events" in step for step in steps), seen
    assert not [step for step in steps if step.startswith("SCAN events")], seen
