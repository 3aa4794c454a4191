"""The trail of one operation as a story: one line per event, in the order of time.

    2026-11-30
    10:20:00Z asked for exp.export, task month-end
    10:20:00Z submitted job exp_71c, deadline 11:00:00Z, budget 12, next poll 10:20:05Z from …
    10:20:05Z polled, state queued, next poll 10:20:14Z from local backoff

A reservation and its outcome are one line, at the time of the outcome; a reservation is told alone
only while its outcome is not known. Words of a provider are clipped and inert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from forbear.rules.escalations import length
from forbear.rules.model import AuditEvent, DelaySource, Kind, State, Step
from forbear.rules.paging import Cut
from forbear.storage.audit import Code
from forbear.tools.times import clock_time, rfc3339
from forbear.tools.untrusted import clip

WORD = 60
"""Most characters of one provider word in a line."""

NO_OUTCOME = "no outcome yet"
"""How the line of a request ends that is still out; it becomes another line."""

TIMES = "\N{MULTIPLICATION SIGN}"


def lines(events: Sequence[AuditEvent]) -> tuple[str, ...]:
    """The story of one operation from its events: the date first and at each new day, then lines.

    `events` are all events of one operation in the order of their sequence.
    """
    told: list[str] = []
    day = ""
    for scene in scenes_of(events):
        stamp = rfc3339(scene.at)
        if stamp[:10] != day:
            day = stamp[:10]
            told.append(day)
        told.append(f"{stamp[11:]} {sentence(scene)}")
    return tuple(told)


def receipt(events: Sequence[AuditEvent]) -> str:
    """What it took: submits, checks, refusals obeyed, repeats and time, on one line.

    Requests that certainly never left are named apart, so the rest is what a provider can count.
    `obeyed` means that no request of this operation came before the time the provider asked for.
    """
    events = [event for event in events if event.code != Code.RAW_SHOWN]
    if not events:
        return "nothing sent"
    scenes = list(scenes_of(events))
    left = [scene for scene in scenes if scene.step is not None and scene.code is not Code.NOT_SENT]
    sends = sum(scene.step is Step.SEND for scene in left)
    lookups = sum(scene.step is Step.LOOKUP for scene in left)
    unsent = sum(scene.code is Code.NOT_SENT for scene in scenes)
    silent = sum(scene.code in (Code.NO_ANSWER, Code.LOST) for scene in left)
    kind = Kind(scenes[0].after.get("kind", Kind.JOB))
    pages = sum("page" in scene.body and scene.step is Step.SEND for scene in left)
    parts = [_count(sends, _SENT_AS[kind])]
    if pages:
        parts.append(_count(pages, "page"))
    if kind is Kind.JOB:
        parts.append(_count(sum(scene.step is Step.STATUS for scene in left), "check"))
    if lookups:
        parts.append(_count(lookups, "lookup"))
    parts += [f"{number} {TIMES} {what}" for what, number in _refusals(scenes, events).items()]
    hops = sum("hop" in scene.body for scene in left)
    if hops:
        parts.append(f"{_count(hops, 'redirect')} followed")
    if silent:
        parts.append(f"{silent} without an answer")
    if unsent:
        parts.append(f"{unsent} not sent")
    parts += [
        _count(max(0, sends - _first_tries(left)), "repeat"),
        span(events[-1].at - events[0].at),
    ]
    return " · ".join(parts)


def _first_tries(left: Sequence[Scene]) -> int:
    """Requests of the action that tried something new: the first, and of each page or redirect."""
    sends = [scene for scene in left if scene.step is Step.SEND]
    return 1 + sum("page" in scene.body or "hop" in scene.body for scene in sends[:-1])


_SENT_AS = {Kind.JOB: "submit", Kind.CALL: "call", Kind.RESULT: "fetch", Kind.CANCEL: "cancel"}


def _count(number: int, noun: str) -> str:
    plural = {"fetch": "fetches"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


def span(ms: int) -> str:
    """`40 s`, `12 m 40 s`, `2 h 5 m`, `3 d 4 h`: the two largest units that say anything."""
    seconds = max(0, ms) // 1_000
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        number, seconds = divmod(seconds, size)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def _refusals(scenes: Sequence[Scene], events: Sequence[AuditEvent]) -> Counter[str]:
    """Answers that asked for patience (429, 503), and whether they got it."""
    reserved = [event.at for event in events if event.code == Code.RESERVED]
    found: Counter[str] = Counter()
    for scene in scenes:
        status = scene.body.get("http")
        if scene.code is not Code.ANSWERED or status not in (429, 503):
            continue
        asked = scene.body.get("retry_after_ms")
        following = next((at for at in reserved if at > scene.at), None)
        if asked is None:
            found[f"{status} backed off"] += 1
        elif following is None or following >= scene.at + asked:
            found[f"{status} obeyed"] += 1
        else:
            found[f"{status} not obeyed"] += 1
    return found


# --- from events to scenes ------------------------------------------------------------------

_OUTCOMES = frozenset({Code.ANSWERED, Code.NO_ANSWER, Code.NOT_SENT, Code.LOST})


@dataclass(frozen=True, slots=True)
class Scene:
    """One event with what was known when it happened; a request and its outcome are one scene."""

    at: int
    code: Code | None
    """None for an event of a newer program, and for one whose key is gone."""
    name: str
    body: Mapping[str, Any]
    after: Mapping[str, Any]
    """The operation's columns after the event, as far as the trail tells them."""
    step: Step | None
    """Of which request this is the outcome, or the reservation that has none."""
    number: int
    """Which request of its step, from 1."""

    @property
    def kind(self) -> Kind:
        return Kind(self.after.get("kind", Kind.JOB))

    def time(self, at: int) -> str:
        return clock_time(at, self.at)


