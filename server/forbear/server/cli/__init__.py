"""The command line. Commands import what they need when they run, so that help is quick.

Exit codes: 0 done, 1 a check failed or something needs a decision, 2 wrong usage, 3 the store
cannot be used or a key is missing.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Sequence

import typer

from forbear.server.cli import (
    adopting,
    asked,
    audit,
    backup,
    brakes,
    console,
    contracts,
    deciding,
    doctor,
    handover,
    installing,
    keys,
    pruning,
    reading,
    serving,
    setup,
    stats,
    trying,
    watching,
)
from forbear.server.cli.terminal import (
    Failure,
    Unread,
    abandon_output,
    remark,
    write_what_can_be_written,
)
from forbear.server.config import BadSettings

app = typer.Typer(
    name="forbear",
    help="Lets AI agents wait on external jobs without looping, and write without repeating.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
setup.register(app)
installing.register(app)
doctor.register(app)
serving.register(app)
trying.register(app)
reading.register(app)
asked.register(app)
deciding.register(app)
handover.register(app)
watching.register(app)
console.register(app)
contracts.register(app)
brakes.register(app)
pruning.register(audit.register(app))
keys.register(app)
backup.register(app)
adopting.register(app)
stats.register(app)


def _flowing(group: typer.Typer) -> None:
    """Let the paragraphs of each help run to the width of the terminal, not of the source."""
    for one in group.registered_commands:
        paragraphs = (inspect.getdoc(one.callback) or "").split("\n\n")
        one.help = one.help or "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _flowing(inner.typer_instance)


_flowing(app)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry one command out; its exit code.

    No traceback reaches the user unless FORBEAR_LOG asks for it.
    """
    write_what_can_be_written()
    try:
        code = _carried_out(arguments)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, Exception) as error:
        return _ended_by(root(error))


def _carried_out(arguments: Sequence[str]) -> int:
    try:
        app(args=list(arguments), prog_name="forbear")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def root(error: BaseException) -> BaseException:
    """What went wrong first, without the groups that concurrent tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup((Failure, BadSettings, Unread, OSError))
        error = (known or error).exceptions[0]
    return error


def _ended_by(error: BaseException) -> int:
    match error:
        case Failure(code=code):
            remark(str(error))
            return code
        case BadSettings():
            remark(str(error))
            return 2
        case KeyboardInterrupt():
            remark("interrupted")
            return 130
        case Unread() | BrokenPipeError():
            abandon_output()
            return 0
        case OSError(errno=errno.ENOSPC, filename=None):
            abandon_output()
            remark(f"The output cannot be written: {error.strerror}. Nothing else went wrong.")
            return 1
        case _:
            return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    if os.environ.get("FORBEAR_LOG", "").lower() == "debug":
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if _of_the_store(error):
        remark(
            f"The store cannot be used: {error}. Nothing was stored and nothing was sent. "
            "`forbear doctor` looks into it."
        )
        return 3
    remark(
        f"forbear met an error of its own: {type(error).__name__}: {error}. Nothing is lost; "
        "FORBEAR_LOG=debug shows where, for a report."
    )
    return 1


def _of_the_store(error: BaseException) -> bool:
    from forbear.storage.errors import StoreError

    package = type(error).__module__.partition(".")[0]
    return isinstance(error, StoreError) or package in ("sqlalchemy", "sqlite3")


__all__ = ["main", "run"]
