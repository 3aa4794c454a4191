"""Which databases are held as copies, or as set back, and that the living one never is."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.pool import NullPool
from tests import stores
from tests.storage.test_custody import BY, act, why

from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import servermark
from forbear.storage.brakes import COPY
from forbear.storage.connecting import connected, engine
from forbear.storage.mark import Head, Marked, MarkFile
from forbear.storage.schema import metadata
from forbear.storage.store import Store

pytestmark = [pytest.mark.anyio, pytest.mark.only_postgresql, pytest.mark.requirement("D07", "D11")]


def server() -> stores.Server:
    assert stores.current.server is not None
    return stores.current.server


def url(home: Path) -> str:
    found = stores.url_of(home)
    assert found is not None
    return found


@asynccontextmanager
async def opened(home: Path) -> AsyncIterator[Store]:
    store = Store(home, SystemClock(), SystemRandom(), url=url(home))
    try:
        yield store
    finally:
        await store.close()


async def held(home: Path) -> str | None:
    async with opened(home) as store:
        return await why(store)


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A home that was used."""
    home = tmp_path / "home"
    async with opened(home) as store:
        await act(store)
    return home


def another_host(home: Path, name: str = "other") -> Path:
    """The home of another host: the keys, and nothing else."""
    other = home.with_name(name)
    shutil.copytree(home / "keys", other / "keys")
    return other


# --- setting a database back ------------------------------------------------------------------


async def kept(home: Path) -> dict[str, bytes]:
    """All rows of a database."""
    connection = await connected(url(home))
    found = {}
    for table in metadata.sorted_tables:
        rows: list[bytes] = []

        async def take(data: bytes, rows: list[bytes] = rows) -> None:
            rows.append(data)

        await connection.copy_from_table(table.name, output=take, format="binary")
        found[table.name] = b"".join(rows)
    await connection.close()
    return found


async def put_back(home: Path, rows: dict[str, bytes]) -> None:
    """Let the database be as it was, as a replica is that lacks the last commits. No trigger and
    no constraint is asked."""
    connection = await connected(url(home))
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for table in metadata.sorted_tables:
            await connection.execute(f"DELETE FROM {table.name}")
        for name, data in rows.items():

            async def give(data: bytes = data) -> AsyncIterator[bytes]:
                yield data

            await connection.copy_to_table(name, source=give(), format="binary")
    await connection.close()


async def lost_the_last_commits(home: Path) -> None:
    rows = await kept(home)
    async with opened(home) as store:
        await act(store)
    await put_back(home, rows)


async def another_history(home: Path) -> None:
    """It lacks them, and another host that had not seen them went on."""
    other = another_host(home)
    server().share(home, other)
    await lost_the_last_commits(home)
    async with opened(other) as store:
        assert await why(store) is None, "nothing can tell it"
        for _ in range(3):
            await act(store)


async def cloned(home: Path) -> None:
    """Restored from a dump, say, into another database."""
    stores.copy(home, home.with_name("clone"))
    server().share(home.with_name("clone"), home)


async def made_anew(home: Path) -> None:
    """A database that knows nothing, for a home that knows that something happened."""
    server().empty(home)


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lost_the_last_commits, "ends at row"),
        (another_history, "another one than it was"),
        (cloned, "a copy of another one"),
        (made_anew, "ends at row 0"),
    ],
)
async def test_a_database_that_may_not_be_the_living_one_is_held_until_it_is_adopted(
    home: Path, happens: Callable[[Path], Awaitable[None]], says: str
) -> None:
    await happens(home)
    async with opened(home) as store:
        assert says in (await why(store) or "")
        assert await store.adopt(BY)
        assert await why(store) is None
        await act(store)
    assert await held(home) is None


@pytest.mark.parametrize("happens", [lost_the_last_commits, another_history])
async def test_a_running_process_notices_it_with_its_next_transaction(
    home: Path, happens: Callable[[Path], Awaitable[None]]
) -> None:
    async with opened(home) as store, opened(home) as beside:
        await happens(home)
        assert await why(store) is None
        await store.write(lambda c: store.brakes.pause(c, "exp", BY))
        assert await why(store) is not None
        # What it brought is stored, and whoever else is of this home goes on as well.
        assert {one["target"] for one in await store.read.pauses()} == {COPY, "exp"}
        await beside.write(lambda c: beside.brakes.resume(c, "exp", BY))
        assert await beside.adopt(BY)
        await act(store)
        assert await why(store) is None


