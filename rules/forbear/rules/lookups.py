"""Reading one page of a lookup: which items are ours, and whether there is more to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forbear.rules.contract import Lookup, Pointer, Request
from forbear.rules.facts import Facts
from forbear.rules.paging import onward
from forbear.rules.ports import Json
from forbear.rules.reading import Answer, foreign, holds_for
from forbear.rules.values import Gap, elements, locate, text_of


@dataclass(frozen=True, slots=True)
class Page:
    """What one page of a lookup says."""

    matches: tuple[Mapping[str, str], ...] = ()
    """What to keep of each item that is ours."""
    differing: bool = False
    """An item is ours by its reference, but says something else than we sent."""
    more: str | None = None
    """The cursor of the next page; an empty string is a cursor, only None is the end."""
    readable: bool = True
    """False: there was no list where the contract says it is, or no way to the rest of it."""


def read_page(answer: Answer, lookup: Lookup, sent: Request, facts: Facts) -> Page:
    """Read one complete answer to a lookup. Without `items` the body itself is the only item.

    `sent` is the request that is looked for: what its answer would have to echo, an item must not
    contradict.
    """
    if lookup.items is None:
        items: tuple[Json, ...] = () if isinstance(answer.body, Gap) else (answer.body,)
    else:
        found = elements(locate(answer.body, lookup.items))
        if found is None:
            return Page(readable=False)
        items = tuple(found)
    ours = tuple(item for item in items if holds_for(lookup.match, item, facts))
    echo = tuple(one for one in sent.echo if isinstance(one[0], Pointer))
    differing = any(foreign(echo, replace(answer, body=item), facts) for item in ours)
    matches = tuple(_taken(item, lookup) for item in ours)
    if lookup.page is None:
        return Page(matches, differing)
    further = onward(answer, lookup.page, items)
    # Where the answer itself says that there is more, a page without a cursor is not the end.
    whole = further.problem is None and not further.lost
    return Page(matches, differing, further.cursor, readable=whole)


def _taken(item: Json, lookup: Lookup) -> Mapping[str, str]:
    texts = {
        name: text_of(locate(item, source))
        for name, source in lookup.take
        if isinstance(source, Pointer)
    }
    return {name: text for name, text in texts.items() if text is not None}