def scenes_of(events: Sequence[AuditEvent]) -> Iterator[Scene]:
    """The scenes of one operation, in the order of its events."""
    closed = {event.body.get("attempt") for event in events if event.code in _OUTCOMES}
    known: dict[str, Any] = {}
    numbers: Counter[Step] = Counter()
    attempts: dict[str, tuple[Step, int]] = {}
    for event in events:
        if event.unreadable is not None:
            name = f"{event.code} ({event.unreadable})"
            yield Scene(event.at, None, name, {}, known, None, 0)
            continue
        known = {**known, **event.body.get("set", {})}
        code = Code(event.code) if event.code in set(Code) else None
        attempt = str(event.body.get("attempt", ""))
        if code is Code.RESERVED:
            step = Step(event.body.get("step", Step.SEND))
            numbers[step] += 1
            attempts[attempt] = step, numbers[step]
            if event.body.get("attempt") in closed:
                continue
        mine = code is Code.RESERVED or code in _OUTCOMES
        request = attempts.get(attempt, (Step.SEND, 1)) if mine else (None, 0)
        yield Scene(event.at, code, event.code, event.body, known, *request)


# --- sentences ------------------------------------------------------------------------------


def sentence(scene: Scene) -> str:
    """What happened, without its time: one line of the story."""
    match scene.code:
        case Code.ACCEPTED:
            return _asked(scene)
        case Code.JOINED:
            return f"asked for again, joined{_by_task(scene)}"
        case Code.HELD:
            return _held(scene)
        case Code.CONTRACT_NOTED:
            return "the contract changed; its states, hints and rules count from here"
        case Code.RESERVED:
            return f"sent {_request(scene)}, {NO_OUTCOME}"
        case Code.ANSWERED | Code.NO_ANSWER | Code.NOT_SENT | Code.LOST:
            return _joined(_happened(scene), *_consequences(scene))
        case Code.TOKEN_RESERVED:
            return f"asked {_word(scene.body.get('host'), 'its endpoint')} for a token"
        case Code.TOKEN_SETTLED:
            return _token(scene)
        case Code.RECONCILIATION_REQUIRED:
            return "it may have been done: only a lookup or a decision follows"
        case Code.ENDED:
            return _joined(_over(scene), *_consequences(scene))
        case Code.STRANDED:
            return _joined("no living process has its contract", *_consequences(scene))
        case Code.DECIDED:
            return _joined(_decided(scene), *_consequences(scene))
        case Code.DROPPED:
            return f"dropped, {_word(scene.body.get('why'), 'ended on request')}"
        case Code.END_ASKED:
            why = _word(scene.body.get("why"), "ended on request")
            return f"end asked for ({why}); a request is out, so its outcome comes first"
        case Code.LATE_EVIDENCE:
            return _joined(_late(scene), *_consequences(scene))
        case Code.CHECK_MOVED:
            because = _word(scene.body.get("because"), "another operation")
            at = scene.body.get("next_at")
            return f"next poll moved to {scene.time(at) if at else 'now'} because of {because}"
        case Code.WISHED:
            option = _word(scene.body.get("option"), "an option").replace("_", " ")
            return f"the agent asked a person for: {option}"
        case Code.RAW_SHOWN:
            who = _word(scene.body.get("operator"), "a person")
            why = clip(str(scene.body.get("reason") or ""), 120)
            return f'{who} looked at the raw requests and answers: "{why}"'
        case Code.EMPTIED:
            return "what was sent and answered was removed: it was kept as long as agreed"
        case Code.ANNOUNCED:
            return "people were told of the open question"
        case Code.CASE_OPENED:
            return f"a person was told: {_word(scene.body.get('reason'), 'no reason')}"
        case Code.CASE_CLOSED:
            return f"the question was closed: {clip(str(scene.body.get('why') or ''), 120)}"
        case Code.STORE_HELD:
            return "this store is a copy: another may have sent it since, so it is unclear"
        case (
            Code.PAUSED
            | Code.RESUMED
            | Code.STORE_ADOPTED
            | Code.CREDENTIAL_ACCEPTED
            | Code.SCOPE_RESET
            | Code.CIRCUIT_OPENED
            | Code.CIRCUIT_CLOSED
            | Code.AUDIT_READ
            | Code.AUDIT_REFUSED
            | Code.LOG_PRUNED
            | Code.KEYS_CHANGED
            | Code.FORGOTTEN
            | None
        ):
            return clip(scene.name.replace("_", " "), WORD)
        case _:
            assert_never(scene.code)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _word(value: object, otherwise: str = "") -> str:
    """A word of somebody else, bounded; `otherwise` if there is none."""
    return clip(str(value), WORD) if value not in (None, "") else otherwise


