"""TOML with one table per server, `[mcp_servers.NAME]`: ours stands at the end of the file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from forbear.rules.toml_lines import key_lines
from forbear.server.clients.splices import (
    Edit,
    Unfit,
    checked,
    entry_of,
    with_entry,
    without_entry,
)


class Toml:
    """The notation of TOML files."""

    def read(self, text: str) -> Mapping[str, Any]:
        try:
            return tomllib.loads(text.replace("\r\n", "\n"))
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
            raise Unfit(f"is not TOML ({error})") from error

    def put(self, text: str, table: str, name: str, entry: Mapping[str, Any]) -> Edit:
        data = self.read(text)
        known = entry_of(data, table, name)
        expected = with_entry(data, table, name, entry)
        base = text if known is None else self.without(text, table, name, empty=False)
        added = _added(base, table, name, entry)
        return Edit(checked(self, base + added, expected), added if known is None else None)

    def without(self, text: str, table: str, name: str, *, empty: bool) -> str:
        data = self.read(text)
        if entry_of(data, table, name) is None:
            return text
        lines = text.split("\n")
        inside, outside = _lines_of(text, table, name)
        if not inside:
            raise Unfit(f"has {table}.{name} in a way that cannot be edited safely")
        first = min(inside)
        following = min((one for one in outside if one > first), default=len(lines) + 1)
        last = following - 1
        # What stands between our last key and the next table is of others: space and comments.
        while last > first and _is_blank(lines[last - 1]):
            last -= 1
        if first > 1 and not lines[first - 2].strip():
            first -= 1
        new = "\n".join([*lines[: first - 1], *lines[last:]])
        # A table that only the headers of its entries name goes with the last of them, and one
        # with a header of its own is somebody's.
        gone = table not in self.read(new)
        return checked(self, new, without_entry(data, table, name, empty=gone))


def _added(text: str, table: str, name: str, entry: Mapping[str, Any]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    ended = not text or text.endswith("\n")
    blank = [""] if text else []
    lines = [*blank, *_written(table, name, entry)]
    return ("" if ended else newline) + newline.join(lines) + newline


def _written(table: str, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{table}.{name}]"
    for key, value in entry.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{one} = {_value(each)}" for one, each in value.items())
            yield f"{key} = {{ {inner} }}"
        else:
            yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    """A text or a list of texts. What JSON escapes, TOML escapes alike; DEL it must too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines_of(text: str, table: str, name: str) -> tuple[list[int], list[int]]:
    """The lines that name something of an entry, and those that name something else."""
    inside: list[int] = []
    outside: list[int] = []
    for path, line in key_lines(text).items():
        if path[:2] == (table, name):
            inside.append(line)
        elif path != (table,):
            outside.append(line)
    return inside, outside


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
