"""Requests through the operator's proxy: what it sees, what it cannot, and what counts as sent."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.server.sending import BEARER, TOKEN, certificate, get, permit, post
from tests.support import ManualClock

from forbear.rules.contract import Auth
from forbear.rules.ports import Outbound, Reply
from forbear.server.config import BadSettings, Settings
from forbear.server.credentials import Credentials
from forbear.server.egress import Resolver
from forbear.server.fake import Answer, Drop, FakeProvider
from forbear.server.proxy import Proxy
from forbear.server.upstream import Target, Upstream

pytestmark = pytest.mark.anyio

PASSWORD = "canary-pr0xy-password"
BASIC = Auth("basic", user="forbear", password="env:PROXY_PASSWORD")
HOST = "api.exp.example"
OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 20_000 + b"\r\n\r\n"


@dataclass
class ConnectProxy:
    """A proxy that opens every tunnel to one port of this machine, or answers with `answer`."""

    inside: int = 0
    answer: bytes | None = OPENED
    """None: it says nothing at all."""
    ends: bool = True
    heads: list[str] = field(default_factory=list[str])
    """What it was asked, in the clear."""
    passed: bytearray = field(default_factory=bytearray)
    """What went through its tunnels towards the provider."""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head.decode("latin-1"))
            if self.answer is None:
                await reader.read()
                return
            writer.write(self.answer)
            if self.answer != OPENED:
                if not self.ends:
                    await reader.read()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self.inside)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._copy(reader, back, self.passed))
                    tasks.create_task(self._copy(there, writer, bytearray()))
            finally:
                back.close()
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray
    ) -> None:
        while data := await reader.read(65_536):
            seen += data
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def connect_proxy(
    inside: int = 0, answer: bytes | None = OPENED, *, ends: bool = True
) -> AsyncIterator[ConnectProxy]:
    proxy = ConnectProxy(inside, answer, ends)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await proxy.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Names:
    """A resolver that knows the proxy and some names, and remembers what it was asked."""

    known: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[str] = field(default_factory=list[str])

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror(-2, "Name or service not known")
        return [self.known[host]]


def behind(
    clock: ManualClock,
    proxy: ConnectProxy,
    base_url: str,
    *,
    auth: Auth = BASIC,
    names: Names | None = None,
    no_proxy: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    trust: ssl.SSLContext | None = None,
) -> Upstream:
    names = names or Names()
    names.known["proxy.internal"] = "127.0.0.1"
    kept = {"EXP_TOKEN": TOKEN, "PROXY_PASSWORD": PASSWORD}
    return Upstream(
        clock,
        lambda provider, account: Target(base_url, BEARER, ()),
        Credentials(kept if environment is None else environment),
        resolver=Resolver(names),
        tls=trust or ssl.create_default_context(),
        proxy=Proxy("proxy.internal", proxy.port, auth, no_proxy),
    )


@pytest.mark.requirement("C04")
async def test_a_request_goes_through_a_tunnel_that_sees_a_name_and_a_port(
    clock: ManualClock, tmp_path: Path
) -> None:
    tls, trust = certificate(tmp_path, f"DNS:{HOST}")
    names = Names()
    async with FakeProvider(tls=tls) as fake, connect_proxy(fake.port) as proxy:
        url = f"https://{HOST}:{fake.port}"
        fake.script("GET /x", *[Answer(json={"ok": True})] * 2)
        async with behind(clock, proxy, url, names=names, trust=trust) as sender:
            replies = [await sender.send(permit(clock), get(f"{url}/x?sig=1")) for _ in range(2)]

        assert [(one.sent, one.status) for one in replies] == [(True, 200)] * 2
        assert len(fake.arrivals) == 2
        pair = base64.b64encode(f"forbear:{PASSWORD}".encode()).decode()
        assert proxy.heads == [
            f"CONNECT {HOST}:{fake.port} HTTP/1.1\r\nHost: {HOST}:{fake.port}\r\n"
            f"Proxy-Authorization: Basic {pair}\r\n\r\n"
        ], "one tunnel serves both"
        assert names.asked == ["proxy.internal"], "the name of the provider is the proxy's affair"
        assert TOKEN.encode() not in bytes(proxy.passed)
        for arrival in fake.arrivals:
            assert arrival.headers["authorization"] == f"Bearer {TOKEN}"
            assert "proxy-authorization" not in arrival.headers
            assert pair not in repr(arrival)
        assert PASSWORD not in repr(replies)


@pytest.mark.requirement("R16")
@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        pytest.param(
            b'HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm="canary"\r\n\r\n',
            f"answered 407 to CONNECT {HOST}:443",
            id="407",
        ),
        pytest.param(
            b"HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\ncanary",
            f"answered 403 to CONNECT {HOST}:443",
            id="403",
        ),
        pytest.param(
            b"HTTP/1.1 502 canary\r\n\r\n", f"answered 502 to CONNECT {HOST}:443", id="502"
        ),
        pytest.param(
            b"HTTP/1.1 302 Found\r\nLocation: http://canary/\r\n\r\n",
            f"answered 302 to CONNECT {HOST}:443",
            id="302",
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\n", f"answered 100 to CONNECT {HOST}:443", id="100"
        ),
        pytest.param(b"", "gave no whole answer to CONNECT", id="closed"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", "gave no whole answer to CONNECT", id="half a head"),
        pytest.param(LONG, "gave no whole answer to CONNECT", id="a huge head"),
        pytest.param(
            b"SSH-2.0 canary\r\n\r\n", "gave an answer to CONNECT that is not HTTP", id="not HTTP"
        ),
        pytest.param(
            b"HTTP/1.1 \xb2\xb2\xb2 x\r\n\r\n",
            "gave an answer to CONNECT that is not HTTP",
            id="no digits",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\ncanary",
            "sent more than its answer to CONNECT",
            id="an answer in the provider's place",
        ),
    ],
)
async def test_a_tunnel_that_is_not_opened_means_not_sent(
    clock: ManualClock, answer: bytes, detail: str
) -> None:
    async with connect_proxy(answer=answer) as proxy:
        async with behind(clock, proxy, f"https://{HOST}") as sender:
            reply = await sender.send(permit(clock), post(f"https://{HOST}/x"))

        assert (reply.sent, reply.complete, reply.fault) == (False, False, "proxy")
        assert reply.detail == f"the proxy proxy.internal:{proxy.port} {detail}"
        assert len(proxy.heads) == 1, "the CONNECT itself is there to be seen"
        assert "canary" not in repr(reply)
        assert TOKEN not in "".join(proxy.heads)


@pytest.mark.requirement("R16")
@pytest.mark.parametrize(
    ("answer", "ends"),
    [pytest.param(None, True, id="silence"), pytest.param(b"HTTP/1.1 2", False, id="half")],
)
async def test_a_proxy_that_takes_too_long_means_not_sent(
    clock: ManualClock, answer: bytes | None, ends: bool
) -> None:
    async with connect_proxy(answer=answer, ends=ends) as proxy:
        async with behind(clock, proxy, f"https://{HOST}") as sender:
            reply = await sender.send(permit(clock), post(f"https://{HOST}/x", timeout=300))

        assert (reply.sent, reply.fault) == (False, "proxy")
        assert reply.detail == f"the proxy opened no way to {HOST} within 0.3 s"
        assert len(proxy.heads) == 1


async def test_a_proxy_that_is_not_there_means_not_sent(clock: ManualClock) -> None:
    async with connect_proxy() as proxy:
        pass
    async with behind(clock, proxy, f"https://{HOST}") as sender:
        reply = await sender.send(permit(clock), post(f"https://{HOST}/x"))
    place = f"proxy.internal:{proxy.port}"
    assert (reply.sent, reply.fault) == (False, "proxy")
    assert reply.detail == f"the proxy {place} was not reached: Connection refused"


@pytest.mark.requirement("R16")
async def test_what_left_through_the_tunnel_may_have_arrived(
    clock: ManualClock, tmp_path: Path
) -> None:
    tls, trust = certificate(tmp_path, f"DNS:{HOST}")
    async with FakeProvider(tls=tls) as fake, connect_proxy(fake.port) as proxy:
        url = f"https://{HOST}:{fake.port}"
        fake.script("POST /x", Drop())
        async with behind(clock, proxy, url, trust=trust) as sender:
            reply = await sender.send(permit(clock), post(f"{url}/x"))
        assert (reply.sent, reply.complete, reply.fault) == (True, False, "closed")
        assert fake.count("POST /x") == 1


async def test_a_proxy_that_answers_in_the_providers_place_is_found_out(
    clock: ManualClock, tmp_path: Path
) -> None:
    wrong, _ = certificate(tmp_path, "DNS:evil.example")
    async with FakeProvider(tls=wrong) as fake, connect_proxy(fake.port) as proxy:
        url = f"https://{HOST}:{fake.port}"
        async with behind(clock, proxy, url) as sender:
            reply = await sender.send(permit(clock), post(f"{url}/x"))
        assert (reply.sent, reply.fault) == (False, "tls")
        assert fake.arrivals == []


async def test_without_its_credential_the_proxy_is_not_even_asked(clock: ManualClock) -> None:
    async with connect_proxy() as proxy:
        kept = {"EXP_TOKEN": TOKEN}
        async with behind(clock, proxy, f"https://{HOST}", environment=kept) as sender:
            reply = await sender.send(permit(clock), get(f"https://{HOST}/x"))
        assert (reply.sent, reply.fault) == (False, "proxy")
        assert "needs its credential, env:PROXY_PASSWORD: PROXY_PASSWORD is not set" in reply.detail
        assert proxy.heads == []


@pytest.mark.requirement("C04")
@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/x",
        "https://10.0.0.1/x",
        "https://[::ffff:a9fe:a9fe]/x",
        "https://[fd00::1]/x",
    ],
)
async def test_an_address_in_the_url_is_checked_here_and_never_left_to_the_proxy(
    clock: ManualClock, url: str
) -> None:
    async with connect_proxy() as proxy:
        async with behind(clock, proxy, url.removesuffix("/x")) as sender:
            reply = await sender.send(permit(clock), get(url))
        assert (reply.sent, reply.fault) == (False, "egress_refused")
        assert proxy.heads == []


async def test_hosts_that_the_contract_does_not_name_are_not_asked_for(clock: ManualClock) -> None:
    async with connect_proxy() as proxy:
        async with behind(clock, proxy, f"https://{HOST}") as sender:
            away = Outbound("GET", "https://evil.example/x", from_answer=True)
            reply: Reply = await sender.send(permit(clock), away)
        assert (reply.sent, reply.fault) == (False, "egress_refused")
        assert proxy.heads == []


async def test_this_machine_and_the_hosts_of_no_proxy_are_reached_directly(
    clock: ManualClock,
) -> None:
    async with connect_proxy() as proxy, FakeProvider() as fake:
        fake.script("GET /x", Answer(json={}))
        async with behind(clock, proxy, fake.base_url) as sender:
            assert (await sender.send(permit(clock), get(f"{fake.base_url}/x"))).status == 200

        names = Names({"in.exp.example": "10.1.2.3"})
        url = "https://in.exp.example"
        async with behind(clock, proxy, url, names=names, no_proxy=("*.exp.example",)) as sender:
            reply = await sender.send(permit(clock), get(f"{url}/x"))
        assert reply.fault == "egress_refused", "and the guard of addresses is back in force"
        assert proxy.heads == []


# --- config.toml ----------------------------------------------------------------------------


def settings(home: Path, text: str) -> Settings:
    (home / "config.toml").write_text(text)
    return Settings.load({"FORBEAR_HOME": str(home), "HTTPS_PROXY": "http://else.example:1"})


def test_the_proxy_stands_in_the_settings_alone(tmp_path: Path) -> None:
    assert settings(tmp_path, "").proxy is None
    stated = '[proxy]\nurl = "http://proxy.internal:3128/"\nno_proxy = ["*.in.example", "a:8443"]'
    assert settings(tmp_path, stated).proxy == Proxy(
        "proxy.internal", 3128, no_proxy=("*.in.example", "a:8443")
    )
    login = '\nuser = "forbear"\npassword = "env:PROXY_PASSWORD"'
    found = settings(tmp_path, f'[proxy]\nurl = "http://proxy.internal:3128"{login}').proxy
    assert found is not None
    assert found.auth == BASIC


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ('url = "http://a:b@proxy:3128"', "write user and password beside it, not into it"),
        ('url = "https://proxy:3128"', "write http://host:port, and nothing behind it"),
        ('url = "http://proxy:3128/x"', "write http://host:port, and nothing behind it"),
        ('url = "socks5://proxy:1080"', "write http://host:port, and nothing behind it"),
        ('no_proxy = ["a"]', "proxy.url is missing"),
        ('url = "http://proxy:3128"\nuser = "a"', "user and password belong together"),
        (
            'url = "http://proxy:3128"\nuser = "a"\npassword = "hunter22"',
            "never the password itself",
        ),
        ('url = "http://proxy:3128"\nno_proxy = "a"', "proxy.no_proxy must be a list"),
        ('url = "http://proxy:3128"\nno_proxy = ["http://a"]', "'http://a' is no host"),
        ('url = "http://proxy:3128"\nurls = "x"', "proxy.urls is no setting; write url"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_with_the_fix(
    tmp_path: Path, stated: str, told: str
) -> None:
    with pytest.raises(BadSettings) as wrong:
        settings(tmp_path, f"[proxy]\n{stated}\n")
    assert told in str(wrong.value)
    assert "hunter22" not in str(wrong.value)
