"""After a write that may have been applied: look, send the same key again, or ask (section 4).

Nothing here ever leads to a second effect on a guess: the next thing sent is a lookup, or the same
request under a key that the provider promised to recognise, or, once, the same request after its
absence was proven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forbear.rules import backoff
from forbear.rules.conclusions import (
    Changes,
    Verdict,
    blocking_scope,
    failure_of,
    seen_in,
    stopped,
    story_of,
)
from forbear.rules.contract import Action, Contract, Idempotency, Job, Lookup
from forbear.rules.lifecycle import Event
from forbear.rules.lookups import Page
from forbear.rules.model import (
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
    Step,
    WaitingFor,
)
from forbear.rules.schedule import end_of, stated_wait
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import handles

RESENT_BY = frozenset({408, 502, 503, 504})
"""Answers after which a keyed write is sent again under its key without a lookup before."""

FIRST_LOOK = (500, 10_000)
"""Bounds of the wait before the first lookup, ms: a provider may store before it can be found."""

LONGEST_LOOK = 600_000
"""The longest wait between two lookups, ms."""


@dataclass(frozen=True, slots=True)
class Search:
    """How far the reconciliation of an operation is; kept in `Operation.search`."""

    absent: tuple[int, ...] = ()
    """When complete lookups found nothing, ms."""
    cursor: str | None = None
    """Where the lookup that is under way goes on; None between lookups."""
    pages: int = 0
    """Pages read of the lookup that is under way."""
    found: tuple[Mapping[str, str], ...] = ()
    proven: bool = False
    """Absence is proven, and the one resend is due or was made."""

    @staticmethod
    def of(op: Operation) -> Search:
        kept = op.search or {}
        return Search(
            absent=tuple(kept.get("absent", ())),
            cursor=kept.get("cursor"),
            pages=kept.get("pages", 0),
            found=tuple(kept.get("found", ())),
            proven=kept.get("proven", False),
        )

    def kept(self) -> Mapping[str, object]:
        return {
            "absent": list(self.absent),
            "cursor": self.cursor,
            "pages": self.pages,
            "found": [dict(one) for one in self.found],
            "proven": self.proven,
        }


def made_unclear(
    op: Operation,
    contract: Contract,
    action: Action,
    signal: Signal,
    seen: Changes,
    now: int,
    u: float,
) -> Verdict:
    """What follows an attempt of a write that may have been applied."""
    seen |= failure_of(signal)
    if op.once is not None or Search.of(op).proven:
        return stopped(Reason.UNCLEAR_WRITE, seen, signal)
    limits = contract.classes[op.request_class]
    own = backoff.retry_delay(limits, max(0, op.attempts.used - 1), u)
    delay = max(own, stated_wait(signal) or 0)
    resendable = _in_time(op, now + delay) and may_resend(op, action, now + delay)
    lookup = _lookup(op, action)
    if (
        resendable
        and signal.meaning in _REPEATABLE
        and (signal.status in RESENT_BY or lookup is None)
        and not _stored(signal, action)
    ):
        source = DelaySource.LOCAL_BACKOFF if own >= delay else DelaySource.PROVIDER_RETRY_AFTER
        return _unclear(signal, seen, Step.SEND, now, delay, source)
    if lookup is not None:
        return look_for(lookup, signal, seen, now, u)
    return stopped(Reason.UNCLEAR_WRITE, seen, signal)


_REPEATABLE = frozenset(
    {
        Meaning.SERVER_ERROR,
        Meaning.NO_ANSWER,
        Meaning.INVALID,
        Meaning.UNCLEAR,
        Meaning.IN_FLIGHT,
        Meaning.RETRY_LATER,
    }
)


def look_for(lookup: Lookup, signal: Signal, seen: Changes, now: int, u: float) -> Verdict:
    """Plan the first lookup of an effect that was answered without a handle, or not at all."""
    return _unclear(signal, seen, Step.LOOKUP, now, _first_look(lookup, signal, u))


def may_resend(op: Operation, action: Action, at: int) -> bool:
    """Whether the same request may go out at `at` under the promise of its key, or its nature."""
    if op.request_class is not RequestClass.IDEMPOTENT_WRITE or op.attempts.spent:
        return False
    idempotency = action.idempotency if _is_the_action(op) else None
    return idempotency is None or in_window(op, idempotency, at)


def _is_the_action(op: Operation) -> bool:
    """Key and lookup of a contract speak of the action itself, not of its result or its cancel."""
    return op.kind in (Kind.JOB, Kind.CALL)


def in_window(op: Operation, idempotency: Idempotency, at: int) -> bool:
    """Whether the provider still honours the key; the window runs from the first permit."""
    return op.wire_key is not None and at < (op.sent_at or at) + idempotency.window


def _stored(signal: Signal, action: Action) -> bool:
    """Whether sending the same key again would only replay a stored error."""
    if action.idempotency is None or not action.idempotency.stores_errors:
        return False
    return signal.status is not None and signal.status not in RESENT_BY


def _lookup(op: Operation, action: Action) -> Lookup | None:
    return action.lookup if _is_the_action(op) and not op.lookups.spent else None


def _in_time(op: Operation, at: int) -> bool:
    return at + op.timeout <= end_of(op)


def _first_look(lookup: Lookup, signal: Signal, u: float) -> int:
    least, most = FIRST_LOOK
    own = min(max(lookup.settle // 4, least), most)
    return backoff.stretched(max(own, stated_wait(signal) or 0), u)


def _unclear(
    signal: Signal,
    seen: Changes,
    step: Step,
    now: int,
    delay: int,
    source: DelaySource = DelaySource.LOCAL_BACKOFF,
) -> Verdict:
    changes = seen | {
        "step": step,
        "next_at": now + delay,
        "delay": delay,
        "delay_source": source,
        "waiting_for": WaitingFor.SETTLE,
    }
    return Verdict(Event.MADE_UNCLEAR, changes, story=story_of(signal))


# --- the answer to a lookup -----------------------------------------------------------------


def after_lookup(
    op: Operation,
    action: Action,
    signal: Signal,
    now: int,
    u: float,
    *,
    can_still_send: bool,
) -> Verdict:
    """The verdict on one page of a lookup, counted already.

    `can_still_send` says that a process which may be alive still holds an attempt of this write
    that others closed: then absence proves nothing.
    """
    lookup = action.lookup
    seen = seen_in(op, signal, now)
    if lookup is None:
        return stopped(Reason.UNCLEAR_WRITE, seen, signal)
    search = Search.of(op)
    match signal.meaning:
        case Meaning.DONE | Meaning.SUCCEEDED if signal.page is not None and signal.page.readable:
            return _read(
                op, action, lookup, search, signal, signal.page, seen, now, u, can_still_send
            )
        case Meaning.NOT_FOUND | Meaning.GONE | Meaning.EMPTY if lookup.items is None:
            return _absent(op, lookup, search, signal, seen, now, u, can_still_send)
        case _:
            verdict = _look_again(
                op, lookup, replace(search, cursor=None, pages=0, found=()), signal, seen, now, u
            )
            if signal.meaning in (Meaning.RATE_LIMITED, Meaning.QUOTA_EXHAUSTED):
                return blocking_scope(verdict, now, stated_wait(signal) or lookup.settle)
            return verdict


def _read(
    op: Operation,
    action: Action,
    lookup: Lookup,
    search: Search,
    signal: Signal,
    page: Page,
    seen: Changes,
    now: int,
    u: float,
    can_still_send: bool,
) -> Verdict:
    found = (*search.found, *page.matches)
    pages = search.pages + 1
    if len(found) > 1:
        changes = seen | {"search": replace(search, cursor=None, pages=0, found=()).kept()}
        return stopped(Reason.RECONCILIATION_CONFLICT, changes, signal)
    most = lookup.page.max_pages if lookup.page is not None else 1
    turned = page.more is not None and page.more != search.cursor and pages < most
    if turned:
        under_way = replace(search, cursor=page.more, pages=pages, found=found)
        changes = seen | {"search": under_way.kept(), "next_at": now, "waiting_for": None}
        return Verdict(Event.OBSERVED, changes, story=story_of(signal, page=pages))
    rested = replace(search, cursor=None, pages=0, found=())
    if found:
        return settled_as_found(op, action, found[0], signal, seen | {"search": None}, now)
    if page.more is not None:
        return _look_again(op, lookup, rested, signal, seen, now, u)
    return _absent(op, lookup, rested, signal, seen, now, u, can_still_send)


def settled_as_found(
    op: Operation, action: Action, take: Mapping[str, str], signal: Signal, seen: Changes, now: int
) -> Verdict:
    """The effect is there: a job goes on being watched, a call succeeded."""
    kept = {**op.take, **take}
    changes = seen | {
        "take": kept,
        "certainty": Certainty.APPLIED,
        "delay": None,
        "delay_source": None,
        "failure": None,
    }
    story = story_of(signal, found=dict(take))
    if op.kind is not Kind.JOB or not isinstance(action, Job):
        done = {"next_at": None, "waiting_for": None, "validated": True, "step": Step.SEND}
        return Verdict(Event.SUCCEEDED, changes | done, story=story)
    lost = [name for name in handles(action) if name.removeprefix("take.") not in kept]
    if lost:
        return stopped(Reason.ACCEPTED_UNTRACKED, changes, signal)
    watched: Changes = {
        "step": Step.STATUS,
        "accepted_at": now,
        "provider_job": kept.get("id"),
        "next_at": now,
        "waiting_for": WaitingFor.PROVIDER,
    }
    return Verdict(Event.ACCEPTED, changes | watched, story=story)


def found_late(op: Operation, action: Action, signal: Signal, now: int) -> Verdict:
    """A good answer of an attempt that others had closed as unknown: as good as a lookup."""
    return settled_as_found(op, action, signal.take, signal, seen_in(op, signal, now), now)


def _absent(
    op: Operation,
    lookup: Lookup,
    search: Search,
    signal: Signal,
    seen: Changes,
    now: int,
    u: float,
    can_still_send: bool,
) -> Verdict:
    """A complete lookup found nothing: proof only under all conditions of section 4."""
    absent = (*search.absent, now)
    searched = replace(search, absent=absent, cursor=None, pages=0, found=())
    apart = absent[-1] - absent[0] >= lookup.settle
    if lookup.absence_proves and apart and not can_still_send and not search.proven:
        changes = seen | {
            "search": replace(searched, proven=True).kept(),
            "certainty": Certainty.NOT_APPLIED,
            "step": Step.SEND,
            "attempts": replace(op.attempts, max=max(op.attempts.max, op.attempts.used + 1)),
            "next_at": now,
            "waiting_for": None,
        }
        return Verdict(Event.OBSERVED, changes, story=story_of(signal, absence="proven"))
    return _look_again(op, lookup, searched, signal, seen, now, u)


def _look_again(
    op: Operation,
    lookup: Lookup,
    search: Search,
    signal: Signal,
    seen: Changes,
    now: int,
    u: float,
) -> Verdict:
    changes = seen | {"search": search.kept()}
    if op.once is not None or op.lookups.spent:
        return stopped(Reason.UNCLEAR_WRITE, changes, signal)
    tries = max(0, op.lookups.used - 1)
    own = backoff.doubled(lookup.settle, tries, max(LONGEST_LOOK, lookup.settle))
    delay = backoff.stretched(max(own, stated_wait(signal) or 0), u)
    if now + delay >= end_of(op):
        return stopped(Reason.UNCLEAR_WRITE, changes, signal)
    changes |= {
        "next_at": now + delay,
        "delay": delay,
        "delay_source": DelaySource.LOCAL_BACKOFF,
        "waiting_for": WaitingFor.SETTLE,
    }
    return Verdict(Event.OBSERVED, changes, story=story_of(signal))
