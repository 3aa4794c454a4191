"""The state table: every pair of state and event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rules.operations import DEADLINE, queued

from forbear.rules.admission import exhausted, overdue
from forbear.rules.lifecycle import TRANSITIONS, Event, Impossible, advance
from forbear.rules.model import FINAL, Budget, Certainty, Kind, Reason, State, Step

ALLOWED = {
    State.QUEUED: "held→queued postponed→delayed approved→queued admitted→sending failed→failed "
    "made_unclear→unclear stopped→escalated discarded→discarded",
    State.DELAYED: "held→delayed approved→delayed admitted→sending failed→failed stopped→escalated "
    "made_unclear→unclear discarded→discarded",
    State.SENDING: "accepted→waiting postponed→delayed made_unclear→unclear succeeded→succeeded "
    "failed→failed cancelled→cancelled expired→expired stopped→escalated discarded→discarded",
    State.WAITING: "held→waiting approved→waiting observed→waiting succeeded→succeeded "
    "failed→failed cancelled→cancelled expired→expired stopped→escalated discarded→discarded",
    State.UNCLEAR: "held→unclear observed→unclear admitted→sending accepted→waiting "
    "succeeded→succeeded stopped→escalated discarded→discarded ruled_out→failed "
    "wait_resumed→waiting resend_approved→queued lookup_resumed→unclear",
    State.ESCALATED: "wait_resumed→waiting send_resumed→delayed resend_approved→queued "
    "lookup_resumed→unclear succeeded→succeeded ruled_out→failed discarded→discarded",
}
"""behaviour.md, section 6, cell by cell, and section 2 for the writes of a copied store; beside
these, `noted` keeps every state."""

EXPECTED = {
    (state, Event(event)): State(target)
    for state, cells in ALLOWED.items()
    for event, target in (cell.split("→") for cell in cells.split())
} | {(state, Event.NOTED): state for state in State}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_an_event_leads_where_the_table_says_or_is_impossible(state: State, event: Event) -> None:
    if (state, event) in EXPECTED:
        assert advance(state, event) is EXPECTED[state, event]
    else:
        with pytest.raises(Impossible, match=f"{event} cannot happen to an operation that is"):
            advance(state, event)


@pytest.mark.requirement("W01")
def test_a_waiting_job_can_be_sent_by_no_event() -> None:
    assert (State.WAITING, Event.ADMITTED) not in TRANSITIONS
    assert State.SENDING not in {TRANSITIONS.get((State.WAITING, event)) for event in Event}


@pytest.mark.requirement("W05", "W06")
def test_nothing_leaves_a_final_state() -> None:
    moved = {(state, target) for (state, _), target in TRANSITIONS.items() if state in FINAL}
    assert moved == {(state, state) for state in FINAL}


@pytest.mark.requirement("R15")
def test_what_may_have_been_applied_is_never_dropped_by_itself() -> None:
    """The one way to `discarded` is `superseded_by`: the lookup found a job we watch already."""
    assert (State.UNCLEAR, Event.POSTPONED) not in TRANSITIONS
    assert (State.UNCLEAR, Event.FAILED) not in TRANSITIONS
    op = queued(Kind.CALL, state=State.UNCLEAR, certainty=Certainty.MAYBE_APPLIED)
    for step in (Step.SEND, Step.LOOKUP):
        spent = replace(op, step=step, attempts=Budget(1, 1), lookups=Budget(6, 6))
        for verdict in (overdue(spent, DEADLINE), exhausted(spent)):
            assert verdict is not None
            assert (verdict.event, verdict.reason) == (Event.STOPPED, Reason.UNCLEAR_WRITE)


def test_only_decisions_lead_out_of_an_escalation() -> None:
    out = {event for (state, event) in TRANSITIONS if state is State.ESCALATED}
    assert out == {
        Event.WAIT_RESUMED,
        Event.SEND_RESUMED,
        Event.RESEND_APPROVED,
        Event.LOOKUP_RESUMED,
        Event.SUCCEEDED,
        Event.RULED_OUT,
        Event.DISCARDED,
        Event.NOTED,
    }


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    reached, frontier = {State.QUEUED}, {State.QUEUED}
    while frontier:
        frontier = {to for (at, _), to in TRANSITIONS.items() if at in frontier} - reached
        reached |= frontier
    assert reached == set(State)
    for state in set(State) - FINAL:
        assert State.ESCALATED in {
            state,
            *(to for (at, _), to in TRANSITIONS.items() if at is state),
        }
