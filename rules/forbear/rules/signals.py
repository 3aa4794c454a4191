"""From what came back to what it means: the only reading of a provider's answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forbear.rules import evidence, quotas, reading
from forbear.rules.contract import (
    Action,
    Contract,
    Job,
    Means,
    Paging,
    Placeholder,
    Pointer,
    Request,
    Requirement,
    Rule,
    Source,
    Template,
)
from forbear.rules.evidence import View
from forbear.rules.facts import Facts
from forbear.rules.lookups import Page, read_page
from forbear.rules.model import Certainty, JobClass, RequestClass
from forbear.rules.paging import Turn, paging_of, read_turn
from forbear.rules.ports import Reply
from forbear.rules.quotas import Quota
from forbear.rules.reading import Answer, Reading
from forbear.rules.redirects import onward
from forbear.rules.steps import handles
from forbear.rules.timing import Hint as Hint
from forbear.rules.timing import RetryAfter as RetryAfter
from forbear.rules.values import Gap, media_type, says_json


class Meaning(StrEnum):
    NOT_SENT = "not_sent"
    NO_ANSWER = "no_answer"
    """Sent, and no complete answer: closed, timed out, truncated, unreadable without framing."""
    ACCEPTED = "accepted"
    """A submission was taken and we hold a handle."""
    UNTRACKED = "untracked"
    """A submission was taken and there is no handle."""
    WAITING = "waiting"
    BLOCKED = "blocked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN_STATE = "unknown_state"
    CONTRADICTORY = "contradictory"
    """A success state without a required field, or past a stated contradiction."""
    INVALID = "invalid"
    """A complete body that cannot be read."""
    MISMATCH = "mismatch"
    """Another job id or account than ours."""
    DONE = "done"
    """A call, result or cancellation succeeded and its required fields are there."""
    INCOMPLETE = "incomplete"
    """A 2xx of a call, result or cancellation without a required field."""
    EMPTY = "empty"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    RETRY_LATER = "retry_later"
    SERVER_ERROR = "server_error"
    """5xx or 408, answered."""
    REJECTED = "rejected"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    NOT_YET_VISIBLE = "not_yet_visible"
    GONE = "gone"
    CONFLICT = "conflict"
    """409 without a rule."""
    IN_FLIGHT = "in_flight"
    ALREADY_EXISTS = "already_exists"
    KEY_REUSED = "key_reused"
    ALREADY_TERMINAL = "already_terminal"
    UNCLEAR = "unclear"
    REDIRECT = "redirect"


@dataclass(frozen=True, slots=True)
class Signal:
    """What one attempt told us, before anything is decided."""

    meaning: Meaning
    certainty: Certainty
    """Of this attempt's effect; for reads always what the wire says."""
    status: int | None = None
    answered: bool = False
    state: str | None = None
    """The provider's word or words, joined with ` · ` in the order of the reads."""
    retry_after: RetryAfter | None = None
    hints: tuple[Hint, ...] = ()
    take: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values to keep: `id`, what `take` names, and `result.x` from `success.take`."""
    missing: tuple[str, ...] = ()
    """Required fields that were absent or of the wrong type, with why."""
    failure_code: str | None = None
    failure_message: str | None = None
    progress: str | None = None
    expiry_at: int | None = None
    """The provider's own expiry of the job, epoch ms, corrected for clock skew."""
    estimate: int | None = None
    """Stated time to completion, ms."""
    partial: bool = False
    mismatch: str | None = None
    provider_request_id: str | None = None
    anomalies: tuple[str, ...] = ()
    """What was odd and ignored: an unreadable Retry-After, a malformed field."""
    fault: str | None = None
    """The sender's fault word where there was no complete answer."""
    page: Page | None = None
    """What a page of a lookup says."""
    turn: Turn | None = None
    """One page of a read that has several."""
    location: str | None = None
    """Where a redirect leads that the contract lets be followed: an absolute address."""
    quotas: tuple[tuple[str, Quota], ...] = ()
    """What the answer leaves to each scope that the action counts in, by the scope's name."""


# --- reading --------------------------------------------------------------------------------

