"""What follows a write whose answer is unknown: same key, lookup, proof of absence, a person."""

from __future__ import annotations

from dataclasses import replace
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
    MIDDLE,
    MINUTE,
    NOW,
    SECOND,
    after,
    queued,
    sending,
    told,
)

from forbear.rules.admission import Admit, Hold, admit
from forbear.rules.contract import Approval, Idempotency, Job, Lookup, Scope
from forbear.rules.lifecycle import Event, advance
from forbear.rules.lookups import Page
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.pacing import ScopeState, Shared
from forbear.rules.ports import Moment
from forbear.rules.reconciliation import Search, found_late
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, after_attempt

M, E = Meaning, Event
READ = RequestClass.READ
KEYED = RequestClass.IDEMPOTENT_WRITE
UNCERTAIN = RequestClass.UNCERTAIN_WRITE
SETTLE = 60 * SECOND

PROMISE = Idempotency("header", "Idempotency-Key", window=HOUR)
KEY_ONLY = replace(JOB, idempotency=PROMISE)
KEY_AND_LOOKUP = replace(FINDABLE, idempotency=PROMISE)
STORES = replace(PROMISE, stores_errors=True)


def lookup_of(job: Job) -> Lookup:
    assert job.lookup is not None
    return job.lookup


LOOKUP = lookup_of(FINDABLE)
BELIEVES_NOTHING = replace(FINDABLE, lookup=replace(LOOKUP, absence_proves=False))


def judge(
    op: Operation,
    signal: Signal,
    job: Job = FINDABLE,
    now: int = NOW,
    u: float = MIDDLE,
    *,
    can_still_send: bool = False,
    clocks: Moment | None = None,
) -> Verdict:
    contract = replace(CONTRACT, jobs={"export": job})
    context: Any = {"can_still_send": can_still_send, "clocks": clocks}
    return after_attempt(op, contract, job, signal, now, u, **context)


def carried(op: Operation, verdict: Verdict) -> Operation:
    """The operation after the verdict, as the ledger would store it."""
    changes: dict[str, Any] = dict(verdict.changes)
    return replace(op, **changes, state=advance(op.state, verdict.event))


def keyed(**changes: Any) -> Operation:
    own: dict[str, Any] = {"wire_key": "k-1", "sent_at": NOW - SECOND}
    return sending(Kind.JOB, KEYED, **(own | changes))


EMPTY = told(M.DONE, page=Page())
MATCH = Page(({"id": "exp_71c"},))
FOUND = told(M.DONE, page=MATCH)
LOST = told(M.NO_ANSWER)


def more(cursor: str, *matches: dict[str, str]) -> Signal:
    return told(M.DONE, page=Page(matches, more=cursor))


# --- outcome by class (behaviour.md, section 4) ----------------------------------------------


def way(verdict: Verdict) -> str:
    """A verdict in the words of the table."""
    match verdict.event, verdict.changes.get("step"):
        case E.POSTPONED, _:
            return "retry"
        case E.MADE_UNCLEAR, Step.SEND:
            return "same key"
        case E.MADE_UNCLEAR, Step.LOOKUP:
            return "lookup"
        case E.FAILED, _:
            return "fail"
        case _:
            return str(verdict.reason)


PERSON, LIMITED = str(Reason.UNCLEAR_WRITE), str(Reason.RATE_LIMITED)
TABLE: dict[str, tuple[Signal, tuple[str, ...]]] = {
    # outcome: (signal, (read, key alone, key and lookup, lookup alone, neither))
    "not sent": (told(M.NOT_SENT), ("retry",) * 5),
    "429": (told(M.RATE_LIMITED), ("retry", "retry", "retry", LIMITED, LIMITED)),
    **{
        str(status): (
            told(M.SERVER_ERROR, status=status),
            ("retry", "same key", "same key", "lookup", PERSON),
        )
        for status in (408, 502, 503, 504)
    },
    "500": (
        told(M.SERVER_ERROR, status=500),
        ("retry", "same key", "lookup", "lookup", PERSON),
    ),
    "507": (
        told(M.SERVER_ERROR, status=507),
        ("fail", "same key", "lookup", "lookup", PERSON),
    ),
    "no answer": (LOST, ("retry", "same key", "lookup", "lookup", PERSON)),
    "crash": (
        told(M.NO_ANSWER, fault="crash"),
        ("retry", "same key", "lookup", "lookup", PERSON),
    ),
    "means unclear": (
        told(M.UNCLEAR, status=503),
        ("retry", "same key", "lookup", "lookup", PERSON),
    ),
    "in flight": (told(M.IN_FLIGHT), ("retry", "same key", "lookup", "lookup", PERSON)),
    "2xx without a field": (
        told(M.INCOMPLETE),
        (str(Reason.INVALID_RESPONSE), PERSON, "lookup", "lookup", PERSON),
    ),
}
COLUMNS: dict[str, tuple[RequestClass, Job]] = {
    "read": (READ, JOB),
    "key": (KEYED, KEY_ONLY),
    "key-and-lookup": (KEYED, KEY_AND_LOOKUP),
    "lookup": (UNCERTAIN, FINDABLE),
    "neither": (UNCERTAIN, JOB),
}
CELLS = [
    pytest.param(signal, *COLUMNS[column], expected, id=f"{outcome}-{column}")
    for outcome, (signal, row) in TABLE.items()
    for column, expected in zip(COLUMNS, row, strict=True)
]


