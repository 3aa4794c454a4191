"""Links of the documentation that lead elsewhere: `python -m docs.links` lists them.

Nothing is fetched, in CI or here. mkdocs checks the links between pages, and their anchors.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_ADDRESS = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>")


def external() -> dict[str, list[str]]:
    """Each address with the files that name it."""
    found: dict[str, list[str]] = {}
    for file in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        for match in _ADDRESS.finditer(file.read_text(encoding="utf-8")):
            found.setdefault(match[1] or match[2], []).append(str(file.relative_to(ROOT)))
    return found


if __name__ == "__main__":
    for address, files in sorted(external().items()):
        print(f"{address}  {', '.join(dict.fromkeys(files))}")
