"""What lies below our retries: one permit is one request, and no write rides a used connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.server.sending import certificate, get, permit, post, upstream
from tests.support import ManualClock

from forbear.server.upstream import KEEP_ALIVE

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer(status: int, *fields: str) -> bytes:
    head = "".join(f"{field}\r\n" for field in fields)
    return f"HTTP/1.1 {status} Any\r\nContent-Length: 0\r\n{head}\r\n".encode()


@dataclass
class Counter:
    """A server that knows nothing of Forbear and writes down every request that arrives."""

    answers: bytes = OK
    """To each request; empty is none."""
    closes: str = ""
    """`before` a request is read, `after` its answer, or never."""
    first_only: bool = False
    """Whether a connection is cut, as one that was idle too long, when a second request comes."""
    url: str = ""
    connections: int = 0
    requests: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Connection and request line, in order of arrival."""
    spoken: set[str | None] = field(default_factory=set[str | None])
    """What TLS agreed on (ALPN)."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        if (tls := writer.get_extra_info("ssl_object")) is not None:
            self.spoken.add(tls.selected_alpn_protocol())
        try:
            while self.closes != "before":
                if self.first_only and connection in {one for one, _ in self.requests}:
                    await reader.readexactly(1)
                    writer.transport.abort()
                    return
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(length or 0))
                self.requests.append((connection, head.partition(" HTTP/1.1\r\n")[0]))
                writer.write(self.answers)
                await writer.drain()
                if self.closes == "after":
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()


@asynccontextmanager
async def counting(counter: Counter, tls: ssl.SSLContext | None = None) -> AsyncIterator[Counter]:
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    counter.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield counter
    finally:
        server.close()


# --- one permit, one request ----------------------------------------------------------------

SAME, OTHER = "Location: /elsewhere", "Location: {other}/elsewhere"

KINDS: dict[str, Counter] = {
    **{
        f"{status} to {name}": Counter(answer(status, place))
        for status in (301, 302, 303, 307, 308)
        for name, place in (("the same origin", SAME), ("another origin", OTHER))
    },
    "201 with a place": Counter(answer(201, SAME)),
    "refresh": Counter(answer(200, "Refresh: 0; url=/elsewhere")),
    "401 basic": Counter(answer(401, 'WWW-Authenticate: Basic realm="x"')),
    "401 digest": Counter(answer(401, 'WWW-Authenticate: Digest realm="x", nonce="n", qop="auth"')),
    "407": Counter(answer(407, 'Proxy-Authenticate: Basic realm="x"')),
    "421": Counter(answer(421)),
    "425": Counter(answer(425)),
    "429 at once": Counter(answer(429, "Retry-After: 0")),
    "503 at once": Counter(answer(503, "Retry-After: 0")),
    "408 and closed": Counter(answer(408, "Connection: close"), "after"),
    "closed before the request": Counter(closes="before"),
    "closed without an answer": Counter(b"", "after"),
    "closed after the answer": Counter(OK, "after"),
    "closed after 100": Counter(b"HTTP/1.1 100 Continue\r\n\r\n", "after"),
    "100, then the answer": Counter(b"HTTP/1.1 100 Continue\r\n\r\n" + OK),
    "103, then the answer": Counter(b"HTTP/1.1 103 Early Hints\r\nLink: </y>\r\n\r\n" * 2 + OK),
    "101": Counter(b"HTTP/1.1 101 Any\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"),
    "an idle connection cut under the request": Counter(first_only=True),
}


@pytest.mark.requirement("R08")
@pytest.mark.parametrize("kind", KINDS)
async def test_one_permit_is_one_request_whatever_the_provider_answers(
    clock: ManualClock, kind: str
) -> None:
    async with counting(Counter()) as other, counting(replace(KINDS[kind], requests=[])) as server:
        server.answers = server.answers.replace(b"{other}", other.url.encode())
        wishes = [get(f"{server.url}/x"), post(f"{server.url}/x")] * 2
        wishes += [replace(post(f"{server.url}/x"), fresh_connection=True)] * 2
        async with upstream(clock, server.url) as sender:
            replies = [await sender.send(permit(clock), wish) for wish in wishes]

        arrived = [line for _, line in server.requests]
        asked = [f"{wish.method} /x" for wish in wishes]
        if kind == "closed before the request":
            assert (arrived, server.connections) == ([], len(wishes))
            assert not any(reply.complete for reply in replies)
        elif server.first_only:
            # The kept connection is cut under every second of the first four, and stays lost.
            assert arrived == [*asked[:4:2], *asked[4:]]
            assert [reply.complete for reply in replies] == [True, False, True, False, True, True]
        else:
            assert arrived == asked
            assert all(reply.sent for reply in replies)
        assert other.connections == 0


@pytest.mark.requirement("R08", "R16")
async def test_WR_19_no_connection_is_http_2_whatever_the_server_would_rather_speak(
    clock: ManualClock, tmp_path: Path
) -> None:
    """What that protocol says of streams that were not processed is therefore never heard."""
    tls, trusting = certificate(tmp_path, "IP:127.0.0.1")
    tls.set_alpn_protocols(["h2", "http/1.1"])
    async with counting(Counter(), tls) as server:
        async with upstream(clock, server.url, tls=trusting) as sender:
            reply = await sender.send(permit(clock), post(f"{server.url}/x"))

        assert (reply.complete, server.requests) == (True, [(1, "POST /x")])
        assert server.spoken == {"http/1.1"}


# --- which connection a request rides ---------------------------------------------------------


@pytest.mark.requirement("R34")
async def test_WR_17_a_server_that_closes_idle_connections_costs_an_unkeyed_write_nothing(
    clock: ManualClock,
) -> None:
    async with (
        counting(Counter(first_only=True)) as server,
        upstream(clock, server.url) as sender,
    ):
        read, keyed = get(f"{server.url}/x"), post(f"{server.url}/x")
        unkeyed = replace(keyed, fresh_connection=True)
        replies = [await sender.send(permit(clock), one) for one in (read, unkeyed, unkeyed)]
        assert all(reply.complete for reply in replies)
        assert [connection for connection, _ in server.requests] == [1, 2, 3]

        lost = await sender.send(permit(clock), keyed)  # on the connection of the read
        assert (lost.sent, lost.complete, lost.fault) == (True, False, "closed")
        assert server.connections == 3


@pytest.mark.requirement("R34")
@pytest.mark.parametrize(
    "pass_by",
    [
        pytest.param(ManualClock.advance, id="awake"),
        pytest.param(ManualClock.suspend, id="asleep"),
    ],
)
async def test_an_idle_connection_is_not_used_after_the_keep_alive(
    clock: ManualClock, pass_by: Callable[[ManualClock, int], None]
) -> None:
    assert KEEP_ALIVE < 4_000
    async with counting(Counter()) as server, upstream(clock, server.url) as sender:
        for idle in (0, KEEP_ALIVE, KEEP_ALIVE, KEEP_ALIVE + 1):
            pass_by(clock, idle)
            assert (await sender.send(permit(clock), post(f"{server.url}/x"))).complete
        assert [connection for connection, _ in server.requests] == [1, 1, 1, 2]


@pytest.mark.requirement("R34")
async def test_a_clock_that_somebody_sets_does_not_make_a_connection_older(
    clock: ManualClock,
) -> None:
    async with counting(Counter()) as server, upstream(clock, server.url) as sender:
        for jump in (0, 3_600_000, -7_200_000):
            clock.jump(jump)
            assert (await sender.send(permit(clock), get(f"{server.url}/x"))).complete
        assert server.connections == 1
