"""The sender against real sockets: what left, what came back, and what it says about both."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.server.sending import BEARER, TOKEN, certificate, get, permit, post, upstream
from tests.support import ManualClock

from forbear.rules.contract import Auth
from forbear.rules.ports import Outbound, Reply
from forbear.server.egress import Resolver
from forbear.server.fake import (
    ON_CONNECT,
    Answer,
    Drop,
    FakeProvider,
    Raw,
    Step,
    gzip_bomb,
    huge_head,
    retry_after,
)
from forbear.server.upstream import PermitUsed, Upstream

pytestmark = pytest.mark.anyio

JSON = Answer(json={"ok": True})


@asynccontextmanager
async def provider(
    *steps: Step, route: str = "POST /x", tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeProvider]:
    async with FakeProvider(tls=tls) as fake:
        fake.script(route, *steps)
        yield fake


async def posted(clock: ManualClock, fake: FakeProvider, timeout: int = 5_000) -> Reply:
    """One POST to `/x` on a connection of its own sender."""
    async with upstream(clock, fake.base_url) as sender:
        return await sender.send(permit(clock), post(f"{fake.base_url}/x", timeout=timeout))


# --- sent or not sent: the wire decides -----------------------------------------------------


@pytest.mark.requirement("R16")
@pytest.mark.parametrize(
    ("route", "step", "fault", "read"),
    [
        pytest.param(ON_CONNECT, Drop("before", "rst"), "closed", False, id="RST before reading"),
        pytest.param(ON_CONNECT, Drop("before", "fin"), "closed", False, id="FIN before reading"),
        pytest.param("POST /x", Drop("after", "rst"), "closed", True, id="read, then RST"),
        pytest.param("POST /x", Drop("after", "fin"), "closed", True, id="read, then FIN"),
        pytest.param("POST /x", Drop(gate="never"), "timeout", True, id="read, then silence"),
        pytest.param("POST /x", replace(JSON, cut_body=4), "truncated_body", True, id="half body"),
        pytest.param("POST /x", replace(JSON, cut_head=30), "closed", True, id="half head"),
        pytest.param(
            "POST /x",
            replace(JSON, framing="chunked", cut_body=6),
            "truncated_body",
            True,
            id="no last chunk",
        ),
        pytest.param(
            "POST /x", replace(JSON, drip="body", pace=9), "timeout", True, id="body stalls"
        ),
        pytest.param("POST /x", Raw("SSH-2.0-x\r\n\r\n"), "malformed", True, id="not HTTP"),
        pytest.param("POST /x", Raw("hello"), "malformed", True, id="not HTTP, then FIN"),
        pytest.param(
            "POST /x",
            Raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
            "malformed",
            True,
            id="two lengths",
        ),
        pytest.param(
            "POST /x",
            Raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "malformed",
            True,
            id="bad chunk",
        ),
        pytest.param(
            "POST /x", Raw("HTTP/1.1 101 Switch\r\n\r\n"), "malformed", True, id="upgrade unasked"
        ),
        pytest.param("POST /x", huge_head(), "headers_too_large", True, id="huge head"),
        pytest.param("POST /x", huge_head(300, 1), "headers_too_large", True, id="many fields"),
        pytest.param(
            "POST /x", replace(JSON, interim=5_000), "headers_too_large", True, id="interim flood"
        ),
    ],
)
async def test_a_request_that_may_have_arrived_is_never_called_not_sent(
    clock: ManualClock, route: str, step: Step, fault: str, read: bool
) -> None:
    async with provider(step, route=route) as fake:
        reply = await posted(clock, fake, timeout=400)
        assert (reply.sent, reply.complete, reply.fault) == (True, False, fault)
        assert reply.body == b""
        assert fake.count("POST /x") == read
        assert fake.connections == 1


async def refused_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.requirement("R16")
async def test_a_refused_connection_is_not_sent(clock: ManualClock) -> None:
    url = await refused_port()
    async with upstream(clock, url) as sender:
        reply = await sender.send(permit(clock), post(f"{url}/x"))
    assert (reply.sent, reply.complete, reply.fault) == (False, False, "connect")
    assert reply.detail == "no connection to 127.0.0.1: Connection refused"


@pytest.mark.requirement("R16")
async def test_an_unknown_name_is_not_sent(clock: ManualClock) -> None:
    def unknown(host: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    url = "https://api.exp.example"
    async with upstream(clock, url, resolver=Resolver(unknown)) as sender:
        reply = await sender.send(permit(clock), post(f"{url}/x"))
    assert (reply.sent, reply.fault) == (False, "dns")


@pytest.mark.requirement("R16")
async def test_a_connection_nobody_answers_is_not_sent(clock: ManualClock) -> None:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)  # room for one, which the next line takes; further SYNs go unanswered
    address = server.getsockname()
    fillers = [socket.socket() for _ in range(3)]
    try:
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        async with upstream(clock, url) as sender:
            reply = await sender.send(permit(clock), post(f"{url}/x", timeout=200))
    finally:
        for each in (server, *fillers):
            each.close()
    assert (reply.sent, reply.fault) == (False, "connect")


@pytest.mark.requirement("R16")
async def test_TR_02_a_stuck_resolver_ends_at_the_total_time_and_is_not_sent(
    clock: ManualClock,
) -> None:
    unblock = threading.Event()

    def stuck(host: str) -> list[str]:
        unblock.wait(30)
        return ["93.184.216.34"]

    url = "https://api.exp.example"
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with upstream(clock, url, resolver=Resolver(stuck)) as sender:
        reply = await sender.send(permit(clock), post(f"{url}/x", timeout=200))
    unblock.set()
    assert loop.time() - started < 2
    assert (reply.sent, reply.fault) == (False, "dns")
    assert reply.detail == "the name api.exp.example was not resolved within 0.2 s"


@pytest.mark.requirement("R10")
async def test_no_request_waits_for_another_to_give_up_its_connection(clock: ManualClock) -> None:
    """How many are out is for the scopes; a permit that waited here would leave late."""
    async with (
        provider(*[replace(JSON, gate="go")] * 30) as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        held = [
            asyncio.create_task(sender.send(permit(clock), post(f"{fake.base_url}/x")))
            for _ in range(30)
        ]
        await fake.arrived("POST /x", 30)
        fake.release("go")
        replies = await asyncio.gather(*held)
        assert all(reply.complete for reply in replies)


@pytest.mark.requirement("R16")
async def test_an_upload_nobody_reads_may_have_been_applied(clock: ManualClock) -> None:
    never = asyncio.Event()
    handlers: list[asyncio.Task[None]] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        try:
            await never.wait()
        finally:
            writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with upstream(clock, url) as sender:
        big = post(f"{url}/x", bytes(16_000_000), timeout=300)
        reply = await sender.send(permit(clock), big)
    never.set()
    await asyncio.gather(*handlers)
    server.close()
    assert (reply.sent, reply.fault) == (True, "timeout")


@pytest.mark.requirement("R16")
async def test_an_upload_answered_early_and_closed_is_sent(clock: ManualClock) -> None:
    early = Raw("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    async with provider(early, route=ON_CONNECT) as fake, upstream(clock, fake.base_url) as sender:
        reply = await sender.send(permit(clock), post(f"{fake.base_url}/x", bytes(8_000_000)))
        assert reply.sent
        assert (reply.status, reply.fault) in {(413, None), (None, "closed")}


@pytest.mark.requirement("R16")
async def test_a_cancelled_send_stays_cancelled_and_its_connection_is_gone(
    clock: ManualClock,
) -> None:
    async with (
        provider(replace(JSON, gate="never")) as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        task = asyncio.create_task(sender.send(permit(clock), post(f"{fake.base_url}/x")))
        await fake.arrived("POST /x")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.script("POST /x", JSON)
        again = await sender.send(permit(clock), post(f"{fake.base_url}/x"))
        assert again.complete
        assert [arrival.connection for arrival in fake.arrivals] == [1, 2]


@pytest.mark.parametrize(
    "request_",
    [
        Outbound("POST", "/x", (("X-Note", "a\r\nX-Evil: 1"),)),
        Outbound("POST", "/x", (("X-Note", "caf\u00e9"),)),
        Outbound("POST", "/x", (("Content-Length", "99"),)),
        Outbound("POST", "/x", (("Host", "evil.example"),)),
        Outbound("POST", "/x", (("Bad Name", "1"),)),
        Outbound("PO ST", "/x"),
    ],
)
async def test_what_http_cannot_carry_is_refused_before_connecting(
    clock: ManualClock, request_: Outbound
) -> None:
    async with provider() as fake, upstream(clock, fake.base_url) as sender:
        whole = replace(request_, url=f"{fake.base_url}/x")
        reply = await sender.send(permit(clock), whole)
        assert (reply.sent, reply.fault) == (False, "local")
        assert fake.connections == 0


# --- TLS ------------------------------------------------------------------------------------


async def test_a_trusted_certificate_for_the_name_is_enough(
    clock: ManualClock, tmp_path: Path
) -> None:
    server, client = certificate(tmp_path, "DNS:localhost")
    resolver = Resolver(lambda host: ["127.0.0.1"])
    async with provider(JSON, tls=server) as fake:
        url = f"https://localhost:{fake.port}"
        async with upstream(clock, url, resolver=resolver, tls=client) as sender:
            reply = await sender.send(permit(clock), post(f"{url}/x"))
        assert (reply.complete, json.loads(reply.body)) == (True, {"ok": True})
        assert fake.arrivals[0].headers["host"] == f"localhost:{fake.port}"


@pytest.mark.requirement("C04")
async def test_SE_04_one_lookup_is_checked_connected_to_and_named_in_the_handshake(
    clock: ManualClock, tmp_path: Path
) -> None:
    server, client = certificate(tmp_path, "DNS:localhost")
    asked: list[str] = []
    named: list[str | None] = []
    server.sni_callback = lambda _, name, __: named.append(name)

    def once(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    async with provider(JSON, tls=server) as fake:
        url = f"https://localhost:{fake.port}"
        async with upstream(clock, url, resolver=Resolver(once), tls=client) as sender:
            assert (await sender.send(permit(clock), post(f"{url}/x"))).complete
    assert (asked, named) == (["localhost"], ["localhost"])


@pytest.mark.requirement("R16")
async def test_an_unknown_or_foreign_certificate_is_not_sent(
    clock: ManualClock, tmp_path: Path
) -> None:
    server, client = certificate(tmp_path, "DNS:other.example")
    async with provider(JSON, tls=server) as fake:
        for trust in (ssl.create_default_context(), client):
            async with upstream(clock, fake.base_url, tls=trust) as sender:
                reply = await sender.send(permit(clock), post(f"{fake.base_url}/x"))
            assert (reply.sent, reply.fault) == (False, "tls")
            assert "certificate is not accepted" in reply.detail
        assert fake.count("POST /x") == 0


@pytest.mark.requirement("R16")
@pytest.mark.parametrize("step", [Raw("HTTP/1.1 400 Bad\r\n\r\n"), Drop("before", gate="never")])
async def test_a_port_without_tls_is_not_sent(clock: ManualClock, step: Step) -> None:
    async with provider(step, route=ON_CONNECT) as fake:
        url = f"https://127.0.0.1:{fake.port}"
        async with upstream(clock, url) as sender:
            reply = await sender.send(permit(clock), post(f"{url}/x", timeout=300))
        assert (reply.sent, reply.fault) == (False, "tls")


# --- permits --------------------------------------------------------------------------------


@pytest.mark.requirement("R08")
async def test_a_permit_sends_once(clock: ManualClock) -> None:
    async with provider(JSON, JSON) as fake, upstream(clock, fake.base_url) as sender:
        leave = permit(clock)
        await sender.send(leave, post(f"{fake.base_url}/x"))
        with pytest.raises(PermitUsed):
            await sender.send(leave, post(f"{fake.base_url}/x"))
        assert fake.count("POST /x") == 1


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda clock: clock.suspend(15_001), id="asleep"),
        pytest.param(lambda clock: clock.jump(15_001), id="wall clock alone"),
        pytest.param(lambda clock: clock.reboot("boot-2"), id="another boot"),
    ],
)
@pytest.mark.parametrize("when", ["before the send", "while connecting"])
async def test_CL_01_a_permit_that_is_over_hands_no_byte_to_the_socket(
    clock: ManualClock, move: Callable[[ManualClock], None], when: str
) -> None:
    def asleep(host: str) -> list[str]:
        move(clock)
        return ["127.0.0.1"]

    async with provider(JSON) as fake:
        url = f"http://localhost:{fake.port}"
        leave = permit(clock)
        async with upstream(clock, url, resolver=Resolver(asleep)) as sender:
            if when == "before the send":
                move(clock)
            reply = await sender.send(leave, post(f"{url}/x"))
        assert (reply.sent, reply.complete, reply.fault) == (False, False, "too_late")
        await fake.closed()
        assert sum(fake.bytes_read.values()) == fake.count("POST /x") == 0


async def test_CL_01_a_kept_connection_is_no_way_past_the_clock(clock: ManualClock) -> None:
    async with provider(JSON, JSON) as fake, upstream(clock, fake.base_url) as sender:
        early, late = permit(clock), permit(clock)
        assert (await sender.send(early, post(f"{fake.base_url}/x"))).complete
        clock.advance(15_000)
        assert (await sender.send(late, post(f"{fake.base_url}/x"))).complete
        later = permit(clock, window=0)
        clock.advance(1)
        reply = await sender.send(later, post(f"{fake.base_url}/x"))
        assert (reply.sent, reply.fault) == (False, "too_late")
        assert fake.count("POST /x") == 2


# --- one permit, one request ----------------------------------------------------------------


@pytest.mark.requirement("R08")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Drop("after", "fin"), id="WR-15 no answer"),
        pytest.param(Answer(503, headers=(("Retry-After", "0"),)), id="WR-15 503"),
        pytest.param(retry_after(0), id="WR-15 429"),
        pytest.param(Answer(408, close=True), id="WR-15 408"),
        pytest.param(Answer(401, headers=(("WWW-Authenticate", "Basic realm=x"),)), id="401"),
        pytest.param(Answer(425), id="425"),
    ],
)
async def test_nothing_makes_the_client_send_again(clock: ManualClock, step: Step) -> None:
    async with provider(step) as fake:
        reply = await posted(clock, fake)
        assert reply.sent
        assert (fake.count("POST /x"), fake.connections) == (1, 1)


@pytest.mark.requirement("R08", "W21", "C04")
@pytest.mark.parametrize("status", [201, 202, 301, 302, 303, 307, 308])
async def test_a_location_is_reported_and_never_followed(clock: ManualClock, status: int) -> None:
    async with FakeProvider() as other, FakeProvider() as fake:
        for place in ("/exports/1", f"{other.base_url}/exports/1", "http://[bad"):
            fake.script("POST /x", Answer(status, {}, (("Location", place),)))
            reply = await posted(clock, fake)
            assert (reply.complete, reply.status) == (True, status)
            assert (reply.header("location"), reply.url) == (place, f"{fake.base_url}/x")
        assert fake.count("POST /x") == len(fake.arrivals) == 3
        assert other.connections == 0


@pytest.mark.requirement("R08", "R16")
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_WR_17_a_kept_connection_lost_after_the_request_is_unknown_and_not_resent(
    clock: ManualClock, how: str
) -> None:
    lost = Drop("after", "rst") if how == "rst" else Drop("after")
    async with provider(JSON, lost) as fake, upstream(clock, fake.base_url) as sender:
        assert (await sender.send(permit(clock), post(f"{fake.base_url}/x"))).complete
        reply = await sender.send(permit(clock), post(f"{fake.base_url}/x"))
        assert (reply.sent, reply.complete, reply.fault) == (True, False, "closed")
        assert [arrival.connection for arrival in fake.arrivals] == [1, 1]


@pytest.mark.requirement("R16")
async def test_WR_17_a_kept_connection_reset_unread_is_unknown(clock: ManualClock) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with upstream(clock, url) as sender:
        assert (await sender.send(permit(clock), post(f"{url}/x"))).complete
        reply = await sender.send(permit(clock), post(f"{url}/x"))
    server.close()
    assert (reply.sent, reply.fault) == (True, "closed")


@pytest.mark.requirement("R08")
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_WR_18_a_connection_that_went_stale_costs_no_second_request(
    clock: ManualClock, method: str
) -> None:
    silent_end = Raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    async with (
        provider(silent_end, JSON, route=f"{method} /x") as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        for _ in range(2):
            wish = Outbound(method, f"{fake.base_url}/x", body=b"{}" if method == "POST" else None)
            reply = await sender.send(permit(clock), wish)
            assert (reply.complete, reply.status) == (True, 200)
            if fake.connections == 1:
                await fake.closed()
        assert [arrival.connection for arrival in fake.arrivals] == [1, 2]


async def test_connections_are_kept_unless_a_fresh_one_is_asked_for(clock: ManualClock) -> None:
    async with FakeProvider() as fake, upstream(clock, fake.base_url) as sender:
        fake.script("GET /x", *[JSON] * 4)
        wish = get(f"{fake.base_url}/x")
        for fresh in (False, False, True, True):
            reply = await sender.send(permit(clock), replace(wish, fresh_connection=fresh))
            assert reply.complete
        assert [arrival.connection for arrival in fake.arrivals] == [1, 1, 2, 3]
        closing = [arrival.headers["connection"] for arrival in fake.arrivals[2:]]
        assert closing == ["close", "close"]


@pytest.mark.parametrize(
    "surplus",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n",
    ],
)
async def test_bytes_after_an_answer_never_answer_the_next_request(
    clock: ManualClock, surplus: str
) -> None:
    twice = surplus + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale"
    async with (
        provider(Raw(twice, close=False), JSON) as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        assert (await sender.send(permit(clock), post(f"{fake.base_url}/x"))).complete
        reply = await sender.send(permit(clock), post(f"{fake.base_url}/x"))
        assert json.loads(reply.body) == {"ok": True}
        assert fake.connections == 2


# --- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("drip", ["head", "body"])
async def test_TR_01_a_drip_ends_at_the_total_time(clock: ManualClock, drip: str) -> None:
    step = replace(JSON, drip="head" if drip == "head" else "body", pace=0.03, body=b"x" * 500)
    async with provider(replace(step, json=None)) as fake:
        loop = asyncio.get_running_loop()
        started = loop.time()
        reply = await posted(clock, fake, timeout=300)
        assert loop.time() - started < 2
        assert (reply.sent, reply.complete, reply.fault) == (True, False, "timeout")
        assert (reply.status, reply.body) == (None if drip == "head" else 200, b"")


async def test_TR_03_interim_answers_are_not_the_answer(clock: ManualClock) -> None:
    async with provider(replace(JSON, interim=3)) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status) == (True, 200)
        assert "Link" not in dict(reply.headers)


@pytest.mark.requirement("C04")
async def test_TR_05_a_bomb_ends_at_the_decoded_cap_and_keeps_its_status(
    clock: ManualClock,
) -> None:
    async with provider(gzip_bomb()) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status, reply.fault) == (False, 200, "body_too_large")
        assert reply.header("content-encoding") == "gzip"


@pytest.mark.requirement("C04")
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_plain_body_over_the_cap_is_refused(clock: ManualClock, framing: str) -> None:
    plain = Answer(body=b"x" * 3_000_000)
    step = plain if framing == "length" else replace(plain, framing="chunked")
    async with provider(replace(plain, framing="close") if framing == "close" else step) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status, reply.fault) == (False, 200, "body_too_large")


@pytest.mark.parametrize("framing", ["length", "close"])
async def test_TR_06_a_gzip_cut_in_half_is_truncated(clock: ManualClock, framing: str) -> None:
    step = Answer(json={"rows": list(range(500))}, gzip=True, shorten=300)
    async with provider(step if framing == "length" else replace(step, framing="close")) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status, reply.fault) == (False, 200, "truncated_body")
        assert reply.body == b""


async def test_BO_10_a_body_ended_by_close_is_whole_for_the_wire(clock: ManualClock) -> None:
    cut = '{"status":"succeeded","n":12'
    async with provider(Answer(body=cut, framing="close")) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status, reply.body) == (True, 200, cut.encode())


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("packed", [False, True])
async def test_whole_answers_come_back_whole(
    clock: ManualClock, framing: str, packed: bool
) -> None:
    rows = {"rows": list(range(5_000))}
    step = Answer(json=rows, gzip=packed)
    framed = {
        "length": step,
        "chunked": replace(step, framing="chunked"),
        "close": replace(step, framing="close"),
    }
    async with provider(framed[framing], JSON) as fake, upstream(clock, fake.base_url) as sender:
        reply = await sender.send(permit(clock), post(f"{fake.base_url}/x"))
        assert reply.complete
        assert json.loads(reply.body) == rows
        assert (await sender.send(permit(clock), post(f"{fake.base_url}/x"))).complete
        assert fake.connections == (2 if framing == "close" else 1)


async def test_a_head_request_may_state_a_length_without_a_body(clock: ManualClock) -> None:
    async with (
        provider(Answer(body=b"x" * 50), route="HEAD /x") as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        wish = Outbound("HEAD", f"{fake.base_url}/x", max_bytes=10)
        reply = await sender.send(permit(clock), wish)
        assert (reply.complete, reply.body) == (True, b"")


async def test_a_coding_that_was_not_asked_for_is_malformed(clock: ManualClock) -> None:
    step = Answer(body=gzip.compress(b"{}"), headers=(("Content-Encoding", "br"),))
    async with provider(step) as fake:
        reply = await posted(clock, fake)
        assert (reply.complete, reply.status, reply.fault) == (False, 200, "malformed")
        assert fake.arrivals[0].headers["accept-encoding"] == "gzip, deflate"


# --- credentials and places -----------------------------------------------------------------

QUERY = Auth("query", name="key", secret="env:EXP_TOKEN")


async def test_the_credential_is_on_the_wire_and_not_in_the_reply(clock: ManualClock) -> None:
    async with provider(JSON, JSON, route="GET /x") as fake:
        for auth in (BEARER, QUERY):
            async with upstream(clock, fake.base_url, auth=auth) as sender:
                reply = await sender.send(permit(clock), get(f"{fake.base_url}/x?a=1"))
                assert reply.url == f"{fake.base_url}/x?a=1"
                assert TOKEN not in repr(reply)
        bearer, query = fake.arrivals
        assert bearer.headers["authorization"] == f"Bearer {TOKEN}"
        assert query.query == {"a": "1", "key": TOKEN}
        assert query.headers["user-agent"].startswith("forbear/")


@pytest.mark.requirement("C02")
async def test_a_parameter_of_the_address_does_not_stand_beside_the_credential(
    clock: ManualClock,
) -> None:
    async with provider(JSON, JSON, route="GET /x") as fake:
        async with upstream(clock, fake.base_url, auth=QUERY) as sender:
            for query in ("a=1", "key=[redacted]&a=1&k%65y=2"):
                await sender.send(permit(clock), get(f"{fake.base_url}/x?{query}"))
        plain, cleaned = fake.arrivals
        assert plain.query == cleaned.query == {"a": "1", "key": TOKEN}
        assert plain.size == cleaned.size


BODIES = {
    "a member": ("key", "application/json", b'{"n":1e5}', b'{"n":1e5,"key":"TOKEN"}'),
    "a pointer": ("/auth/a~1b", "application/json", b"{}", b'{"auth":{"a/b":"TOKEN"}}'),
    "its like": ("key", "application/json", b'{"key":1,"n":2}', b'{"key":"TOKEN","n":2}'),
    "a field": (
        "key",
        "application/x-www-form-urlencoded",
        b"k%65y=1&a=%20",
        b"a=%20&key=TOKEN",
    ),
    "an empty form": ("key", "application/x-www-form-urlencoded", b"", b"key=TOKEN"),
}


@pytest.mark.parametrize(("name", "mime", "stored", "sent"), BODIES.values(), ids=BODIES)
@pytest.mark.requirement("C02", "C03")
async def test_a_secret_of_the_body_stands_in_the_last_copy_alone(
    clock: ManualClock, name: str, mime: str, stored: bytes, sent: bytes
) -> None:
    auth = Auth("body", name=name, secret="env:EXP_TOKEN")
    async with provider(JSON, route="POST /x") as fake:
        request = Outbound("POST", f"{fake.base_url}/x", (("Content-Type", mime),), stored)
        async with upstream(clock, fake.base_url, auth=auth) as sender:
            await sender.send(permit(clock), request)
        (arrival,) = fake.arrivals
        assert arrival.body == sent.replace(b"TOKEN", TOKEN.encode())
        assert request.body == stored


@pytest.mark.parametrize("stored", [None, b"[1]", b"x", b'{"auth":[]}'])
async def test_a_body_that_cannot_hold_the_secret_is_not_sent(
    clock: ManualClock, stored: bytes | None
) -> None:
    auth = Auth("body", name="/auth/key", secret="env:EXP_TOKEN")
    async with provider(JSON, route="POST /x") as fake:
        request = Outbound("POST", f"{fake.base_url}/x", (), stored)
        async with upstream(clock, fake.base_url, auth=auth) as sender:
            reply = await sender.send(permit(clock), request)
        assert (reply.sent, reply.fault, fake.arrivals) == (False, "local", [])
        assert TOKEN not in repr(reply)


@pytest.mark.requirement("A08")
async def test_a_place_that_got_no_credential_cannot_show_it_either(clock: ManualClock) -> None:
    async with FakeProvider() as home, FakeProvider() as files:
        files.script("GET /f", Answer(body=f"a {TOKEN}"))
        place = (f"127.0.0.1:{files.port}",)
        async with upstream(clock, home.base_url, allow_hosts=place) as sender:
            reply = await sender.send(permit(clock), get(f"{files.base_url}/f"))
        assert "authorization" not in files.arrivals[0].headers
        assert reply.body == b"a [redacted]"


@pytest.mark.requirement("C02")
async def test_a_header_of_the_request_does_not_stand_beside_the_credential(
    clock: ManualClock,
) -> None:
    async with provider(JSON, route="GET /x") as fake, upstream(clock, fake.base_url) as sender:
        wish = replace(get(f"{fake.base_url}/x"), headers=(("authorization", "Bearer other"),))
        await sender.send(permit(clock), wish)
        assert fake.arrivals[0].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.requirement("C02")
@pytest.mark.requirement("C04")
@pytest.mark.parametrize(
    ("contract_hosts", "request_hosts", "authenticate", "credential"),
    [(True, False, True, False), (False, True, True, True), (False, True, False, False)],
)
async def test_SE_01_another_host_gets_the_credential_only_if_the_request_names_it(
    clock: ManualClock,
    contract_hosts: bool,
    request_hosts: bool,
    authenticate: bool,
    credential: bool,
) -> None:
    async with FakeProvider() as home, FakeProvider() as files:
        files.script("GET /f", JSON)
        place = (f"127.0.0.1:{files.port}",)
        async with upstream(
            clock, home.base_url, allow_hosts=place if contract_hosts else ()
        ) as sender:
            wish = Outbound(
                "GET",
                f"{files.base_url}/f",
                authenticate=authenticate,
                allow_hosts=place if request_hosts else (),
                from_answer=True,
            )
            assert (await sender.send(permit(clock), wish)).complete
        assert ("authorization" in files.arrivals[0].headers) == credential


@pytest.mark.requirement("C02")
@pytest.mark.requirement("C04")
async def test_SE_03_an_address_elsewhere_is_refused_before_the_secret_is_read(
    clock: ManualClock,
) -> None:
    async with FakeProvider() as evil, FakeProvider() as fake:
        missing = Auth("bearer", secret="env:NOT_SET")
        async with upstream(clock, fake.base_url, auth=missing) as sender:
            wish = replace(get(f"{evil.base_url}/op?sig=TOPSECRET"), from_answer=True)
            reply = await sender.send(permit(clock), wish)
        assert (reply.sent, reply.fault) == (False, "egress_refused")
        assert "TOPSECRET" not in reply.detail
        assert evil.connections == fake.connections == 0


@pytest.mark.requirement("C04")
async def test_SE_04_a_name_that_turns_to_this_machine_is_not_connected_to(
    clock: ManualClock,
) -> None:
    async with FakeProvider() as fake:
        answers = [["127.0.0.1"], ["169.254.169.254"], ["93.184.216.34", "10.0.0.1"]]
        url = f"https://api.exp.example:{fake.port}"
        async with upstream(clock, url, resolver=Resolver(lambda host: answers.pop(0))) as sender:
            for _ in range(3):
                reply = await sender.send(permit(clock), post(f"{url}/x"))
                assert (reply.sent, reply.fault) == (False, "egress_refused")
        assert fake.connections == 0


async def test_a_missing_credential_sends_nothing_and_says_what_to_do(clock: ManualClock) -> None:
    async with FakeProvider() as fake:
        missing = Auth("bearer", secret="env:NOT_SET")
        async with upstream(clock, fake.base_url, auth=missing) as sender:
            reply = await sender.send(permit(clock), get(f"{fake.base_url}/x"))
        assert (reply.sent, reply.fault) == (False, "credential_missing")
        assert reply.detail.startswith("env:NOT_SET: NOT_SET is not set ->")
        assert fake.connections == 0


async def test_an_unknown_provider_sends_nothing(clock: ManualClock) -> None:
    async with FakeProvider() as fake, upstream(clock, fake.base_url) as sender:
        empty = Upstream(clock, lambda provider, account: None, sender._credentials)
        reply = await empty.send(permit(clock), get(f"{fake.base_url}/x"))
        assert (reply.sent, reply.fault) == (False, "local")


async def test_proxies_and_logins_of_the_environment_are_ignored(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    async with FakeProvider() as proxy, provider(JSON, route="GET /x") as fake:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.base_url)
        monkeypatch.setenv("NETRC", str(netrc))
        async with upstream(clock, fake.base_url, auth=Auth()) as sender:
            assert (await sender.send(permit(clock), get(f"{fake.base_url}/x"))).complete
        assert proxy.connections == 0
        assert "authorization" not in fake.arrivals[0].headers


async def test_cookies_are_neither_reported_nor_sent_back(clock: ManualClock) -> None:
    step = Answer(json={}, headers=(("Set-Cookie", "session=TOPSECRET; Path=/"),))
    async with (
        provider(step, JSON, route="GET /x") as fake,
        upstream(clock, fake.base_url) as sender,
    ):
        replies = [await sender.send(permit(clock), get(f"{fake.base_url}/x")) for _ in range(2)]
        assert "TOPSECRET" not in repr(replies)
        assert all("cookie" not in arrival.headers for arrival in fake.arrivals)


async def test_SE_06_nothing_is_logged_at_any_level(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        provider(JSON, route="GET /x") as fake,
        upstream(clock, fake.base_url, auth=QUERY) as sender,
    ):
        await sender.send(permit(clock), get(f"{fake.base_url}/x?api_key=TOPSECRET"))
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert TOKEN not in messages
    assert "TOPSECRET" not in messages


async def test_SE_07_an_error_shows_neither_login_nor_query(clock: ManualClock) -> None:
    url = await refused_port()
    async with upstream(clock, url) as sender:
        shown = [
            (await sender.send(permit(clock), get(place))).detail
            for place in (
                f"{url}/x?api_key=TOPSECRET",
                f"{url.replace('http://', 'http://user:TOPSECRET@')}/x",
            )
        ]
    assert "TOPSECRET" not in " ".join(shown)
    assert all(shown)


async def test_a_reflected_credential_is_hidden_in_headers_and_body(clock: ManualClock) -> None:
    async with FakeProvider() as provider:
        echoed = Answer(401, body=f"no: Bearer {TOKEN}", headers=(("X-Request-Id", TOKEN),))
        provider.script("GET /echo", echoed)
        async with upstream(clock, provider.base_url) as sender:
            reply = await sender.send(permit(clock), get(f"{provider.base_url}/echo"))
    assert reply.body == b"no: Bearer [redacted]"
    assert reply.header("X-Request-Id") == "[redacted]"
