"""JSON and JSON with comments (and trailing commas), read with places and edited in place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forbear.server.clients.splices import (
    Edit,
    Unfit,
    checked,
    entry_of,
    with_entry,
    without_entry,
)

DEEPEST = 200
"""Levels of nesting that a file may have."""

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|/\*(?:(?!\*/)[^\r\n])*\*/[ \t]*)(?=\r?\n)")
_INDENT = re.compile(r'^([ \t]+)"', re.MULTILINE)
_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    start: int
    """Where the key begins."""
    node: _Node


@dataclass(frozen=True, slots=True)
class _Node:
    start: int
    end: int
    value: Any
    members: tuple[_Member, ...] | None = None
    """Of an object, in their order."""


class Jsonc:
    """The notation of JSON files. `comments`: whether the client that reads them takes comments
    and trailing commas."""

    def __init__(self, *, comments: bool) -> None:
        self._comments = comments

    def read(self, text: str) -> Mapping[str, Any]:
        root = self._root(text)
        return {} if root is None else root.value

    def put(self, text: str, table: str, name: str, entry: Mapping[str, Any]) -> Edit:
        data = self.read(text)
        known = entry_of(data, table, name)
        expected = with_entry(data, table, name, entry)
        at, end, added = self._piece(text, table, name, entry)
        new = text[:at] + added + text[end:]
        return Edit(checked(self, new, expected), None if known is not None else added)

    def without(self, text: str, table: str, name: str, *, empty: bool) -> str:
        data = self.read(text)
        if entry_of(data, table, name) is None:
            return text
        new = self._taken_out(text, table, name)
        gone = empty and self._is_bare(new, table)
        if gone:
            new = self._taken_out(new, None, table)
        return checked(self, new, without_entry(data, table, name, empty=gone))

    def _piece(
        self, text: str, table: str, name: str, entry: Mapping[str, Any]
    ) -> tuple[int, int, str]:
        """What is put in, and the range that it takes the place of."""
        root = self._root(text)
        lines = _Lines(text)
        if root is None:
            begun = "" if text.removeprefix(_MARK)[-1:] in ("", "\n") else lines.newline
            whole = lines.written({table: {name: entry}}, "")
            return len(text), len(text), begun + whole + lines.newline
        servers = _member(root, table)
        if servers is None:
            return lines.put_in(root, table, {name: entry})
        known = _member(servers.node, name)
        if known is not None:
            compact = "\n" not in text[known.start : known.node.end]
            value = lines.written(entry, lines.indent_at(known.start), compact=compact)
            return known.node.start, known.node.end, value
        return lines.put_in(servers.node, name, entry)

    def _is_bare(self, text: str, table: str) -> bool:
        """Whether a table has neither entries nor comments."""
        root = self._root(text)
        found = None if root is None else _member(root, table)
        return (
            found is not None
            and "/" not in text[found.start : found.node.end]
            and (not found.node.members)
        )

    def _taken_out(self, text: str, table: str | None, name: str) -> str:
        node = self._root(text)
        if node is not None and table is not None:
            found = _member(node, table)
            node = None if found is None else found.node
        assert node is not None
        assert node.members is not None
        number = [one.key for one in node.members].index(name)
        gone = node.members[number]
        start, end = gone.start, gone.node.end
        comma = self._comma(text, end)
        if comma is not None:
            end = comma + 1
        elif number:
            before = self._comma(text, node.members[number - 1].node.end)
            assert before is not None
            text = text[:before] + text[before + 1 :]
            start, end = start - 1, end - 1
        begin, rest = text[:start].rstrip(" \t"), text[end:].lstrip(" \t")
        if begin.endswith("\n") and rest.startswith(("\n", "\r\n")):
            begin = begin[:-1].removesuffix("\r")  # it had the line for itself
            return begin + text[end:]
        return text[:start] + rest

    def _comma(self, text: str, at: int) -> int | None:
        """The comma after a value, if there is one."""
        at = self._skipped(text, at)
        return at if text[at : at + 1] == "," else None

    # --- reading ----------------------------------------------------------------------------

    def _root(self, text: str) -> _Node | None:
        """The object of the file; None if there is nothing but space and comments."""
        at = self._skipped(text, len(_MARK) if text.startswith(_MARK) else 0)
        if at == len(text):
            return None
        node = self._node(text, at, 0)
        end = self._skipped(text, node.end)
        if end != len(text):
            raise self._broken(text, end)
        if node.members is None:
            raise Unfit("is no JSON object")
        return node

    def _skipped(self, text: str, at: int) -> int:
        while True:
            at = _end(_SPACE, text, at)
            comment = _COMMENT.match(text, at)
            if comment is None:
                return at
            if not self._comments:
                raise Unfit(f"has a comment in line {_line(text, at)}, which its client refuses")
            at = comment.end()

    def _node(self, text: str, at: int, depth: int) -> _Node:
        if depth > DEEPEST:
            raise Unfit(f"is nested deeper than {DEEPEST} levels")
        match text[at : at + 1]:
            case "{":
                return self._object(text, at, depth)
            case "[":
                return self._array(text, at, depth)
            case _:
                found = _STRING.match(text, at) or _SCALAR.match(text, at)
                if found is None:
                    raise self._broken(text, at)
                return _Node(at, found.end(), _loaded(found[0], text, at))

    def _object(self, text: str, start: int, depth: int) -> _Node:
        members: list[_Member] = []
        at = self._skipped(text, start + 1)
        while text[at : at + 1] != "}":
            key = _STRING.match(text, at)
            colon = self._skipped(text, key.end()) if key is not None else at
            if key is None or text[colon : colon + 1] != ":":
                raise self._broken(text, colon)
            node = self._node(text, self._skipped(text, colon + 1), depth + 1)
            members.append(_Member(json.loads(key[0]), at, node))
            at = self._after(text, node.end, "}")
        value = {one.key: one.node.value for one in members}
        return _Node(start, at + 1, value, tuple(members))

    def _array(self, text: str, start: int, depth: int) -> _Node:
        values: list[Any] = []
        at = self._skipped(text, start + 1)
        while text[at : at + 1] != "]":
            node = self._node(text, at, depth + 1)
            values.append(node.value)
            at = self._after(text, node.end, "]")
        return _Node(start, at + 1, values)

    def _after(self, text: str, at: int, closing: str) -> int:
        """Where the next member begins, or the closing bracket stands."""
        at = self._skipped(text, at)
        if text[at : at + 1] == closing:
            return at
        if text[at : at + 1] != ",":
            raise self._broken(text, at)
        following = self._skipped(text, at + 1)
        if text[following : following + 1] == closing and not self._comments:
            raise Unfit(f"has a comma too many in line {_line(text, at)}")
        return following

    def _broken(self, text: str, at: int) -> Unfit:
        kind = "JSON with comments" if self._comments else "JSON"
        return Unfit(f"is not {kind} (line {_line(text, at)})")


class _Lines:
    """How the lines of a text are indented and ended, so that what is put in looks alike."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        found = _INDENT.search(text)
        self._unit = found[1] if found is not None else "  "
        bare = text.removeprefix(_MARK).strip()
        self._one_line = "\n" not in bare and bare not in ("", "{}")

    def put_in(self, node: _Node, key: str, value: Any) -> tuple[int, int, str]:
        """A first member of an object, before those that are there."""
        at, text = node.start + 1, self._text
        assert node.members is not None
        rest = _REST_OF_LINE.match(text, at)
        if rest is not None:
            at = rest.end()  # a comment behind the bracket stays there
        until = node.members[0].start if node.members else node.end - 1
        comma = "," if node.members else ""
        name = json.dumps(key, ensure_ascii=False)
        if self._one_line or (node.members and "\n" not in text[at:until]):
            at = _end(re.compile(r"[ \t]*"), text, at) if node.members else at
            return at, at, f"{name}: {self.written(value, '', compact=True)}{comma and ', '}"
        outer = self.indent_at(node.start)
        indent = self._indent_of(node) or outer + self._unit
        piece = f"{self.newline}{indent}{name}: {self.written(value, indent)}{comma}"
        if not node.members and "\n" not in text[at:until]:
            piece += f"{self.newline}{outer}"
        return at, at, piece

    def written(self, value: Any, indent: str, *, compact: bool = False) -> str:
        if compact:
            return json.dumps(value, ensure_ascii=False)
        text = json.dumps(value, ensure_ascii=False, indent=self._unit)
        return text.replace("\n", self.newline + indent)

    def indent_at(self, at: int) -> str:
        """The white space at the beginning of the line of a place."""
        begin = self._text.rfind("\n", 0, at) + 1
        line = self._text[begin:at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _indent_of(self, node: _Node) -> str | None:
        """How the first member is indented, if nothing stands before it in its line."""
        if not node.members:
            return None
        start = node.members[0].start
        line = self._text[self._text.rfind("\n", 0, start) + 1 : start]
        return line if line and not line.strip(" \t") else None


def _loaded(token: str, text: str, at: int) -> Any:
    try:
        return json.loads(token)
    except ValueError as error:  # an integer of thousands of digits
        raise Unfit(f"has a number that is too long in line {_line(text, at)}") from error


def _member(node: _Node, key: str) -> _Member | None:
    found = [one for one in node.members or () if one.key == key]
    if len(found) > 1:
        raise Unfit(f"names {key!r} twice")
    return found[0] if found else None


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
