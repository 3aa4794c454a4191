"""Dates and delays as providers write them."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.contract import Unit
from forbear.rules.timing import (
    LONGEST,
    Rejection,
    RetryAfter,
    longest_wait,
    read_hint,
    read_http_date,
    read_instant,
    read_rfc3339,
    retry_after,
)

NOW = 1_796_040_000_000
"""2026-11-30 12:00:00 UTC."""

texts = st.text(max_size=60) | st.from_regex(r"[-+0-9.,:eEPTWDHMSZGMhmsuµn /A-Za-z]{0,40}")
moments = st.integers(631_152_000, 3_155_760_000).map(
    lambda seconds: datetime.fromtimestamp(seconds, UTC)
)
"""1990 to 2069: where two digits of a year can only mean one, seen from `NOW`."""


def epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


# --- HTTP-date ------------------------------------------------------------------------------


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ],
)
def test_the_three_forms_of_a_date_are_the_same_instant(text: str) -> None:
    assert read_http_date(text, NOW) == epoch("1994-11-06T08:49:37+00:00")


@given(moments)
def test_every_instant_survives_all_three_forms(moment: datetime) -> None:
    long_day = moment.strftime("%A, %d-%b-%y %H:%M:%S GMT")
    asctime = f"{moment:%a %b} {moment.day:2d} {moment:%H:%M:%S %Y}"
    for text in (format_datetime(moment, usegmt=True), long_day, asctime):
        assert read_http_date(text, NOW) == milliseconds(moment)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("text", "instant"),
    [
        pytest.param("Sunday, 29-Nov-76 12:00:00 GMT", "2076-11-29T12:00:00Z", id="RA-16 ahead"),
        pytest.param("Wednesday, 01-Dec-76 12:00:00 GMT", "1976-12-01T12:00:00Z", id="RA-16 past"),
        pytest.param("Monday, 30-Nov-26 12:01:00 GMT", "2026-11-30T12:01:00Z", id="RA-16 near"),
        pytest.param("Monday, 30-Nov-76 12:00:00 GMT", "2076-11-30T12:00:00Z", id="just 50 years"),
        pytest.param("Monday, 30-Nov-76 12:00:01 GMT", "1976-11-30T12:00:01Z", id="a second more"),
    ],
)
def test_a_two_digit_year_is_at_most_fifty_years_ahead(text: str, instant: str) -> None:
    assert read_http_date(text, NOW) == epoch(instant)


def test_a_two_digit_year_reaches_over_the_end_of_a_century() -> None:
    in_2090 = epoch("2090-01-01T00:00:00Z")
    read = read_http_date("Monday, 01-Jan-10 00:00:00 GMT", in_2090)
    assert read == epoch("2110-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("Mon, 30 Nov 2026 11:59:60 GMT", "2026-11-30T12:00:00Z"),
        ("Tue, 30 Nov 2026 12:00:00 GMT", "2026-11-30T12:00:00Z"),
        ("Thu, 29 Feb 2024 00:00:00 GMT", "2024-02-29T00:00:00Z"),
    ],
    ids=["a leap second", "a wrong day name", "29 February"],
)
def test_odd_but_lawful_dates_are_read(text: str, same_as: str) -> None:
    assert read_http_date(text, NOW) == epoch(same_as)


@pytest.mark.parametrize(
    "text",
    [
        "sun, 06 nov 1994 08:49:37 gmt",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 30 Feb 2026 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT ",
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 06 Nov \u0661\u0669\u0669\u0664 08:49:37 GMT",
    ],
)
def test_anything_looser_is_no_date(text: str) -> None:
    assert read_http_date(text, NOW) is None


@given(texts, st.integers())
def test_reading_a_date_never_raises(text: str, now: int) -> None:
    read = read_http_date(text, now)
    assert read is None or isinstance(read, int)


# --- Retry-After ----------------------------------------------------------------------------


def wait(value: str | None, date: str | None = None) -> RetryAfter | None:
    return retry_after(value, date, NOW)[0]


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("value", "delay"),
    [
        pytest.param("120", 120_000, id="seconds"),
        pytest.param(" 61 ", 61_000, id="RA-13 just above a cap of 60"),
        pytest.param("3600", 3_600_000, id="RA-04 an hour"),
        pytest.param("86400", 86_400_000, id="RA-12 a day"),
        pytest.param("Mon, 30 Nov 2026 12:02:00 GMT", 120_000, id="RA-12 a date"),
        pytest.param("0000000000000000000000005", 5_000, id="leading zeros"),
        pytest.param("9999999999", 9_999_999_999_000, id="RA-05 ten nines"),
        pytest.param("9" * 25, LONGEST, id="RA-05 25 nines"),
        pytest.param("9" * 5_000, LONGEST, id="RA-09 5000 nines"),
    ],
)
def test_a_stated_wait_is_read_in_full(value: str, delay: int) -> None:
    assert wait(value) == RetryAfter(delay)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("1m0s", id="RA-01"),
        pytest.param("-1", id="RA-02 negative"),
        pytest.param("+5", id="RA-02 sign"),
        pytest.param("0x10", id="RA-02 hexadecimal"),
        pytest.param("1e3", id="RA-02 exponent"),
        pytest.param("\u0663", id="RA-02 Arabic digit"),
        pytest.param("\uff11\uff12", id="RA-02 full-width digits"),
        pytest.param("0.493", id="RA-06"),
        pytest.param("Wed, 99 Foo 2026 00:00:00 GMT", id="RA-07"),
        pytest.param("Fri, 31 Dec 99999 23:59:59 GMT", id="RA-09"),
        pytest.param("soon", id="RA-12"),
        pytest.param("5, 120", id="a list"),
        pytest.param("", id="empty"),
    ],
)
def test_an_unreadable_wait_is_none_and_noted(value: str) -> None:
    asked, odd = retry_after(value, None, NOW)
    assert asked is None
    assert odd is not None
    assert len(odd) < 200


def test_no_field_is_nothing_odd() -> None:
    assert retry_after(None, None, NOW) == (None, None)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize("value", ["0", "Mon, 30 Nov 2026 11:59:00 GMT"], ids=["RA-10 0", "RA-10"])
def test_a_wait_that_is_over_is_told_apart_from_none(value: str) -> None:
    assert wait(value) == RetryAfter(0, past=True)


@pytest.mark.requirement("W19")
def test_RA_17_the_answers_own_date_corrects_a_wrong_clock() -> None:
    date = "Mon, 30 Nov 2026 12:00:00 GMT"
    fast = NOW + 300_000
    asked, _ = retry_after("Mon, 30 Nov 2026 12:00:30 GMT", date, fast)
    assert asked == RetryAfter(30_000)
    assert retry_after("30", date, fast)[0] == RetryAfter(30_000)


@pytest.mark.parametrize("date", [None, "yesterday", "Mon, 30 Nov 2026 12:00:00 GMT, x"])
def test_without_a_usable_date_our_clock_stands_in(date: str | None) -> None:
    assert wait("Mon, 30 Nov 2026 12:00:30 GMT", date) == RetryAfter(30_000)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("values", "wait"),
    [
        (("5", "120"), 120_000),
        (("120", "5"), 120_000),
        (("soon", "5"), 5_000),
        (("Mon, 30 Nov 2026 12:00:30 GMT", "5"), 30_000),
        (("0", "7"), 7_000),
    ],
)
def test_of_several_fields_the_longest_wait_counts(values: tuple[str, ...], wait: int) -> None:
    asked, odd = longest_wait(values, "Mon, 30 Nov 2026 12:00:00 GMT", NOW)
    assert asked == RetryAfter(wait)
    assert len(odd) == 1


@given(texts, texts | st.none(), st.integers(0, 10**14))
def test_retry_after_never_raises_and_never_goes_backwards(
    value: str, date: str | None, now: int
) -> None:
    asked, odd = retry_after(value, date, now)
    assert (asked is None) == (odd is not None)
    assert asked is None or 0 <= asked.delay <= LONGEST


@given(st.integers(0, 10**11))
def test_every_number_of_seconds_is_read_exactly(seconds: int) -> None:
    assert wait(str(seconds)) == RetryAfter(seconds * 1000, past=seconds == 0)


# --- hints ----------------------------------------------------------------------------------


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("text", "unit", "delay"),
    [
        ("5", Unit.SECONDS, 5_000),
        ("2.0", Unit.SECONDS, 2_000),
        ("0.0001", Unit.SECONDS, 1),
        ("1.5e1", Unit.SECONDS, 15_000),
        ("1500", Unit.MILLISECONDS, 1_500),
        ("1500.2", Unit.MILLISECONDS, 1_501),
        ("1e9999", Unit.SECONDS, LONGEST),
        ("1796040030", Unit.EPOCH, 30_000),
        ("1796040030.25", Unit.EPOCH, 30_250),
        ("1796040030250", Unit.EPOCH_MS, 30_250),
        ("2026-11-30T12:00:30Z", Unit.RFC3339, 30_000),
        ("2026-11-30T13:00:30.5+01:00", Unit.RFC3339, 30_500),
        ("Mon, 30 Nov 2026 12:00:30 GMT", Unit.HTTP_DATE, 30_000),
        ("30", Unit.RETRY_AFTER, 30_000),
        ("6m0s", Unit.GO_DURATION, 360_000),
        ("1.5h", Unit.GO_DURATION, 5_400_000),
        ("12ms", Unit.GO_DURATION, 12),
        ("250µs", Unit.GO_DURATION, 1),
        ("PT1H30M", Unit.ISO8601, 5_400_000),
        ("P1DT0,5S", Unit.ISO8601, 86_400_500),
        ("P2W", Unit.ISO8601, 1_209_600_000),
    ],
)
def test_hints_of_every_unit_become_milliseconds(text: str, unit: Unit, delay: int) -> None:
    assert read_hint(text, unit, NOW, None) == delay


@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("text", "unit", "why"),
    [
        ("-5", Unit.SECONDS, Rejection.NEGATIVE),
        ("-1", Unit.MILLISECONDS, Rejection.NEGATIVE),
        ("-5s", Unit.GO_DURATION, Rejection.NEGATIVE),
        ("-PT5S", Unit.ISO8601, Rejection.NEGATIVE),
        ("0", Unit.SECONDS, Rejection.PAST),
        ("0", Unit.GO_DURATION, Rejection.PAST),
        ("2026-11-30T11:59:59Z", Unit.RFC3339, Rejection.PAST),
        ("1796039999", Unit.EPOCH, Rejection.PAST),
        ("Mon, 30 Nov 2026 11:00:00 GMT", Unit.RETRY_AFTER, Rejection.PAST),
        ("soon", Unit.SECONDS, Rejection.UNREADABLE),
        ("NaN", Unit.SECONDS, Rejection.UNREADABLE),
        ("Infinity", Unit.SECONDS, Rejection.UNREADABLE),
        ("1_000", Unit.SECONDS, Rejection.UNREADABLE),
        ("\u0663", Unit.SECONDS, Rejection.UNREADABLE),
        ("9" * 200, Unit.SECONDS, Rejection.UNREADABLE),
        ("0", Unit.EPOCH, Rejection.UNREADABLE),
        ("-1", Unit.EPOCH, Rejection.UNREADABLE),
        ("2026-11-30 12:00:30Z", Unit.RFC3339, Rejection.UNREADABLE),
        ("2026-11-30T12:00:30", Unit.RFC3339, Rejection.UNREADABLE),
        ("5", Unit.GO_DURATION, Rejection.UNREADABLE),
        ("5s ", Unit.ISO8601, Rejection.UNREADABLE),
        ("P", Unit.ISO8601, Rejection.UNREADABLE),
        ("PT", Unit.ISO8601, Rejection.UNREADABLE),
        ("P1M", Unit.ISO8601, Rejection.UNREADABLE),
        ("P1Y", Unit.ISO8601, Rejection.UNREADABLE),
    ],
)
def test_hints_that_are_not_followed_say_why(text: str, unit: Unit, why: Rejection) -> None:
    assert read_hint(text, unit, NOW, None) is why


@pytest.mark.requirement("W10")
@given(texts, st.sampled_from(Unit), st.integers(0, 10**14), texts | st.none())
def test_reading_a_hint_never_raises(text: str, unit: Unit, now: int, date: str | None) -> None:
    hint = read_hint(text, unit, now, date)
    assert isinstance(hint, Rejection) or 0 < hint <= LONGEST
    instant = read_instant(text, unit, now, date)
    assert instant is None or isinstance(instant, int)


@given(st.integers(1, 10**9), st.sampled_from(["s", "m", "h"]))
def test_whole_go_durations_are_exact(amount: int, unit: str) -> None:
    factor = {"s": 1_000, "m": 60_000, "h": 3_600_000}[unit]
    expected = min(amount * factor, LONGEST)
    assert read_hint(f"{amount}{unit}", Unit.GO_DURATION, NOW, None) == expected


@given(moments, st.integers(-14 * 60, 14 * 60))
def test_rfc3339_is_read_in_every_offset(moment: datetime, offset: int) -> None:
    sign = "-" if offset < 0 else "+"
    hours, minutes = divmod(abs(offset), 60)
    text = f"{moment:%Y-%m-%dT%H:%M:%S}{sign}{hours:02d}:{minutes:02d}"
    assert read_rfc3339(text) == milliseconds(moment) - offset * 60_000


# --- instants -------------------------------------------------------------------------------


def test_an_expiry_counts_on_our_clock() -> None:
    date = "Mon, 30 Nov 2026 12:05:00 GMT"
    expiry = read_instant("2026-11-30T12:06:00Z", Unit.RFC3339, NOW, date)
    assert expiry == NOW + 60_000


def test_an_expiry_in_the_past_is_still_a_time() -> None:
    assert read_instant("2026-11-30T11:00:00Z", Unit.RFC3339, NOW, None) == NOW - 3_600_000


def test_a_relative_expiry_counts_from_now_and_a_negative_one_says_nothing() -> None:
    assert read_instant("90", Unit.SECONDS, NOW, None) == NOW + 90_000
    assert read_instant("-90", Unit.SECONDS, NOW, None) is None
