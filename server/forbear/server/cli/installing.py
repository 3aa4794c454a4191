"""`install`: our entry in the file of an MCP client, and the worker as a service of this user."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, remark, say, say_json

if TYPE_CHECKING:
    from forbear.server.clients.known import Client, Server
    from forbear.server.clients.registering import Done
    from forbear.server.config import Settings

WORKER = "worker"
IDS = ("claude-code", "claude-desktop", "cursor", "vscode", "codex", WORKER)


def register(app: typer.Typer) -> None:
    app.command()(install)


def install(
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="CLIENT",
            help="claude-code, claude-desktop, cursor, vscode, codex, or worker. "
            "Default: lists them.",
            autocompletion=lambda incomplete: [one for one in IDS if one.startswith(incomplete)],
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print what would be written or run.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take out what was put in.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="In the file of the project in this folder.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="In this file of the client.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="In the place of another entry of this name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register Forbear in an MCP client, or `worker`: the worker as a service of yours.

    Everything else in the client's file stays as it is, and a copy of it is kept beside it. No key
    is written: the variables that contracts name are.
    """
    home = settings()
    if client is None:
        _list(home, as_json=as_json)
        return
    if client == WORKER:
        from forbear.server.cli import servicing

        if project or file is not None:
            raise Failure("--project and --file are for clients.")
        servicing.act(home, show=show, undo=undo, force=force)
        return
    known = named(client)
    if show:
        _print(known, home, project=project, as_json=as_json)
    elif undo:
        take_out(known, home, _place(known, project=project, file=file), force=force)
    else:
        put_in(known, home, _place(known, project=project, file=file), force=force)


def named(client: str) -> Client:
    """The client of this id. Raises Failure."""
    from forbear.server.clients.known import CLIENTS

    if client not in CLIENTS:
        raise Failure(f"{client!r} is no client that is known here: {', '.join(IDS)}.")
    return CLIENTS[client]


def put_in(client: Client, home: Settings, file: Path | None, *, force: bool = False) -> None:
    """Register in the file, or the user's own. Raises Failure."""
    from forbear.server.clients.places import claude
    from forbear.server.clients.program import is_fleeting, server
    from forbear.server.clients.registering import Taken, register
    from forbear.server.clients.splices import Unfit

    ours = server(home)
    if is_fleeting((ours.command,)):
        raise Failure(
            f"{ours.command} is in a folder that is removed again. Install Forbear to stay, with "
            "`uv tool install forbear` or `pipx install forbear`, and run this anew."
        )
    program = claude() if client.id == "claude-code" and file is None else None
    chosen = file or _found(client)
    try:
        if program is not None:
            done = _by_claude(program, client, chosen, ours, force=force)
        else:
            done = register(client, chosen, ours, home.home, replace=force)
    except Taken as taken:
        raise Failure(_taken(client, chosen, taken.entry), 1) from taken
    except Unfit as unfit:
        raise Failure(_unfit(client, chosen, unfit), 1) from unfit
    _tell(client, done, ours, file)


def take_out(client: Client, home: Settings, file: Path | None, *, force: bool = False) -> None:
    """Undo `put_in`. Raises Failure."""
    from forbear.server.clients.places import claude
    from forbear.server.clients.program import server
    from forbear.server.clients.registering import Taken, find, is_ours, unregister
    from forbear.server.clients.splices import Unfit

    ours = server(home)
    program = claude() if client.id == "claude-code" and file is None else None
    chosen = file or _found(client)
    try:
        entry = find(client, chosen)
        if entry is not None and program is not None:
            if not force and not is_ours(client, entry, ours):
                raise Taken(entry)
            _run((program, "mcp", "remove", "--scope", "user", "forbear"))
            gone: Path | None = chosen
        else:
            gone = unregister(client, chosen, ours, home.home, force=force)
    except Taken as taken:
        raise Failure(
            f"{chosen} has another entry named forbear, which was not written by this program:\n"
            f"{_indented(taken.entry)}\nNothing was changed. Remove it yourself, or add --force.",
            1,
        ) from taken
    except Unfit as unfit:
        raise Failure(_unfit(client, chosen, unfit), 1) from unfit
    if gone is None:
        say(f"{chosen} has no entry of Forbear. Nothing was changed.")
    elif chosen.exists():
        say(f"{client.title} has Forbear no longer: the entry is gone from {chosen}.")
    else:
        say(f"{client.title} has Forbear no longer: {chosen} had nothing else and was removed.")


# --- which file -----------------------------------------------------------------------------


def _place(client: Client, *, project: bool, file: Path | None) -> Path | None:
    if project and file is not None:
        raise Failure("Choose one of --project and --file.")
    if project and not client.project:
        raise Failure(f"{client.title} has no files of projects.")
    return Path.cwd() / client.project if project else file


def _found(client: Client) -> Path:
    from forbear.server.clients.places import file_of, usual

    file = file_of(client)
    if file is None:
        raise Failure(
            f"{client.title} was not found: {usual(client)} would be its file. Start it once, "
            f"name the file with --file, or copy what `forbear install {client.id} --print` shows.",
            1,
        )
    return file


# --- what is told ---------------------------------------------------------------------------


