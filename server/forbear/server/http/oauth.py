"""Access tokens of an authorisation server: this server is the resource (OAuth 2.1, RFC 9728).

A token is good if the issuer made it (its signature by the issuer's keys, RFC 9068, or its own word
for it, RFC 7662), made it for us, and it is not over. A token that must be bound to its sender
(`cnf`) is refused, since nothing here could check that.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import quote_plus, urlencode

import jwt

from forbear.rules.ports import Clock, Outbound, Reply
from forbear.server.http.bearer import Identity, Unverifiable
from forbear.server.http.table import OAuth

Fetch = Callable[[Outbound], Awaitable[Reply]]
"""Sends one request to an address of the operator's own."""

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures that a public key checks. `none` and shared secrets are not among them."""

KINDS: Final = ("", "jwt", "at+jwt", "application/at+jwt")
"""The `typ` of an access token; another kind of token of the same issuer is none."""

LEEWAY: Final = 30_000
"""How far the issuer's clock may be from ours, ms."""

KEYS_LAST: Final = 3_600_000
"""How long keys are used before they are fetched anew, ms."""

NEW_KEY: Final = 30_000
"""How often an unknown key may make us fetch, ms: anybody can name one."""

WORD_LASTS: Final = 60_000
"""How long the issuer's word for a token is kept, ms: a token that it withdraws ends then."""

REMEMBERED: Final = 1_024
"""Tokens whose word is kept; the oldest are forgotten first."""

TIMEOUT: Final = 5_000
"""Total time of one request to the issuer, ms."""

Claims = Mapping[str, Any]

_log = logging.getLogger(__name__)


class Issuer:
    """One authorisation server, and which of its tokens are good here."""

    def __init__(
        self,
        terms: OAuth,
        resource: str,
        fetch: Fetch,
        clock: Clock,
        *,
        secret: str | None,
        store_key: bytes,
    ) -> None:
        self._terms = terms
        self._audiences = frozenset(terms.audiences or (resource, resource.removesuffix("/")))
        self._clock = clock
        keys, word = terms.jwks, terms.introspection
        self._claims: Callable[[str], Awaitable[Claims | None]]
        if keys is not None:
            self._claims = _Keys(keys, fetch, clock).claims
        else:
            assert word is not None
            asking = (word, terms.client_id or "", secret or "")
            self._claims = _Word(*asking, fetch, clock, store_key).claims

    async def verify(self, token: str) -> Identity | None:
        """Whom a token stands for: its subject at this issuer.

        Raises:
            Unverifiable: the issuer does not answer.
        """
        claims = await self._claims(token)
        if claims is None or not self._good(claims):
            return None
        scopes = claims.get("scope", claims.get("scp", ()))
        granted = scopes.split() if isinstance(scopes, str) else scopes
        allowed = isinstance(granted, list | tuple) and set(self._terms.scopes) <= set(
            map(str, cast(list[object], granted))
        )
        return Identity(f"{claims['sub']}@{self._terms.issuer}", allowed)

    def _good(self, claims: Claims) -> bool:
        now, subject, audience = self._clock.now().wall, claims.get("sub"), claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        ends, begins = claims.get("exp"), claims.get("nbf", 0)
        return (
            # Whom a token is asked of may leave out that it is its own (RFC 7662, section 2.2).
            claims.get("iss", self._terms.issuer) == self._terms.issuer
            and isinstance(subject, str)
            and 0 < len(subject) <= 255
            and isinstance(audiences, list)
            and any(each in self._audiences for each in cast(list[object], audiences))
            and isinstance(ends, int | float)
            and now - LEEWAY < ends * 1_000
            and isinstance(begins, int | float)
            and begins * 1_000 <= now + LEEWAY
            and "cnf" not in claims
        )


class _Keys:
    """Tokens that are signed, checked with the keys that the issuer publishes (RFC 7517)."""

    def __init__(self, address: str, fetch: Fetch, clock: Clock) -> None:
        self._address = address
        self._fetch = fetch
        self._clock = clock
        self._fetching = asyncio.Lock()
        self._known: list[jwt.PyJWK] = []
        self._tried_at: int | None = None
        """On the boot clock, which nobody sets back."""

    async def claims(self, token: str) -> Claims | None:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None
        kind, name = header.get("typ", ""), header.get("kid")
        if header.get("alg") not in ALGORITHMS or str(kind).lower() not in KINDS:
            return None
        for key in await self._keys(name):
            try:
                # Times, issuer and audience are checked with all other claims.
                return jwt.decode(
                    token,
                    key,
                    algorithms=list(ALGORITHMS),
                    options={
                        "require": ["exp", "iss", "aud", "sub"],
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                        "verify_aud": False,
                        "verify_iss": False,
                    },
                )
            except jwt.PyJWTError:
                continue
        return None

    async def _keys(self, name: object) -> list[jwt.PyJWK]:
        """The keys that may have signed a token that names `name`."""
        async with self._fetching:
            since = KEYS_LAST
            if self._tried_at is not None:
                since = self._clock.now().boot - self._tried_at
            unknown = name is not None and all(key.key_id != name for key in self._known)
            if since >= KEYS_LAST or (since >= NEW_KEY and (unknown or not self._known)):
                await self._refresh()
        if not self._known:
            raise Unverifiable
        return [key for key in self._known if name is None or key.key_id in (name, None)]

    async def _refresh(self) -> None:
        """Fetch the keys; what was known stays if that fails."""
        self._tried_at = self._clock.now().boot
        request = Outbound("GET", self._address, (), None, False, timeout=TIMEOUT)
        reply = await self._fetch(request)
        told = _json(reply)
        try:
            known = jwt.PyJWKSet.from_dict(dict(told or {})).keys
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError):
            _log.warning("the keys of %s: %s", self._address, reply.detail or "no key set")
            return
        self._known = [key for key in known if key.public_key_use in (None, "sig")]


class _Word:
    """Tokens about which the issuer is asked (RFC 7662)."""

    def __init__(
        self, address: str, client: str, secret: str, fetch: Fetch, clock: Clock, store_key: bytes
    ) -> None:
        self._address = address
        # RFC 6749, section 2.3.1: both are form-encoded before they are joined.
        pair = f"{quote_plus(client)}:{quote_plus(secret)}".encode()
        self._client = f"Basic {base64.b64encode(pair).decode('ascii')}"
        self._fetch = fetch
        self._clock = clock
        self._key = store_key
        self._heard: dict[bytes, tuple[int, Claims]] = {}

    async def claims(self, token: str) -> Claims | None:
        name = hmac.digest(self._key, b"introspected\0" + token.encode(), hashlib.sha256)
        now = self._clock.now().boot
        heard = self._heard.get(name)
        if heard is not None and now - heard[0] < WORD_LASTS:
            return heard[1]
        fields = (
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Accept", "application/json"),
            ("Authorization", self._client),
        )
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode("ascii")
        request = Outbound("POST", self._address, fields, body, False, timeout=TIMEOUT)
        reply = await self._fetch(request)
        told = _json(reply)
        if told is None:
            _log.warning("%s: %s", self._address, reply.detail or f"said {reply.status}")
            raise Unverifiable
        self._heard.pop(name, None)
        if told.get("active") is not True:
            return None
        self._heard[name] = (now, told)
        if len(self._heard) > REMEMBERED:
            del self._heard[next(iter(self._heard))]
        return told


def _json(reply: Reply) -> Claims | None:
    """The JSON object of a whole answer 200, else None."""
    if not reply.complete or reply.status != 200:
        return None
    try:
        told: object = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], told) if isinstance(told, dict) else None
