"""`contract explain`: what will happen to an action before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.simulating import source_of
from forbear.server.cli.terminal import Failure, say, say_json

if TYPE_CHECKING:
    from forbear.rules.contract import Action, Contract
    from forbear.server.explaining import Event, Explanation


def register(group: typer.Typer) -> None:
    group.command()(explain)


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|PROVIDER[.ACTION]",
            help="Without an action: all jobs and calls. Default: the only contract of the home.",
        ),
    ] = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="The states as a Mermaid diagram, and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what will happen: checks, budgets, what ends it, and what a lost answer leads to.

    Nothing is sent. The numbers are the contract's, and the ends are asked of the rules.
    """
    from forbear.server.explaining import explain as explained
    from forbear.server.simulator.source import split

    wanted, action = (None, None) if name is None else split(name, settings().contracts)
    contract = source_of(wanted).contract
    told = [explained(contract, one) for one in _actions(contract, action)]
    if as_json:
        say_json({"actions": [_as_json(one) for one in told]})
        return
    for number, one in enumerate(told):
        if number:
            say()
        if mermaid:
            say(f"%% {one.name}")
            say(one.mermaid())
        else:
            _show(one)


def _actions(contract: Contract, name: str | None) -> list[Action]:
    actions: list[Action] = [*contract.jobs.values(), *contract.calls.values()]
    if name is None:
        return actions
    found = [one for one in actions if one.name == name]
    if not found:
        known = ", ".join(one.name for one in actions)
        raise Failure(f"{contract.provider} has no action {name!r}; there are {known}.")
    return found


def _as_json(one: Explanation) -> dict[str, Any]:
    return {
        "action": one.name,
        "title": one.title,
        "request": one.request,
        **{section.title: dict(section.lines) for section in one.sections},
        "events": [
            {
                "in": event.begins,
                "what": event.what,
                "then": event.state,
                "reason": event.reason,
                "outcome": event.outcome,
                "options": list(event.options),
            }
            for event in one.events
        ],
        "mermaid": one.mermaid(),
    }


def _show(one: Explanation) -> None:
    say(f"{one.name}: {one.title}", "bold")
    say(one.request)
    for section in one.sections:
        say()
        say(section.title, "bold")
        width = max(len(key) for key, _ in section.lines)
        for key, text in section.lines:
            say(f"  {key.ljust(width)}  {text}")
    say()
    say("What may happen", "bold")
    for line in one.picture():
        say(f"  {line}", _style(line))
    asked: dict[str, Event] = {}
    for event in one.events:
        if event.reason is not None:
            asked.setdefault(event.reason, event)
    if asked:
        say()
        say("What a person could choose then", "bold")
        width = max(map(len, asked))
        for reason, event in asked.items():
            say(f"  {reason.ljust(width)}  {', '.join(event.options)}")


def _style(line: str) -> str | None:
    if "escalated" in line:
        return "yellow"
    return "green" if line.endswith("succeeded") else None
