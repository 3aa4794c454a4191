"""Pictures of every page for people to look at: `python -m tests.browser.screenshots OUT`.

Each page of a filled home and of an empty one, in light and dark, wide and as on a phone. What axe
and the measuring find is printed under the name of its picture.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page
from tests.browser import chrome, house


def main(out: Path) -> int:
    if chrome.found() is None:
        print(chrome.MISSING, file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, chrome.browser() as running:
        empty, filled = Path(folder, "empty"), Path(folder, "filled")
        empty.mkdir()
        filled.mkdir()
        with house.console(empty) as link:
            found = shoot(running, out / "empty", link, {})
        with house.provider(filled) as api:
            ids = house.fill(filled, api)
            with house.worker(filled), house.console(filled) as link:
                found += shoot(running, out / "filled", link, ids)
    print(f"{found} findings; pictures in {out}")
    return 1 if found else 0


def shoot(running: Browser, out: Path, link: str, ids: Mapping[str, str]) -> int:
    """Make the pictures of one home; how much was found wrong."""
    out.mkdir(exist_ok=True)
    origin = "http://" + urlsplit(link).netloc
    first = chrome.context(running)
    page = first.new_page()
    page.goto(link)
    found = 0
    unsigned = {"sign-in-link": link, "stranger": f"{origin}/", "sign-in": f"{origin}/sign-in"}
    for name, address in unsigned.items():
        found += _four(running, out, name, address, None)
    sign_in(page)
    state = first.storage_state()
    found += _four(running, out, "link-used", link, None)
    for name, address in pages(page, origin, ids):
        found += _four(running, out, name, address, state)
    if ids:
        for name, address in _decided(page, origin, ids):
            found += _four(running, out, name, address, state)
        _refused(first.new_page(), out, origin)
    first.close()
    return found


def _decided(page: Page, origin: str, ids: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A case that was decided, and an operation that went on by it."""
    page.goto(f"{origin}/operations/{ids['stopped']}")
    page.locator("#to-case").click()
    page.get_by_role("button", name="Extend").click()
    page.get_by_role("link", name="See it go on").wait_for()
    yield "case-decided", page.url
    page.get_by_role("link", name="See it go on").click()
    page.locator(".badge.succeeded").first.wait_for()
    yield "operation-extended", page.url


def _refused(page: Page, out: Path, origin: str) -> None:
    """What somebody sees whose decision another was faster with."""
    page.goto(f"{origin}/")
    page.get_by_role("link", name="Transfer 125 EUR").click()
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="Abandon").click()
    page.get_by_role("button", name="Confirm not done").click()
    page.get_by_role("alert").wait_for()
    page.screenshot(path=out / "case-refused-light-wide.png", full_page=True)


def sign_in(page: Page) -> None:
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Inbox").wait_for()


def pages(page: Page, origin: str, ids: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every page of a home by a name for its picture."""
    yield "inbox", f"{origin}/"
    yield "operations", f"{origin}/operations"
    yield "operations-none", f"{origin}/operations?provider=nobody"
    yield "audit", f"{origin}/audit"
    yield "missing", f"{origin}/operations/op_nothing"
    for name, operation_id in ids.items():
        yield f"operation-{name}", f"{origin}/operations/{operation_id}"
        page.goto(f"{origin}/operations/{operation_id}.json")
        told = json.loads(page.inner_text("pre"))
        for number, case in enumerate(told["cases"], start=1):
            yield f"case-{name}-{number}", f"{origin}/escalations/{case['id']}"


def _four(running: Browser, out: Path, name: str, address: str, state: object) -> int:
    found = 0
    for scheme in chrome.SCHEMES:
        for size, width in chrome.WIDTHS.items():
            with chrome.context(running, width, scheme, storage_state=state) as one:
                page = one.new_page()
                page.goto(address)
                page.screenshot(path=out / f"{name}-{scheme}-{size}.png", full_page=True)
                wrong = chrome.findings(page)
            for each in wrong:
                print(f"{out.name}/{name}-{scheme}-{size}: {each}")
            found += len(wrong)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.browser.screenshots OUT")
    sys.exit(main(Path(sys.argv[1])))
