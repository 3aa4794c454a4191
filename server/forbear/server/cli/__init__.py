"""The command line. Commands import what they need when they run, so that help is quick.

Exit codes: 0 done, 1 a check failed or something needs a decision, 2 wrong usage, 3 the store
cannot be used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from forbear.server.cli import contracts, deciding, reading, serving, setup, trying
from forbear.server.cli.terminal import Failure, remark
from forbear.server.config import BadSettings

app = typer.Typer(
    name="forbear",
    help="Lets AI agents wait on external jobs without looping, and write without repeating.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
setup.register(app)
serving.register(app)
trying.register(app)
reading.register(app)
deciding.register(app)
contracts.register(app)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry one command out; its exit code. Never lets a traceback reach the user."""
    try:
        app(args=list(arguments), prog_name="forbear")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Failure as failure:
        remark(str(failure))
        return failure.code
    except BadSettings as wrong:
        remark(str(wrong))
        return 2
    except KeyboardInterrupt:
        remark("interrupted")
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from writing the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _unexpected(error)
    return 0


def _unexpected(error: Exception) -> int:
    import logging

    logging.getLogger("forbear").debug("the command failed", exc_info=error)
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


def _of_the_store(error: Exception) -> bool:
    from forbear.storage.errors import StoreError

    package = type(error).__module__.partition(".")[0]
    return isinstance(error, StoreError) or package in ("sqlalchemy", "sqlite3")


__all__ = ["main", "run"]
