"""What a decision grants, option by option (behaviour.md, sections 6 and 7)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.operations import (
    CONTRACT,
    DEADLINE,
    FINDABLE,
    HOUR,
    JOB,
    MINUTE,
    NOW,
    SECOND,
    queued,
    sending,
    told,
    waiting,
)

from forbear.rules.admission import Admit, Hold, admit, overdue
from forbear.rules.contract import Idempotency, Job, Scope
from forbear.rules.decisions import Wish, discard, grant, objection
from forbear.rules.escalations import OPTIONS, TREATABLE, offers
from forbear.rules.facts import facts_of
from forbear.rules.lifecycle import Event, advance
from forbear.rules.model import (
    Budget,
    Certainty,
    JobClass,
    Kind,
    Notice,
    Operation,
    Option,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.pacing import ScopeState, Shared
from forbear.rules.reconciliation import Search
from forbear.rules.signals import Meaning
from forbear.rules.verdicts import Verdict, after_attempt

CASE = "esc_h2n8c4"
DAY = 24 * HOUR
STOPPED: dict[str, Any] = {"state": State.ESCALATED, "next_at": None, "waiting_for": None}

HELD = waiting(**STOPPED)
"""A job with a handle that was stopped."""
UNSENT = queued(**STOPPED, sent_at=NOW - MINUTE, attempts=Budget(0, 1))
"""A submission that never left."""
REFUSED = sending(**STOPPED, certainty=Certainty.NOT_APPLIED, sent=True, answered=True)
"""A submission that the provider answered with 429."""
UNCLEAR = sending(**STOPPED, certainty=Certainty.MAYBE_APPLIED, sent=True)
"""A submission whose answer was lost."""
LOST_READ = sending(Kind.RESULT, RequestClass.READ, **STOPPED, certainty=Certainty.MAYBE_APPLIED)
"""A result fetch whose answer was lost."""


def decide(
    op: Operation, option: Option, reason: Reason = Reason.DEADLINE_EXCEEDED, **wish: Any
) -> Operation:
    """The operation after the decision, as the ledger would store it."""
    verdict = grant(op, reason, Wish(option, **wish), CASE, JOB, NOW)
    return carried(op, verdict)


KEYED = replace(FINDABLE, idempotency=Idempotency("header", "Idempotency-Key", window=HOUR))


def carried(op: Operation, verdict: Verdict) -> Operation:
    changes: dict[str, Any] = dict(verdict.changes)
    return replace(op, **changes, state=advance(op.state, verdict.event))


def admitted(op: Operation, now: int = NOW, job: Job = JOB) -> Admit:
    found = asked(op, now, job)
    assert isinstance(found, Admit)
    return found


SHARED = [Shared("key", Scope("account", "account"), ScopeState())]


def asked(op: Operation, now: int, job: Job) -> Admit | Hold | Verdict:
    return admit(op, job, SHARED, now, credential_ready=True)


BUDGETS = (
    "status_requests",
    "transport_failures",
    "rate_limited",
    "attempts",
    "wait",
    "lookups",
    "extensions",
)


# --- the step that stopped goes on ----------------------------------------------------------

RESUMING = [
    Option.EXTEND,
    Option.HOLD,
    Option.CHECK_AGAIN,
    Option.REBIND,
    Option.RETRY_WITH_NEW_CREDENTIAL,
]


@pytest.mark.parametrize("option", [*RESUMING, Option.TREAT_AS, Option.CANCEL_AT_PROVIDER])
def test_a_job_with_a_handle_is_observed_again_and_never_sent(option: Option) -> None:
    after_it = decide(HELD, option, treat_as="waiting")
    assert (after_it.state, after_it.step) == (State.WAITING, Step.STATUS)
    assert after_it.waiting_for is WaitingFor.PROVIDER
    assert after_it.authorisation == CASE


@pytest.mark.parametrize("option", RESUMING)
@pytest.mark.parametrize("op", [UNSENT, REFUSED], ids=["unsent", "refused"])
def test_a_submission_without_effect_is_sent_again(op: Operation, option: Option) -> None:
    after_it = decide(op, option)
    assert (after_it.state, after_it.step) == (State.DELAYED, Step.SEND)
    assert after_it.attempts.left == 1
    due = after_it.next_at
    assert due is not None
    assert admitted(after_it, due).step is Step.SEND


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("option", RESUMING)
def test_what_may_have_been_applied_is_never_sent_again(option: Option) -> None:
    with pytest.raises(ValueError, match="never resumed by sending"):
        decide(UNCLEAR, option)


@pytest.mark.parametrize("option", RESUMING)
def test_each_exhausted_maximum_of_a_submission_grows_by_one(option: Option) -> None:
    spent = replace(REFUSED, transport_failures=Budget(3, 3), rate_limited=Budget(2, 3))
    after_it = decide(spent, option)
    assert (after_it.attempts, after_it.transport_failures) == (Budget(1, 2), Budget(3, 4))
    assert after_it.rate_limited == Budget(2, 4 if option is Option.EXTEND else 3)


USED = st.builds(Budget, used=st.integers(0, 20), max=st.integers(0, 12))


@given(
    op=st.sampled_from([HELD, UNSENT, REFUSED]),
    option=st.sampled_from(sorted(set(Option))),
    budgets=st.tuples(*(USED for _ in BUDGETS)),
)
def test_used_counters_never_fall_and_maxima_never_shrink(
    op: Operation, option: Option, budgets: tuple[Budget, ...]
) -> None:
    changed: dict[str, Any] = dict(zip(BUDGETS, budgets, strict=True))
    op = replace(op, **changed)
    if option in (Option.TREAT_AS, Option.CANCEL_AT_PROVIDER):
        op = replace(op, accepted_at=NOW)
    verdict = grant(op, Reason.NOT_FOUND, Wish(option, reference="x"), CASE, JOB, NOW)
    for name, before in zip(BUDGETS, budgets, strict=True):
        after_it = verdict.changes.get(name, before)
        assert isinstance(after_it, Budget)
        assert after_it.used == before.used + (name == "extensions" and option is Option.EXTEND)
        assert after_it.max >= before.max
    deadline = verdict.changes.get("deadline_at", op.deadline_at)
    assert isinstance(deadline, int)
    assert deadline >= op.deadline_at or option is Option.APPROVE


# --- extend ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "asked", "granted"),
    [
        (NOW - HOUR, {}, NOW + 15 * MINUTE),
        (NOW + MINUTE, {}, NOW + 16 * MINUTE),
        (NOW, {"extend_by": 5 * MINUTE}, NOW + 5 * MINUTE),
        (NOW, {"extend_by": 5 * HOUR}, NOW + 15 * MINUTE),
    ],
)
def test_an_extension_runs_from_the_later_of_now_and_the_deadline(
    deadline: int, asked: dict[str, Any], granted: int
) -> None:
    op = replace(HELD, deadline_at=deadline)
    assert decide(op, Option.EXTEND, **asked).deadline_at == granted


@pytest.mark.parametrize(
    ("asked", "most"), [({}, 16), ({"requests": 2}, 14), ({"requests": 100}, 16)]
)
def test_an_extension_grants_what_the_contract_allows(asked: dict[str, Any], most: int) -> None:
    op = replace(HELD, status_requests=Budget(12, 12))
    after_it = decide(op, Option.EXTEND, **asked)
    assert after_it.status_requests == Budget(12, most)
    assert after_it.transport_failures == Budget(0, 4)
    assert after_it.rate_limited == Budget(0, 4)
    assert after_it.extensions == Budget(1, 1)


def test_an_extension_can_be_used_after_single_checks_went_past_the_maximum() -> None:
    op = replace(HELD, status_requests=Budget(20, 12))
    assert decide(op, Option.EXTEND).status_requests.left == 4


@pytest.mark.requirement("W27")
@pytest.mark.parametrize(
    ("useful", "granted"),
    [(None, None), (NOW - 1, NOW + 15 * MINUTE), (NOW + HOUR, NOW + HOUR)],
)
def test_a_set_useful_time_becomes_at_least_the_new_deadline(
    useful: int | None, granted: int | None
) -> None:
    op = replace(HELD, deadline_at=NOW, useful_until=useful)
    assert decide(op, Option.EXTEND).useful_until == granted


@pytest.mark.requirement("W07")
def test_an_extension_past_the_providers_expiry_is_not_stopped_by_the_next_answer() -> None:
    op = waiting(provider_expiry_at=NOW - 1)
    stopped = after_attempt(op, CONTRACT, JOB, told(Meaning.WAITING), NOW, 0.5)
    assert stopped.reason is Reason.PAST_PROVIDER_EXPIRY
    going_on = decide(carried(op, stopped), Option.EXTEND, Reason.PAST_PROVIDER_EXPIRY)
    again = told(Meaning.WAITING, expiry_at=NOW - 1)
    assert after_attempt(going_on, CONTRACT, JOB, again, NOW, 0.5).event is Event.OBSERVED


# --- hold, check_again ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("not_before", "until", "at"),
    [
        (None, None, NOW + 15 * MINUTE),
        (NOW + HOUR, None, NOW + HOUR),
        (NOW - 1, None, NOW + 15 * MINUTE),
        (NOW + 2 * DAY, None, NOW + 15 * MINUTE),
        (NOW + HOUR, NOW + 3 * HOUR, NOW + 3 * HOUR),
    ],
)
def test_a_hold_is_one_request_at_its_time(
    not_before: int | None, until: int | None, at: int
) -> None:
    op = replace(HELD, not_before=not_before)
    after_it = decide(op, Option.HOLD, Reason.RATE_LIMITED, until=until)
    assert (after_it.next_at, after_it.once) == (at, "rate_limited")


def test_a_single_check_grants_nothing_but_itself() -> None:
    op = replace(HELD, status_requests=Budget(12, 12), deadline_at=NOW - HOUR)
    after_it = decide(op, Option.CHECK_AGAIN, Reason.REQUEST_BUDGET_EXHAUSTED)
    changed = {f.name for f in fields(op) if getattr(op, f.name) != getattr(after_it, f.name)}
    assert changed == {
        "state",
        "once",
        "once_until",
        "next_at",
        "delay_source",
        "authorisation",
        "waiting_for",
    }
    assert admitted(after_it).step is Step.STATUS


def test_a_single_check_is_consumed_by_its_answer() -> None:
    op = replace(HELD, status_requests=Budget(12, 12))
    looking = decide(op, Option.CHECK_AGAIN, Reason.REQUEST_BUDGET_EXHAUSTED)
    verdict = after_attempt(looking, CONTRACT, JOB, told(Meaning.WAITING), NOW, 0.5)
    after_it = carried(looking, verdict)
    assert (after_it.state, after_it.once) == (State.ESCALATED, None)
    assert verdict.reason is Reason.REQUEST_BUDGET_EXHAUSTED


# --- treat_as, rebind -----------------------------------------------------------------------


@pytest.mark.parametrize("word", TREATABLE)
def test_a_word_is_classed_for_this_operation_inside_its_deadline(word: str) -> None:
    op = replace(HELD, provider_state="paused", status_requests=Budget(12, 12))
    after_it = decide(op, Option.TREAT_AS, Reason.UNKNOWN_STATE, treat_as=word)
    assert after_it.treat == {"paused": word}
    assert after_it.deadline_at == op.deadline_at
    assert facts_of(after_it, CONTRACT).treat == {"paused": JobClass(word)}
    assert admitted(after_it).step is Step.STATUS, "the step that stopped can go on"


def test_no_word_is_ever_classed_as_a_success() -> None:
    assert "succeeded" not in TREATABLE
    assert objection(Wish(Option.TREAT_AS, treat_as="succeeded"), NOW) is not None
    forged = replace(HELD, treat={"paused": "succeeded"})
    assert JobClass.SUCCEEDED not in facts_of(forged, CONTRACT).treat.values()


@pytest.mark.requirement("W08")
def test_rebinding_takes_the_binding_in_force() -> None:
    after_it = decide(replace(HELD, binding="old"), Option.REBIND, Reason.BINDING_MISMATCH)
    assert after_it.binding == JOB.binding
    assert after_it.next_at == NOW


# --- cancel at the provider -----------------------------------------------------------------


def test_a_cancellation_leaves_two_checks_to_see_it_happen() -> None:
    op = replace(HELD, status_requests=Budget(12, 12), deadline_at=NOW - 1, useful_until=NOW - 1)
    after_it = decide(op, Option.CANCEL_AT_PROVIDER)
    assert after_it.status_requests.left == 2
    due = after_it.next_at
    assert due == NOW + 5 * SECOND, "after the cancellation, not before it"
    assert after_it.deadline_at == due + 15 * MINUTE
    assert after_it.useful_until == due + 15 * MINUTE
    assert admitted(after_it, due).step is Step.STATUS


def test_a_cancellation_inside_the_deadline_moves_no_deadline() -> None:
    after_it = decide(HELD, Option.CANCEL_AT_PROVIDER, Reason.UNKNOWN_STATE)
    assert after_it.deadline_at == DEADLINE


# --- confirmations --------------------------------------------------------------------------


def test_a_job_confirmed_as_done_is_watched_by_that_id() -> None:
    after_it = decide(UNCLEAR, Option.CONFIRM_DONE, Reason.UNCLEAR_WRITE, reference="exp_99")
    assert (after_it.state, after_it.step) == (State.WAITING, Step.STATUS)
    assert (after_it.provider_job, after_it.take["id"]) == ("exp_99", "exp_99")
    assert (after_it.certainty, after_it.accepted_at) == (Certainty.APPLIED, NOW)
    assert after_it.attempts == UNCLEAR.attempts


def test_a_write_confirmed_as_done_has_succeeded_without_validation() -> None:
    op = replace(UNCLEAR, kind=Kind.CANCEL)
    after_it = decide(op, Option.CONFIRM_DONE, Reason.UNCLEAR_WRITE, reference="c_1")
    assert (after_it.state, after_it.validated) == (State.SUCCEEDED, False)
    assert after_it.certainty is Certainty.APPLIED


def test_confirmed_as_not_done_is_a_failure_that_blocks_nothing() -> None:
    after_it = decide(UNCLEAR, Option.CONFIRM_NOT_DONE, Reason.UNCLEAR_WRITE)
    assert (after_it.state, after_it.certainty) == (State.FAILED, Certainty.NOT_APPLIED)


@pytest.mark.requirement("W07")
def test_an_unvalidated_result_is_marked_as_such() -> None:
    op = replace(HELD, terminal_seen=True)
    after_it = decide(op, Option.USE_UNVALIDATED_RESULT, Reason.CONTRADICTORY_RESPONSE)
    assert (after_it.state, after_it.validated) == (State.SUCCEEDED, False)


# --- lookups and resends --------------------------------------------------------------------

OVER: dict[str, Any] = {
    "deadline_at": NOW - MINUTE,
    "useful_until": NOW - HOUR,
    "lookups": Budget(6, 6),
    "attempts": Budget(3, 3),
    "request_class": RequestClass.IDEMPOTENT_WRITE,
    "wire_key": "k-1",
    "sent_at": NOW - MINUTE,
}


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("changes", [{}, OVER], ids=["in-time", "after-the-deadline"])
@pytest.mark.parametrize("reason", [Reason.UNCLEAR_WRITE, Reason.RECONCILIATION_CONFLICT])
def test_reconciling_grants_three_lookups_and_time_for_them(
    changes: dict[str, Any], reason: Reason
) -> None:
    op = replace(UNCLEAR, **changes)
    after_it = decide(op, Option.RECONCILE, reason)
    assert (after_it.state, after_it.step) == (State.UNCLEAR, Step.LOOKUP)
    assert after_it.lookups == Budget(op.lookups.used, op.lookups.max + 3)
    assert after_it.attempts == op.attempts, "never the write itself"
    assert admitted(after_it, job=KEYED).step is Step.LOOKUP
    assert admitted(after_it, NOW + 10 * MINUTE, KEYED).step is Step.LOOKUP


@pytest.mark.requirement("R25")
def test_reconciling_begins_at_the_first_page_and_keeps_what_was_found_empty() -> None:
    under_way = Search(NOW - MINUTE, NOW - MINUTE, "p2", 1, ({"id": "exp_1"},))
    op = replace(UNCLEAR, search=under_way.kept())
    after_it = decide(op, Option.RECONCILE, Reason.UNCLEAR_WRITE)
    assert Search.of(after_it) == Search(NOW - MINUTE, NOW - MINUTE)


@pytest.mark.requirement("R13", "R25")
@pytest.mark.parametrize("changes", [{}, OVER], ids=["in-time", "after-the-deadline"])
def test_a_resend_is_one_attempt_more_under_the_same_key(changes: dict[str, Any]) -> None:
    op = replace(UNCLEAR, **OVER | {"deadline_at": DEADLINE, "useful_until": None} | changes)
    after_it = decide(op, Option.RESEND_SAME_KEY, Reason.UNCLEAR_WRITE)
    assert (after_it.state, after_it.step) == (State.QUEUED, Step.SEND)
    assert (after_it.attempts, after_it.wire_key) == (Budget(3, 4), "k-1")
    assert after_it.certainty is Certainty.MAYBE_APPLIED
    assert admitted(after_it, job=KEYED).step is Step.SEND


@pytest.mark.requirement("R25")
def test_the_window_of_a_resend_is_checked_when_it_would_leave() -> None:
    after_it = decide(replace(UNCLEAR, **OVER), Option.RESEND_SAME_KEY, Reason.UNCLEAR_WRITE)
    last = NOW - MINUTE + HOUR
    waited = replace(after_it, deadline_at=NOW + 2 * HOUR, useful_until=None)
    assert admitted(waited, last - 1, KEYED).step is Step.SEND
    refused = asked(waited, last, KEYED)
    assert isinstance(refused, Verdict)
    assert (refused.event, refused.reason) == (Event.STOPPED, Reason.UNCLEAR_WRITE)


@pytest.mark.requirement("R25")
def test_a_resend_makes_earlier_lookups_worthless() -> None:
    op = replace(UNCLEAR, search=Search(NOW - HOUR, NOW - HOUR, proven=True).kept())
    after_it = decide(op, Option.RESEND_SAME_KEY, Reason.UNCLEAR_WRITE)
    assert Search.of(after_it) == Search(proven=True)


@pytest.mark.requirement("R15")
def test_an_approved_resend_that_never_leaves_is_not_dropped() -> None:
    after_it = decide(
        replace(UNCLEAR, kind=Kind.CALL, **OVER), Option.RESEND_SAME_KEY, Reason.UNCLEAR_WRITE
    )
    late = asked(after_it, NOW + HOUR, KEYED)
    assert isinstance(late, Verdict)
    assert (late.event, late.reason) == (Event.STOPPED, Reason.UNCLEAR_WRITE)


# --- approval, ends -------------------------------------------------------------------------


def test_the_deadline_starts_at_the_approval() -> None:
    op = queued(
        approve_by=NOW + HOUR,
        approve_deadline=40 * MINUTE,
        deadline_at=NOW - HOUR,
        next_at=NOW + HOUR,
        waiting_for=WaitingFor.APPROVAL,
    )
    after_it = decide(op, Option.APPROVE, Reason.APPROVAL_REQUIRED)
    assert (after_it.state, after_it.approve_by) == (State.QUEUED, None)
    assert after_it.deadline_at == NOW + 40 * MINUTE
    assert admitted(after_it).step is Step.SEND


@pytest.mark.parametrize(
    ("op", "notice"),
    [
        (UNSENT, None),
        (REFUSED, None),
        (UNCLEAR, Notice.MAY_STILL_RUN),
        (HELD, Notice.MAY_STILL_RUN),
        (replace(HELD, terminal_seen=True), None),
        (LOST_READ, None),
    ],
    ids=["unsent", "refused", "unclear", "running", "ended", "read"],
)
@pytest.mark.parametrize("option", [Option.ABANDON, Option.REJECT])
def test_what_is_given_up_says_whether_it_may_still_run(
    op: Operation, notice: Notice | None, option: Option
) -> None:
    verdict = grant(op, Reason.UNCLEAR_WRITE, Wish(option), CASE, JOB, NOW)
    assert (verdict.event, verdict.notice) == (Event.DISCARDED, notice)
    assert verdict.changes["next_at"] is None


def test_a_refused_wish_leaves_the_operation_alone() -> None:
    verdict = grant(waiting(), Reason.REQUESTED, Wish(Option.REJECT), CASE, JOB, NOW)
    assert verdict == Verdict(Event.NOTED)


def test_ending_a_task_drops_what_waits_and_says_so() -> None:
    verdict = discard(waiting(), "the task ended")
    assert (verdict.event, verdict.notice) == (Event.DISCARDED, Notice.MAY_STILL_RUN)
    assert verdict.changes["failure"] == {"message": "the task ended"}


# --- parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish(Option.EXTEND, extend_by=0), "--minutes"),
        (Wish(Option.EXTEND, extend_by=-1), "--minutes"),
        (Wish(Option.EXTEND, requests=0), "--requests"),
        (Wish(Option.HOLD, until=NOW), "future"),
        (Wish(Option.HOLD, until=NOW + DAY + 1), "24 hours"),
        (Wish(Option.TREAT_AS), "--as"),
        (Wish(Option.TREAT_AS, treat_as="expired"), "--as"),
        (Wish(Option.CONFIRM_DONE), "--reference"),
        (Wish(Option.CONFIRM_DONE, reference=""), "--reference"),
    ],
)
def test_a_wrong_parameter_is_named_with_the_fix(wish: Wish, words: str) -> None:
    found = objection(wish, NOW)
    assert found is not None
    assert words in found


@pytest.mark.parametrize(
    "wish",
    [
        Wish(Option.EXTEND),
        Wish(Option.EXTEND, extend_by=1, requests=1),
        Wish(Option.HOLD),
        Wish(Option.HOLD, until=NOW + DAY),
        Wish(Option.TREAT_AS, treat_as="failed"),
        Wish(Option.CONFIRM_DONE, reference="exp_99"),
        Wish(Option.ABANDON),
    ],
)
def test_a_right_parameter_meets_no_objection(wish: Wish) -> None:
    assert objection(wish, NOW) is None


# --- offered is possible --------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize(
    "op", [HELD, UNSENT, REFUSED, UNCLEAR], ids=["held", "unsent", "refused", "unclear"]
)
def test_whatever_is_offered_can_be_carried_out(op: Operation, reason: Reason) -> None:
    op = replace(op, binding="older")
    if reason is Reason.APPROVAL_REQUIRED:
        op = replace(op, state=State.QUEUED)
    elif reason in (Reason.REQUESTED, Reason.PROVIDER_UNREACHABLE):
        op = waiting()
    offered = offers(op, reason, CONTRACT, NOW)
    assert offered, "a person is never left without a choice"
    assert {offer.option for offer in offered} <= set(OPTIONS[reason])
    for offer in offered:
        wish = Wish(offer.option, treat_as="waiting", reference="exp_99")
        assert objection(wish, NOW) is None
        if reason is Reason.PROVIDER_UNREACHABLE:
            continue  # the store carries these out itself: nothing changes about the operation
        verdict = grant(op, reason, wish, CASE, JOB, NOW)
        assert advance(op.state, verdict.event)


@pytest.mark.parametrize(
    "wish",
    [Wish(Option.CONFIRM_DONE, reference="job_77"), Wish(Option.TREAT_AS, treat_as="waiting")],
)
@pytest.mark.parametrize(("late", "once"), [(-1, None), (0, "deadline_exceeded")])
def test_a_decision_that_comes_after_the_end_still_gets_one_look(
    wish: Wish, late: int, once: str | None
) -> None:
    op = replace(HELD, provider_state="paused")
    verdict = grant(op, Reason.UNKNOWN_STATE, wish, "esc_1", JOB, op.deadline_at + late)
    assert verdict.changes.get("once") == once


def test_a_single_permit_that_cannot_be_used_asks_again_after_a_day() -> None:
    asked = decide(HELD, Option.CHECK_AGAIN, Reason.DEADLINE_EXCEEDED)
    assert overdue(asked, NOW + DAY - 1) is None
    lapsed = overdue(asked, NOW + DAY)
    assert lapsed is not None
    assert (lapsed.event, lapsed.reason) == (Event.STOPPED, Reason.DEADLINE_EXCEEDED)
