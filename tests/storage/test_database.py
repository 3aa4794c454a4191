"""The file: made by migrations, private, shared by processes, and clear about what is wrong."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.storage.house import House, holding
from tests.support import FixedRandom, ManualClock

from forbear.server.clock import SystemRandom
from forbear.storage import counters, guards, migrations, schema
from forbear.storage.database import Database
from forbear.storage.errors import StoreTooNew, StoreUnavailable
from forbear.storage.store import Store

pytestmark = pytest.mark.sqlite

TOP = Path(__file__).parents[2]


def shape(connection: sa.Connection) -> dict[str, str]:
    """Every table, index and trigger, as its text without spelling."""
    found = connection.exec_driver_sql(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "AND name <> 'alembic_version'"
    )
    return {name: _parts(text) for name, text in found}


def _parts(text: str) -> str:
    """The parts of a definition in an order of our own; alembic and metadata sort differently."""
    plain = re.sub(r"\s+", " ", text.replace('"', "").replace("( ", "(").replace(" )", ")"))
    head, _, body = plain.partition("(")
    return head + "|".join(sorted(part.strip(" ,)") for part in re.split(r", (?=[A-Za-z])", body)))


def test_the_migrations_make_exactly_the_schema_that_the_program_knows(
    tmp_path: Path, house: House
) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path / 'direct.db'}")
    with other.begin() as connection:
        schema.metadata.create_all(connection)
        for trigger in (*guards.GUARDS_SQLITE, *counters.COUNTERS_SQLITE):
            connection.exec_driver_sql(trigger)
        direct = shape(connection)
    other.dispose()
    with house.database.writer.connect() as connection:
        assert shape(connection) == direct
        inspector = sa.inspect(connection)
        for table in schema.metadata.sorted_tables:
            known = {column.name: column for column in table.columns}
            stored = {column["name"]: column for column in inspector.get_columns(table.name)}
            assert stored.keys() == known.keys()
            for name, column in known.items():
                assert stored[name]["nullable"] == column.nullable, (table.name, name)
            checks = {check["name"] for check in inspector.get_check_constraints(table.name)}
            wanted = {one.name for one in table.constraints if isinstance(one, sa.CheckConstraint)}
            assert checks == wanted
    assert len(direct) > 20


def test_a_store_is_durable_by_default(house: House) -> None:
    with house.database.writer.connect() as connection:
        asked = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


# --- generations ----------------------------------------------------------------------------


@pytest.mark.requirement("D08")
def test_a_newer_store_is_refused_and_left_alone(house: House) -> None:
    house.new()
    house.sql("UPDATE alembic_version SET version_num = '0099'")
    before = house.sql("SELECT * FROM operations")
    with pytest.raises(StoreTooNew, match=f"0099.*{schema.GENERATION}.*newer forbear"):
        Database(house.file)
    assert house.sql("SELECT * FROM operations") == before
    assert house.sql("SELECT * FROM alembic_version") == [("0099",)]


@pytest.fixture
def next_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program one generation ahead: the migrations of today and one more, which may be edited."""
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder)
    script = folder / "versions" / "next.py"
    script.write_text(
        "from alembic import op\n"
        "import sqlalchemy as sa\n"
        "revision = 'next'\n"
        f"down_revision = '{schema.GENERATION}'\n"
        "def upgrade():\n"
        "    op.add_column('scopes', sa.Column('colour', sa.Text(), server_default='blue'))\n"
    )
    monkeypatch.setattr(migrations, "__file__", str(folder / "__init__.py"))
    monkeypatch.setattr(schema, "GENERATION", "next")
    return script


@pytest.mark.requirement("D08")
def test_a_store_of_an_older_generation_is_brought_up_to_date_and_loses_nothing(
    house: House, next_generation: Path
) -> None:
    op = house.waiting()
    events = house.sql("SELECT * FROM events")
    newer = House(house.home, house.clock, house.random, "own_b")
    assert newer.sql("SELECT version_num FROM alembic_version") == [("next",)]
    assert newer.sql("SELECT colour FROM scopes") == [("blue",)]
    assert newer.read(op) == op
    assert newer.sql("SELECT * FROM events") == events
    newer.close()


