"""What others wrote, on its way to a screen or a model: nothing hidden, nothing signed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forbear.rules.inert import discreet, inert, spelled, told

HIDDEN = {
    "escape": "\x1b",
    "nul": "\x00",
    "delete": "\x7f",
    "next line": "\x85",
    "soft hyphen": "\u00ad",
    "arabic letter mark": "\u061c",
    "combining grapheme joiner": "\u034f",
    "hangul filler": "\u3164",
    "vowel separator": "\u180e",
    "variation selector of mongolian": "\u180b",
    "zero width space": "\u200b",
    "zero width joiner": "\u200d",
    "right to left mark": "\u200f",
    "line separator": "\u2028",
    "override": "\u202e",
    "invisible times": "\u2062",
    "isolate": "\u2066",
    "interlinear annotation": "\ufff9",
    "byte order mark": "\ufeff",
    "variation selector": "\ufe0f",
    "half a surrogate pair": "\ud800",
    "private": "\ue000",
    "no character": "\uffff",
    "tag": "\U000e0041",
    "variation selector of ideographs": "\U000e0100",
}


@pytest.mark.requirement("C05")
@pytest.mark.parametrize("name", HIDDEN)
def test_what_hides_or_controls_is_written_out_everywhere(name: str) -> None:
    text = f"a{HIDDEN[name]}b"
    assert inert(text) == "a\ufffdb"
    assert spelled(text, lambda character: f"<{ord(character):x}>") == (
        f"a<{ord(HIDDEN[name]):x}>b"
    )


def test_what_is_seen_stays() -> None:
    seen = "Zürich, 東京, עברית, e\u0301, 😀 1\u00a0000 \u3000 ✓"
    assert inert(seen) == spelled(seen, str.upper) == seen
    assert inert("a\tb\r\nc") == "a b  c"
    assert spelled("a\tb\r\nc", str.upper) == "a\tb\r\nc"


@given(st.text(max_size=40), st.integers(1, 30))
def test_inert_text_is_one_bounded_line_that_stays_as_it_is(text: str, limit: int) -> None:
    safe = inert(text, limit)
    assert len(safe) <= limit
    assert inert(safe, limit) == safe
    assert not {unicodedata.category(character) for character in safe} & {"Cc", "Cf", "Cs", "Zl"}


@pytest.mark.requirement("A08")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://x.example/a?X-Amz-Sig=SECRET ok", "see https://x.example/a?[redacted] ok"),
        ("HTTPS://x.example?sig=SECRET", "HTTPS://x.example?[redacted]"),
        ("http://u:SECRET@x.example/a", "http://[redacted]@x.example/a"),
        ("https://u:SECRET@x.example/a?b=SECRET", "https://[redacted]@x.example/a?[redacted]"),
        ("https://x.example/cb#access_token=SECRET", "https://x.example/cb#[redacted]"),
        ('"https:\\/\\/x.example\\/a?b=SECRET"', '"https:\\/\\/x.example\\/a?[redacted]"'),
        ("<a href='https://x.example/a?b=SECRET'>", "<a href='https://x.example/a?[redacted]'>"),
        ("GET /files/1?sig=SECRET failed", "GET /files/1?[redacted] failed"),
        ("(https://x.example/a?b=SECRET)", "(https://x.example/a?[redacted]"),
        ("u=https://x.example/a?b=SECRET&c=http://y/", "u=https://x.example/a?[redacted]"),
    ],
)
def test_of_a_signed_address_the_place_is_shown(text: str, shown: str) -> None:
    assert discreet(text) == told(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://x.example/a",
        "Is it https://x.example/a?",
        "and/or? yes/no",
        "50/50?",
        "/home/ann=x/a@b/file",
        "what? a=b",
        "ann@x.example",
    ],
)
def test_all_else_is_shown_as_it_is(text: str) -> None:
    assert discreet(text) == text


@given(st.text(alphabet="htps:/?#=&@a \\\"'", max_size=40))
@example("https://a@b@c/?#")
def test_what_is_discreet_stays_so(text: str) -> None:
    assert discreet(discreet(text)) == discreet(text)


def test_a_long_text_is_read_once() -> None:
    assert discreet("http://" * 200_000).startswith("http://")
    assert discreet("/" * 1_000_000 + "?a=b").endswith("?[redacted]")
