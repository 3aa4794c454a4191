from __future__ import annotations

import anyio
import pytest

from forbear.rules.ports import Clock, Random
from tests.support import START, FixedRandom, ManualClock


async def record(clock: Clock, seconds: float, woken: list[float]) -> None:
    await clock.sleep(seconds)
    woken.append(seconds)


@pytest.mark.anyio
async def test_sleepers_wake_when_the_clock_has_moved_far_enough_and_not_before(
    clock: ManualClock,
) -> None:
    woken: list[float] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record, clock, 2, woken)
            tasks.start_soon(record, clock, 1, woken)
            await clock.asleep(2)
            assert clock.next_wake == 1_000
            clock.advance(999)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            clock.advance(1_001)
    assert woken == [1, 2]
    assert clock.now().wall == START.wall + 2_000
    assert clock.now().boot == START.boot + 2_000


@pytest.mark.anyio
async def test_neither_a_suspended_machine_nor_a_jump_of_the_wall_clock_ends_a_sleep(
    clock: ManualClock,
) -> None:
    woken: list[float] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record, clock, 60, woken)
            await clock.asleep()
            clock.suspend(3_600_000)
            clock.jump(-7_200_000)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            assert clock.now().wall == START.wall - 3_600_000
            assert clock.now().boot == START.boot + 3_600_000
            clock.advance(60_000)
    assert woken == [60]


@pytest.mark.anyio
async def test_a_cancelled_sleeper_is_forgotten(clock: ManualClock) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 60)
            await clock.asleep()
            tasks.cancel_scope.cancel()
    assert clock.next_wake is None


def test_given_numbers_come_in_turn_and_tokens_never_repeat() -> None:
    random: Random = FixedRandom(0.1, 0.9)
    assert [random.uniform() for _ in range(3)] == [0.1, 0.9, 0.1]
    tokens = [random.token(4) for _ in range(100)]
    assert len(set(tokens)) == 100
    assert {len(token) for token in tokens} == {4}


def test_a_seed_gives_the_same_varied_numbers_again() -> None:
    first, second = FixedRandom.seeded(7), FixedRandom.seeded(7)
    numbers = [first.uniform() for _ in range(10)]
    assert numbers == [second.uniform() for _ in range(10)]
    assert len(set(numbers)) == 10
