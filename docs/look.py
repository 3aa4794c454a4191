"""Pictures of every page of the site for people to look at: `python -m docs.look OUT`.

In light and dark, wide and as on a phone. What axe and the measuring find is printed under the name
of its picture.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page
from tests.browser import chrome


def main(out: Path, only: str = "") -> int:
    if chrome.found() is None:
        print(chrome.MISSING, file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    found = 0
    with TemporaryDirectory() as folder, chrome.browser() as running:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        subprocess.run([*command, "--site-dir", folder], check=True)
        for scheme in chrome.SCHEMES:
            for size, width in chrome.WIDTHS.items():
                with chrome.context(running, width, scheme) as browsing:
                    page = browsing.new_page()
                    for name, file in pages(Path(folder)).items():
                        if only not in name:
                            continue
                        page.goto(file.as_uri())
                        page.screenshot(path=out / f"{name}-{scheme}-{size}.png", full_page=True)
                        for each in findings(page):
                            print(f"{name}-{scheme}-{size}: {each}")
                            found += 1
    print(f"{found} findings; pictures in {out}")
    return 1 if found else 0


def pages(site: Path) -> dict[str, Path]:
    """The pages of a built site by a name for their pictures."""
    found = {file.relative_to(site).with_suffix(""): file for file in sorted(site.rglob("*.html"))}
    return {str(name).replace("/", "-"): file for name, file in found.items() if name.name != "404"}


def findings(page: Page) -> list[str]:
    """What keeps people from reading a page."""
    wide = [f"scrolls sideways: {each}" for each in chrome.too_wide(page)]
    # Chromium and Firefox let the keyboard into what scrolls by themselves; axe does not know.
    barriers = [each for each in chrome.barriers(page) if "scrollable-region-focusable" not in each]
    return [*barriers, *wide]


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python -m docs.look OUT [PAGE]")
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
