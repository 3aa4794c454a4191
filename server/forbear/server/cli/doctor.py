"""`doctor`: whether home, store, contracts, keys and processes are well, each with its one fix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forbear.server.cli import surroundings
from forbear.server.cli.home import NOBODY, how_to_begin, run, senders, settings, where
from forbear.server.cli.reading import AsJson
from forbear.server.cli.surroundings import Finding
from forbear.server.cli.terminal import say, say_json
from forbear.server.config import BadSettings

if TYPE_CHECKING:
    from forbear.rules.contract import Contract
    from forbear.server.config import Settings
    from forbear.storage.store import Store


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    ask_online: Annotated[
        bool, typer.Option("--online", help="Ask each provider with one harmless read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at the home, store, contracts, keys, processes, clock and clients.

    Each finding comes with its fix. With --online it asks as `forbear contract check --online`
    does, reserved and budgeted like any other request. Exit 1 if something is wrong.
    """
    try:
        home = settings()
    except BadSettings as error:
        told, _, fix = str(error).rpartition("; ")
        _report([Finding("settings", told or fix, False, fix if told else None)], as_json=as_json)
        raise typer.Exit(1) from error
    found: list[Finding] = [_home(home), *_relative(home), *_readable_by_others(home)]
    found.append(surroundings.program())
    if found[0].ok is False:
        _report(found, as_json=as_json)
        raise typer.Exit(1)
    from forbear.storage.errors import StoreError

    try:
        found += run(lambda: _examined(home))
        found += _reached(home) if ask_online else []
    except StoreError as error:
        told, _, fix = str(error).partition(" -> ")
        found.append(Finding("store", told, False, fix or _remedy(told)))
        _report(found, as_json=as_json)
        raise typer.Exit(3) from error
    _report(found, as_json=as_json)
    if any(one.ok is False for one in found):
        raise typer.Exit(1)


def _reached(home: Settings) -> Iterator[Finding]:
    """What one harmless read of each provider brought."""
    from forbear.server.cli import online
    from forbear.server.credentials import Credentials
    from forbear.server.providers import Contracts

    contracts = [*Contracts(home.contracts, Credentials(), b"").contracts().values()]
    for one in online.reached(home, contracts, account_only=False):
        what = f"reach {one['provider']}"
        if not one["sent"]:  # a key that is missing is a finding of its own
            yield Finding(what, one["told"], None)
            continue
        told = f"{one['request']}: {one['status'] or 'no answer'}, {one['state']}"
        fix = None if one["ok"] else f"forbear show {one['operation_id']} tells what happened"
        yield Finding(what, told, bool(one["ok"]), fix)


def _report(found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "ok": all(one.ok is not False for one in found),
                "findings": [
                    {"what": one.what, "told": one.told, "ok": one.ok, "fix": one.fix}
                    for one in found
                ],
            }
        )
        return
    for one in found:
        say(one.line(), {True: None, False: "red", None: "yellow"}[one.ok])


def _remedy(told: str) -> str:
    """The one thing to do about a store that cannot be opened."""
    if "not a database" in told or "malformed" in told:
        return "restore a backup of it"
    if "full" in told:
        return "free the disk"
    if "is missing" in told:
        return "forbear keys restore FILE, or copy keys/ from a backup or another host"
    return "give the file back to this user"


def _home(home: Settings) -> Finding:
    if not home.home.exists():
        return Finding("home", f"{home.home} is not there yet", None, "forbear init")
    if not os.access(home.home, os.W_OK):
        return Finding("home", f"{home.home} cannot be written", False, "chown it to this user")
    return Finding("home", str(home.home))


def _relative(home: Settings) -> Iterator[Finding]:
    stated = os.environ.get("FORBEAR_HOME", "")
    if stated and not Path(stated).expanduser().is_absolute():
        told = f"{stated!r} is relative: started elsewhere, the same setting is another home"
        yield Finding("FORBEAR_HOME", told, None, f"set it to {home.home}")


