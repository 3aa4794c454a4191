"""From what a person wrote to a wish: times and numbers as they are written by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite

from forbear.rules.contract import Extension
from forbear.rules.decisions import Wish
from forbear.rules.escalations import length
from forbear.rules.model import Option
from forbear.rules.notation import parse_duration
from forbear.rules.timing import read_rfc3339


class BadWish(ValueError):
    """What was written is no wish; the message names the wrong word and the right ones."""


def wish_of(
    now: int,
    option: str,
    *,
    minutes: float | None = None,
    requests: int | None = None,
    until: str | None = None,
    treat_as: str | None = None,
    reference: str | None = None,
    beyond_contract: bool = False,
) -> Wish:
    """The wish as of `now` (epoch ms).

    Raises:
        BadWish
    """
    name = option.replace("-", "_")
    if minutes is not None and not isfinite(minutes * 60_000):
        raise BadWish(f"--minutes {minutes} is no length of time; write a number above 0.")
    if name not in set(Option):
        raise BadWish(f"There is no option {option!r}; `forbear show` lists those of the case.")
    _refuse_strangers(
        Option(name),
        {
            "--minutes": (minutes, Option.EXTEND),
            "--requests": (requests, Option.EXTEND),
            "--until": (until, Option.APPROVE if name == Option.APPROVE else Option.HOLD),
            "--as": (treat_as, Option.TREAT_AS),
            "--reference": (reference, Option.CONFIRM_DONE),
            "--beyond-contract": (beyond_contract or None, Option.EXTEND),
        },
    )
    end = None if until is None else instant(until, now)
    if end is not None and end <= now:
        raise BadWish(f"--until {until} is over already; name a time to come.")
    return Wish(
        option=Option(name),
        extend_by=None if minutes is None else round(minutes * 60_000),
        requests=requests,
        until=end,
        treat_as=treat_as,
        reference=reference,
        beyond_contract=beyond_contract,
    )


def lowered(wish: Wish, granted: Extension) -> tuple[str, ...]:
    """What of a wish for an extension is more than the contract grants at once."""
    told: list[str] = []
    if wish.extend_by is not None and wish.extend_by > granted.by:
        told.append(f"--minutes lowered to {length(granted.by)}, the contract's extension")
    if wish.requests is not None and wish.requests > granted.status_requests:
        told.append(f"--requests lowered to {granted.status_requests}, the contract's extension")
    return tuple(told)


def _refuse_strangers(chosen: Option, given: dict[str, tuple[object, Option]]) -> None:
    """A parameter of another option is a mistake about what will happen; it is not ignored."""
    for name, (value, option) in given.items():
        if value is not None and option is not chosen:
            raise BadWish(f"{name} belongs to {option}, not to {chosen}; leave it out.")


def instant(text: str, now: int) -> int:
    """A point in time, epoch ms: `30m` from now, the next `14:30` UTC, or RFC 3339.

    Raises:
        BadWish
    """
    if re.fullmatch(r"[0-9]+(s|m|h|d)", text):
        return now + parse_duration(text)
    if found := re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])Z?", text):
        today = datetime.fromtimestamp(now / 1_000, UTC)
        then = today.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
        if then <= today:
            then += timedelta(days=1)
        return round(then.timestamp() * 1_000)
    full = read_rfc3339(text)
    if full is None:
        raise BadWish(
            f"--until {text!r} is no time; write 30m, 14:30 (UTC) or 2026-11-30T14:30:00Z."
        )
    return full
