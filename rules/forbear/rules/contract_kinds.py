"""What a key of a contract may hold: one kind per notation, read into a value and told to editors.

A kind reads leniently and reports exactly: a value it cannot read is put into the report and
replaced by a stand-in, so that the rest of the file is still checked. A file with a report makes
no contract, so a stand-in never leaves the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeGuard, TypeVar, cast, overload

from forbear.rules.contract import ContractError
from forbear.rules.toml_lines import Path, dotted

T = TypeVar("T")
K = TypeVar("K")
T_co = TypeVar("T_co", covariant=True)

JsonSchema = Mapping[str, Any]


class Fault(Exception):
    """A value that cannot be read: what is wrong and how to mend it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix

    @classmethod
    def of(cls, error: Fault | ValueError) -> Fault:
        """From a sentence of `notation`, which has the fix behind its last semicolon."""
        if isinstance(error, Fault):
            return error
        problem, _, fix = str(error).rpartition("; ")
        return cls(problem or fix, fix)


class Report:
    """Every mistake found in one file, each once, in the order of the lines."""

    def __init__(self, locate: Callable[[Path], tuple[str, int, Path]]) -> None:
        """`locate` gives file and line of a path, and the path as that file spells it."""
        self._locate = locate
        self._errors: dict[ContractError, None] = {}

    def add(self, path: Path, problem: str, fix: str) -> None:
        file, line, spelt = self._locate(path)
        self._errors[ContractError(file, line, dotted(spelt) or "(file)", problem, fix)] = None

    @property
    def errors(self) -> tuple[ContractError, ...]:
        return tuple(sorted(self._errors, key=lambda error: (error.file, error.line)))


@dataclass(frozen=True, slots=True)
class Place:
    """A path in the file, and the report to complain to."""

    path: Path
    report: Report

    def at(self, *steps: str | int) -> Place:
        return Place((*self.path, *steps), self.report)

    def complain(self, problem: str, fix: str) -> None:
        self.report.add(self.path, problem, fix)

    def read(self, kind: Kind[T], raw: object) -> T:
        """The value, or a complaint and the stand-in."""
        return kind.stand_in if (found := self.attempt(kind, raw)) is None else found[0]

    def attempt(self, kind: Kind[T], raw: object) -> tuple[T] | None:
        """The value alone in a tuple, or a complaint and None."""
        try:
            return (kind.read(raw, self),)
        except (Fault, ValueError) as error:
            fault = Fault.of(error)
            self.complain(fault.problem, fault.fix)
        return None


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """How a value is read (raising `Fault` or a sentence of `notation`), and its JSON Schema."""

    read: Callable[[object, Place], T_co]
    stand_in: T_co
    schema: JsonSchema


@dataclass(frozen=True, slots=True)
class Table:
    """The closed keys of one section, each with its kind and one line for an editor."""

    name: str
    keys: Mapping[str, tuple[Kind[object], str]]
    required: tuple[str, ...] = ()
    others: tuple[Kind[object], str] | None = None
    """What any further key holds; None where the keys are closed."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file, read: what it has is of the kind its `Table` says."""

    table: Table
    place: Place
    values: Mapping[str, object]
    broken: frozenset[str] = frozenset()
    """Keys that are there, with values that could not be read."""

    def has(self, key: str) -> bool:
        """Whether the file has the key; a broken one is there too, and reads as absent."""
        return key in self.values or key in self.broken

    @overload
    def get(self, key: str, kind: Kind[T]) -> T | None: ...
    @overload
    def get(self, key: str, kind: Kind[T], default: T) -> T: ...
    def get(self, key: str, kind: Kind[T], default: T | None = None) -> T | None:
        """The value of a key, which must be of the kind that its table names."""
        if self.table.keys[key][0] is not kind:
            raise TypeError(f"{self.table.name}.{key} is read as another kind than it has")
        return cast(T, self.values[key]) if key in self.values else default

    def section(self, key: str) -> Section:
        """The section at a key; an empty one if the file does not have it."""
        found = self.values.get(key, self.table.keys[key][0].stand_in)
        if not isinstance(found, Section):
            raise TypeError(f"{self.table.name}.{key} is no section")
        return found if self.has(key) else Section(found.table, self.place.at(key), {})

    def sections(self, key: str) -> Mapping[str, Section]:
        """The sections at a key, by the names that the file gives them."""
        return cast(Mapping[str, Section], self.values.get(key, {}))

    def rows(self, key: str) -> tuple[Section, ...]:
        """The sections of an array of tables."""
        return cast(tuple[Section, ...], self.values.get(key, ()))

    def complain(self, key: str, problem: str, fix: str) -> None:
        """Report a mistake at a key, or at the section itself if it does not have the key."""
        self.place.at(key).complain(problem, fix)


