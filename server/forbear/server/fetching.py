"""Secrets that take time to get: from the machine's keyring, or from a command.

Each is fetched by a thread of its own, one at a time, and kept in memory for a while, so that a
keyring that asks a person, or a command that hangs, holds up nothing but what needs that secret.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import IO

from forbear.rules.ports import Clock

MAX_SECRET = 65_536
"""Bytes of a secret that are read; longer is refused."""

LASTS = 300_000
"""Milliseconds for which a fetched secret is used before it is fetched again."""

AGAIN = 15_000
"""Milliseconds between two fetches of what is missing, or of what a provider refused."""

TIMEOUT = 10
"""Seconds that a command may take."""

PATIENCE = TIMEOUT + 2
"""Seconds for which anybody waits for a first fetch; a keyring cannot be interrupted."""

Found = bytes | str
"""A secret, or the reason why there is none, with the fix."""


@dataclass(slots=True)
class _Kept:
    found: Found | None = field(default=None, repr=False)
    until: int = 0
    """When it is to be fetched again, on the boot clock."""
    refused: Found | None = field(default=None, repr=False)
    flight: Future[None] | None = None


class Fetcher:
    """What was fetched last, by source. May be used from any thread.

    An old secret stays in use while it is fetched again; a fetch that fails takes its place.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def get(self, source: Hashable, fetch: Callable[[], Found]) -> Found | None:
        """What is known now, None before the first fetch ended; begins a fetch that is due."""
        with self._lock:
            kept = self._kept.setdefault(source, _Kept())
            if kept.flight is None and self._clock.now().boot >= kept.until:
                kept.flight = Future()
                kept.flight.set_running_or_notify_cancel()
                work = (kept, kept.flight, fetch)
                Thread(target=self._fetch, args=work, name="forbear-secret", daemon=True).start()
            return kept.found

    def _fetch(self, kept: _Kept, flight: Future[None], fetch: Callable[[], Found]) -> None:
        try:
            found = fetch()
        except Exception as error:  # its text may hold the secret
            found = f"could not be fetched ({type(error).__name__}) -> see that it can be"
        with self._lock:
            fine = isinstance(found, bytes) and found != kept.refused
            kept.found = found
            kept.until = self._clock.now().boot + (LASTS if fine else AGAIN)
            kept.flight = None
        flight.set_result(None)

    def refused(self, source: Hashable) -> None:
        """A provider refused what is known now: fetch it at the next need, until it changes."""
        with self._lock:
            kept = self._kept.get(source)
            if kept is not None and kept.found != kept.refused:
                kept.refused, kept.until = kept.found, 0

    def _first(self, sources: Iterable[Hashable]) -> list[Future[None]]:
        with self._lock:
            found = [self._kept[one] for one in sources if one in self._kept]
            return [one.flight for one in found if one.flight is not None and one.found is None]

    def wait(self, source: Hashable) -> None:
        """Block until the first fetch ended, at most PATIENCE."""
        wait_for(self._first([source]), PATIENCE)

    async def arrived(self, sources: Iterable[Hashable]) -> None:
        """Return when the first fetch of each has ended, or after PATIENCE."""
        flights = [asyncio.wrap_future(one) for one in self._first(sources)]
        if not flights:
            return
        try:
            await asyncio.wait(flights, timeout=PATIENCE)
        finally:
            for one in flights:
                one.cancel()


# --- the keyring ------------------------------------------------------------------------------


def from_keyring(name: str) -> Found:
    """The password of `service/user`; the last slash parts them."""
    try:
        import keyring
        from keyring.errors import KeyringError, NoKeyringError
    except ImportError:
        return 'the package keyring is not installed -> pip install "forbear[keyring]"'
    service, _, user = name.rpartition("/")
    try:
        found = keyring.get_password(service, user)
    except NoKeyringError:
        return "there is no keyring on this machine -> set one up, or use file: or exec:"
    except KeyringError as error:
        return f"the keyring did not open ({type(error).__name__}) -> unlock it for this user"
    if found is None:
        return f"no such entry -> keyring set {service} {user}"
    return checked(found.encode(), f"keyring set {service} {user}")


# --- commands ---------------------------------------------------------------------------------


def from_command(arguments: Sequence[str], environment: Mapping[str, str]) -> Found:
    """The first line that a command prints; no shell, no input, killed after TIMEOUT."""
    try:
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "a word that no command can have"
        return f"{arguments[0]} cannot be started ({why}) -> correct `exec` in [auth]"
    assert process.stdout is not None
    assert process.stderr is not None
    line, complaint = _Ear(process.stdout, first=True), _Ear(process.stderr, first=False)
    try:
        code = process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        _kill(process)
        return f"{arguments[0]} did not end within {TIMEOUT} s -> see that it asks nobody anything"
    out = line.heard()
    if code:
        told = _harmless(complaint.heard(), out)
        return f"{arguments[0]} ended with {code}{told} -> run it yourself as this user"
    return checked(out, "its first line must be the secret")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command and, where the system knows of groups, what it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Ear:
    """Listens to a pipe to its end and keeps its first line, or the last 4 KiB."""

    def __init__(self, pipe: IO[bytes], *, first: bool) -> None:
        self._pipe = pipe
        self._first = first
        self._kept = b""
        self._thread = Thread(target=self._listen, name="forbear-secret-pipe", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._pipe as pipe:
            if self._first:
                self._kept = pipe.readline(MAX_SECRET + 1)
            while piece := os.read(pipe.fileno(), MAX_SECRET):
                if not self._first:
                    self._kept = (self._kept + piece)[-4_096:]

    def heard(self) -> bytes:
        """What came, once the command has ended; what it left running may hold the pipe open."""
        self._thread.join(1)
        return self._kept


_TELLING = re.compile(r"(?=[^\s]*\d)[\w+/=.~:@%-]{16,}")
"""Words that could be a secret: long, and with a digit."""


def _harmless(complaint: bytes, out: bytes) -> str:
    """The last line of standard error, for people, without anything that looks like a secret."""
    lines = complaint.decode(errors="replace").split("\n")
    last = next((one for one in reversed(lines) if one.strip()), "")
    secret = out.decode(errors="replace").strip()
    if secret:
        last = last.replace(secret, "[redacted]")
    last = "".join(one if one.isprintable() else " " for one in last).replace("->", "-")
    last = _TELLING.sub("[redacted]", last).strip()[:200]
    return f", saying {last!r}" if last else ""


# --- wherever it comes from -------------------------------------------------------------------


def checked(content: bytes, fix: str) -> Found:
    """The secret without white space at its end, or the reason why it cannot be used."""
    if len(content) > MAX_SECRET:
        return f"larger than {MAX_SECRET} bytes -> {fix}"
    secret = content.rstrip()
    if not secret:
        return f"empty -> {fix}"
    try:
        secret.decode()
    except UnicodeDecodeError:
        return f"not UTF-8 text -> {fix}"
    return secret
