"""`contract check`, `contract list` and `contract schema`; the others have modules of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli import adding, drafting, explaining, online, simulating
from forbear.server.cli.home import (
    how_to_begin,
    is_new,
    opened,
    remark_if_nobody_sends,
    run,
    settings,
)
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, say, say_json

if TYPE_CHECKING:
    from forbear.rules.contract import Contract
    from forbear.rules.signals import Signal

EXAMPLES = "examples"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Contracts: what a provider promises, as data.")
    group.command()(check)
    group.command()(schema)
    group.command("list")(list_all)
    adding.register(group)
    drafting.register(group)
    explaining.register(group)
    simulating.register(group)
    app.add_typer(group, name="contract")


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE|PROVIDER",
            help="Files, or providers of the home. Default: all of the home.",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(metavar="ANSWER", help="A pasted answer: say what it would mean."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="REQUEST", help="Of --sample: jobs.NAME.status, …")
    ] = None,
    http: Annotated[int, typer.Option(min=100, max=599, help="Status of --sample.")] = 200,
    ask_online: Annotated[
        bool, typer.Option("--online", help="Ask each provider with one harmless read.")
    ] = False,
    account_only: Annotated[
        bool,
        typer.Option("--account", help="With --online: the check of the account alone."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check contract files: every mistake with line and fix, what is left open, the examples.

    With --online the check of the account, or a read without arguments, is sent, reserved and
    budgeted like any other read: again only as the contract retries one that failed. Exit 1 if a
    file has mistakes, an example does not come out, or a provider did not answer as it should.
    """
    if account_only and not ask_online:
        raise Failure("--account goes with --online: nothing is sent without it.")
    chosen = files or sorted(settings().contracts.glob("*.toml"))
    if not chosen:
        raise Failure(
            f"There is no contract in {settings().contracts}. `{how_to_begin(settings())}` "
            "begins one."
        )
    checked = [_checked(_meant(path)) for path in chosen]
    if sample is not None:
        _show_sample(checked, sample, on, http)
        return
    asked: list[dict[str, Any]] = []
    if ask_online:
        loaded = [contract for told, contract in checked if contract is not None and told["ok"]]
        asked = online.reached(settings(), loaded, account_only=account_only)
    if as_json:
        say_json({"files": [one for one, _ in checked], **({"online": asked} if asked else {})})
    else:
        for one, _ in checked:
            _show(one)
        for each in asked:
            online.show(each)
    if not all(one["ok"] for one in (*(told for told, _ in checked), *asked)):
        raise typer.Exit(1)


def _meant(stated: Path) -> Path:
    """The file itself, or that of the provider in the home, as the other commands take it."""
    named = settings().contracts / f"{stated}.toml"
    return stated if stated.exists() or not named.is_file() else named


def _checked(path: Path) -> tuple[dict[str, Any], Contract | None]:
    from datetime import UTC, datetime

    from forbear.rules.contract import Contract, ContractError
    from forbear.rules.contract_file import parse
    from forbear.rules.contract_report import report
    from forbear.rules.replay import replay
    from forbear.rules.toml_lines import key_lines
    from forbear.server.clock import SystemClock
    from forbear.server.providers import read_text, shipped

    text = read_text(path)
    if isinstance(text, ContractError):
        return {"file": str(path), "ok": False, "errors": [str(text)]}, None
    parsed = parse(text, str(path), shipped)
    if not isinstance(parsed, Contract):
        return {"file": str(path), "ok": False, "errors": [str(each) for each in parsed]}, None
    today = datetime.fromtimestamp(SystemClock().now().wall / 1_000, UTC).date()
    wrong = [
        f"{path}:{one.example.line}: {one.example.on} with {one.example.http}: expected "
        f"{one.example.expect}, concluded {one.concluded}"
        for one in replay(parsed)
    ]
    errors = _schema_errors(path, parsed)
    told: dict[str, Any] = {
        "file": str(path),
        "ok": not wrong and not errors,
        "provider": parsed.provider,
        "errors": errors,
        "report": [
            {"code": one.code, "warning": one.warning, "text": str(one)}
            for one in report(parsed, today, key_lines(text))
        ],
        EXAMPLES: {"replayed": len(parsed.examples), "failed": wrong},
    }
    return told, parsed