@pytest.mark.requirement("R15", "R16", "R24", "R25")
@pytest.mark.parametrize(("signal", "request_class", "job", "expected"), CELLS)
def test_an_outcome_leads_where_its_class_says(
    signal: Signal, request_class: RequestClass, job: Job, expected: str
) -> None:
    op = sending(Kind.JOB, request_class, wire_key="k-1" if job.idempotency else None)
    assert way(judge(op, signal, job)) == expected


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (told(M.SERVER_ERROR, status=500), PERSON),
        (told(M.SERVER_ERROR, status=503), "same key"),
        (LOST, "same key"),
    ],
    ids=["500", "503", "no-answer"],
)
def test_a_stored_error_is_not_asked_for_again(signal: Signal, expected: str) -> None:
    assert way(judge(keyed(), signal, replace(JOB, idempotency=STORES))) == expected


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.CANCEL])
def test_key_and_lookup_of_the_action_are_not_those_of_its_cancellation(kind: Kind) -> None:
    op = sending(kind, UNCERTAIN, wire_key="k-1")
    assert way(judge(op, LOST, KEY_AND_LOOKUP)) == PERSON


@pytest.mark.requirement("R15")
@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({"attempts": Budget(3, 3)}, KEY_ONLY),
        ({"sent_at": NOW - HOUR}, KEY_ONLY),
        ({"wire_key": None}, KEY_ONLY),
        ({"wait": Budget(120 * SECOND, 120 * SECOND)}, KEY_ONLY),
        ({"deadline_at": NOW + 30 * SECOND}, KEY_ONLY),
    ],
    ids=["attempts", "window", "no-key", "waited", "deadline"],
)
def test_the_same_key_is_sent_only_inside_every_bound(changes: dict[str, Any], job: Job) -> None:
    assert way(judge(keyed(), LOST, job)) == "same key"
    assert way(judge(keyed(**changes), LOST, job)) == PERSON


@pytest.mark.parametrize(
    ("lookups", "deadline"),
    [(Budget(6, 6), DEADLINE), (Budget(0, 6), NOW + SECOND)],
    ids=["lookups", "deadline"],
)
def test_nothing_is_looked_up_beyond_its_bounds(lookups: Budget, deadline: int) -> None:
    verdict = judge(sending(lookups=lookups, deadline_at=deadline), LOST)
    assert way(verdict) == PERSON
    assert verdict.changes["next_at"] is None


@pytest.mark.parametrize(
    ("op", "signal"),
    [
        (keyed(once=str(Reason.RATE_LIMITED)), LOST),
        (keyed(), told(M.RETRY_LATER, certainty=Certainty.APPLIED)),
    ],
    ids=["a-single-permit", "stated-as-applied"],
)
def test_some_answers_are_never_followed_by_a_resend(op: Operation, signal: Signal) -> None:
    assert way(judge(op, signal, KEY_ONLY)) == PERSON
    assert way(judge(replace(op, attempts=Budget(1, 9)), signal, KEY_AND_LOOKUP)) == "lookup"


def test_a_contract_may_rule_out_the_resend_after_a_status() -> None:
    limits = replace(CONTRACT.classes[KEYED], retry_statuses=frozenset({429}))
    contract = replace(
        CONTRACT, jobs={"export": KEY_ONLY}, classes={**CONTRACT.classes, KEYED: limits}
    )
    for signal, expected in ((told(M.SERVER_ERROR), PERSON), (LOST, "same key")):
        verdict = after_attempt(keyed(), contract, KEY_ONLY, signal, NOW, MIDDLE)
        assert way(verdict) == expected


@pytest.mark.requirement("R25")
def test_lookups_before_a_request_prove_nothing_about_it() -> None:
    op = keyed(search=Search(NOW - HOUR, NOW - HOUR).kept())
    assert Search.of(carried(op, judge(op, LOST, KEY_AND_LOOKUP))) == Search()


def test_a_resend_waits_what_the_provider_asked_and_pays_for_it() -> None:
    asked = told(M.SERVER_ERROR, retry_after=after(20 * SECOND))
    verdict = judge(keyed(), asked, KEY_ONLY, u=0.0)
    assert verdict.changes["next_at"] == NOW + 20 * SECOND
    assert verdict.changes["delay_source"] is DelaySource.PROVIDER_RETRY_AFTER
    assert verdict.changes["wait"] == Budget(20 * SECOND, 120 * SECOND)
    assert verdict.scope_until is None, "a 503 is not the scope's matter"


def test_a_request_still_in_flight_is_not_pressed() -> None:
    assert judge(keyed(), told(M.IN_FLIGHT), KEY_ONLY, u=0.0).changes["delay"] == SECOND


# --- an answer after a doubtful attempt -----------------------------------------------------

DOUBTFUL: dict[str, Any] = {
    "certainty": Certainty.MAYBE_APPLIED,
    "attempts": Budget(2, 3),
    "sent_at": NOW - MINUTE,
}


