"""The requests of an action: from read sections to values, with the defaults of the format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

from forbear.rules.contract import (
    Approval,
    Auth,
    Effect,
    Header,
    HttpStatus,
    Idempotency,
    Lookup,
    Match,
    Paging,
    Placeholder,
    Pointer,
    Request,
    Source,
    Template,
)
from forbear.rules.contract_keys import (
    CLASS,
    COVERS,
    EFFECT,
    ENDS,
    KEY_FORMAT,
    REDIRECT,
)
from forbear.rules.contract_kinds import Place, Section, is_list, is_table, nearest
from forbear.rules.contract_request_terms import (
    APPROVAL,
    BODY,
    BODY_JSON,
    ECHO,
    FIELDS,
    HEADERS,
    HOSTS,
    KEY_PLACE,
    LINK,
    MERGE,
    METHOD,
    PATH,
    QUERY,
    REFERENCE,
    URL,
)
from forbear.rules.contract_terms import (
    BOOLEAN,
    BYTES,
    COUNT,
    DURATION,
    MATCH,
    POINTER,
    REQUIRE,
    SCALARS,
    SOURCE,
    STATUSES,
    TAKE,
    TEXT,
    WAIT,
)
from forbear.rules.model import RequestClass

SAFE = frozenset({"GET", "HEAD"})
"""Methods that RFC 9110, section 9.2.1, calls safe and a contract may use for a plain read."""

UNASKED = Approval()

TIME_FORMATS = frozenset({"rfc3339", "epoch", "epoch_ms", "date"})
"""How `{submitted_at}` is written; the other formats are for people, in labels."""


# --- classes and approvals ------------------------------------------------------------------


def request_class(section: Section, idempotent: bool) -> RequestClass:
    """The class stated, else: GET reads, a repeatable write is idempotent, others are uncertain."""
    by_nature = section.has("idempotent")
    if section.has("class"):
        stated = RequestClass(section.get("class", CLASS, "read"))
        if stated is RequestClass.IDEMPOTENT_WRITE and not (idempotent or by_nature):
            section.complain(
                "class",
                "says idempotent_write, and nothing makes it so",
                'add [….idempotency] or idempotent = "by_nature", or write class = '
                '"uncertain_write"',
            )
        if stated is RequestClass.READ and (idempotent or by_nature):
            section.complain(
                "class",
                "is a read, and a read takes no idempotency",
                "leave idempotency out, or state the class of the write",
            )
        return stated
    if section.get("method", METHOD, "GET") in SAFE:
        return RequestClass.READ
    if idempotent or by_nature:
        return RequestClass.IDEMPOTENT_WRITE
    return RequestClass.UNCERTAIN_WRITE


def stated_read_class(section: Section) -> RequestClass:
    """The class of a request that fetches: a method that is not safe must say what it does."""
    if section.get("method", METHOD, "GET") not in SAFE and not section.has("class"):
        section.complain(
            "method",
            f"is {section.get('method', METHOD)}, and its class is not stated",
            'add class = "read" if it only reads',
        )
    return request_class(section, idempotent=False)


def approval(section: Section, default: str) -> Approval:
    """The approval stated, or the default mode."""
    stated = section.get("approval", APPROVAL, Approval(default))
    return Approval(stated.mode, stated.free, section.get("approval_covers", COVERS, "operation"))


# --- requests -------------------------------------------------------------------------------


def request(
    section: Section,
    name: str,
    *,
    request_class: RequestClass,
    approval: Approval = UNASKED,
    timeout: int = 30_000,
    max_bytes: int = 1_000_000,
    echo: tuple[tuple[Source, Template], ...] = (),
) -> Request:
    """A request with the defaults of its kind. `echo` counts where the file states none."""
    _check_address(section)
    _check_content(section)
    by_path = section.has("path")
    hosts = section.get("hosts", HOSTS, ())
    authenticate = section.get("auth", BOOLEAN, by_path or name != "result")
    if section.has("auth") and authenticate and any(host.startswith("*.") for host in hosts):
        section.complain(
            "auth",
            "would send the credential to any host of a wildcard",
            "name the host in full, or write auth = false",
        )
    _check_redirect(section, name, request_class)
    body = section.get("body", BODY)
    known = section.table.keys
    return Request(
        name,
        section.get("method", METHOD, "GET"),
        path=section.get("path", PATH),
        url=section.get("url", URL),
        query=section.get("query", QUERY, ()),
        headers=section.get("headers", HEADERS, ()),
        body=body if section.has("body") else section.get("body_json", BODY_JSON),
        form=section.get("form", FIELDS, ()),
        merge=section.get("merge", MERGE, ()),
        ok=section.get("ok", STATUSES),
        take=section.get("take", TAKE, ()) if "take" in known and name != "lookup" else (),
        require=section.get("require", REQUIRE, ()) if "require" in known else (),
        require_any=section.get("require_any", REQUIRE, ()) if "require_any" in known else (),
        echo=section.get("echo", ECHO, echo) if "echo" in known else (),
        timeout=section.get("timeout", DURATION, timeout),
        request_class=request_class,
        approval=approval,
        effect=_effect(section) if "effect" in known else Effect.READ,
        evidence=section.get("evidence", LINK) if "evidence" in known else None,
        authenticate=authenticate,
        secret=section.get("secret", REFERENCE) if "secret" in known else None,
        hosts=hosts,
        redirect=section.get("redirect", REDIRECT, "none"),
        max_bytes=section.get("max_bytes", BYTES, max_bytes),
        consequence=section.get("consequence", TEXT) if "consequence" in known else None,
        when=section.get("when", ENDS, ("succeeded",)) if "when" in known else ("succeeded",),
    )


def _check_address(section: Section) -> None:
    if not section.has("method"):
        section.place.complain("has no method", 'add method = "GET" or another')
    if section.has("path") and section.has("url"):
        section.complain("url", "is named twice: there is a path too", "keep one of the two")
    if not section.has("path") and not section.has("url"):
        section.place.complain("has no address", 'add path = "/…" or url = "{take.…}"')


def _check_content(section: Section) -> None:
    stated = [key for key in ("body", "body_json", "form") if section.has(key)]
    if len(stated) > 1:
        section.complain(stated[1], f"is a second body beside {stated[0]!r}", "keep one of the two")
    if stated and section.get("method", METHOD) in SAFE:
        section.complain(
            stated[0], "is a body, and a GET carries none", "put it into query = { … }"
        )
    if section.has("merge") and not ({"body", "body_json"} & set(stated)):
        section.complain("merge", "has no body to merge into", 'add body = "{arg.…}"')


def _check_redirect(section: Section, name: str, request_class: RequestClass) -> None:
    """A request that may do something is never sent to an address that an answer chose."""
    if section.get("redirect", REDIRECT, "none") == "none":
        return
    reads = name not in ("submit", "cancel") and request_class is RequestClass.READ
    billed = "effect" in section.table.keys and section.get("effect", EFFECT, "read") != "read"
    if not reads or billed or section.get("method", METHOD, "GET") not in SAFE:
        section.complain(
            "redirect",
            "is followed by nothing but a GET that only reads",
            "leave redirect out, or read the address with take and request it on its own",
        )


def _effect(section: Section) -> Effect:
    if not section.has("effect") and section.get("method", METHOD, "GET") not in SAFE:
        section.complain(
            "method",
            f"is {section.get('method', METHOD)}, and what asking does is not stated",
            'add effect = "read", "billed" or "mutating"',
        )
    return Effect(section.get("effect", EFFECT, "read"))


def paging(section: Section) -> Paging:
    if not (section.has("at") or section.has("item")):
        section.place.complain(
            "says nowhere where the next cursor is", 'add at = "/next" or item = "/id"'
        )
    return Paging(
        section.get("query", TEXT, ""),
        section.get("at", SOURCE),
        section.get("item", POINTER),
        section.get("items", POINTER),
        section.get("more", SOURCE),
        section.get("max_pages", COUNT, 3),
    )


def lookup(section: Section) -> Lookup:
    """How an unclear write is found; the request itself must be a read."""
    found = stated_read_class(section)
    if section.has("class") and found is not RequestClass.READ:
        section.complain("class", "is not read, and a lookup only reads", 'write class = "read"')
    if section.has("page") and not section.has("items"):
        section.complain("page", "pages through no list", 'add items = "/data" to the lookup')
    return Lookup(
        request(section, "lookup", request_class=RequestClass.READ),
        section.get("items", POINTER),
        section.get("match", MATCH, Match(())),
        section.get("take", TAKE, ()),
        paging(section.section("page")) if section.has("page") else None,
        section.get("settle", WAIT, 60_000),
        section.get("absence_proves", BOOLEAN, False),
        section.get("max_lookups", COUNT, 6),
    )


_KEY_LENGTHS = {"uuid": 36, "sf-string": 38, "text": 16}
"""Characters that a key needs: an RFC 9562 text, the same as an RFC 9651 string, the least."""


_PLACES = ("header", "query", "body", "path")


def idempotency(section: Section) -> Idempotency:
    place, name = section.get("at", KEY_PLACE, ("header", "Idempotency-Key"))
    style = section.get("format", KEY_FORMAT, "uuid")
    longest = section.get("max_length", COUNT, 255)
    if longest < _KEY_LENGTHS[style]:
        section.complain(
            "max_length",
            f"leaves {longest} characters, and a key of format {style} has {_KEY_LENGTHS[style]}",
            'raise it, or write format = "text"' if style != "text" else "write at least 16",
        )
    for parameter in section.get("on_repeat", SCALARS) or {}:
        if parameter.partition(":")[0] in _PLACES:
            section.complain(
                "on_repeat",
                f"names a place, {parameter!r}, and it goes where the key goes: {place}",
                "write the name alone, or put the key there too",
            )
    return Idempotency(
        place,
        name,
        style,
        longest,
        section.get("window", DURATION, 86_400_000),
        section.get("stores_errors", BOOLEAN, False),
        section.get("on_repeat", SCALARS),
    )


# --- names in templates ---------------------------------------------------------------------


def templates_in(value: object, place: Place) -> Iterator[tuple[Place, Template]]:
    """Every template inside a value of a section, with its place; sections have their own."""
    if isinstance(value, Template):
        yield place, value
    elif isinstance(value, Match):
        yield from templates_in(
            tuple((source, term.template) for source, term in value.terms), place
        )
    elif is_table(value):
        for key, inner in value.items():
            yield from templates_in(inner, place.at(key))
    elif is_list(value):
        for index, inner in enumerate(value):
            yield from templates_in(inner, place.at(index))
    elif isinstance(value, tuple):
        for item in cast(tuple[object, ...], value):
            if isinstance(item, tuple) and len(pair := cast(tuple[object, ...], item)) == 2:
                yield from templates_in(pair[1], place.at(_spelt(pair[0])))


def _spelt(key: object) -> str:
    """A key of the file that was itself a notation, as it was written."""
    match key:
        case Pointer():
            return key.text
        case Header():
            return f"header:{key.name}"
        case HttpStatus():
            return "http"
        case _:
            return str(key)


def templates_of(section: Section) -> Iterator[tuple[Place, Template]]:
    for key, value in section.values.items():
        yield from templates_in(value, section.place.at(key))


@dataclass(frozen=True, slots=True)
class Names:
    """What templates of one request may name."""

    known: frozenset[str]

    def check(self, section: Section) -> None:
        """Complain about every template of a section that names something else."""
        for place, template in templates_of(section):
            self.check_one(place, template)

    def check_one(self, place: Place, template: Template, *, label: bool = False) -> None:
        for name in sorted(template.names - self.known):
            place.complain(f"{{{name}}} names nothing here", _fix_of(name, self.known))
        for part in template.parts:
            if isinstance(part, Placeholder) and part.format is not None:
                self._check_format(place, part.name, part.format, label)

    def _check_format(self, place: Place, name: str, style: str, label: bool) -> None:
        """Formats for people belong to labels, formats of times to `submitted_at`."""
        argument = style.removeprefix("minor(").rstrip(")") if style.startswith("minor(") else None
        if argument is not None and f"arg.{argument}" not in self.known:
            place.complain(
                f"{argument!r} is no argument", "name the argument that has the currency"
            )
        if label == (style in TIME_FORMATS) or (style in TIME_FORMATS and name != "submitted_at"):
            place.complain(
                f"{{{name}:{style}}} has a format that is not for this place",
                "use minor(argument), bytes and time in labels, "
                f"{', '.join(sorted(TIME_FORMATS))} with submitted_at",
            )


def _fix_of(name: str, known: frozenset[str]) -> str:
    group, _, _ = name.partition(".")
    peers = [f"{{{one}}}" for one in known if one.startswith(f"{group}.")]
    if peers:
        return nearest(f"{{{name}}}", peers)
    return {
        "arg": "add the argument to input.properties",
        "account": "add the value to [account]",
        "take": "add it to take = { … } of an earlier request",
        "result": "add it to success.take, and use it in a result only",
        "id": 'add id = "/…" to take of the submission, and use it after the submission only',
        "key": "add [….idempotency], or leave it out",
    }.get(group, "use " + (", ".join(sorted(f"{{{one}}}" for one in known)) or "plain text"))


# --- digests --------------------------------------------------------------------------------


def digest(value: object) -> str:
    """SHA-256 in hex over a tree in one spelling: sorted keys, numbers as their exact text."""
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    match value:
        case Template() | Pointer() | Header() | HttpStatus():
            return value.text if isinstance(value, Template) else _spelt(value)
        case Decimal():
            return {"decimal": str(value)}
        case None | str() | bool() | int():
            return value
        case _ if is_table(value):
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in cast(list[object], value)]
        case _:
            return str(value)


def binding_digest(surroundings: Mapping[str, object], requests: list[Request]) -> str:
    """Digest of all that decides where an action's requests go and whose they are (W08)."""
    return digest({**surroundings, "requests": [_bound(one) for one in requests]})


