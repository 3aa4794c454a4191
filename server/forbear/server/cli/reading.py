"""`ls`, `show`, `why` and `wait`: what there is, its story, and why it does not move."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli import completing
from forbear.server.cli.home import (
    NOBODY,
    is_new,
    opened,
    operation,
    remark_if_nobody_sends,
    run,
    settings,
)
from forbear.server.cli.terminal import (
    Failure,
    at_a_terminal,
    remark,
    say,
    say_json,
    style_of,
)

if TYPE_CHECKING:
    from forbear.rules.model import Operation
    from forbear.server.app import App
    from forbear.storage.store import Store

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="OP|CASE|NUMBER",
        help="An operation's or a case's id, how it begins, or a number of the inbox.",
        autocompletion=completing.operations,
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(ls)
    app.command()(show)
    app.command()(why)
    app.command()(wait)


# --- ls -------------------------------------------------------------------------------------


def ls(
    state: Annotated[str | None, typer.Option(help="Only this state.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only this provider.")] = None,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List operations, active ones first."""
    from forbear.rules.model import State

    if state is not None and state not in set(State):
        raise Failure(f"There is no state {state!r}; there are {', '.join(State)}.")
    home = settings()
    if is_new(home):
        say_json({"operations": []}) if as_json else say("No operations yet.")
        remark(NOBODY)
        return

    async def listed() -> None:
        async with opened(home) as store:
            found = await store.read.find(
                state=state, provider=provider, task=task, limit=limit + 1
            )
            if as_json:
                shown = [await _in_short(store, op) for op in found[:limit]]
                say_json({"operations": shown})
            else:
                _table(found[:limit])
                if len(found) > limit:
                    say(f"More follow: forbear ls --limit {limit * 5}")
            await remark_if_nobody_sends(store)

    run(listed)


async def _in_short(store: Store, op: Operation) -> dict[str, Any]:
    from forbear.server.clock import SystemClock
    from forbear.tools.answers import short
    from forbear.tools.record import Record

    case = await store.read.open_case(op.id)
    about = {"provider": op.provider, "action": op.action, "label": op.label}
    return short(Record(op, SystemClock().now().wall, case=case)) | about


def _table(found: list[Operation]) -> None:
    from forbear.server.clock import SystemClock
    from forbear.tools.times import clock_time
    from forbear.tools.untrusted import clip

    if not found:
        say("No operations.")
        return
    now = SystemClock().now().wall
    for op in found:
        planned = f"next {clock_time(op.next_at, now)}" if op.next_at is not None else ""
        what = clip(op.label or f"{op.provider}.{op.action}", 40)
        state = f"{op.state}{f', {op.waiting_for}' if op.waiting_for is not None else ''}"
        line = f"{op.id}  {state:<20} {what:<40}  {planned}".rstrip()
        say(line, style_of(str(op.state)))


# --- show -----------------------------------------------------------------------------------


