"""`contract add`: switch a shipped contract on, or look through the library of them."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forbear.server.cli import drafting
from forbear.server.cli.home import settings
from forbear.server.cli.reading import AsJson
from forbear.server.cli.terminal import Failure, at_a_terminal, say, say_json, typed

if TYPE_CHECKING:
    from forbear.rules.contract import Contract
    from forbear.server.config import Settings
    from forbear.server.library import Shipped


def register(group: typer.Typer) -> None:
    group.command()(add)


def add(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Default: lists the shipped contracts.",
            autocompletion=lambda incomplete: _names(incomplete),
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Of your account; id=… is your name for it."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option("--as", metavar="PROVIDER", help="Under another name, as for a second key."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Switch a shipped contract on: write a short file that uses it. Nothing there is changed.

    The file names where the key is and what is yours of the account, and can be edited.
    """
    home = settings()
    if name is None:
        _list(home, as_json=as_json)
        return
    ask = at_a_terminal() and not as_json
    told = added(home, name, values or [], provider, ask=ask)
    if as_json:
        say_json(told)
        return
    show(told)


def _names(incomplete: str) -> list[str]:
    from forbear.server.providers import shipped_names

    return [name for name in shipped_names() if name.startswith(incomplete)]


def added(
    home: Settings, name: str, values: Sequence[str], provider: str | None = None, *, ask: bool
) -> dict[str, Any]:
    """Write the file that switches a shipped contract on; what was done and what comes next.

    With `ask`, a person is asked for values of the account that are missing. Raises Failure.
    """
    from forbear.server.library import checked, overlay

    one = known(name)
    if provider is not None:
        drafting.check_name(provider, "--as")
    file = home.contracts / f"{provider or name}.toml"
    if file.exists():
        raise Failure(
            f"{file} is there already and was not changed. `--as NAME` switches it on once more.", 1
        )
    account = _account(one, values, ask=ask)
    text = overlay(one, file.stem, account)
    contract = checked(text, file)
    if isinstance(contract, tuple):
        wrong = "\n".join(f"  {error.key}: {error.problem} -> {error.fix}" for error in contract)
        raise Failure(f"{name} cannot be switched on with that, and nothing was written:\n{wrong}")
    _refuse_double(home, contract.provider)
    try:
        home.contracts.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise Failure(f"{file} cannot be written ({error.strerror}).", 3) from error
    return _told(home, one, contract, file)


def there(home: Settings, name: str, values: Sequence[str]) -> Path | None:
    """The file that has switched the contract on already, with these very values, or None."""
    from forbear.server.providers import read_text

    file = home.contracts / f"{name}.toml"
    text = read_text(file)
    try:
        made = tomllib.loads(text) if isinstance(text, str) else {}
    except tomllib.TOMLDecodeError:
        return None
    account = made.get("account")
    held = account if isinstance(account, dict) else {}
    as_stated = all(
        f"{held.get(key)}" == value for key, _, value in (word.partition("=") for word in values)
    )
    return file if made.get("use") == name and as_stated else None


def known(name: str) -> Shipped:
    """The shipped contract of this name. Raises Failure."""
    from difflib import get_close_matches

    from forbear.server.library import entry
    from forbear.server.providers import shipped_names

    found = entry(name)
    if found is None:
        near = get_close_matches(name.lower(), shipped_names(), 1, 0.5)
        meant = f" {near[0]} is one." if near else ""
        raise Failure(
            f"No shipped contract is named {name!r}.{meant} `forbear contract add` lists them; "
            "`forbear contract new` begins one of your own."
        )
    return found


def _account(one: Shipped, values: Sequence[str], *, ask: bool) -> dict[str, str]:
    able = ("id", *one.asked, *one.usual)
    given: dict[str, str] = {}
    for word in values:
        key, equals, value = word.partition("=")
        if not equals or not key:
            names = " or ".join(f"{name}=…" for name in able)
            raise Failure(f"{word!r} is not KEY=VALUE; write {names}.")
        if key in given:
            raise Failure(f"{key} is named twice.")
        if not value.isprintable():
            raise Failure(f"{key} has a character that cannot be printed.")
        given[key] = value
    odd = [key for key in given if key not in able]
    if odd:
        raise Failure(f"{one.name} has no {odd[0]} of an account; it has {', '.join(able)}.")
    missing = [key for key in one.asked if not given.get(key)]
    if missing and not ask:
        words = " ".join(f"{key}={one.example(key) or '…'}" for key in missing)
        uses = [f"{key} is used in {one.use_of(key)}" for key in missing if not one.example(key)]
        used = f" ({'; '.join(uses)})" if uses else ""
        raise Failure(
            f"{one.title} needs {' and '.join(missing)} of your account{used}, such as\n"
            f"  forbear contract add {one.name} {words}"
        )
    for key in missing:
        given[key] = _asked(one, key)
    return {"id": given.pop("id", "main"), **given}


