"""In which line of a TOML text each key stands; `tomllib` gives the values but not their places."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

Path = tuple[str | int, ...]
"""The keys from the top of the file to a value; an element of an array is its index."""


def key_lines(text: str) -> Mapping[Path, int]:
    """The line (from 1) where each table, key and array element is first named.

    The text must be valid TOML 1.0: the scan relies on what `tomllib` has already checked.
    """
    scan = _Scan(text)
    scan.document()
    return scan.lines


def dotted(path: Path) -> str:
    """A path as a person writes it: `jobs.export.rules[0].http`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


class _Scan:
    """One pass over the text; `at` is the next character to read."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._counted = 0
        self._line = 1

    def document(self) -> None:
        base: Path = ()
        rows: dict[Path, int] = {}
        while self._skip(" \t\n"):
            if self._takes("[["):
                base = self._within(self._key(), rows)
                rows[base] = rows.get(base, -1) + 1
                base = (*base, rows[base])
                self._note(base)
                self._takes("]]")
            elif self._takes("["):
                base = self._within(self._key(), rows)
                self._note(base)
                self._takes("]")
            else:
                self._pair(base)

    @staticmethod
    def _within(key: Path, rows: Mapping[Path, int]) -> Path:
        """A header's path with the current index behind every array of tables it goes through."""
        path: Path = ()
        for position, name in enumerate(key):
            path = (*path, name)
            if path in rows and position < len(key) - 1:
                path = (*path, rows[path])
        return path

    def _pair(self, base: Path) -> None:
        path = (*base, *self._key())
        self._note(path)
        self._takes("=")
        self._value(path)

    def _key(self) -> Path:
        names: list[str] = []
        while True:
            self._skip(" \t")
            if self.text[self.at] in "\"'":
                names.append(self._quoted())
            else:
                start = self.at
                while self.text[self.at] not in " \t\n.=]":
                    self.at += 1
                names.append(self.text[start : self.at])
            self._skip(" \t")
            if not self._takes("."):
                return tuple(names)

    def _value(self, path: Path) -> None:
        self._skip(" \t")
        match self.text[self.at]:
            case "[":
                self._array(path)
            case "{":
                self._inline(path)
            case '"' | "'":
                self._string()
            case _:
                while self.text[self.at] not in ",]}\n#":
                    self.at += 1

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip(" \t\n,") and not self._takes("]"):
            self._note((*path, index))
            self._value((*path, index))
            index += 1

    def _inline(self, path: Path) -> None:
        self.at += 1
        while self._skip(" \t\n,") and not self._takes("}"):
            self._pair(path)

    def _string(self) -> str:
        """Go past a string of any of the four kinds; returns its text with the quotes."""
        start = self.at
        quote = self.text[self.at]
        closing = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(closing)
        while not self.text.startswith(closing, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(closing)
        if len(closing) == 3:
            while self.text[self.at] == quote:
                self.at += 1
        return self.text[start : self.at]

    def _quoted(self) -> str:
        key = tomllib.loads(f"key = {self._string()}")["key"]
        assert isinstance(key, str)
        return key

    def _skip(self, blank: str) -> bool:
        """Go past blanks and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                self.at = self.text.index("\n", self.at)
            if self.text[self.at] not in blank:
                return True
            self.at += 1
        return False

    def _takes(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def _note(self, path: Path) -> None:
        """Give this line to the path, and to every part of it that has none yet."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], self._line)
