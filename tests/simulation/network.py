"""Sockets without a kernel: bytes between the lanes of senders and the provider, some time later.

This stands below `forbear.server.wire`: the whole sender, its pool, its guard of addresses and its
HTTP are real. A connection carries each piece of bytes in order, after a while that is drawn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.simulation.loop import Lane, VirtualLoop, lane

_NEVER, _WRITE_END = os.pipe()
"""A descriptor that is never readable while this process lives."""
_ALWAYS = os.open(os.devnull, os.O_RDONLY)


class Peer(Protocol):
    """The provider's end of a connection."""

    def received(self, data: bytes, at: float) -> None:
        """Bytes of the sender, which were there at this true time, seconds."""
        ...

    def ended(self) -> None:
        """The sender closed it, or is gone."""
        ...


class Socket(asyncio.Transport):
    """The sender's end of a connection."""

    def __init__(self, network: Network, protocol: asyncio.Protocol, number: int) -> None:
        super().__init__()
        self.number = number
        self.lane: Lane = lane()
        self.open = True
        """As the sender sees it."""
        self.peer: Peer | None = None
        self.written = 0
        self.began: float | None = None
        """When its sender began to connect, by the loop, until the first request leaves."""
        self._network = network
        self._protocol = protocol
        self._arriving = 0
        """Pieces that the kernel has and the event loop has not looked at."""
        self._last = 0.0
        self._last_out = 0.0

    # --- what asyncio's users ask for ---------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return _ALWAYS if self._arriving else _NEVER

    def is_closing(self) -> bool:
        return not self.open

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.open:
            return
        self.written += 1
        self._network.wrote(self, bytes(data))
        network = self._network
        self._last_out = max(self._last_out, network.soon())
        there = network.true() + self._last_out - network.loop.time()
        network.at(network.outside, self._last_out, self._to_peer, bytes(data), there)

    def _to_peer(self, data: bytes, there: float) -> None:
        # Where the machine slept meanwhile it came while it did, and not when it woke.
        if self.peer is not None:
            self.peer.received(data, min(there, self._network.true()))

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._network.loop.call_soon(self._protocol.connection_lost, None)
            self.hung_up()

    def hung_up(self) -> None:
        """Tell the provider that nobody listens any more."""
        self.open = False
        self._last_out = max(self._last_out, self._network.soon())
        self._network.at(self._network.outside, self._last_out, self._to_end)

    def _to_end(self) -> None:
        if self.peer is not None:
            self.peer.ended()

    # --- what the provider does ---------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        """Bytes of the provider."""
        self._arrives(self._data, data)

    def reset(self, error: OSError | None) -> None:
        """The provider closes the connection: with an error, or in order."""
        self._arrives(self._lost, error)

    def _arrives(self, act: Callable[[Any], None], what: Any) -> None:
        self._arriving += 1
        self._last = max(self._last, self._network.soon())
        self._network.at(self.lane, self._last, act, what)

    def _data(self, data: bytes) -> None:
        self._arriving -= 1
        if self.open:
            self._network.heard(self, data)
            self._protocol.data_received(data)

    def _lost(self, error: OSError | None) -> None:
        self._arriving -= 1
        if self.open:
            self.open = False
            if error is None:
                self._protocol.eof_received()
            self._protocol.connection_lost(error)


class Network:
    """All connections. `accepts` gives the provider's end of a new one, or says how it fails;
    `true` is the time that no clock shows, seconds."""

    def __init__(
        self,
        loop: VirtualLoop,
        draws: Random,
        accepts: Callable[[Socket], Peer | str],
        true: Callable[[], float],
    ) -> None:
        self.loop = loop
        self.true = true
        self.outside = loop.add_lane("outside")
        """The provider and the way there: where time goes by while this machine sleeps."""
        self.sockets: list[Socket] = []
        self.wrote: Callable[[Socket, bytes], None] = lambda socket, data: None
        self.heard: Callable[[Socket, bytes], None] = lambda socket, data: None
        self.connecting: Callable[[Lane], None] = lambda lane: None
        self._draws = draws
        self._accepts = accepts
        loop.create_connection = self._connect  # type: ignore[method-assign,assignment]

    def soon(self) -> float:
        """When a piece of bytes that leaves now is there."""
        draw = self._draws.random()
        return self.loop.time() + (0.001 + draw * 0.02 if draw < 0.97 else draw * 2)

    def at(self, lane: Lane, when: float, act: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(when, act, *args, context=lane.context)

    async def _connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """`loop.create_connection`."""
        self.connecting(lane())
        began = self.loop.time()
        await asyncio.sleep(self.soon() - self.loop.time())
        protocol = factory()
        socket = Socket(self, protocol, len(self.sockets) + 1)
        socket.began = began
        self.sockets.append(socket)
        peer = self._accepts(socket)
        if peer == "refused":
            raise ConnectionRefusedError(111, "Connection refused")
        if isinstance(peer, str):  # nobody answers
            await self.loop.create_future()
            raise AssertionError
        socket.peer = peer
        protocol.connection_made(socket)
        return socket, protocol

    def drop(self, lane: Lane) -> None:
        """A process is gone: the kernel closes what it left open."""
        for socket in self.sockets:
            if socket.lane is lane and socket.open:
                socket.hung_up()
