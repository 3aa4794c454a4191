"""Times and delays as providers write them; every reader here is total: it never raises.

Absolute times are on the provider's clock. Its `Date` field, where it can be read, corrects for the
difference to ours; without one our own clock stands in (RFC 9110 section 6.6.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum
from typing import assert_never

from forbear.rules.contract import Unit
from forbear.rules.inert import inert

LONGEST = 10**15
"""The longest delay there is, ms (31,700 years): what is larger is read as this."""

MAX_TEXT = 128
"""Longer texts are not read as numbers or dates."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """A minimum wait the provider asked for on this answer."""

    delay: int
    """Milliseconds from the receipt of the answer; 0 if the stated time is past."""
    past: bool = False
    """A date in the past, or zero: a floor counts, not an immediate repeat."""


class Rejection(StrEnum):
    """Why a hint is not followed."""

    UNREADABLE = "unreadable"
    NEGATIVE = "negative"
    PAST = "past"
    """Now or earlier; a delay of zero too."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One poll hint as read: accepted values carry `delay`, unreadable ones the reason."""

    text: str
    """Source and value, for the story; bounded."""
    delay: int | None
    rejected: str | None = None
    """A `Rejection`: `unreadable`, `negative`, `past`."""


# --- HTTP-date ------------------------------------------------------------------------------

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_IMF_FIXDATE = re.compile(f"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT")
_RFC850 = re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT")
_ASCTIME = re.compile(f"{_DAY} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})")


def read_http_date(text: str, now: int) -> int | None:
    """An HTTP-date in any of its three forms (RFC 9110 section 5.6.7), epoch ms.

    Case-sensitive; second 60 is the next minute's first; the name of the day is not compared with
    the date. A two-digit year is the latest that is not more than 50 years after `now` (epoch ms).
    """
    found = _IMF_FIXDATE.fullmatch(text) or _ASCTIME.fullmatch(text) or _RFC850.fullmatch(text)
    if found is None:
        return None
    month = _MONTHS.index(found["month"]) + 1
    day, hour, minute, second = (int(found[part]) for part in ("day", "hour", "minute", "second"))
    year = int(found["year"])
    if len(found["year"]) == 2:
        year = _full_year(year, (month, day, hour, minute, second), now)
    return _epoch(year, month, day, hour, minute, second)


