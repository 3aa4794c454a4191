"""Requests and answers that a person pasted or recorded, in the terms that a contract has.

What was sent is split into what a contract may hold and its secrets; the secrets are kept apart
from the first moment on, so that nothing that is made of a `Sent` can hold one by accident.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from forbear.rules.contract_request_terms import is_loopback
from forbear.rules.ports import Json
from forbear.rules.values import Unreadable, decode, elements, media_type, members, text_of


class Unusable(Exception):
    """What was pasted cannot become a contract: the reason and the fix, and never a value of it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and where it stood."""

    place: str
    """`bearer`, `basic`, `header`, `query` or `body`: the scheme of [auth] that puts it there."""
    name: str
    """Of the header field, parameter or member; empty for bearer and basic."""
    value: str = field(repr=False)
    user: str | None = field(default=None, repr=False)
    """Of basic, where it has a password too."""
    variable: str | None = None
    """The variable of the environment that the line itself takes the secret from."""
    prefix: str = ""
    """What a header says before the secret: `Token`."""

    @property
    def told(self) -> str:
        return {"bearer": "Authorization", "basic": "Authorization"}.get(self.place, self.name)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request without its secrets."""

    method: str
    origin: str
    """Scheme, host and port."""
    segments: tuple[str, ...]
    """The path, split at its slashes, percent-encoded as it was."""
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    """Without those that say how a client talks rather than what it asks."""
    body: Json = None
    form: tuple[tuple[str, str], ...] = ()
    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    key_header: str | None = None
    """The field that carried an idempotency key."""
    remarks: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)


@dataclass(frozen=True, slots=True)
class Received:
    """An answer with a JSON body."""

    body: Json
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str | None:
        return next((text for key, text in self.headers if key.lower() == name), None)


# --- what is secret -------------------------------------------------------------------------

_SECRET = re.compile(
    r"(?:^|_)(?:auth|authorization|authentication|token|secret|password|passwd|pwd|api_?key|"
    r"access_?key|private_?key|subscription_?key|cookie|session|session_?id|sig|signature|"
    r"credential|credentials|jwt|csrf|xsrf|pass|passphrase|passcode|bearer|otp|cvc|cvv)(?:_|$)"
    # Glued to another word: accesstoken, XAPIKEY, JSESSIONID.
    r"|(?:token|secret|password|api_?key|access_?key|private_?key|session_?id)$"
)
_HARMLESS = re.compile(
    r"(?:page|next|continuation|sync|max|client|cursor|idempotency)_?token|(?:^|_)tokens(?:_|$)"
)
_LIKE_A_SECRET = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]+|(?:sk|pk|rk|ghp|gho|ghs|xox[abp]|glpat|r8|pat|key)[_-][\w-]{12,}"
)
_OPAQUE = re.compile(r"(?=\w*\d)(?=\w*[A-Za-z])[A-Za-z0-9_]{20,}|\d{14,19}|\w{40,}", re.ASCII)
_PART_OF_A_CONSTANT = re.compile(r"[A-Za-z]{0,20}\d{0,2}|\d{1,8}|[a-z]{1,5}\d{1,4}([a-z]+\d{0,2})?")
_INNER = re.compile(r"([\w.\[\]-]+)\s*[=:]\s*[^\s&;,]")
_LOGIN = re.compile(r"://[^/?#\s]*@|(?:^|\W)(?:bearer|basic)\s", re.I)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_WORD_OF_SCHEME = re.compile(r"(bearer|basic|token|key|apikey|[A-Za-z][\w-]{2,20})\s+(\S.*)", re.I)


