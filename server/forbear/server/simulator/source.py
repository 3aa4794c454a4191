"""Which contract is meant: a file, a provider of the home, or one that comes with Forbear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse, tables
from forbear.rules.contract_forms import Raw
from forbear.server.providers import asked_of_account, read_text, shipped, shipped_names

SAMPLE = "sample"
"""What stands for a value of the account that a shipped contract leaves open."""


class NoContract(ValueError):
    """There is no such contract, or it has mistakes; the message says which."""


@dataclass(frozen=True, slots=True)
class Source:
    """A contract that loads, and the tables that it was made of."""

    contract: Contract
    raw: Raw
    """In the long forms, `use` resolved."""
    shown: str
    """What a person calls it: the file, or the name of a shipped contract."""


def find(name: str | None, folder: Path) -> Source:
    """The contract that `name` means: a file, a provider in `folder`, or a shipped one.

    Without a name it is the only one in `folder`. Raises `NoContract`.
    """
    if name is None:
        return _only(folder)
    path = Path(name)
    if name.endswith(".toml") or path.is_file():
        return of_file(path)
    if (folder / f"{name}.toml").is_file():
        return of_file(folder / f"{name}.toml")
    text = shipped(name)
    if text is not None:
        return of_text(_adapting(name, text), f"{name}.toml", f"{name}, as shipped")
    named = [one for one in _all(folder) if one.contract.provider == name]
    if named:
        return named[0]
    known = [path.stem for path in sorted(folder.glob("*.toml"))] + shipped_names()
    raise NoContract(
        f"There is no contract {name!r}: it is no file, not in {folder}, and none of those that "
        f"come with Forbear. There are {', '.join(dict.fromkeys(known))}."
    )


def split(name: str, folder: Path) -> tuple[str, str | None]:
    """`[FILE|PROVIDER][.ACTION]` as the contract and the action."""
    if Path(name).is_file() or (folder / f"{name}.toml").is_file() or shipped(name) is not None:
        return name, None
    contract, dot, action = name.rpartition(".")
    return (contract, action) if dot and action != "toml" else (name, None)


def of_file(path: Path) -> Source:
    """The contract of a file. Raises `NoContract`."""
    text = read_text(path)
    if isinstance(text, ContractError):
        raise NoContract(str(text))
    return of_text(text, str(path), str(path))


def of_text(text: str, file: str, shown: str) -> Source:
    """The contract of a text. Raises `NoContract`."""
    contract, raw = parse(text, file, shipped), tables(text, file, shipped)
    if not isinstance(contract, Contract) or isinstance(raw, tuple):
        errors = contract if isinstance(contract, tuple) else raw
        raise NoContract("\n".join(map(str, errors)))
    return Source(contract, raw, shown)


def _only(folder: Path) -> Source:
    files = sorted(folder.glob("*.toml"))
    match files:
        case [only]:
            return of_file(only)
        case []:
            raise NoContract(
                f"There is no contract in {folder}. Name a file, or one that comes with Forbear: "
                f"{', '.join(shipped_names())}."
            )
        case _:
            named = ", ".join(path.stem for path in files)
            raise NoContract(f"There are several contracts in {folder}: name one of {named}.")


def _all(folder: Path) -> list[Source]:
    found: list[Source] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            found.append(of_file(path))
        except NoContract:
            continue
    return found


def _adapting(name: str, text: str) -> str:
    """A file that uses a shipped contract, with samples for what that asks of the account."""
    asked = asked_of_account(text)
    lines = (f'{key} = "{SAMPLE}{".example" if "host" in key else ""}"\n' for key in asked)
    return f'contract = 1\nuse = "{name}"\n[account]\nid = "{SAMPLE}"\n{"".join(lines)}'
