"""Thirty real APIs can be said in the format, and their sample answers mean what they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.library import contract_of

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


SHIPPED = {
    "adobe_pdf": ("adobe-pdf", "export"),
    "airbyte": ("airbyte", "sync"),
    "assemblyai": ("assemblyai", "transcript"),
    "azure_async_operation": ("azure-lro", "put"),
    "bigquery": ("bigquery", "query"),
    "bitbucket_pipelines": ("bitbucket", "pipeline"),
    "databricks_runs": ("databricks", "run"),
    "dbt_cloud": ("dbt-cloud", "run"),
    "fal_queue": ("fal", "inference"),
    "fivetran": ("fivetran", "sync"),
    "github_actions": ("github", "workflow_run"),
    "gitlab_pipelines": ("gitlab", "pipeline"),
    "google_lro": ("google-lro", "operation"),
    "jira_tasks": ("jira", "bulk_transition"),
    "netlify": ("netlify", "build"),
    "openai_batch": ("openai", "batch"),
    "openai_responses": ("openai", "response"),
    "replicate": ("replicate", "prediction"),
    "runpod": ("runpod", "run"),
    "salesforce_bulk2": ("salesforce", "query"),
    "shopify_bulk": ("shopify", "export"),
    "square_payments": ("square", "payment"),
    "stripe_payment_intent": ("stripe", "payment"),
    "stripe_report": ("stripe", "report"),
    "twilio_message": ("twilio", "message"),
    "vercel": ("vercel", "deployment"),
}
"""Providers of the survey that have grown into shipped contracts: the contract, and the job."""


def test_every_surveyed_provider_loads_without_an_error() -> None:
    assert [str(error) for error in ERRORS] == []
    assert CONTRACTS.keys().isdisjoint(SHIPPED)
    assert {*CONTRACTS, *SHIPPED} == {provider["id"] for provider in PROVIDERS}


def surveyed(provider: str) -> tuple[Contract, str]:
    """The contract that says a surveyed API, and the name of its job."""
    if provider in SHIPPED:
        name, job = SHIPPED[provider]
        return contract_of(name), job
    contract = CONTRACTS[provider]
    (job,) = contract.jobs
    return contract, job


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(("provider", "http", "headers", "body", "expected"), SAMPLES)
def test_a_sample_answer_means_what_the_survey_says(
    provider: str, http: int, headers: dict[str, str], body: Any, expected: str
) -> None:
    contract, job = surveyed(provider)
    concluded = conclude(
        contract,
        f"jobs.{job}.status",
        http,
        headers.items(),
        json.dumps(body).encode(),
    )
    assert concluded == {"unknown": "unknown_state"}.get(expected, expected)
