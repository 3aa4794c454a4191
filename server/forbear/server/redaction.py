"""The one place where secrets are taken out of what a provider sends.

A reply passes here before anything else reads it, so no record, result, page, message or log line
made from it can hold a secret that this process knows.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from forbear.rules.ports import Reply

REDACTED = "[redacted]"

SHORTEST = 8
"""Characters below which a secret is not looked for: it would be found everywhere."""

MOST = 16
"""Secrets of one provider that are remembered; the oldest is forgotten."""

_HEAD = 16
"""Characters of a secret that are searched for by one expression. An expression for all of a long
token takes seconds to make, in which nothing else would run."""

_AGAIN = 15
"""How often the sign of an escape may come again. Without an end to it, an answer of nothing but
that sign would be searched for hours."""

_GROWS = {"&": b"amp;", "%": b"25", "\\": b"\\"}
"""What escaping once more puts behind a sign of an escape."""

_NAMED = {'"': b"quot", "'": b"apos", "&": b"amp", "<": b"lt", ">": b"gt"}


class Redaction:
    """The secrets of one provider, also those that were rotated away while this process ran."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Form, ...]] = {}

    def learn(self, secrets: Iterable[str]) -> None:
        """Look for these from now on; those shorter than `SHORTEST` are left out."""
        for secret in secrets:
            if len(secret) >= SHORTEST:
                known = self._known.pop(secret, None)  # what is in use is never the oldest
                self._known[secret] = known or tuple(_forms(secret))
        for oldest in list(self._known)[:-MOST]:
            del self._known[oldest]

    def hidden(self, reply: Reply) -> Reply:
        """The reply without a known secret in its fields, its body and the word on what failed."""
        if not self._known:
            return reply
        fields = tuple((self._text(name), self._text(value)) for name, value in reply.headers)
        detail = self.hidden_in(reply.detail.encode()).decode()
        return replace(reply, headers=fields, body=self.hidden_in(reply.body), detail=detail)

    def hidden_in(self, data: bytes) -> bytes:
        """The bytes without a known secret.

        Found are the value as it is, percent-encoded, with the escapes of JSON and HTML, each also
        in part or twice over, in hexadecimal, and in both alphabets of Base64 at any offset, of
        which an edge of at most four bits may stay.
        """
        found = (form.places(data) for forms in self._known.values() for form in forms)
        kept, end = list[bytes](), 0
        # All are found before any is taken out: a secret may be a part of another.
        for start, stop in sorted(place for places in found for place in places):
            if start >= end:
                kept += (data[end:start], REDACTED.encode())
            end = max(end, stop)
        return b"".join((*kept, data[end:]))

    def _text(self, field: str) -> str:
        return self.hidden_in(field.encode("latin-1")).decode("latin-1")


_Ways = tuple[bytes, ...]
"""Expressions for the ways to write one character, each with at most one end at a place."""


class _Form:
    """One way to write a secret: how each of its characters may look."""

    def __init__(self, text: Sequence[_Ways], head: bytes) -> None:
        self._head = re.compile(head)
        self._text = tuple(_compiled(ways) for ways in text)

    def places(self, data: bytes) -> Iterator[tuple[int, int]]:
        """From where to where it stands, in order and none over another."""
        at = 0
        while head := self._head.search(data, at):
            end = self._end(data, head.start())
            if end is not None:
                yield head.start(), end
            at = end or head.start() + 1

    def _end(self, data: bytes, start: int) -> int | None:
        ends = {start}
        for ways in self._text:
            matches = (way.match(data, at) for at in ends for way in ways)
            ends = {match.end() for match in matches if match}
            if not ends:
                return None
        return max(ends)


@cache
def _compiled(ways: _Ways) -> tuple[re.Pattern[bytes], ...]:
    return tuple(re.compile(way) for way in ways)


def _forms(secret: str) -> Iterator[_Form]:
    value = secret.encode()
    digits = [_digits(bytes([byte])) for byte in value]
    yield _Form([(pair,) for pair in digits], b"".join(digits[:_HEAD]))
    for text in (secret, *_base64(value)):
        yield _Form([_ways(character) for character in text], _head(text[:_HEAD]))


def _head(text: str) -> bytes:
    """What finds at least every place where `text` begins.

    How backslashes share out among each other does not matter here, and would take too long.
    """
    others = b"|".join(way for way in _ways("\\") if not way.startswith(rb"\\"))
    backslash = rb"(?:\\|u005[cC]|%b)" % others
    return b"".join(
        rb"%b{1,%d}" % (backslash, (_AGAIN + 1) * len(piece))
        if piece[0] == "\\"
        else b"(?:%b)" % b"|".join(_ways(piece))
        for piece in re.findall(r"\\+|[^\\]", text)
    )


@cache
def _ways(character: str) -> _Ways:
    return tuple(_spellings(character))


def _spellings(character: str) -> Iterator[bytes]:
    # Each begins with a literal byte: then the search skips what cannot be a beginning.
    raw, code = character.encode(), ord(character)
    escape = rb"\\\\{0,%d}" % (_AGAIN - 1)
    yield re.escape(raw)
    for times in range(1, _AGAIN + 1) if character in _GROWS else ():
        yield re.escape(raw + _GROWS[character] * times)
    yield b"".join(b"%%(?:25){0,%d}%b" % (_AGAIN, _digits(bytes([byte]))) for byte in raw)
    units = character.encode("utf-16-be")
    pairs = (units[at : at + 2] for at in range(0, len(units), 2))
    yield b"".join(b"%bu%b" % (escape, _digits(pair)) for pair in pairs)
    hexadecimal = _digits(f"{code:x}".encode(), encoded=True)
    entity = b"&(?:amp;){0,%d}" % _AGAIN
    zeros = b"0{0,%d}" % _AGAIN
    yield b"%b#(?:%b%d|[xX]%b%b);?" % (entity, zeros, code, zeros, hexadecimal)
    if character in _NAMED:
        yield b"%b%b;" % (entity, _NAMED[character])
    if character in '"/':
        yield b"%b%b" % (escape, re.escape(raw))
    if character == " ":
        yield rb"\+"


def _digits(value: bytes, *, encoded: bool = False) -> bytes:
    """Hexadecimal digits in either case."""
    digits = value.decode() if encoded else value.hex()
    return "".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in digits).encode()


def _base64(value: bytes) -> set[str]:
    """The digits that are the same whatever stands before and behind the value."""
    cores: set[str] = set()
    for shift in range(3):
        digits = base64.b64encode(bytes(shift) + value).decode()
        core = digits[-(-8 * shift // 6) : 8 * (shift + len(value)) // 6]
        cores |= {core, core.translate(str.maketrans("+/", "-_"))}
    return cores
