"""`contract simulate` and `contract test`: a provider made from a contract, on this machine."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli.home import run, settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, remark, say, say_json

if TYPE_CHECKING:
    from forbear.rules.contract import Action
    from forbear.server.simulator.provider import Seen, Simulator
    from forbear.server.simulator.source import Source
    from forbear.server.simulator.trial import Row

Named = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE|PROVIDER",
        help="A contract file, a provider of the home, or one that comes with Forbear. "
        "Default: the only one of the home.",
    ),
]


def register(group: typer.Typer) -> None:
    group.command()(simulate)
    group.command("test")(through)


def source_of(name: str | None) -> Source:
    """The contract that is meant. Raises Failure."""
    from forbear.server.simulator.source import NoContract, find

    try:
        return find(name, settings().contracts)
    except NoContract as error:
        raise Failure(str(error)) from error


# --- simulate -------------------------------------------------------------------------------


def simulate(
    name: Named = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the home of the copy here. Default: one that goes at the end."
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[WHERE:]KIND[:COUNT]",
            help="What goes wrong: 429, 503, lost, dropped, refused, slow; of jobs stuck, fails, "
            "unknown-state, contradictory, gone. WHERE is submit, status, result, cancel, lookup, "
            "call, an action, or both as in export.submit. COUNT is 1, or * for always. "
            "May be given several times.",
        ),
    ] = None,
    polls: Annotated[int, typer.Option(min=0, help="Checks of a job that say it still works.")] = 2,
    real_delays: Annotated[
        bool,
        typer.Option("--real-delays", help="The contract's own delays; else seconds for minutes."),
    ] = False,
) -> None:
    """Play the provider of a contract on this machine, to try things on before any real call.

    Makes a home whose copy of the contract points here, with a dummy key, and prints what to run.
    Ctrl-C ends it and tells what arrived, what was made, and whether anything was made twice.
    """
    from forbear.server.simulator.faults import BadFault, parse

    source = source_of(name)
    contract = source.contract
    try:
        plan = parse(fault or (), (*contract.jobs, *contract.calls))
    except BadFault as error:
        raise Failure(f"--fault {error}.") from error

    async def simulated() -> None:
        from forbear.server.cli.serving import until_signalled
        from forbear.server.simulator.provider import Simulator, lines

        simulator = Simulator(port=port, polls=polls, plan=plan, told=_tell)
        stopped = until_signalled()
        try:
            await simulator.start()
        except OSError as error:
            raise Failure(
                f"--port {port}: {error.strerror}. Leave it out for a free one."
            ) from error
        try:
            with TemporaryDirectory(
                prefix="forbear-simulated-", ignore_cleanup_errors=True
            ) as temporary:
                place = (home or Path(temporary)).resolve()
                with _taken(place, contract.provider):
                    _furnish(source, simulator, place, real=real_delays)
                    _introduce(source, simulator, place, kept=home is not None)
                    await stopped.wait()
        finally:
            await simulator.stop()
        say()
        for line in lines(simulator.summary()):
            say(line, "red" if "TWICE" in line else None)

    run(simulated)


@contextmanager
def _taken(home: Path, provider: str) -> Iterator[None]:
    """Make the home, for one provider of this process alone. Raises Failure."""
    from forbear.server.simulator import homes

    with ExitStack() as held:
        try:
            homes.take(home)
            held.enter_context(homes.held(home, provider))
        except homes.NotSimulated as error:
            raise Failure(f"--home: {error}") from error
        except OSError as error:
            raise Failure(f"--home {home}: {error.strerror}.") from error
        yield


def _furnish(source: Source, simulator: Simulator, home: Path, *, real: bool) -> None:
    """Lay the copy into the home, and let the simulator speak it."""
    from forbear.server.clock import SystemClock
    from forbear.server.simulator import homes
    from forbear.server.simulator.copies import TRYING
    from forbear.server.simulator.source import of_file

    name = homes.furnish(home, source, simulator.base_url, None if real else TRYING)
    copied = of_file(home / "contracts" / f"{name}.toml").contract
    clock = SystemClock()
    simulator.speak(source.contract, copied, lambda: clock.now().wall)


def _tell(seen: Seen) -> None:
    answer = "no answer" if seen.status is None else str(seen.status)
    style = "yellow" if seen.status is None or seen.status >= 400 else None
    say(f"  {seen.request:<28} {answer:<9} {seen.note}".rstrip(), style)
    sys.stdout.flush()  # whoever watches a file or a pipe sees it now


def _introduce(source: Source, simulator: Simulator, home: Path, *, kept: bool) -> None:
    """What this is, and exactly what to run."""
    contract = source.contract
    actions = (*contract.jobs.values(), *contract.calls.values())
    at = f"FORBEAR_HOME={shlex.quote(str(home))}"
    # A database that is set outranks the home, and its store is not for this.
    other = "FORBEAR_DATABASE_URL= " if os.environ.get("FORBEAR_DATABASE_URL") else ""
    say(
        f"{contract.title}, simulated from {source.shown}, listens on {simulator.base_url}.", "bold"
    )
    say("Nothing leaves this machine, and no key of yours is used.")
    for told in simulator.unable():
        say(f"  cannot be simulated: {told}", "yellow")
    say()
    say("Try it from another terminal:")
    for action in actions:
        call = f"forbear try {contract.provider}.{action.name} {_arguments(action)}"
        say(f"  {other}{at} {call}".rstrip())
    if any(action.send.approval.mode != "none" for action in actions):
        say(f"  {other}{at} forbear inbox        # some of these wait for your approval")
    say()
    say("Or give it to an agent:")
    further = f" --env {other.strip()}" if other else ""
    name = f"{contract.provider}-simulated"
    say(f"  claude mcp add {name} --env {at}{further} -- forbear serve")
    say()
    goes = "The home stays." if kept else "The home goes with it; --home DIR keeps one."
    say(
        f"Ctrl-C ends it and tells what arrived, as {simulator.base_url}/__forbear does now. {goes}"
    )
    say()


def _arguments(action: Action) -> str:
    """Sample arguments as `try` takes them."""
    from forbear.tools import samples

    return " ".join(
        shlex.quote(f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value)}")
        for name, value in samples.of(action.input).items()
    )


# --- test -----------------------------------------------------------------------------------


def through(name: Named = None, as_json: AsJson = False) -> None:
    """Take every job and call through the simulator: success, failure, 429, lost answer, and more.

    Each goes the real way, with a store, a worker and sockets, with delays shortened. Exit 1 if
    anything ended where it should not, or was sent or made too often.
    """
    source = source_of(name)

    async def tried() -> list[Row]:
        from forbear.server.simulator.trial import trial

        with TemporaryDirectory(prefix="forbear-test-", ignore_cleanup_errors=True) as folder:
            return await trial(source, Path(folder) / "home")

    rows = run(tried)
    if as_json:
        say_json({"contract": source.shown, "ok": all(row.ok for row in rows), "rows": _told(rows)})
    else:
        say(f"{source.contract.title}, {source.shown}", "bold")
        for row, line in zip((None, *rows), _table(rows), strict=True):
            say(line, _style(row))
        remark(_verdict(rows))
    if not all(row.ok for row in rows):
        raise typer.Exit(1)


def _told(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{field: getattr(row, field) for field in row.__slots__} for row in rows]


def _style(row: Row | None) -> str | None:
    if row is None:
        return "dim"
    return "red" if not row.ok else None if row.simulated else "yellow"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """Aligned columns, heading first."""
    cells = [("action", "what happened", "ended", "requests", "made", "")]
    cells += [
        (
            row.action,
            row.scenario,
            row.ended if row.simulated else "not simulated",
            str(row.requests),
            str(row.effects),
            row.told if row.told else "as it should",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    for line in cells:
        shown = [text.ljust(width) for text, width in zip(line, (*widths, 0), strict=True)]
        yield "  " + "  ".join(shown).rstrip()


def _verdict(rows: Sequence[Row]) -> str:
    wrong = sum(not row.ok for row in rows)
    unable = sum(not row.simulated for row in rows)
    told = f"{len(rows) - wrong - unable} of {len(rows)} ended where they should"
    told += f", {unable} could not be simulated" if unable else ""
    return f"{told}, {wrong} did not." if wrong else f"{told}."
