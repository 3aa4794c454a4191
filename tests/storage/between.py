"""What stands between a process and its database server: passes everything on, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

COMMIT = b"COMMIT;"
NOTIFICATION = b"A"


@dataclass
class Between:
    """One proxy. Faults are set while it runs."""

    url: str = ""
    """The address to use instead of the server's own."""
    lose: list[str] = field(default_factory=list)
    """What becomes of the next commits: `before` cuts the connection instead of passing one on,
    `after` cuts it when the server has answered."""
    deaf: bool = False
    """Let no notification through, as a pooler between transactions does."""
    cut: int = 0
    socket: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self.socket)
        swallow = asyncio.Event()
        asks = asyncio.create_task(self._asks(reader, back, swallow))
        answers = asyncio.create_task(self._answers(there, writer, swallow))
        await asyncio.wait({asks, answers}, return_when=asyncio.FIRST_COMPLETED)
        for task in (asks, answers):
            task.cancel()
            with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
                await task
        for end in (writer, back):
            end.close()

    async def _asks(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(65_536):
            fate = self.lose.pop(0) if COMMIT in data and self.lose else None
            if fate == "before":
                self.cut += 1
                return
            if fate == "after":
                swallow.set()
            back.write(data)
            await back.drain()

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while True:
            head = await there.readexactly(5)
            body = await there.readexactly(int.from_bytes(head[1:]) - 4)
            if swallow.is_set():
                self.cut += 1
                return
            if not (self.deaf and head[:1] == NOTIFICATION):
                writer.write(head + body)
                await writer.drain()


@asynccontextmanager
async def between(url: str) -> AsyncIterator[Between]:
    """A proxy before the server of an address, which names the folder of its socket."""
    parts = urlsplit(url)
    made = Between()
    made.socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    # No encryption is offered here, and none is asked for.
    made.url = f"postgresql://postgres@127.0.0.1:{port}{parts.path}?sslmode=disable"
    try:
        yield made
    finally:
        server.close()
