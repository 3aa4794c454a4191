"""Sample arguments: what an agent is shown has to be what the schema takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forbear.tools import patterns, samples


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z]{3}$",
        "^(pm|card|src)_[A-Za-z0-9_]+$",
        "^([a-z]+:)?[+0-9A-Za-z._-]{3,60}$",
        "^MG[0-9a-f]{32}$",
        r"^\d{4}-\d{2}(-[a-z]+)?$",
        r"^[^/?#]+(/[^/?#]+)+$",
        r"^a\.b$",
        "^(?:main|release/.*)$",
        "^[^]a-z]$",
        "x|y",
    ],
)
def test_a_text_is_made_that_the_pattern_takes(pattern: str) -> None:
    made = patterns.example(pattern)
    assert made is not None
    assert re.search(pattern, made)


@pytest.mark.parametrize("pattern", ["^(?=x)y$", "(", "a{500}"])
def test_what_is_not_simple_is_left_to_the_reader(pattern: str) -> None:
    assert patterns.example(pattern) is None


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "required": ["to"],
            "anyOf": [{"required": ["from"]}, {"required": ["service"]}],
            "properties": {"service": {"type": "string", "pattern": "^MG[0-9a-f]{4}$"}},
        },
        {
            "type": "object",
            "required": ["currency"],
            "properties": {"currency": {"type": "string", "pattern": "^[a-z]{3}$"}},
        },
        {
            "type": "object",
            "oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}],
            "properties": {"b": {"type": "integer"}},
            "required": ["b"],
        },
    ],
)
def test_a_sample_satisfies_alternatives_and_patterns(schema: dict[str, Any]) -> None:
    assert samples.problems(schema, samples.of(schema)) == []
