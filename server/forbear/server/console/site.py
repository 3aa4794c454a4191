"""The console as one Starlette application on a running process, gate included.

`GET` shows and `POST` decides; every page is there as HTML, as `.json` and as `.txt`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from forbear.rules.model import Option, Refusal
from forbear.server import operator
from forbear.server.app import App
from forbear.server.console import choices, meters, pages
from forbear.server.console.guard import MOST_BODY, Guard, Refused, cookie, signed_form
from forbear.server.console.pages import Filters, Page
from forbear.server.console.paper import Paper
from forbear.server.console.sessions import Sessions
from forbear.server.http.gate import Gate, Whole, origins
from forbear.storage.errors import StoreError
from forbear.tools.untrusted import inert_tree
from forbear.tools.wishes import BadWish

EVERY: Final = 5
"""Seconds after which a page that shows the course of things fetches itself anew."""

Maker = Callable[[Request], Awaitable[Page | None]]


def build(app: App, *, port: int, url: str) -> ASGIApp:
    """The console alone. It answers to the loopback names with `port` and to the host of `url`."""
    return Gate(inside(app), origins(port, url))


def inside(app: App) -> ASGIApp:
    """The console without the gate that must stand before it: mounted at the root of another
    application, after its own routes."""
    settings, store = app.settings, app.store
    sessions = Sessions(settings.home, store.key, app.clock, app.random)
    sessions.make_meter_token()
    site = _Site(app, sessions)
    inner = Starlette(
        routes=site.routes(),
        exception_handlers={HTTPException: site.missing, StoreError: site.unreadable},
    )
    return Guard(Whole(inner, MOST_BODY), sessions, site.stranger)


class _Site:
    def __init__(self, app: App, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions
        self._paper = Paper(app.clock)

    def routes(self) -> list[BaseRoute]:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        return [
            *self._shown("/", self._inbox),
            *self._shown("/inbox", self._inbox),
            *self._shown("/operations", self._operations),
            *self._shown("/operations/{id}", self._operation),
            *self._shown("/escalations/{id}", self._case),
            *self._shown("/audit", self._audit),
            Route("/escalations/{id}", self._decide, methods=["POST"]),
            Route("/operations/{id}", self._decide_unasked, methods=["POST"]),
            Route("/healthz", self._health),
            Route("/healthz.txt", self._health),
            Route("/healthz.json", self._health),
            Route("/metrics", self._metrics),
            Route("/metrics.txt", self._metrics),
            Route("/metrics.json", self._metrics_as_json),
            Route("/sign-in", self._how_to_sign_in),
            Route("/sign-in/{token}", self._sign_in_page, methods=["GET"]),
            Route("/sign-in/{token}", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Mount("/static", app=static),
        ]

    def _shown(self, path: str, make: Maker) -> list[Route]:
        """A page in its three forms; the longer names first, since an id may hold a dot."""

        async def made(request: Request) -> Page:
            page = await make(request)
            if page is None:
                raise HTTPException(404)
            return page

        async def as_json(request: Request) -> Response:
            page = await made(request)
            return _json(page.data, page.status)

        async def as_text(request: Request) -> Response:
            page = await made(request)
            return PlainTextResponse(self._paper.text(page), page.status)

        async def as_html(request: Request) -> Response:
            return self._html(request, await made(request))

        return [
            Route(f"{path}.json", as_json, methods=["GET"]),
            Route(f"{path}.txt", as_text, methods=["GET"]),
            Route(path, as_html, methods=["GET"]),
        ]

    def _html(self, request: Request, page: Page) -> Response:
        session = request.state.session
        about: dict[str, Any] = {
            "form_token": None if session is None else self._sessions.form_token(session),
            "path": request.url.path,
            "here": _here(request),
            "also": [] if page.name in _ONE_FORM else _also(request),
        }
        if not page.live:
            return _Html(self._paper.page(page, about), page.status)
        content = self._paper.live(page, about)
        seen = hashlib.sha256(content.encode()).hexdigest()[:16]
        query = {name: value for name, value in request.query_params.items() if name != "seen"}
        about |= {
            "live": content,
            "every": EVERY,
            "again": f"{request.url.path}?{urlencode({**query, 'seen': seen})}",
        }
        if "hx-request" not in request.headers:
            return _Html(self._paper.page(page, about), page.status)
        if request.query_params.get("seen") == seen:
            return Response(status_code=204)
        return _Html(self._paper.part(page, about), page.status)

    # --- pages --------------------------------------------------------------------------------

    async def _inbox(self, request: Request) -> Page:
        return await pages.inbox(self._app, group=request.query_params.get("group") or None)

    async def _operations(self, request: Request) -> Page:
        stated = {
            name: request.query_params.get(name, "").strip()[:200] or None
            for name in ("state", "provider", "task", "text", "after")
        }
        return await pages.operations(self._app, Filters(**stated))

    async def _operation(self, request: Request) -> Page | None:
        return await pages.operation(self._app, request.path_params["id"])

    async def _case(self, request: Request) -> Page | None:
        return await pages.case(self._app, request.path_params["id"])

    async def _audit(self, request: Request) -> Page:
        before = request.query_params.get("before", "")
        number = (
            int(before) if before.isascii() and before.isdecimal() and len(before) < 19 else None
        )
        named = request.query_params.get("operation", "").strip()[:200] or None
        return await pages.audit(self._app, operation_id=named, before=number)

    async def _health(self, request: Request) -> Response:
        """Whether the store can be read; it says nothing else, to anybody."""
        try:
            await self._app.store.read.pauses()
        except StoreError:
            told, status = "unavailable", 503
        else:
            told, status = "ok", 200
        if request.url.path.endswith(".json"):
            return JSONResponse({"status": told}, status)
        return PlainTextResponse(f"{told}\n", status)

    async def _metrics(self, request: Request) -> Response:
        del request
        text = meters.exposition(await meters.meters(self._app))
        return Response(text, media_type=meters.CONTENT_TYPE)

    async def _metrics_as_json(self, request: Request) -> Response:
        del request
        return _json(meters.as_json(await meters.meters(self._app)))

    # --- deciding -----------------------------------------------------------------------------

    async def _decide(self, request: Request) -> Response:
        """Carry out what the form of a case says, once, on the facts that its page showed."""
        form = await signed_form(request, self._sessions)
        if isinstance(form, Refused):
            return PlainTextResponse(f"{form.why}\n", form.status)
        name = request.path_params["id"]
        found = [one for one in await self._app.store.read.case_by(name) if one.id == name]
        op = await self._app.store.read.operation(found[0].operation_id) if found else None
        if op is None:
            raise HTTPException(404)
        case, again = found[0], partial(pages.case, self._app, name)
        try:
            wish = choices.wish(form, self._app.clock.now().wall)
            revision = choices.revision(form)
        except BadWish as error:
            return await self._undecided(request, again, str(error), 400)
        by = self._by(form)
        current = case.closed_at is None and case.revision == revision
        if current and case.group is not None and form.get("group") == case.group:
            outcomes = await self._app.office.decide_group(case.group, wish, by)
            return self._html(request, pages.group(case.group, wish.option, outcomes))
        shown = replace(case, revision=revision)
        outcome = await self._app.office.decide(shown, op, wish, by)
        if isinstance(outcome, Refusal):
            return await self._undecided(request, again, _why_not(outcome), 409)
        return RedirectResponse(f"/escalations/{quote(name)}", 303)

    async def _decide_unasked(self, request: Request) -> Response:
        """Carry out what no case asks about, once, on the operation as its page showed it."""
        form = await signed_form(request, self._sessions)
        if isinstance(form, Refused):
            return PlainTextResponse(f"{form.why}\n", form.status)
        op = await self._app.store.read.operation(request.path_params["id"])
        if op is None:
            raise HTTPException(404)
        again = partial(pages.operation, self._app, op.id)
        try:
            wish = choices.wish(form, self._app.clock.now().wall)
            shown = replace(op, revision=choices.revision(form))
        except BadWish as error:
            return await self._undecided(request, again, str(error), 400)
        outcome = await self._app.office.decide_unasked(shown, wish, self._by(form))
        if isinstance(outcome, Refusal):
            return await self._undecided(request, again, _why_not(outcome), 409)
        anew = outcome.follow_up if wish.option is Option.RESUBMIT else None
        return RedirectResponse(f"/operations/{quote(anew.id if anew else op.id)}", 303)

    def _by(self, form: Mapping[str, str]) -> dict[str, object]:
        return operator.signature(self._app.store.path, "console", choices.comment(form))

    async def _undecided(
        self, request: Request, again: Callable[..., Awaitable[Page | None]], why: str, status: int
    ) -> Response:
        """The page as it is now, with the reason why nothing was decided."""
        page = await again(said=f"Nothing was decided. {why}", status=status)
        if page is None:
            raise HTTPException(404)
        return self._html(request, page)

    # --- who is there -------------------------------------------------------------------------

    async def _how_to_sign_in(self, request: Request) -> Response:
        return self._html(request, _strange(200))

    async def _sign_in_page(self, request: Request) -> Response:
        """A button and no more: what only looks at the link signs nobody in."""
        good = self._sessions.link_is_good(request.path_params["token"])
        page = Page("sign_in", "Sign in", {}, {"good": good}, 200 if good else 410)
        return self._html(request, page)

    async def _sign_in(self, request: Request) -> Response:
        session = self._sessions.sign_in(request.path_params["token"])
        if session is None:
            page = Page("sign_in", "Sign in", {}, {"good": False}, 410)
            return self._html(request, page)
        return RedirectResponse("/", 303, headers={"Set-Cookie": cookie(request, session)})

    async def _sign_out(self, request: Request) -> Response:
        form = await signed_form(request, self._sessions)
        if isinstance(form, Refused):
            return PlainTextResponse(f"{form.why}\n", form.status)
        self._sessions.sign_out(request.state.session)
        return RedirectResponse("/sign-in", 303, headers={"Set-Cookie": cookie(request, None)})

    def stranger(self, request: Request) -> Response:
        """For whoever must sign in first: nothing of the store, and how to go on."""
        # RFC 9110, section 11.6.1: a 401 names a way in. `HX-Refresh` loads the whole page anew.
        headers = {"WWW-Authenticate": 'Bearer realm="forbear metrics"', "HX-Refresh": "true"}
        path = request.url.path
        if path.endswith(".json"):
            answer: Response = JSONResponse({"error": "not signed in"}, 401)
        elif path.endswith(".txt") or path == "/metrics":
            answer = PlainTextResponse("Not signed in. Run `forbear console` for a link.\n", 401)
        else:
            answer = self._html(request, _strange(401))
        answer.headers.update(headers)
        return answer

    # --- what goes wrong ----------------------------------------------------------------------

    async def missing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = {
            404: "There is no such page here. It may have been shortened or mistyped.",
            405: "This page does not take that.",
        }.get(error.status_code, error.detail)
        return self._failed(request, told, error.status_code, error.headers)

    async def unreadable(self, request: Request, error: Exception) -> Response:
        del error
        told = "The store cannot be used now. Nothing was decided. `forbear doctor` looks into it."
        return self._failed(request, told, 503)

    def _failed(
        self, request: Request, told: str, status: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        path = request.url.path
        if path.endswith(".json"):
            answer: Response = JSONResponse({"error": told}, status)
        elif path.endswith(".txt"):
            answer = PlainTextResponse(f"{told}\n", status)
        else:
            answer = self._html(request, Page("failed", "Not shown", {}, {"told": told}, status))
        answer.headers.update(headers or {})
        return answer


class _Html(Response):
    media_type = "text/html"


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    text = json.dumps(inert_tree(value), ensure_ascii=False, indent=2, default=str)
    return Response(f"{text}\n", status, media_type="application/json")


_ONE_FORM = ("sign_in", "stranger", "failed", "group")


def _here(request: Request) -> str:
    """The address of this page; of the sign-in page, where to go from there."""
    query = f"?{request.url.query}" if request.url.query else ""
    return "/" if request.url.path == "/sign-in" else f"{request.url.path}{query}"


def _also(request: Request) -> list[tuple[str, str]]:
    """Where this very page is as JSON and as text, filters included."""
    path = "/inbox" if request.url.path == "/" else request.url.path
    query = f"?{request.url.query}" if request.url.query else ""
    return [("JSON", f"{path}.json{query}"), ("text", f"{path}.txt{query}")]


def _strange(status: int) -> Page:
    return Page("stranger", "Sign in", {}, {}, status)


def _why_not(refusal: Refusal) -> str:
    told = refusal.message
    return choices.on_a_page(f"{told[:1].upper()}{told[1:]}.")
