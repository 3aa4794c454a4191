"""The web console: what it shows, who may decide on it, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from tests.opened import rewrite
from tests.server.test_tables import STANDING
from tests.support import ManualClock
from tests.tools.driving import CONTRACT, Driver, driver
from tests.tools.records import case as some_case
from tests.tools.records import record as some_record

from forbear.rules.model import Case, Option
from forbear.server.app import App, running
from forbear.server.clock import SystemRandom
from forbear.server.config import Settings
from forbear.server.console import choices
from forbear.server.console.facts import MOST_LINES, case_lines
from forbear.server.console.guard import MOST_BODY
from forbear.server.console.sessions import LINK_LASTS, SESSION_LASTS, Sessions
from forbear.server.console.site import build
from forbear.server.http.gate import origins
from forbear.server.http.serving import NotServed, address, listening
from forbear.server.tables import Standing, read_standing
from forbear.storage.beacon import Beacon, served_at
from forbear.storage.liveness import Liveness
from forbear.storage.schema import cases, operations, pauses
from forbear.tools.wishes import BadWish

pytestmark = pytest.mark.anyio

ORIGIN = "http://127.0.0.1:8377"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
HIDDEN = "\x1b[31m\u202egnp.exe\u2066\u200b"
NASTY = CONTRACT.replace("base_url =", 'console = "https://exp.example/jobs/{id}"\nbase_url =')


@dataclass
class Console:
    """The console of one home, reached without a socket."""

    app: App
    clock: ManualClock
    url: str = ORIGIN

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.app.settings.home, self.app.store.key, self.clock, self.app.random)

    def browser(self, **headers: str) -> httpx.AsyncClient:
        """A browser that was never here; its forms come from a page of ours."""
        site = build(self.app, port=8377, url=self.url)
        sent = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **headers}
        transport = httpx.ASGITransport(app=site)
        return httpx.AsyncClient(transport=transport, base_url=self.url, headers=sent)

    async def signed_in(self) -> httpx.AsyncClient:
        browser = self.browser()
        answer = await browser.post(f"/sign-in/{self.sessions.new_link()}")
        assert answer.status_code == 303
        return browser

    async def open_case(self) -> Case:
        return (await self.app.store.read.open_cases())[0]

    async def decisions(self, op_id: str) -> int:
        events = await self.app.store.read.events_of(op_id)
        return sum(event.code == "decided" for event in events)


Steps = Callable[[Driver], Awaitable[object]]


@asynccontextmanager
async def console(
    home: Path, *steps: Steps, url: str = ORIGIN, standing: tuple[Standing, ...] = ()
) -> AsyncIterator[Console]:
    """The console of a home on which a worker and an agent did the `steps`."""
    folder = home / "contracts"
    folder.mkdir(parents=True)
    clock = ManualClock()
    if steps:
        (folder / "exp.toml").write_text(NASTY, encoding="utf-8")
        async with driver(home, NASTY) as job:
            for step in steps:
                job.clock.advance(60_000)  # the shared limit lets one after the other go
                await step(job)
            clock.jump(job.clock.now().wall - clock.now().wall)
    settings = Settings(home=home, console_url=url, standing=standing)
    random = SystemRandom()
    async with running(settings, role="console", worker=False, clock=clock, random=random) as app:
        yield Console(app, clock, url)


async def stopped(job: Driver) -> None:
    """A job whose twelve checks are used; its case offers an extension."""
    await job.accepted()
    while (await job.operation()).next_at is not None:
        await job.answer(200, {"id": "exp_71c", "state": "running"})


async def unclear(job: Driver) -> None:
    await job.submit(dataset="unclear")
    await job.silence()


async def hostile(job: Driver) -> None:
    """Whatever others may write holds markup, and characters that hide and control."""
    await job.submit(dataset=f"{EVIL}{HIDDEN}")
    await job.answer(202, {"id": "exp_5", "state": "queued"})
    await job.answer(200, {"id": "exp_5", "state": f"{EVIL}{HIDDEN}"})


async def goes_on(job: Driver) -> None:
    await job.submit(dataset="other")
    await job.answer(202, {"id": "exp_9", "state": "queued"})


async def done(job: Driver) -> None:
    await job.submit(dataset="done")
    await job.answer(202, {"id": "exp_1", "state": "queued"})
    job.clock.advance(120_000)
    result = {"url": "https://api.exp.example/v1/files/1"}
    await job.answer(200, {"id": "exp_1", "state": "done", "result": result})


class _Forms(HTMLParser):
    """The forms of a page: for each its action and the fields with their first values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "form" and known.get("method") == "post":
            self.found.append((known.get("action") or "", {}))
        elif tag in ("input", "select", "textarea") and self.found and known.get("name"):
            self.found[-1][1][str(known["name"])] = known.get("value") or ""


def forms(page: httpx.Response) -> dict[str, dict[str, str]]:
    """The options of a case page as a browser would send them, by option."""
    parser = _Forms()
    parser.feed(page.text)
    return {fields["option"]: fields for _, fields in parser.found if "option" in fields}


