"""Documents that people hand to a command: files or standard input, JSON or YAML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forbear.rules.exchanges import Unusable
from forbear.rules.ports import Json
from forbear.rules.values import Unreadable, decode

LARGEST = 40_000_000
"""Bytes of a document; the largest public OpenAPI documents have about 12 million."""


def read(name: str, largest: int = LARGEST) -> bytes:
    """The content of a file, or of standard input where the name is `-`.

    Raises Unusable, with the reason, for what cannot be read or is too large.
    """
    try:
        if name == "-":
            content = sys.stdin.buffer.read(largest + 1)
        else:
            path = Path(name)
            if path.is_dir():
                raise Unusable("is a folder; name a file, or - for standard input")
            with path.open("rb") as file:
                content = file.read(largest + 1)
    except FileNotFoundError:
        raise Unusable("is not there; name a file, or - for standard input") from None
    except OSError as error:
        raise Unusable(f"cannot be read ({error.strerror})") from None
    except ValueError:
        raise Unusable("is no name that a file can have") from None
    if len(content) > largest:
        raise Unusable(f"has more than {largest:,} bytes")
    return content


def json_of(content: bytes) -> Json:
    """One JSON document. Raises Unusable where it is none."""
    try:
        return decode(content)
    except Unreadable as error:
        raise Unusable(str(error)) from None


def json_or_yaml(content: bytes) -> Json:
    """A document in either notation, with numbers as their text, as `rules.values` reads JSON.

    YAML is read as YAML 1.2 reads it: `on`, `no` and dates are texts. Parts that are used several
    times (`*alias`) are the same object. Raises Unusable for what is neither.
    """
    begins = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if begins in (b"{", b"["):
        return json_of(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unusable("it is neither JSON nor YAML: it is not UTF-8 text") from None
    return _yaml(text)


def _yaml(text: str) -> Json:
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # a safe loader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise Unusable(f"it is neither JSON nor YAML: {error.problem}{where}") from None
    except (yaml.YAMLError, ValueError) as error:
        told = str(error).partition("\n")[0]
        raise Unusable(f"it is neither JSON nor YAML: {told}") from None
    except RecursionError:
        raise Unusable("it is nested too deeply") from None


def _loader() -> Any:
    """A safe loader with the scalars of YAML 1.2's core schema alone, and texts as keys."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}})
    for tag, pattern, first in _RESOLVERS:
        found.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
    found.add_constructor("tag:yaml.org,2002:float", _number)
    found.add_constructor("tag:yaml.org,2002:map", _mapping)
    return found


_RESOLVERS = (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+0123456789."),
)


def _number(loader: Any, node: Any) -> Json:
    """A number as JSON would have it; what JSON could not write stays text."""
    text = str(loader.construct_scalar(node))
    try:
        return decode(text.removeprefix("+").encode())
    except Unreadable:
        return text


def _mapping(loader: Any, node: Any) -> Iterator[dict[str, Json]]:
    # In two steps, so that a part may contain itself.
    found: dict[str, Json] = {}
    yield found
    for key, value in node.value:
        if not isinstance(key.value, str):
            raise Unusable(f"it has a key that is no text in line {key.start_mark.line + 1}")
        found[key.value] = loader.construct_object(value)
