"""`inbox` and `decide`: the questions that wait for a person, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.home import NOBODY, is_new, opened, remark_if_nobody_sends, run, settings
from forbear.server.cli.home import case as find_case
from forbear.server.cli.reading import AsJson, show_case
from forbear.server.cli.terminal import (
    Failure,
    at_a_terminal,
    confirmed,
    remark,
    say,
    say_json,
)
from forbear.server.config import Settings

if TYPE_CHECKING:
    from forbear.rules.decisions import Wish
    from forbear.rules.model import Case, Operation, Refusal
    from forbear.server.app import App
    from forbear.storage.deciding import Decided

NOTHING = "Nothing was decided."


def register(app: typer.Typer) -> None:
    app.command()(inbox)
    app.command()(decide)


# --- inbox ----------------------------------------------------------------------------------


def inbox(as_json: AsJson = False) -> None:
    """List what needs a decision, money in doubt first, then least time left. Exit 1 if any."""
    home = settings()
    if is_new(home):
        say_json({"cases": []}) if as_json else say("Nothing needs a decision.")
        remark(NOBODY)
        return

    async def listed() -> int:
        from forbear.server.clock import SystemClock
        from forbear.tools.inbox import entries, lines

        async with opened(home) as store:
            found = await entries(store, SystemClock().now().wall)
            if as_json:
                say_json({"cases": [entry.as_json() for entry in found]})
            elif not found:
                say("Nothing needs a decision.")
            else:
                for entry, line in zip(found, lines(found), strict=True):
                    say(line, "bold yellow" if entry.case.urgency == "now" else None)
                say(f"forbear show {found[0].operation.id} tells the whole of the first.")
            await remark_if_nobody_sends(store)
            return len(found)

    if run(listed):
        raise typer.Exit(1)


# --- decide ---------------------------------------------------------------------------------


def decide(
    name: Annotated[str, typer.Argument(metavar="CASE|NUMBER", help="From `forbear inbox`.")],
    option: Annotated[str, typer.Argument(help="One of the options that the case offers.")],
    minutes: Annotated[float | None, typer.Option(help="extend: by so many minutes.")] = None,
    requests: Annotated[int | None, typer.Option(help="extend: so many more checks.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="T", help="hold: 30m, 14:30 (UTC) or a full time.")
    ] = None,
    treat_as: Annotated[
        str | None,
        typer.Option("--as", metavar="CLASS", help="treat_as: waiting, blocked, failed, …"),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="ID", help="confirm_done: the provider's id.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="Kept with the decision.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask (needs the token).")] = False,
    as_json: AsJson = False,
) -> None:
    """Decide a case: once, on the facts as shown, and recorded with your name."""
    from forbear.server.clock import SystemClock
    from forbear.tools.wishes import BadWish, wish_of

    try:
        wish = wish_of(
            SystemClock().now().wall,
            option,
            minutes=minutes,
            requests=requests,
            until=until,
            treat_as=treat_as,
            reference=reference,
        )
    except BadWish as error:
        raise Failure(str(error)) from error
    home = settings()

    async def decided() -> None:
        from forbear.server.app import running

        async with running(home, role="cli", worker=False) as app:
            case = await find_case(app.store, name)
            op = await app.store.read.operation(case.operation_id)
            if op is None:
                raise Failure(f"the operation of case {case.id} is gone", 3)
            channel = None if dry_run else _channel(home, app.store.key, yes=yes)
            if case.closed_at is not None:
                raise _closed(case, op)
            for told in _lowered(app, op, wish):
                remark(told)
            if channel == "terminal" and not yes:
                _ask(case, wish)
            await _decide(app, case, op, wish, channel, comment, as_json=as_json)
            await _remark_if_stuck(app, op.id)

    run(decided)


def _lowered(app: App, op: Operation, wish: Wish) -> tuple[str, ...]:
    from forbear.rules.contract import Job
    from forbear.tools.wishes import lowered

    held = app.contracts.holding(op.provider, op.action)
    job = held.action if held is not None else None
    return lowered(wish, job.limits.extension) if isinstance(job, Job) else ()


def _channel(home: Settings, store_key: bytes, *, yes: bool) -> str:
    """How this person is known: at a terminal, or by the operator token."""
    from forbear.server import operator

    if at_a_terminal():
        return "terminal"
    wrong = operator.objection(home, store_key)
    if wrong is not None:
        raise Failure(wrong)
    if not yes:
        raise Failure("Nobody can be asked here. Add --yes, or decide at a terminal.")
    return "token"


def _ask(case: Case, wish: Wish) -> None:
    show_case(case)
    say()
    if not confirmed(f"Decide {wish.option}?", NOTHING):
        raise Failure(NOTHING, 1)


async def _decide(
    app: App,
    case: Case,
    op: Operation,
    wish: Wish,
    channel: str | None,
    comment: str | None,
    *,
    as_json: bool,
) -> None:
    from forbear.rules.model import Refusal

    by = _decided_by(app, channel, comment)
    outcome = await app.office.decide(case, op, wish, by, dry_run=channel is None)
    if isinstance(outcome, Refusal):
        raise await _refused(app, op, outcome)
    await _show_outcome(app, outcome, wish, dry_run=channel is None, as_json=as_json)
    if outcome.follow_up is not None:
        queued = outcome.follow_up.id
        remark(f"The cancellation is {queued}; forbear wait {queued}")


def _decided_by(app: App, channel: str | None, comment: str | None) -> dict[str, object]:
    """Who decides, as the audit trail keeps it."""
    from forbear.server.operator import signature

    return signature(app.store.path, channel or "dry run", comment)


async def _show_outcome(
    app: App, outcome: Decided, wish: Wish, *, dry_run: bool, as_json: bool
) -> None:
    from forbear.tools.answers import full
    from forbear.tools.times import clock_time

    op = outcome.operation
    if as_json:
        case = await app.store.read.case_by(outcome.case.id)
        decision = case[0].decision if case else None
        told = {"case": outcome.case.id, "dry_run": dry_run, "decision": decision}
        say_json(told | {"operation": full(await app.desk.record(op))})
        return
    done = f"{op.id} would be" if dry_run else f"Decided: {wish.option}. {op.id} is"
    say(f"{done} {op.state}.{' Nothing was changed.' if dry_run else ''}")
    now = app.clock.now().wall
    if op.final:
        return
    if op.next_at is not None:
        say(f"next request {clock_time(max(op.next_at, now), now)}")
    say(f"deadline {clock_time(op.deadline_at, now)}")
    if op.status_requests.max:
        say(f"status requests {op.status_requests.used} of {op.status_requests.max}")


async def _remark_if_stuck(app: App, op_id: str) -> None:
    """Say so where nobody alive can execute what was decided."""
    from forbear.server.cli.reasons import obstacle

    op = await app.store.read.operation(op_id)
    if op is None or op.final:
        await remark_if_nobody_sends(app.store)
    elif (stuck := await obstacle(app.store, op, app.contracts)) is not None:
        remark(stuck)


def _closed(case: Case, op: Operation) -> Failure:
    decision = case.decision or {}
    by = f"{decision['operator']} decided {decision['option']}" if decision else None
    told = by or case.closed_because or "it closed itself"
    return Failure(
        f"Case {case.number} is closed: {told}. {op.id} is {op.state} now. Nothing was decided.", 1
    )


async def _refused(app: App, op: Operation, refusal: Refusal) -> Failure:
    from forbear.rules.model import Code

    current = await app.store.read.operation(op.id) or op
    if refusal.code is Code.NOT_ALLOWED_IN_STATE:
        return Failure(
            f"{refusal.message}. {op.id} is {current.state} now. Nothing was decided: "
            f"{refusal.next_step}.",
            1,
        )
    return Failure(f"{refusal.message}: {refusal.next_step}.")
