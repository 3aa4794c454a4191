"""Which processes are alive: each holds a lock on a file of its own in `run/`.

A lock dies with its process, however that ends, so a file that can be locked proves its owner dead
and its leases over. Owner ids are random for each start: a restarted process is another owner.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

OWNER = "own_"
"""How the ids of processes begin."""


class Liveness:
    """The liveness files of one home."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self.owner = owner
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor: int | None = None

    def claim(self) -> None:
        """Show this process as alive until it ends or `release` is called."""
        path = self._folder / self.owner
        while self._descriptor is None:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Whoever asks whether we live holds this lock for a moment only.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_linked(descriptor):
                self._descriptor = descriptor
            else:  # a sweep removed the file between its creation and its lock
                os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            (self._folder / self.owner).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def alive(self, owner: str) -> bool:
        """Whether that process lives. Only a missing or lockable file proves it dead."""
        if owner == self.owner:
            return self._descriptor is not None
        return not self._bury(owner, remove=False)

    def others(self) -> set[str]:
        """The owner ids of the other processes that live."""
        names = [path.name for path in self._folder.glob(f"{OWNER}*") if path.name != self.owner]
        return {name for name in names if self.alive(name)}

    def sweep(self) -> int:
        """Remove the files of dead processes, and say how many there were."""
        others = [path.name for path in self._folder.iterdir() if path.name != self.owner]
        return sum(self._bury(owner, remove=True) for owner in others)

    def _bury(self, owner: str, *, remove: bool) -> bool:
        """Whether that process is dead. Its file is removed while its lock is held here, so that
        a process which is just starting never loses the file that it has locked.
        """
        path = self._folder / owner
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove and _is_linked(descriptor):
                path.unlink()
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)


def _is_linked(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink > 0
