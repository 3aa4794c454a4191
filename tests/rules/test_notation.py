"""The small notations: what they mean and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.contract import Header, HttpStatus, Placeholder, Select
from forbear.rules.notation import (
    parse_duration,
    parse_pointer,
    parse_rate,
    parse_source,
    parse_template,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("5s", 5_000), ("40m", 2_400_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_durations_are_milliseconds(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 s", "-5s", "1.5h", "5S", "5s ", "\u0665s", "9999d"]
)
def test_what_is_no_duration_is_refused_with_a_fix(text: str) -> None:
    with pytest.raises(ValueError, match="; "):
        parse_duration(text)


def test_rates_are_requests_per_milliseconds() -> None:
    assert parse_rate("60/1m") == (60, 60_000)


@pytest.mark.parametrize("text", ["60", "60/m", "0/1s", "5/0s", "60/1m/x", "-1/1s", "6.5/1s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="60/1m"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", ()),
        ("/", ("",)),
        ("/a/b", ("a", "b")),
        ("/a~1b/~0c", ("a/b", "~c")),
        ("/~01", ("~1",)),
        ("/items/0", ("items", "0")),
        ("/c/[type=Ready]/status", ("c", Select("type", "Ready"), "status")),
        ("/c/[a~1b=x~1y=z]", ("c", Select("a/b", "x/y=z"))),
        ("/c/[k=]", ("c", Select("k", ""))),
    ],
)
def test_pointers_are_steps_and_selections(text: str, steps: tuple[str | Select, ...]) -> None:
    assert parse_pointer(text).steps == steps


@pytest.mark.parametrize("text", ["a", "$.a", "/a~", "/a~2", "/[a]", "/[=x]", "/x[a=b]", "/[a=b"])
def test_what_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="; "):
        parse_pointer(text)


@given(st.lists(st.text(max_size=8).filter(lambda s: not s.startswith("[") and s[-1:] != "]")))
def test_every_plain_path_has_a_pointer(keys: list[str]) -> None:
    text = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)
    assert parse_pointer(text).steps == tuple(keys)


def test_sources_are_pointers_headers_or_the_status() -> None:
    assert parse_source("header:Retry-After") == Header("Retry-After")
    assert parse_source("http") == HttpStatus()
    assert parse_source("/a") == parse_pointer("/a")


@pytest.mark.parametrize("text", ["", "a", "header:", "header:a b", "HTTP", "body:/a"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="; "):
        parse_source(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain", ("plain",)),
        ("{arg.a}", (Placeholder("arg.a"),)),
        ("x/{+take.u-1}/y", ("x/", Placeholder("take.u-1", raw=True), "/y")),
        ("{submitted_at-60s}", (Placeholder("submitted_at", offset=-60_000),)),
        ("{submitted_at+1m:epoch}", (Placeholder("submitted_at", format="epoch", offset=60_000),)),
        ("{arg.n:minor(cur)}", (Placeholder("arg.n", format="minor(cur)"),)),
        ("{ref}{key}{id}", (Placeholder("ref"), Placeholder("key"), Placeholder("id"))),
        ("query { node }", ("query { node }",)),
        ("a}b", ("a}b",)),
    ],
)
def test_templates_are_text_and_placeholders(
    text: str, parts: tuple[str | Placeholder, ...]
) -> None:
    found = parse_template(text)
    assert found.parts == parts
    assert found.text == text


@pytest.mark.parametrize(
    "text",
    ["{", "{}", "{arg}", "{arg.}", "{dataset}", "{arg.a", "{{arg.a}}", "{ARG.a}", "{arg.a.b}",
     "{arg.a:upper}", "{ref-5s}", "{submitted_at-5}", "{id:minor()}", "{/result/url}"],
)  # fmt: skip
def test_a_brace_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"; |closes"):
        parse_template(text)


@given(st.text())
def test_every_text_is_a_template_or_a_plain_refusal(text: str) -> None:
    try:
        found = parse_template(text)
    except ValueError:
        assert "{" in text
    else:
        assert found.names or "".join(map(str, found.parts)) == text
