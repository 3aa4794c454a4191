"""The benchmark command starts, and prints what it is for. How fast anything is, is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import TABLES, made_by
from benchmarks.tables import Figure

ROOT = Path(__file__).parent.parent


def test_prints_tables_with_their_bounds(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "audit", "disk", "--json"]
    run = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True, check=True)
    audit, disk = json.loads(file.read_text())["tables"]
    assert (audit["name"], disk["name"]) == ("audit", "disk")
    assert audit["rows"][0]["verified rows/s"] > 0
    [figure] = disk["figures"]
    assert figure["value"] > 0
    assert figure["holds"] in ("aim", "yes", "NO")
    assert "| at least " in run.stdout
    assert figure["name"] in run.stdout


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_there(name: str) -> None:
    assert callable(made_by(TABLES[name]))


@pytest.mark.parametrize(
    ("value", "holds"), [(None, "-"), (0.5, "NO"), (0.6, "yes"), (0.79, "yes"), (0.8, "aim")]
)
def test_a_figure_says_whether_its_bound_holds(value: float | None, holds: str) -> None:
    assert Figure("share", value, 0.6, 0.8).holds() == holds


@pytest.mark.parametrize(("value", "holds"), [(1.6, "NO"), (1.5, "yes"), (1.0, "aim")])
def test_a_bound_may_be_a_most(value: float, holds: str) -> None:
    assert Figure("added", value, 1.5, 1.0, "ms", less_is_better=True).holds() == holds
