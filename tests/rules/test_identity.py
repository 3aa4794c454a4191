"""Canonical text and the three digests."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.test_reading import documents

from forbear.rules.identity import (
    canonical,
    failure_digest,
    intent_digest,
    request_digest,
    wire_key,
)
from forbear.rules.ports import Json, Number, Outbound

KEY = b"k" * 32


def intent(arguments: dict[str, Any], identity: tuple[str, ...] | None = None, **more: str) -> str:
    who = {"provider": "exp", "account": "a", "action": "export", "method": "POST"} | more
    return intent_digest(KEY, **who, arguments=arguments, identity=identity)


# --- canonical text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ([1, 1.0, Decimal("1.00"), Number("1e0"), Number("10E-1")], "[1,1,1,1,1]"),
        (12345678901234567, "12345678901234567"),
        (12345678901234568, "12345678901234568"),
        (Number("12345678901234567.0"), "12345678901234567"),
        (
            [0.1, 1e21, 1e-7, 1e20, -0.0, 0.000001],
            "[0.1,1e+21,1e-7,100000000000000000000,0,0.000001]",
        ),
        (Number("12345678901234567890123"), "1.2345678901234567890123e+22"),
        ('€$\u000f\nA\'B"\\\\"/\x7f', '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f"'),
        (
            {"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "1": 4},
            '{"1":4,"\u20ac":3,"\U0001f600":2,"\ufb33":1}',
        ),
        ((), "[]"),
    ],
)
def test_there_is_one_spelling(value: Json, text: str) -> None:
    assert canonical(value) == text


@given(documents)
def test_canonical_text_is_stable_json_that_means_the_same(document: Json) -> None:
    text = canonical(document)
    again = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert canonical(again) == text
    assert canonical(json.loads(json.dumps(document))) == text


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers()))
def test_the_order_of_keys_makes_no_difference(document: dict[str, int]) -> None:
    backwards = dict(reversed(document.items()))
    assert canonical(backwards) == canonical(document)


@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40))
def test_different_numbers_have_different_text(one: int, other: int) -> None:
    assert (canonical(one) == canonical(other)) == (one == other)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        Decimal("-Infinity"),
        "\ud800",
        {"\udc00": 1},
        {1: 2},
        {"a": b"bytes"},
        object(),
    ],
)
def test_what_json_cannot_say_is_refused(value: Json) -> None:
    with pytest.raises(ValueError, match=r"text|number"):
        canonical(value)


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    deep: Json = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper"):
        canonical(deep)


# --- intent ---------------------------------------------------------------------------------


@pytest.mark.requirement("R20")
def test_spelling_makes_no_other_intent() -> None:
    one = intent({"a": 1, "b": {"x": 1.0, "y": [2]}})
    assert one == intent({"b": {"y": [2.0], "x": 1}, "a": Decimal("1.0")})
    assert len(one) == 64
    assert one == one.lower()


@pytest.mark.requirement("R20")
def test_every_part_of_an_intent_counts() -> None:
    arguments = {"id": 12345678901234567}
    digests = [
        intent(arguments),
        intent({"id": 12345678901234568}),
        intent({"id": "12345678901234567"}),
        intent({**arguments, "extra": None}),
        intent(arguments, provider="exp2"),
        intent(arguments, account="b"),
        intent(arguments, action="export2"),
        intent(arguments, method="PUT"),
        intent_digest(b"x" * 32, "exp", "a", "export", "POST", arguments, None),
    ]
    assert all(one != other for one, other in combinations(digests, 2))


@pytest.mark.requirement("R20")
def test_identity_narrows_what_counts() -> None:
    narrow = ("dataset",)
    assert intent({"dataset": "a", "note": 1}, narrow) == intent({"dataset": "a"}, narrow)
    assert intent({"dataset": "a"}, narrow) != intent({"dataset": "b"}, narrow)
    assert intent({"dataset": "a", "note": 1}) != intent({"dataset": "a"})


# --- request and failure --------------------------------------------------------------------

SENT = Outbound("POST", "https://api.exp.example/x", (("A", "1"), ("B", "2")), b"{}")


@pytest.mark.requirement("R20")
def test_the_request_is_its_exact_bytes() -> None:
    def changed(**parts: Any) -> str:
        whole = {"method": SENT.method, "url": SENT.url, "headers": SENT.headers, "body": SENT.body}
        return request_digest(Outbound(**(whole | parts)), "s")

    same = changed()
    assert same == request_digest(SENT, "s")
    others = [
        changed(method="PUT"),
        changed(url=SENT.url + "?"),
        changed(headers=SENT.headers[:1]),
        changed(body=b"{ }"),
        changed(body=None),
        changed(body=b""),
        request_digest(SENT, "t"),
    ]
    assert len({same, *others}) == 8


@pytest.mark.requirement("R20")
@pytest.mark.parametrize("name", ["Authorization", "Date", "traceparent", "Cookie", "User-Agent"])
def test_secrets_and_volatile_headers_are_in_no_request_digest(name: str) -> None:
    more = Outbound(SENT.method, SENT.url, (*SENT.headers, (name, "x")), SENT.body)
    assert request_digest(more, "s") == request_digest(SENT, "s")


def test_the_order_and_case_of_header_names_make_no_other_request() -> None:
    turned = Outbound(SENT.method, SENT.url, (("b", "2"), ("a", "1")), SENT.body)
    assert request_digest(turned, "s") == request_digest(SENT, "s")


@pytest.mark.requirement("R20")
def test_a_failure_is_its_intent_and_its_normal_code() -> None:
    one = failure_digest("i", "Invalid_Amount")
    assert one == failure_digest("i", " invalid_amount\n")
    assert one != failure_digest("i", "invalid_currency")
    assert one != failure_digest("j", "Invalid_Amount")
    assert failure_digest("i", None) == failure_digest("i", "")


# --- the provider's key ---------------------------------------------------------------------


def test_a_key_has_the_providers_format() -> None:
    token = "abcdefghijklmnopqrstuvwxyz"
    made = wire_key("uuid", 255, token)
    assert (len(made), made[14], made[19] in "89ab") == (36, "4", True)
    assert made == wire_key("uuid", 36, token)
    assert made != wire_key("uuid", 36, token + "2")
    assert wire_key("text", 20, token) == token[:20]
    assert wire_key("sf-string", 255, token) == token


@pytest.mark.parametrize(("format", "length"), [("uuid", 35), ("text", 15), ("sf-string", 8)])
def test_a_limit_too_short_for_a_safe_key_is_refused(format: str, length: int) -> None:
    with pytest.raises(ValueError, match="characters"):
        wire_key(format, length, "abcdefghijklmnopqrstuvwxyz")
