"""The words of format 1 for requests: templates, bodies, headers, approvals, secrets, addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import ip_address
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from forbear.rules.contract import Approval, Template, Tree
from forbear.rules.contract_kinds import (
    Fault,
    Kind,
    Place,
    choice,
    is_list,
    is_table,
    nearest,
    pairs,
    several,
    text_of,
)
from forbear.rules.contract_terms import (
    DURATION,
    NAME,
    NAMED,
    SCALAR_SCHEMA,
    check_text,
    closed,
    exact,
)
from forbear.rules.notation import parse_pointer, parse_source, parse_template
from forbear.rules.values import decimal_of

_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?", re.ASCII)
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:\S+|keyring:\S+/\S+|exec:", re.ASCII)

SECRET_FIELDS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "apikey",
        "api_key",
        "x-auth-token",
        "x-access-token",
        "access_token",
        "private-token",
        "client_secret",
        "x-shopify-access-token",
    }
)
"""Header fields and parameters that carry credentials; their place is [auth]."""

TEMPLATE = text_of(parse_template, Template("", ()))
LABEL = text_of(lambda raw: parse_template(check_text(raw)), Template("", ()), {"minLength": 1})
"""A template that a person reads, so it cannot be empty."""


def _field(raw: object, place: Place) -> Template:
    return parse_template(raw) if isinstance(raw, str) else Template(exact(raw), (exact(raw),))


_FIELD: Kind[Template] = Kind(_field, Template("", ()), SCALAR_SCHEMA)


def field_name(raw: str) -> str:
    """A header field name that may stand in a contract beside [auth]."""
    if _FIELD_NAME.fullmatch(raw) is None:
        raise Fault(f"{raw!r} is no header field name", 'write it as in "X-Version"')
    return _without_secret(raw)


def _without_secret(raw: str) -> str:
    if raw.lower() in SECRET_FIELDS:
        raise Fault(
            f"{raw!r} would hold a literal secret",
            'leave it out and write [auth] with secret = "env:NAME"',
        )
    return raw


def _plain_header(raw: str) -> str:
    if raw.split(" ")[0].lower() in {"bearer", "basic", "token"} and " " in raw:
        raise Fault("is a literal secret", 'leave it out and write [auth] with secret = "env:NAME"')
    if "{" in raw or not raw.isprintable():
        raise Fault(
            "is no fixed text", "put headers with placeholders into the request that needs them"
        )
    return raw


PLAIN_HEADERS = pairs(field_name, text_of(_plain_header, ""))
HEADERS = pairs(field_name, _FIELD)
FIELDS = pairs(str, _FIELD)
QUERY = pairs(_without_secret, _FIELD)
ECHO = pairs(parse_source, TEMPLATE)
MERGE = pairs(parse_pointer, _FIELD)


def _tree(raw: object, place: Place) -> Tree:
    if is_table(raw):
        return {key: place.at(key).read(BODY, value) for key, value in raw.items()}
    if is_list(raw):
        return [place.at(index).read(BODY, item) for index, item in enumerate(raw)]
    if isinstance(raw, str):
        return parse_template(raw)
    if raw is None or isinstance(raw, bool | int) or decimal_of(raw) is not None:
        return raw
    raise Fault("is nothing that JSON has", "put dates and times into quotes")


BODY: Kind[Tree] = Kind(_tree, None, {})


def _body_json(raw: object, place: Place) -> Tree:
    if not isinstance(raw, str):
        raise Fault("is no text", "write body_json = '''{ … }'''")
    try:
        parsed: object = json.loads(
            raw, parse_float=Decimal, parse_constant=_no_json, object_pairs_hook=_once
        )
    except json.JSONDecodeError as error:
        raise Fault(
            f"is no JSON: {error.msg} in its line {error.lineno}", "mend it, or use body = { … }"
        ) from None
    except RecursionError:
        raise Fault("is nested too deeply", "make it flatter") from None
    return _tree(parsed, place)


def _no_json(constant: str) -> object:
    raise Fault(f"has {constant}, which JSON does not have", "use a number or null")


def _once(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) < len(members):
        raise Fault("names a member twice in one object", "keep one of the two")
    return found


BODY_JSON: Kind[Tree] = Kind(_body_json, None, {"type": "string"})

METHOD = choice("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def _path(raw: str) -> Template:
    if not raw.startswith("/"):
        raise Fault(
            "does not start with a slash", 'write a path under base_url, or url = "https://…"'
        )
    if "?" in raw or "#" in raw:
        raise Fault("has a ? or # in it", "put parameters into query = { … }")
    return parse_template(raw)


def _url(raw: str) -> Template:
    found = parse_template(raw)
    if isinstance(found.parts[0] if found.parts else "", str):
        check_address(raw)
    return found


PATH = text_of(_path, Template("/", ("/",)), {"pattern": "^/"})
URL = text_of(_url, Template("", ()))


def _approval(raw: object, place: Place) -> Approval:
    if not is_table(raw):
        return Approval(_APPROVAL_MODE.read(raw, place))
    closed(raw, ("mode", "free"), place)
    mode = place.at("mode").read(_APPROVAL_MODE, raw.get("mode"))
    if "free" not in raw:
        return Approval(mode)
    free = place.at("free").attempt(_FREE, raw["free"])
    return Approval(mode, free[0] if free is not None else None)


def _free(raw: object, place: Place) -> Mapping[str, Any]:
    if not is_table(raw) or "arg" not in raw or "max" not in raw:
        raise Fault("is no bound", 'write { arg = "amount", max = 5000, sum = 20000, per = "1d" }')
    closed(raw, ("arg", "max", "sum", "per"), place)
    if ("sum" in raw) != ("per" in raw):
        raise Fault("has only one of sum and per", 'write both, such as sum = 20000, per = "1d"')
    found: dict[str, Any] = {"arg": place.at("arg").read(NAMED, raw["arg"])}
    for key in ("max", "sum"):
        if key in raw:
            found[key] = place.at(key).read(_QUANTITY, raw[key])
    if "per" in raw:
        found["per"] = place.at("per").read(DURATION, raw["per"])
    return found


def _quantity(raw: object, place: Place) -> Decimal:
    amount = decimal_of(raw)
    if amount is None or not 0 <= amount < 10**18:
        raise Fault("is no amount", "write a number such as 5000")
    return amount


_APPROVAL_MODE = choice("none", "session", "per_call")
_QUANTITY: Kind[Decimal] = Kind(_quantity, Decimal(0), {"type": "number", "minimum": 0})
_FREE: Kind[Mapping[str, Any]] = Kind(
    _free,
    {"arg": "x", "max": Decimal(0)},
    {
        "type": "object",
        "required": ["arg", "max"],
        "additionalProperties": False,
        "properties": {
            "arg": NAMED.schema,
            "max": _QUANTITY.schema,
            "sum": _QUANTITY.schema,
            "per": DURATION.schema,
        },
    },
)
APPROVAL: Kind[Approval] = Kind(
    _approval,
    Approval(),
    {
        "anyOf": [
            _APPROVAL_MODE.schema,
            {
                "type": "object",
                "required": ["mode"],
                "additionalProperties": False,
                "properties": {"mode": _APPROVAL_MODE.schema, "free": _FREE.schema},
            },
        ]
    },
)


def _key_place(raw: str) -> tuple[str, str]:
    place, colon, name = raw.partition(":")
    if not colon or place not in ("header", "body", "query", "path"):
        raise Fault(
            "is no place for a key",
            'write "header:Idempotency-Key", "body:field", "query:name" or "path:"',
        )
    if place == "header":
        field_name(name)
    if not name and place != "path":
        raise Fault("names no field", f'write "{place}:name"')
    return place, name


KEY_PLACE = text_of(
    _key_place, ("header", "Idempotency-Key"), {"pattern": "^(header|body|query|path):"}
)

# --- credentials and addresses --------------------------------------------------------------


def check_reference(raw: str) -> str:
    """A reference to a secret. The complaint never repeats the text: it may be the secret."""
    if _REFERENCE.fullmatch(raw) is not None:
        return raw
    if raw.startswith("exec:"):
        raise Fault(
            "gives a command as text",
            'write secret = "exec:" and exec = ["program", "argument"], one word each',
        )
    if raw.startswith("keyring:"):
        raise Fault("names no entry of a keyring", 'write "keyring:service/user", without spaces')
    raise Fault(
        "is a literal secret",
        'write a reference: "env:NAME", "file:/path", "keyring:service/user" or "exec:"',
    )


REFERENCE = text_of(
    check_reference, "env:X", {"pattern": "^(env:[A-Za-z_]|file:.|keyring:.+/.|exec:$)"}
)


def _input(raw: object, place: Place) -> Mapping[str, Any]:
    if not is_table(raw):
        raise Fault("is no table", "write the JSON Schema of the arguments as a table")
    if raw.get("type") != "object":
        place.at("type").complain('is not "object"', 'write type = "object"')
    properties = raw.get("properties", {})
    if not is_table(properties):
        raise Fault("has properties that are no table", 'write properties.x = { type = "string" }')
    for name in properties:
        if NAME.fullmatch(name) is None:
            place.at("properties", name).complain(
                "is no name that {arg.…} can take", "use letters, digits, - and _"
            )
    required = raw.get("required", [])
    if not is_list(required):
        raise Fault("has required that is no list", 'write required = ["x"]')
    for index, needed in enumerate(required):
        if not isinstance(needed, str) or needed not in properties:
            place.at("required", index).complain(
                f"{needed!r} is not among the properties", nearest(str(needed), properties)
            )
    schema: dict[str, object] = {"additionalProperties": False, "properties": {}, **raw}
    return {key: _plain_json(value, place.at(key)) for key, value in schema.items()}


def _plain_json(raw: object, place: Place) -> Any:
    if is_table(raw):
        reference = raw.get("$ref", "#")
        if not isinstance(reference, str) or not reference.startswith("#"):
            place.at("$ref").complain("refers to another document", "write the part here")
        return {key: _plain_json(value, place.at(key)) for key, value in raw.items()}
    if is_list(raw):
        return [_plain_json(item, place.at(index)) for index, item in enumerate(raw)]
    if isinstance(raw, Decimal) and isfinite(number := float(raw)):
        return number
    if isinstance(raw, str | bool | int):
        return raw
    place.complain("is nothing that JSON has", "put dates and times into quotes")
    return None


INPUT: Kind[Mapping[str, Any]] = Kind(
    _input,
    {"type": "object", "properties": {}},
    {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"const": "object"}, "properties": {"type": "object"}},
    },
)


def _host(raw: str) -> str:
    if _HOST.fullmatch(raw.lower()) is None or not _port_of(raw):
        raise Fault(
            f"{raw!r} is no host", 'write "host", "host:port" or "*.host", without scheme or path'
        )
    if raw.startswith("*.") and "." not in raw[2:]:
        raise Fault(f"{raw!r} allows too much", "name at least two labels behind the asterisk")
    return raw.lower()


def _port_of(raw: str) -> bool:
    _, colon, port = raw.partition(":")
    return not colon or 0 < int(port) < 65_536


HOST = text_of(_host, "host.example")
HOSTS = several(HOST)


def is_loopback(host: str) -> bool:
    """`localhost`, 127.0.0.0/8 or ::1: where plain http is allowed, for development."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _names_a_host(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    plain = all(re.fullmatch(_LABEL, one.replace("_", "x"), re.ASCII) for one in labels)
    return (plain and len(host) <= 253) or ":" in host  # urlsplit has read what has a colon


