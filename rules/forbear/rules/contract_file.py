"""A contract file, format 1: its text becomes a contract, or a list of everything wrong with it.

The way: TOML, then lines of keys, then short forms written out, then every key read by its kind,
then the sections joined into values. Each step goes on after a mistake, so that all mistakes of a
file are reported together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from forbear.rules.contract import Contract, ContractError
from forbear.rules.contract_forms import Origin, Raw, written_out
from forbear.rules.contract_keys import CONTRACT
from forbear.rules.contract_kinds import Place, Report, is_list, is_table, nearest, nested
from forbear.rules.contract_provider import contract
from forbear.rules.contract_requests import digest
from forbear.rules.toml_lines import Path, key_lines

Library = Callable[[str], str | None]
"""The text of a shipped contract by its name; None if there is none."""

_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_READ = nested(CONTRACT)

DEEPEST = 40
"""Levels of tables and arrays that a file may have."""


def _no_library(name: str) -> str | None:
    return None


def parse(
    text: str, file: str, library: Library = _no_library
) -> Contract | tuple[ContractError, ...]:
    """The contract that a file states, with every default filled in; or all of its mistakes.

    `file` is its path: errors name it, and its stem is the provider's name unless the file states
    another. The same text always gives an equal contract.
    """
    found = _read(text, file, library)
    if not isinstance(found, _Tables):
        return found
    section = found.root.read(_READ, found.raw)
    made = contract(section, found.raw, file, digest(found.texts), lambda path: found.at(path)[1])
    return found.report.errors or made


def tables(text: str, file: str, library: Library = _no_library) -> Raw | tuple[ContractError, ...]:
    """The tables of a file in the long forms, those of the shipped contract that it uses included.

    What a changed copy is made of. Numbers with a point are `Decimal`.
    """
    found = _read(text, file, library)
    return found if not isinstance(found, _Tables) else found.report.errors or found.raw


@dataclass(frozen=True, slots=True)
class _Tables:
    """A file on its way: its tables with short forms written out and `use` resolved."""

    raw: Raw
    root: Place
    report: Report
    origins: list[Origin]
    texts: list[str]

    def at(self, path: Path) -> tuple[str, int, Path]:
        return _locate(self.origins, path)


def _read(text: str, file: str, library: Library) -> _Tables | tuple[ContractError, ...]:
    loaded = _load(text, file)
    if isinstance(loaded, ContractError):
        return (loaded,)
    origin = Origin(file, key_lines(text))
    origins = [origin]
    report = Report(lambda path: _locate(origins, path))
    root = Place((), report)
    if loaded.get("contract") != 1:
        root.at("contract").complain("is not 1", "write contract = 1, the format of this file")
        return report.errors
    raw: Raw = written_out(loaded, root, origin)
    texts = [text]
    if "use" in raw:
        shipped = _shipped(raw, root, origins, library)
        if isinstance(shipped, ContractError):
            return (*report.errors, shipped)
        if shipped is None:
            return report.errors
        texts.append(shipped[1])
        raw = _with_account(_adapted(raw, shipped[0], root), root, stated="account" in loaded)
    return _Tables(raw, root, report, origins, texts)


def parse_all(
    texts: Mapping[str, str], library: Library = _no_library
) -> tuple[Mapping[str, Contract], tuple[ContractError, ...]]:
    """All files of a home: the contracts by provider, and the errors of the files without one.

    A broken file takes nothing away from the others; of two files for one provider the first by
    name counts.
    """
    contracts: dict[str, Contract] = {}
    errors: list[ContractError] = []
    for file in sorted(texts):
        found = parse(texts[file], file, library)
        if isinstance(found, tuple):
            errors += found
        elif (first := contracts.get(found.provider)) is not None:
            errors.append(
                ContractError(
                    file,
                    key_lines(texts[file]).get(("provider",), 1),
                    "provider",
                    f"{found.provider!r} is the provider of {first.file} too",
                    'write provider = "…" with another name',
                )
            )
        else:
            contracts[found.provider] = found
    return contracts, tuple(errors)


def _load(text: str, file: str) -> Raw | ContractError:
    if text.startswith("\ufeff"):
        return ContractError(
            file, 1, "(file)", "begins with a byte order mark", "save it as UTF-8 without one"
        )
    try:
        loaded = tomllib.loads(text, parse_float=Decimal)
        return _too_deep(file) if _is_deep(loaded) else loaded
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _AT_LINE.search(message)
        line = int(found[1]) if found else text.rstrip("\n").count("\n") + 1
        if message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
            return ContractError(
                file, line, _key_in(text, line), "is there twice", "keep one of the two"
            )
        return ContractError(
            file, line, "(toml)", _AT_LINE.sub("", message).strip(), "mend the TOML of this line"
        )
    except RecursionError:
        return _too_deep(file)
    except ValueError as error:
        return ContractError(file, 1, "(toml)", str(error), "write shorter numbers")


def _key_in(text: str, line: int) -> str:
    """The key or section that a line of a file names."""
    return text.split("\n")[line - 1].partition("=")[0].strip().strip("[]").strip()


def _too_deep(file: str) -> ContractError:
    return ContractError(
        file, 1, "(file)", f"is nested deeper than {DEEPEST} levels", "make it flatter"
    )


def _is_deep(value: object, left: int = DEEPEST) -> bool:
    if is_table(value):
        return left == 0 or any(_is_deep(inner, left - 1) for inner in value.values())
    return is_list(value) and (left == 0 or any(_is_deep(inner, left - 1) for inner in value))


def _locate(origins: list[Origin], path: Path) -> tuple[str, int, Path]:
    """The place of a path in the file that has most of it; the user's own file comes first."""
    depth, best = -1, ("", 1, path)
    for origin in origins:
        found, line, spelt = origin.find(path)
        if found > depth:
            depth, best = found, (origin.file, line, spelt)
    return best


