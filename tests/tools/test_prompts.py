"""The words of the prompts as they were reviewed; the store's part is one fixed record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.records import escalated, record

from forbear.tools.prompts import explanation, investigation, planning

REVIEWED = Path(__file__).with_name("prompts")

CONTRACT = {
    "provider": "exp",
    "limits": [{"name": "account", "rate": "60 requests in 1 minute", "now": {"exp/a": "open"}}],
    "actions": [{"name": "export", "kind": "job", "tool": "submit_job", "title": "Export"}],
}


def told(name: str) -> str:
    match name:
        case "explain_operation":
            story = ("2026-11-30", "10:18:14Z asked for exp.export", "10:18:14Z submitted exp_71c")
            return explanation(replace(record(), timeline=story, receipt="1 submit · 2 checks"))
        case "investigate_escalation":
            asked = escalated()
            assert asked.case is not None
            return investigation(asked, asked.case)
        case _:
            return planning(CONTRACT, "Export the sales of each month.", "")


@pytest.mark.requirement("M05")
@pytest.mark.parametrize("name", ["explain_operation", "investigate_escalation", "plan_calls"])
def test_a_prompt_reads_as_it_was_reviewed(name: str) -> None:
    # Read a difference aloud, as a model that never saw this server, before writing it there.
    assert told(name) + "\n" == (REVIEWED / f"{name}.txt").read_text()
