"""Each example runs as a user runs it: a program of its own, a simulated provider, no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("contracts", "rules", "storage", "tools", "server")


def printed_by(example: str, home: Path) -> str:
    paths = os.pathsep.join(str(ROOT / name) for name in ROOTS)
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{example}.py")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": paths, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_examples_are_those_of_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")} - {"stage.py"}
    assert {name for name in scripts if f"python examples/{name}" in listed} == scripts


def test_a_report_is_exported_once_for_two_agents(tmp_path: Path) -> None:
    told = printed_by("export_report", tmp_path)
    assert "joined is True" in told
    assert "429 obeyed" in told
    assert "1 x export.submit" in told
    assert "made by export: 1" in told


def test_payments_are_made_once_each_though_an_answer_was_lost(tmp_path: Path) -> None:
    told = printed_by("open_payments", tmp_path)
    assert "it may have been done" in told
    assert "made by payment_intent: 2" in told
    assert "nothing was made twice" in told


@pytest.mark.requirement("W05")
def test_a_failed_run_is_read_and_not_started_again(tmp_path: Path) -> None:
    told = printed_by("watch_ci", tmp_path)
    assert "may_proceed is False" in told
    assert "1 x workflow_run.submit" in told
    assert "'conclusion'" in told
