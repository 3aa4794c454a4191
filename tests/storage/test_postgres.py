"""What only a server brings: its schema, its homes, its restarts, and commits nobody hears of."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool
from tests import stores
from tests.storage.between import between
from tests.storage.house import House
from tests.support import ManualClock

from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import audit, postgres, schema, tallies, verifying
from forbear.storage.connecting import engine, failing
from forbear.storage.counters import COUNTERS_POSTGRESQL
from forbear.storage.errors import StoreUnavailable
from forbear.storage.guards import GUARDS_POSTGRESQL
from forbear.storage.migrations import upgrade
from forbear.storage.store import Store
from forbear.storage.tallies import Tally

pytestmark = [pytest.mark.anyio, pytest.mark.only_postgresql, pytest.mark.requirement("D07")]


def url(home: Path) -> str:
    found = stores.url_of(home)
    assert found is not None
    return found


def open_store(home: Path, address: str | None = None) -> Store:
    return Store(home, SystemClock(), SystemRandom(), url=address or url(home))


@asynccontextmanager
async def opened(home: Path, address: str | None = None) -> AsyncIterator[Store]:
    # A proxy may run on this loop.
    store = await asyncio.to_thread(open_store, home, address)
    try:
        yield store
    finally:
        await store.close()


# --- schema ---------------------------------------------------------------------------------

_CATALOGUE = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default"
    " FROM information_schema.columns WHERE table_schema = 'public'"
    " AND table_name <> 'alembic_version' ORDER BY 1, 2",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
    " AND tablename <> 'alembic_version' ORDER BY 1",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace"
    " AND conrelid::regclass::text <> 'alembic_version' ORDER BY 1, 2",
    "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
)


async def catalogue(address: str, make: Callable[[Connection], object]) -> list[list[Any]]:
    """What a database has after its schema was made."""
    database = engine(address, poolclass=NullPool)
    try:
        async with database.begin() as connection:
            await connection.run_sync(make)
            return [
                [tuple(row) for row in await connection.exec_driver_sql(query)]
                for query in _CATALOGUE
            ]
    finally:
        await database.dispose()


@pytest.mark.requirement("D08")
async def test_migrations_lead_to_the_schema_that_the_program_has(
    tmp_path: Path, server: stores.Server
) -> None:
    def stated(connection: Connection) -> None:
        schema.metadata.create_all(connection)
        for statement in (*GUARDS_POSTGRESQL, *COUNTERS_POSTGRESQL):
            connection.exec_driver_sql(statement)

    migrated = await catalogue(server.empty(tmp_path / "a"), partial(upgrade, generation=None))
    wanted = await catalogue(server.empty(tmp_path / "b"), stated)
    for one, other in zip(migrated, wanted, strict=True):
        assert one == other
    assert all(migrated)


@pytest.mark.requirement("D08", "D05")
async def test_first_starts_at_once_make_one_store(tmp_path: Path, server: stores.Server) -> None:
    address = server.empty(tmp_path / "home")
    made = await asyncio.gather(
        *(asyncio.to_thread(open_store, tmp_path / "home", address) for _ in range(4))
    )
    logs = {one.read._log.id for one in made}
    for one in made:
        await one.close()
    assert len(logs) == 1


# --- homes ----------------------------------------------------------------------------------


async def test_a_home_without_the_keys_of_the_store_is_refused_and_makes_none(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "home", tmp_path / "second"
    address = url(first)
    await open_store(first, address).close()
    with pytest.raises(StoreUnavailable, match="copy keys/ of another host"):
        open_store(second, address)
    assert not (second / "keys" / "store.key").exists()

    shutil.copytree(first / "keys", second / "keys", dirs_exist_ok=True)
    async with opened(first, address) as one, opened(second, address) as other:
        assert one.key == other.key


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("/forbear_", "/nowhere_"), "does not exist.* -> create it"),
        (("host=", "host=/nowhere"), "start the server, or correct FORBEAR_DATABASE_URL"),
    ],
)
@pytest.mark.requirement("D09")
def test_a_server_that_cannot_be_used_is_named_with_the_fix(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    address = url(tmp_path / "home").replace(*change)
    with pytest.raises(StoreUnavailable, match=says):
        open_store(tmp_path / "home", address)


@pytest.mark.requirement("D09")
@pytest.mark.parametrize(
    "asked", ["PREPARE twice AS SELECT 1; PREPARE twice AS SELECT 1", "EXECUTE never"]
)
async def test_a_pooler_that_loses_prepared_statements_is_named_with_the_fix(
    server: stores.Server, asked: str
) -> None:
    # What PgBouncer 1.18 was seen to answer: the statement of one client is there for another, or
    # is not there any more.
    async def ask() -> None:
        made = engine(server.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with failing("here"):
            async with made.connect() as connection:
                for one in asked.split("; "):
                    await connection.exec_driver_sql(one)

    with pytest.raises(StoreUnavailable, match=r"-> a pooler .*max_prepared_statements"):
        await ask()


@pytest.mark.requirement("D09", "A08")
def test_no_message_has_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        open_store(tmp_path / "home", "postgresql://user:geheim@127.0.0.1:1/db?password=hush")
    assert "geheim" not in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.requirement("D09")
def test_without_the_driver_the_fix_is_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = url(tmp_path / "home")
    monkeypatch.setitem(__import__("sys").modules, "asyncpg", None)
    with pytest.raises(StoreUnavailable, match=r"pip install 'forbear\[postgresql\]'"):
        open_store(tmp_path / "home", address)


async def stored(store: Store) -> int:
    found = await store.read._rows(sa.select(sa.func.count().label("n")).select_from(schema.pauses))
    return int(found[0]["n"])


# --- hearing of others ----------------------------------------------------------------------


@pytest.mark.requirement("D05")
async def test_a_commit_elsewhere_wakes_who_waits(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with opened(home) as one, opened(home) as other:
        async with asyncio.timeout(20):
            news = other.news
            other.look_elsewhere()
            await news.wait()  # it listens, and looks at what it may have missed
            for target in ("exp", "other"):
                news = other.news
                await one.write(partial(one.brakes.pause, target=target, by={}))
                await news.wait()
        assert await stored(other) == 2


@pytest.mark.requirement("D05")
async def test_where_no_news_comes_through_everybody_looks_every_second(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with between(url(home)) as pooler:
        pooler.deaf = True
        async with opened(home) as one, opened(home, pooler.url) as deaf:
            deaf.look_elsewhere()
            await one.write(partial(one.brakes.pause, target="exp", by={}))
            async with asyncio.timeout(30):
                for _ in range(3):
                    news = deaf.news
                    while not news.is_set():
                        deaf.look_elsewhere()
                        await asyncio.sleep(0.05)
            assert await stored(deaf) == 1


# --- servers that go away -------------------------------------------------------------------


def counted(connection: Connection, day: int = 1) -> None:
    """A unit that is wrong as soon as it is done twice."""
    tallies.add(connection, day * tallies.DAY, Tally.SAVED, ["test"])


async def total(store: Store) -> int:
    return sum(one.value for one in await store.figures.tallies() if one.labels == ("test",))


@pytest.mark.parametrize("fate", ["before", "after"])
@pytest.mark.requirement("D01", "D09")
async def test_a_commit_whose_answer_is_lost_is_made_once(tmp_path: Path, fate: str) -> None:
    home = tmp_path / "home"
    async with between(url(home)) as line, opened(home, line.url) as store:
        ran: list[int] = []

        def unit(connection: Connection) -> None:
            ran.append(len(ran))
            counted(connection)

        for _ in range(3):
            line.lose.append(fate)
            await store.write(unit)
        await asyncio.gather(*(store.write(counted) for _ in range(20)))

        assert line.cut == 3
        assert await total(store) == 23
        # One that was committed is not run again; one that was not, is.
        assert len(ran) == (3 if fate == "after" else 6)


@pytest.mark.requirement("D01", "D09", "D05")
@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_server_that_is_restarted_under_load_loses_and_doubles_nothing(
    tmp_path: Path, how: str
) -> None:
    """`immediate` is a crash: connections end in the middle of whatever they do."""
    with stores.own_server() as own:
        home = tmp_path / "home"
        address = own.empty(home)
        async with opened(home, address) as one, opened(home, address) as other:
            acknowledged = 0
            enough = asyncio.Semaphore(0)
            ends = asyncio.Event()

            async def load(store: Store) -> None:
                nonlocal acknowledged
                while not ends.is_set():
                    await store.write(counted)
                    acknowledged += 1
                    enough.release()

            writers = [asyncio.create_task(load(store)) for store in (one, other) * 5]
            for restarts in (True, True, True, False):
                for _ in range(100):
                    await enough.acquire()
                if restarts:
                    await asyncio.to_thread(own.restart, how)
            ends.set()
            # The server was always back within the patience of the writers.
            await asyncio.gather(*writers)

            assert await total(one) == await total(other) == acknowledged


STOPS = """
import asyncio, os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from sqlalchemy.util.concurrency import await_
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import postgres
from forbear.storage.store import Store
from forbear.storage.tallies import Tally

