"""A provider to try things on: real sockets, scripted faults, and a memory of what it did.

It keeps jobs and records as a simple provider would and counts whatever arrives. A script for a
route is played first, one step per request; when it is used up, the provider behaves.

    async with FakeProvider() as provider:
        provider.job("exp_1", ["queued", "running", "done"], result={"rows": 3})
        provider.script("GET /exports/exp_1", retry_after(2), Drop("after", "rst"))
        ...
        assert provider.count("POST /exports") == 1

`python -m forbear.server.fake` runs it as a process for several others: it prints its address,
lists arrivals at `GET /__arrivals`, effects at `GET /__effects`, takes jobs at `POST /__job`,
scripts at `POST /__script` and opens gates at `POST /__release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

Json = Any
"""What `json` takes and gives."""
ON_CONNECT = "CONNECT"
"""The route whose script is played when a connection is accepted, before anything is read."""


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
class Effect:
    """Something that was created, once per entry: the truth that duplicates show up in."""

    collection: str
    id: str
    key: str | None
    ref: str | None
    body: Json


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


def retry_after(seconds: int | str, status: int = 429) -> Answer:
    """The usual refusal for now."""
    return Answer(status, {"error": "later"}, (("Retry-After", str(seconds)),))


def gzip_bomb(size: int = 50_000_000) -> Answer:
    """`size` zeros in a thousandth of the bytes."""
    return Answer(body=bytes(size), gzip=True)


def huge_head(fields: int = 2_000, width: int = 100) -> Answer:
    return Answer(json={}, headers=tuple((f"X-Filler-{n}", "x" * width) for n in range(fields)))


@dataclass(slots=True)
class _Item:
    """A job, or any other created thing: a state sequence that moves with each look."""

    id: str
    collection: str = "/exports"
    states: tuple[str, ...] = ("done",)
    result: Json = None
    looks: int = 0
    body: Json = None
    key: str | None = None
    ref: str | None = None

    @property
    def state(self) -> str:
        return self.states[min(self.looks, len(self.states) - 1)]

    @property
    def ended(self) -> bool:
        return self.looks >= len(self.states) - 1


@dataclass
class FakeProvider:
    """One provider on a port of its own. Use it as a context manager, or `start` and `stop`."""

    honours_keys: bool = True
    """Whether an Idempotency-Key makes a repeated POST return the first outcome."""
    page_size: int = 1_000
    """Items in one page of a list; `next` is the cursor of the page after it."""
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    effects: list[Effect] = field(default_factory=list[Effect])
    connections: int = 0
    bytes_read: Counter[int] = field(default_factory=Counter[int])
    """By connection, whether or not they made up a request."""
    most_open: int = 0
    """Requests that were without a whole answer at the same time, at the most."""

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scripts: defaultdict[str, deque[Step]] = defaultdict(deque)
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._arrived = asyncio.Event()
        self._open = 0
        self._planned: defaultdict[str, deque[_Item]] = defaultdict(deque)
        self._items: dict[tuple[str, str], _Item] = {}

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

    # --- for tests and demonstrations -----------------------------------------------------

    def script(self, route: str, *steps: Step) -> None:
        """Play these steps, one per request, for `"GET /path"`, `"GET /prefix/"` or CONNECT."""
        self._scripts[route].extend(steps)

    def job(
        self,
        id: str,
        states: Sequence[str],
        result: Json = None,
        *,
        collection: str = "/exports",
        existing: bool = False,
        ref: str | None = None,
    ) -> None:
        """The next POST to `collection` creates this job; or it exists already, under `ref`."""
        item = _Item(id, collection, tuple(states), result, ref=ref)
        if existing:
            self._items[collection, id] = item
        else:
            self._planned[collection].append(item)

    def release(self, gate: str) -> None:
        """Let the answers behind this gate go, now and later."""
        self._gates[gate].set()

    def count(self, route: str) -> int:
        """Requests that arrived whole on a route; one that ends in a slash counts what is below."""
        return sum(_matches(route, arrival) for arrival in self.arrivals)

    async def arrived(self, route: str, number: int = 1) -> None:
        """Wait until that many requests have arrived."""
        while self.count(route) < number:
            self._arrived.clear()
            await self._arrived.wait()

    async def closed(self) -> None:
        """Wait until every connection that is open now has been closed by either side."""
        if self._tasks:
            await asyncio.wait(self._tasks)

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
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _converse(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._scripts[ON_CONNECT]:
            step = self._scripts[ON_CONNECT].popleft()
            if not isinstance(step, Drop) or step.when == "before":
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

    def _next(self, arrival: Arrival) -> Step:
        routes = sorted((route for route, steps in self._scripts.items() if steps), key=len)
        for route in reversed(routes):
            if _matches(route, arrival):
                step = self._scripts[route].popleft()
                if not isinstance(step, Raw) and step.effect:
                    self._behave(arrival)
                return step
        return self._behave(arrival)

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
        head, body = _render(step, bodiless=arrival is not None and arrival.method == "HEAD")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s>; rel=preload\r\n\r\n" * step.interim)
        slow_head, slow_body = step.drip == "head", step.drip is not None
        await _write(writer, head[: step.cut_head], step.pace if slow_head else 0)
        if step.cut_head is not None:
            return False
        await _write(writer, body[: step.cut_body], step.pace if slow_body else 0)
        return step.cut_body is None and step.framing != "close" and not step.close

    # --- behaviour ------------------------------------------------------------------------

    def _behave(self, arrival: Arrival) -> Answer:
        """What a simple provider does: create, list, look, fetch the result, cancel."""
        path = arrival.path.rstrip("/") or "/"
        parent, _, last = path.rpartition("/")
        grandparent, _, middle = parent.rpartition("/")
        if arrival.method == "POST":
            job = self._items.get((grandparent, middle))
            if last == "cancel" and job is not None:
                if not job.ended:
                    job.states, job.looks = ("cancelled",), 0
                return Answer(202, self._shown(job))
            return self._create(path, arrival)
        if arrival.method not in ("GET", "HEAD"):
            return Answer(405, {"error": "method"})
        if parent == "/files":
            found = [item for item in self._items.values() if item.id == last]
            return Answer(json=found[0].result) if found else Answer(404, {"error": "unknown"})
        item = self._items.get((parent, last))
        if item is not None:
            shown = self._shown(item)
            item.looks += 1
            return Answer(json=shown)
        if any(collection == path for collection, _ in (*self._items, *self._known())):
            wanted = arrival.query.get("client_ref")
            items = [item for (collection, _), item in self._items.items() if collection == path]
            chosen = [item for item in items if wanted is None or item.ref == wanted]
            return self._page(chosen, int(arrival.query.get("cursor") or "0"))
        return Answer(404, {"error": "unknown"})

    def _page(self, items: list[_Item], start: int) -> Answer:
        end = start + self.page_size
        more = str(end) if end < len(items) else None
        return Answer(json={"items": [self._shown(one) for one in items[start:end]], "next": more})

    def _known(self) -> list[tuple[str, str]]:
        return [("/exports", ""), *((collection, "") for collection in self._planned)]

    def _create(self, collection: str, arrival: Arrival) -> Answer:
        key = arrival.headers.get("idempotency-key")
        try:
            body = arrival.json() if arrival.body else None
        except ValueError:
            return Answer(400, {"error": "body"})
        if key is not None and self.honours_keys:
            for item in self._items.values():
                if (item.collection, item.key) == (collection, key):
                    if item.body != body:
                        return Answer(422, {"error": "key_reused"})
                    return Answer(202, self._shown(item), (("Idempotency-Replayed", "true"),))
        ref = body.get("client_ref") if isinstance(body, dict) else None
        planned = self._planned[collection]
        item = planned.popleft() if planned else _Item(f"{len(self.effects) + 1}", collection)
        item.body, item.key, item.ref = body, key, ref
        self._items[collection, item.id] = item
        self.effects.append(Effect(collection, item.id, key, ref, body))
        place = f"{collection}/{item.id}"
        return Answer(202, self._shown(item), (("Location", place),))

    def _shown(self, item: _Item) -> Json:
        shown: dict[str, Json] = {"id": item.id, "state": item.state, "client_ref": item.ref}
        if item.ended and item.result is not None:
            shown["result"] = {"url": f"{self.base_url}/files/{item.id}"}
        return shown

    # --- control of a process -------------------------------------------------------------

    def _control(self, arrival: Arrival) -> Answer:
        match arrival.method, arrival.path:
            case "GET", "/__arrivals":
                return Answer(json=[_as_json(each) for each in self.arrivals])
            case "GET", "/__effects":
                return Answer(json=[_as_json(each) for each in self.effects])
            case "POST", "/__script":
                wish = arrival.json()
                self.script(wish["route"], *(_step(each) for each in wish["steps"]))
            case "POST", "/__job":
                self.job(**arrival.json())
            case "POST", "/__release":
                self.release(arrival.json()["gate"])
            case _:
                return Answer(404, {"error": "no such control"})
        return Answer(204)


def _matches(route: str, arrival: Arrival) -> bool:
    method, _, path = route.partition(" ")
    if method != arrival.method:
        return False
    return arrival.path.startswith(path) if path.endswith("/") else arrival.path == path


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


def _step(wish: dict[str, Json]) -> Step:
    """A step as `POST /__script` states it: `{"do": "answer", "status": 429, …}`."""
    kinds: dict[str, type[Step]] = {"answer": Answer, "drop": Drop, "raw": Raw}
    named = {name: value for name, value in wish.items() if name != "do"}
    if "headers" in named:
        named["headers"] = tuple((name, value) for name, value in named["headers"])
    return kinds[wish["do"]](**named)


def _as_json(seen: Arrival | Effect) -> Json:
    shown = {name: getattr(seen, name) for name in seen.__slots__}
    if isinstance(seen, Arrival):
        shown["body"] = seen.body.decode("utf-8", "replace")
    return shown


async def _main() -> None:
    async with FakeProvider() as provider:
        sys.stdout.write(f"{provider.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
