"""Text that others wrote, made safe to stand inside an answer.

Provider answers, and labels made from arguments, reach the agent as data: bounded where they stand
in a sentence, and with no character that hides, reorders or controls the text around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls, except tab, line feed, carriage return
    "\u200b\u2028\u2029\u2060\ufeff"  # invisible spaces and separators
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks and overrides
    "\ud800-\udfff"  # lone surrogates, which no encoder takes
    "\U000e0000-\U000e0fff"  # tags and selectors: text that only a model reads
    "]"
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,39}")


def inert(text: str) -> str:
    """The same text with each unsafe character written out, `\\u001b` for an escape."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def inert_tree(value: Any) -> Any:
    """A JSON value whose strings and keys are `inert`."""
    match value:
        case str():
            return inert(value)
        case Mapping():
            return {inert(str(key)): inert_tree(member) for key, member in value.items()}
        case list() | tuple():
            return [inert_tree(member) for member in value]
        case _:
            return value


def clip(text: str, size: int) -> str:
    """One line of at most `size` characters, with an ellipsis where something was cut."""
    line = " ".join(inert(text).split())
    return line if len(line) <= size else line[: size - 1].rstrip() + "…"


def word(text: str | None) -> str | None:
    """The text if it is one plain token of at most 40 characters, else None.

    Only such tokens of a provider may stand in a sentence that tells an agent what to do: a longer
    text could read as an instruction.
    """
    return text if text is not None and _WORD.fullmatch(text) else None
