"""Which request of a contract arrived, and with which values: templates read backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from forbear.rules.contract import (
    Action,
    Contract,
    Job,
    Placeholder,
    Request,
    Template,
    Tree,
)
from forbear.rules.facts import only_placeholder
from forbear.rules.ports import Json
from forbear.rules.values import (
    MISSING,
    Unreadable,
    decode,
    elements,
    locate,
    members,
    text_of,
)
from forbear.server.listener import Arrival

PLACE = "-"
"""The first path segment of addresses that the simulator gives out: `-/NUMBER/NAME`."""


@dataclass(frozen=True, slots=True)
class Route:
    """One request of a contract that may arrive."""

    action: Action
    request: Request
    on: str
    """`jobs.export.status`, as `[[examples]]` name it."""

    @property
    def name(self) -> str:
        """`export.status`, `transfer`, as a person names it."""
        return self.on.partition(".")[2].replace(".results.result", ".result")


def routes(contract: Contract) -> tuple[Route, ...]:
    """Every request of a contract."""
    found: list[Route] = []
    for name, job in contract.jobs.items():
        at = f"jobs.{name}"
        found += [Route(job, job.send, f"{at}.submit"), Route(job, job.status, f"{at}.status")]
        found += [Route(job, one, f"{at}.results.{key}") for key, one in job.results.items()]
        found += [Route(job, job.cancel, f"{at}.cancel")] if job.cancel is not None else []
        found += _lookup(job, at)
    for name, call in contract.calls.items():
        found += [Route(call, call.send, f"calls.{name}"), *_lookup(call, f"calls.{name}")]
    return tuple(found)


def _lookup(action: Action, at: str) -> list[Route]:
    lookup = action.lookup
    return [] if lookup is None else [Route(action, lookup.request, f"{at}.lookup")]


@dataclass(slots=True)
class Met:
    """A route that an arrival fits, with the values of its placeholders."""

    route: Route
    values: dict[str, Json] = field(default_factory=dict[str, Json])
    record: int | None = None
    """The number of the record whose address, given out before, was asked for."""
    score: int = 0
    """How much of the arrival is stated in the contract; the closest route counts."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {k[4:]: v for k, v in self.values.items() if k.startswith("arg.")}

    def text(self, name: str) -> str | None:
        return text_of(self.values[name]) if name in self.values else None


def met(contract: Contract, arrival: Arrival, known: tuple[Route, ...]) -> list[Met]:
    """The routes that an arrival fits, the closest first."""
    base = urlsplit(contract.base_url).path.rstrip("/")
    found = [one for route in known if (one := _fit(contract, base, arrival, route)) is not None]
    return sorted(found, key=lambda one: -one.score)


def _fit(contract: Contract, base: str, arrival: Arrival, route: Route) -> Met | None:
    request = route.request
    if arrival.method != request.method:
        return None
    reading = _Reading(Met(route), contract.account)
    fits = (
        reading.address(base, request, arrival.path)
        and reading.query(request, arrival.query)
        and reading.headers(request, arrival.headers)
        and reading.body(request, arrival)
    )
    return reading.met if fits else None


