"""Hearing of what other processes commit on a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from forbear.storage.connecting import CONNECT, FAILURES, connected, driver

CHANNEL = "forbear"
"""What a commit is announced on, without a word of what it was."""

UNHEARD = 5.0
"""Seconds after which an own commit should have been heard of."""

SAFETY, SLOW = 30.0, 1.0
"""Seconds between two looks without news, where commits are heard of and where they are not."""


class Ear:
    """Hears of commits, on a connection of its own that is made anew when it is lost.

    A pooler between transactions takes LISTEN and delivers nothing. A call of ours at the start and
    each own commit show that: while they are not heard, there may be news every second.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._task: asyncio.Task[None] | None = None
        self._news: Callable[[], None] = lambda: None
        self._changed = False
        self._listens = False
        self._own: int | None = None
        self._awaited: float | None = None
        """Since when an own commit was not heard of."""
        self._looked = 0.0

    def call(self, news: Callable[[], None]) -> None:
        """Call `news` on the loop at each commit of another process."""
        self._news = news

    def expect(self, pid: int) -> None:
        """An own commit was made by this backend."""
        self._own = pid
        if self._listens and self._awaited is None:
            self._awaited = asyncio.get_running_loop().time()

    def heard(self) -> bool:
        """Whether there may be news since the last call; starts to listen at the first."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._listen(), name="listening")
        deaf = not self._listens or (
            self._awaited is not None and loop.time() - self._awaited > UNHEARD
        )
        changed = self._changed or loop.time() - self._looked >= (SLOW if deaf else SAFETY)
        if changed:
            self._changed, self._looked = False, loop.time()
        return changed

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _listen(self) -> None:
        speaks = driver()
        while True:
            with contextlib.suppress(*FAILURES, speaks.PostgresError, speaks.InterfaceError):
                connection = await connected(self._url)
                try:
                    await self._stay(connection)
                finally:
                    self._listens = False
                    connection.terminate()
            await asyncio.sleep(1.0)

    async def _stay(self, connection: Any) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()

        def end(_: object) -> None:
            lost.set()

        connection.add_termination_listener(end)
        await connection.add_listener(CHANNEL, self._hear)
        self._listens, self._awaited = True, asyncio.get_running_loop().time()
        caller = await connected(self._url)
        await caller.execute(f"NOTIFY {CHANNEL}")
        await caller.close()
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), SAFETY)
            if not lost.is_set():
                await connection.fetchval("SELECT 1", timeout=CONNECT)

    def _hear(self, _connection: object, pid: int, _channel: str, _payload: str) -> None:
        self._awaited = None
        if pid != self._own:
            self._changed = True
            self._news()
