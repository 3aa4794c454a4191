"""`audit prune`: old rows are deleted up to a signed checkpoint, and the rest stays verifiable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.acting import DryRun, Yes, be_sure, by
from forbear.server.cli.audit import moment, named, objection, with_store, write_export
from forbear.server.cli.home import settings, where
from forbear.server.cli.terminal import Failure, remark, say

if TYPE_CHECKING:
    from forbear.server.config import Settings
    from forbear.storage.pruning import Plan, Windows
    from forbear.storage.store import Store
    from forbear.storage.verifying import Head

_UNKNOWN = 30 * 86_400_000
"""How long an action is remembered whose contract is not there, ms."""


def register(group: typer.Typer) -> None:
    group.command()(prune)


def prune(
    before: Annotated[
        str, typer.Option(metavar="TIME", help="Older rows go: 90d (ago) or 2026-09-01 (UTC).")
    ],
    to: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Export the whole log there first."),
    ] = None,
    destroy_key: Annotated[
        bool,
        typer.Option("--destroy-key", help="Also delete the keys of epochs without a row left."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete old rows up to a signed checkpoint; the rest is verified from there.

    Rows of an operation that is not over, or that may still meet a repetition of itself, stay, and
    so does all after them.
    """
    from forbear.server.clock import SystemClock
    from forbear.storage import pruning

    home = settings()
    now = SystemClock().now().wall
    end = moment("--before", before, now)
    if to is not None and to.exists():
        raise Failure(f"{to} is there already; name a new file.")

    async def pruned(store: Store) -> None:
        wrong = await objection(home, store, "prune", {"before": before})
        if wrong is not None:
            raise Failure(wrong, 1)
        windows = _windows(home, store)
        head = _whole(home)
        plan = await store.write(partial(pruning.plan, before=end, now=now, windows=windows))
        for line in _planned(plan, before, destroy=destroy_key):
            say(line)
        if plan.start is None or dry_run:
            return
        if to is None and not yes:
            raise Failure(
                "These rows would be gone for good. Add --export FILE to keep them, or --yes."
            )
        be_sure(home, store.key, "Delete them?", "prune", "Nothing was deleted.", yes=yes)
        if to is not None:
            write_export(home, to)
            head = _whole(home, to)
        body = {**by(store.path), "exported": None if to is None else str(to.absolute())}
        done = await store.write(
            partial(
                pruning.prune,
                before=end,
                now=now,
                windows=windows,
                body=body,
                last=head.sequence,
                destroy_keys=destroy_key,
            )
        )
        await _overwritten(store)
        say(f"{done.rows} rows are deleted. `forbear audit verify` checks the rest.", "green")
        if to is not None:
            remark(f"What was deleted is in {to}: forbear audit verify {to}")

    with_store(pruned)


async def _overwritten(store: Store) -> None:
    from forbear.storage.errors import StoreUnavailable

    try:
        await store.forget_deleted()
    except StoreUnavailable as error:
        remark(f"{error}: what was deleted may stay in the file beside the store for a while.")


def _planned(plan: Plan, before: str, *, destroy: bool) -> Iterator[str]:
    if plan.start is None:
        yield f"Nothing older than {before} can be deleted."
    else:
        last, many = plan.start.sequence, plan.rows
        yield f"Rows {last - many + 1} to {last} go: {many} rows, up to a signed checkpoint."
    if plan.held is not None:
        yield f"Row {plan.held.sequence} and all after it stay: {plan.held.why}."
    if destroy:
        which = ", ".join(map(str, plan.epochs))
        yield (
            f"The keys of epochs without a row go too: {which}. Nobody can open what exports and "
            "backups have of them, unless the backup has the key."
            if plan.epochs
            else "No epoch is without a row, so no key goes: `forbear keys rotate epoch` begins "
            "another, and later prunes can end this one."
        )


def _whole(home: Settings, path: Path | None = None) -> Head:
    """The head of a log that is whole: nothing is deleted from one that is not."""
    from forbear.storage.verifying import read
    from forbear.storage.verifying import verify as follow

    with read(path or where(home), live=path is None) as evidence:
        report = follow(evidence)
    if report.broken is not None:
        raise Failure(f"{named(report)} Nothing is deleted from a broken log.", 1)
    return report.head


def _windows(home: Settings, store: Store) -> Windows:
    """For how long the actions of this home are remembered, as their contracts say."""
    from forbear.server.credentials import Credentials
    from forbear.server.providers import Contracts
    from forbear.storage.pruning import Windows

    contracts = Contracts(home.contracts, Credentials(), store.key).contracts()
    return Windows(
        {
            (name, action.name): (
                action.repeat_window,
                0 if action.idempotency is None else action.idempotency.window,
            )
            for name, contract in contracts.items()
            for action in (*contract.jobs.values(), *contract.calls.values())
        },
        (_UNKNOWN, _UNKNOWN),
    )
