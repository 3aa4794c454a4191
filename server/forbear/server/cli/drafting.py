"""`contract new` and `contract draft`: the draft of a contract from what is known of an API."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import settings
from forbear.server.cli.terminal import Failure, remark, say

if TYPE_CHECKING:
    from forbear.rules.contract_draft import Draft
    from forbear.rules.exchanges import Received

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write there; default: NAME.toml of the home."),
]
Print = Annotated[
    bool, typer.Option("--print", help="Print the file and write nothing.", show_default=False)
]
ActionName = Annotated[
    str | None, typer.Option("--action", metavar="NAME", help="Name of the job or call.")
]

LONGEST_SAMPLE = 60
"""Characters of an argument that the printed `try` line repeats."""


def register(group: typer.Typer) -> None:
    group.command()(new)
    # group.command()(draft)


# --- new ------------------------------------------------------------------------------------


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name for the provider.")],
    from_curl: Annotated[
        list[str] | None,
        typer.Option(
            "--from-curl",
            metavar="LINE",
            help="A curl line in quotes, or - to paste it. Once more: what asks for the state.",
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="FILE",
            help="An answer: first that of the first line, then those about the state.",
        ),
    ] = None,
    status_answer: Annotated[
        list[str] | None,
        typer.Option("--status-answer", metavar="FILE", help="An answer about the state."),
    ] = None,
    action: ActionName = None,
    call: Annotated[
        bool, typer.Option("--call", help="A single call, even if it looks like a job.")
    ] = False,
    printed: Print = False,
    out: Out = None,
) -> None:
    """Draft a contract from a pasted curl line and the answers to it.

    Keys are taken out and named by reference. An answer is JSON, as it came or as `curl -i` prints
    it; - reads one from standard input. You choose what each state means; nothing is sent.
    """
    from forbear.rules.curl import parse
    from forbear.rules.draft_exchanges import Exchange, draft, is_job
    from forbear.rules.exchanges import Unusable

    _check_name(name, "NAME")
    if action is not None:
        _check_name(action, "--action")
    lines, answers, looks = from_curl or [], answer or [], status_answer or []
    if not lines:
        raise Failure(
            f"Paste the request: forbear contract new {name} --from-curl - and then the curl line, "
            "ended by Ctrl-D."
        )
    if len(lines) > 2:
        raise Failure("--from-curl is for one request, and once more for what asks for its state.")
    if [*lines, *answers, *looks].count("-") > 1:
        raise Failure("Only one thing can come from standard input; name files for the others.")
    path = _target(name, printed, out)
    try:
        requests = [parse(_line(line)) for line in lines]
    except Unusable as error:
        raise Failure(f"The curl line: {error}.") from None
    requests.sort(key=lambda one: one.method in ("GET", "HEAD"))
    received = [_received(one) for one in answers]
    later = [_received(one) for one in looks]
    if len(requests) == 1 and requests[0].method in ("GET", "HEAD"):
        first, status = Exchange(requests[0], (*received, *later)), None
    else:
        later = [*received[1:], *later]
        first = Exchange(requests[0], tuple(received[:1]))
        status = Exchange(requests[1], tuple(later)) if len(requests) == 2 else None
        if status is None and (received or later):
            first = Exchange(requests[0], (received[0] if received else _none(), *later))
    job = not call and (is_job(first, status) or bool(looks))
    try:
        made = draft(
            first,
            status,
            name,
            _source(lines, answers, looks),
            job=job,
            action=action,
            named=path is not None and path.stem != name,
        )
    except Unusable as error:
        raise Failure(f"The curl line: {error}.") from None
    _deliver(made.draft, made.text, path, name, _try_line(name, made.action, made.samples))
    if not job and first.sent.method not in ("GET", "HEAD") and not call:
        remark(
            "It became a single call. If it starts a job, draft it once more with an answer about "
            "the job's state: --status-answer FILE."
        )


def _none() -> Received:
    from forbear.rules.exchanges import Received

    return Received(None)


def _line(given: str) -> str:
    if given != "-":
        return given
    from forbear.rules.curl import LONGEST
    from forbear.server.documents import read

    return read("-", LONGEST * 4).decode("utf-8", "replace")


def _received(name: str) -> Received:
    from forbear.rules.exchanges import LARGEST, Unusable, received
    from forbear.server.documents import read

    try:
        return received(read(name, LARGEST))
    except Unusable as error:
        raise Failure(f"The answer {_named(name)}: {error}.") from None


def _named(name: str) -> str:
    return "on standard input" if name == "-" else name


def _source(lines: Sequence[str], answers: Sequence[str], looks: Sequence[str]) -> str:
    count = len(answers) + len(looks)
    told = "a curl line" if len(lines) == 1 else "two curl lines"
    return told if not count else f"{told} and {count} answer{'s' if count > 1 else ''}"


# --- draft ----------------------------------------------------------------------------------


def draft() -> None:
    """Draft a contract from an OpenAPI document or a recorded exchange."""


# --- what is written ------------------------------------------------------------------------


def _check_name(name: str, what: str) -> None:
    from forbear.rules.contract_terms import NAME

    if NAME.fullmatch(name) is None or len(name) > 64:
        raise Failure(
            f"{what} {name!r} is no name that a contract can have; use letters, digits, - and _."
        )


def _target(name: str, printed: bool, out: Path | None) -> Path | None:
    """Where the file will be; None where it is printed. It must not be there yet."""
    if printed:
        return None
    path = out or settings().contracts / f"{name}.toml"
    if path.exists():
        raise Failure(
            f"{path} is there already and was not changed. Choose another NAME, --out FILE or "
            "--print."
        )
    return path


def _write(path: Path, text: str) -> None:
    """A new file; never over one that is there."""
    try:
        if path.parent == (home := settings()).contracts:
            home.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            home.contracts.mkdir(exist_ok=True, mode=0o700)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise Failure(f"{path} is there already and was not changed.") from None
    except OSError as error:
        raise Failure(
            f"{path} cannot be written ({error.strerror}). --out FILE names another place.", 3
        ) from None


def _deliver(found: Draft, text: str, path: Path | None, name: str, attempt: str) -> None:
    """Write or print the file, and say what is left and what comes next."""
    if path is None:
        say(text.removesuffix("\n"))
        return
    _write(path, text)
    actions = [f"job {one.action.name}" for one in found.jobs]
    actions += [f"call {one.action.name}" for one in found.calls]
    say(f"Wrote {path}: {', '.join(actions)}, drafted from {found.source}.", "green")
    left = list(found.left())
    if left:
        say()
        say("Left for you, and in the file as comments:")
        for number, sentence in enumerate(left, 1):
            say(f"  {number}. {sentence}")
    if found.variables:
        say()
        say("No key is in the file. Put it where your processes see it:")
        for variable, what in found.variables.items():
            say(f"  export {variable}='…'    # {what}")
    say()
    say("Next:")
    where = shlex.quote(str(path))
    steps = [f"$EDITOR {where}", f"forbear contract check {where}", attempt]
    for number, step in enumerate(steps, 1):
        say(f"  {number}. {step}")


def _try_line(provider: str, action: str, samples: Mapping[str, Any]) -> str:
    """The command that tries the action with the values that were pasted."""
    words = ["forbear", "try", f"{provider}.{action}"]
    words += [_pair(name, value) for name, value in samples.items()]
    return " ".join(words)


def _pair(name: str, value: Any) -> str:
    from forbear.rules.exchanges import looks_secret
    from forbear.rules.ports import Number
    from forbear.rules.requests import json_text

    if value is None:
        return f"{name}=…"
    if isinstance(value, str) and not isinstance(value, Number):
        plain = value.isprintable() and 0 < len(value) <= LONGEST_SAMPLE
        return f"{name}={shlex.quote(value)}" if plain and not looks_secret(value) else f"{name}=…"
    text = json_text(value)
    short = len(text) <= LONGEST_SAMPLE and text.isprintable() and not looks_secret(text)
    return f"{name}:={shlex.quote(text)}" if short else f"{name}:=…"
