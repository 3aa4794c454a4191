"""`init`, `demo` and `version`: to begin."""

from __future__ import annotations

from typing import Annotated

import typer

from forbear.server.cli.home import settings
from forbear.server.cli.terminal import at_a_terminal, say


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


def init(
    contracts: Annotated[
        list[str] | None,
        typer.Option(
            "--contract",
            metavar="NAME[,KEY=VALUE]...",
            help="Switch this shipped contract on, with values of your account.",
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="CLIENT", help="Register in it: forbear install CLIENT."),
    ] = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Let the worker run as a service of yours.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Make the home, with commented files to begin with; changes nothing that is there.

    On a terminal it asks which shipped contracts to switch on, which client to register in, and
    whether the worker becomes a service.
    """
    from forbear.server.cli.beginning import Wishes, asked, begin

    home = settings()
    wishes = Wishes(tuple(contracts or ()), tuple(clients or ()), worker)
    begin(home, wishes if yes or wishes != Wishes() or not at_a_terminal() else asked(home))


def demo() -> None:
    """Show jobs, reads and writes against a provider on this machine: no network, no key."""
    from forbear.server.demo import show

    if not show():
        raise typer.Exit(1)
