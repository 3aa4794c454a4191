"""`backup`: the store, its keys and the contracts as a home of their own, elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.home import is_new, opened, run, settings
from forbear.server.cli.terminal import Failure, remark, say
from forbear.server.config import Settings

if TYPE_CHECKING:
    from forbear.storage.copying import Copied


def register(app: typer.Typer) -> None:
    app.command()(backup)


def backup(
    path: Annotated[Path, typer.Argument(help="A folder that is not there yet.")],
) -> None:
    """Copy the store as it stands now, with keys and contracts, and check the copy."""
    home = settings()
    if home.database is not None:
        raise Failure(
            "The store is on a server: copy it with `pg_dump --format=custom`, and keep with it "
            f"keys/, contracts/ and config.toml of {home.home}. See docs/postgresql.md.",
            2,
        )
    target = path.expanduser().absolute()
    if is_new(home):
        raise Failure(f"Nothing was ever stored in {home.home}.", 1)
    if os.path.lexists(target):
        raise Failure(f"{target} is there already, and a backup overwrites nothing.", 2)
    if target.resolve().is_relative_to(home.home.resolve()):
        raise Failure(f"{target} is inside the home. Choose a place that outlives it.", 2)
    copied = run(lambda: _made(home, target))
    contracts = len(list((target / "contracts").glob("*.toml")))
    say(
        f"{target} holds {_many(copied.operations, 'operation')}, "
        f"{_many(copied.open_cases, 'open case')}, {_many(contracts, 'contract')}, the settings, "
        "and the keys of this home. It was opened and is whole."
    )
    remark("The keys are inside: keep it as you keep a password.")
    remark(
        "Not inside: large results (artifacts/), and the secrets that contracts refer to where "
        "they lie elsewhere."
    )
    remark(
        "It does not know what is sent from now on, so nothing but lookups is sent from it before "
        f"`FORBEAR_HOME={target} forbear adopt`."
    )


async def _made(home: Settings, target: Path) -> Copied:
    """The whole backup under its name, or nothing under any."""
    from forbear.storage.copying import copy

    async with opened(home) as store:
        draft = target.with_name(f".{target.name}.{store.liveness.owner}")
        try:
            draft.mkdir(mode=0o700)
        except OSError as error:
            raise Failure(f"{target} cannot be made: {error.strerror}.", 2) from error
        try:
            copied = copy(store.path, draft / "forbear.db")
            for name in ("keys", "contracts"):
                _copy_folder(home.home / name, draft / name)
            if (home.home / "config.toml").is_file():
                _copy_file(home.home / "config.toml", draft / "config.toml")
            if (draft / "keys" / "store.key").read_text("ascii").encode() != store.key:
                raise Failure("The key of the store changed meanwhile. Try again.", 1)
            _opens(home, draft)
            draft.rename(target)
        except OSError as error:
            raise Failure(
                f"{target} cannot be made: {error.strerror}. Nothing is left of it."
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return copied


def _opens(home: Settings, draft: Path) -> None:
    """The keys beside a copy are those that it was wrapped with; a rotation may come between."""
    from forbear.server.keeping import places
    from forbear.storage.keyfiles import Places
    from forbear.storage.rekeying import survey

    elsewhere = places(home)
    for one in survey(draft / "forbear.db", Places(draft / "keys")).keys:
        if one.state != "in use" and not elsewhere.is_elsewhere(one.name):
            raise Failure(f"The {one.name} key changed meanwhile. Try again.", 1)


def _copy_folder(source: Path, target: Path) -> None:
    """Its files, for this user alone; a link becomes the file that it names."""
    target.mkdir(mode=0o700)
    for one in sorted(source.iterdir()) if source.is_dir() else ():
        if one.is_dir():
            _copy_folder(one, target / one.name)
        elif one.is_file():
            _copy_file(one, target / one.name)


def _copy_file(source: Path, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as written:
        written.write(source.read_bytes())
        written.flush()
        os.fsync(written.fileno())


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
