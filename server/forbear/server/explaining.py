"""`contract explain`: what will happen to one action, as tables and a picture of its states.

Numbers come from the contract, schedules and ends from the rules; nothing is stated here twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forbear.rules.backoff import PROVIDER_JITTER, first_delay
from forbear.rules.contract import Action, Call, Contract, Fold, Job, Lookup, Read, Row, Scope, Test
from forbear.rules.contract_report import coverage, duration
from forbear.rules.model import Certainty, JobClass, Operation, Reason, RequestClass, State, Step
from forbear.rules.pacing import burst, pace
from forbear.rules.reading import JOINT, source_name
from forbear.rules.signals import VISIBLE_AFTER, Meaning
from forbear.rules.steps import scopes_of
from forbear.server.outlook import (
    NO_ANSWER,
    NOT_SENT,
    REFUSED,
    UNAVAILABLE,
    Outcome,
    Outlook,
    answered,
)


@dataclass(frozen=True, slots=True)
class Section:
    """One table: a heading, and lines of a name with what is true of it."""

    title: str
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that may happen, and what follows."""

    what: str
    outcome: str
    state: State
    begins: State
    reason: Reason | None = None
    options: Sequence[str] = ()
    """What a person could choose, least effect first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is told of one action."""

    name: str
    title: str
    request: str
    sections: Sequence[Section]
    events: Sequence[Event]

    def mermaid(self) -> str:
        """The events as a Mermaid state diagram."""
        arrows = dict.fromkeys(
            f"    {event.begins} --> {event.state}: {event.what.replace(':', ' ')}"
            for event in self.events
        )
        ends = [State.SUCCEEDED, *(event.state for event in self.events)]
        final = [state for state in dict.fromkeys(ends) if state not in _GOES_ON]
        lines = ["stateDiagram-v2", "    [*] --> sending", *arrows]
        return "\n".join([*lines, *(f"    {state} --> [*]" for state in final)])

    def picture(self) -> list[str]:
        """The same as lines of text: each state with the ways out of it."""
        drawn: list[str] = []
        for state in dict.fromkeys(event.begins for event in self.events):
            ways = [event for event in self.events if event.begins is state]
            drawn.append(str(state))
            width = max(len(_shortened(event.what)) for event in ways)
            for event in ways:
                branch = "└" if event is ways[-1] else "├"
                end = f"{event.state} ({event.reason})" if event.reason else str(event.state)
                drawn.append(f"  {branch}─ {_shortened(event.what).ljust(width)} ─→ {end}")
        return drawn


WIDE = 48
"""Characters of a list of words that a line of the picture has room for."""


def _shortened(what: str) -> str:
    """A list of words as far as it fits, and how many are left out."""
    if len(what) <= WIDE:
        return what
    words = what.split(", ")
    kept = len(words)
    while kept > 1 and len(", ".join(words[:kept])) > WIDE:
        kept -= 1
    return f"{', '.join(words[:kept])} and {len(words) - kept} more" if kept < len(words) else what


_GOES_ON = frozenset({State.SENDING, State.WAITING, State.DELAYED, State.UNCLEAR, State.ESCALATED})


def explain(contract: Contract, action: Action) -> Explanation:
    """What will happen to one action. Raises ValueError if none of it can be imagined."""
    outlook = Outlook(contract, action)
    sections = [Section("Before it is sent", [*_before(contract, action)])]
    if isinstance(action, Job):
        sections.append(Section("While the provider works", [*_while(action)]))
    sections.append(Section("If its answer is lost", [*_lost(action, outlook)]))
    return Explanation(
        f"{contract.provider}.{action.name}",
        action.title,
        f"{action.send.method} {_address(contract, action)}, {action.send.request_class}",
        sections,
        [*_events(outlook)],
    )


def _address(contract: Contract, action: Action) -> str:
    template = action.send.path or action.send.url
    text = "" if template is None else template.text
    return text if action.send.path is None else contract.base_url + text


# --- before it is sent ----------------------------------------------------------------------


def _before(contract: Contract, action: Action) -> Iterator[tuple[str, str]]:
    yield "approval", _approval(action)
    if action.send.request_class is not RequestClass.READ:
        yield "the same again", _again(action)
    for scope in scopes_of(contract.scopes, action.name):
        yield f"scope {scope.name}", _scope(scope)
    limits = contract.classes[action.send.request_class]
    attempts = contract.attempts(action.send.request_class)
    yield (
        "attempts",
        (
            f"{attempts}, with at most {duration(limits.max_wait)} of waiting between them"
            if attempts > 1
            else "1: it is not sent again without a key, a lookup or a person"
        ),
    )
    if isinstance(action, Call):
        yield "deadline", duration(action.deadline)
        if action.page is not None:
            yield "pages", f"at most {action.page.max_pages}"
        if action.coalesce is not None:
            yield "coalesced", f"equal reads within {duration(action.coalesce)} are one"
    yield "timeout", duration(action.send.timeout)


