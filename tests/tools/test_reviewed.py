"""Every text that an agent reads, as it was last reviewed: a snapshot per text and per tool.

A difference is looked at before it is written there: read it aloud as a model that never saw this
server, has no clock and cannot sleep. What happened, one call or the end of the turn, and the one
thing not to do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tools.situations import RECORDS, REFUSALS

from forbear.rules.model import Code, Reason, State
from forbear.tools.answers import compact, refusal, short
from forbear.tools.phrases import LIMIT
from forbear.tools.texts import instructions, next_step
from forbear.tools.toolset import TOOLS

SHORT = 600
"""Bytes of an ordinary answer."""


def now() -> dict[str, dict[str, str]]:
    """All texts as they are."""
    return {
        "instructions": {"": instructions()},
        "tools": {tool.name: tool.description for tool in TOOLS},
        "next_step": {name: next_step(record) for name, record in RECORDS.items()},
        "refusals": {
            name: f"{refused.message} -> {refused.next_step}" for name, refused in REFUSALS.items()
        },
    }


REVIEWED: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("texts.json").read_text())


@pytest.mark.requirement("M04")
@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, texts in now().items() for name in texts]
)
def test_a_text_reads_as_it_was_reviewed(part: str, name: str) -> None:
    assert now()[part][name] == REVIEWED[part].get(name)


def test_nothing_was_reviewed_that_nobody_reads() -> None:
    assert {part: list(texts) for part, texts in REVIEWED.items()} == {
        part: list(texts) for part, texts in now().items()
    }


def test_each_state_reason_and_code_has_its_text_here() -> None:
    states = {record.operation.state for record in RECORDS.values()}
    reasons = {record.case.reason for record in RECORDS.values() if record.case is not None}
    assert states == set(State)
    assert reasons == set(Reason)
    told = {refused.code for refused in REFUSALS.values()}
    assert set(Code) - told == {Code.OPTION_NOT_OFFERED, Code.ALREADY_ASKED}


@pytest.mark.requirement("M10")
@pytest.mark.parametrize("name", RECORDS)
def test_an_answer_is_short_whatever_it_says(name: str) -> None:
    """The store's part of it: a result of its own size and the links of a console apart."""
    said = short(RECORDS[name])
    ordinary = {key: value for key, value in said.items() if key not in ("result", "escalation")}

    assert len(said["next_step"]) <= LIMIT
    assert len(compact(ordinary).encode()) < SHORT + LIMIT
    if RECORDS[name].case is None and not RECORDS[name].joined:
        assert len(compact(ordinary).encode()) < SHORT + 100


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_short_too(name: str) -> None:
    assert len(compact(refusal(REFUSALS[name])).encode()) < 2 * SHORT