@pytest.mark.parametrize(
    "meaning", [M.NOT_SENT, M.RATE_LIMITED, M.RETRY_LATER, M.SERVER_ERROR], ids=str
)
def test_doubt_is_never_called_delayed(meaning: Meaning) -> None:
    op = keyed(**DOUBTFUL)
    certainty = {"certainty": Certainty.NOT_APPLIED} if meaning is M.RETRY_LATER else {}
    after_it = carried(op, judge(op, told(meaning, **certainty), KEY_ONLY))
    assert (after_it.state, after_it.step) == (State.UNCLEAR, Step.SEND)
    assert after_it.certainty is Certainty.MAYBE_APPLIED


@pytest.mark.parametrize("meaning", [M.NOT_SENT, M.RATE_LIMITED, M.QUOTA_EXHAUSTED], ids=str)
@pytest.mark.parametrize(("job", "expected"), [(KEY_ONLY, PERSON), (KEY_AND_LOOKUP, "lookup")])
def test_doubt_that_cannot_be_repeated_is_looked_up_or_asked_about(
    meaning: Meaning, job: Job, expected: str
) -> None:
    spent = {"attempts": Budget(3, 3), "transport_failures": Budget(2, 3)}
    assert way(judge(keyed(**(DOUBTFUL | spent)), told(meaning), job)) == expected


@pytest.mark.parametrize(
    ("op", "job", "expected"),
    [
        (keyed(), KEY_ONLY, "fail"),
        (keyed(**DOUBTFUL), KEY_ONLY, "fail"),
        (keyed(**DOUBTFUL), KEY_AND_LOOKUP, "lookup"),
        (keyed(**DOUBTFUL | {"sent_at": NOW - HOUR}), KEY_ONLY, PERSON),
        (keyed(**DOUBTFUL), JOB, PERSON),
    ],
    ids=["first", "same-key", "lookup-knows-more", "forgotten-key", "by-nature"],
)
def test_a_refusal_speaks_for_earlier_attempts_only_under_their_key(
    op: Operation, job: Job, expected: str
) -> None:
    verdict = judge(op, told(M.REJECTED), job)
    assert way(verdict) == expected
    certainty = strongest_of(op)
    assert carried(op, verdict).certainty is certainty, "and it proves nothing by itself"


def strongest_of(op: Operation) -> Certainty:
    doubtful = op.certainty is Certainty.MAYBE_APPLIED
    return Certainty.MAYBE_APPLIED if doubtful else Certainty.NOT_APPLIED


@pytest.mark.parametrize(
    ("op", "job", "expected"),
    [
        (keyed(), KEY_AND_LOOKUP, str(Reason.CONFLICT)),
        (keyed(**DOUBTFUL), KEY_AND_LOOKUP, "lookup"),
        (keyed(**DOUBTFUL), KEY_ONLY, str(Reason.CONFLICT)),
    ],
    ids=["first", "after-doubt", "nothing-to-look-up"],
)
def test_what_exists_already_is_ours_only_if_a_lookup_says_so(
    op: Operation, job: Job, expected: str
) -> None:
    assert way(judge(op, told(M.ALREADY_EXISTS), job)) == expected


@pytest.mark.parametrize("op", [keyed(), keyed(**DOUBTFUL)], ids=["first", "after-doubt"])
def test_a_key_used_for_something_else_is_a_conflict(op: Operation) -> None:
    assert way(judge(op, told(M.KEY_REUSED), KEY_AND_LOOKUP)) == Reason.CONFLICT


@pytest.mark.requirement("W28")
def test_a_submission_accepted_without_a_handle_is_looked_up() -> None:
    op = sending()
    verdict = judge(op, told(M.UNTRACKED))
    assert way(verdict) == "lookup"
    assert carried(op, verdict).certainty is Certainty.APPLIED
    assert judge(op, told(M.UNTRACKED), JOB).reason is Reason.ACCEPTED_UNTRACKED


# --- one lookup -----------------------------------------------------------------------------


def unclear(**changes: Any) -> Operation:
    """A submission whose answer was lost, as its first lookup is being answered."""
    own: dict[str, Any] = {
        "state": State.UNCLEAR,
        "step": Step.LOOKUP,
        "certainty": Certainty.MAYBE_APPLIED,
        "sent": True,
        "lookups": Budget(1, 6),
        "waiting_for": WaitingFor.SETTLE,
    }
    return sending(**(own | changes))


def searched(op: Operation, verdict: Verdict) -> Search:
    return Search.of(carried(op, verdict))


@pytest.mark.requirement("R25")
def test_what_is_found_goes_on_as_if_it_had_been_answered() -> None:
    op = unclear()
    after_it = carried(op, judge(op, FOUND))
    assert (after_it.state, after_it.step) == (State.WAITING, Step.STATUS)
    assert (after_it.provider_job, after_it.accepted_at) == ("exp_71c", NOW)
    assert (after_it.certainty, after_it.search) == (Certainty.APPLIED, None)
    assert after_it.next_at == NOW
    assert after_it.attempts.used == 1, "nothing was sent again"


@pytest.mark.requirement("R25")
def test_a_call_that_is_found_has_succeeded() -> None:
    op = unclear(kind=Kind.CALL)
    after_it = carried(op, judge(op, told(M.DONE, page=Page(({"id": "tr_1"},)))))
    assert (after_it.state, after_it.take["id"]) == (State.SUCCEEDED, "tr_1")
    assert after_it.next_at is None


def test_a_found_job_that_no_status_request_leads_to_is_asked_about() -> None:
    op = unclear()
    verdict = judge(op, told(M.DONE, page=Page(({},))))
    assert verdict.reason is Reason.ACCEPTED_UNTRACKED


