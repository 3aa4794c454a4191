"""What many who wait want to know at each change of the store, read once for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager

from forbear.storage.queries import Version
from forbear.storage.store import Store


class Looks:
    """The versions of all operations that anybody follows: one read per change of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: Counter[str] = Counter()
        self._at: asyncio.Event | None = None
        self._seen: asyncio.Future[dict[str, Version | None]] | None = None

    @contextmanager
    def following(self, operation_ids: Collection[str]) -> Generator[None]:
        """Let each look tell of these too."""
        self._followed.update(operation_ids)
        try:
            yield
        finally:
            self._followed.subtract(operation_ids)
            self._followed += Counter()  # drops what nobody follows any more

    async def versions(
        self, news: asyncio.Event, operation_ids: Collection[str]
    ) -> dict[str, Version | None]:
        """What is followed and at least these, as it is since `news` began; None for what is gone.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        if self._seen is None or self._at is not news:
            self._at = news
            self._seen = asyncio.ensure_future(self._read({*self._followed, *operation_ids}))
            self._seen.add_done_callback(lambda done: done.cancelled() or done.exception())
        seen = await asyncio.shield(self._seen)
        missing = set(operation_ids) - seen.keys()  # whoever came after the look
        return seen | await self._read(missing) if missing else seen

    async def _read(self, operation_ids: Collection[str]) -> dict[str, Version | None]:
        asked = set(operation_ids)
        return {**dict.fromkeys(asked), **await self._store.read.versions(asked)}
