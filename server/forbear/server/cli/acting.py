"""What changes the log or its keys: who does it, and that they mean it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.terminal import Failure, at_a_terminal, confirmed

if TYPE_CHECKING:
    from pathlib import Path

    from forbear.server.config import Settings

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needs the operator token.")]


def by(path: Path) -> dict[str, object]:
    """Who acts on the store at `path`, as the audit log keeps it."""
    from forbear.server.operator import signature
    from forbear.storage.files import account

    told = signature(path, "terminal" if at_a_terminal() else "command line")
    return {**told, "account": account()}


def be_sure(
    home: Settings, store_key: bytes, question: str, what: str, nothing: str, *, yes: bool
) -> None:
    """Return if a person at a terminal says yes, or a program has the operator token.

    Raises Failure: neither; `nothing` says that nothing was done.
    """
    from forbear.server import operator

    if at_a_terminal():
        if not yes and not confirmed(question, nothing):
            raise Failure(nothing, 1)
    elif not yes or operator.objection(home, store_key) is not None:
        raise Failure(
            f"Without a terminal, {what} needs the operator token: set {operator.VARIABLE} and add "
            f"--yes, or do it at a terminal. {nothing}"
        )
