"""The pictures of the documentation: `python -m docs.screenshots` makes them anew.

The demonstration fills a home; then the console's pages are taken in a headless Chromium, and what
a terminal shows is drawn by rich, each in light and dark.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from playwright.sync_api import Page
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tests.browser import chrome, house
from tests.browser.screenshots import sign_in

from forbear.server import demo

OUT = Path(__file__).parent / "pictures"
WIDTH = 960
HEIGHT = 720
"""Of the console's pages: so many pixels at most are shown."""

COLUMNS = 104
"""Of the terminal."""

LIGHT = TerminalTheme(
    (255, 255, 255),
    (36, 41, 47),
    [
        *[(36, 41, 47), (179, 29, 40), (17, 99, 41), (125, 78, 0), (9, 105, 218)],
        *[(130, 80, 223), (27, 124, 131), (110, 119, 129)],
    ],
)
DARK = TerminalTheme(
    (30, 33, 41),
    (226, 228, 233),
    [
        *[(110, 118, 129), (255, 123, 114), (110, 211, 156), (242, 204, 96), (121, 192, 255)],
        *[(210, 168, 255), (118, 227, 234), (177, 186, 196)],
    ],
)


def main() -> int:
    if chrome.found() is None:
        print(chrome.MISSING, file=sys.stderr)
        return 2
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        asyncio.run(demo.play(home))
        shown = json.loads(forbear(home, "ls", "--limit", "100", "--json"))["operations"]
        jobs = {one["label"]: one["operation_id"] for one in shown if one["kind"] == "job"}
        obeyed, extended = jobs["Export a data set: stock"], jobs["Export a data set: orders"]
        _terminal("terminal", home, ["show", obeyed], ["inbox"])
        with house.worker(home), house.console(home) as link:
            _console(link, extended)
    return 0


def forbear(home: Path, *arguments: str) -> str:
    """What a command shows in a terminal of `COLUMNS`, with its colours."""
    ours, theirs = pty.openpty()
    environment = house.environment(home, COLUMNS=str(COLUMNS), TERM="xterm-256color")
    command = [sys.executable, "-m", "forbear", *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    ):
        os.close(theirs)
        told = b"".join(_until_closed(ours))
    os.close(ours)
    return told.decode().replace("\r\n", "\n")


def _until_closed(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # Linux says so once nobody writes to a terminal any more
            return
        if not part:
            return
        yield part


def _terminal(name: str, home: Path, *commands: list[str]) -> None:
    told = [(" ".join(command), forbear(home, *command)) for command in commands]
    for scheme, theme in (("light", LIGHT), ("dark", DARK)):
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
            for command, output in told:
                console.print(Text(f"$ forbear {command}", "bold"))
                console.print(Text.from_ansi(output.rstrip("\n")), "")
            svg = console.export_svg(title="", theme=theme, unique_id=f"{name}-{scheme}")
        # The fonts of the reader's system; a picture loads nothing.
        svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
        svg = svg.replace("Fira Code, monospace", "ui-monospace, DejaVu Sans Mono, monospace")
        lines = [line.rstrip() for line in svg.splitlines() if line.strip()]
        (OUT / f"{name}-{scheme}.svg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _console(link: str, operation_id: str) -> None:
    origin = "http://" + urlsplit(link).netloc
    with chrome.browser() as running:
        first = chrome.context(running, WIDTH)
        page = first.new_page()
        page.goto(link)
        sign_in(page)
        state = first.storage_state()
        page.get_by_role("link", name="Transfer 125 EUR").first.click()
        addresses = {
            "inbox": f"{origin}/",
            "case": page.url,
            "operation": f"{origin}/operations/{operation_id}",
        }
        first.close()
        for scheme in chrome.SCHEMES:
            with chrome.context(running, WIDTH, scheme, storage_state=state) as browsing:
                for name, address in addresses.items():
                    shot = browsing.new_page()
                    shot.goto(address)
                    _taken(shot, OUT / f"console-{name}-{scheme}.webp")


def _taken(page: Page, path: Path) -> None:
    """The top of the page as WebP, a third of the size of a PNG."""
    high = int(page.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(high, HEIGHT), "scale": 1}
    wanted = {"format": "webp", "quality": 80, "captureBeyondViewport": True, "clip": clip}
    taken = page.context.new_cdp_session(page).send("Page.captureScreenshot", wanted)
    path.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    sys.exit(main())
