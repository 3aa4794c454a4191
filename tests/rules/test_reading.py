"""Strict JSON, places, state words, conditions, required fields, addresses."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.rules.answering import CONTRACT, FACTS, NOW, reply, rows

from forbear.rules.contract import Condition, Fold, Match, Requirement, Row, Select, States
from forbear.rules.contract import Test as StateTest
from forbear.rules.model import JobClass
from forbear.rules.notation import parse_pointer, parse_source, parse_template
from forbear.rules.ports import Json, Number
from forbear.rules.reading import (
    Answer,
    answer_of,
    classify,
    equal,
    foreign,
    holds,
    holds_for,
    missing_fields,
    read_origin,
    refuse_url,
    value_at,
)
from forbear.rules.values import MISSING, Gap, Unreadable, decode, locate, number_text, text_of

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=10)
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner)
    ),
    max_leaves=12,
)


def answer(body: str, status: int = 200, **headers: str) -> Answer:
    return answer_of(reply(status, body, headers))


# --- decoding -------------------------------------------------------------------------------


def as_text(value: Json) -> Json:
    """A Python value as `decode` would give it, numbers as the text Python writes."""
    match value:
        case bool() | None | str():
            return value
        case int() | float():
            return Number(json.dumps(value))
        case list():
            return [as_text(one) for one in value]
        case _:
            return {name: as_text(one) for name, one in value.items()}


@given(documents)
@example(5e-324)
@example(1.7976931348623157e308)
def test_a_document_is_read_as_it_was_written(document: Json) -> None:
    assert decode(json.dumps(document).encode()) == as_text(document)
    assert decode(b"\xef\xbb\xbf" + json.dumps(document, ensure_ascii=False).encode()) == (
        as_text(document)
    )


json_like = st.text(alphabet='[]{}",:\\ue0127.-nulltrefasNIy ').map(str.encode)


@given(st.binary(max_size=200) | json_like)
def test_decoding_gives_json_or_the_one_error(body: bytes) -> None:
    with suppress(Unreadable):
        value = decode(body)
        assert value is None or json.loads(body.decode("utf-8-sig")) is not None


@pytest.mark.requirement("W16")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b" \n", "empty", id="blank"),
        pytest.param(b"<html>", "stops being JSON at character 0", id="BO-02"),
        pytest.param(b'{"a":NaN}', "NaN", id="BO-06 NaN"),
        pytest.param(b'{"a":-Infinity}', "-Infinity", id="BO-06 Infinity"),
        pytest.param(b'{"n":1e999}', "out of range", id="BO-06 1e999"),
        pytest.param(b'{"n":1e99999}', "out of range", id="a longer exponent"),
        pytest.param(b"9" * 5_000, "more than 128", id="5000 digits"),
        pytest.param(b'{"a":1,"a":2}', "twice", id="a name twice"),
        pytest.param(b"[" * 100_000, "nested deeper than 64", id="deep arrays"),
        pytest.param(b'{"a":' * 100_000, "nested deeper than 64", id="deep objects"),
        pytest.param(b'{"a":1', "stops being JSON at character 6", id="BO-10"),
        pytest.param(b'{"a":1}{', "stops being JSON", id="two documents"),
        pytest.param("{}".encode("utf-16"), "UTF-8", id="UTF-16"),
        pytest.param(b'{"a":"\n"}', "stops being JSON", id="a raw control character"),
        pytest.param(b"{'a':1}", "stops being JSON", id="single quotes"),
        pytest.param(b'"' + b'\\"' * 500_000, "stops being JSON", id="half a megabyte of quotes"),
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        decode(body, "text/html; charset=utf-8")


def test_brackets_inside_texts_are_no_nesting() -> None:
    assert decode(json.dumps(["[{" * 500, '\\"[' * 100]).encode())
    assert decode(b"[" * 64 + b"]" * 64)
    assert len(decode(b"[" + b",".join([b"[]"] * 1_000) + b"]")) == 1_000


def test_BO_03_numbers_keep_every_digit() -> None:
    read = decode(b'{"id":9007199254740993,"other":9007199254740993.0,"one":1.0}')
    assert [text_of(value) for value in read.values()] == [
        "9007199254740993",
        "9007199254740993.0",
        "1.0",
    ]


def test_half_a_surrogate_pair_can_be_stored() -> None:
    assert text_of(decode(b'"a\\ud83d"')) == "a?"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (Number("1.0"), "1.0"),
        (7, "7"),
        (125.0, "125"),
        (0.1, "0.1"),
        ("", ""),
        (None, None),
        ([], None),
        ({}, None),
        (MISSING, None),
        (float("nan"), None),
    ],
)
def test_text_is_exact_and_only_scalars_have_it(value: Json, text: str | None) -> None:
    assert text_of(value) == text


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None))
def test_the_shortest_text_of_a_number_is_that_number(number: Decimal) -> None:
    assert Decimal(number_text(number)) == number


# --- places ---------------------------------------------------------------------------------

BODY = decode(
    b'{"a":{"b":[10,{"c":null}]},"":1,"x/y":2,"m~n":3,"01":4,'
    b'"conditions":[{"type":"Ready","status":"False"},{"type":"Done","status":"True"}]}'
)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/a/b/0", "10"),
        ("/a/b/1/c", None),
        ("/", "1"),
        ("/x~1y", "2"),
        ("/m~0n", "3"),
        ("/01", "4"),
        ("/conditions/[type=Done]/status", "True"),
        ("/conditions/[type=Gone]/status", MISSING),
        ("/a/b/2", MISSING),
        ("/a/b/00", MISSING),
        ("/a/b/-", MISSING),
        ("/a/b/-1", MISSING),
        ("/a/b/1/c/d", MISSING),
        ("/a/b/0/c", MISSING),
        ("/nothing", MISSING),
        ("/a/[type=x]", MISSING),
    ],
)
def test_missing_null_and_a_value_are_three_things(pointer: str, value: Json) -> None:
    assert locate(BODY, parse_pointer(pointer)) == value


steps = st.text(max_size=3) | st.builds(Select, st.text(max_size=2), st.text(max_size=2))


@given(documents, st.lists(steps, max_size=4))
def test_locating_never_raises(document: Json, path: list[str | Select]) -> None:
    pointer = replace(parse_pointer(""), steps=tuple(path))
    assert path or locate(document, pointer) == document
    locate(document, pointer)


def test_headers_and_status_are_places_too() -> None:
    got = answer_of(
        replace(reply(202, "{}"), headers=(("Link", "<a>"), ("X-Job", ""), ("LINK", "<b>")))
    )
    assert value_at(got, parse_source("header:link")) == "<a>, <b>"
    assert value_at(got, parse_source("header:X-Job")) == ""
    assert value_at(got, parse_source("header:X-None")) is MISSING
    assert value_at(got, parse_source("http")) == "202"


# --- states ---------------------------------------------------------------------------------


def states(*reads: str, table: tuple[Row, ...], ignore_case: bool = False) -> States:
    return States(tuple(parse_source(one) for one in reads), table, ignore_case)


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("body", "means"),
    [
        ('{"s":20}', JobClass.WAITING),
        ('{"s":30}', JobClass.SUCCEEDED),
        ('{"s":"30"}', JobClass.SUCCEEDED),
        ('{"s":true}', JobClass.FAILED),
        ('{"s":30.0}', None),
        ('{"s":2}', None),
        ('{"s":"True"}', None),
    ],
)
def test_numbers_and_booleans_are_compared_as_exact_text(body: str, means: JobClass | None) -> None:
    table = rows(waiting=("1", "20"), succeeded="30", failed="true")
    assert classify(states("/s", table=table), answer(body), FACTS)[1] is means


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("body", "words", "means"),
    [
        ('{"a":"completed","b":"success"}', "completed · success", JobClass.SUCCEEDED),
        ('{"a":"completed","b":"odd"}', "completed · odd", JobClass.FAILED),
        ('{"a":"queued","b":null}', "queued · %null", JobClass.WAITING),
        ('{"a":"queued"}', "queued · %missing", JobClass.BLOCKED),
        ('{"a":"paused"}', "paused · %missing", JobClass.CANCELLED),
        ('{"a":"paused","b":null}', "paused · %null", JobClass.CANCELLED),
        ('{"a":"paused","b":""}', "paused · ", None),
        ('{"a":"other","b":"success"}', "other · success", None),
    ],
)
def test_combined_states_and_exact_beats_anything(
    body: str, words: str, means: JobClass | None
) -> None:
    table = (
        Row(("completed", "*"), JobClass.FAILED),
        Row(("completed", "success"), JobClass.SUCCEEDED),
        Row(("queued", "%none"), JobClass.EXPIRED),
        Row(("queued", "%null"), JobClass.WAITING),
        Row(("queued", "%missing"), JobClass.BLOCKED),
        Row(("paused", "%none"), JobClass.CANCELLED),
    )
    assert classify(states("/a", "/b", table=table), answer(body), FACTS) == (words, means)


def test_case_counts_unless_the_contract_says_otherwise() -> None:
    table = rows(succeeded="Succeeded")
    strict, loose = (states("/s", table=table, ignore_case=case) for case in (False, True))
    assert classify(strict, answer('{"s":"SUCCEEDED"}'), FACTS)[1] is None
    assert classify(loose, answer('{"s":"SUCCEEDED"}'), FACTS)[1] is JobClass.SUCCEEDED


def test_a_word_of_the_provider_is_never_taken_for_a_gap() -> None:
    table = rows(waiting="%missing", failed="%null")
    assert classify(states("/s", table=table), answer('{"s":"%missing"}'), FACTS)[1] is None
    assert classify(states("/s", table=table), answer("{}"), FACTS)[1] is JobClass.WAITING


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("words", "worst", "means"),
    [
        (["succeeded", "running", "failed"], "failed", JobClass.FAILED),
        (["succeeded", "running"], "running", JobClass.WAITING),
        (["succeeded", "succeeded"], "succeeded", JobClass.SUCCEEDED),
        (["succeeded", "odd", "failed"], "odd", None),
        (["succeeded", None], "%null", None),
        ([], "%missing", None),
    ],
)
def test_the_worst_word_of_an_array_counts(
    words: list[str | None], worst: str, means: JobClass | None
) -> None:
    fold = Fold(
        parse_pointer("/outputs"), parse_pointer("/status"), ("failed", "running", "succeeded")
    )
    table = States((fold,), rows(failed="failed", waiting="running", succeeded="succeeded"), False)
    body = json.dumps({"outputs": [{"status": word} for word in words]})
    assert classify(table, answer(body), FACTS) == (worst, means)


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("test", "field", "word"),
    [
        ("present", "0", "yes"),
        ("present", '""', "yes"),
        ("present", "null", "no"),
        ("positive", "3", "yes"),
        ("positive", "0", "no"),
        ("positive", '"0.5"', "yes"),
        ("positive", "-1", "no"),
        ("positive", '"many"', "%unreadable"),
        ("positive", "true", "%unreadable"),
        ("after_submit", '"2026-11-30T11:50:00Z"', "yes"),
        ("after_submit", '"2026-11-30T11:49:59Z"', "no"),
        ("after_submit", "null", "no"),
        ("after_submit", '"yesterday"', "%unreadable"),
    ],
)
def test_tests_read_as_yes_or_no(test: str, field: str, word: str) -> None:
    table = States((StateTest(parse_pointer("/f"), test),), ())
    facts = replace(FACTS, submitted_at=NOW - 600_000 + 400)
    assert classify(table, answer(f'{{"f":{field}}}'), facts)[0] == word


def test_after_submit_compares_on_the_providers_clock() -> None:
    table = States((StateTest(parse_pointer("/f"), "after_submit"),), ())
    late = answer('{"f":"2026-11-30T11:55:00Z"}', Date="Mon, 30 Nov 2026 12:10:00 GMT")
    assert classify(table, late, FACTS)[0] == "no"


# --- conditions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition(values=("quota", "credit")), True),
        (Condition(values=("burst",)), False),
        (Condition(values=("*",)), False),
        (Condition(values=("%none",)), False),
        (Condition(contains="uot"), True),
        (Condition(contains="x"), False),
        (Condition(present=True), True),
        (Condition(present=False), False),
        (Condition(template=parse_template("{arg.word}")), True),
        (Condition(template=parse_template("{arg.absent}")), False),
    ],
)
def test_conditions_on_a_value(condition: Condition, expected: bool) -> None:
    facts = replace(FACTS, arguments={"word": "quota"})
    match = Match(((parse_pointer("/code"), condition),))
    assert holds(match, answer('{"code":"quota"}'), facts) is expected


def test_all_terms_must_hold_and_a_page_meets_none() -> None:
    both = Match(
        (
            (parse_source("http"), Condition(values=("403",))),
            (parse_pointer("/code"), Condition(values=("%none",))),
        )
    )
    assert holds(both, answer("{}", 403), FACTS)
    assert holds(both, answer("", 403), FACTS)
    assert not holds(both, answer("{}", 404), FACTS)
    assert not holds(both, answer("<html>", 403), FACTS)


def test_one_item_of_a_list_is_matched_from_its_own_root() -> None:
    match = Match(((parse_pointer("/ref"), Condition(template=parse_template("{ref}"))),))
    items = decode(b'[{"ref":"fb-ref-1"},{"ref":"fb-ref-2"},{}]')
    assert [holds_for(match, item, FACTS) for item in items] == [True, False, False]


@pytest.mark.requirement("W07")
@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (Number("12500"), 12500, True),
        (Number("12500.00"), 12500.0, True),
        (Number("9007199254740993.0"), 9007199254740992, False),
        ("12500", 12500, True),
        (Number("7"), "7", True),
        (Number("7.0"), "7", False),
        (True, "true", True),
        (None, "null", False),
        ([], "", False),
    ],
)
def test_an_echo_is_ours_by_value_or_by_exact_text(value: Json, expected: Json, same: bool) -> None:
    assert equal(value, expected) is same


def test_what_we_do_not_know_is_not_compared() -> None:
    echo = ((parse_pointer("/x"), parse_template("{arg.unknown}")),)
    assert foreign(echo, answer('{"x":1}'), FACTS) is None


# --- required fields and addresses ----------------------------------------------------------


@pytest.mark.requirement("W16")
@pytest.mark.parametrize(
    ("kind", "fine", "lacking"),
    [
        ("present", ['""', "[]", "{}", "0", "false"], ["null"]),
        ("string", ['""', '"a"'], ["1", "{}", "true", "null"]),
        ("integer", ["0", "-7", "9007199254740993"], ["1.0", '"1"', "true", "1e3"]),
        ("non_empty", ['"a"', "[1]", '{"a":1}', "0"], ['""', "[]", "{}", "null"]),
        ("url", ['"https://api.exp.example/x"'], ['"x"', "7", "{}", '""']),
    ],
)
def test_required_fields_have_a_type(kind: str, fine: list[str], lacking: list[str]) -> None:
    required = (Requirement(parse_pointer("/f"), kind),)

    def lacks(field: str) -> bool:
        body = answer(f'{{"f":{field}}}')
        return bool(missing_fields(required, (), body, CONTRACT, ()))

    assert [lacks(field) for field in fine] == [False] * len(fine)
    assert [lacks(field) for field in lacking] == [True] * len(lacking)
    assert missing_fields(required, (), answer("{}"), CONTRACT, ()) == ("/f is missing",)


@pytest.mark.requirement("W16")
@pytest.mark.parametrize(
    "url",
    [
        "https://api.exp.example/v1/x?sig=a%2Fb&se=1",
        "https://API.exp.example:443/x",
        "https://files.exp.example/r/1",
        "https://eu1.blob.example/c/d",
        "https://extra.example:8443/x",
    ],
)
def test_addresses_on_allowed_hosts_pass(url: str) -> None:
    assert refuse_url(url, CONTRACT, ("extra.example:8443",)) is None


@pytest.mark.requirement("W16", "W21")
@pytest.mark.parametrize(
    "url",
    [
        "http://api.exp.example/v1",
        "https://api.exp.example:8443/",
        "https://evil.example/",
        "https://files.exp.example.evil.example/",
        "https://files.exp.example@evil.example/",
        "https://evil.example\\@files.exp.example/",
        "https://evil.example#@files.exp.example/",
        "https://files.exp.example./",
        "https://blob.example/",
        "https://a.b.blob.example/",
        "https://.blob.example/",
        "https://xblob.example/",
        "https://extra.example/",
        "//files.exp.example/",
        "/r/1",
        "files.exp.example/r",
        "javascript:alert(1)",
        "ftp://files.exp.example/",
        "https://files.exp.example /",
        "https://files.exp.example/\r\nX: y",
        "https://files.exp.example/\u202e",
        "https://f\u0131les.exp.example/",
        "https://[::1]/",
        "https://files.exp.example/" + "a" * 9_000,
        "",
    ],
)
def test_every_other_address_is_refused(url: str) -> None:
    assert refuse_url(url, CONTRACT, ("extra.example:8443",))


def test_plain_http_is_for_loopback_alone() -> None:
    local = replace(CONTRACT, base_url="http://127.0.0.1:8080")
    assert refuse_url("http://127.0.0.1:8080/r", local) is None
    assert refuse_url("http://127.0.0.1:8081/r", local)
    assert refuse_url("https://127.0.0.1:8080/r", local)
    assert refuse_url("http://localhost:9000/r", local, ("localhost:9000",)) is None
    assert refuse_url("http://files.exp.example:80/r", local, ("files.exp.example:80",))


@given(st.text(max_size=60) | st.from_regex(r"https?://[a-z.@:\[\]/?#\\-]{0,30}"))
def test_reading_an_origin_never_raises(url: str) -> None:
    origin = read_origin(url)
    assert origin is None or url.lower().startswith(f"{origin[0]}://{origin[1]}")


def test_an_unreadable_body_is_a_gap_with_its_reason() -> None:
    page = answer("<html>")
    assert value_at(page, parse_pointer("/a")) is Gap.UNREADABLE
    assert page.problem is not None
    assert "no JSON" in page.problem
