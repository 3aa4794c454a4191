"""Text from providers and agents made harmless for screens, records and models."""

from __future__ import annotations

import unicodedata

_FORMAT_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def inert(text: str, limit: int = 500) -> str:
    """The text on one line: control, bidi and invisible characters become U+FFFD, long text is cut.

    Tabs and line breaks become spaces. The result has at most `limit` characters.
    """
    safe = "".join(
        " "
        if character in "\t\r\n"
        else "�"
        if unicodedata.category(character) in _FORMAT_CATEGORIES
        else character
        for character in text[: limit + 1]
    )
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
