"""Who may use `/mcp`: bearer tokens (RFC 6750), static ones and those of an authorisation server.

A token stands for a principal. What a principal asks for belongs to it, and no other sees it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forbear.server.credentials import Credentials, MissingCredential
from forbear.server.http.table import Token

SHORTEST = 24
"""Characters of a static token: shorter ones could be guessed."""

LONGEST = 8_192
"""Characters of any token that is looked at."""


class BadTokens(ValueError):
    """Static tokens that cannot be used; the message names the place and the fix."""


class Unverifiable(Exception):
    """Whether a token is good cannot be found out now."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a good token stands for."""

    principal: str
    allowed: bool = True
    """Whether it has every scope that is asked for."""


Verify = Callable[[str], Awaitable[Identity | None]]
"""Whom a token stands for, None if it is not good. Raises Unverifiable."""


class StaticTokens:
    """The tokens of `[[http.tokens]]`, of which the process keeps digests under the store's key.

    Raises BadTokens for one that is missing, short or of two principals.
    """

    def __init__(self, tokens: Sequence[Token], credentials: Credentials, store_key: bytes) -> None:
        self._key = store_key
        self._known: dict[bytes, str] = {}
        for token in tokens:
            secret = credentials.secret(token.reference)
            if isinstance(secret, MissingCredential):
                raise BadTokens(f"the token of {token.principal}: {secret}")
            if not SHORTEST <= len(secret) <= LONGEST:
                raise BadTokens(
                    f"the token of {token.principal} ({token.reference}) is shorter than "
                    f"{SHORTEST} characters or longer than {LONGEST}; make one with "
                    "`openssl rand -hex 32`"
                )
            owner = self._known.setdefault(self._digest(secret), token.principal)
            if owner != token.principal:
                raise BadTokens(f"{owner} and {token.principal} have the same token; make another")

    async def verify(self, token: str) -> Identity | None:
        asked, found = self._digest(token), None
        for digest, principal in self._known.items():
            if hmac.compare_digest(digest, asked):  # all are compared, so that none takes longer
                found = Identity(principal)
        return found

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, b"http token\0" + token.encode(), hashlib.sha256)


class Bearer:
    """ASGI middleware before `/mcp`: lets through whom one of `verifiers` knows.

    The identity then stands in the scope as the SDK keeps it, so that a session of the 2025
    protocols answers to nobody but the principal that began it.
    """

    def __init__(
        self,
        app: ASGIApp,
        verifiers: Sequence[Verify],
        *,
        metadata: str | None,
        scopes: Sequence[str],
    ) -> None:
        self._app = AuthContextMiddleware(app)
        self._verifiers = verifiers
        self._metadata = metadata
        self._scopes = " ".join(scopes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._admit(Request(scope))
        await (answer or self._app)(scope, receive, send)

    async def _admit(self, request: Request) -> Response | None:
        """None once the identity stands in the scope, else what to answer."""
        fields = request.headers.getlist("authorization")
        if not fields:
            return self._refused(401, None, "Send a bearer token.")
        scheme, _, token = fields[0].partition(" ")
        token = token.strip()
        wellformed = len(fields) == 1 and scheme.lower() == "bearer" and token.isascii()
        if not wellformed or not 0 < len(token) <= LONGEST:
            return self._refused(401, "invalid_token", "Send one bearer token.")
        try:
            identity = await self._identity(token)
        except Unverifiable:
            told = {"error": "temporarily_unavailable"}
            return JSONResponse(told, 503, {"Retry-After": "5"})
        if identity is None:
            return self._refused(401, "invalid_token", "The token is not good here.")
        if not identity.allowed:
            return self._refused(403, "insufficient_scope", "The token lacks a scope.")
        principal = identity.principal
        known = AccessToken(token="", client_id=principal, scopes=[], subject=principal)
        request.scope["user"] = AuthenticatedUser(known)
        return None

    async def _identity(self, token: str) -> Identity | None:
        for verify in self._verifiers:
            identity = await verify(token)
            if identity is not None:
                return identity
        return None

    def _refused(self, status: int, error: str | None, told: str) -> Response:
        """RFC 6750, section 3: a request without a token gets no error code."""
        terms = {"realm": "forbear"}
        if error is not None:
            terms |= {"error": error, "error_description": told}
        if self._scopes:
            terms["scope"] = self._scopes
        if self._metadata is not None:
            terms["resource_metadata"] = self._metadata
        challenge = ", ".join(f'{name}="{value}"' for name, value in terms.items())
        body = {"error": error or "unauthorized", "error_description": told}
        return JSONResponse(body, status, {"WWW-Authenticate": f"Bearer {challenge}"})


def principal_of(request: object) -> str | None:
    """Whom the bearer check let in; None where there was none."""
    user = request.scope.get("user") if isinstance(request, Request) else None
    return user.access_token.subject if isinstance(user, AuthenticatedUser) else None
