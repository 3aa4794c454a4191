"""Files of clients: read as they are, written whole or not at all, with a copy beside them."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from forbear.server.clients.splices import Unfit


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was read. `content` is None where there is none."""

    path: Path
    """Without symbolic links."""
    content: bytes | None

    @staticmethod
    def of(path: Path) -> File:
        """Read a file. Raises Unfit if it is there and cannot be read or must not be written."""
        try:
            real = path.resolve()
        except (OSError, RuntimeError) as error:  # links in a circle
            raise Unfit("cannot be read: its links lead nowhere") from error
        try:
            # A device or a pipe would be read without end, and replaced by a file.
            if not stat.S_ISREG(real.stat().st_mode):
                raise Unfit("is a folder" if real.is_dir() else "is no regular file")
            return File(real, real.read_bytes())
        except FileNotFoundError:
            return File(real, None)
        except OSError as error:
            raise Unfit(f"cannot be read ({error.strerror})") from error

    @property
    def text(self) -> str:
        try:
            return (self.content or b"").decode()
        except UnicodeDecodeError as error:
            raise Unfit("is not UTF-8 text") from error

    def write(self, text: str) -> None:
        """Replace the content; the file keeps its mode.

        Raises Unfit if it cannot be, or was changed since it was read.
        """
        try:
            self._replaced(text.encode(), self._mode())
        except OSError as error:
            raise Unfit(f"cannot be written ({error.strerror})") from error

    def copied(self) -> Path | None:
        """A copy of the content beside the file; None where there is no file. Raises Unfit."""
        if self.content is None:
            return None
        mode = self._mode()
        for number in count(1):
            suffix = ".forbear-backup" + (f"-{number}" if number > 1 else "")
            path = self.path.with_name(self.path.name + suffix)
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:
                continue
            except OSError as error:
                raise Unfit(f"cannot be copied beside itself ({error.strerror})") from error
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.content)
            return path
        raise AssertionError

    def _mode(self) -> int:
        if self.content is None:
            return 0o600
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if not mode & 0o200 or not os.access(self.path, os.W_OK):
            raise Unfit("is read-only")
        return mode

    def _replaced(self, content: bytes, mode: int) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            if File.of(self.path).content != self.content:
                raise Unfit("was changed by another program just now: try again")
            os.replace(name, self.path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
