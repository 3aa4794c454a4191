"""What time does to an open case: it is told of again and ends by its rule; nothing is granted."""

from __future__ import annotations

import pytest
from tests.storage.house import (
    CONTRACT,
    LOST,
    MINUTE,
    RUNNING,
    House,
    Said,
    holding,
)

from forbear.rules.decisions import Wish
from forbear.rules.model import Case, Certainty, Notice, Operation, Option, Reason, State
from forbear.rules.sameness import Duplicate
from forbear.storage import announcing
from forbear.storage.announcing import Telling
from forbear.storage.deciding import Decided
from forbear.storage.transitions import Holding

HOUR = 60 * MINUTE
DAY = 24 * HOUR
ABANDONING = CONTRACT + '\n[escalation]\nremind = ["1h"]\nabandon_after = "30d"\n'
REFUSED = Said(422, {"error": {"code": "bad_dataset", "message": "no"}})


def stopped(house: House) -> Operation:
    """A job that a person is asked about."""
    op = house.waiting()
    for _ in range(4):
        op = house.poll(op, RUNNING)
    assert op.state is State.ESCALATED
    return op


def asked(house: House, op: Operation) -> Case:
    case = house.case(op)
    assert case is not None
    return case


def announce(
    house: House, case: Case, *, sends: bool = False, held: Holding | None = None
) -> Telling | None:
    held = held or holding()
    return house.write(lambda c: house.ledger.announce(c, case.id, held, sends=sends))


def arrived(house: House, telling: Telling) -> None:
    now = house.clock.now().wall
    house.write(lambda c: announcing.delivered(c, telling, holding(), now))


def tellings(house: House, case: Case, until: int, step: int, *, sends: bool = False) -> list[int]:
    """When people are told of a case, in ms after its opening, looked at every `step` ms."""
    found: list[int] = []
    while (now := house.clock.now().wall) < case.opened_at + until:
        if announce(house, case, sends=sends) is not None:
            found.append(now - case.opened_at)
        house.clock.advance(step)
    return found


# --- the schedule ---------------------------------------------------------------------------


@pytest.mark.requirement("E13")
def test_a_case_is_told_of_at_once_and_by_the_contracts_list_and_decides_nothing(
    house: House,
) -> None:
    op = stopped(house)
    case = asked(house, op)
    assert case.announce_at == case.opened_at

    assert tellings(house, case, 5 * DAY, HOUR) == [0, HOUR, DAY, 3 * DAY]

    left = asked(house, op)
    assert (left.id, left.announced, left.announce_at) == (case.id, 4, None)
    assert house.read(op) == op
    told = [event for event in house.events(op) if event.code == "announced"]
    assert [event.body["times"] for event in told] == [1, 2, 3, 4]