def show(
    name: Name,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Requests and answers word for word; needs --reason."),
    ] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why you look; kept in the audit trail.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell the whole story of one operation, with its case and options if it waits for you."""
    home = settings()
    why_raw = (reason or "").strip()
    if raw and not why_raw:
        raise Failure("Looking at raw bodies is recorded: add --reason TEXT to say why you look.")
    if reason is not None and not raw:
        raise Failure("--reason belongs to --raw; leave it out.")

    async def shown() -> None:
        from forbear.server.app import running

        async with running(home, role="cli", worker=False) as app:
            op = await operation(app.store, name)
            if raw:
                await _show_raw(app, op, why_raw, as_json=as_json)
                return
            if as_json:
                await _show_json(app, op)
            else:
                await _show(app, op)
            await remark_if_nobody_sends(app.store)

    run(shown)


async def _show_raw(app: App, op: Operation, reason: str, *, as_json: bool) -> None:
    from forbear.server.cli.plan import raw_json, show_raw
    from forbear.server.operator import signature

    channel = "terminal" if at_a_terminal() else "command line"
    found = await app.office.raw(op, reason, signature(app.store.path, channel))
    if as_json:
        say_json(raw_json(op, found))
    else:
        show_raw(op, found)
    remark("That you looked, and why, is in the audit trail.")


async def _show_json(app: App, op: Operation) -> None:
    from forbear.tools.answers import full

    told = full(await app.desk.record(op, story_told=True))
    children = await app.store.read.children(op.id)
    told["children"] = [full(await app.desk.record(child, story_told=True)) for child in children]
    case = await app.store.read.open_case(op.id)
    if case is not None and told["escalation"] is not None:
        told["escalation"]["number"] = case.number
    say_json(told)


async def _show(app: App, op: Operation) -> None:
    from forbear.rules.escalations import may_be_resubmitted
    from forbear.server.cli.plan import facts, show_case
    from forbear.tools.texts import next_step

    record = await app.desk.record(op, story_told=True)
    request = await app.store.read.request_of(op.id)
    headers, _ = await app.store.read.last_answer(op.id) or ([], b"")
    for line in [*_head(op), *facts(op, request, headers)]:
        say(line)
    say(f"For the agent: {next_step(record)}")
    say()
    _tell(record.timeline, record.receipt)
    for child in await app.store.read.children(op.id):
        told = await app.desk.record(child, story_told=True)
        say()
        say(f"{child.kind} {child.id} · {child.state}")
        _tell(told.timeline, told.receipt)
        result_lines(child)
    result_lines(op)
    if record.case is not None:
        say()
        show_case(record.case, op, record.as_of)
    elif may_be_resubmitted(op):
        say(f"To have it done anew on purpose: forbear decide {op.id} resubmit")


def _tell(timeline: tuple[str, ...], receipt: str | None) -> None:
    for line in timeline:
        say(line, style_of(line))
    if receipt is not None:
        say(receipt, "dim")


def result_lines(op: Operation) -> None:
    """The result of an operation, if it has one of its own."""
    import json

    result = op.result or {}
    if "inline" in result:
        inline = result["inline"]
        text = inline if isinstance(inline, str) else json.dumps(inline, ensure_ascii=False)
        say(f"result: {text}")
    elif "file" in result:
        say(f"result: {result.get('bytes')} bytes in {result['file']}")


def _head(op: Operation) -> list[str]:
    from forbear.tools.times import clock_time, rfc3339

    name = op.label or f"{op.provider}.{op.action}"
    waiting = f", {op.waiting_for}" if op.waiting_for is not None else ""
    lines = [
        f"{name} · {op.id} · {op.state}{waiting}",
        f"{op.provider}.{op.action} ({op.kind}), account {op.account}, asked for "
        f"{rfc3339(op.created_at)}"
        + (f', for "{op.purpose}" (agent\'s words)' if op.purpose else ""),
    ]
    if op.provider_job is not None:
        state = f", last state {op.provider_state}" if op.provider_state is not None else ""
        lines.append(f"provider job {op.provider_job}{state}")
    if not op.final and op.approve_by is None:
        times = [f"deadline {clock_time(op.deadline_at, op.updated_at)}"]
        if op.next_at is not None and op.lease_owner is None:
            source = f" from {op.delay_source}" if op.delay_source is not None else ""
            times.append(f"next check {clock_time(op.next_at, op.updated_at)}{source}")
        lines.append(" · ".join(times))
    budgets = {
        "status requests": op.status_requests,
        "failures": op.transport_failures,
        "rate limits": op.rate_limited,
        "attempts": op.attempts,
    }
    lines.append(
        " · ".join(f"{what} {one.used} of {one.max}" for what, one in budgets.items() if one.max)
    )
    return lines


# --- why ------------------------------------------------------------------------------------


def why(name: Name, as_json: AsJson = False) -> None:
    """Say in one paragraph why an operation is not moving."""
    home = settings()

    async def said() -> None:
        from forbear.server.cli.reasons import reason_of
        from forbear.server.credentials import Credentials
        from forbear.server.providers import Contracts

        async with opened(home) as store:
            op = await operation(store, name)
            contracts = Contracts(home.contracts, Credentials(), store.key)
            told = await reason_of(store, op, contracts)
            if as_json:
                say_json({"operation_id": op.id, "state": str(op.state), "why": told})
            else:
                say(told)
            if NOBODY not in told:
                await remark_if_nobody_sends(store)

    run(said)


# --- wait -----------------------------------------------------------------------------------


def wait(
    name: Name,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up waiting after this.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell the story as it goes, until the operation ends or needs a person.

    Exit 0 if it succeeded, 1 if it ended otherwise, needs a decision or did not end in time.
    """
    home = settings()

    async def waited() -> bool:
        async with opened(home) as store:
            op = await operation(store, name)
            await remark_if_nobody_sends(store)
            return await follow(store, op, timeout=timeout, told=not as_json, as_json=as_json)

    if not run(waited):
        raise typer.Exit(1)


async def follow(
    store: Store,
    op: Operation,
    *,
    timeout: float | None = None,
    told: bool = True,
    as_json: bool = False,
) -> bool:
    """Print the story of an operation as it grows, until it rests. True if it succeeded."""
    from forbear.rules.model import State
    from forbear.server.clock import SystemClock
    from forbear.tools import story

    clock = SystemClock()
    end = None if timeout is None else clock.now().boot + round(timeout * 1_000)
    shown = 0
    while True:
        current = await store.read.operation(op.id) or op
        lines = story.lines(await store.read.events_of(op.id))
        # A request that is out is told once its outcome is known, as one line.
        settled = list(takewhile(lambda line: not line.endswith(story.NO_OUTCOME), lines))
        if told:
            for line in settled[shown:]:
                say(line, style_of(line))
        shown = max(shown, len(settled))
        at_rest = current.final or current.state is State.ESCALATED or current.approve_by
        if at_rest or (end is not None and clock.now().boot >= end):
            break
        await clock.sleep(0.2)
    if as_json:
        say_json(await _in_short(store, current))
    elif told:
        say(story.receipt(await store.read.events_of(op.id)), "dim")
    case = await store.read.open_case(op.id)
    if case is not None:
        remark(f"A person has to decide: forbear show {op.id}, then forbear decide {case.number} …")
    elif not current.final:
        remark(f"Still {current.state}. forbear why {op.id} says why.")
    return current.state is State.SUCCEEDED