VISIBLE_AFTER = 30_000
"""A 404 on a status request this long after the submission, ms, means "not yet visible"."""


def read(
    reply: Reply, contract: Contract, action: Action, request: Request, facts: Facts, now: int
) -> Signal:
    """What one reply means (behaviour.md section 4). Total: any reply whatever gives a signal.

    The order is fixed: what the wire did, the contract's rules, state rows that name the status
    code, the defaults for status codes, and only then the body.
    """
    if not reply.sent:
        return Signal(Meaning.NOT_SENT, Certainty.NOT_SENT, fault=reply.fault)
    counts = reply.complete and _body_counts(reply, action, request)
    answer = reading.answer_of(reply) if counts else Answer(reply)
    view = View(answer, contract, action, request, facts, now)
    signal = _judged(view)
    left, ignored = quotas.stated(view)
    return replace(signal, quotas=left, anomalies=(*signal.anomalies, *ignored))


def _judged(view: View) -> Signal:
    reply, action, request, facts = view.reply, view.action, view.request, view.facts
    if not reply.complete or reply.status is None:
        return _no_answer(view, reply.fault)
    rule = reading.rule_for(action.rules, request.name, facts.age(view.now), view.answer, facts)
    if rule is not None and rule.means is not Means.DONE:
        return _ruled(view, rule)
    if rule is None and not _is_ok(view):
        return _http_state(view) or _by_status(view)
    match request.name:
        case "status" if view.job is not None:
            return _observed(view, view.job, stated_done=rule is not None)
        case "submit" if view.job is not None:
            return _submitted(view, view.job)
        case _:
            return _answered(view)


def _body_counts(reply: Reply, action: Action, request: Request) -> bool:
    """Whether anything is read from the body. A result that is only kept is not parsed: it may be
    large, and it is whatever the provider made.
    """
    if request.name != "result" or not _is_good(reply.status or 0, request):
        return True
    may_be_cut = _is_unframed(reply) and says_json(reply.header("Content-Type"))
    matched = any(
        rule.match is not None
        and (rule.on is None or request.name in rule.on)
        and (rule.http is None or reply.status in rule.http)
        for rule in action.rules
    )
    return may_be_cut or matched or _reads_body(_own_sources(request))


def _is_ok(view: View) -> bool:
    return _is_good(view.status, view.request)


def _is_good(status: int, request: Request) -> bool:
    return 200 <= status <= 299 if request.ok is None else status in request.ok


def _say(view: View, meaning: Meaning, certainty: Certainty) -> Signal:
    """The signal with all that is kept of an answer whatever it means."""
    asked, odd = evidence.retry_after(view)
    take, unusable = evidence.taken(view, view.request.take)
    code, message = (None, None) if meaning in _CALM else evidence.failure(view)
    signal = Signal(
        meaning,
        certainty,
        status=view.status,
        answered=True,
        retry_after=asked,
        take=take,
        failure_code=code,
        failure_message=message,
        provider_request_id=evidence.provider_request_id(view.reply),
        anomalies=(*odd, *unusable),
    )
    job = view.job
    if job is None:
        return signal
    result_expiry = job.expiry.result if meaning is Meaning.SUCCEEDED else None
    return replace(
        signal,
        hints=evidence.hints(view, job),
        progress=evidence.progress(view, job),
        expiry_at=evidence.instant(view, result_expiry or job.expiry.job),
        estimate=evidence.estimate(view, job),
    )


_CALM = frozenset(
    {
        Meaning.ACCEPTED,
        Meaning.UNTRACKED,
        Meaning.WAITING,
        Meaning.SUCCEEDED,
        Meaning.DONE,
        Meaning.EMPTY,
    }
)
"""Meanings whose answers hold no failure."""


def _no_answer(view: View, fault: str | None) -> Signal:
    """Bytes left and no whole answer came: what headers there are still count."""
    asked, odd = evidence.retry_after(view)
    return Signal(
        Meaning.NO_ANSWER,
        Certainty.MAYBE_APPLIED,
        status=view.reply.status,
        retry_after=asked,
        provider_request_id=evidence.provider_request_id(view.reply),
        anomalies=odd,
        fault=fault or "closed",
    )


