"""The simulation in the test suite: some seeds, all that ever found a bug, and whether it bites."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.__main__ import first_found, ground
from tests.simulation.mutations import FOUND_BY
from tests.simulation.scenario import Ground, run

SEEDS = range(1, 201 if os.environ.get("CI") else 61)
BLOCK = 10


@pytest.fixture(scope="module")
def here() -> Iterator[Ground]:
    with ground() as made:
        yield made


@pytest.mark.requirement("D01", "D02", "D05")
@pytest.mark.parametrize("first", SEEDS[::BLOCK])
def test_all_laws_hold(here: Ground, first: int) -> None:
    for seed in range(first, first + BLOCK):
        outcome = run(seed, here)
        assert not outcome.broken, f"python -m tests.simulation --seed {seed} --trace"


@pytest.mark.parametrize("seed", [28683], ids=["what is under way while the machine sleeps"])
def test_the_simulation_does_not_break_its_own_laws(here: Ground, seed: int) -> None:
    assert not run(seed, here).broken


def test_a_seed_says_all_that_happens(here: Ground) -> None:
    """The same seed is the same story, whatever ran before it."""
    first = run(8, here)
    run(9, here)
    again = run(8, here)
    assert first.trace == again.trace
    assert first.requests > 3


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_deliberate_bug_is_found(here: Ground, name: str) -> None:
    found = first_found(name, [FOUND_BY[name], *range(1, 151)], here)
    assert found is not None
    assert run(found.seed, here).broken == (), "without the bug all laws hold"
