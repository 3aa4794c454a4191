"""Who is signed in: one-time links and sessions, kept in the home by their keyed digests.

Each is one file in `keys/console`, named by the digest of a random token and holding the time of
its end. So a restart keeps sessions, several processes of one home share them, and a link is used
up by removing its file, which the system lets one of two callers do.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

from forbear.rules.ports import Clock, Random

LINK_LASTS = 600_000
"""How long a sign-in link is good for, ms."""

SESSION_LASTS = 43_200_000
"""How long a person stays signed in, ms."""

_TOKEN = 52
"""Characters of a token, five random bits each."""


class Sessions:
    """Sign-in links and sessions of one home. Only `new_link`, `sign_in` and `sign_out` change
    anything. The folder is readable to the home's user alone."""

    def __init__(self, home: Path, store_key: bytes, clock: Clock, random: Random) -> None:
        self._folder = home / "keys" / "console"
        self._key = store_key
        self._clock = clock
        self._random = random

    def new_link(self) -> str:
        """A token that signs in once, within `LINK_LASTS`."""
        self._sweep()
        return self._made("link", LINK_LASTS)

    def link_is_good(self, token: str) -> bool:
        return self._alive(self._file("link", token))

    def sign_in(self, token: str) -> str | None:
        """Use a link up: the token of a new session, or None if the link is used or over."""
        file = self._file("link", token)
        good = self._alive(file)
        try:
            file.unlink()
        except FileNotFoundError:  # somebody else used it between the two lines
            return None
        return self._made("session", SESSION_LASTS) if good else None

    def is_signed_in(self, session: str) -> bool:
        return bool(session) and self._alive(self._file("session", session))

    def sign_out(self, session: str) -> None:
        self._file("session", session).unlink(missing_ok=True)

    def form_token(self, session: str) -> str:
        """What each form of a session carries: it proves that our page made the form."""
        return self._digest("form", session)

    def is_form_token(self, session: str, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), token.encode())

    @property
    def meter_file(self) -> Path:
        """Holds the token with which a monitoring system reads `/metrics` and nothing else."""
        return self._folder / "metrics-token"

    def make_meter_token(self) -> None:
        """Write that file, if it is not there."""
        with suppress(FileExistsError):
            self._write(self.meter_file, self._random.token(_TOKEN))

    def is_meter_token(self, token: str) -> bool:
        try:
            known = self.meter_file.read_text("ascii")
        except OSError:
            return False
        return bool(known) and hmac.compare_digest(known.encode(), token.encode())

    def _made(self, kind: str, lasts: int) -> str:
        token = self._random.token(_TOKEN)
        self._write(self._file(kind, token), str(self._clock.now().wall + lasts))
        return token

    def _write(self, file: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)

    def _alive(self, file: Path) -> bool:
        try:
            return self._clock.now().wall < int(file.read_text("ascii"))
        except (OSError, ValueError):
            return False

    def _sweep(self) -> None:
        """Remove what is over."""
        for file in self._folder.glob("*_*"):
            if not self._alive(file):
                file.unlink(missing_ok=True)

    def _file(self, kind: str, token: str) -> Path:
        return self._folder / f"{kind}_{self._digest(kind, token)}"

    def _digest(self, purpose: str, token: str) -> str:
        message = f"console {purpose}\0{token}".encode()
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()