def _approval(action: Action) -> str:
    approval = action.send.approval
    match approval.mode:
        case "none":
            return "none: the contract allows it"
        case "session":
            told = "a person approves a session of the client"
        case _:
            told = "a person approves each one"
    if approval.free is not None:
        told += f"; free up to {approval.free['max']} of {approval.free['arg']}"
    return f"{told}, within {duration(action.approve_within)}"


def _again(action: Action) -> str:
    window = duration(action.repeat_window)
    afterwards = {
        "ask": "is a possible duplicate, and a person decides",
        "join": "gets the earlier one",
        "key": "needs a key of its own",
        "free": "is a new one",
    }[action.repeat]
    return f"joins it until it is over; within {window} of a success it {afterwards}"


def _scope(scope: Scope) -> str:
    count, per = scope.rate
    apart = pace(scope) / 1_000
    spaced = f"{apart:.0f} ms" if apart < 1_000 else duration(round(apart))
    return (
        f"{count} per {duration(per)} as published: {burst(scope)} at once, then one every "
        f"{spaced}; {scope.max_concurrent_requests} at a time, {scope.max_delayed_requests} waiting"
    )


# --- while the provider works ---------------------------------------------------------------


def _while(job: Job) -> Iterator[tuple[str, str]]:
    limits, backoff = job.limits, job.backoff
    earliest, latest = first_delay(backoff, 0), first_delay(backoff, 1)
    estimate = ", or the provider's estimate" if backoff.estimate is not None else ""
    yield "first check", f"{duration(earliest)} to {duration(latest)} after it was taken{estimate}"
    yield (
        "then",
        f"{duration(backoff.base)}, doubling up to {duration(backoff.max)}, shortened at random by "
        "up to a half; longer where the budget has to last",
    )
    hints = [source_name(source) for source, _ in job.hints.next]
    yield (
        "hints",
        f"{', '.join(hints) or 'none'}; from {duration(job.hints.floor)} to "
        f"{duration(job.hints.ceiling)}; Retry-After is never shortened, and lengthened by up to "
        f"{PROVIDER_JITTER:.0%}",
    )
    least, _, most = coverage(job)
    covered = " to ".join(dict.fromkeys((duration(least), duration(most))))
    yield "checks", f"{limits.max_status_requests}, which last for {covered}"
    yield (
        "deadline",
        f"{duration(limits.deadline)}; a person may add {duration(limits.extension.by)} and "
        f"{limits.extension.status_requests} checks, {_times(limits.extension.times)}",
    )
    if limits.usual is not None:
        yield "usual end", f"after {duration(limits.usual)}"
    if limits.useful_for is not None:
        yield "useful", f"for {duration(limits.useful_for)}"
    yield (
        "allowed",
        f"{limits.max_rate_limited} answers with 429, {limits.max_transport_failures} with 5xx or "
        "none at all",
    )
    yield "after a 429", f"at least {duration(backoff.rate_limited)} without a Retry-After"
    yield "state read at", ", ".join(_read(read) for read in job.states.reads)
    if job.expiry.kept is not None:
        yield "kept", f"{duration(job.expiry.kept)} by the provider"
    yield "results", ", ".join(job.results) or "none to fetch"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _read(read: Read) -> str:
    match read:
        case Test():
            return f"{source_name(read.at)} ({read.test.replace('_', ' ')})"
        case Fold():
            return f"worst {read.at.text} of {read.each.text}"
        case _:
            return source_name(read)


# --- if its answer is lost ------------------------------------------------------------------


def _lost(action: Action, outlook: Outlook) -> Iterator[tuple[str, str]]:
    yield "what follows", outlook.on_sending(NO_ANSWER).words
    key, lookup = action.idempotency, action.lookup
    if action.send.request_class is RequestClass.READ:
        return
    if key is not None:
        yield "key", f"{key.place} {key.name}, honoured for {duration(key.window)}"
    elif action.send.request_class is RequestClass.IDEMPOTENT_WRITE:
        yield "key", "none needed: repeating it changes nothing, says the contract"
    else:
        yield "key", "none: the provider would do it twice"
    yield "lookup", "none" if lookup is None else _looked(lookup)


def _looked(lookup: Lookup) -> str:
    request = lookup.request
    address = request.path or request.url
    absent = "proves that it was not done" if lookup.absence_proves else "proves nothing"
    return (
        f"{request.method} {'' if address is None else address.text}, at most "
        f"{lookup.max_lookups} times, at least {duration(lookup.settle)} apart; finding nothing "
        f"{absent}"
    )


# --- what may happen ------------------------------------------------------------------------


