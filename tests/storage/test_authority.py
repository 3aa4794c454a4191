"""What a decision allows: new operations, sessions, single sends, and nothing beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.storage.calls import BY, Calls
from tests.storage.house import (
    CONTRACT,
    FAILED,
    KEY,
    LIMITED,
    LOST,
    MINUTE,
    House,
    Said,
    contract,
    holding,
)

from forbear.rules.decisions import Wish
from forbear.rules.model import (
    Budget,
    Certainty,
    Code,
    Kind,
    Operation,
    Option,
    Reason,
    Refusal,
    State,
    WaitingFor,
)
from forbear.storage import authority
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.brakes import Brakes
from forbear.storage.deciding import Decided
from forbear.storage.schema import grants
from forbear.storage.transitions import Holding
from forbear.tools import drafts

HOUR = 60 * MINUTE
DONE = Said(200, {"ok": True, "id": "w1"})
WRITES = (
    CONTRACT
    + """
[calls.note]
method = "POST"
path = "/notes"
body = { text = "{arg.text}" }
approval = "none"

[calls.pay]
label = "Pay {arg.amount} to {arg.to}"
method = "POST"
path = "/payments"
approval = "session"

[calls.tip]
label = "Tip {arg.amount} to {arg.to}"
method = "POST"
path = "/tips"
approval = { mode = "per_call", free = { arg = "amount", max = 50, sum = 100, per = "1d" } }

