"""Answers that mean what is wanted: made from the contract, and proved by its own reading.

An answer starts from one of the contract's `[[examples]]` where one says what is wanted, else from
nothing; the places that the contract reads are set; and only what `replay.signal_of` then reads as
it was meant is ever given out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from forbear.rules.contract import Action, Call, Contract, Header, Job, Lookup, Paging, Row
from forbear.rules.facts import Facts
from forbear.rules.model import JobClass
from forbear.rules.ports import Json
from forbear.rules.reading import JOINT
from forbear.rules.replay import signal_of, word
from forbear.rules.signals import Meaning, Signal
from forbear.rules.values import elements, members
from forbear.server.listener import Answer
from forbear.server.outlook import TOO_MANY
from forbear.server.simulator import places
from forbear.server.simulator.drafts import (
    ABSENT,
    Base,
    Setting,
    Wish,
    answer,
    drawn,
    value_in,
)
from forbear.server.simulator.records import Record, values
from forbear.server.simulator.routes import PLACE, Route

_ADDRESS = re.compile(r"https?://[^/?#\s]*")
PAGES = 2
"""Pages of a list, where the contract reads several."""
PER_PAGE = 2
RETRY_AFTER = (("Retry-After", "1"),)
REFUSALS = (422, 400, 409, 404, 403)
"""Status codes of a refusal, the plainest first."""


class Cannot(Exception):
    """No answer can be made that means this; the message says which, and what came instead."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer has to mean."""

    told: str
    holds: Callable[[Signal], bool]
    examples: tuple[str, ...] = ()
    """What examples expect that may be started from."""
    state: str | None = None


def _means(*meanings: Meaning, state: str | None = None) -> Wanted:
    words = {word(_bare(one)) for one in meanings}
    return Wanted(
        " or ".join(one.value for one in meanings),
        lambda signal: signal.meaning in meanings,
        tuple(sorted(words)),
        state,
    )


def _bare(meaning: Meaning) -> Signal:
    from forbear.rules.model import Certainty

    return Signal(meaning, Certainty.APPLIED)


