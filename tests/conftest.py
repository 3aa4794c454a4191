"""Fixtures for every test: the backend of asynchronous tests, a clock and randomness."""

from __future__ import annotations

import pytest

from tests.support import FixedRandom, ManualClock


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
