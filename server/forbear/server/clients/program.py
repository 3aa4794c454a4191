"""What others start: the full path of this program, its home, and the variables that it needs."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from forbear.server.clients.known import Server
from forbear.server.config import Settings
from forbear.server.credentials import Credentials
from forbear.server.providers import Contracts

_FLEETING = ("archive-v0", "environments-v2", ".cache")
"""Folders of environments that `uvx` and `pipx run` make and later remove."""


def command() -> tuple[str, ...]:
    """The words that start this program, beginning with a full path."""
    name = "forbear.exe" if sys.platform == "win32" else "forbear"
    script = Path(sysconfig.get_path("scripts")) / name
    if not script.exists():
        return sys.executable, "-m", "forbear"
    # The link that an installer laid into the user's PATH outlives an upgrade better.
    found = shutil.which("forbear")
    if found is not None and Path(found).resolve() == script.resolve():
        return (str(Path(found).absolute()),)
    return (str(script),)


def is_fleeting(words: tuple[str, ...]) -> bool:
    """Whether the program lies where a package runner keeps it for a while only."""
    return any(part in _FLEETING for part in Path(words[0]).parts)


def server(home: Settings, environment: Mapping[str, str] = os.environ) -> Server:
    """How a client starts this program on this home."""
    first, *rest = command()
    stated = {} if is_usual(home) else {"FORBEAR_HOME": str(home.home)}
    return Server(first, (*rest, "serve"), stated, needed(home, environment))


def is_usual(home: Settings) -> bool:
    """Whether a process finds the home without FORBEAR_HOME."""
    return home.home == Path(user_data_path("forbear")).absolute()


def needed(home: Settings, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of the variables that contracts and settings of a home refer to as `env:NAME`.

    With FORBEAR_DATABASE_URL where it is set: without it a server would use another store.
    """
    contracts = Contracts(home.contracts, Credentials(), b"").contracts().values()
    found = {name for contract in contracts for name in _variables(contract.auth)}
    for contract in contracts:
        for job in contract.jobs.values():
            found |= set(_variables(job.status.secret))
    found |= {*_variables(home.proxy), *_variables(home.notify)}
    if environment.get("FORBEAR_DATABASE_URL"):
        found.add("FORBEAR_DATABASE_URL")
    return tuple(sorted(found))


def _variables(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("env:"):
        yield value.removeprefix("env:")
    elif is_dataclass(value):
        for field in fields(value):
            yield from _variables(getattr(value, field.name))
