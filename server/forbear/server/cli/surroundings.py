"""What `doctor` looks at around a home: program, database, clock, clients and worker."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forbear.server.clients.known import Client, Server
    from forbear.server.config import Settings

FAST_OR_SLOW = 60
"""Seconds that the clock may differ from those of providers before it is a problem."""


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


def program() -> Finding:
    """The Python that runs this."""
    from forbear.server.clients.program import command, is_fleeting

    told = f"{platform.python_version()}, {sys.executable}"
    if is_fleeting(command()):
        fix = "install Forbear to stay before you register it: uv tool install forbear"
        return Finding("Python", f"{told}, in a folder that is removed again", None, fix)
    return Finding("Python", told)


def database(name: str, version: str) -> Finding:
    """The engine of the store, and what is known to be wrong with its version."""
    if name != "SQLite" or not _resets_wrongly(version):
        return Finding(name, version)
    return Finding(
        name,
        f"{version} can damage a file when two connections write and checkpoint at the same moment "
        "(the WAL-reset fault). Processes of Forbear write in turn, so they do not meet it",
        None,
        "open the store with no other program while Forbear runs, or use a Python with SQLite "
        "3.51.3 or newer",
    )


def _resets_wrongly(version: str) -> bool:
    """From 3.7.0 until 3.51.3, but for two branches that were mended (sqlite.org/wal.html)."""
    parts = tuple(int(part) for part in version.split(".") if part.isdecimal())
    mended = (parts[:2] == (3, 50) and parts >= (3, 50, 7)) or (
        parts[:2] == (3, 44) and parts >= (3, 44, 6)
    )
    return (3, 7) <= parts < (3, 51, 3) and not mended


def clock(answers: Mapping[str, Sequence[tuple[int, Sequence[Sequence[str]]]]]) -> Finding | None:
    """This machine's clock against the Date of answers: when they came (ms), with their headers.

    A cache or a slow answer makes a Date older, never newer, so the least difference counts.
    """
    least: dict[str, int] = {}
    for provider, received in answers.items():
        for at, headers in received:
            date = next((value for name, value in headers if name.lower() == "date"), None)
            sent = None if date is None else _instant(date)
            if sent is not None:
                least[provider] = min(at // 1_000 - sent, least.get(provider, at))
    if not least:
        return None
    provider, seconds = min(least.items(), key=lambda one: abs(one[1]))
    if abs(seconds) <= FAST_OR_SLOW:
        return Finding("clock", f"within {FAST_OR_SLOW} s of that of {provider}")
    way = "ahead of" if seconds > 0 else "behind"
    told = f"{abs(seconds)} s {way} that of {provider}, by the Date of its answers"
    return Finding("clock", told, False, "let the system set it: NTP, or the time settings")


def _instant(date: str) -> int | None:
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def clients(home: Settings) -> Iterator[Finding]:
    """Which clients have an entry of ours, and whether it starts this program on this home."""
    from forbear.server.clients.known import CLIENTS
    from forbear.server.clients.places import file_of
    from forbear.server.clients.program import server
    from forbear.server.clients.registering import find
    from forbear.server.clients.splices import Unfit

    ours = server(home)
    registered = False
    for client in CLIENTS.values():
        file = file_of(client)
        if file is None:
            continue
        what = f"client {client.id}"
        try:
            entry = find(client, file)
        except Unfit as unfit:
            yield Finding(what, f"{file} {unfit}", None, "mend the file")
            continue
        if entry is not None:
            registered = True
            told, ok, fix = _entry(client, entry, ours)
            yield Finding(what, f"{told} ({file})", ok, fix)
    if not registered:
        told = "none of this user has an entry of Forbear"
        yield Finding("clients", told, None, "forbear install")


def _entry(client: Client, entry: Any, ours: Server) -> tuple[str, bool | None, str | None]:
    from forbear.server.clients.registering import is_ours, lacking

    anew = f"forbear install {client.id} --force"
    command = entry.get("command") if isinstance(entry, Mapping) else None
    if not isinstance(command, str):
        return "its entry starts no command, so it is another server", None, None
    if shutil.which(command) is None:
        return f"its entry starts {command}, which is not there", False, anew
    if not is_ours(client, entry, ours):
        return "its entry starts another program, or this one on another home", None, anew
    missing = lacking(client, entry, ours)
    if missing:
        return f"its entry does not pass on {', '.join(missing)}", None, anew
    return "registered", True, None


def worker(home: Settings) -> Iterator[Finding]:
    """The worker as a service of this user, if it is one."""
    from forbear.server.cli.servicing import of

    try:
        service = of(home)
        text = service.file.read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return
    if text == service.text:
        yield Finding("worker", f"written as a service of {service.manager}: {service.file}")
    else:
        told = f"{service.file} is not what this program writes for this home"
        yield Finding("worker", told, None, "forbear install worker, if it is not yours")


def pauses(found: Sequence[Mapping[str, Any]], now: int) -> Iterator[Finding]:
    """What people stopped."""
    from forbear.storage.brakes import COPY
    from forbear.tools.times import clock_time

    for one in found:
        if one["target"] != COPY:
            told = f"{one['target']} since {clock_time(one['since'], now)}: only lookups are sent"
            yield Finding("pause", told, None, f"forbear resume {one['target']}")