def test_the_text_says_when_people_are_told_next_and_stays_decidable(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    assert "; asked again " in case.text
    announce(house, case)
    assert asked(house, op).text == case.text
    house.clock.advance(HOUR)
    announce(house, case)
    later = asked(house, op)
    assert later.text != case.text
    assert later.revision == case.revision
    house.clock.advance(3 * DAY)
    announce(house, case)
    assert "asked again" not in asked(house, op).text
    assert isinstance(house.decide(op, Option.EXTEND, revision=case.revision), Decided)


def test_what_was_slept_through_is_not_made_up_for(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    house.clock.suspend(2 * DAY)
    assert announce(house, case) is not None
    assert announce(house, case) is None
    assert asked(house, op).announce_at == case.opened_at + 3 * DAY


def test_a_decided_case_is_told_of_no_more(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    assert isinstance(house.decide(op, Option.ABANDON), Decided)
    assert announce(house, case) is None
    assert "announced" not in house.codes(op)


def test_a_case_whose_contract_nobody_has_is_told_of_by_the_usual_list(house: House) -> None:
    case = asked(house, stopped(house))
    told = house.write(lambda c: house.ledger.announce(c, case.id, None, sends=False))
    assert told is not None
    assert told.case.announce_at == case.opened_at + HOUR


# --- sending --------------------------------------------------------------------------------


@pytest.mark.requirement("E14")
def test_a_telling_is_committed_before_it_is_sent_and_by_one_process(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    with house.neighbour() as other:
        mine = announce(house, case, sends=True)
        assert mine is not None
        assert (mine.times, mine.tries) == (1, 1)
        assert announce(other, case, sends=True) is None


@pytest.mark.requirement("E14")
def test_what_does_not_arrive_is_tried_five_times_and_then_at_the_next_reminder(
    house: House,
) -> None:
    op = stopped(house)
    case = asked(house, op)
    tried = tellings(house, case, HOUR - MINUTE, MINUTE, sends=True)
    assert len(tried) == 5
    assert asked(house, op).announced == 1
    house.clock.advance(2 * MINUTE)
    again = announce(house, case, sends=True)
    assert again is not None
    assert (again.times, again.tries) == (2, 1)
    assert [one for one in house.codes(op) if one == "announced"] == ["announced"] * 2


def test_what_arrived_is_not_tried_again(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    first = announce(house, case, sends=True)
    assert first is not None
    house.clock.advance(MINUTE)
    second = announce(house, case, sends=True)
    assert second is not None
    assert (second.times, second.tries) == (1, 2)
    arrived(house, first)  # too late: the second try is under way
    assert asked(house, op).announce_at == house.clock.now().wall + 2 * MINUTE
    arrived(house, second)
    assert asked(house, op).announce_at == case.opened_at + HOUR


# --- ends by rule ---------------------------------------------------------------------------


@pytest.mark.requirement("E13")
def test_a_case_is_abandoned_only_where_its_contract_says_so(house: House) -> None:
    op = stopped(house)
    case = asked(house, op)
    house.clock.advance(300 * DAY)
    announce(house, case)
    assert house.read(op).state is State.ESCALATED

    held = holding(text=ABANDONING)
    assert announce(house, case, held=held) is None
    after = house.read(op)
    assert (after.state, after.authorisation) == (State.DISCARDED, "contract")
    assert after.notices == (Notice.MAY_STILL_RUN,)
    (closed,) = house.cases(op)
    assert closed.closed_because == "nobody decided in 30 days (abandon_after)"
    assert closed.decision is None
    assert house.events(op)[-1].body["why"] == closed.closed_because


def test_the_text_says_when_a_case_is_abandoned(house: House) -> None:
    held = holding(text=ABANDONING)
    op = house.new(held=held)
    house.settle(house.permit(op, held), Said(401, {}))
    assert "; abandoned 2026-12-30 10:20Z" in asked(house, op).text


@pytest.mark.requirement("E13")
def test_an_abandoned_write_that_may_have_been_applied_says_so_and_blocks_its_repetition(
    house: House,
) -> None:
    held = holding(text=ABANDONING)
    op = house.new(held=held)
    house.settle(house.permit(op, held), LOST)
    case = asked(house, op)
    assert case.reason is Reason.UNCLEAR_WRITE
    house.clock.advance(30 * DAY - 1_000)
    announce(house, case, held=held)
    assert house.read(op).state is State.ESCALATED
    house.clock.advance(1_000)
    announce(house, case, held=held)
    after = house.read(op)
    assert (after.state, after.certainty) == (State.DISCARDED, Certainty.MAYBE_APPLIED)
    assert "it may have been done" in house.events(op)[-1].body["why"]
    again = house.ask(held=held, key="another")
    assert isinstance(again, Duplicate)
    assert again.operation.id == op.id


def test_an_undecided_wish_ends_and_its_job_goes_on(house: House) -> None:
    held = holding(text=ABANDONING)
    op = house.waiting()
    case = house.write(lambda c: house.ledger.ask(c, op.id, Option.EXTEND, "nearly done", {}, held))
    assert isinstance(case, Case)
    house.clock.advance(30 * DAY)
    announce(house, case, held=held)
    assert house.case(op) is None
    assert house.read(op).state is State.WAITING
    assert house.codes(op)[-1] == "case_closed"


# --- the failure breaker --------------------------------------------------------------------


def fail(house: House, times: int, dataset: str = "sales") -> Operation:
    failed: list[Operation] = []
    for _ in range(times):
        failed.append(house.send(house.new(dataset), REFUSED))
        assert failed[-1].state is State.FAILED
        house.clock.advance(1_000)
    return failed[-1]


@pytest.mark.requirement("R19", "E13")
def test_an_open_breaker_is_one_case_beside_its_operation_and_closes_itself(house: House) -> None:
    op = fail(house, 2)
    assert house.case(op) is None
    op = fail(house, 1)
    case = asked(house, op)
    assert (case.reason, case.urgency) == (Reason.REPEATED_FAILURE, "note")
    assert [option["id"] for option in case.options] == ["close_circuit", "abandon"]
    assert "failed 3 times (bad_dataset); it is refused until 10:30Z" in case.text
    assert house.codes(op)[-1] == "case_opened"

    fail(house, 3, "others")
    assert announce(house, case) is not None
    house.clock.advance(10 * MINUTE)
    assert announce(house, case) is None
    (closed,) = house.cases(op)
    assert closed.closed_because == "the breaker's time is over"
    assert house.read(op) == op


def test_a_probe_that_fails_the_same_way_keeps_the_one_case(house: House) -> None:
    first = fail(house, 3)
    house.clock.advance(10 * MINUTE)
    probe = fail(house, 1)
    assert house.case(probe) is None
    case = asked(house, first)
    announce(house, case)
    assert house.case(first) is not None


def test_a_person_closes_the_breaker(house: House) -> None:
    op = fail(house, 3)
    assert not hasattr(house.ask(), "joined")
    case = asked(house, op)
    wish, by = Wish(Option.CLOSE_CIRCUIT), {"operator": "anna", "channel": "terminal"}
    done = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, wish, holding(), by)
    )
    assert isinstance(done, Decided)
    assert house.new().state is State.QUEUED
