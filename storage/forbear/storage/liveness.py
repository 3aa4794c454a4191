"""Which processes are alive: each holds a lock on a file of its own in `run/`.

A lock dies with its process, however that ends, so a file that can be locked proves its owner dead
and its leases over. Owner ids are random for each start: a restarted process is another owner.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from forbear.rules.ports import Clock
from forbear.storage import files

OWNER = "own_"
"""How the ids of processes begin."""

SILENCE = 60_000
"""A process of another host that gave no sign of life for so long, ms, counts as gone where that
costs nothing but work done twice: who can run what. Never for a lease."""

KEPT = 7 * 86_400_000
"""How long the file of a dead process stays where other hosts use the store, ms."""


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
            descriptor = files.open_private(path)
            # Whoever asks whether we live holds this lock for a moment only.
            files.lock(descriptor)
            if files.is_linked(descriptor):
                self._descriptor = descriptor
            else:  # a sweep removed the file between its creation and its lock
                os.close(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):  # whoever sweeps next removes what stays
                files.remove_locked(self._folder / self.owner, descriptor)

    def alive(self, owner: str) -> bool:
        """Whether that process lives. Only a missing or lockable file proves it dead."""
        if owner == self.owner:
            return self._descriptor is not None
        return not self._bury(owner, remove=False)

    def answers(self, owner: str, silent: int) -> bool:
        """Whether that process lives, as far as can be told where only `silent` ms, since its last
        sign of life in the store, speak of it."""
        return self.alive(owner)

    def others(self) -> set[str]:
        """The owner ids of the other processes that live."""
        names = [path.name for path in self._folder.glob(f"{OWNER}*") if path.name != self.owner]
        return {name for name in names if self.alive(name)}

    def sweep(self) -> int:
        """Remove the files of dead processes, and say how many there were."""
        others = [name for name in os.listdir(self._folder) if name != self.owner]
        return sum(self._bury(owner, remove=True) for owner in others)

    def _bury(self, owner: str, *, remove: bool) -> bool:
        """Whether that process is dead, and its file gone if that was to be. It is removed while
        its lock is held here, so that a process which is just starting never loses the file that it
        has locked.
        """
        path = self._folder / owner
        try:
            descriptor = files.open_private(path, create=False)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            dead = files.try_lock(descriptor)
            linked = dead and files.is_linked(descriptor)
        except OSError:
            dead = linked = False
        if not (remove and linked):
            os.close(descriptor)
            return dead
        try:
            files.remove_locked(path, descriptor)
        except OSError:
            return False  # or every sweep would find it anew
        return True


class SharedLiveness(Liveness):
    """The liveness files of one home whose store other hosts use too.

    Only a file that its owner made here, in this folder and since this boot, and that can be
    locked, proves anything. It says so itself, so that a copy of the folder proves nothing, and it
    outlives its owner by `KEPT`, as the proof. Of anybody else only time tells.
    """

    def __init__(self, folder: Path, owner: str, clock: Clock) -> None:
        super().__init__(folder, owner)
        self._clock = clock
        self._buried: set[str] = set()

    def claim(self) -> None:
        claimed = self._descriptor is not None
        super().claim()
        if not claimed and self._descriptor is not None:
            os.write(self._descriptor, self._mark(os.fstat(self._descriptor)))

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def answers(self, owner: str, silent: int) -> bool:
        if owner != self.owner and not self._made_here(owner):
            return silent < SILENCE
        return self.alive(owner)

    def others(self) -> set[str]:
        """The owner ids of the other processes that live on this home since this boot."""
        return {owner for owner in super().others() if self._made_here(owner)}

    def sweep(self) -> int:
        """Remove files that nobody needs any more, and say how many owners were found dead since
        the last call."""
        dead: set[str] = set()
        for path in self._folder.iterdir():
            if path.name == self.owner:
                continue
            if not path.name.startswith(OWNER):
                self._bury(path.name, remove=True)
                continue
            if not self.alive(path.name):
                dead.add(path.name)
            if self._is_old(path):
                super()._bury(path.name, remove=True)
        new, self._buried = dead - self._buried, dead
        return len(new)

    def _bury(self, owner: str, *, remove: bool) -> bool:
        proves = not owner.startswith(OWNER) or self._made_here(owner)
        return proves and super()._bury(owner, remove=remove)

    def _made_here(self, owner: str) -> bool:
        try:
            with open(self._folder / owner, "rb") as file:
                return file.read() == self._mark(os.fstat(file.fileno()))
        except OSError:
            return False

    def _mark(self, file: os.stat_result) -> bytes:
        return f"{self._clock.now().boot_id} {file.st_dev} {file.st_ino}\n".encode()

    def _is_old(self, path: Path) -> bool:
        try:
            return self._clock.now().wall - path.stat().st_mtime * 1_000 > KEPT
        except OSError:
            return False
