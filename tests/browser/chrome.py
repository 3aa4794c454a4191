"""The browser of the machine, and what axe and plain eyes find wrong with a page in it.

Nothing is downloaded: it is Debian's Chromium, or what `FORBEAR_CHROMIUM` names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

NAMES = ("chromium", "chromium-browser")
MISSING = "no Chromium is found; install Debian's package or set FORBEAR_CHROMIUM to one"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(__file__).parent / "axe" / "axe.min.js"
"""axe-core 4.14.1, unchanged."""

WIDTHS = {"wide": 1280, "narrow": 360}
SCHEMES = ("light", "dark")


def found() -> str | None:
    """The browser's program, if there is one."""
    named = os.environ.get("FORBEAR_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A new browser with a profile of its own."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found(), args=FLAGS)
        try:
            yield running
        finally:
            running.close()


def context(
    running: Browser, width: int = 1280, scheme: Any = "light", **more: Any
) -> BrowserContext:
    """A browser that nobody signed in with yet."""
    made = running.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",
        **more,
    )
    made.set_default_timeout(20_000)
    return made


# --- what is wrong with a page --------------------------------------------------------------


def barriers(page: Page) -> list[str]:
    """What axe calls serious or critical, with the elements that it means."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    return [
        f"{one['impact']} {one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def too_wide(page: Page) -> list[str]:
    """Elements that make the page scroll sideways."""
    wide: list[str] = page.evaluate("""() => {
      const room = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= room) return [];
      return [...document.body.querySelectorAll('*')]
        .filter(one => one.getBoundingClientRect().right > room + 1)
        .map(one => `${one.tagName} ${one.className} ${one.textContent.trim().slice(0, 40)}`);
    }""")
    return wide


def cut(page: Page) -> list[str]:
    """Texts of which a part is hidden, and texts too small to read."""
    hidden: list[str] = page.evaluate("""() => {
      const found = [];
      const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) {
        const node = walk.currentNode, box = node.parentElement;
        if (!node.textContent.trim() || !box.checkVisibility()) continue;
        if (box.closest('script, style, title, desc, option')) continue;
        const style = getComputedStyle(box);
        let outside = box;  // what only screen readers are told is clipped away on purpose
        while (outside && getComputedStyle(outside).clipPath === 'none')
          outside = outside.parentElement;
        if (outside) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const text = range.getBoundingClientRect();
        const scale = box.ownerSVGElement
          ? box.ownerSVGElement.getBoundingClientRect().width
            / box.ownerSVGElement.viewBox.baseVal.width : 1;
        const size = parseFloat(style.fontSize) * scale;
        const words = node.textContent.trim().slice(0, 50);
        if (size < 11) found.push(`${size.toFixed(1)} px: ${words}`);
        for (let outer = box; outer; outer = outer.parentElement) {
          const look = getComputedStyle(outer);
          if (look.overflowX === 'visible' && look.overflowY === 'visible') continue;
          const room = outer.getBoundingClientRect();
          const scrolls = /auto|scroll/.test(look.overflowX + look.overflowY)
            && outer.scrollWidth > outer.clientWidth && outer !== document.documentElement;
          if (!scrolls && (text.right > room.right + 1 || text.left < room.left - 1
              || text.bottom > room.bottom + 2 || text.top < room.top - 2))
            found.push(`cut by ${outer.tagName} ${outer.getAttribute('class')}: ${words}`);
        }
      }
      return found;
    }""")
    return hidden


def overlapping(page: Page) -> list[str]:
    """Texts of a picture that stand on each other as the browser draws them."""
    met: list[str] = page.evaluate("""() => {
      const texts = [...document.querySelectorAll('svg text')]
        .filter(one => one.checkVisibility() && one.getBoundingClientRect().width)
        .map(one => [one.textContent, one.getBoundingClientRect()]);
      const found = [];
      texts.forEach(([words, a], index) => texts.slice(index + 1).forEach(([others, b]) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 3) found.push(`${words} | ${others}`);
      }));
      return found;
    }""")
    return met


def findings(page: Page) -> list[str]:
    """All that is wrong with a page."""
    wide = [f"scrolls sideways: {each}" for each in too_wide(page)]
    return [*barriers(page), *wide, *cut(page), *overlapping(page)]
