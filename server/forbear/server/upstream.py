"""The sender: the only module that puts bytes on the wire to a provider.

One permit sends one request, once. Whether it was sent is read off the wire, never off an
exception: `sent` is False exactly if no request head was begun, or if our own stream refused its
first byte. Nothing here repeats, redirects, remembers cookies, reads proxies from the environment
(the operator's own is `proxy`) or adds a credential anywhere but on the final request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from types import TracebackType
from typing import Any, Self

import httpcore2
import httpx

from forbear.rules import tokens
from forbear.rules.contract import Auth
from forbear.rules.ports import Clock, Outbound, Permit, Reply, TokenAnswer
from forbear.rules.requests import RenderError
from forbear.server.attaching import body_with, fields_with, target_with
from forbear.server.credentials import Credential, Credentials, MissingCredential
from forbear.server.decoding import BodyFault, Decoder
from forbear.server.egress import (
    EgressRefused,
    Origin,
    Resolver,
    check_url,
    read_origin,
    refused_literal,
    takes_credential,
)
from forbear.server.proxy import NoTunnel, Proxy, Tunnels
from forbear.server.redaction import Redaction
from forbear.server.wire import Wire, system_words

MAX_HEAD = 65_536
"""Bytes of a response head, interim responses included."""
MAX_FIELDS = 200
POOL = 8
"""Idle connections to one provider that are kept. How many may be open is for the scopes alone: a
request that has its slot never waits for a connection inside its own time-out."""
KEEP_ALIVE = 3_000
"""Milliseconds after which an idle connection is not used again: below the 4 to 5 s after which
common servers close theirs. Time asleep counts, for the server did not sleep."""

_PEOPLE = ""
"""What has the place of a provider's name where people are told: connections of their own."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_OURS = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "user-agent"),
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """What the sender must know of a provider: where it is and what lets us in."""

    base_url: str
    auth: Auth
    allow_hosts: tuple[str, ...] = ()
    """The contract's own; those of the request come with the request."""

    @property
    def token_endpoint(self) -> Target:
        """Where the client's own credential is bound: tokens come from there and nowhere else."""
        return Target(self.auth.token_url or "", self.auth)


class PermitUsed(RuntimeError):
    """A mistake in this program: the same permit was handed to the sender twice."""


