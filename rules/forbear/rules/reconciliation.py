"""The search for an effect whose answer was lost (behaviour.md, section 4).

A lookup reads; what it can lead to is narrow: the effect is found, its absence is proven and the
one resend is due, another lookup is planned, or a person is asked. Nothing here is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from forbear.rules import backoff
from forbear.rules.conclusions import (
    SUCCESS,
    Changes,
    Tried,
    Verdict,
    approved_first,
    blocking_scope,
    failure_of,
    seen_in,
    seen_in_lookup,
    stop,
    stopped,
    story_of,
)
from forbear.rules.contract import Action, Job, Lookup
from forbear.rules.lifecycle import Event
from forbear.rules.lookups import Page
from forbear.rules.model import (
    Certainty,
    DelaySource,
    Kind,
    Notice,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.schedule import MARGIN, end_of, stated_wait
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import handles, key_honoured_until, key_of, lookup_of

FIRST_LOOK = (1_000, 10_000)
"""Bounds of the wait before the first lookup, ms: a provider may store before it can be found."""

LONGEST_LOOK = 600_000
"""The longest wait of our own between two lookups, ms."""


@dataclass(frozen=True, slots=True)
class Search:
    """How far the reconciliation of an operation is; kept in `Operation.search`."""

    first_empty: int | None = None
    """When the first complete lookup that can count as proof found nothing, ms."""
    last_empty: int | None = None
    """When a complete lookup last found nothing, ms; for the person who is asked."""
    cursor: str | None = None
    """Where the lookup that is under way goes on; None between lookups."""
    pages: int = 0
    """Pages read of the lookup that is under way."""
    found: tuple[Mapping[str, str], ...] = ()
    """What the lookup that is under way found so far, each effect once."""
    proven: bool = False
    """Nothing more is sent without a decision: absence was proven and the one resend is due or was
    made, or a person was to decide about it first."""
    first_boot: tuple[str, int] | None = None
    """`first_empty` on the clock that nobody sets, and the boot that it belongs to."""

    @staticmethod
    def of(op: Operation) -> Search:
        kept = op.search or {}
        boot = kept.get("first_boot")
        return Search(
            first_empty=kept.get("first_empty"),
            first_boot=None if boot is None else (boot[0], boot[1]),
            last_empty=kept.get("last_empty"),
            cursor=kept.get("cursor"),
            pages=kept.get("pages", 0),
            found=tuple(kept.get("found", ())),
            proven=kept.get("proven", False),
        )

    def kept(self) -> Mapping[str, object]:
        """The form that is stored, plain JSON."""
        return {
            "first_empty": self.first_empty,
            "first_boot": None if self.first_boot is None else list(self.first_boot),
            "last_empty": self.last_empty,
            "cursor": self.cursor,
            "pages": self.pages,
            "found": [dict(one) for one in self.found],
            "proven": self.proven,
        }

    def ended(self) -> Search:
        """Between two lookups: what the pages of one said is not carried into the next."""
        return replace(self, cursor=None, pages=0, found=())

    def sent_again(self) -> Search:
        """After another request left: earlier lookups prove nothing about it."""
        return Search(proven=self.proven)


# --- planning -------------------------------------------------------------------------------


def look(tried: Tried) -> Verdict | None:
    """Plan the first lookup of what a request may have left; None if nothing can be looked up.

    After the one resend nothing is looked up by itself: the second unknown goes to a person.
    """
    op, lookup = tried.op, lookup_of(tried.op, tried.action)
    search = Search.of(op)
    if lookup is None or op.lookups.spent or search.proven:
        return None
    least, most = FIRST_LOOK
    plan = _plan(tried, lookup, min(max(lookup.settle // 4, least), most))
    if plan is None:
        return None
    fresh: Changes = {"step": Step.LOOKUP, "search": search.sent_again().kept()}
    changes = tried.seen | failure_of(tried.signal) | fresh | plan
    return Verdict(Event.MADE_UNCLEAR, changes, story=story_of(tried.signal))


def doubted(op: Operation, now: int, *, out: bool = False) -> Verdict | None:
    """What becomes of an unfinished write in a store that may not be the living one.

    Since the copy was taken another process may have sent it, at the earliest when the copy last
    heard of it. What was not found before may be there since. None for what cannot have been
    applied since, or is unclear anyhow. What was sent from here and is still out is judged then:
    of `op` with an open attempt only lookups that found nothing are forgotten.
    """
    if op.request_class is RequestClass.READ:
        return None
    if op.step is Step.LOOKUP:
        return _looked_in_vain(op)
    if out:
        return None
    stopped_before = op.state is State.ESCALATED and op.certainty in _NOTHING_DONE
    if op.step is not Step.SEND or not (op.state in _TO_BE_SENT or stopped_before):
        return None
    search = Search.of(op).sent_again()
    if op.approve_by is not None or stopped_before:
        search = replace(search, proven=True)
    changes: Changes = {
        "certainty": Certainty.MAYBE_APPLIED,
        "sent": True,
        "sent_at": op.updated_at if op.sent_at is None else op.sent_at,
        "step": Step.LOOKUP,
        "search": search.kept(),
        "next_at": now,
        "approve_by": None,
        "waiting_for": None,
        "delay": None,
        "delay_source": None,
        "once": None,
        "once_until": None,
    }
    event = {State.UNCLEAR: Event.OBSERVED, State.ESCALATED: Event.LOOKUP_RESUMED}.get(
        op.state, Event.MADE_UNCLEAR
    )
    return Verdict(event, changes, story={"why": "copy"})


def _looked_in_vain(op: Operation) -> Verdict | None:
    """Forget what lookups did not find: it counts no more, and proves nothing of what was sent
    since. None if there is nothing to forget.
    """
    search = Search.of(op)
    denied = op.certainty in _NOTHING_DONE
    if search == search.sent_again() and not denied:
        return None
    forgotten: Changes = {"search": search.sent_again().kept()}
    if denied:
        forgotten["certainty"] = Certainty.MAYBE_APPLIED
    return Verdict(Event.NOTED, forgotten, story={"why": "copy"})


_TO_BE_SENT = frozenset({State.QUEUED, State.DELAYED, State.SENDING, State.UNCLEAR})
_NOTHING_DONE = frozenset({Certainty.NOT_SENT, Certainty.NOT_APPLIED})


def _plan(tried: Tried, lookup: Lookup, own: int) -> Changes | None:
    """A lookup after `own` ms, or the provider's minimum where that is longer; None: too late.

    One that would come too close to the end is moved before it, but never before that minimum.
    """
    now, end = tried.now, end_of(tried.op)
    asked = stated_wait(tried.signal) or 0
    at = now + backoff.stretched(max(own, asked), tried.u)
    last = end - lookup.request.timeout - MARGIN
    if last > now:
        at = min(at, max(last, now + asked))
    if at >= end:
        return None
    follows = asked >= own
    return {
        "next_at": at,
        "delay": at - now,
        "delay_source": DelaySource.PROVIDER_RETRY_AFTER if follows else DelaySource.LOCAL_BACKOFF,
        "waiting_for": WaitingFor.SETTLE,
    }


# --- the answer to a lookup -----------------------------------------------------------------


def after_lookup(tried: Tried, *, can_still_send: bool) -> Verdict:
    """The verdict on one page of a lookup, counted already.

    `can_still_send` says that a process which may be alive still holds an attempt of this write
    that others closed: then a lookup that finds nothing proves nothing.
    """
    lookup, signal = lookup_of(tried.op, tried.action), tried.signal
    search = Search.of(tried.op)
    if can_still_send:
        search = replace(search, first_empty=None, first_boot=None)
    ended = tried.noting(search=search.ended().kept())
    if lookup is None:
        return stopped(Reason.UNCLEAR_WRITE, ended.seen, signal)
    if signal.meaning in (Meaning.AUTH, Meaning.MISMATCH):
        # The doubt about the write is the question; the other reasons would offer no way out of it.
        return stopped(Reason.UNCLEAR_WRITE, ended.seen, signal)
    page = _page(signal, lookup)
    if page is None:
        return _without_page(tried, lookup, search.ended())
    search = replace(search, pages=search.pages + 1, found=_each_once(search.found, page.matches))
    if len(search.found) > 1 or page.differing:
        return stopped(Reason.RECONCILIATION_CONFLICT, ended.seen, signal)
    if page.more is not None and _goes_on(search, lookup, page.more):
        under_way = replace(search, cursor=page.more).kept()
        changes = tried.seen | {"search": under_way, "next_at": tried.now, "waiting_for": None}
        return Verdict(Event.OBSERVED, changes, story=story_of(signal, page=search.pages))
    if search.found:
        seen = tried.seen | {"search": None}
        return _found(tried.op, tried.action, search.found[0], signal, seen, tried.now)
    if page.more is not None:
        return _look_again(tried, lookup, search.ended(), saw="a part")
    return _empty(tried, lookup, search.ended(), can_still_send=can_still_send)


def _page(signal: Signal, lookup: Lookup) -> Page | None:
    """What a complete answer to a lookup says; None where it proves nothing either way."""
    match signal.meaning:
        case Meaning.DONE if signal.page is not None and signal.page.readable:
            return signal.page
        case Meaning.EMPTY:
            return Page()
        case Meaning.NOT_FOUND if lookup.items is None:
            # A lookup of the effect itself; a list that is not found is an answer to nothing.
            return Page()
        case _:
            return None


def _each_once(
    before: tuple[Mapping[str, str], ...], matches: tuple[Mapping[str, str], ...]
) -> tuple[Mapping[str, str], ...]:
    """All effects found so far. One that a moving list shows on two pages is still one."""
    found = list(before)
    found += [one for one in matches if not one or one not in before]
    return tuple(found)


def _goes_on(search: Search, lookup: Lookup, more: str) -> bool:
    """Whether another page is read. A cursor that stands still would never end."""
    most = lookup.page.max_pages if lookup.page is not None else 1
    return search.pages < most and more != search.cursor


def _empty(tried: Tried, lookup: Lookup, search: Search, *, can_still_send: bool) -> Verdict:
    """A complete lookup found nothing: proof only under all conditions of section 4."""
    now = tried.now
    search = replace(search, last_empty=now)
    if can_still_send:
        return _look_again(tried, lookup, search, saw="nothing")
    if search.first_empty is None or _since_a_restart(search, tried):
        clocks = tried.clocks
        boot = None if clocks is None else (clocks.boot_id, clocks.boot)
        search = replace(search, first_empty=now, first_boot=boot)
    apart = _since_first(search, tried) >= lookup.settle
    doubtful = tried.op.certainty is Certainty.MAYBE_APPLIED
    if not (lookup.absence_proves and apart and doubtful) or search.proven:
        return _look_again(tried, lookup, search, saw="nothing")
    absent = tried.noting(search=search.kept(), certainty=Certainty.NOT_APPLIED)
    story = story_of(tried.signal, absence="proven", saw="nothing")
    resend = _the_one_resend(tried)
    if resend is None:
        return replace(stopped(Reason.UNCLEAR_WRITE, absent.seen, tried.signal), story=story)
    proven: Changes = {"search": replace(search, proven=True).kept()}
    return Verdict(Event.OBSERVED, absent.seen | proven | resend, story=story)


def _since_a_restart(search: Search, tried: Tried) -> bool:
    """Whether the machine was started since the first empty lookup: nobody can say when that was,
    for a wall clock may come up wrong.
    """
    if tried.clocks is None or search.first_boot is None:
        return False
    return search.first_boot[0] != tried.clocks.boot_id


def _since_first(search: Search, tried: Tried) -> int:
    """How long ago the first empty lookup was, by the clock that says less: a wall clock that was
    set forward proves nothing.
    """
    now, first = tried.now, search.first_empty
    passed = 0 if first is None else now - first
    if tried.clocks is None or search.first_boot is None:
        return passed
    return min(passed, tried.clocks.boot - search.first_boot[1])


def _the_one_resend(tried: Tried) -> Changes | None:
    """The same request once more, now; None if its time, attempts or key's window are over."""
    op, now, attempts = tried.op, tried.now, tried.op.attempts
    if op.request_class is RequestClass.UNCERTAIN_WRITE:
        attempts = replace(attempts, max=max(attempts.max, attempts.used + 1))
    until = key_honoured_until(op, tried.action)
    forgotten = key_of(op, tried.action) is not None and (until is None or now >= until)
    if attempts.spent or forgotten or now + op.timeout > end_of(op):
        return None
    return {"step": Step.SEND, "attempts": attempts, "next_at": now, "waiting_for": None}


