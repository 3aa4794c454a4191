"""People at the console: real processes, a real browser, and nothing but what it shows.

`forbear console` and `forbear worker` run on a home that a real `forbear serve` filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.browser import chrome, house, screenshots

pytestmark = pytest.mark.skipif(chrome.found() is None, reason=chrome.MISSING)

SOON = 30_000
"""Milliseconds in which a worker certainly comes to what is due."""


@dataclass(frozen=True)
class Place:
    home: Path
    origin: str
    api: house.Provider
    ids: dict[str, str]
    """Operations by what became of them."""
    signed_in: Any
    """The cookies of an operator."""

    def link(self) -> str:
        """Another link for signing in, as `forbear console` prints it beside the running one."""
        with house.process("forbear", "console", home=self.home) as running:
            return running.says(house.LINK)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chrome.browser() as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("home")
    with house.provider(home) as api:
        ids = house.fill(home, api)
        with house.worker(home), house.console(home) as link, chrome.context(browser) as first:
            page = first.new_page()
            page.goto(link)
            screenshots.sign_in(page)
            origin = "http://" + urlsplit(link).netloc
            yield Place(home, origin, api, ids, first.storage_state())


@pytest.fixture
def context(browser: Browser, place: Place) -> Iterator[BrowserContext]:
    """A window of somebody who signed in."""
    with chrome.context(browser, storage_state=place.signed_in) as made:
        yield made


@dataclass
class Hand:
    """A person's hand: counts what it does on a page."""

    page: Page
    actions: int = 0

    def click(self, role: Any, name: str | re.Pattern[str]) -> None:
        self.actions += 1
        self.page.get_by_role(role, name=name, exact=True).click()

    def goes_to(self, name: str) -> None:
        """Press Tab until the control with this name has the focus, then Enter."""
        for _ in range(80):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.textContent.trim()") == name:
                with self.page.expect_navigation():
                    self.page.keyboard.press("Enter")
                return
        raise AssertionError(f"the keyboard does not reach {name}")


# --- deciding -------------------------------------------------------------------------------


@pytest.mark.requirement("A03")
def test_somebody_signs_in_reads_a_case_extends_it_and_sees_the_operation_go_on(
    browser: Browser, place: Place
) -> None:
    checks = place.api.count("GET /exports/exp_2")
    assert checks == 2, "the budget of two status requests"
    with chrome.context(browser) as fresh:
        page = fresh.new_page()
        page.goto(f"{place.origin}/")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in first")
        page.goto(place.link())
        hand = Hand(page)
        hand.click("button", "Sign in")
        hand.click("link", "Export sales-2026")
        main = page.get_by_role("main")
        expect(main).to_contain_text("request_budget_exhausted")
        expect(main).to_contain_text("month-end report of sales-2026")
        expect(main).to_contain_text("nothing is sent")
        page.get_by_role("spinbutton", name="Status requests").fill("5")
        hand.click("button", "Extend")
        expect(page.get_by_role("status").filter(has_text="decided extend")).to_be_visible()
        hand.click("link", "See it go on")
        expect(page.locator(".state .badge")).to_have_text("succeeded", timeout=SOON)
        story = page.get_by_role("region", name="The story as text")
        expect(story).to_contain_text("decided extend (5 minutes, 5 checks)")
        expect(story).to_contain_text("succeeded")
        picture = page.get_by_role("img", name="Story of Export sales-2026")
        expect(picture).to_be_visible()
        expect(picture).to_contain_text("extend 5 m")
        expect(picture).to_contain_text("extended deadline")
    assert place.api.count("GET /exports/exp_2") == 5


def test_from_the_inbox_to_the_executed_decision_in_three_actions(
    context: BrowserContext, place: Place
) -> None:
    page = context.new_page()
    page.goto(f"{place.origin}/")
    hand = Hand(page)
    hand.click("link", "Transfer 125 EUR to acct_42")
    hand.click("button", "Confirm not done")
    expect(page.get_by_role("status").filter(has_text="decided confirm not done")).to_be_visible()
    expect(page.locator(".badge.failed")).to_have_text("failed")
    assert hand.actions <= 3
    assert place.api.count("POST /transfers") == 1, "and nothing was sent"


