"""Jobs and calls: from their read sections to values, with everything that joins their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forbear.rules.contract import (
    Call,
    Effect,
    FailureDetail,
    Idempotency,
    Job,
    Lookup,
    Means,
    Pointer,
    Request,
    Rule,
    Source,
    States,
    Template,
)
from forbear.rules.contract_jobs import (
    backoff,
    expiry,
    hints,
    limits,
    names_of,
    states,
    success,
)
from forbear.rules.contract_keys import MEANS, ON, ON_FAILURE, REPEAT
from forbear.rules.contract_kinds import Section, nearest
from forbear.rules.contract_request_terms import INPUT, LABEL, PATH, URL
from forbear.rules.contract_requests import (
    Names,
    approval,
    binding_digest,
    digest,
    idempotency,
    lookup,
    paging,
    request,
    request_class,
    stated_read_class,
    templates_of,
)
from forbear.rules.contract_terms import (
    BOOLEAN,
    COUNT,
    DURATION,
    MATCH,
    NAMED,
    NAMES,
    SOURCES,
    STATUSES,
    TEXT,
    WAIT,
)
from forbear.rules.model import RequestClass
from forbear.rules.notation import parse_pointer, parse_template
from forbear.rules.toml_lines import Path

DAY = 86_400_000
LONGEST_ARGUMENT = 1_000
"""Characters of an argument that no schema describes."""

_ALWAYS = ("ref", "submitted_at")
"""Placeholders that every request of an action may use."""


@dataclass(frozen=True, slots=True)
class Around:
    """What an action takes over from its contract."""

    account: frozenset[str]
    """Names of `{account.x}`."""
    rules: tuple[Rule, ...]
    binding: Mapping[str, object]
    section: object
    """What counts into the section digest beside the action's own text."""


# --- what jobs and calls share --------------------------------------------------------------


def rules(sections: tuple[Section, ...]) -> tuple[Rule, ...]:
    return tuple(_rule(section) for section in sections)


def _rule(section: Section) -> Rule:
    means = Means(section.get("means", MEANS, "unclear"))
    if not any(section.has(key) for key in ("http", "match")):
        section.place.complain("matches every answer", "add http = … or match = { … }")
    if means is Means.NOT_YET_VISIBLE and not section.has("age_under"):
        section.place.complain("waits for a job to appear without an end", 'add age_under = "30s"')
    on = section.get("on", ON)
    return Rule(
        means,
        None if on is None else frozenset(on),
        section.get("http", STATUSES),
        section.get("age_under", DURATION),
        section.get("age_over", DURATION),
        section.get("match", MATCH),
        section.get("applied", BOOLEAN),
    )


def failure(section: Section) -> FailureDetail:
    return FailureDetail(
        section.get("code", SOURCES, (parse_pointer("/error/code"),)),
        section.get("message", SOURCES, (parse_pointer("/error/message"),)),
    )