class Upstream:
    """Sends what a permit allows. Close it with `aclose` or use it as a context manager."""

    def __init__(
        self,
        clock: Clock,
        target: Callable[[str, str], Target | None],
        credentials: Credentials,
        *,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        """`target` finds (provider, account); `tls` is the system's trust unless given."""
        for name in ("httpx", "httpcore2"):  # both would log whole URLs
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._clock = clock
        self._target = target
        self._credentials = credentials
        resolver = resolver or Resolver()
        tunnels = None if proxy is None else Tunnels(proxy, credentials, resolver)
        self._backend = _Backend(resolver, clock, tunnels)
        self._tls = tls
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._used: dict[str, int] = {}
        self._redactions: dict[str, Redaction] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; requests under way end as unknown."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def send(self, permit: Permit, request: Outbound) -> Reply:
        """Use the permit: at most one request leaves, and all that came of it is in the reply.

        Raises nothing for what the network or the provider does. Raises `PermitUsed` for a permit
        seen before; a cancelled task is cancelled, and what was sent is then unknown to the caller.
        A token that comes stays here: it is known to the credentials and hidden from then on.
        """
        self._spend(permit)
        window = _Window(permit.send_by, permit.send_by_boot, permit.boot_id)
        exchange = _Exchange(permit.provider, window, request, self._clock)
        exchange.for_token = permit.for_token
        return await self._exchange(exchange, lambda: self._target(permit.provider, permit.account))

    async def post(self, request: Outbound) -> Reply:
        """Tell people something: one request to an address of the operator's own.

        It needs no permit, for it reaches no provider, and gets no credential. All else is as for
        `send`: the guard of addresses, no redirect, one try, the total time-out, the caps.
        """
        now, life = self._clock.now(), request.timeout
        window = _Window(now.wall + life, now.boot + life, now.boot_id)
        exchange = _Exchange(_PEOPLE, window, request, self._clock)
        return await self._exchange(exchange, lambda: Target(request.url, Auth("none")))

    async def _exchange(self, exchange: _Exchange, target: Callable[[], Target | None]) -> Reply:
        request = exchange.request
        token = _current.set(exchange)
        body, fault, detail = b"", None, ""
        try:
            async with asyncio.timeout(request.timeout / 1000) as limit:
                exchange.ends = limit.when() or 0.0
                body = await self._run(exchange, target())
        except _Stop as stop:
            fault, detail = stop.fault, stop.detail
        except BodyFault as error:
            fault, detail = error.fault, error.detail
        except TimeoutError:
            fault, detail = exchange.overdue()
        except httpcore2.LocalProtocolError:
            fault, detail = "local", "the request is not valid HTTP"
        except (httpcore2.NetworkError, httpcore2.RemoteProtocolError):
            fault, detail = exchange.broken()
        except Exception as error:
            fault, detail = "local", f"this program failed: {type(error).__name__}"
        finally:
            _current.reset(token)
        reply = Reply(
            sent=exchange.sent,
            complete=fault is None,
            started_at=exchange.started_at,
            ended_at=self._clock.now().wall,
            status=exchange.status,
            headers=exchange.headers,
            body=body,
            url=request.url,
            fault=fault,
            detail=detail,
            token=exchange.token,
        )
        redaction = self._redactions.get(exchange.provider)
        return reply if redaction is None else redaction.hidden(reply)

    def _spend(self, permit: Permit) -> None:
        if permit.attempt_id in self._used:
            raise PermitUsed(f"attempt {permit.attempt_id} was sent before")
        if len(self._used) >= 4096:
            # Permits past their `send_by` are refused by the clock; no need to remember them.
            now = self._clock.now().boot
            self._used = {key: by for key, by in self._used.items() if by >= now}
        self._used[permit.attempt_id] = permit.send_by_boot

    async def _run(self, exchange: _Exchange, target: Target | None) -> bytes:
        """The body of the whole answer; everything else is left in `exchange`."""
        provider, request = exchange.provider, exchange.request
        exchange.check_time()
        if target is None:
            raise _Stop("local", f"no contract for {provider} is loaded")
        if exchange.for_token:
            target = target.token_endpoint
        hosts = target.allow_hosts + request.allow_hosts
        refused = check_url(request.url, target.base_url, hosts, request.from_answer)
        origin = read_origin(request.url)
        if refused is not None or isinstance(origin, str):
            raise _Stop("egress_refused", refused or "")
        exchange.origin = origin
        _check_fields(request)
        exchange.credential = self._credential(provider, request, target, exchange.for_token)
        exchange.content = request.body
        if exchange.credential is not None:
            try:
                exchange.content = body_with(request, exchange.credential)
            except RenderError as error:
                raise _Stop("local", str(error)) from None
        fields = [*request.headers, *_OWN_FIELDS]
        if request.fresh_connection:
            fields.append(("Connection", "close"))
        response = await self._client(provider).send(
            httpx.Request(request.method, request.url, headers=fields, content=exchange.content),
            stream=True,
            auth=None,
            follow_redirects=False,
        )
        if response.status_code == 401 and exchange.credential is not None:
            used = target.auth
            asked = used.narrowed(request.secret) if request.secret else used
            self._credentials.refused(asked, exchange.credential)
        try:
            body = await _read(exchange, response)
        finally:
            await response.aclose()
        return self._kept_token(exchange, target, body) if exchange.for_token else body

    def _kept_token(self, exchange: _Exchange, target: Target, body: bytes) -> bytes:
        """Keep the token of an answer; its body goes no further."""
        now = self._clock.now().wall
        reply = Reply(True, True, exchange.started_at, now, exchange.status, exchange.headers, body)
        found = tokens.read(reply, now)
        if isinstance(found, tokens.Grant):
            self._redactions[exchange.provider].learn((found.token, *found.others))
            self._credentials.granted(target.auth, found, now - exchange.started_at)
            found = TokenAnswer(why="")
        elif not found.later:
            self._credentials.refused(target.auth)
        exchange.token = found
        return b""

    def _credential(
        self, provider: str, request: Outbound, target: Target, for_token: bool
    ) -> Credential | None:
        """What the request takes along; None if it goes where no credential may go.

        A place that gets none may still know the secret, so its reply is searched like any other.
        """
        stated = self._credentials.resolve(target.auth)
        wanted = stated
        if request.secret is not None:
            wanted = self._credentials.resolve(target.auth.narrowed(request.secret))
        if for_token:
            wanted = self._credentials.client(target.auth)
        redaction = self._redactions.setdefault(provider, Redaction())
        for each in (stated, wanted):
            if isinstance(each, Credential):
                redaction.learn(each.secrets())
        if not request.authenticate or not takes_credential(
            request.url, target.base_url, request.allow_hosts
        ):
            return None
        if isinstance(wanted, MissingCredential):
            raise _Stop("credential_missing", str(wanted))
        if wanted.lacks_token() and not wanted.headers():
            raise _Stop("credential_missing", "the token ended before the request left")
        return wanted

    def _client(self, provider: str) -> httpx.AsyncClient:
        client = self._clients.get(provider)
        if client is None:
            if self._tls is None:
                self._tls = httpcore2.default_ssl_context()
            transport = _Transport(self._backend, self._tls)
            client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)
            self._clients[provider] = client
        return client