# --- rules and status codes -----------------------------------------------------------------

_MEANINGS: Mapping[Means, tuple[Meaning, Certainty]] = {
    Means.RETRY_LATER: (Meaning.RETRY_LATER, Certainty.MAYBE_APPLIED),
    Means.RATE_LIMITED: (Meaning.RATE_LIMITED, Certainty.NOT_APPLIED),
    Means.QUOTA_EXHAUSTED: (Meaning.QUOTA_EXHAUSTED, Certainty.NOT_APPLIED),
    Means.IN_FLIGHT: (Meaning.IN_FLIGHT, Certainty.MAYBE_APPLIED),
    Means.ALREADY_EXISTS: (Meaning.ALREADY_EXISTS, Certainty.MAYBE_APPLIED),
    Means.KEY_REUSED: (Meaning.KEY_REUSED, Certainty.MAYBE_APPLIED),
    Means.NOT_YET_VISIBLE: (Meaning.NOT_YET_VISIBLE, Certainty.APPLIED),
    Means.GONE: (Meaning.GONE, Certainty.NOT_APPLIED),
    Means.EMPTY: (Meaning.EMPTY, Certainty.APPLIED),
    Means.ALREADY_TERMINAL: (Meaning.ALREADY_TERMINAL, Certainty.NOT_APPLIED),
    Means.REJECTED: (Meaning.REJECTED, Certainty.NOT_APPLIED),
    Means.AUTH: (Meaning.AUTH, Certainty.NOT_APPLIED),
    Means.UNCLEAR: (Meaning.UNCLEAR, Certainty.MAYBE_APPLIED),
}


def _ruled(view: View, rule: Rule) -> Signal:
    meaning, certainty = _MEANINGS[rule.means]
    if (
        meaning is Meaning.RETRY_LATER
        and view.request.request_class is not RequestClass.UNCERTAIN_WRITE
    ):
        certainty = Certainty.NOT_APPLIED
    if rule.applied is not None:
        certainty = Certainty.APPLIED if rule.applied else Certainty.NOT_APPLIED
    if meaning is Meaning.GONE and view.request.name == "status" and not view.facts.terminal_seen:
        meaning = Meaning.NOT_FOUND
    return _say(view, meaning, certainty)


def _http_state(view: View) -> Signal | None:
    """A state row that names this status code.

    A `*` does not reach here: it would turn a 401, a 429 or a 503 into a state of the job.
    """
    job = view.job
    if job is None or view.request.name != "status" or not job.states.reads_http:
        return None
    found = reading.read_state(job.states, view.answer, view.facts)
    if not found.met_exactly(job.states, http=True):
        return None
    return _mismatched(view, job) or _job_state(view, job, found.text, found.means)


def _by_status(view: View) -> Signal:
    """The defaults of contract.md for a status code that no rule, row or `ok` names."""
    name = view.request.name
    match view.status:
        case 401 | 403:
            return _say(view, Meaning.AUTH, Certainty.NOT_APPLIED)
        case 404 if name == "status":
            age = view.facts.age(view.now)
            visible = age is None or age >= VISIBLE_AFTER
            meaning = Meaning.NOT_FOUND if visible else Meaning.NOT_YET_VISIBLE
            return _say(view, meaning, Certainty.NOT_APPLIED)
        case 404 if name in ("result", "lookup"):
            return _say(view, Meaning.NOT_FOUND, Certainty.NOT_APPLIED)
        case 410 if name == "result":
            return _say(view, Meaning.GONE, Certainty.NOT_APPLIED)
        case 409 if view.request.request_class is not RequestClass.READ:
            return _say(view, Meaning.CONFLICT, Certainty.MAYBE_APPLIED)
        case 429:
            return _say(view, Meaning.RATE_LIMITED, Certainty.NOT_APPLIED)
        case 408:
            return _say(view, Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED)
        case status if 500 <= status <= 599:
            return _say(view, Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED)
        case status if 400 <= status <= 499:
            return _say(view, Meaning.REJECTED, Certainty.NOT_APPLIED)
        case status if 300 <= status <= 399:
            return _redirected(view)
        case status:
            meaning = Meaning.INVALID if name == "status" else Meaning.INCOMPLETE
            signal = _say(view, meaning, Certainty.MAYBE_APPLIED)
            return replace(signal, missing=(f"HTTP {status} is no status this request expects",))