def _by_task(scene: Scene) -> str:
    task = scene.body.get("task")
    return f" by task {_word(task)}" if task else ""


def _asked(scene: Scene) -> str:
    of = _word(scene.after.get("parent_id"), "its job")
    action = f"{_word(scene.after.get('provider'))}.{_word(scene.after.get('action'))}"
    what = {
        Kind.JOB: f"asked for {action}",
        Kind.CALL: f"asked for {action}",
        Kind.RESULT: f"asked for the result of {of}",
        Kind.CANCEL: f"asked to cancel {of} at the provider",
    }[scene.kind]
    task = scene.body.get("task")
    parts = [what, f"task {_word(task)}" if task else ""]
    authorisation = scene.after.get("authorisation", "contract")
    if authorisation != "contract":
        parts.append(f"allowed by case {_word(authorisation)}")
    approve_by = scene.after.get("approve_by")
    if approve_by is not None:
        case = _word(scene.body.get("case"))
        parts.append(f"a person must approve by {scene.time(approve_by)} in case {case}")
    return _joined(*parts)


def _token(scene: Scene) -> str:
    why = scene.body.get("why")
    late = ", after it was given up" if scene.body.get("late") else ""
    return f"no token: {clip(str(why), 120)}{late}" if why else f"got a token{late}"


_HELD_FOR = {
    "slot": "held for a slot",
    "scope": "held by the shared limit",
    "credential": "held for a credential",
    "approval": "held for approval",
    "provider": "held for the provider's own minimum",
}


def _held(scene: Scene) -> str:
    if scene.after.get("delay_source") == DelaySource.CIRCUIT_OPEN:
        held = "held because the provider cannot be reached"
    elif scene.after.get("waiting_for") == "scope" and scene.after.get("delay_source") is None:
        held = "held by a pause"  # every other reason of a scope has a source
    else:
        held = _HELD_FOR.get(str(scene.after.get("waiting_for")), "held")
    at = scene.after.get("next_at")
    return _joined(held, f"looked at again {scene.time(at)}" if at is not None else "")


_NOUNS = {
    Kind.JOB: "submission",
    Kind.CALL: "call",
    Kind.RESULT: "fetch",
    Kind.CANCEL: "cancellation",
}
_VERBS = {
    Kind.JOB: "submitted",
    Kind.CALL: "called",
    Kind.RESULT: "fetched the result",
    Kind.CANCEL: "asked the provider to cancel",
}