class Maker:
    """Makes the answers of one contract. Every method raises `Cannot`."""

    def __init__(self, written: Contract, copied: Contract, now: Callable[[], int]) -> None:
        """`written` is the contract with its examples, `copied` the one that points here."""
        self._written = written
        self._copied = copied
        self._now = now
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(copied.base_url))

    def values(self, action: Action, number: int, sent: Facts) -> dict[str, Json]:
        """What answers say of a new record."""
        return values(self._written, self._copied, action, number, sent)

    # --- jobs -----------------------------------------------------------------------------

    def submitted(self, route: Route, record: Record) -> Answer:
        """The answer that takes a submission."""
        job = _job(route)
        now = self._now()
        wishes = [*self._own(route, record), *places.hinted(job, now), *places.unexpired(job, now)]
        wanted = _means(Meaning.ACCEPTED)
        waits = [one for one in job.states.rows if one.means is JobClass.WAITING]
        try:
            first = [*places.row(job.states, waits[0], record)] if waits else []
            if job.states.reads_http:
                first = []
            return self._make(route, record.facts, wanted, [*first, *wishes])
        except Cannot:
            return self._make(route, record.facts, wanted, wishes)

    def observed(self, route: Route, record: Record, row: Row) -> Answer:
        """A status answer that meets a row of the state table."""
        job, facts, now = _job(route), record.facts, self._now()
        wishes: list[Wish] = [*places.row(job.states, row, record), *self._own(route, record)]
        wishes += self._identified(job, record)
        match row.means:
            case JobClass.SUCCEEDED:
                wishes += self._success(job, record)
            case JobClass.FAILED:
                wishes += places.failed(job.failure, "let this job fail")
            case JobClass.WAITING | JobClass.BLOCKED:
                wishes += places.hinted(job, now)
            case _:
                pass
        wishes += places.unexpired(job, now)
        state = JOINT.join(row.words)
        return self._make(route, facts, _means(Meaning(row.means.value), state=state), wishes)

    def strange(self, route: Route, record: Record) -> Answer:
        """A status answer with a state that the contract does not name."""
        job = _job(route)
        words = places.strange(job.states)
        if words is None:
            raise Cannot(f"{route.on}: its states are read where no other word fits")
        wishes = [*self._own(route, record), *self._identified(job, record), *words]
        return self._make(route, record.facts, _means(Meaning.UNKNOWN_STATE), wishes)

    def contradictory(self, route: Route, record: Record, row: Row) -> Answer:
        """A success without a field that it needs."""
        job = _job(route)
        good = [*places.row(job.states, row, record), *self._own(route, record)]
        good += [*self._identified(job, record), *self._success(job, record)]
        needed = [one.at for one in (*job.success.require, *job.success.require_any)]
        if not needed:
            raise Cannot(f"{route.on}: a success needs no field beside its state")
        wishes = [*good, *(Setting(at, ABSENT) for at in needed)]
        wishes += places.row(job.states, row, record)
        return self._make(route, record.facts, _means(Meaning.CONTRADICTORY), wishes)

    def gone(self, route: Route, record: Record) -> Answer:
        """A status answer about a job that is not there any more."""
        wanted = _means(Meaning.GONE, Meaning.NOT_FOUND, Meaning.NOT_YET_VISIBLE)
        bases = [Base(404), Base(410)]
        return self._make(route, record.facts, wanted, (), bases)

    def result(self, route: Route, record: Record) -> Answer:
        """The result of a job."""
        content = {"simulated": True, "job": record.facts.id, "rows": [1, 2, 3]}
        wanted = _means(Meaning.DONE)
        return self._make(
            route, record.facts, wanted, [*self._own(route, record)], [Base(body=content)]
        )

    def cancelled(self, route: Route, record: Record) -> Answer:
        """The answer to a cancellation."""
        wishes = [*self._own(route, record)]
        return self._make(route, record.facts, _means(Meaning.DONE), wishes)

    def _success(self, job: Job, record: Record) -> Iterator[Wish]:
        success = job.success
        yield from places.kept(success.take, record, "result.")
        yield from places.required(success.require, success.require_any, self._address(record))

    def _identified(self, job: Job, record: Record) -> Iterator[Wish]:
        """Its id where the submission's answer has it."""
        source = dict(job.send.take).get("id")
        if source is not None and "id" in record.values:
            yield Setting(source, record.values["id"])

    # --- calls and lookups ----------------------------------------------------------------

    def called(self, route: Route, record: Record, cursor: str | None) -> Answer:
        """The answer to a call; of a list, the page that begins at `cursor`."""
        page = route.action.page if isinstance(route.action, Call) else None
        wishes = [*self._own(route, record)]
        if page is None:
            blank = Base(body={"simulated": True, **record.arguments})
            return self._make(route, record.facts, _means(Meaning.DONE), wishes, [blank, Base()])
        number = _page_number(cursor)
        ends = number >= min(PAGES, page.max_pages)
        wishes.append(lambda base: _listed(page, base, number, ends=ends))
        endless = _endless(page)

        def holds(signal: Signal) -> bool:
            if signal.meaning is not Meaning.DONE or signal.turn is None:
                return False
            onward = signal.turn.onward
            goes_on = onward.cursor is not None
            return not onward.lost and (goes_on is not ends or endless)

        wanted = Wanted("a page of a list", holds, ("done", "empty"))
        return self._make(route, record.facts, wanted, wishes)

    def looked_up(self, route: Route, facts: Facts, records: Sequence[Record]) -> Answer:
        """The answer to a lookup: these records are there, one of them is the one with `facts`."""
        lookup = route.action.lookup
        if lookup is None:
            raise Cannot(f"{route.on}: there is no lookup")
        if lookup.items is None:
            return self._only(route, lookup, facts, records)
        wishes: list[Wish] = [lambda base: _items(route, lookup, base, records)]
        if lookup.page is not None:
            wishes += _end(lookup.page)
        return self._make(route, facts, _page_with(records, lookup), wishes)

    def _only(
        self, route: Route, lookup: Lookup, facts: Facts, records: Sequence[Record]
    ) -> Answer:
        """A lookup that asks for one thing by its own name."""
        if not records:
            wanted = Wanted(
                "nothing is there",
                lambda signal: signal.meaning is Meaning.NOT_FOUND or _shows(signal, 0),
                ("not_found", "gone", "empty"),
            )
            return self._make(route, facts, wanted, (), [Base(404)])
        wishes = [*places.found(lookup, route.action.send, records[0])]
        return self._make(route, facts, _page_with(records[:1], lookup), wishes)

    # --- what goes wrong ------------------------------------------------------------------

    def limited(self, route: Route) -> Answer:
        """A 429 with a time to wait, or what else the contract takes for a limit."""
        wanted = _means(Meaning.RATE_LIMITED, Meaning.QUOTA_EXHAUSTED)
        told = Base(429, RETRY_AFTER, json.loads(TOO_MANY))
        try:
            return self._make(route, _NOBODY, replace(wanted, examples=()), (), [told])
        except Cannot:
            waits = Setting(Header("Retry-After"), RETRY_AFTER[0][1])
            return self._make(route, _NOBODY, wanted, [waits], [told])

    def unavailable(self, route: Route) -> Answer:
        """A 503."""
        wanted = _means(Meaning.SERVER_ERROR, Meaning.RETRY_LATER)
        told = Base(503, (), {"error": "unavailable"})
        return self._make(route, _NOBODY, replace(wanted, examples=()), (), [told])

    def refused(self, route: Route) -> Answer:
        """A definite refusal: nothing was done."""
        wishes = [*places.failed(route.action.failure, "refuse this request")]
        bases = [Base(status) for status in REFUSALS]
        return self._make(route, _NOBODY, _means(Meaning.REJECTED), wishes, bases)

    def key_reused(self, route: Route) -> Answer:
        """The same key with another body."""
        wanted = _means(Meaning.KEY_REUSED, Meaning.CONFLICT, Meaning.REJECTED)
        bases = [Base(409, (), {"error": "this key was used for something else"}), Base(422)]
        return self._make(route, _NOBODY, wanted, (), bases)

    # --- the way of all answers -----------------------------------------------------------

    def _own(self, route: Route, record: Record) -> Iterator[Wish]:
        """What every good answer to a request has: values that are taken, required, echoed."""
        request = route.request
        yield from places.kept(request.take, record, "take.")
        yield from places.required(request.require, request.require_any, self._address(record))
        yield from places.echoed(request, record)

    def _address(self, record: Record) -> str:
        return f"{self._copied.base_url}/{PLACE}/{record.number}/file"

    def _make(
        self,
        route: Route,
        facts: Facts,
        wanted: Wanted,
        wishes: Sequence[Wish],
        blanks: Sequence[Base] = (Base(),),
    ) -> Answer:
        came = "nothing"
        for base in self._bases(route, wanted, blanks):
            usual = min(route.request.ok or (200,))
            made = answer(drawn(base, wishes), usual)
            body = made.body.encode() if isinstance(made.body, str) else made.body
            signal = signal_of(self._copied, route.on, made.status, made.headers, body, facts)
            if wanted.holds(signal):
                return made
            came = "; ".join((word(signal), *signal.missing, *filter(None, (signal.mismatch,))))
        raise Cannot(f"{route.on}: no answer can be made that means {wanted.told}; it reads {came}")

    def _bases(self, route: Route, wanted: Wanted, blanks: Sequence[Base]) -> Iterator[Base]:
        """Examples that say what is wanted, nothing at all, and any other good example."""
        own = [one for one in self._written.examples if _same(one.on, route.on)]
        fitting = [one for one in own if one.expect in wanted.examples]
        read = {
            id(one): signal_of(self._written, one.on, one.http, one.headers, one.body).state
            for one in fitting
        }
        fitting.sort(key=lambda one: read[id(one)] != wanted.state)
        good = [one for one in own if one not in fitting and 200 <= one.http <= 299]
        yield from (Base.of(one).moved(self._here) for one in fitting)
        yield from blanks
        if wanted.examples:
            yield from (Base.of(one).moved(self._here) for one in good)

    def _here(self, text: str) -> str:
        """A text whose addresses lead to this machine."""
        return _ADDRESS.sub(self._origin, text)


