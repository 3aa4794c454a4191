"""The three digests that are never mixed, and the provider's key (behaviour.md section 1).

None of them contains a secret: the intent is keyed with the store key, the request is digested
before credentials are added, and the failure is made of the other two kinds of public text.
"""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any

from forbear.rules.ports import Json, Number, Outbound
from forbear.rules.values import MAX_DEPTH, decimal_of, elements, members, number_text


def canonical(value: Json) -> str:
    """JSON in one spelling only: RFC 8785, with numbers as exact shortest decimal text.

    1.0 is 1 and 12345678901234567 stays itself (a double would make it ...568). Raises ValueError
    for what JSON cannot say: NaN, infinities, lone surrogates, other types, nesting over 64.
    """
    text = _canonical(value, 0)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text has half of a surrogate pair") from error
    return text


def _canonical(value: Json, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH}")
    held = members(value)
    if held is not None:
        inside = (f"{_quoted(k)}:{_canonical(held[k], depth + 1)}" for k in _in_order(held))
        return "{" + ",".join(inside) + "}"
    array = elements(value)
    if array is not None:
        return "[" + ",".join(_canonical(one, depth + 1) for one in array) + "]"
    return scalar(value, number_text)


def _in_order(names: Iterable[str]) -> Sequence[str]:
    """RFC 8785 section 3.2.3: by UTF-16 code units."""
    return sorted(names, key=lambda name: str(name).encode("utf-16-be", "surrogatepass"))


def scalar(value: Json, number: Callable[[Decimal], str] = str) -> str:
    """One JSON scalar; `number` writes the numbers. Raises ValueError for what is none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not isinstance(value, Number):
        return _quoted(value)
    exact = decimal_of(value)
    if exact is None:
        raise ValueError(f"{type(value).__name__} is no finite number, text, true, false or null")
    return number(exact)


def _quoted(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError("a member of an object is named by something that is no text")
    # Python's escapes are those of ECMAScript, which RFC 8785 section 3.2.2.2 asks for.
    return json.dumps(str(text), ensure_ascii=False)


# --- digests --------------------------------------------------------------------------------


def intent_digest(
    store_key: bytes,
    provider: str,
    account: str,
    action: str,
    method: str,
    arguments: Mapping[str, Any],
    identity: Sequence[str] | None,
) -> str:
    """What is wanted, as lower-case hex HMAC-SHA256 under the store key.

    `identity` names the arguments that count; None is all. Raises ValueError as `canonical` does.
    """
    counted = {
        name: value for name, value in arguments.items() if identity is None or name in identity
    }
    meant = canonical(["intent/1", provider, account, action, method, counted])
    return hmac.new(store_key, meant.encode(), sha256).hexdigest()


_VOLATILE = frozenset({"date", "traceparent", "tracestate", "baggage", "user-agent"})
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie"})


def request_digest(outbound: Outbound, section: str) -> str:
    """The exact request under its contract section, as lower-case hex SHA-256.

    Header names do not differ by case or order; volatile and credential fields are left out.
    """
    headers = sorted(
        (name.lower(), value)
        for name, value in outbound.headers
        if name.lower() not in _VOLATILE | _SECRET
    )
    body = None if outbound.body is None else sha256(outbound.body).hexdigest()
    exact = canonical(["request/1", outbound.method, outbound.url, headers, body, section])
    return sha256(exact.encode()).hexdigest()


def failure_digest(intent: str, code: str | None) -> str:
    """The same intent failing in the same way, as lower-case hex SHA-256.

    White space and case of the error code do not make another failure.
    """
    normal = " ".join((code or "").casefold().split())
    return sha256(canonical(["failure/1", intent, normal]).encode()).hexdigest()


# --- the provider's key ---------------------------------------------------------------------

MIN_KEY = 16
"""Fewer characters than this would make two keys equal by chance."""


def wire_key(format: str, max_length: int, token: str) -> str:
    """The idempotency key in the provider's format from an unguessable `token`.

    `uuid` gives a version 4 UUID, `text` and `sf-string` the token itself; the quotes of an
    sf-string are put on where it is sent. Raises ValueError if the provider's limit is too short.
    """
    if format == "uuid":
        key = str(uuid.UUID(bytes=sha256(token.encode()).digest()[:16], version=4))
        if max_length < len(key):
            raise ValueError(f'a uuid has {len(key)} characters; write format = "text"')
        return key
    key = token[:max_length]
    if len(key) < MIN_KEY:
        raise ValueError(f"a key needs at least {MIN_KEY} characters")
    return key
