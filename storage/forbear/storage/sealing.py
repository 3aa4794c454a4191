"""How a row of the audit log is sealed, chained and signed, and what of that needs a key.

    header      public: format, log, sequence, epoch, code, the minute, a mark of the operation
    sealed      the body (`packing`) under AES-SIV (RFC 5297) and the key of the epoch;
                additional data: header and the hash of the row before
    hash        SHA-256 over the hash before, header and what is sealed: no key is needed
    checkpoint  Ed25519 signature over a row's sequence and hash and over the checkpoint before

Older rows have format 2: nonce and AES-256-GCM ciphertext of a JSON text.

Sealing and signing have keys of their own. A log is named by the fingerprint of its public key, so
a log that was made anew under another key has another name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from forbear.storage.errors import LogUnreadable, StoreUnavailable
from forbear.storage.keyfiles import SIZE, Name, Places
from forbear.storage.packing import MINUTE, packed, unpacked

FORMAT = 3
WIDE = 2
"""The format of rows that were sealed before bodies were packed."""
PLAIN = 1
"""The format of rows that were written before bodies were sealed."""
GENESIS = "0" * 64
NONCE = 12
NOT_ITS_KEY = (
    "{} is not the key of this audit log: restore the one that was backed up with the store"
)
LASTS = 30 * 86_400_000
"""How long an epoch lasts, ms."""
ROWS = 2**28
"""Rows that an epoch has at the most."""


# --- what needs no key ----------------------------------------------------------------------


def compact(value: object) -> str:
    """JSON on one line with sorted keys: the form whose hash is chained."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_hash(previous: str, header: str, body: str) -> str:
    """The hash of a plain row: SHA-256 over the hash before, the header and the body."""
    return hashlib.sha256("\n".join((previous, header, body)).encode()).hexdigest()


def sealed_hash(previous: str, header: str, sealed: bytes) -> str:
    """The hash of a sealed row: SHA-256 over the hash before, the header, nonce and ciphertext."""
    head = header.encode()
    whole = b"".join((b"row 2\0", previous.encode(), len(head).to_bytes(4), head, sealed))
    return hashlib.sha256(whole).hexdigest()


def header_of(
    log: str,
    sequence: int,
    minute: int,
    code: str,
    epoch: int,
    marked: str | None,
    start: Checkpoint | None = None,
) -> str:
    """The public header of a row. `minute` in ms; `marked` is the `mark` of its operation; `start`
    is where the log begins from now on."""
    of = "" if marked is None else f'"operation":"{marked}",'
    named = "" if start is None else f'{{"hash":"{start.hash}","sequence":{start.sequence}}}'
    begins = "" if start is None else f',"start":{named}'
    return (
        f'{{"at":{minute},"code":"{code}","epoch":{epoch},"format":{FORMAT},"log":"{log}",'
        f'{of}"sequence":{sequence}{begins}}}'
    )


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
    next_key: str | None = None
    """The public key (hex) that all later checkpoints are signed with, where it changes here."""

    def statement(self, log: str) -> bytes:
        """The bytes that are signed."""
        told: dict[str, object] = {
            "checkpoint": self.number,
            "log": log,
            "sequence": self.sequence,
            "hash": self.hash,
            "at": self.at,
            "previous": self.previous,
        }
        if self.next_key is not None:
            told["next_key"] = self.next_key
        return compact(told).encode()

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


@dataclass(frozen=True, slots=True)
class Epoch:
    """A key that bodies are sealed with, as it lies in the store."""

    number: int
    wrapped_key: str
    since: int
    """When it began, ms."""
    first: int
    """Its first row."""

    def is_over(self, at: int, sequence: int) -> bool:
        """Whether a row of this time and number begins another one."""
        return at - self.since >= LASTS or sequence - self.first >= ROWS


# --- keys -----------------------------------------------------------------------------------


def new_sealing_key() -> bytes:
    return AESGCM.generate_key(8 * SIZE)


def new_signing_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_key(signing: bytes) -> str:
    """The public half of a signing key, hex."""
    private = Ed25519PrivateKey.from_private_bytes(signing)
    return private.public_key().public_bytes_raw().hex()


def wrap(wrapping: bytes, key: bytes) -> str:
    """A key as it lies in the store (RFC 3394, hex)."""
    return aes_key_wrap(wrapping, key).hex()


def unwrap(wrapping: bytes, wrapped: str) -> bytes | None:
    """The key, or None: it was wrapped with another one."""
    try:
        return aes_key_unwrap(wrapping, bytes.fromhex(wrapped))
    except (InvalidUnwrap, ValueError):
        return None


def new_epoch_key() -> bytes:
    return AESGCM.generate_key(8 * SIZE) + AESGCM.generate_key(8 * SIZE)


class EpochKey:
    """A key of a store.

    It needs no counter that a rolled back store would have lost: the same ciphertext comes again
    only where the very same is sealed again.
    """

    def __init__(self, key: bytes) -> None:
        kdf = HKDF(hashes.SHA256(), length=2 * SIZE, salt=None, info=b"forbear siv")
        self._siv = AESSIV(kdf.derive(key))
        self._wide = AESGCM(key[:SIZE])

    def seal(self, bound: bytes, text: bytes) -> bytes:
        """The ciphertext, 16 bytes longer than what is sealed."""
        return self._siv.encrypt(text, [bound])

    def open(self, bound: bytes, sealed: bytes) -> bytes:
        """Raises InvalidTag: not sealed with this key and what is bound. ValueError: too short."""
        return self._siv.decrypt(sealed, [bound])

    def open_wide(self, bound: bytes, sealed: bytes) -> bytes:
        """As `open`, of what an older program sealed: nonce and AES-256-GCM ciphertext."""
        return self._wide.decrypt(sealed[:NONCE], sealed[NONCE:], bound)


