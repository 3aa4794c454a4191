"""A workflow decides what is on its list, with its own token, and is recorded by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.commanding import TOKEN, Run, drive, state_of, stops

from forbear.rules.model import State

pytestmark = [pytest.mark.requirement("E16"), pytest.mark.usefixtures("operator")]

LIST = """
[[handover]]
name = "night-shift"
reasons = ["unknown_state"]
options = ["hold", "treat_as"]
"""
DECIDE = ("decide", "1", "hold", "--as-principal", "night-shift")


@pytest.fixture
def workflow(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """The operation that a case is open for, with the workflow's token at hand."""
    op_id: str = drive(home, stops)
    (home / "config.toml").write_text(f'operator_token = "{TOKEN}"\n{LIST}')
    made = run("handover", "night-shift", "--yes")
    assert made.code == 0, made.err
    monkeypatch.setenv("FORBEAR_PRINCIPAL_TOKEN", made.out.strip())
    monkeypatch.delenv("FORBEAR_OPERATOR_TOKEN")
    return op_id


def test_a_workflow_decides_within_its_list_and_is_recorded_as_such(
    home: Path, run: Run, workflow: str
) -> None:
    done = run(*DECIDE, "--comment", "nightly rule 4")
    assert done.code == 0, done.err
    state, decision = state_of(home, workflow)
    assert state is State.WAITING
    assert decision is not None
    assert decision["principal"] == decision["operator"] == "night-shift"
    assert (decision["channel"], decision["comment"]) == ("handover", "nightly rule 4")
    assert run(*DECIDE).code == 1  # once


def test_what_is_not_on_its_list_is_refused(home: Path, run: Run, workflow: str) -> None:
    refused = run("decide", "1", "abandon", "--as-principal", "night-shift")
    assert refused.code == 1
    assert "night-shift may not choose abandon; its list has hold, treat_as." in refused.err
    (home / "config.toml").write_text(LIST.replace("unknown_state", "rate_limited"))
    refused = run(*DECIDE)
    assert "may not decide unknown_state; its list has rate_limited." in refused.err
    assert state_of(home, workflow) == (State.ESCALATED, None)


def test_only_its_own_token_makes_a_workflow(
    home: Path, run: Run, workflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("", "wrong", TOKEN):
        monkeypatch.setenv("FORBEAR_PRINCIPAL_TOKEN", token)
        assert "is not the token of night-shift" in run(*DECIDE).err
    unknown = run(*DECIDE[:-1], "day-shift")
    assert "no [[handover]] with the name 'day-shift'" in unknown.err
    (home / "config.toml").write_text(LIST + LIST.replace("night", "day"))
    assert "has no token yet" in run(*DECIDE[:-1], "day-shift").err
    assert state_of(home, workflow) == (State.ESCALATED, None)


def test_a_new_token_ends_the_one_before(
    run: Run, workflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del workflow
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", TOKEN)
    assert run("handover", "night-shift", "--yes").code == 0
    assert run(*DECIDE).code == 2


def test_only_an_operator_makes_a_token_and_the_home_keeps_a_digest_of_it(
    home: Path, run: Run, workflow: str
) -> None:
    del workflow
    assert run("handover", "night-shift", "--yes").code == 2
    kept = home / "keys" / "handover-night-shift"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert len(kept.read_text()) == 64


def test_a_workflow_is_bounded_like_a_person(home: Path, run: Run, workflow: str) -> None:
    (home / "config.toml").write_text(LIST.replace('"hold"', '"hold", "resend_same_key"'))
    refused = run("decide", "1", "resend_same_key", "--as-principal", "night-shift")
    assert refused.code != 0
    assert "not offered" in refused.err
    assert state_of(home, workflow) == (State.ESCALATED, None)
