"""Sealing at rest: columns whose values lie encrypted in the store's file.

What agents and providers say (arguments, bodies, headers, results, texts) is sealed with a data key
of the store; what an operation *is* (ids, key, reference, provider's id, state, certainty, times)
is not, and can be searched. A sealed value can neither be read nor made without the data key, and a
value of one column does not open in another. It says nothing about which row it is of.

A sealed value is a byte that tells the size of a number, and whether the value was shortened
(`packing`); the number of its data key; and AES-SIV ciphertext. What older programs sealed begins
with a zero: number (4 bytes), nonce, AES-256-GCM ciphertext. The empty value stands for nothing, or
for what retention has taken away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator

from forbear.rules.model import LOST
from forbear.storage.errors import StoreUnavailable
from forbear.storage.packing import lengthened, shortened
from forbear.storage.sealing import EpochKey

GONE = b""
"""What a sealed column holds where there is nothing, or nothing any more."""

_WIDE = 4
_SHORT = 0x80


class Vault:
    """The data keys of one open store.

    `fetch` reads them by number from the store; it is asked again when a value names a number that
    is not known yet, because another process may have made it.
    """

    def __init__(self, fetch: Callable[[], Mapping[int, EpochKey]]) -> None:
        self._fetch = fetch
        self._use(fetch())

    def _use(self, keys: Mapping[int, EpochKey]) -> None:
        current = max(keys)
        size = (current.bit_length() + 7) // 8
        number = current.to_bytes(size)
        begins = size.to_bytes() + number, (size | _SHORT).to_bytes() + number
        # At once, for other threads seal and open meanwhile.
        self._held = dict(keys), current, begins

    def seal(self, column: str, value: bytes) -> bytes:
        keys, current, (begins, begins_short) = self._held
        short = shortened(value)
        if short is not None:
            begins, value = begins_short, short
        return begins + keys[current].seal(column.encode(), value)

    def open(self, column: str, sealed: bytes) -> bytes | None:
        """The value, or None where its data key was destroyed.

        Raises:
            StoreUnavailable: it was not sealed for this column of this store.
        """
        # A number in four bytes begins with a zero.
        wide = sealed[0] == 0
        begin, end = (0, _WIDE) if wide else (1, 1 + (sealed[0] & ~_SHORT))
        number = int.from_bytes(sealed[begin:end])
        key = self._held[0].get(number) or self._sought(number)
        if key is None:
            return None
        try:
            if wide:
                return key.open_wide(f"{column}\n".encode(), sealed[end:])
            value = key.open(column.encode(), sealed[end:])
            return lengthened(value) if sealed[0] & _SHORT else value
        except (InvalidTag, ValueError):
            raise StoreUnavailable(
                f"a value of {column} was changed outside Forbear: restore the store from a backup"
            ) from None

    def _sought(self, number: int) -> EpochKey | None:
        if number > self._held[1]:
            self._use(self._fetch())
        return self._held[0].get(number)


_vaults: WeakKeyDictionary[Dialect, Vault] = WeakKeyDictionary()


def unlock(dialect: Dialect, vault: Vault) -> None:
    """Let the connections of an engine seal and open what goes through them."""
    _vaults[dialect] = vault


class _Declared(sa.types.UserDefinedType[Any]):
    """A type that is only a name: SQLite keeps bytes as they are under any."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class Sealed(TypeDecorator[Any]):
    """A column of bytes that is sealed at rest. `column` names it, as in "attempts.body"."""

    impl = sa.LargeBinary
    cache_ok = True
    declared = "BLOB"
    """How SQLite's schema calls it: as before there was a seal, so that no table is made anew."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_Declared(self.declared))
        return dialect.type_descriptor(sa.LargeBinary())

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        return _vaults[dialect].seal(self.column, self.packed(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value == GONE:
            return self.nothing()
        opened = _vaults[dialect].open(self.column, bytes(value))
        return self.lost() if opened is None else self.unpacked(opened)

    def packed(self, value: Any) -> bytes:
        return bytes(value)

    def unpacked(self, value: bytes) -> Any:
        return value

    def nothing(self) -> Any:
        """What is read where the value is gone."""
        return None

    def lost(self) -> Any:
        """What is read where the key of the value is gone."""
        return self.nothing()


class SealedText(Sealed):
    """A text."""

    cache_ok = True
    declared = "TEXT"

    def packed(self, value: Any) -> bytes:
        return str(value).encode("utf-8", "surrogatepass")

    def unpacked(self, value: bytes) -> str:
        return value.decode("utf-8", "surrogatepass")


class SealedWord(SealedText):
    """A text that is always there: an empty one where it is gone."""

    cache_ok = True

    def nothing(self) -> str:
        return ""


class SealedJSON(Sealed):
    """A value of JSON."""

    cache_ok = True
    declared = "JSON"

    def packed(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    def unpacked(self, value: bytes) -> Any:
        return json.loads(value.decode())


class SealedObject(SealedJSON):
    """An object of JSON that is always there; an empty one takes no room."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        return GONE if value == {} else super().process_bind_param(value, dialect)

    def nothing(self) -> dict[str, Any]:
        return {}

    def lost(self) -> Any:
        return LOST


class SealedList(SealedJSON):
    """An array of JSON that is always there: an empty one where it is gone."""

    cache_ok = True

    def nothing(self) -> list[Any]:
        return []
