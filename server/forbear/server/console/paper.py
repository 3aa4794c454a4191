"""From a page to markup and to plain text: one place where all text of others is made harmless."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from forbear.rules.escalations import length
from forbear.rules.ports import Clock
from forbear.server.console.facts import budgets
from forbear.server.console.pages import Page
from forbear.tools.times import clock_time, rfc3339
from forbear.tools.untrusted import clip, inert

LINE = 400
"""Most characters of one fact on one line."""


class Paper:
    """The templates. Whatever they print is inert first, and escaped where it is HTML."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=lambda name: name is not None and name.endswith(".html"),
            finalize=_harmless,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        filters: dict[str, Callable[..., Any]] = {
            "at": self._at,
            "plain_at": self._plain_at,
            "line": lambda text: clip(str(text), LINE),
            "words": lambda text: str(text).replace("_", " "),
            "query": urlencode,
            "code": code,
            "budgets": budgets,
        }
        self._templates.filters.update(filters)

    def page(self, page: Page, about: Mapping[str, Any]) -> str:
        """The whole document."""
        return self._rendered(f"{page.name}.html", page, about)

    def part(self, page: Page, about: Mapping[str, Any]) -> str:
        """The part of a page that changes by itself, in its frame."""
        return self._rendered("live.html", page, {**about, "part": True})

    def live(self, page: Page, about: Mapping[str, Any]) -> Markup:
        """What stands in that frame."""
        return Markup(self._rendered(f"{page.name}_live.html", page, about))

    def text(self, page: Page) -> str:
        return self._rendered(f"{page.name}.txt", page, {})

    def _rendered(self, template: str, page: Page, about: Mapping[str, Any]) -> str:
        now = self._clock.now().wall
        known = {"title": page.title, "now": now, "part": False}
        return self._templates.get_template(template).render({**known, **page.shown, **about})

    def _at(self, at: int) -> Markup:
        """A time with its zone, and how far it is away in words."""
        now = self._clock.now().wall
        return Markup('<time datetime="{}">{}</time> <span class="age">({})</span>').format(
            rfc3339(at), clock_time(at, now), away(at, now)
        )

    def _plain_at(self, at: int) -> str:
        now = self._clock.now().wall
        return f"{clock_time(at, now)} ({away(at, now)})"


def away(at: int, now: int) -> str:
    """`4 minutes ago`, `in 2 hours`, `now`: to the minute once it is minutes away."""
    distance = abs(now - at)
    if distance < 1_000:
        return "now"
    told = length(distance - distance % 60_000 if distance >= 60_000 else distance)
    return f"in {told}" if at > now else f"{told} ago"


def code(text: str) -> Markup:
    """Words of ours in which `backticks` mark what can be typed."""
    parts = enumerate(escape(inert(text)).split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in parts
    )


def _harmless(value: object) -> object:
    """What a template prints: markup of our own stays, all else loses what hides or controls."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else inert(str(value))