def check_address(raw: str) -> str:
    """An absolute https address. The complaint never repeats it: it may hold a password."""
    plain = raw.split("{")[0]
    try:
        parts = urlsplit(plain)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Fault("is no address", 'write "https://host/path"') from None
    if "@" in plain.split("://")[-1].split("/")[0]:
        raise Fault("has a user or password in it", "take it out and write [auth] with references")
    if not host or parts.scheme not in ("https", "http"):
        raise Fault("is no https address", 'write "https://host/path"')
    if plain == raw and not _names_a_host(host):
        raise Fault("names no host that there can be", 'write "https://host/path"')
    if parts.scheme == "http" and not is_loopback(host):
        raise Fault("is plain http", "write https; http is for localhost, 127.0.0.1 and [::1] only")
    return raw


_OF_ACCOUNT = re.compile(r"\{account\.([A-Za-z0-9_-]+)\}")


def fill_base_url(raw: str, account: Mapping[str, str]) -> str:
    """The address with the values of the account in it: `{account.host}` and the like.

    Raises Fault if the account has no such value, or if one is no part of an address.
    """
    filled = _filled(raw, account)
    return _base_url(filled) if filled != raw else raw


def fill_token_url(raw: str, account: Mapping[str, str]) -> str:
    """As `fill_base_url`, for the address where tokens are fetched."""
    filled = _filled(raw, account)
    return check_address(filled) if filled != raw else raw


