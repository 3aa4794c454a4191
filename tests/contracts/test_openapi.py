"""Drafts from excerpts of real OpenAPI documents, up to a contract that `check` accepts.

Each excerpt under `openapi/` names the document that its facts are from.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forbear.server import cli

FOLDER = Path(__file__).parent / "openapi"


@dataclass(frozen=True)
class Expected:
    job: str
    submit: str
    status: str
    auth: str
    words: dict[str, list[str]]
    arguments: set[str]
    required: list[str]


EXPECTED = {
    "openai": Expected(
        "fine_tuning_job",
        "createFineTuningJob",
        "/fine_tuning/jobs/{id}",
        "bearer env:OPENAI_TOKEN",
        {
            "waiting": ["validating_files", "queued", "running"],
            "succeeded": ["succeeded"],
            "failed": ["failed"],
            "cancelled": ["cancelled"],
        },
        {"model", "training_file", "hyperparameters", "suffix", "validation_file"},
        ["model", "training_file"],
    ),
    "stripe": Expected(
        "report_run",
        "PostReportingReportRuns",
        "/v1/reporting/report_runs/{id}",
        "bearer env:STRIPE_TOKEN",
        {"waiting": ["pending"], "succeeded": ["succeeded"], "failed": ["failed"]},
        {
            "report_type",
            "expand",
            "parameters_columns",
            "parameters_currency",
            "parameters_interval_end",
            "parameters_interval_start",
            "parameters_reporting_category",
        },
        ["report_type"],
    ),
    "github": Expected(
        "variant_analysis",
        "code-scanning/create-variant-analysis",
        "/repos/{arg.owner}/{arg.repo}/code-scanning/codeql/variant-analyses/{id}",
        "none",
        {
            "waiting": ["in_progress"],
            "succeeded": ["succeeded"],
            "failed": ["failed"],
            "cancelled": ["cancelled"],
        },
        {"owner", "repo", "language", "query_pack", "repositories", "repository_owners"},
        ["owner", "repo", "language", "query_pack"],
    ),
}


def test_every_excerpt_names_its_source_and_is_one() -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert {one.stem for one in files} == set(EXPECTED)
    for one in files:
        text = one.read_text(encoding="utf-8")
        assert re.search(r"^# source: https://github\.com/\S+ \S+ at [0-9a-f]{40}$", text, re.M)
        assert len(text) < 20_000


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_document_becomes_a_contract_once_the_words_are_chosen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "home"))
    wanted = EXPECTED[name]
    source = str(FOLDER / f"{name}.yaml")

    assert cli.run(("contract", "draft", "--openapi", source)) == 0
    listed = capsys.readouterr().out
    assert f"  {wanted.submit}\n" in listed
    assert ", ".join(word for words in wanted.words.values() for word in words) in listed
    assert f"--name {name} --operation {wanted.submit}" in listed

    arguments = ("contract", "draft", "--openapi", source, "--operation", wanted.submit)
    assert cli.run(arguments) == 0
    capsys.readouterr()
    path = tmp_path / "home" / "contracts" / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    job = _job(text, wanted.job)
    assert all(job[key] == [] for key in ("waiting", "succeeded", "failed", "cancelled"))

    assert cli.run(("contract", "check")) == 1
    mistakes = capsys.readouterr().out.strip().split("\n")
    assert len(mistakes) == 1
    line = int(mistakes[0].removeprefix(f"{path}:").partition(":")[0])
    assert text.split("\n")[line - 1].startswith("succeeded = []  # choose")

    for key, words in wanted.words.items():
        text = re.sub(rf"^({key} *)= \[\]", rf"\1= {json.dumps(words)}", text, flags=re.M)
    path.write_text(text, encoding="utf-8")
    assert cli.run(("contract", "check", "--json")) == 0
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert told["ok"]

    loaded = tomllib.loads(text)
    assert loaded["auth"] == wanted.auth
    job = _job(text, wanted.job)
    status = job["status"]
    assert (status if isinstance(status, str) else f"GET {status['path']}") == (
        f"GET {wanted.status}"
    )
    assert set(job["input"]["properties"]) == wanted.arguments
    assert job["input"]["required"] == wanted.required


def _job(text: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text)["jobs"][name]
    return found


def test_other_operations_become_calls_beside_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "home"))
    arguments = ["contract", "draft", "--openapi", str(FOLDER / "github.yaml"), "--print"]
    for one in ("interactions/set-restrictions-for-org", "GET /orgs/{org}/installations"):
        arguments += ["--operation", one]
    assert cli.run(arguments) == 0
    path = tmp_path / "github.toml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert cli.run(("contract", "check", str(path))) == 0
    calls = tomllib.loads(path.read_text(encoding="utf-8"))["calls"]
    assert set(calls) == {"interaction_limit", "installations"}
    assert calls["interaction_limit"]["method"] == "PUT"
    assert calls["interaction_limit"]["label"].endswith("{arg.org} {arg.limit}")
    assert calls["installations"]["input"]["required"] == ["org"]
    assert not (tmp_path / "home").exists()
