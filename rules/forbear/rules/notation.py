"""The small notations inside a contract: pointers, sources, templates, durations, rates.

Every function takes the text as the file has it and returns a value of `forbear.rules.contract`,
or raises `ValueError` with one plain sentence that says what is wrong and what would be right.
"""

from __future__ import annotations

import re

from forbear.rules.contract import (
    Header,
    HttpStatus,
    Placeholder,
    Pointer,
    Select,
    Source,
    Template,
)

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{1,12}(?:ms|s|m|h|d))", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_SELECT = re.compile(r"\[([^=\[\]]+)=(.*)\]", re.DOTALL)
_BAD_ESCAPE = re.compile(r"~(?![01])")
_PLACEHOLDER = re.compile(
    r"(?P<raw>\+?)"
    r"(?P<name>(?:arg|account|take|result)\.[A-Za-z_][A-Za-z0-9_-]*|ref|key|id|submitted_at)"
    r"(?P<offset>[+-][0-9]+(?:ms|s|m|h|d))?"
    r"(?::(?P<format>[a-z0-9_]+(?:\([A-Za-z_][A-Za-z0-9_-]*\))?))?",
    re.ASCII,
)

LONGEST_DURATION = 3_650 * 86_400_000
"""Ten years in milliseconds: longer durations are slips of the pen."""

PLAIN_FORMATS = frozenset({"bytes", "time", "rfc3339", "epoch", "epoch_ms", "date"})
"""Formats after a colon in a placeholder; `minor(argument)` is the one with an argument."""

PLACEHOLDERS = "{arg.x}, {account.x}, {ref}, {key}, {id}, {take.x}, {result.x} and {submitted_at}"


def parse_duration(text: str) -> int:
    """`"250ms"`, `"5s"`, `"40m"`, `"2h"`, `"7d"` in milliseconds; zero is allowed."""
    if found := _DURATION.fullmatch(text):
        duration = int(found[1]) * _MILLISECONDS[found[2]]
        if duration > LONGEST_DURATION:
            raise ValueError(f"{text!r} is absurdly long; stay below ten years")
        return duration
    raise ValueError(
        f'{text!r} is no duration; write a whole number and ms, s, m, h or d, such as "40m"'
    )


def parse_rate(text: str) -> tuple[int, int]:
    """`"60/1m"` as (60, 60000): so many requests per so many milliseconds, both above zero."""
    if found := _RATE.fullmatch(text):
        count, period = int(found[1]), parse_duration(found[2])
        if count and period:
            return count, period
    raise ValueError(f'{text!r} is no rate; write requests per duration, such as "60/1m"')


def parse_pointer(text: str) -> Pointer:
    """RFC 6901, with selections: `/conditions/[type=Ready]/status`.

    `~1` is a slash and `~0` a tilde, inside selections too. `""` is the whole document. Steps of
    digits stay text: whether one is an array index depends on the value it meets (section 4).
    """
    if text and not text.startswith("/"):
        raise ValueError(f'{text!r} is no JSON pointer; it starts with a slash, such as "/state"')
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"{text!r} has a stray ~; write ~0 for a tilde and ~1 for a slash")
    return Pointer(text, tuple(_step(token, text) for token in text.split("/")[1:]))


def _step(token: str, text: str) -> str | Select:
    if not token.startswith("["):
        if token.endswith("]"):
            raise ValueError(
                f"{text!r} joins a selection to a name; give it its own step, "
                'such as "/items/[name=x]"'
            )
        return _unescape(token)
    if found := _SELECT.fullmatch(token):
        return Select(_unescape(found[1]), _unescape(found[2]))
    raise ValueError(
        f'{text!r} has a bad selection {token!r}; write [key=value], such as "/items/[name=x]"'
    )


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def parse_source(text: str) -> Source:
    """Where to read in an answer: `"/json/pointer"`, `"header:Name"` or `"http"`."""
    if text == "http":
        return HttpStatus()
    if text.startswith("header:"):
        name = text.removeprefix("header:")
        if _TOKEN.fullmatch(name) is None:
            raise ValueError(f'{text!r} names no header field; write "header:Name"')
        return Header(name)
    if text.startswith("/"):
        return parse_pointer(text)
    raise ValueError(
        f'{text!r} is no source; write a JSON pointer ("/state"), "header:Name" or "http"'
    )


def parse_template(text: str) -> Template:
    """Text with placeholders.

    A brace that white space follows is plain text, so that a GraphQL document needs no escapes;
    every other opening brace starts a placeholder, so that a misspelt one is never sent as text.
    """
    parts: list[str | Placeholder] = []
    plain = ""
    at = 0
    while at < len(text):
        if text[at] == "{" and not text[at + 1 : at + 2].isspace():
            end = text.find("}", at)
            if end < 0:
                raise ValueError(f"{text!r} opens a brace that nothing closes")
            if plain:
                parts.append(plain)
                plain = ""
            parts.append(_placeholder(text[at + 1 : end]))
            at = end + 1
        else:
            plain += text[at]
            at += 1
    if plain:
        parts.append(plain)
    return Template(text, tuple(parts))


def _placeholder(inside: str) -> Placeholder:
    found = _PLACEHOLDER.fullmatch(inside)
    if found is None:
        raise ValueError(f"{{{inside}}} names nothing; there are {PLACEHOLDERS}")
    name, style, offset = found["name"], found["format"], found["offset"]
    if style is not None and style not in PLAIN_FORMATS and not style.startswith("minor("):
        known = ", ".join(sorted(PLAIN_FORMATS))
        raise ValueError(f"{{{inside}}} has no known format; there are {known} and minor(argument)")
    if offset is not None and name != "submitted_at":
        raise ValueError(f"{{{inside}}} has an offset; only {{submitted_at}} takes one")
    shift = 0
    if offset is not None:
        shift = parse_duration(offset[1:]) * (-1 if offset[0] == "-" else 1)
    return Placeholder(name, bool(found["raw"]), style, shift)