def words_of(name: str) -> str:
    """A name in small letters with underscores: `exportId` and `Export-ID` are `export_id`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def names_a_secret(name: str) -> bool:
    """Whether a field of this name carries a credential."""
    plain = words_of(name)
    return bool(_SECRET.search(plain)) and not _HARMLESS.search(plain)


def looks_secret(text: str) -> bool:
    """Whether a value has the form of a token that somebody issued."""
    return _LIKE_A_SECRET.search(text) is not None


def is_constant(text: str) -> bool:
    """Whether a value is made of words, versions and dates, so that it cannot be a key."""
    pieces = re.split(r"[^A-Za-z0-9]+", text)
    return text.isascii() and all(map(_PART_OF_A_CONSTANT.fullmatch, pieces))


def may_be_secret(value: Json) -> bool:
    """Whether a value, or anything in it, is or may be a secret, so that it is not shown.

    A name in it, the form of a token or an address with a login tells; a long mix of letters and
    digits is taken for one.
    """
    if (held := members(value)) is not None:
        # As lists of variables and headers have it: {"name": "API_TOKEN", "value": "…"}.
        named = [text_of(held.get(key)) or "" for key in ("name", "key", "header")]
        return any(map(names_a_secret, (*held, *named))) or any(map(may_be_secret, held.values()))
    if (several := elements(value)) is not None:
        return any(map(may_be_secret, several))
    text = text_of(value) or ""
    inner = (found[1] for found in _INNER.finditer(text))
    return any(pattern.search(text) for pattern in (_LIKE_A_SECRET, _OPAQUE, _LOGIN)) or any(
        map(names_a_secret, inner)
    )


def _header_secret(name: str, text: str) -> Secret | None:
    plain = words_of(name)
    if plain in ("authorization", "proxy_authorization"):
        return _authorization(name, text)
    if names_a_secret(name) or plain == "key" or plain.endswith("_key") or looks_secret(text):
        return _secret("header", name, text)
    return _secret("header", name, text) if re.match(r"(?i)(bearer|basic|token) ", text) else None


def _authorization(name: str, text: str) -> Secret:
    found = _WORD_OF_SCHEME.fullmatch(text)
    scheme = found[1].lower() if found else ""
    if found and scheme == "bearer":
        return _secret("bearer", "", found[2])
    if found and scheme == "basic":
        try:
            login = base64.b64decode(found[2], validate=True).decode()
        except ValueError:  # letters that base64 does not have, or no text
            return _secret("basic", "", found[2])
        return _login(login)
    if found:
        return _secret("header", name, found[2], prefix=found[1])
    return _secret("header", name, text)


def _login(text: str) -> Secret:
    user, colon, password = text.partition(":")
    if not colon or not password:
        return _secret("basic", "", user)
    return _secret("basic", "", password, user=user)


def _secret(place: str, name: str, value: str, user: str | None = None, prefix: str = "") -> Secret:
    variable = _VARIABLE.fullmatch(value)
    named = (variable[1] or variable[2]) if variable else None
    usable = named is not None and not named[0].isdigit()
    return Secret(place, name, value, user, named if usable else None, prefix)


# --- what was sent --------------------------------------------------------------------------

_NOISE = re.compile(
    r"accept(_.*)?|user_agent|host|content_(length|type|encoding)|connection|origin|referer|"
    r"sec_.*|priority|dnt|cache_control|pragma|te|upgrade_.*|traceparent|tracestate|expect|"
    r"if_.*|range|x_requested_with|keep_alive|transfer_encoding|x_stainless_.*|x_request_id|"
    r"newrelic|x_client_data"
)
_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_KEY_FIELD = re.compile(r"(x_)?idempotency(_key|_token)?|(x_)?idempotence_key|paypal_request_id")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


def sent(
    method: str,
    address: str,
    headers: Iterable[tuple[str, str]],
    body: str | None,
    *,
    fields: Sequence[tuple[str, str]] | None = None,
    query: str = "",
    login: str | None = None,
    remarks: Iterable[str] = (),
) -> Sent:
    """A request as it was written, with its secrets taken out.

    `fields` are those of a multipart form, `query` is what the address does not have yet.
    Raises Unusable for what a contract cannot send.
    """
    if method not in _METHODS:
        raise Unusable(f"its method is none of {', '.join(sorted(_METHODS))}")
    told = list(remarks)
    origin, segments, own_query, address_login = _address(address, told)
    secrets: list[Secret] = []
    kept: list[tuple[str, str]] = []
    key_header: str | None = None
    content_type = ""
    for name, text in headers:
        plain = words_of(name)
        if plain == "content_type":
            content_type = text
        elif _FIELD_NAME.fullmatch(name) is None:
            told.append("a header whose name no header may have is left out")
        elif _KEY_FIELD.fullmatch(plain):
            key_header = name
        elif (found := _header_secret(name, text)) is not None:
            secrets.append(found)
        elif not _NOISE.fullmatch(plain):
            kept.append((name, text))
    for one in filter(None, (login, address_login)):
        secrets.append(_login(one))
    parameters: list[tuple[str, str]] = []
    for name, text in (*_pairs(own_query), *_pairs(query)):
        if names_a_secret(name) or words_of(name) == "key" or looks_secret(text):
            secrets.append(_secret("query", name, text))
        else:
            parameters.append((name, text))
    tree, form = _content(body, fields, content_type, told)
    tree, form = _without_members(tree, form, secrets)
    return Sent(
        method,
        origin,
        segments,
        tuple(parameters),
        tuple(kept),
        tree,
        form,
        tuple(dict.fromkeys(secrets)),
        key_header,
        tuple(told),
    )


def _address(text: str, told: list[str]) -> tuple[str, tuple[str, ...], str, str | None]:
    """Origin, path segments, query and login of an address."""
    text = text.strip()
    if "://" not in text:
        host = text.partition("/")[0].partition(":")[0]
        text = f"{'http' if is_loopback(host) else 'https'}://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Unusable("its address cannot be read; write https://host/path") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Unusable("its address is no web address; write https://host/path")
    if re.fullmatch(r"[a-z0-9.:-]+", host) is None:
        raise Unusable("the host of its address is no plain name; write the real host")
    scheme = parts.scheme
    if scheme == "http" and not is_loopback(host):
        scheme = "https"
        told.append("the line uses plain http; https is written, and it must work there")
    shown = f"[{host}]" if ":" in host else host
    origin = f"{scheme}://{shown}" + (f":{port}" if port is not None else "")
    login = parts.netloc.rpartition("@")[0]
    segments = tuple(one for one in parts.path.split("/")[1:])
    while segments and not segments[-1]:
        segments = segments[:-1]
    return origin, segments, parts.query, unquote(login) if login else None


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=500)
    except ValueError:
        raise Unusable("its address has more than 500 parameters; shorten it") from None


def _content(
    body: str | None,
    fields: Sequence[tuple[str, str]] | None,
    content_type: str,
    told: list[str],
) -> tuple[Json, tuple[tuple[str, str], ...]]:
    """The body as JSON, or as the fields of a form."""
    if fields is not None:
        told.append("the line sends a multipart form; a contract sends a plain form: try it")
        return None, tuple(fields)
    if body is None or not body.strip():
        return None, ()
    declared = media_type(content_type)
    try:
        return decode(body.encode("utf-8", "replace")), ()
    except Unreadable as error:
        if "json" in declared or body.lstrip()[:1] in ("{", "["):
            raise Unusable(f"its body cannot be read: {error}; mend it, and mind quotes") from None
    if declared in ("", "application/x-www-form-urlencoded") and "=" in body:
        return None, tuple(_pairs(body))
    raise Unusable("its body is neither JSON nor a form; a contract sends nothing else")


def _without_members(
    tree: Json, form: tuple[tuple[str, str], ...], secrets: list[Secret]
) -> tuple[Json, tuple[tuple[str, str], ...]]:
    """The content without fields that name a secret, at any depth; they join `secrets`."""

    def cleaned(value: Json, pointer: str) -> Json:
        held = members(value)
        if held is None:
            return value
        kept: dict[str, Json] = {}
        for name, one in held.items():
            place = f"{pointer}/{escaped(name)}"
            text = text_of(one)
            if text is not None and names_a_secret(name):
                secrets.append(_secret("body", place if pointer else name, text))
            else:
                kept[name] = cleaned(one, place)
        return kept

    fields = [pair for pair in form if not names_a_secret(pair[0])]
    secrets += (_secret("body", name, text) for name, text in form if names_a_secret(name))
    return cleaned(tree, ""), tuple(fields)


def escaped(step: str) -> str:
    """A step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