def _without_page(tried: Tried, lookup: Lookup, search: Search) -> Verdict:
    """The lookup itself went wrong. A refusal for its rate is one for the whole scope."""
    limits, asked = tried.contract.classes[RequestClass.READ], stated_wait(tried.signal)
    own = backoff.rate_limited_retry_delay(limits, tried.op.lookups.used - 1, tried.u)
    wait = own if asked is None else asked
    match tried.signal.meaning:
        case Meaning.RATE_LIMITED:
            return blocking_scope(_look_again(tried, lookup, search, wait), tried.now, wait)
        case Meaning.QUOTA_EXHAUSTED:
            return blocking_scope(_look_again(tried, lookup, search), tried.now, wait)
        case _:
            return _look_again(tried, lookup, search)


def _look_again(
    tried: Tried, lookup: Lookup, search: Search, least: int = 0, saw: str | None = None
) -> Verdict:
    """Another lookup, at least `settle` after this one, while lookups and time are left."""
    op, seen = tried.op, tried.seen | {"search": search.kept()}
    longest = max(LONGEST_LOOK, lookup.settle)
    own = backoff.doubled(max(lookup.settle, FIRST_LOOK[0]), max(0, op.lookups.used - 1), longest)
    plan = None if op.lookups.spent else _plan(tried, lookup, max(own, least))
    story = story_of(tried.signal, saw=saw)
    if plan is None:
        return stop(Reason.UNCLEAR_WRITE, seen, **story)
    return Verdict(Event.OBSERVED, seen | plan, story=story)


