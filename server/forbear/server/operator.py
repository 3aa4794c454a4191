"""The operator's token: what a decision needs where nobody sits at a terminal.

Where `config.toml` states a token, that one counts. Otherwise the first token that a process of
this home was started with counts from then on: a keyed digest of it is kept in `keys/operator`,
which only the home's user may read. An agent that runs as the same user could read or set all of
this; the token keeps honest programs apart, not users (README, "Limits").
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from forbear.server.config import Settings
from forbear.storage import files

VARIABLE = "FORBEAR_OPERATOR_TOKEN"


def learn(
    settings: Settings, store_key: bytes, environment: Mapping[str, str] = os.environ
) -> None:
    """Keep the token that this process was started with, if the home has none yet."""
    token = environment.get(VARIABLE)
    if token and _stated(environment) is None:
        _keep(_file(settings), _digest(store_key, token))


def signature(store: Path, channel: str, comment: str | None = None) -> dict[str, object]:
    """Who decides, as the audit trail keeps it; `store` is the file of the store.

    `same_user` says that the operator runs as the user whom the store belongs to: agents of that
    user could have done the same.
    """
    by: dict[str, object] = {
        "operator": files.user(),
        "channel": channel,
        "same_user": files.is_mine(store),
    }
    return by if comment is None else by | {"comment": comment}


def is_known(settings: Settings) -> bool:
    """Whether the home has a token that decisions can be made with."""
    return _stated(os.environ) is not None or _file(settings).exists()


def objection(
    settings: Settings, store_key: bytes, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Why this process may not decide without a terminal, and the fix; None if it may."""
    token = environment.get(VARIABLE)
    if not token:
        return (
            f"Without a terminal, this needs the operator token: set {VARIABLE} and add --yes, "
            "or do it at a terminal."
        )
    stated = _stated(environment)
    if stated is not None:
        known = hmac.compare_digest(stated.encode(), token.encode())
    else:
        learn(settings, store_key, environment)
        known = hmac.compare_digest(_file(settings).read_text(), _digest(store_key, token))
    if known:
        return None
    return f"{VARIABLE} is not the operator token of this home. Set it, or do it at a terminal."


def _stated(environment: Mapping[str, str]) -> str | None:
    """The token in `config.toml`, whatever the environment says."""
    without = {name: value for name, value in environment.items() if name != VARIABLE}
    return Settings.load(without).operator_token


def _file(settings: Settings) -> Path:
    return settings.home / "keys" / "operator"


def _keep(path: Path, digest: str) -> None:
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(digest)


def _digest(store_key: bytes, token: str) -> str:
    return hmac.new(store_key, b"operator\0" + token.encode(), hashlib.sha256).hexdigest()
