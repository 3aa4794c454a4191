"""Stores for tests, closed at their end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.house import House
from tests.support import FixedRandom, ManualClock


@pytest.fixture
def house(tmp_path: Path, clock: ManualClock, randomness: FixedRandom) -> Iterator[House]:
    built = House(tmp_path / "home", clock, randomness)
    yield built
    built.close()
