"""Three identical failures open the breaker; one attempt after its time tells whether it closes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.rules.operations import MINUTE, NOW, sending

from forbear.rules.breaker import tripped
from forbear.rules.model import Certainty, Operation, State

pytestmark = pytest.mark.requirement("R19")


def failed(at: int, code: str | None = "bad_dataset", **changes: Any) -> Operation:
    failure = {"code": code} if code is not None else {"http_status": 422}
    return replace(
        sending(),
        state=State.FAILED,
        certainty=Certainty.NOT_APPLIED,
        failure=failure,
        updated_at=NOW + at,
        number=at + 10**9,
        **changes,
    )


def test_two_failures_are_no_pattern_and_the_third_opens_it_for_ten_minutes() -> None:
    history = [failed(0), failed(1_000)]
    assert tripped(history, "local", NOW + 2_000) is None
    history.append(failed(2_000))
    opened = tripped(history, "local", NOW + 3_000)
    assert opened is not None
    assert (opened.code, opened.times, opened.until) == (
        "bad_dataset",
        3,
        NOW + 2_000 + 10 * MINUTE,
    )
    assert tripped(history, "local", opened.until) is None


def test_one_attempt_after_its_time_opens_it_again_or_closes_it() -> None:
    history = [failed(0), failed(1_000), failed(2_000)]
    late = 2_000 + 11 * MINUTE
    again = tripped([*history, failed(late)], "local", NOW + late + 1)
    assert again is not None
    assert again.until == NOW + late + 10 * MINUTE
    worked = replace(failed(late), state=State.SUCCEEDED)
    assert tripped([*history, worked, failed(late + 1)], "local", NOW + late + 2) is None


def test_no_other_attempt_goes_out_beside_the_one_after_its_time() -> None:
    """CB-01."""
    history = [failed(0), failed(1_000), failed(2_000)]
    late = 2_000 + 11 * MINUTE
    probe = replace(sending(), created_at=NOW + late, deadline_at=NOW + late + 5 * MINUTE)
    beside = tripped([*history, probe], "local", NOW + late + 1)
    assert beside is not None
    assert (beside.code, beside.until) == ("bad_dataset", probe.deadline_at)
    assert tripped([*history, probe], "somebody else", NOW + late + 1) is None
    assert tripped([*history, probe], "local", probe.deadline_at) is None, "it is over, or stuck"
    assert tripped([failed(0), failed(1_000), probe], "local", NOW + late + 1) is None


def test_a_codeless_failure_is_known_by_its_status() -> None:
    history = [failed(step, None) for step in range(3)]
    opened = tripped(history, "local", NOW + 10)
    assert opened is not None
    assert opened.code == "422"


@pytest.mark.parametrize(
    "third",
    [
        failed(2_000, "another_code"),
        failed(2_000, principal="somebody else"),
        failed(11 * MINUTE),
        replace(failed(2_000), state=State.SUCCEEDED),
        replace(failed(2_000), certainty=Certainty.MAYBE_APPLIED),
        replace(failed(2_000), failure={"message": "confirmed as not done"}),
        replace(failed(2_000), state=State.SENDING),
    ],
    ids=["other code", "other principal", "later", "success", "unclear", "by a person", "open"],
)
def test_only_identical_definite_failures_of_one_principal_count(third: Operation) -> None:
    history = [failed(0), failed(1_000), third]
    assert tripped(history, "local", NOW + 12 * MINUTE) is None


def test_the_order_in_which_the_store_lists_them_does_not_matter() -> None:
    history = [failed(0), failed(1_000), failed(2_000)]
    assert tripped(history[::-1], "local", NOW + 3_000) == tripped(history, "local", NOW + 3_000)
