"""Who may look into the audit log, and where its keys live: `[audit]` and `[keys]` of
`config.toml`.

Both hold for commands that run as they are told. Whoever runs as the home's user can change the
file and read the keys in the home; `docs/audit.md` says what that means.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from forbear.server import operator
from forbear.storage import files

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.server.fetching import Found
    from forbear.storage.keyfiles import Places

ACTS: Mapping[str, str] = {
    "show": "Accounts that may read rows with `forbear audit show`.",
    "export": "Accounts that may export the log.",
    "prune": "Accounts that may delete old rows; [] is nobody.",
}
"""The keys of `[audit]`; without one: who owns the home or knows the operator token."""

KEYS: Mapping[str, str] = {
    "sealing": "Place of the sealing key: env:, file:, keyring: or exec:; a list, new one first.",
    "signing": "Place of the signing key, in the same way.",
}
"""The keys of `[keys]`; without one: a file in the home."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which accounts of this machine may do what with the audit log; None: whoever owns the home,
    or knows the operator token."""

    show: tuple[str, ...] | None = None
    export: tuple[str, ...] | None = None
    prune: tuple[str, ...] | None = None


def read_access(section: object) -> Access:
    """`[audit]`. Raises ValueError."""
    table = _table("audit", section, ACTS)
    return Access(**{name: _texts(f"audit.{name}", value) for name, value in table.items()})


def objection(settings: Settings, store: Path, store_key: bytes, act: str) -> str | None:
    """Why this process may not `act` on the audit log, and the fix; None if it may."""
    access = settings.access or Access()
    named: tuple[str, ...] | None = getattr(access, act)
    me = files.account()
    config = settings.home / "config.toml"
    if named is not None:
        if me in named:
            return None
        those = ", ".join(named) or "nobody"
        return (
            f"{me} may not {act} the audit log: [audit] {act} in {config} names {those}. "
            f'Ask one of them, or let the owner of the home add "{me}" there.'
        )
    if files.is_mine(store) or operator.objection(settings, store_key) is None:
        return None
    return (
        f"{me} does not own {settings.home}, so to {act} the audit log set {operator.VARIABLE}, or "
        f'let the owner write [audit] {act} = ["{me}"] in {config}.'
    )


# --- keys -----------------------------------------------------------------------------------

_REFERENCE = re.compile(
    r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|keyring:[^/].*/[^/]+|exec:\[.*\]", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class References:
    """Where the keys live, first things first; empty: a file in the home."""

    sealing: tuple[str, ...] = ()
    signing: tuple[str, ...] = ()


def read_references(section: object) -> References:
    """`[keys]`. Raises ValueError."""
    table = _table("keys", section, KEYS)
    return References(**{name: _references(f"keys.{name}", one) for name, one in table.items()})


def _references(place: str, value: object) -> tuple[str, ...]:
    found = _texts(place, [value] if isinstance(value, str) else value)
    for one in found:
        if not _REFERENCE.fullmatch(one) or (one.startswith("exec:") and not _command(one)):
            raise ValueError(
                f"{place}: write env:NAME, file:/path, keyring:SERVICE/USER or "
                'exec:["PROGRAM", "WORD"], never the key itself'
            )
    return found


def _command(reference: str) -> Sequence[str]:
    try:
        words: object = json.loads(reference.removeprefix("exec:"))
    except ValueError:
        return ()
    if not isinstance(words, list):
        return ()
    listed = cast(list[object], words)
    return [str(one) for one in listed] if all(isinstance(one, str) for one in listed) else ()


def places(settings: Settings, environment: Mapping[str, str] = os.environ) -> Places:
    """Where the keys of a home are looked for."""
    from forbear.storage.keyfiles import Elsewhere, Name, Places

    def outside(reference: str) -> Elsewhere:
        where = reference
        if reference.startswith("exec:"):
            where = f"exec:{_command(reference)[0]}"
        return Elsewhere(where, partial(_read, reference, where, environment))

    keys = settings.keys or References()
    stated = {
        Name.SEALING: [outside(one) for one in keys.sealing],
        Name.SIGNING: [outside(one) for one in keys.signing],
    }
    return Places(settings.home / "keys", stated)


def _read(reference: str, where: str, environment: Mapping[str, str]) -> str:
    from forbear.storage.errors import StoreUnavailable

    found = _fetched(reference, environment)
    if isinstance(found, str):
        raise StoreUnavailable(f"{where}: {found.replace('`exec` in [auth]', '[keys]')}")
    return found.decode()


def _fetched(reference: str, environment: Mapping[str, str]) -> Found:
    from forbear.server.fetching import from_command, from_keyring

    kind, _, name = reference.partition(":")
    match kind:
        case "env":
            value = environment.get(name, "").strip()
            return value.encode() or f"{name} is not set -> set it for every process of this home"
        case "keyring":
            return from_keyring(name)
        case "exec":
            return from_command(_command(reference), environment)
        case _:
            return _from_file(Path(name))


def _from_file(path: Path) -> Found:
    from forbear.server.fetching import MAX_SECRET, checked

    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_SECRET + 1)
    except OSError as error:
        return f"cannot be read ({error.strerror}) -> create it, readable by this user alone"
    if (mode := files.exposed(status)) is not None:
        return f"has mode {mode}, so others can read it -> chmod 600 {path}"
    return checked(content, "write the key into it")


# --- tables ---------------------------------------------------------------------------------


def _table(name: str, section: object, known: Mapping[str, str]) -> Mapping[str, object]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ValueError(f"{name} must be a table: [{name}]")
    stated = cast(dict[str, object], section)
    for one in stated:
        if one not in known:
            raise ValueError(f"{name}.{one} is no setting; there are {', '.join(known)}")
    return stated


def _texts(place: str, value: object) -> tuple[str, ...]:
    listed = cast(list[object], value) if isinstance(value, list) else [None]
    if not all(isinstance(one, str) and one.strip() for one in listed):
        raise ValueError(f'{place} must be a list of texts, such as ["ada"]')
    return tuple(str(one) for one in listed)
