"""Transaction 2: every outcome is stored, decisions are fenced, evidence never is."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from tests.storage.house import (
    ACCEPTED,
    BUSY,
    DENIED,
    DONE,
    FAILED,
    LIMITED,
    LOST,
    MINUTE,
    RUNNING,
    UNSENT,
    House,
    Said,
    rebuilt,
    used,
)

from forbear.rules.model import Certainty, DelaySource, Kind, Notice, Option, Reason, State
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts

LEASE = 45_000

pytestmark = pytest.mark.postgresql


@pytest.mark.requirement("A02", "W25")
def test_the_terminal_answer_is_stored_with_the_state_that_it_makes(house: House) -> None:
    op = house.waiting()
    after = house.poll(op, DONE)
    assert (after.state, after.may_proceed, after.validated) == (State.SUCCEEDED, True, True)
    attempt = house.attempts(op)[-1]
    assert (attempt.outcome, attempt.status, attempt.certainty) == ("answered", 200, "applied")
    assert (after.next_at, after.lease_owner) == (None, None)
    [stored] = house.rows(sa.select(attempts.c.body).where(attempts.c.id == attempt.id))
    assert json.loads(stored["body"])["state"] == "done"


@pytest.mark.requirement("D01")
@pytest.mark.parametrize("said", [DONE, RUNNING, LOST, UNSENT, LIMITED, DENIED], ids=str)
def test_an_outcome_that_is_stored_twice_counts_once(house: House, said: Said) -> None:
    op = house.waiting()
    house.due(op)
    reserved = house.permit(op)
    first = house.settle(reserved, said)
    events = house.codes(op)
    assert house.settle(reserved, said) == first
    assert house.codes(op) == events
    assert house.sql("SELECT count(*) FROM cases")[0][0] <= 1


@pytest.mark.requirement("W13", "W14")
@pytest.mark.parametrize("said", [LOST, BUSY, UNSENT], ids=["lost", "503", "not sent"])
def test_a_poll_that_told_nothing_costs_a_request_and_a_transport_failure(
    house: House, said: Said
) -> None:
    op = house.waiting()
    after = house.poll(op, said)
    assert (after.status_requests.used, after.transport_failures.used) == (1, 1)
    assert after.state is State.WAITING
    for _ in range(2):
        after = house.poll(op, said)
    assert after.state is State.ESCALATED
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.TRANSPORT_BUDGET_EXHAUSTED


@pytest.mark.requirement("W17", "R16")
def test_only_a_proven_not_sent_moves_from_attempts_to_transport_failures(house: House) -> None:
    op = house.new()
    reserved = house.permit(op)
    assert (reserved.operation.attempts.used, reserved.operation.transport_failures.used) == (1, 0)
    after = house.settle(reserved, UNSENT)
    assert (after.attempts.used, after.transport_failures.used) == (0, 1)
    assert (after.state, after.wait.used, after.certainty) == (
        State.DELAYED,
        0,
        Certainty.NOT_SENT,
    )


@pytest.mark.requirement("R24")
def test_a_lost_submission_asks_a_person_and_is_never_sent_again(house: House) -> None:
    op = house.new()
    after = house.send(op, LOST)
    assert (after.state, after.certainty) == (State.ESCALATED, Certainty.MAYBE_APPLIED)
    assert house.codes(op)[-2:] == ["no_answer", "reconciliation_required"]
    case = house.case(op)
    assert case is not None
    assert case.reason is Reason.UNCLEAR_WRITE
    house.clock.advance(24 * 60 * MINUTE)
    assert house.reserve(op) is False
    assert len(house.attempts(op)) == 1


@pytest.mark.requirement("A01")
def test_the_decision_to_wait_is_recorded_with_all_that_led_to_it(house: House) -> None:
    op = house.waiting()
    house.poll(op, Said(503, {}, (("Retry-After", "60"),)))
    event = house.events(op)[-1]
    after = house.read(op)
    assert after.next_at is not None
    assert event.body["http"] == 503
    assert event.body["meaning"] == "server_error"
    assert event.body["event"] == "observed"
    assert event.body["retry_after_ms"] == 60_000
    told = event.body["set"]
    assert told["next_at"] == after.next_at >= house.clock.now().wall + 60_000
    assert told["delay_source"] == DelaySource.PROVIDER_RETRY_AFTER
    assert told["transport_failures_used"] == 1
    reserved = house.events(op)[-2]
    assert reserved.body["set"]["status_requests_used"] == 1


@pytest.mark.requirement("A01")
def test_a_poll_that_saw_the_job_is_recorded_with_its_state(house: House) -> None:
    op = house.waiting()
    house.poll(op, RUNNING)
    body = house.events(op)[-1].body
    assert (body["http"], body["state"], body["meaning"]) == (200, "running", "waiting")
    known = rebuilt(house.events(op))
    assert known["delay_source"] == "local_backoff"
    assert known["next_at"] == house.read(op).next_at
    assert (known["deadline_at"], known["status_requests_used"]) == (op.deadline_at, 1)


@pytest.mark.requirement("A02")
def test_a_429_moves_its_scope_in_the_transaction_that_plans_the_retry(house: House) -> None:
    op = house.waiting()
    house.due(op)
    reserved = house.permit(op)
    house.settle(reserved, LIMITED)
    ((at, source),) = house.sql("SELECT next_allowed_at, source FROM scopes")
    assert (at, source) == (house.clock.now().wall + 30_000, "rate_limited")
    assert house.read(op).rate_limited.used == 1


# --- the fence ------------------------------------------------------------------------------


def lost(house: House) -> tuple[str, Reserved]:
    """A submission whose owner stalled so long that it was closed as unknown."""
    op = house.new()
    reserved = house.permit(op)
    house.clock.advance(LEASE)
    assert house.reserve(op) is True
    return op.id, reserved


@pytest.mark.requirement("D02")
def test_a_late_answer_is_kept_in_its_own_row_and_decides_nothing(house: House) -> None:
    op, reserved = lost(house)
    before = house.read(op)
    after = house.settle(reserved, ACCEPTED)
    assert (after.state, after.fence, used(after)) == (before.state, before.fence, used(before))
    assert after.provider_job is None
    assert Notice.LATE_EVIDENCE in after.notices
    (attempt,) = house.attempts(op)
    assert (attempt.outcome, attempt.status, attempt.late) == ("answered", 202, True)
    assert house.codes(op)[-1] == "late_evidence"
    assert house.events(op)[-1].body["take"] == {"id": "exp_1"}


@pytest.mark.requirement("D02")
def test_late_evidence_reaches_the_open_case_as_another_revision(house: House) -> None:
    op, reserved = lost(house)
    case = house.case(op)
    assert case is not None
    house.settle(reserved, ACCEPTED)
    after = house.case(op)
    assert after is not None
    assert (after.id, after.revision) == (case.id, case.revision + 1)
    assert "exp_1" in after.text
    refused = house.decide(op, Option.CONFIRM_NOT_DONE, revision=case.revision)
    assert getattr(refused, "code", None) == "not_allowed_in_state"
    house.decide(op, Option.CONFIRM_DONE, reference="exp_1")
    assert house.read(op).provider_job == "exp_1"


@pytest.mark.requirement("D02")
def test_a_late_proof_of_not_sent_is_evidence_too(house: House) -> None:
    op, reserved = lost(house)
    house.settle(reserved, Said(None, sent=False, fault="too_late"))
    (attempt,) = house.attempts(op)
    assert (attempt.outcome, attempt.certainty, attempt.late) == ("not_sent", "not_sent", True)
    case = house.case(op)
    assert case is not None
    assert "never sent" in case.text
    assert house.read(op).attempts.used == 1


@pytest.mark.requirement("D02", "D01")
def test_late_evidence_is_stored_once(house: House) -> None:
    op, reserved = lost(house)
    first = house.settle(reserved, ACCEPTED)
    assert house.settle(reserved, DONE) == first
    assert house.codes(op).count("late_evidence") == 1


@pytest.mark.requirement("D02")
def test_a_late_terminal_answer_of_a_poll_is_judged(house: House) -> None:
    op = house.waiting()
    house.due(op)
    stalled = house.permit(op)
    house.clock.advance(LEASE)
    assert house.reserve(op) is True
    assert house.settle(stalled, DONE).state is State.SUCCEEDED
    assert house.codes(op)[-1] == "late_evidence"


@pytest.mark.requirement("D02")
def test_a_late_answer_never_ends_an_operation_under_an_open_attempt_of_another(
    house: House,
) -> None:
    op = house.waiting()
    house.due(op)
    stalled = house.permit(op)
    house.clock.advance(LEASE)
    house.reserve(op)
    house.due(op)
    with house.neighbour() as other:
        newer = other.permit(op)
        after = house.settle(stalled, FAILED)
        assert (after.state, after.lease_owner) == (State.WAITING, "own_b")
        assert other.settle(newer, FAILED).state is State.FAILED


def test_a_late_answer_to_what_has_ended_leaves_a_notice_and_the_state(house: House) -> None:
    op, reserved = lost(house)
    house.decide(op, Option.ABANDON)
    after = house.settle(reserved, ACCEPTED)
    assert after.state is State.DISCARDED
    assert Notice.LATE_EVIDENCE in after.notices


# --- one watcher per job --------------------------------------------------------------------


def test_another_submission_that_returns_a_watched_job_stops_as_a_mismatch(house: House) -> None:
    first = house.waiting("a", "exp_1")
    second = house.new("b")
    assert house.send(second, ACCEPTED).state is State.ESCALATED
    case = house.case(second)
    assert case is not None
    assert case.reason is Reason.BINDING_MISMATCH
    assert house.read(first).state is State.WAITING


def test_the_same_intent_that_returns_a_watched_job_is_superseded_by_its_watcher(
    house: House,
) -> None:
    first = house.waiting("a", "exp_1")
    second = house.new("b")
    house.sql("DROP TRIGGER identity_stays")
    house.sql("UPDATE operations SET intent = 'same'")
    after = house.send(second, ACCEPTED)
    assert (after.state, after.superseded_by) == (State.DISCARDED, first.id)
    assert house.case(second) is None


# --- ends asked for while a request is out --------------------------------------------------


@pytest.mark.requirement("D02")
def test_an_end_that_is_asked_for_while_a_request_is_out_is_left_as_an_intent(
    house: House,
) -> None:
    op = house.new()
    reserved = house.permit(op)
    with house.neighbour() as other:
        left = other.drop(op)
    assert (left.state, left.pending) == (State.SENDING, {"end": "no longer wanted"})
    after = house.settle(reserved, ACCEPTED)
    assert (after.state, after.pending) == (State.DISCARDED, None)
    assert (after.provider_job, after.certainty) == ("exp_1", Certainty.APPLIED)
    assert Notice.MAY_STILL_RUN in after.notices


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (UNSENT, State.DISCARDED),
        (LIMITED, State.DISCARDED),
        (Said(422, {}), State.FAILED),
        (LOST, State.ESCALATED),
    ],
    ids=["not sent", "429", "422", "lost"],
)
def test_after_an_end_was_asked_for_nothing_is_retried_and_doubt_still_asks(
    house: House, said: Said, state: State
) -> None:
    op = house.new()
    reserved = house.permit(op)
    house.drop(op)
    after = house.settle(reserved, said)
    asks = state is State.ESCALATED  # the wish stays, for what a person decides
    assert (after.state, after.pending) == (state, {"end": "no longer wanted"} if asks else None)
    assert (house.case(op) is not None) is (state is State.ESCALATED)
    if said is LIMITED:
        blocked = house.clock.now().wall + 30_000
        assert house.sql("SELECT next_allowed_at FROM scopes") == [(blocked,)]


def test_an_end_asked_for_before_the_owner_died_is_applied_by_the_next_claim(
    house: House,
) -> None:
    op = house.waiting()
    house.due(op)
    house.permit(op)
    house.drop(op)
    house.liveness.release()
    with house.neighbour() as other:
        assert other.reserve(op) is True
    after = house.read(op)
    assert (after.state, after.pending) == (State.DISCARDED, None)
    assert Notice.MAY_STILL_RUN in after.notices


# --- results and cancellations --------------------------------------------------------------


def test_a_cancellation_that_the_provider_took_makes_the_next_check_due(house: House) -> None:
    job = house.waiting()
    house.clock.advance(1_000)
    cancel = house.follow_up(job, Kind.CANCEL)
    assert house.send(cancel, Said(202, {})).state is State.SUCCEEDED
    assert house.read(job).next_at == house.clock.now().wall
    assert house.codes(job)[-1] == "check_moved"


@pytest.mark.requirement("W26")
def test_a_result_is_an_operation_of_its_own_with_a_record_of_its_own(house: House) -> None:
    job = house.waiting()
    done = house.poll(job, DONE)
    result = house.follow_up(done, Kind.RESULT)
    assert house.ask_follow_up(done, Kind.RESULT).operation.id == result.id
    reserved = house.permit(result)
    assert reserved.request.url == "https://api.exp.example/v1/f"
    kept = {"name": "result", "bytes": 2}
    after = house.settle(reserved, Said(200, {}), kept)
    assert (after.state, after.result) == (State.SUCCEEDED, kept)
    assert house.read(job) == done


# --- whatever a provider says ---------------------------------------------------------------


@pytest.mark.requirement("D09")
@pytest.mark.parametrize(
    "said",
    [
        Said(200, {"id": "exp_1", "state": "\ud800 lone"}),
        Said(200, {"id": "exp_1", "state": "nul \x00 and \u202e"}),
        Said(200, {"id": "exp_1", "state": "running"}, (("Retry-After", "9" * 60),)),
        Said(200, {"id": "exp_1", "state": 10**40}),
        Said(200, {"id": "\ud800", "state": "running"}),
        Said(200, {"id": "exp_1", "state": "failed", "error": {"code": "\ud83d", "message": "x"}}),
        Said(200, ["\udfff"] * 3),
    ],
    ids=["surrogate", "controls", "long wait", "huge number", "id", "code", "list"],
)
def test_no_answer_of_a_provider_is_too_odd_to_be_stored(house: House, said: Said) -> None:
    op = house.waiting()
    after = house.poll(op, said)
    assert house.attempts(op)[-1].outcome == "answered"
    assert after.next_at is not None or after.final or house.case(op) is not None
    assert house.verified() is None


def test_an_odd_result_is_stored_with_its_event(house: House) -> None:
    done = house.poll(house.waiting(), DONE)
    result = house.follow_up(done, Kind.RESULT)
    after = house.settle(house.permit(result), Said(200, {}), {"inline": "\ud800"})
    assert after.state is State.SUCCEEDED
    assert house.verified() is None
