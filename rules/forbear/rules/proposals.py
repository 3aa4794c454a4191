"""Where answers probably have what a contract must read: proposals with their reason.

A proposal is for a person who reads it; nothing is decided by one. No value of an answer is in it,
except words of a state, for which somebody must say what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from forbear.rules.exchanges import Received, escaped, looks_secret, names_a_secret, words_of
from forbear.rules.ports import Json, Number
from forbear.rules.values import decimal_of, elements, members, text_of

DEEPEST = 5
MOST_FIELDS = 2_000
LONGEST_WORD = 60
"""Characters of a state word; longer texts are none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A scalar that answers have at one place, or that a schema describes."""

    steps: tuple[str, ...]
    kind: str
    """text, number, boolean or null."""
    values: tuple[Json, ...] = ()
    """In the order seen; empty where only a schema is known."""
    words: tuple[str, ...] = ()
    """The values that a schema allows."""
    format: str = ""
    description: str = ""

    @property
    def pointer(self) -> str:
        return "".join(f"/{escaped(step)}" for step in self.steps)

    @property
    def name(self) -> str:
        return words_of(self.steps[-1]) if self.steps else ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A place and why it is proposed."""

    field: Field
    why: str
    others: tuple[str, ...] = ()
    """Pointers that could be meant as well."""

    @property
    def pointer(self) -> str:
        return self.field.pointer


# --- what answers have ----------------------------------------------------------------------


def fields(answers: Sequence[Received]) -> tuple[Field, ...]:
    """Every scalar of several answers of one request, in the order of their first appearance.

    Arrays are not entered: which of their elements matters is for a person to say.
    """
    found: dict[tuple[str, ...], list[Json]] = {}
    for answer in answers:
        for steps, value in _scalars(answer.body, ()):
            if steps in found or len(found) < MOST_FIELDS:
                found.setdefault(steps, []).append(value)
    return tuple(
        Field(steps, _kind(values), tuple(values))
        for steps, values in found.items()
        if all(_may_stand_in_a_pointer(step) for step in steps)
    )


def _scalars(value: Json, steps: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    held = members(value)
    if held is not None:
        if len(steps) < DEEPEST:
            for name, one in held.items():
                yield from _scalars(one, (*steps, name))
    elif elements(value) is None and steps:
        yield steps, value


def _may_stand_in_a_pointer(step: str) -> bool:
    """A name that is data (a date, an id, a token) is no place, and may be secret itself."""
    return (
        0 < len(step) <= 64
        and step.isprintable()
        and step[0] != "["
        and step[-1] != "]"
        and not looks_secret(step)
    )


def _kind(values: Iterable[Json]) -> str:
    for value in values:
        match value:
            case None:
                continue
            case bool():
                return "boolean"
            case Number():
                return "number"
            case _:
                return "text"
    return "null"


# --- the names that APIs use ----------------------------------------------------------------

_STATES = (
    *("status", "state", "job_status", "job_state", "run_status", "run_state", "phase"),
    *("lifecycle_state", "life_cycle_state", "result_state", "status_code", "stage", "done"),
    *("completed", "finished", "ready"),
)
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(("poll_after_seconds", "retry_after_seconds", "poll_interval_seconds"), "s"),
    **dict.fromkeys(
        ("poll_after_ms", "retry_after_ms", "poll_interval_ms", "poll_after_millis"), "ms"
    ),
    **dict.fromkeys(("next_check_at", "next_poll_at", "retry_at", "check_again_at"), "at"),
    **dict.fromkeys(("retry_after", "poll_after", "poll_interval", "check_after"), ""),
}
_PROGRESS = (
    *("progress", "progress_percent", "progress_percentage", "percent_complete", "percent"),
    *("percent_done", "percentage", "completion", "percent_completed", "rows_done", "processed"),
)
_EXPIRES = (
    "expires_at",
    "expire_at",
    "expires",
    "expiry",
    "expiration",
    "expires_on",
    "valid_until",
)
_LINKS = re.compile(r"(?:^|_)(?:url|uri|href|link|location)$|^self$")
_OF_RESULTS = (
    *("download", "result", "output", "file", "artifact", "report", "export", "archive", "data"),
    *("url", "href", "location"),
)
_NOT_RESULTS = (
    *("self", "status", "cancel", "get", "web", "html", "console", "dashboard", "docs", "upload"),
    *("callback", "webhook", "logs", "log", "events", "stream", "poll", "next", "previous"),
    *("avatar", "logo", "icon", "input", "source", "resource", "schema", "doc", "documentation"),
)


