"""The contracts of a home as this process holds them: read again when they changed."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_file import left_to_account, parse
from forbear.server.credentials import Credential, Credentials, MissingCredential
from forbear.server.upstream import Target
from forbear.storage.roster import pairing
from forbear.storage.transitions import Holding

Stamp = tuple[int, int, int]
"""Modification time, size and inode of a file: what tells that it changed."""


@dataclass(frozen=True, slots=True)
class _File:
    stamp: Stamp
    contract: Contract | None
    errors: tuple[ContractError, ...]


class Contracts:
    """All contract files of a folder. A broken one never takes the others down.

    A file that became broken while the process runs stops its provider; nothing is sent on what a
    person has taken back.
    """

    def __init__(self, folder: Path, credentials: Credentials, store_key: bytes) -> None:
        self._folder = folder
        self._credentials = credentials
        self._store_key = store_key
        self._files: dict[Path, _File] = {}
        self._stamps: dict[str, Stamp] = {}
        self._fresh = False
        self.refresh()

    def _look(self) -> None:
        """`refresh`, once in a turn of the event loop: a request asks for its contract often."""
        if self._fresh:
            return
        self.refresh()
        with suppress(RuntimeError):  # no loop, no turns
            asyncio.get_running_loop().call_soon(self._age)
            self._fresh = True

    def _age(self) -> None:
        self._fresh = False

    def refresh(self) -> bool:
        """Read what changed since the last time. True if anything did."""
        found = _stamps(self._folder)
        if found == self._stamps:
            return False
        self._stamps = found
        before, self._files = self._files, {}
        for name, stamp in sorted(found.items()):
            path = self._folder / name
            known = before.get(path)
            if known is None or known.stamp != stamp:
                known = _load(path, stamp)
            self._files[path] = known
        return True

    def contracts(self) -> Mapping[str, Contract]:
        """Those that load, by provider, as their files stand now."""
        self._look()
        by_name: dict[str, Contract] = {}
        for file in self._files.values():
            if file.contract is not None:
                by_name.setdefault(file.contract.provider, file.contract)
        return by_name

    def errors(self) -> Mapping[str, Sequence[ContractError]]:
        """What is wrong with the others, by file, as they stand now."""
        self.refresh()
        broken = {path.stem: file.errors for path, file in self._files.items() if file.errors}
        return broken | self._named_twice()

    def _named_twice(self) -> dict[str, Sequence[ContractError]]:
        seen: dict[str, Path] = {}
        twice: dict[str, Sequence[ContractError]] = {}
        for path, file in self._files.items():
            if file.contract is None:
                continue
            first = seen.setdefault(file.contract.provider, path)
            if first != path:
                name = file.contract.provider
                problem = f"{first.name} already describes provider {name}"
                fix = "give one of the two another `provider`"
                twice[path.stem] = (ContractError(str(path), 1, "provider", problem, fix),)
        return twice

    def holding(self, provider: str, action: str) -> Holding | None:
        contract = self.contracts().get(provider)
        found = contract.action(action) if contract is not None else None
        if contract is None or found is None:
            return None
        credential = self.credential(contract)
        if not isinstance(credential, Credential):
            return Holding(contract, found, None)
        key = self._store_key
        named = credential.fingerprint(key), credential.version(key)
        return Holding(contract, found, *named, lacks_token=credential.lacks_token)

    async def arrived(self, provider: str) -> None:
        """Return when every secret of a provider that takes time was fetched once."""
        contract = self.contracts().get(provider)
        if contract is None:
            return
        await self._credentials.arrived(contract.auth)
        for job in contract.jobs.values():
            if job.status.secret is not None:
                await self._credentials.arrived(contract.auth.narrowed(job.status.secret))

    def credential(self, contract: Contract) -> Credential | MissingCredential:
        """The credential of a provider as it is now."""
        return self._credentials.resolve(contract.auth)

    def target(self, provider: str, account: str) -> Target | None:
        """What the sender must know of a provider and account."""
        contract = self.contracts().get(provider)
        if contract is None or contract.account.get("id", "default") != account:
            return None
        return Target(contract.base_url, contract.auth, contract.allow_hosts)

    def fingerprint(self, contract: Contract) -> str | None:
        """Keyed name of a provider's credential; None if there is none to be had."""
        found = self.credential(contract)
        return found.fingerprint(self._store_key) if isinstance(found, Credential) else None

    def signature(self) -> object:
        """Changes whenever a contract or the value of a credential does."""
        held = ((one, self.credential(one)) for one in self.contracts().values())
        return tuple(
            (one.digest, key.version(self._store_key) if isinstance(key, Credential) else None)
            for one, key in held
        )

    def bindings(self) -> list[str]:
        """What this process can run now: bindings whose credential it holds, and which that is."""
        held: list[str] = []
        for contract in self.contracts().values():
            credential = self.credential(contract)
            if not isinstance(credential, Credential):
                continue
            fingerprint = credential.fingerprint(self._store_key)
            checks = () if contract.account_check is None else (contract.account_check,)
            for action in (*contract.jobs.values(), *contract.calls.values(), *checks):
                held += [action.binding, pairing(action.binding, fingerprint)]
        return held


def shipped(name: str) -> str | None:
    """The text of a contract that comes with Forbear, for `use = "name"`."""
    if not name.replace("-", "").replace("_", "").isalnum():
        return None
    file = resources.files("forbear.contracts") / f"{name}.toml"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def shipped_names() -> list[str]:
    """The names of all contracts that come with Forbear."""
    files = resources.files("forbear.contracts").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def asked_of_account(text: str) -> list[str]:
    """What a shipped contract uses of an account and leaves to the file that adapts it."""
    return left_to_account(tomllib.loads(text))


def _stamps(folder: Path) -> dict[str, Stamp]:
    """The contract files of a folder by name; what cannot be seen is absent."""
    found: dict[str, Stamp] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".toml"):
                with suppress(OSError):
                    status = entry.stat()
                    found[entry.name] = status.st_mtime_ns, status.st_size, status.st_ino
    return found


def _load(path: Path, stamp: Stamp) -> _File:
    text = read_text(path)
    if isinstance(text, ContractError):
        return _File(stamp, None, (text,))
    parsed = parse(text, str(path), shipped)
    if isinstance(parsed, Contract):
        return _File(stamp, parsed, ())
    return _File(stamp, None, tuple(parsed))


def read_text(path: Path) -> str | ContractError:
    """The text of a contract file, or why it is none."""

    def wrong(line: int, problem: str, fix: str) -> ContractError:
        return ContractError(str(path), line, "(file)", problem, fix)

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return wrong(1, "is not there", "name a file that is, or write it")
    except IsADirectoryError:
        return wrong(1, "is a folder", "name the contract files in it")
    except OSError as error:
        return wrong(1, f"cannot be read ({error.strerror})", "make it readable to this user")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        return wrong(line, f"is not UTF-8 text (byte 0x{byte:02x})", "save it as UTF-8")