def _version() -> str:
    try:
        return metadata.version("forbear")
    except metadata.PackageNotFoundError:
        return "source"


_OWN_FIELDS = (("Accept-Encoding", "gzip, deflate"), ("User-Agent", f"forbear/{_version()}"))


def _check_fields(request: Outbound) -> None:
    """Refuse before connecting what HTTP would refuse in the middle of the send."""
    if not _TOKEN.fullmatch(request.method):
        raise _Stop("local", "the method is not a token")
    for name, value in request.headers:
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise _Stop("local", f"a request may not set the header {name[:40]!r}")
        if not _VALUE.fullmatch(value):
            raise _Stop("local", f"the header {name} has a value that HTTP cannot carry")


async def _read(exchange: _Exchange, response: httpx.Response) -> bytes:
    if exchange.status == 101:
        raise _Stop("malformed", "the provider switched protocols unasked")
    decoder = Decoder(exchange.field("content-encoding"), exchange.request.max_bytes)
    length = exchange.field("content-length")
    stated = length.isdigit() and exchange.request.method != "HEAD"
    if stated and (len(length) > 15 or int(length) > decoder.max_encoded):
        raise _Stop("body_too_large", f"the body exceeds {exchange.request.max_bytes} bytes")
    async for chunk in response.aiter_raw():
        exchange.body_bytes += len(chunk)
        decoder.feed(chunk)
    body = decoder.finish()
    await exchange.drop_unclean()
    return body


# --- one request on its way -------------------------------------------------------------------


