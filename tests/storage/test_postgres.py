"""What only a server brings: its schema, its homes, its restarts, and commits nobody hears of."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.pool import NullPool
from tests import stores

from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import schema
from forbear.storage.counters import COUNTERS_POSTGRESQL
from forbear.storage.errors import StoreUnavailable
from forbear.storage.guards import GUARDS_POSTGRESQL
from forbear.storage.migrations import upgrade
from forbear.storage.postgres import engine
from forbear.storage.store import Store

pytestmark = [pytest.mark.anyio, pytest.mark.only_postgresql, pytest.mark.requirement("D07")]


def url(home: Path) -> str:
    found = stores.url_of(home)
    assert found is not None
    return found


def open_store(home: Path, address: str | None = None) -> Store:
    return Store(home, SystemClock(), SystemRandom(), url=address or url(home))


@asynccontextmanager
async def opened(home: Path, address: str | None = None) -> AsyncIterator[Store]:
    store = open_store(home, address)
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
    with pytest.raises(StoreUnavailable, match="copy the folder of the first home"):
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
