"""Thirty real APIs can be said in the format, and their sample answers mean what they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse_all
from forbear.rules.replay import conclude

SURVEY = Path(__file__).parent.parent / "survey"
CONTRACTS, ERRORS = parse_all(
    {path.name: path.read_text(encoding="utf-8") for path in SURVEY.glob("*.toml")}
)
PROVIDERS: list[dict[str, Any]] = json.loads((SURVEY / "samples.json").read_text(encoding="utf-8"))
SAMPLES = [
    pytest.param(provider["id"], *sample, id=f"{provider['id']}-{number}")
    for provider in PROVIDERS
    for number, sample in enumerate(provider["samples"], 1)
]


def test_every_surveyed_provider_loads_without_an_error() -> None:
    assert [str(error) for error in ERRORS] == []
    assert set(CONTRACTS) == {provider["id"] for provider in PROVIDERS}
    assert len(CONTRACTS) >= 18


def job_of(contract: Contract) -> str:
    (name,) = contract.jobs
    return name


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(("provider", "http", "headers", "body", "expected"), SAMPLES)
def test_a_sample_answer_means_what_the_survey_says(
    provider: str, http: int, headers: dict[str, str], body: Any, expected: str
) -> None:
    contract = CONTRACTS[provider]
    concluded = conclude(
        contract,
        f"jobs.{job_of(contract)}.status",
        http,
        headers.items(),
        json.dumps(body).encode(),
    )
    assert concluded == {"unknown": "unknown_state"}.get(expected, expected)