class _Stop(Exception):
    """The send ends here by our own rule, or by what the connection did."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.detail = detail


@dataclass(frozen=True, slots=True)
class _Window:
    """Until when the first byte may be handed over, on both clocks of one boot."""

    send_by: int
    send_by_boot: int
    boot_id: str


class _Exchange:
    """The witness of one send: what its stream and its trace saw, in this task alone."""

    def __init__(self, provider: str, window: _Window, request: Outbound, clock: Clock) -> None:
        self.provider = provider
        self.window = window
        self.request = request
        self.clock = clock
        self.started_at = clock.now().wall
        self.ends = 0.0
        """Time of the event loop at which the total time-out falls."""
        self.origin = Origin("", "", 0)
        self.credential: Credential | None = None
        self.for_token = False
        self.token: TokenAnswer | None = None
        self.content: bytes | None = None
        """The body as it leaves, with a secret that goes there."""
        self.phase = "pool"
        self.heads = 0
        self.handed = False
        self.refused = False
        self.status: int | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        self.stream: _Stream | None = None
        self.head = bytearray()
        self.after_head = 0
        self.body_bytes = 0
        self.tail = b""
        self.ended = False

    @property
    def sent(self) -> bool:
        return self.heads > 0 and not self.refused

    def field(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key.lower() == name)

    async def trace(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started"):
            self.heads += 1
            self.phase = "answer"
            if self.heads > 1:
                raise _Stop("local", "the connection pool tried to send a second time")
        elif name.endswith(".start_tls.started"):
            self.phase = "tls"

    def check_time(self) -> None:
        """Both clocks must still be inside the window, on the boot that it was made on."""
        now = self.clock.now()
        if now.boot_id != self.window.boot_id:
            raise _Stop("too_late", "the permit was made before this machine was restarted")
        if now.boot > self.window.send_by_boot or now.wall > self.window.send_by:
            raise _Stop("too_late", "the permit's time to send was over")

    def hand_over(self, stream: _Stream, *, closed: bool) -> None:
        """Called with every write, in the same step that gives the bytes to the socket."""
        if self.handed:
            return
        try:
            self.check_time()
            if closed:
                raise _Stop("closed", "the connection was closed before the request began")
        except _Stop:
            self.refused = True
            raise
        self.handed = True
        self.stream = stream

    def saw(self, data: bytes) -> None:
        """Bytes of the answer as they arrive."""
        self.ended = not data
        self.tail = (self.tail + data)[-5:]
        if self.status is not None:
            self.after_head += len(data)
            return
        if len(self.head) > MAX_HEAD:
            raise _Stop("headers_too_large", f"the response head exceeds {MAX_HEAD} bytes")
        self.head += data

    def answered(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.after_head = _after_head(self.head)
        raw = list(fields)
        size = sum(len(name) + len(value) + 4 for name, value in raw)
        if len(raw) > MAX_FIELDS or size > MAX_HEAD:
            raise _Stop(
                "headers_too_large",
                f"the response head exceeds {MAX_FIELDS} fields or {MAX_HEAD} bytes",
            )
        # A session cookie is a secret; nothing here needs one.
        self.headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in raw
            if name.lower() != b"set-cookie"
        )

    async def drop_unclean(self) -> None:
        """Close the connection if more came than one answer: it would answer the next request."""
        chunked = "chunked" in self.field("transfer-encoding").lower()
        clean = self.tail == b"0\r\n\r\n" if chunked else self.after_head == self.body_bytes
        if not clean and self.stream is not None:
            await self.stream.aclose()

    def overdue(self) -> tuple[str, str]:
        limit = f"within {self.request.timeout / 1000:g} s"
        match self.phase:
            case "dns":
                return "dns", f"the name {self.origin.host} was not resolved {limit}"
            case "proxy":
                return "proxy", f"the proxy opened no way to {self.origin.host} {limit}"
            case "connect":
                return "connect", f"{self.origin.host} did not accept a connection {limit}"
            case "tls":
                return "tls", f"{self.origin.host} did not finish the TLS handshake {limit}"
            case "pool":
                return "timeout", f"no connection to {self.origin.host} was begun {limit}"
            case _ if self.status is None:
                return "timeout", f"no complete response head {limit}"
            case _:
                return "timeout", f"no complete response body {limit}"

    def broken(self) -> tuple[str, str]:
        if self.status is not None:
            if self.ended:
                return "truncated_body", "the connection was closed inside the response body"
            return "malformed", "the response body breaks the rules of HTTP"
        if len(self.head) > MAX_HEAD:
            return "headers_too_large", f"the response head exceeds {MAX_HEAD} bytes"
        if not b"HTTP/".startswith(self.head[:5]):
            return "malformed", "the answer is not HTTP"
        if self.ended:
            return "closed", "the connection was closed without a complete response head"
        return "malformed", "the response head breaks the rules of HTTP"


_current: ContextVar[_Exchange] = ContextVar("forbear_exchange")


def _after_head(received: bytearray) -> int:
    """How many of these bytes follow the final response head; -1 if that cannot be told."""
    start = 0
    while (end := received.find(b"\r\n\r\n", start)) >= 0:
        interim = received[start + 9 : start + 10] == b"1"
        start = end + 4
        if not interim:
            return len(received) - start
    return -1


# --- httpx on our own pool --------------------------------------------------------------------


class _Transport(httpx.AsyncBaseTransport):
    """One provider's connections. Adds the credential, last of all."""

    def __init__(self, backend: _Backend, tls: ssl.SSLContext) -> None:
        def pool(keep: int) -> httpcore2.AsyncConnectionPool:
            return httpcore2.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=None,
                max_keepalive_connections=keep,
                keepalive_expiry=None,  # `_Stream` says when: the pool's clock stops in sleep
                http2=False,
                retries=0,
                network_backend=backend,
            )

        self._kept = pool(POOL)
        self._fresh = pool(0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _current.get()
        origin = exchange.origin
        fields = list(request.headers.raw)
        path = request.url.raw_path
        if exchange.credential is not None:
            fields = fields_with(fields, exchange.credential)
            path = target_with(path, exchange.credential)
        pool = self._fresh if exchange.request.fresh_connection else self._kept
        response = await pool.handle_async_request(
            httpcore2.Request(
                request.method,
                httpcore2.URL(
                    scheme=origin.scheme.encode(),
                    host=origin.host.encode(),
                    port=origin.port,
                    target=path,
                ),
                headers=fields,
                content=exchange.content or b"",
                extensions={"trace": exchange.trace},
            )
        )
        body = _Body(response)
        try:
            exchange.answered(response.status, response.headers)
        except BaseException:
            await body.aclose()
            raise
        # httpx is told no headers: it would keep cookies and prepare redirects.
        return httpx.Response(response.status, stream=body)

    async def aclose(self) -> None:
        await self._kept.aclose()
        await self._fresh.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, AsyncIterable)
        async for chunk in self._response.stream:
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


