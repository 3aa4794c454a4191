"""References become secrets late, and secrets go nowhere but on the request."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import ManualClock

from forbear.rules.contract import Auth
from forbear.rules.tokens import Grant
from forbear.server.credentials import Credential, Credentials, MissingCredential
from forbear.server.fetching import MAX_SECRET

KEY = b"k" * 32
SECRET = "s3cr3t-T0ken"


def resolved(auth: Auth, **environment: str) -> Credential:
    found = Credentials(environment).resolve(auth)
    assert isinstance(found, Credential)
    return found


def missing(auth: Auth, **environment: str) -> MissingCredential:
    found = Credentials(environment).resolve(auth)
    assert isinstance(found, MissingCredential)
    return found


def test_each_scheme_puts_the_secret_where_its_name_says() -> None:
    bearer = resolved(Auth("bearer", secret="env:K"), K=SECRET)
    assert bearer.headers() == (("Authorization", f"Bearer {SECRET}"),)
    header = resolved(Auth("header", name="X-Api-Key", secret="env:K"), K=SECRET)
    assert header.headers() == (("X-Api-Key", SECRET),)
    query = resolved(Auth("query", name="key", secret="env:K"), K=SECRET)
    assert (query.headers(), query.query()) == ((), (("key", SECRET),))
    body = resolved(Auth("body", name="/auth/key", secret="env:K"), K=SECRET)
    assert (body.headers(), body.query(), body.body()) == ((), (), (("/auth/key", SECRET),))
    nothing = resolved(Auth("none"))
    assert (nothing.headers(), nothing.query()) == ((), ())


def test_basic_takes_references_and_literals() -> None:
    basic = resolved(Auth("basic", user="env:U", password="x"), U="ann")
    [(name, value)] = basic.headers()
    assert name == "Authorization"
    assert base64.b64decode(value.removeprefix("Basic ")) == b"ann:x"
    [(_, value)] = resolved(Auth("basic", user="env:K"), K=SECRET).headers()
    assert base64.b64decode(value.removeprefix("Basic ")) == f"{SECRET}:".encode()


def test_a_secret_is_never_shown() -> None:
    credentials = [
        resolved(Auth("bearer", secret="env:K"), K=SECRET),
        resolved(Auth("query", name="key", secret="env:K"), K=SECRET),
        resolved(Auth("basic", user="env:K", password="env:K"), K=SECRET),
    ]
    shown = f"{credentials!r} {credentials[0]} {missing(Auth('bearer', secret=SECRET))}"
    assert SECRET not in shown
    assert base64.b64encode(SECRET.encode()).decode()[:8] not in shown


def test_a_header_may_have_a_word_before_its_secret() -> None:
    plain = Auth("header", name="Authorization", secret="env:K")
    found = resolved(replace(plain, prefix="Key"), K="0f3c:9a1b")
    assert found.headers() == (("Authorization", "Key 0f3c:9a1b"),)
    assert "0f3c:9a1b" in found.secrets()
    before = resolved(plain, K="0f3c:9a1b")
    assert found.fingerprint(KEY) == before.fingerprint(KEY)
    assert found.version(KEY) != before.version(KEY)


def test_a_file_is_read_again_each_time_and_its_end_is_stripped(tmp_path: Path) -> None:
    path = tmp_path / "token"
    auth = Auth("bearer", secret=f"file:{path}")
    path.write_text("first\r\n\n")
    assert resolved(auth).headers() == (("Authorization", "Bearer first"),)
    path.write_text("second \t\n")
    assert resolved(auth).headers() == (("Authorization", "Bearer second"),)


@pytest.mark.parametrize("content", [b"", b" \n\n", b"x" * (MAX_SECRET + 1), b"\xff\xfe"])
def test_a_file_without_a_usable_secret_is_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert "->" in missing(Auth("bearer", secret=f"file:{path}")).reason


def test_what_is_missing_is_named_with_the_fix(tmp_path: Path) -> None:
    assert str(missing(Auth("bearer", secret="env:EXP"))) == (
        "env:EXP: EXP is not set -> set it and start this program again"
    )
    assert missing(Auth("bearer", secret="env:EXP"), EXP="  ").reference == "env:EXP"
    gone = missing(Auth("bearer", secret=f"file:{tmp_path}/none"))
    assert "No such file" in gone.reason
    assert "regular file" in missing(Auth("bearer", secret=f"file:{tmp_path}")).reason


CLIENT = Auth(
    "oauth2_client",
    token_url="https://id.example/t",
    client_id="app",
    client_secret="env:K",
    scope="read",
)


@pytest.mark.requirement("C03")
def test_a_client_is_named_by_its_own_credential_whatever_its_token_is() -> None:
    credentials = Credentials({"K": SECRET}, ManualClock())
    before = credentials.resolve(CLIENT)
    assert isinstance(before, Credential)
    assert (before.headers(), before.lacks_token()) == ((), True)
    credentials.granted(CLIENT, Grant("t0ken-0001", 3_600_000), 0)
    after = credentials.resolve(CLIENT)
    assert isinstance(after, Credential)
    assert after.headers() == (("Authorization", "Bearer t0ken-0001"),)
    assert (before.lacks_token(), after.lacks_token()) == (False, False)
    assert before.fingerprint(KEY) == after.fingerprint(KEY)
    assert before.version(KEY) == after.version(KEY)
    assert {SECRET, "t0ken-0001"} <= set(after.secrets())
    assert SECRET not in repr((before, after))
    assert "t0ken" not in repr((before, after))

    other = resolved(CLIENT, K="another")
    assert other.fingerprint(KEY) != before.fingerprint(KEY)
    wider = resolved(replace(CLIENT, scope="write"), K=SECRET)
    assert wider.fingerprint(KEY) == before.fingerprint(KEY)
    assert wider.version(KEY) != before.version(KEY)
    assert wider.lacks_token()


@pytest.mark.requirement("C03")
def test_a_client_may_show_its_id_beside_its_token() -> None:
    shown = replace(CLIENT, client_id_header="X-Api-Key")
    credentials = Credentials({"K": SECRET}, ManualClock())
    credentials.granted(shown, Grant("t0ken-0001", 3_600_000), 0)
    found = credentials.resolve(shown)
    assert isinstance(found, Credential)
    assert found.headers() == (("Authorization", "Bearer t0ken-0001"), ("X-Api-Key", "app"))
    assert found.fingerprint(KEY) == resolved(CLIENT, K=SECRET).fingerprint(KEY)
    assert credentials.client(shown) == credentials.client(CLIENT)
    unfit = credentials.resolve(replace(shown, client_id="a\nb"))
    assert isinstance(unfit, MissingCredential)


def test_a_refused_token_is_dropped_and_the_one_after_it_is_not() -> None:
    credentials = Credentials({"K": SECRET}, ManualClock())
    credentials.granted(CLIENT, Grant("t0ken-0001", 3_600_000), 0)
    used = credentials.resolve(CLIENT)
    assert isinstance(used, Credential)
    credentials.granted(CLIENT, Grant("t0ken-0002", 3_600_000), 0)
    credentials.refused(CLIENT, used)
    now = credentials.resolve(CLIENT)
    assert isinstance(now, Credential)
    assert now.headers() == (("Authorization", "Bearer t0ken-0002"),)
    credentials.refused(CLIENT, now)
    assert now.lacks_token()


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "caf\u00e9", "a\x00b"])
def test_a_secret_that_no_header_can_carry_is_refused_unseen(value: str) -> None:
    refusal = missing(Auth("bearer", secret="env:K"), K=value)
    assert "no header can carry" in refusal.reason
    assert value not in str(refusal)


def test_an_environment_secret_is_bound_by_its_value() -> None:
    auth = Auth("bearer", secret="env:K")
    first, same, other = (resolved(auth, K=value).fingerprint(KEY) for value in ("a", "a", "b"))
    assert first == same != other
    assert resolved(auth, K="a").fingerprint(b"another store") != first
    assert len(first) == 64


def test_a_file_secret_is_bound_by_its_reference(tmp_path: Path) -> None:
    path = tmp_path / "token"
    auth = Auth("bearer", secret=f"file:{path}")
    path.write_text("first")
    before = resolved(auth).fingerprint(KEY)
    path.write_text("second")
    assert resolved(auth).fingerprint(KEY) == before


def test_a_literal_part_of_basic_is_bound_by_its_value() -> None:
    prints = {
        resolved(Auth("basic", user=user, password=password)).fingerprint(KEY)
        for user, password in (("a", "bc"), ("ab", "c"), ("a", "b"))
    }
    assert len(prints) == 3


def test_what_is_secret_is_what_is_sent_and_what_a_reference_led_to() -> None:
    pair = base64.b64encode(b"sid:pass").decode()
    keyed = base64.b64encode(b"key:x").decode()
    assert resolved(Auth("bearer", secret="env:K"), K=SECRET).secrets() == (SECRET, SECRET)
    named = resolved(Auth("header", name="X-Key", secret="env:K"), K=f"Token {SECRET}")
    assert named.secrets() == (f"Token {SECRET}", SECRET)
    twice = resolved(Auth("basic", user="env:U", password="env:K"), U="sid", K="pass")
    assert set(twice.secrets()) == {pair, "pass"}
    user = resolved(Auth("basic", user="env:U", password="x"), U="key")
    assert set(user.secrets()) == {keyed, "key"}
