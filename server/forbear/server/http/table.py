"""`[http]` of `config.toml`: who may use MCP over HTTP, and how long a call waits there.

    [http]            wait_seconds, stateless
    [[http.tokens]]   a principal and the reference of its token
    [http.oauth]      the authorisation server whose access tokens are taken

What is wrong raises ValueError with the place, the mistake and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from forbear.server.egress import read_origin
from forbear.server.tables import Table, tables

MOST_WAIT = 50
"""Seconds: MCP clients give up at 60."""

USUAL_WAIT = 25
"""Seconds: proxies often give up at 30."""

HTTP: Mapping[str, str] = {
    "wait_seconds": f"Longest wait of one call, at most {MOST_WAIT}; default {USUAL_WAIT}.",
    "stateless": "true: no sessions are kept, for several processes behind one address.",
    "tokens": "Bearer tokens and whose they are.",
    "oauth": "The authorisation server whose access tokens are taken.",
}
TOKENS: Mapping[str, str] = {
    "principal": "Whose token it is.",
    "token": "Reference to it: env:, file: or keyring:; 24 characters or more.",
}
OAUTH: Mapping[str, str] = {
    "issuer": "The authorisation server.",
    "jwks": "Address of its keys; or introspection.",
    "introspection": "Address that is asked about each token (RFC 7662); or jwks.",
    "client_id": "Of introspection.",
    "client_secret": "Of introspection: a reference.",
    "resource": "Address of /mcp as clients know it; default: console_url and /mcp.",
    "audience": "What must be in a token, one of several; default: the resource.",
    "scopes": "All of them must be in a token.",
}
"""The keys of each table, with one line about each."""

_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REFERENCE = re.compile(r"(env|file|keyring):.+")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token: whose it is, and where it stands."""

    principal: str
    reference: str


@dataclass(frozen=True, slots=True)
class OAuth:
    """An authorisation server (OAuth 2.1) whose access tokens are taken."""

    issuer: str
    audiences: tuple[str, ...]
    """One of them must be in a token; empty: the resource itself."""
    resource: str | None
    """The address of `/mcp` as clients know it; None: at the public address of the console."""
    jwks: str | None
    introspection: str | None
    """Exactly one of the two is stated."""
    client_id: str | None
    client_secret: str | None
    scopes: tuple[str, ...]
    """All of them must be in a token."""


@dataclass(frozen=True, slots=True)
class Http:
    """How MCP is spoken over HTTP."""

    tokens: tuple[Token, ...] = ()
    oauth: OAuth | None = None
    wait_seconds: int = USUAL_WAIT
    stateless: bool = False
    """Keep no session of clients of the 2025 protocols, so that any process may answer any call."""

    @property
    def authenticates(self) -> bool:
        return bool(self.tokens) or self.oauth is not None


def read_http(section: object) -> Http:
    """The table as it stands in the file."""
    table = Table("http", section)
    table.only(*HTTP)
    wait = table.stated.get("wait_seconds", USUAL_WAIT)
    if isinstance(wait, bool) or not isinstance(wait, int) or not 1 <= wait <= MOST_WAIT:
        raise ValueError(f"http.wait_seconds: {wait!r} is no whole number from 1 to {MOST_WAIT}")
    stateless = table.stated.get("stateless", False)
    if not isinstance(stateless, bool):
        raise ValueError("http.stateless: write true or false")
    tokens = tuple(_token(each) for each in tables("http.tokens", table.stated.get("tokens")))
    oauth = table.stated.get("oauth")
    return Http(tokens, None if oauth is None else _oauth(oauth), wait, stateless)


def _token(table: Table) -> Token:
    table.only(*TOKENS)
    principal, reference = table.must("principal"), table.must("token")
    if not _PRINCIPAL.fullmatch(principal):
        raise ValueError(f"{table.at('principal')}: {principal!r} is no plain name, such as alice")
    return Token(principal, _reference(table, "token", reference))


def _oauth(section: object) -> OAuth:
    table = Table("http.oauth", section)
    table.only(*OAUTH)
    issuer = table.must("issuer")
    _secure(table, "issuer")
    jwks, introspection = _secure(table, "jwks"), _secure(table, "introspection")
    if (jwks is None) == (introspection is None):
        raise ValueError(
            "http.oauth: tokens are checked in one way; write jwks (the issuer's keys) or "
            "introspection (RFC 7662), and not both"
        )
    client, secret = table.text("client_id"), table.text("client_secret")
    if introspection is None and (client or secret):
        raise ValueError("http.oauth: client_id and client_secret belong to introspection")
    if introspection is not None and not (client and secret):
        raise ValueError("http.oauth: introspection needs client_id and client_secret")
    if secret is not None:
        _reference(table, "client_secret", secret)
    resource = _secure(table, "resource")
    return OAuth(
        issuer,
        _words(table, "audience"),
        resource,
        jwks,
        introspection,
        client,
        secret,
        _words(table, "scopes"),
    )


def _reference(table: Table, name: str, stated: str) -> str:
    if not _REFERENCE.fullmatch(stated):
        raise ValueError(
            f"{table.at(name)}: write env:NAME, file:/path or keyring:service/user, never the "
            "secret itself"
        )
    return stated


def _secure(table: Table, name: str) -> str | None:
    """An https address, or plain http on this machine."""
    address = table.text(name)
    if address is None:
        return None
    origin = read_origin(address)
    if isinstance(origin, str):
        raise ValueError(f"{table.at(name)}: the address {origin}")
    if origin.scheme != "https" and not origin.loopback:
        raise ValueError(f"{table.at(name)}: plain http is for this machine alone; write https://…")
    return address


def _words(table: Table, name: str) -> tuple[str, ...]:
    """One text or a list of texts."""
    stated = table.stated.get(name, [])
    values = [stated] if isinstance(stated, str) else stated
    if not isinstance(values, list):
        raise ValueError(f"{table.at(name)} must be a text or a list of texts")
    words: list[str] = []
    for value in cast(list[object], values):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{table.at(name)}: {value!r} is no text")
        words.append(value)
    return tuple(words)
