"""`decide` and `cancel`: a person's answers, each confirmed, carried out once, and recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli import completing
from forbear.server.cli.home import case as find_case
from forbear.server.cli.home import group as find_group
from forbear.server.cli.home import operation as find_operation
from forbear.server.cli.home import run, settings
from forbear.server.cli.reading import AsJson, Name
from forbear.server.cli.terminal import (
    Failure,
    at_a_terminal,
    confirmed,
    remark,
    say,
    say_json,
    typed,
)
from forbear.server.config import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forbear.rules.decisions import Wish
    from forbear.rules.model import Case, Operation, Refusal
    from forbear.server.app import App
    from forbear.storage.deciding import Decided
    from forbear.tools.inbox import Entry

NOTHING = "Nothing was decided."

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needs the operator token.")]
Comment = Annotated[str | None, typer.Option(help="Kept with the decision.")]


def register(app: typer.Typer) -> None:
    app.command()(decide)
    app.command()(cancel)


# --- who decides ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Person:
    """Who decides here, through which channel, and what was said beforehand."""

    channel: str | None
    """`terminal` or `token`; None in a dry run, which anybody may make."""
    yes: bool = False
    confirm: str | None = None
    comment: str | None = None

    @property
    def dry_run(self) -> bool:
        return self.channel is None

    def by(self, app: App) -> Mapping[str, object]:
        """Who decides, as the audit trail keeps it."""
        from forbear.server.operator import signature

        return signature(app.store.path, self.channel or "dry run", self.comment)

    def agrees(self, question: str, repeats: str | None = None) -> None:
        """Be sure that it is meant; `repeats` is an option after which it may happen twice.

        Raises Failure where it is not.
        """
        if self.dry_run:
            return
        meant = repeats is None or self.confirm == repeats
        if meant and self.yes:
            return
        if self.channel != "terminal":
            raise Failure(f"It may happen twice. To mean it, add --confirm {repeats}.")
        if not meant:
            agreed = typed(f"It may happen twice. Type {repeats} to mean it: ", NOTHING) == repeats
        else:
            agreed = confirmed(question, NOTHING)
        if not agreed:
            raise Failure(NOTHING, 1)


def person_of(
    home: Settings,
    app: App,
    *,
    dry_run: bool = False,
    yes: bool = False,
    confirm: str | None = None,
    comment: str | None = None,
) -> Person:
    """Whoever decides in this process: somebody at a terminal, or the holder of the token.

    Raises Failure where nobody may.
    """
    from forbear.server import operator

    if dry_run:
        return Person(None)
    if at_a_terminal():
        return Person("terminal", yes, confirm, comment)
    wrong = operator.objection(home, app.store.key)
    if wrong is not None:
        raise Failure(wrong)
    if not yes:
        raise Failure("Nobody can be asked here. Add --yes, or do it at a terminal.")
    return Person("token", yes, confirm, comment)


# --- decide ---------------------------------------------------------------------------------


def decide(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CASE|NUMBER|GROUP",
            help="From `forbear inbox`; or an operation that is over, to `resubmit` it.",
            autocompletion=completing.cases,
        ),
    ],
    option: Annotated[
        str,
        typer.Argument(
            help="One of the options that the case offers.", autocompletion=completing.options
        ),
    ],
    minutes: Annotated[float | None, typer.Option(help="extend: by so many minutes.")] = None,
    requests: Annotated[int | None, typer.Option(help="extend: so many more checks.")] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="T", help="hold, or the end of a session that you approve: 30m, 14:30."
        ),
    ] = None,
    treat_as: Annotated[
        str | None,
        typer.Option("--as", metavar="CLASS", help="treat_as: waiting, blocked, failed, …"),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="ID", help="confirm_done: the provider's id.")
    ] = None,
    beyond_contract: Annotated[
        bool,
        typer.Option(
            "--beyond-contract", help="extend: once more than the contract allows; with --comment."
        ),
    ] = False,
    comment: Comment = None,
    confirm: Annotated[
        str | None,
        typer.Option(metavar="OPTION", help="send_new, resubmit: written again, to mean it."),
    ] = None,
    as_principal: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="As a workflow of config.toml, within its list."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
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
            beyond_contract=beyond_contract,
        )
    except BadWish as error:
        raise Failure(str(error)) from error
    if confirm is not None and confirm != wish.option:
        raise Failure(f"--confirm {confirm} is not what you decide; write --confirm {wish.option}.")
    home = settings()

    async def decided() -> None:
        from forbear.server.app import running
        from forbear.server.cli.handover import workflow

        async with running(home, role="cli", worker=False) as app:
            target = await _target(app, name)
            if as_principal is None:
                person = person_of(
                    home, app, dry_run=dry_run, yes=yes, confirm=confirm, comment=comment
                )
            else:
                person = workflow(
                    home, app, as_principal, target, wish, dry_run, confirm=confirm, comment=comment
                )
            if isinstance(target, str):
                await _decide_group(app, target, wish, person, as_json=as_json)
                return
            case, op = target
            if case is None:
                outcome = await _decide_unasked(app, op, wish, person)
            else:
                outcome = await decide_case(app, case, op, wish, person)
            await show_outcome(app, outcome, wish, dry_run=dry_run, as_json=as_json)

    run(decided)


async def _target(app: App, name: str) -> str | tuple[Case | None, Operation]:
    """What is decided: a group, a case with its operation, or an operation that has no case."""
    if name.startswith("grp_"):
        return await find_group(app.store, name)
    if name.startswith("op_"):
        op = await find_operation(app.store, name)
        return await app.store.read.open_case(op.id), op
    case = await find_case(app.store, name)
    found = await app.store.read.operation(case.operation_id)
    if found is None:
        raise Failure(f"the operation of case {case.id} is gone", 3)
    return case, found


async def decide_case(app: App, case: Case, op: Operation, wish: Wish, person: Person) -> Decided:
    """Show a case, be sure, and carry the option out.

    Raises Failure where it is refused or not meant.
    """
    from forbear.server.cli.plan import show_case

    if case.closed_at is not None:
        raise _closed(case, op)
    for told in _lowered(app, op, wish):
        remark(told)
    if person.channel == "terminal" and not person.yes:
        show_case(case, op, app.clock.now().wall, only=str(wish.option))
        say()
    person.agrees(f"Decide {wish.option}?", _repeats(wish))
    return await carry_out(app, case, op, wish, person)


async def carry_out(app: App, case: Case, op: Operation, wish: Wish, person: Person) -> Decided:
    """Carry out what a person has agreed to. Raises Failure where it is refused."""
    from forbear.rules.model import Refusal

    _refuse_until(case, wish)
    outcome = await app.office.decide(case, op, wish, person.by(app), dry_run=person.dry_run)
    if isinstance(outcome, Refusal):
        raise await _refused(app, op, outcome)
    return outcome


async def _decide_unasked(app: App, op: Operation, wish: Wish, person: Person) -> Decided:
    """Do an operation anew, or cancel it, without a question that was open."""
    from forbear.rules.model import Option, Refusal

    if wish.option not in (Option.RESUBMIT, Option.CANCEL_AT_PROVIDER):
        raise Failure(f"No case is open for {op.id}: it is {op.state}. Nothing was decided.", 1)
    preview = await app.office.decide_unasked(op, wish, person.by(app), dry_run=True)
    if isinstance(preview, Refusal):
        raise await _refused(app, op, preview)
    if person.dry_run:
        return preview
    if person.channel == "terminal" and not person.yes:
        _show_unasked(preview.case, wish)
    person.agrees(f"Decide {wish.option}?", _repeats(wish))
    outcome = await app.office.decide_unasked(op, wish, person.by(app))
    if isinstance(outcome, Refusal):
        raise await _refused(app, op, outcome)
    return outcome


def _show_unasked(case: Case, wish: Wish) -> None:
    """A case that is opened only to be decided: its facts, and the one option."""
    hidden = ("Stopped because:", "If nobody decides:", "Safe options:", "External ")
    for line in case.text.splitlines():
        if not line.startswith(hidden):
            say(line)
    for option in case.options:
        if option["id"] == wish.option:
            say(f"{option['label']}: {option['effect']}", "bold yellow")


def _lowered(app: App, op: Operation, wish: Wish) -> tuple[str, ...]:
    from forbear.rules.contract import Job
    from forbear.tools.wishes import lowered

    held = app.contracts.holding(op.provider, op.action)
    job = held.action if held is not None else None
    return lowered(wish, job.limits.extension) if isinstance(job, Job) else ()


def _repeats(wish: Wish) -> str | None:
    from forbear.server.console.choices import TYPED

    return str(wish.option) if wish.option in TYPED else None


def _refuse_until(case: Case, wish: Wish) -> None:
    """An approval of one request ends with it; only a session's approval has an end of its own."""
    from forbear.rules.model import Option

    if wish.option is not Option.APPROVE or wish.until is None:
        return
    if not any("until" in option["parameters"] for option in case.options):
        raise Failure("--until belongs to the approval of a session; leave it out.")