class _Reader:
    """One action while it is read; `parts` are all its sections that hold templates."""

    def __init__(self, name: str, section: Section, around: Around) -> None:
        self.name = name
        self.section = section
        self.around = around
        self.idempotency: Idempotency | None = None
        self.lookup: Lookup | None = None
        if section.has("idempotency"):
            self.idempotency = idempotency(section.section("idempotency"))
        if section.has("lookup"):
            self.lookup = lookup(section.section("lookup"))

    def parts(self) -> Iterator[Section]:
        """The sections of the action whose templates take its arguments."""
        yield self.section
        for key in ("submit", "status", "cancel", "result", "lookup"):
            if key in self.section.table.keys and self.section.has(key):
                yield self.section.section(key)
        if "results" in self.section.table.keys:
            yield from self.section.sections("results").values()
        yield from self.section.rows("rules")

    def arguments(self) -> Mapping[str, Any]:
        """The schema stated; else one that takes exactly the arguments that templates use."""
        if (stated := self.section.get("input", INPUT)) is not None:
            return stated
        used = sorted(
            {
                name.removeprefix("arg.")
                for part in self.parts()
                for _, template in templates_of(part)
                for name in template.names
                if name.startswith("arg.")
            }
        )
        plain = {"type": ["string", "number", "boolean"], "maxLength": LONGEST_ARGUMENT}
        return {
            "type": "object",
            "properties": {name: dict(plain) for name in used},
            "required": used,
            "additionalProperties": False,
        }

    def names(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Placeholders known to every request of the action."""
        return frozenset(
            {
                *_ALWAYS,
                *(f"arg.{name}" for name in schema.get("properties", {})),
                *(f"account.{name}" for name in self.around.account),
                *(("key",) if self.idempotency is not None else ()),
            }
        )

    def check_key(self, send: Section) -> None:
        """A key that stands in the path needs its place there."""
        key = self.idempotency
        if key is None or key.place != "path":
            return
        addresses = (send.get("path", PATH), send.get("url", URL))
        if not any("key" in address.names for address in addresses if address is not None):
            self.section.section("idempotency").complain(
                "at", "says path, and the path has no {key}", "write {key} into the path"
            )

    def check_label(self, names: frozenset[str], requests: Mapping[Path, Request]) -> None:
        """What a person approves must have a label, and the label only what is known before."""
        label = self.section.get("label", LABEL)
        if label is not None:
            known = frozenset(name for name in names if name.startswith(("arg.", "account.")))
            Names(known).check_one(self.section.place.at("label"), label, label=True)
        asked = [one.name for one in requests.values() if one.approval.mode != "none"]
        if asked and not self.section.has("label"):
            self.section.place.complain(
                f"needs approval ({', '.join(asked)}) and has no label to show",
                'add label = "…" that names what is approved, or approval = "none" there',
            )
        for path, one in requests.items():
            free = one.approval.free
            if free is not None and f"arg.{free['arg']}" not in names:
                self.section.place.at(*path, "approval", "free", "arg").complain(
                    f"{free['arg']!r} is no argument",
                    nearest(str(free["arg"]), [n[4:] for n in names if n.startswith("arg.")]),
                )

    def check_identity(self, schema: Mapping[str, Any]) -> tuple[str, ...] | None:
        identity = self.section.get("identity", NAMES)
        for index, name in enumerate(identity or ()):
            if name not in schema.get("properties", {}):
                self.section.place.at("identity", index).complain(
                    f"{name!r} is no argument", nearest(name, schema.get("properties", {}))
                )
        return identity

    def common(
        self,
        schema: Mapping[str, Any],
        send: Request,
        requests: list[Request],
        raw: object,
        repeat_window: int,
    ) -> dict[str, Any]:
        """The fields of `Action`."""
        section = self.section
        title = section.get("title", TEXT, self.name.replace("_", " ").capitalize())
        if self.lookup is not None:
            requests = [*requests, self.lookup.request]
        return {
            "name": self.name,
            "title": title,
            "description": section.get("description", TEXT, f"{title}."),
            "label": section.get("label", LABEL),
            "input": schema,
            "identity": self.check_identity(schema),
            "repeat": section.get("repeat", REPEAT, "ask"),
            "repeat_window": section.get("repeat_window", WAIT, repeat_window),
            "on_failure": section.get("on_failure", ON_FAILURE, "note"),
            "rules": (*rules(section.rows("rules")), *self.around.rules),
            "failure": failure(section.section("failure")),
            "send": send,
            "idempotency": self.idempotency,
            "lookup": self.lookup,
            "approve_within": section.get("approve_within", DURATION, DAY),
            "binding": binding_digest(self.around.binding, requests),
            "section": digest([self.around.section, raw]),
        }

    def check_rules(self, names: frozenset[str]) -> None:
        for row in self.section.rows("rules"):
            Names(names).check(row)


# --- jobs -----------------------------------------------------------------------------------


def job(name: str, section: Section, around: Around, raw: object) -> Job:
    """A job from its section; everything wrong with it is in the report of its place."""
    reader = _Reader(name, section, around)
    for key, fix in (
        ("submit", 'add submit = "POST /…"'),
        ("status", 'add status = "GET /…/{id}"'),
        ("states", 'add state = "/…", waiting = […], succeeded = […] and failed = […]'),
    ):
        if not section.has(key):
            section.place.complain(f"has no {key}", fix)
    if not section.section("limits").has("deadline"):
        section.place.complain("has no deadline", 'add deadline = "40m"; it is never guessed')

    schema = reader.arguments()
    send = _submission(reader)
    status = _status(reader, send)
    results = _results(section)
    cancel = _cancel(section)
    ends = success(section.section("success"), bool(results))
    _check_job_names(reader, schema, send, status, ends.take)

    stated: dict[Path, Request] = {("submit",): send, ("status",): status}
    stated |= {
        ("results", name) if section.has("results") else ("result",): result
        for name, result in results.items()
    }
    if cancel is not None:
        stated["cancel",] = cancel
    reader.check_label(reader.names(schema), stated)
    deadline = section.section("limits").get("deadline", DURATION, 3_600_000)
    schedule = backoff(
        section.section("backoff"), section.section("limits").get("usual", DURATION), deadline
    )
    return Job(
        **reader.common(schema, send, list(stated.values()), raw, repeat_window=600_000),
        status=status,
        states=states(section.section("states")) if section.has("states") else States((), ()),
        success=ends,
        limits=limits(section.section("limits"), schedule),
        backoff=schedule,
        hints=hints(section.section("hints"), deadline),
        expiry=expiry(section.section("expiry")),
        results=results,
        cancel=cancel,
    )


_ABSENT = Request("absent", "GET", path=Template("/", ("/",)))


def _submission(reader: _Reader) -> Request:
    if not reader.section.has("submit"):
        return _ABSENT
    section = reader.section.section("submit")
    reader.check_key(section)
    return request(
        section,
        "submit",
        request_class=request_class(section, reader.idempotency is not None),
        approval=approval(section, "none"),
    )


def _status(reader: _Reader, send: Request) -> Request:
    """The observation. One that costs or changes something has an action's controls (W18)."""
    if not reader.section.has("status"):
        return _ABSENT
    section = reader.section.section("status")
    found = request(
        section,
        "status",
        request_class=RequestClass.READ,
        approval=approval(section, "none"),
        echo=_echo_of(send),
    )
    if found.effect is Effect.READ:
        return found
    if not reader.section.section("limits").has("max_status_requests"):
        section.complain(
            "effect",
            f"is {found.effect}, and nothing says how often it may be asked",
            "add limits.max_status_requests",
        )
    if found.effect is Effect.MUTATING and found.approval.mode == "none":
        section.complain(
            "effect",
            "is mutating, and nobody approves it",
            'add approval = "session" or "per_call"',
        )
    return request(
        section,
        "status",
        request_class=RequestClass.UNCERTAIN_WRITE,
        approval=found.approval,
        echo=_echo_of(send),
    )


def _echo_of(send: Request) -> tuple[tuple[Source, Template], ...]:
    """`{id}` at the pointer where the submission had it."""
    pointer = dict(send.take).get("id")
    return ((pointer, parse_template("{id}")),) if isinstance(pointer, Pointer) else ()


def _results(section: Section) -> Mapping[str, Request]:
    if section.has("result") and section.has("results"):
        section.complain("results", "is there beside result", "name every result in results")
    stated = {"result": section.section("result")} if section.has("result") else {}
    return {
        name: request(
            inner,
            "result",
            request_class=stated_read_class(inner),
            approval=approval(inner, "none"),
            timeout=300_000,
            max_bytes=10_000_000,
        )
        for name, inner in {**section.sections("results"), **stated}.items()
    }


def _cancel(section: Section) -> Request | None:
    if not section.has("cancel"):
        return None
    inner = section.section("cancel")
    return request(
        inner,
        "cancel",
        request_class=request_class(inner, idempotent=False),
        approval=approval(inner, "per_call"),
    )


def _check_job_names(
    reader: _Reader,
    schema: Mapping[str, Any],
    send: Request,
    status: Request,
    results: tuple[tuple[str, Source], ...],
) -> None:
    """Every template names something that exists when its request is sent."""
    section = reader.section
    before = reader.names(schema)
    found = (*send.take, *(reader.lookup.take if reader.lookup is not None else ()))
    running = before | set(names_of(found, "take"))
    if "take.id" in running:
        running |= {"id"}
    later = running | set(names_of(status.take, "take"))
    ended = later | set(names_of(results, "result"))
    for key, names in (
        ("submit", before),
        ("lookup", before),
        ("status", running),
        ("cancel", later),
        ("result", ended),
    ):
        if section.has(key):
            Names(frozenset(names)).check(section.section(key))
    for inner in section.sections("results").values():
        Names(frozenset(ended)).check(inner)
    reader.check_rules(frozenset(ended))


# --- calls ----------------------------------------------------------------------------------


def call(name: str, section: Section, around: Around, raw: object) -> Call:
    """A call from its section; everything wrong with it is in the report of its place."""
    reader = _Reader(name, section, around)
    schema = reader.arguments()
    reader.check_key(section)
    kind = request_class(section, reader.idempotency is not None)
    read = kind is RequestClass.READ
    findable = reader.idempotency is not None or section.has("idempotent") or section.has("lookup")
    send = request(
        section,
        "call",
        request_class=kind,
        approval=approval(section, "none" if read or findable else "per_call"),
    )
    names = reader.names(schema)
    Names(names).check(_without(section, ("label", "take")))
    if section.has("lookup"):
        Names(names).check(section.section("lookup"))
    reader.check_rules(names | set(names_of(send.take, "take")))
    reader.check_label(names, {(): send})
    for key in ("coalesce", "page", "instead_of_many", "walk_limit"):
        if not read and section.has(key):
            section.complain(
                key,
                "is for reads only",
                'leave it out, or write class = "read" if the call only reads',
            )
    return Call(
        **reader.common(schema, send, [send], raw, repeat_window=DAY),
        deadline=section.get("deadline", DURATION, 300_000 if read else 900_000),
        page=paging(section.section("page")) if section.has("page") else None,
        coalesce=section.get("coalesce", DURATION),
        instead_of_many=section.get("instead_of_many", NAMED),
        walk_limit=section.get("walk_limit", COUNT),
    )


def _without(section: Section, keys: tuple[str, ...]) -> Section:
    values = {key: value for key, value in section.values.items() if key not in keys}
    return Section(section.table, section.place, values, section.broken)
