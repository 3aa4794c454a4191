"""The system's own clocks and randomness."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from forbear.server.clock import SystemClock, SystemRandom


def test_both_clocks_go_on_and_share_a_boot() -> None:
    clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert second.boot >= first.boot > 0
    assert second.wall >= 1_700_000_000_000
    assert second.boot_id == first.boot_id != ""


def test_another_process_reads_the_same_boot() -> None:
    program = (
        "from forbear.server.clock import SystemClock as C; m = C().now(); print(m.boot, m.boot_id)"
    )
    before = SystemClock().now()
    run = [sys.executable, "-c", program]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(run, capture_output=True, text=True, check=True, env=place).stdout
    boot, boot_id = said.split()
    assert before.boot <= int(boot) <= SystemClock().now().boot
    assert boot_id == before.boot_id


@pytest.mark.anyio
async def test_sleep_takes_its_time() -> None:
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(0.02)
    assert clock.now().boot - before.boot >= 19


def test_randomness_has_its_form_and_does_not_repeat() -> None:
    source = SystemRandom()
    tokens = {source.token(20) for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[a-z2-7]{20}", token) for token in tokens)
    numbers = [source.uniform() for _ in range(200)]
    assert all(0 <= number < 1 for number in numbers)
    assert min(numbers) < 0.5 < max(numbers)
