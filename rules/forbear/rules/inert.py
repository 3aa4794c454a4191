"""Text from providers and agents made harmless for screens, records and models.

One list says which characters hide, reorder or control the text around them, and one rule says what
of an address is shown: everywhere else asks here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, formats with direction marks and tags, surrogates, private, unassigned, separators."""

_UNSEEN = re.compile(
    "["
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # joiners and blank letters
    "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # variation selectors
    "]"
)
"""Letters and marks that are not drawn (UAX 44: Default_Ignorable_Code_Point)."""

_DOUBTFUL = re.compile("[^\t\r\n\x20-\x7e]")

_ADDRESS = re.compile(r"""(?:\bhttps?:\\*/\\*/|(?<![^\s"'(,=<>])/)[^\s"'<>]*""", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=/)[^/]+@")

REDACTED = "[redacted]"


def spelled(text: str, write: Callable[[str], str]) -> str:
    """The text with `write` of each character that hides, reorders or controls.

    Tab, line feed and carriage return stay.
    """
    if text.isprintable() and not _UNSEEN.search(text):
        return text
    return _DOUBTFUL.sub(lambda one: write(one[0]) if _is_unsafe(one[0]) else one[0], text)


def _is_unsafe(character: str) -> bool:
    unseen = unicodedata.category(character) in _CATEGORIES
    return unseen or _UNSEEN.match(character) is not None


def inert(text: str, limit: int = 500) -> str:
    """The text on one line: control, bidi and invisible characters become U+FFFD, long text is cut.

    Tabs and line breaks become spaces. The result has at most `limit` characters.
    """
    safe = re.sub("[\t\r\n]", " ", spelled(text[: limit + 1], lambda _: "\ufffd"))
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def discreet(text: str) -> str:
    """The text with the query, the fragment and the login of every address left out.

    Addresses that somebody signed carry their secret there. Absolute ones are found, and paths that
    stand alone and have a query of names and values.
    """
    return _ADDRESS.sub(lambda found: _shown(found[0]), text) if "/" in text else text


def _shown(address: str) -> str:
    if address.startswith("/"):
        path, _, query = address.partition("?")
        return f"{path}?{REDACTED}" if "=" in query else address
    place = re.split("[?#]", address, maxsplit=1)[0]
    shown = _LOGIN.sub(f"{REDACTED}@", place)
    rest = address[len(place) :]
    return f"{shown}{rest[0]}{REDACTED}" if len(rest) > 1 else shown + rest


def told(text: str, limit: int = 500) -> str:
    """A provider's own words as they are kept and shown: `inert` and `discreet`."""
    return inert(discreet(text), limit)