def test_a_found_job_whose_checks_need_approval_asks_before_the_first() -> None:
    status = replace(FINDABLE.status, approval=Approval("session"))
    verdict = judge(unclear(), FOUND, replace(FINDABLE, status=status))
    assert (verdict.event, verdict.reason) == (E.ACCEPTED, Reason.APPROVAL_REQUIRED)


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    "page",
    [
        Page(({"id": "exp_1"}, {"id": "exp_2"})),
        Page(({}, {})),
        Page(({"id": "exp_1"},), differing=True),
    ],
    ids=["several", "several-without-id", "other-content"],
)
def test_several_or_different_matches_are_a_conflict(page: Page) -> None:
    verdict = judge(unclear(), told(M.DONE, page=page))
    assert (verdict.event, verdict.reason) == (E.STOPPED, Reason.RECONCILIATION_CONFLICT)


@pytest.mark.requirement("R24", "R25")
def test_a_late_good_answer_is_as_good_as_a_lookup() -> None:
    op = unclear(step=Step.SEND)
    verdict = found_late(op, op, FINDABLE, told(M.ACCEPTED), NOW)
    assert verdict is not None
    after_it = carried(op, verdict)
    assert (after_it.state, after_it.provider_job) == (State.WAITING, "exp_71c")


@pytest.mark.requirement("R24", "R25", "D02")
def test_a_late_answer_to_a_lookup_counts_where_it_found_the_effect() -> None:
    op = unclear()
    verdict = found_late(op, op, FINDABLE, FOUND, NOW)
    assert verdict is not None
    after_it = carried(op, verdict)
    assert (after_it.state, after_it.provider_job) == (State.WAITING, "exp_71c")
    assert after_it.http_status == op.http_status, "it is not the write's own answer"


@pytest.mark.requirement("R24", "R25", "D02")
@pytest.mark.parametrize(
    ("signal", "before"),
    [
        (EMPTY, None),
        (more("2"), None),
        (more("2", {"id": "exp_71c"}), None),
        (told(M.DONE, page=Page(readable=False)), None),
        (told(M.DONE, page=Page(({"id": "exp_1"}, {"id": "exp_2"}))), None),
        (told(M.DONE, page=Page(({"id": "exp_1"},), differing=True)), None),
        (told(M.DONE), None),
        (FOUND, Search(cursor="2", pages=1)),
    ],
    ids=[
        *("nothing", "nothing yet", "with more to read", "unreadable", "several", "other content"),
        *("no page", "the second page"),
    ],
)
def test_any_other_late_answer_to_a_lookup_decides_nothing(
    signal: Signal, before: Search | None
) -> None:
    op = unclear()
    asked = op if before is None else replace(op, search=before.kept())
    assert found_late(op, asked, FINDABLE, signal, NOW) is None


def test_the_answer_to_a_lookup_is_not_kept_as_the_writes_own() -> None:
    op = unclear(http_status=500, http_at=NOW - MINUTE, answered=True, provider_request_id="r1")
    for signal in (EMPTY, FOUND, told(M.SERVER_ERROR, provider_request_id="r2")):
        after_it = carried(op, judge(op, signal))
        kept = (after_it.http_status, after_it.http_at, after_it.provider_request_id)
        assert kept == (500, NOW - MINUTE, "r1")


@pytest.mark.parametrize(
    ("meaning", "reason"),
    [(M.AUTH, Reason.UNCLEAR_WRITE), (M.MISMATCH, Reason.UNCLEAR_WRITE)],
)
def test_a_lookup_that_is_denied_or_reads_another_account_stops(
    meaning: Meaning, reason: Reason
) -> None:
    verdict = judge(unclear(), told(meaning))
    assert (verdict.event, verdict.reason) == (E.STOPPED, reason)
    assert verdict.block_credential is (meaning is M.AUTH)


INCONCLUSIVE = [
    told(M.SERVER_ERROR),
    told(M.NO_ANSWER),
    told(M.NOT_SENT),
    told(M.INVALID),
    told(M.REJECTED),
    told(M.NOT_FOUND),
    told(M.GONE),
    told(M.RATE_LIMITED),
    told(M.DONE, page=Page(readable=False)),
]


@pytest.mark.parametrize("signal", INCONCLUSIVE, ids=lambda one: one.meaning)
def test_a_lookup_without_a_complete_answer_proves_nothing(signal: Signal) -> None:
    op = unclear()
    verdict = judge(op, signal)
    assert verdict.event is E.OBSERVED
    assert searched(op, verdict) == Search()
    again = replace(carried(op, verdict), lookups=Budget(6, 6))
    assert judge(again, signal).reason is Reason.UNCLEAR_WRITE


def test_a_missing_effect_at_its_own_address_is_a_complete_answer() -> None:
    by_id = replace(FINDABLE, lookup=replace(LOOKUP, items=None, page=None))
    op = unclear()
    assert searched(op, judge(op, told(M.NOT_FOUND), by_id)).first_empty == NOW
    assert searched(op, judge(op, told(M.EMPTY))).first_empty == NOW
    assert searched(op, judge(op, told(M.GONE), by_id)).first_empty is None, "it was there once"


