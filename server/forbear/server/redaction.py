"""The one place where secrets are taken out of what a provider sends.

A reply passes here before anything else reads it, so no record, result, page, message or log line
made from it can hold a secret that this process knows.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from forbear.rules.ports import Reply

REDACTED = "[redacted]"

SHORTEST = 8
"""Characters below which a secret is not looked for: it would be found everywhere."""

MOST = 16
"""Secrets of one provider that are remembered; the oldest is forgotten."""

_NAMED = {'"': b"quot", "'": b"apos", "&": b"amp", "<": b"lt", ">": b"gt"}


class Redaction:
    """The secrets of one provider, also those that were rotated away while this process ran."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[re.Pattern[bytes], ...]] = {}

    def learn(self, secrets: Iterable[str]) -> None:
        """Look for these from now on; those shorter than `SHORTEST` are left out."""
        for secret in secrets:
            if len(secret) >= SHORTEST:
                known = self._known.pop(secret, None)  # what is in use is never the oldest
                self._known[secret] = known or tuple(re.compile(form) for form in _forms(secret))
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
        for patterns in self._known.values():
            for pattern in patterns:
                data = pattern.sub(REDACTED.encode(), data)
        return data

    def _text(self, field: str) -> str:
        return self.hidden_in(field.encode("latin-1")).decode("latin-1")


def _forms(secret: str) -> Iterator[bytes]:
    value = secret.encode()
    yield _spelled(secret)
    yield _digits(value)
    for core in _base64(value):
        yield _spelled(core)


def _spelled(text: str) -> bytes:
    return b"".join(b"(?:%b)" % b"|".join(_spellings(character)) for character in text)


def _spellings(character: str) -> Iterator[bytes]:
    # Each begins with a literal byte: then the search skips what cannot be a beginning.
    raw, code = character.encode(), ord(character)
    yield re.escape(raw)
    yield b"".join(b"%%(?:25)*%b" % _digits(bytes([byte])) for byte in raw)
    units = character.encode("utf-16-be")
    pairs = (units[at : at + 2] for at in range(0, len(units), 2))
    yield b"".join(rb"\\\\*u%b" % _digits(pair) for pair in pairs)
    hexadecimal = _digits(f"{code:x}".encode(), encoded=True)
    yield b"&(?:amp;)*#(?:0*%d|[xX]0*%b);?" % (code, hexadecimal)
    if character in _NAMED:
        yield b"&(?:amp;)*%b;" % _NAMED[character]
    if character in '"/\\':
        yield rb"\\\\*%b" % re.escape(raw)
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
