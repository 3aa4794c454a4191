"""A clock that a test moves by hand, and randomness that a test can predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, cycle
from random import Random as Generator

import anyio
from anyio.lowlevel import checkpoint

from forbear.rules.ports import Moment

START = Moment(wall=1_796_034_000_000, boot=3_600_000, boot_id="boot-1")
"""2026-11-30 10:20:00 UTC, one hour after the machine started."""

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class ManualClock:
    """`ports.Clock` that stands still until a test moves it.

    The three ways in which real clocks part are three methods: `advance` is time going by,
    `suspend` is a machine asleep (waiting stops with it), `jump` is somebody setting the clock.
    `now` may be called from any thread; everything else belongs to the event loop.
    """

    def __init__(self, start: Moment = START) -> None:
        self._now = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, anyio.Event]] = []
        self._arrival = anyio.Event()

    def now(self) -> Moment:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once `advance` has passed `seconds` in sum; at once for zero or less."""
        if seconds <= 0:
            await checkpoint()
            return
        sleeper = (self._monotonic + seconds * 1_000, anyio.Event())
        self._sleepers.append(sleeper)
        self._arrival.set()
        self._arrival = anyio.Event()
        try:
            await sleeper[1].wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def advance(self, ms: int) -> None:
        """Let `ms` go by on every clock and wake whoever slept long enough."""
        self._monotonic += ms
        self._now = replace(self._now, wall=self._now.wall + ms, boot=self._now.boot + ms)
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic]
        for sleeper in sorted(due, key=lambda one: one[0]):
            self._sleepers.remove(sleeper)
            sleeper[1].set()

    def suspend(self, ms: int) -> None:
        """Let `ms` go by on the wall and boot clocks only; nobody who sleeps gets nearer."""
        self._now = replace(self._now, wall=self._now.wall + ms, boot=self._now.boot + ms)

    def jump(self, ms: int) -> None:
        """Set the wall clock forward, or backward with a negative `ms`."""
        self._now = replace(self._now, wall=self._now.wall + ms)

    def reboot(self, boot_id: str) -> None:
        """Start another boot: its clock begins at zero, the wall clock goes on."""
        self._now = replace(self._now, boot=0, boot_id=boot_id)

    @property
    def next_wake(self) -> int | None:
        """Milliseconds until the first sleeper is due; None while nobody sleeps."""
        if not self._sleepers:
            return None
        return max(0, round(min(due for due, _ in self._sleepers) - self._monotonic))

    async def asleep(self, sleepers: int = 1) -> None:
        """Wait until at least that many tasks sleep, so that `advance` cannot come too early."""
        while len(self._sleepers) < sleepers:
            await self._arrival.wait()


class FixedRandom:
    """`ports.Random` without surprises: the given numbers in turn, for ever, and counted tokens."""

    def __init__(self, *uniforms: float) -> None:
        numbers: Iterator[float] = cycle(uniforms or (0.5,))
        self._uniform: Callable[[], float] = numbers.__next__
        self._tokens = count(1)

    @classmethod
    def seeded(cls, seed: int) -> FixedRandom:
        """The same varied numbers on every run."""
        made = cls()
        made._uniform = Generator(seed).random
        return made

    def uniform(self) -> float:
        return self._uniform()

    def token(self, size: int) -> str:
        number = next(self._tokens)
        if number >= len(BASE32) ** size:
            raise AssertionError(f"no token of {size} characters is left that would be new")
        digits: list[str] = []
        for _ in range(size):
            number, digit = divmod(number, len(BASE32))
            digits.append(BASE32[digit])
        return "".join(reversed(digits))
