"""What follows from each answer, for every meaning, step and class (behaviour.md, sections 3-6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.operations import (
    CONTRACT,
    DEADLINE,
    HOUR,
    JOB,
    MIDDLE,
    MINUTE,
    NOW,
    SECOND,
    after,
    hinted,
    sending,
    told,
    waiting,
)

from forbear.rules.conclusions import strongest
from forbear.rules.contract import Contract
from forbear.rules.lifecycle import Event, advance
from forbear.rules.model import (
    Budget,
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
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, after_attempt

M, E = Meaning, Event
READ = RequestClass.READ
KEYED = RequestClass.IDEMPOTENT_WRITE
UNCERTAIN = RequestClass.UNCERTAIN_WRITE


PLAIN = replace(CONTRACT, jobs={"export": JOB})
"""Neither key nor lookup; an idempotent write is one by its nature."""


def judge(
    op: Operation, signal: Signal, *, contract: Contract = PLAIN, u: float = MIDDLE
) -> Verdict:
    return after_attempt(op, contract, contract.jobs["export"], signal, NOW, u)


def carried(op: Operation, verdict: Verdict) -> Operation:
    """The operation after the verdict, as the ledger would store it."""
    changed: dict[str, Any] = dict(verdict.changes)
    return replace(op, **changed, state=advance(op.state, verdict.event))


# --- every meaning of a status answer -------------------------------------------------------

STATUS: dict[Meaning, Event | Reason] = {
    M.WAITING: E.OBSERVED,
    M.NOT_YET_VISIBLE: E.OBSERVED,
    M.RATE_LIMITED: E.OBSERVED,
    M.NOT_SENT: E.OBSERVED,
    M.NO_ANSWER: E.OBSERVED,
    M.SERVER_ERROR: E.OBSERVED,
    M.RETRY_LATER: E.OBSERVED,
    M.UNCLEAR: E.OBSERVED,
    M.IN_FLIGHT: E.OBSERVED,
    M.ALREADY_TERMINAL: E.OBSERVED,
    M.SUCCEEDED: E.SUCCEEDED,
    M.DONE: E.SUCCEEDED,
    M.EMPTY: E.SUCCEEDED,
    M.FAILED: E.FAILED,
    M.CANCELLED: E.CANCELLED,
    M.EXPIRED: E.EXPIRED,
    M.AUTH: Reason.AUTHORIZATION_DENIED,
    M.MISMATCH: Reason.BINDING_MISMATCH,
    M.CONTRADICTORY: Reason.CONTRADICTORY_RESPONSE,
    M.UNKNOWN_STATE: Reason.UNKNOWN_STATE,
    M.INVALID: Reason.INVALID_RESPONSE,
    M.BLOCKED: Reason.BLOCKED_STATE,
    M.NOT_FOUND: Reason.NOT_FOUND,
    M.GONE: Reason.NOT_FOUND,
    M.QUOTA_EXHAUSTED: Reason.QUOTA_EXHAUSTED,
    M.REDIRECT: Reason.INTEGRATION_FAILURE,
    M.REJECTED: Reason.INTEGRATION_FAILURE,
    M.CONFLICT: Reason.INTEGRATION_FAILURE,
    M.KEY_REUSED: Reason.INTEGRATION_FAILURE,
    M.ALREADY_EXISTS: Reason.INTEGRATION_FAILURE,
    M.ACCEPTED: Reason.INTEGRATION_FAILURE,
    M.UNTRACKED: Reason.INTEGRATION_FAILURE,
    M.INCOMPLETE: Reason.INTEGRATION_FAILURE,
}
COSTS = {
    M.WAITING: "parsed",
    M.NOT_YET_VISIBLE: "nothing",
    M.RATE_LIMITED: "rate_limited",
    **dict.fromkeys(
        (
            M.NOT_SENT,
            M.NO_ANSWER,
            M.SERVER_ERROR,
            M.RETRY_LATER,
            M.UNCLEAR,
            M.IN_FLIGHT,
            M.ALREADY_TERMINAL,
        ),
        "transport_failures",
    ),
}


@pytest.mark.requirement("W01", "W14", "W16")
@pytest.mark.parametrize(
    ("meaning", "request_class"), list(product(Meaning, RequestClass)), ids=str
)
def test_a_status_answer_waits_settles_or_asks(
    meaning: Meaning, request_class: RequestClass
) -> None:
    op = waiting(request_class=request_class)
    verdict = judge(op, told(meaning))
    expected = STATUS[meaning]
    if isinstance(expected, Reason):
        assert (verdict.event, verdict.reason) == (E.STOPPED, expected)
        assert verdict.changes["next_at"] is None
    else:
        assert (verdict.event, verdict.reason) == (expected, None)
    after_it = carried(op, verdict)
    assert after_it.status_requests == op.status_requests, "the permit has counted it already"
    assert after_it.attempts == op.attempts
    assert after_it.certainty is op.certainty
    spent = COSTS.get(meaning, "nothing")
    assert after_it.parsed == op.parsed + (spent == "parsed")
    assert after_it.rate_limited.used == int(spent == "rate_limited")
    assert after_it.transport_failures.used == int(spent == "transport_failures")
    if expected is E.OBSERVED:
        assert after_it.next_at is not None
        assert NOW < after_it.next_at <= DEADLINE
        assert after_it.waiting_for is WaitingFor.PROVIDER


# --- every meaning of the answer to an action's own request ---------------------------------

OBSERVATIONS = frozenset({M.WAITING, M.BLOCKED, M.UNKNOWN_STATE, M.NOT_YET_VISIBLE})
"""Meanings that only a status answer has."""

ByClass = tuple[Event | Reason, Event | Reason, Event | Reason]


def for_all(expected: Event | Reason) -> ByClass:
    return expected, expected, expected


WITHOUT_EFFECT: dict[Meaning, ByClass] = {
    # meaning: (read, write that is idempotent by nature, uncertain write); no key, no lookup
    M.NOT_SENT: (E.POSTPONED, E.POSTPONED, E.POSTPONED),
    M.RATE_LIMITED: (E.POSTPONED, E.POSTPONED, Reason.RATE_LIMITED),
    M.QUOTA_EXHAUSTED: for_all(Reason.QUOTA_EXHAUSTED),
    M.AUTH: for_all(Reason.AUTHORIZATION_DENIED),
    M.REJECTED: for_all(E.FAILED),
    M.CONFLICT: for_all(Reason.CONFLICT),
    M.KEY_REUSED: for_all(Reason.CONFLICT),
    M.ALREADY_EXISTS: for_all(Reason.CONFLICT),
    M.REDIRECT: for_all(Reason.INTEGRATION_FAILURE),
    M.MISMATCH: for_all(Reason.BINDING_MISMATCH),
    M.SERVER_ERROR: (E.POSTPONED, E.MADE_UNCLEAR, Reason.UNCLEAR_WRITE),
    M.NO_ANSWER: (E.POSTPONED, E.MADE_UNCLEAR, Reason.UNCLEAR_WRITE),
    M.UNCLEAR: (E.POSTPONED, E.MADE_UNCLEAR, Reason.UNCLEAR_WRITE),
    M.IN_FLIGHT: (E.POSTPONED, E.MADE_UNCLEAR, Reason.UNCLEAR_WRITE),
    M.INVALID: (Reason.INVALID_RESPONSE, E.MADE_UNCLEAR, Reason.UNCLEAR_WRITE),
    M.INCOMPLETE: (Reason.INVALID_RESPONSE, Reason.UNCLEAR_WRITE, Reason.UNCLEAR_WRITE),
    M.RETRY_LATER: (E.POSTPONED, E.POSTPONED, Reason.UNCLEAR_WRITE),
}
OWN: dict[Kind, dict[Meaning, Event | Reason]] = {
    Kind.JOB: {
        M.ACCEPTED: E.ACCEPTED,
        M.SUCCEEDED: E.SUCCEEDED,
        M.DONE: E.SUCCEEDED,
        M.EMPTY: E.SUCCEEDED,
        M.FAILED: E.FAILED,
        M.CANCELLED: E.CANCELLED,
        M.EXPIRED: E.EXPIRED,
        M.CONTRADICTORY: Reason.CONTRADICTORY_RESPONSE,
        M.UNTRACKED: Reason.ACCEPTED_UNTRACKED,
        M.NOT_FOUND: E.FAILED,
        M.GONE: E.FAILED,
        M.ALREADY_TERMINAL: Reason.CONFLICT,
    },
    Kind.RESULT: {
        M.DONE: E.SUCCEEDED,
        M.EMPTY: E.SUCCEEDED,
        M.NOT_FOUND: E.EXPIRED,
        M.GONE: E.EXPIRED,
        M.ALREADY_TERMINAL: Reason.CONFLICT,
    },
    Kind.CANCEL: {
        M.DONE: E.SUCCEEDED,
        M.EMPTY: E.SUCCEEDED,
        M.NOT_FOUND: E.FAILED,
        M.GONE: E.FAILED,
        M.ALREADY_TERMINAL: E.SUCCEEDED,
    },
}
COLUMNS = (READ, KEYED, UNCERTAIN)
CASES = [
    (kind, request_class, meaning, expected)
    for kind, classes in (
        (Kind.JOB, COLUMNS),
        (Kind.RESULT, (READ,)),
        (Kind.CANCEL, (KEYED, UNCERTAIN)),
    )
    for request_class in classes
    for meaning, expected in {
        **{
            m: row[(READ, KEYED, UNCERTAIN).index(request_class)]
            for m, row in WITHOUT_EFFECT.items()
        },
        **OWN[kind],
    }.items()
]


def answered(meaning: Meaning, request_class: RequestClass) -> Signal:
    """As `signals.read` says it: `retry_later` proves nothing for an uncertain write alone."""
    if meaning is M.RETRY_LATER and request_class is not UNCERTAIN:
        return told(meaning, certainty=Certainty.NOT_APPLIED)
    return told(meaning)


@pytest.mark.requirement("R15", "R16", "W23", "W28")
@pytest.mark.parametrize(("kind", "request_class", "meaning", "expected"), CASES, ids=str)
def test_an_answer_to_the_action_itself(
    kind: Kind, request_class: RequestClass, meaning: Meaning, expected: Event | Reason
) -> None:
    op = sending(kind, request_class)
    signal = answered(meaning, request_class)
    verdict = judge(op, signal)
    if isinstance(expected, Reason):
        assert (verdict.event, verdict.reason) == (E.STOPPED, expected)
    else:
        assert (verdict.event, verdict.reason) == (expected, None)
    after_it = carried(op, verdict)
    assert after_it.certainty is signal.certainty
    unsent = meaning is M.NOT_SENT
    assert after_it.attempts.used == (0 if unsent else 1)
    assert after_it.transport_failures.used == int(unsent)
    assert after_it.rate_limited.used == int(meaning is M.RATE_LIMITED)
    assert after_it.sent is not unsent
    waits = expected in (E.POSTPONED, E.MADE_UNCLEAR) and not unsent
    assert (after_it.wait.used > 0) is waits
    assert verdict.notice is (
        Notice.PROVIDER_FAILURE
        if meaning is M.FAILED
        else Notice.ENDED_AT_PROVIDER
        if meaning in (M.CANCELLED, M.EXPIRED)
        else None
    )


@pytest.mark.parametrize("request_class", [KEYED, UNCERTAIN])
@pytest.mark.parametrize("meaning", sorted(OBSERVATIONS))
@pytest.mark.parametrize("kind", [Kind.JOB, Kind.CANCEL])
def test_an_answer_that_makes_no_sense_never_repeats_a_write(
    kind: Kind, meaning: Meaning, request_class: RequestClass
) -> None:
    verdict = judge(sending(kind, request_class), told(meaning))
    assert (verdict.event, verdict.reason) == (E.STOPPED, Reason.UNCLEAR_WRITE)


def test_every_meaning_is_in_the_tables() -> None:
    assert set(STATUS) == set(Meaning)
    assert set(WITHOUT_EFFECT) | set(OWN[Kind.JOB]) | OBSERVATIONS == set(Meaning)


def test_what_is_known_of_an_effect_only_grows() -> None:
    order = [
        Certainty.NOT_SENT,
        Certainty.NOT_APPLIED,
        Certainty.MAYBE_APPLIED,
        Certainty.APPLIED,
    ]
    for one, other in product(order, order):
        assert strongest(one, other) is order[max(order.index(one), order.index(other))]


@pytest.mark.requirement("R16")
def test_a_later_refusal_does_not_undo_that_an_earlier_try_may_have_worked() -> None:
    op = sending(Kind.CANCEL, KEYED, certainty=Certainty.MAYBE_APPLIED, attempts=Budget(2, 3))
    verdict = judge(op, told(M.NOT_SENT))
    assert verdict.changes["certainty"] is Certainty.MAYBE_APPLIED


# --- what is kept ---------------------------------------------------------------------------


@pytest.mark.requirement("W05")
def test_a_failed_job_is_final_with_the_providers_own_words() -> None:
    verdict = judge(waiting(), told(M.FAILED))
    assert verdict.event is E.FAILED
    assert verdict.reason is None
    assert verdict.notice is Notice.PROVIDER_FAILURE
    expected = {"code": "E7", "message": "no such set", "http_status": 200}
    assert verdict.changes["failure"] == expected


@pytest.mark.requirement("W06")
@pytest.mark.parametrize("meaning", [M.CANCELLED, M.EXPIRED])
def test_a_job_ended_at_the_provider_is_final_and_plans_nothing(meaning: Meaning) -> None:
    op = waiting()
    after_it = carried(op, judge(op, told(meaning)))
    assert after_it.final
    assert after_it.next_at is None
    assert after_it.terminal_seen


@pytest.mark.requirement("W04", "W16")
def test_a_success_is_validated_and_keeps_what_it_names() -> None:
    take = {"id": "exp_71c", "result.url": "https://files.exp.example/71c"}
    op = waiting()
    after_it = carried(op, judge(op, told(M.SUCCEEDED, take=take)))
    assert after_it.may_proceed
    assert after_it.validated
    assert after_it.take["result.url"] == "https://files.exp.example/71c"


@pytest.mark.requirement("W24")
def test_a_server_error_keeps_status_time_and_request_id() -> None:
    verdict = judge(waiting(), told(M.SERVER_ERROR, provider_request_id="req_1"))
    kept = {
        name: verdict.changes[name] for name in ("http_status", "http_at", "provider_request_id")
    }
    assert kept == {"http_status": 503, "http_at": NOW, "provider_request_id": "req_1"}


@pytest.mark.requirement("W29")
def test_progress_is_kept_and_extends_nothing() -> None:
    op = waiting()
    after_it = carried(op, judge(op, told(M.WAITING, progress="40")))
    assert (after_it.progress, after_it.progress_at) == ("40", NOW)
    assert after_it.deadline_at == op.deadline_at
    assert after_it.status_requests == op.status_requests
    again = judge(after_it, told(M.WAITING, progress="40"))
    assert "progress_at" not in again.changes, "no news is no progress"


@pytest.mark.requirement("W28")
def test_a_submission_that_is_over_at_once_needs_no_status_request() -> None:
    op = sending()
    verdict = judge(op, told(M.SUCCEEDED))
    assert carried(op, verdict).may_proceed
    assert "next_at" in verdict.changes
    assert verdict.changes["next_at"] is None


@pytest.mark.requirement("W12")
def test_acceptance_leaves_every_budget_as_it_was_stored() -> None:
    op = sending()
    after_it = carried(op, judge(op, told(M.ACCEPTED)))
    assert after_it.state is State.WAITING
    assert after_it.step is Step.STATUS
    assert after_it.provider_job == "exp_71c"
    for name in ("deadline_at", "status_requests", "transport_failures", "rate_limited"):
        assert getattr(after_it, name) == getattr(op, name)
    assert after_it.expected_at == NOW + 10 * MINUTE


@pytest.mark.requirement("W30")
def test_no_estimate_or_usual_duration_moves_a_stated_deadline() -> None:
    for op, meaning in ((sending(), M.ACCEPTED), (waiting(), M.WAITING)):
        verdict = judge(op, told(meaning, estimate=HOUR, expiry_at=NOW + 9 * HOUR))
        assert carried(op, verdict).deadline_at == DEADLINE


@pytest.mark.requirement("W23")
@pytest.mark.parametrize("status", [401, 403])
def test_only_a_401_blocks_the_credential(status: int) -> None:
    for op in (waiting(), sending(), sending(Kind.CANCEL, UNCERTAIN)):
        verdict = judge(op, told(M.AUTH, status=status))
        assert verdict.reason is Reason.AUTHORIZATION_DENIED
        assert verdict.block_credential is (status == 401)


@pytest.mark.requirement("W23")
def test_a_401_of_a_request_without_the_credential_does_not_block_it() -> None:
    """The result of this contract is fetched with `auth = false` from another host."""
    verdict = judge(sending(Kind.RESULT, READ), told(M.AUTH))
    assert verdict.reason is Reason.AUTHORIZATION_DENIED
    assert not verdict.block_credential


@pytest.mark.requirement("W23")
def test_a_401_of_a_status_address_with_its_own_secret_blocks_only_itself() -> None:
    job = replace(JOB, status=replace(JOB.status, secret="env:READ_ONLY"))
    contract = replace(CONTRACT, jobs={"export": job})
    assert not judge(waiting(), told(M.AUTH), contract=contract).block_credential


# --- contradictions -------------------------------------------------------------------------

WAITING_FOR_FIELDS = replace(
    CONTRACT,
    jobs={"export": replace(JOB, success=replace(JOB.success, when_missing="wait"))},
)


@pytest.mark.requirement("W07")
def test_a_success_without_its_fields_is_waited_for_where_the_contract_says_so() -> None:
    op = waiting()
    verdict = judge(op, told(M.CONTRADICTORY), contract=WAITING_FOR_FIELDS)
    after_it = carried(op, verdict)
    assert (verdict.event, after_it.state) == (E.OBSERVED, State.WAITING)
    assert after_it.terminal_seen
    assert after_it.parsed == op.parsed + 1


@pytest.mark.requirement("W07")
def test_the_last_allowed_request_ends_also_that_wait() -> None:
    op = waiting(status_requests=Budget(12, 12))
    verdict = judge(op, told(M.CONTRADICTORY), contract=WAITING_FOR_FIELDS)
    assert verdict.reason is Reason.REQUEST_BUDGET_EXHAUSTED


@pytest.mark.requirement("W07", "W28")
def test_a_contradictory_submission_is_judged_like_a_poll() -> None:
    op = sending()
    asked = judge(op, told(M.CONTRADICTORY))
    assert asked.reason is Reason.CONTRADICTORY_RESPONSE
    assert carried(op, asked).accepted_at == NOW
    waited = judge(op, told(M.CONTRADICTORY), contract=WAITING_FOR_FIELDS)
    assert (waited.event, waited.changes["step"]) == (E.ACCEPTED, Step.STATUS)


@pytest.mark.requirement("W07", "W21")
@pytest.mark.parametrize("contract", [CONTRACT, WAITING_FOR_FIELDS], ids=["escalate", "wait"])
def test_a_contradictory_submission_without_a_handle_is_no_job_that_we_hold(
    contract: Contract,
) -> None:
    op = sending()
    verdict = judge(op, told(M.CONTRADICTORY, take={}), contract=contract)
    assert verdict.reason is Reason.CONTRADICTORY_RESPONSE
    assert carried(op, verdict).accepted_at is None


@pytest.mark.requirement("W07")
def test_waiting_past_the_providers_own_expiry_asks() -> None:
    op = waiting(provider_expiry_at=NOW - 1)
    assert judge(op, told(M.WAITING)).reason is Reason.PAST_PROVIDER_EXPIRY
    stated_now = judge(waiting(), told(M.WAITING, expiry_at=NOW))
    assert stated_now.reason is Reason.PAST_PROVIDER_EXPIRY
    assert judge(waiting(), told(M.WAITING, expiry_at=NOW + 1)).event is E.OBSERVED


def test_who_let_a_job_go_on_past_its_expiry_is_not_asked_at_every_check() -> None:
    op = waiting(provider_expiry_at=NOW - MINUTE, observed_at=NOW - 30 * SECOND)
    assert judge(op, told(M.WAITING, expiry_at=NOW - MINUTE)).event is E.OBSERVED


def test_no_answer_says_nothing_about_the_providers_expiry() -> None:
    verdict = judge(waiting(provider_expiry_at=NOW - 1), told(M.NO_ANSWER))
    assert verdict.event is E.OBSERVED


@pytest.mark.requirement("W22")
def test_gone_is_expired_only_after_an_end_was_seen() -> None:
    assert judge(waiting(), told(M.GONE)).reason is Reason.NOT_FOUND
    verdict = judge(waiting(terminal_seen=True), told(M.GONE))
    assert (verdict.event, verdict.notice) == (E.EXPIRED, Notice.ENDED_AT_PROVIDER)


def test_a_refused_address_stops_any_step_and_counts_no_attempt() -> None:
    refused = told(M.NOT_SENT, fault="egress_refused")
    assert judge(waiting(), refused).reason is Reason.EGRESS_REFUSED
    verdict = judge(sending(), refused)
    assert verdict.reason is Reason.EGRESS_REFUSED
    assert verdict.changes["attempts"] == Budget(0, 1)
    assert verdict.changes["certainty"] is Certainty.NOT_SENT


# --- totals ---------------------------------------------------------------------------------

LIMITS = [
    ("rate_limited", M.RATE_LIMITED, Reason.RATE_LIMITED),
    ("transport_failures", M.NO_ANSWER, Reason.TRANSPORT_BUDGET_EXHAUSTED),
    ("transport_failures", M.SERVER_ERROR, Reason.TRANSPORT_BUDGET_EXHAUSTED),
    ("transport_failures", M.NOT_SENT, Reason.TRANSPORT_BUDGET_EXHAUSTED),
]


@pytest.mark.requirement("W14", "W20")
@pytest.mark.parametrize(("budget", "meaning", "reason"), LIMITS)
def test_a_maximum_of_three_allows_three_and_the_third_ends_it(
    budget: str, meaning: Meaning, reason: Reason
) -> None:
    op = waiting()
    for used in (1, 2):
        verdict = judge(op, told(meaning))
        assert verdict.event is E.OBSERVED
        # A good answer between them resets nothing.
        op = carried(op, verdict)
        op = carried(op, judge(op, told(M.WAITING)))
        assert getattr(op, budget) == Budget(used, 3)
    verdict = judge(op, told(meaning))
    assert (verdict.event, verdict.reason) == (E.STOPPED, reason)
    assert verdict.changes[budget] == Budget(3, 3)


@pytest.mark.requirement("W16")
def test_the_last_allowed_request_without_an_end_asks_at_once() -> None:
    op = waiting(status_requests=Budget(12, 12))
    verdict = judge(op, told(M.WAITING))
    assert (verdict.event, verdict.reason) == (E.STOPPED, Reason.REQUEST_BUDGET_EXHAUSTED)
    assert verdict.changes["next_at"] is None
    assert judge(op, told(M.SUCCEEDED)).event is E.SUCCEEDED


SPENT: dict[str, Any] = {
    "status_requests": Budget(12, 12),
    "transport_failures": Budget(2, 3),
    "rate_limited": Budget(2, 3),
}
LATE: dict[str, Any] = {**SPENT, "deadline_at": NOW, "provider_expiry_at": NOW - 1}


@pytest.mark.requirement("W16", "W27")
@pytest.mark.parametrize(
    ("op", "meaning", "reason"),
    [
        (waiting(**LATE), M.AUTH, Reason.AUTHORIZATION_DENIED),
        (waiting(**LATE), M.MISMATCH, Reason.BINDING_MISMATCH),
        (waiting(**LATE), M.SUCCEEDED, None),
        (waiting(**LATE), M.FAILED, None),
        (waiting(**LATE), M.CONTRADICTORY, Reason.CONTRADICTORY_RESPONSE),
        (waiting(**LATE), M.UNKNOWN_STATE, Reason.UNKNOWN_STATE),
        (waiting(**LATE), M.INVALID, Reason.INVALID_RESPONSE),
        (waiting(**LATE), M.BLOCKED, Reason.BLOCKED_STATE),
        (waiting(**LATE), M.RATE_LIMITED, Reason.DEADLINE_EXCEEDED),
        (waiting(**LATE), M.SERVER_ERROR, Reason.DEADLINE_EXCEEDED),
        (waiting(**LATE), M.WAITING, Reason.DEADLINE_EXCEEDED),
        (waiting(**SPENT, useful_until=NOW), M.WAITING, Reason.USEFUL_UNTIL_PASSED),
        (waiting(**SPENT, provider_expiry_at=NOW), M.WAITING, Reason.PAST_PROVIDER_EXPIRY),
        (waiting(**SPENT), M.RATE_LIMITED, Reason.RATE_LIMITED),
        (waiting(**SPENT), M.SERVER_ERROR, Reason.TRANSPORT_BUDGET_EXHAUSTED),
        (waiting(**SPENT), M.WAITING, Reason.REQUEST_BUDGET_EXHAUSTED),
    ],
)
def test_the_order_within_one_answer(
    op: Operation, meaning: Meaning, reason: Reason | None
) -> None:
    assert judge(op, told(meaning)).reason is reason


@pytest.mark.requirement("W27")
@pytest.mark.parametrize(
    ("useful_until", "reason"),
    [
        (NOW - 1, Reason.USEFUL_UNTIL_PASSED),
        (NOW, Reason.DEADLINE_EXCEEDED),
        (NOW + HOUR, Reason.DEADLINE_EXCEEDED),
        (None, Reason.DEADLINE_EXCEEDED),
    ],
)
def test_whichever_end_comes_first_is_named(useful_until: int | None, reason: Reason) -> None:
    op = waiting(deadline_at=NOW, useful_until=useful_until)
    assert judge(op, told(M.WAITING)).reason is reason


# --- Retry-After, scopes --------------------------------------------------------------------


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("meaning", "reason"),
    [
        (M.RATE_LIMITED, Reason.RATE_LIMITED),
        (M.SERVER_ERROR, Reason.TRANSPORT_BUDGET_EXHAUSTED),
        (M.WAITING, Reason.DEADLINE_EXCEEDED),
        (M.NOT_YET_VISIBLE, Reason.DEADLINE_EXCEEDED),
    ],
)
@pytest.mark.parametrize("wait", [40 * MINUTE, 41 * MINUTE, 10**15], ids=["at", "past", "absurd"])
def test_a_wait_beyond_the_deadline_asks_at_once(
    meaning: Meaning, reason: Reason, wait: int
) -> None:
    verdict = judge(waiting(), told(meaning, retry_after=after(wait)))
    assert (verdict.event, verdict.reason) == (E.STOPPED, reason)
    assert verdict.changes["next_at"] is None
    assert verdict.changes["not_before"] == NOW + wait


@pytest.mark.requirement("W19", "W27")
def test_a_wait_beyond_the_useful_time_names_it() -> None:
    op = waiting(useful_until=NOW + MINUTE)
    verdict = judge(op, told(M.WAITING, retry_after=after(2 * MINUTE)))
    assert verdict.reason is Reason.USEFUL_UNTIL_PASSED


@pytest.mark.requirement("W19")
def test_an_acceptance_that_asks_for_more_time_than_there_is_keeps_the_job() -> None:
    op = sending()
    verdict = judge(op, told(M.ACCEPTED, retry_after=after(HOUR)))
    assert verdict.reason is Reason.DEADLINE_EXCEEDED
    assert carried(op, verdict).accepted_at == NOW
    assert carried(op, verdict).provider_job == "exp_71c"


@pytest.mark.requirement("W20")
@given(u=st.floats(0, 1, exclude_max=True), parsed=st.integers(0, 80))
def test_429_without_a_hint_waits_sharply_longer_and_moves_the_scope_as_far(
    u: float, parsed: int
) -> None:
    op = waiting(parsed=parsed)
    verdict = judge(op, told(M.RATE_LIMITED), u=u)
    raw = min(5 * SECOND << min(parsed, 30), max(2 * MINUTE, 40 * MINUTE // 10))
    least = max(4 * raw, 60 * SECOND)
    next_at = verdict.changes["next_at"]
    assert isinstance(next_at, int)
    assert NOW + least <= next_at <= NOW + least * 5 // 4
    assert verdict.scope_until == next_at
    assert verdict.changes["delay_source"] is DelaySource.LOCAL_BACKOFF


def test_429_moves_the_scope_by_what_the_provider_asked_and_503_does_not() -> None:
    asked = after(30 * SECOND)
    assert judge(waiting(), told(M.RATE_LIMITED, retry_after=asked)).scope_until == NOW + 30_000
    assert judge(waiting(), told(M.SERVER_ERROR, retry_after=asked)).scope_until is None
    cancel = sending(Kind.CANCEL, UNCERTAIN)
    assert judge(cancel, told(M.RATE_LIMITED, retry_after=asked)).scope_until == NOW + 30_000


def test_a_429_that_ends_the_wait_moves_the_scope_all_the_same() -> None:
    verdict = judge(waiting(rate_limited=Budget(2, 3)), told(M.RATE_LIMITED))
    assert verdict.reason is Reason.RATE_LIMITED
    assert verdict.scope_until is not None
    assert verdict.scope_until >= NOW + 60 * SECOND


def test_a_hint_on_a_429_is_a_hint() -> None:
    verdict = judge(waiting(), told(M.RATE_LIMITED, hints=hinted(20 * SECOND)), u=0.0)
    assert verdict.changes["next_at"] == NOW + 20 * SECOND
    assert verdict.scope_until == NOW + 20 * SECOND


def test_a_quota_answer_moves_the_scope_whatever_was_asked() -> None:
    asked = after(5 * MINUTE)
    for op in (waiting(), sending(Kind.CANCEL, KEYED), sending()):
        assert judge(op, told(M.QUOTA_EXHAUSTED, retry_after=asked)).scope_until == NOW + 300_000


def test_a_quota_answer_without_a_time_moves_the_scope_as_a_429_does() -> None:
    for op in (waiting(), sending(Kind.CANCEL, KEYED), sending()):
        until = judge(op, told(M.QUOTA_EXHAUSTED)).scope_until
        assert until is not None
        assert until >= NOW + 5 * SECOND


# --- retries of submissions, results and cancellations --------------------------------------


def test_a_known_quota_reset_is_waited_for_where_an_attempt_is_left() -> None:
    op = sending(Kind.CANCEL, KEYED)
    verdict = judge(op, told(M.QUOTA_EXHAUSTED, retry_after=after(5 * MINUTE)), u=0.0)
    after_it = carried(op, verdict)
    assert (after_it.state, after_it.next_at) == (State.DELAYED, NOW + 5 * MINUTE)
    assert after_it.wait.used == 0
    spent = sending(Kind.JOB, UNCERTAIN)
    asks = judge(spent, told(M.QUOTA_EXHAUSTED, retry_after=after(5 * MINUTE)))
    assert asks.reason is Reason.QUOTA_EXHAUSTED


@pytest.mark.parametrize("wait", [13 * HOUR, 39 * MINUTE + 31 * SECOND])
def test_a_quota_reset_beyond_the_bounds_asks(wait: int) -> None:
    deadline = NOW + (48 * HOUR if wait > HOUR else 40 * MINUTE)
    op = sending(Kind.CANCEL, KEYED, deadline_at=deadline)
    verdict = judge(op, told(M.QUOTA_EXHAUSTED, retry_after=after(wait)))
    assert verdict.reason is Reason.QUOTA_EXHAUSTED


@pytest.mark.requirement("R16")
@pytest.mark.parametrize("request_class", RequestClass)
def test_unsent_requests_cost_transport_and_the_third_ends_it(request_class: RequestClass) -> None:
    op = sending(Kind.JOB, request_class)
    for used in (1, 2):
        verdict = judge(op, told(M.NOT_SENT))
        assert verdict.event is E.POSTPONED
        op = carried(op, verdict)
        assert (op.attempts.used, op.transport_failures.used, op.wait.used) == (0, used, 0)
        op = replace(op, state=State.SENDING, attempts=replace(op.attempts, used=1))
    verdict = judge(op, told(M.NOT_SENT))
    if request_class is READ:
        assert verdict.event is E.FAILED
    else:
        assert verdict.reason is Reason.TRANSPORT_BUDGET_EXHAUSTED


def test_an_unsent_cancellation_is_dropped_with_why_when_nothing_is_left() -> None:
    op = sending(Kind.CANCEL, UNCERTAIN, transport_failures=Budget(4, 5))
    verdict = judge(op, told(M.NOT_SENT))
    assert verdict.event is E.DISCARDED
    assert verdict.changes["failure"] == {"message": "never sent: dns"}


@pytest.mark.parametrize(
    ("useful_until", "reason"),
    [(None, Reason.DEADLINE_EXCEEDED), (NOW + 30_100, Reason.USEFUL_UNTIL_PASSED)],
)
def test_an_unsent_submission_without_time_for_another_try_names_the_end(
    useful_until: int | None, reason: Reason
) -> None:
    op = sending(deadline_at=NOW + 30_200, useful_until=useful_until)
    assert judge(op, told(M.NOT_SENT)).reason is reason


def test_a_read_ends_with_the_last_attempt_and_says_how() -> None:
    op = sending(Kind.RESULT, READ, attempts=Budget(4, 4))
    verdict = judge(op, told(M.NO_ANSWER))
    assert verdict.event is E.FAILED
    assert verdict.changes["failure"] == {"message": "no answer: closed"}
    assert verdict.story["why"] == Reason.TRANSPORT_BUDGET_EXHAUSTED


@pytest.mark.requirement("R27", "R30")
@pytest.mark.parametrize(
    ("signal", "at"),
    [
        (told(M.SERVER_ERROR, status=503), NOW + 60 * SECOND),
        (told(M.SERVER_ERROR, status=503, retry_after=after(59 * SECOND)), NOW + 60 * SECOND),
        (told(M.SERVER_ERROR, status=503, retry_after=after(61 * SECOND)), NOW + 61 * SECOND),
        (told(M.RATE_LIMITED, status=429, retry_after=after(400 * SECOND)), NOW + 400 * SECOND),
        (told(M.NO_ANSWER), NOW + 60 * SECOND),
    ],
)
def test_a_read_that_ran_out_states_when_asking_again_makes_sense(signal: Signal, at: int) -> None:
    op = sending(Kind.CALL, READ, attempts=Budget(4, 4))
    verdict = judge(op, signal)
    assert verdict.event is E.FAILED
    failure = verdict.changes["failure"]
    assert isinstance(failure, dict)
    assert failure["retry_at"] == at


@pytest.mark.requirement("R30")
def test_an_earlier_minimum_of_the_provider_still_counts_when_a_read_runs_out() -> None:
    op = sending(Kind.CALL, READ, attempts=Budget(4, 4), not_before=NOW + 90 * SECOND)
    failure = judge(op, told(M.NO_ANSWER)).changes["failure"]
    assert failure == {"message": "no answer: closed", "retry_at": NOW + 90 * SECOND}


def test_waited_time_is_a_budget_of_its_own() -> None:
    op = sending(Kind.RESULT, READ, wait=Budget(80 * SECOND, 90 * SECOND))
    enough = told(M.SERVER_ERROR, retry_after=after(10 * SECOND))
    verdict = judge(op, enough)
    assert verdict.event is E.POSTPONED
    # There is no room for jitter, and a provider's minimum is not shortened either.
    assert verdict.changes["wait"] == Budget(90 * SECOND, 90 * SECOND)
    assert judge(op, told(M.SERVER_ERROR, retry_after=after(11 * SECOND))).event is E.FAILED


@pytest.mark.parametrize(
    ("status", "event"), [(500, E.POSTPONED), (504, E.POSTPONED), (501, E.FAILED)]
)
def test_a_read_is_tried_again_after_the_statuses_of_its_class(status: int, event: Event) -> None:
    op = sending(Kind.RESULT, READ)
    assert judge(op, told(M.SERVER_ERROR, status=status)).event is event


@given(
    wait=st.integers(1, 30 * MINUTE),
    u=st.floats(0, 1, exclude_max=True),
    meaning=st.sampled_from([M.SERVER_ERROR, M.RATE_LIMITED, M.RETRY_LATER]),
)
def test_no_retry_comes_before_the_providers_minimum(wait: int, u: float, meaning: Meaning) -> None:
    op = sending(Kind.RESULT, READ, wait=Budget(0, HOUR))
    verdict = judge(op, told(meaning, retry_after=after(wait)), u=u)
    assert verdict.event is E.POSTPONED
    next_at = verdict.changes["next_at"]
    assert isinstance(next_at, int)
    assert next_at >= NOW + wait


@given(u=st.floats(0, 1, exclude_max=True))
def test_a_429_that_says_how_long_is_taken_at_its_word(u: float) -> None:
    """The sharp rise is for a 429 without a hint."""
    signal = told(M.RATE_LIMITED, retry_after=after(30 * SECOND))
    for op in (sending(Kind.JOB, KEYED), sending(Kind.CANCEL, KEYED), sending(Kind.JOB, READ)):
        verdict = judge(op, signal, u=u)
        assert verdict.changes["delay_source"] is DelaySource.PROVIDER_RETRY_AFTER
        delay = verdict.changes["delay"]
        assert isinstance(delay, int)
        assert 30 * SECOND <= delay <= 33 * SECOND
    poll = judge(waiting(parsed=0), signal, u=u)
    assert poll.changes["delay_source"] is DelaySource.PROVIDER_RETRY_AFTER


def test_a_job_submission_waits_its_own_least_time_after_a_429() -> None:
    op = sending(Kind.JOB, KEYED)
    assert judge(op, told(M.RATE_LIMITED), u=0.0).changes["delay"] == 60 * SECOND
    cancel = sending(Kind.CANCEL, KEYED)
    assert judge(cancel, told(M.RATE_LIMITED), u=0.0).changes["delay"] == 5 * SECOND


# --- a single permit of a decision ----------------------------------------------------------

ONCE: dict[str, Any] = {**LATE, "once": str(Reason.REQUEST_BUDGET_EXHAUSTED)}


@pytest.mark.parametrize(
    "meaning", [M.WAITING, M.RATE_LIMITED, M.SERVER_ERROR, M.NO_ANSWER, M.NOT_YET_VISIBLE]
)
def test_a_single_check_that_brought_no_end_asks_again_for_the_same_reason(
    meaning: Meaning,
) -> None:
    verdict = judge(waiting(**ONCE), told(meaning))
    assert (verdict.event, verdict.reason) == (E.STOPPED, Reason.REQUEST_BUDGET_EXHAUSTED)
    assert verdict.changes["once"] is None


@pytest.mark.parametrize("meaning", [M.SUCCEEDED, M.FAILED, M.CANCELLED, M.EXPIRED])
def test_a_single_check_that_brought_an_end_settles(meaning: Meaning) -> None:
    verdict = judge(waiting(**ONCE), told(meaning))
    assert verdict.reason is None
    assert verdict.event is STATUS[meaning]


@pytest.mark.requirement("W23")
def test_a_refused_credential_is_not_hidden_behind_the_old_reason() -> None:
    assert judge(waiting(**ONCE), told(M.AUTH)).reason is Reason.AUTHORIZATION_DENIED


@pytest.mark.parametrize("meaning", [M.NOT_SENT, M.RATE_LIMITED, M.QUOTA_EXHAUSTED])
def test_a_single_submission_is_not_followed_by_another(meaning: Meaning) -> None:
    once = str(Reason.QUOTA_EXHAUSTED)
    op = sending(Kind.JOB, KEYED, once=once)
    verdict = judge(op, told(meaning, retry_after=after(MINUTE)))
    assert (verdict.event, verdict.reason) == (E.STOPPED, Reason.QUOTA_EXHAUSTED)


# --- field cases ----------------------------------------------------------------------------


def play(
    answers: list[Signal], contract: Contract = PLAIN, **changes: Any
) -> tuple[Operation, list[Verdict]]:
    """A waiting job that gets these answers in turn, until it no longer waits."""
    op, verdicts = waiting(status_requests=Budget(0, 12), **changes), list[Verdict]()
    for signal in answers:
        op = replace(
            op, status_requests=replace(op.status_requests, used=op.status_requests.used + 1)
        )
        verdicts.append(judge(op, signal, contract=contract))
        op = carried(op, verdicts[-1])
        if op.state is not State.WAITING:
            break
    return op, verdicts


RUNNING = told(M.WAITING)

FIELD: list[tuple[str, list[Signal], State, Reason | None, int]] = [
    # The field case lets an unknown word go on; behaviour.md stops and asks, at once (W03).
    ("PO-01", [told(M.UNKNOWN_STATE), told(M.SUCCEEDED)], State.ESCALATED, Reason.UNKNOWN_STATE, 1),
    ("PO-02", [told(M.UNKNOWN_STATE)] * 5, State.ESCALATED, Reason.UNKNOWN_STATE, 1),
    (
        "PO-03",
        [told(M.CONTRADICTORY, missing=("/response",))],
        State.ESCALATED,
        Reason.CONTRADICTORY_RESPONSE,
        1,
    ),
    ("PO-05-declared", [told(M.FAILED)] * 2, State.FAILED, None, 1),
    ("PO-05-undeclared", [told(M.UNKNOWN_STATE)] * 2, State.ESCALATED, Reason.UNKNOWN_STATE, 1),
    ("PO-06-declared", [RUNNING, RUNNING, RUNNING, told(M.SUCCEEDED)], State.SUCCEEDED, None, 4),
    (
        "PO-06-undeclared",
        [RUNNING, told(M.UNKNOWN_STATE), RUNNING],
        State.ESCALATED,
        Reason.UNKNOWN_STATE,
        2,
    ),
    (
        "PO-11",
        [told(M.NOT_YET_VISIBLE), told(M.NOT_YET_VISIBLE), told(M.SUCCEEDED)],
        State.SUCCEEDED,
        None,
        3,
    ),
    (
        "PO-15",
        [
            RUNNING,
            told(M.SERVER_ERROR, status=502),
            told(M.NO_ANSWER),
            RUNNING,
            told(M.SUCCEEDED),
        ],
        State.SUCCEEDED,
        None,
        5,
    ),
    (
        "PO-17",
        [RUNNING, RUNNING, told(M.WAITING, state="stopping"), told(M.SUCCEEDED)],
        State.SUCCEEDED,
        None,
        4,
    ),
]


@pytest.mark.parametrize(
    ("answers", "state", "reason", "requests"),
    [pytest.param(*case[1:], id=case[0]) for case in FIELD],
)
def test_a_job_in_the_field(
    answers: list[Signal], state: State, reason: Reason | None, requests: int
) -> None:
    op, verdicts = play(answers)
    assert (op.state, verdicts[-1].reason) == (state, reason)
    assert op.status_requests.used == len(verdicts) == requests
    assert op.attempts.used == 1, "never a second submission"


@pytest.mark.requirement("W16")
@pytest.mark.parametrize("field_case", ["PO-04"])
def test_a_job_that_runs_for_ever_is_asked_about_after_its_budget(field_case: str) -> None:
    op, verdicts = play([RUNNING] * 20)
    assert (len(verdicts), op.status_requests.used) == (12, 12), field_case
    assert verdicts[-1].reason is Reason.REQUEST_BUDGET_EXHAUSTED
    assert (op.provider_job, op.certainty) == ("exp_71c", Certainty.APPLIED)


@pytest.mark.parametrize("field_case", ["PO-09"])
def test_a_submission_answered_with_its_end_is_not_polled(field_case: str) -> None:
    op = sending()
    after_it = carried(op, judge(op, told(M.SUCCEEDED)))
    assert (after_it.state, after_it.next_at) == (State.SUCCEEDED, None), field_case
    assert after_it.status_requests.used == 0


@pytest.mark.parametrize("status", [404, 410], ids=["PO-12-404", "PO-12-410"])
def test_a_result_past_its_retention_ends_at_once(status: int) -> None:
    op = sending(Kind.RESULT, READ)
    verdict = judge(op, told(M.NOT_FOUND if status == 404 else M.GONE, status=status))
    assert verdict.event is E.EXPIRED
    assert carried(op, verdict).attempts.left == 3, "nothing is tried again"


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        pytest.param("poll", waiting(deadline_at=NOW + 31 * SECOND), id="RA-04-poll"),
        pytest.param(
            "read", sending(Kind.RESULT, READ, deadline_at=NOW + 31 * SECOND), id="RA-04-read"
        ),
    ],
)
def test_an_hour_asked_for_inside_half_a_minute_ends_now(kind: str, op: Operation) -> None:
    verdict = judge(op, told(M.SERVER_ERROR, retry_after=after(HOUR)))
    assert verdict.event is (E.STOPPED if kind == "poll" else E.FAILED)
    assert verdict.changes["next_at"] is None
    assert verdict.changes["not_before"] == NOW + HOUR


@pytest.mark.parametrize(
    "wait", [9_999_999_999_000, 10**15], ids=["RA-05-ten-digits", "RA-05-25-nines"]
)
def test_an_absurd_wait_is_taken_at_its_word(wait: int) -> None:
    verdict = judge(waiting(), told(M.RATE_LIMITED, retry_after=after(wait)))
    assert verdict.reason is Reason.RATE_LIMITED
    not_before = verdict.changes["not_before"]
    assert isinstance(not_before, int)
    assert NOW < not_before < 2**63


@pytest.mark.parametrize("field_case", ["RA-07"])
def test_unreadable_waits_never_make_a_tight_loop(field_case: str) -> None:
    odd = told(M.RATE_LIMITED, anomalies=("Retry-After is unreadable",))
    op, delays = waiting(), list[int]()
    while op.state is State.WAITING:
        verdict = judge(op, odd, u=0.0)
        op = carried(op, verdict)
        if op.next_at is not None:
            delays.append(op.next_at - NOW)
    assert len(delays) == 2, f"{field_case}: the third ends it"
    assert min(delays) >= 60 * SECOND


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(waiting(), id="RA-10-poll"),
        pytest.param(sending(Kind.RESULT, READ), id="RA-10-read"),
    ],
)
@given(u=st.floats(0, 1, exclude_max=True))
def test_a_wait_in_the_past_is_no_leave_to_repeat_at_once(op: Operation, u: float) -> None:
    verdict = judge(op, told(M.SERVER_ERROR, retry_after=after(0)), u=u)
    delay = verdict.changes["delay"]
    assert isinstance(delay, int)
    assert delay >= SECOND
    assert verdict.changes["delay_source"] is not DelaySource.PROVIDER_RETRY_AFTER


@pytest.mark.parametrize(
    ("signal", "least", "reason"),
    [
        pytest.param({"retry_after": after(120_000)}, 120_000, None, id="RA-12-date"),
        pytest.param({"retry_after": after(86_400_000)}, 0, Reason.RATE_LIMITED, id="RA-12-day"),
        pytest.param({"anomalies": ("soon",)}, 60_000, None, id="RA-12-soon"),
        pytest.param({"retry_after": after(61_000)}, 61_000, None, id="RA-13"),
    ],
)
@given(u=st.floats(0, 1, exclude_max=True))
def test_a_stated_wait_is_kept_or_given_up_and_never_cut(
    signal: dict[str, Any], least: int, reason: Reason | None, u: float
) -> None:
    verdict = judge(waiting(), told(M.RATE_LIMITED, **signal), u=u)
    assert verdict.reason is reason
    if reason is None:
        delay = verdict.changes["delay"]
        assert isinstance(delay, int)
        assert delay >= least