def _bound(previous: str, header: str) -> bytes:
    return f"{header}\n{previous}".encode()


def unreadable(sequence: int) -> LogUnreadable:
    return LogUnreadable(
        f"row {sequence} of the audit log cannot be opened; `forbear audit verify` says whether it "
        "was changed"
    )


@dataclass(frozen=True, slots=True)
class Sealed:
    """A row, sealed and chained."""

    header: str
    sealed: bytes
    hash: str


class Log:
    """The log of one store, with its keys.

    It remembers nothing of the store: which epoch and which signing key count now is said with each
    call, as read under the lock. A key that does not fit is read anew, since another process may
    have changed it meanwhile.
    """

    def __init__(self, first_public_key: str, places: Places, sealing: bytes, sign: bytes) -> None:
        self.id = log_id(first_public_key)
        self.places = places
        self._wrapping = sealing
        self._signing = Ed25519PrivateKey.from_private_bytes(sign)
        self._public = public_key(sign)
        self._opened: dict[tuple[bytes, str], EpochKey | None] = {}

    # --- sealing

    def unwrapped(self, wrapped: str) -> bytes | None:
        """A key that lies in the store; None if the sealing key that wrapped it is not there."""
        for wrapping in self._wrappings():
            key = unwrap(wrapping, wrapped)
            if key is not None:
                self._wrapping = wrapping
                return key
        return None

    def wrapped(self, key: bytes) -> str:
        """A new key, to lie in the store beside those that `unwrapped` just opened."""
        return wrap(self._wrapping, key)

    def _wrappings(self) -> Iterator[bytes]:
        yield self._wrapping
        for _ in range(2):  # a reader may have looked while a new key was put in its place
            for one in self.places.candidates(Name.SEALING):
                yield one.key

    def _key(self, wrapped: str) -> EpochKey | None:
        known = (self._wrapping, wrapped)
        if known not in self._opened:
            key = self.unwrapped(wrapped)
            self._opened[self._wrapping, wrapped] = None if key is None else EpochKey(key)
        return self._opened[self._wrapping, wrapped]

    def seal(
        self,
        epoch: Epoch,
        previous: str,
        sequence: int,
        at: int,
        code: str,
        operation_id: str | None,
        body: Mapping[str, object],
        start: Checkpoint | None = None,
    ) -> Sealed:
        """The row that follows `previous`. `at` in ms; the header has only its minute. `start`,
        in the header for everybody, is where the log begins from now on.

        Raises:
            StoreUnavailable: the sealing key that is there is not that of `epoch`.
        """
        key = self._key(epoch.wrapped_key)
        if key is None:
            raise StoreUnavailable(NOT_ITS_KEY.format(self.places.where(Name.SEALING)))
        marked = None if operation_id is None else mark(previous, operation_id)
        minute = at // MINUTE * MINUTE
        header = header_of(self.id, sequence, minute, code, epoch.number, marked, start)
        sealed = key.seal(_bound(previous, header), packed(at, operation_id, body))
        return Sealed(header, sealed, sealed_hash(previous, header, sealed))

    def open(
        self,
        sequence: int,
        previous: str,
        header: str,
        sealed: bytes,
        wrapped: str | None,
        operation_id: str | None,
    ) -> tuple[int, dict[str, Any]] | None:
        """The exact time, ms, and the body of a row; None if the key of its epoch is gone.

        `wrapped` is that key as it lies in the store, None if it was destroyed.

        Raises:
            LogUnreadable: the row was changed.
        """
        try:
            told = json.loads(header)
            key = None if wrapped is None else self._key(wrapped)
            if key is None:
                return None
            if told["format"] == WIDE:
                opened = json.loads(key.open_wide(_bound(previous, header), sealed))
                if opened["operation"] != operation_id:
                    raise ValueError
                return opened["at"], opened["body"]
            whole = key.open(_bound(previous, header), sealed)
            return unpacked(told["at"], operation_id, whole)
        except (InvalidTag, ValueError, KeyError, TypeError) as error:
            raise unreadable(sequence) from error

    # --- signing

    def sign(
        self,
        public: str,
        number: int,
        sequence: int,
        row: str,
        at: int,
        previous: str,
        next_key: str | None = None,
    ) -> Checkpoint:
        """A checkpoint over the row with this sequence and hash, by the key with this public half.

        Raises:
            StoreUnavailable: the signing key that is there is another.
        """
        if public != self._public:
            self._signing = Ed25519PrivateKey.from_private_bytes(self._signing_key(public))
            self._public = public
        made = Checkpoint(number, sequence, row, at, previous, "", next_key)
        return replace(made, signature=self._signing.sign(made.statement(self.id)).hex())

    def _signing_key(self, public: str) -> bytes:
        for one in self.places.candidates(Name.SIGNING):
            if public_key(one.key) == public:
                return one.key
        raise StoreUnavailable(NOT_ITS_KEY.format(self.places.where(Name.SIGNING)))
