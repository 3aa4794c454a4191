"""Workflows that decide in a person's place, each within its own list (requirement E16).

A workflow is a named principal of `config.toml` with a token of its own, of which the home keeps a
keyed digest. It goes through the same decision as a person, so it is bounded like one, and what it
decides is recorded under its name. As with the operator's token, whoever runs as the home's user
could read or set all of this; it keeps honest programs apart, not users.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from forbear.rules.decisions import Wish
from forbear.rules.model import Case
from forbear.server import operator
from forbear.server.config import Settings
from forbear.server.tables import Handover

VARIABLE = "FORBEAR_PRINCIPAL_TOKEN"
CHANNEL = "handover"


def known(settings: Settings, name: str) -> Handover | None:
    """The principal of that name."""
    return next((one for one in settings.handover if one.name == name), None)


def enrol(settings: Settings, store_key: bytes, name: str, token: str) -> None:
    """Let `token` stand for a principal, in place of any token before it."""
    path = _file(settings, name)
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(_digest(store_key, name, token))
    draft.replace(path)


def stranger(
    settings: Settings, store_key: bytes, name: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Why this process is not the principal `name`, and the fix; None if it is."""
    if known(settings, name) is None:
        names = ", ".join(one.name for one in settings.handover) or "none"
        return f"config.toml has no [[handover]] with the name {name!r}; there is {names}."
    token = environment.get(VARIABLE, "")
    try:
        kept = _file(settings, name).read_text()
    except FileNotFoundError:
        return f"{name} has no token yet: an operator makes one with forbear handover {name}."
    if token and hmac.compare_digest(kept, _digest(store_key, name, token)):
        return None
    return f"{VARIABLE} is not the token of {name}."


def beyond(principal: Handover, case: Case, wish: Wish) -> str | None:
    """Why this decision is not on the list of a principal; None if it is."""
    if case.reason not in principal.reasons:
        may = ", ".join(principal.reasons)
        return f"{principal.name} may not decide {case.reason}; its list has {may}."
    if wish.option not in principal.options:
        may = ", ".join(principal.options)
        return f"{principal.name} may not choose {wish.option}; its list has {may}."
    return None


def signature(store: Path, name: str, comment: str | None = None) -> dict[str, object]:
    """Who decides, as the audit trail keeps it; see `operator.signature`."""
    return operator.signature(store, CHANNEL, comment) | {"operator": name, "principal": name}


def _file(settings: Settings, name: str) -> Path:
    return settings.home / "keys" / f"handover-{name}"


def _digest(store_key: bytes, name: str, token: str) -> str:
    told = f"handover\0{name}\0{token}".encode()
    return hmac.new(store_key, told, hashlib.sha256).hexdigest()
