"""The guard before every route of the console, behind the gate: sign-in and form token.

A change must come from a page of ours, and the browser must be signed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forbear.server.console.sessions import SESSION_LASTS, Sessions

MOST_BODY: Final = 16_384
"""Bytes of a form; the longest honest one is a comment of 500 characters."""

OPEN: Final = ("/healthz", "/healthz.json", "/healthz.txt", "/sign-in", "/static")
"""What needs no session, each with all below it. Everything else shows what is in the store."""

METERS: Final = ("/metrics", "/metrics.json", "/metrics.txt")
"""What the token of a monitoring system opens too."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request goes no further; `status` as HTTP has it."""

    status: int
    why: str


class Guard:
    """ASGI middleware around the whole console. What it lets through may be answered.

    It finds `origin` in the state of the request, and leaves `session` there; `stranger` answers
    whoever is not signed in and must be.
    """

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        stranger: Callable[[Request], Response],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._stranger = stranger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no route speaks anything else; the server closes the connection

        request = Request(scope)
        refused = self._objection(request)
        if refused is not None:
            answer: ASGIApp = PlainTextResponse(f"{refused.why}\n", refused.status)
        elif self._may_enter(request):
            answer = self._app
        else:
            answer = self._stranger(request)
        await answer(scope, receive, send)

    def _objection(self, request: Request) -> Refused | None:
        """What is wrong with where a change comes from. The gate looked at any `Origin`."""
        if request.method in ("GET", "HEAD"):
            return None
        same_site = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        if "origin" not in request.headers or not same_site:
            return Refused(403, "A change must come from a page of this console.")
        return None

    def _may_enter(self, request: Request) -> bool:
        session = request.cookies.get(cookie_name(request), "")
        known = self._sessions.is_signed_in(session)
        request.state.session = session if known else None
        path = request.url.path
        if known or any(path == each or path.startswith(f"{each}/") for each in OPEN):
            return True
        return path in METERS and self._may_measure(request)

    def _may_measure(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._sessions.is_meter_token(token.strip())


# --- the person ------------------------------------------------------------------------------


def cookie_name(request: Request) -> str:
    """Of the session. With the port in it, two consoles of one machine keep apart; on https the
    prefix makes the browser refuse one that another host of the domain set."""
    origin: str = request.state.origin
    if origin.startswith("https:"):
        return "__Host-forbear"
    return f"forbear_{urlsplit(origin).port or 80}"


def cookie(request: Request, session: str | None) -> str:
    """A `Set-Cookie` field that keeps the session, or ends it."""
    secure = "; Secure" if str(request.state.origin).startswith("https:") else ""
    lasts = 0 if session is None else SESSION_LASTS // 1_000
    return (
        f"{cookie_name(request)}={session or ''}; Path=/; Max-Age={lasts}; HttpOnly; "
        f"SameSite=Strict{secure}"
    )


async def signed_form(request: Request, sessions: Sessions) -> dict[str, str] | Refused:
    """The fields of a form that a page of this very session made."""
    fields = await form_of(request)
    if isinstance(fields, Refused):
        return fields
    session = request.state.session
    if session is None or not sessions.is_form_token(session, fields.get("form_token", "")):
        return Refused(403, "The form is not of this session. Load the page again.")
    return fields


async def form_of(request: Request) -> dict[str, str] | Refused:
    """The fields of a small form; of a name that comes twice, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return Refused(415, "Send the form of the page.")
    body = await request.body()
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="replace"
        )
    except ValueError:
        return Refused(400, "The form cannot be read.")
    return dict(fields)
