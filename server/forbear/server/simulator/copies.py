"""The copy of a contract that points at the simulator: no host, key or address of the real one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tomli_w

from forbear.rules.contract_kinds import is_list, is_table
from forbear.server.simulator.source import Source

SECRET = "simulated-secret"
CONTROL = "/__forbear"
TOKEN_PATH = f"{CONTROL}/token"

_REFERENCE = re.compile("(env|file|keyring|exec):")
_ADDRESS = re.compile(r"https?://[^/?#]*")


@dataclass(frozen=True, slots=True)
class Pace:
    """How much sooner things happen in a copy than the contract says; durations as written there.

    Every delay, minimum and budget still applies; only its length is another.
    """

    first: str = "1s"
    base: str = "1s"
    most: str = "4s"
    rate_limited: str = "2s"
    deadline: str = "3m"
    settle: str = "2s"
    retry: str = "500ms"
    rate: str | None = None


TRYING = Pace()
"""For a person who watches."""

TESTING = Pace(
    first="20ms",
    base="50ms",
    most="500ms",
    rate_limited="100ms",
    deadline="10m",
    settle="100ms",
    retry="50ms",
    rate="1000/1s",
)
"""For `contract test`."""


def copy(
    source: Source,
    address: str,
    secret: Path,
    pace: Pace | None = None,
    provider: str | None = None,
    only: str | None = None,
) -> str:
    """The text of the copy: everything leads to `address`, every secret is read from `secret`.

    Without a pace the contract's own delays stay. With `only` it has one action alone.
    """
    raw = _plain(source.raw)
    if only is not None:
        _keep(raw, only)
    for key in ("use", "allow_hosts", "console", "examples"):
        raw.pop(key, None)
    raw["provider"] = provider or source.contract.provider
    raw["title"] = f"{source.contract.title} (simulated)"
    raw["base_url"] = address + urlsplit(source.contract.base_url).path
    raw["auth"] = _dummies(raw.get("auth"), address, secret)
    for action in _actions(raw):
        _redirect(action, address, secret)
    if pace is not None:
        _hasten(raw, source, pace)
    return tomli_w.dumps(raw)


def _plain(value: Any) -> Any:
    """A copy of the tables that may be changed."""
    if is_table(value):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if is_list(value) else value


def _keep(raw: dict[str, Any], only: str) -> None:
    """Leave out every other action, and what names one."""
    for group in ("jobs", "calls"):
        raw[group] = {name: one for name, one in raw.get(group, {}).items() if name == only}
        if not raw[group]:
            del raw[group]
    for call in raw.get("calls", {}).values():
        call.pop("instead_of_many", None)
        call.pop("walk_limit", None)
    scopes = raw.get("scopes", {})
    for name, scope in list(scopes.items()):
        if "*" not in scope.get("actions", ["*"]):
            scope["actions"] = [one for one in scope["actions"] if one == only]
            if not scope["actions"]:
                del scopes[name]


def _dummies(auth: Any, address: str, secret: Path) -> dict[str, Any]:
    if not is_table(auth) or auth.get("scheme", "none") == "none":
        return {"scheme": "none"}
    changed = {key: value for key, value in auth.items() if key != "exec"}
    for key, value in changed.items():
        if isinstance(value, str) and _REFERENCE.match(value):
            changed[key] = f"file:{secret}"
    if "token_url" in changed:
        changed["token_url"] = address + TOKEN_PATH
    return changed


def _actions(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = (raw.get("jobs", {}), raw.get("calls", {}))
    return [action for group in groups for action in group.values()]


def _redirect(section: dict[str, Any], address: str, secret: Path) -> None:
    """Lead every request of a section here."""
    for key, value in section.items():
        if key == "url" and isinstance(value, str):
            section[key] = _ADDRESS.sub(address, value, count=1)
        elif key == "secret" and isinstance(value, str) and _REFERENCE.match(value):
            section[key] = f"file:{secret}"
        elif is_table(value) and key not in ("input", "body", "query", "form", "headers"):
            _redirect(section[key], address, secret)
    if is_list(section.get("hosts")):
        del section["hosts"]


# --- pace -----------------------------------------------------------------------------------


def _hasten(raw: dict[str, Any], source: Source, pace: Pace) -> None:
    for name, job in raw.get("jobs", {}).items():
        loaded = source.contract.jobs[name]
        limits = job.setdefault("limits", {})
        # As many requests as the contract's own schedule needs, not as the hastened one would.
        limits["max_status_requests"] = loaded.limits.max_status_requests
        limits["deadline"] = pace.deadline
        limits.pop("usual", None)
        limits.pop("useful_for", None)
        limits["extension"] = {
            "by": pace.deadline,
            "status_requests": max(1, loaded.limits.extension.status_requests),
            "times": max(1, loaded.limits.extension.times),
        }
        backoff = job.setdefault("backoff", {})
        backoff.pop("estimate", None)
        quick = {"first": pace.first, "base": pace.base, "max": pace.most}
        backoff.update(quick, rate_limited=pace.rate_limited)
        hints = job.setdefault("hints", {})
        hints.update(floor=pace.first, ceiling=pace.deadline)
    for action in _actions(raw):
        if "lookup" in action:
            action["lookup"]["settle"] = pace.settle
    classes = raw.setdefault("classes", {})
    for known in source.contract.classes:
        limits = classes.setdefault(known.value, {})
        limits.update(base=pace.retry, rate_limited=pace.rate_limited)
    if pace.rate is not None:
        scopes = raw.setdefault("scopes", {})
        scopes.setdefault("account", {})
        for scope in scopes.values():
            scope["rate"] = pace.rate
