"""`inbox` and `review`: the questions that wait for a person, as a list and one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.deciding import Person, carry_out, person_of, show_outcome
from forbear.server.cli.home import (
    NOBODY,
    is_new,
    opened,
    remark_if_nobody_sends,
    run,
    settings,
)
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, at_a_terminal, remark, say, say_json, typed

if TYPE_CHECKING:
    from forbear.server.app import App
    from forbear.server.console.choices import Choice
    from forbear.tools.inbox import Entry

NOTHING_MORE = "Nothing more was decided."


def register(app: typer.Typer) -> None:
    app.command()(inbox)
    app.command()(review)


# --- inbox ----------------------------------------------------------------------------------


def inbox(
    every: Annotated[bool, typer.Option("--all", help="List each case of a group.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what needs a decision, money in doubt first, then least time left. Exit 1 if any."""
    home = settings()
    if is_new(home):
        say_json({"cases": []}) if as_json else say("Nothing needs a decision.")
        remark(NOBODY)
        return

    async def listed() -> int:
        from forbear.server.clock import SystemClock
        from forbear.server.standing import listed as standing_answers
        from forbear.tools.inbox import entries

        async with opened(home) as store:
            now = SystemClock().now().wall
            found = await entries(store, now)
            standing = standing_answers(home.standing, now)
            if as_json:
                cases = [entry.as_json() for entry in found]
                say_json({"cases": cases, "standing": standing})
            elif not found:
                say("Nothing needs a decision.")
            else:
                _table(found, every=every)
            for one in [] if as_json else standing:
                remark(f"standing answer: {one}")
            await remark_if_nobody_sends(store)
            return len(found)

    if run(listed):
        raise typer.Exit(1)


def _table(found: list[Entry], *, every: bool) -> None:
    from forbear.tools.inbox import Together, collapsed, lines

    rows = list(found) if every else collapsed(found)
    for row, line in zip(rows, lines(rows), strict=True):
        say(line, "bold yellow" if row.case.urgency == "now" else None)
    say(f"forbear show {found[0].operation.id} tells the whole of the first; forbear review asks.")
    groups = [row.case.group for row in rows if isinstance(row, Together)]
    if groups:
        say(f"forbear inbox --all lists each; forbear decide {groups[0]} hold holds the group.")


# --- review ---------------------------------------------------------------------------------


def review() -> None:
    """Go through the inbox case by case: read, choose a number, confirm. Exit 1 if any is left."""
    home = settings()
    if not at_a_terminal():
        raise Failure(
            "review needs a terminal. Without one: forbear inbox --json, then forbear decide."
        )
    if is_new(home):
        say("Nothing needs a decision.")
        return

    async def reviewed() -> int:
        from forbear.server.app import running

        async with running(home, role="cli", worker=False) as app:
            await _review(app, person_of(home, app))
            return len(await app.store.read.open_cases())

    if run(reviewed):
        raise typer.Exit(1)


async def _review(app: App, person: Person) -> None:
    """Ask about each case once, in the order of the inbox as it is then."""
    from forbear.server.cli.plan import show_case

    passed: set[str] = set()
    while left := [entry for entry in await app.office.inbox() if entry.case.id not in passed]:
        entry = left[0]
        show_case(entry.case, entry.operation, entry.now, commands=False)
        say()
        told = f"{len(left) - 1} more after it" if left[1:] else "the last one"
        match await _answered(app, entry, person, told):
            case "quit":
                return
            case "skip" | "done":
                passed.add(entry.case.id)
            case _:
                pass
        say()
    say("Nothing more needs a decision." if not passed else "That was the last one.")


async def _answered(app: App, entry: Entry, person: Person, told: str) -> str:
    """`quit`, `skip`, `done`, or `again` where the case is to be shown anew."""
    from forbear.server.console.choices import choices

    offered = choices(entry.case, entry.operation)
    keys = f"1-{len(offered)}" if offered[1:] else "1" if offered else "nothing"
    question = f"{keys} decides · s skips · w whole story · q quits ({told}): "
    while True:
        match typed(question, NOTHING_MORE):
            case None | "q":
                return "quit"
            case "s":
                return "skip"
            case "w":
                await _tell_story(app, entry)
            case number if number.isdecimal() and 1 <= int(number) <= len(offered):
                return await _chosen(app, entry, offered[int(number) - 1], person)
            case other:
                say(f"{other!r} is none of them.")


async def _tell_story(app: App, entry: Entry) -> None:
    record = await app.desk.record(entry.operation, story_told=True)
    for line in [*record.timeline, record.receipt or ""]:
        say(line)


async def _chosen(app: App, entry: Entry, choice: Choice, person: Person) -> str:
    """Ask for what the option needs, be sure, and carry it out."""
    from forbear.tools.wishes import BadWish, wish_of

    given = {field.name: field.value for field in choice.fields}
    for field in choice.fields:
        if field.required and not _asked(field.label, given, field.name, field.choices):
            return "again"
    while True:
        answer = _sure(choice, given)
        if answer != "change":
            break
        for field in choice.fields:
            _asked(f"{field.label}, {field.hint}" if field.hint else field.label, given, field.name)
    if answer != "yes":
        say("Not decided.")
        return "again"
    try:
        wish = wish_of(app.clock.now().wall, choice.id, **_parameters(given))
        outcome = await carry_out(app, entry.case, entry.operation, wish, person)
    except (BadWish, Failure) as error:
        remark(str(error))
        return "again"
    await show_outcome(app, outcome, wish, dry_run=False)
    return "done"


def _sure(choice: Choice, given: dict[str, str]) -> str:
    """`yes`, `no`, or `change` where the parameters are to be others."""
    if choice.typed is not None:
        answer = typed(f"It may happen twice. Type {choice.typed} to mean it: ", NOTHING_MORE)
        return "yes" if answer == choice.typed else "no"
    told = ", ".join(f"{name} {value}" for name, value in given.items() if value)
    change = "/c to change it" if given else ""
    question = f"{choice.label}{f' ({told})' if told else ''}? [y/N{change}] "
    match (typed(question, NOTHING_MORE) or "").lower():
        case "y" | "yes":
            return "yes"
        case "c" if given:
            return "change"
        case _:
            return "no"


def _asked(label: str, given: dict[str, str], name: str, classes: tuple[str, ...] = ()) -> bool:
    """Ask for one parameter; Enter keeps what is there. False if there is none after it."""
    words = f" ({', '.join(classes)})" if classes else ""
    kept = f" [{given[name]}]" if given[name] else ""
    given[name] = typed(f"{label}{words}{kept}: ", NOTHING_MORE) or given[name]
    return bool(given[name])


def _parameters(given: dict[str, str]) -> dict[str, Any]:
    """What was typed as the parameters of a wish.

    Raises:
        BadWish
    """
    from forbear.tools.wishes import BadWish

    try:
        made: dict[str, Any] = {
            "minutes": float(given["minutes"]) if given.get("minutes") else None,
            "requests": int(given["requests"]) if given.get("requests") else None,
        }
    except ValueError as error:
        raise BadWish("Write minutes and requests as numbers.") from error
    return made | {
        "until": given.get("until") or None,
        "treat_as": given.get("as") or None,
        "reference": given.get("reference") or None,
    }
