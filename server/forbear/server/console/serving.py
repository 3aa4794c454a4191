"""The console on a socket: where it may listen, and how long it is told to other processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from forbear.server.app import App
from forbear.server.config import DEFAULT_CONSOLE, Settings
from forbear.server.console.guard import is_loopback
from forbear.server.console.site import build
from forbear.storage.beacon import Beacon


class NotServed(Exception):
    """The console cannot listen there; the message says why, and the fix."""


def listening(settings: Settings) -> socket.socket:
    """A socket at `FORBEAR_CONSOLE`. Whoever reaches it can try to sign in.

    Raises:
        NotServed: the address is taken or not of this machine, or others could reach it while
            sign-in links and pages would cross a network in the clear.
    """
    host, _, port = settings.console.rpartition(":")
    if not is_loopback(host) and not settings.console_url.startswith("https://"):
        raise NotServed(
            f"FORBEAR_CONSOLE: {settings.console} can be reached from other machines, and nothing "
            "would be encrypted. Put a proxy that speaks TLS before it and set FORBEAR_CONSOLE_URL "
            f"to its https address, or use {DEFAULT_CONSOLE}."
        )
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.create_server((name, int(port)), family=family)
    except (OSError, OverflowError) as error:
        raise NotServed(
            f"FORBEAR_CONSOLE: {settings.console} cannot be used: {error}. Set it to another "
            "host:port."
        ) from error


def address(settings: Settings, port: int) -> str:
    """The address that people are given: `FORBEAR_CONSOLE_URL`, else where it listens."""
    if settings.console_url != f"http://{settings.console}":
        return settings.console_url
    return f"http://{settings.console.rpartition(':')[0]}:{port}"


async def serve(
    app: App, listener: socket.socket, *, stopped: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Serve the console until `stopped`; `ready` is called with its address once it is open."""
    port: int = listener.getsockname()[1]
    url = address(app.settings, port)
    config = uvicorn.Config(
        build(app, port=port, url=url),
        log_config=None,
        access_log=False,  # an address line would keep sign-in tokens
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    beacon = Beacon(app.settings.home / "run", app.random.token(16))
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="console")
    asked = asyncio.create_task(stopped.wait(), name="until stopped")
    try:
        beacon.light(url)
        ready(url)
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        asked.cancel()
        beacon.put_out()
