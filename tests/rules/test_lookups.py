"""One page of a lookup: which items are ours, what they say, and whether there is more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.answering import reply
from tests.rules.contracts import FULL, changed, loaded

from forbear.rules.contract import Action, Contract
from forbear.rules.facts import Facts
from forbear.rules.lookups import Page
from forbear.rules.ports import Reply
from forbear.rules.signals import Meaning, Signal, read

NOW = 1_796_040_000_000
CONTRACT = loaded(FULL)
FACTS = Facts(
    arguments={"dataset": "sales-2026", "amount": 12500, "currency": "EUR", "to": "acct_42"},
    account={"id": "acct_17"},
    ref="fb-k3v7q2",
    submitted_at=NOW - 60_000,
)
OURS = {"job_id": "exp_71c", "client_ref": "fb-k3v7q2", "id": "i1"}
OTHER = {"job_id": "exp_99", "client_ref": "fb-other", "id": "i2"}


def action_of(name: str, contract: Contract = CONTRACT) -> Action:
    action = contract.action(name)
    assert action is not None
    return action


def answered(body: Any, status: int = 200) -> Reply:
    return reply(status, json.dumps(body), {"Content-Type": "application/json"})


def looked(answer: Reply, name: str = "export", contract: Contract = CONTRACT) -> Signal:
    action = action_of(name, contract)
    assert action.lookup is not None
    return read(answer, contract, action, action.lookup.request, FACTS, NOW)


def page_of(body: Any, name: str = "export", contract: Contract = CONTRACT) -> Page:
    signal = looked(answered(body), name, contract)
    assert signal.meaning is Meaning.DONE
    assert signal.page is not None
    return signal.page


@pytest.mark.requirement("R25")
def test_only_items_with_our_reference_are_ours() -> None:
    page = page_of({"data": [OTHER, OURS], "has_more": False})
    assert page == Page(({"id": "exp_71c"},))
    assert page_of({"data": [OTHER]}) == Page()
    assert page_of({"data": []}) == Page()
    assert len(page_of({"data": [OURS, OURS]}).matches) == 2


@pytest.mark.parametrize(
    "body",
    [{}, {"data": None}, {"data": {"0": OURS}}, {"data": "exp_71c"}, [], 7],
    ids=["missing", "null", "object", "text", "list", "number"],
)
def test_without_a_list_nothing_is_proven(body: Any) -> None:
    assert not page_of(body).readable


@pytest.mark.parametrize("status", [404, 429, 500, 401])
def test_an_answer_that_is_no_success_has_no_page(status: int) -> None:
    assert looked(answered({"data": []}, status)).page is None


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("body", "more"),
    [
        ({"data": [OTHER, OURS], "has_more": True}, "i1"),
        ({"data": [OTHER, OURS], "has_more": False}, None),
        ({"data": [OTHER, OURS]}, None),
        ({"data": [{"id": ""}], "has_more": True}, ""),
        ({"data": [{"id": 7}], "has_more": True}, "7"),
    ],
    ids=["more", "end", "no-flag", "empty-cursor", "number"],
)
def test_the_last_item_is_the_cursor_while_there_is_more(
    body: dict[str, Any], more: str | None
) -> None:
    assert page_of(body).more == more


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("items", [[], [{}]], ids=["no-item", "no-cursor"])
def test_a_page_that_promises_more_and_does_not_say_where_is_not_the_end(items: list[Any]) -> None:
    page = page_of({"data": items, "has_more": True})
    assert (page.more, page.readable) == (None, False)


NEXT = loaded(
    changed(
        FULL,
        'page = { query = "after", item = "/id", more = "/has_more", max_pages = 3 }',
        'page = { query = "after", at = "/next", max_pages = 3 }',
    )
)


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("body", "more"),
    [({"next": "p2"}, "p2"), ({"next": ""}, ""), ({"next": None}, None), ({}, None)],
    ids=["text", "empty", "null", "missing"],
)
def test_a_stated_cursor_is_followed_even_if_it_is_empty(
    body: dict[str, Any], more: str | None
) -> None:
    assert page_of({"data": [], **body}, contract=NEXT).more == more


def test_a_cursor_that_is_no_plain_value_is_not_the_end() -> None:
    page = page_of({"data": [], "next": {"after": "p2"}}, contract=NEXT)
    assert (page.more, page.readable) == (None, False)


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("amount", "differs"),
    [({"amount": 12500}, False), ({"amount": 99}, True), ({}, False)],
    ids=["equal", "other", "unsaid"],
)
def test_a_match_that_contradicts_what_was_sent_is_another_effect(
    amount: dict[str, Any], differs: bool
) -> None:
    item = {"id": "tr_1", "reference": "fb-k3v7q2", **amount}
    foreign = {"id": "tr_2", "reference": "fb-other", "amount": 1}
    page = page_of({"data": [foreign, item]}, "transfer")
    assert page.matches == ({"id": "tr_1"},)
    assert page.differing is differs


def test_without_items_the_body_is_the_item() -> None:
    by_id = changed(FULL, 'items = "/data"\nmatch = { "/reference"', 'match = { "/reference"')
    contract = loaded(by_id)
    item = {"id": "tr_1", "reference": "fb-k3v7q2"}
    assert page_of(item, "transfer", contract).matches == ({"id": "tr_1"},)
    assert page_of({"reference": "fb-other"}, "transfer", contract) == Page()


def test_a_page_is_asked_for_by_its_cursor() -> None:
    lookup = action_of("export").lookup
    assert lookup is not None
    assert lookup.paged(None) == lookup.request
    name, template = lookup.paged("").query[-1]
    assert (name, template.text, template.names) == ("after", "", frozenset())
    assert replace(lookup, page=None).paged("p2") == lookup.request


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["data", "id", "client_ref", "has_more"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_body_is_read_and_a_stranger_is_never_ours(body: Any) -> None:
    signal = looked(answered(body))
    assert signal.page is None or signal.page.matches == ()
