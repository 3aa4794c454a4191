"""`keys`: which keys a home has, and how they are changed, backed up, restored and replaced."""

from __future__ import annotations

import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.acting import Yes, be_sure, by
from forbear.server.cli.home import is_new, opened, run, settings, where
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, at_a_terminal, remark, say, say_json

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.storage.keyfiles import Places
    from forbear.storage.rekeying import KeyState, Survey
    from forbear.storage.store import Store

_STORE_KEY = "store"
"""The name in a backup of the key of all digests."""


class What(StrEnum):
    """What can be rotated."""

    SEALING = "sealing"
    SIGNING = "signing"
    EPOCH = "epoch"


class Lost(StrEnum):
    """What can be replaced."""

    SEALING = "sealing"


PassphraseEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable that holds it.")
]
PassphraseFile = Annotated[
    Path | None, typer.Option(metavar="PATH", help="A file whose first line it is.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The keys of the store and its audit log.")
    for command in (show, rotate, replace, backup, restore):
        group.command()(command)
    app.add_typer(group, name="keys")


# --- show -----------------------------------------------------------------------------------


def show(as_json: AsJson = False) -> None:
    """Say which keys there are, where they live and since when; never what they are.

    Works with a lost key too. Exit 1 if a key is missing or another.
    """
    home = _used()
    told, store = _surveyed(home), _store_key(home)
    if as_json:
        say_json(_in_full(told, home))
    else:
        _tell(told, home)
    if store is None or any(one.state != "in use" for one in told.keys):
        raise typer.Exit(1)


def _tell(told: Survey, home: Settings) -> None:
    path = home.home / "keys" / "store.key"
    key = _store_key(home)
    say(f"store    {_line(path, 'missing' if key is None else 'in use', _name_of(key))}")
    for one in told.keys:
        style = None if one.state == "in use" else "red"
        say(f"{one.name:<8} {_line(one.where, one.state, one.fingerprint)}", style)
    say(f"log      {told.log}, checkpoints are signed with {told.public_key}")
    if told.signing_keys > 1:
        say(f"         its signing key is the {_ordinal(told.signing_keys)}")
    for epoch in told.epochs:
        begun = f" since {_moment(epoch.since)}" if epoch.since else ""
        state = "" if epoch.readable else ", cannot be opened with the sealing key that is here"
        say(f"epoch    {epoch.number}{begun}, from row {epoch.first}{state}")


def _line(where: object, state: str, name: str | None) -> str:
    since = _since(str(where))
    parts = (state, None if name is None else f"fingerprint {name}", since and f"since {since}")
    return f"{where}: {', '.join(part for part in parts if part)}"


def _in_full(told: Survey, home: Settings) -> dict[str, Any]:
    path, key = home.home / "keys" / "store.key", _store_key(home)
    return {
        "log": told.log,
        "public_key": told.public_key,
        "signing_keys": told.signing_keys,
        "keys": [
            _entry(_STORE_KEY, str(path), "missing" if key is None else "in use", _name_of(key)),
            *(_entry(one.name, one.where, one.state, one.fingerprint) for one in told.keys),
        ],
        "epochs": [
            {
                "number": epoch.number,
                "since": _moment(epoch.since) if epoch.since else None,
                "first_row": epoch.first,
                "readable": epoch.readable,
            }
            for epoch in told.epochs
        ],
    }


def _entry(name: str, where: str, state: str, fingerprint: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "where": where,
        "state": state,
        "fingerprint": fingerprint,
        "since": _since(where),
    }


def _since(where: str) -> str | None:
    """When a key was written, where it is a file."""
    try:
        return _moment(int(os.stat(where).st_mtime * 1_000)) if where.startswith("/") else None
    except OSError:
        return None


def _moment(ms: int) -> str:
    from forbear.tools.times import rfc3339

    return rfc3339(ms)


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


# --- rotate, replace ------------------------------------------------------------------------


def rotate(what: Annotated[What, typer.Argument()], yes: Yes = False) -> None:
    """Change a key. Nothing becomes unreadable, and running processes go on.

    sealing: every key in the store is wrapped anew. signing: a last checkpoint under the old key
    names the new one. epoch: rows from here on are sealed under a new key.

    Where config.toml names a place outside the home, put the place of the new key first
    and the old one second, rotate, and remove the old one.
    """
    home = _used()

    async def rotated(store: Store) -> None:
        from forbear.storage.errors import KeyInUse
        from forbear.storage.keyfiles import Name

        be_sure(home, store.key, f"Change the {what} key?", "rotate", "Nothing changed.", yes=yes)
        try:
            if what is What.EPOCH:
                await store.rotate_epoch(by(store.path))
            else:
                await store.rotate(Name(what), by(store.path))
        except KeyInUse as error:
            raise Failure(
                f"{error}. Put the place of the new key first in [keys] {what} in "
                f"{home.home / 'config.toml'}, keep this one second, and rotate again.",
                1,
            ) from error

    _with_store(home, rotated)
    told = _surveyed(home)
    if what is What.EPOCH:
        say(f"Rows are sealed under epoch {told.epochs[-1].number} from here on.", "green")
        return
    key = _state_of(told, what)
    say(f"The {what} key is now {key.fingerprint}, in {key.where}.", "green")
    remark("Backups of the store from before need the key from before. Make a new one of both.")


def replace(
    what: Annotated[Lost, typer.Argument()],
    lost: Annotated[bool, typer.Option("--lost", help="Yes, the key is gone for good.")] = False,
    yes: Yes = False,
) -> None:
    """Go on with a new sealing key, where the old one is lost for good.

    What was sealed stays in the store: it cannot be read, and it is verified as before.
    """
    home = _used()
    key = _store_key(home)
    if key is None:
        raise Failure(f"{home.home / 'keys' / 'store.key'} is missing too: restore it first.", 3)
    if not lost:
        raise Failure(
            "All that was sealed so far would stay unreadable. Look for a backup of "
            f"{home.home / 'keys'} first; if there is none, add --lost."
        )
    nothing = "Nothing changed."
    be_sure(home, key, "Go on with a new key?", "replace", nothing, yes=yes)
    _replaced(home)
    found = _state_of(_surveyed(home), what)
    say(f"The {what} key is now {found.fingerprint}, in {found.where}.", "green")
    say("What was sealed before stays unreadable, and `forbear audit verify` checks it as before.")


def _replaced(home: Settings) -> None:
    import asyncio

    from forbear.server.clock import SystemClock
    from forbear.server.keeping import places
    from forbear.storage.database import Database
    from forbear.storage.errors import KeyInUse
    from forbear.storage.rekeying import replacing_sealing

    store = home.home if home.database is not None else home.home / "forbear.db"
    clock = SystemClock()
    opening = partial(replacing_sealing, at=clock.now().wall, by=by(store))
    try:
        if home.database is None:
            asyncio.run(Database(store, places(home), opening).close())
        else:
            from forbear.storage.postgres import Postgres

            asyncio.run(Postgres(home.database, home.home, places(home), clock, opening).close())
    except KeyInUse as error:
        raise Failure(f"{error}: nothing is lost, and nothing changed.", 1) from error


# --- backup, restore ------------------------------------------------------------------------


def backup(
    path: Annotated[Path, typer.Argument(help="A file that is not there yet.")],
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Write the keys in use into one file, sealed with a passphrase."""
    from forbear.server import keybackup
    from forbear.server.clock import SystemRandom
    from forbear.storage.keyfiles import create

    home = _used()
    told, key = _surveyed(home), _store_key(home)
    for one in told.keys:
        if one.state != "in use":
            raise Failure(f"The {one.name} key, {one.where}, is not the one in use.", 3)
    if key is None:
        raise Failure(f"{home.home / 'keys' / 'store.key'} is missing.", 3)
    if os.path.lexists(path):
        raise Failure(f"{path} is there already, and a backup overwrites nothing.")
    passphrase = _passphrase(passphrase_env, passphrase_file, new=True)
    keys = {str(name): value.hex() for name, value in told.values.items()}
    salt = SystemRandom().token(32)
    text = keybackup.sealed(keys | {_STORE_KEY: key.decode()}, told.log, passphrase, salt)
    try:
        if not create(path.absolute(), text):
            raise Failure(f"{path} is there already, and a backup overwrites nothing.")
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}.", 1) from error
    say(f"{path} holds the keys of {told.log}. Without the passphrase it is worth nothing.")
    remark("Keep the passphrase elsewhere. After a key was rotated, make another backup.")


def restore(
    path: Annotated[Path, typer.Argument(help="A file that `forbear keys backup` wrote.")],
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put the keys of a backup into the home. A key that is there is never overwritten."""
    from forbear.server import keybackup
    from forbear.storage.keyfiles import FILES, create

    home = settings()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}.") from error
    try:
        log, keys = keybackup.opened(text, _passphrase(passphrase_env, passphrase_file, new=False))
    except keybackup.NoBackup as error:
        raise Failure(f"{path}: {error}.", 1) from error
    if not is_new(home) and (mine := _surveyed(home).log) != log:
        raise Failure(f"{path} has the keys of {log}, and the store here has {mine}.", 1)
    files = {home.home / "keys" / FILES[name]: keys[name] for name in FILES if name in keys}
    if _STORE_KEY in keys:
        files[home.home / "keys" / "store.key"] = keys[_STORE_KEY]
    for file, value in files.items():
        if file.exists() and file.read_text(encoding="utf-8").strip() != value:
            raise Failure(
                f"{file} is there and is another key. Give it another name, and restore again.", 1
            )
    for file, value in files.items():
        said = "restored" if create(file, value) else "is there already"
        say(f"{file}: {said}")
    if not is_new(home):
        for one in _surveyed(home).keys:
            if one.state != "in use":
                remark(f"{one.where} is {one.state}: the backup is older than the {one.name} key.")


def _passphrase(variable: str | None, file: Path | None, *, new: bool) -> str:
    from forbear.server.keybackup import SHORTEST

    if variable is not None:
        found = os.environ.get(variable, "")
        if not found:
            raise Failure(f"{variable} is not set, and is to hold the passphrase.")
    elif file is not None:
        try:
            found = (file.read_text(encoding="utf-8").splitlines() or [""])[0]
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"{file} cannot be read: {error}.") from error
    elif at_a_terminal():
        found = _asked(new=new)
    else:
        raise Failure(
            "Without a terminal, name the passphrase: --passphrase-env NAME or --passphrase-file "
            "PATH."
        )
    if new and len(found) < SHORTEST:
        raise Failure(f"The passphrase has {len(found)} characters; it needs {SHORTEST} or more.")
    return found