def is_table(raw: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(raw, dict)


def is_list(raw: object) -> TypeGuard[list[object]]:
    return isinstance(raw, list)


def nearest(word: str, known: Iterable[str]) -> str:
    """The fix for a word outside a closed set."""
    words = sorted(known)
    if close := get_close_matches(word, words, 1, 0.6):
        return f"write {close[0]!r}"
    if not words:
        return "leave it out"
    return f"use one of {', '.join(words)}"


# --- kinds made of kinds --------------------------------------------------------------------


def nested(table: Table, short: JsonSchema | None = None) -> Kind[Section]:
    """A table with closed keys. `short` is the schema of its short form, long by the time of
    reading."""

    def read(raw: object, place: Place) -> Section:
        if not is_table(raw):
            raise Fault("is no table", f"write [{dotted(place.path)}] with keys")
        values: dict[str, object] = {}
        broken: set[str] = set()
        for key, value in raw.items():
            known = table.keys.get(key, table.others)
            if known is None:
                place.at(key).complain("is no known key here", nearest(key, table.keys))
            elif (found := place.at(key).attempt(known[0], value)) is not None:
                values[key] = found[0]
            else:
                broken.add(key)
        for key in table.required:
            if key not in raw:
                place.complain(f"has no {key!r}", f"add {key} = …")
        return Section(table, place, values, frozenset(broken))

    reference = {"$ref": f"#/$defs/{table.name}"}
    stand_in = Section(table, Place((), Report(lambda path: ("", 0, path))), {})
    return Kind(read, stand_in, {"anyOf": [short, reference]} if short else reference)


def named(
    kind: Kind[T], check: Callable[[str], str] = str, pattern: str | None = None
) -> Kind[Mapping[str, T]]:
    """A table whose keys are names that the file chooses; `check` raises for a bad name."""

    def read(raw: object, place: Place) -> Mapping[str, T]:
        return dict(pairs(check, kind).read(raw, place))

    schema: dict[str, Any] = {"type": "object", "additionalProperties": kind.schema}
    if pattern is not None:
        schema["propertyNames"] = {"pattern": pattern}
    return Kind(read, {}, schema)


def pairs(key: Callable[[str], K], kind: Kind[T]) -> Kind[tuple[tuple[K, T], ...]]:
    """A table whose keys are themselves a notation: pointers, sources, header names."""

    def read(raw: object, place: Place) -> tuple[tuple[K, T], ...]:
        if not is_table(raw):
            raise Fault("is no table", "write { … = … }")
        found: list[tuple[K, T]] = []
        for name, value in raw.items():
            inner = place.at(name)
            try:
                found.append((key(name), inner.read(kind, value)))
            except (Fault, ValueError) as error:
                fault = Fault.of(error)
                inner.complain(fault.problem, fault.fix)
        return tuple(found)

    return Kind(read, (), {"type": "object", "additionalProperties": kind.schema})


def several(kind: Kind[T], least: int = 0) -> Kind[tuple[T, ...]]:
    """An array."""

    def read(raw: object, place: Place) -> tuple[T, ...]:
        if not is_list(raw):
            raise Fault("is no list", "put it into [ ]")
        if len(raw) < least:
            raise Fault("is an empty list", "name at least one, or leave the key out")
        return tuple(place.at(index).read(kind, item) for index, item in enumerate(raw))

    return Kind(read, (), {"type": "array", "items": kind.schema, "minItems": least})


def one_or_several(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """A value or an array of such values."""
    many = several(kind, least=1)

    def read(raw: object, place: Place) -> tuple[T, ...]:
        return many.read(raw, place) if is_list(raw) else (place.read(kind, raw),)

    return Kind(read, (), {"anyOf": [kind.schema, many.schema]})


def choice(*words: str) -> Kind[str]:
    """One of a closed set of words."""

    def read(raw: object, place: Place) -> str:
        if not isinstance(raw, str):
            raise Fault("is no text", nearest("", words))
        if raw not in words:
            raise Fault(f"{raw!r} is not one of its words", nearest(raw, words))
        return raw

    return Kind(read, words[0], {"enum": list(words)})


def text_of(parse: Callable[[str], T], stand_in: T, schema: JsonSchema | None = None) -> Kind[T]:
    """A text in a notation, read by a function that raises `ValueError` or `Fault`."""

    def read(raw: object, place: Place) -> T:
        if not isinstance(raw, str):
            raise Fault("is no text", "put it into quotes")
        return parse(raw)

    return Kind(read, stand_in, {"type": "string", **(schema or {})})


def whole(least: int, most: int = 10**12) -> Kind[int]:
    """A whole number within bounds."""

    def read(raw: object, place: Place) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise Fault("is no whole number", f"write a number such as {max(least, 1)}")
        if not least <= raw <= most:
            raise Fault(f"{raw} is out of bounds", f"write a number from {least} to {most}")
        return raw

    return Kind(read, least, {"type": "integer", "minimum": least, "maximum": most})