_LATER_KEYS = frozenset({"client_auth", "client_id_header", "prefix"})


def surroundings(
    base_url: str,
    account: Mapping[str, object],
    auth: Auth,
    allow_hosts: tuple[str, ...],
    headers: tuple[tuple[str, str], ...],
) -> Mapping[str, object]:
    """What the actions of a contract share in their bindings; references, never secrets."""
    return {
        "base_url": base_url,
        "account": account,
        "auth": {
            name: getattr(auth, name)
            for name in Auth.__slots__
            # A key of a later version counts only where it is stated: an upgrade strands nothing.
            if name not in _LATER_KEYS or getattr(auth, name) is not None
        },
        "allow_hosts": sorted(allow_hosts),
        "headers": headers,
    }


def _bound(one: Request) -> Mapping[str, object]:
    return {
        "name": one.name,
        "method": one.method,
        "path": one.path,
        "url": one.url,
        "query": one.query,
        "headers": one.headers,
        "body": one.body,
        "form": one.form,
        "merge": one.merge,
        "hosts": sorted(one.hosts),
        "echo": one.echo,
        "authenticate": one.authenticate,
        "secret": one.secret,
        # Only where it is stated: the bindings of all others stay what they were.
        **({} if one.redirect == "none" else {"redirect": one.redirect}),
    }