class _Reading:
    def __init__(self, met: Met, account: Mapping[str, str]) -> None:
        self.met = met
        self._account = account

    # --- places ---------------------------------------------------------------------------

    def address(self, base: str, request: Request, path: str) -> bool:
        template = request.path or request.url
        if template is None:
            return False
        parts = template.parts
        prefix = re.escape(base) if request.url is None else ""
        if request.url is not None and parts:
            head, *rest = parts
            if isinstance(head, Placeholder):
                place = re.escape(f"{base}/{PLACE}/")
                prefix = rf"{place}(?P<record>[0-9]+)/{re.escape(head.name)}"
                parts = tuple(rest)
            else:
                parts = (urlsplit(head).path, *rest)
        found, names = _pattern(parts, in_path=True)
        hit = re.fullmatch(prefix + found, path)
        if hit is None:
            return False
        if (number := hit.groupdict().get("record")) is not None:
            self.met.record = int(number)
        self.met.score += sum(len(part) for part in parts if isinstance(part, str))
        return all(self._learn(name, unquote(hit[group])) for group, name in names)

    def query(self, request: Request, given: Mapping[str, str]) -> bool:
        # The path of an address may have a query of its own, which says nothing more.
        return all(self._pair(t, given.get(name)) for name, t in request.query)

    def headers(self, request: Request, given: Mapping[str, str]) -> bool:
        return all(self._pair(t, given.get(name.lower())) for name, t in request.headers)

    def body(self, request: Request, arrival: Arrival) -> bool:
        if request.form:
            given = dict(parse_qsl(arrival.body.decode("utf-8", "replace"), True))
            return all(self._pair(t, given.get(name)) for name, t in request.form)
        if request.body is None and not request.merge:
            return True
        try:
            body: Json = decode(arrival.body) if arrival.body else MISSING
        except Unreadable:
            return False
        merged = all(self._value(t, locate(body, at)) for at, t in request.merge)
        return merged and (request.body is None or self._tree(request.body, body))

    # --- values ---------------------------------------------------------------------------

    def _tree(self, tree: Tree, value: Json) -> bool:
        if isinstance(tree, Template):
            return self._value(tree, value)
        if (held := members(tree)) is not None:
            given = members(value) or {}
            return all(self._tree(one, given.get(name, MISSING)) for name, one in held.items())
        if (array := elements(tree)) is not None:
            listed = elements(value)
            if listed is None or len(listed) > len(array):
                return False
            return all(self._tree(one, given) for one, given in zip(array, listed, strict=False))
        self.met.score += 10
        return text_of(tree) == text_of(value)

    def _pair(self, template: Template, text: str | None) -> bool:
        return self._value(template, MISSING if text is None else text)

    def _value(self, template: Template, value: Json) -> bool:
        alone = only_placeholder(template)
        if alone is not None:
            # What has no value is left out of a request.
            return value is MISSING or self._learn(alone.name, value)
        text = text_of(value)
        if text is None:
            return False
        found, names = _pattern(template.parts, in_path=False)
        hit = re.fullmatch(found, text, re.DOTALL)
        if hit is None:
            return False
        self.met.score += sum(10 for part in template.parts if isinstance(part, str))
        return all(self._learn(name, hit[group]) for group, name in names)

    def _learn(self, name: str, value: Json) -> bool:
        kind, _, key = name.partition(".")
        if kind == "account":
            return text_of(value) == self._account.get(key)
        known = self.met.values.setdefault(name, value)
        return known is value or text_of(known) == text_of(value)


def _pattern(
    parts: tuple[str | Placeholder, ...], *, in_path: bool
) -> tuple[str, list[tuple[str, str]]]:
    """A regular expression of a template, and the names behind its groups."""
    texts: list[str] = []
    names: list[tuple[str, str]] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(re.escape(part))
            continue
        anything = ".*" if not in_path else ".+" if part.raw else "[^/]+"
        texts.append(f"(?P<g{number}>{anything})")
        names.append((f"g{number}", part.name))
    return "".join(texts), names


def addresses(action: Action) -> frozenset[str]:
    """The names (`take.x`, `result.x`) that some request of an action uses as its address."""
    return frozenset(
        head.name
        for request in _requests(action)
        if request.url is not None and request.url.parts
        for head in request.url.parts[:1]
        if isinstance(head, Placeholder)
    )


def handles(action: Action) -> frozenset[str]:
    """The names of answers' values that later requests of an action carry."""
    found: set[str] = set()
    for request in _requests(action):
        if request is action.send:
            continue
        texts = [request.path, request.url, *(t for _, t in (*request.query, *request.form))]
        texts += [t for _, t in request.headers]
        for template in (*texts, *_leaves(request.body)):
            found |= set() if template is None else template.names
    return frozenset(name for name in found if name.startswith(("take.", "result.")))


def _leaves(tree: Tree) -> Iterator[Template]:
    if isinstance(tree, Template):
        yield tree
    for one in (*(members(tree) or {}).values(), *(elements(tree) or ())):
        yield from _leaves(one)


def _requests(action: Action) -> Iterator[Request]:
    yield action.send
    if isinstance(action, Job):
        yield from (action.status, *action.results.values())
        if action.cancel is not None:
            yield action.cancel
