"""`try`: submit one job from a terminal, watch it, and fetch its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import run, settings
from forbear.server.cli.reading import follow, result_lines
from forbear.server.cli.terminal import Failure, remark, say, say_json

if TYPE_CHECKING:
    from forbear.rules.model import Operation, Refusal
    from forbear.server.app import App


def register(app: typer.Typer) -> None:
    app.command("try")(attempt)


def attempt(
    action: Annotated[str, typer.Argument(metavar="PROVIDER.ACTION")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="key=text, or key:=JSON for other types."),
    ] = None,
    purpose: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    task: Annotated[str | None, typer.Option(help="The task it belongs to.")] = None,
    key: Annotated[str | None, typer.Option(help="An idempotency key of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The operation as JSON.")] = False,
) -> None:
    """Submit a job as an agent would, tell its story as it goes, and fetch its result.

    Exit 0 if it succeeded, 1 if it ended otherwise or needs a decision.
    """
    provider, dot, job = action.partition(".")
    if not dot or not provider or not job:
        raise Failure(f"{action!r} is not PROVIDER.ACTION, such as exp.export.")
    given = pairs(arguments or [])
    home = settings()
    started: list[str] = []

    async def tried() -> bool:
        from forbear.rules.model import Priority, Refusal
        from forbear.server.app import running

        async with running(home, role="try", worker=True) as app:
            record = await app.desk.submit_job(
                provider=provider,
                job=job,
                arguments=given,
                purpose=purpose,
                task=task,
                idempotency_key=key,
                depends_on=(),
                deadline_seconds=None,
                max_status_requests=None,
                useful_for_seconds=None,
                priority=Priority.INTERACTIVE,
                wait_seconds=0,
                client="terminal",
                report=None,
            )
            if isinstance(record, Refusal):
                raise _refused(record)
            op = record.operation
            started.append(op.id)
            remark(f"{op.id}{', which ran already' if record.joined else ''}; Ctrl-C lets it go on")
            succeeded = await follow(app.store, op, told=not as_json)
            fetched = await _fetch(app, op, told=not as_json) if succeeded else None
            if as_json:
                await _show_json(app, fetched or op)
            return succeeded and (fetched is None or fetched.may_proceed)

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
    """`key=text` and `key:=JSON` as arguments of a job."""
    given: dict[str, Any] = {}
    for pair in arguments:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip(":"):
            raise Failure(f"{pair!r} is not KEY=VALUE; write dataset=sales, or rows:=5 for JSON.")
        if not name.endswith(":"):
            given[name] = text
            continue
        try:
            given[name[:-1]] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Failure(f"{pair!r}: after := must come JSON ({error}).") from error
    return given


def _refused(refusal: Refusal) -> Failure:
    from forbear.rules.model import Code

    told = f"{refusal.message} {refusal.next_step}"
    match refusal.code:
        case Code.STORE_UNAVAILABLE:
            return Failure(told, 3)
        case Code.INVALID_ARGUMENTS:
            return Failure(
                f"{refusal.message}\nWrite key=text, and key:=JSON for numbers, true, false, "
                "lists and objects."
            )
        case Code.UNKNOWN_ACTION | Code.CONTRACT_ERROR:
            return Failure(f"{refusal.message} `forbear contract list` shows what there is.")
        case Code.CREDENTIAL_MISSING:
            return Failure(f"{refusal.message} `forbear doctor` names it.")
        case _:
            return Failure(told, 1)


async def _fetch(app: App, op: Operation, *, told: bool) -> Operation | None:
    """The result operation of a job that has one, followed to its end."""
    from forbear.rules.model import Refusal

    record = await app.desk.record(await app.store.read.operation(op.id) or op)
    if "fetch_result" not in record.allowed_actions:
        return None
    fetched = await app.desk.fetch_result(
        op.id, name=None, offset=None, wait_seconds=0, client="terminal", report=None
    )
    if isinstance(fetched, Refusal):
        remark(f"{fetched.message} {fetched.next_step}")
        return None
    if told:
        say()
    await follow(app.store, fetched.operation, told=told)
    done = await app.store.read.operation(fetched.operation.id) or fetched.operation
    if told:
        result_lines(done)
    return done


async def _show_json(app: App, op: Operation) -> None:
    from forbear.tools.answers import full

    current = await app.store.read.operation(op.id) or op
    say_json(full(await app.desk.record(current, story_told=True)))