def _asked(one: Shipped, key: str) -> str:
    hint = one.example(key)
    such = f", such as {hint}" if hint else f", for {one.use_of(key)}"
    answer = typed(f"{key} of your {one.title} account{such}: ", "Nothing was written.")
    if not answer:
        raise Failure(f"Without {key} nothing was written.")
    return answer


def _refuse_double(home: Settings, provider: str) -> None:
    from forbear.server.credentials import Credentials
    from forbear.server.providers import Contracts

    other = Contracts(home.contracts, Credentials(), b"").contracts().get(provider)
    if other is not None:
        raise Failure(
            f"{other.file} describes {provider} already. `--as NAME` gives it another.", 1
        )


# --- what is told ---------------------------------------------------------------------------


def _told(home: Settings, one: Shipped, contract: Contract, file: Path) -> dict[str, Any]:
    unset = [key for key in one.keys if key.startswith("env:") and not _is_set(key)]
    return {
        "provider": contract.provider,
        "title": one.title,
        "file": str(file),
        "jobs": list(contract.jobs),
        "calls": list(contract.calls),
        "keys": list(one.keys),
        "unset": [key.removeprefix("env:") for key in unset],
        "next": [f"forbear contract check {shlex.quote(str(file))}", tried(contract)],
    }


def _is_set(key: str) -> bool:
    return bool(os.environ.get(key.removeprefix("env:"), "").strip())


def tried(contract: Contract) -> str:
    """A `forbear try` line: a read where there is one that needs little, else the first job."""
    from forbear.rules.model import RequestClass
    from forbear.tools import samples

    reads = [one for one in contract.calls.values() if one.send.request_class is RequestClass.READ]
    reads.sort(key=lambda one: len(samples.of(one.input)))
    action = [*reads, *contract.jobs.values(), *contract.calls.values()][0]
    words = [_word(key, value) for key, value in samples.of(action.input).items()]
    return " ".join(("forbear try", f"{contract.provider}.{action.name}", *words))


def _word(key: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{key}={shlex.quote(value)}"
    return shlex.quote(f"{key}:={json.dumps(value, ensure_ascii=False)}")


def show(told: Mapping[str, Any]) -> None:
    """What `added` did, for a person."""
    say(f"{told['title']} is switched on as {told['provider']}: {told['file']}", "green")
    if told["jobs"]:
        say(f"  jobs   {', '.join(told['jobs'])}")
    if told["calls"]:
        say(f"  calls  {', '.join(told['calls'])}")
    for key in told["keys"]:
        name = key.removeprefix("env:")
        if name in told["unset"]:
            say(f"  key    export {name}=…   (or write another place into the file)", "yellow")
        elif key.startswith("env:"):
            say(f"  key    {name} is set here")
        else:
            say(f"  key    {key}")
    first, *rest = told["next"]
    say(f"  next   {first}")
    for line in rest:
        say(f"         {line}")


def _list(home: Settings, *, as_json: bool) -> None:
    from forbear.server.library import library, switched_on

    used = switched_on(home.contracts)
    if as_json:
        say_json({"shipped": [described(one, used) for one in library()]})
        return
    for one in library():
        on = "   (switched on)" if one.name in used else ""
        say(f"{one.name:<14} {one.title}{on}", "green" if on else None)
        if one.jobs:
            say(f"    jobs     {', '.join(one.jobs)}")
        if one.calls:
            say(f"    calls    {', '.join(one.calls)}")
        say(f"    key      {', '.join(one.keys) or 'none'}")
        if one.asked:
            say(f"    account  {', '.join(f'{key}=…' for key in one.asked)}")
    say()
    say("`forbear contract add NAME [KEY=VALUE]...` switches one on.")


def described(one: Shipped, used: set[str]) -> dict[str, Any]:
    """A shipped contract as JSON."""
    return {
        "name": one.name,
        "title": one.title,
        "jobs": list(one.jobs),
        "calls": list(one.calls),
        "keys": list(one.keys),
        "account": list(one.asked),
        "switched_on": one.name in used,
    }
