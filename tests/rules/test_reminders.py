"""When people are told again: by a list that ends, and never to make up for sleep."""

from __future__ import annotations

import pytest

from forbear.rules.escalations import with_reminder
from forbear.rules.reminders import TRIES, next_reminder, next_try

H = 3_600_000
LIST = (H, 24 * H, 72 * H)


@pytest.mark.requirement("E13")
@pytest.mark.parametrize(
    ("told", "now", "expected"),
    [
        pytest.param(0, 0, H, id="opened"),
        pytest.param(1, 10, H, id="told of the opening"),
        pytest.param(2, H, 24 * H, id="the first reminder"),
        pytest.param(3, 24 * H, 72 * H, id="the second"),
        pytest.param(4, 72 * H, None, id="the list is over"),
        pytest.param(1, 30 * H, 72 * H, id="slept through two"),
        pytest.param(2, 80 * H, None, id="slept through all"),
        pytest.param(4, 0, None, id="a clock set back brings none again"),
    ],
)
def test_the_next_reminder(told: int, now: int, expected: int | None) -> None:
    assert next_reminder(LIST, 0, told, now) == expected


def test_a_contract_without_reminders_tells_once() -> None:
    assert next_reminder((), 0, 1, 5) is None


def test_tries_grow_apart_and_end() -> None:
    waits = [next_try(tries, 0) for tries in range(1, TRIES + 1)]
    known = [at for at in waits if at is not None]
    assert waits[-1] is None
    assert len(known) == TRIES - 1
    assert known == sorted(known)
    assert sum(known) < H  # they are over before the first usual reminder


TEXT = """External job needs a decision
For: "asked again 09:00Z" (agent's words)
If nobody decides: nothing is sent; asked again 11:20Z; abandoned 2026-12-30 10:20Z
Safe options: abandon"""


def test_only_the_reminder_of_a_text_changes() -> None:
    now = 1_796_034_000_000  # 2026-11-30 10:20
    later = with_reminder(TEXT, now + 24 * H, now)
    assert later == TEXT.replace("again 11:20Z;", "again 2026-12-01 10:20Z;")
    over = with_reminder(later, None, now + 72 * H)
    assert over == TEXT.replace("; asked again 11:20Z;", ";")
