"""One store of one home, opened by one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from forbear.rules.ports import Clock, Random
from forbear.rules.taskbudget import USUAL, TaskLimits
from forbear.storage import rekeying, tallies
from forbear.storage.beacon import served_at
from forbear.storage.brakes import Brakes
from forbear.storage.database import Database
from forbear.storage.errors import StoreUnavailable
from forbear.storage.figures import Figures
from forbear.storage.keyfiles import Name, Places, kept
from forbear.storage.ledger import Ledger
from forbear.storage.liveness import OWNER, Liveness
from forbear.storage.queries import Queries
from forbear.storage.writer import Writer

T = TypeVar("T")


class Store:
    """The ledger, its writer and its readers, and news of changes.

    Raises:
        StoreUnavailable, StoreTooNew: see `Database`.
    """

    def __init__(
        self,
        home: Path,
        clock: Clock,
        random: Random,
        *,
        file: Path | None = None,
        task_limits: TaskLimits = USUAL,
        places: Places | None = None,
    ) -> None:
        self.home = home
        self.path = file or home / "forbear.db"
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.key = _store_key(home / "keys" / "store.key", random, store=self.path)
            self.liveness = Liveness(home / "run", f"{OWNER}{random.token(16)}")
        except OSError as error:
            raise StoreUnavailable(f"{error} -> make {home} writable to this user") from error
        self._clock = clock
        self._database = Database(self.path, places or Places(home / "keys"))
        self.ledger = Ledger(clock, random, self.liveness, task_limits)
        self.brakes = Brakes(clock)
        self.read = Queries(self._database.readers, self._database.log, self._database.version)
        self.figures = Figures(self._database.readers)
        self._writer = Writer(self._database)
        self._counted: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def write(self, unit: Callable[[Connection], T]) -> T:
        """Run one ledger transaction; returns when it is durable, and wakes whoever waits.

        Raises:
            StoreUnavailable: nothing was stored.
        """
        result = await self._writer.run(unit)
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

    def look_elsewhere(self) -> None:
        """Wake waiters if another process committed something; a few microseconds."""
        if self._database.changed_elsewhere():
            self.wake()

    async def rotate(self, name: Name, by: Mapping[str, object]) -> None:
        """Change the sealing or the signing key, and say so in the log. One change at a time in a
        process.

        Raises:
            KeyInUse: the key outside the home is the one in use.
            StoreUnavailable: nothing was changed.
        """
        unit = {Name.SEALING: rekeying.rotate_sealing, Name.SIGNING: rekeying.rotate_signing}[name]
        key = await self.write(partial(unit, at=self._clock.now().wall, by=by))
        await asyncio.to_thread(self._database.promote, name, key)

    async def rotate_epoch(self, by: Mapping[str, object]) -> None:
        """Seal what comes under a new key, and say so in the log."""
        await self.write(partial(rekeying.rotate_epoch, at=self._clock.now().wall, by=by))

    async def forget_deleted(self) -> None:
        """See `Database.forget_deleted`."""
        await asyncio.to_thread(self._database.forget_deleted)

    async def count_commits(self) -> None:
        """Put how long the commits of this process took into the figures of the store.

        Raises:
            StoreUnavailable: nothing was stored; they are counted the next time.
        """
        took = self._writer.took.copy()
        new = took - self._counted
        ms = new.pop("ms", 0)
        if new:
            now = self._clock.now().wall
            await self.write(partial(tallies.add_commits, at=now, times=new, ms=ms))
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


def _store_key(path: Path, random: Random, *, store: Path) -> bytes:
    """The key of all digests on this store, made at the first start; only its user may read it.

    It is there before the store's file, always: a store without it would take the same action for
    a new one.
    """
    lost = (
        f"restore it with {store.name}; without it nothing that was done before would be recognised"
    )
    return kept(path, lambda: random.token(52), lost=lost if store.exists() else None)
