"""One store of one home, opened by one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from forbear.rules.ports import Clock, Random
from forbear.rules.taskbudget import USUAL, TaskLimits
from forbear.storage import custody, rekeying, tallies
from forbear.storage.beacon import served_at
from forbear.storage.brakes import Brakes
from forbear.storage.database import Database, said
from forbear.storage.errors import StoreError, StoreUnavailable
from forbear.storage.figures import Figures
from forbear.storage.keyfiles import Name, Places, kept
from forbear.storage.ledger import Ledger
from forbear.storage.liveness import OWNER, Liveness, SharedLiveness
from forbear.storage.queries import Queries
from forbear.storage.sealing import Log
from forbear.storage.writer import FileWriter, Writer

if TYPE_CHECKING:
    from forbear.storage.postgres import Postgres

T = TypeVar("T")


class Store:
    """The ledger, its writer and its readers, and news of changes.

    It is in a file of the home, or in the PostgreSQL database at `url`. Everything that has to do
    with it goes by `clock` of the store: on PostgreSQL that is the server's time, unless `own_time`
    says that the given clock rules.

    Raises:
        StoreUnavailable, StoreTooNew: see `Database` and `Postgres`.
    """

    def __init__(
        self,
        home: Path,
        clock: Clock,
        random: Random,
        *,
        url: str | None = None,
        file: Path | None = None,
        task_limits: TaskLimits = USUAL,
        places: Places | None = None,
        own_time: bool = False,
    ) -> None:
        self.home = home
        owner, kept = f"{OWNER}{random.token(16)}", places or Places(home / "keys")
        self._changed = asyncio.Event()
        self._wrote = False
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            if url is None:
                self._open_file(file or home / "forbear.db", kept, owner, clock, random)
            else:
                self._open_server(url, kept, owner, clock, random, own_time)
        except OSError as error:
            raise StoreUnavailable(f"{error} -> make {home} writable to this user") from error
        self.ledger = Ledger(self.clock, random, self.liveness, task_limits)
        self.brakes = Brakes(self.clock)
        database = self._database
        self.read = Queries(database.readers, database.log, database.version, database.near)
        self.figures = Figures(self._database.readers)
        self._counted: Counter[str] = Counter()

    def _open_file(
        self, path: Path, places: Places, owner: str, clock: Clock, random: Random
    ) -> None:
        self.path = path
        self.place = str(path)
        self.clock = clock
        lost = _UNKNOWN.format(f"restore it with {path.name}") if path.exists() else None
        self.key = _store_key(self.home, random, lost)
        self.liveness = Liveness(self.home / "run", owner)
        self._database: Database | Postgres = (database := Database(path, places))
        try:
            custody.opened(database, clock.now().wall, random)
        except (OSError, DBAPIError, StoreError) as error:
            database.abandon()
            raise StoreUnavailable(f"{path}: {said(error)}") from error
        self._writer: Writer = FileWriter(database)

    def _open_server(
        self,
        url: str,
        places: Places,
        owner: str,
        clock: Clock,
        random: Random,
        own_time: bool,
    ) -> None:
        from forbear.storage.postgres import Postgres, ServerWriter

        def opening(connection: Connection, places: Places, store: str) -> Log:
            lost = _UNKNOWN.format(f"copy keys/ of another host that uses {store}")
            self.key = _store_key(self.home, random, lost if rekeying.begun(connection) else None)
            return rekeying.opened(connection, places, store)

        self.path = self.home
        self.liveness = SharedLiveness(self.home / "run", owner, clock)
        hold, home = partial(custody.hold, ids=random), self.home
        self._database = database = Postgres(url, home, places, clock, opening, own_time=own_time)
        database.opened(hold)
        self._writer = ServerWriter(database, hold)
        self.place, self.clock = database.place, database.clock
        database.ear.call(self.wake)

    async def write(self, unit: Callable[[Connection], T], *, outcome: bool = False) -> T:
        """Run one ledger transaction; returns when it is durable, and wakes whoever waits.

        `outcome`: see `Writer.run`.

        Raises:
            StoreUnavailable: nothing was stored.
            StoreTooNew: nor will be, for a newer program upgraded the store.
        """
        result = await self._writer.run(unit, outcome=outcome)
        self._wrote = True
        self.wake()
        return result

    def wake(self) -> None:
        """Let everybody who waits for news look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def news(self) -> asyncio.Event:
        """Set at the next change of this process; take it before reading what you wait for."""
        return self._changed

    def look_elsewhere(self) -> bool:
        """Wake waiters if anything was committed; a few microseconds. True if it was for certain
        another process that did it."""
        changed, wrote = self._database.changed_elsewhere(), self._wrote
        self._wrote = False
        if changed:
            self.wake()
        return changed and not wrote

    async def rotate(self, name: Name, by: Mapping[str, object]) -> None:
        """Change the sealing or the signing key, and say so in the log. One change at a time in a
        process.

        Raises:
            KeyInUse: the key outside the home is the one in use.
            StoreUnavailable: nothing was changed.
        """
        unit = {Name.SEALING: rekeying.rotate_sealing, Name.SIGNING: rekeying.rotate_signing}[name]
        key = await self.write(partial(unit, at=self.clock.now().wall, by=by))
        await asyncio.to_thread(self._database.promote, name, key)

    async def rotate_epoch(self, by: Mapping[str, object]) -> None:
        """Seal what comes under a new key, and say so in the log."""
        await self.write(partial(rekeying.rotate_epoch, at=self.clock.now().wall, by=by))

    async def adopt(self, by: Mapping[str, object]) -> bool:
        """See `custody.adopt`."""
        return await self.write(partial(custody.adopt, by=by, now=self.clock.now().wall))

    async def forget_deleted(self) -> None:
        """See `Database.forget_deleted`."""
        await asyncio.to_thread(self._database.forget_deleted)

    async def sign_of_life(self, sign: Callable[[Connection], object]) -> None:
        """Write it, and with it how long the commits of this process took.

        Raises:
            StoreUnavailable: nothing was stored; they are counted the next time.
        """
        took = self._writer.took.copy()
        now, times = self.clock.now().wall, took - self._counted
        await self.write(partial(_signed, sign=sign, at=now, took=times))
        self._counted = took

    def console(self) -> str | None:
        """The address of the web console, if a living process of this home serves it."""
        return served_at(self.home / "run", self.liveness)

    async def close(self) -> None:
        await self._writer.close()
        await self.read.settled()
        await self.figures.settled()
        await self._database.close()
        self.liveness.release()


def _signed(
    connection: Connection, sign: Callable[[Connection], object], at: int, took: Counter[str]
) -> None:
    sign(connection)
    times = {bound: number for bound, number in took.items() if bound != "ms"}
    if times:
        tallies.add_commits(connection, at, times, took["ms"])


_UNKNOWN = "{}; without it nothing that was done before would be recognised"


def _store_key(home: Path, random: Random, lost: str | None) -> bytes:
    """The key of all digests on this store, made at the first start; only its user may read it.

    It is there before the store is, always: a store without it would take the same action for a
    new one. `lost` is the fix where a store is there and must have one.
    """
    return kept(home / "keys" / "store.key", lambda: random.token(52), lost=lost)
