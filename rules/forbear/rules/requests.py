"""From a contract's request and an operation's facts to the bytes that may be sent.

Values come from agents and providers; none of them can change where a request goes beyond its own
place: a path segment stays in its segment, a parameter in its parameter, a header in its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from forbear.rules.contract import (
    Contract,
    Idempotency,
    Placeholder,
    Pointer,
    Request,
    Select,
    Template,
    Tree,
)
from forbear.rules.facts import Facts, is_absent, only_placeholder, typed, value_of
from forbear.rules.identity import scalar
from forbear.rules.model import RequestClass
from forbear.rules.ports import Json, Number, Outbound
from forbear.rules.reading import read_origin
from forbear.rules.values import (
    MAX_DEPTH,
    MISSING,
    Unreadable,
    decode,
    elements,
    media_type,
    members,
    text_of,
)


class RenderError(ValueError):
    """A request that cannot be made from these values; the message names the placeholder."""


def render(
    contract: Contract, request: Request, facts: Facts, *, timeout: int | None = None
) -> Outbound:
    """The request without secrets. Raises `RenderError`, and nothing is sent.

    `timeout` (ms) replaces the contract's, for instance where less time is left. The provider's
    key goes where the contract says, on the action's own request only; from the second attempt on
    `on_repeat` is added beside it.
    """
    added = _Added.of(request, facts)
    url, from_answer = _url(contract, request, facts)
    parameters = [*_pairs(request.query, facts), *added.query]
    if parameters:
        encoded = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in parameters)
        url += ("&" if "?" in url else "?") + encoded
    body, content_type = _body(request, facts, added.body)
    headers = _headers(contract, request, facts, added.headers, content_type)
    return Outbound(
        method=request.method,
        url=url,
        headers=headers,
        body=body,
        authenticate=request.authenticate,
        allow_hosts=request.hosts,
        secret=request.secret,
        from_answer=from_answer,
        max_bytes=request.max_bytes,
        timeout=request.timeout if timeout is None else timeout,
        # An unkeyed write on a stale connection could not be told from one that was applied.
        fresh_connection=request.request_class is not RequestClass.READ
        and _key_of(request, facts) is None,
    )


def link(template: Template, facts: Facts) -> str | None:
    """A page for a person (`console`), values encoded; None if one of them is not known."""
    try:
        return "".join(_encoded(template, facts))
    except RenderError:
        return None


def shape(template: Template, account: Mapping[str, str]) -> str:
    """A path for a person: the account's values filled in, all others by their names."""

    known = {f"account.{name}": value for name, value in account.items()}
    return "".join(
        part if isinstance(part, str) else known.get(part.name, f"{{{part.name}}}")
        for part in template.parts
    )


# --- address --------------------------------------------------------------------------------


def _url(contract: Contract, request: Request, facts: Facts) -> tuple[str, bool]:
    """The address without query, and whether it came out of an answer."""
    if request.url is not None:
        return _stated_url(request.url, facts)
    if request.path is None:
        raise RenderError("the request has neither path nor url")
    path = "".join(_encoded(request.path, facts))
    _refuse_dots(path, request.path)
    if not path.startswith("/"):
        raise RenderError(f"{request.path.text} does not start with a slash")
    return contract.base_url + path, False


def _stated_url(template: Template, facts: Facts) -> tuple[str, bool]:
    """An absolute address that an answer gave, or one that the contract writes out.

    Whether its host is allowed is checked where it is sent; here it only has to be an address.
    """
    head, *rest = template.parts or ("",)
    # A value in place of the host is as foreign as a whole address.
    from_answer = isinstance(head, Placeholder) or (bool(rest) and head.count("/") < 3)
    if isinstance(head, Placeholder):
        given = value_of(head, facts)
        if not isinstance(given, str):
            raise RenderError(f"{{{head.name}}} is not known, and an address is never guessed")
        tail = Template("", tuple(rest))
        url = given.partition("#")[0] + "".join(_encoded(tail, facts))
    else:
        url = "".join(_encoded(template, facts))
    _refuse_dots(url.partition("?")[0] if rest else "", template)
    if read_origin(url) is None:
        raise RenderError(f"{template.text} is no absolute https address")
    return url, from_answer