def _readable_by_others(home: Settings) -> Iterator[Finding]:
    """The folder of keys and what is in it, and a stated token, are for this user alone."""
    from forbear.storage.files import exposed

    keys = home.home / "keys"
    for path in (keys, *(sorted(keys.iterdir()) if keys.is_dir() else ()), home.home):
        if path.exists() and (mode := exposed(path.stat())) is not None:
            secret = path != home.home
            told = f"{path} has mode {mode}, so others on this machine can look into it"
            fix = f"chmod {'700' if path.is_dir() else '600'} {path}"
            yield Finding("keys" if secret else "home", told, False if secret else None, fix)
    config = home.home / "config.toml"
    if config.exists() and exposed(config.stat()) is not None and _states_token(config):
        told = f"{config} can be read by others, and it states the operator token"
        yield Finding("operator token", told, False, f"chmod 600 {config}")


def _states_token(config: Path) -> bool:
    """Whether the token stands in the file itself: that of an environment is not in it."""
    import tomllib

    return "operator_token" in tomllib.loads(config.read_text(encoding="utf-8"))


async def _examined(home: Settings) -> list[Finding]:
    from forbear.server.cli.home import opened

    async with opened(home) as store:
        return [
            *await _store(store),
            _log(home, store),
            *await _contracts(home, store),
            *await _answers(home, store),
            await _processes(store),
            *surroundings.worker(home),
            *surroundings.clients(home),
            _token(home),
            _webhook(home),
        ]


async def _store(store: Store) -> list[Finding]:
    from forbear.storage.brakes import COPY
    from forbear.storage.schema import GENERATION

    paused = await store.read.pauses()
    return [
        *(
            Finding("copy", f"{one['by']['why']}: only lookups are sent", False, "forbear adopt")
            for one in paused
            if one["target"] == COPY
        ),
        *surroundings.pauses(paused, store.clock.now().wall),
        Finding("store", f"{store.place}, schema {GENERATION}"),
        surroundings.database(*await store.read.engine()),
    ]


def _log(home: Settings, store: Store) -> Finding:
    """The keys of the audit log: they fit, or the store would not be open."""
    from forbear.server.keeping import places
    from forbear.storage.rekeying import survey

    told = survey(where(home), places(home))
    named = ", ".join(f"{one.name} in {one.where}" for one in told.keys)
    closed = [str(one.number) for one in told.epochs if not one.readable]
    note = f"; the key of epoch {', '.join(closed)} was lost" if closed else ""
    return Finding("keys of the audit log", f"{named}{note}", None if closed else True)


async def _contracts(home: Settings, store: Store) -> list[Finding]:
    import asyncio

    from forbear.server.credentials import Credentials, MissingCredential
    from forbear.server.providers import Contracts

    contracts = Contracts(home.contracts, Credentials(), store.key)
    await asyncio.gather(*map(contracts.arrived, contracts.contracts()))
    living = await senders(store)
    found: list[Finding] = []
    for name, contract in sorted(contracts.contracts().items()):
        credential = contracts.credential(contract)
        count = len(contract.jobs)
        jobs = f"{count} job{'s' if count != 1 else ''}, {contract.file}"
        if isinstance(credential, MissingCredential):
            reference, _, fix = str(credential).partition(" -> ")
            bound = {one.binding for one in (*contract.jobs.values(), *contract.calls.values())}
            able = next((one for one in living if bound & set(one.bindings)), None)
            found.append(
                Finding(f"key of {name}", reference, False, fix or None)
                if able is None
                else Finding(
                    f"key of {name}",
                    f"{reference} here; {able.role} (process {able.pid}) has it",
                    None,
                )
            )
        else:
            found.append(Finding(f"contract {name}", f"{jobs}, key present"))
    for name, errors in sorted(contracts.errors().items()):
        first, _, fix = str(errors[0]).partition(" -> ")
        many = "1 mistake" if len(errors) == 1 else f"{len(errors)} mistakes, the first"
        found.append(Finding(f"contract {name}", f"{many}: {first}", False, fix or None))
    if not found:
        told = f"none in {home.contracts}"
        found.append(Finding("contracts", told, None, how_to_begin(home)))
    return found


