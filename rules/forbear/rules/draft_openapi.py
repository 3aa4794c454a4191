"""From an OpenAPI document to the draft of a contract.

A job is a pair of operations, everything else a single call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from forbear.rules import proposals
from forbear.rules.contract_draft import Action, Asked, Draft, DraftCall, DraftJob, Told
from forbear.rules.contract_request_terms import is_loopback
from forbear.rules.draft_exchanges import told
from forbear.rules.draft_terms import (
    Arguments,
    action_name,
    is_fixed,
    name_of,
    title_of,
    variable_of,
)
from forbear.rules.exchanges import names_a_secret, words_of
from forbear.rules.openapi import (
    Document,
    Input,
    Operation,
    Parameter,
    plain,
    texts_in,
    words_in,
)
from forbear.rules.ports import Json
from forbear.rules.proposals import Proposal
from forbear.rules.values import elements, members, text_of

_PARAMETER = re.compile(r"\{([^{}]*)\}")
MOST_OPTIONAL = 30
"""Optional parameters of a call that become arguments."""


# --- jobs in a document ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A submission, and the operation that tells the state of what it started."""

    submit: Operation
    status: Operation
    state: Proposal


def pairs(document: Document) -> tuple[Pair, ...]:
    """Submissions to `/x` with a read of `/x/{id}` whose answer has a state of several words."""
    by_path: dict[str, list[Operation]] = {}
    for one in document.operations:
        by_path.setdefault(_shape(one.path), []).append(one)
    found: list[Pair] = []
    for status in document.operations:
        parent, _, last = status.path.rstrip("/").rpartition("/")
        if status.method != "GET" or not _PARAMETER.fullmatch(last):
            continue
        writes = [one for one in by_path.get(_shape(parent), ()) if one.method in ("POST", "PUT")]
        place = state_of(document, status) if writes else None
        if place is not None and len(place.field.words) > 1:
            found.append(Pair(writes[0], status, place))
    order = {one.line: number for number, one in enumerate(document.operations)}
    return tuple(sorted(found, key=lambda one: order[one.submit.line]))


def _shape(path: str) -> str:
    return _PARAMETER.sub("{}", path.rstrip("/"))


def state_of(document: Document, status: Operation) -> Proposal | None:
    """Where the answer of an operation has a state, with the words that the document names."""
    fields = document.answer(status)
    names = [step for one in fields for step in one.steps]
    described = [
        one
        if one.words or one.kind != "text"
        else replace(one, words=words_in(one.description, names))
        for one in fields
    ]
    found = proposals.state(described)
    if found is None or found.field.kind == "number":
        return None
    return found


# --- the draft ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """What shall be drafted."""

    jobs: tuple[Pair, ...] = ()
    calls: tuple[Operation, ...] = ()