# --- sockets ----------------------------------------------------------------------------------


class _Backend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were resolved once and checked, and to no others."""

    def __init__(self, resolver: Resolver, clock: Clock, tunnels: Tunnels | None) -> None:
        self._resolver = resolver
        self._clock = clock
        self._tunnels = tunnels

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: object = None,
    ) -> httpcore2.AsyncNetworkStream:
        exchange = _current.get()
        if (host, port) != (exchange.origin.host, exchange.origin.port):
            raise _Stop("egress_refused", "the connection pool asked for another host")
        if self._tunnels is not None and self._tunnels.serves(exchange.origin):
            return await self._through(self._tunnels, exchange)
        exchange.phase = "dns"
        try:
            addresses = (await self._resolver.resolve(exchange.origin))[:4]
        except EgressRefused as error:
            raise _Stop("egress_refused", str(error)) from None
        except OSError as error:
            reason = system_words(error)
            raise _Stop("dns", f"the name {host} was not resolved: {reason}") from None
        exchange.phase = "connect"
        try:
            return _Stream(await Wire.dial(addresses, port, exchange.ends), self._clock)
        except OSError as error:
            raise _Stop("connect", f"no connection to {host}: {system_words(error)}") from None

    async def _through(self, tunnels: Tunnels, exchange: _Exchange) -> _Stream:
        """A connection through the proxy, which resolves the name in our place."""
        exchange.phase = "proxy"
        kind = refused_literal(exchange.origin)
        if kind is not None:
            raise _Stop("egress_refused", f"{exchange.origin.host} is refused: {kind}")
        try:
            return _Stream(await tunnels.open(exchange.origin, exchange.ends), self._clock)
        except NoTunnel as error:
            raise _Stop("proxy", str(error)) from None


class _Stream(httpcore2.AsyncNetworkStream):
    """One connection, as httpcore2 wants it. Every byte passes the witness of the current send."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._moved_at = clock.now().boot
        """When bytes last went either way, ms on the boot clock."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = _current.get()
        try:
            data = await self._wire.receive(max_bytes)
        except OSError:
            exchange.saw(b"")
            raise httpcore2.ReadError() from None
        self._moved_at = self._clock.now().boot
        exchange.saw(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        _current.get().hand_over(self, closed=self._wire.closed)
        self._moved_at = self._clock.now().boot
        try:
            await self._wire.send(buffer)
        except OSError:
            raise httpcore2.WriteError() from None

    async def aclose(self) -> None:
        self._wire.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            await self._wire.start_tls(ssl_context, server_hostname)
        except ssl.SSLCertVerificationError as error:
            reason = f"its certificate is not accepted ({error.verify_message})"
            raise _Stop("tls", f"{server_hostname}: {reason}") from None
        except OSError as error:  # ssl.SSLError is one
            reason = system_words(error)
            raise _Stop("tls", f"{server_hostname}: the TLS handshake failed: {reason}") from None
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # asked of idle connections only: then it is of no more use
            return self._wire.closed or self._wire.readable() or self._outlived()
        return self._wire.extra(info)

    def _outlived(self) -> bool:
        return self._clock.now().boot - self._moved_at > KEEP_ALIVE
