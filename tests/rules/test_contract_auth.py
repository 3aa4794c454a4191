"""What [auth] asks of every request that carries the credential."""

from __future__ import annotations

import pytest
from tests.rules.contracts import FULL, changed, errors_of, loaded

HEAD = """\
contract = 1
base_url = "https://api.exp.example/v1"
auth     = "body {name} env:EXP_KEY"
[calls.send]
method = "POST"
path = "/send"
label = "Send"
{request}
"""


def text(request: str, name: str = "api_key") -> str:
    return HEAD.replace("{name}", name).replace("{request}", request)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("api_key", 'body = { to = "{arg.to}" }'),
        ("api_key", 'body = "{arg.message}"'),
        ("api_key", "body = {}"),
        ("/auth/key", 'body = { to = "{arg.to}" }'),
        ("/auth/key", 'body = { auth = { user = "us" } }'),
        ("api_key", 'form = { to = "{arg.to}" }'),
    ],
)
@pytest.mark.requirement("C03")
def test_a_secret_goes_into_a_body_that_has_room_for_it(name: str, request_: str) -> None:
    assert loaded(text(request_, name)).auth.name == name


@pytest.mark.parametrize(
    ("name", "request_", "problem", "fix"),
    [
        ("api_key", "", "has no body", "body = {}"),
        ("api_key", 'body = { api_key = "{arg.api_key}" }', "states 'api_key'", "take it out"),
        ("api_key", 'form = { api_key = "{arg.x}" }', "states 'api_key'", "take it out"),
        ("/auth/key", 'body = { auth = { key = "{arg.x}" } }', "states '/auth/key'", "take it out"),
        ("/auth/key", "body = { auth = 5 }", "states '/auth/key'", "take it out"),
        ("/auth/key", 'form = { to = "{arg.to}" }', "is a form", "plain name"),
        (
            "api_key",
            'body = "{arg.message}"\nmerge = { "/api_key" = "{arg.x}" }',
            "states 'api_key'",
            "take it out",
        ),
        (
            "api_key",
            'body = {}\nidempotency = { at = "body:api_key" }',
            "where [auth] puts the secret",
            "another place",
        ),
    ],
)
@pytest.mark.requirement("C03")
def test_a_body_without_room_for_the_secret_is_a_load_error(
    name: str, request_: str, problem: str, fix: str
) -> None:
    (error,) = errors_of(text(request_, name))
    assert error.key.startswith("calls.send")
    assert problem in error.problem
    assert fix in error.fix


def test_a_read_without_a_body_names_both_ways_out() -> None:
    plain = text("body = {}") + '[calls.customer]\nmethod = "GET"\npath = "/customers"\n'
    (error,) = errors_of(plain)
    assert error.key == "calls.customer"
    assert 'class = "read"' in error.fix
    assert "auth = false" in error.fix
    assert loaded(plain + "auth = false\n").calls["customer"].send.authenticate is False
    by_post = plain.replace('method = "GET"', 'method = "POST"\nclass = "read"\nbody = {}')
    assert loaded(by_post).calls["customer"].send.authenticate


@pytest.mark.parametrize("name", ["query:again", "header:X-Again", "body:again"])
def test_a_repetition_says_so_where_the_key_goes_and_nowhere_else(name: str) -> None:
    request_ = f'body = {{}}\nidempotency = {{ at = "query:k", on_repeat = {{ "{name}" = 1 }} }}'
    (error,) = errors_of(text(request_).replace("body api_key", "bearer"))
    assert error.key == "calls.send.idempotency.on_repeat"
    assert "query" in error.problem


@pytest.mark.requirement("C03")
def test_an_account_says_where_its_tokens_come_from() -> None:
    text = changed(FULL, 'id = "acct_17"', 'id = "acct_17"\nlogin = "id.acme.example"')
    stated = changed(
        text,
        'scheme = "bearer"\nsecret = "env:EXP_TOKEN"',
        'scheme = "oauth2_client"\ntoken_url = "https://{account.login}/token"\n'
        'client_id = "x"\nclient_secret = "env:S"',
    )
    assert loaded(stated).auth.token_url == "https://id.acme.example/token"