@pytest.mark.requirement("D08")
def test_a_store_with_long_digests_and_closed_reservations_loses_nothing(house: House) -> None:
    op = house.waiting("sales")
    assert house.sql("SELECT count(*) FROM reservations") == [(0,)]
    guard = house.sql("SELECT sql FROM sqlite_master WHERE name = 'identity_stays'")[0][0]
    names = ("intent", "binding", "section", "request_digest")
    changes = ", ".join(f"{name} = lower(hex({name}))" for name in names)
    house.sql("DROP TRIGGER identity_stays")
    house.sql(f"UPDATE operations SET {changes}")
    house.sql(guard)
    house.sql("UPDATE attempts SET request_digest = lower(hex(request_digest))")
    house.sql("INSERT INTO reservations SELECT id, 'a', 1, 0, FALSE FROM attempts")
    house.sql("INSERT INTO reservations SELECT id, 'b', 1, 0, TRUE FROM attempts")
    house.sql("DROP TABLE whereabouts")
    house.sql("UPDATE alembic_version SET version_num = '0011'")
    newer = House(house.home, house.clock, house.random, "own_b")
    assert newer.read(op) == op
    assert [one.request_digest for one in newer.attempts(op)] == [op.request_digest]
    assert newer.sql("SELECT scope FROM reservations") == [("b",)]
    assert newer.ask("sales").operation.id == op.id, "the intent is found"
    assert newer.sql("SELECT length(intent) FROM operations") == [(32,)]
    newer.close()


@pytest.mark.requirement("D08", "D09")
def test_an_upgrade_that_fails_changes_nothing(house: House, next_generation: Path) -> None:
    op = house.waiting()
    before = house.sql("SELECT version_num FROM alembic_version")
    script = next_generation.read_text()
    next_generation.write_text(script + "    op.execute('INSERT INTO nowhere VALUES (1)')\n")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        Database(house.file)
    assert house.sql("SELECT version_num FROM alembic_version") == before
    assert "colour" not in [row[1] for row in house.sql("PRAGMA table_info(scopes)")]
    assert house.read(op) == op


# --- first start, modes, keys ---------------------------------------------------------------


def test_files_and_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        home = tmp_path / "deep" / "home"
        store = Store(home, ManualClock(), FixedRandom())
        store.liveness.claim()
        asyncio.run(_write_once(store))
    finally:
        os.umask(umask)
    modes = {
        str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode)
        for path in (home, *home.rglob("*"))
    }
    folders = {name for name, mode in modes.items() if (home / name).is_dir()}
    assert {modes[name] for name in folders} == {0o700}
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}
    assert {"forbear.db", "forbear.db-wal", "forbear.db.lock", "keys/store.key"} <= modes.keys()
    asyncio.run(store.close())


async def _write_once(store: Store) -> None:
    await store.write(store.ledger.recover)


EIGHT_STARTS = """\
import asyncio, os, sys
from pathlib import Path
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage import migrations
from forbear.storage.store import Store

async def start():
    store = Store(Path(sys.argv[1]), SystemClock(), SystemRandom())
    await store.write(store.ledger.recover)
    sys.stdout.write(store.key.hex() + chr(10))
    await store.close()

gate, push = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(push)
        os.read(gate, 1)
        asyncio.run(start())
        sys.stdout.flush()
        os._exit(0)
os.close(push)
raise SystemExit(sum(os.wait()[1] for _ in range(8)))
"""


