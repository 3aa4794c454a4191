"""Which processes are alive: each holds a lock on a file of its own in `run/`.

A lock dies with its process, however that ends, so a file that can be locked proves its owner dead
and its leases over. Owner ids are random for each start: a restarted process is another owner.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


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
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A sweep may have removed the file between its creation and its lock.
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                self._descriptor = descriptor
            else:
                os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            (self._folder / self.owner).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def alive(self, owner: str) -> bool:
        """Whether that process lives. A missing or lockable file proves it dead."""
        if owner == self.owner:
            return self._descriptor is not None
        try:
            descriptor = os.open(self._folder / owner, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove the files of dead processes."""
        for path in self._folder.iterdir():
            if path.name != self.owner and not self.alive(path.name):
                path.unlink(missing_ok=True)
