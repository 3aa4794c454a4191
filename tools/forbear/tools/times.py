"""Stored times as text: for a sentence, and for a field."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST_SECOND = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())


def clock_time(at: int, as_of: int) -> str:
    """`10:58:02Z`, with the date before it if it is not the day of `as_of`."""
    then, now = _utc(at), _utc(as_of)
    return f"{then:%H:%M:%SZ}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%SZ}"


def rfc3339(at: int) -> str:
    """`2026-11-30T10:20:14Z`; fractions of a second are cut off."""
    return f"{_utc(at):%Y-%m-%dT%H:%M:%SZ}"


def whole_second(at: int) -> int:
    """The first whole second that is not before `at`: a time to wait for, once it is shown."""
    return at + -at % 1000


def _utc(at: int) -> datetime:
    """A stored time; one outside the calendar is shown as its nearest end."""
    return datetime.fromtimestamp(min(max(at // 1000, 0), _LAST_SECOND), UTC)
