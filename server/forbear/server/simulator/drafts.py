"""An answer on its way: what it starts from, and the places in it that are set."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from forbear.rules.contract import Example, Header, HttpStatus, Pointer, Source
from forbear.rules.ports import Json
from forbear.rules.values import is_present, locate, text_of
from forbear.server.listener import Answer
from forbear.server.simulator.trees import changed, put, remove

OWN = ("content-length", "date")
"""Fields of examples that are not repeated: whoever sends an answer states them."""
NO_CONTENT = (204, 205, 304)


class _Absent:
    """Stands for a place that has to be empty."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Base:
    """What an answer starts from; `status` None is for the contract's request to say."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: Json = None
    raw: bytes | None = None
    """The body, where it is no JSON."""

    @staticmethod
    def of(example: Example) -> Base:
        try:
            body = json.loads(example.body) if example.body else None
        except ValueError:
            return Base(example.http, example.headers, None, example.body)
        return Base(example.http, example.headers, body)

    def moved(self, change: Callable[[str], str]) -> Base:
        """With every address in it changed."""
        headers = tuple((name, change(value)) for name, value in self.headers)
        return replace(self, headers=headers, body=changed(self.body, change))


@dataclass(frozen=True, slots=True)
class Setting:
    """A place in an answer and what has to stand there, unless what stands there will do."""

    at: Source
    value: Json
    will_do: Callable[[Json], bool] | None = None


Wish = Setting | Callable[[Base], Iterable[Setting]]
"""A setting, or those that follow from what the answer has so far."""


def weak(at: Source, value: Json) -> Setting:
    """Set only where nothing stands."""
    return Setting(at, value, is_present)


def value_in(base: Base, source: Source) -> Json:
    match source:
        case Pointer():
            return locate(base.body, source)
        case Header(name):
            wanted = name.lower()
            return next((text for key, text in base.headers if key.lower() == wanted), None)
        case HttpStatus():
            return base.status


def drawn(base: Base, wishes: Sequence[Wish]) -> Base:
    """The base with every wish carried out, in their order."""
    found = replace(base, body=deepcopy(base.body))
    for wish in wishes:
        for setting in (wish,) if isinstance(wish, Setting) else wish(found):
            found = _set(found, setting)
    return found


def _set(base: Base, setting: Setting) -> Base:
    if setting.will_do is not None and setting.will_do(value_in(base, setting.at)):
        return base
    gone = setting.value is ABSENT
    match setting.at:
        case Pointer() as at if base.raw is None:
            body = remove(base.body, at) if gone else put(base.body, at, setting.value)
            return replace(base, body=body)
        case Header(name):
            others = tuple(pair for pair in base.headers if pair[0].lower() != name.lower())
            more = () if gone else ((name, text_of(setting.value) or ""),)
            return replace(base, headers=(*others, *more))
        case HttpStatus():
            return replace(base, status=int(setting.value))
        case _:
            return base


def answer(base: Base, status: int) -> Answer:
    """The answer as it goes over the wire; `status` is for a base that states none."""
    status = base.status or status
    headers = tuple(pair for pair in base.headers if pair[0].lower() not in OWN)
    if status in NO_CONTENT:
        return Answer(status, headers=headers)
    if base.raw is not None:
        return Answer(status, headers=headers, body=base.raw)
    if all(name.lower() != "content-type" for name, _ in headers):
        headers = (*headers, ("Content-Type", "application/json"))
    body = {} if base.body is None else base.body
    return Answer(status, headers=headers, body=json.dumps(body, ensure_ascii=False).encode())
