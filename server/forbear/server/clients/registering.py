"""Our entry in a file of a client: put in, found again, taken out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forbear.server.clients.files import File
from forbear.server.clients.known import NAME, Client, Server
from forbear.server.clients.splices import Unfit, checked, entry_of, without_entry

RECORD = "installed.json"
"""In the home: what `forbear install` put into which file, for `--undo`."""


class Taken(Exception):
    """The client has another server of our name. `entry` is that one."""

    def __init__(self, entry: Any) -> None:
        super().__init__(f"another entry named {NAME}")
        self.entry = entry


@dataclass(frozen=True, slots=True)
class Done:
    """What was put in."""

    file: Path
    changed: bool
    """False: the entry was there."""
    lacks: tuple[str, ...] = ()
    """Names of variables that the entry which was there does not pass on."""
    copy: Path | None = None
    """What the file was before."""


@dataclass(frozen=True, slots=True)
class _Trace:
    """What was done to a file."""

    made: bool
    """The file was not there."""
    table: bool
    """Its table of servers was not there."""
    added: str | None
    """The piece that was put in; None where it took the place of another entry."""
    folder: str | None
    """The folder that was made for it."""
    copy: str | None


def find(client: Client, file: Path) -> Any:
    """The entry of our name in a file, or None. Raises Unfit."""
    read = File.of(file)
    return entry_of(client.notation.read(read.text), client.table, NAME)


def is_ours(client: Client, entry: Any, server: Server) -> bool:
    """Whether an entry starts this program, on the same home."""
    if not isinstance(entry, Mapping):
        return False
    made = client.entry(server)
    env = entry.get("env") or {}
    same = all(entry.get(key) == made[key] for key in ("command", "args"))
    stated = {name: env.get(name) for name in ("FORBEAR_HOME",)}
    return same and stated == {"FORBEAR_HOME": server.fixed.get("FORBEAR_HOME")}


def lacking(client: Client, entry: Mapping[str, Any], server: Server) -> tuple[str, ...]:
    """Variables that contracts name and that an entry of ours does not pass on."""
    made = client.entry(server)
    passed = {*(entry.get("env") or {}), *(entry.get("env_vars") or ())}
    wanted = {*(made.get("env") or {}), *(made.get("env_vars") or ())}
    return tuple(sorted(wanted - passed))


def register(
    client: Client, file: Path, server: Server, home: Path, *, replace: bool = False
) -> Done:
    """Put our entry into a file of a client, which is made if there is none.

    Raises:
        Taken: an entry of our name starts something else, and `replace` is not set.
        Unfit: the file must be left alone.
    """
    read = File.of(file)
    data = client.notation.read(read.text)
    known = entry_of(data, client.table, NAME)
    entry = client.entry(server)
    if known is not None and not replace:
        if not is_ours(client, known, server):
            raise Taken(known)
        return Done(read.path, False, lacking(client, known, server))
    if known is not None:
        entry = _with_what_was_filled_in(entry, known, server)
    if known == entry:
        return Done(read.path, False)
    edit = client.notation.put(read.text, client.table, NAME, entry)
    folder = _folder_made(read.path.parent)
    copy = read.copied()
    traces = _traces(home)
    before = traces.get(str(read.path))
    trace = _Trace(
        read.content is None or (before is not None and before.made),
        client.table not in data or (before is not None and before.table),
        edit.added,
        folder or (before.folder if before is not None else None),
        None if copy is None else str(copy),
    )
    try:
        # First, so that whatever is put in can be taken out.
        _keep(home, {**traces, str(read.path): trace})
        read.write(edit.text)
    except Unfit:
        with suppress(Unfit):
            _keep(home, traces)
        _clear(copy, folder)
        raise
    return Done(read.path, True, copy=copy)


def unregister(
    client: Client, file: Path, server: Server, home: Path, *, force: bool = False
) -> Path | None:
    """Take out what was put in, and nothing else; the file, or None if our entry is not in it.

    A file that was made for the entry goes with it if nothing else is in it.

    Raises:
        Taken: the entry is not of `register`, and `force` is not set.
        Unfit: the file must be left alone.
    """
    read = File.of(file)
    traces = _traces(home)
    trace = traces.pop(str(read.path), None)
    known = entry_of(client.notation.read(read.text), client.table, NAME)
    if known is None:
        if trace is not None:
            _keep(home, traces)
        return None
    if trace is None and not force and not is_ours(client, known, server):
        raise Taken(known)
    text = _without(client, read.text, trace)
    if trace is not None and trace.made and text.strip() in ("", "{}"):
        try:
            read.path.unlink()
        except OSError as error:
            raise Unfit(f"cannot be removed ({error.strerror})") from error
    else:
        read.write(text)
    if trace is not None:
        _tidy(trace, text)
        _keep(home, traces)
    return read.path


def _with_what_was_filled_in(entry: dict[str, Any], known: Any, server: Server) -> dict[str, Any]:
    """Values of variables that a person wrote into the entry before stay with it."""
    env = known.get("env") if isinstance(known, Mapping) else None
    if not isinstance(env, Mapping):
        return entry
    kept = {name: value for name, value in env.items() if name in server.needed}
    return {**entry, "env": {**entry.get("env", {}), **kept}} if kept else entry


def _without(client: Client, text: str, trace: _Trace | None) -> str:
    empty = trace is not None and trace.table
    if trace is not None and trace.added is not None and text.count(trace.added) == 1:
        rest = text.replace(trace.added, "")
        data = client.notation.read(text)
        with suppress(Unfit):
            expected = without_entry(data, client.table, NAME, empty=empty)
            return checked(client.notation, rest, expected)
    return client.notation.without(text, client.table, NAME, empty=empty)


def _tidy(trace: _Trace, text: str) -> None:
    """Remove our copy if the file is what it was before, and the folder made for the file."""
    copy = None if trace.copy is None else Path(trace.copy)
    with suppress(OSError):
        same = copy is not None and copy.read_bytes() == text.encode()
        _clear(copy if same else None, trace.folder)


def _clear(copy: Path | None, folder: str | None) -> None:
    """Remove a copy, and a folder if it is empty."""
    with suppress(OSError):
        if copy is not None:
            copy.unlink()
    with suppress(OSError):
        if folder is not None:
            Path(folder).rmdir()


def _folder_made(folder: Path) -> str | None:
    if folder.is_dir():
        return None
    try:
        folder.mkdir()
    except OSError as error:
        raise Unfit(f"has no folder, and {folder} cannot be made ({error.strerror})") from error
    return str(folder)


# --- what was done --------------------------------------------------------------------------


def _traces(home: Path) -> dict[str, _Trace]:
    try:
        kept = json.loads((home / RECORD).read_text(encoding="utf-8"))
        return {file: _Trace(**trace) for file, trace in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(home: Path, traces: Mapping[str, _Trace]) -> None:
    """Raises Unfit if the home cannot be written."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = File.of(home / RECORD)
        if traces:
            told = {file: asdict(trace) for file, trace in traces.items()}
            record.write(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        elif record.content is not None:
            record.path.unlink()
    except (OSError, Unfit) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Unfit(f"needs a note in {home}, which cannot be written ({why})") from error
