"""`stats`: how good the waiting was, in five measures."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.audit import moment
from forbear.server.cli.home import NOBODY, is_new, opened, remark_if_nobody_sends, run, settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import remark, say, say_json

if TYPE_CHECKING:
    from forbear.storage.figures import Course
    from forbear.storage.store import Store

HELP = "\n\n".join(
    (
        "Say how good the waiting was: what the operations of a time came to, and at what cost.",
        "OPERATIONS were stored in that time. Concluded are those that are over or with a person "
        "(an open case has a closed list of options), as a share of all but those still under way "
        "within their deadline; what is neither is overdue.",
        "GUIDANCE is each Retry-After and poll hint in an answer of that time. It is obeyed if "
        "nothing was sent before the time it names: by the operation, and after a 429 with "
        "Retry-After by any operation of its scope. Hints that were unusable, or that the contract "
        "or a person overruled, are counted apart.",
        "REQUESTS SAVED were asked for and did not leave: the same job or write was there "
        "(joined), the same read was under way (coalesced) or had just been answered (stored). "
        "Counted by whole UTC days.",
        "DECISIONS are cases that a person decided in that time, measured from opening to "
        "decision, by nearest rank.",
        "REQUESTS PER OPERATION are those that left, or may have, for the operations above.",
    )
)


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(stats)


def stats(
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="From when: 7d (ago), 2026-11-30, or with a time."),
    ] = "30d",
    as_json: AsJson = False,
) -> None:
    from forbear.server.clock import SystemClock

    home, now = settings(), SystemClock().now().wall
    begin = moment("--since", since, now)

    def tell(measures: Measures) -> None:
        if as_json:
            say_json(_as_json(measures))
        else:
            for line in _lines(measures):
                say(line)

    async def measured() -> None:
        async with opened(home) as store:
            tell(await measure(store, begin, now))
            await remark_if_nobody_sends(store)

    if is_new(home):
        tell(Measures(begin, now))
        remark(NOBODY)
    else:
        run(measured)


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured from `since` to `as_of`, epoch ms."""

    since: int
    as_of: int
    courses: Sequence[Course] = ()
    requests: Mapping[str, int] = field(default_factory=dict[str, int])
    """By provider."""
    honoured: int = 0
    declined: int = 0
    not_honoured: int = 0
    saved: Mapping[str, int] = field(default_factory=dict[str, int])
    """By how."""
    decisions: Sequence[int] = ()
    """The time that each took, ms."""

    @property
    def accepted(self) -> Counter[str]:
        """Operations by provider."""
        return _sums(self.courses, lambda one: one.provider)

    @property
    def ended(self) -> Counter[str]:
        """Operations that are over, by state."""
        return _sums(self._over, lambda one: one.state)

    @property
    def asked(self) -> int:
        return sum(one.count for one in self.courses if one.asks)

    @property
    def overdue(self) -> int:
        return sum(one.count for one in self.courses if one.overdue)

    @property
    def _over(self) -> list[Course]:
        return [one for one in self.courses if one.over]

    @property
    def concluded(self) -> float | None:
        good = self.ended.total() + self.asked
        return good / (good + self.overdue) if good + self.overdue else None

    @property
    def obeyed(self) -> float | None:
        judged = self.honoured + self.not_honoured
        return self.honoured / judged if judged else None


