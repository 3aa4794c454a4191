"""What this program needs of the operating system about files, for POSIX systems and Windows.

Tests run on Linux; macOS takes the same ways, and Windows those marked `win32`, which follow
Microsoft's documentation of LockFile, CreateFile and DeleteFile and were never run.
"""

from __future__ import annotations

import errno
import getpass
import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import pwd

_BEYOND = 1 << 30
"""Where the byte lies that Windows locks: no file here is so long, and there a locked byte cannot
be read by others."""


# --- locks that end with their process, however it ends -----------------------------------------


def open_private(path: Path, *, create: bool = True) -> int:
    """A descriptor for reading and writing of a file that is for this user alone."""
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT if create else 0)
    return os.open(path, flags, 0o600)


def lock(descriptor: int) -> None:
    """Wait until the file is locked for this descriptor alone."""
    if sys.platform == "win32":
        while not _locked(descriptor, msvcrt.LK_LOCK):  # gives up after ten seconds
            pass
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Lock the file if nobody else has it locked; False if somebody has."""
    if sys.platform == "win32":
        return _locked(descriptor, msvcrt.LK_NBLCK)
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def unlock(descriptor: int) -> None:
    """Undo `lock`."""
    if sys.platform == "win32":
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def remove_locked(path: Path, descriptor: int) -> None:
    """Remove a file that `descriptor` has locked, and close it.

    Nobody else can lock the name in between: POSIX removes first, and Windows refuses to remove
    what another process has opened meanwhile. Raises OSError if it stays; it is closed anyway.
    """
    if sys.platform == "win32":
        os.close(descriptor)
        path.unlink(missing_ok=True)
    else:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def is_linked(descriptor: int) -> bool:
    """Whether an opened file still has a name."""
    return os.fstat(descriptor).st_nlink > 0


if sys.platform == "win32":

    def _locked(descriptor: int, mode: int) -> bool:
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True


# --- whole small files ---------------------------------------------------------------------------


def read_start(descriptor: int, size: int) -> bytes:
    """The first `size` bytes of a file, or what it has of them."""
    if sys.platform == "win32":
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, size)
    return os.pread(descriptor, size, 0)


def write_start(descriptor: int, content: bytes) -> None:
    """Write `content` over the first bytes of a file."""
    if sys.platform == "win32":
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, content)
    else:
        os.pwrite(descriptor, content, 0)


def make_durable(folder: Path) -> None:
    """A name survives power loss only once its folder is synced; NTFS does that by its journal."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- whose they are ------------------------------------------------------------------------------


def exposed(status: os.stat_result) -> str | None:
    """The mode of a file that others on this machine may read or change; None if none may.

    On Windows mode bits say nothing: the folder of a user's data is closed to others by its list of
    access rights.
    """
    mode = status.st_mode & 0o777
    return f"{mode:04o}" if mode & 0o077 and sys.platform != "win32" else None


def is_mine(path: Path) -> bool:
    """Whether a file belongs to the user of this process; Windows does not tell, so yes."""
    if sys.platform == "win32":
        return True
    return os.getuid() == path.stat().st_uid


def account() -> str:
    """The account that this process runs as, whatever its environment says."""
    if sys.platform == "win32":
        return os.getlogin()
    else:
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return f"uid {os.getuid()}"


def user() -> str:
    """The name that a person of this account goes by: that of the environment, or the account's."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return account()
