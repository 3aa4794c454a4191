"""What an operator stops and lets go: pauses, scopes, processes, credentials, tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import is_new, opened, remark_if_nobody_sends, run, senders, settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, say, say_json
from forbear.storage.brakes import COPY

if TYPE_CHECKING:
    from forbear.storage.store import Store

credential = typer.Typer(help="Credentials by fingerprint, never by value.", no_args_is_help=True)

Target = Annotated[
    str, typer.Argument(metavar="PROVIDER|SCOPE|all", help="A provider, a scope, or everything.")
]


_scopes_app = typer.Typer(help="What is known of each shared limit.", invoke_without_command=True)


def register(app: typer.Typer) -> None:
    app.command()(pause)
    app.command()(resume)
    app.command()(ps)
    app.add_typer(_scopes_app, name="scopes")
    app.command(name="end-task")(end_task)
    app.add_typer(credential, name="credential")


def pause(target: Target = "all") -> None:
    """Stop every process from sending, durably; lookups and deadlines go on."""

    async def stop(store: Store) -> None:
        await _known(store, target)
        stopped = await store.write(partial(store.brakes.pause, target=target, by=_operator()))
        say(f"{target} is paused." if stopped else f"{target} was paused already.")
        say(f"forbear resume {target} lets it go on.")

    _with_store(stop)


def resume(target: Target = "all") -> None:
    """Undo a pause."""

    async def go(store: Store) -> None:
        if target == COPY:
            raise Failure("A copy is no pause. `forbear adopt` makes this store the living one.")
        gone = await store.write(partial(store.brakes.resume, target=target, by=_operator()))
        if not gone:
            paused = ", ".join(row["target"] for row in await store.read.pauses()) or "nothing"
            raise Failure(f"{target} is not paused; paused is: {paused}.", 1)
        say(f"{target} goes on.")
        await remark_if_nobody_sends(store)

    _with_store(go)


def ps(as_json: AsJson = False) -> None:
    """List the living processes that can send, and what is paused."""
    from forbear.tools.times import rfc3339

    home = settings()
    if is_new(home):
        say_json({"processes": [], "paused": []}) if as_json else say("Nothing runs here yet.")
        return

    async def listed(store: Store) -> None:
        living, paused = await senders(store), await store.read.pauses()
        if as_json:
            processes = [
                {"role": one.role, "pid": one.pid, "started_at": rfc3339(one.started_at)}
                for one in living
            ]
            stopped = [
                {"target": row["target"], "since": rfc3339(row["since"]), "by": row["by"]}
                for row in paused
            ]
            say_json({"processes": processes, "paused": stopped})
            return
        for one in living:
            since = rfc3339(one.started_at)
            say(f"{one.role:<7} process {one.pid:<8} since {since}")
        for row in paused:
            if row["target"] == COPY:
                say(f"copy    {row['by']['why']}: only lookups are sent; see `forbear adopt`")
                continue
            by = row["by"].get("operator", "somebody")
            say(f"paused  {row['target']}, since {rfc3339(row['since'])} by {by}")
        await remark_if_nobody_sends(store)

    _with_store(listed)


@_scopes_app.callback()
def scopes(context: typer.Context, as_json: AsJson = False) -> None:
    """List what is known of each shared limit: rate, quota, queue, outages."""
    if context.invoked_subcommand is not None:
        return
    home = settings()
    if is_new(home):
        say_json({"scopes": []}) if as_json else say("No scope was used yet.")
        return

    async def listed(store: Store) -> None:
        from forbear.server.clock import SystemClock
        from forbear.tools.scopes import in_words, known

        found = await known(store, SystemClock().now().wall)
        if as_json:
            say_json({"scopes": found})
            return
        if not found:
            say("No scope was used yet.")
        for one in found:
            say(f"{one['scope']:<40} {in_words(one)}")

    _with_store(listed)


@_scopes_app.command()
def reset(
    scope: Annotated[str, typer.Argument(help="Its name in `forbear scopes`.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit trail.")],
) -> None:
    """Let a scope forget its 429s, quotas and outages; the published rate still holds."""

    async def forget(store: Store) -> None:
        by = {**_operator(), "reason": reason}
        if not await store.write(partial(store.brakes.reset_scope, key=scope, by=by)):
            known = ", ".join(row["key"] for row in await store.read.scopes()) or "none"
            raise Failure(f"There is no scope {scope!r}; there is: {known}.")
        say(f"{scope} is open; what waits leaves one after the other.")
        await remark_if_nobody_sends(store)

    _with_store(forget)


def end_task(task: Annotated[str, typer.Argument(help="The agent's name for its task.")]) -> None:
    """Drop what has not been sent of a task; it takes no new work."""

    async def end(store: Store) -> None:
        ledger = store.ledger
        ended = await store.write(
            partial(ledger.end_task, principal="local", task=task, why="ended by an operator")
        )
        say(f"Task {task} takes no new work.")
        for op in ended:
            say(f"{op.id} is {op.state}")

    _with_store(end)


@credential.command()
def accept(provider: Annotated[str, typer.Argument(help="As its contract names it.")]) -> None:
    """Let the credential of this environment be used, though another one was used before."""
    from forbear.server.app import running

    async def accepted() -> None:
        async with running(settings(), role="cli", worker=False) as app:
            contract = app.contracts.contracts().get(provider)
            if contract is None:
                known = ", ".join(sorted(app.contracts.contracts())) or "none"
                raise Failure(f"There is no contract of {provider!r}; there is: {known}.")
            found = app.contracts.fingerprint(contract)
            if found is None:
                raise Failure(f"There is no key for {provider} here: forbear doctor says why.", 3)
            account = contract.account.get("id", "default")
            write = partial(
                app.store.brakes.accept_credential,
                provider=provider,
                account=account,
                fingerprint=found,
                by=_operator(),
            )
            await app.store.write(write)
            say(f"The key of {provider} in this environment is accepted for account {account}.")

    run(accepted)


async def _known(store: Store, target: str) -> None:
    """Refuse a target that names nothing: a pause with a slip in it would stop nobody."""
    from forbear.server.credentials import Credentials
    from forbear.server.providers import Contracts

    if target == "all":
        return
    names = set(Contracts(settings().contracts, Credentials(), store.key).contracts())
    keys = {row["key"] for row in await store.read.scopes()}
    if target not in names | keys:
        known = ", ".join(["all", *sorted(names | keys)])
        raise Failure(f"Nothing is called {target!r}. There is: {known}.")


def _operator() -> dict[str, object]:
    from forbear.storage.files import user

    return {"operator": user(), "channel": "terminal"}


def _with_store(command: Any) -> None:
    async def whole() -> None:
        async with opened(settings()) as store:
            await command(store)

    run(whole)
