"""Curl lines as people paste them."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.curl import parse, words
from forbear.rules.exchanges import Secret, Sent, Unusable

URL = "https://api.exp.example/v1/exports"


def secrets(sent: Sent) -> list[tuple[str, str, str]]:
    return [(one.place, one.name, one.value) for one in sent.secrets]


# --- the words ------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_what_a_shell_quotes_is_read_back(given_words: list[str]) -> None:
    assert words(shlex.join(given_words)) == given_words


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("curl \\\n  -d a\\\n b", ["curl", "-d", "a", "b"]),
        ("curl \\\r\n x", ["curl", "x"]),
        (r"a $'it\'s\n\u00e9\x41\101' b", ["a", "it's\n\u00e9AA", "b"]),
        (r'"a \"b\" $HOME \$x \n"', [r'a "b" $HOME $x \n']),
        ("a'b'\"c\"$'d'e", ["abcde"]),
        ("a '' b", ["a", "", "b"]),
        ("a | jq .", ["a"]),
        ("a 2>/dev/null", ["a"]),
        ("a > file; b", ["a"]),
        ("a && b", ["a"]),
        ("a '|' ';'", ["a", "|", ";"]),
        ("a \\| b", ["a", "|", "b"]),
    ],
)
def test_words_are_those_of_a_shell(line: str, found: list[str]) -> None:
    assert words(line) == found


# --- the request ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "method"),
    [
        (f"curl {URL}", "GET"),
        (f"curl -I {URL}", "HEAD"),
        (f"curl -d a=b {URL}", "POST"),
        (f"curl -XPUT -d a=b {URL}", "PUT"),
        (f"curl --request=PATCH --url {URL}", "PATCH"),
        (f"curl -G -d a=b {URL}", "GET"),
        (f"curl -F a=b {URL}", "POST"),
        (f"curl -sSLk --json '{{}}' {URL} --compressed", "POST"),
        (f"$ curl {URL}", "GET"),
        (f"TOKEN=x curl {URL}", "GET"),
    ],
)
def test_the_method_is_what_curl_would_use(line: str, method: str) -> None:
    assert parse(line).method == method


def test_json_bodies_and_forms_are_told_apart() -> None:
    assert parse(f"curl {URL} -d '{{\"a\": 1}}'").body == {"a": "1"}
    assert parse(f"curl {URL} --json '{{\"a\":' --json '1}}'").body == {"a": "1"}
    assert parse(f"curl {URL} -d a=1 -d 'b=x y' --data-urlencode 'c=&='").form == (
        ("a", "1"),
        ("b", "x y"),
        ("c", "&="),
    )
    multipart = parse(f"curl {URL} -F a=1 -F 'b=2;type=text/plain' --form-string c=@d")
    assert multipart.form == (("a", "1"), ("b", "2"), ("c", "@d"))
    assert "multipart" in multipart.remarks[0]


def test_parameters_come_from_the_address_and_from_get() -> None:
    sent = parse(f"curl -G '{URL}?a=1' -d b=2 --url-query c=3 --data-urlencode 'd=ä'")
    assert sent.query == (("a", "1"), ("c", "3"), ("b", "2"), ("d", "ä"))
    assert sent.body is None


def test_headers_that_only_say_how_a_client_talks_are_left_out() -> None:
    sent = parse(
        f"curl {URL} -H 'Accept: */*' -H 'User-Agent: x' -H 'Exp-Version: 2026-01-01' "
        "-H 'sec-fetch-mode: cors' -H 'X-Empty;' -H 'X-Gone:' -A agent -e https://from.example"
    )
    assert sent.headers == (("Exp-Version", "2026-01-01"),)


def test_an_address_without_a_scheme_is_https_and_http_on_this_machine() -> None:
    assert parse("curl api.exp.example/x").origin == "https://api.exp.example"
    assert parse("curl localhost:8080/x").origin == "http://localhost:8080"
    plain = parse("curl http://api.exp.example/x")
    assert plain.origin == "https://api.exp.example"
    assert "plain http" in plain.remarks[0]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("-H 'Authorization: Bearer abc'", ("bearer", "", "abc")),
        ("-H 'authorization: bearer abc'", ("bearer", "", "abc")),
        ("--oauth2-bearer abc", ("bearer", "", "abc")),
        ("-u u:abc", ("basic", "", "abc")),
        ("-u abc:", ("basic", "", "abc")),
        ("-H 'Authorization: Basic dTphYmM='", ("basic", "", "abc")),
        ("-H 'Authorization: Key abc'", ("header", "Authorization", "abc")),
        ("-H 'Authorization: abc'", ("header", "Authorization", "abc")),
        ("-H 'X-Api-Key: abc'", ("header", "X-Api-Key", "abc")),
        ("-H 'Ocp-Apim-Subscription-Key: abc'", ("header", "Ocp-Apim-Subscription-Key", "abc")),
        ("-H 'X-Thing: Bearer abc'", ("header", "X-Thing", "Bearer abc")),
        ("-b 'sid=abc'", ("header", "Cookie", "sid=abc")),
        ("-G -d api_key=abc", ("query", "api_key", "abc")),
        ('-d \'{"apiKey": "abc"}\'', ("body", "apiKey", "abc")),
        ('-d \'{"login": {"password": "abc"}}\'', ("body", "/login/password", "abc")),
        ("-d token=abc", ("body", "token", "abc")),
    ],
)
def test_secrets_are_taken_out_of_every_place(options: str, found: tuple[str, str, str]) -> None:
    sent = parse(f"curl {URL} {options}")
    assert secrets(sent) == [found]
    assert "abc" not in repr(sent)


def test_the_login_of_an_address_is_a_secret_too() -> None:
    sent = parse("curl https://u:p%40ss@api.exp.example/x")
    assert sent.secrets == (Secret("basic", "", "p@ss", "u"),)
    assert sent.origin == "https://api.exp.example"


def test_a_secret_that_the_line_takes_from_a_variable_keeps_its_name() -> None:
    sent = parse(f'curl {URL} -H "Authorization: Bearer ${{EXP_KEY}}"')
    assert sent.secrets[0].variable == "EXP_KEY"
    assert parse(f"curl {URL} -H 'X-Api-Key: $KEY'").secrets[0].variable == "KEY"


def test_names_that_only_look_like_secrets_stay() -> None:
    sent = parse(f'curl {URL} -d \'{{"max_tokens": 5, "page_token": "x", "author": "y"}}\'')
    assert sent.secrets == ()
    assert set(sent.body) == {"max_tokens", "page_token", "author"}


# --- what cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "does not begin with curl"),
        ("wget https://x.example", "does not begin with curl"),
        ("curl", "no address"),
        ("curl https://a.example https://b.example", "several addresses"),
        (f"curl {URL} -H 'Authorization: Bearer abc", "quote that nothing closes"),
        (f"curl {URL}?a=1&b=2", "ends the command at the &"),
        ('curl ^"https://x.example^"', "cmd.exe"),
        (f"curl {URL} -d @body.json", "write the body into the line"),
        (f"curl {URL} -T file", "sends a file"),
        (f"curl {URL} -F a=@file", "sends a file"),
        (f"curl {URL} --aws-sigv4 aws:amz", "signs the request"),
        (f"curl {URL} --next {URL}", "several requests"),
        (f"curl {URL} --no-such-option", "none that curl 8 has"),
        (f"curl {URL} -H", "needs a value"),
        (f"curl -X BREW {URL}", "method is none of"),
        ("curl ftp://x.example/a", "no web address"),
        ("curl 'https://$HOST/a'", "no plain name"),
        ("curl 'https://x.example:port/a'", "cannot be read"),
        (f"curl {URL} -d '{{\"a\": }}'", "its body cannot be read"),
        (f"curl {URL} -d '<xml/>' -H 'Content-Type: text/xml'", "neither JSON nor a form"),
    ],
)
def test_what_no_contract_can_send_is_refused_with_its_reason(line: str, told: str) -> None:
    with pytest.raises(Unusable, match=told) as refused:
        parse(line)
    assert "abc" not in str(refused.value)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for line in (text, f"curl {text}", f"curl {URL} {text}"):
        with suppress(Unusable):
            assert parse(line).origin.startswith("http")
