"""Secrets are found in whatever usual form a provider writes them, and nothing else is touched."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.ports import Reply
from forbear.server.redaction import MOST, SHORTEST, Redaction

SECRET = 's3cr3t/"T&k\\n<é'

Form = Callable[[str], str]


def hexed(secret: str) -> str:
    return secret.encode().hex()


def based(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def url_based(secret: str) -> str:
    return base64.urlsafe_b64encode(secret.encode()).decode()


FORMS: dict[str, Form] = {
    "raw": str,
    "percent": lambda secret: quote(secret, safe=""),
    "percent, path": quote,
    "percent, form": quote_plus,
    "percent, small": lambda secret: re.sub(
        "%..", lambda found: found[0].lower(), quote(secret, safe="")
    ),
    "percent, twice": lambda secret: quote(quote(secret, safe=""), safe=""),
    "percent, all": lambda secret: "".join(f"%{byte:02X}" for byte in secret.encode()),
    "json": lambda secret: json.dumps(secret)[1:-1],
    "json, as it is": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "json, slashes": lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
    "json, all": lambda secret: "".join(f"\\u{ord(one):04X}" for one in secret),
    "json, twice": lambda secret: json.dumps(json.dumps(secret)),
    "html": html.escape,
    "html, no quotes": lambda secret: html.escape(secret, quote=False),
    "html, twice": lambda secret: html.escape(html.escape(secret)),
    "html, numbers": lambda secret: "".join(f"&#{ord(one)};" for one in secret),
    "html, hexadecimal": lambda secret: "".join(f"&#x{ord(one):X};" for one in secret),
    "html in json": lambda secret: json.dumps(html.escape(secret)),
    "hex": hexed,
    "hex, capitals": lambda secret: hexed(secret).upper(),
}
"""The ways in which a provider may write back what it was sent."""

BASED: dict[str, Form] = {
    "base64": based,
    "base64, url": url_based,
    "base64, one before": lambda secret: based(f"x{secret}"),
    "base64, pair": lambda secret: based(f"ab{secret}c"),
    "base64, percent": lambda secret: quote(based(secret), safe=""),
}


def redaction(*secrets: str) -> Redaction:
    made = Redaction()
    made.learn(secrets)
    return made


@pytest.mark.requirement("A08")
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_every_form(form: str) -> None:
    shown = FORMS[form](SECRET)
    hidden = redaction(SECRET).hidden_in(f"no: {shown}!".encode()).decode()
    assert hidden.replace('"', "").replace("\\", "") == "no: [redacted]!"


@pytest.mark.parametrize("form", BASED)
def test_of_base64_stays_an_edge_at_most(form: str) -> None:
    shown = BASED[form](SECRET)
    hidden = redaction(SECRET).hidden_in(shown.encode()).decode()
    assert "[redacted]" in hidden
    around = hidden.replace("[redacted]", "").replace("%3D", "").replace("=", "")
    assert len(around) <= 6  # three bytes that are no secret, and two digits shared with it


@given(
    st.text(
        st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"]),
        min_size=SHORTEST,
        max_size=60,
    ),
    st.sampled_from(list(FORMS.values())),
)
def test_whatever_the_secret_is_it_is_found(secret: str, form: Form) -> None:
    shown = form(secret).encode()
    assert secret.encode() not in redaction(secret).hidden_in(b"<" + shown + b">")
    assert b"[redacted]" in redaction(secret).hidden_in(shown)


@pytest.mark.parametrize("order", [1, -1])
def test_a_secret_that_is_a_part_of_another_leaves_nothing_of_it(order: int) -> None:
    whole, part, next_to_it = "key-2026-with-a-tail", "key-2026", "a-tail-and-more"
    known = redaction(*[part, whole, next_to_it][::order])
    told = f"<{whole}> <{part}> <{whole}-and-more>"
    assert known.hidden_in(told.encode()) == b"<[redacted]> <[redacted]> <[redacted]>"


@pytest.mark.parametrize("form", FORMS | BASED)
def test_a_long_token_is_found_like_a_short_one(form: str) -> None:
    # Its size is that of the tokens that some providers make of a whole directory entry.
    token = "".join(f"{number:x}/{SECRET}" for number in range(300))
    shown = (FORMS | BASED)[form](token)
    hidden = redaction(token).hidden_in(f"no: {shown}! {token[:-1]}".encode()).decode()
    assert "[redacted]" in hidden
    assert len(hidden) <= len(token) + 40


@pytest.mark.parametrize("secret", ["secret-0123", "\\\\secret", "se\\\\\\cret-0123"])
@pytest.mark.parametrize("sign", ["\\", "%25", "&amp;", "&#0", "25", "amp;", "0", "se\\\\\\"])
def test_an_answer_of_nothing_but_signs_of_escapes_is_read_to_its_end(
    secret: str, sign: str
) -> None:
    data = sign.encode() * 200_000
    assert redaction(secret).hidden_in(data) == data


@given(st.binary(max_size=200))
def test_what_holds_no_secret_stays_as_it_is(data: bytes) -> None:
    assert redaction(SECRET).hidden_in(data) == data


def test_a_short_secret_would_be_found_everywhere_and_is_left() -> None:
    assert redaction("true").hidden_in(b'{"ok": true}') == b'{"ok": true}'


def test_a_rotated_secret_is_still_hidden_and_the_oldest_is_forgotten_in_the_end() -> None:
    secrets = [f"secret-{number:04}" for number in range(MOST + 1)]
    known = redaction(*secrets)
    assert known.hidden_in(secrets[1].encode()) == b"[redacted]"
    assert known.hidden_in(secrets[0].encode()) == secrets[0].encode()


def test_a_reply_is_searched_in_its_fields_its_body_and_its_detail() -> None:
    latin = SECRET.encode().decode("latin-1")  # how the sender reads the bytes of a field
    reply = Reply(
        sent=True,
        complete=False,
        started_at=0,
        ended_at=0,
        status=500,
        headers=(("X-Token", latin), (latin, "caf\xe9")),
        body=SECRET.encode(),
        url="https://api.exp.example",
        fault="malformed",
        detail=f"odd: {SECRET}",
    )
    hidden = redaction(SECRET).hidden(reply)
    assert hidden.headers == (("X-Token", "[redacted]"), ("[redacted]", "caf\xe9"))
    assert (hidden.body, hidden.detail) == (b"[redacted]", "odd: [redacted]")
    assert (hidden.status, hidden.url, hidden.fault) == (500, reply.url, "malformed")
