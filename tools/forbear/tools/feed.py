"""Changes of operations for any number of followers, each read from the store once for all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from forbear.rules.model import Operation
from forbear.rules.ports import Clock
from forbear.storage.errors import StoreError
from forbear.storage.queries import Version
from forbear.storage.store import Store
from forbear.tools.book import Book
from forbear.tools.looks import Looks
from forbear.tools.record import Record
from forbear.tools.watch import first

LOOK = 2.0
"""Seconds after which a contract that somebody follows is looked at again: files tell nobody."""


class Feed:
    """Follows one store. A change costs one look, however many follow, and one record."""

    def __init__(
        self,
        store: Store,
        book: Book,
        clock: Clock,
        record: Callable[[Operation], Awaitable[Record]],
        looks: Looks,
        leaving: asyncio.Event,
    ) -> None:
        self._store = store
        self._clock = clock
        self._book = book
        self._leaving = leaving
        self._record = record
        self._looks = looks
        self._at: asyncio.Event | None = None
        self._records: dict[str, asyncio.Future[Record | None]] = {}

    async def changes(
        self, records: Collection[Record], providers: Collection[str]
    ) -> AsyncGenerator[Record | str, None]:
        """See `DeskPort.follow`. Changes that come faster than they are taken are told as one."""
        contracts = {provider: self._digest(provider) for provider in providers}
        told: dict[str, Version | None] = {one.operation.id: _version(one) for one in records}
        wake = asyncio.Event()
        with self._looks.following(list(told), wake) as follower:
            while not self._leaving.is_set():
                wake.clear()
                # Taken before reading, so that no change between the two is missed.
                news, behind = self._store.news, True
                with contextlib.suppress(StoreError):  # nothing to tell until it can be read again
                    seen = await follower.versions()
                    for operation_id, version in tuple(told.items()):
                        now = seen[operation_id]
                        if now == version:
                            continue
                        record = await asyncio.shield(self._shown(news, operation_id))
                        if record is None:
                            told[operation_id] = None
                            continue
                        told[operation_id] = _version(record)
                        yield record
                    behind = any(told[one] != seen[one] for one in told)
                for provider, digest in tuple(contracts.items()):
                    contracts[provider] = self._digest(provider)
                    if contracts[provider] != digest:
                        yield provider
                looks = (self._clock.sleep(LOOK),) if contracts else ()
                # A look wakes only at another change: what is not told yet is tried again sooner.
                sooner = (news.wait(),) if behind else ()
                await first(wake.wait(), *sooner, *looks)

    def _digest(self, provider: str) -> str | None:
        contract = self._book.contracts().get(provider)
        return None if contract is None else contract.digest

    def _shown(self, news: asyncio.Event, operation_id: str) -> asyncio.Future[Record | None]:
        """The record since `news` began, made once for all who follow it."""
        if self._at is not news:
            self._at, self._records = news, {}
        if operation_id not in self._records:
            self._records[operation_id] = asyncio.ensure_future(self._read(operation_id))
        return self._records[operation_id]

    async def _read(self, operation_id: str) -> Record | None:
        op = await self._store.read.operation(operation_id)
        return None if op is None else await self._record(op)


def _version(record: Record) -> Version:
    revision, case = record.operation.revision, record.case
    return (revision, None, None) if case is None else (revision, case.id, case.revision)
