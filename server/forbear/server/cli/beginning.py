"""What `init` does: the home with its commented files, and what a person wants right away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forbear.server.cli import adding, installing, servicing
from forbear.server.cli.first import FIRST_CONTRACT, FIRST_SETTINGS
from forbear.server.cli.home import FIRST
from forbear.server.cli.terminal import Failure, confirmed, remark, say, typed

if TYPE_CHECKING:
    from forbear.server.config import Settings

_NOTHING = "Nothing was changed."
_COMMAND = 37
"""Columns of a command under `Next:`; what it does stands beside a shorter one."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to do beside making the home."""

    contracts: tuple[str, ...] = ()
    """`NAME`, or `NAME,KEY=VALUE,…`."""
    clients: tuple[str, ...] = ()
    worker: bool = False
    ask: bool = False
    """Whether values of an account that are missing are asked for."""


def asked(home: Settings) -> Wishes:
    """What a person at the terminal wants."""
    from forbear.server.library import library, switched_on

    used = switched_on(home.contracts)
    offered = [one for one in library() if one.name not in used]
    say(f"Forbear's home is {home.home}. Enter alone answers no; nothing there is changed.")
    say()
    for one in offered:
        say(f"  {one.name:<14} {one.title}")
    contracts = _words(
        "Which of these providers do you use (names with spaces between)? ", adding.known
    )
    here = [one for one in installing.registrations(home) if one["state"] == "not registered"]
    clients: Sequence[str] = ()
    if here:
        named = ", ".join(one["client"] for one in here)
        clients = _words(f"Register Forbear in a client ({named})? ", installing.named)
    worker = confirmed("Let the worker run in the background, as a service of yours?", _NOTHING)
    say()
    return Wishes(tuple(contracts), tuple(clients), worker, ask=True)


def _words(question: str, known: Callable[[str], object]) -> list[str]:
    """Names that are known. One that is not is told, and the question comes again."""
    while True:
        names = (typed(question, _NOTHING) or "").replace(",", " ").split()
        try:
            for name in names:
                known(name)
        except Failure as slip:
            remark(str(slip))
        else:
            return names


def begin(home: Settings, wishes: Wishes) -> None:
    """Make the home and carry the wishes out. Each is tried, whatever comes of the others.

    Raises Failure, at the end, where one could not be.
    """
    try:
        home.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        home.contracts.mkdir(exist_ok=True, mode=0o700)
        say(f"Home: {home.home}")
        say(f"Contracts: {home.contracts}")
        first = home.contracts / FIRST
        _lay(first, FIRST_CONTRACT, "A first contract")
        _lay(home.home / "config.toml", FIRST_SETTINGS, "Settings, all of them remarks")
    except OSError as error:
        raise Failure(
            f"{home.home} cannot be written ({error.strerror}). Set FORBEAR_HOME to a folder of "
            "yours.",
            3,
        ) from error
    failed = list(_carried_out(home, wishes))
    _tell_next(home, first, wishes)
    if failed:
        for wrong in failed:
            remark(str(wrong))
        raise Failure("The rest was done.", max(wrong.code for wrong in failed))


def _lay(file: Path, text: str, what: str) -> None:
    """A file, if it is not there."""
    try:
        with file.open("x", encoding="utf-8") as out:
            file.chmod(0o600)
            out.write(text)
        say(f"{what}: {file}")
    except FileExistsError:
        say(f"{what}: {file} (it was already there and was not changed)")


def _carried_out(home: Settings, wishes: Wishes) -> Iterator[Failure]:
    """What could not be done."""

    def switched_on(stated: str) -> None:
        name, *values = stated.split(",")
        there = adding.there(home, name, values)
        told = None if there else adding.added(home, name, values, ask=wishes.ask)
        say()
        if told is None:
            say(f"{name}: {there} (it was already there and was not changed)")
        else:
            adding.show(told)

    for step in (
        *(partial(switched_on, stated) for stated in wishes.contracts),
        *(partial(_registered, home, name) for name in wishes.clients),
        *((partial(_served, home),) if wishes.worker else ()),
    ):
        try:
            step()
        except Failure as failure:
            yield failure


def _registered(home: Settings, name: str) -> None:
    say()
    installing.put_in(installing.named(name), home, None)


def _served(home: Settings) -> None:
    say()
    servicing.set_up(home)


def _tell_next(home: Settings, first: Path, wishes: Wishes) -> None:
    mine = any(home.contracts.glob("*.toml"))
    steps: list[tuple[str, str]] = []
    if not mine:
        steps += [
            ("forbear contract add", "lists those that come with it, or:"),
            (f"cp {first} {home.contracts / 'NAME.toml'}", "and write what your API says"),
        ]
    what = "PROVIDER.ACTION" if mine else "NAME.export dataset=sales"
    provider = "PROVIDER" if mine else "NAME"
    steps += [
        ("forbear contract check", "mistakes, and what is left open"),
        (f"forbear contract simulate {provider}", "plays the provider here; needs no key"),
        (f"forbear try {what}", "one job from here; needs the key"),
    ]
    if not wishes.clients:
        steps.append(("forbear install", "registers it in your client"))
    say()
    say("Next:")
    for command, why in steps:
        fits = len(command) <= _COMMAND
        say(f"  {command:<{_COMMAND}}  {why}" if fits else f"  {command}\n{'':{_COMMAND + 4}}{why}")
