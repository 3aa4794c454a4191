"""What is written as TOML reads back as what it was."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules import toml_text as toml
from forbear.rules.ports import Number

SOUND = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | SOUND,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOUND, inner, max_size=3),
    max_leaves=10,
)


@given(SOUND, VALUES)
def test_keys_and_values_read_back(name: str, value: Any) -> None:
    text = f"{toml.key(name)} = {toml.value(value)}\n"
    assert tomllib.loads(text) == {name: value}


@given(st.lists(SOUND, min_size=1))
def test_sections_read_back(names: list[str]) -> None:
    found: Any = tomllib.loads(f"[{toml.dotted(names)}]\n")
    for name in names:
        found = found[name]
    assert found == {}


@given(st.text())
def test_a_comment_is_one_line_that_no_terminal_obeys(text: str) -> None:
    line = toml.comment(text)
    assert line.startswith("#")
    assert tomllib.loads(f"{line}\na = 1\n") == {"a": 1}
    assert not set(line) & {"\n", "\r", "\x1b", "\u202e", "\u2028"}


@given(st.text(st.characters(categories=["Cs", "Cf", "Cc", "Ll"])))
def test_a_string_shows_what_would_hide_or_reorder_text(text: str) -> None:
    written = toml.string(text)
    assert written.isprintable()
    assert isinstance(tomllib.loads(f"a = {written}\n")["a"], str)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Number("9007199254740993"), "9007199254740993"),
        (Number("1.0"), "1"),
        (Number("-2.5e-3"), "-0.0025"),
        (Decimal("1e3"), "1000"),
        ({"a": None, "b": [None, 1]}, "{ b = [1] }"),
        ({}, "{}"),
    ],
)
def test_numbers_are_exact_and_null_is_left_out(value: Any, written: str) -> None:
    assert toml.value(value) == written


@pytest.mark.parametrize("value", [None, Number("1e300"), 2**63, Decimal("inf"), float("nan")])
def test_what_toml_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no null|too large|no such number"):
        toml.value(value)
