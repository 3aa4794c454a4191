"""A text that a regular expression takes, for the simple expressions that schemas have."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|\(\?[:=!]|\(|\)|\||[*+?]|\{\d*,?\d*\}|.", re.DOTALL
)
_CLASSES = {"\\d": "0", "\\w": "a", "\\s": " ", "\\D": "a", "\\W": "-", "\\S": "a", ".": "a"}
LONGEST = 200


def example(pattern: str) -> str | None:
    """A text made from the first way through a pattern; None if it is not one of the simple ones.

    Whether the pattern takes it is for the caller to see: look-arounds and back references are not
    understood.
    """
    tokens = list(_TOKEN.findall(pattern))
    tokens.reverse()
    try:
        made = "".join(_branch(tokens))
    except (ValueError, IndexError):
        return None
    return made if len(made) <= LONGEST else None


def _branch(tokens: list[str]) -> Iterator[str]:
    """The first alternative up to the end of the group; the others are passed over."""
    while tokens and tokens[-1] != ")":
        token = tokens.pop()
        if token == "|":
            for _ in _branch(tokens):
                pass
            return
        if token in ("^", "$"):
            continue
        if token in ("(", "(?:"):
            text = "".join(_branch(tokens))
            tokens.pop()
        else:
            text = _one(token)
        yield text * _times(tokens)


def _one(token: str) -> str:
    if token.startswith("(?"):
        raise ValueError("a look-around")
    if token in _CLASSES:
        return _CLASSES[token]
    if not token.startswith("[") or token == "[":
        return token.removeprefix("\\")
    if token.startswith("[^"):
        return next(one for one in "ax0- _" if re.fullmatch(token, one))
    return next(one for one in "ax0A-_. " + token[1:-1] if re.fullmatch(token, one))


def _times(tokens: list[str]) -> int:
    """The fewest repetitions of what comes before."""
    if not tokens:
        return 1
    match tokens[-1]:
        case "*" | "?":
            times = 0
        case "+":
            times = 1
        case repeated if re.fullmatch(r"\{\d*,?\d*\}", repeated):
            times = int(repeated[1:-1].partition(",")[0] or 0)
        case _:
            return 1
    tokens.pop()
    if tokens and tokens[-1] == "?":
        tokens.pop()
    return times
