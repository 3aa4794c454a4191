"""`init`, `doctor`, `demo` and `version`: to begin, and to see whether all is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from forbear.server.cli.first import FIRST_CONTRACT
from forbear.server.cli.home import NOBODY, run, senders, settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, say, say_json

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.storage.store import Store


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(demo)
    app.command()(doctor)
    app.command()(version)


def version() -> None:
    """Print the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        say(f"forbear {installed('forbear')}")
    except PackageNotFoundError:
        say("forbear (not installed)")


def init() -> None:
    """Make the home and a commented first contract; changes nothing that is there."""
    home = settings()
    try:
        home.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.contracts.mkdir(exist_ok=True, mode=0o700)
        first = home.contracts / "first.sample"
        if not first.exists():
            first.write_text(FIRST_CONTRACT, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"{home.home} cannot be written ({error.strerror}). Set FORBEAR_HOME to a folder of "
            "yours.",
            3,
        ) from error
    say(f"Home: {home.home}")
    say(f"Contracts: {home.contracts}")
    say()
    say("Next:")
    say(f"  1. cp {first} {home.contracts / 'NAME.toml'}   and write what your API says")
    say("  2. forbear contract check                       mistakes, and what is left open")
    say("  3. forbear try NAME.export dataset=sales        one job from here")
    say("  4. claude mcp add forbear -- forbear serve      or another client, see the README")


def demo() -> None:
    """Show five jobs against a provider on this machine: no network, no key, no account."""
    from forbear.server.demo import show

    if not show():
        raise typer.Exit(1)


# --- doctor ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `ok` is None for what is neither good nor bad."""

    what: str
    told: str
    ok: bool | None = True
    fix: str | None = None

    def line(self) -> str:
        mark = {True: "ok", False: "PROBLEM", None: "note"}[self.ok]
        return f"{mark:<8} {self.what}: {self.told}{f' -> {self.fix}' if self.fix else ''}"


def doctor(
    as_json: AsJson = False,
) -> None:
    """Look at home, store, contracts, keys and processes. Exit 1 if something is wrong."""
    home = settings()
    found: list[Finding] = [_home(home)]
    if found[0].ok is False:
        _report(found, as_json=as_json)
        raise typer.Exit(1)
    from forbear.storage.errors import StoreError

    try:
        found += run(lambda: _examined(home))
    except StoreError as error:
        fix = "free the disk, give the file back its rights, or restore a backup"
        found.append(Finding("store", str(error), False, fix))
        _report(found, as_json=as_json)
        raise typer.Exit(3) from error
    _report(found, as_json=as_json)
    if any(one.ok is False for one in found):
        raise typer.Exit(1)


def _report(found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "ok": all(one.ok is not False for one in found),
                "findings": [
                    {"what": one.what, "told": one.told, "ok": one.ok, "fix": one.fix}
                    for one in found
                ],
            }
        )
        return
    for one in found:
        say(one.line(), {True: None, False: "red", None: "yellow"}[one.ok])


def _home(home: Settings) -> Finding:
    import os

    if not home.home.exists():
        return Finding("home", f"{home.home} is not there yet", None, "forbear init")
    if not os.access(home.home, os.W_OK):
        return Finding("home", f"{home.home} cannot be written", False, "chown it to this user")
    return Finding("home", str(home.home))


async def _examined(home: Settings) -> list[Finding]:
    from forbear.server.cli.home import opened

    async with opened(home) as store:
        return [
            *_store(store),
            *_contracts(home, store),
            await _processes(store),
            _token(home),
        ]


def _store(store: Store) -> list[Finding]:
    from forbear.storage.database import sqlite_version
    from forbear.storage.schema import GENERATION

    return [
        Finding("store", f"{store.path}, schema {GENERATION}"),
        Finding("SQLite", sqlite_version()),
    ]


def _contracts(home: Settings, store: Store) -> list[Finding]:
    from forbear.server.credentials import Credentials, MissingCredential
    from forbear.server.providers import Contracts

    contracts = Contracts(home.contracts, Credentials(), store.key)
    found: list[Finding] = []
    for name, contract in sorted(contracts.contracts().items()):
        credential = contracts.credential(contract)
        count = len(contract.jobs)
        jobs = f"{count} job{'s' if count != 1 else ''}, {contract.file}"
        if isinstance(credential, MissingCredential):
            reference, _, fix = str(credential).partition(" -> ")
            found.append(Finding(f"key of {name}", reference, False, fix or None))
        else:
            found.append(Finding(f"contract {name}", f"{jobs}, key present"))
    for name, errors in sorted(contracts.errors().items()):
        told = f"{len(errors)} mistakes, the first: {errors[0]}"
        found.append(Finding(f"contract {name}", told, False, "forbear contract check"))
    if not found:
        found.append(Finding("contracts", f"none in {home.contracts}", None, "forbear init"))
    return found


async def _processes(store: Store) -> Finding:
    living = await senders(store)
    if not living:
        return Finding("processes", NOBODY, None)
    told = ", ".join(f"{one.role} (process {one.pid})" for one in living)
    return Finding("processes", f"{told} can send")


def _token(home: Settings) -> Finding:
    from forbear.server import operator

    if not operator.is_known(home):
        told = (
            "none yet: the first FORBEAR_OPERATOR_TOKEN that decides becomes the one of this home"
        )
        return Finding("operator token", told, None)
    return Finding("operator token", "known: cases can be decided without a terminal")