for name in ("BEGIN", "ENTER"):
    begins = str(getattr(postgres, name)).replace(f"'{postgres.IDLE}'", "'500'")
    setattr(postgres, name, sa.text(begins))

def unit(connection):
    connection.exec_driver_sql("UPDATE scopes SET turn = turn + 1")
    if not stopped:
        stopped.append(True)
        if sys.argv[3] == "within a statement":
            await_(connection.connection.driver_connection.prepare("SELECT 1"))
        print("in it", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    connection.exec_driver_sql("INSERT INTO scopes (key, updated_at) VALUES ('late', 1)")

async def main():
    store = Store(Path(sys.argv[1]), SystemClock(), SystemRandom(), url=sys.argv[2])
    await store.write(unit)
    print("done", flush=True)
    await store.close()

stopped = []
asyncio.run(main())
"""


@asynccontextmanager
async def stopped(home: Path, where: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that stopped itself while it has the lock. It ends well after that."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STOPS, str(home), url(home), where),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"in it\n"
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
    assert await process.stdout.readline() == b"done\n"
    assert await process.wait() == 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the lock does so for a second, and nobody may be silent for half of one."""
    for name, bound, short in (
        ("BEGIN", "WAITS", "1000"),
        ("ENTER", "WAITS", "1000"),
        ("_SILENT", "IDLE", "500"),
    ):
        told = str(getattr(postgres, name)).replace(str(getattr(postgres, bound)), short)
        monkeypatch.setattr(postgres, name, sa.text(told))


@pytest.mark.requirement("D02", "D05")
@pytest.mark.parametrize("where", ["between two", "within a statement"])
async def test_a_process_that_stops_within_a_transaction_holds_up_nobody_for_long(
    tmp_path: Path, soon: None, where: str
) -> None:
    home = tmp_path / "home"
    async with opened(home) as store:
        async with stopped(home, where), asyncio.timeout(postgres.IDLE / 1_000):
            await store.write(counted)
        # What it had begun is gone, and it did it again.
        assert [one["key"] for one in await store.read.scopes()] == ["late"]


@pytest.mark.requirement("D02", "D05")
async def test_a_process_that_stops_within_a_statement_does_not_hold_up_a_start(
    tmp_path: Path, soon: None
) -> None:
    home = tmp_path / "home"
    async with opened(home):
        pass
    async with stopped(home, "within a statement"), opened(home):
        pass


@pytest.mark.requirement("D05")
async def test_a_host_that_waits_for_the_server_is_not_silent(tmp_path: Path, soon: None) -> None:
    home = tmp_path / "home"

    def long(connection: Connection) -> None:
        ran.append(True)
        runs.set()
        connection.exec_driver_sql("SELECT pg_sleep(2.5)")

    ran: list[bool] = []
    runs = asyncio.Event()
    async with opened(home) as one, opened(home) as other:
        works = asyncio.create_task(one.write(long))
        await runs.wait()
        await asyncio.gather(works, other.write(counted))
        assert await total(one) == 1
    assert ran == [True]


# --- many at once ---------------------------------------------------------------------------


@pytest.mark.requirement("D05", "A02", "A05")
async def test_units_of_many_processes_run_one_after_the_other(tmp_path: Path) -> None:
    """Each reads a number and writes the next one, which is wrong as soon as two read the same."""
    home = tmp_path / "home"

    def next_number(connection: Connection) -> int:
        query = sa.text("SELECT coalesce(max(updated_at), 0) FROM scopes")
        number = int(connection.execute(query).scalar_one()) + 1
        scope = {"key": f"scope {number}", "updated_at": number}
        connection.execute(sa.insert(schema.scopes), scope)
        audit.append(connection, None, number, audit.Code.RESUMED, {"target": number})
        return number

    async with opened(home) as a, opened(home) as b, opened(home) as c, opened(home) as d:
        many = (store.write(next_number) for _ in range(50) for store in (a, b, c, d))
        numbers = await asyncio.gather(*many)
        assert sorted(numbers) == list(range(1, 201))
    with verifying.read(url(home)) as evidence:
        report = verifying.verify(evidence)
    assert (report.broken, report.head.sequence) == (None, 200)


async def test_a_unit_that_raises_is_undone_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def fails(connection: Connection) -> None:
        counted(connection)
        connection.exec_driver_sql("INSERT INTO scopes (key) VALUES (NULL)")

    async with opened(home) as store:
        units = [counted, fails, counted]
        came = await asyncio.gather(*map(store.write, units), return_exceptions=True)
        assert [type(one) for one in came] == [type(None), IntegrityError, type(None)]
        assert await total(store) == 2


async def test_the_time_is_that_of_the_server(tmp_path: Path) -> None:
    """This host's clocks are an hour behind and another day in another boot; nobody minds."""
    local = ManualClock()
    store = Store(tmp_path / "home", local, SystemRandom(), url=url(tmp_path / "home"))
    try:
        near = SystemClock().now().wall
        told = await store.write(lambda c: store.clock.now())
        assert abs(told.wall - near) < 10_000
        assert (told.boot_id, abs(told.boot - told.wall) < 10) == ("server", True)
        local.advance(5_000)
        assert store.clock.now().wall - told.wall == 5_000
        await store.write(lambda c: None)
        assert store.clock.now().wall < told.wall + 5_000, "looked at again with every batch"
    finally:
        await store.close()


def test_the_one_character_that_a_server_cannot_store_stands_in_no_way(house: House) -> None:
    house.new(key="a\0b", task="a\0b")
    assert house.ask(key="a\0b").joined
