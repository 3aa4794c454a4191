"""The only reader of the system's clocks and of its randomness."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from forbear.rules.ports import Moment

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """The real clocks. `boot` goes on while the machine sleeps; asyncio's own timers do not."""

    __slots__ = ("_boot_clock", "_boot_id")

    def __init__(self) -> None:
        self._boot_clock = _boot_clock()
        self._boot_id = _boot_id()

    def now(self) -> Moment:
        return Moment(time.time_ns() // 1_000_000, self._boot_clock() // 1_000_000, self._boot_id)

    async def sleep(self, seconds: float) -> None:
        """Wait on the monotonic clock; look at `now` again afterwards."""
        await asyncio.sleep(seconds)


class SystemRandom:
    """Unguessable numbers from the operating system."""

    __slots__ = ()

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return secrets.randbits(53) / (1 << 53)

    def token(self, size: int) -> str:
        """`size` characters of lower-case base32, five random bits each."""
        return "".join(_BASE32[byte % 32] for byte in secrets.token_bytes(size))


def _boot_clock() -> Callable[[], int]:
    """Nanoseconds since boot, sleep included.

    Linux has CLOCK_BOOTTIME for that; the monotonic clocks of macOS and Windows do it anyway.
    """
    if sys.platform == "linux":
        return lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns


def _boot_id() -> str:
    """A name that all processes of one boot share and that another boot does not have.

    Where the system keeps none, the machine's own name stands in: then a lease from before a
    restart ends by the proof that its owner is dead, not by the change of this name.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            return found.stdout.strip().lower()
    return f"machine-{uuid.getnode():012x}"