async def test_a_clone_is_known_to_a_home_that_never_saw_what_it_was_made_of(home: Path) -> None:
    other = another_host(home)
    await cloned(home)
    server().share(home, other)
    assert "a copy of another one" in (await held(other) or "")
    # Whoever comes next finds it held, and no second time after it was adopted.
    async with opened(home) as store:
        assert await why(store) is not None
        await store.adopt(BY)
    assert await held(home) is None
    assert await held(other) is None


async def test_a_host_that_saw_more_than_an_adopted_clone_has_holds_it_again(home: Path) -> None:
    seen = another_host(home)
    server().share(home, seen)
    stores.copy(home, home.with_name("clone"))
    async with opened(seen) as store:
        await act(store)
    server().share(home.with_name("clone"), home)
    server().share(home, seen)
    async with opened(home) as store:
        await store.adopt(BY)
    # Three events more than were in the dump: it was held, adopted and signed.
    assert "another one than it was" in (await held(seen) or "")


# --- what the living one goes through ------------------------------------------------------------


async def nothing(home: Path) -> None:
    pass


async def a_restart(home: Path) -> None:
    async with opened(home) as store:
        await act(store)


async def work_of_another_host(home: Path) -> None:
    other = another_host(home)
    server().share(home, other)
    async with opened(other) as store:
        await act(store)


async def no_mark(home: Path) -> None:
    (home / servermark.NAME).unlink()


async def a_torn_mark(home: Path) -> None:
    path = home / servermark.NAME
    path.write_bytes(path.read_bytes().replace(b" - ", b" x ", 1))


async def a_mark_of_another_row_half_written(home: Path) -> None:
    """The number of one row, and the hash of another."""
    kept = MarkFile(home / servermark.NAME)
    found = kept.read()
    assert found is not None
    kept.write(Marked(Head(found.head.sequence + 1, found.head.hash), found.file))
    kept.close()


@pytest.mark.parametrize(
    "happens",
    [
        *(nothing, a_restart, work_of_another_host, no_mark, a_torn_mark),
        a_mark_of_another_row_half_written,
    ],
)
async def test_the_living_database_is_never_held(
    home: Path, happens: Callable[[Path], Awaitable[None]]
) -> None:
    async with opened(home) as store:
        await happens(home)
        await act(store)
        assert await why(store) is None
    assert await held(home) is None


async def test_a_log_that_was_pruned_beyond_the_mark_is_the_same(home: Path) -> None:
    other = another_host(home)
    server().share(home, other)
    connection = await connected(url(home))
    async with opened(other) as store:
        await act(store)
    # As `audit prune` does, without waiting for the days it keeps.
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "DELETE FROM events WHERE sequence < (SELECT max(sequence) FROM events)"
        )
    await connection.close()
    assert await held(home) is None


async def test_a_new_host_knows_nothing_and_learns_at_once(home: Path) -> None:
    other = another_host(home)
    server().share(home, other)
    assert await held(other) is None
    marked = MarkFile(other / servermark.NAME).read()
    assert marked is not None
    async with opened(other) as store:
        assert marked.head.sequence == len(await events(store))


async def events(store: Store) -> list[object]:
    connection = await connected(url(store.home))
    try:
        return list(await connection.fetch("SELECT sequence FROM events"))
    finally:
        await connection.close()


async def test_processes_of_a_home_never_set_its_mark_back(home: Path) -> None:
    mark = servermark.ServerMark(home)
    at = mark.read()
    assert at != Head()
    mark.set(Head(at.sequence - 1, "0" * 64))
    assert mark.read() == at
    mark.set(Head(at.sequence - 1, "0" * 64), back=True)
    assert mark.read() == Head(at.sequence - 1, "0" * 64)
    mark.close()


async def test_who_may_not_ask_for_the_name_of_the_server_goes_by_the_mark(home: Path) -> None:
    await lost_the_last_commits(home)
    connection = await connected(url(home))
    name = f"plain_{server().database_name(home)}"
    await connection.execute(f"DROP ROLE IF EXISTS {name}")
    await connection.execute(f"CREATE ROLE {name}")
    await connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        await connection.execute(f"GRANT SELECT ON events, whereabouts TO {name}")
        mark = servermark.ServerMark(home)
        reader = engine(url(home), poolclass=NullPool)
        async with reader.connect() as asked:
            await asked.exec_driver_sql(f"SET ROLE {name}")
            assert "ends at row" in (await asked.run_sync(mark.doubt) or "")
        await reader.dispose()
        mark.close()
    finally:
        await connection.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        await connection.execute(f"REVOKE SELECT ON events, whereabouts FROM {name}")
        await connection.execute(f"DROP ROLE {name}")
        await connection.close()
