"""`adopt`: makes a store that was restored or copied the living one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from forbear.server.cli.acting import Yes, be_sure, by
from forbear.server.cli.home import is_new, opened, remark_if_nobody_sends, run, settings
from forbear.server.cli.terminal import Failure, say

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.storage.store import Store


def register(app: typer.Typer) -> None:
    app.command()(adopt)


def adopt(yes: Yes = False) -> None:
    """Let a restored or copied store send again.

    Such a store sends nothing but lookups, because the one that it was copied from may have gone on
    since. Stop that one for good first: two that go on with the same operations send twice.
    """
    home = settings()
    if is_new(home):
        raise Failure(f"Nothing was ever stored in {home.home}.", 1)
    run(lambda: _adopted(home, yes=yes))


async def _adopted(home: Settings, *, yes: bool) -> None:
    from forbear.storage.brakes import COPY

    async with opened(home) as store:
        why = next(
            (one["by"]["why"] for one in await store.read.pauses() if one["target"] == COPY), None
        )
        # On a server the home is not what was copied.
        here = home.home if home.database is None else store.place
        kind = "home" if home.database is None else "database"
        if why is None:
            say(f"{here} is no copy: it is the living {kind} already.")
            return
        say(f"{here} is held as a copy: {why}.")
        say(await _in_doubt(store))
        say(f"What the other {kind} accepted or sent since is not known here.")
        question = f"Has the {kind} that it was copied from stopped for good?"
        be_sure(home, store.key, question, "adopt", "Nothing changed.", yes=yes)
        await store.adopt(by(store.path))
        say(f"{here} is the living {kind}; what waits goes on.", "green")
        await remark_if_nobody_sends(store)


async def _in_doubt(store: Store) -> str:
    unclear = await store.read.find(state="unclear", limit=1_000)
    asked = await store.read.open_cases()
    return (
        f"Unclear writes: {len(unclear)}; they are looked up, sent again under their own key, or "
        f"asked about. Open cases: {len(asked)} (`forbear inbox`)."
    )
