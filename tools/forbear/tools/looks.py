"""What many who wait want to know at each change of the store, read once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager

from forbear.storage.queries import Version
from forbear.storage.store import Store

Versions = Mapping[str, Version | None]
"""Of each operation; None for one that is not there."""


class Follower:
    """Whoever wants to hear when any of some operations changes."""

    def __init__(self, looks: Looks, operation_ids: Collection[str], wake: asyncio.Event) -> None:
        self.operation_ids = frozenset(operation_ids)
        self.wake = wake
        self._looks = looks
        self._seen: Versions | None = None
        self._error: Exception | None = None

    async def versions(self) -> Versions:
        """What each operation was at the last look; `wake` is set when that has changed.

        Raises:
            StoreUnavailable: the store could not be read.
        """
        while self._seen is None:
            await self._looks.join()
        if self._error is not None:
            raise self._error
        return self._seen

    @property
    def is_new(self) -> bool:
        """It was told of nothing yet."""
        return self._seen is None

    def tell(self, seen: Versions) -> None:
        """Note what a look found, if it was for these operations too."""
        if self.operation_ids <= seen.keys():
            mine = {one: seen[one] for one in self.operation_ids}
            if self._error is not None or mine != self._seen:
                if not self.is_new:  # else it is about to look
                    self.wake.set()
                self._seen, self._error = mine, None

    def fail(self, error: Exception) -> None:
        """Raise this at whoever asks, until a look succeeds."""
        self._error = error
        self.wake.set()


class Looks:
    """Looks at all operations that anybody follows once for each change of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: set[Follower] = set()
        self._looking: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None

    @contextmanager
    def following(self, operation_ids: Collection[str], wake: asyncio.Event) -> Generator[Follower]:
        """Set `wake` at each change of these operations from here on."""
        follower = Follower(self, operation_ids, wake)
        self._followers.add(follower)
        if self._looking is None:
            # Taken before anybody reads, so that no change between the two is missed.
            self._looking = asyncio.create_task(self._look(self._store.news))
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers:
                self._looking.cancel()
                self._looking = None

    def wake_all(self) -> None:
        for follower in self._followers:
            follower.wake.set()

    async def join(self) -> None:
        """Tell those who are new what there is; those who come at once share one read.

        Raises:
            StoreUnavailable: the store could not be read.
        """
        if self._joining is None:
            self._joining = asyncio.create_task(self._tell_new())
        await asyncio.shield(self._joining)

    async def _tell_new(self) -> None:
        self._joining = None  # who comes from here on needs another read
        new = [one for one in self._followers if one.is_new]
        seen = await self._read(new)
        for follower in new:
            if follower.is_new:  # a look that ended meanwhile knows more
                follower.tell(seen)

    async def _read(self, followers: Collection[Follower]) -> Versions:
        wanted = frozenset[str]().union(*(one.operation_ids for one in followers))
        return {**dict.fromkeys(wanted), **await self._store.read.versions(wanted)}

    async def _look(self, news: asyncio.Event) -> None:
        while True:
            await news.wait()
            news = self._store.news
            try:
                seen = await self._read(self._followers)
            except Exception as error:  # whatever it is, the next look may succeed
                for follower in self._followers:
                    follower.fail(error)
            else:
                for follower in self._followers:
                    follower.tell(seen)