def _events(outlook: Outlook) -> Iterator[Event]:
    action = outlook.action
    job = action if isinstance(action, Job) else None
    sending = State.SENDING
    if job is None:
        done = answered(Meaning.DONE, Certainty.APPLIED, 200)
        yield _event("answered as it should be", sending, outlook.on_sending(done))
    else:
        taken = answered(Meaning.ACCEPTED, Certainty.APPLIED, 202)
        yield _event("taken by the provider", sending, outlook.on_sending(taken))
    denied = answered(Meaning.AUTH, Certainty.NOT_APPLIED, 401)
    doubts: set[Step] = set()
    for what, signal in (
        ("refused (422, …)", REFUSED),
        ("401 or 403", denied),
        ("429 with a Retry-After", outlook.limited("call" if job is None else "submit")),
        ("503", UNAVAILABLE),
        ("no answer", NO_ANSWER),
        ("could not be sent", NOT_SENT),
    ):
        outcome = outlook.on_sending(signal)
        doubts |= {outcome.step} if outcome.state is State.UNCLEAR else set()
        yield _event(what, sending, outcome)
    if outlook.on_sending(NOT_SENT).state is State.DELAYED:
        yield Event("the wait is over", "tried again", sending, State.DELAYED)
        late = outlook.too_late()
        if late is not None:
            yield _event("deadline over", State.DELAYED, late)
    if doubts:
        yield from _unclear(outlook, doubts)
    if job is not None:
        yield from _of_job(outlook, job)


def _unclear(outlook: Outlook, ways: set[Step]) -> Iterator[Event]:
    """The ways out of doubt that are open: `ways` has the steps that an unclear write may take."""
    action, unclear = outlook.action, State.UNCLEAR
    what = "neither helps" if len(ways) > 1 else "no answer again"
    if Step.SEND in ways:
        how = "same key" if action.idempotency is not None else "which changes nothing"
        yield Event(f"sent again, {how}", "goes on", State.SENDING, unclear)
    if Step.LOOKUP in ways:
        end = State.WAITING if isinstance(action, Job) else State.SUCCEEDED
        yield Event("found by the lookup", "goes on", end, unclear)
        if action.lookup is not None and action.lookup.absence_proves:
            yield Event("proved absent, sent once more", "goes on", State.SENDING, unclear)
        what = "not found" if len(ways) == 1 else what
    labels = [one.label for one in outlook.asked_for(Reason.UNCLEAR_WRITE, outlook.sent())]
    stops = f"stops and asks a person ({Reason.UNCLEAR_WRITE})"
    yield Event(what, stops, State.ESCALATED, unclear, Reason.UNCLEAR_WRITE, labels)


def _of_job(outlook: Outlook, job: Job) -> Iterator[Event]:
    waiting = State.WAITING
    for means in JobClass:
        words = [_words(row) for row in job.states.rows if row.means is means]
        if words:
            signal = answered(Meaning(means.value), Certainty.APPLIED, 200)
            needs = [source_name(one.at) for one in job.success.require]
            more = f" with {', '.join(needs)}" if means is JobClass.SUCCEEDED and needs else ""
            yield _event(", ".join(words) + more, waiting, outlook.on_status(signal))
    contradicted = answered(Meaning.CONTRADICTORY, Certainty.APPLIED, 200)
    if job.success.require or job.success.require_any:
        told = "success without what it needs"
        yield _event(told, waiting, outlook.on_status(contradicted))
    not_found = answered(Meaning.NOT_FOUND, Certainty.NOT_APPLIED, 404)
    for what, signal in (
        ("any other word", answered(Meaning.UNKNOWN_STATE, Certainty.APPLIED, 200)),
        ("429", outlook.limited("status")),
        ("503 or no answer", UNAVAILABLE),
        (f"404 after {duration(VISIBLE_AFTER)}", not_found),
    ):
        yield _event(what, waiting, outlook.on_status(signal))
    for reason in (
        Reason.DEADLINE_EXCEEDED,
        Reason.REQUEST_BUDGET_EXHAUSTED,
        Reason.TRANSPORT_BUDGET_EXHAUSTED,
        Reason.RATE_LIMITED,
    ):
        yield _bound(outlook, outlook.waiting(), reason)


def _words(row: Row) -> str:
    """The words of a row, without those at its end that may be anything."""
    words = list(row.words)
    while len(words) > 1 and words[-1] == "*":
        words.pop()
    return JOINT.join(words)


_BOUNDS = {
    Reason.DEADLINE_EXCEEDED: "deadline over",
    Reason.REQUEST_BUDGET_EXHAUSTED: "all checks used",
    Reason.TRANSPORT_BUDGET_EXHAUSTED: "too often no answer",
    Reason.RATE_LIMITED: "too many 429",
}


def _bound(outlook: Outlook, op: Operation, reason: Reason) -> Event:
    labels = [one.label for one in outlook.asked_for(reason, op)]
    told = f"stops and asks a person ({reason})"
    return Event(_BOUNDS[reason], told, State.ESCALATED, State.WAITING, reason, labels)


def _event(what: str, begins: State, outcome: Outcome) -> Event:
    labels = [one.label for one in outcome.options]
    return Event(what, outcome.words, outcome.state, begins, outcome.reason, labels)