def test_a_rate_limited_lookup_moves_the_scope_and_a_503_does_not() -> None:
    asked = after(90 * SECOND)
    limited = judge(unclear(), told(M.RATE_LIMITED, retry_after=asked))
    assert limited.scope_until == NOW + 90 * SECOND
    unasked = judge(unclear(), told(M.RATE_LIMITED), u=0.0)
    assert unasked.scope_until == NOW + 5 * SECOND
    assert judge(unclear(), told(M.SERVER_ERROR, retry_after=asked)).scope_until is None
    quota = judge(unclear(), told(M.QUOTA_EXHAUSTED, retry_after=after(HOUR)))
    assert (quota.reason, quota.scope_until) == (Reason.UNCLEAR_WRITE, NOW + HOUR)


@pytest.mark.requirement("R09")
@given(
    wait=st.integers(0, 2 * HOUR),
    u=st.floats(0, 1, exclude_max=True),
    first=st.booleans(),
    left=st.integers(1, HOUR),
)
def test_no_lookup_comes_before_the_providers_minimum_or_after_the_end(
    wait: int, u: float, first: bool, left: int
) -> None:
    signal = told(M.SERVER_ERROR, retry_after=after(wait))
    op = (sending if first else unclear)(deadline_at=NOW + left)
    verdict = judge(op, signal, u=u)
    at = verdict.changes["next_at"]
    if at is None:
        assert verdict.reason is Reason.UNCLEAR_WRITE
    else:
        assert isinstance(at, int)
        assert NOW + max(wait, 1) <= at < NOW + left


def test_the_last_lookup_is_moved_before_the_deadline() -> None:
    op = unclear(deadline_at=NOW + 90 * SECOND)
    verdict = judge(op, EMPTY, u=0.9)
    assert verdict.changes["next_at"] == NOW + 90 * SECOND - LOOKUP.request.timeout - SECOND
    late = unclear(deadline_at=NOW + 30 * SECOND)
    assert judge(late, EMPTY).reason is Reason.UNCLEAR_WRITE


# --- pages ----------------------------------------------------------------------------------


def test_every_page_is_read_before_anything_is_concluded() -> None:
    op = unclear()
    for cursor in ("p2", ""):
        verdict = judge(op, more(cursor))
        assert (verdict.event, verdict.changes["next_at"]) == (E.OBSERVED, NOW)
        op = carried(op, verdict)
        assert Search.of(op).cursor == cursor, "an empty text is a cursor"
    assert admit_lookup(replace(op, lookups=Budget(6, 6))), "its pages are one lookup"
    assert searched(op, judge(op, EMPTY)) == Search(first_empty=NOW, last_empty=NOW)


def admit_lookup(op: Operation) -> bool:
    found = admit(op, FINDABLE, SHARED, NOW, credential_ready=True)
    return isinstance(found, Admit) and found.step is Step.LOOKUP


def test_an_effect_on_a_later_page_is_found() -> None:
    op = unclear()
    op = carried(op, judge(op, more("p2")))
    assert carried(op, judge(op, FOUND)).state is State.WAITING


def test_a_match_does_not_end_the_lookup_before_its_last_page() -> None:
    op = unclear()
    op = carried(op, judge(op, more("p2", {"id": "exp_71c"})))
    assert op.state is State.UNCLEAR
    assert carried(op, judge(op, EMPTY)).provider_job == "exp_71c"
    other = judge(op, told(M.DONE, page=Page(({"id": "exp_72"},))))
    assert other.reason is Reason.RECONCILIATION_CONFLICT
    assert judge(op, FOUND).event is E.ACCEPTED, "a list that moved shows one item twice"


@pytest.mark.parametrize("cursors", [("a", "a"), ("a", "b", "a")], ids=["stands", "cycle"])
def test_a_list_that_does_not_end_proves_nothing(cursors: tuple[str, ...]) -> None:
    op = unclear()
    for cursor in cursors:
        op = carried(op, judge(op, more(cursor)))
    assert (Search.of(op), op.waiting_for) == (Search(), WaitingFor.SETTLE)


def test_a_lookup_broken_off_begins_again_at_its_first_page() -> None:
    op = unclear()
    op = carried(op, judge(op, more("p2", {"id": "exp_71c"})))
    assert searched(op, judge(op, told(M.SERVER_ERROR))) == Search()


# --- absence --------------------------------------------------------------------------------

ONCE_EMPTY = Search(first_empty=NOW - SETTLE, last_empty=NOW - SETTLE)


def resends(op: Operation, job: Job = FINDABLE, **context: Any) -> bool:
    """Whether an empty lookup makes the one resend due."""
    verdict = judge(op, EMPTY, job, **context)
    after_it = carried(op, verdict)
    due = (after_it.state, after_it.step) == (State.UNCLEAR, Step.SEND)
    assert due is (after_it.search is not None and Search.of(after_it).proven)
    return due


@pytest.mark.requirement("R25")
def test_absence_is_believed_only_under_all_conditions() -> None:
    op = unclear(search=ONCE_EMPTY.kept(), lookups=Budget(2, 6))
    assert resends(op)
    assert not resends(op, BELIEVES_NOTHING)
    assert not resends(op, can_still_send=True)
    assert not resends(replace(op, search=replace(ONCE_EMPTY, first_empty=NOW - SETTLE + 1).kept()))
    assert not resends(replace(op, search=None))
    assert not resends(replace(op, certainty=Certainty.APPLIED)), "the provider took it"