# --- a group --------------------------------------------------------------------------------


async def _decide_group(app: App, group: str, wish: Wish, person: Person, *, as_json: bool) -> None:
    """One option for every open case of a group; exit 1 where it was not possible for some."""
    from forbear.rules.model import Refusal
    from forbear.tools.inbox import lines
    from forbear.tools.office import TOGETHER

    if wish.option not in TOGETHER:
        takes = ", ".join(sorted(TOGETHER))
        raise Failure(f"{wish.option} is decided one by one; a group takes {takes}.")
    members = [entry for entry in await app.office.inbox() if entry.case.group == group]
    if person.channel == "terminal" and not person.yes:
        for line in lines(members):
            say(line)
    count = "1 operation" if len(members) == 1 else f"{len(members)} operations"
    person.agrees(f"Decide {wish.option} for {count}?")
    outcomes = await app.office.decide_group(group, wish, person.by(app), dry_run=person.dry_run)
    refused = [one for one in outcomes if isinstance(one[1], Refusal)]
    if as_json:
        told = {"group": group, "option": str(wish.option), "dry_run": person.dry_run}
        say_json(told | {"operations": [_in_short(*one) for one in outcomes]})
    else:
        would = "could be decided. Nothing was changed." if person.dry_run else "decided."
        done = len(outcomes) - len(refused)
        say(f"{wish.option} for {group}: {done} of {len(outcomes)} {would}")
        for entry, outcome in outcomes:
            say(_group_line(entry, outcome), "yellow" if isinstance(outcome, Refusal) else None)
    stuck = {await _stuck(app, entry.operation.id) for entry, _ in outcomes}
    for obstacle in sorted(filter(None, stuck)):
        remark(obstacle)
    if refused:
        raise typer.Exit(1)


