"""The documentation as a site: it builds, its generated pages are current, it stands alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from docs import generate, look

from tests.browser import chrome

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_generated_pages_say_what_the_code_says() -> None:
    for name, text in generate.pages().items():
        committed = (DOCS / name).read_text(encoding="utf-8")
        assert committed == text, f"docs/{name}: run `python -m docs.generate`"


def test_no_usage_line_has_a_parameter_in_doubled_brackets() -> None:
    usages = re.findall(r"^forbear .*$", generate.pages()["reference/commands.md"], re.MULTILINE)
    assert len(usages) > 20
    assert not [line for line in usages if "[[" in line]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as mkdocs builds it; every broken link or anchor and every page that the
    navigation forgets is an error."""
    pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return out


class _Loaded(HTMLParser):
    """Addresses that a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href", ""))
        if tag in ("script", "img", "source", "iframe"):
            self.addresses += [given.get("src", ""), given.get("srcset", "")]


def loaded(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".css":
        yield from (found.strip("'\"") for found in re.findall(r"url\(([^)]+)\)", text))
        return
    parser = _Loaded()
    parser.feed(text)
    yield from filter(None, parser.addresses)


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """Fonts, scripts and pictures lie beside the pages, and are there."""
    pages = [file for kind in ("*.html", "*.css") for file in site.rglob(kind)]
    assert len(pages) > 10
    for file in pages:
        for address in loaded(file):
            parts = urlsplit(address)
            if parts.scheme == "data" or file.name == "404.html":
                continue
            assert not parts.netloc, f"{file.name} loads {address}"
            assert (file.parent / parts.path).exists(), f"{file.name}: there is no {address}"


@pytest.mark.skipif(chrome.found() is None, reason=chrome.MISSING)
@pytest.mark.parametrize("scheme", chrome.SCHEMES)
def test_every_page_can_be_read_on_a_phone(site: Path, scheme: str) -> None:
    with chrome.browser() as running, chrome.context(running, 360, scheme) as browsing:
        page = browsing.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for name, file in look.pages(site).items():
            page.goto(file.as_uri())
            assert look.findings(page) == [], name
    assert {urlsplit(address).scheme for address in asked} <= {"file", "data", "blob"}
