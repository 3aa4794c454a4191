"""Edits of a file that another program and its owner also write: everything else stays as it is.

An edit adds one named entry to a table of named entries. It is one piece of text put in at one
place, so that taking the same piece out again gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Unfit(Exception):
    """A text that must be left alone. The message says why, without the file's name."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A new text, and the piece that was put in where nothing was taken out."""

    text: str
    added: str | None


class Notation(Protocol):
    """How a kind of file is read and edited. All methods raise Unfit."""

    def read(self, text: str) -> Mapping[str, Any]:
        """The whole file as data; an empty one is an empty table."""
        ...

    def put(self, text: str, table: str, name: str, entry: Mapping[str, Any]) -> Edit:
        """The text with the entry in the table, in the place of one that is there."""
        ...

    def without(self, text: str, table: str, name: str, *, empty: bool) -> str:
        """The text without the entry; with `empty` without its table too, if nothing is left."""
        ...


def entry_of(data: Mapping[str, Any], table: str, name: str) -> Any:
    """The entry, or None. Raises Unfit if the table is no table."""
    entries = data.get(table, {})
    if not isinstance(entries, Mapping):
        raise Unfit(f"has a {table} that is no table of servers")
    return entries.get(name)


def with_entry(
    data: Mapping[str, Any], table: str, name: str, entry: Mapping[str, Any]
) -> dict[str, Any]:
    return {**data, table: {**data.get(table, {}), name: dict(entry)}}


def without_entry(data: Mapping[str, Any], table: str, name: str, *, empty: bool) -> dict[str, Any]:
    rest = {key: value for key, value in data.get(table, {}).items() if key != name}
    whole = {**data, table: rest}
    if empty and not rest:
        del whole[table]
    return whole


def checked(notation: Notation, text: str, expected: Mapping[str, Any]) -> str:
    """A text that was edited, if it says what it should. Raises Unfit."""
    try:
        said = notation.read(text)
    except Unfit:
        said = None
    if said != expected:
        raise Unfit("is written in a way that cannot be edited safely")
    return text