def _filled(raw: str, account: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        stated = account.get(found[1])
        if stated is None:
            raise Fault(
                f"needs {found[1]!r} of the account", f'add {found[1]} = "…" below [account]'
            )
        if re.fullmatch(r"[A-Za-z0-9._~:-]+", stated) is None:
            raise Fault(
                f"cannot hold {found[1]!r} of the account, which is {stated!r}",
                f'write {found[1]} without scheme and slashes, as in "host.example"',
            )
        return stated

    return _OF_ACCOUNT.sub(value, raw)


def _base_url(raw: str) -> str:
    if "{" in _OF_ACCOUNT.sub("", raw):
        raise Fault(
            "has a placeholder that no account fills",
            "write the whole address, or {account.host} and host = … below [account]",
        )
    check_address(_OF_ACCOUNT.sub("x", raw))
    if "?" in raw or "#" in raw or raw != raw.strip():
        raise Fault("is more than an address", "leave query, fragment and blanks out")
    return raw.rstrip("/")


def _token_url(raw: str) -> str:
    if "#" in raw or "{" in _OF_ACCOUNT.sub("", raw):
        raise Fault(
            "has a fragment, or a placeholder that no account fills",
            "write the whole address of the endpoint, or {account.host} and host = … below "
            "[account]",
        )
    check_address(_OF_ACCOUNT.sub("x", raw))
    return raw


def _client_id_header(raw: str) -> str:
    """A field for an id that is no secret; its name may be one that secrets have elsewhere."""
    if _FIELD_NAME.fullmatch(raw) is None or raw.lower() in ("authorization", "cookie"):
        raise Fault(f"{raw!r} is no field for a client id", 'write it as in "X-Api-Key"')
    return raw


def _prefix(raw: str) -> str:
    """A short word of letters. The complaint never repeats it: it may be the secret itself."""
    if _WORD.fullmatch(raw) is None:
        raise Fault("is no single word", 'write it as in "Token", and the secret as a reference')
    return raw


_WORD = re.compile(r"[A-Za-z][A-Za-z-]{0,19}", re.ASCII)


def _link(parse: Callable[[str], str] = check_address) -> Kind[str]:
    return text_of(parse, "https://host.example", {"format": "uri"})


BASE_URL = _link(_base_url)
TOKEN_URL = _link(_token_url)
PREFIX = text_of(_prefix, "Token", {"minLength": 1})
CLIENT_ID_HEADER = text_of(_client_id_header, "X-Client-Id", {"minLength": 1})
LINK = _link()


def _console(raw: str) -> Template:
    check_address(_OF_ACCOUNT.sub("x", raw))
    return parse_template(raw)


CONSOLE = text_of(_console, Template("", ()), {"pattern": "^https?://"})