async def pages_of(here: Console) -> list[str]:
    """Every page of a home, without its ending."""
    found = ["/", "/inbox", "/operations", "/audit", "/operations?state=waiting&text=a"]
    found += [f"/operations/{op.id}" for op in await here.app.store.read.find(limit=50)]
    found += [f"/escalations/{case.id}" for case in await here.app.store.read.open_cases()]
    return found


def ended(path: str, ending: str) -> str:
    plain, mark, query = path.partition("?")
    return f"{plain}{ending}{mark}{query}"


# --- who comes in -----------------------------------------------------------------------------


@pytest.mark.requirement("E07")
async def test_a_link_signs_in_once_and_looking_at_it_signs_nobody_in(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        link = f"/sign-in/{here.sessions.new_link()}"
        for _ in range(3):  # a scanner of links, a preview, the person
            seen = await here.browser().get(link)
            assert seen.status_code == 200
            assert "set-cookie" not in seen.headers
        browser = here.browser()
        assert (await browser.get("/")).status_code == 401
        assert (await browser.post(link)).headers["location"] == "/"
        assert (await browser.get("/")).status_code == 200
        again = here.browser()
        assert (await again.post(link)).status_code == 410
        assert (await again.get(link)).status_code == 410
        assert (await again.get("/")).status_code == 401


async def test_a_link_is_over_after_ten_minutes(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        early, late = (f"/sign-in/{here.sessions.new_link()}" for _ in range(2))
        here.clock.jump(LINK_LASTS - 1)
        assert (await here.browser().post(early)).status_code == 303
        here.clock.jump(1)
        assert (await here.browser().get(late)).status_code == 410
        assert (await here.browser().post(late)).status_code == 410


async def test_two_who_use_one_link_at_once_get_one_session(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        token = here.sessions.new_link()
        signed = [here.sessions.sign_in(token) for _ in range(2)]
        assert sum(session is not None for session in signed) == 1


async def test_the_home_keeps_digests_of_what_signs_in_and_only_its_user_reads_them(
    tmp_path: Path,
) -> None:
    async with console(tmp_path / "home") as here:
        token = here.sessions.new_link()
        session = here.sessions.sign_in(here.sessions.new_link())
        assert session is not None
        for path in (tmp_path / "home").rglob("*"):
            if path.is_file():
                held = path.read_bytes() + path.name.encode()
                assert token.encode() not in held
                assert session.encode() not in held
        for path in (tmp_path / "home" / "keys" / "console").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600


async def test_a_session_outlives_a_restart_and_ends_after_twelve_hours(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        browser = await here.signed_in()
        restarted = here.browser(Cookie=f"forbear_8377={browser.cookies['forbear_8377']}")
        assert (await restarted.get("/")).status_code == 200
        here.clock.jump(SESSION_LASTS)
        assert (await restarted.get("/")).status_code == 401


async def test_signing_out_ends_the_session_for_every_browser_that_has_it(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        browser = await here.signed_in()
        kept = browser.cookies["forbear_8377"]
        token = here.sessions.form_token(kept)
        assert (await browser.post("/sign-out", data={"form_token": "x"})).status_code == 403
        assert (await browser.post("/sign-out", data={"form_token": token})).status_code == 303
        assert (await here.browser(Cookie=f"forbear_8377={kept}").get("/")).status_code == 401


@pytest.mark.parametrize(
    ("url", "name", "secure"),
    [(ORIGIN, "forbear_8377", False), ("https://forbear.example", "__Host-forbear", True)],
)
async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(
    tmp_path: Path, url: str, name: str, secure: bool
) -> None:
    async with console(tmp_path / "home", url=url) as here:
        answer = await here.browser().post(f"/sign-in/{here.sessions.new_link()}")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{name}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert ("Secure" in cookie.split("; ")) is secure


@pytest.mark.requirement("E07")
async def test_whoever_is_not_signed_in_sees_nothing_of_the_store(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        stranger = here.browser(Cookie="forbear_8377=guess")
        case = await here.open_case()
        for path in [*await pages_of(here), "/metrics"]:
            for ending in ("", ".json", ".txt"):
                answer = await stranger.get(ended(path, ending))
                assert answer.status_code == 401, path
                assert "sales-2026" not in answer.text
                assert "exp" not in answer.text.replace("expir", "")
        decided = await stranger.post(f"/escalations/{case.id}", data={"option": "abandon"})
        assert decided.status_code == 401
        assert (await here.open_case()).revision == case.revision


async def test_health_needs_no_session_and_tells_no_secret(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = here.browser()
        assert (await browser.get("/healthz")).text == "ok\n"
        assert (await browser.get("/healthz.txt")).text == "ok\n"
        assert (await browser.get("/healthz.json")).json() == {"status": "ok"}


# --- attacks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8377", "127.0.0.1", "127.0.0.1:80", "localhost.", ""]
)
async def test_another_name_is_answered_on_no_route(tmp_path: Path, host: str) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        for path in [
            *await pages_of(here),
            "/healthz",
            "/metrics",
            "/sign-in",
            "/static/console.css",
        ]:
            answer = await browser.get(path, headers={"Host": host})
            assert answer.status_code == 421, path
            assert "sales" not in answer.text


async def test_the_loopback_names_and_the_public_one_are_ours() -> None:
    assert origins(8377, "http://127.0.0.1:8377") == {
        "127.0.0.1:8377": "http://127.0.0.1:8377",
        "localhost:8377": "http://localhost:8377",
        "[::1]:8377": "http://[::1]:8377",
    }
    public = origins(9000, "https://Forbear.example")
    assert public["forbear.example"] == "https://forbear.example"
    assert public["forbear.example:443"] == "https://forbear.example"
    assert origins(9000, "https://forbear.example:8443")["forbear.example:8443"] == (
        "https://forbear.example:8443"
    )
    assert len(public) == 5


@pytest.mark.requirement("E07")
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8377"},
        {"Origin": "http://127.0.0.1:1234"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_a_form_of_another_page_decides_nothing(
    tmp_path: Path, headers: Mapping[str, str]
) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        form = forms(await browser.get(f"/escalations/{case.id}"))["abandon"]
        forged = await browser.post(f"/escalations/{case.id}", data=form, headers=headers)
        assert forged.status_code == 403
        assert await here.decisions(case.operation_id) == 0
        link = here.sessions.new_link()
        assert (await browser.post(f"/sign-in/{link}", headers=headers)).status_code == 403


async def test_a_post_without_an_origin_is_refused(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        form = forms(await browser.get(f"/escalations/{case.id}"))["abandon"]
        del browser.headers["Origin"]
        assert (await browser.post(f"/escalations/{case.id}", data=form)).status_code == 403
        assert await here.decisions(case.operation_id) == 0


async def test_a_form_needs_the_token_of_this_very_session(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser, other = await here.signed_in(), await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        form = forms(await browser.get(page))["abandon"]
        theirs = forms(await other.get(page))["abandon"]["form_token"]
        for token in ("", "x", "é", theirs):
            forged = await browser.post(page, data={**form, "form_token": token})
            assert forged.status_code == 403
        del form["form_token"]
        assert (await browser.post(page, data=form)).status_code == 403
        assert await here.decisions(case.operation_id) == 0


async def test_only_a_small_form_is_read(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        page = f"/escalations/{(await here.open_case()).id}"
        assert (await browser.post(page, json={"option": "abandon"})).status_code == 415
        assert (await browser.post(page, data={"a": "b" * MOST_BODY})).status_code == 413
        many = {f"f{number}": "" for number in range(40)}
        assert (await browser.post(page, data=many)).status_code == 400


@pytest.mark.parametrize("verb", ["PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_no_other_method_does_anything(tmp_path: Path, verb: str) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        answer = await browser.request(verb, f"/escalations/{case.id}")
        assert answer.status_code == 405
        assert await here.decisions(case.operation_id) == 0


async def test_getting_every_page_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with console(home, done, stopped, unclear, goes_on) as here:
        browser = await here.signed_in()
        link = f"/sign-in/{here.sessions.new_link()}"
        case = await here.open_case()
        before = _all_of(home)
        for path in [*await pages_of(here), "/metrics", "/healthz"]:
            for ending in ("", ".json", ".txt"):
                assert (await browser.get(ended(path, ending))).status_code == 200, path
                await browser.head(ended(path, ending))
        for path in (link, "/sign-in", "/nothing", "/sign-out", "/static/console.css"):
            await browser.get(path)
        form = forms(await browser.get(f"/escalations/{case.id}"))["abandon"]
        await browser.get(f"/escalations/{case.id}", params=form)
        assert _all_of(home) == before


def _all_of(home: Path) -> tuple[list[object], dict[str, bytes]]:
    """Every row of the store and every file of the keys."""
    with closing(sqlite3.connect(home / "forbear.db")) as store:
        tables = [row[0] for row in store.execute("SELECT name FROM sqlite_master WHERE sql <> ''")]
        names = [name for name in tables if not name.startswith(("ix_", "uq_", "sqlite_"))]
        rows: list[object] = []
        for name in names:
            try:
                rows.append((name, store.execute(f'SELECT * FROM "{name}"').fetchall()))
            except sqlite3.OperationalError:  # a trigger, not a table
                continue
    keys = {str(path): path.read_bytes() for path in (home / "keys").rglob("*") if path.is_file()}
    return rows, keys


@pytest.mark.requirement("C05")
async def test_text_of_others_is_inert_on_every_page(tmp_path: Path) -> None:
    async with console(tmp_path / "home", hostile) as here:
        # The rules make most of it harmless before it is stored; the pages do not rely on that.
        home, bad = tmp_path / "home", f"{EVIL}{HIDDEN}"
        names = ("label", "purpose", "provider_state", "provider_job")
        rewrite(home, sa.update(operations).values(dict.fromkeys(names, bad)))
        [case] = await here.app.store.read.open_cases()
        options = [{"id": "hold", "label": bad, "effect": bad, "parameters": {"until": bad}}]
        text = f"{case.text}\nShared: {bad}"
        rewrite(home, sa.update(cases).values(text=text, options=options))
        rewrite(home, sa.insert(pauses).values(target=bad, since=1, by={"operator": bad}))
        browser = await here.signed_in()
        hidden = re.compile(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]"
        )
        for path in await pages_of(here):
            for ending in ("", ".json", ".txt"):
                answer = await browser.get(ended(path, ending))
                assert answer.status_code == 200
                assert not hidden.search(answer.text), (path, ending)
                if not ending:
                    assert "<script>alert" not in answer.text
                    assert "<img" not in answer.text
                    assert "alert(1)" in answer.text or "/audit" in path or "?" in path


async def test_an_address_of_the_browser_is_shown_inert_too(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        browser = await here.signed_in()
        for path in (f"/operations?text={EVIL}&task=%22onfocus=x%20", f"/audit?operation={EVIL}"):
            answer = await browser.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
        assert (await browser.get(f"/operations/{EVIL}")).status_code == 404
        stranger = await here.browser().get("/x%22%3E%3Cscript%3Ealert(1)")
        assert "<script>alert" not in stranger.text


async def test_only_web_addresses_become_links(tmp_path: Path) -> None:
    record = replace(some_record(), console="javascript:alert(1)")
    [look] = [line for line in case_lines(record, some_case(), "") if line.label == "Look there"]
    assert look.link is None


# --- deciding ---------------------------------------------------------------------------------


@pytest.mark.requirement("E06", "E07")
async def test_a_decision_on_the_page_lets_the_operation_go_on_and_is_recorded(
    tmp_path: Path,
) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        form = {**forms(await browser.get(page))["extend"], "minutes": "10", "requests": "3"}
        answer = await browser.post(page, data={**form, "comment": "the report is late"})
        assert (answer.status_code, answer.headers["location"]) == (303, page)
        op = await here.app.store.read.operation(case.operation_id)
        assert op is not None
        assert (op.state, op.status_requests.left) == ("waiting", 3)
        [decided] = await here.app.store.read.case_by(case.id)
        assert decided.decision is not None
        said = {"option": "extend", "extend_by": 600_000, "requests": 3, "channel": "console"}
        assert said.items() <= decided.decision.items()
        assert decided.decision["comment"] == "the report is late"
        assert decided.decision["operator"]
        assert decided.decision["same_user"] is True
        shown = (await browser.get(page)).text
        assert "decided <strong>extend</strong> through the console" in shown
        assert "the report is late" in shown


@pytest.mark.requirement("E06")
async def test_the_second_of_two_decisions_shows_the_first(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        shown = forms(await browser.get(page))
        first = await browser.post(page, data=shown["extend"])
        second = await browser.post(page, data=shown["abandon"])
        replayed = await browser.post(page, data=shown["extend"])
        assert first.status_code == 303
        for late in (second, replayed):
            assert late.status_code == 409
            assert "Nothing was decided" in late.text
            assert "decided <strong>extend</strong>" in late.text
        assert await here.decisions(case.operation_id) == 1


@pytest.mark.requirement("E06")
async def test_two_who_decide_at_once_are_carried_out_once(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        shown = forms(await browser.get(page))
        answers = await asyncio.gather(
            *(browser.post(page, data=shown[option]) for option in ("extend", "abandon"))
        )
        assert sorted(answer.status_code for answer in answers) == [303, 409]
        assert await here.decisions(case.operation_id) == 1


@pytest.mark.requirement("E06")
async def test_a_form_of_an_earlier_revision_shows_the_case_as_it_is_now(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        form = forms(await browser.get(page))["extend"]
        text = f"{case.text}\nShared: new"
        rewrite(tmp_path / "home", sa.update(cases).values(revision=case.revision + 1, text=text))
        stale = await browser.post(page, data=form)
        assert stale.status_code == 409
        assert "changed since it was shown" in stale.text
        assert int(forms(stale)["extend"]["revision"]) == case.revision + 1
        assert await here.decisions(case.operation_id) == 0
        assert (await browser.post(page, data=forms(stale)["extend"])).status_code == 303


@pytest.mark.requirement("E03")
@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({"option": "hold", "minutes": "", "requests": ""}, 409, "not offered"),
        ({"option": "continue"}, 400, "no option"),
        ({"option": ""}, 400, "no option"),
        ({"minutes": "many"}, 400, "write a number"),
        ({"minutes": "nan"}, 400, "write a number"),
        ({"minutes": "-5"}, 409, "above 0"),
        ({"requests": "1.5"}, 400, "whole number"),
        ({"comment": "x" * 501}, 400, "longer than 500"),
        ({"revision": "x"}, 400, "no revision"),
        ({"until": "14:30"}, 400, "belongs to hold"),
    ],
)
async def test_what_is_not_offered_or_out_of_form_decides_nothing(
    tmp_path: Path, changed: Mapping[str, str], status: int, told: str
) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        page = f"/escalations/{case.id}"
        form = forms(await browser.get(page))["extend"]
        answer = await browser.post(page, data={**form, **changed})
        assert answer.status_code == status
        assert told in answer.text
        assert "--" not in re.sub(r"<[^>]*>", "", answer.text)
        assert await here.decisions(case.operation_id) == 0


@pytest.mark.requirement("E09")
@pytest.mark.parametrize("option", ["send_new", "resubmit"])
def test_what_may_happen_twice_stands_last_and_is_typed(option: str) -> None:
    offered = [
        {"id": one, "label": one, "effect": "", "parameters": {}} for one in (option, "abandon")
    ]
    made = choices.choices(replace(some_case(), options=tuple(offered)), some_record().operation)
    assert [one.id for one in made] == ["abandon", option]
    assert made[1].typed == option
    for typed in ({}, {"confirm": "yes"}, {"confirm": option[:-1]}):
        with pytest.raises(BadWish, match="twice"):
            choices.wish({"option": option, **typed}, 0)
    assert choices.wish({"option": option, "confirm": f" {option} "}, 0).option == option


@pytest.mark.requirement("E03")
@pytest.mark.parametrize("option", list(Option))
def test_every_option_names_its_cost_and_what_it_leaves(option: Option) -> None:
    offered = {"id": str(option), "label": "x", "effect": "y", "parameters": {"requests": 4}}
    [made] = choices.choices(replace(some_case(), options=(offered,)), some_record().operation)
    assert made.cost
    assert made.afterwards


async def test_parameters_are_fields_and_what_has_none_has_no_field(tmp_path: Path) -> None:
    async with console(tmp_path / "home", hostile, unclear) as here:
        browser = await here.signed_in()
        first, second = await here.app.store.read.open_cases()
        shown = forms(await browser.get(f"/escalations/{first.id}"))
        assert {"as"} <= set(shown["treat_as"])
        assert {"until"} <= set(shown["hold"])
        shown = forms(await browser.get(f"/escalations/{second.id}"))
        assert {"reference"} <= set(shown["confirm_done"])
        assert set(shown["abandon"]) == {"form_token", "revision", "option", "comment"}


# --- what is shown ----------------------------------------------------------------------------


async def test_every_page_is_there_in_three_forms_with_the_headers_of_the_gate(
    tmp_path: Path,
) -> None:
    kinds = {"": "text/html", ".json": "application/json", ".txt": "text/plain"}
    async with console(tmp_path / "home", done, stopped, unclear, goes_on) as here:
        browser = await here.signed_in()
        for path in await pages_of(here):
            for ending, kind in kinds.items():
                answer = await browser.get(ended(path, ending))
                assert answer.status_code == 200, path
                assert answer.headers["content-type"].startswith(kind)
                _check_headers(answer)
                if ending == ".json":
                    assert isinstance(answer.json(), dict)
        for path in ("/nothing", "/nothing.json", "/nothing.txt", "/operations/op_x"):
            answer = await browser.get(path)
            assert answer.status_code == 404
            _check_headers(answer)
        _check_headers(await browser.get("/", headers={"Host": "evil.example"}))
        _check_headers(await here.browser().get("/"))


def _check_headers(answer: httpx.Response) -> None:
    policy = answer.headers["content-security-policy"]
    for part in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"):
        assert part in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"


async def test_no_page_holds_script_or_style_of_its_own(tmp_path: Path) -> None:
    inline = re.compile(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|javascript:")
    async with console(tmp_path / "home", done, stopped, unclear) as here:
        browser = await here.signed_in()
        for path in [*await pages_of(here), "/sign-in", "/nothing"]:
            text = (await browser.get(path)).text
            assert not inline.search(text), (path, inline.search(text))
            for source in re.findall(r'(?:src|href)="(/static/[^"]*)"', text):
                assert (await browser.get(source)).status_code == 200, source


@pytest.mark.requirement("E02")
async def test_the_case_page_says_what_decides_it_in_nine_lines(tmp_path: Path) -> None:
    async with console(tmp_path / "home", done, stopped) as here:
        browser = await here.signed_in()
        case = await here.open_case()
        text = (await browser.get(f"/escalations/{case.id}.txt")).text
        for told in (
            "all allowed status checks are used (request_budget_exhausted)",
            "Last state: running · Status requests: 12 of 12",
            "usually 2 minutes",
            "longest 2 minutes",
            "“month-end report” (the agent's words)",
            "If nobody decides: nothing is sent",
            "Look there: https://exp.example/jobs/exp_71c",
        ):
            assert told in text
        data = (await browser.get(f"/escalations/{case.id}.json")).json()
        assert data["usual_seconds"] == data["longest_seconds"]
        assert data["case"]["revision"] == case.revision


def test_whatever_a_case_text_holds_there_are_nine_lines_at_most() -> None:
    labels = ("Operation", "For", "Provider job", "Last state", "Sent", "Answer", "Lookup", "Key")
    more = ("Asked for", "Because", "Then", "Elapsed time", "Status requests", "Last HTTP result")
    rest = ("Shared", "New evidence", "Stopped because", "If nobody decides", "Safe options")
    text = "\n".join(f"{label}: words" for label in labels + more + rest)
    shown = replace(some_record(), console="https://exp.example")
    lines = case_lines(shown, replace(some_case(), text=text), "usually 2 minutes")
    assert len(lines) <= MOST_LINES
    assert {"Why", "Time", "Purpose", "If nobody decides", "Look there"} <= {
        line.label for line in lines
    } | ({"Purpose"} if shown.operation.purpose is None else set())


async def test_an_empty_home_says_on_every_page_what_to_do(tmp_path: Path) -> None:
    async with console(tmp_path / "home") as here:
        browser = await here.signed_in()
        for path, told in (
            ("/", "Nothing needs a decision"),
            ("/", "forbear worker"),
            ("/operations", "forbear serve"),
            ("/operations?state=failed", "Show all operations"),
            ("/audit", "Nothing was recorded yet"),
            ("/audit?operation=op_x", "Show all events"),
        ):
            answer = await browser.get(path)
            assert answer.status_code == 200
            assert told in answer.text
        for path in ("/inbox", "/operations", "/audit"):
            for ending in (".json", ".txt"):
                assert (await browser.get(f"{path}{ending}")).status_code == 200


async def test_operations_are_filtered_and_paged_by_the_address(tmp_path: Path) -> None:
    async def many(job: Driver) -> None:
        for number in range(22):
            await job.submit(dataset=f"data {number}")

    async with console(tmp_path / "home", done, stopped, unclear, goes_on, many) as here:
        browser = await here.signed_in()
        first = (await browser.get("/operations.json")).json()
        assert len(first["operations"]) == 25
        rest = (await browser.get(f"/operations.json?after={first['next']}")).json()
        assert (len(rest["operations"]), rest["next"]) == (1, None)
        seen = {one["operation_id"] for one in first["operations"] + rest["operations"]}
        assert len(seen) == 26
        for query, count in (
            ("state=succeeded", 1),
            ("provider=exp&state=queued&text=DATA 1", 11),
            ("text=exp_71c", 1),
            ("text=%25", 0),
            ("task=month-end&text=data 20", 1),
            ("task=nothing", 0),
            ("state=nothing", 0),
            ("after=x.y&state=succeeded", 1),
        ):
            found = (await browser.get(f"/operations.json?{query}")).json()
            assert len(found["operations"]) == count, query
        page = (await browser.get("/operations?provider=exp&task=month-end")).text
        assert "provider=exp&amp;task=month-end&amp;after=" in page


@asynccontextmanager
async def group_of_three(home: Path) -> AsyncIterator[Console]:
    async def three(job: Driver) -> None:
        for dataset in ("a", "b", "c"):
            job.clock.advance(60_000)
            await job.submit(dataset=dataset)
            await job.answer(202, {"id": f"exp_{dataset}", "state": "queued"})
            await job.answer(200, {"id": f"exp_{dataset}", "state": "paused"})

    async with console(home, three) as here:
        with closing(sqlite3.connect(home / "forbear.db")) as store, store:
            store.execute("UPDATE cases SET \"group\" = 'grp_1'")
        yield here


async def test_a_group_is_one_line_until_it_is_opened(tmp_path: Path) -> None:
    async with group_of_three(tmp_path / "home") as here:
        browser = await here.signed_in()
        closed = (await browser.get("/")).text
        assert closed.count('href="/escalations/') == 0
        assert '<a id="group-1" href="/?group=grp_1">3 cases, grp_1</a>' in closed
        assert (await browser.get("/?group=grp_1")).text.count('href="/escalations/') == 3
        assert len((await browser.get("/inbox.json")).json()["cases"]) == 3


@pytest.mark.requirement("E15")
async def test_one_decision_counts_for_a_group_and_says_where_it_was_not_possible(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path / "home") as here:
        with closing(sqlite3.connect(tmp_path / "home" / "forbear.db")) as store, store:
            store.execute("UPDATE cases SET reason = 'binding_mismatch' WHERE number = 3")
        browser = await here.signed_in()
        first, second, third = await here.app.store.read.open_cases()
        page = f"/escalations/{first.id}"
        shown = forms(await browser.get(page))
        assert "group" not in shown["treat_as"]
        assert shown["hold"]["group"] == "grp_1"
        stale = {**shown["hold"], "revision": str(first.revision + 1)}
        assert (await browser.post(page, data=stale)).status_code == 409
        told = (await browser.post(page, data=shown["hold"])).text
        assert told.count(": decided") == 2
        assert "<strong>not possible</strong>, hold is not offered" in told
        assert [one.id for one in await here.app.store.read.open_cases()] == [third.id]
        for case in (first, second):
            [decided] = await here.app.store.read.case_by(case.id)
            assert decided.decision is not None
            assert {"group": "grp_1", "channel": "console"}.items() <= decided.decision.items()
        again = await browser.post(page, data=shown["hold"])
        assert again.status_code == 409
        assert len(await here.app.store.read.open_cases()) == 1


async def test_a_decision_without_the_box_of_the_group_counts_for_its_case(tmp_path: Path) -> None:
    async with group_of_three(tmp_path / "home") as here:
        browser = await here.signed_in()
        page = f"/escalations/{(await here.open_case()).id}"
        form = forms(await browser.get(page))["hold"]
        del form["group"]
        assert (await browser.post(page, data=form)).status_code == 303
        assert len(await here.app.store.read.open_cases()) == 2


@pytest.mark.requirement("E05")
async def test_what_is_over_is_done_anew_from_its_page_by_typing_it(tmp_path: Path) -> None:
    async def fails(job: Driver) -> None:
        await job.accepted()
        await job.answer(200, {"id": "exp_71c", "state": "failed"})

    async with console(tmp_path / "home", fails) as here:
        browser = await here.signed_in()
        [op] = await here.app.store.read.find()
        page = f"/operations/{op.id}"
        form = forms(await browser.get(page))["resubmit"]
        assert (await browser.post(page, data=form)).status_code == 400
        stale = {**form, "confirm": "resubmit", "revision": str(op.revision - 1)}
        assert (await browser.post(page, data=stale)).status_code == 409
        assert len(await here.app.store.read.find()) == 1
        meant = await browser.post(page, data={**form, "confirm": "resubmit"})
        assert meant.status_code == 303
        [anew] = [one for one in await here.app.store.read.find() if one.id != op.id]
        assert meant.headers["location"] == f"/operations/{anew.id}"
        assert "resubmit" not in forms(await browser.get(page))
        assert (await browser.post(page, data={**form, "confirm": "resubmit"})).status_code == 409
        assert len(await here.app.store.read.find()) == 2


@pytest.mark.requirement("E05")
async def test_what_runs_is_cancelled_from_its_page_once(tmp_path: Path) -> None:
    async with console(tmp_path / "home", goes_on) as here:
        browser = await here.signed_in()
        [op] = await here.app.store.read.find()
        page = f"/operations/{op.id}"
        form = forms(await browser.get(page))["cancel_at_provider"]
        other = await browser.post(page, data={**form, "option": "abandon"})
        assert other.status_code == 409
        assert (await browser.post(page, data=form)).headers["location"] == page
        [cancel] = await here.app.store.read.children(op.id)
        assert cancel.kind == "cancel"
        assert (await browser.post(page, data=form)).status_code == 409
        assert len(await here.app.store.read.children(op.id)) == 1


async def test_pauses_scopes_and_senders_stand_below_the_inbox(tmp_path: Path) -> None:
    async with console(tmp_path / "home", goes_on) as here:
        by = {"operator": "anna", "channel": "terminal"}
        await here.app.store.write(partial(here.app.store.brakes.pause, target="exp", by=by))
        browser = await here.signed_in()
        text = (await browser.get("/inbox.txt")).text
        assert re.search(r"exp, since \d\d:\d\d:\d\dZ \(now\) by anna", text)
        assert "exp/acct_17/account  open" in text
        assert "No process is alive that could send" in text


@pytest.mark.requirement("E16")
async def test_answers_given_in_advance_stand_below_the_inbox(tmp_path: Path) -> None:
    standing = read_standing(tomllib.loads(STANDING)["standing"])
    async with console(tmp_path / "home", goes_on, standing=standing) as here:
        browser = await here.signed_in()
        for page in ("/", "/inbox.txt", "/inbox.json"):
            text = (await browser.get(page)).text
            assert "anna" in text
            assert "rate_limited" in text


async def test_a_page_fetches_itself_anew_only_where_something_changed(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        whole = (await browser.get("/")).text
        [again] = re.findall(r'hx-get="([^"]*)"', whole)
        polled = {"HX-Request": "true"}
        assert (await browser.get(again, headers=polled)).status_code == 204
        case = await here.open_case()
        form = forms(await browser.get(f"/escalations/{case.id}"))["abandon"]
        await browser.post(f"/escalations/{case.id}", data=form)
        part = await browser.get(again, headers=polled)
        assert "Nothing needs a decision" in part.text
        assert "<html" not in part.text
        here.clock.jump(SESSION_LASTS)
        over = await browser.get(again, headers=polled)
        assert (over.status_code, over.headers["hx-refresh"]) == (401, "true")


@pytest.mark.requirement("R18")
async def test_metrics_count_429_and_503_apart(tmp_path: Path) -> None:
    async def limited(job: Driver) -> None:
        await job.accepted()
        await job.answer(503)
        await job.answer(429)
        await job.silence()

    async with console(tmp_path / "home", unclear, limited) as here:
        text = (await (await here.signed_in()).get("/metrics")).text
        for line in (
            'forbear_operations{state="waiting",reason="provider"} 1',
            'forbear_operations{state="escalated",reason="unclear_write"} 1',
            'forbear_open_cases{reason="unclear_write"} 1',
            'forbear_requests_total{provider="exp",outcome="answered",status="2xx"} 1',
            'forbear_requests_total{provider="exp",outcome="answered",status="429"} 1',
            'forbear_requests_total{provider="exp",outcome="answered",status="503"} 1',
            'forbear_requests_total{provider="exp",outcome="no_answer",status="none"} 2',
            "forbear_oldest_due_age_seconds 0",
            "forbear_processes_alive 0",
        ):
            assert f"{line}\n" in text


async def test_the_token_of_a_monitor_reads_metrics_and_nothing_else(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        token = here.sessions.meter_file
        monitor = here.browser()
        assert (await monitor.get("/metrics")).status_code == 401
        monitor.headers["Authorization"] = f"Bearer {token.read_text()}"
        assert (await monitor.get("/metrics")).status_code == 200
        assert (await monitor.get("/metrics.json")).status_code == 200
        assert (await monitor.get("/")).status_code == 401
        assert (await monitor.get("/operations.json")).status_code == 401
        monitor.headers["Authorization"] = "Bearer guess"
        assert (await monitor.get("/metrics")).status_code == 401


async def test_a_store_that_cannot_be_read_is_said_and_not_shown(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        browser = await here.signed_in()
        with closing(sqlite3.connect(tmp_path / "home" / "forbear.db")) as store, store:
            store.execute("ALTER TABLE pauses RENAME TO elsewhere")
        answer = await browser.get("/")
        assert answer.status_code == 503
        assert "forbear doctor" in answer.text
        assert (await browser.get("/healthz")).status_code == 503


# --- where it is served -----------------------------------------------------------------------


def _settings(home: Path, console: str, url: str | None = None) -> Settings:
    return Settings(home=home, console=console, console_url=url or f"http://{console}")


def _listening(settings: Settings) -> socket.socket:
    return listening(settings, settings.console, "FORBEAR_CONSOLE")


@pytest.mark.parametrize("where", ["127.0.0.1:0", "[::1]:0"])
def test_an_answer_in_two_parts_waits_for_no_acknowledgement(tmp_path: Path, where: str) -> None:
    with _listening(_settings(tmp_path, where)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("where", ["0.0.0.0:0", "192.0.2.1:8377", "[::]:0", "example.org:80"])
def test_an_address_that_others_reach_needs_https_before_it(tmp_path: Path, where: str) -> None:
    with pytest.raises(NotServed, match="FORBEAR_CONSOLE_URL"):
        _listening(_settings(tmp_path, where))
    with pytest.raises(NotServed, match="FORBEAR_CONSOLE_URL"):
        _listening(_settings(tmp_path, where, "http://forbear.example"))


def test_behind_a_proxy_with_tls_it_may_listen_anywhere(tmp_path: Path) -> None:
    settings = _settings(tmp_path, "0.0.0.0:0", "https://forbear.example")
    with closing(_listening(settings)) as listener:
        assert (
            address(settings, settings.console, listener.getsockname()[1])
            == "https://forbear.example"
        )


def test_a_taken_port_is_named_with_the_fix(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotServed, match=f"127.0.0.1:{port} cannot be used"):
            _listening(_settings(tmp_path, f"127.0.0.1:{port}"))


async def test_a_served_console_is_named_to_agents_and_a_dead_one_is_not(tmp_path: Path) -> None:
    async with console(tmp_path / "home", stopped) as here:
        op_id = (await here.open_case()).operation_id

        async def told() -> tuple[str | None, bool]:
            op = await here.app.store.read.operation(op_id)
            assert op is not None
            record = await here.app.desk.record(op)
            return record.decide_at, record.console_served

        assert (await told())[1] is False
        beacon = Beacon(tmp_path / "home" / "run", "one")
        beacon.light("http://127.0.0.1:9999")
        link, served = await told()
        assert served
        assert str(link).startswith("http://127.0.0.1:9999/escalations/esc_")
        beacon.put_out()
        assert (await told())[1] is False
        # A process that was killed leaves its file, and no lock on it.
        (tmp_path / "home" / "run" / "console_dead").write_text("http://127.0.0.1:1")
        assert (await told())[1] is False


@dataclass
class Served:
    """`forbear console` as a process, with the link that it printed."""

    process: subprocess.Popen[str]
    link: str

    @property
    def url(self) -> str:
        return self.link.partition("/sign-in/")[0]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    process = _forbear(tmp_path / "home", "console")
    try:
        yield Served(process, _link(process))
    finally:
        process.kill()
        process.communicate()


def _forbear(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "FORBEAR_HOME": str(home), "FORBEAR_CONSOLE": "127.0.0.1:0"}
    environment.pop("FORBEAR_CONSOLE_URL", None)
    command = [sys.executable, "-m", "forbear", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _link(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "/sign-in/" in line:
            return line.strip()
    raise AssertionError(process.communicate()[1])


def test_the_command_serves_signs_in_by_its_link_and_ends_on_ctrl_c(
    served: Served, tmp_path: Path
) -> None:
    with httpx.Client(base_url=served.url, headers={"Origin": served.url}) as browser:
        assert browser.get("/healthz").text == "ok\n"
        assert browser.get("/").status_code == 401
        assert browser.post(served.link).status_code == 303
        answer = browser.get("/")
        assert "Nothing needs a decision" in answer.text
        assert "server" not in answer.headers
    served.process.send_signal(signal.SIGINT)
    _, remarks = served.process.communicate(timeout=30)
    assert served.process.returncode == 0, remarks
    assert "Traceback" not in remarks
    other = Liveness(tmp_path / "home" / "run", "test")
    assert served_at(tmp_path / "home" / "run", other) is None


def test_asked_again_the_command_prints_a_new_link_of_the_console_that_runs(
    served: Served, tmp_path: Path
) -> None:
    second = _forbear(tmp_path / "home", "console")
    out, remarks = second.communicate(timeout=60)
    assert second.returncode == 0, remarks
    [link] = [line.strip() for line in out.splitlines() if "/sign-in/" in line]
    assert link.startswith(served.url)
    with httpx.Client(headers={"Origin": served.url}) as browser:
        assert browser.post(link).status_code == 303
        assert browser.post(served.link).status_code == 303


def test_the_command_refuses_an_open_address_in_plain_words(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "FORBEAR_HOME": str(tmp_path / "home"),
        "FORBEAR_CONSOLE": "0.0.0.0:0",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "forbear", "console"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "FORBEAR_CONSOLE_URL" in ran.stderr
    assert "Traceback" not in ran.stderr
