"""What follows from an answer: settle, wait, try again, stop and ask (behaviour.md, sections 3-6).

A verdict is a value: the event, the fields that change, and what else the ledger must write in the
same transaction. Order within one answer: authorisation, binding, terminal, contradictory, unknown,
unreadable, blocked, deadline, provider's expiry, rate, transport, request budget. What the answer
itself says is the meaning of its signal; the bounds that an answer ran into are `_spent`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from forbear.rules import backoff
from forbear.rules.conclusions import (
    REST,
    SUCCESS,
    Changes,
    Tried,
    approved_again,
    approved_first,
    blocking_scope,
    failure_of,
    seen_in,
    seen_in_lookup,
    spend,
    stopped,
    story_of,
    strongest,
)
from forbear.rules.conclusions import Verdict as Verdict
from forbear.rules.conclusions import stop as stop
from forbear.rules.contract import Action, Contract, Effect, Job
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Notice,
    Operation,
    Reason,
    RequestClass,
    Step,
    WaitingFor,
)
from forbear.rules.paging import Progress, Turn
from forbear.rules.ports import Moment
from forbear.rules.reconciliation import after_lookup, look
from forbear.rules.redirects import Hop, forgotten, place
from forbear.rules.retries import without_effect
from forbear.rules.schedule import (
    Plan,
    end_of,
    end_reason,
    known_expiry,
    plan_check,
    stated_wait,
)
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import handles, lookup_of, request_of


def after_attempt(
    op: Operation,
    contract: Contract,
    action: Action,
    signal: Signal,
    now: int,
    u: float,
    *,
    can_still_send: bool = False,
    new_token: bool = False,
    clocks: Moment | None = None,
) -> Verdict:
    """The verdict on one closed attempt of `op.step`.

    `op` is the record as it stands, with the attempt already counted; `u` is uniform in [0, 1).
    `can_still_send` and `clocks` matter to lookups only, see `reconciliation.after_lookup`.
    `new_token`: a 401 is about a token that is replaced, not yet about the credential behind it.
    """
    hop = None if signal.location is None else Hop.after(op, signal.location)
    if isinstance(hop, str):
        signal, hop = replace(signal, missing=(hop,)), None
    if hop is not None:
        verdict = _redirected(op, hop, signal, now)
    elif op.step is Step.LOOKUP:
        seen = seen_in_lookup(signal, now)
        tried = Tried(op, contract, action, signal, seen, now, u, clocks)
        verdict = after_lookup(tried, can_still_send=can_still_send)
    elif not isinstance(action, Job) or op.kind is not Kind.JOB:
        verdict = _after_request(op, contract, action, signal, now, u)
    elif op.step is Step.STATUS:
        verdict = _after_status(op, action, signal, now, u)
    else:
        verdict = _after_submission(op, contract, action, signal, now, u)
    denied = signal.meaning is Meaning.AUTH and signal.status == 401
    denied = denied and _carried_credential(op, action)
    if denied and new_token and op.once is None:
        denied, verdict = False, _with_new_token(op, verdict, signal, now)
    sent = action.send if op.kind in (Kind.JOB, Kind.CALL) else request_of(op, action)
    verdict = approved_again(op, action, sent.approval.covers, verdict, now)
    verdict = replace(verdict, changes={**forgotten(op), **verdict.changes})
    return replace(verdict, block_credential=True) if denied else verdict


def without_lookup(
    op: Operation, contract: Contract, action: Action, now: int, u: float
) -> Verdict | None:
    """What follows where a lookup is due and the contract has none: the way after a lost answer.

    None where it has one.
    """
    if op.step is not Step.LOOKUP or lookup_of(op, action) is not None:
        return None
    lost = Signal(Meaning.NO_ANSWER, Certainty.MAYBE_APPLIED, fault="copy")
    verdict = after_attempt(replace(op, step=Step.SEND), contract, action, lost, now, u)
    stays = verdict.event is Event.MADE_UNCLEAR  # which it is already
    return replace(verdict, event=Event.OBSERVED) if stays else verdict


def _carried_credential(op: Operation, action: Action) -> bool:
    """Whether the request had the provider's credential on it, and not none or one of its own.

    Where a redirect led, a refusal says nothing about the credential.
    """
    request = request_of(op, action)
    return request.authenticate and request.secret is None and Hop.taken(op) is None


def _redirected(op: Operation, hop: Hop, signal: Signal, now: int) -> Verdict:
    """Follow a redirect: one request more, due at once or after the wait that it states.

    Nothing was observed. A decision's single permit is for a whole look, so it holds on.
    """
    looks = op.step is Step.LOOKUP
    seen = seen_in_lookup(signal, now) if looks else seen_in(op, signal, now)
    seen |= {"once": op.once, "once_until": op.once_until}
    if op.step is Step.SEND:
        seen["certainty"] = strongest(op.certainty, signal.certainty)
    due = now + (stated_wait(signal) or 0)
    planned: Changes = {
        "next_at": due if op.once is not None else min(due, max(now, end_of(op))),
        "waiting_for": WaitingFor.PROVIDER if op.step is Step.STATUS else None,
        "search": hop.kept(op),
    }
    event = Event.POSTPONED if op.step is Step.SEND else Event.OBSERVED
    story = story_of(signal, hop=hop.number, to=place(hop.url))
    return Verdict(event, seen | planned, story=story)


def _with_new_token(op: Operation, verdict: Verdict, signal: Signal, now: int) -> Verdict:
    """The same request again at once: a 401 did nothing, and costs nothing that is needed for it.

    What an earlier attempt may have done stays in doubt.
    """
    spent = {Step.SEND: "attempts", Step.STATUS: "status_requests", Step.LOOKUP: "lookups"}[op.step]
    budget: Budget = getattr(op, spent)
    raised = replace(budget, max=max(budget.max, budget.used + 1))
    waits = {"waiting_for": WaitingFor.PROVIDER if op.step is Step.STATUS else None}
    changes = {**verdict.changes, spent: raised, **waits, "next_at": now}
    event = Event.OBSERVED
    if op.step is Step.SEND:
        write = op.request_class is not RequestClass.READ
        unclear = write and strongest(op.certainty, signal.certainty) is Certainty.MAYBE_APPLIED
        event = Event.MADE_UNCLEAR if unclear else Event.POSTPONED
    return Verdict(event, changes, story={**story_of(signal), "token": "refused"})


# --- a status answer ------------------------------------------------------------------------


def _after_status(op: Operation, job: Job, signal: Signal, now: int, u: float) -> Verdict:
    seen = seen_in(op, signal, now)
    if signal.answered:
        seen["observed_at"] = now
    match signal.meaning:
        case Meaning.AUTH:
            return stopped(Reason.AUTHORIZATION_DENIED, seen, signal)
        case Meaning.MISMATCH:
            return stopped(Reason.BINDING_MISMATCH, seen, signal)
        case Meaning.SUCCEEDED | Meaning.EMPTY | Meaning.DONE:
            return _job_succeeded(seen, signal)
        case Meaning.FAILED | Meaning.CANCELLED | Meaning.EXPIRED:
            return _job_ended(job, seen, signal)
        case Meaning.GONE:
            if op.terminal_seen:
                return _job_ended(job, seen, replace(signal, meaning=Meaning.EXPIRED))
            return stopped(Reason.NOT_FOUND, seen, signal)
        case Meaning.CONTRADICTORY:
            seen["terminal_seen"] = True
            if job.success.when_missing != "wait":
                return stopped(Reason.CONTRADICTORY_RESPONSE, seen, signal)
            return _keep_waiting(op, job, signal, seen, now, u)
        case Meaning.UNKNOWN_STATE:
            return stopped(Reason.UNKNOWN_STATE, seen, signal)
        case Meaning.INVALID:
            return stopped(Reason.INVALID_RESPONSE, seen, signal)
        case Meaning.BLOCKED:
            return stopped(Reason.BLOCKED_STATE, seen, signal)
        case Meaning.NOT_FOUND:
            return stopped(Reason.NOT_FOUND, seen, signal)
        case Meaning.QUOTA_EXHAUSTED:
            verdict = stopped(Reason.QUOTA_EXHAUSTED, seen, signal)
            return blocking_scope(verdict, now, stated_wait(signal) or job.backoff.rate_limited)
        case Meaning.REDIRECT:
            return stopped(Reason.INTEGRATION_FAILURE, seen, signal, **failure_of(signal))
        case (
            Meaning.REJECTED
            | Meaning.CONFLICT
            | Meaning.KEY_REUSED
            | Meaning.ALREADY_EXISTS
            | Meaning.ACCEPTED
            | Meaning.UNTRACKED
            | Meaning.INCOMPLETE
        ):
            return stopped(Reason.INTEGRATION_FAILURE, seen, signal)
        case Meaning.NOT_SENT if signal.fault == "egress_refused":
            return stopped(Reason.EGRESS_REFUSED, seen, signal)
        case Meaning.NO_ANSWER | Meaning.SERVER_ERROR | Meaning.UNCLEAR if (
            job.status.effect is not Effect.READ
        ):
            # Asking again could charge or change something a second time (requirement W18).
            seen["transport_failures"] = spend(op.transport_failures)
            return stopped(Reason.TRANSPORT_BUDGET_EXHAUSTED, seen, signal)
        case (
            Meaning.WAITING
            | Meaning.NOT_YET_VISIBLE
            | Meaning.RATE_LIMITED
            | Meaning.NOT_SENT
            | Meaning.NO_ANSWER
            | Meaning.SERVER_ERROR
            | Meaning.RETRY_LATER
            | Meaning.UNCLEAR
            | Meaning.IN_FLIGHT
            | Meaning.ALREADY_TERMINAL
        ):
            return _keep_waiting(op, job, signal, seen, now, u)
        case _:
            assert_never(signal.meaning)


def _keep_waiting(
    op: Operation, job: Job, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """Count what this answer costs, then stop at the first spent bound or plan the next check."""
    parsed, rate, transport = op.parsed, op.rate_limited, op.transport_failures
    match signal.meaning:
        case Meaning.WAITING | Meaning.CONTRADICTORY:
            parsed += 1
        case Meaning.RATE_LIMITED:
            rate = spend(rate)
        case Meaning.NOT_YET_VISIBLE:
            pass
        case _:
            transport = spend(transport)
    seen |= {"parsed": parsed, "rate_limited": rate, "transport_failures": transport}
    after = replace(op, parsed=parsed, rate_limited=rate, transport_failures=transport)

    left = end_of(op) - now, op.status_requests.left
    limited = signal.meaning is Meaning.RATE_LIMITED
    if limited and stated_wait(signal) is None:
        delay = backoff.rate_limited_poll_delay(job.backoff, parsed, *left, u)
        local = delay, DelaySource.LOCAL_BACKOFF
    else:
        local = backoff.poll_delay(job.backoff, parsed, *left, u)
    plan = _spent(after, signal, now) or plan_check(op, job, signal, now, u, local)
    if isinstance(plan, Reason):
        verdict, asked = stopped(plan, seen, signal), stated_wait(signal)
    else:
        story = {**story_of(signal), **plan.story}
        verdict = Verdict(Event.OBSERVED, seen | _planned(plan), story=story)
        verdict, asked = approved_first(op, job, verdict, first=False), plan.minimum
    return blocking_scope(verdict, now, asked or local[0]) if limited else verdict


def _spent(op: Operation, signal: Signal, now: int) -> Reason | None:
    """The first bound that this answer, having ended nothing, ran into."""
    if op.once is not None:
        return Reason(op.once)
    if now >= end_of(op):
        return end_reason(op)
    if _outlived(op, signal, now):
        return Reason.PAST_PROVIDER_EXPIRY
    if signal.meaning is Meaning.RATE_LIMITED and op.rate_limited.spent:
        return Reason.RATE_LIMITED
    if op.transport_failures.spent:
        return Reason.TRANSPORT_BUDGET_EXHAUSTED
    if op.status_requests.spent:
        return Reason.REQUEST_BUDGET_EXHAUSTED
    return None


def _outlived(op: Operation, signal: Signal, now: int) -> bool:
    """Whether this is the first answer from beyond the provider's own expiry.

    Only the first: who then lets the job go on knows of it, and is not asked at every check.
    """
    expiry = known_expiry(op, signal)
    if expiry is None or now < expiry or not signal.answered:
        return False
    before, observed = op.provider_expiry_at, op.observed_at
    return before is None or observed is None or observed < before


def _planned(plan: Plan) -> Changes:
    return {
        "next_at": plan.at,
        "delay": plan.delay,
        "delay_source": plan.source,
        "waiting_for": WaitingFor.PROVIDER,
    }


def _job_succeeded(seen: Changes, signal: Signal) -> Verdict:
    changes = {**seen, **SUCCESS, "validated": True, "terminal_seen": True, "step": Step.STATUS}
    if signal.partial:
        changes["result"] = {"partial": True}
    return Verdict(Event.SUCCEEDED, changes, story=story_of(signal, partial=signal.partial or None))


def _job_ended(job: Job, seen: Changes, signal: Signal) -> Verdict:
    """The provider's own end: final, with a notice and its own words.

    A failure is a case beside that only where the contract says `on_failure = "ask"`.
    """
    event, notice = {
        Meaning.FAILED: (Event.FAILED, Notice.PROVIDER_FAILURE),
        Meaning.CANCELLED: (Event.CANCELLED, Notice.ENDED_AT_PROVIDER),
    }.get(signal.meaning, (Event.EXPIRED, Notice.ENDED_AT_PROVIDER))
    changes = {**seen, **REST, **failure_of(signal), "terminal_seen": True, "step": Step.STATUS}
    asks = event is Event.FAILED and job.on_failure == "ask"
    reason = Reason.REQUESTED if asks else None
    return Verdict(event, changes, reason=reason, notice=notice, story=story_of(signal))


# --- the answer to a submission -------------------------------------------------------------


def _after_submission(
    op: Operation, contract: Contract, job: Job, signal: Signal, now: int, u: float
) -> Verdict:
    seen = seen_in(op, signal, now)
    seen["certainty"] = strongest(op.certainty, signal.certainty)
    match signal.meaning:
        case Meaning.ACCEPTED:
            return _accepted(op, job, signal, seen, now, u)
        case Meaning.SUCCEEDED | Meaning.DONE | Meaning.EMPTY:
            return _job_succeeded({**seen, "accepted_at": now}, signal)
        case Meaning.FAILED | Meaning.CANCELLED | Meaning.EXPIRED:
            return _job_ended(job, {**seen, "accepted_at": now}, signal)
        case Meaning.CONTRADICTORY:
            return _contradicted_at_once(op, job, signal, seen, now, u)
        case Meaning.UNTRACKED:
            looking = look(Tried(op, contract, job, signal, seen, now, u))
            return looking or stopped(Reason.ACCEPTED_UNTRACKED, seen, signal)
        case Meaning.MISMATCH:
            return stopped(Reason.BINDING_MISMATCH, seen, signal)
        case _:
            return without_effect(Tried(op, contract, job, signal, seen, now, u))


def _contradicted_at_once(
    op: Operation, job: Job, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    """A submission answered with a success that lacks fields: judged like a poll, if it can be.

    Without a handle nothing can be observed, so it does not count as a job that we hold.
    """
    seen["terminal_seen"] = True
    known = {**op.take, **signal.take}
    if any(name.removeprefix("take.") not in known for name in handles(job)):
        return stopped(Reason.CONTRADICTORY_RESPONSE, seen, signal)
    if job.success.when_missing == "wait":
        return _accepted(op, job, signal, seen, now, u)
    more: Changes = {"accepted_at": now, "step": Step.STATUS}
    return stopped(Reason.CONTRADICTORY_RESPONSE, seen, signal, **more)


def _accepted(
    op: Operation, job: Job, signal: Signal, seen: Changes, now: int, u: float
) -> Verdict:
    seen |= {"accepted_at": now, "step": Step.STATUS}
    if job.limits.usual is not None:
        seen["expected_at"] = now + job.limits.usual
    if signal.estimate is not None:
        seen["expected_at"] = now + signal.estimate
    local = backoff.first_delay(job.backoff, u), DelaySource.LOCAL_BACKOFF
    plan = plan_check(op, job, signal, now, u, local)
    if isinstance(plan, Reason):
        return stopped(plan, seen, signal)
    story = {**story_of(signal), **plan.story}
    verdict = Verdict(Event.ACCEPTED, seen | _planned(plan) | {"failure": None}, story=story)
    return approved_first(op, job, verdict, first=True)


# --- the answer to a call, a result fetch or a cancellation ---------------------------------


def _after_request(
    op: Operation, contract: Contract, action: Action, signal: Signal, now: int, u: float
) -> Verdict:
    seen = seen_in(op, signal, now)
    seen["certainty"] = strongest(op.certainty, signal.certainty)
    match signal.meaning:
        case Meaning.DONE | Meaning.EMPTY | Meaning.SUCCEEDED | Meaning.ACCEPTED:
            progress = Progress.of(op)
            if progress is not None:
                return _after_page(op, contract, progress, signal, seen, now)
            done = {**seen, **SUCCESS, "validated": True}
            return Verdict(Event.SUCCEEDED, done, story=story_of(signal))
        case Meaning.ALREADY_TERMINAL if op.kind is Kind.CANCEL:
            return Verdict(Event.SUCCEEDED, {**seen, **SUCCESS}, story=story_of(signal))
        case Meaning.NOT_FOUND | Meaning.GONE if op.kind is Kind.RESULT:
            gone = {**seen, **REST, **failure_of(signal)}
            return Verdict(Event.EXPIRED, gone, story=story_of(signal))
        case Meaning.MISMATCH:
            return stopped(Reason.BINDING_MISMATCH, seen, signal)
        case _:
            return without_effect(Tried(op, contract, action, signal, seen, now, u))


def _after_page(
    op: Operation,
    contract: Contract,
    progress: Progress,
    signal: Signal,
    seen: Changes,
    now: int,
) -> Verdict:
    """One page more is read: the next is due at once, with attempts of its own, or none is."""
    turned = progress.after(signal.turn or Turn(), op)
    page = turned.progress.budget
    story = story_of(signal, page=page.used, most=page.max, cut=turned.cut)
    seen |= {"search": turned.progress.kept()}
    if not turned.goes_on:
        return Verdict(Event.SUCCEEDED, {**seen, **SUCCESS, "validated": True}, story=story)
    may = op.attempts.used + contract.attempts(op.request_class)
    seen["attempts"] = replace(op.attempts, max=max(op.attempts.max, may))
    return Verdict(Event.POSTPONED, {**seen, **REST, "next_at": now}, story=story)
