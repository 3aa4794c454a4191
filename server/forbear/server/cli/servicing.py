"""The worker as a service of this user: written and started, shown, or taken away again."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forbear.server.cli.terminal import Failure, remark, say

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.server.service import Service


def act(home: Settings, *, show: bool, undo: bool, force: bool) -> None:
    """Carry `forbear install worker` out. Raises Failure."""
    service = of(home)
    if show:
        say(service.text.rstrip("\n"))
        remark(f"# goes into {service.file}; then:")
        for words in service.start:
            remark(f"# {shlex.join(words)}")
        remark(f"# {service.note}")
    elif undo:
        _take_away(service, force=force)
    else:
        set_up(home, force=force)


def of(home: Settings) -> Service:
    """The service of this platform."""
    from forbear.server.clients.program import command, is_usual
    from forbear.server.service import service

    return service(
        *(sys.platform, os.environ, Path.home(), command(), home.home), usual=is_usual(home)
    )


def set_up(home: Settings, *, force: bool = False) -> None:
    """Write the service and start it. Raises Failure."""
    from forbear.server.clients.files import File
    from forbear.server.clients.program import command, is_fleeting, needed
    from forbear.server.clients.splices import Unfit
    from forbear.server.service import MARK, variables

    service = of(home)
    if is_fleeting(command()):
        raise Failure(
            f"{command()[0]} is in a folder that is removed again. Install Forbear first."
        )
    try:
        there = File.of(service.file)
        if there.content is not None and MARK not in there.text and not force:
            raise Failure(
                f"{service.file} is there and was not written by this program. It was left as it "
                "is; --force replaces it and keeps a copy.",
                1,
            )
        kept = () if service.variables is None else (service.variables.parent,)
        for folder in (home.home, service.file.parent, *kept):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if there.content != service.text.encode():
            foreign = there.content is not None and MARK not in there.text
            if foreign:
                there.copied()
            there.write(service.text)
        say(f"{service.manager} has the worker now: {service.file}", "green")
        names = needed(home)
        if service.variables is not None:
            keys = File.of(service.variables)
            if keys.content is None:
                keys.write(variables(names))
            unset = [name for name in names if not _states(keys.text, name)]
            if unset:
                say(f"  keys     write {', '.join(unset)} into {service.variables}")
        elif names:
            say(f"  keys     {', '.join(names)}")
    except OSError as error:
        raise Failure(f"{error.filename} cannot be made ({error.strerror}).", 1) from error
    except Unfit as unfit:
        raise Failure(f"{service.file} {unfit}. It was left as it is.", 1) from unfit
    say(f"  note     {service.note}")
    say("  undo     forbear install worker --undo")
    wrong = _failed(service.start)
    if wrong is not None:
        raise Failure(
            f"It was written and not started: {wrong}. Start it with "
            + " and ".join(f"`{shlex.join(words)}`" for words in service.start)
            + ", or leave `forbear worker` running.",
            1,
        )


def _states(text: str, name: str) -> bool:
    return any(line.startswith(f"{name}=") and line != f"{name}=" for line in text.splitlines())


def _take_away(service: Service, *, force: bool) -> None:
    from forbear.server.clients.files import File
    from forbear.server.clients.splices import Unfit
    from forbear.server.service import MARK

    try:
        there = File.of(service.file)
        if there.content is None:
            say(f"{service.file} is not there. Nothing was changed.")
            return
        if MARK not in there.text and not force:
            raise Failure(
                f"{service.file} was not written by this program. Nothing was changed.", 1
            )
        wrong = _failed(service.stop)
        there.path.unlink()
        _failed(service.after)
        say(f"{service.manager} has the worker no longer; {service.file} was removed.")
        if service.variables is not None:
            keys = File.of(service.variables)
            if keys.content is not None and all(
                not line or line.startswith("#") for line in keys.text.splitlines()
            ):
                keys.path.unlink()
            elif keys.content is not None:
                say(f"{service.variables} has keys of yours and was left.")
    except OSError as error:
        raise Failure(f"{service.file} cannot be removed ({error.strerror}).", 1) from error
    except Unfit as unfit:
        raise Failure(f"{service.file} {unfit}. It was left as it is.", 1) from unfit
    if wrong is not None:
        remark(f"Whether a worker still runs is not known: {wrong}.")


def _failed(commands: tuple[tuple[str, ...], ...]) -> str | None:
    """Run commands of the manager up to the first that fails; what it said."""
    for words in commands:
        program = shutil.which(words[0])
        if program is None:
            return f"there is no {words[0]} here"
        try:
            done = subprocess.run(
                (program, *words[1:]), capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"{words[0]}: {error}"
        if done.returncode:
            said = (done.stderr or done.stdout).strip() or f"ended with {done.returncode}"
            return f"{shlex.join(words)}: {said}"
    return None
