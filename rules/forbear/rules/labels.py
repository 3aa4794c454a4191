"""Labels: what a person sees of an action, from the arguments that the contract shows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

from forbear.rules.contract import Placeholder, Template
from forbear.rules.facts import Facts, is_absent, value_of
from forbear.rules.inert import inert
from forbear.rules.ports import Json
from forbear.rules.requests import json_text
from forbear.rules.timing import read_rfc3339
from forbear.rules.values import decimal_of, number_text, text_of

MAX_LABEL = 120
MAX_VALUE = 48
"""One long argument must not push the others out of sight."""


def label(template: Template, facts: Facts) -> str:
    """The label on one line of at most 120 characters, inert; what is absent is `?`.

    Objects and arrays are shown as compact JSON, cut like every long value. A label is what a
    person approves, so amounts of money are never rounded, and minor units of what is no currency
    are called minor units.
    """
    parts = (
        part if isinstance(part, str) else inert(_shown(part, facts), MAX_VALUE)
        for part in template.parts
    )
    return inert("".join(parts), MAX_LABEL)


def _shown(placeholder: Placeholder, facts: Facts) -> str:
    value = value_of(placeholder, facts)
    text = text_of(value)
    if text is None:
        return _structure(value)
    style = placeholder.format or ""
    if found := re.fullmatch(r"minor\((.+)\)", style):
        return _money(value, text, text_of(facts.arguments.get(found[1])) or "?")
    match style:
        case "bytes":
            return _size(value, text)
        case "time":
            return _time(value, text)
        case _:
            return text


def _structure(value: Json) -> str:
    if is_absent(value):
        return "?"
    try:
        return json_text(value)
    except ValueError:  # too deep to be sent, either
        return "?"


# ISO 4217: every other currency has two decimals.
_DECIMALS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_DECIMALS_OF = {code: digits for digits, codes in _DECIMALS.items() for code in codes.split()}


def _money(value: Json, text: str, currency: str) -> str:
    """An amount of minor units in its currency: 12500 and EUR give `125.00 EUR`."""
    amount = _number(value, text)
    code = currency.upper()
    if amount is None or re.fullmatch("[A-Z]{3}", code) is None:
        return f"{text} minor units of {currency}"
    digits = _DECIMALS_OF.get(code, 2)
    major = amount.scaleb(-digits)
    exact = number_text(major)
    if "e" in exact:
        return f"{text} minor units of {code}"
    whole, _, fraction = exact.partition(".")
    fraction = fraction.ljust(digits, "0")
    return f"{whole}.{fraction} {code}" if fraction else f"{whole} {code}"


def _number(value: Json, text: str) -> Decimal | None:
    """A number, or text that is a short plain number."""
    number = decimal_of(value)
    if number is None and re.fullmatch(r"-?[0-9]{1,20}(\.[0-9]{1,6})?", text):
        number = Decimal(text)
    # Decimal's arithmetic is exact up to 28 digits only.
    return None if number is None or len(number.as_tuple().digits) > 26 else number


def _size(value: Json, text: str) -> str:
    """A number of bytes: 1536 gives `1.5 kB`, in steps of a thousand."""
    number = _number(value, text)
    if number is None or number < 0 or number >= Decimal(10) ** 18:
        return f"{text} bytes"
    if number < 1000:
        return f"{number_text(number)} B"
    power = min(number.adjusted() // 3, 5)
    rounded = number_text(round(number.scaleb(-3 * power), 1))
    return f"{rounded} {' kMGTP'[power]}B"


def _time(value: Json, text: str) -> str:
    """An RFC 3339 time, or epoch seconds or milliseconds, in UTC to the minute."""
    instant = read_rfc3339(text)
    number = _number(value, text)
    if instant is None and number is not None and 0 <= number < 10**14:
        # Seconds reach 10**11 in the year 5138.
        instant = int(number * 1000 if number < 10**11 else number)
    if instant is None or not 0 <= instant < 253_402_300_800_000:
        return text
    return datetime.fromtimestamp(instant // 1000, UTC).strftime("%Y-%m-%d %H:%MZ")