def _request(scene: Scene) -> str:
    """`poll 4`, `submission`, `fetch 2`, `lookup 1`."""
    match scene.step:
        case Step.STATUS:
            return f"poll {scene.number}"
        case Step.LOOKUP:
            return f"lookup {scene.number}"
        case _:
            noun = _NOUNS[scene.kind]
            return noun if scene.number < 2 else f"{noun} {scene.number}"


def _happened(scene: Scene) -> str:
    """What came of a request, before what follows from it."""
    verb = {Step.STATUS: "polled", Step.LOOKUP: "looked it up"}.get(
        scene.step or Step.SEND, _VERBS[scene.kind]
    )
    fault = _word(str(scene.body.get("fault", "")).replace("_", " "))
    match scene.code:
        case Code.NOT_SENT:
            return f"{_request(scene)} not sent{f' ({fault})' if fault else ''}"
        case Code.NO_ANSWER:
            return f"{verb}, no answer{f' ({fault})' if fault else ''}"
        case Code.LOST:
            return f"{_request(scene)}: its process is gone, what came of it is unknown"
        case _:
            return _answered(scene, verb)


def _answered(scene: Scene, verb: str) -> str:
    body = scene.body
    if body.get("event") == "accepted":
        return _submitted(scene)
    page = f"read page {body.get('page')} of at most {body.get('most')}"
    parts = [page if "page" in body and scene.step is Step.SEND else verb]
    if body.get("cut") in _CUTS:
        parts.append(_CUTS[body["cut"]])
    http, state = body.get("http"), body.get("state")
    if http not in (None, 200):
        parts.append(_status(scene))
    if state is not None:
        parts.append(f"state {_word(state)}")
    if "hop" in body:
        parts.append(f"redirected to {clip(str(body.get('to')), 120)}")
    parts.append(_MEANINGS.get(str(body.get("meaning")), ""))
    parts.append(_SAW.get(str(body.get("saw")), ""))
    if body.get("missing"):
        parts.append("; ".join(clip(str(each), 120) for each in body["missing"][:3]))
    if body.get("mismatch"):
        parts.append(clip(str(body["mismatch"]), 120))
    return _joined(*parts)


_MEANINGS = {
    "not_yet_visible": "not visible yet",
    "unknown_state": "which the contract does not know",
    "blocked": "the provider waits for a person",
    "contradictory": "called done, but required fields are missing",
    "incomplete": "required fields are missing",
    "invalid": "not readable",
    "mismatch": "about another job or account",
    "untracked": "taken, but without what its status needs",
    "already_terminal": "already over",
}


_SAW = {"nothing": "found nothing", "a part": "not read to its end, so it proves nothing"}
"""What a lookup that settles nothing saw."""

_CUTS = {
    str(Cut.CYCLE): "whose next cursor was used before, so the rest is left out",
    str(Cut.BUDGET): "the last that is allowed, so the rest is left out",
    str(Cut.NO_CURSOR): "which says that there is more, but not where",
}


def _status(scene: Scene) -> str:
    """`503, to wait 120 s`, `429 without a hint`, `404`."""
    http, asked = scene.body.get("http"), scene.body.get("retry_after_ms")
    if asked is not None:
        return f"{http}, to wait {span(asked)}"
    return f"{http} without a hint" if http == 429 else str(http)


def _submitted(scene: Scene) -> str:
    job = scene.after.get("provider_job")
    done = "looked it up, found" if scene.step is Step.LOOKUP else "submitted"
    parts = [f"{done} job {_word(job)}" if job is not None else done]
    deadline, budget = scene.after.get("deadline_at"), scene.after.get("status_requests_max")
    if deadline is not None:
        parts.append(f"deadline {scene.time(deadline)}")
    if budget is not None:
        parts.append(f"budget {budget}")
    return _joined(*parts)


def _over(scene: Scene) -> str:
    """Why an operation ended or stopped before anything more was sent."""
    if scene.body.get("reason") is not None:
        return "nothing more is sent"
    why = {
        "approval": "nobody approved in time",
        "deadline": "the deadline passed before it could be sent",
        "attempts": "no attempt is left",
    }
    return why.get(str(scene.body.get("why")), "over")


