"""An answer that comes after others gave its attempt up: evidence, judged once nothing is out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from tests.storage.calls import MADE, NOTHING, Calls, found, transfers
from tests.storage.house import (
    ACCEPTED,
    BUSY,
    CONTRACT,
    DENIED,
    LOST,
    UNSENT,
    House,
    Said,
    contract,
)

from forbear.rules.model import (
    Certainty,
    Notice,
    Operation,
    Option,
    Reason,
    State,
    Step,
    WaitingFor,
)
from forbear.storage.deciding import Decided
from forbear.storage.schema import attempts, operations
from forbear.storage.transitions import Holding

pytestmark = pytest.mark.requirement("D02")

LEASE = 50_000
"""More than the lease of a transfer lasts, ms."""
REFUSED = Said(422, {"error": "no"})
SEARCHED = CONTRACT + transfers()
RESULT = {"name": "response", "inline": {"id": "tr_7"}}


@pytest.fixture
def calls(house: House) -> Calls:
    return Calls(house, SEARCHED)


@contextmanager
def next_owner(calls: Calls) -> Iterator[Calls]:
    """Another process, after the lease of the first is over."""
    calls.house.clock.advance(LEASE)
    with calls.house.neighbour() as other:
        yield Calls(other, SEARCHED)


def given_up(other: Calls, op: Operation) -> Operation:
    """The attempt that is out is closed as unknown."""
    assert other.reserve(op) is True
    return other.house.read(op)


# --- while another attempt is out -----------------------------------------------------------


@pytest.mark.parametrize("second", [REFUSED, BUSY, LOST, UNSENT, Said(401, {}), Said(409, {})])
def test_an_effect_is_told_while_the_write_is_out_again(calls: Calls, second: Said) -> None:
    """Whatever the second brings: the first took effect."""
    op = calls.new("keyed", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        again = other.permit(op)
        assert again.operation.step is Step.SEND
        during = calls.house.settle(first, MADE, RESULT)
        assert (during.state, during.lease_owner) == (State.SENDING, "own_b")
        after = other.house.settle(again, second)
    assert (after.state, after.certainty) == (State.SUCCEEDED, Certainty.APPLIED)
    assert (after.take, after.result, after.pending) == ({"id": "tr_7"}, RESULT, None)
    assert calls.house.verified() is None


@pytest.mark.parametrize("second", [NOTHING, BUSY, LOST, UNSENT, Said(401, {})])
def test_an_effect_is_told_while_it_is_looked_up(calls: Calls, second: Said) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        look = other.permit(op)
        assert look.operation.step is Step.LOOKUP
        assert calls.house.settle(first, MADE, RESULT).state is State.UNCLEAR
        after = other.house.settle(look, second)
    assert (after.state, after.result) == (State.SUCCEEDED, RESULT)


def test_a_lookup_found_the_effect_while_the_next_one_is_out(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    calls.send(op, LOST)
    look = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        second = other.permit(op)
        calls.house.settle(look, found(op))
        assert other.house.settle(second, BUSY).state is State.SUCCEEDED


def test_what_is_out_is_lost_too_after_an_effect_was_told(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        other.permit(op)
        calls.house.settle(first, MADE)
        calls.house.clock.advance(LEASE)
        assert given_up(calls, op).state is State.SUCCEEDED


def test_two_effects_are_a_conflict_whenever_they_are_told(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        look = other.permit(op)
        calls.house.settle(first, MADE)
        two = [{"id": one, "reference": op.ref} for one in ("tr_7", "tr_8")]
        after = other.house.settle(look, Said(200, {"items": two}))
        case = other.house.case(op)
    assert after.state is State.ESCALATED
    assert case is not None
    assert case.reason is Reason.RECONCILIATION_CONFLICT


def test_what_the_second_says_of_others_counts_all_the_same(calls: Calls) -> None:
    """A credential that was refused is refused for everybody, whatever the first one did."""
    op = calls.new("keyed", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        again = other.permit(op)
        calls.house.settle(first, MADE)
        other.house.settle(again, DENIED)
        later = other.new("plain", id="10")
        assert other.reserve(later) is False
        assert other.house.read(later).waiting_for is WaitingFor.CREDENTIAL


def test_an_end_that_was_asked_for_and_an_effect_both_count(calls: Calls) -> None:
    op = calls.new("keyed", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        again = other.permit(op)
        calls.house.settle(first, MADE)
        left = other.house.write(lambda c: other.house.ledger.drop(c, op.id, "over"))
        assert left is not None
        assert left.end_asked == "over"
        assert other.house.settle(again, BUSY).state is State.SUCCEEDED, "an effect is kept"


def test_no_effect_is_told_by_what_did_nothing(calls: Calls) -> None:
    op = calls.new("keyed", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        again = other.permit(op)
        calls.house.settle(first, BUSY)
        assert calls.house.read(op).pending is None
        assert other.house.settle(again, REFUSED).state is State.FAILED


@pytest.mark.parametrize("second", [UNSENT, REFUSED])
def test_a_late_lookup_found_it_while_the_one_resend_is_out(calls: Calls, second: Said) -> None:
    """Two others had found nothing."""
    op = calls.new("findable", id="9")
    calls.send(op, LOST)
    look = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        other.next(op, NOTHING)
        other.next(op, NOTHING)
        again = other.permit(op)
        assert again.operation.step is Step.SEND
        calls.house.settle(look, found(op))
        assert other.house.settle(again, second).state is State.SUCCEEDED


def test_a_lookup_that_finds_another_effect_is_asked_about(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        look = other.permit(op)
        calls.house.settle(first, MADE)
        other.house.settle(look, found(op, "tr_8"))
        case = other.house.case(op)
    assert case is not None
    assert case.reason is Reason.RECONCILIATION_CONFLICT


def test_two_late_answers_that_name_different_effects_are_asked_about(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        second = other.permit(op)
        calls.house.clock.advance(LEASE)
        given_up(calls, op)
        third = calls.permit(op)
        calls.house.settle(first, MADE)
        other.house.settle(second, found(op, "tr_8"))
        after = calls.house.settle(third, BUSY)
        case = calls.house.case(op)
    assert after.state is State.ESCALATED
    assert case is not None
    assert case.reason is Reason.RECONCILIATION_CONFLICT


@pytest.mark.parametrize("call", ["keyed", "findable"])
def test_an_effect_that_was_told_needs_no_contract(calls: Calls, call: str) -> None:
    """Who closes the second attempt cannot read its answer; the first one's was read."""
    op = calls.new(call, id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        other.permit(op)
        calls.house.settle(first, MADE, RESULT)
        calls.house.clock.advance(LEASE)
        assert calls.house.reserve(op, None) is True
    after = calls.house.read(op)
    assert (after.state, after.pending) == (State.SUCCEEDED, None)
    assert after.result == RESULT


# --- where a person is asked, or was --------------------------------------------------------


def test_a_late_effect_is_known_to_whatever_a_person_decides(calls: Calls) -> None:
    """`reconcile` looks; two lookups that find nothing do not deny what the provider answered."""
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        for _ in range(6):
            other.next(op, BUSY)
        assert other.house.read(op).state is State.ESCALATED
        calls.house.settle(first, MADE)
        told = other.house.read(op)
        assert (told.state, told.certainty) == (State.ESCALATED, Certainty.APPLIED)
        assert told.take == {"id": "tr_7"}
        other.decide(op, Option.RECONCILE)
        for _ in range(3):
            look = other.permit(op)
            assert look.operation.step is Step.LOOKUP
            other.house.settle(look, NOTHING)
        assert other.house.read(op).state is State.ESCALATED
        assert calls.house.verified() is None


def test_a_late_effect_ends_a_repetition_that_a_person_allowed(calls: Calls) -> None:
    op = calls.new("keyed", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        for _ in range(2):
            other.next(op, LOST)
        assert other.house.read(op).state is State.ESCALATED
        other.decide(op, Option.RESEND_SAME_KEY)
        assert other.house.read(op).state is State.QUEUED
        after = calls.house.settle(first, MADE)
    assert (after.state, after.take) == (State.SUCCEEDED, {"id": "tr_7"})


@pytest.mark.requirement("R22")
def test_an_end_that_was_asked_for_outlives_a_question(calls: Calls) -> None:
    """Absence is proven at last: nothing is sent for what nobody wants."""
    op = calls.new("findable", id="9")
    calls.send(op, LOST)
    calls.house.write(lambda c: calls.house.ledger.drop(c, op.id, "over"))
    for _ in range(6):
        calls.next(op, BUSY)
    assert calls.house.read(op).state is State.ESCALATED
    calls.decide(op, Option.RECONCILE)
    calls.next(op, NOTHING)
    assert calls.next(op, NOTHING).state is State.DISCARDED


def test_what_retention_took_does_not_come_back_with_a_late_answer(calls: Calls) -> None:
    op = calls.new("plain", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        other.decide(op, Option.ABANDON)
        emptied = sa.update(operations).where(operations.c.id == op.id).values(emptied_at=1)
        other.house.write(lambda c: c.execute(emptied).rowcount)
        calls.house.settle(first, MADE)
    [kept] = calls.house.rows(sa.select(attempts.c.body, attempts.c.headers, attempts.c.late))
    assert kept == {"body": None, "headers": None, "late": True}


# --- what it brought ------------------------------------------------------------------------


def test_the_result_of_a_late_success_is_kept(calls: Calls) -> None:
    op = calls.new("findable", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        given_up(other, op)
        after = calls.house.settle(first, MADE, RESULT)
    assert (after.state, after.result) == (State.SUCCEEDED, RESULT)


def test_the_words_of_a_late_success_that_a_person_decides_about_are_kept(calls: Calls) -> None:
    op = calls.new("plain", id="9")
    first = calls.permit(op)
    with next_owner(calls) as other:
        assert given_up(other, op).state is State.ESCALATED
        calls.house.settle(first, MADE, RESULT)
    [kept] = calls.house.rows(sa.select(attempts.c.body, attempts.c.late))
    assert kept == {"body": b'{"id": "tr_7"}', "late": True}
    case = calls.house.case(op)
    assert case is not None
    assert "late answer 201, provider id tr_7" in case.text


# --- jobs -----------------------------------------------------------------------------------

JOB_LOOKUP = """
[jobs.export.lookup]
method = "GET"
path = "/exports"
items = "/items"
match = { "/client_ref" = "{ref}" }
take = { id = "/id" }
settle = "30s"
"""
SEARCHED_JOB = contract(CONTRACT + JOB_LOOKUP)
EXPORT = Holding(SEARCHED_JOB, SEARCHED_JOB.jobs["export"], "fp-1", "v-1")


@pytest.mark.requirement("W28")
@pytest.mark.parametrize("out", ["nothing", "a lookup", "a lookup that is lost"])
def test_a_late_submission_of_a_job_that_is_watched_already(house: House, out: str) -> None:
    """Another job was never made: no second operation watches the same one."""
    first = house.new("sales", held=EXPORT)
    house.settle(house.permit(first, EXPORT), ACCEPTED)
    op = house.new("other", held=EXPORT)
    submission = house.permit(op, EXPORT)
    house.clock.advance(2 * LEASE)
    with house.neighbour() as other:
        assert other.reserve(op, EXPORT) is True
        look = None
        if out != "nothing":
            other.due(op)
            look = other.permit(op, EXPORT)
        house.settle(submission, ACCEPTED)
        if look is not None and out == "a lookup":
            other.settle(look, BUSY)
        elif look is not None:
            house.clock.advance(2 * LEASE)
            assert house.reserve(op, EXPORT) is True
        after, case = other.read(op), other.case(op)
    assert (after.state, after.provider_job) == (State.ESCALATED, None)
    assert case is not None
    assert case.reason is Reason.BINDING_MISMATCH
    assert house.verified() is None


@pytest.mark.requirement("W31")
@pytest.mark.parametrize("late", [False, True])
def test_a_job_that_is_watched_already_asks_no_approval_to_watch_it(
    house: House, late: bool
) -> None:
    """Else its question could be answered only until that approval is over."""
    text = (
        CONTRACT.replace(
            'status = "GET /exports/{id}"',
            'status = { method = "GET", path = "/exports/{id}", approval = "per_call" }',
        )
        + JOB_LOOKUP
    )
    rules = contract(text)
    asking = Holding(rules, rules.jobs["export"], "fp-1", "v-1")
    first, op = house.new("sales", held=asking), house.new("other", held=asking)
    house.settle(house.permit(first, asking), ACCEPTED)
    submission = house.permit(op, asking)
    if late:
        house.clock.advance(2 * LEASE)
        with house.neighbour() as other:
            assert other.reserve(op, asking) is True
    after = house.settle(submission, ACCEPTED)
    assert (after.state, after.approve_by) == (State.ESCALATED, None)
    house.clock.advance(24 * 60 * 60_000)
    assert isinstance(house.decide(op, Option.ABANDON, held=asking), Decided)


@pytest.mark.parametrize("ended", ["failed", "done"])
def test_a_late_submission_that_ended_at_once_is_found_all_the_same(
    house: House, ended: str
) -> None:
    """Its own status request tells how."""
    op = house.new(held=EXPORT)
    submission = house.permit(op, EXPORT)
    house.clock.advance(2 * LEASE)
    with house.neighbour() as other:
        assert other.reserve(op, EXPORT) is True
        after = house.settle(submission, Said(200, {"id": "exp_1", "state": ended}))
    assert after.provider_job == "exp_1"
    assert after.state in (State.WAITING, State.SUCCEEDED)
    assert after.certainty is Certainty.APPLIED


def test_a_late_end_of_another_job_ends_nothing(house: House) -> None:
    """A person said that the job is another one."""
    op = house.new()
    submission = house.permit(op)
    house.clock.advance(2 * LEASE)
    with house.neighbour() as other:
        assert other.reserve(op) is True
        other.decide(op, Option.CONFIRM_DONE, reference="exp_9")
        after = house.settle(submission, Said(200, {"id": "exp_1", "state": "failed"}))
    assert (after.state, after.provider_job) == (State.WAITING, "exp_9")
    assert after.take == {"id": "exp_9"}
    assert Notice.LATE_EVIDENCE in after.notices


@pytest.mark.parametrize("kind", ["its submission", "a status request"])
def test_a_late_end_of_the_job_itself_ends_it(house: House, kind: str) -> None:
    op = house.new()
    if kind == "a status request":
        house.send(op, ACCEPTED)
        house.due(op)
    late = house.permit(op)
    house.clock.advance(2 * LEASE)
    with house.neighbour() as other:
        assert other.reserve(op) is True
        if kind == "its submission":
            other.decide(op, Option.CONFIRM_DONE, reference="exp_1")
        after = house.settle(late, Said(200, {"id": "exp_1", "state": "failed"}))
    assert after.state is State.FAILED


# --- whose it is to judge -------------------------------------------------------------------


@pytest.mark.requirement("D10")
def test_what_a_dead_owner_left_waits_for_whom_it_can_be_read_by(house: House) -> None:
    """A process with another contract leaves it to a living one that has the right one."""
    calls = Calls(house, SEARCHED)
    op = calls.new("findable", id="9")
    other_text = SEARCHED.replace("https://api.exp.example/v1", "https://api.exp.example/v2")
    with house.neighbour("own_dead") as dead:
        Calls(dead, SEARCHED).permit(op)
    house.sign_on(op.binding)
    with house.neighbour() as stranger:
        unlike = Calls(stranger, other_text)
        assert unlike.held("findable").action.binding != op.binding
        assert unlike.reserve(op) is False
        assert house.attempts(op)[-1].closed_at is None
        assert calls.reserve(op) is True
        assert house.read(op).step is Step.LOOKUP
        assert house.case(op) is None


@pytest.mark.requirement("D10")
def test_what_a_dead_owner_left_is_not_left_for_ever_to_whom_does_nothing(house: House) -> None:
    op = Calls(house, SEARCHED).new("findable", id="9")
    with house.neighbour("own_dead") as dead:
        Calls(dead, SEARCHED).permit(op)
    house.sign_on(op.binding)
    with house.neighbour() as stranger:
        assert stranger.reserve(op, None) is False
        house.clock.advance(60_000 + LEASE)
        assert stranger.reserve(op, None) is True
    assert house.case(op) is not None


@pytest.mark.requirement("D10")
def test_what_a_dead_owner_left_is_asked_about_where_nobody_can_read_it(house: House) -> None:
    op = Calls(house, SEARCHED).new("findable", id="9")
    with house.neighbour("own_dead") as dead:
        Calls(dead, SEARCHED).permit(op)
    assert house.reserve(op, None) is True
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.UNCLEAR_WRITE