def _asked(*, new: bool) -> str:
    from getpass import getpass

    try:
        found = getpass("Passphrase: ")
        if new and getpass("Once more: ") != found:
            raise Failure("These are two passphrases. Nothing was written.")
    except (KeyboardInterrupt, EOFError):
        raise Failure("Nothing was written.", 130) from None
    return found


# --- what all of them need ------------------------------------------------------------------


def _used() -> Settings:
    home = settings()
    if is_new(home):
        raise Failure(f"Nothing was stored in {home.home} yet, so there are no keys.")
    return home


def _places(home: Settings) -> Places:
    from forbear.server.keeping import places

    return places(home)


def _surveyed(home: Settings) -> Survey:
    from forbear.storage.rekeying import survey

    return survey(where(home), _places(home))


def _state_of(told: Survey, what: StrEnum) -> KeyState:
    return next(one for one in told.keys if one.name == what.value)


def _store_key(home: Settings) -> bytes | None:
    try:
        return (home.home / "keys" / "store.key").read_bytes()
    except OSError:
        return None


def _name_of(key: bytes | None) -> str | None:
    from forbear.storage.rekeying import fingerprint

    return None if key is None else fingerprint(key)


def _with_store(home: Settings, command: Any) -> None:
    async def whole() -> None:
        async with opened(home) as store:
            await command(store)

    run(whole)