def _encoded(template: Template, facts: Facts) -> Iterable[str]:
    for part in template.parts:
        if isinstance(part, str):
            yield part
            continue
        text = text_of(value_of(part, facts))
        if not text:
            raise RenderError(f"{{{part.name}}} is {'empty' if text == '' else 'not known'}")
        if any(character < " " or character == "\x7f" for character in text):
            raise RenderError(f"{{{part.name}}} has control characters")
        if _has_dots(text):
            raise RenderError(f"{{{part.name}}} would leave its place in the path")
        yield quote(text, safe="/" if part.raw else "")


def _refuse_dots(path: str, template: Template) -> None:
    """Segments that only the whole path shows: two values side by side, a value behind a dot."""
    if _has_dots(path):
        names = ", ".join(f"{{{name}}}" for name in sorted(template.names))
        raise RenderError(f"{names or template.text} would leave its place in the path")


def _has_dots(text: str) -> bool:
    """Whether some reader on the way could see a `.` or `..` segment, however often it decodes."""
    for _ in range(4):
        segments = text.replace("\\", "/").split("/")
        # A parameter behind a semicolon is no part of the name for some servers.
        if any(segment.partition(";")[0] in (".", "..") for segment in segments):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
    return True


# --- parameters and headers -----------------------------------------------------------------


def _pairs(pairs: Iterable[tuple[str, Template]], facts: Facts) -> Iterable[tuple[str, str]]:
    """Names and texts; an absent or null value leaves its pair out, an array repeats it."""
    for name, template in pairs:
        alone = only_placeholder(template)
        value = typed(template, facts)
        if alone is not None and (is_absent(value) or value is None):
            continue
        array = elements(value)
        for one in (value,) if array is None else array:
            text = text_of(one)
            if text is None:
                raise RenderError(f"{template.text} for {name} is not known or no plain value")
            yield name, text


def _headers(
    contract: Contract,
    request: Request,
    facts: Facts,
    added: Iterable[tuple[str, str]],
    content_type: str | None,
) -> tuple[tuple[str, str], ...]:
    """Provider headers, then the request's, then the key's; later ones replace earlier ones."""
    first = () if content_type is None else (("Content-Type", content_type),)
    told = {name: template.text for name, template in request.headers}
    found: dict[str, tuple[str, str]] = {}
    for name, value in (*first, *contract.headers, *_pairs(request.headers, facts), *added):
        if not (value.isascii() and value.isprintable()):
            source = told.get(name, "its value")
            raise RenderError(f"header {name}: {source} has characters that no header may have")
        found[name.lower()] = (name, value)
    return tuple(found.values())


# --- bodies ---------------------------------------------------------------------------------

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"


def _body(
    request: Request, facts: Facts, added: Mapping[str, Json]
) -> tuple[bytes | None, str | None]:
    if request.form:
        fields = [*_pairs(request.form, facts), *((k, text_of(v) or "") for k, v in added.items())]
        text = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in fields)
        return text.encode(), _FORM
    body: Json = MISSING if request.body is None else _tree(request.body, facts)
    if is_absent(body):
        if not request.merge and not added:
            return None, None
        body = {}
    for pointer, template in request.merge:
        value = typed(template, facts)
        if not is_absent(value):
            _put(body, pointer, value)
    for name, value in added.items():
        _put(body, Pointer(name, member_steps(name)), value)
    try:
        return json_text(body).encode(), _JSON
    except ValueError as error:
        raise RenderError(f"the body cannot be written: {error}") from error


def member_steps(name: str) -> tuple[str, ...]:
    """Where a name in a contract leads in a body: a member of it, or a JSON pointer."""
    if not name.startswith("/"):
        return (name,)
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in name[1:].split("/"))


