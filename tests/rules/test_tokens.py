"""What the answer of a token endpoint says (RFC 6749, sections 5.1 and 5.2)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.contracts import errors_of, loaded

from forbear.rules.contract import Auth
from forbear.rules.ports import Reply, TokenAnswer
from forbear.rules.tokens import Grant, next_wait, read, renewed_after, token_request

NOW = 1_796_040_000_000
pytestmark = pytest.mark.requirement("C03")


def answered(body: object, status: int = 200, **fields: str) -> Grant | TokenAnswer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    return read(Reply(True, True, NOW, NOW, status, headers, data), NOW)


@pytest.mark.parametrize(
    ("stated", "life"),
    [
        (3600, 3_600_000),
        ("3600", 3_600_000),
        (59.5, 59_500),
        (10**12, 86_400_000),
        (0, 300_000),
        (-5, 300_000),
        ("soon", 300_000),
        (None, 300_000),
        (True, 300_000),
        ([], 300_000),
    ],
)
def test_a_token_lives_as_long_as_stated_where_that_makes_sense(stated: object, life: int) -> None:
    found = answered({"access_token": "abc", "token_type": "BEARER", "expires_in": stated})
    assert found == Grant("abc", life)


def test_a_token_without_a_type_or_an_end_is_taken_as_a_bearer_for_a_short_time() -> None:
    assert answered({"access_token": "abc"}) == Grant("abc", 300_000)


def test_other_tokens_are_known_so_that_they_can_be_hidden() -> None:
    found = answered({"access_token": "abc", "refresh_token": "def", "id_token": 5})
    assert isinstance(found, Grant)
    assert found.others == ("def",)
    assert "abc" not in repr(found)
    assert "def" not in repr(found)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"access_token": "a b"}, 200, "without an access_token"),
        ({"access_token": ""}, 200, "without an access_token"),
        ({"access_token": 5}, 200, "without an access_token"),
        ({"access_token": "x" * 20_000}, 200, "without an access_token"),
        ({"access_token": "a", "token_type": "DPoP"}, 200, "token_type other than Bearer"),
        ({"access_token": "a", "token_type": 1}, 200, "token_type other than Bearer"),
        ([], 200, "without an access_token"),
        (b"access_token=a&token_type=bearer", 200, "without an access_token"),
        (b"", 204, "204 without an access_token"),
        ({"error": "invalid_client"}, 400, "400 invalid_client"),
        ({"error": "a word of theirs <b>"}, 400, "400"),
        ({"error": "x" * 65}, 403, "403"),
        (b"nothing", 404, "404"),
        (b"", 307, "307, and no redirect is followed"),
    ],
)
def test_what_asking_again_cannot_mend(body: object, status: int, told: str) -> None:
    found = answered(body, status)
    assert isinstance(found, TokenAnswer)
    assert not found.later
    assert told in found.why
    assert "theirs" not in found.why


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b""), (503, b""), (429, b""), (408, b""), (400, {"error": "temporarily_unavailable"})],
)
def test_what_asking_again_may_mend(status: int, body: object) -> None:
    found = answered(body, status, Retry_After="30")
    assert isinstance(found, TokenAnswer)
    assert (found.later, found.wait) == (True, 30_000)


def test_a_life_is_left_a_minute_or_a_tenth_before_its_end() -> None:
    assert [renewed_after(one * 1_000) // 1_000 for one in (3600, 600, 100)] == [3540, 540, 90]


@given(st.integers(0, 10_000), st.none() | st.integers(0, 10**12), st.floats(0, 0.999))
def test_waits_grow_to_a_bound_and_never_shorten_what_was_asked(
    failures: int, asked: int | None, u: float
) -> None:
    wait = next_wait(failures, asked, u)
    assert wait >= max(1_000, asked or 0)
    assert wait <= max(300_000, int((asked or 0) * 1.11) + 1)


def test_the_request_has_no_secret() -> None:
    auth = Auth("oauth2_client", token_url="https://id.example/t", client_id="a", scope="r w")
    request = token_request(auth)
    assert (request.method, request.url) == ("POST", "https://id.example/t")
    assert request.body == b"grant_type=client_credentials&scope=r+w"


# --- in a contract ----------------------------------------------------------------------------

TEXT = """\
contract = 1
base_url = "https://api.exp.example/v1"
[auth]
scheme = "oauth2_client"
token_url = "https://id.exp.example/token"
client_id = "app"
client_secret = "env:EXP_SECRET"
[calls]
customer = "GET /customers"
"""


def test_a_client_is_written_as_a_table() -> None:
    auth = loaded(TEXT).auth
    assert (auth.scheme, auth.client_id, auth.client_auth) == ("oauth2_client", "app", None)
    post = TEXT.replace("[calls]", 'client_auth = "post"\n[calls]')
    assert loaded(post).auth.client_auth == "post"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("https://id.exp.example/token", "http://id.exp.example/token", "is plain http"),
        ("https://id.exp.example/token", "https://id.example/{arg.x}", "placeholder"),
        ("https://id.exp.example/token", "https://id.example/t#x", "fragment"),
        ("https://id.exp.example/token", "https://u:p@id.example/t", "user or password"),
        ("env:EXP_SECRET", "s3cret", "literal"),
        ('client_id = "app"\n', "", "has no client_id"),
        ("[calls]", 'client_auth = "mtls"\n[calls]', "'mtls'"),
        ("[calls]", 'secret = "env:X"\n[calls]', "no key of the scheme"),
    ],
)
def test_a_client_that_cannot_be_used_is_a_load_error(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    assert any(problem in error.problem for error in errors_of(TEXT.replace(old, new)))
