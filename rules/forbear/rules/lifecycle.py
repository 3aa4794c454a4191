"""The state machine: one table from (state, event) to state. What is absent is impossible.

The same table makes the CHECK constraints of the store and the page and picture of the
documentation; the guarded UPDATE of the ledger is the only thing that walks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from forbear.rules.model import State


class Event(StrEnum):
    """What can happen to an operation."""

    HELD = "held"
    """Due, but a token, slot, credential or approval is missing."""
    APPROVED = "approved"
    """A person allowed its request; the deadline starts now."""
    ADMITTED = "admitted"
    """A permit for the action's own request exists."""
    ACCEPTED = "accepted"
    """The provider took the job and gave a handle."""
    OBSERVED = "observed"
    """A status answer, or the lack of one, that ended nothing."""
    POSTPONED = "postponed"
    """The attempt was certainly not applied, or is a read: the next one is scheduled."""
    MADE_UNCLEAR = "made_unclear"
    """The request may have been applied, and nobody knows."""
    SUCCEEDED = "succeeded"
    """The outcome is proven."""
    FAILED = "failed"
    """The provider says that it failed, or it cannot be sent."""
    CANCELLED = "cancelled"
    """The provider says that it was stopped."""
    EXPIRED = "expired"
    """The provider says that its time ran out."""
    STOPPED = "stopped"
    """A stop predicate asks a person."""
    DISCARDED = "discarded"
    """A person, the end of its task or an approval that nobody gave dropped it."""
    WAIT_RESUMED = "wait_resumed"
    """A decision lets a job with a handle go on being observed."""
    SEND_RESUMED = "send_resumed"
    """A decision lets a request that was not sent, or not applied, be sent."""
    RESEND_APPROVED = "resend_approved"
    """A decision repeats a request under its own key."""
    LOOKUP_RESUMED = "lookup_resumed"
    """A decision lets an unclear write be looked up again, or a store that may be behind its
    original has to look for one that stopped."""
    RULED_OUT = "ruled_out"
    """A person looked at the provider and found that it was not done."""
    NOTED = "noted"
    """Something was recorded; the state stays."""


S, E = State, Event

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (S.QUEUED, E.HELD): S.QUEUED,
    (S.QUEUED, E.POSTPONED): S.DELAYED,
    (S.QUEUED, E.APPROVED): S.QUEUED,
    (S.QUEUED, E.ADMITTED): S.SENDING,
    (S.QUEUED, E.MADE_UNCLEAR): S.UNCLEAR,
    (S.QUEUED, E.FAILED): S.FAILED,
    (S.QUEUED, E.STOPPED): S.ESCALATED,
    (S.QUEUED, E.DISCARDED): S.DISCARDED,
    (S.DELAYED, E.HELD): S.DELAYED,
    (S.DELAYED, E.APPROVED): S.DELAYED,
    (S.DELAYED, E.ADMITTED): S.SENDING,
    (S.DELAYED, E.MADE_UNCLEAR): S.UNCLEAR,
    (S.DELAYED, E.FAILED): S.FAILED,
    (S.DELAYED, E.STOPPED): S.ESCALATED,
    (S.DELAYED, E.DISCARDED): S.DISCARDED,
    (S.SENDING, E.ACCEPTED): S.WAITING,
    (S.SENDING, E.POSTPONED): S.DELAYED,
    (S.SENDING, E.MADE_UNCLEAR): S.UNCLEAR,
    (S.SENDING, E.SUCCEEDED): S.SUCCEEDED,
    (S.SENDING, E.FAILED): S.FAILED,
    (S.SENDING, E.CANCELLED): S.CANCELLED,
    (S.SENDING, E.EXPIRED): S.EXPIRED,
    (S.SENDING, E.STOPPED): S.ESCALATED,
    (S.SENDING, E.DISCARDED): S.DISCARDED,
    (S.UNCLEAR, E.HELD): S.UNCLEAR,
    (S.UNCLEAR, E.ADMITTED): S.SENDING,
    (S.UNCLEAR, E.ACCEPTED): S.WAITING,
    (S.UNCLEAR, E.OBSERVED): S.UNCLEAR,
    (S.UNCLEAR, E.SUCCEEDED): S.SUCCEEDED,
    (S.UNCLEAR, E.RULED_OUT): S.FAILED,
    (S.UNCLEAR, E.WAIT_RESUMED): S.WAITING,
    (S.UNCLEAR, E.RESEND_APPROVED): S.QUEUED,
    (S.UNCLEAR, E.LOOKUP_RESUMED): S.UNCLEAR,
    (S.UNCLEAR, E.STOPPED): S.ESCALATED,
    (S.UNCLEAR, E.DISCARDED): S.DISCARDED,
    (S.WAITING, E.HELD): S.WAITING,
    (S.WAITING, E.APPROVED): S.WAITING,
    (S.WAITING, E.OBSERVED): S.WAITING,
    (S.WAITING, E.SUCCEEDED): S.SUCCEEDED,
    (S.WAITING, E.FAILED): S.FAILED,
    (S.WAITING, E.CANCELLED): S.CANCELLED,
    (S.WAITING, E.EXPIRED): S.EXPIRED,
    (S.WAITING, E.STOPPED): S.ESCALATED,
    (S.WAITING, E.DISCARDED): S.DISCARDED,
    (S.ESCALATED, E.WAIT_RESUMED): S.WAITING,
    (S.ESCALATED, E.SEND_RESUMED): S.DELAYED,
    (S.ESCALATED, E.RESEND_APPROVED): S.QUEUED,
    (S.ESCALATED, E.LOOKUP_RESUMED): S.UNCLEAR,
    (S.ESCALATED, E.SUCCEEDED): S.SUCCEEDED,
    (S.ESCALATED, E.RULED_OUT): S.FAILED,
    (S.ESCALATED, E.DISCARDED): S.DISCARDED,
    **{(state, E.NOTED): state for state in State},
}


class Impossible(ValueError):
    """An event that the table does not know in this state: a defect, never a refusal."""


def advance(state: State, event: Event) -> State:
    """The state after `event`.

    Raises:
        Impossible: the table has no such row.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise Impossible(f"{event} cannot happen to an operation that is {state}") from None
