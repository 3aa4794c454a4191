"""A small HTTP/1.1 server over real sockets whose answers may be as broken as any provider's.

What it answers is for those who build on it: `FakeProvider`, scripted, for tests and the demo, and
the simulator of a contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

Json = Any
"""What `json` takes and gives."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it came in."""

    number: int
    connection: int
    method: str
    path: str
    """Without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    at: float
    """Seconds on the event loop's clock."""
    size: int
    """Bytes read for it, head and body."""

    def json(self) -> Json:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or what is left of it."""

    status: int = 200
    json: Json = None
    headers: tuple[tuple[str, str], ...] = ()
    body: str | bytes = b""
    framing: Literal["length", "chunked", "close"] = "length"
    gzip: bool = False
    interim: int = 0
    """So many 103 Early Hints first."""
    drip: Literal["head", "body"] | None = None
    """From there on one byte per `pace` seconds."""
    pace: float = 0.02
    cut_head: int | None = None
    """Close after so many bytes of the head."""
    cut_body: int | None = None
    """Close after so many bytes of the encoded body; the stated length remains."""
    shorten: int | None = None
    """Leave bytes of the encoded body out and state the shorter length: a cut nobody announces."""
    close: bool = False
    """Close after the whole answer."""
    gate: str | None = None
    """Wait for `release(gate)` before the first byte."""
    delay: float = 0
    """Seconds before the first byte."""
    effect: bool = False
    """First do what the request asks, so that this answer hides it."""


@dataclass(frozen=True, slots=True)
class Drop:
    """No answer: close before reading (`before`), or after the whole request (`after`)."""

    when: Literal["before", "after"] = "after"
    how: Literal["fin", "rst"] = "fin"
    effect: bool = False
    """First do what the request asks: a lost answer."""
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes, whatever they are."""

    data: str | bytes
    close: bool = True


Step = Answer | Drop | Raw


@dataclass
class Listener:
    """One port of this machine. Use it as a context manager, or `start` and `stop`.

    Requests to paths that begin with `/__` are for whoever watches it, and count as no arrival.
    """

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free; once started, the one that it is."""
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    connections: int = 0
    bytes_read: Counter[int] = field(default_factory=Counter[int])
    """By connection, whether or not they made up a request."""
    most_open: int = 0
    """Requests that were without a whole answer at the same time, at the most."""

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._arrived = asyncio.Event()
        self._open = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def release(self, gate: str) -> None:
        """Let the answers behind this gate go, now and later."""
        self._gates[gate].set()

    async def closed(self) -> None:
        """Wait until every connection that is open now has been closed by either side."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- what is answered -----------------------------------------------------------------

    def _greet(self) -> Step | None:
        """What a new connection meets before anything is read; None: it is listened to."""
        return None

    def _next(self, arrival: Arrival) -> Step:
        """What a request meets."""
        raise NotImplementedError

    def _control(self, arrival: Arrival) -> Answer:
        """The answer to somebody who watches."""
        return Answer(404, {"error": "no such control"})

    # --- connections ----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._converse(self.connections, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or `stop` was called
        except (ValueError, asyncio.LimitOverrunError):
            pass  # that was no HTTP
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _converse(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        step = self._greet()
        if step is not None:
            await self._play(step, None, writer)
            return
        while True:
            arrival = await self._receive(connection, reader)
            if arrival.path.startswith("/__"):
                keep = await self._play(self._control(arrival), arrival, writer)
            else:
                self.arrivals.append(arrival)
                self._arrived.set()
                keep = await self._take(arrival, writer)
            if not keep:
                return

    async def _take(self, arrival: Arrival, writer: asyncio.StreamWriter) -> bool:
        """Carry out the step that an arrival meets, and count it as open meanwhile."""
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            return await self._play(self._next(arrival), arrival, writer)
        finally:
            self._open -= 1

    async def _receive(self, connection: int, reader: asyncio.StreamReader) -> Arrival:
        head = await reader.readuntil(b"\r\n\r\n")
        self.bytes_read[connection] += len(head)
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = bytearray()
        length = int(headers.get("content-length", "0"))
        while len(body) < length:
            part = await reader.read(length - len(body))
            if not part:
                raise asyncio.IncompleteReadError(bytes(body), length)
            self.bytes_read[connection] += len(part)
            body += part
        url = urlsplit(target)
        return Arrival(
            number=len(self.arrivals) + 1,
            connection=connection,
            method=method,
            path=url.path,
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            headers=headers,
            body=bytes(body),
            at=asyncio.get_running_loop().time(),
            size=len(head) + length,
        )

    async def _play(
        self, step: Step, arrival: Arrival | None, writer: asyncio.StreamWriter
    ) -> bool:
        """Carry the step out; whether the connection goes on."""
        match step:
            case Drop(how=how, gate=gate):
                if gate is not None:
                    await self._gates[gate].wait()
                if how == "rst":
                    sock: socket.socket = writer.get_extra_info("socket")
                    linger = struct.pack("ii", 1, 0)  # close with RST
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                return False
            case Raw(data=data, close=close):
                writer.write(_bytes(data))
                await writer.drain()
                return not close
            case Answer():
                return await self._answer(step, arrival, writer)

    async def _answer(
        self, step: Answer, arrival: Arrival | None, writer: asyncio.StreamWriter
    ) -> bool:
        if step.gate is not None:
            await self._gates[step.gate].wait()
        if step.delay:
            await asyncio.sleep(step.delay)
        head, body = _render(step, bodiless=arrival is not None and arrival.method == "HEAD")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s>; rel=preload\r\n\r\n" * step.interim)
        slow_head, slow_body = step.drip == "head", step.drip is not None
        await _write(writer, head[: step.cut_head], step.pace if slow_head else 0)
        if step.cut_head is not None:
            return False
        await _write(writer, body[: step.cut_body], step.pace if slow_body else 0)
        return step.cut_body is None and step.framing != "close" and not step.close


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _render(step: Answer, *, bodiless: bool) -> tuple[bytes, bytes]:
    """Head and encoded, framed body."""
    body = _bytes(step.body) if step.json is None else json.dumps(step.json).encode()
    fields = list(step.headers)
    if step.json is not None:
        fields.append(("Content-Type", "application/json"))
    if step.gzip:
        body = gzip.compress(body)
        fields.append(("Content-Encoding", "gzip"))
    if step.shorten is not None:
        body = body[: max(0, len(body) - step.shorten)]
    if step.framing == "chunked":
        fields.append(("Transfer-Encoding", "chunked"))
        parts = [body[at : at + 4096] for at in range(0, len(body), 4096)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    elif step.framing == "length" and step.status != 204:
        fields.append(("Content-Length", str(len(body))))
    if step.close or step.framing == "close":
        fields.append(("Connection", "close"))
    lines = [f"HTTP/1.1 {step.status} Status", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), b"" if bodiless else body


async def _write(writer: asyncio.StreamWriter, data: bytes, pace: float) -> None:
    if not pace:
        writer.write(data)
        await writer.drain()
        return
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(pace)