@pytest.mark.requirement("R25")
def test_a_wall_clock_set_forward_proves_no_absence() -> None:
    """Found by the simulation: the write was sent again, and its effect came after that."""
    first = carried(unclear(), judge(unclear(), EMPTY, clocks=Moment(NOW, 5_000, "boot-1")))
    assert Search.of(first).first_boot == ("boot-1", 5_000)
    then, soon, later = NOW + SETTLE, 5_000 + SETTLE - 1, 5_000 + SETTLE
    assert not resends(first, now=then, clocks=Moment(then, soon, "boot-1"))
    assert resends(first, now=then, clocks=Moment(then, later, "boot-1"))


@pytest.mark.requirement("R25")
def test_a_restart_between_two_lookups_makes_the_second_the_first_that_counts() -> None:
    """Nobody can say how long the machine was off: its wall clock may have come up wrong."""
    first = carried(unclear(), judge(unclear(), EMPTY, clocks=Moment(NOW, 5_000, "boot-1")))
    then, later = NOW + 2 * SETTLE, NOW + 3 * SETTLE
    restarted = Moment(then, 10, "boot-2")
    assert not resends(first, now=then, clocks=restarted)
    second = carried(first, judge(first, EMPTY, now=then, clocks=restarted))
    assert Search.of(second).first_boot == ("boot-2", 10)
    assert resends(second, now=later, clocks=Moment(later, 10 + SETTLE, "boot-2"))


@pytest.mark.requirement("R25")
def test_a_lookup_made_while_somebody_could_still_send_does_not_count_later() -> None:
    op = unclear()
    op = carried(op, judge(op, EMPTY, can_still_send=True))
    assert Search.of(op) == Search(last_empty=NOW)
    assert not resends(op, now=NOW + SETTLE)


@pytest.mark.requirement("R25")
def test_no_lookup_before_somebody_could_still_send_counts_later() -> None:
    op = unclear(search=ONCE_EMPTY.kept())
    op = carried(op, judge(op, EMPTY, can_still_send=True))
    assert not resends(op, now=NOW + SETTLE)


REFUSALS = {
    "401": told(M.AUTH, status=401),
    "403": told(M.AUTH, status=403),
    "redirect": told(M.REDIRECT, status=302),
    "egress": told(M.NOT_SENT, fault="egress_refused"),
}
"""What says nothing about an earlier attempt, and is for a person to mend."""


@pytest.mark.requirement("R24")
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("job", [KEY_ONLY, KEY_AND_LOOKUP], ids=["key", "key and lookup"])
def test_what_refuses_a_repetition_leaves_the_doubt_the_question(refusal: Signal, job: Job) -> None:
    """The reasons of a first attempt would offer no way to find out, or to say that it is done."""
    again = keyed(certainty=Certainty.MAYBE_APPLIED, attempts=Budget(2, 3))
    verdict = judge(again, refusal, job)
    looks = job is KEY_AND_LOOKUP and refusal.meaning is M.REDIRECT
    assert way(verdict) == ("lookup" if looks else PERSON)
    assert looks or verdict.reason is Reason.UNCLEAR_WRITE
    assert judge(keyed(), refusal, job).reason in {
        Reason.AUTHORIZATION_DENIED,
        Reason.INTEGRATION_FAILURE,
        Reason.EGRESS_REFUSED,
    }


@pytest.mark.parametrize(("refusal", "blocks"), [("401", True), ("403", False)])
def test_a_refused_credential_is_blocked_whatever_is_in_doubt(refusal: str, blocks: bool) -> None:
    again = keyed(certainty=Certainty.MAYBE_APPLIED, attempts=Budget(2, 3))
    assert judge(again, REFUSALS[refusal], KEY_ONLY).block_credential is blocks


@pytest.mark.requirement("R25")
def test_the_one_resend_is_one_attempt_more_of_an_uncertain_write() -> None:
    op = unclear(search=ONCE_EMPTY.kept(), lookups=Budget(2, 6))
    after_it = carried(op, judge(op, EMPTY))
    assert (after_it.attempts, after_it.certainty) == (Budget(1, 2), Certainty.NOT_APPLIED)
    assert after_it.next_at == NOW


@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({"attempts": Budget(3, 3), "request_class": KEYED}, KEY_AND_LOOKUP),
        ({"sent_at": NOW - HOUR, "wire_key": "k", "request_class": KEYED}, KEY_AND_LOOKUP),
        ({"deadline_at": NOW + 29 * SECOND}, FINDABLE),
    ],
    ids=["attempts", "window", "deadline"],
)
def test_a_proof_that_comes_too_late_for_a_resend_goes_to_a_person(
    changes: dict[str, Any], job: Job
) -> None:
    op = unclear(**{"search": ONCE_EMPTY.kept(), "lookups": Budget(2, 6)} | changes)
    verdict = judge(op, EMPTY, job)
    assert verdict.reason is Reason.UNCLEAR_WRITE
    assert verdict.changes["certainty"] is Certainty.NOT_APPLIED
    assert verdict.story["absence"] == "proven"


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("signal", [LOST, told(M.SERVER_ERROR)], ids=["lost", "503"])
@pytest.mark.parametrize("job", [FINDABLE, KEY_AND_LOOKUP], ids=["lookup", "key-and-lookup"])
def test_the_second_unknown_goes_to_a_person(job: Job, signal: Signal) -> None:
    op = keyed(attempts=Budget(2, 3), search=Search(proven=True).kept())
    assert way(judge(op, signal, job)) == PERSON


