"""Short forms of a contract, written out as the long forms they stand for.

Everything behind this module sees one form. Each key that was moved is remembered, so that an
error about `jobs.export.limits.deadline` points at the `deadline` that the file has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from forbear.rules.contract_keys import SHORT_LIMITS, SHORT_STATES
from forbear.rules.contract_kinds import Place, is_list, is_table
from forbear.rules.notation import parse_source
from forbear.rules.toml_lines import Path

Raw = Mapping[str, object]

_REQUEST = re.compile(r"(GET|HEAD|POST|PUT|PATCH|DELETE)\s+(\S+)")
_FROM_ANSWER = re.compile(r"\{(/[^{}]*|header:[^{}]*)\}")
_MOVES: tuple[tuple[str, Path], ...] = (
    ("body", ("submit", "body")),
    ("id", ("submit", "take", "id")),
    ("state", ("states", "read")),
    *((key, ("states", key)) for key in SHORT_STATES),
    *((key, ("limits", key)) for key in SHORT_LIMITS),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """A file: its name, the lines of its keys, and how its long keys were spelt."""

    file: str
    lines: Mapping[Path, int]
    spelt: dict[Path, Path] = field(default_factory=dict[Path, Path])

    def find(self, path: Path) -> tuple[int, int, Path]:
        """How many steps of a path this file has, the line of the last of them, the spelling."""
        wanted = path
        for length in range(len(path), 0, -1):
            if path[:length] in self.spelt:
                wanted = (*self.spelt[path[:length]], *path[length:])
                break
        for length in range(len(wanted), 0, -1):
            if wanted[:length] in self.lines:
                return len(path) - len(wanted) + length, self.lines[wanted[:length]], wanted
        return 0, 1, path


def written_out(raw: Raw, place: Place, origin: Origin) -> dict[str, object]:
    """The file with every short form replaced by its long form."""
    long = dict(raw)
    if isinstance(auth := raw.get("auth"), str):
        long["auth"] = _auth(auth, place.at("auth"), origin)
    if is_table(jobs := raw.get("jobs")):
        long["jobs"] = {
            name: _Job(job, place.at("jobs", name), origin).written_out() if is_table(job) else job
            for name, job in jobs.items()
        }
    if is_table(calls := raw.get("calls")):
        long["calls"] = {
            name: _request(call, place.at("calls", name), origin) for name, call in calls.items()
        }
    return long


def _auth(text: str, place: Place, origin: Origin) -> Raw:
    """`"bearer env:X"`, `"header Name file:/p"`, `"header Name Token env:K"`, `"basic env:U env:P"`
    and the like.
    """
    scheme, *words = text.split() or [""]
    keys = {
        "none": (),
        "bearer": ("secret",),
        "basic": ("user", "password")[: max(1, len(words))],
        "header": ("name", "secret") if len(words) < 3 else ("name", "prefix", "secret"),
        "query": ("name", "secret"),
        "body": ("name", "secret"),
    }.get(scheme)
    if keys is None or len(words) != len(keys):
        place.complain(
            "is no short form of a credential",
            'write "bearer env:TOKEN", "header X-Api-Key env:KEY", "query key env:KEY", '
            '"basic env:USER env:PASS" or "none"',
        )
        return {"scheme": "none"}
    for key in ("scheme", *keys):
        origin.spelt[place.at(key).path] = place.path
    return {"scheme": scheme, **dict(zip(keys, words, strict=True))}


def _request(raw: object, place: Place, origin: Origin) -> object:
    """`"GET /path"` and `"GET {take.url}"` as tables; a table stays as it is."""
    if not isinstance(raw, str):
        return raw
    if (found := _REQUEST.fullmatch(raw.strip())) is None:
        place.complain("is no request", 'write method and path, such as "GET /exports/{id}"')
        return {"method": "GET", "path": "/"}
    address = "path" if found[2].startswith("/") else "url"
    if address == "url" and not found[2].startswith("{") and "://" not in found[2]:
        place.complain("has no slash before its path", f'write "{found[1]} /{found[2]}"')
        return {"method": "GET", "path": "/"}
    for key in ("method", address):
        origin.spelt[place.at(key).path] = place.path
    return {"method": found[1], address: found[2]}


class _Job:
    """One job while its short forms are written out."""

    def __init__(self, raw: Raw, place: Place, origin: Origin) -> None:
        self.job = dict(raw)
        self.place = place
        self.origin = origin

    def written_out(self) -> Raw:
        for key in ("submit", "status", "cancel"):
            if key in self.job:
                self.job[key] = _request(self.job[key], self.place.at(key), self.origin)
        for key, target in _MOVES:
            if key in self.job:
                self._move(key, target)
        if "result" in self.job:
            self.job["result"] = self._result(self.job["result"], ("result",), "url")
        if is_table(results := self.job.get("results")):
            self.job["results"] = {
                name: self._result(raw, ("results", name), f"{name}_url")
                for name, raw in results.items()
            }
        return self.job

    def _move(self, key: str, target: Path) -> None:
        """Put the value of a short key where its long form is."""
        value = self.job.pop(key)
        if not self._put(target, value):
            self.place.at(key).complain(
                f"is named twice: it is short for {'.'.join(map(str, target))}",
                "keep one of the two",
            )
        else:
            self.origin.spelt[self.place.at(*target).path] = self.place.at(key).path

    def _put(self, target: Path, value: object) -> bool:
        """Set a value in the job's sections; False if it is there already."""
        *sections, last = target
        tables: list[dict[str, object]] = [self.job]
        for section in sections:
            inner = tables[-1].get(str(section), {})
            tables.append(dict(inner) if is_table(inner) else {})
        if str(last) in tables[-1]:
            return False
        tables[-1][str(last)] = value
        for section, outer, inner in zip(sections, tables, tables[1:], strict=False):
            if is_table(outer.get(str(section), {})):
                outer[str(section)] = inner
        return True

    def _result(self, raw: object, path: Path, name: str) -> object:
        """`"GET {/result/url}"`: the address is required of, and taken from, the success answer."""
        place = self.place.at(*path)
        found = _REQUEST.fullmatch(raw.strip()) if isinstance(raw, str) else None
        source = _FROM_ANSWER.fullmatch(found[2]) if found else None
        if found is None or source is None:
            return _request(raw, place, self.origin)
        try:
            parse_source(source[1])
        except ValueError as error:
            place.complain(str(error), 'write "GET {/result/url}"')
            return {"method": "GET", "path": "/"}
        if not self._put(("success", "take", name), source[1]) and not self._takes(name, source[1]):
            place.complain(
                f"is named twice: success.take has another {name!r}",
                f"write url = {{result.{name}}} and keep one address",
            )
        self._require(source[1])
        for key in ("method", "url"):
            self.origin.spelt[place.at(key).path] = place.path
        for inner in (("success", "take", name), ("success", "require", source[1])):
            self.origin.spelt.setdefault(self.place.at(*inner).path, place.path)
        return {"method": found[1], "url": f"{{result.{name}}}"}

    def _takes(self, name: str, source: str) -> bool:
        success = self.job.get("success")
        take = success.get("take") if is_table(success) else None
        return is_table(take) and take.get(name) == source

    def _require(self, source: str) -> None:
        success = self.job.get("success")
        if is_table(success) and is_list(listed := success.get("require")):
            plain = {str(item): "present" for item in listed}
            self.job["success"] = {**success, "require": plain}
        self._put(("success", "require", source), "url")
