"""Waiting for news of an operation without looking at anything but the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from forbear.rules.model import Operation, State
from forbear.rules.paging import reads_on
from forbear.rules.ports import Clock
from forbear.storage.store import Store
from forbear.tools.caller import Caller
from forbear.tools.desk_port import Report
from forbear.tools.looks import Looks
from forbear.tools.record import Record

REMEMBERED = 4_096
"""Pairs of client and operation whose waits are counted; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a caller waits for an answer, and how it hears of news meanwhile."""

    seconds: float
    caller: Caller
    report: Report | None


@dataclass(frozen=True, slots=True)
class Patience:
    """What a client was last told of an operation, and how often in a row that was nothing new."""

    news: object
    waits: int
    since: int
    """When it was new, ms."""


class Watch:
    """Waits on one store, and counts waits without news for each client and operation."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        record: Callable[[Operation], Awaitable[Record]],
        looks: Looks,
    ) -> None:
        self._store = store
        self._looks = looks
        self._clock = clock
        self._record = record
        self._known: dict[tuple[str, str], Patience] = {}
        self.leaving = asyncio.Event()
        """Set once the process is about to end."""

    def let_go(self) -> None:
        """End every wait, now and from now on: each sees the store as it stands."""
        self.leaving.set()
        self._looks.wake_all()

    def known(self, caller: Caller, op: Operation) -> Patience | None:
        return self._known.get((caller.client, op.id))

    def answered(self, caller: Caller, op: Operation, news: object) -> Patience:
        """Note what a client is told now; news resets the count."""
        before = self._known.pop((caller.client, op.id), None)
        if before is not None and before.news == news:
            after = Patience(news, before.waits + 1, before.since)
        else:
            after = Patience(news, 0, self._clock.now().wall)
        self._known[caller.client, op.id] = after
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return after

    async def news(self, op: Operation) -> object:
        """All that counts as news: state, provider state, progress, case and result.

        From one page of a read to the next nothing is new.
        """
        known = await self._store.read.dossier(op.id)
        case = None if known is None else known.case
        return (
            State.SENDING if reads_on(op) else op.state,
            op.provider_state,
            op.progress,
            None if case is None else (case.id, case.revision),
            op.result is None,
        )

    async def for_news(self, op: Operation, seen: object, waiting: Waiting) -> Operation:
        """The operation once there is news beside `seen`, or when the time is over."""

        async def is_news(now: Operation) -> bool:
            return await self.news(now) != seen

        return await self._wait(op, is_news, waiting)

    async def until(
        self, op: Operation, done: Callable[[Operation], bool], waiting: Waiting
    ) -> Operation:
        """The operation once it is `done`, or when the time is over."""

        async def is_done(now: Operation) -> bool:
            return done(now)

        return await self._wait(op, is_done, waiting)

    async def _wait(
        self, op: Operation, done: Callable[[Operation], Awaitable[bool]], waiting: Waiting
    ) -> Operation:
        """Read the operation again whenever it changed."""
        wake = asyncio.Event()
        over = asyncio.ensure_future(self._clock.sleep(waiting.seconds))
        over.add_done_callback(lambda _: wake.set())
        revision, version = op.revision, None
        try:
            with self._looks.following([op.id], wake) as follower:
                while True:
                    wake.clear()
                    before, version = version, (await follower.versions())[op.id]
                    if version != before:
                        if version is None or version[0] != op.revision:
                            op = await self._read(op)
                        if await done(op):
                            return op
                        if waiting.report is not None and op.revision != revision:
                            revision = op.revision
                            await waiting.report(await self._record(op))
                    if over.done() or self.leaving.is_set():
                        return await self._read(op)
                    await wake.wait()
        finally:
            over.cancel()

    async def _read(self, op: Operation) -> Operation:
        """The operation as it is now, read with all that an answer needs of it."""
        known = await self._store.read.dossier(op.id)
        return op if known is None else known.operation


async def first(*ends: Coroutine[Any, Any, object]) -> None:
    """Return at the first of these, and give the others up."""
    waits = [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
