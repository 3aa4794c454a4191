"""The home of this user: its settings, its store, and finding things in it by short names."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from forbear.server.cli.terminal import Failure, remark
from forbear.server.config import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from forbear.rules.model import Case, Operation
    from forbear.storage.queries import Process
    from forbear.storage.store import Store

T = TypeVar("T")

NOBODY = (
    "No process is alive that could send. Start one with `forbear worker`, or open your MCP client."
)


FIRST = "first.sample"
"""The commented contract that `forbear init` lays beside the others."""


def settings() -> Settings:
    """The settings of this command.

    Raises Failure (3) where the home is no folder.
    """
    found = Settings.load(os.environ)
    if found.home.exists() and not found.home.is_dir():
        raise Failure(f"FORBEAR_HOME: {found.home} is a file. Set it to a folder of yours.", 3)
    return found


def how_to_begin(home: Settings) -> str:
    """The command that brings a first contract."""
    first = home.contracts / FIRST
    return f"cp {first} {home.contracts / 'NAME.toml'}" if first.exists() else "forbear init"


def where(home: Settings) -> Path | str:
    """Where the store is: its file, or the address of its database."""
    return home.home / "forbear.db" if home.database is None else home.database


def is_new(home: Settings) -> bool:
    """Whether nothing was ever stored here. Of a database only its server can say that."""
    return home.database is None and not (home.home / "forbear.db").exists()


@asynccontextmanager
async def opened(home: Settings) -> AsyncIterator[Store]:
    """The store for reading and deciding, without anything that sends."""
    from forbear.server.app import open_store

    store = open_store(home)
    try:
        yield store
    finally:
        await store.close()


def run(command: Callable[[], Awaitable[T]]) -> T:
    """Run an asynchronous command to its end."""
    import asyncio

    async def whole() -> T:
        return await command()

    return asyncio.run(whole())


async def operation(store: Store, name: str) -> Operation:
    """The operation with this id, of this case in the inbox, or the only one that begins so."""
    if name.startswith("grp_"):
        raise Failure(f"{name} is a group of cases: `forbear inbox --all` lists each of it.")
    named = name.startswith("esc_")
    if named or (name.isdecimal() and await store.read.case_by(name)):
        stopped = await store.read.operation((await case(store, name)).operation_id)
        if stopped is not None:
            return stopped
    found = await store.read.by_prefix(name)
    exact = [op for op in found if op.id == name]
    return _only(exact or found, name, "operation", "forbear ls", lambda op: op.id)


async def case(store: Store, name: str) -> Case:
    """The case with this inbox number, id, or beginning of an id."""
    found = await store.read.case_by(name)
    return _only(found, name, "case", "forbear inbox", lambda one: one.id)


async def group(store: Store, name: str) -> str:
    """The group of open cases with this id, or whose id begins so."""
    open_ones = await store.read.open_cases()
    found = {one.group for one in open_ones if one.group and one.group.startswith(name)}
    return _only(sorted(found), name, "open group", "forbear inbox", lambda one: one)


def _only(found: Sequence[T], name: str, what: str, lister: str, id_of: Callable[[T], str]) -> T:
    match found:
        case []:
            raise Failure(f"There is no {what} {name!r}. `{lister}` lists them.")
        case [only]:
            return only
        case _:
            ids = ", ".join(id_of(one) for one in found[:4])
            raise Failure(f"{name!r} is the beginning of several {what}s: {ids}. Write more of it.")


async def senders(store: Store) -> list[Process]:
    """The living processes that send when something is due."""
    now = store.clock.now().wall
    return [
        process
        for process in await store.read.processes()
        if store.liveness.answers(process.owner, now - process.seen_at)
    ]


async def remark_if_nobody_sends(store: Store) -> None:
    if not await senders(store):
        remark(NOBODY)
