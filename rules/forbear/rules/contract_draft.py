"""A contract that is not finished: what could be told, why, and what a person must still choose.

A draft never says which words of a provider end a job: its lists of words are empty, and the loader
refuses the file at `succeeded` until somebody fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forbear.rules import toml_text as toml
from forbear.rules.ports import Json
from forbear.rules.values import elements, members

WIDTH = 100
"""Columns that a line with its comment has at most; a longer comment goes above its line."""
_WIDEST_KEY, _WIDEST_VALUE = 16, 50
"""Columns up to which keys and reasons are put below each other."""


@dataclass(frozen=True, slots=True)
class Told:
    """A value of the file and the reason for it; None where a person must write it."""

    value: Json
    why: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the contract, its values written as templates."""

    method: str
    path: str = ""
    url: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Json = None
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    take: Mapping[str, str] = field(default_factory=dict[str, str])
    evidence: str = ""
    """The page that says that asking changes nothing."""
    why: str = ""
    guessed: bool = False
    """Whether a person must see to it that the address is right."""

    @property
    def address(self) -> str:
        return self.path or self.url

    @property
    def is_plain(self) -> bool:
        more = self.query or self.headers or self.form or self.take or self.evidence
        return self.body is None and not more


@dataclass(frozen=True, slots=True)
class Action:
    """What jobs and calls have in common."""

    name: str
    title: str
    asked: Asked
    input: Mapping[str, Json]
    """JSON Schema of the arguments; empty where there are none."""
    description: str = ""
    key_at: str = ""
    """Where the idempotency key goes: `header:Idempotency-Key`."""
    code: Told | None = None
    message: Told | None = None
    notes: tuple[str, ...] = ()
    """What a person should know, as comments."""

    @property
    def reads(self) -> bool:
        return self.asked.method in ("GET", "HEAD")

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(members(self.input.get("properties")) or {})


@dataclass(frozen=True, slots=True)
class DraftCall:
    action: Action


