"""`handover` and `decide --as-principal`: workflows that decide within their list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli.deciding import Person, person_of
from forbear.server.cli.home import run, settings
from forbear.server.cli.terminal import Failure, remark, say
from forbear.server.config import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forbear.rules.decisions import Wish
    from forbear.rules.model import Case, Operation
    from forbear.server.app import App


def register(app: typer.Typer) -> None:
    app.command()(handover)


def handover(
    name: Annotated[str, typer.Argument(help="As config.toml names it under `handover`.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needs the operator token.")
    ] = False,
) -> None:
    """Make the token of a workflow that may decide what its list holds, and print it once."""
    home = settings()

    async def made() -> None:
        from forbear.server import handover as workflows
        from forbear.server.app import running

        async with running(home, role="cli", worker=False) as app:
            principal = workflows.known(home, name)
            if principal is None:
                raise Failure(f"config.toml has no [[handover]] with the name {name!r}.")
            person = person_of(home, app, yes=yes)
            may = f"{', '.join(principal.options)} for {', '.join(principal.reasons)}"
            remark(f"{name} may decide: {may}.")
            person.agrees(f"Make a token for {name}? One made before is over.")
            token = app.random.token(52)
            workflows.enrol(home, app.store.key, name, token)
            say(token)
            remark(f"It is shown once. {name} sets it as {workflows.VARIABLE}.")

    run(made)


@dataclass(frozen=True, slots=True)
class Workflow(Person):
    """A workflow that has shown its token and decides what is on its list."""

    principal: str = ""

    def by(self, app: App) -> Mapping[str, object]:
        """Who decides, as the audit trail keeps it."""
        from forbear.server.handover import signature

        return signature(app.store.path, self.principal, self.comment)


def workflow(
    home: Settings,
    app: App,
    name: str,
    target: str | tuple[Case | None, Operation],
    wish: Wish,
    dry_run: bool,
    *,
    confirm: str | None,
    comment: str | None,
) -> Person:
    """The workflow `name`, if this process is it and this decision is on its list.

    Raises Failure where it is not, also in a dry run.
    """
    from forbear.server import handover as workflows

    wrong = workflows.stranger(home, app.store.key, name)
    if wrong is not None:
        raise Failure(wrong)
    principal = workflows.known(home, name)
    case = None if isinstance(target, str) else target[0]
    if principal is None or case is None:
        raise Failure(f"{name} decides one open case at a time.")
    wrong = workflows.beyond(principal, case, wish)
    if wrong is not None:
        raise Failure(f"{wrong} Nothing was decided.", 1)
    channel = None if dry_run else workflows.CHANNEL
    return Workflow(channel, True, confirm, comment, name)
