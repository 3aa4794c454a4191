"""What a command writes: plain where it is piped, in colour where a person looks.

Results go to standard output, remarks to standard error. Nothing that a provider or an agent wrote
can move the cursor or hide text.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

from forbear.tools.untrusted import inert

EXIT_CODES: Mapping[int, str] = {
    0: "Done.",
    1: "A check failed, something needs a decision, or what was waited for ended without success.",
    2: "Wrong usage: an argument, a setting or a file; the message says which.",
    3: "The store cannot be used, or a key is missing.",
    130: "Interrupted with Ctrl-C.",
}
"""What the exit codes of all commands mean."""


class Failure(Exception):
    """The command ends here with this message and one of `EXIT_CODES`. Raise it with the fix."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class Unread(Exception):
    """Whoever read our output has seen enough."""


def write_what_can_be_written() -> None:
    """Characters that a terminal's encoding lacks are written as escapes, not refused."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """Keep the interpreter from writing the rest when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str = "", style: str | None = None) -> None:
    """One or more lines on standard output."""
    safe = inert(text).replace("\r", "\\r")
    if style is None or not _in_colour():
        _write(f"{safe}\n")
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(safe, style))


def remark(text: str) -> None:
    """One line on standard error."""
    with suppress(OSError):  # there is nobody left to tell
        sys.stderr.write(inert(text).replace("\r", "\\r") + "\n")


def say_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """A value as JSON on standard output, and nothing else there."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    _write(json.dumps(value, ensure_ascii=plain, indent=2, default=str) + "\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()  # who reads a pipe waits for the line
    except BrokenPipeError as error:
        # As an OSError it would end as a failure in the library that reads the command line.
        raise Unread from error


def confirmed(question: str, otherwise: str) -> bool:
    """Ask for one `y` on the terminal; see `typed`."""
    return (typed(f"{question} [y/N] ", otherwise) or "").lower() in ("y", "yes")


def typed(question: str, otherwise: str) -> str | None:
    """One line that a person types, without the space around it; None at the end of input.

    Ctrl-C is an answer too, at once: the command ends with `otherwise`.
    """
    # A running event loop would keep Ctrl-C for later and go on reading.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stdout.write(inert(question))
        sys.stdout.flush()
        line = sys.stdin.readline()
        return line.strip() if line else None
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        raise Failure(otherwise, 130) from None
    finally:
        signal.signal(signal.SIGINT, before)


def at_a_terminal() -> bool:
    """Whether a person can be asked: both input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def style_of(line: str) -> str | None:
    """The colour of a line of a story."""
    for words, style in _STYLES:
        if any(word in line for word in words):
            return style
    return None


_STYLES = (
    (("escalated", "held for approval", "must approve"), "bold yellow"),
    (("succeeded",), "green"),
    (("failed", "cancelled", "expired", "discarded", "dropped"), "red"),
    (("503", "429", "no answer", "not sent", "is gone"), "yellow"),
    (("decided",), "cyan"),
)
