"""Keys of a home in one file, sealed with a passphrase: scrypt (RFC 7914), then AES-256-GCM."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

FORMAT = "forbear keys 1"
SHORTEST = 12
"""Characters of a passphrase at the least."""
_COST = 2**15
_NONCE = bytes(12)
"""Always the same: the salt makes a key that seals once."""


class NoBackup(ValueError):
    """The file is no backup of keys, or the passphrase is another one."""


def sealed(keys: Mapping[str, str], log: str, passphrase: str, salt: str) -> str:
    """The text of a backup: `log` can be read by anybody, the keys only with the passphrase.

    `salt` is random, and never used twice.
    """
    key = _derived(passphrase, salt)
    text = AESGCM(key).encrypt(_NONCE, json.dumps(dict(keys)).encode(), _bound(log))
    told = {"format": FORMAT, "log": log, "salt": salt, "sealed": text.hex()}
    return json.dumps(told, indent=2) + "\n"


def opened(text: str, passphrase: str) -> tuple[str, dict[str, str]]:
    """The log that the keys are of, and the keys by name.

    Raises:
        NoBackup: see there.
    """
    try:
        told = json.loads(text)
        log, body = told["log"], bytes.fromhex(told["sealed"])
        if told["format"] != FORMAT:
            raise NoBackup(f"its format is {told['format']!r}, and this program knows {FORMAT!r}")
        key = _derived(passphrase, told["salt"])
        keys = json.loads(AESGCM(key).decrypt(_NONCE, body, _bound(log)))
    except InvalidTag as error:
        raise NoBackup("the passphrase is another one, or the file was changed") from error
    except NoBackup:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoBackup("it is no backup of keys") from error
    return str(log), {str(name): str(value) for name, value in keys.items()}


def _derived(passphrase: str, salt: str) -> bytes:
    return Scrypt(salt=salt.encode(), length=32, n=_COST, r=8, p=1).derive(passphrase.encode())


def _bound(log: object) -> bytes:
    return f"{FORMAT}\n{log}".encode()
