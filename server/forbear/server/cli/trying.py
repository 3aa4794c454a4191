"""`try`: carry one action out from a terminal, watch it, and fetch its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import run, settings
from forbear.server.cli.reading import follow, result_lines
from forbear.server.cli.terminal import Failure, at_a_terminal, confirmed, remark, say, say_json

if TYPE_CHECKING:
    from forbear.rules.model import Operation, Refusal
    from forbear.server.app import App
    from forbear.server.cli.wanted import Wanted
    from forbear.tools.record import Record


def register(app: typer.Typer) -> None:
    app.command("try")(attempt)


def attempt(
    action: Annotated[str, typer.Argument(metavar="PROVIDER.ACTION")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="key=text, or key:=JSON for other types."),
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    task: Annotated[str | None, typer.Option(help="The task it belongs to.")] = None,
    key: Annotated[str | None, typer.Option(help="An idempotency key of your own.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Once more, although the same was done before.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The operation as JSON.")] = False,
) -> None:
    """Start a job or make a call as an agent would, tell its story, and show its result.

    Exit 0 if it succeeded, 1 if it ended otherwise, needs a decision or was done before.
    """
    provider, dot, name = action.partition(".")
    if not dot or not provider or not name:
        raise Failure(f"{action!r} is not PROVIDER.ACTION, such as exp.export.")
    given = pairs(arguments or [])
    home = settings()
    started: list[str] = []

    async def tried() -> bool:
        from forbear.server.app import running
        from forbear.server.cli.wanted import Wanted

        wanted = Wanted(provider, name, given, purpose, task, key)
        async with running(home, role="try", worker=True) as app:
            record = await _asked(app, wanted, again=again, as_json=as_json)
            op = record.operation
            started.append(op.id)
            joined = ", which was asked for already" if record.joined else ""
            remark(f"{op.id}{joined}; Ctrl-C lets it go on")
            if await follow(app.store, op, told=not as_json):
                return await _bring(app, op, as_json=as_json)
            if as_json:
                await _show_json(app, op)
            return False

    try:
        succeeded = run(tried)
    except KeyboardInterrupt:
        if not started:
            raise
        remark(f"{started[0]} is stored and not lost. `forbear worker` goes on with it.")
        raise typer.Exit(130) from None
    if not succeeded:
        raise typer.Exit(1)


def pairs(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=text` and `key:=JSON` as arguments of an action, each named once."""
    given: dict[str, Any] = {}
    for pair in arguments:
        name, equals, text = pair.partition("=")
        is_json, name = name.endswith(":"), name.removesuffix(":")
        if not equals or not name:
            raise Failure(f"{pair!r} is not KEY=VALUE; write dataset=sales, or rows:=5 for JSON.")
        if name in given:
            raise Failure(f"{name} is given twice; write it once, or as a list: {name}:='[…]'.")
        try:
            given[name] = json.loads(text) if is_json else text
        except (ValueError, RecursionError) as error:
            raise Failure(
                f"{pair!r}: after := must come JSON ({error}); write text as {name}=…"
            ) from error
    return given


# --- the same once more ---------------------------------------------------------------------


async def _asked(app: App, wanted: Wanted, *, again: bool, as_json: bool) -> Record:
    """The operation that is asked for; a repetition only if the contract or a person allows it."""
    from forbear.rules.model import Refusal
    from forbear.server.cli.wanted import in_words

    record = await wanted.once(app)
    earlier = await _earlier(app, record, again=again)
    if earlier is not None:
        await _allow_repetition(app, wanted, earlier, again=again, as_json=as_json)
        record = await wanted.again(app)
    if isinstance(record, Refusal):
        raise in_words(record, wanted.provider, app.contracts)
    return record


async def _earlier(app: App, record: Record | Refusal, *, again: bool) -> Operation | None:
    """The operation that would be repeated, where a repetition is in question."""
    from forbear.rules.model import Code, Refusal

    if not isinstance(record, Refusal):
        return record.operation if again and record.joined and record.operation.final else None
    if record.code is not Code.POSSIBLE_DUPLICATE or record.operation_id is None:
        return None
    return await app.store.read.operation(record.operation_id)


async def _allow_repetition(
    app: App, wanted: Wanted, known: Operation, *, again: bool, as_json: bool
) -> None:
    """Return if the same may be done again; else show what came of it, and say how to go on."""
    from forbear.server.cli.wanted import Earlier

    earlier = Earlier.of(known, app.clock.now().wall)
    if earlier.repeatable:
        if again and wanted.contract_allows(app):
            return
        if at_a_terminal() and confirmed(f"{earlier.told} Do it again?", "Nothing was sent now."):
            return
    if earlier.succeeded:
        await _bring(app, known, as_json=as_json)
    raise Failure(f"{earlier.told} Nothing was sent now. {earlier.next_step}", 1)


# --- what came of it ------------------------------------------------------------------------


async def _bring(app: App, op: Operation, *, as_json: bool) -> bool:
    """Show the result of an action that succeeded. False if there should be one and is none."""
    from forbear.rules.model import Refusal
    from forbear.server.cli.wanted import in_words

    current = await app.store.read.operation(op.id) or op
    fetched = await _fetched(app, current, told=not as_json)
    if isinstance(fetched, Refusal):
        if as_json:
            await _show_json(app, current)
        remark(f"{op.id} succeeded, but its result cannot be fetched.")
        raise in_words(fetched, op.provider, app.contracts)
    if fetched is None and _lacks_address(app, current):
        if as_json:
            await _show_json(app, current)
        remark(f"{op.id} succeeded, but its result cannot be fetched.")
        raise Failure(
            f"No answer had the address that its contract names. `forbear show {op.id} --raw "
            f"--reason …` has the answers: compare them with the contract of {op.provider}, "
            "`forbear contract check FILE --sample ANSWER.json`.",
            1,
        )
    shown = fetched or current
    if as_json:
        await _show_json(app, shown)
    else:
        result_lines(shown)
    return fetched is None or fetched.may_proceed


async def _fetched(app: App, op: Operation, *, told: bool) -> Operation | Refusal | None:
    """The result operation of a job that has one, followed to its end."""
    from forbear.rules.model import Refusal
    from forbear.tools.caller import Caller

    record = await app.desk.record(op)
    if "fetch_result" not in record.allowed_actions:
        return None
    caller = Caller(op.principal, "terminal", app.store.liveness.owner)
    fetched = await app.desk.fetch_result(
        op.id, name=None, offset=None, wait_seconds=0, caller=caller, report=None
    )
    if isinstance(fetched, Refusal):
        return fetched
    if told:
        say()
    await follow(app.store, fetched.operation, told=told)
    return await app.store.read.operation(fetched.operation.id) or fetched.operation


def _lacks_address(app: App, op: Operation) -> bool:
    """Whether the contract has a result for this end, and no answer had its address."""
    from forbear.rules.contract import Job
    from forbear.rules.model import Kind

    holding = app.contracts.holding(op.provider, op.action)
    action = None if holding is None else holding.action
    if not isinstance(action, Job) or op.kind is not Kind.JOB:
        return False
    return any(str(op.state) in one.when for one in action.results.values())


async def _show_json(app: App, op: Operation) -> None:
    from forbear.tools.answers import full

    current = await app.store.read.operation(op.id) or op
    say_json(full(await app.desk.record(current, story_told=True)))
