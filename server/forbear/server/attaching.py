"""Where a credential goes onto the final request: fields, query, body. One place, one secret."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote, unquote_plus

from forbear.rules.ports import Outbound
from forbear.rules.requests import with_member
from forbear.server.credentials import Credential


def fields_with(
    fields: Iterable[tuple[bytes, bytes]], credential: Credential
) -> list[tuple[bytes, bytes]]:
    """The header fields with those of the credential, which replace their like."""
    added = credential.headers()
    replaced = {name.lower().encode() for name, _ in added}
    kept = [pair for pair in fields if pair[0].lower() not in replaced]
    return [*kept, *((name.encode(), value.encode()) for name, value in added)]


def target_with(path: bytes, credential: Credential) -> bytes:
    """Path and query with the parameters of the credential, which replace their like."""
    path = _without(path, {name for name, _ in credential.query()})
    for name, value in credential.query():
        joint = b"&" if b"?" in path else b"?"
        path += joint + f"{quote(name, safe='')}={quote(value, safe='')}".encode()
    return path


def _without(path: bytes, names: set[str]) -> bytes:
    if not names or b"?" not in path:
        return path
    address, _, query = path.partition(b"?")
    kept = [
        pair
        for pair in query.split(b"&")
        if unquote_plus(pair.partition(b"=")[0].decode("latin-1")) not in names
    ]
    return address + b"?" + b"&".join(kept) if kept else address


def body_with(request: Outbound, credential: Credential) -> bytes | None:
    """The body with the members of the credential, which replace their like.

    Raises:
        RenderError: the body cannot hold them; the message has no secret.
    """
    for name, value in credential.body():
        request = replace(request, body=with_member(request, name, value))
    return request.body