def test_eight_first_starts_at_once_make_one_store_with_one_key(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EIGHT_STARTS, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    keys = ran.stdout.split()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.requirement("W17", "R14")
def test_a_store_without_its_key_is_refused_before_it_forgets_what_was_done(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    asyncio.run(Store(home, ManualClock(), FixedRandom()).close())
    (home / "keys" / "store.key").unlink()
    with pytest.raises(StoreUnavailable, match=r"store\.key is missing: restore it"):
        Store(home, ManualClock(), FixedRandom())
    assert not (home / "keys" / "store.key").exists()


# --- broken stores --------------------------------------------------------------------------


@pytest.mark.requirement("D09")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"This is no database, it is a letter. " * 400, "not a database"),
        (b"SQLite format 3\x00" + b"\xff" * 8_000, "malformed|not a database"),
    ],
    ids=["a letter", "a broken head"],
)
def test_a_file_that_is_no_database_is_refused_and_named(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "forbear.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=says) as refused:
        Database(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.requirement("D09")
def test_a_corrupt_page_is_a_clear_error_for_readers_and_writers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = House(home, ManualClock(), FixedRandom())
    op = first.new()
    ((page,),) = first.sql("SELECT rootpage FROM sqlite_master WHERE name = 'operations'")
    first.close()
    with (home / "forbear.db").open("r+b") as file:
        file.seek((page - 1) * 4_096)
        file.write(b"\x5a" * 4_096)
    (home / "keys" / "store.key").write_bytes(b"k" * 52)

    async def use() -> None:
        store = Store(home, ManualClock(), FixedRandom())
        try:
            with pytest.raises(StoreUnavailable, match=r"cannot be read: .*malformed"):
                await store.read.due(2**60)
            with pytest.raises(StoreUnavailable, match=r"nothing was stored: .*malformed"):
                await store.write(lambda c: store.ledger.reserve(c, op.id, holding()))
        finally:
            await store.close()

    asyncio.run(use())


WITHOUT_PRIVILEGE = """\
import ctypes, os, sys
for capability in (1, 2):  # root's leave to pass by the modes of files
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
"""

OPEN_STORE = """\
import asyncio, sys
from pathlib import Path
from forbear.server.clock import SystemClock, SystemRandom
from forbear.storage.errors import StoreUnavailable
from forbear.storage.store import Store
try:
    store = Store(Path(sys.argv[1]), SystemClock(), SystemRandom())
except StoreUnavailable as error:
    print(error)
    raise SystemExit(3)
asyncio.run(store.close())
"""


@pytest.mark.requirement("D09")
@pytest.mark.parametrize("shut", ["home", "forbear.db", "forbear.db.lock", "keys"])
def test_a_home_that_may_not_be_written_is_refused_with_the_place_and_the_fix(
    tmp_path: Path, shut: str
) -> None:
    home = tmp_path / "home"
    asyncio.run(Store(home, ManualClock(), FixedRandom()).close())
    target = home if shut == "home" else home / shut
    if shut == "home":
        (home / "forbear.db.lock").unlink()
    if shut == "keys":
        (home / "keys" / "store.key").unlink()
        (home / "forbear.db").unlink()
    target.chmod(0o500 if target.is_dir() else 0o400)
    asked = subprocess.run(
        [sys.executable, "-c", WITHOUT_PRIVILEGE, str(home), OPEN_STORE],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    target.chmod(0o700)
    assert (asked.returncode, asked.stderr) == (3, "")
    assert str(target) in asked.stdout
    assert "writable to this user" in asked.stdout


# --- several processes ----------------------------------------------------------------------


@pytest.mark.parametrize("case", ["DB-01"])
@pytest.mark.requirement("D05")
def test_fifty_read_then_write_transactions_of_two_processes_meet_no_lock_error(
    tmp_path: Path, case: str
) -> None:
    path = tmp_path / "forbear.db"
    first, second = Database(path), Database(path)
    with first.writer.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE counter AS SELECT 0 AS n")

    def add(database: Database) -> None:
        with database.lock.held(), database.writer.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            n = connection.exec_driver_sql("SELECT n FROM counter").scalar_one()
            connection.exec_driver_sql("UPDATE counter SET n = ?", (n + 1,))
            connection.exec_driver_sql("COMMIT")

    def work(database: Database) -> None:
        for _ in range(25):
            add(database)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (first, second)))
    with first.writer.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM counter").scalar_one() == 50
    asyncio.run(first.close())
    asyncio.run(second.close())


def test_the_lock_lets_one_process_write_at_a_time(tmp_path: Path) -> None:
    first, second = Database(tmp_path / "forbear.db"), Database(tmp_path / "forbear.db")
    inside = threading.Event()

    def other() -> None:
        with second.lock.held():
            inside.set()

    with first.lock.held():
        waiting = threading.Thread(target=other)
        waiting.start()
        assert not inside.wait(0.2)
    assert inside.wait(10)
    waiting.join()
    asyncio.run(first.close())
    asyncio.run(second.close())


def test_a_process_notices_what_another_one_committed_and_not_its_own(tmp_path: Path) -> None:
    first = House(tmp_path, ManualClock(), FixedRandom(), "own_a")
    second = House(tmp_path, first.clock, first.random, "own_b")
    second.database.changed_elsewhere()
    assert not second.database.changed_elsewhere()
    first.new()
    assert second.database.changed_elsewhere()
    assert not second.database.changed_elsewhere()
    first.close()
    second.close()


@pytest.mark.parametrize("case", ["DB-02"])
def test_a_closed_store_leaves_no_thread_behind(tmp_path: Path, case: str) -> None:
    async def use() -> None:
        store = Store(tmp_path / "home", ManualClock(), SystemRandom())
        await store.write(store.ledger.recover)
        await asyncio.gather(*(store.read.open_cases() for _ in range(5)))
        assert threading.active_count() > before
        await store.close()

    before = threading.active_count()
    asyncio.run(use())
    assert threading.active_count() == before


@pytest.mark.requirement("D06")
@pytest.mark.anyio
# Python 3.13 tells of the connection whose opening was cancelled; the collector closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_readers_that_are_cancelled_leave_the_pool_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "home", ManualClock(), SystemRandom())
    for _ in range(20):
        asked = [asyncio.ensure_future(store.read.open_cases()) for _ in range(4)]
        await asyncio.sleep(0.002)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    async with asyncio.timeout(10):
        assert await store.read.open_cases() == []
    await store.close()
