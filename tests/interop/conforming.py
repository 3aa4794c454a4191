"""The official conformance suite: which of its scenarios are run, and what its checks found.

What a revision requires is run whole, with the scenarios that the suite runs but does not score;
here they count like all others. A check may fail only if `harness_only.toml` says why.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.environments import Environments

Run = Callable[..., Awaitable[tuple[int, str]]]
"""Runs a command with Node first on its path: exit code and what it said."""

REVISIONS = ("2025-11-25", "2026-07-28")
TASKS = "tasks-"
HARNESS_ONLY = Path(__file__).parent / "harness_only.toml"


@dataclass
class Findings:
    """What the checks of some runs found."""

    counts: Counter[str] = field(default_factory=Counter[str])
    """Checks by status, in the suite's own words."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """What was wrong, by `scenario:check`."""
    scenarios: set[str] = field(default_factory=set[str])

    def add(self, scenario: str, checks: list[Mapping[str, Any]]) -> None:
        self.scenarios.add(scenario)
        for check in checks:
            self.counts[check["status"]] += 1
            if check["status"] == "FAILURE":
                self.failed[f"{scenario}:{check['id']}"] = str(check.get("errorMessage"))

    def __str__(self) -> str:
        passed, warned = self.counts["SUCCESS"], self.counts["WARNING"]
        return (
            f"{len(self.scenarios)} scenarios, {passed} passed, {len(self.failed)} failed, "
            f"{warned} warnings"
        )


class Suite:
    """The suite, against the server at `url`."""

    def __init__(self, made: Environments, run: Run, url: str) -> None:
        script = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        self._command = (str(made.node() / "node"), str(made.npm("conformance") / script))
        self._run = run
        self._url = url

    async def listed(self) -> dict[str, str]:
        """Every scenario for servers, with the revisions that it is for."""
        code, said = await self._run(*self._command, "list", "--server")
        if code:
            raise SystemExit(f"conformance list: {said[-600:]}")
        lines = (line.strip() for line in said.splitlines())
        parts = (line[2:].partition(" ") for line in lines if line.startswith("- "))
        return {name: revisions for name, _, revisions in parts}

    async def required(self, revision: str, findings: Findings) -> str | None:
        """Run what a revision requires; what was left out, if anything."""
        await self._served(findings, "--requirements", revision)
        missing = {
            name for name, revisions in (await self.listed()).items() if revision in revisions
        } - findings.scenarios
        return f"never run: {sorted(missing)}" if missing else None

    async def tasks(self, findings: Findings) -> str | None:
        """Run every scenario of the tasks extension, each by its name."""
        for name in await self.listed():
            if name.startswith(TASKS):
                await self._served(findings, "--scenario", name)
        return None if findings.scenarios else "the suite has no scenario of tasks"

    async def _served(self, findings: Findings, *words: str) -> None:
        with tempfile.TemporaryDirectory(prefix="forbear-conformance-") as folder:
            # Its exit code leaves out what is not scored; the checks are counted here.
            _, said = await self._run(
                *self._command, "server", "--url", self._url, *words, "-o", folder
            )
            found = dict(_written(Path(folder)))
            if not found:
                raise SystemExit(f"conformance {' '.join(words)}: {said[-600:]}")
            for scenario, checks in found.items():
                findings.add(scenario, checks)


def _written(folder: Path) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Each scenario with its checks, in `server-SCENARIO-YYYY-MM-DDThh-mm-ss-mmmZ/checks.json`."""
    for path in sorted(folder.rglob("checks.json")):
        name = path.parent.name.removeprefix("server-")
        yield name.rsplit("-", 6)[0], json.loads(path.read_text())


async def conforms(suite: Suite, what: str) -> str | None:
    """Against the fixtures: what was wrong, if anything."""
    findings = Findings()
    match what:
        case "tasks":
            problem = await suite.tasks(findings)
        case _:
            problem = await suite.required(what, findings)
    print(f"    {findings}", flush=True)
    return problem or _told(findings.failed)


async def shipped_conforms(suite: Suite) -> str | None:
    """Against the product alone: what was wrong beyond what needs a fixture, if anything."""
    findings, excused = Findings(), harness_only()
    problems = [await suite.required(revision, findings) for revision in REVISIONS]
    needing = {name for name in findings.failed if name in excused}
    print(f"    {findings}, of which {len(needing)} need fixtures", flush=True)
    wrong = {name: told for name, told in findings.failed.items() if name not in excused}
    stale = sorted(excused.keys() - findings.failed.keys())
    if stale:
        problems.append(f"{HARNESS_ONLY.name} excuses what does not fail: {stale}")
    return next(filter(None, problems), _told(wrong))


def _told(failed: Mapping[str, str]) -> str | None:
    return "; ".join(f"{name}: {told[:200]}" for name, told in failed.items()) or None


def harness_only() -> dict[str, str]:
    """Checks that cannot pass without a fixture of the suite, with the reason."""
    with HARNESS_ONLY.open("rb") as file:
        table = tomllib.load(file)
    return {
        f"{scenario}:{check}": entry["needs"]
        for scenario, entry in table.items()
        for check in entry["checks"]
    }
