"""Sockets: where may be listened, and serving an application until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from forbear.server.app import App, first_of, running
from forbear.server.config import DEFAULT_CONSOLE, Settings, host_and_port
from forbear.server.console.site import build as console
from forbear.server.credentials import Credentials, MissingCredential
from forbear.server.http.bearer import BadTokens, StaticTokens, Verify
from forbear.server.http.gate import is_loopback
from forbear.server.http.oauth import Issuer
from forbear.server.http.site import build, resource, speaking
from forbear.server.http.table import Http
from forbear.server.upstream import Upstream
from forbear.storage.beacon import Beacon
from forbear.storage.errors import StoreTooNew
from forbear.storage.writer import UPGRADED

GRACE = 3
"""Seconds that open connections get when the process stops."""

ANSWERING = 1.0
"""Seconds in which calls under way are answered before open streams are ended."""


class NotServed(Exception):
    """It cannot be served like that; the message says why, and the fix."""


# --- where ------------------------------------------------------------------------------------


def listening(settings: Settings, place: str, said_by: str) -> socket.socket:
    """A socket at `place` (`host:port`), which `said_by` names. Who reaches it can try to sign in.

    Raises:
        NotServed: the address is taken or not of this machine, or others could reach it while
            sign-in links, tokens and pages would cross a network in the clear.
    """
    host, port = host_and_port(place)
    if not is_loopback(host) and not settings.console_url.startswith("https://"):
        raise NotServed(
            f"{said_by}: {place} can be reached from other machines, and nothing "
            "would be encrypted. Put a proxy that speaks TLS before it and set FORBEAR_CONSOLE_URL "
            f"to its https address, or use {DEFAULT_CONSOLE}."
        )
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        listener = socket.create_server((name, port), family=family)
        # asyncio does this for sockets that it makes itself; without, an answer that is written in
        # two parts waits 40 ms for the other side's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        raise NotServed(
            f"{said_by}: {place} cannot be used: {error}. Set it to another host:port."
        ) from error


def refuse_strangers(settings: Settings, place: str) -> None:
    """MCP without tokens is for this machine alone.

    Raises:
        NotServed: others could reach `place`, by itself or by the public address, unasked.
    """
    if settings.http is not None and settings.http.authenticates:
        return
    public = urlsplit(settings.console_url).hostname or ""
    for address, host, instead in (
        (place, host_and_port(place)[0], f"use {DEFAULT_CONSOLE}"),
        (settings.console_url, public, "unset FORBEAR_CONSOLE_URL"),
    ):
        if not is_loopback(host):
            raise NotServed(
                f"--http: {address} can be reached from other machines, and MCP would answer "
                "anybody there. Add [[http.tokens]] or [http.oauth] to config.toml, or "
                f"{instead}."
            )


def address(settings: Settings, place: str, port: int) -> str:
    """The address that people are given: `FORBEAR_CONSOLE_URL`, else where it listens."""
    if settings.console_url != f"http://{settings.console}":
        return settings.console_url
    return f"http://{place.rpartition(':')[0]}:{port}"


# --- serving ----------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Leaves signals to whoever started it, so that stopping has one order."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _server(asgi: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            asgi,
            log_config=None,
            access_log=False,  # an address line would keep sign-in tokens
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=GRACE,
        )
    )


async def serve_console(
    app: App, listener: socket.socket, *, stopped: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Serve the console until `stopped`; `ready` is called with its address once it is open."""
    port: int = listener.getsockname()[1]
    url = address(app.settings, app.settings.console, port)
    server = _server(console(app, port=port, url=url))
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="serving")
    with _told(app, url):
        ready(url)
        await _first(serving, stopped)
        server.should_exit = True
        await serving


async def serve_http(
    settings: Settings,
    place: str,
    *,
    worker: bool,
    stopped: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve MCP and the console at `place` until `stopped`; `ready` is called with the address.

    Then nothing is accepted any more, and what is under way is answered as the store stands.
    What a worker has on the wire gets its grace, and its outcome is stored.

    Raises:
        NotServed: `place` cannot be listened at, or anybody could use it.
        StoreUnavailable, StoreTooNew
    """
    http = settings.http or Http()
    refuse_strangers(settings, place)
    with listening(settings, place, "--http") as listener:
        port: int = listener.getsockname()[1]
        url = address(settings, place, port)
        # A process that outlives its clients is what others take for a worker.
        role = "worker" if worker else "serve"
        async with (
            running(settings, role=role, worker=worker) as app,
            _verifying(app, http, url) as verifiers,
        ):
            desk = app.desk.for_remote_callers(resident=worker)
            mcp = speaking(app, desk, http)
            server = _server(build(app, mcp, http, verifiers, port=port, url=url))
            async with mcp.session_manager.run():
                serving = asyncio.create_task(server.serve(sockets=[listener]), name="serving")
                with _told(app, url):
                    ready(url)
                    await _first(serving, stopped, app.superseded)
                server.should_exit = True
                desk.let_go()
                await asyncio.wait({serving}, timeout=ANSWERING)
            # Sessions are over now, and with them their open streams.
            await serving
            if app.superseded.is_set():
                raise StoreTooNew(UPGRADED)


@asynccontextmanager
async def _verifying(app: App, http: Http, url: str) -> AsyncIterator[Sequence[Verify]]:
    """What knows the tokens of this server."""
    credentials = Credentials(clock=app.clock, waits=True)
    try:
        verifiers = [StaticTokens(http.tokens, credentials, app.store.key).verify]
    except BadTokens as error:
        raise NotServed(f"config.toml: {error}") from error
    oauth = http.oauth
    if oauth is None:
        yield verifiers
        return
    secret = None if oauth.client_secret is None else credentials.secret(oauth.client_secret)
    if isinstance(secret, MissingCredential):
        raise NotServed(f"config.toml: http.oauth.client_secret: {secret}")
    proxy, target = app.settings.proxy, app.contracts.target
    async with Upstream(app.clock, target, credentials, proxy=proxy) as upstream:
        issuer = Issuer(
            oauth,
            resource(http, url),
            upstream.post,
            app.clock,
            secret=secret,
            store_key=app.store.key,
        )
        yield [*verifiers, issuer.verify]


@contextmanager
def _told(app: App, url: str) -> Generator[None]:
    """Let other processes know that the console is served at `url`."""
    beacon = Beacon(app.settings.home / "run", app.random.token(16))
    beacon.light(url)
    try:
        yield
    finally:
        beacon.put_out()


async def _first(serving: asyncio.Task[None], *stops: asyncio.Event) -> None:
    """Return once it is told to stop, or has ended by itself."""
    asked = asyncio.create_task(first_of(*stops), name="until stopped")
    try:
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