def test_absence_is_never_proven_twice() -> None:
    search = replace(ONCE_EMPTY, proven=True)
    op = unclear(search=search.kept(), attempts=Budget(2, 2))
    after_it = carried(op, judge(op, EMPTY))
    assert (after_it.step, after_it.attempts) == (Step.LOOKUP, Budget(2, 2))


@given(
    st.builds(
        Search,
        first_empty=st.none() | st.integers(0, NOW),
        last_empty=st.none() | st.integers(0, NOW),
        cursor=st.none() | st.text(),
        pages=st.integers(0, 9),
        found=st.lists(st.dictionaries(st.text(), st.text())).map(tuple),
        proven=st.booleans(),
    )
)
def test_a_search_is_read_as_it_was_kept(search: Search) -> None:
    assert Search.of(unclear(search=search.kept())) == search


# --- stories --------------------------------------------------------------------------------

SHARED = [Shared("key", Scope("account", "account"), ScopeState())]


class Story:
    """One write from its first permit on, under its own schedule and admission."""

    def __init__(self, op: Operation, job: Job, u: float = MIDDLE) -> None:
        self.op, self.job, self.u, self.now = op, job, u, NOW
        self.requests: list[Step] = []
        self.left: list[Step] = []
        """Requests of which something may have left."""
        self.reason: Reason | None = None
        self.proven = False

    @property
    def open(self) -> bool:
        return self.op.state in (State.QUEUED, State.DELAYED, State.UNCLEAR)

    def admitted(self) -> bool:
        """Wait for the permit of the next request; False if the operation ended before it."""
        while self.open:
            self.now = max(self.now, self.op.next_at or self.now)
            found = admit(self.op, self.job, SHARED, self.now, credential_ready=True)
            match found:
                case Verdict():
                    self._apply(found)
                case Hold(until):
                    self.op = replace(self.op, next_at=until)
                case Admit():
                    self._reserve()
                    return True
        return False

    def _reserve(self) -> None:
        op = self.op
        self.requests.append(op.step)
        if op.step is Step.SEND:
            self.op = replace(
                op,
                state=advance(op.state, E.ADMITTED),
                attempts=replace(op.attempts, used=op.attempts.used + 1),
                sent_at=op.sent_at or self.now,
            )
        elif Search.of(op).cursor is None:
            self.op = replace(op, lookups=replace(op.lookups, used=op.lookups.used + 1))

    def answer(self, signal: Signal, takes: int = 0, *, can_still_send: bool = False) -> None:
        self.now += takes
        if signal.meaning is not M.NOT_SENT:
            self.left.append(self.op.step)
        self._apply(
            judge(self.op, signal, self.job, self.now, self.u, can_still_send=can_still_send)
        )

    def _apply(self, verdict: Verdict) -> None:
        self.op, self.reason = carried(self.op, verdict), verdict.reason
        self.proven = self.proven or verdict.story.get("absence") == "proven"

    def play(self, *signals: Signal) -> Story:
        for signal in signals:
            assert self.admitted(), f"ended as {self.op.state} before {signal.meaning}"
            self.answer(signal)
        return self


def written(job: Job, **changes: Any) -> Operation:
    request_class = KEYED if job.idempotency is not None else UNCERTAIN
    key = "k-1" if job.idempotency is not None else None
    return queued(Kind.JOB, request_class, wire_key=key, next_at=NOW, **changes)


def story(job: Job, *signals: Signal, **changes: Any) -> Story:
    return Story(written(job, **changes), job).play(*signals)


S, L = Step.SEND, Step.LOOKUP


@pytest.mark.requirement("R24", "R25", "R15")
def test_a_lost_write_that_never_arrived_is_sent_once_more() -> None:
    told_so = story(FINDABLE, LOST, EMPTY, EMPTY)
    assert told_so.op.step is S
    told_so.play(told(M.ACCEPTED))
    assert told_so.requests == [S, L, L, S]
    assert told_so.op.state is State.WAITING


@pytest.mark.requirement("R24", "R25")
def test_a_lost_write_that_arrived_is_found_on_the_second_page() -> None:
    told_so = story(FINDABLE, LOST, more("p2"), FOUND)
    assert (told_so.requests, told_so.op.state) == ([S, L, L], State.WAITING)
    assert told_so.op.lookups.used == 1


@pytest.mark.requirement("R25")
def test_two_effects_of_one_write_are_a_persons_matter() -> None:
    twice = Page(({"id": "exp_1"}, {"id": "exp_2"}))
    told_so = story(FINDABLE, LOST, told(M.DONE, page=twice))
    assert told_so.reason is Reason.RECONCILIATION_CONFLICT


@pytest.mark.requirement("R13", "R25")
def test_a_keyed_write_after_a_503_is_sent_under_its_key() -> None:
    told_so = story(KEY_AND_LOOKUP, told(M.SERVER_ERROR), told(M.ACCEPTED))
    assert (told_so.requests, told_so.op.wire_key) == ([S, S], "k-1")
    assert told_so.op.state is State.WAITING