# --- what was answered ----------------------------------------------------------------------

_STATUS_LINE = re.compile(r"HTTP/[0-9.]+ +([1-5][0-9][0-9])[^\n]*\n", re.IGNORECASE)
LARGEST = 4_000_000
"""Bytes of a pasted answer that are read."""


def received(pasted: bytes) -> Received:
    """An answer as it was pasted: JSON, with the status line and header fields of `curl -i` or not.

    Of several heads (redirects, 100 Continue) the last one counts.
    Raises Unusable for what is no JSON.
    """
    if len(pasted) > LARGEST:
        raise Unusable(f"it has more than {LARGEST:,} bytes; shorten the answer to what matters")
    text = pasted.decode("utf-8-sig", "replace").replace("\r\n", "\n").lstrip()
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    while (found := _STATUS_LINE.match(text)) is not None:
        head, _, rest = text.partition("\n\n")
        status = int(found[1])
        lines = (line.partition(":") for line in head.split("\n")[1:])
        headers = tuple((name.strip(), value.strip()) for name, colon, value in lines if colon)
        text = rest.lstrip()
    if not text.strip():
        if status is None:
            raise Unusable("it is empty; paste the answer of the provider")
        return Received(None, status, headers)
    try:
        return Received(decode(text.encode()), status, headers)
    except Unreadable as error:
        raise Unusable(f"{error}; paste the answer as the provider sent it") from None
