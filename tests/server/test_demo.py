"""`forbear demo` as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.requirement("A03", "R08", "R24")
def test_the_demo_tells_eight_stories_and_the_provider_counted_the_same(tmp_path: Path) -> None:
    """Exit status 0 means that every count at the provider was what the stories say."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FORBEAR_")},
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "FORBEAR_HOME": str(tmp_path / "untouched"),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "forbear", "demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    for said in (
        "503 obeyed",
        "429 backed off",
        "escalated: unknown_state",
        "escalated: request_budget_exhausted",
        "decided extend (4 checks) with the operator token",
        "answered with 429 and Retry-After: 2; then ",
        "looked it up, succeeded",
        "possible_duplicate, nothing is sent",
        "External write needs a decision",
        "forbear decide 1 confirm_not_done",
        "   6. 4 calls\n   7. 1 call · 1 lookup\n   8. 1 call\n",
        "requests are told, and no other was sent.",
        "Each job and each payment is there exactly once.",
    ):
        assert said in ran.stdout
    assert not (tmp_path / "untouched").exists()