_NOBODY = Facts(arguments={}, account={})


def _job(route: Route) -> Job:
    if not isinstance(route.action, Job):
        raise TypeError(f"{route.on} is about no job")
    return route.action


def _same(example: str, route: str) -> bool:
    """`jobs.x.result` is short for `jobs.x.results.result`."""
    return example == route or f"{example}s.result" == route


def _shows(signal: Signal, matches: int) -> bool:
    page = signal.page
    return page is not None and page.readable and len(page.matches) == matches


def _page_with(records: Sequence[Record], lookup: Lookup) -> Wanted:
    """A page on which ours is found, exactly if it is among them."""
    endless = lookup.page is not None and _endless(lookup.page)

    def holds(signal: Signal) -> bool:
        page = signal.page
        if signal.meaning is not Meaning.DONE or page is None or page.differing:
            return False
        ends = page.more is None or (endless and bool(records))
        return page.readable and ends and bool(page.matches) is bool(records)

    return Wanted("what was made" if records else "an empty list", holds, ("done", "empty"))


def _items(
    route: Route, lookup: Lookup, base: Base, records: Sequence[Record]
) -> Iterable[Setting]:
    """The list of a lookup, each item in the form of the example's first."""
    assert lookup.items is not None
    listed = elements(value_in(base, lookup.items))
    sample = listed[0] if listed and members(listed[0]) is not None else {}
    made = [
        drawn(Base(body=sample), [*places.found(lookup, route.action.send, one)]).body
        for one in records
    ]
    yield Setting(lookup.items, made)