def _best(
    found: Iterable[Field], rank: Callable[[Field], tuple[int, ...] | None]
) -> tuple[Field, tuple[str, ...]] | None:
    ranked = sorted(
        (
            (place, index, one)
            for index, one in enumerate(found)
            if (place := rank(one)) is not None
        ),
        key=lambda entry: entry[:2],
    )
    if not ranked:
        return None
    return ranked[0][2], tuple(one.pointer for _, _, one in ranked[1:4])


def state(found: Sequence[Field], both: frozenset[str] = frozenset()) -> Proposal | None:
    """Where the state is. `both` are pointers that submission and status answers share."""

    def rank(one: Field) -> tuple[int, ...] | None:
        if one.name in _STATES:
            place = _STATES.index(one.name)
        elif one.name.endswith(("_status", "_state")) and not one.name.startswith("http"):
            place = len(_STATES)
        else:
            return None
        if one.kind not in ("text", "number", "boolean") or not _like_words(one):
            return None
        if one.kind == "boolean" and place < _STATES.index("done"):
            return None
        varies = len({text_of(value) for value in one.values}) > 1 or len(one.words) > 1
        kinds = ("text", "boolean", "number")
        return (not varies, kinds.index(one.kind), len(one.steps), place, one.pointer not in both)

    best = _best(found, rank)
    if best is None:
        return None
    one, others = best
    words = words_seen(one)
    told = "by its name and its short words" if one.kind == "text" else "by its name"
    if len(words) > 1 and one.values:
        told = "it changed from answer to answer"
    elif one.words:
        told = "the document lists its words"
    return Proposal(one, told, others)


def _like_words(one: Field) -> bool:
    texts = [text for value in one.values if (text := text_of(value)) is not None]
    return all(len(text) <= LONGEST_WORD and len(text.split()) <= 4 for text in texts)


def words_seen(one: Field) -> tuple[str, ...]:
    """The words of a state, each once, in the order seen; without what looks like a secret."""
    seen = (text for value in one.values if (text := text_of(value)) is not None)
    fit = (text for text in (*seen, *one.words) if text.isprintable() and not looks_secret(text))
    return tuple(dict.fromkeys(text for text in fit if 0 < len(text) <= LONGEST_WORD))


def job_id(
    found: Sequence[Field], action: str, known: Callable[[str], bool] = lambda _: False
) -> Proposal | None:
    """Where the submission's answer has the job's id.

    `known` says whether a value turned up again: in a later request or answer.
    """
    nouns = ("job", "task", "run", "operation", "request", "batch", action)
    names = ["id", *(f"{noun}_id" for noun in nouns), "uuid", "guid", "key", "name", *nouns]

    def rank(one: Field) -> tuple[int, ...] | None:
        if one.kind not in ("text", "number") or names_a_secret(one.steps[-1]):
            return None
        texts = [text for value in one.values if (text := text_of(value))]
        if one.values and (not texts or any(not _like_an_id(text) for text in texts)):
            return None
        again = bool(texts) and all(map(known, texts))
        if one.name in names:
            place = names.index(one.name)
        elif one.name.endswith("_id") or again:
            place = len(names)
        else:
            return None
        if one.name in ("key", "name") and not again:
            return None
        return (not again, len(one.steps), place)

    best = _best(found, rank)
    if best is None:
        return None
    one = best[0]
    named = {each.pointer for each in found if each.name in names or each.name.endswith("_id")}
    others = tuple(pointer for pointer in best[1] if pointer in named)
    texts = [text for value in one.values if (text := text_of(value))]
    again = bool(texts) and all(map(known, texts))
    return Proposal(one, "its value turns up again later" if again else "by its name", others)


def _like_an_id(text: str) -> bool:
    return 0 < len(text) <= 200 and not re.search(r"[\s?#]|://", text)


def _links(found: Iterable[Field]) -> Iterator[Field]:
    for one in found:
        texts = [text for value in one.values if (text := text_of(value))]
        like = bool(texts) and all(re.match(r"https?://[^\s]+$", text) for text in texts)
        of_schema = not one.values and (
            one.format in ("uri", "url") or _LINKS.search(one.name) is not None
        )
        if one.kind in ("text", "null") and (like or of_schema):
            yield one


