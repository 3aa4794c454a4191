"""Pages of a read: what one says, what follows after it, and the request of the next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.answering import reply
from tests.rules.contracts import FULL, changed, loaded
from tests.rules.operations import CONTRACT, MIDDLE, MINUTE, NOW, SECOND, sending

from forbear.rules.contract import Call, Contract, Paging
from forbear.rules.facts import Facts
from forbear.rules.lifecycle import Event, advance
from forbear.rules.model import Budget, Certainty, Kind, Operation, RequestClass, State
from forbear.rules.paging import (
    Cut,
    Onward,
    Progress,
    Turn,
    items_text,
    joined,
    reads_on,
    repeats,
    tried_before,
    turned,
)
from forbear.rules.ports import Outbound
from forbear.rules.requests import RenderError
from forbear.rules.signals import Meaning, Signal, read
from forbear.rules.values import decode
from forbear.rules.verdicts import Verdict, after_attempt

PAGE = 'page = { query = "cursor", at = "/next", items = "/data", max_pages = 20 }'
FIRST = Outbound("GET", "https://api.exp.test/customers?limit=5")


def contract_with(page: str) -> Contract:
    return loaded(changed(FULL, PAGE, f'page = {{ query = "cursor", {page} }}'))


def call_of(contract: Contract = CONTRACT) -> Call:
    return contract.calls["customers"]


def signal_of(
    body: Any, contract: Contract = CONTRACT, headers: dict[str, str] | None = None
) -> Signal:
    call = call_of(contract)
    kept = {"Content-Type": "application/json", **(headers or {})}
    text = body if isinstance(body, str) else json.dumps(body)
    return read(reply(200, text, kept), contract, call, call.send, Facts({}, {}), NOW)


def turn_of(body: Any, contract: Contract = CONTRACT, **headers: str) -> Turn:
    signal = signal_of(body, contract, {k.replace("_", "-"): v for k, v in headers.items()})
    assert signal.meaning is Meaning.DONE, signal
    assert signal.turn is not None
    return signal.turn


def reading(most: int = 20, **changes: Any) -> Operation:
    """A read whose first page is out."""
    progress = Progress(most)
    return sending(Kind.CALL, RequestClass.READ, parent_id=None, search=progress.kept(), **changes)


def progress_of(op: Operation) -> Progress:
    progress = Progress.of(op)
    assert progress is not None
    return progress


def judge(op: Operation, signal: Signal) -> Verdict:
    return after_attempt(op, CONTRACT, call_of(), signal, NOW, MIDDLE)


def turning(cursor: str | None, *items: Any) -> Signal:
    turn = Turn(items, Onward(cursor))
    return Signal(Meaning.DONE, Certainty.APPLIED, status=200, answered=True, turn=turn)


def after(op: Operation, verdict: Verdict) -> Operation:
    """The operation as the ledger stores it."""
    changes: dict[str, Any] = {**verdict.changes, "state": advance(op.state, verdict.event)}
    return replace(op, **changes)


def follow(op: Operation, verdict: Verdict) -> Operation:
    """The operation with the next request reserved."""
    assert verdict.event is Event.POSTPONED
    delayed = after(op, verdict)
    attempts = replace(delayed.attempts, used=delayed.attempts.used + 1)
    return replace(delayed, attempts=attempts, state=State.SENDING, fence=op.fence + 1)


# --- what a page says -----------------------------------------------------------------------


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    ("page", "body", "cursor"),
    [
        ('at = "/next", items = "/data"', {"data": [1], "next": "b"}, "b"),
        ('at = "/next", items = "/data"', {"data": [1], "next": ""}, ""),
        ('at = "/next", items = "/data"', {"data": [1], "next": None}, None),
        ('at = "/next", items = "/data"', {"data": [1]}, None),
        ('at = "/next", items = "/data"', {"data": [], "next": "b"}, "b"),
        (
            'at = "/next", items = "/data"',
            '{"data":[],"next":12345678901234567}',
            "12345678901234567",
        ),
        (
            'at = "/next", more = "/more", items = "/data"',
            {"data": [], "next": "b", "more": False},
            None,
        ),
        (
            'at = "/next", more = "/more", items = "/data"',
            {"data": [], "next": "b", "more": True},
            "b",
        ),
        ('at = "/next", more = "/more", items = "/data"', {"data": [], "next": "b"}, None),
        ('item = "/id", items = "/data"', {"data": [{"id": 1}, {"id": 2}]}, "2"),
        ('item = "/id", items = "/data"', {"data": []}, None),
        ('at = "header:X-Next"', {}, "h"),
    ],
)
def test_where_a_page_says_that_the_next_begins(page: str, body: Any, cursor: str | None) -> None:
    assert turn_of(body, contract_with(page), X_Next="h").onward == Onward(cursor)


def test_more_without_a_cursor_is_lost() -> None:
    contract = contract_with('at = "/next", more = "/more", items = "/data"')
    assert turn_of({"data": [], "more": True}, contract).onward == Onward(lost=True)


def test_without_items_the_body_is_one_item() -> None:
    contract = contract_with('at = "/next"')
    assert turn_of({"a": "b"}, contract).items == ({"a": "b"},)
    assert turn_of("", contract).items == ()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"data": {}}, "/data is no list"),
        ({}, "/data is no list"),
        ("", "/data is no list"),
        ({"data": [], "next": ["b"]}, "the cursor at /next is no plain value"),
        ({"data": [], "next": "b" * 4_001}, "the cursor at /next has more than 4000 characters"),
        ("<html>", "the body is no JSON"),
    ],
)
def test_a_page_that_cannot_be_read_is_invalid_and_says_why(body: Any, why: str) -> None:
    signal = signal_of(body)
    assert signal.meaning is Meaning.INVALID
    assert why in signal.missing[0]
    verdict = judge(reading(), signal)
    assert (verdict.event, verdict.reason) == (Event.STOPPED, "invalid_response")
    assert "search" not in verdict.changes, "what was read stays"


# --- what follows ---------------------------------------------------------------------------


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    ("given_cursors", "most", "cut"),
    [
        ([None], 1, None),
        (["b", "c", None], 3, None),
        (["b", "c"], 2, Cut.BUDGET),
        (["b"], 1, Cut.BUDGET),
        (["b", "b"], 9, Cut.CYCLE),
        (["b", "c", "b"], 9, Cut.CYCLE),
        (["b", "b"], 2, Cut.CYCLE),
        (["", ""], 9, Cut.CYCLE),
        (["", "b", None], 9, None),
    ],
)
def test_a_read_goes_on_to_its_end_a_cycle_or_its_budget(
    given_cursors: list[str | None], most: int, cut: Cut | None
) -> None:
    op = reading(most)
    for cursor in given_cursors[:-1]:
        op = follow(op, judge(op, turning(cursor)))
    verdict = judge(op, turning(given_cursors[-1]))

    assert verdict.event is Event.SUCCEEDED
    assert verdict.story.get("cut") == cut
    assert verdict.story["page"] == len(given_cursors)
    ended = progress_of(after(op, verdict))
    assert ended.pages == tuple(range(3, 3 + len(given_cursors)))
    assert ended.budget == Budget(len(given_cursors), most)


def test_more_that_nothing_leads_to_cuts_the_read() -> None:
    turn = Turn((1,), Onward(lost=True))
    verdict = judge(reading(), replace(turning(None), turn=turn))
    assert (verdict.event, verdict.story["cut"]) == (Event.SUCCEEDED, Cut.NO_CURSOR)


def test_an_answer_that_a_rule_calls_empty_is_the_last_page() -> None:
    op = reading()
    op = follow(op, judge(op, turning("b", 1)))
    verdict = judge(op, Signal(Meaning.EMPTY, Certainty.APPLIED, status=404, answered=True))
    assert (verdict.event, verdict.story["page"]) == (Event.SUCCEEDED, 2)


@pytest.mark.requirement("R29")
def test_the_next_page_is_due_at_once_with_attempts_of_its_own() -> None:
    op = reading(attempts=Budget(3, 4))
    verdict = judge(op, turning("b"))

    assert verdict.changes["next_at"] == NOW
    assert verdict.changes["attempts"] == Budget(3, 7)
    delayed = after(op, verdict)
    assert (delayed.state, delayed.attempts.left) == (State.DELAYED, 4)
    assert (repeats(delayed), reads_on(delayed)) == (False, True)
    following = follow(op, verdict)
    assert (tried_before(following), reads_on(following)) == (0, True)
    again = replace(following, attempts=Budget(5, 7))
    assert (tried_before(again), repeats(again), reads_on(again)) == (1, True, False)


def test_attempts_that_a_person_granted_are_not_taken_away() -> None:
    verdict = judge(reading(attempts=Budget(1, 9)), turning("b"))
    assert verdict.changes["attempts"] == Budget(1, 9)


def test_the_waits_of_every_page_begin_anew() -> None:
    broken = Signal(Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED, status=503, answered=True)
    op = reading(attempts=Budget(3, 4), deadline_at=NOW + 5 * MINUTE)
    second_page = follow(op, judge(op, turning("b")))
    tried = (replace(op, attempts=Budget(1, 4)), op, second_page)
    delays = [judge(one, broken).changes["delay"] for one in tried]
    assert delays == [SECOND // 2, 2 * SECOND, SECOND // 2]


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "", None]), min_size=1, max_size=12))
def test_no_read_takes_more_pages_than_it_may_or_a_cursor_twice(given: list[str | None]) -> None:
    op = reading(5)
    sent: list[str | None] = [None]
    cursors = iter([*given, None])
    while (verdict := judge(op, turning(next(cursors)))).event is not Event.SUCCEEDED:
        op = follow(op, verdict)
        plain = json.loads(json.dumps(op.search))
        assert Progress.of(replace(op, search=plain)) == Progress.of(op)
        sent.append(progress_of(op).cursor)
    assert len(sent) == len(set(sent)) <= 5


def test_an_operation_without_pages_is_none_of_it() -> None:
    op = sending(Kind.CALL, RequestClass.READ, parent_id=None)
    assert Progress.of(op) is None
    assert (reads_on(op), tried_before(op), repeats(op)) == (False, 0, True)
    assert judge(op, turning("b")).event is Event.SUCCEEDED
    assert turned(FIRST, op, call_of()) is FIRST


# --- requests and results -------------------------------------------------------------------


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    ("url", "cursor", "expected"),
    [
        ("https://a.test/l", "b", "https://a.test/l?cursor=b"),
        ("https://a.test/l?limit=5", "b", "https://a.test/l?limit=5&cursor=b"),
        ("https://a.test/l?cursor=a&limit=5", "b", "https://a.test/l?limit=5&cursor=b"),
        ("https://a.test/l?c%75rsor=a", "b", "https://a.test/l?cursor=b"),
        ("https://a.test/l", "", "https://a.test/l?cursor="),
        (
            "https://a.test/l",
            "a b&c=d#/?+%é",
            "https://a.test/l?cursor=a%20b%26c%3Dd%23%2F%3F%2B%25%C3%A9",
        ),
    ],
)
def test_the_request_of_a_page_is_the_first_one_with_its_cursor(
    url: str, cursor: str, expected: str
) -> None:
    op = reading()
    op = replace(op, search=replace(Progress(5), cursor=cursor).kept())
    first = Outbound("GET", url, (("Accept", "application/json"),), max_bytes=7)
    assert turned(first, op, call_of()) == replace(first, url=expected)


def test_the_first_page_is_the_stored_request() -> None:
    assert turned(FIRST, reading(), call_of()) is FIRST


def test_without_the_contracts_word_there_is_no_next_page() -> None:
    op = replace(reading(), search=replace(Progress(5), cursor="b").kept())
    with pytest.raises(RenderError, match="no longer says how to read further pages"):
        turned(FIRST, op, replace(call_of(), page=None))


@pytest.mark.parametrize(
    ("url", "cursor", "cut"),
    [
        ("https://a.test/l?cursor=a%20b", "a b", Cut.CYCLE),
        ("https://a.test/l?cursor=", "", Cut.CYCLE),
        ("https://a.test/l?other=a", "a", None),
    ],
)
def test_the_cursor_of_the_first_request_is_not_used_again(
    url: str, cursor: str, cut: Cut | None
) -> None:
    page = call_of().page
    assert isinstance(page, Paging)
    progress = Progress.begin(page, Outbound("GET", url))
    assert progress.after(Turn((), Onward(cursor)), reading()).cut is cut


def test_items_keep_the_text_of_their_numbers() -> None:
    body = '{"data":[12345678901234567890,1.0,1e5,-0,{"id":9007199254740993},"é\\ud800",null,true]}'
    turn = turn_of(body)
    expected = body[len('{"data":') : -1].encode()
    assert items_text(turn) == expected
    assert decode(items_text(turn)) == decode(expected)


@given(st.lists(st.lists(st.integers() | st.text() | st.none(), max_size=4), max_size=5))
def test_pages_are_joined_in_order_whatever_is_empty(pages: list[list[Any]]) -> None:
    bodies = [items_text(Turn(tuple(page))) for page in pages]
    assert json.loads(joined(bodies)) == [item for page in pages for item in page]
