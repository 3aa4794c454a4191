"""What a shell completes: ids, inbox numbers and options, read from the store and nothing else.

Completion never makes a home, never waits for a lock, and never says what went wrong: a shell would
show it in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from forbear.server.cli.home import is_new, opened, run, settings

if TYPE_CHECKING:
    from forbear.storage.store import Store

Found = list[tuple[str, str]]
"""Words with what they mean."""

_MOST = 50


def operations(incomplete: str) -> Found:
    """Ids of operations, active ones first, and numbers of the inbox."""

    async def find(store: Store) -> Found:
        found = await store.read.find(limit=_MOST)
        ids = [(op.id, f"{op.state}: {op.label or op.action}") for op in found]
        return [*ids, *await _numbers(store)]

    return _matching(find, incomplete)


def cases(incomplete: str) -> Found:
    """Numbers and groups of the inbox, and ids of operations that are over."""

    async def find(store: Store) -> Found:
        open_ones = await store.read.open_cases()
        groups = {one.group: str(one.reason) for one in open_ones if one.group is not None}
        return [*await _numbers(store), *groups.items()]

    return _matching(find, incomplete)


def options(context: typer.Context, incomplete: str) -> Found:
    """The options of the case that is named before."""
    name = str(context.params.get("name") or "")

    async def find(store: Store) -> Found:
        named = await store.read.case_by(name)
        offered = named[0].options if len(named) == 1 else ()
        return [(str(option["id"]), str(option["label"])) for option in offered]

    return _matching(find, incomplete)


async def _numbers(store: Store) -> Found:
    return [(str(one.number), str(one.reason)) for one in await store.read.open_cases()]


def _matching(find: Callable[[Store], Awaitable[Found]], incomplete: str) -> Found:
    async def found() -> Found:
        async with opened(home) as store:
            return await find(store)

    with suppress(Exception):
        home = settings()
        if not is_new(home):
            return [one for one in run(found) if one[0].startswith(incomplete)]
    return []
