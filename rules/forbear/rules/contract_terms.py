"""The words of format 1 for answers: plain values, places to read, conditions, state reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime

from forbear.rules.contract import (
    Condition,
    Fold,
    Match,
    Pointer,
    Read,
    Requirement,
    Source,
    Test,
    Unit,
)
from forbear.rules.contract_kinds import (
    Fault,
    Kind,
    Place,
    choice,
    is_list,
    is_table,
    named,
    nearest,
    one_or_several,
    pairs,
    several,
    text_of,
    whole,
)
from forbear.rules.notation import (
    parse_duration,
    parse_pointer,
    parse_rate,
    parse_source,
    parse_template,
)
from forbear.rules.values import decimal_of
from forbear.rules.values import text_of as text_of_value

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_DURATION_SCHEMA = {"pattern": "^[0-9]+(ms|s|m|h|d)$"}

# --- plain values ---------------------------------------------------------------------------


def check_text(raw: str) -> str:
    """A text that says something."""
    if not raw.strip():
        raise Fault("is empty", "write something, or leave the key out")
    return raw


def check_name(raw: str) -> str:
    """A name that placeholders can take: `{arg.name}`, `{take.name}`."""
    if NAME.fullmatch(raw) is None:
        raise Fault(f"{raw!r} is no name", "use letters, digits, - and _, with a letter first")
    return raw


def _positive(raw: str) -> int:
    if not (found := parse_duration(raw)):
        raise Fault(f"{raw!r} is no time at all", 'write a duration above zero, such as "30s"')
    return found


TEXT = text_of(check_text, "text", {"minLength": 1})
NAMED = text_of(check_name, "name", {"pattern": f"^{NAME.pattern}$"})
DURATION = text_of(_positive, 60_000, _DURATION_SCHEMA)
WAIT = text_of(parse_duration, 60_000, _DURATION_SCHEMA)
"""A duration that may be zero."""
RATE = text_of(parse_rate, (2, 1_000), {"pattern": "^[0-9]+/[0-9]+(ms|s|m|h|d)$"})
COUNT = whole(1, 10**6)
AMOUNT = whole(0, 10**6)
BYTES = whole(1, 10**10)
NAMES = several(NAMED)
TEXTS = several(TEXT)
DURATIONS = several(DURATION)


def _boolean(raw: object, place: Place) -> bool:
    if not isinstance(raw, bool):
        raise Fault("is neither true nor false", "write true or false, without quotes")
    return raw


def _share(raw: object, place: Place) -> float:
    share = decimal_of(raw)
    if share is None or not 0 <= share < 1:
        raise Fault("is no share", "write a number from 0 to below 1, such as 0.1")
    return float(share)


def _date(raw: object, place: Place) -> str:
    if isinstance(raw, date) and not isinstance(raw, datetime):
        return raw.isoformat()
    raise Fault("is no date", "write it without quotes, such as 2026-11-30")


BOOLEAN: Kind[bool] = Kind(_boolean, False, {"type": "boolean"})
SHARE: Kind[float] = Kind(_share, 0.1, {"type": "number", "minimum": 0, "exclusiveMaximum": 1})
DATE: Kind[str] = Kind(_date, "2026-01-01", {"type": "string", "format": "date"})


def exact(raw: object) -> str:
    """A literal of the file as the exact text that answers are compared with."""
    if (text := text_of_value(raw)) is None:
        raise Fault("is no plain value", "write a text, a number, true or false")
    return text


SCALAR_SCHEMA = {"type": ["string", "number", "boolean"]}
LITERAL: Kind[str] = Kind(lambda raw, place: exact(raw), "", SCALAR_SCHEMA)
LITERALS = one_or_several(LITERAL)
SCALARS = named(LITERAL)
"""Parameters added to a request as they stand."""

# --- places in answers ----------------------------------------------------------------------

SOURCE: Kind[Source] = text_of(parse_source, Pointer("", ()), {"pattern": "^(/|header:|http$)"})
SOURCES = one_or_several(SOURCE)
POINTER = text_of(parse_pointer, Pointer("", ()), {"pattern": "^(/|$)"})
TAKE = pairs(check_name, SOURCE)

UNITS = tuple(unit.value for unit in Unit)


def _timed(raw: object, place: Place) -> tuple[Source, Unit]:
    if not is_table(raw) or "unit" not in raw or "at" not in raw:
        raise Fault(
            "has no unit",
            f'write {{ at = "/eta_seconds", unit = "s" }}; units are {", ".join(UNITS)}',
        )
    closed(raw, ("at", "unit"), place)
    unit = place.at("unit").read(_UNIT, raw["unit"])
    return place.at("at").read(SOURCE, raw["at"]), Unit(unit)


def closed(raw: Mapping[str, object], known: tuple[str, ...], place: Place) -> None:
    """Complain about every key of a small table that is not among the known ones."""
    for key in raw:
        if key not in known:
            place.at(key).complain("is no known key here", nearest(key, known))


_UNIT = choice(*UNITS)
TIMED: Kind[tuple[Source, Unit]] = Kind(
    _timed,
    (Pointer("", ()), Unit.SECONDS),
    {
        "type": "object",
        "required": ["at", "unit"],
        "additionalProperties": False,
        "properties": {"at": SOURCE.schema, "unit": _UNIT.schema},
    },
)
TIMEDS = one_or_several(TIMED)

_TEST_WORD = choice("present", "positive", "after_submit")


def _test(raw: object, place: Place) -> Test:
    if not is_table(raw) or "at" not in raw or "test" not in raw:
        raise Fault("is no test", 'write { at = "/error", test = "present" }')
    closed(raw, ("at", "test", "unit"), place)
    if "unit" in raw and place.at("unit").read(_UNIT, raw["unit"]) != Unit.RFC3339:
        place.at("unit").complain("is no unit of a test", 'leave it out, or write "rfc3339"')
    word = place.at("test").read(_TEST_WORD, raw["test"])
    return Test(place.at("at").read(SOURCE, raw["at"]), word)


TEST: Kind[Test] = Kind(
    _test,
    Test(Pointer("", ()), "present"),
    {
        "type": "object",
        "required": ["at", "test"],
        "additionalProperties": False,
        "properties": {
            "at": SOURCE.schema,
            "test": _TEST_WORD.schema,
            "unit": {"const": "rfc3339"},
        },
    },
)
TESTS = one_or_several(TEST)


def _fold(raw: Mapping[str, object], place: Place) -> Fold:
    closed(raw, ("each", "at", "order"), place)
    if "at" not in raw or "order" not in raw:
        raise Fault(
            "is no fold", 'write { each = "/outputs", at = "/status", order = ["failed", "done"] }'
        )
    order = place.at("order").read(LITERALS, raw["order"])
    if len(set(order)) < len(order):
        place.at("order").complain("names a word twice", "keep the worse place of the two")
    return Fold(
        place.at("each").read(POINTER, raw["each"]),
        place.at("at").read(POINTER, raw["at"]),
        order,
    )


def _state_read(raw: object, place: Place) -> Read:
    if is_table(raw):
        return _fold(raw, place) if "each" in raw else _test(raw, place)
    return SOURCE.read(raw, place)


_READ: Kind[Read] = Kind(
    _state_read,
    Pointer("", ()),
    {
        "anyOf": [
            SOURCE.schema,
            TEST.schema,
            {
                "type": "object",
                "required": ["each", "at", "order"],
                "additionalProperties": False,
                "properties": {
                    "each": POINTER.schema,
                    "at": POINTER.schema,
                    "order": several(LITERAL).schema,
                },
            },
        ]
    },
)
READS = one_or_several(_READ)
ROWS = several(LITERALS)
"""Rows of the state table: a word each, or a list of as many words as there are reads."""

# --- conditions -----------------------------------------------------------------------------


def _condition(raw: object, place: Place) -> Condition:
    if is_table(raw):
        if len(raw) == 1 and isinstance(contains := raw.get("contains"), str) and contains:
            return Condition(contains=contains)
        if len(raw) == 1 and isinstance(present := raw.get("present"), bool):
            return Condition(present=present)
        raise Fault("is no condition", 'write { contains = "…" } or { present = true }')
    if is_list(raw):
        return Condition(values=LITERALS.read(raw, place))
    if isinstance(raw, str) and "{" in raw:
        return Condition(template=parse_template(raw))
    return Condition(values=(exact(raw),))


_CONDITION: Kind[Condition] = Kind(
    _condition,
    Condition(present=True),
    {
        "anyOf": [
            LITERALS.schema,
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {
                    "contains": {"type": "string", "minLength": 1},
                    "present": {"type": "boolean"},
                },
            },
        ]
    },
)
_TERMS = pairs(parse_source, _CONDITION)


def _match(raw: object, place: Place) -> Match:
    if not (terms := _TERMS.read(raw, place)):
        raise Fault("asks for nothing", 'write { "/pointer" = "value" }')
    return Match(terms)


MATCH: Kind[Match] = Kind(_match, Match(()), {**_TERMS.schema, "minProperties": 1})

_TYPE = choice("present", "url", "string", "integer", "non_empty")
_TYPES = pairs(parse_source, _TYPE)
_PRESENT = several(SOURCE)


def _requirements(raw: object, place: Place) -> tuple[Requirement, ...]:
    if is_list(raw):
        return tuple(Requirement(source, "present") for source in _PRESENT.read(raw, place))
    return tuple(Requirement(source, kind) for source, kind in _TYPES.read(raw, place))


REQUIRE: Kind[tuple[Requirement, ...]] = Kind(
    _requirements, (), {"anyOf": [_PRESENT.schema, _TYPES.schema]}
)


def _statuses(raw: object, place: Place) -> frozenset[int]:
    if is_list(raw):
        return frozenset[int]().union(
            *(place.at(index).read(STATUSES, item) for index, item in enumerate(raw))
        )
    if isinstance(raw, int) and not isinstance(raw, bool) and 100 <= raw <= 599:
        return frozenset({raw})
    if isinstance(raw, str) and re.fullmatch("[1-5]xx", raw):
        return frozenset(range(int(raw[0]) * 100, int(raw[0]) * 100 + 100))
    raise Fault("is no HTTP status", 'write a number such as 404, a list of numbers, or "5xx"')


_STATUS_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 100, "maximum": 599},
        {"type": "string", "pattern": "^[1-5]xx$"},
    ]
}
STATUSES: Kind[frozenset[int]] = Kind(
    _statuses,
    frozenset({200}),
    {"anyOf": [*_STATUS_SCHEMA["anyOf"], {"type": "array", "items": _STATUS_SCHEMA}]},
)
