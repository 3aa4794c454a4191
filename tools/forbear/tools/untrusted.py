"""Text that others wrote, made safe to stand inside an answer.

Provider answers, and labels made from arguments, reach the agent as data: bounded where they stand
in a sentence, and with no character that hides, reorders or controls the text around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from forbear.rules.inert import discreet, spelled

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,39}")


def inert(text: str) -> str:
    """The same text with each unsafe character written out, `\\u001b` for an escape."""
    return spelled(text, lambda character: f"\\u{ord(character):04x}")


def inert_tree(value: Any) -> Any:
    """A JSON value whose strings and keys are `inert`."""
    return _mapped(inert, value)


def _mapped(safe: Callable[[str], str], value: Any) -> Any:
    match value:
        case str():
            return safe(value)
        case Mapping():
            return {safe(str(key)): _mapped(safe, member) for key, member in value.items()}
        case list() | tuple():
            return [_mapped(safe, member) for member in value]
        case _:
            return value


def told(text: str) -> str:
    """A provider's own text: `inert`, and `discreet` about addresses."""
    return inert(discreet(text))


def told_tree(value: Any) -> Any:
    """A JSON value out of a provider's answer whose strings and keys are `told`."""
    return _mapped(told, value)


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