def _group_line(entry: Entry, outcome: Decided | Refusal) -> str:
    from forbear.rules.model import Refusal

    number, op = entry.case.number, entry.operation
    if isinstance(outcome, Refusal):
        return f"{number}  {op.id}  not possible: {outcome.message}"
    return f"{number}  {op.id}  {outcome.operation.state}"


def _in_short(entry: Entry, outcome: Decided | Refusal) -> dict[str, object]:
    from forbear.rules.model import Refusal

    told: dict[str, object] = {"case": entry.case.id, "operation_id": entry.operation.id}
    if isinstance(outcome, Refusal):
        return told | {"decided": False, "because": outcome.message}
    return told | {"decided": True, "state": str(outcome.operation.state)}


# --- cancel ---------------------------------------------------------------------------------


def cancel(
    name: Name,
    comment: Comment = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop an operation: drop what was not sent, or ask the provider to cancel the job."""
    home = settings()

    async def cancelled() -> None:
        from forbear.rules.decisions import Wish
        from forbear.rules.model import Operation, Option, Refusal
        from forbear.server.app import running

        async with running(home, role="cli", worker=False) as app:
            op = await find_operation(app.store, name)
            person = person_of(home, app, dry_run=dry_run, yes=yes, comment=comment)
            by = person.by(app)
            preview = await app.office.cancel(op, by, dry_run=True)
            if isinstance(preview, Refusal):
                raise await _refused(app, op, preview)
            person.agrees(_cancelling(op, preview))
            done = preview if person.dry_run else await app.office.cancel(op, by)
            if isinstance(done, Refusal):
                raise await _refused(app, op, done)
            if isinstance(done, Operation):
                await _show_dropped(app, done, dry_run=dry_run, as_json=as_json)
                return
            option = Option.ABANDON if done.operation.final else Option.CANCEL_AT_PROVIDER
            await show_outcome(app, done, Wish(option), dry_run=dry_run, as_json=as_json)

    run(cancelled)


def _cancelling(op: Operation, preview: Decided | Operation) -> str:
    """The question, with what is lost."""
    from forbear.rules.model import Operation, Option
    from forbear.tools.untrusted import clip

    name = clip(op.label or f"{op.provider}.{op.action}", 60)
    if isinstance(preview, Operation) or preview.operation.final:
        return f"Drop {name} ({op.id})? {_unsent(op)}"
    loss = next(
        (
            str(option["effect"])
            for option in preview.case.options
            if option["id"] == Option.CANCEL_AT_PROVIDER
        ),
        "",
    )
    return f"Ask the provider to cancel {name} ({op.id})? {loss}".strip()


async def _show_dropped(app: App, op: Operation, *, dry_run: bool, as_json: bool) -> None:
    from forbear.tools.answers import full

    if not dry_run and not op.final:
        raise Failure(f"{op.id} is {op.state} now. Nothing was cancelled.", 1)
    if as_json:
        say_json({"dry_run": dry_run, "operation": full(await app.desk.record(op))})
    elif dry_run:
        say(f"{op.id} would be discarded. Nothing was changed.")
    else:
        say(f"{op.id} is {op.state}. {_unsent(op)}")


def _unsent(op: Operation) -> str:
    return "Nothing of it had an effect." if op.attempts.used else "Nothing of it was sent."


# --- what came of it ------------------------------------------------------------------------


async def show_outcome(
    app: App, outcome: Decided, wish: Wish, *, dry_run: bool, as_json: bool = False
) -> None:
    """Tell what a decision made of its operation, and who goes on with it."""
    from forbear.rules.model import Option
    from forbear.tools.answers import full

    op = outcome.operation
    if as_json:
        case = await app.store.read.case_by(outcome.case.id)
        decision = case[0].decision if case else None
        told = {"case": outcome.case.id, "dry_run": dry_run, "decision": decision}
        if outcome.follow_up is not None:
            told["follow_up"] = outcome.follow_up.id
        say_json(told | {"operation": full(await app.desk.record(op))})
    else:
        _tell(app, op, wish, dry_run=dry_run)
    if outcome.follow_up is not None:
        queued = outcome.follow_up.id
        what = "cancellation" if wish.option is Option.CANCEL_AT_PROVIDER else "new operation"
        remark(f"The {what} is {queued}; forbear wait {queued}")
    going = outcome.follow_up if outcome.follow_up is not None and op.final else op
    if (stuck := await _stuck(app, going.id)) is not None:
        remark(stuck)


def _tell(app: App, op: Operation, wish: Wish, *, dry_run: bool) -> None:
    from forbear.tools.times import clock_time

    if dry_run:
        would = "stay" if wish.option == "resubmit" else "be"
        say(f"{op.id} would {would} {op.state}{_anew(wish)}. Nothing was changed.")
    else:
        say(f"Decided: {wish.option}. {op.id} is {op.state}.")
    now = app.clock.now().wall
    if op.final:
        return
    if op.next_at is not None:
        say(f"next request {clock_time(max(op.next_at, now), now)}")
    say(f"deadline {clock_time(op.deadline_at, now)}")
    if op.status_requests.max:
        say(f"status requests {op.status_requests.used} of {op.status_requests.max}")


def _anew(wish: Wish) -> str:
    return "" if _repeats(wish) is None else ", and a new operation would take its place"


async def _stuck(app: App, op_id: str) -> str | None:
    """Why nobody alive could execute what was decided, or None."""
    from forbear.server.cli.home import NOBODY, senders
    from forbear.server.cli.reasons import obstacle

    op = await app.store.read.operation(op_id)
    if op is None or op.final:
        return None if await senders(app.store) else NOBODY
    return await obstacle(app.store, op, app.contracts)


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