def result_link(found: Sequence[Field], but: Iterable[str] = ()) -> Proposal | None:
    """Where an answer has the address of the result, which is none of those in `but`."""
    taken = frozenset(but)

    def rank(one: Field) -> tuple[int, ...] | None:
        around = {word for step in one.steps for word in words_of(step).split("_")}
        if around & set(_NOT_RESULTS) or any(text_of(value) in taken for value in one.values):
            return None
        told = [index for index, word in enumerate(_OF_RESULTS) if word in around]
        if not told or (not one.values and min(told) >= _OF_RESULTS.index("url")):
            return None  # without a value, the name must say more than that it is an address
        return min(told), len(one.steps)

    best = _best(_links(found), rank)
    return None if best is None else Proposal(best[0], "an address under such a name", best[1])


def link(found: Sequence[Field], names: Sequence[str]) -> Proposal | None:
    """An address that the answer gives under one of these names: of the status, of cancelling."""

    def rank(one: Field) -> tuple[int, ...] | None:
        around = [word for step in one.steps for word in words_of(step).split("_")]
        told = [index for index, name in enumerate(names) if name in around]
        return (min(told), len(one.steps)) if told else None

    best = _best(_links(found), rank)
    return None if best is None else Proposal(best[0], "the answer names the address", best[1])


def progress(found: Sequence[Field]) -> Proposal | None:
    def rank(one: Field) -> tuple[int, ...] | None:
        if one.name not in _PROGRESS or one.kind not in ("number", "text"):
            return None
        return (len(one.steps), _PROGRESS.index(one.name))

    best = _best(found, rank)
    return None if best is None else Proposal(best[0], "by its name", best[1])


def failure(found: Sequence[Field]) -> tuple[Proposal | None, Proposal | None]:
    """Where code and message of a failure are."""
    codes = (("error", "code"), ("error", "type"), ("error_code",), ("failure_code",), ("code",))
    messages = (
        *(("error", "message"), ("error", "detail"), ("error_message",), ("failure_message",)),
        *(("failure_reason",), ("error_description",), ("error",), ("reason",), ("message",)),
        *(("detail",),),
    )

    def one_of(ways: tuple[tuple[str, ...], ...]) -> Proposal | None:
        def rank(one: Field) -> tuple[int, ...] | None:
            if one.kind not in ("text", "number", "null"):
                return None
            named = tuple(map(words_of, one.steps))
            ends = [i for i, way in enumerate(ways) if named[-len(way) :] == way]
            return (len(named) > 2, min(ends), len(named)) if ends else None

        best = _best(found, rank)
        return None if best is None else Proposal(best[0], "by its name")

    return one_of(codes), one_of(messages)


def hint(found: Sequence[Field]) -> tuple[Proposal, str | None] | None:
    """Where a status answer recommends the next check, and the unit; None where it is not told."""
    best = _best(found, lambda one: (len(one.steps),) if one.name in _HINTS else None)
    if best is None:
        return None
    unit = _HINTS[best[0].name]
    known = (moment_unit(best[0]) if unit == "at" else unit) or None
    return Proposal(best[0], "by its name", best[1]), known


def expiry(found: Sequence[Field]) -> tuple[Proposal, str | None] | None:
    """Where an answer says when the job or its result is gone, and the unit."""
    best = _best(found, lambda one: (len(one.steps),) if one.name in _EXPIRES else None)
    if best is None:
        return None
    return Proposal(best[0], "by its name", best[1]), moment_unit(best[0])


def moment_unit(one: Field) -> str | None:
    """The unit of a moment, where its value or format shows it."""
    if one.format == "date-time":
        return "rfc3339"
    if one.format in ("unixtime", "unix-time"):
        return "epoch"
    units = {_unit_of(value) for value in one.values if value is not None}
    return units.pop() if len(units) == 1 else None


def _unit_of(value: Json) -> str | None:
    if isinstance(value, Number):
        number = decimal_of(value)
        if number is None:
            return None
        if 10**9 <= number < 10**11:
            return "epoch"
        return "epoch_ms" if 10**12 <= number < 10**14 else None
    text = text_of(value) or ""
    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text):
        return "rfc3339"
    return "http-date" if re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", text) else None


def host_of(address: str) -> str | None:
    """Host, and port where it is not 443, as `allow_hosts` has it; None if it has none."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if host is None or re.fullmatch(r"[a-z0-9.-]+", host) is None:
        return None
    return host if port in (None, 443) else f"{host}:{port}"