# --- the effect is there --------------------------------------------------------------------


def effect_in(asked: Operation, signal: Signal) -> Mapping[str, str] | None:
    """The effect that a late answer tells of, by what names it; None: it tells of none.

    `asked` is the operation as it was when the attempt was reserved. The answer to a lookup counts
    only if it is the whole of one and found the effect, one time: what it did not find may be there
    by now, and what other pages said was given up with the attempt.
    """
    if asked.step is Step.SEND:
        ended = asked.kind is Kind.JOB and signal.meaning in _ENDED_JOB and "id" in signal.take
        return signal.take if ended or signal.meaning in (*_GOOD, Meaning.EMPTY) else None
    if asked.step is not Step.LOOKUP or signal.meaning not in _GOOD:
        return None
    page = signal.page
    if page is None or not page.readable or page.more is not None or Search.of(asked).pages:
        return None
    return page.matches[0] if len(page.matches) == 1 and not page.differing else None


_GOOD = frozenset({Meaning.ACCEPTED, Meaning.DONE, Meaning.SUCCEEDED})
_ENDED_JOB = frozenset({Meaning.FAILED, Meaning.CANCELLED, Meaning.EXPIRED, Meaning.CONTRADICTORY})


def found_late(
    op: Operation, asked: Operation, action: Action, signal: Signal, now: int
) -> Verdict | None:
    """A good answer of an attempt that others had closed as unknown: as good as a lookup.

    None: it decides nothing, see `effect_in`.
    """
    effect = effect_in(asked, signal)
    if effect is None:
        return None
    looked = asked.step is Step.LOOKUP
    seen = seen_in_lookup(signal, now) if looked else seen_in(op, signal, now)
    return _found(op, action, effect, signal, seen | {"search": None}, now)