def _late(scene: Scene) -> str:
    parts = ["late evidence"]
    http, state = scene.body.get("http"), scene.body.get("state")
    if scene.body.get("outcome") == "not_sent":
        parts.append("the request was never sent")
    if http is not None:
        parts.append(f"answer {http}")
    if state is not None:
        parts.append(f"state {_word(state)}")
    if "found" in scene.body:
        parts.append(f"a lookup, which found {_word(scene.body['found'] or 'nothing')}")
    taken = scene.body.get("take") or {}
    if "id" in taken:
        parts.append(f"job {_word(taken['id'])}")
    return _joined(*parts)


def _decided(scene: Scene) -> str:
    """`anna decided extend (15 minutes, 4 checks) at a terminal`."""
    body = scene.body
    who = _word(body.get("operator"), "a person")
    given = [
        length(body["extend_by"]) if body.get("extend_by") else "",
        _count(body["requests"], "check") if body.get("requests") else "",
        f"until {scene.time(body['until'])}" if body.get("until") else "",
        f"as {_word(body['treat_as'])}" if body.get("treat_as") else "",
        f"id {_word(body['reference'])}" if body.get("reference") else "",
    ]
    bounds = ", ".join(part for part in given if part)
    told = f"{who} decided {_word(body.get('option'), 'something')}"
    if bounds:
        told += f" ({bounds})"
    if body.get("channel"):
        told += _AT.get(str(body["channel"]), f" by {_word(body['channel'])}")
    if body.get("comment"):
        told += f': "{clip(str(body["comment"]), 120)}"'
    return told


_AT = {
    "terminal": " at a terminal",
    "token": " with the operator token",
    "console": " in the console",
}


# --- what followed --------------------------------------------------------------------------


def _consequences(scene: Scene) -> Iterator[str]:
    changed = scene.body.get("set", {})
    yield from _charges(scene, changed)
    if scene.code is Code.DECIDED:
        if "deadline_at" in changed:
            yield f"deadline {scene.time(changed['deadline_at'])}"
        if "status_requests_max" in changed:
            yield f"budget {changed['status_requests_max']}"
    for note in scene.body.get("told", ()):
        yield clip(str(note), 120)
    reason = scene.body.get("reason")
    if reason is not None:
        yield f"escalated: {reason}, case {_word(scene.body.get('case'))}"
        return
    state = changed.get("state")
    if state in _FINAL:
        yield _ended(scene, str(state))
    else:
        yield _next(scene)
    if "superseded_by" in changed:
        yield f"replaced by {_word(changed['superseded_by'])}"


_FINAL = frozenset(
    str(state)
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED, State.DISCARDED)
)


def _charges(scene: Scene, changed: Mapping[str, Any]) -> Iterator[str]:
    """Budgets of failures that this event counted up."""
    if scene.code is Code.DECIDED:
        return
    for name, words in (("rate_limited", "rate limits"), ("transport_failures", "failures")):
        if f"{name}_used" in changed:
            yield f"{words} {changed[f'{name}_used']} of {scene.after.get(f'{name}_max', '?')}"


def _ended(scene: Scene, state: str) -> str:
    failure = scene.body.get("set", {}).get("failure") or {}
    detail = [_word(failure.get("code")), clip(str(failure.get("message") or ""), 120)]
    told = ", ".join(part for part in detail if part)
    if state == State.SUCCEEDED and scene.kind is Kind.JOB and scene.code is not Code.DECIDED:
        part = " in part" if scene.body.get("partial") else ""
        return f"all required fields present: succeeded{part}"
    return f"{state}{f' ({told})' if told else ''}"


def _next(scene: Scene) -> str:
    at = scene.after.get("next_at")
    if at is None:
        return ""
    polls = scene.after.get("step") == Step.STATUS
    source = scene.after.get("delay_source")
    words = f" from {_SOURCES.get(str(source), source)}" if source is not None else ""
    pages = "page" in scene.body and scene.step is Step.SEND
    return f"next {'poll' if polls else 'page' if pages else 'try'} {scene.time(at)}{words}"


_SOURCES = {
    str(DelaySource.PROVIDER_RETRY_AFTER): "the provider's Retry-After",
    str(DelaySource.PROVIDER_POLL_HINT): "the provider's hint",
    str(DelaySource.SCOPE_LIMIT): "the scope limit",
    str(DelaySource.LOCAL_BACKOFF): "local backoff",
    str(DelaySource.BUDGET_PACE): "the pace of the budget",
    str(DelaySource.MANUAL_EXTENSION): "a decision",
    str(DelaySource.CIRCUIT_OPEN): "an open circuit",
}
