"""Which file of a client is meant, on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from glob import escape, glob
from pathlib import Path

from forbear.server.clients.known import Client


def files(client: Client, environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Where the user's file is or would be, for each of the client's folders that is there."""
    for place in client.places(sys.platform, environment, _user()):
        pattern = "*".join(escape(part) for part in str(place.parent).split("*"))
        for folder in sorted(glob(pattern)):
            if Path(folder).is_dir():
                yield Path(folder) / place.name


def file_of(client: Client) -> Path | None:
    """The user's file: one that is there before one that would be made. None: no such client."""
    found = [file for file in files(client) if client.id != "claude-code" or _has_claude(file)]
    return next((file for file in found if file.exists()), next(iter(found), None))


def usual(client: Client, environment: Mapping[str, str] = os.environ) -> str:
    """Where the file would be, for a message."""
    places = map(str, client.places(sys.platform, environment, _user()))
    return next(place for place in places if "*" not in place)


def _user() -> str:
    """The folder of the user; one that is nowhere where a user, as in a container, has none."""
    try:
        return str(Path.home())
    except RuntimeError:
        return os.devnull


def claude() -> str | None:
    """The command of Claude Code, which writes its own file while it runs."""
    return shutil.which("claude")


def _has_claude(file: Path) -> bool:
    """Its file lies in a folder that everybody has."""
    return file.exists() or (file.parent / ".claude").is_dir() or claude() is not None