def _tell(client: Client, done: Done, ours: Server, file: Path | None) -> None:
    if not done.changed:
        say(f"{client.title} has Forbear already, in {done.file}. Nothing was changed.")
        if done.lacks:
            remark(
                f"The entry does not pass on {', '.join(done.lacks)}, which contracts name now. "
                f"`forbear install {client.id} --force` writes it anew, with what you filled in."
            )
        return
    say(f"{client.title} has Forbear now, in {done.file}.", "green")
    say(f"  starts   {shlex.join((ours.command, *ours.args))}")
    for name, value in ours.fixed.items():
        say(f"  with     {name}={value}")
    if ours.needed:
        say(f"  keys     {keys_told(client, ours.needed)}")
    if done.copy is not None:
        say(f"  before   {done.copy} has the file as it was")
    say(f"  next     {client.begin}")
    where = "" if file is None else f" --file {shlex.quote(str(file))}"
    say(f"  undo     forbear install {client.id} --undo{where}")


def keys_told(client: Client, names: Sequence[str]) -> str:
    """How the variables reach the server, in a sentence."""
    from forbear.server.clients.known import Keys

    told = ", ".join(names)
    match client.keys:
        case Keys.INHERITED:
            return f"{told}: a server has the environment that {client.title} was started with"
        case Keys.REFERENCES:
            return f"{told}: the entry refers to the environment that {client.title} has"
        case Keys.NAMES:
            return f"{told}: passed on from the environment that {client.title} has"
        case Keys.VALUES:
            return (
                f"{told}: empty in the entry, to be filled in there; or let the contract refer to "
                "file:/path or keyring:service/user, which needs no variable"
            )


def _taken(client: Client, file: Path, entry: Any) -> str:
    return (
        f"{file} has another entry named forbear:\n{_indented(entry)}\n"
        f"Nothing was changed. `forbear install {client.id} --force` puts this program in its "
        "place; a copy of the file is kept."
    )


def _unfit(client: Client, file: Path, why: Exception) -> str:
    return (
        f"{file} {why}. It was left as it is. Mend it, or add by hand what "
        f"`forbear install {client.id} --print` shows."
    )


def _indented(entry: Any) -> str:
    """An entry as it stands in a file; values of its variables may be keys and are left out."""
    shown = entry
    if isinstance(entry, dict) and isinstance(entry.get("env"), dict):
        shown = {**entry, "env": dict.fromkeys(entry["env"], "…")}
    return "\n".join(
        f"  {line}" for line in json.dumps(shown, indent=2, ensure_ascii=False).splitlines()
    )


def _print(client: Client, home: Settings, *, project: bool, as_json: bool) -> None:
    from forbear.server.clients.known import NAME
    from forbear.server.clients.places import claude, file_of, usual
    from forbear.server.clients.program import server

    ours = server(home)
    entry = client.entry(ours)
    file = client.project if project else file_of(client) or usual(client)
    if as_json:
        say_json({"file": str(file), "table": client.table, "name": NAME, "entry": entry})
        return
    if client.id == "claude-code" and not project and claude() is not None:
        say(shlex.join(("claude", *_added(ours))))
    else:
        say(client.notation.put("", client.table, NAME, entry).text.rstrip("\n"))
        remark(f"# goes into {file}")
    if ours.needed:
        remark(f"# keys: {keys_told(client, ours.needed)}")


def _list(home: Settings, *, as_json: bool) -> None:
    found = registrations(home)
    if as_json:
        say_json({"clients": found})
        return
    for one in found:
        say(f"{one['client']:<15} {one['title']:<15} {one['state']:<16} {one['file']}")
    say()
    say("`forbear install CLIENT` registers, --print only shows the entry, --undo takes it out.")
    say("`forbear install worker` lets the worker run without a client.")


def registrations(home: Settings) -> list[dict[str, Any]]:
    """What each client has of us: `registered`, `another entry`, `not registered`, `unreadable` or
    `not found`."""
    from forbear.server.clients.known import CLIENTS
    from forbear.server.clients.places import file_of, usual
    from forbear.server.clients.program import server
    from forbear.server.clients.registering import find, is_ours
    from forbear.server.clients.splices import Unfit

    ours = server(home)
    found: list[dict[str, Any]] = []
    for client in CLIENTS.values():
        file, entry, why = file_of(client), None, None
        state = "not found"
        if file is not None:
            try:
                entry = find(client, file)
                state = "not registered"
                if entry is not None:
                    state = "registered" if is_ours(client, entry, ours) else "another entry"
            except Unfit as unfit:
                state, why = "unreadable", str(unfit)
        found.append(
            {
                "client": client.id,
                "title": client.title,
                "state": state,
                "file": str(file or usual(client)),
                "why": why,
            }
        )
    return found


# --- Claude Code ----------------------------------------------------------------------------


def _by_claude(program: str, client: Client, file: Path, ours: Server, *, force: bool) -> Done:
    """Claude Code writes its file while it runs, so its own command adds the entry."""
    from forbear.server.clients.registering import Done, Taken, find, is_ours

    known = find(client, file)
    if known is not None:
        if is_ours(client, known, ours):
            return Done(file, False)
        if not force:
            raise Taken(known)
        _run((program, "mcp", "remove", "--scope", "user", "forbear"))
    _run((program, *_added(ours)))
    return Done(file, True)


def _added(ours: Server) -> tuple[str, ...]:
    # `--env` takes all words up to the next option, so the name stands before it.
    stated = [word for name, value in ours.fixed.items() for word in ("--env", f"{name}={value}")]
    return ("mcp", "add", "--scope", "user", "forbear", *stated, "--", ours.command, *ours.args)


def _run(words: Sequence[str]) -> None:
    import subprocess

    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(f"`{shlex.join(words)}` did not run: {error}.", 1) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise Failure(f"`{shlex.join(words)}` ended with {done.returncode}: {said}", 1)
