"""The simulated provider: it takes what the contract sends, keeps jobs, and counts what it did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate

from forbear.rules.contract import Call, Contract, Idempotency, Job, Pointer, Row
from forbear.rules.facts import Facts
from forbear.rules.model import JobClass, RequestClass
from forbear.rules.ports import Json
from forbear.rules.requests import member_steps
from forbear.rules.values import Unreadable, decode, is_present, locate, text_of
from forbear.server.listener import Answer, Arrival, Drop, Listener, Step
from forbear.server.simulator.copies import CONTROL, TOKEN_PATH
from forbear.server.simulator.faults import Fault, Plan
from forbear.server.simulator.making import Cannot, Maker
from forbear.server.simulator.records import Record
from forbear.server.simulator.routes import Met, Route, met, routes
from forbear.server.simulator.trees import put

SLOW = 5.0
"""Seconds that a slow answer takes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as a person reads of it."""

    request: str
    """`export.submit`, or method and path where the contract has no such request."""
    status: int | None
    """None: it was left without an answer."""
    note: str = ""


@dataclass(slots=True)
class Thing:
    """A record with what has become of it."""

    record: Record
    content: object
    """What was asked for, without key and reference: two of a kind are one thing made twice."""
    answer: Answer | None = None
    fault: Fault | None = None
    looks: int = 0
    cancelled: bool = False


@dataclass
class Simulator(Listener):
    """A provider made from a contract. `written` has the examples, `copied` points here."""

    polls: int = 2
    """Status answers that say "waiting" before a job ends."""
    plan: Plan = field(default_factory=Plan)
    seen: list[Seen] = field(default_factory=list[Seen])
    things: list[Thing] = field(default_factory=list[Thing])
    """What was made, in order: each is one effect."""
    told: Callable[[Seen], None] = lambda seen: None
    """Hears of every request."""

    def speak(self, written: Contract, copied: Contract, now: Callable[[], int]) -> None:
        """Take the contract; before this, everything is unknown."""
        self._copied, self._now = copied, now
        self._maker = Maker(written, copied, now)
        self._routes = routes(copied)
        self._numbers = 0
        self._doubtful: set[str] = set()

    def unable(self) -> list[str]:
        """What no good answer can be made for; nothing is counted by this."""
        told: list[str] = []
        for route in self._routes:
            met = Met(route)
            try:
                self._try(met)
            except Cannot as error:
                told.append(str(error))
        self._numbers = 0
        return told

    def _try(self, found: Met) -> None:
        route, record = found.route, self._record(found, None)
        states = route.action.states.rows if isinstance(route.action, Job) else ()
        match route.request.name:
            case "submit":
                self._maker.submitted(route, record)
            case "status":
                self._first(route, record, _of(states, JobClass.SUCCEEDED))
            case "result":
                self._maker.result(route, record)
            case "cancel":
                self._maker.cancelled(route, record)
            case "call":
                self._maker.called(route, record, None)
            case _:
                pass

    # --- counts ---------------------------------------------------------------------------

    def count(self, request: str) -> int:
        """Requests of one name, such as `export.submit`."""
        return sum(one.request == request for one in self.seen)

    def effects(self, action: str) -> int:
        """How often something was made by an action."""
        return sum(one.record.action == action for one in self.things)

    def duplicates(self) -> list[Thing]:
        """Everything that was made although the same had been made before."""
        seen: set[str] = set()
        twice: list[Thing] = []
        for thing in self.things:
            name = json.dumps([thing.record.action, thing.content], sort_keys=True, default=str)
            twice += [thing] if name in seen else []
            seen.add(name)
        return twice

    def summary(self) -> Mapping[str, Json]:
        """What arrived and what was made of it."""
        requests = Counter(one.request for one in self.seen)
        effects = Counter(one.record.action for one in self.things)
        return {
            "provider": self._copied.provider,
            "requests": dict(requests),
            "effects": dict(effects),
            "duplicates": [
                {"action": one.record.action, "arguments": dict(one.record.arguments)}
                for one in self.duplicates()
            ],
            "not_simulated": [one.note for one in self.seen if one.status == 501],
            "faults_left": [
                ":".join(filter(None, (each.action, each.request, each.fault)))
                for each in self.plan.planned
                if each.left
            ],
        }

    # --- what is answered -----------------------------------------------------------------

    def _control(self, arrival: Arrival) -> Answer:
        match arrival.method, arrival.path:
            case "POST", path if path == TOKEN_PATH:
                return Answer(
                    json={"access_token": "simulated", "token_type": "Bearer", "expires_in": 3600}
                )
            case "GET", path if path == CONTROL:
                text = "\n".join(lines(self.summary())) + "\n"
                return Answer(body=text, headers=(("Content-Type", "text/plain; charset=utf-8"),))
            case "GET", path if path == f"{CONTROL}.json":
                return Answer(json=self.summary())
            case _:
                return Answer(404, {"error": f"only {CONTROL} and {CONTROL}.json are here"})

    def _next(self, arrival: Arrival) -> Step:
        step = self._meant(arrival)
        if not isinstance(step, Answer):
            return step
        date = formatdate(self._now() / 1_000, usegmt=True)
        return replace(step, headers=(*step.headers, ("Date", date)))

    def _meant(self, arrival: Arrival) -> Step:
        found = self._met(arrival)
        if found is None:
            return self._unknown(arrival)
        route = found.route
        fault = self.plan.next(route.action.name, route.request.name)
        try:
            step, note = self._meet(found, arrival, fault)
        except Cannot as error:
            step, note = Answer(501, {"error": "the simulator cannot answer this"}), str(error)
        status = step.status if isinstance(step, Answer) else None
        if (status is None or status >= 500) and route.request.name in ("submit", "call"):
            self._doubtful.add(route.action.name)
        self._tell(Seen(route.name, status, note if fault is None else f"{fault}: {note}"))
        return step

    def _tell(self, seen: Seen) -> None:
        self.seen.append(seen)
        self.told(seen)

    def _met(self, arrival: Arrival) -> Met | None:
        """The request that arrived.

        Where several have the same form: the one about something that is known here, then a call.
        """
        fitting = met(self._copied, arrival, self._routes)
        return min(fitting, key=self._rank, default=None)

    def _rank(self, found: Met) -> int:
        match found.route.request.name:
            case "lookup":
                # A lookup looks for what was left without an answer, else the same is a call.
                return 0 if found.route.action.name in self._doubtful else 3
            case "submit":
                return 1
            case "call":
                return 2
            case _:
                return 3 if self._subject(found) is None else 0

    def _unknown(self, arrival: Arrival) -> Answer:
        place = f"{arrival.method} {arrival.path}"
        check = self._copied.account_check
        if check is not None:
            route = Route(check, check.send, check.name)
            if met(self._copied, arrival, (route,)):
                self._tell(Seen(route.action.name, 200, "its account named"))
                return Answer(json=self._named(check))
        self._tell(Seen(place, 404, "the contract has no such request"))
        return Answer(404, {"error": f"the contract has no request {place}"})

    def _named(self, check: Call) -> Json:
        """An answer that names the account of the contract."""
        body: Json = {}
        for one in check.send.require:
            if isinstance(one.at, Pointer):
                body = put(body, one.at, self._copied.account["id"])
        return body

    def _meet(self, found: Met, arrival: Arrival, fault: Fault | None) -> tuple[Step, str]:
        match fault:
            case Fault.RATE_LIMITED:
                return self._maker.limited(found.route), "nothing done"
            case Fault.UNAVAILABLE:
                return self._maker.unavailable(found.route), "nothing done"
            case Fault.REFUSED:
                return self._maker.refused(found.route), "nothing done"
            case Fault.DROPPED:
                return Drop("after"), "nothing done, no answer"
            case _:
                made, note = self._behave(found, arrival)
        if fault is Fault.LOST:
            return Drop("after"), f"{note or 'done'}, and its answer dropped"
        if fault is Fault.SLOW:
            return replace(made, delay=SLOW), note or "done"
        return made, note

    def _behave(self, found: Met, arrival: Arrival) -> tuple[Answer, str]:
        route = found.route
        match route.request.name:
            case "submit":
                return self._make(found, arrival)
            case "lookup":
                return self._look_up(found, arrival)
            case "call" if route.request.request_class is RequestClass.READ:
                return self._maker.called(
                    route, self._record(found, None), _cursor(found, arrival)
                ), ""
            case "call":
                return self._make(found, arrival)
            case _:
                return self._about(found)

    # --- what is made ---------------------------------------------------------------------

    def _make(self, found: Met, arrival: Arrival) -> tuple[Answer, str]:
        """Make a job or a record, once per key."""
        action = found.route.action
        key = _key(action.idempotency, found, arrival)
        content = _content(found)
        known = self._known(found, key, content)
        if known is not None and known.answer is not None:
            if known.content != content:
                return self._maker.key_reused(found.route), "nothing done: the key is of another"
            return known.answer, f"known by its key: {_name(known)}" if key else "as it is already"
        record = self._record(found, key)
        thing = Thing(record, content)
        if isinstance(action, Job):
            thing.answer = self._maker.submitted(found.route, record)
            thing.fault = self.plan.next(action.name, "submit", of_jobs=True)
        else:
            thing.answer = self._maker.called(found.route, record, None)
        self.things.append(thing)
        fault = f", which is to be {thing.fault}" if thing.fault is not None else ""
        return thing.answer, f"made {_name(thing)}{fault}"

    def _known(self, found: Met, key: str | None, content: object) -> Thing | None:
        """What the same key, or the same thing where repeating it changes nothing, made before."""
        action = found.route.action
        mine = [one for one in self.things if one.record.action == action.name]
        if key is not None:
            return next((one for one in mine if one.record.key == key), None)
        if found.route.request.request_class is not RequestClass.IDEMPOTENT_WRITE:
            return None
        return next((one for one in mine if one.content == content), None)

    def _record(self, found: Met, key: str | None) -> Record:
        self._numbers += 1
        action, account = found.route.action, self._copied.account
        ref, at = found.text("ref"), self._now()
        sent = Facts(found.arguments, account, ref or "", key, submitted_at=at)
        return Record(
            number=self._numbers,
            action=action.name,
            arguments=found.arguments,
            account=account,
            ref=ref,
            key=key,
            values=self._maker.values(action, self._numbers, sent),
            made_at=at,
        )

    # --- what is looked at ----------------------------------------------------------------

    def _subject(self, found: Met) -> Thing | None:
        """The job or record that a request is about."""
        mine = [one for one in self.things if one.record.action == found.route.action.name]
        if found.record is not None:
            return next((one for one in mine if one.record.number == found.record), None)
        named = {
            name: text
            for name in found.values
            if name == "id" or name.startswith(("take.", "result."))
            if (text := found.text(name)) is not None
        }
        if not named:
            # A request that names none by an id is about the last one that it can be about.
            ref = found.text("ref")
            given = found.arguments
            about = (one for one in reversed(mine) if ref in (None, one.record.ref))
            return next((one for one in about if _agree(given, one.record.arguments)), None)
        fitting = [
            one
            for one in mine
            if all(text_of(one.record.values.get(name)) == text for name, text in named.items())
        ]
        return next(iter(fitting), None)

    def _about(self, found: Met) -> tuple[Answer, str]:
        """A request about a job: its state, its result, its end."""
        thing, route = self._subject(found), found.route
        if thing is None:
            return Answer(404, {"error": "there is no such job"}), "no such job"
        match route.request.name:
            case "status":
                return self._status(route, thing)
            case "cancel":
                answer = self._maker.cancelled(route, thing.record)
                thing.cancelled = True
                return answer, f"{_name(thing)} cancelled"
            case _:
                return self._maker.result(route, thing.record), f"of {_name(thing)}"

    def _status(self, route: Route, thing: Thing) -> tuple[Answer, str]:
        record, looks = thing.record, thing.looks
        thing.looks += 1
        rows = route.action.states.rows if isinstance(route.action, Job) else ()
        if thing.cancelled:
            over = _of(rows, JobClass.CANCELLED) or _of(rows, JobClass.FAILED)
            if over:
                return self._first(route, record, over), f"{_name(thing)}: cancelled"
        waits = [row for row in rows if row.means is JobClass.WAITING]
        if thing.fault is Fault.STUCK or (looks < self.polls and waits):
            return self._waiting(route, record, waits, looks), f"{_name(thing)}: waiting"
        succeeded = _of(rows, JobClass.SUCCEEDED)
        match thing.fault:
            case Fault.FAILS:
                return self._first(route, record, _of(rows, JobClass.FAILED)), (
                    f"{_name(thing)}: failed"
                )
            case Fault.UNKNOWN_STATE:
                return self._maker.strange(route, record), f"{_name(thing)}: an unknown state"
            case Fault.CONTRADICTORY:
                made = self._maker.contradictory(route, record, succeeded[0])
                return made, f"{_name(thing)}: succeeded, and a field is missing"
            case Fault.GONE:
                return self._maker.gone(route, record), f"{_name(thing)}: gone"
            case _:
                return self._first(route, record, succeeded), f"{_name(thing)}: succeeded"

    def _waiting(self, route: Route, record: Record, waits: Sequence[Row], looks: int) -> Answer:
        """One waiting word after the other; one that cannot be said is passed over."""
        ordered = [*waits[min(looks, len(waits) - 1) :], *waits] if waits else []
        return self._first(route, record, ordered)

    def _first(self, route: Route, record: Record, rows: Sequence[Row]) -> Answer:
        """The first of some rows that an answer can be made for."""
        why = Cannot(f"{route.on}: no row of its states is of this kind")
        for row in rows:
            try:
                return self._maker.observed(route, record, row)
            except Cannot as error:
                why = error
        raise why

    def _look_up(self, found: Met, arrival: Arrival) -> tuple[Answer, str]:
        route, lookup = found.route, found.route.action.lookup
        mine = [one.record for one in self.things if one.record.action == route.action.name]
        for name in ("ref", "key", "id"):
            text = found.text(name)
            if text is not None and lookup is not None:
                mine = [one for one in mine if text in (one.ref, one.key, one.facts.id)]
        asked = found.arguments
        mine = [one for one in mine if _agree(asked, one.arguments)]
        if lookup is not None and lookup.page is not None and lookup.page.query in arrival.query:
            mine = []  # everything was on the first page
        facts = mine[-1].facts if mine else Facts(asked, self._copied.account)
        if not mine and found.text("ref"):
            facts = replace(facts, ref=found.text("ref") or "")
        return self._maker.looked_up(route, facts, mine), f"{len(mine) or 'nothing'} found"


def lines(summary: Mapping[str, Json]) -> list[str]:
    """A summary as a person reads it."""
    told = [f"{summary['provider']}, simulated"]
    for name, number in summary["requests"].items():
        told.append(f"  {number:4} x {name}")
    if not summary["requests"]:
        told.append("  no request arrived")
    for action, number in summary["effects"].items():
        told.append(f"  made by {action}: {number}")
    for twice in summary["duplicates"]:
        given = json.dumps(twice["arguments"], ensure_ascii=False)
        told.append(f"  MADE TWICE: {twice['action']} {given}")
    if summary["effects"] and not summary["duplicates"]:
        told.append("  nothing was made twice")
    told += [f"  not simulated: {one}" for one in dict.fromkeys(summary["not_simulated"])]
    told += [f"  fault that did not come yet: {one}" for one in summary["faults_left"]]
    return told


def _name(thing: Thing) -> str:
    return thing.record.facts.id or f"number {thing.record.number}"


def _of(rows: Sequence[Row], means: JobClass) -> list[Row]:
    return [row for row in rows if row.means is means]


def _agree(asked: Mapping[str, Json], known: Mapping[str, Json]) -> bool:
    return all(
        text_of(value) == text_of(known[name]) for name, value in asked.items() if name in known
    )


def _content(found: Met) -> object:
    return {name: str(value) for name, value in sorted(found.arguments.items())}


def _cursor(found: Met, arrival: Arrival) -> str | None:
    page = getattr(found.route.action, "page", None)
    return None if page is None else arrival.query.get(page.query)


def _key(rule: Idempotency | None, found: Met, arrival: Arrival) -> str | None:
    """The key of a request, where the contract says that the provider takes one."""
    if rule is None:
        return None
    match rule.place:
        case "header":
            return arrival.headers.get(rule.name.lower())
        case "query":
            return arrival.query.get(rule.name)
        case "body":
            return _member(arrival, rule.name)
        case _:
            return found.text("key")


def _member(arrival: Arrival, name: str) -> str | None:
    from urllib.parse import parse_qsl

    try:
        body = decode(arrival.body)
    except Unreadable:
        return dict(parse_qsl(arrival.body.decode("utf-8", "replace"), True)).get(name)
    value = locate(body, Pointer(name, member_steps(name)))
    return text_of(value) if is_present(value) else None
