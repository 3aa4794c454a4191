"""The gate before every route: the name that was asked for, and where a request comes from.

A web page of anybody can make a browser send requests to loopback, and a name that somebody else
owns can be made to point there. So the name that was asked for must be ours, and a request that
says which page it comes from must come from a page of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY: Final = 1_048_576
"""Bytes of a request. The arguments of an action are the longest that honest ones carry."""

ARRIVES_WITHIN: Final = 30.0
"""Seconds for the whole of a request, so that nobody holds it open by sending slowly."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",  # the pages fetch themselves anew
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer` a browser hides the origin of our own forms too (Fetch, "append a request
    # `Origin` header"), and there would be nothing to check.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def origins(port: int, url: str) -> Mapping[str, str]:
    """The names by which this server may be asked for, each with the origin that its pages have.

    These are the loopback names with `port`, and the host of the public `url`.
    """
    allowed = {
        f"{name}:{port}": f"http://{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")
    }
    public = urlsplit(url.lower())
    usual = {"http": 80, "https": 443}.get(public.scheme)
    name = f"[{public.hostname}]" if ":" in (public.hostname or "") else public.hostname
    if public.port in (None, usual):
        origin = f"{public.scheme}://{name}"
        return allowed | {f"{name}": origin, f"{name}:{usual}": origin}
    return allowed | {f"{name}:{public.port}": f"{public.scheme}://{name}:{public.port}"}


class Gate:
    """ASGI middleware around everything that a port serves.

    It leaves the `origin` that our pages have in the state of the request.
    """

    def __init__(self, app: ASGIApp, allowed: Mapping[str, str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no route speaks anything else; the server closes the connection

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer: ASGIApp = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        hosts = request.headers.getlist("host")
        ours = self._allowed.get(hosts[0].lower()) if len(hosts) == 1 else None
        if ours is None:
            return PlainTextResponse(
                "This server does not answer to that name: see FORBEAR_CONSOLE_URL.\n", 421
            )
        if request.headers.getlist("origin") not in ([], [ours]):
            return PlainTextResponse("A request from a page must be from one of ours.\n", 403)
        request.state.origin = ours
        return None


class Whole:
    """ASGI middleware: what is behind it meets a request once all of it is here, or never.

    It belongs behind the check of who asks, so that a stranger's body is not kept.
    """

    def __init__(self, app: ASGIApp, most: int, within: float = ARRIVES_WITHIN) -> None:
        self._app = app
        self._most = most
        self._within = within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._within):
                body = await self._body(receive)
        except TimeoutError:
            late = PlainTextResponse("The request did not arrive in time.\n", 408)
            await late(scope, receive, send)
            return
        if body is None:
            return  # the client left in the middle of it
        if len(body) > self._most:
            await PlainTextResponse(f"The request is longer than {self._most} bytes.\n", 413)(
                scope, receive, send
            )
            return
        arrived: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return arrived.pop() if arrived else await receive()

        await self._app(scope, replay, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """All of it, or as much as is too much; None if it ended before its end."""
        body = bytearray()
        while len(body) <= self._most:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)