def with_member(request: Outbound, name: str, value: str) -> bytes:
    """The body of a rendered request with one member or form field more; it replaces its like.

    Raises `RenderError` where the request has no body that could hold it; no value is in the text.
    """
    if request.body is None:
        raise RenderError(f"the request has no body for {name!r}")
    kind = next((text for key, text in request.headers if key.lower() == "content-type"), "")
    if media_type(kind) == _FORM:
        pairs = request.body.decode().split("&") if request.body else []
        kept = [pair for pair in pairs if unquote_plus(pair.partition("=")[0]) != name]
        return "&".join([*kept, f"{quote_plus(name)}={quote_plus(value)}"]).encode()
    try:
        body = decode(request.body)
    except Unreadable as error:
        raise RenderError(f"the body has no place for {name!r}: {error}") from None
    _put(body, Pointer(name, member_steps(name)), value)
    return json_text(body).encode()


def _tree(tree: Tree, facts: Facts) -> Json:
    """The tree with its templates filled in; absent whole values are left out of their place."""
    if isinstance(tree, Template):
        value = typed(tree, facts)
        if is_absent(value) and only_placeholder(tree) is None:
            raise RenderError(f"{tree.text} names something that is not known")
        return _copy(value)
    held = members(tree)
    if held is not None:
        filled = ((name, _tree(one, facts)) for name, one in held.items())
        return {name: one for name, one in filled if not is_absent(one)}
    array = elements(tree)
    if array is not None:
        return [one for one in (_tree(one, facts) for one in array) if not is_absent(one)]
    return tree


def _copy(value: Json) -> Json:
    """A value of its own, so that merging into it cannot change the stored arguments."""
    held = members(value)
    if held is not None:
        return {name: _copy(one) for name, one in held.items()}
    array = elements(value)
    return value if array is None else [_copy(one) for one in array]


def _put(body: Json, pointer: Pointer, value: Json) -> None:
    """Set a member at a pointer, making the objects on the way."""
    here = body
    for step, following in zip(pointer.steps, (*pointer.steps[1:], None), strict=True):
        if not isinstance(here, dict) or isinstance(step, Select):
            raise RenderError(f"{pointer.text} does not lead through objects")
        held = cast(dict[str, Json], here)
        if following is None:
            held[step] = value
        else:
            here = held.setdefault(step, {})


def json_text(value: Json, depth: int = 0) -> str:
    """Compact JSON in the order of the value, every number exactly as it was given."""
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH}")
    held = members(value)
    if held is not None:
        inside = (f"{scalar(str(k))}:{json_text(one, depth + 1)}" for k, one in held.items())
        return "{" + ",".join(inside) + "}"
    array = elements(value)
    if array is not None:
        return "[" + ",".join(json_text(one, depth + 1) for one in array) + "]"
    return str(value) if isinstance(value, Number) else scalar(value)


# --- the provider's key ---------------------------------------------------------------------


class _Added:
    """What the idempotency rule adds to the action's own request."""

    def __init__(self) -> None:
        self.query: list[tuple[str, str]] = []
        self.headers: list[tuple[str, str]] = []
        self.body: dict[str, Json] = {}

    @classmethod
    def of(cls, request: Request, facts: Facts) -> _Added:
        added = cls()
        keyed = _key_of(request, facts)
        if keyed is None:
            return added
        rule, key = keyed
        added._put(rule.place, rule.name, _written_key(rule, key))
        if facts.attempt > 1:
            place = "query" if rule.place == "path" else rule.place
            for name, value in (rule.on_repeat or {}).items():
                added._put(place, name, value)
        return added

    def _put(self, place: str, name: str, value: Any) -> None:
        match place:
            case "header":
                self.headers.append((name, text_of(value) or ""))
            case "query":
                self.query.append((name, text_of(value) or ""))
            case "body":
                self.body[name] = value
            case _:
                # `path`: the template of the path has {key} itself.
                pass


def _key_of(request: Request, facts: Facts) -> tuple[Idempotency, str] | None:
    """How this request carries which key: only the action's own request has one."""
    if facts.idempotency is None or facts.key is None or request.name not in ("submit", "call"):
        return None
    return facts.idempotency, facts.key


def _written_key(rule: Idempotency, key: str) -> str:
    if rule.place != "header" or rule.format != "sf-string":
        return key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
