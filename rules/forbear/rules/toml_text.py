"""Values and comments written as TOML 1.0: whatever a text holds, it reads back as that text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from math import isfinite

from forbear.rules.inert import inert, spelled
from forbear.rules.ports import Json, Number
from forbear.rules.values import elements, members

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LARGEST = 2**63


def key(name: str) -> str:
    """A key, bare where that is allowed."""
    return name if _BARE.fullmatch(name) else string(name)


def dotted(names: Iterable[str]) -> str:
    """A path of keys, as in a section's header."""
    return ".".join(map(key, names))


def string(text: str) -> str:
    """A basic string. What hides or reorders text is escaped; a lone surrogate becomes U+FFFD."""
    sound = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
    quoted = "".join(_SHORT.get(one, one) for one in sound)
    return f'"{spelled(quoted, _escape)}"'


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def value(found: Json) -> str:
    """A JSON value on one line. Members and elements that are null are left out.

    Raises ValueError for null itself, and for a whole number that TOML cannot hold.
    """
    if (held := members(found)) is not None:
        pairs = [f"{key(name)} = {value(one)}" for name, one in held.items() if one is not None]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if (array := elements(found)) is not None:
        return "[" + ", ".join(value(one) for one in array if one is not None) + "]"
    match found:
        case bool():
            return "true" if found else "false"
        case Number():
            return _number(Decimal(str(found)))
        case str():
            return string(found)
        case int():
            return _number(Decimal(found))
        case float():
            return _float(found)
        case Decimal():
            return _number(found)
        case _:
            raise ValueError("TOML has no null")


def _number(number: Decimal) -> str:
    if not number.is_finite():
        raise ValueError("JSON has no such number")
    if number != number.to_integral_value():
        return _float(float(number))
    if not -_LARGEST <= number < _LARGEST:
        raise ValueError("the number is too large")
    return str(int(number))


def _float(number: float) -> str:
    if not isfinite(number):
        raise ValueError("JSON has no such number")
    return repr(number)


def comment(text: str, longest: int = 200) -> str:
    """The text behind a `#`, on one line, without what a screen would obey."""
    return f"# {inert(text, longest)}".rstrip()
