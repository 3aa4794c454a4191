"""A home that holds nothing but copies of contracts which point at the simulator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forbear.rules.contract import Contract
from forbear.server.providers import Contracts
from forbear.server.simulator.copies import SECRET, Pace, copy
from forbear.server.simulator.source import Source
from forbear.storage.files import open_private, try_lock

MARK = "simulated"
"""The file that tells such a home from one of a user."""


class NotSimulated(ValueError):
    """A folder that holds something else, or is in use; the message says what to do."""


def take(home: Path) -> None:
    """Make a folder a home for copies. Raises `NotSimulated` if it is used for anything else."""
    if home.is_dir() and any(home.iterdir()) and not (home / MARK).exists():
        raise NotSimulated(
            f"{home} holds something else. Name a folder that is empty or not there yet: a home "
            "of the simulator never has your keys and contracts in it."
        )
    (home / "contracts").mkdir(parents=True, exist_ok=True)
    (home / MARK).write_text(
        "The contracts in this home point at `forbear contract simulate`.\n", encoding="utf-8"
    )
    secret = home / SECRET
    secret.touch(0o600, exist_ok=True)
    os.chmod(secret, 0o600)
    secret.write_text("a dummy, for the simulator alone\n", encoding="utf-8")


@contextmanager
def held(home: Path, provider: str) -> Iterator[None]:
    """A provider of a home that was taken, for this process alone, until the end or its own.

    Raises `NotSimulated` if another simulator plays it there: a second one would lead the first
    one's agents away.
    """
    descriptor = open_private(home / f"{MARK}-{provider}.lock")
    try:
        if not try_lock(descriptor):
            raise NotSimulated(
                f"another simulator plays {provider} in {home}. End it, or name another folder."
            )
        yield
    finally:
        os.close(descriptor)


def furnish(
    home: Path,
    source: Source,
    address: str,
    pace: Pace | None,
    provider: str | None = None,
    only: str | None = None,
) -> str:
    """Lay the copy of a contract into a home that was taken; see `copies.copy`. Its provider."""
    name = provider or source.contract.provider
    text = copy(source, address, home / SECRET, pace, name, only)
    (home / "contracts" / f"{name}.toml").write_text(text, encoding="utf-8")
    return name


def furnished(contracts: Contracts, provider: str) -> Contract:
    """The copy as it loads."""
    made = contracts.contracts().get(provider)
    if made is None:
        problems = "; ".join(str(one) for each in contracts.errors().values() for one in each)
        raise RuntimeError(f"the copy of {provider} does not load: {problems}")
    return made
