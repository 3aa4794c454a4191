"""`audit`: whether the log is whole, where its head is, what stands in it, and a copy of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.acting import by
from forbear.server.cli.home import is_new, opened, operation, run, settings, where
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, Unread, remark, say, say_json

if TYPE_CHECKING:
    from forbear.rules.model import AuditEvent
    from forbear.server.config import Settings
    from forbear.storage.audit import Code
    from forbear.storage.store import Store
    from forbear.storage.verifying import Evidence, Head, Report

_WIDTH = 200
"""Characters of a body that one line shows."""


def register(app: typer.Typer) -> typer.Typer:
    """Returns the group, for the commands that change the log."""
    group = typer.Typer(no_args_is_help=True, help="The sealed log of all that happened.")
    group.command()(verify)
    group.command()(head)
    group.command()(show)
    group.command()(export)
    app.add_typer(group, name="audit")
    return group


# --- verify, head ---------------------------------------------------------------------------


def verify(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A copied store, or an export. Default: the home's."),
    ] = None,
    expect_head: Annotated[
        str | None,
        typer.Option("--expect-head", metavar="HEAD", help="A line that `audit head` gave before."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no row was changed, moved, added or removed: offline, with no key.

    Exit 1 if a row is broken; the first one is named. Rows after the last checkpoint, and a log
    that was replaced as a whole, need --expect-head. Exit 1 too if that head lies in a part that
    was pruned.
    """
    from forbear.storage.verifying import verify as follow

    expected = None if expect_head is None else _head(expect_head)
    with _evidence(path) as evidence, _progress(evidence) as tell:
        report = follow(evidence, expected, tell)
    if as_json:
        say_json(_verdict(report, expected))
    else:
        _tell(report, expected)
    if report.broken is not None or not report.told:
        raise typer.Exit(1)


def head(path: Annotated[Path | None, typer.Argument(metavar="PATH")] = None) -> None:
    """Print where the log is, as one line to keep out of reach: a ticket, a commit, a message."""
    from forbear.storage.verifying import verify as follow

    with _evidence(path) as evidence, _progress(evidence) as tell:
        report = follow(evidence, tell=tell)
    if report.broken is not None:
        raise Failure(f"{named(report)} An anchor of a broken log proves nothing.", 1)
    say(str(report.head))


def _head(text: str) -> Head:
    from forbear.storage.verifying import Head

    try:
        return Head.parse(text)
    except ValueError:
        raise Failure(
            f"--expect-head {text!r} is no head. Give the line that `forbear audit head` printed: "
            "LOG:ROWS:HASH."
        ) from None


@contextmanager
def _evidence(path: Path | None) -> Iterator[Evidence]:
    from forbear.storage.errors import StoreUnavailable
    from forbear.storage.verifying import read

    home = settings()
    if path is None and is_new(home):
        raise Failure(f"Nothing was stored in {home.home} yet, so there is no audit log.")
    if path is not None and not path.is_file():
        raise Failure(f"There is no file {path}.")
    try:
        with read(path or where(home), live=path is None) as evidence:
            yield evidence
    except StoreUnavailable as error:
        raise Failure(f"The log cannot be read: {error}.", 3) from error


@contextmanager
def _progress(evidence: Evidence) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where a person looks and the log is long enough to wait for."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=evidence.rows)
        yield lambda rows: bar.update(task, completed=rows)


def _tell(report: Report, expected: Head | None) -> None:
    if report.broken is not None:
        say(named(report), "red")
        row = report.broken.row
        if row is not None and row > report.start + 1:
            say(f"Rows {report.start + 1} to {row - 1} are whole.")
        return
    first, rows = report.start + 1, report.head.sequence
    told = f"{rows} rows" if first == 1 else f"rows {first} to {rows}"
    say(f"{report.head.log}: {told}, each follows from the one before.", "green")
    if report.start:
        say(f"Rows 1 to {report.start} were pruned; a signed row of the log says so.")
    if report.keys > 1:
        say(f"It had {report.keys} signing keys, each named under the one before.")
    if report.plain:
        say(
            f"Rows {first} to {report.plain} are older than sealing: chained, and readable by "
            "anybody."
        )
    if expected is not None and report.told:
        say(f"The head that you gave is row {expected.sequence} of it.")
    elif expected is not None:
        say(
            f"The head that you gave is row {expected.sequence}, and that was pruned: give it with "
            "the export that was made before.",
            "yellow",
        )
    say(_signed(report))
    say(f"head {report.head}")


def named(report: Report) -> str:
    assert report.broken is not None
    broken = report.broken
    return f"BROKEN: {'' if broken.row is None else f'row {broken.row} '}{broken.why}."


def _signed(report: Report) -> str:
    rows, signed = report.head.sequence, report.signed
    if rows == 0:
        return "Nothing was stored yet, so there is nothing to sign."
    if signed == rows:
        return "The last checkpoint signs all of it."
    last = f"row {rows} lies" if rows == signed + 1 else f"rows {signed + 1} to {rows} lie"
    return (
        f"The last checkpoint signs row {signed}; {last} after it: that nobody removed or replaced "
        "those, only a head kept elsewhere can show."
    )