@pytest.mark.requirement("R25")
def test_a_forgotten_key_is_not_used_again() -> None:
    """The scope was held back while the provider's window ran out."""
    told_so = story(KEY_ONLY, LOST)
    assert told_so.op.step is S
    told_so.op = replace(told_so.op, next_at=NOW + 61 * MINUTE, deadline_at=NOW + 2 * HOUR)
    assert not told_so.admitted()
    assert (told_so.op.state, told_so.reason) == (State.ESCALATED, Reason.UNCLEAR_WRITE)
    assert told_so.requests == [S]


@pytest.mark.requirement("R15")
def test_a_write_with_neither_key_nor_lookup_is_sent_once() -> None:
    told_so = story(JOB, LOST)
    assert (told_so.requests, told_so.reason) == ([S], Reason.UNCLEAR_WRITE)


@pytest.mark.requirement("R25")
def test_lookups_that_prove_nothing_end_with_a_person() -> None:
    told_so = story(BELIEVES_NOTHING, LOST, *[EMPTY] * 6)
    assert (told_so.requests, told_so.reason) == ([S, *[L] * 6], Reason.UNCLEAR_WRITE)
    assert told_so.op.certainty is Certainty.MAYBE_APPLIED


@pytest.mark.requirement("R25")
def test_lookups_end_with_the_deadline() -> None:
    told_so = Story(written(BELIEVES_NOTHING, deadline_at=NOW + 5 * MINUTE), BELIEVES_NOTHING)
    assert told_so.admitted()
    told_so.answer(LOST, 30 * SECOND)
    while told_so.admitted():
        told_so.answer(EMPTY, SECOND)
    assert told_so.reason is Reason.UNCLEAR_WRITE
    assert told_so.now <= NOW + 5 * MINUTE
    assert told_so.requests.count(L) in (3, 4)


def test_a_keyed_write_is_sent_at_most_as_often_as_its_class_allows() -> None:
    told_so = story(KEY_ONLY, LOST, LOST, LOST)
    assert (told_so.requests, told_so.reason) == ([S, S, S], Reason.UNCLEAR_WRITE)


@pytest.mark.requirement("R25")
def test_a_resend_after_proof_that_is_refused_has_failed_without_effect() -> None:
    told_so = story(FINDABLE, LOST, EMPTY, EMPTY, told(M.REJECTED))
    assert told_so.op.state is State.FAILED
    assert told_so.op.certainty is Certainty.NOT_APPLIED


# --- any sequence ---------------------------------------------------------------------------

ANY: list[Meaning] = list(Meaning)
PAGES = [
    *[Page()] * 12,
    MATCH,
    Page(({"id": "exp_72"},), more="b"),
    Page(more=""),
    Page(more="a"),
    Page(more="b"),
    Page(MATCH.matches, differing=True),
    Page(readable=False),
]
WAITS = st.none() | st.integers(0, 20 * MINUTE).map(after)


def signals(meanings: list[Meaning]) -> st.SearchStrategy[Signal]:
    return st.builds(
        lambda meaning, wait: told(meaning, retry_after=wait), st.sampled_from(meanings), WAITS
    )


DOUBT: list[Meaning] = [
    M.NO_ANSWER,
    M.SERVER_ERROR,
    M.UNCLEAR,
    M.IN_FLIGHT,
    M.INVALID,
    M.INCOMPLETE,
]
JOBS = [JOB, FINDABLE, BELIEVES_NOTHING, KEY_ONLY, KEY_AND_LOOKUP]
SENT = signals(DOUBT * 8 + ANY)
LOOKED = signals(ANY) | st.sampled_from(PAGES).map(lambda page: told(M.DONE, page=page))
LONGEST = 60
"""Requests that no story may reach: attempts, pages of lookups and unsent tries together."""


@pytest.mark.requirement("R15", "R24", "R25")
@given(
    data=st.data(),
    job=st.sampled_from(JOBS),
    u=st.floats(0, 1, exclude_max=True),
    deadline=st.integers(31 * SECOND, 3 * HOUR),
)
def test_no_sequence_of_answers_repeats_what_may_have_been_done(
    data: st.DataObject, job: Job, u: float, deadline: int
) -> None:
    told_so = Story(written(job, deadline_at=NOW + deadline), job, u)
    doubtful = False
    while told_so.admitted():
        assert len(told_so.requests) <= LONGEST, told_so.requests
        if told_so.op.step is S:
            again = told_so.left.count(S) > 0
            assert not again or job.idempotency is not None or told_so.proven
            signal = data.draw(SENT, "sent")
            doubtful = doubtful or signal.certainty is Certainty.MAYBE_APPLIED
        else:
            signal = data.draw(LOOKED, "looked")
        told_so.answer(signal, data.draw(st.integers(0, 30 * SECOND), "takes"))
        if told_so.op.state is State.DELAYED:
            assert told_so.op.certainty in (Certainty.NOT_SENT, Certainty.NOT_APPLIED)

    sends = told_so.left.count(S)
    assert sends <= (3 if job.idempotency is not None else 1 + told_so.proven)
    assert job is not BELIEVES_NOTHING or not told_so.proven
    assert told_so.op.lookups.used <= 6
    op = told_so.op
    assert op.final or op.state is State.WAITING or told_so.reason is not None
    if op.state is State.DISCARDED:
        assert not doubtful
    if op.state is State.FAILED and doubtful and op.certainty is Certainty.NOT_APPLIED:
        assert told_so.proven