async def _answers(home: Settings, store: Store) -> list[Finding]:
    """What recent answers tell: what lies between us and the providers, and of our clock."""
    from forbear.server.credentials import Credentials
    from forbear.server.providers import Contracts

    found = [*_proxies(home, os.environ)]
    contracts = Contracts(home.contracts, Credentials(), store.key)
    received: dict[str, list[tuple[int, list[list[str]]]]] = {}
    for name, contract in sorted(contracts.contracts().items()):
        received[name] = await store.read.recent_answers(name)
        found += _layers_of(contract, [headers for _, headers in received[name]])
    clock = surroundings.clock(received)
    return found if clock is None else [*found, clock]


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def _proxies(home: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    if home.proxy is not None:
        from forbear.server.credentials import Credentials, MissingCredential

        told = f"requests go through {home.proxy.place}, which resolves the names of providers"
        found = Credentials().resolve(home.proxy.auth)
        if isinstance(found, MissingCredential):
            reference, _, fix = str(found).partition(" -> ")
            yield Finding("proxy", f"{told}; {reference}", False, fix or None)
        else:
            yield Finding("proxy", told)
        return
    named = [one for one in environment if one.upper() in _PROXIES and environment[one]]
    if named:
        yield Finding(
            "proxy",
            f"{', '.join(sorted(named))} set, and never used: requests go to providers directly",
            None,
            "none needed, unless only the proxy leads out: then set [proxy] in config.toml",
        )


def _layers_of(contract: Contract, answers: Sequence[Sequence[Sequence[str]]]) -> Iterator[Finding]:
    """Layers that a contract declares, and those that recent answers betray.

    Envoy counts its attempts in `x-envoy-attempt-count`; `Via` (RFC 9110, section 7.6.3) only
    says that somebody passes requests on.
    """
    what, below = f"layers of {contract.provider}", contract.resends_below
    fields = [(name.lower(), value) for answer in answers for name, value in answer]
    seen = [int(v) for n, v in fields if n == "x-envoy-attempt-count" and _counts(v)]
    times = max(seen, default=1)
    if times > 1 + below:
        yield Finding(
            what,
            f"an answer says that our request was sent {times} times below us "
            f"(x-envoy-attempt-count), and {contract.file} declares {1 + below}",
            False,
            "let that layer send nothing again, or write "
            f"resends_below = {min(times - 1, 10)} at the top of the file",
        )
    elif below:
        yield Finding(
            what,
            f"declared: one request may arrive {1 + below} times, and each attempt counts so",
            None,
            f"remove resends_below from {contract.file} when no layer sends again",
        )
    elif any(name == "via" for name, _ in fields):
        yield Finding(
            what,
            "answers come through a proxy or gateway (Via)",
            None,
            f"if it sends requests again, write resends_below = N at the top of {contract.file}",
        )


def _counts(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 10


async def _processes(store: Store) -> Finding:
    living = await senders(store)
    if not living:
        return Finding("processes", NOBODY, None)
    told = ", ".join(f"{one.role} (process {one.pid})" for one in living)
    return Finding("processes", f"{told} can send")


def _token(home: Settings) -> Finding:
    from forbear.server import operator

    if not operator.is_known(home):
        told = (
            "none yet: the first FORBEAR_OPERATOR_TOKEN that decides becomes the one of this home"
        )
        return Finding("operator token", told, None)
    return Finding("operator token", "known: cases can be decided without a terminal")


def _webhook(home: Settings) -> Finding:
    from forbear.server.clock import SystemClock
    from forbear.server.credentials import Credentials
    from forbear.tools.times import clock_time

    what = "webhook"
    if home.notify is None:
        told = "none set: people learn of cases from the inbox and the console"
        return Finding(what, told, None)
    from forbear.server.notify import last, signing_key

    key = signing_key(home.notify, Credentials())
    if isinstance(key, str):
        told, _, fix = key.partition(" -> ")
        return Finding(what, told, False, fix or None)
    known, now = last(home.home), SystemClock().now().wall
    worked, failed = known.get("worked_at"), known.get("failed_at")
    told = f"{home.notify.place}, from urgency {home.notify.urgency} on; "
    told += "it has not been needed yet" if worked is None and failed is None else ""
    told += f"last worked {clock_time(worked, now)}" if worked is not None else ""
    if failed is not None and failed > (worked or 0):
        told += f"{', ' if worked is not None else ''}failed {clock_time(failed, now)}"
        return Finding(what, f"{told}: {known.get('why')}", False, "look at its receiver")
    return Finding(what, told)
