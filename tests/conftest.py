"""Fixtures for every test: the backend of asynchronous tests, a clock and randomness."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.support import FixedRandom, ManualClock

# A shared machine is slow at random, so no property has a time limit. Where a change is judged, the
# examples are the same in every run, so that chance blames no change.
settings.register_profile("local", deadline=None)
settings.register_profile("judged", deadline=None, derandomize=True)
# `pytest --hypothesis-profile=long tests/rules` looks for what a short run misses.
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("judged" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def randomness() -> FixedRandom:
    """Every `uniform` is 0.5."""
    return FixedRandom()
