"""Where the web console of a home is served: said by a file in `run/` that lives with its process.

The file is locked like every liveness file, so a console that is gone is never taken for served.
"""

from __future__ import annotations

from pathlib import Path

from forbear.storage.liveness import Liveness

_PREFIX = "console_"


class Beacon:
    """The sign of one process that serves the console; `token` is unique to that process."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._liveness = Liveness(folder, f"{_PREFIX}{token}")

    def light(self, address: str) -> None:
        """Say that the console answers at `address`, until this process ends or `put_out`."""
        self._liveness.claim()
        (self._folder / self._liveness.owner).write_text(address, encoding="utf-8")

    def put_out(self) -> None:
        self._liveness.release()


def served_at(folder: Path, liveness: Liveness) -> str | None:
    """The address at which a living process serves the console; None if none does."""
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        if liveness.alive(path.name):
            try:
                address = path.read_text(encoding="utf-8")
            except OSError:  # it ended between the two looks
                continue
            if address:
                return address
    return None