def test_the_keyboard_alone_reaches_a_decision(browser: Browser, place: Place) -> None:
    assert place.api.count("POST /payments") == 0
    with chrome.context(browser) as fresh:
        page = fresh.new_page()
        page.goto(place.link())
        hand = Hand(page)
        hand.goes_to("Sign in")
        hand.goes_to("Pay 80 EUR")
        would_send = f"POST {place.api.base_url}/payments, account default"
        expect(page.get_by_role("main")).to_contain_text(would_send)
        hand.goes_to("Approve")
        expect(page.get_by_role("status").filter(has_text="decided approve")).to_be_visible()
        page.goto(f"{place.origin}/operations/{place.ids['asked']}")
        expect(page.locator(".state .badge")).to_have_text("succeeded", timeout=SOON)
    assert place.api.count("POST /payments") == 1


def test_without_scripts_a_case_is_read_and_decided_too(browser: Browser, place: Place) -> None:
    with chrome.context(
        browser, storage_state=place.signed_in, java_script_enabled=False
    ) as silent:
        page = silent.new_page()
        page.goto(f"{place.origin}/")
        hand = Hand(page)
        hand.click("link", re.compile(f"Export {house.LONG_NAME[:40]}"))
        hand.click("button", "Abandon")
        expect(page.get_by_role("status").filter(has_text="decided abandon")).to_be_visible()
        page.goto(f"{place.origin}/operations/{place.ids['strange']}")
        expect(page.locator(".state .badge")).to_have_text("discarded")
        name = f"Story of Export {house.LONG_NAME[:40]}"
        expect(page.get_by_role("img", name=name)).to_be_visible()


# --- looking --------------------------------------------------------------------------------

KINDS = {
    *("inbox", "operations", "operations-none", "audit"),
    *("operation-stopped", "operation-strange", "case-stopped-1", "case-strange-1"),
    "case-unclear-1",
}
"""Pages of each kind, with the words that are hardest to place; `screenshots` looks at all."""


@pytest.mark.parametrize("scheme", chrome.SCHEMES)
@pytest.mark.parametrize("width", chrome.WIDTHS.values(), ids=chrome.WIDTHS)
def test_nothing_keeps_anybody_from_reading_any_page(
    browser: Browser, place: Place, scheme: str, width: int
) -> None:
    """axe finds nothing serious, nothing scrolls sideways, no text is cut, small or covered, and
    the browser itself has nothing to complain about, such as a style that the policy forbids."""
    wrong: list[str] = []
    with chrome.context(browser, width, scheme, storage_state=place.signed_in) as made:
        page = made.new_page()
        page.on("console", lambda said: wrong.append(f"{page.url}: {said.type} {said.text}"))
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        listed = dict(screenshots.pages(made.new_page(), place.origin, place.ids))
        for name in sorted(KINDS):
            page.goto(listed[name])
            wrong += [f"{name}: {each}" for each in chrome.findings(page)]
    with chrome.context(browser, width, scheme) as stranger:
        page = stranger.new_page()
        for address in (place.link(), f"{place.origin}/sign-in", f"{place.origin}/operations"):
            page.goto(address)
            wrong += [f"{address}: {each}" for each in chrome.findings(page)]
    assert wrong == []


def test_what_looks_at_pages_sees_what_is_wrong(context: BrowserContext) -> None:
    page = context.new_page()
    page.set_content(
        """<!doctype html><html lang="en"><title>t</title><main><h1>h</h1>
        <p style="color: #ddd; background: #fff">too faint</p>
        <p style="width: 3000px">too wide</p>
        <p style="width: 3rem; overflow: hidden; white-space: nowrap">cut at its end</p>
        <p style="font-size: 9px">too small</p>
        <svg width="300" viewBox="0 0 300 50"><text x="5" y="20">one text</text>
        <text x="20" y="22">another</text></svg></main>"""
    )
    found = "\n".join(chrome.findings(page))
    for words in ("color-contrast", "sideways: P", "cut by P", "9.0 px", "one text | another"):
        assert words in found


def test_words_of_a_provider_are_only_words(context: BrowserContext, place: Place) -> None:
    page = context.new_page()
    for address in ("/", f"/operations/{place.ids['strange']}", "/operations", "/audit"):
        page.goto(f"{place.origin}{address}")
        assert "owned" not in page.title()
        assert page.locator("main script, main b").count() == 0
        assert not set(page.inner_text("body")) & {"\u202e", "\x1b"}
    page.goto(f"{place.origin}/operations/{place.ids['strange']}")
    expect(page.get_by_role("region", name="The story as text")).to_contain_text("<script>")
