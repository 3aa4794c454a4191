"""The shipped contracts as a library: what each offers and asks for; the file that adapts one."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import parse
from forbear.server.providers import asked_of_account, shipped, shipped_names

_REFERENCE = re.compile(r"(?:env|file|keyring|exec):\S*")


@dataclass(frozen=True, slots=True)
class Shipped:
    """A contract that comes with Forbear."""

    name: str
    title: str
    jobs: tuple[str, ...]
    calls: tuple[str, ...]
    auth: Any
    """As the file states it: a short form or a table."""
    asked: tuple[str, ...]
    """Values of the account that the file of a user must state."""
    usual: Mapping[str, str]
    """Values of the account that it may state, and what holds otherwise."""
    deadline: str | None
    """Of the first job."""
    text: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The references of its credential, and the command where one gives it."""
        if isinstance(self.auth, str):
            return tuple(_REFERENCE.findall(self.auth))
        if not isinstance(self.auth, Mapping):
            return ()
        stated = [one for one in self.auth.values() if isinstance(one, str)]
        found = [one for one in stated if _REFERENCE.fullmatch(one)]
        command = self.auth.get("exec")
        return tuple(
            f"exec: {shlex.join(command)}" if one == "exec:" and command else one for one in found
        )

    def example(self, key: str) -> str | None:
        """A value of the account as a remark of the contract shows it, for people."""
        remarks = [line.partition("#")[2] for line in self.text.splitlines() if "#" in line]
        for remark in remarks:
            found = re.search(rf'\b{re.escape(key)} = ("[^"]+"|\w+)', remark)
            found = found or re.search(rf'\[account\] {re.escape(key)}\b[^"]*"([^"]+)"', remark)
            if found is not None:
                return found[1].strip('"')
        return None

    def use_of(self, key: str) -> str | None:
        """Where the contract uses a value of the account."""
        loaded = tomllib.loads(self.text)
        return next((one for one in _texts(loaded) if f"{{account.{key}" in one), None)


def library() -> list[Shipped]:
    """All of them, by name."""
    return [found for name in shipped_names() if (found := entry(name)) is not None]


def entry(name: str) -> Shipped | None:
    """The shipped contract of this name, or None."""
    text = shipped(name)
    if text is None:
        return None
    loaded = tomllib.loads(text)
    account = {key: str(value) for key, value in loaded.get("account", {}).items()}
    first: dict[str, Any] = next(iter(loaded.get("jobs", {}).values()), {})
    deadline = first.get("deadline", first.get("limits", {}).get("deadline"))
    return Shipped(
        name,
        str(loaded.get("title", name)),
        tuple(loaded.get("jobs", {})),
        tuple(loaded.get("calls", {})),
        loaded.get("auth", "none"),
        tuple(asked_of_account(text)),
        {key: value for key, value in account.items() if key not in ("id", "check")},
        deadline,
        text,
    )


def switched_on(folder: Path) -> set[str]:
    """Names of the shipped contracts that a file of the folder uses."""
    found: set[str] = set()
    for path in folder.glob("*.toml"):
        try:
            used = tomllib.loads(path.read_text(encoding="utf-8")).get("use")
        except (OSError, ValueError):
            continue
        found |= {used} if isinstance(used, str) else set()
    return found


def overlay(one: Shipped, provider: str, account: Mapping[str, str]) -> str:
    """The text of a file that adapts a shipped contract to an account. `account` has its `id`."""
    actions = [*(f"{provider}.{name}" for name in (*one.jobs, *one.calls))][:1]
    lines = [
        f"# {one.title}, as it comes with Forbear: `use` brings its jobs and calls, and what each",
        "# answer means. This file says what is yours: the key, the account, your limits.",
        f"#     forbear contract check {provider}.toml     what it leaves open",
        *(f"#     forbear try {action} …" for action in actions),
        "",
        "contract = 1",
        f"use      = {_toml(one.name)}",
        "",
        *_auth_lines(one),
        "",
        "[account]",
    ]
    width = max(map(len, account))
    for key, value in account.items():
        line = f"{key:<{width}} = {_toml(value)}"
        note = "your name for the account; part of every job's identity" if key == "id" else None
        lines.append(f"{line:<40}# {note}" if note else line)
    lines += [
        f"# {key:<{width}} = {_toml(usual)}"
        for key, usual in one.usual.items()
        if key not in account
    ]
    if one.deadline is not None:
        lines += [
            "",
            "# A limit of yours where that of the contract does not fit:",
            f"# [jobs.{one.jobs[0]}.limits]",
            f"# deadline = {_toml(one.deadline)}",
        ]
    return "\n".join(lines) + "\n"


def checked(text: str, file: Path) -> Contract | tuple[ContractError, ...]:
    """The contract of a text that would stand in a file."""
    return parse(text, str(file), shipped)


def _auth_lines(one: Shipped) -> Iterator[str]:
    if one.auth == "none":
        yield "# It asks for no key."
        return
    yield "# The key it reads: a reference, never the key. Other places are file:/path and"
    yield "# keyring:service/user: take the # away, and this line replaces that of the contract."
    if isinstance(one.auth, str):
        yield f"# auth = {_toml(one.auth)}"
    else:
        stated = ", ".join(f"{key} = {_toml(value)}" for key, value in one.auth.items())
        yield f"# auth = {{ {stated} }}"


def _toml(value: Any) -> str:
    """A text, number, truth value or list as TOML writes it. What JSON escapes, TOML does alike."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for inner in value.values():
                yield from _texts(inner)
        case Sequence():
            for inner in value:
                yield from _texts(inner)
        case _:
            pass