def _redirected(view: View) -> Signal:
    """An answer that points elsewhere. Nothing in it is about the job, so nothing of it is kept."""
    told = _say(view, Meaning.REDIRECT, Certainty.MAYBE_APPLIED)
    bare = replace(told, take={}, hints=(), progress=None, expiry_at=None, estimate=None)
    found = onward(view.reply, view.request)
    if found.url is None:
        return replace(bare, missing=(found.problem,))
    return replace(bare, location=found.url)


# --- bodies ---------------------------------------------------------------------------------


def _observed(view: View, job: Job, *, stated_done: bool) -> Signal:
    """A status answer: binding, state, and for a success its required fields."""
    needs_body = not job.states.only_http or _reads_body(_success_sources(job))
    broken = _unusable_body(view, needs_body=needs_body)
    if broken is not None:
        return broken
    if view.answer.body is Gap.MISSING and not job.states.reads_http and not stated_done:
        return _invalid(view, "the body is empty")
    found = reading.read_state(job.states, view.answer, view.facts)
    means = JobClass.SUCCEEDED if stated_done else found.means
    return _mismatched(view, job) or _job_state(view, job, found.text, means)


def _mismatched(view: View, job: Job) -> Signal | None:
    """A status answer about another job or account than ours."""
    if isinstance(view.answer.body, Gap):
        return None
    default = _default_echo(job)
    stated = tuple(one for one in view.request.echo if one != default)
    echo = stated if default is None else (*stated, default)
    absent = reading.unechoed(stated, view.answer, view.facts)
    wrong = reading.foreign(echo, view.answer, view.facts) or next(iter(absent), None)
    if wrong is None:
        return None
    # Nothing of an answer about somebody else's job is kept.
    signal = _say(view, Meaning.MISMATCH, Certainty.APPLIED)
    return replace(signal, mismatch=wrong, take={}, progress=None, expiry_at=None, hints=())


def _default_echo(job: Job) -> tuple[Source, Template] | None:
    """`{id}` at the pointer that the submission's id came from; it counts where it is there."""
    source = dict(job.send.take).get("id")
    return (source, _ID) if isinstance(source, Pointer) else None


_ID = Template("{id}", (Placeholder("id"),))


def _job_state(view: View, job: Job, state: str, means: JobClass | None) -> Signal:
    if means is None:
        return replace(_say(view, Meaning.UNKNOWN_STATE, Certainty.APPLIED), state=state)
    if means is not JobClass.SUCCEEDED:
        return replace(_say(view, Meaning(means.value), Certainty.APPLIED), state=state)
    hosts = view.request.hosts + sum((result.hosts for result in job.results.values()), ())
    missing = reading.missing_fields(
        job.success.require, job.success.require_any, view.answer, view.contract, hosts
    )
    signal = _say(view, Meaning.CONTRADICTORY if missing else Meaning.SUCCEEDED, Certainty.APPLIED)
    results, unusable = evidence.taken(view, job.success.take, "result.")
    return replace(
        signal,
        state=state,
        missing=missing,
        take={**signal.take, **results},
        anomalies=signal.anomalies + unusable,
        partial=any(
            reading.passes(one, view.answer, view.facts) is True for one in job.success.partial
        ),
    )


def _submitted(view: View, job: Job) -> Signal:
    """The answer that took a submission: already ended, tracked by a handle, or untracked."""
    ended = _already_ended(view, job)
    if ended is not None:
        return ended
    checked = _checked(view, Meaning.ACCEPTED)
    if checked.meaning is not Meaning.ACCEPTED:
        return checked
    known = {**view.facts.take, **checked.take}
    lost = sorted(name for name in handles(job) if name.removeprefix("take.") not in known)
    if lost:
        missing = tuple(f"{{{name}}} of the status request is not in the answer" for name in lost)
        return replace(checked, meaning=Meaning.UNTRACKED, missing=missing)
    found = _submitted_state(view, job)
    return checked if found is None else replace(checked, state=found.text)


