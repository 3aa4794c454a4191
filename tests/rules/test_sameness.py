"""One operation per intent: each rule of behaviour.md, section 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.operations import HOUR, MINUTE, NOW, queued, sending, waiting

from forbear.rules.model import FINAL, Certainty, Kind, Operation, RequestClass, State
from forbear.rules.sameness import (
    Ask,
    Duplicate,
    Join,
    KeyConflict,
    New,
    Sameness,
    answered_by,
    judge,
)

DAY = 24 * HOUR
ASK = Ask(
    principal="local",
    kind=Kind.JOB,
    request_class=RequestClass.UNCERTAIN_WRITE,
    intent=waiting().intent,
    key=None,
    repeat="ask",
    repeat_window=10 * MINUTE,
)
KEYED = replace(ASK, key="march-1")
LIVE = waiting()
OTHERS = replace(LIVE, id="op_other", principal="another")
REPEATS = ("ask", "join", "key", "free")


def ended(state: State, certainty: Certainty, ago: int = 0, **changes: Any) -> Operation:
    return waiting(state=state, certainty=certainty, updated_at=NOW - ago, next_at=None, **changes)


def done(ago: int, **changes: Any) -> Operation:
    return ended(State.SUCCEEDED, Certainty.APPLIED, ago, **changes)


def asked(ask: Ask, *known: Operation, by_key: Operation | None = None) -> Sameness:
    return judge(ask, by_key, known, NOW)


# --- 1: a known key -------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_a_known_key_with_the_same_intent_joins_whatever_became_of_it(state: State) -> None:
    op = waiting(state=state, key="march-1")
    assert asked(KEYED, op, by_key=op) == Join(op)


def test_a_known_key_with_another_intent_is_a_conflict() -> None:
    op = waiting(key="march-1", intent="other")
    assert asked(KEYED, by_key=op) == KeyConflict(op)


# --- 2: no key, own, not final --------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(State) - FINAL))
def test_the_same_action_again_joins_while_it_is_not_over(state: State) -> None:
    op = waiting(state=state)
    assert asked(ASK, op) == Join(op)


@pytest.mark.parametrize("repeat", REPEATS)
def test_no_repeat_rule_makes_a_second_one_of_a_running_one(repeat: str) -> None:
    assert asked(replace(ASK, repeat=repeat), LIVE) == Join(LIVE)


def test_ones_own_is_joined_although_another_principal_runs_the_same() -> None:
    assert asked(ASK, OTHERS, LIVE) == Join(LIVE)


def test_a_job_is_no_read_whatever_the_class_of_its_submission() -> None:
    ask = replace(ASK, request_class=RequestClass.READ)
    assert asked(ask, LIVE) == Join(LIVE)


# --- 3: another key, another principal, or maybe applied ------------------------------------


def test_another_key_or_another_principal_is_a_possible_duplicate() -> None:
    assert asked(KEYED, LIVE) == Duplicate(LIVE, own=True)
    assert asked(ASK, OTHERS) == Duplicate(OTHERS, own=False)
    assert asked(KEYED, OTHERS) == Duplicate(OTHERS, own=False)


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("ask", [ASK, KEYED], ids=["no key", "new key"])
@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_may_have_been_applied_blocks_for_ever(ask: Ask, repeat: str, state: State) -> None:
    op = ended(state, Certainty.MAYBE_APPLIED, ago=400 * DAY)
    assert asked(replace(ask, repeat=repeat), op) == Duplicate(op, own=True)


def test_a_newer_operation_does_not_hide_an_older_one_that_may_have_been_applied() -> None:
    older = ended(State.DISCARDED, Certainty.MAYBE_APPLIED, ago=DAY)
    newer = ended(State.FAILED, Certainty.NOT_SENT)
    assert asked(ASK, newer, older) == Duplicate(older, own=True)


# --- 4: took effect inside the window -------------------------------------------------------


@pytest.mark.parametrize(
    ("repeat", "key", "expected"),
    [
        ("ask", None, Duplicate),
        ("ask", "new", Duplicate),
        ("join", None, Join),
        ("join", "new", Join),
        ("key", None, Duplicate),
        ("key", "new", New),
        ("free", None, New),
        ("free", "new", New),
    ],
)
def test_inside_the_window_the_contract_says_what_a_repetition_is(
    repeat: str, key: str | None, expected: type[Sameness]
) -> None:
    assert isinstance(asked(replace(ASK, repeat=repeat, key=key), done(MINUTE)), expected)


def test_a_duplicate_says_whether_a_key_would_make_it_a_new_one() -> None:
    by_key = replace(ASK, repeat="key")
    assert asked(by_key, done(MINUTE)) == Duplicate(done(MINUTE), own=True, keyed=True)
    assert asked(ASK, done(MINUTE)) == Duplicate(done(MINUTE), own=True)
    doubtful = ended(State.FAILED, Certainty.MAYBE_APPLIED)
    assert asked(by_key, doubtful) == Duplicate(doubtful, own=True)


@pytest.mark.parametrize("repeat", ["ask", "join"])
def test_another_principals_result_is_never_joined(repeat: str) -> None:
    op = done(MINUTE, principal="another")
    assert asked(replace(ASK, repeat=repeat), op) == Duplicate(op, own=False)


@pytest.mark.parametrize(
    ("state", "ago", "blocks"),
    [
        (State.SUCCEEDED, 10 * MINUTE - 1, True),
        (State.SUCCEEDED, 10 * MINUTE, False),
        (State.FAILED, DAY - 1, True),
        (State.FAILED, DAY, False),
        (State.CANCELLED, DAY - 1, True),
        (State.EXPIRED, DAY - 1, True),
        (State.DISCARDED, DAY - 1, True),
        (State.DISCARDED, DAY, False),
    ],
)
def test_an_accepted_job_that_did_not_succeed_is_remembered_for_a_day(
    state: State, ago: int, blocks: bool
) -> None:
    found = asked(ASK, ended(state, Certainty.APPLIED, ago))
    assert isinstance(found, Duplicate if blocks else New)


def test_a_write_is_remembered_for_its_window() -> None:
    ask = replace(ASK, kind=Kind.CANCEL, repeat_window=DAY)
    assert isinstance(asked(ask, done(DAY - 1, kind=Kind.CANCEL)), Duplicate)
    assert asked(ask, done(DAY, kind=Kind.CANCEL)) == New()


# --- 5: without effect ----------------------------------------------------------------------


@pytest.mark.parametrize("certainty", [Certainty.NOT_SENT, Certainty.NOT_APPLIED])
@pytest.mark.parametrize(
    ("ago", "inherits"), [(0, True), (15 * MINUTE - 1, True), (15 * MINUTE, False)]
)
def test_what_had_no_effect_blocks_nothing_and_is_inherited_for_a_while(
    certainty: Certainty, ago: int, inherits: bool
) -> None:
    op = ended(State.FAILED, certainty, ago)
    assert asked(ASK, op) == New(op if inherits else None)


def test_nobody_inherits_from_another_principal() -> None:
    op = ended(State.FAILED, Certainty.NOT_SENT, principal="another")
    assert asked(ASK, op) == New()


# --- reads, results -------------------------------------------------------------------------


def test_a_read_has_no_identity() -> None:
    ask = replace(ASK, kind=Kind.CALL, request_class=RequestClass.READ)
    op = queued(Kind.CALL, RequestClass.READ)
    assert asked(ask, op, ended(State.FAILED, Certainty.MAYBE_APPLIED)) == New()


@pytest.mark.parametrize(
    ("state", "joins"),
    [
        (State.SENDING, True),
        (State.DELAYED, True),
        (State.ESCALATED, True),
        (State.SUCCEEDED, True),
        (State.EXPIRED, True),
        (State.FAILED, False),
        (State.DISCARDED, False),
    ],
)
def test_a_result_is_fetched_once_unless_that_failed(state: State, joins: bool) -> None:
    ask = replace(ASK, kind=Kind.RESULT, request_class=RequestClass.READ)
    op = sending(Kind.RESULT, RequestClass.READ, state=state)
    assert asked(ask, op) == (Join(op) if joins else New())
    assert asked(ask, replace(op, principal="another")) == New()


# --- all of them ----------------------------------------------------------------------------

KNOWN = st.builds(
    ended,
    state=st.sampled_from(State),
    certainty=st.sampled_from(Certainty),
    ago=st.integers(0, 2 * DAY),
    principal=st.sampled_from(["local", "another"]),
)


@given(
    known=st.lists(KNOWN, max_size=4),
    repeat=st.sampled_from(REPEATS),
    key=st.sampled_from([None, "new"]),
)
def test_nothing_new_is_made_beside_what_runs_or_may_have_been_applied(
    known: list[Operation], repeat: str, key: str | None
) -> None:
    found = asked(replace(ASK, repeat=repeat, key=key), *known)
    if any(not op.final or op.certainty is Certainty.MAYBE_APPLIED for op in known):
        assert not isinstance(found, New)
    if isinstance(found, Join):
        assert found.operation.principal == "local"


# --- reads that answer each other -----------------------------------------------------------

SECOND = 1_000
READ: dict[str, Any] = {"kind": Kind.CALL, "request_class": RequestClass.READ}


def read(ago: int = 500, **changes: Any) -> Operation:
    """A read that was sent so long ago and answered 100 ms later."""
    answered = {"sent_at": NOW - ago, "http_at": NOW - ago + 100, "failure": None}
    state = {"state": State.SUCCEEDED, "next_at": None}
    return waiting(**READ, **{**answered, **state, **changes})


def answered(
    *earlier: Operation,
    coalesce: int | None = 2 * SECOND,
    last_write: int | None = None,
    own: tuple[str, ...] = (),
) -> Operation | None:
    return answered_by(earlier, NOW, coalesce=coalesce, last_write=last_write, own=own)


def failed(retry_at: int | None, **changes: Any) -> Operation:
    failure = {"message": "busy"} | ({} if retry_at is None else {"retry_at": retry_at})
    return read(state=State.FAILED, failure=failure, **changes)


@pytest.mark.requirement("R23")
@pytest.mark.parametrize(
    ("earlier", "shares"),
    [
        (read(), True),
        (read(2_099), True),
        (read(2_100), False),
        (read(http_at=NOW + 1), False),
        (read(state=State.QUEUED, sent_at=None, http_at=None), True),
        (read(state=State.SENDING, http_at=None), True),
        (read(90_000, state=State.DELAYED), True),
        (read(state=State.SENDING, pending={"end": "over"}), False),
        (read(state=State.ESCALATED), True),
        (read(state=State.FAILED), False),
        (read(state=State.DISCARDED), False),
    ],
)
def test_a_read_shares_what_is_open_or_was_answered_a_moment_ago(
    earlier: Operation, shares: bool
) -> None:
    assert (answered(earlier) is earlier) is shares
    assert answered(earlier, coalesce=None) is None


@pytest.mark.requirement("R23")
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.SENDING, State.DELAYED])
@pytest.mark.parametrize(("written", "shares"), [(501, True), (500, False), (0, False)])
def test_what_was_sent_before_the_last_write_ended_is_not_shared(
    state: State, written: int, shares: bool
) -> None:
    earlier = read(state=state)
    assert (answered(earlier, last_write=NOW - written) is earlier) is shares


@pytest.mark.requirement("R23")
def test_what_was_not_sent_yet_is_shared_whatever_is_written() -> None:
    earlier = read(state=State.QUEUED, sent_at=None, http_at=None)
    assert answered(earlier, last_write=NOW) is earlier


@pytest.mark.requirement("R30")
def test_a_spent_read_answers_its_own_until_its_time() -> None:
    spent = failed(NOW + 1, id="op_spent")
    assert answered(spent, coalesce=None, own=("op_spent",)) is spent
    assert answered(spent, coalesce=None) is None
    assert answered(failed(NOW, id="op_spent"), own=("op_spent",)) is None
    assert answered(failed(None, id="op_spent"), own=("op_spent",)) is None


@pytest.mark.requirement("R30")
def test_a_later_success_ends_the_wait_and_a_later_failure_does_not() -> None:
    spent = failed(NOW + SECOND, id="op_spent")
    assert answered(read(60_000), spent, own=("op_spent",)) is None
    assert answered(failed(NOW + SECOND, id="op_other"), spent, own=("op_spent",)) is spent
