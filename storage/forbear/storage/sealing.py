"""How a row of the audit log is sealed, chained and signed, and what of that needs a key.

    header      public: format, log, sequence, epoch, code, the minute, a mark of the operation
    sealed      nonce and AES-256-GCM ciphertext of the body, under the key of the epoch;
                additional data: header and the hash of the row before
    hash        SHA-256 over the hash before, header, nonce and ciphertext: no key is needed
    checkpoint  Ed25519 signature over a row's sequence and hash and over the checkpoint before

Sealing and signing have keys of their own. A log is named by the fingerprint of its public key, so
a log that was made anew under another key has another name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from forbear.storage.errors import LogUnreadable, StoreUnavailable
from forbear.storage.keyfiles import kept
from forbear.storage.rows import compact

FORMAT = 2
PLAIN = 1
"""The format of rows that were written before bodies were sealed."""
GENESIS = "0" * 64
MINUTE = 60_000
NONCE = 12
_KEY = 32


# --- what needs no key ----------------------------------------------------------------------


def plain_hash(previous: str, header: str, body: str) -> str:
    """The hash of a plain row: SHA-256 over the hash before, the header and the body."""
    return hashlib.sha256("\n".join((previous, header, body)).encode()).hexdigest()


def sealed_hash(previous: str, header: str, sealed: bytes) -> str:
    """The hash of a sealed row: SHA-256 over the hash before, the header, nonce and ciphertext."""
    head = header.encode()
    whole = b"".join((b"row 2\0", previous.encode(), len(head).to_bytes(4), head, sealed))
    return hashlib.sha256(whole).hexdigest()


def mark(previous: str, operation_id: str) -> str:
    """What a public header has of an operation's id: who knows the id can check it, nobody can
    tell from two rows that they are of one operation."""
    return hashlib.sha256(f"{previous}\n{operation_id}".encode()).hexdigest()[:32]


def log_id(public_key: str) -> str:
    """The name of the log that is signed with this key (hex)."""
    return "log_" + hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed statement: so far the log had so many rows, and this was the hash of the last."""

    number: int
    sequence: int
    hash: str
    at: int
    """When it was signed, ms."""
    previous: str
    """The digest of the checkpoint before."""
    signature: str

    def statement(self, log: str) -> bytes:
        """The bytes that are signed."""
        return statement(log, self.number, self.sequence, self.hash, self.at, self.previous)

    def digest(self, log: str) -> str:
        """What the next checkpoint has of this one."""
        signed = self.statement(log) + bytes.fromhex(self.signature)
        return hashlib.sha256(signed).hexdigest()

    def is_signed(self, log: str, public_key: Ed25519PublicKey) -> bool:
        try:
            public_key.verify(bytes.fromhex(self.signature), self.statement(log))
        except (InvalidSignature, ValueError):
            return False
        return True


def statement(log: str, number: int, sequence: int, row: str, at: int, previous: str) -> bytes:
    told = {
        "checkpoint": number,
        "log": log,
        "sequence": sequence,
        "hash": row,
        "at": at,
        "previous": previous,
    }
    return compact(told).encode()


# --- keys -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """The two keys of a log, as they lie in the folder of keys."""

    wrapping: bytes
    """Wraps the keys of the epochs, which lie in the store."""
    signing: Ed25519PrivateKey

    @property
    def public(self) -> str:
        return self.signing.public_key().public_bytes_raw().hex()

    @staticmethod
    def of(folder: Path, store: str, *, used: bool) -> Keys:
        """Read the keys; make them if the log is not `used` yet.

        Raises:
            StoreUnavailable: a key of a used log is gone, or a file is no key.
            OSError: the folder cannot be used.
        """
        lost = (
            f"restore it with {store} from a backup; without it the audit log cannot go on "
            "(`forbear audit verify` still checks it)"
        )
        said = lost if used else None
        seal, sign = folder / "audit-seal.key", folder / "audit-sign.key"
        wrapping = _bytes(seal, kept(seal, _new_sealing_key, lost=said))
        signing = _bytes(sign, kept(sign, _new_signing_key, lost=said))
        return Keys(wrapping, Ed25519PrivateKey.from_private_bytes(signing))


def _bytes(path: Path, text: bytes) -> bytes:
    try:
        key = bytes.fromhex(text.decode().strip())
    except ValueError:
        key = b""
    if len(key) != _KEY:
        raise StoreUnavailable(f"{path} is not a key of this store: restore it from a backup")
    return key


def _new_sealing_key() -> str:
    return AESGCM.generate_key(8 * _KEY).hex()