def _schema_errors(path: Path, contract: Contract) -> list[str]:
    """Input schemas that are no JSON Schema: the loader reads them, the validator would not."""
    from forbear.tools.samples import fault

    actions = (*contract.jobs.values(), *contract.calls.values())
    groups = dict.fromkeys(contract.jobs, "jobs") | dict.fromkeys(contract.calls, "calls")
    return [
        f"{path}: {groups[action.name]}.{action.name}.input: {wrong} -> write JSON Schema 2020-12"
        for action in actions
        if (wrong := fault(action.input)) is not None
    ]


def _show(told: dict[str, Any]) -> None:
    if told["errors"]:
        for error in told["errors"]:
            say(error, "red")
        return
    say(f"{told['file']}: provider {told['provider']}, no mistakes", "green")
    for finding in told["report"]:
        mark = "warning" if finding["warning"] else "note"
        say(f"  {mark}: {finding['text']}", "yellow" if finding["warning"] else None)
    for wrong in told[EXAMPLES]["failed"]:
        say(f"  example failed: {wrong}", "red")
    replayed = told[EXAMPLES]["replayed"]
    passed = replayed - len(told[EXAMPLES]["failed"])
    say(f"  {passed} of {replayed} examples come out" if replayed else "  no examples to replay")


def _show_sample(
    checked: list[tuple[dict[str, Any], Contract | None]], sample: Path, on: str | None, http: int
) -> None:
    from forbear.rules.replay import signal_of, word

    match checked:
        case [(_, contract)] if contract is not None:
            pass
        case [(told, None)]:
            raise Failure("\n".join(told["errors"]), 1)
        case _:
            raise Failure(
                "--sample needs one contract file: forbear contract check FILE --sample …"
            )
    request = on or next((f"jobs.{name}.status" for name in contract.jobs), None)
    if request is None:
        raise Failure("Name the request of the answer: --on calls.NAME")
    try:
        body = sample.read_bytes()
        headers = (("Content-Type", "application/json"),)
        signal = signal_of(contract, request, http, headers, body)
    except OSError as error:
        raise Failure(f"{sample} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Failure(str(error)) from error
    say(f"{request}, {http}: {word(signal)}")
    for line in _read_in(contract, request, signal):
        say(f"  {line}")


def _read_in(contract: Contract, request: str, signal: Signal) -> Iterator[str]:
    """What was read in an answer, and what would make another conclusion of it."""
    from forbear.rules.contract_jobs import GAPS
    from forbear.rules.reading import JOINT
    from forbear.rules.signals import Meaning

    job = contract.jobs.get(request.split(".")[1])
    absent = signal.state is not None and set(signal.state.split(JOINT)) <= GAPS
    if signal.state is not None and not absent:
        yield f"read the state {signal.state!r}"
    if signal.meaning is Meaning.UNKNOWN_STATE and job is not None:
        words = ", ".join(dict.fromkeys(str(row.means) for row in job.states.rows))
        yield (
            "there is no word where the contract reads the state -> correct `state`"
            if absent
            else f"no row has it -> add it to one of {words}"
        )
    for missing in signal.missing:
        yield f"missing: {missing} -> correct the pointer, or require it no longer"
    if signal.mismatch is not None:
        yield f"does not match: {signal.mismatch} -> correct echo"
    if signal.failure_code is not None or signal.failure_message is not None:
        told = ", ".join(filter(None, (signal.failure_code, signal.failure_message)))
        yield f"read the failure {told!r}"
    yield from (f"odd: {anomaly}" for anomaly in signal.anomalies)


def schema(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it there, and say how editors use it."),
    ] = None,
) -> None:
    """Print the JSON Schema of contract files, for editors."""
    from forbear.rules.contract_schema import schema as made

    if out is None:
        say_json(made())
        return
    try:
        out.write_text(json.dumps(made(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"--out {out}: {error.strerror}.") from error
    say(f"Wrote {out}.")
    say()
    for line in _of_editors(out.resolve(), settings().contracts):
        say(line)


def _of_editors(written: Path, contracts: Path) -> Iterator[str]:
    """What makes editors complete and check contracts, by their TOML extensions."""
    pattern = json.dumps(f"^{re.escape(contracts.as_uri())}/.*\\.toml$")
    where = json.dumps(written.as_uri())
    yield "VS Code and Cursor with Even Better TOML, in settings.json:"
    yield f'  "evenBetterToml.schema.associations": {{ {pattern}: {where} }}'
    yield "Neovim, Helix, Zed and others with taplo, in .taplo.toml of the contracts' folder:"
    yield "  [[rule]]"
    yield '  include = ["*.toml"]'
    yield f"  schema = {{ path = {where} }}"
    yield "Or in one file, as its first line:"
    yield f"  #:schema {written.as_uri()}"


def list_all(as_json: AsJson = False) -> None:
    """List the contracts of the home, and the shipped ones that are not switched on.

    With their jobs and calls, and whether the key is there.
    """
    from forbear.server.library import library, switched_on

    home = settings()
    used = switched_on(home.contracts)
    unused = [one for one in library() if one.name not in used]
    shipped = [adding.described(one, used) for one in unused]

    async def listed() -> None:
        async with opened(home) as store:
            found = _providers(home.contracts, store.key)
            if as_json:
                say_json({"contracts": found, "shipped": shipped})
            elif not found:
                say(f"No contracts in {home.contracts}. `{how_to_begin(home)}` begins one.")
            for one in [] if as_json else found:
                _show_provider(one)
            _tell_shipped([] if as_json else [one.name for one in unused])
            await remark_if_nobody_sends(store)

    if is_new(home) and not home.contracts.is_dir():
        if as_json:
            say_json({"contracts": [], "shipped": shipped})
            return
        say("No contracts yet. `forbear init` begins.")
        _tell_shipped([one.name for one in unused])
        return
    run(listed)


def _tell_shipped(names: list[str]) -> None:
    if names:
        say(f"Shipped, and not switched on (`forbear contract add NAME`): {', '.join(names)}.")


def _providers(folder: Path, key: bytes) -> list[dict[str, Any]]:
    from forbear.server.credentials import Credentials, MissingCredential
    from forbear.server.providers import Contracts

    contracts = Contracts(folder, Credentials(), key)
    found: list[dict[str, Any]] = []
    for name, contract in sorted(contracts.contracts().items()):
        credential = contracts.credential(contract)
        missing = str(credential) if isinstance(credential, MissingCredential) else None
        found.append(
            {
                "provider": name,
                "file": contract.file,
                "base_url": contract.base_url,
                "jobs": list(contract.jobs),
                "calls": list(contract.calls),
                "credential_missing": missing,
            }
        )
    found += [
        {"provider": name, "errors": [str(error) for error in errors]}
        for name, errors in sorted(contracts.errors().items())
    ]
    return found


def _show_provider(one: dict[str, Any]) -> None:
    if "errors" in one:
        say(f"{one['provider']}: does not load", "red")
        for error in one["errors"]:
            say(f"  {error}", "red")
        return
    say(f"{one['provider']}  {one['base_url']}  ({one['file']})")
    say(f"  jobs: {', '.join(one['jobs']) or 'none'}")
    if one["calls"]:
        say(f"  calls: {', '.join(one['calls'])}")
    if one["credential_missing"] is not None:
        say(f"  key missing: {one['credential_missing']}", "yellow")
