"""`init`, `demo` and `version`: to begin."""

from __future__ import annotations

from typing import Annotated

import typer

from forbear.server.cli.first import FIRST_CONTRACT
from forbear.server.cli.home import FIRST, settings
from forbear.server.cli.terminal import Failure, say


def register(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(demo)
    app.command()(version)
    app.callback()(common)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def common(
    version_asked: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Lets AI agents wait on external jobs without looping, and write without repeating."""


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
        first = home.contracts / FIRST
        new = not first.exists()
        if new:
            first.write_text(FIRST_CONTRACT, encoding="utf-8")
    except OSError as error:
        raise Failure(
            f"{home.home} cannot be written ({error.strerror}). Set FORBEAR_HOME to a folder of "
            "yours.",
            3,
        ) from error
    say(f"Home: {home.home}")
    say(f"Contracts: {home.contracts}")
    say(f"A first contract: {first}{'' if new else ' (it was already there and was not changed)'}")
    say()
    say("Next:")
    say(f"  1. cp {first} {home.contracts / 'NAME.toml'}   and write what your API says")
    say("  2. forbear contract check                       mistakes, and what is left open")
    say("  3. forbear try NAME.export dataset=sales        one job from here")
    say("  4. claude mcp add forbear -- forbear serve      or another client, see the README")


def demo() -> None:
    """Show jobs, reads and writes against a provider on this machine: no network, no key."""
    from forbear.server.demo import show

    if not show():
        raise typer.Exit(1)