def _new_signing_key() -> str:
    return Ed25519PrivateKey.generate().private_bytes_raw().hex()


class EpochKey:
    """The key of one epoch: half of it seals, half of it makes nonces."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key[:_KEY])
        self._nonces = key[_KEY:]

    @staticmethod
    def made(wrapping: bytes) -> str:
        """A new key, wrapped (RFC 3394), as it lies in the store."""
        key = AESGCM.generate_key(8 * _KEY) + AESGCM.generate_key(8 * _KEY)
        return aes_key_wrap(wrapping, key).hex()

    @staticmethod
    def unwrapped(wrapping: bytes, wrapped: str) -> EpochKey:
        """Raises InvalidUnwrap: it was wrapped with another key."""
        return EpochKey(aes_key_unwrap(wrapping, bytes.fromhex(wrapped)))

    def seal(self, previous: str, header: str, text: bytes) -> bytes:
        """Nonce and ciphertext.

        The nonce is a keyed digest of all that is sealed and bound: it comes again only where the
        very same row is sealed again, even in a store that was rolled back.
        """
        bound = f"{header}\n{previous}".encode()
        nonce = hmac.digest(self._nonces, bound + b"\n" + text, "sha256")[:NONCE]
        return nonce + self._cipher.encrypt(nonce, text, bound)

    def open(self, previous: str, header: str, sealed: bytes) -> bytes:
        """Raises InvalidTag: not sealed with this key, for this place in this log."""
        bound = f"{header}\n{previous}".encode()
        return self._cipher.decrypt(sealed[:NONCE], sealed[NONCE:], bound)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A row, sealed and chained."""

    header: str
    sealed: bytes
    hash: str


class Log:
    """The log of one store, with its keys.

    Raises:
        StoreUnavailable: the keys are not those of this log.
    """

    def __init__(self, keys: Keys, public: str, epochs: Mapping[int, str], folder: Path) -> None:
        if keys.public != public:
            raise StoreUnavailable(
                f"{folder / 'audit-sign.key'} is not the key of this audit log: "
                "restore the one that was backed up with the store"
            )
        self.id = log_id(public)
        self._signing = keys.signing
        self._wrapping = keys.wrapping
        self._wrapped = epochs
        self._opened: dict[int, EpochKey] = {}
        self._epoch = max(epochs)
        try:
            self._current = self._key(self._epoch)
        except InvalidUnwrap:
            raise StoreUnavailable(
                f"{folder / 'audit-seal.key'} is not the key of this audit log: "
                "restore the one that was backed up with the store"
            ) from None

    def _key(self, epoch: int) -> EpochKey:
        if epoch not in self._opened:
            self._opened[epoch] = EpochKey.unwrapped(self._wrapping, self._wrapped[epoch])
        return self._opened[epoch]

    @cached_property
    def _start(self) -> str:
        return f'"epoch":{self._epoch},"format":{FORMAT},"log":"{self.id}",'

    def seal(
        self,
        previous: str,
        sequence: int,
        at: int,
        code: str,
        operation_id: str | None,
        body: Mapping[str, object],
    ) -> Sealed:
        """The row that follows `previous`. `at` in ms; the header has only its minute."""
        marked = "" if operation_id is None else f'"operation":"{mark(previous, operation_id)}",'
        header = (
            f'{{"at":{at // MINUTE * MINUTE},"code":"{code}",{self._start}'
            f'{marked}"sequence":{sequence}}}'
        )
        text = compact({"at": at, "operation": operation_id, "body": body}).encode()
        sealed = self._current.seal(previous, header, text)
        return Sealed(header, sealed, sealed_hash(previous, header, sealed))

    def open(self, sequence: int, previous: str, header: str, sealed: bytes) -> dict[str, Any]:
        """What was sealed: `at`, `operation` and `body`.

        Raises:
            LogUnreadable: the row was changed, or its epoch has no key any more.
        """
        try:
            key = self._key(json.loads(header)["epoch"])
            return dict(json.loads(key.open(previous, header, sealed)))
        except (InvalidTag, InvalidUnwrap, ValueError, KeyError) as error:
            raise LogUnreadable(
                f"row {sequence} of the audit log cannot be opened; `forbear audit verify` says "
                "whether it was changed"
            ) from error

    def sign(self, number: int, sequence: int, row: str, at: int, previous: str) -> Checkpoint:
        """A checkpoint over the row with this sequence and hash."""
        said = statement(self.id, number, sequence, row, at, previous)
        signature = self._signing.sign(said).hex()
        return Checkpoint(number, sequence, row, at, previous, signature)
