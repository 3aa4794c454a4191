"""Where the keys of a store live: files of its home, or places outside that are only read.

A file is made once, whole or not at all, and readable by its user alone. A new key lies beside the
old one under another name until the store is wrapped with it, so that whichever moment a process
dies at, one of the two is the key of the store.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from forbear.storage import files
from forbear.storage.errors import StoreUnavailable

SIZE = 32
"""Bytes of a sealing or signing key; in a file, and wherever else it lies, in hexadecimal."""


class Name(StrEnum):
    """The keys that can live elsewhere, and be changed."""

    SEALING = "sealing"
    """Wraps every key that lies in the store."""
    SIGNING = "signing"
    """Signs checkpoints of the audit log."""


FILES = {Name.SEALING: "audit-seal.key", Name.SIGNING: "audit-sign.key"}


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A key that lies outside the home, and that is read anew each time."""

    where: str
    """As people wrote it: `env:NAME`, `keyring:SERVICE/USER`."""
    read: Callable[[], str] = field(repr=False)
    """Raises StoreUnavailable: it cannot be had; the message has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key that may be the one of the store."""

    where: str
    key: bytes = field(repr=False)
    drafted: bool = False


class Places:
    """Where each key is looked for: the places outside in their order, then the folder of keys."""

    def __init__(
        self, folder: Path, elsewhere: Mapping[Name, Sequence[Elsewhere]] | None = None
    ) -> None:
        self.folder = folder
        self._elsewhere = elsewhere or {}

    def file(self, name: Name) -> Path:
        return self.folder / FILES[name]

    def _draft(self, name: Name) -> Path:
        return self.folder / f"{FILES[name]}.next"

    def is_elsewhere(self, name: Name) -> bool:
        """Whether somebody keeps this key outside the home."""
        return bool(self._elsewhere.get(name))

    def where(self, name: Name) -> str:
        """Where this key is looked for first."""
        outside = self._elsewhere.get(name)
        return outside[0].where if outside else str(self.file(name))

    def first(self, name: Name) -> bytes:
        """The key in the first place outside.

        Raises:
            StoreUnavailable: it cannot be had, or is no key.
        """
        return _outside(self._elsewhere[name][0])

    def candidates(self, name: Name, problems: list[str] | None = None) -> Iterator[Candidate]:
        """Every key that there is. `problems` hears why a place has none."""
        heard: list[str] = [] if problems is None else problems
        for one in self._elsewhere.get(name, ()):
            try:
                yield Candidate(one.where, _outside(one))
            except StoreUnavailable as error:
                heard.append(str(error))
        for path in (self.file(name), self._draft(name)):
            try:
                text = _private(path)
                yield Candidate(str(path), _key(str(path), text), path != self.file(name))
            except FileNotFoundError:
                pass
            except StoreUnavailable as error:
                heard.append(str(error))

    def draft(self, name: Name, key: bytes) -> None:
        """Lay a new key beside the old one, durably. Only under the lock of the store."""
        _own(self.folder)
        draft = _written(self._draft(name), key.hex())
        draft.rename(self._draft(name))
        files.make_durable(self.folder)

    def promote(self, name: Name, key: bytes) -> None:
        """Put a new key in the place of the old one, if that was not done yet.

        Only under the lock of the store.
        """
        with suppress(FileNotFoundError, StoreUnavailable):
            if _key("", _private(self._draft(name))) == key:
                self._draft(name).replace(self.file(name))
                files.make_durable(self.folder)

    def forget_draft(self, name: Name) -> None:
        """Remove a new key that nothing was wrapped with. Only under the lock of the store."""
        self._draft(name).unlink(missing_ok=True)

    def set_aside(self, name: Name) -> Path | None:
        """Give the file of a key that is of no use here another name; None if there is none."""
        path = self.file(name)
        number = 1
        while (aside := path.with_name(f"{path.name}.set-aside-{number}")).exists():
            number += 1
        try:
            path.rename(aside)
        except FileNotFoundError:
            return None
        files.make_durable(self.folder)
        return aside

    def made(self, name: Name, make: Callable[[], bytes]) -> bytes:
        """The key of a new store: that of the first place outside, or a file, made if need be.

        Raises:
            StoreUnavailable: the place outside has none, or the file is no key.
            OSError: the folder cannot be used.
        """
        if self.is_elsewhere(name):
            return self.first(name)
        path = self.file(name)
        return _key(str(path), kept(path, lambda: make().hex(), lost=None))


def _outside(one: Elsewhere) -> bytes:
    return _key(one.where, one.read().encode())


def _key(where: str, text: bytes) -> bytes:
    try:
        key = bytes.fromhex(text.decode().strip())
    except ValueError:
        key = b""
    if len(key) != SIZE:
        raise StoreUnavailable(
            f"{where} is not a key of this store: restore it from a backup; "
            f"a key is {2 * SIZE} hexadecimal digits"
        )
    return key


# --- files ----------------------------------------------------------------------------------


def kept(path: Path, make: Callable[[], str], *, lost: str | None) -> bytes:
    """The content of a key file; `make` gives it where the file is not there yet.

    It is durable when this returns, and of several processes at a first start one makes it for all.
    `lost` says what it means that the file is gone, where it must have been there.

    Raises:
        StoreUnavailable: the file is gone, or too short to be a key.
        OSError: the folder cannot be used.
    """
    _own(path.parent)
    try:
        return _read(path)
    except FileNotFoundError:
        if lost is not None:
            raise StoreUnavailable(f"{path} is missing: {lost}") from None
    create(path, make())
    return _read(path)


def _own(folder: Path) -> None:
    """Make a folder of keys, and the home around it, for nobody else to look into."""
    for one in (folder.parent, folder):
        one.mkdir(parents=True, exist_ok=True, mode=0o700)


def create(path: Path, text: str) -> bool:
    """Write a key file, whole or not at all; False, and nothing is changed, if there is one."""
    _own(path.parent)
    draft = _written(path, text)
    try:
        # A hard link is the atomic "create if absent, with content": the first process wins.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    files.make_durable(path.parent)
    return True


def _written(path: Path, text: str) -> Path:
    """A file beside `path` with this text, durable, for this user alone."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _read(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) < SIZE:
        raise StoreUnavailable(f"{path} is not a key of this store")
    return key


def _private(path: Path) -> bytes:
    """As `_read`, and no key if others can read it too."""
    key, mode = _read(path), files.exposed(path.stat())
    if mode is not None:
        raise StoreUnavailable(
            f"{path} has mode {mode}, so others on this machine can read the key "
            f"-> chmod 600 {path}, and change the key if they may have read it"
        )
    return key