def draft(document: Document, chosen: Chosen, provider: str, source: str) -> Draft:
    """The draft of the chosen jobs and calls of a document."""
    operations = [*(one.submit for one in chosen.jobs), *chosen.calls]
    key = _credential(document, operations, provider)
    remarks = list(key.remarks)
    names: set[str] = set()
    jobs = tuple(_Made(document, names, remarks).job(one) for one in chosen.jobs)
    calls = tuple(_Made(document, names, remarks).call(one) for one in chosen.calls)
    docs = text_of(document.part(document.root.get("externalDocs")).get("url")) or ""
    return Draft(
        provider,
        plain(document.title, 80) or title_of(provider),
        _base_url(document, operations[0]),
        key.auth,
        source,
        key.variables,
        jobs=jobs,
        calls=calls,
        docs=docs if is_link(docs) else "",
        token_url=key.token_url,
        scope=key.scope,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def is_link(address: str) -> bool:
    """Whether a text is an address that a contract may have."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    clean = address.isprintable() and not set("{}\\ ") & set(address)
    return parts.scheme == "https" and bool(host) and "@" not in parts.netloc and clean


def provider_of(document: Document) -> str:
    """A name for the provider: of its host, else of the document's title."""
    for server in elements(document.root.get("servers")) or ():
        address = text_of(document.part(server).get("url")) or ""
        host = proposals.host_of(address) or ""
        labels = [one for one in host.partition(":")[0].split(".") if one not in ("www", "api")]
        if len(labels) >= 2 and re.fullmatch(r"[a-z][a-z0-9-]*", labels[-2]):
            return labels[-2]
    return name_of(document.title, "provider")


def _base_url(document: Document, operation: Operation) -> Told:
    for held in (operation.held, operation.around, document.root):
        for one in elements(held.get("servers")) or ():
            server = document.part(one)
            address = text_of(server.get("url")) or ""
            variables = document.part(server.get("variables"))
            for name, variable in variables.items():
                default = text_of(document.part(variable).get("default")) or ""
                address = address.replace(f"{{{name}}}", default)
            host = proposals.host_of(address)
            scheme, _, rest = address.partition("://")
            fit = scheme == "https" or (
                scheme == "http" and is_loopback((host or "").split(":")[0])
            )
            if host and fit and not set("{}?#@ ") & set(rest) and address.isprintable():
                why = "a server of the document; it has others" if variables else ""
                return Told(address.rstrip("/"), why)
    return Told(None, "the address of the API, as https://host/path; the document has none")


class _Made:
    """One action while it is made of its operations."""

    def __init__(self, document: Document, names: set[str], remarks: list[str]) -> None:
        self.document = document
        self.names = names
        self.remarks = remarks
        self.arguments = Arguments()
        self.by_parameter: dict[str, str] = {}
        self.input = Input(document)
        self.key_at = ""

    # --- jobs -----------------------------------------------------------------------------

    def job(self, pair: Pair) -> DraftJob:
        document = self.document
        name = self._name(pair.submit)
        asked = self._asked(pair.submit, every=False)
        submitted, looked = document.answer(pair.submit), document.answer(pair.status)
        found_id = proposals.job_id(submitted, name)
        status = self._status(pair)
        take: dict[str, str] = {}
        if found_id is None and document.locates(pair.submit):
            take["status_url"] = "header:Location"
            status = replace(status, path="", url="{take.status_url}")
        code, message = proposals.failure(looked)
        link = proposals.result_link(looked)
        hint, expiry = proposals.hint(looked), proposals.expiry(looked)
        return DraftJob(
            self._action(pair.submit, name, replace(asked, take=take), code, message, pair),
            None if take else told(found_id) or Told(None, "where the answer has the job's id"),
            status,
            told(pair.state) or Told(None, "where the answer of status has the state"),
            proposals.words_seen(pair.state.field),
            "listed in the document",
            link=None if link is None else told(link, "by its name; see that the host is allowed"),
            progress=told(proposals.progress(looked)),
            hint=_timed(hint),
            expiry=_timed(expiry),
        )

    def _status(self, pair: Pair) -> Asked:
        *_, last = _PARAMETER.findall(pair.status.path)
        path = self._path(pair.status, {last: "{id}"})
        query = {
            one.name: self._argument(one)
            for one in pair.status.parameters
            if one.place == "query" and one.required and not names_a_secret(one.name)
        }
        docs = self.document.part(pair.status.held.get("externalDocs"))
        evidence = text_of(docs.get("url")) or ""
        return Asked("GET", path, query=query, evidence=evidence if is_link(evidence) else "")

    def _notes(self, pair: Pair) -> Iterator[str]:
        base = _shape(pair.status.path)
        *_, last = _PARAMETER.findall(pair.status.path)
        for one in self.document.operations:
            parent, _, ending = _shape(one.path).rpartition("/")
            if parent != base:
                continue
            path = one.path.replace(f"{{{last}}}", "{id}")
            if one.method in ("POST", "PUT", "DELETE") and ending in ("cancel", "stop", "abort"):
                yield f"The document has a request for cancelling: {one.method} {path}"
            if one.method == "GET" and ending in ("result", "results", "output", "download"):
                yield f'The document has a request for the result: result = "GET {path}"'

    # --- calls ----------------------------------------------------------------------------

    def call(self, operation: Operation) -> DraftCall:
        name = self._name(operation)
        asked = self._asked(operation, every=operation.reads)
        code, message = proposals.failure(self.document.errors(operation))
        return DraftCall(self._action(operation, name, asked, code, message, None))

    # --- what both have -------------------------------------------------------------------

    def _name(self, operation: Operation) -> str:
        literal = [one for one in operation.path.split("/") if one and "{" not in one]
        lists = operation.reads and not operation.path.rstrip("/").endswith("}")
        wanted = action_name(literal, "action", plural=lists)
        chosen, number = wanted, 2
        while chosen in self.names:
            chosen, number = f"{wanted}_{number}", number + 1
        self.names.add(chosen)
        return chosen

    def _action(
        self,
        operation: Operation,
        name: str,
        asked: Asked,
        code: Proposal | None,
        message: Proposal | None,
        pair: Pair | None,
    ) -> Action:
        description = plain(operation.description or operation.summary)
        return Action(
            name,
            plain(operation.summary, 80).rstrip(".") or title_of(name),
            asked,
            self.arguments.schema(),
            description=description,
            key_at=self.key_at,
            code=told(code),
            message=told(message),
            notes=() if pair is None else tuple(self._notes(pair)),
        )

    def _asked(self, operation: Operation, *, every: bool) -> Asked:
        path = self._path(operation, {})
        query: dict[str, str] = {}
        headers: dict[str, str] = {}
        optional = 0
        for one in operation.parameters:
            secret = names_a_secret(one.name) or one.place == "cookie"
            if one.place == "header" and re.fullmatch("idempotency_key", words_of(one.name)):
                self.key_at = f"header:{one.name}"
            elif secret or one.place == "path":
                continue
            elif one.place == "query" and (one.required or every):
                optional += not one.required
                if optional <= MOST_OPTIONAL:
                    query[one.name] = self._argument(one)
            elif one.place == "header" and (fixed := self._fixed(one)) is not None:
                headers[one.name] = fixed
            elif one.place == "header" and one.required and _is_plain_header(one.name):
                headers[one.name] = self._argument(one)
        media, schema, required = self.document.request(operation)
        body, form = self._content(operation, media, schema, required)
        return Asked(operation.method, path, query=query, headers=headers, body=body, form=form)

    def _path(self, operation: Operation, known: Mapping[str, str]) -> str:
        stated = {one.name: one for one in operation.parameters if one.place == "path"}

        def filled(found: re.Match[str]) -> str:
            name = found[1]
            if name in known:
                return known[name]
            return self._argument(stated.get(name) or Parameter("path", name, True, None))

        path = _PARAMETER.sub(filled, operation.path)
        clean = "".join(one if one.isprintable() and one not in "?#" else "-" for one in path)
        return clean.rstrip("/") or "/"

    def _argument(self, one: Parameter) -> str:
        """The template of a parameter; the requests of a job share those of the same name."""
        known = self.by_parameter.get(one.name)
        if known is None:
            schema = self.input.schema(one.schema) or {"type": ["string", "number", "boolean"]}
            if one.description and "description" not in schema:
                schema["description"] = plain(one.description)
            known = self.arguments.of(one.name, None, schema, required=one.required)
            self.by_parameter[one.name] = known
        return known

    def _fixed(self, one: Parameter) -> str | None:
        """The value of a header that can have one only."""
        schema = self.document.part(one.schema)
        listed = elements(schema.get("enum")) or ()
        value = (
            schema.get("default")
            if schema.get("default") is not None
            else (listed[0] if len(listed) == 1 else None)
        )
        text = text_of(value)
        good = text is not None and is_fixed(text) and text.isascii() and _is_plain_header(one.name)
        return text if good else None

    def _content(
        self, operation: Operation, media: str, schema: Json, required: bool
    ) -> tuple[Json, Mapping[str, str]]:
        if not media:
            return None, {}
        if schema is None:
            self.remarks.append(f"{operation.line} sends {plain(media, 60)}, which no contract can")
            return None, {}
        properties, needed = self._properties(schema, ())
        if not media.endswith("json"):
            if media.startswith("multipart/"):
                self.remarks.append(
                    f"{operation.line} sends a multipart form; a contract sends a plain one: try it"
                )
            return None, dict(self._form(properties, needed))
        if not properties:
            made = self.input.schema(schema)
            return self.arguments.of("body", None, made or {}, required=required), {}
        for name in sorted(one for one in needed & properties.keys() if names_a_secret(one)):
            self.remarks.append(
                f"{operation.line} takes {plain(name, 40)} from the agent: if it is your key, "
                "take it out and name it in auth"
            )
        return {
            name: self.arguments.of(name, None, self.input.schema(one), required=name in needed)
            for name, one in properties.items()
            if name in needed or not names_a_secret(name)
        }, {}

    def _properties(
        self, schema: Json, known: tuple[int, ...]
    ) -> tuple[dict[str, Json], frozenset[str]]:
        """The members of an object and those required, with all its parts and alternatives."""
        held = self.document.part(schema)
        if id(held) in known or len(known) > 6:
            return {}, frozenset()
        known = (*known, id(held))
        found: dict[str, Json] = {}
        needed = set(texts_in(held.get("required")))
        for key in ("allOf", "oneOf", "anyOf"):
            for branch in elements(held.get(key)) or ():
                inner, required = self._properties(branch, known)
                found |= inner
                needed |= required if key == "allOf" else frozenset()
        for name, one in self.document.part(held.get("properties")).items():
            if self.document.part(one).get("readOnly") is not True:
                found[name] = one
        return found, frozenset(needed)

    def _form(
        self, properties: Mapping[str, Json], needed: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        """Fields of a form; the members of an object are `name[member]`."""
        for name, one in properties.items():
            held = self.document.part(one)
            inner, required = self._properties(one, ())
            if held.get("format") == "binary":
                self.remarks.append(
                    f"the field {plain(name, 40)} is a file, which no contract sends"
                )
            elif inner:
                for key, value in inner.items():
                    schema = self.input.schema(value)
                    must = name in needed and key in required
                    argument = self.arguments.of(f"{name}_{key}", None, schema, required=must)
                    yield f"{name}[{key}]", argument
            elif held.get("type") != "object":
                schema = self.input.schema(one)
                yield name, self.arguments.of(name, None, schema, required=name in needed)


def _is_plain_header(name: str) -> bool:
    ours = {"accept", "content_type", "authorization", "user_agent", "host", "content_length"}
    return bool(re.fullmatch(r"[A-Za-z0-9-]{1,60}", name)) and words_of(name) not in ours


def _timed(found: tuple[Proposal, str | None] | None) -> tuple[Told, str] | None:
    if found is None or found[1] is None:
        return None
    made = told(found[0])
    return None if made is None else (made, found[1])


# --- credentials ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    auth: Told
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    remarks: tuple[str, ...] = ()
    token_url: str = ""
    scope: str = ""


def _credential(document: Document, operations: Sequence[Operation], provider: str) -> _Key:
    """The first credential that the operations ask for and a contract can carry."""
    schemes = document.part(document.part(document.root.get("components")).get("securitySchemes"))
    asked: list[str] = []
    for one in operations:
        stated = one.held.get("security", document.root.get("security"))
        asked += (name for choice in elements(stated) or () for name in members(choice) or {})
    names = list(dict.fromkeys(asked)) or list(schemes)
    keys = [
        key
        for name in names
        if (key := _key(document.part(schemes.get(name)), provider)) is not None
    ]
    keys.sort(key=lambda key: str(key.auth.value).startswith("basic "))
    if not keys:
        if names:
            return _Key(
                Told(None, 'how the API is signed in to: "bearer env:TOKEN", or another scheme'),
            )
        remark = 'auth: the document names no key; if there is one, write "bearer env:TOKEN"'
        return _Key(Told("none", "the document names no key"), remarks=(remark,))
    return keys[0]


def _key(scheme: Mapping[str, Json], provider: str) -> _Key | None:
    token = variable_of(provider, "TOKEN")
    kind = (text_of(scheme.get("type")) or "").lower()
    if kind == "http":
        if (text_of(scheme.get("scheme")) or "").lower() == "bearer":
            return _Key(Told(f"bearer env:{token}", "as the document says"), {token: "the key"})
        if (text_of(scheme.get("scheme")) or "").lower() == "basic":
            user = variable_of(provider, "USER")
            return _Key(
                Told(f"basic env:{user} env:{token}", "as the document says"),
                {user: "the user", token: "the password"},
            )
        return None
    if kind == "apikey":
        place, name = text_of(scheme.get("in")), text_of(scheme.get("name")) or ""
        if place not in ("header", "query") or not re.fullmatch(r"[\w.-]{1,80}", name, re.ASCII):
            return None
        what = "the key" if words_of(name) != "authorization" else "all of Authorization"
        return _Key(Told(f"{place} {name} env:{token}", "as the document says"), {token: what})
    if kind == "oauth2":
        return _oauth(scheme, provider, token)
    if kind == "openidconnect":
        return _Key(
            Told(f"bearer env:{token}", "OpenID Connect: a token from there"), {token: "it"}
        )
    return None


def _oauth(scheme: Mapping[str, Json], provider: str, token: str) -> _Key:
    flows = members(scheme.get("flows")) or {}
    flow = members(flows.get("clientCredentials")) or {}
    address = text_of(flow.get("tokenUrl")) or ""
    if not is_link(address):
        why = "OAuth 2.0 without the client credentials grant: a token that you got"
        return _Key(Told(f"bearer env:{token}", why), {token: "an access token"})
    scopes = [one for one in members(flow.get("scopes")) or {} if re.fullmatch(r"\S{1,100}", one)]
    client, secret = variable_of(provider, "CLIENT_ID"), variable_of(provider, "CLIENT_SECRET")
    remarks = ("auth.scope: keep what the jobs and calls here need",) if len(scopes) > 1 else ()
    return _Key(
        Told("oauth2_client", "the client credentials grant of the document"),
        {client: "the client's id", secret: "the client's secret"},
        remarks,
        address,
        " ".join(scopes),
    )
