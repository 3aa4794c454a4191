"""MCP at `/mcp`, the web console beside it, and the gate before both."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from forbear.server.app import App, program_version
from forbear.server.console.site import inside
from forbear.server.http.bearer import Bearer, Verify, principal_of
from forbear.server.http.gate import MOST_BODY, Gate, Whole, origins
from forbear.server.http.table import Http, OAuth
from forbear.tools.caller import LOCAL, Caller, CallerOf
from forbear.tools.desk import Desk
from forbear.tools.surface import build as surface

PATH = "/mcp"

MOST_SESSIONS = 1_000
"""Open at once, of clients of the 2025 protocols. An idle one ends after half an hour."""


def speaking(app: App, desk: Desk, http: Http) -> MCPServer[None]:
    """The MCP server of a home as it answers over HTTP, ready to be served."""
    server = surface(
        desk,
        version=program_version(),
        caller_of=callers(app.store.key, http),
        longest_wait=http.wait_seconds,
        # Every process of the home takes the state that another gave a client.
        state_keys=[hmac.digest(app.store.key, b"request state\0", hashlib.sha256)],
    )
    server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=http.stateless,
        max_request_body_size=MOST_BODY,
        max_sessions=MOST_SESSIONS,
        # The gate looks at names and origins, for this route as for all others.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return server


def build(
    app: App,
    server: MCPServer[None],
    http: Http,
    verifiers: Sequence[Verify],
    *,
    port: int,
    url: str,
) -> ASGIApp:
    """Everything that one port serves; `verifiers` know the tokens, if any are asked for."""
    mcp: ASGIApp = Whole(StreamableHTTPASGIApp(server.session_manager), MOST_BODY)
    described: list[BaseRoute] = []
    if http.authenticates:
        metadata = None
        scopes = () if http.oauth is None else http.oauth.scopes
        if http.oauth is not None:
            ours = resource(http, url)
            metadata = _metadata_of(ours)
            described.append(_described(metadata, ours, http.oauth))
        mcp = Bearer(mcp, verifiers, metadata=metadata, scopes=scopes)
    # Clients look there before they ask a person for a token; the console would ask for a sign-in.
    described.append(Route("/.well-known/{name:path}", _not_described))
    routes = [Route(PATH, mcp), *described, Mount("/", inside(app))]
    return Gate(Starlette(routes=routes), origins(port, url))


async def _not_described(request: Request) -> PlainTextResponse:
    del request
    return PlainTextResponse("This server describes nothing there.\n", 404)


def _metadata_of(ours: str) -> str:
    """Where a resource describes itself (RFC 9728, section 3.1)."""
    parts = urlsplit(ours)
    path = "/.well-known/oauth-protected-resource" + parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _described(metadata: str, ours: str, oauth: OAuth) -> Route:
    """The description. The SDK's own adds a slash to an issuer, which is then another's name."""
    told = {
        "resource": ours,
        "authorization_servers": [oauth.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Forbear",
    }
    if oauth.scopes:
        told["scopes_supported"] = list(oauth.scopes)

    async def description(request: Request) -> JSONResponse:
        del request
        return JSONResponse(told)

    return Route(urlsplit(metadata).path, description)


def resource(http: Http, url: str) -> str:
    """The address of `/mcp` as clients know it."""
    stated = None if http.oauth is None else http.oauth.resource
    return stated or f"{url}{PATH}"


def callers(store_key: bytes, http: Http) -> CallerOf:
    """Finds the caller of a request: whom its token stands for, and its client and session.

    A session is one of the 2025 protocols that this process began. Without one, a client is known
    by the name that it gives itself, which is enough to count its waits and for nothing else.
    """

    def named(*parts: str) -> str:
        told = b"client\0" + "\0".join(parts).encode("utf-8", "surrogatepass")
        return f"http_{hmac.digest(store_key, told, hashlib.sha256).hex()[:32]}"

    def caller(context: Context[None, Any] | None) -> Caller:
        if context is None:
            raise RuntimeError("a call over HTTP without a request")
        request = context.request_context.request
        principal = principal_of(request)
        if principal is None:
            if http.authenticates:
                raise RuntimeError("a call that nobody let in")
            principal = LOCAL
        stated = request.headers.get("mcp-session-id") if isinstance(request, Request) else None
        # Only the 2025 protocols have sessions, and only then is the id one that was given out.
        if (
            stated
            and not http.stateless
            and context.protocol_version not in MODERN_PROTOCOL_VERSIONS
        ):
            session = named("session", principal, stated)
            return Caller(principal, session, session)
        known = context.session.client_params
        client = "" if known is None else known.client_info.name
        return Caller(principal, named("client", principal, client), None)

    return caller
