"""Values of provider answers: one strict JSON document, a place in it, and its text.

Numbers stay what the wire said (`ports.Number`): an id is an int64, and a double would change it.
Nothing here knows a contract's meaning; `reading` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Final, cast

from forbear.rules.contract import Pointer, Select
from forbear.rules.inert import inert
from forbear.rules.ports import Json, Number

MAX_DEPTH = 64
MAX_NUMBER = 128


class Unreadable(ValueError):
    """A body that is not one strict JSON document; the message is the plain reason."""


class Gap(Enum):
    """Why a place has no word. The value is how the gap is written in state tables and stories."""

    MISSING = "%missing"
    NULL = "%null"
    UNREADABLE = "%unreadable"
    """The body as a whole could not be read, or a tested field was of no use."""
    STRUCTURE = "%structure"
    """An object or array where a word was expected."""


MISSING: Final = Gap.MISSING


# --- decoding -------------------------------------------------------------------------------

_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)


def decode(body: bytes, content_type: str | None = None) -> Json:
    """Read a body as one JSON document (RFC 8259): UTF-8, an optional BOM, nothing else lenient.

    Raises `Unreadable`, and nothing else, for everything that two parsers could read differently
    or that would not survive being written again: NaN and infinities, numbers out of a double's
    range or over 128 characters, duplicate names, nesting over 64.
    """
    if not body.strip():
        raise Unreadable("the body is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(_unlike_json(content_type, "it is not UTF-8")) from error
    check_depth(text)
    try:
        return json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        where = f"it stops being JSON at character {error.pos}"
        raise Unreadable(_unlike_json(content_type, where)) from error


def _unlike_json(content_type: str | None, why: str) -> str:
    declared = media_type(content_type)
    return f"the body is no JSON: {why}" + (
        f" (declared {inert(declared, 60)})" if declared else ""
    )


def media_type(content_type: str | None) -> str:
    """The bare type/subtype of a Content-Type field, in lower case; empty if there is none."""
    return (content_type or "").partition(";")[0].strip().lower()


def says_json(content_type: str | None) -> bool:
    """Whether a Content-Type names JSON or one of its `+json` formats (RFC 6839)."""
    declared = media_type(content_type)
    return declared in {"application/json", "text/json"} or declared.endswith("+json")


def check_depth(text: str) -> None:
    """Raises `Unreadable` for JSON that is nested over 64."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _BRACKETS.finditer(text):
        match token[0][0]:
            case "[" | "{":
                depth += 1
                if depth > MAX_DEPTH:
                    raise Unreadable(f"the body is nested deeper than {MAX_DEPTH}")
            case "]" | "}":
                depth -= 1
            case _:
                pass


def _number(text: str) -> Number:
    if len(text) > MAX_NUMBER:
        raise Unreadable(f"a number has more than {MAX_NUMBER} characters")
    _, _, exponent = text.lower().partition("e")
    # A double reaches from 4.9e-324 to 1.8e308.
    if exponent and (len(exponent) > 4 or not -324 <= Decimal(text).adjusted() <= 308):
        raise Unreadable("a number is out of range")
    return Number(text)


def _refuse_constant(name: str) -> Json:
    raise Unreadable(f"{name} is no JSON number")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("an object has the same name twice")
    return found


# --- places ---------------------------------------------------------------------------------


def members(value: Json) -> Mapping[str, Json] | None:
    """The value as an object, or None."""
    return cast(Mapping[str, Json], value) if isinstance(value, dict) else None


def elements(value: Json) -> Sequence[Json] | None:
    """The value as an array, or None."""
    return cast(Sequence[Json], value) if isinstance(value, (list, tuple)) else None


def locate(body: Json, pointer: Pointer) -> Json:
    """What stands at a pointer: a value, None for `null`, `MISSING` if the place does not exist."""
    found = body
    for step in pointer.steps:
        if isinstance(found, Gap):
            return found
        found = _enter(found, step)
    return found


def _enter(value: Json, step: str | Select) -> Json:
    array = elements(value)
    if isinstance(step, Select):
        for element in array or ():
            held = members(element)
            if held is not None and text_of(held.get(step.key)) == step.value:
                return element
        return MISSING
    if array is not None:
        # RFC 6901 section 4: ASCII digits without a leading zero.
        index = int(step) if re.fullmatch("0|[1-9][0-9]{0,8}", step) else len(array)
        return array[index] if index < len(array) else MISSING
    held = members(value)
    return MISSING if held is None else held.get(step, MISSING)


def is_present(value: Json) -> bool:
    """There and not null; `""`, `[]`, `{}` and `0` are present."""
    return value is not None and not isinstance(value, Gap)


# --- text -----------------------------------------------------------------------------------


def text_of(value: Json) -> str | None:
    """A scalar as exact text: `true`, `false`, numbers as written, strings as they are.

    None for `null`, gaps, objects, arrays and what is no finite number. Lone surrogates, which no
    store can hold, become `?`.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value.encode("utf-8", "replace").decode()
        case int() | float() | Decimal():
            number = decimal_of(value)
            return None if number is None else number_text(number)
        case _:
            return None


def decimal_of(value: Json) -> Decimal | None:
    """A number as its exact decimal value; floats by their shortest text. None if it is none."""
    match value:
        case bool():
            return None
        case Number():
            number = Decimal(str(value))
        case int():
            number = Decimal(value)
        case float():
            number = Decimal(repr(value))
        case Decimal():
            number = value
        case _:
            return None
    return number if number.is_finite() else None


def number_text(number: Decimal) -> str:
    """The shortest exact decimal text, laid out as ECMAScript does: 1.0 is `1`, 1e21 is `1e+21`.

    RFC 8785 section 3.2.2.3 without its rounding to a double: equal numbers give equal text, and
    different ones never do.
    """
    sign, digits, exponent = number.as_tuple()
    coefficient = "".join(map(str, digits)).lstrip("0")
    significant = coefficient.rstrip("0")
    if not significant or not isinstance(exponent, int):
        return "0"
    point = exponent + len(coefficient)
    minus = "-" if sign else ""
    length = len(significant)
    if length <= point <= 21:
        return minus + significant + "0" * (point - length)
    if 0 < point <= 21:
        return f"{minus}{significant[:point]}.{significant[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{significant}"
    fraction = f".{significant[1:]}" if length > 1 else ""
    return f"{minus}{significant[0]}{fraction}e{point - 1:+d}"
