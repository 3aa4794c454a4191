"""A socket of the sender, without HTTP: connecting, TLS, bytes in, bytes out.

Only `forbear.server.upstream` and what opens its tunnels (`proxy`) may use it: whoever writes here
is not asked for a permit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import ssl
import sys
from collections.abc import Sequence
from typing import Any, Self

BUFFER = 262_144
"""Bytes received and not yet read at which the socket is left alone for a while."""


class Wire(asyncio.Protocol):
    """A socket: what arrived stays readable after the connection is lost."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._over = False
        self._error: OSError | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def connect(cls, address: str, port: int) -> Self:
        """Connect to a literal address; OSError if that fails."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(cls, address, port)
        return wire

    @classmethod
    async def dial(cls, addresses: Sequence[str], port: int, ends: float) -> Self:
        """Connect to the first of these literal addresses that answers; OSError if none does.

        `ends` is a time of the event loop; what is left until then is shared among the addresses.
        """
        loop, failed = asyncio.get_running_loop(), OSError(0, "no address")
        for left in range(len(addresses), 0, -1):
            try:
                async with asyncio.timeout((ends - loop.time()) / left):
                    return await cls.connect(addresses[-left], port)
            except TimeoutError:
                failed = OSError(0, "no answer")
            except OSError as error:
                failed = error
        raise failed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > BUFFER and self._transport is not None:
            self._transport.pause_reading()
        self._readable.set()

    def eof_received(self) -> None:
        self._over = True
        self._readable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if exc is not None:
            self._error = exc if isinstance(exc, OSError) else ConnectionError()
        self._readable.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    @property
    def closed(self) -> bool:
        """Whether the other side or we have ended the connection, as far as is known."""
        return self._over or self._transport is None or self._transport.is_closing()

    def readable(self) -> bool:
        """Whether anything arrived, even if the event loop has not looked yet."""
        number = self.extra("socket").fileno()
        if self._buffer or number < 0:
            return True
        if sys.platform != "win32":  # whose `select` has no bound on the number of a socket
            poll = select.poll()
            poll.register(number, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([number], [], [], 0)[0])

    def extra(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    async def receive(self, max_bytes: int) -> bytes:
        """Up to `max_bytes`; empty at the end of the stream; OSError after a reset."""
        while not self._buffer and not self._over:
            self._readable.clear()
            await self._readable.wait()
        if not self._buffer and self._error is not None:
            raise self._error
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        if not self.closed and self._transport is not None:
            self._transport.resume_reading()
        return data

    async def send(self, data: bytes) -> None:
        """Give the bytes to the socket at once, then wait until it has taken most of them."""
        if self.closed or self._transport is None:
            raise ConnectionResetError
        self._transport.write(data)
        await self._writable.wait()
        if self._over:
            raise ConnectionResetError

    async def start_tls(self, context: ssl.SSLContext, host: str | None) -> None:
        if self._transport is None:
            raise ConnectionResetError
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionResetError
        self._transport = transport

    def abort(self) -> None:
        """Close without sending what is still buffered."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.abort()


def system_words(error: OSError) -> str:
    """The system's or OpenSSL's own words for it; they never quote what was sent."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS error"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)  # asyncio puts words of its own into `strerror`
    return error.strerror or type(error).__name__
