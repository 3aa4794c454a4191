"""What a task may use in all, however many operations it is split into (behaviour.md, section 7).

Work that runs ends by its own bounds; a spent budget only takes no new work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The maxima of each task; `config.toml` may change them, an agent cannot."""

    max_requests: int = 500
    """Requests of any kind that left, together with those that wait to leave."""
    max_wait: int = 7_200_000
    """Waited time between attempts, ms, summed over the operations."""
    max_open_operations: int = 200


USUAL = TaskLimits()


@dataclass(frozen=True, slots=True)
class TaskUse:
    """What the operations of a task have used, in the units of `TaskLimits`."""

    requests: int
    wait: int
    open_operations: int


@dataclass(frozen=True, slots=True)
class TaskFull:
    """The task takes no new work: what it has used up, in the unit that `what` names."""

    task: str
    what: str
    used: int
    most: int


REQUESTS = "requests, sent or waiting"
OPEN_OPERATIONS = "open operations"


def full(task: str, limits: TaskLimits, used: TaskUse) -> TaskFull | None:
    """The first maximum that leaves no room for one more operation."""
    if used.requests >= limits.max_requests:
        return TaskFull(task, REQUESTS, used.requests, limits.max_requests)
    if used.wait >= limits.max_wait:
        seconds = used.wait // 1_000, limits.max_wait // 1_000
        return TaskFull(task, "seconds of waiting", *seconds)
    if used.open_operations >= limits.max_open_operations:
        return TaskFull(task, OPEN_OPERATIONS, used.open_operations, limits.max_open_operations)
    return None
