"""Key files: made once, whole or not at all, readable by their user alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forbear.storage.errors import StoreUnavailable


def kept(path: Path, make: Callable[[], str], *, lost: str | None) -> bytes:
    """The content of a key file; `make` gives it where the file is not there yet.

    It is durable when this returns, and of several processes at a first start one makes it for all.
    `lost` says what it means that the file is gone, where it must have been there.

    Raises:
        StoreUnavailable: the file is gone, or too short to be a key.
        OSError: the folder cannot be used.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return _read(path)
    except FileNotFoundError:
        if lost is not None:
            raise StoreUnavailable(f"{path} is missing: {lost}") from None
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(make())
            file.flush()
            os.fsync(file.fileno())
        # A hard link is the atomic "create if absent, with content": the first process wins.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    _make_durable(path.parent)
    return _read(path)


def _make_durable(folder: Path) -> None:
    """A name survives power loss only once its folder is synced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) < 32:
        raise StoreUnavailable(f"{path} is not a key of this store")
    return key