@dataclass(frozen=True, slots=True)
class DraftJob:
    action: Action
    id: Told | None
    status: Asked
    state: Told
    words: tuple[str, ...] = ()
    words_from: str = ""
    link: Told | None = None
    """Where the answer of success has the address of the result."""
    link_needs_key: bool = False
    progress: Told | None = None
    hint: tuple[Told, str] | None = None
    expiry: tuple[Told, str] | None = None
    expires: str = "job"
    """What expires: `job` or `result`."""
    echo: Told | None = None
    cancel: Asked | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that one file will say."""

    provider: str
    title: str
    base_url: Told
    auth: Told
    source: str
    """What it was drafted from, in a few words."""
    variables: Mapping[str, str]
    """Variables of the environment that hold its secrets, and what each is."""
    jobs: tuple[DraftJob, ...] = ()
    calls: tuple[DraftCall, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    allow_hosts: Told | None = None
    docs: str = ""
    token_url: str = ""
    """Of OAuth 2.0; then `auth` is the section of the client credentials grant."""
    scope: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """Of the jobs, then of the calls."""
        jobs, calls = (one.action for one in self.jobs), (one.action for one in self.calls)
        return (*jobs, *calls)

    def left(self) -> Iterator[str]:
        """What is left for a person, one sentence each, the most important first."""
        for job in self.jobs:
            place = f"jobs.{job.action.name}"
            if job.words:
                seen = f" ({job.words_from}: {_listed(job.words)})"
            else:
                seen = " (no word of it is known here)"
            yield f"{place}: say what each word means: waiting, succeeded, failed …{seen}"
            for key, told in (("id", job.id), ("state", job.state)):
                if told is not None and not told.value:
                    yield f"{place}.{key}: {told.why}"
            if job.status.guessed:
                yield f"{place}.status: {job.status.why}"
            yield f"{place}: correct usual and deadline; they are placeholders"
        for call in self.calls:
            if not call.action.reads:
                place = f"calls.{call.action.name}.label"
                yield f"{place}: name all that a person must see who approves the write"
        for key, told in (("base_url", self.base_url), ("auth", self.auth)):
            if not told.value:
                yield f"{key}: {told.why}"
        yield from self.remarks

    def text(self, *, named: bool = False) -> str:
        """The file, valid TOML whatever its values hold.

        `named` says that the name of the file is not the provider's.
        """
        return "\n".join(_file(self, named)) + "\n"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(map(toml.string, words))


# --- the file -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    key: str
    value: str
    why: str = ""


def _file(draft: Draft, named: bool) -> Iterator[str]:
    yield toml.comment(f"{draft.title}: drafted from {draft.source}. Read every line.")
    yield "#"
    left = list(draft.left())
    if left:
        yield "# Left for you:"
    for number, sentence in enumerate(left, 1):
        yield from _wrapped(f"{number}. {sentence}", "#   ", "#      ")
    yield f"# {'Then' if left else 'Next'}: forbear contract check"
    yield ""
    yield from _block(_top(draft, named))
    if draft.token_url:
        yield from _section(("auth",), _oauth(draft))
    yield from _section(
        ("account",), [_Line("id", toml.string("main"), "your name for it; part of every identity")]
    )
    yield from _section(("headers",), _texts(draft.headers))
    for job in draft.jobs:
        yield from _job(job)
    for call in draft.calls:
        yield from _call(call.action)


def _top(draft: Draft, named: bool) -> Iterator[_Line]:
    yield _Line("contract", "1")
    if named:
        yield _Line("provider", toml.string(draft.provider))
    yield _Line("title", toml.string(draft.title))
    yield _told("base_url", draft.base_url)
    if not draft.token_url:
        yield _told("auth", draft.auth)
    if draft.allow_hosts is not None:
        yield _told("allow_hosts", draft.allow_hosts)
    if draft.docs:
        yield _Line("docs", toml.string(draft.docs))


def _oauth(draft: Draft) -> Iterator[_Line]:
    names = list(draft.variables)
    yield _Line("scheme", toml.string("oauth2_client"), draft.auth.why)
    yield _Line("token_url", toml.string(draft.token_url))
    yield _Line("client_id", toml.string(f"env:{names[0]}"))
    yield _Line("client_secret", toml.string(f"env:{names[1]}"))
    if draft.scope:
        yield _Line("scope", toml.string(draft.scope))


def _job(job: DraftJob) -> Iterator[str]:
    action = job.action
    at = ("jobs", action.name)
    yield ""
    yield f"[{toml.dotted(at)}]"
    yield from _notes(action.notes)
    plain = action.asked.is_plain
    body = toml.value(action.asked.body) if _is_short(action.asked) else None
    lines = [*_named(action)]
    lines.append(_Line("usual", toml.string("5m"), "how long it takes usually: correct it"))
    lines.append(_Line("deadline", toml.string("1h"), "then waiting stops and a person is asked"))
    if plain or body is not None:
        lines.append(_request_line("submit", action.asked))
        if body is not None:
            lines.append(_Line("body", body))
    if job.id is not None:
        lines.append(_told("id", job.id))
    short = job.status.is_plain and job.echo is None
    if short:
        lines.append(_request_line("status", job.status))
    lines.append(_told("state", job.state))
    yield from _block(lines)
    yield from _words(job)
    yield from _block(_further(job))
    if not plain and body is None:
        yield from _request((*at, "submit"), action.asked)
    if not short:
        echo = [] if job.echo is None else [_told("echo", job.echo)]
        yield from _request((*at, "status"), job.status, further=echo)
    if job.link is not None and job.link_needs_key:
        yield from _section(
            (*at, "result"),
            [
                _Line("method", toml.string("GET")),
                _Line("url", toml.string("{result.url}")),
                _Line("auth", "true", "the address is on the API's own host and not signed"),
            ],
        )
    yield from _input(at, action)
    yield from _key(at, action)
    if job.cancel is not None:
        yield from _cancel(action.name, job.cancel)


def _named(action: Action) -> Iterator[_Line]:
    more = "" if action.description else "add a description = …, which agents read"
    yield _Line("title", toml.string(action.title), more)
    if action.description:
        yield _Line("description", toml.string(action.description))


def _words(job: DraftJob) -> Iterator[str]:
    yield ""
    if job.words:
        yield from _wrapped(f"Words {job.words_from}: {_listed(job.words)}", "# ", "#   ")
    yield "# Only you can say what a word means. One that is in no list stops and asks a person."
    yield from _block(
        [
            _Line("waiting", "[]", "choose: the provider still works"),
            _Line("succeeded", "[]", "choose: done, and well; the file does not load without"),
            _Line("failed", "[]", "choose: over without success"),
            _Line("cancelled", "[]"),
            _Line("expired", "[]"),
        ]
    )
    yield ""


def _further(job: DraftJob) -> Iterator[_Line]:
    action = job.action
    if job.link is not None:
        pointer = str(job.link.value)
        if job.link_needs_key:
            value = {"require": {pointer: "url"}, "take": {"url": pointer}}
            yield _Line("success", toml.value(value), job.link.why)
        else:
            yield _Line("result", toml.string(f"GET {{{pointer}}}"), job.link.why)
    yield from _failure(action)
    if job.hint is not None:
        told, unit = job.hint
        yield _Line("hints", toml.value({"next": [{"at": told.value, "unit": unit}]}), told.why)
    if job.expiry is not None:
        told, unit = job.expiry
        value = {job.expires: {"at": told.value, "unit": unit}}
        yield _Line("expiry", toml.value(value), told.why)
    if job.progress is not None:
        yield _told("states.progress", job.progress)


def _failure(action: Action) -> Iterator[_Line]:
    found = {"code": action.code, "message": action.message}
    told = {key: one for key, one in found.items() if one is not None}
    if told:
        value = {key: one.value for key, one in told.items()}
        why = next(iter(told.values())).why
        yield _Line("failure", toml.value(value), why)


def _call(action: Action) -> Iterator[str]:
    at = ("calls", action.name)
    lines = [*_named(action)]
    if not action.reads:
        needed = elements(action.input.get("required")) or ()
        shown = " ".join(f"{{arg.{name}}}" for name in needed[:3])
        label = f"{action.title} {shown}".strip()
        why = "what a person sees who approves it"
        lines.append(_Line("label", toml.string(label), why))
    lines += _failure(action)
    yield from _request(at, action.asked, first=lines, notes=action.notes)
    yield from _input(at, action)
    yield from _key(at, action)


def _cancel(name: str, asked: Asked) -> Iterator[str]:
    yield ""
    yield "# The answer names an address for cancelling. To offer it to people:"
    label = toml.string("…")
    yield from (
        f"#   {line}"
        for line in (
            f"[{toml.dotted(('jobs', name, 'cancel'))}]      # and label = {label} in the job",
            f"method = {toml.string(asked.method)}",
            f"url = {toml.string(asked.url)}",
            f"consequence = {label}",
        )
    )


# --- sections -------------------------------------------------------------------------------


def _is_short(asked: Asked) -> bool:
    others = asked.query or asked.headers or asked.form or asked.take
    short = asked.body is not None and len(toml.value(asked.body)) < WIDTH - 14
    return short and not others


def _request_line(key: str, asked: Asked) -> _Line:
    return _Line(key, toml.string(f"{asked.method} {asked.address}"), asked.why)


def _request(
    at: tuple[str, ...],
    asked: Asked,
    *,
    first: Sequence[_Line] = (),
    further: Sequence[_Line] = (),
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """A request as a section, with its parameters and body as sections of their own."""
    lines = [*first, _Line("method", toml.string(asked.method))]
    lines.append(_Line("path" if asked.path else "url", toml.string(asked.address), asked.why))
    if asked.evidence:
        lines.append(_Line("evidence", toml.string(asked.evidence)))
    if asked.take:
        lines.append(_Line("take", toml.value(dict(asked.take))))
    tree = members(asked.body)
    if asked.body is not None and not tree:
        lines.append(_Line("body", toml.value(asked.body)))
    lines += further
    yield from _section(at, lines, notes)
    yield from _section((*at, "query"), _texts(asked.query))
    yield from _section((*at, "headers"), _texts(asked.headers))
    yield from _section((*at, "form"), _texts(asked.form))
    if tree:
        yield from _section(
            (*at, "body"),
            [_Line(toml.key(name), toml.value(one)) for name, one in tree.items()],
        )


def _input(at: tuple[str, ...], action: Action) -> Iterator[str]:
    properties = members(action.input.get("properties")) or {}
    if not properties:
        return
    yield from _section((*at, "input"), _schema(action.input))


def _schema(schema: Mapping[str, Json]) -> Iterator[_Line]:
    for name, one in schema.items():
        if name != "properties":
            yield _Line(toml.key(name), toml.value(one))
    for name, one in (members(schema.get("properties")) or {}).items():
        yield _Line(f"properties.{toml.key(name)}", toml.value(one))


def _key(at: tuple[str, ...], action: Action) -> Iterator[str]:
    if action.key_at:
        why = "a repetition with the same key is one action; add window = … if it is documented"
        yield from _section((*at, "idempotency"), [_Line("at", toml.string(action.key_at), why)])


def _texts(pairs: Mapping[str, str]) -> list[_Line]:
    return [_Line(toml.key(name), toml.string(text)) for name, text in pairs.items()]


def _section(
    at: tuple[str, ...], lines: Iterable[_Line], notes: Sequence[str] = ()
) -> Iterator[str]:
    held = list(lines)
    if held:
        yield ""
        yield f"[{toml.dotted(at)}]"
        yield from _notes(notes)
        yield from _block(held)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    for note in notes:
        yield from _wrapped(note, "# ", "#   ")


def _told(key: str, told: Told) -> _Line:
    if told.value:
        return _Line(key, toml.value(told.value), told.why)
    return _Line(key, toml.string(""), f"choose: {told.why}")


def _block(lines: Iterable[_Line]) -> Iterator[str]:
    """Lines with their signs in one column, each with its reason behind it or above it."""
    held = list(lines)
    widest = max((len(one.key) for one in held), default=0)
    column = widest if widest <= _WIDEST_KEY else 0
    written = [(f"{one.key:<{column}} = {one.value}", one.why) for one in held]
    behind = [len(line) for line, why in written if why and len(line) + len(why) + 4 <= WIDTH]
    margin = max((length for length in behind if length <= _WIDEST_VALUE), default=0)
    for line, why in written:
        at = margin if margin + len(why) + 4 <= WIDTH else 0
        if not why:
            yield line
        elif len(line) + len(why) + 4 <= WIDTH:
            yield f"{line:<{at}}  {toml.comment(why)}"
        else:
            yield from _wrapped(why, "# ", "#   ")
            yield line


def _wrapped(text: str, first: str, then: str) -> Iterator[str]:
    """A comment of as many lines as it needs."""
    line = first
    for word in toml.comment(text, 2_000).removeprefix("# ").split(" "):
        if len(line) + len(word) + 1 > WIDTH and line not in (first, then):
            yield line.rstrip()
            line = then
        line += f"{word} "
    yield line.rstrip()
