"""Rendering: typed bodies, encoded places, keys, labels; nothing leaves its place."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.answering import CANCEL, CONTRACT, FACTS, NOW, RESULT, STATUS, SUBMIT, TRANSFER

from forbear.rules.contract import Effect, Idempotency, Request
from forbear.rules.facts import Facts
from forbear.rules.labels import label
from forbear.rules.model import RequestClass
from forbear.rules.notation import parse_pointer, parse_template
from forbear.rules.ports import Number, Outbound
from forbear.rules.requests import RenderError, link, render, shape

t = parse_template


def sent(request: Request, facts: Facts = FACTS, **arguments: Any) -> Outbound:
    return render(CONTRACT, request, replace(facts, arguments={**facts.arguments, **arguments}))


def get(path: str, **parts: Any) -> Request:
    return Request("call", "GET", path=t(path), **parts)


def post(**parts: Any) -> Request:
    return Request(
        "call", "POST", path=t("/x"), request_class=RequestClass.UNCERTAIN_WRITE, **parts
    )


def body_of(request: Request, facts: Facts = FACTS, **arguments: Any) -> Any:
    body = sent(request, facts, **arguments).body
    assert body is not None
    return json.loads(body)


# --- the whole request ----------------------------------------------------------------------


def test_a_submission_is_rendered_with_everything_the_sender_needs() -> None:
    assert render(CONTRACT, SUBMIT, FACTS) == Outbound(
        method="POST",
        url="https://api.exp.example/v1/exports",
        headers=(("Content-Type", "application/json"), ("Exp-Version", "2026-01-01")),
        body=b'{"dataset":"sales-2026","client_ref":"fb-ref-1"}',
        authenticate=True,
        allow_hosts=(),
        from_answer=False,
        max_bytes=1_000_000,
        timeout=30_000,
        fresh_connection=True,
    )


def test_a_status_request_goes_to_the_job() -> None:
    status = render(CONTRACT, STATUS, FACTS, timeout=4_000)
    assert status.url == "https://api.exp.example/v1/exports/exp_71c"
    assert (status.body, status.timeout, status.fresh_connection) == (None, 4_000, False)


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(CONTRACT, TRANSFER, FACTS) == render(CONTRACT, TRANSFER, FACTS)


# --- paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "url"),
    [
        ("/c/{arg.v}", "a b/c?d#e%", "/c/a%20b%2Fc%3Fd%23e%25"),
        ("/c/{+arg.v}", "a/b c", "/c/a/b%20c"),
        ("/c/{arg.v}/d", 9007199254740993, "/c/9007199254740993/d"),
        ("/c/{arg.v}", "größe", "/c/gr%C3%B6%C3%9Fe"),
        ("/c/{arg.v}", "a..b", "/c/a..b"),
        ("/c/{arg.v}", "@evil.example", "/c/%40evil.example"),
        ("/c/x-{arg.v}", "~_.1", "/c/x-~_.1"),
    ],
)
def test_values_are_encoded_in_paths(path: str, value: Any, url: str) -> None:
    assert sent(get(path), v=value).url == "https://api.exp.example/v1" + url


@pytest.mark.parametrize(
    "value",
    [
        "..",
        ".",
        "../admin",
        "a/../../admin",
        "..\\admin",
        "%2e%2e",
        "%2E%2e%2fadmin",
        "%252e%252e",
        "..;/admin",
        "..;x=1",
        "a/..",
        "",
        "a\r\nb",
        "a\x00b",
        None,
        ["a"],
        {"a": 1},
    ],
)
@pytest.mark.parametrize("path", ["/c/{arg.v}", "/c/{+arg.v}/d"])
def test_a_value_that_would_leave_its_place_is_refused_by_name(path: str, value: Any) -> None:
    with pytest.raises(RenderError, match=r"\{arg\.v\}"):
        sent(get(path), v=value)


def test_two_values_side_by_side_cannot_make_dots() -> None:
    with pytest.raises(RenderError, match=r"\{arg\.a\}, \{arg\.b\}"):
        sent(get("/c/{arg.a}.{arg.b}x/../{arg.a}"), a="x", b="y")
    with pytest.raises(RenderError, match=r"\{arg\.v\}"):
        sent(get("/c/.{arg.v}"), v=".")


def test_an_unknown_id_makes_no_request() -> None:
    with pytest.raises(RenderError, match=r"\{id\} is not known"):
        render(CONTRACT, STATUS, replace(FACTS, take={}))


@given(st.text(max_size=30), st.booleans())
def test_no_value_whatever_leaves_its_path(value: str, raw: bool) -> None:
    path = "/c/{+arg.v}/end" if raw else "/c/{arg.v}/end"
    try:
        url = sent(get(path), v=value).url
    except RenderError:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == (
        "https",
        "api.exp.example",
        "",
        "",
    )
    segments = parts.path.split("/")
    assert segments[:3] == ["", "v1", "c"]
    assert segments[-1] == "end"
    assert not {".", ".."} & {unquote(segment) for segment in segments}
    assert raw or len(segments) == 5


# --- addresses out of answers ---------------------------------------------------------------


@pytest.mark.requirement("W21")
def test_an_address_out_of_an_answer_is_used_as_it_is_and_marked() -> None:
    url = "https://files.exp.example/r/a%2Fb?sig=x%2By&se=1"
    out = render(CONTRACT, RESULT, replace(FACTS, result={"url": url}))
    assert (out.url, out.from_answer, out.authenticate) == (url, True, False)
    assert "files.exp.example" in out.allow_hosts


def test_parameters_join_the_query_that_an_address_has() -> None:
    asked = replace(RESULT, query=(("part", t("{arg.part}")),))
    facts = replace(FACTS, result={"url": "https://files.exp.example/r?a=1#top"})
    assert sent(asked, facts, part=2).url == "https://files.exp.example/r?a=1&part=2"


@pytest.mark.requirement("W21")
@pytest.mark.parametrize(
    "url",
    [None, "/r/1", "r/1", "javascript:x", "https://u:p@files.exp.example/", "https://a b/", "7"],
)
def test_an_address_is_never_guessed(url: str | None) -> None:
    result = {} if url is None else {"url": url}
    with pytest.raises(RenderError, match=r"\{result\.url\}"):
        render(CONTRACT, RESULT, replace(FACTS, result=result))


def test_a_value_in_place_of_the_host_counts_as_foreign() -> None:
    fixed = replace(STATUS, path=None, url=t("https://other.exp.example/{arg.v}"))
    chosen = replace(STATUS, path=None, url=t("https://{arg.v}.exp.example/"))
    assert not sent(fixed, v="a").from_answer
    assert sent(chosen, v="a").from_answer


# --- parameters and headers -----------------------------------------------------------------


def test_parameters_are_encoded_left_out_or_repeated() -> None:
    query = (
        ("q", t("{arg.q}")),
        ("none", t("{arg.none}")),
        ("null", t("{arg.null}")),
        ("tag", t("{arg.tags}")),
        ("flag", t("{arg.flag}")),
        ("since", t("{submitted_at-60s:rfc3339}")),
        ("fixed", t("a&b")),
    )
    out = sent(get("/c", query=query), q="a b&c=d", null=None, tags=["x", 2], flag=True)
    assert parse_qsl(urlsplit(out.url).query, keep_blank_values=True) == [
        ("q", "a b&c=d"),
        ("tag", "x"),
        ("tag", "2"),
        ("flag", "true"),
        ("since", "2026-11-30T11:49:00Z"),
        ("fixed", "a&b"),
    ]


@given(st.text(max_size=20))
def test_any_text_survives_as_one_parameter(value: str) -> None:
    url = sent(get("/c", query=(("q", t("{arg.v}")),)), v=value).url
    expected = value.encode("utf-8", "replace").decode()
    assert parse_qsl(urlsplit(url).query, keep_blank_values=True) == [("q", expected)]


@pytest.mark.parametrize("value", [{"a": 1}, [["a"]], [None]])
def test_a_structure_is_no_parameter(value: Any) -> None:
    with pytest.raises(RenderError, match=r"\{arg\.v\}"):
        sent(get("/c", query=(("q", t("{arg.v}")),)), v=value)


@pytest.mark.requirement("C05")
@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "é", "\u2028", "a\tb"])
def test_a_value_cannot_break_out_of_its_header(value: str) -> None:
    with pytest.raises(RenderError, match=r"\{arg\.v\}"):
        sent(get("/c", headers=(("X-V", t("{arg.v}")),)), v=value)


def test_a_requests_header_replaces_the_providers() -> None:
    request = get("/c", headers=(("exp-version", t("2")), ("X-No", t("{arg.none}"))))
    assert sent(request).headers == (("exp-version", "2"),)


# --- bodies ---------------------------------------------------------------------------------


def test_whole_values_keep_their_type_and_absent_ones_are_left_out() -> None:
    tree = {
        "n": t("{arg.n}"),
        "f": t("{arg.f}"),
        "b": t("{arg.b}"),
        "o": t("{arg.o}"),
        "null": t("{arg.null}"),
        "gone": t("{arg.gone}"),
        "text": t("n={arg.n}"),
        "list": [t("{arg.n}"), t("{arg.gone}"), 1, True, None],
        "deep": {"gone": t("{arg.gone}")},
        "at": t("{submitted_at:epoch}"),
    }
    body = sent(post(body=tree), n=9007199254740993, f=0.1, b=False, o={"k": [1]}, null=None).body
    assert body == (
        b'{"n":9007199254740993,"f":0.1,"b":false,"o":{"k":[1]},"null":null,'
        b'"text":"n=9007199254740993","list":[9007199254740993,1,true,null],"deep":{},'
        b'"at":1796039400}'
    )


def test_numbers_are_written_exactly() -> None:
    tree = {"d": Decimal("1.50"), "n": t("{arg.n}")}
    assert sent(post(body=tree), n=Number("12345678901234567.10")).body == (
        b'{"d":1.50,"n":12345678901234567.10}'
    )


def test_text_with_an_absent_value_inside_is_refused() -> None:
    with pytest.raises(RenderError, match=r"x-\{arg\.gone\}"):
        sent(post(body={"a": t("x-{arg.gone}")}))


@pytest.mark.parametrize("value", [float("nan"), "\ud800", object()])
def test_a_body_that_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(RenderError, match="body"):
        sent(post(body={"a": t("{arg.v}")}), v=value)


def test_forms_are_encoded() -> None:
    out = sent(post(form=(("a", t("{arg.a}")), ("none", t("{arg.none}")))), a="1 & 2+é")
    assert out.body == b"a=1+%26+2%2B%C3%A9"
    assert ("Content-Type", "application/x-www-form-urlencoded") in out.headers


def test_merging_adds_to_an_argument_without_changing_it() -> None:
    options = {"format": "csv", "meta": {"a": 1}}
    request = post(
        body={"options": t("{arg.options}")},
        merge=(
            (parse_pointer("/options/meta/ref"), t("{ref}")),
            (parse_pointer("/made/here"), t("{ref}")),
            (parse_pointer("/not"), t("{arg.gone}")),
        ),
    )
    assert body_of(request, options=options) == {
        "options": {"format": "csv", "meta": {"a": 1, "ref": "fb-ref-1"}},
        "made": {"here": "fb-ref-1"},
    }
    assert options == {"format": "csv", "meta": {"a": 1}}
    with pytest.raises(RenderError, match="/options/meta/ref"):
        sent(request, options="text")


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.integers() | st.text(st.characters(codec="utf-8")) | st.booleans(),
    )
)
def test_an_object_argument_arrives_as_it_was_given(value: dict[str, Any]) -> None:
    assert body_of(post(body=t("{arg.v}")), v=value) == value


# --- the provider's key ---------------------------------------------------------------------


def keyed(place: str, name: str, format: str = "uuid", **more: Any) -> Facts:
    return replace(FACTS, key="k-1", idempotency=Idempotency(place, name, format, **more))


def test_the_key_goes_where_the_contract_says() -> None:
    header = sent(TRANSFER, keyed("header", "Idempotency-Key"))
    assert ("Idempotency-Key", "k-1") in header.headers
    assert not header.fresh_connection
    quoted = sent(TRANSFER, keyed("header", "Idempotency-Key", "sf-string"))
    assert ("Idempotency-Key", '"k-1"') in quoted.headers
    assert sent(TRANSFER, keyed("query", "requestId")).url.endswith("?requestId=k-1")
    assert body_of(TRANSFER, keyed("body", "idempotency_key"))["idempotency_key"] == "k-1"
    assert body_of(TRANSFER, keyed("body", "/meta/key"))["meta"] == {"key": "k-1"}
    form = sent(post(form=(("a", t("1")),)), keyed("body", "key"))
    assert form.body == b"a=1&key=k-1"
    path = replace(TRANSFER, path=t("/transfers/{key}"))
    assert sent(path, keyed("path", "")).url.endswith("/transfers/k-1")


def test_only_a_resend_carries_the_repeat_parameter() -> None:
    facts = keyed("query", "requestId", on_repeat={"retry": "true"})
    assert sent(TRANSFER, facts).url.endswith("?requestId=k-1")
    assert sent(TRANSFER, replace(facts, attempt=2)).url.endswith("?requestId=k-1&retry=true")


def test_the_key_is_on_no_other_request() -> None:
    facts = keyed("header", "Idempotency-Key")
    for request in (STATUS, CANCEL):
        assert all(name != "Idempotency-Key" for name, _ in sent(request, facts).headers)


@pytest.mark.requirement("R34")
def test_what_writes_without_a_key_of_its_own_asks_for_a_fresh_connection() -> None:
    facts = keyed("header", "Idempotency-Key")
    billed = replace(STATUS, request_class=RequestClass.UNCERTAIN_WRITE, effect=Effect.BILLED)
    assert [sent(one, facts).fresh_connection for one in (TRANSFER, SUBMIT)] == [False, False]
    assert [sent(one).fresh_connection for one in (TRANSFER, SUBMIT)] == [True, True]
    for own in (facts, FACTS):
        assert [sent(one, own).fresh_connection for one in (CANCEL, billed)] == [True, True]
        assert not sent(STATUS, own).fresh_connection


# --- links and labels -----------------------------------------------------------------------


def test_a_link_is_encoded_or_not_there() -> None:
    assert CONTRACT.console is not None
    assert link(CONTRACT.console, FACTS) == "https://exp.example/jobs/exp_71c"
    assert link(CONTRACT.console, replace(FACTS, take={"id": "a/b"})) == (
        "https://exp.example/jobs/a%2Fb"
    )
    assert link(CONTRACT.console, replace(FACTS, take={})) is None
    assert link(CONTRACT.console, replace(FACTS, take={"id": ".."})) is None


def test_a_path_for_a_person_has_the_values_of_the_account_and_the_names_of_all_others() -> None:
    path = parse_template("/{+account.path}/{arg.site}/{id}/{account.id}")
    assert shape(path, {"id": "acct_17", "path": "v1/sites"}) == (
        "/v1/sites/{arg.site}/{id}/acct_17"
    )


def nested(levels: int) -> list[Any]:
    inside: list[Any] = []
    for _ in range(levels):
        inside = [inside]
    return inside


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        (
            "Transfer {arg.a:minor(c)} to {arg.to}",
            {"a": 12500, "c": "EUR", "to": "x"},
            "Transfer 125.00 EUR to x",
        ),
        ("{arg.a:minor(c)}", {"a": 5, "c": "usd"}, "0.05 USD"),
        ("{arg.a:minor(c)}", {"a": 500, "c": "JPY"}, "500 JPY"),
        ("{arg.a:minor(c)}", {"a": 1234, "c": "KWD"}, "1.234 KWD"),
        ("{arg.a:minor(c)}", {"a": 12500.5, "c": "EUR"}, "125.005 EUR"),
        ("{arg.a:minor(c)}", {"a": -7, "c": "EUR"}, "-0.07 EUR"),
        ("{arg.a:minor(c)}", {"a": "12500", "c": "EUR"}, "125.00 EUR"),
        ("{arg.a:minor(c)}", {"a": "lots", "c": "EUR"}, "lots minor units of EUR"),
        ("{arg.a:minor(c)}", {"a": 5, "c": "points"}, "5 minor units of points"),
        ("{arg.a:minor(c)}", {"a": 5}, "5 minor units of ?"),
        ("{arg.a:minor(c)}", {"a": 10**21, "c": "EUR"}, "10000000000000000000.00 EUR"),
        ("{arg.a:bytes}", {"a": 999}, "999 B"),
        ("{arg.a:bytes}", {"a": 1536}, "1.5 kB"),
        ("{arg.a:bytes}", {"a": 20_000_000_000}, "20 GB"),
        ("{arg.a:bytes}", {"a": -1}, "-1 bytes"),
        ("{arg.a:time}", {"a": "2026-11-30T12:00:00+01:00"}, "2026-11-30 11:00Z"),
        ("{arg.a:time}", {"a": NOW // 1000}, "2026-11-30 12:00Z"),
        ("{arg.a:time}", {"a": NOW}, "2026-11-30 12:00Z"),
        ("{arg.a:time}", {"a": "tomorrow"}, "tomorrow"),
        ("Delete {arg.a}", {}, "Delete ?"),
        ("Delete {arg.a}", {"a": ["x", 7]}, 'Delete ["x",7]'),
        ("Post {arg.a}", {"a": {"n": 1.50, "to": None}}, 'Post {"n":1.5,"to":null}'),
        ("Post {arg.a}", {"a": None}, "Post null"),
        ("Post {arg.a}", {"a": nested(200)}, "Post ?"),
        ("Post {arg.a:bytes}", {"a": []}, "Post []"),
    ],
)
def test_labels_say_exactly_what_is_asked(
    template: str, arguments: dict[str, Any], text: str
) -> None:
    assert label(t(template), Facts(arguments, {})) == text


@pytest.mark.requirement("C05")
def test_a_label_is_one_inert_line_and_no_value_hides_another() -> None:
    facts = Facts({"a": "x\u202ey\x1b[2J\n" + "z" * 500, "b": "acct_42"}, {})
    shown = label(t("Pay {arg.a} to {arg.b}"), facts)
    assert shown.startswith("Pay x\ufffdy\ufffd[2J zzz")
    assert shown.endswith("… to acct_42")
    assert len(shown) <= 120
    assert shown.isprintable()


@given(st.text(max_size=200), st.text(max_size=10), st.sampled_from(["minor(c)", "bytes", "time"]))
def test_labelling_never_raises(value: str, currency: str, style: str) -> None:
    shown = label(t(f"{{arg.a:{style}}} {{arg.a}}"), Facts({"a": value, "c": currency}, {}))
    assert len(shown) <= 120
    assert "\n" not in shown