def found_before(
    op: Operation, action: Action | None, effect: Mapping[str, str], verdict: Verdict, now: int
) -> Verdict:
    """The verdict on an attempt that was out while a late answer to an earlier one told of the
    effect (`effect_in`): whatever it brought, the effect is there.

    Unless it brought more: the effect too, or an end. Another effect is a conflict. What it says of
    others, of a scope or a credential, counts in any case.
    """
    known = Signal(Meaning.DONE, Certainty.APPLIED)
    more = verdict.event in _TELLS_MORE or verdict.notice in _ENDED
    taken = cast(Mapping[str, str], verdict.changes.get("take", {}))
    if more and differ(effect, taken):
        return conflict(verdict)
    if more or verdict.reason in _DIFFERS:
        return verdict
    found = _found(op, action, effect, known, {**verdict.changes, "search": None}, now)
    blocks, until = verdict.block_credential, verdict.scope_until
    return replace(found, block_credential=blocks, scope_until=until)


def differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether what names two effects cannot name one."""
    return any(other.get(name, value) != value for name, value in one.items())


def conflict(verdict: Verdict) -> Verdict:
    """Ask about effects that differ, in the place of what one attempt alone would lead to."""
    asks = stop(Reason.RECONCILIATION_CONFLICT, verdict.changes)
    return replace(verdict, event=asks.event, changes=asks.changes, reason=asks.reason, notice=None)


_TELLS_MORE = frozenset({Event.SUCCEEDED, Event.ACCEPTED})
_ENDED = frozenset({Notice.PROVIDER_FAILURE, Notice.ENDED_AT_PROVIDER})
_DIFFERS = frozenset({Reason.RECONCILIATION_CONFLICT, Reason.BINDING_MISMATCH})


def _found(
    op: Operation,
    action: Action | None,
    take: Mapping[str, str],
    signal: Signal,
    seen: Changes,
    now: int,
) -> Verdict:
    """A job goes on being watched, a call has succeeded.

    Without the contract's `action` nobody can watch it.
    """
    kept = {**op.take, **take}
    changes = seen | SUCCESS | {"take": kept, "certainty": Certainty.APPLIED}
    story = story_of(signal, found=dict(take))
    if op.kind is not Kind.JOB:
        done: Changes = {"validated": True, "step": Step.SEND}
        return Verdict(Event.SUCCEEDED, changes | done, story=story)
    if not isinstance(action, Job):
        return stopped(Reason.ACCEPTED_UNTRACKED, changes, signal)
    if any(name.removeprefix("take.") not in kept for name in handles(action)):
        return stopped(Reason.ACCEPTED_UNTRACKED, changes, signal)
    usual = action.limits.usual
    watched: Changes = {
        "step": Step.STATUS,
        "accepted_at": now,
        "expected_at": op.expected_at if usual is None else now + usual,
        "provider_job": kept.get("id"),
        "next_at": now,
        "waiting_for": WaitingFor.PROVIDER,
    }
    verdict = Verdict(Event.ACCEPTED, changes | watched, story=story)
    return approved_first(op, action, verdict, first=True)