# --- use = "name" ---------------------------------------------------------------------------


def _shipped(
    raw: Raw, root: Place, origins: list[Origin], library: Library
) -> tuple[Raw, str] | ContractError | None:
    """The shipped contract that a file adapts, written out, and its text."""
    name = raw.get("use")
    text = library(name) if isinstance(name, str) else None
    if not isinstance(name, str) or text is None:
        root.at("use").complain(
            f"{name!r} is no shipped contract", "see `forbear contract list` for their names"
        )
        return None
    loaded = _load(text, f"{name}.toml")
    if isinstance(loaded, ContractError):
        return loaded
    if "use" in loaded:
        root.at("use").complain(f"{name!r} adapts another contract itself", "use that one")
        return None
    origin = Origin(f"{name}.toml", key_lines(text))
    origins.append(origin)
    shipped = dict(written_out(loaded, root, origin))
    shipped.pop("provider", None)
    return shipped, text


_MAY_OVERRIDE = re.compile(
    r"contract|use|provider|title|auth|account|scopes|classes|resends_below"
    r"|jobs\.[^.]+\.(limits|label|title)|calls\.[^.]+\.(deadline|label|title)"
)
_REPLACED = frozenset({"auth"})
"""Sections that an override replaces as a whole: keys of two schemes never mix."""


def _adapted(own: Raw, shipped: Raw, root: Place) -> Raw:
    """The shipped contract with what the file may override: credential, account, limits, scopes,
    labels."""
    merged = dict(shipped)
    for key, value in own.items():
        if key in ("jobs", "calls") and is_table(value):
            merged[key] = _adapted_actions(key, value, shipped.get(key), root)
        elif _MAY_OVERRIDE.fullmatch(key):
            merged[key] = _merge(shipped.get(key), value) if key not in _REPLACED else value
        else:
            _refuse_override(root.at(key))
    return merged


def left_to_account(raw: Raw) -> list[str]:
    """What a file uses of its account, `{account.x}`, and does not say; sorted."""
    used = set(re.findall(r"\{\+?account\.([A-Za-z0-9_-]+)", repr(raw))) - {"id"}
    account = raw.get("account")
    return sorted(used - account.keys() if is_table(account) else used)


def _with_account(raw: Raw, root: Place, *, stated: bool) -> Raw:
    """The adapted contract; what it still needs of the account is one complaint, not one for each
    place of the shipped file that uses it.
    """
    left = left_to_account(raw)
    if not left:
        return raw
    root.at("account" if stated else "use").complain(
        f"says nothing of {_and(repr(name) for name in left)}, which the shipped contract needs",
        "add " + _and(f'{name} = "…"' for name in left) + " below [account]",
    )
    account = raw.get("account")
    stand_ins = dict.fromkeys(left, "x")
    return {**raw, "account": {**(account if is_table(account) else {}), **stand_ins}}


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _adapted_actions(kind: str, own: Raw, shipped: object, root: Place) -> Raw:
    actions = dict(shipped) if is_table(shipped) else {}
    for name, section in own.items():
        known = actions.get(name)
        if not is_table(known):
            root.at(kind, name).complain(
                "is no action of the shipped contract", nearest(name, actions)
            )
        elif is_table(section):
            for key in section:
                if _MAY_OVERRIDE.fullmatch(f"{kind}.{name}.{key}") is None:
                    _refuse_override(_first_leaf(root.at(kind, name, key), section[key]))
            actions[name] = _merge(known, section)
    return actions


def _merge(below: object, above: object) -> object:
    if is_table(below) and is_table(above):
        return {**below, **{key: _merge(below.get(key), inner) for key, inner in above.items()}}
    return above


def _first_leaf(place: Place, value: object) -> Place:
    """The first plain value of a section: a section made of short forms has no line itself."""
    while is_table(value) and value:
        key = next(iter(value))
        place, value = place.at(key), value[key]
    return place


def _refuse_override(place: Place) -> None:
    place.complain(
        "cannot be changed in a file with use",
        "override [auth], [account], limits, scopes and labels only, or copy the contract",
    )