[calls.wire]
label = "Wire {arg.amount} to {arg.to}"
class = "idempotent_write"
method = "POST"
path = "/wires"
approval = "per_call"
approval_covers = "attempt"
[calls.wire.idempotency]
at = "header:Idempotency-Key"
"""
)


@pytest.fixture
def calls(house: House) -> Calls:
    return Calls(house, WRITES)


def decided(found: Decided | Refusal) -> Operation:
    assert isinstance(found, Decided), found
    return found.operation


# --- a new operation in the place of another ------------------------------------------------


@pytest.mark.requirement("E06", "E09")
def test_a_new_write_takes_the_place_of_an_unclear_one_on_a_persons_word(calls: Calls) -> None:
    house = calls.house
    old = calls.send(calls.new("note", text="hello"), LOST)
    assert old.state is State.ESCALATED
    found = calls.decide(old, Option.SEND_NEW)
    assert isinstance(found, Decided)
    new = found.follow_up
    assert new is not None
    assert decided(found).state is State.DISCARDED
    assert decided(found).superseded_by == new.id
    assert new.authorisation == found.case.id
    assert new.principal == old.principal
    assert (new.arguments, new.intent) == (old.arguments, old.intent)
    assert new.ref != old.ref
    assert new.approve_by is None
    tasks = house.sql("SELECT task FROM tasks WHERE operation_id = ?", new.id)
    assert ("month-end",) in tasks
    assert calls.send(new, DONE).state is State.SUCCEEDED
    assert [len(house.attempts(op)) for op in (old, new)] == [1, 1]


@pytest.mark.requirement("E06")
def test_what_is_decided_is_consumed_by_the_first_permit_and_named_on_it(calls: Calls) -> None:
    house = calls.house
    op = calls.new("wire", amount=500, to="bob")
    case = house.case(op)
    assert case is not None
    decided(calls.decide(op, Option.APPROVE))
    [row] = house.sql("SELECT case_id, request_digest, consumed_at FROM authorisations")
    assert row == (case.id, op.request_digest, None)
    sent = calls.send(op, DONE)
    assert sent.state is State.SUCCEEDED
    [attempt] = house.attempts(op)
    assert attempt.authorisation == case.id
    assert house.sql("SELECT attempt_id FROM authorisations") == [(attempt.id,)]


@pytest.mark.requirement("E06")
@pytest.mark.parametrize(
    "change",
    ["request_digest = 'another'", "operation_id = 'op_other'", "expires_at = 1"],
)
def test_an_authorisation_for_another_request_or_time_lets_nothing_leave(
    calls: Calls, change: str
) -> None:
    """HU-01: an approval for amount 5 is not one for amount 500."""
    house = calls.house
    other = calls.new("note", text="other")
    op = calls.new("wire", amount=500, to="bob")
    decided(calls.decide(op, Option.APPROVE))
    house.sql(f"UPDATE authorisations SET {change.replace('op_other', other.id)}")
    assert house.reserve(op, calls.held("wire")) is True
    assert house.read(op).state is State.ESCALATED
    assert house.attempts(op) == []


@pytest.mark.requirement("E06")
def test_a_decided_cancellation_may_leave_before_the_next_check_of_its_job(house: House) -> None:
    """Found by the simulation: it was taken for one that another decision was about."""
    job = house.poll(house.waiting(), Said(200, {"id": "exp_1", "state": "paused"}))
    case = house.case(job)
    assert case is not None
    decided = house.cancel_by_decision(job, case)
    assert isinstance(decided, Decided), decided
    cancel = decided.follow_up
    assert cancel is not None
    house.permit(cancel)
    assert house.sql("SELECT option FROM authorisations WHERE attempt_id IS NOT NULL") == [
        ("cancel_at_provider",)
    ]


@pytest.mark.requirement("E05", "E06")
def test_doing_it_anew_on_purpose_is_a_decision(house: House) -> None:
    job = house.waiting()
    failed = house.poll(job, FAILED)
    assert failed.state is State.FAILED
    asked = house.write(
        lambda c: house.ledger.ask(c, failed.id, Option.RESUBMIT, "try again", {}, None)
    )
    assert isinstance(asked, Refusal), "without its contract there is nothing to ask for"
    held = Holding(contract(), contract().jobs["export"], "fp-1", "v-1")
    case = house.write(
        lambda c: house.ledger.ask(c, failed.id, Option.RESUBMIT, "try again", {}, held)
    )
    assert not isinstance(case, Refusal)
    assert [option["id"] for option in case.options] == ["resubmit", "reject"]
    assert 'Because: "try again" (agent\'s words)' in case.text
    assert "If nobody decides: it stays as it is" in case.text
    draft = drafts.Drafter(KEY, house.random, "local").repetition(failed, held)
    assert isinstance(draft, Draft)
    found = house.write(
        lambda c: house.ledger.decide(
            c, case.id, case.revision, Wish(Option.RESUBMIT), held, BY, follow_up=draft
        )
    )
    assert isinstance(found, Decided)
    assert found.follow_up is not None
    after_it = house.read(failed)
    assert (after_it.state, after_it.superseded_by) == (State.FAILED, found.follow_up.id)
    assert house.read(found.follow_up).state is State.QUEUED
    again = house.write(
        lambda c: house.ledger.ask(c, failed.id, Option.RESUBMIT, "once more", {}, held)
    )
    assert isinstance(again, Refusal)
    assert again.code is Code.OPTION_NOT_OFFERED


def test_a_replacement_without_its_operation_is_a_mistake_of_ours(calls: Calls) -> None:
    house = calls.house
    old = calls.send(calls.new("note", text="hello"), LOST)
    case = house.case(old)
    assert case is not None
    with pytest.raises(ValueError, match="takes the place"):
        house.write(
            lambda c: house.ledger.decide(
                c, case.id, case.revision, Wish(Option.SEND_NEW), calls.held("note"), BY
            )
        )
    assert house.read(old).state is State.ESCALATED


# --- sessions -------------------------------------------------------------------------------


@pytest.mark.requirement("E08")
def test_a_session_is_approved_once_and_covers_its_client_until_its_end(calls: Calls) -> None:
    house = calls.house
    first, second = (calls.new("pay", amount=number, to="bob") for number in (1, 2))
    assert first.waiting_for is WaitingFor.APPROVAL
    case = house.case(first)
    assert case is not None
    assert case.options[0]["label"] == "approve for this client's session"
    decided(calls.decide(first, Option.APPROVE))
    # The other that waited goes on under the same grant, and its question is closed.
    freed = house.read(second)
    assert freed.approve_by is None
    assert freed.authorisation.startswith("gra_")
    assert house.case(second) is None
    third = calls.new("pay", amount=3, to="bob")
    assert (third.approve_by, third.authorisation) == (None, freed.authorisation)
    house.clock.advance(8 * HOUR)
    assert calls.new("pay", amount=4, to="bob").waiting_for is WaitingFor.APPROVAL


@pytest.mark.requirement("E08")
def test_a_grant_is_for_one_client_action_and_credential(calls: Calls) -> None:
    house = calls.house
    decided(calls.decide(calls.new("pay", amount=1, to="bob"), Option.APPROVE))
    assert (
        Calls(house, WRITES, "own_b").new("pay", amount=2, to="b").waiting_for
        is WaitingFor.APPROVAL
    )
    other_key = calls.new("pay", amount=3, to="bob", credential="fp-2")
    assert other_key.waiting_for is WaitingFor.APPROVAL
    assert calls.new("wire", amount=4, to="bob").waiting_for is WaitingFor.APPROVAL


@pytest.mark.requirement("E08")
def test_a_grant_ends_when_it_is_revoked_and_at_the_stated_time(calls: Calls) -> None:
    house = calls.house
    until = house.clock.now().wall + HOUR
    decided(calls.decide(calls.new("pay", amount=1, to="bob"), Option.APPROVE, until=until))
    house.clock.advance(HOUR)
    asked = calls.new("pay", amount=2, to="bob")
    assert asked.waiting_for is WaitingFor.APPROVAL
    decided(calls.decide(asked, Option.APPROVE))
    grant = calls.new("pay", amount=3, to="bob").authorisation
    now = house.clock.now().wall
    assert house.write(lambda c: authority.revoke(c, grant, now)) is True
    assert house.write(lambda c: authority.revoke(c, grant, now)) is False
    assert calls.new("pay", amount=4, to="bob").waiting_for is WaitingFor.APPROVAL


@pytest.mark.requirement("E05")
def test_small_amounts_are_free_until_their_sum_is_not(calls: Calls) -> None:
    house = calls.house

    def waits(amount: float) -> bool:
        return calls.new("tip", amount=amount, to="bob").waiting_for is WaitingFor.APPROVAL

    assert waits(51), "more than one call may be"
    assert not waits(50)
    assert not waits(49.99)
    assert waits(0.02), "one hundredth over the sum"
    assert not waits(0.01)
    house.clock.advance(25 * HOUR)
    assert not waits(50)


# --- one send -------------------------------------------------------------------------------


@pytest.mark.requirement("E18")
def test_after_a_limit_a_single_approval_is_asked_for_again(calls: Calls) -> None:
    house = calls.house
    op = calls.new("wire", amount=500, to="bob")
    decided(calls.decide(op, Option.APPROVE))
    limited = calls.send(op, LIMITED)
    assert limited.state is State.DELAYED
    assert limited.waiting_for is WaitingFor.APPROVAL
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.APPROVAL_REQUIRED
    house.clock.advance(HOUR)
    assert house.reserve(op, calls.held("wire")) is False
    decided(calls.decide(op, Option.APPROVE))
    assert calls.send(op, DONE).state is State.SUCCEEDED
    assert len(house.attempts(op)) == 2
    assert len({attempt.authorisation for attempt in house.attempts(op)}) == 2


@pytest.mark.requirement("E18")
def test_a_lost_answer_of_a_single_approval_is_never_sent_again_by_itself(calls: Calls) -> None:
    house = calls.house
    op = calls.new("wire", amount=500, to="bob")
    decided(calls.decide(op, Option.APPROVE))
    lost = calls.send(op, LOST)
    assert (lost.state, lost.certainty) == (State.ESCALATED, Certainty.MAYBE_APPLIED)
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.UNCLEAR_WRITE
    assert "resend_same_key" in [option["id"] for option in case.options]


# --- who may decide -------------------------------------------------------------------------


@pytest.mark.requirement("E07")
@pytest.mark.parametrize(("same", "refused"), [(True, True), (False, False)])
def test_a_contract_may_want_an_operator_of_another_user(
    calls: Calls, same: bool, refused: bool
) -> None:
    house = calls.house
    calls.contract = contract(WRITES + '\n[escalation]\noperator = "separate"\n')
    op = calls.send(calls.new("note", text="hello"), LOST)
    case, held = house.case(op), calls.held("note")
    assert case is not None
    by = {**BY, "same_user": same}
    found = house.write(
        lambda c: house.ledger.decide(c, case.id, case.revision, Wish(Option.ABANDON), held, by)
    )
    assert isinstance(found, Refusal) is refused
    assert (house.read(op).state is State.ESCALATED) is refused


# --- more than the contract -----------------------------------------------------------------


@pytest.mark.requirement("E05", "E06")
def test_one_extension_beyond_the_contract_needs_a_reason_and_is_the_last(house: House) -> None:
    job = house.waiting()

    def extend(**by: str) -> Decided | Refusal:
        house.clock.advance(2 * HOUR)
        house.reserve(job)
        case, held = house.case(job), holding()
        assert case is not None
        wish = Wish(Option.EXTEND, beyond_contract=bool(by))
        return house.write(
            lambda c: house.ledger.decide(c, case.id, case.revision, wish, held, {**BY, **by})
        )

    assert isinstance(extend(), Decided), "the one that the contract gives"
    assert isinstance(extend(), Refusal)
    assert isinstance(extend(comment=""), Refusal), "nobody said why"
    found = extend(comment="the export is nearly done")
    assert isinstance(found, Decided)
    assert found.operation.extensions == Budget(2, 1)
    assert isinstance(extend(comment="and once more"), Refusal)


@pytest.mark.requirement("E08")
@pytest.mark.parametrize("ends", ["revoked", "over"])
def test_nothing_leaves_under_a_grant_that_ended_while_it_waited(calls: Calls, ends: str) -> None:
    house = calls.house
    first = calls.new("pay", amount=1, to="bob")
    decided(calls.decide(first, Option.APPROVE))
    waits = calls.new("pay", amount=2, to="bob")
    if ends == "over":
        ended = sa.update(grants).where(grants.c.expires_at > 0)
        house.write(lambda c: c.execute(ended.values(expires_at=house.clock.now().wall)).rowcount)
    else:
        [row] = house.rows(sa.select(grants.c.id))
        assert house.write(lambda c: authority.revoke(c, row["id"], house.clock.now().wall))
    assert house.read(waits).authorisation.startswith("gra_")
    assert calls.reserve(waits) is True
    assert house.read(waits).state is State.ESCALATED
    assert house.attempts(waits) == []


# --- a cancellation by decision -------------------------------------------------------------


@pytest.mark.requirement("E05")
@pytest.mark.parametrize("paused", [False, True])
def test_a_cancellation_that_a_person_decided_is_stored_whatever_is_paused(
    house: House, paused: bool
) -> None:
    """The pause holds it back; it is not lost."""
    job = house.waiting()
    house.poll(job, Said(200, {"id": "exp_1", "state": "paused"}))
    brakes = Brakes(house.clock)
    if paused:
        house.write(lambda c: brakes.pause(c, "exp", BY))
    case = house.case(job)
    assert case is not None
    found = house.cancel_by_decision(job, case)
    assert isinstance(found, Decided)
    assert found.follow_up is not None
    cancel = found.follow_up
    assert (cancel.kind, cancel.state) == (Kind.CANCEL, State.QUEUED)
    if paused:
        assert house.reserve(cancel) is False
        house.write(lambda c: brakes.resume(c, "exp", BY))
        house.due(cancel)
    assert house.permit(cancel).request.url == "https://api.exp.example/v1/exports/exp_1/cancel"


def test_a_cancellation_that_waits_for_approval_has_it_by_the_decision(house: House) -> None:
    text = CONTRACT.replace(
        'path = "/exports/{id}/cancel"\napproval = "none"',
        'path = "/exports/{id}/cancel"\napproval = "per_call"',
    )
    asking = holding(text=text)
    job = house.new(held=asking)
    house.settle(house.permit(job, asking), Said(202, {"id": "exp_1", "state": "queued"}))
    house.due(job)
    house.settle(house.permit(job, asking), Said(200, {"id": "exp_1", "state": "paused"}))
    draft = house.draft_follow_up(house.read(job), Kind.CANCEL)
    waits = replace(draft, approve_within=HOUR)
    asked = house.write(lambda c: house.ledger.accept(c, waits, asking))
    assert isinstance(asked, Accepted)
    assert asked.operation.waiting_for is WaitingFor.APPROVAL
    case = house.case(job)
    assert case is not None
    found = house.cancel_by_decision(house.read(job), case)
    assert isinstance(found, Decided)
    assert found.follow_up is not None
    assert (found.follow_up.id, found.follow_up.approve_by) == (asked.operation.id, None)
    assert house.case(asked.operation) is None
    assert house.permit(asked.operation, asking).request.url.endswith("/cancel")
    assert house.verified() is None


def test_a_cancellation_that_waits_for_a_decision_of_its_own_is_not_asked_for_again(
    house: House,
) -> None:
    job = house.waiting()
    house.poll(job, Said(200, {"id": "exp_1", "state": "paused"}))
    first = house.follow_up(job, Kind.CANCEL)
    assert house.send(first, LIMITED).state is State.ESCALATED
    case = house.case(job)
    assert case is not None
    found = house.cancel_by_decision(job, case)
    assert isinstance(found, Refusal)
    assert first.id in found.message
    assert house.case(job) == case, "it is still to be decided"


def test_a_second_decision_to_cancel_joins_the_first_cancellation(house: House) -> None:
    job = house.waiting()
    house.poll(job, Said(200, {"id": "exp_1", "state": "paused"}))
    first = house.follow_up(job, Kind.CANCEL)
    case = house.case(job)
    assert case is not None
    found = house.cancel_by_decision(job, case)
    assert isinstance(found, Decided)
    assert found.follow_up is not None
    assert found.follow_up.id == first.id
