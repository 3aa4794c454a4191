"""The keys of a store: found when it opens, changed while it runs, replaced when one is lost.

Every key in the store is wrapped with the sealing key, so changing that one is one transaction
over `WRAPPED`. The new key lies beside the old one until that is committed (`keyfiles`), and
whoever opens the store takes the one that fits: there is no moment at which none does.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.storage import audit
from forbear.storage.dialects import whole
from forbear.storage.errors import KeyInUse, StoreUnavailable
from forbear.storage.keyfiles import Name, Places
from forbear.storage.schema import audit_epochs, audit_logs, data_keys
from forbear.storage.sealing import (
    NOT_ITS_KEY,
    Log,
    log_id,
    new_epoch_key,
    new_sealing_key,
    new_signing_key,
    public_key,
    unwrap,
    wrap,
)

WRAPPED: tuple[sa.Table, ...] = (audit_epochs, data_keys)
"""The tables with keys (`wrapped_key`, hex) that are wrapped with the sealing key, by `number`; the
newest is in use."""

By = Mapping[str, object]
"""Who does it, as `operator.signature` says it."""


# --- opening --------------------------------------------------------------------------------


def begun(connection: Connection) -> bool:
    """Whether the log of this store was begun, and so its keys were made."""
    return connection.execute(sa.select(audit_logs.c.public_key)).first() is not None


def opened(connection: Connection, places: Places, store: str) -> Log:
    """The log of this store with its keys; both are made at the first start. Under the lock.

    Raises:
        StoreUnavailable: a key of an existing log is missing, or not its own.
        OSError: the folder of the keys cannot be used.
    """
    first = connection.execute(sa.select(audit_logs.c.public_key)).scalar()
    if first is None:
        sealing = places.made(Name.SEALING, new_sealing_key)
        signing = places.made(Name.SIGNING, new_signing_key)
        public = public_key(signing)
        connection.execute(sa.insert(audit_logs), {"id": log_id(public), "public_key": public})
        return Log(public, places, sealing, signing)
    sealing = _found(connection, places, Name.SEALING, store)
    return Log(first, places, sealing, _found(connection, places, Name.SIGNING, store))


def replacing_sealing(
    connection: Connection, places: Places, store: str, *, at: int, by: By
) -> Log:
    """As `opened`, where the sealing key is lost: go on with a new one. Under the lock.

    What was sealed stays as it is, and opens again if the lost key is ever found. A file that is
    not the key of this store is given another name.

    Raises:
        KeyInUse: the key is there and fits.
        StoreUnavailable: the signing key is missing too, or the new key cannot be had.
    """
    signing = _found(connection, places, Name.SIGNING, store)
    if any(_fits(connection, Name.SEALING, one.key) for one in places.candidates(Name.SEALING)):
        raise KeyInUse(f"{places.where(Name.SEALING)} is the sealing key of this store")
    if places.is_elsewhere(Name.SEALING):
        key = places.first(Name.SEALING)
    else:
        places.set_aside(Name.SEALING)
        key = new_sealing_key()
        places.draft(Name.SEALING, key)
    first = connection.execute(sa.select(audit_logs.c.public_key)).scalar_one()
    log = Log(first, places, key, signing)
    told = connection.execution_options(audit=log)
    with whole(connection):
        audit.start_epoch(told, audit.epoch(told), wrap(key, new_epoch_key()), at)
        _next_data_key(told, log)
        body = {**by, "key": str(Name.SEALING), "how": "replaced", "because": "lost"}
        audit.append(told, None, at, audit.Code.KEYS_CHANGED, body)
    places.promote(Name.SEALING, key)
    return log


def _found(connection: Connection, places: Places, name: Name, store: str) -> bytes:
    """The key of the store, wherever it lies."""
    problems: list[str] = []
    wrong: list[str] = []
    key = _settle(connection, places, name, problems, wrong)
    if key is not None:
        return key
    where = places.where(name)
    if problems:
        told = "; ".join(problems)
        if all(" -> " in one for one in problems):  # the key is there: its own fix is the one
            raise StoreUnavailable(told)
    elif wrong:
        told = (
            f"{wrong[0]} is not the key of this audit log: restore the one that was backed up "
            "with the store"
        )
    else:
        told = f"{where} is missing: restore it with {store} from a backup"
    raise StoreUnavailable(f"{told}; {_WITHOUT[name]}")


def _settle(
    connection: Connection,
    places: Places,
    name: Name,
    problems: list[str] | None = None,
    wrong: list[str] | None = None,
) -> bytes | None:
    """Find the key of the store, and put in order what a change of it left: a new key is the key
    once it is committed, and nothing before. Only under the lock of the store."""
    for one in places.candidates(name, problems):
        if _fits(connection, name, one.key):
            if one.drafted:
                places.promote(name, one.key)
            else:
                places.forget_draft(name)
            return one.key
        if wrong is not None:
            wrong.append(one.where)
    return None


_RESTORE = "`forbear keys restore FILE` if there is a key backup; `forbear keys show` tells more"
_WITHOUT = {
    Name.SEALING: (
        "without this key nothing sealed can be read or written, and `forbear audit verify` still "
        f"checks the log -> {_RESTORE}; if it is lost for good, "
        "`forbear keys replace sealing --lost --yes` goes on with a new one"
    ),
    Name.SIGNING: (
        "without this key the audit log cannot go on, and `forbear audit verify` still checks it "
        f"-> {_RESTORE}"
    ),
}


def _fits(connection: Connection, name: Name, key: bytes) -> bool:
    if name is Name.SIGNING:
        return public_key(key) == audit.signing_key(connection)
    newest = (
        connection.execute(
            sa.select(table.c.wrapped_key).order_by(table.c.number.desc()).limit(1)
        ).scalar()
        for table in WRAPPED
    )
    return all(one is None or unwrap(key, one) is not None for one in newest)


# --- changing: units for the writer ---------------------------------------------------------


def rotate_sealing(connection: Connection, at: int, by: By) -> bytes:
    """Wrap every key of the store with a new sealing key, which is returned.

    It is made and lies beside the old one, to be promoted after the commit; where keys live
    elsewhere, it is the one in the first place outside. What was wrapped with a key that is lost
    stays as it is.

    Raises:
        KeyInUse: the first place outside has the key that is in use.
        StoreUnavailable: the keys that are there are not those of this store.
    """
    log = audit.log_of(connection)
    new = _next(connection, log.places, Name.SEALING, new_sealing_key)
    body = {**by, "key": str(Name.SEALING), "how": "rotated"}
    audit.append(connection, None, at, audit.Code.KEYS_CHANGED, body)
    for table in WRAPPED:
        found = connection.execute(sa.select(table.c.number, table.c.wrapped_key)).all()
        for number, wrapped in found:
            key = log.unwrapped(wrapped)
            if key is not None:
                change = sa.update(table).where(table.c.number == number)
                connection.execute(change.values(wrapped_key=wrap(new, key)))
    return new


def rotate_signing(connection: Connection, at: int, by: By) -> bytes:
    """Let a last checkpoint under the old key name the new one, which is returned; see
    `rotate_sealing`."""
    new = _next(connection, audit.log_of(connection).places, Name.SIGNING, new_signing_key)
    public = public_key(new)
    body = {**by, "key": str(Name.SIGNING), "how": "rotated", "public_key": public}
    audit.append(connection, None, at, audit.Code.KEYS_CHANGED, body, next_key=public)
    return new


def _next(connection: Connection, places: Places, name: Name, make: Callable[[], bytes]) -> bytes:
    """The key that follows, before anything depends on it."""
    if not places.is_elsewhere(name):
        if _settle(connection, places, name) is None:
            raise StoreUnavailable(NOT_ITS_KEY.format(places.where(name)))
        key = make()
        places.draft(name, key)
        return key
    key = places.first(name)
    if _fits(connection, name, key):
        raise KeyInUse(f"{places.where(name)} is the {name} key in use")
    return key


def rotate_epoch(connection: Connection, at: int, by: By) -> None:
    """Seal all rows and columns from here on under new keys."""
    audit.begin_epoch(connection, at)
    _next_data_key(connection, audit.log_of(connection))
    body = {**by, "key": "epoch", "how": "rotated"}
    audit.append(connection, None, at, audit.Code.KEYS_CHANGED, body)


def _next_data_key(connection: Connection, log: Log) -> None:
    number = connection.execute(sa.select(sa.func.max(data_keys.c.number))).scalar()
    if number is None:
        return  # the first is made where what lies in plain is sealed
    made = {"number": number + 1, "wrapped_key": log.wrapped(new_epoch_key())}
    connection.execute(sa.insert(data_keys), made)


# --- looking --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyState:
    """What can be said of a key without showing it."""

    name: Name
    where: str
    """Where it was found, or is looked for first."""
    state: str
    """`in use`, `missing`, `wrong`, or why it cannot be had."""
    fingerprint: str | None
    """The first 16 hexadecimal digits of a digest of the key."""


@dataclass(frozen=True, slots=True)
class EpochState:
    number: int
    since: int
    """When it began, ms; 0 if it is not known."""
    first: int
    readable: bool
    """Whether the sealing key that is there opens it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The keys of a store, as far as they are there."""

    log: str
    public_key: str
    """The one that checkpoints are signed with now (hex)."""
    signing_keys: int
    """How many there were in all."""
    keys: tuple[KeyState, ...]
    epochs: tuple[EpochState, ...]
    values: Mapping[Name, bytes] = field(repr=False)
    """Those in use, for a backup."""


_FIRST = "SELECT public_key FROM audit_logs"
_CHANGES = "SELECT next_key FROM checkpoints WHERE next_key IS NOT NULL ORDER BY number"
_EPOCHS = "SELECT number, since, first, wrapped_key FROM audit_epochs ORDER BY number"
_NEWEST = "SELECT wrapped_key FROM {} ORDER BY number DESC LIMIT 1"


def survey(where: Path | str, places: Places) -> Survey:
    """Look at the keys of a store without opening it, so that a lost key hinders nothing. A text
    is the address of a store on a server.

    Raises:
        StoreUnavailable: the store cannot be read, or has no log yet.
    """
    with _asking(where) as ask:
        first, changes, epochs = ask(_FIRST), ask(_CHANGES), ask(_EPOCHS)
        newest = [ask(_NEWEST.format(table.name)) for table in WRAPPED]
    if not first:
        raise StoreUnavailable(f"{where} has no audit log yet")
    public = changes[-1][0] if changes else first[0][0]
    wrapped = [one[0][0] for one in newest if one]

    def opens(key: bytes) -> bool:
        return all(unwrap(key, one) is not None for one in wrapped)

    sealing, key = _state(places, Name.SEALING, opens)
    signing, sign = _state(places, Name.SIGNING, lambda one: public_key(one) == public)
    found = {Name.SEALING: key, Name.SIGNING: sign}
    return Survey(
        log_id(first[0][0]),
        public,
        1 + len(changes),
        (sealing, signing),
        tuple(
            EpochState(number, since, row, key is not None and unwrap(key, one) is not None)
            for number, since, row, one in epochs
        ),
        {name: one for name, one in found.items() if one is not None},
    )


Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""Gives all rows of a statement."""


@contextmanager
def _asking(where: Path | str) -> Generator[Ask]:
    if isinstance(where, str):
        from forbear.storage.looking import look

        with look(where) as found:
            yield found.rows
        return
    try:
        # A store that nobody has open is read without leaving anything beside it.
        aside = where.with_name(where.name + "-wal")
        how = "mode=ro" if aside.exists() else "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"{where.absolute().as_uri()}?{how}", uri=True)) as store:
            yield lambda statement: store.execute(statement).fetchall()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{where}: {error}") from error


def _state(
    places: Places, name: Name, fits: Callable[[bytes], bool]
) -> tuple[KeyState, bytes | None]:
    problems: list[str] = []
    wrong: KeyState | None = None
    for one in places.candidates(name, problems):
        if fits(one.key):
            return KeyState(name, one.where, "in use", fingerprint(one.key)), one.key
        wrong = wrong or KeyState(name, one.where, "wrong", fingerprint(one.key))
    if wrong is not None:
        return wrong, None
    return KeyState(name, places.where(name), "; ".join(problems) or "missing", None), None


def fingerprint(key: bytes) -> str:
    """A name of a key that tells nothing of it."""
    return hashlib.sha256(b"forbear key\0" + key).hexdigest()[:16]