def _end(page: Paging) -> Iterator[Setting]:
    if page.more is not None:
        yield Setting(page.more, False)
    if page.at is not None:
        yield Setting(page.at, ABSENT)


def _listed(page: Paging, base: Base, number: int, *, ends: bool) -> Iterator[Setting]:
    """One page of a call's list, and where it goes on."""
    if page.items is not None:
        listed = elements(value_in(base, page.items))
        sample: Json = listed[0] if listed else {"id": "", "simulated": True}
        first = (number - 1) * PER_PAGE + 1
        past_end = number > PAGES
        made = [] if past_end else [_item(page, sample, first + n) for n in range(PER_PAGE)]
        yield Setting(page.items, made)
    if ends:
        yield from _end(page)
        return
    if page.more is not None:
        yield Setting(page.more, True)
    if page.at is not None:
        yield Setting(page.at, str(number + 1))


def _item(page: Paging, sample: Json, number: int) -> Json:
    if page.item is not None:
        name = Setting(page.item, f"item-{number}")
    elif isinstance(sample, dict) and "simulated" in sample:
        return {"id": f"item-{number}", "simulated": True}
    else:
        return sample
    return drawn(Base(body=sample), [name]).body


def pages_of(action: Action) -> int:
    """Requests that reading a whole list takes; 1 where there are no pages."""
    page = action.page if isinstance(action, Call) else None
    if page is None:
        return 1
    return min(PAGES + _endless(page), page.max_pages)


def _endless(page: Paging) -> bool:
    """A list whose cursor is its last item ends only where nothing is on a page."""
    return page.more is None and page.at is None and page.item is not None


def _page_number(cursor: str | None) -> int:
    """The page that begins at a cursor that `_listed` gave out."""
    if cursor is None:
        return 1
    name, _, number = cursor.rpartition("-")
    if not number.isdecimal():
        return PAGES + 1
    return int(number) // PER_PAGE + 1 if name == "item" else int(number)