def _sums(courses: Sequence[Course], key: Callable[[Course], str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for one in courses:
        sums[key(one)] += one.count
    return sums


async def measure(store: Store, since: int, now: int) -> Measures:
    """The measures of a store.

    Raises:
        StoreUnavailable
    """
    from forbear.rules.quality import advice, guidance
    from forbear.storage.audit import Code
    from forbear.storage.tallies import Tally

    figures = store.figures
    sent = await figures.sent(since)
    answers = await store.read.trail(code=Code.ANSWERED, since=since, limit=sys.maxsize)
    told = (
        advice(event.body, sent[event.body["attempt"]], event.at)
        for event in answers
        if event.body.get("attempt") in sent
    )
    judged = guidance([one for one in told if one is not None], sent.values())
    counts = await figures.tallies(since)
    return Measures(
        since=since,
        as_of=now,
        courses=await figures.courses(since, now),
        requests=await figures.requests_of(since),
        honoured=judged.honoured,
        declined=judged.declined,
        not_honoured=judged.not_honoured,
        saved={one.labels[0]: one.value for one in counts if one.tally is Tally.SAVED},
        decisions=await figures.decision_times(since),
    )


# --- as JSON and in words -----------------------------------------------------------------------


def _as_json(measures: Measures) -> dict[str, Any]:
    from forbear.rules.quality import quantile
    from forbear.storage.tallies import Saved
    from forbear.tools.times import rfc3339

    accepted = measures.accepted
    saved = {str(how): measures.saved.get(how, 0) for how in Saved}
    median, most = (quantile(measures.decisions, share) for share in (0.5, 0.9))
    return {
        "since": rfc3339(measures.since),
        "as_of": rfc3339(measures.as_of),
        "operations": {
            "accepted": accepted.total(),
            "ended": dict(measures.ended),
            "with_a_person": measures.asked,
            "overdue": measures.overdue,
            "under_way": accepted.total()
            - measures.ended.total()
            - measures.asked
            - measures.overdue,
            "concluded_share": measures.concluded,
        },
        "guidance": {
            "honoured": measures.honoured,
            "not_honoured": measures.not_honoured,
            "declined": measures.declined,
            "honoured_share": measures.obeyed,
        },
        "requests_saved": {**saved, "total": sum(saved.values())},
        "decisions": {
            "count": len(measures.decisions),
            "median_seconds": None if median is None else median / 1_000,
            "p90_seconds": None if most is None else most / 1_000,
        },
        "providers": [
            {
                "provider": name,
                "operations": number,
                "requests": measures.requests.get(name, 0),
                "requests_per_operation": measures.requests.get(name, 0) / number,
            }
            for name, number in sorted(accepted.items())
        ],
    }


def _lines(measures: Measures) -> Iterator[str]:
    told = _as_json(measures)
    operations, guidance = told["operations"], told["guidance"]
    saved, decisions = told["requests_saved"], told["decisions"]
    yield f"Since {told['since']}"
    yield ""
    ended = ", ".join(f"{number} {state}" for state, number in sorted(operations["ended"].items()))
    parts = (
        ended,
        f"{operations['with_a_person']} with a person",
        f"{operations['under_way']} under way",
        f"{operations['overdue']} overdue",
    )
    yield f"operations      {operations['accepted']}: {', '.join(filter(None, parts))}"
    yield f"concluded       {_percent(operations['concluded_share'])}"
    judged = guidance["honoured"] + guidance["not_honoured"]
    yield (
        f"guidance        {_percent(guidance['honoured_share'])} obeyed "
        f"({guidance['honoured']} of {judged}), {guidance['declined']} unusable or overruled"
    )
    yield (
        f"requests saved  {saved['total']}: {saved['joined']} joined, "
        f"{saved['coalesced']} coalesced, {saved['stored']} from the store"
    )
    taken = ""
    if decisions["count"]:
        median, most = _time(decisions["median_seconds"]), _time(decisions["p90_seconds"])
        taken = f", median {median}, nine in ten within {most}"
    yield f"decisions       {decisions['count']}{taken}"
    for one in told["providers"]:
        yield (
            f"requests        {one['provider']}: {one['requests_per_operation']:.1f} per operation "
            f"({one['requests']} for {one['operations']})"
        )


def _percent(share: float | None) -> str:
    """A share; only all of it is called 100 %."""
    if share is None:
        return "none"
    return f"{math.floor(share * 1_000) / 10:.1f} %"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes} m"
    return f"{minutes // 60} h {minutes % 60:02} m"
