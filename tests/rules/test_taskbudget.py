"""What a task may use in all."""

from __future__ import annotations

import pytest

from forbear.rules.taskbudget import REQUESTS, TaskFull, TaskLimits, TaskUse, full

LIMITS = TaskLimits(max_requests=5, max_wait=2_000, max_open_operations=3)


@pytest.mark.requirement("R05")
@pytest.mark.parametrize(
    ("used", "most"),
    [
        (TaskUse(4, 1_999, 2), None),
        (TaskUse(5, 0, 0), TaskFull("t", REQUESTS, 5, 5)),
        (TaskUse(9, 9_000, 9), TaskFull("t", REQUESTS, 9, 5)),
        (TaskUse(4, 2_000, 3), TaskFull("t", "seconds of waiting", 2, 2)),
        (TaskUse(0, 0, 3), TaskFull("t", "open operations", 3, 3)),
    ],
)
def test_a_task_is_full_when_one_more_would_be_too_many(
    used: TaskUse, most: TaskFull | None
) -> None:
    assert full("t", LIMITS, used) == most


def test_the_usual_limits_are_those_of_the_specification() -> None:
    assert TaskLimits() == TaskLimits(500, 7_200_000, 200)