def _full_year(two_digits: int, rest: tuple[int, int, int, int, int], now: int) -> int:
    today = _utc(now)
    latest = (today.year + 50, today.month, today.day, today.hour, today.minute, today.second)
    year = (today.year // 100 + 1) * 100 + two_digits
    while (year, *rest) > latest:
        year -= 100
    return year


def _utc(instant: int) -> datetime:
    """`instant` as a calendar time, held inside the years that have one."""
    return datetime.fromtimestamp(min(max(instant, 0), 253_402_300_799_000) // 1000, UTC)


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    """Epoch ms of a calendar time in UTC; None if there is no such time. Second 60 is allowed."""
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
    except ValueError:
        return None
    return (int(moment.timestamp()) + leap) * 1000


# --- Retry-After ----------------------------------------------------------------------------


def retry_after(
    value: str | None, date: str | None, now: int
) -> tuple[RetryAfter | None, str | None]:
    """`Retry-After` (RFC 9110 section 10.2.3) and, where it could not be read, what was odd.

    Digits are seconds from receipt whatever the clocks say; any number of them is a delay, at most
    `LONGEST`. A date counts from the answer's own `Date`. Anything else, also a list in one field,
    is unreadable: no wait is made up for it.
    """
    if value is None:
        return None, None
    text = value.strip(" \t")
    if re.fullmatch("[0-9]+", text):
        delay = _whole_seconds(text)
        return RetryAfter(delay, past=delay == 0), None
    instant = read_http_date(text, now)
    if instant is None:
        return None, f"Retry-After {inert(text, 60)!r} is neither seconds nor an HTTP-date"
    delay = max(0, instant - server_now(date, now))
    return RetryAfter(delay, past=delay == 0), None


def longest_wait(
    values: Sequence[str], date: str | None, now: int
) -> tuple[RetryAfter | None, tuple[str, ...]]:
    """The longest readable `Retry-After` of an answer, and what was odd.

    RFC 9110 allows one. Where a gateway adds its own, waiting for the longer obeys both.
    """
    read = [retry_after(value, date, now) for value in values]
    asked = [found for found, _ in read if found is not None]
    odd = tuple(problem for _, problem in read if problem is not None)
    if len(asked) > 1:
        odd = (*odd, f"{len(asked)} Retry-After fields; the longer counts")
    return max(asked, key=lambda one: one.delay, default=None), odd


def _whole_seconds(digits: str) -> int:
    significant = digits.lstrip("0")
    # Length before value: int() of unbounded digits is slow, and Python refuses it.
    return LONGEST if len(significant) > 12 else int(significant or "0") * 1000


def server_now(date: str | None, now: int) -> int:
    """The provider's clock at the answer, epoch ms: its `Date` field, or `now` without one."""
    stated = read_http_date(date.strip(" \t"), now) if date is not None else None
    return now if stated is None else stated


# --- hints and expiries ---------------------------------------------------------------------


def read_hint(text: str, unit: Unit, now: int, date: str | None) -> int | Rejection:
    """A poll hint as a delay in ms from `now`, rounded up, or why it is rejected.

    An accepted delay is positive and at most `LONGEST`; whether it fits a deadline, floor or
    ceiling is for the caller.
    """
    delay = _delay(text, unit, now, date)
    if delay is None:
        return Rejection.UNREADABLE
    if delay <= 0:
        is_absolute = unit in _ABSOLUTE or unit is Unit.RETRY_AFTER
        return Rejection.NEGATIVE if delay < 0 and not is_absolute else Rejection.PAST
    return delay


def read_instant(text: str, unit: Unit, now: int, date: str | None) -> int | None:
    """A stated time, such as an expiry, as epoch ms on our clock; None if it cannot be read.

    Times in the past are times. Relative units count from `now`; a negative one says nothing.
    """
    delay = _delay(text, unit, now, date)
    if delay is None or (delay < 0 and unit not in _ABSOLUTE):
        return None
    return now + delay


_ABSOLUTE = frozenset({Unit.EPOCH, Unit.EPOCH_MS, Unit.RFC3339, Unit.HTTP_DATE})


def _delay(text: str, unit: Unit, now: int, date: str | None) -> int | None:
    """Milliseconds from now, negative for the past, held inside ±`LONGEST`."""
    text = text.strip(" \t")
    if unit is Unit.RETRY_AFTER:
        found, _ = retry_after(text, date, now)
        return None if found is None else found.delay
    if len(text) > MAX_TEXT:
        return None
    match unit:
        case Unit.SECONDS:
            return _milliseconds(_decimal(text), 1000)
        case Unit.MILLISECONDS:
            return _milliseconds(_decimal(text), 1)
        case Unit.GO_DURATION:
            return _read_go_duration(text)
        case Unit.ISO8601:
            return _read_iso8601(text)
        case Unit.EPOCH:
            instant = _positive(_milliseconds(_decimal(text), 1000))
        case Unit.EPOCH_MS:
            instant = _positive(_milliseconds(_decimal(text), 1))
        case Unit.RFC3339:
            instant = read_rfc3339(text)
        case Unit.HTTP_DATE:
            instant = read_http_date(text, now)
        case _:
            assert_never(unit)
    return None if instant is None else instant - server_now(date, now)


def _positive(instant: int | None) -> int | None:
    """Epochs of zero and below are placeholders, not times."""
    return instant if instant is not None and instant > 0 else None


_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _milliseconds(amount: Decimal | None, factor: int) -> int | None:
    """`amount · factor` as whole ms, rounded up so that nothing is early; saturates."""
    if amount is None:
        return None
    # The texts are bounded to 128 digits, so that this precision makes the product exact.
    product = Context(prec=200).multiply(amount, Decimal(factor))
    if abs(product) >= LONGEST:
        return LONGEST if product > 0 else -LONGEST
    return int(product.to_integral_value(ROUND_CEILING))


_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


def read_rfc3339(text: str) -> int | None:
    """An RFC 3339 date-time with its offset, epoch ms, fractions cut. Nothing looser is read."""
    found = _RFC3339.fullmatch(text) if len(text) <= MAX_TEXT else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    instant = _epoch(year, month, day, hour, minute, second)
    if instant is None:
        return None
    offset = 0
    if found[8]:
        hours, minutes = int(found[9]), int(found[10])
        if hours > 23 or minutes > 59:
            return None
        offset = (hours * 60 + minutes) * 60_000 * (-1 if found[8] == "-" else 1)
    return instant + int((found[7] or "0")[:3].ljust(3, "0")) - offset


_GO_UNITS = {
    "ns": Decimal("0.000001"),
    "us": Decimal("0.001"),
    "µs": Decimal("0.001"),
    "μs": Decimal("0.001"),
    "ms": Decimal(1),
    "s": Decimal(1000),
    "m": Decimal(60_000),
    "h": Decimal(3_600_000),
}
_GO_TERM = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_GO_DURATION = re.compile(rf"([+-]?)(0|(?:{_GO_TERM})+)")


def _read_go_duration(text: str) -> int | None:
    """Go's `time.Duration` text: `6m0s`, `1.5h`, `12ms`, `0`."""
    found = _GO_DURATION.fullmatch(text)
    if found is None:
        return None
    terms = ((Decimal(n), _GO_UNITS[unit]) for n, unit in re.findall(_GO_TERM, found[2]))
    return _sum(terms, negative=found[1] == "-")


_ISO_UNITS = {
    "W": Decimal(604_800_000),
    "D": Decimal(86_400_000),
    "H": Decimal(3_600_000),
    "M": Decimal(60_000),
    "S": Decimal(1000),
}
_ISO_NUMBER = r"[0-9]+(?:[.,][0-9]+)?"
_ISO8601 = re.compile(
    rf"([+-]?)P(?=.)({_ISO_NUMBER}W|(?:{_ISO_NUMBER}D)?"
    rf"(?:T(?=.)(?:{_ISO_NUMBER}H)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}S)?)?)"
)


def _read_iso8601(text: str) -> int | None:
    """An ISO 8601 duration of weeks, days and times. Years and months have no fixed length."""
    found = _ISO8601.fullmatch(text)
    if found is None:
        return None
    terms = (
        (Decimal(amount.replace(",", ".")), _ISO_UNITS[unit])
        for amount, unit in re.findall(rf"({_ISO_NUMBER})([WDHMS])", found[2])
    )
    return _sum(terms, negative=found[1] == "-")


def _sum(terms: Iterable[tuple[Decimal, Decimal]], *, negative: bool) -> int | None:
    exact = Context(prec=300)
    total = Decimal(0)
    for amount, unit in terms:
        total = exact.add(total, exact.multiply(amount, unit))
    return _milliseconds(exact.minus(total) if negative else total, 1)