def _submitted_state(view: View, job: Job) -> Reading | None:
    """The state that a submission's answer reads, if a word of its own met a row."""
    if job.states.only_http or view.answer.is_unreadable:
        return None
    found = reading.read_state(job.states, view.answer, view.facts)
    return found if found.met_exactly(job.states, http=False) else None


def _already_ended(view: View, job: Job) -> Signal | None:
    """A submission's answer with a final state is judged like a poll (requirement W28).

    Its echo is skipped: there was no id before it.
    """
    found = _submitted_state(view, job)
    if found is None or found.means in (None, JobClass.WAITING, JobClass.BLOCKED):
        return None
    return _job_state(view, job, found.text, found.means)


def _answered(view: View) -> Signal:
    """The answer to a call, a result fetch, a cancellation or a lookup."""
    signal = _checked(view, Meaning.DONE)
    lookup, page = view.action.lookup, _paging(view)
    if signal.meaning is not Meaning.DONE:
        return signal
    if view.request.name == "lookup" and lookup is not None:
        return replace(signal, page=read_page(view.answer, lookup, view.action.send, view.facts))
    if page is None:
        return signal
    turn = read_turn(view.answer, page)
    return _invalid(view, turn) if isinstance(turn, str) else replace(signal, turn=turn)


def _paging(view: View) -> Paging | None:
    return paging_of(view.action) if view.request.name == "call" else None


def _checked(view: View, good: Meaning) -> Signal:
    """`good`, if the body can be read where it must be, echoes ours and has what is required."""
    request = view.request
    listed = request.name == "lookup" or _paging(view) is not None
    needs_body = listed or _reads_body(_own_sources(request))
    broken = _unusable_body(view, needs_body=needs_body)
    if broken is not None:
        return broken
    wrong = reading.foreign(request.echo, view.answer, view.facts)
    if wrong is not None:
        return replace(_say(view, Meaning.MISMATCH, Certainty.MAYBE_APPLIED), mismatch=wrong)
    missing = (
        *reading.missing_fields(
            request.require, request.require_any, view.answer, view.contract, request.hosts
        ),
        *reading.unechoed(request.echo, view.answer, view.facts),
    )
    if missing:
        return replace(_say(view, Meaning.INCOMPLETE, Certainty.MAYBE_APPLIED), missing=missing)
    return _say(view, good, Certainty.APPLIED)


def _unusable_body(view: View, *, needs_body: bool) -> Signal | None:
    """The signal of a body that cannot be read though it must be; None where it does not matter.

    A body that only the closing of the connection ended may have been cut anywhere, so there it
    is no answer. A page where an API's answer belongs is no answer of the API either.
    """
    if not view.answer.is_unreadable:
        return None
    declared = view.reply.header("Content-Type")
    cut = _is_unframed(view.reply)
    if view.request.name == "result":
        expected = needs_body or (cut and says_json(declared))
    else:
        expected = needs_body or says_json(declared) or media_type(declared) == "text/html"
    if not expected:
        return None
    if cut:
        return _no_answer(view, "truncated_body")
    return _invalid(view, view.answer.problem or "the body cannot be read")


def _is_unframed(reply: Reply) -> bool:
    """Whether only the closing of the connection ended the body (RFC 9112 section 6.3)."""
    coding = (reply.header("Transfer-Encoding") or "").lower()
    return reply.header("Content-Length") is None and "chunked" not in coding


def _invalid(view: View, problem: str) -> Signal:
    signal = _say(view, Meaning.INVALID, Certainty.MAYBE_APPLIED)
    return replace(signal, missing=(problem,))


def _reads_body(sources: Iterable[Source]) -> bool:
    return any(isinstance(source, Pointer) for source in sources)


def _own_sources(request: Request) -> tuple[Source, ...]:
    return (
        *(source for _, source in request.take),
        *(one.at for one in (*request.require, *request.require_any)),
        *(source for source, _ in request.echo),
    )


def _success_sources(job: Job) -> tuple[Source, ...]:
    required: tuple[Requirement, ...] = (*job.success.require, *job.success.require_any)
    return tuple(one.at for one in required)