def _verdict(report: Report, expected: Head | None) -> dict[str, Any]:
    broken = report.broken
    return {
        "ok": broken is None and report.told,
        "log": report.head.log,
        "rows": report.head.sequence,
        "head": str(report.head),
        "pruned_rows": report.start,
        "signed_rows": report.signed,
        "signing_keys": report.keys,
        "plain_rows": report.plain,
        "expected_head": None if expected is None else str(expected),
        "expected_head_pruned": not report.told,
        "broken": None if broken is None else {"row": broken.row, "why": broken.why},
    }


# --- show, export ---------------------------------------------------------------------------


def show(
    of: Annotated[
        str | None, typer.Option("--operation", metavar="OP", help="Only events of this one.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Only events with this code.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: 2h (ago) or 2026-11-30T14:30:00Z."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Open the seals and list what happened. That you looked is recorded in the log itself."""
    from forbear.storage.audit import Code

    if code is not None and code not in set(Code):
        raise Failure(f"There is no code {code!r}; there are {', '.join(Code)}.")

    home = settings()

    async def shown(store: Store) -> None:
        from forbear.server.clock import SystemClock

        op_id = None if of is None else (await operation(store, of)).id
        begin = None if since is None else moment("--since", since, SystemClock().now().wall)
        asked = {"operation_asked": op_id, "code": code, "since": since, "limit": limit}
        await _let_in(home, store, "show", asked)
        found = await store.read.trail(operation_id=op_id, code=code, since=begin, limit=limit)
        if as_json:
            say_json({"events": [_in_full(event) for event in found]})
        else:
            for event in found:
                say(_line(event))
            if not found:
                say("No such event.")
        remark("That you looked is in the audit log.")

    with_store(shown)


def export(
    path: Annotated[str, typer.Argument(metavar="PATH|-", help="A new file, or - for output.")],
) -> None:
    """Write the log as JSON Lines that `audit verify PATH` checks by itself; seals stay closed."""
    home = settings()
    target = Path(path)
    if path != "-" and target.exists():
        raise Failure(f"{path} is there already; name a new file.")

    to = "output" if path == "-" else str(target.absolute())

    async def recorded(store: Store) -> None:
        await _let_in(home, store, "export", {"to": to})

    with_store(recorded)
    if path == "-":
        from forbear.storage.verifying import lines, read

        with read(where(home), live=True) as evidence:
            for line in lines(evidence):
                _put(line)
        return
    write_export(home, target)
    remark(f"Check it anywhere with: forbear audit verify {path}")


def write_export(home: Settings, target: Path) -> None:
    from forbear.storage.verifying import lines, read

    with read(where(home), live=True) as evidence:
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines(evidence))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Failure(f"{target} cannot be written: {error.strerror}.", 1) from error


def _put(line: str) -> None:
    try:
        sys.stdout.write(f"{line}\n")
    except BrokenPipeError as error:
        raise Unread from error


def with_store(command: Callable[[Store], Any]) -> None:
    home = settings()
    if is_new(home):
        raise Failure(f"Nothing was stored in {home.home} yet, so there is no audit log.")

    async def whole() -> None:
        async with opened(home) as store:
            await command(store)

    run(whole)


async def _let_in(home: Settings, store: Store, how: str, asked: dict[str, Any]) -> None:
    """Say in the log that it is looked into, before anything of it is seen, or that somebody was
    not let in."""
    from forbear.storage.audit import Code

    wrong = await objection(home, store, how, asked)
    if wrong is not None:
        raise Failure(wrong, 1)
    await _record(store, Code.AUDIT_READ, how, asked)


async def objection(home: Settings, store: Store, how: str, asked: dict[str, Any]) -> str | None:
    from forbear.server import keeping
    from forbear.storage.audit import Code

    wrong = keeping.objection(home, store.path, store.key, how)
    if wrong is not None:
        await _record(store, Code.AUDIT_REFUSED, how, asked)
    return wrong


async def _record(store: Store, code: Code, how: str, asked: dict[str, Any]) -> None:
    from forbear.server.clock import SystemClock
    from forbear.storage import audit

    stated = {name: value for name, value in asked.items() if value is not None}
    look = partial(
        audit.append,
        operation_id=None,
        at=SystemClock().now().wall,
        code=code,
        body={**by(store.path), "how": how, **stated},
    )
    await store.write(look)


def moment(option: str, text: str, now: int) -> int:
    from forbear.rules.notation import parse_duration
    from forbear.rules.timing import read_rfc3339

    try:
        return now - parse_duration(text)
    except ValueError:
        then = read_rfc3339(f"{text}T00:00:00Z" if len(text) == len("2026-11-30") else text)
    if then is None:
        raise Failure(f"{option} {text!r} is no time; write 2h (ago) or 2026-11-30T14:30:00Z.")
    return then


def _in_full(event: AuditEvent) -> dict[str, Any]:
    from forbear.tools.times import rfc3339

    return {
        "sequence": event.sequence,
        "at": rfc3339(event.at),
        "code": event.code,
        "operation_id": event.operation_id or None,
        "body": dict(event.body),
        **({} if event.unreadable is None else {"unreadable": event.unreadable}),
    }


def _line(event: AuditEvent) -> str:
    import json

    from forbear.tools.times import rfc3339
    from forbear.tools.untrusted import clip

    body = json.dumps(dict(event.body), ensure_ascii=False)
    told = clip(body if event.unreadable is None else f"({event.unreadable})", _WIDTH)
    where = f" {event.operation_id}" if event.operation_id else ""
    return f"{event.sequence:>6}  {rfc3339(event.at)}  {event.code}{where}  {told}"
