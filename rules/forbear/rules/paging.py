"""The pages of a read: what one says, where the next begins, and when the read is over.

A read whose contract has `page` is one operation of several requests. Each page has attempts of its
own, the read as a whole has a budget of pages. How far it is stands in `Operation.search`, and the
items of each page that was read in the row of its attempt, written in one transaction: whatever a
crash leaves, every page that counts is there, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote

from forbear.rules.contract import Action, Call, Paging
from forbear.rules.model import Budget, Operation, State
from forbear.rules.ports import Json, Outbound
from forbear.rules.reading import Answer, source_name, text_at, value_at
from forbear.rules.redirects import follows
from forbear.rules.requests import RenderError, json_text
from forbear.rules.values import Gap, elements, is_present, locate, text_of

MAX_CURSOR = 4_000
"""Most characters of a cursor; it has to fit into an address."""


class Cut(StrEnum):
    """Why a read ended before the end of what the provider has."""

    CYCLE = "cursor_cycle"
    """The next page has a cursor that this read already used."""
    BUDGET = "page_budget"
    NO_CURSOR = "no_cursor"
    """The provider says that there is more, and not where."""


# --- what a page says -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Onward:
    """Where an answer says that the list goes on."""

    cursor: str | None = None
    """Where the next page begins. An empty string is a cursor; only None is the end."""
    lost: bool = False
    """There is more, and no cursor leads to it."""
    problem: str | None = None
    """Why the cursor cannot be read."""


def onward(answer: Answer, page: Paging, items: tuple[Json, ...]) -> Onward:
    """Read where the page after this one begins; `items` are the items of this one."""
    if page.more is not None and text_at(answer, page.more) not in ("true", "1"):
        return Onward()
    place, value = _cursor(answer, page, items)
    if not is_present(value):
        return Onward(lost=page.more is not None)
    cursor = text_of(value)
    if cursor is None:
        return Onward(problem=f"the cursor at {place} is no plain value")
    if len(cursor) > MAX_CURSOR:
        return Onward(problem=f"the cursor at {place} has more than {MAX_CURSOR} characters")
    return Onward(cursor)


def _cursor(answer: Answer, page: Paging, items: tuple[Json, ...]) -> tuple[str, Json]:
    if page.at is not None:
        return source_name(page.at), value_at(answer, page.at)
    if page.item is not None and items:
        return page.item.text, locate(items[-1], page.item)
    return "", None


@dataclass(frozen=True, slots=True)
class Turn:
    """One page of a read."""

    items: tuple[Json, ...] = ()
    onward: Onward = Onward()


def read_turn(answer: Answer, page: Paging) -> Turn | str:
    """The page in a complete answer, or why it cannot be read.

    Without `items` the whole body is one item.
    """
    if page.items is None:
        items: tuple[Json, ...] = () if isinstance(answer.body, Gap) else (answer.body,)
    else:
        found = elements(locate(answer.body, page.items))
        if found is None:
            return f"{page.items.text or 'the body'} is no list"
        items = tuple(found)
    further = onward(answer, page, items)
    return further.problem or Turn(items, further)


def paging_of(action: Action) -> Paging | None:
    """How the answers to an action's own request are paged, if they are."""
    return action.page if isinstance(action, Call) else None


# --- how far a read is ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a paged read is; kept in `Operation.search`."""

    most: int
    """The budget of pages, as the contract had it when the read was accepted."""
    pages: tuple[int, ...] = ()
    """The pages read, in order, each as the fence of the attempt that brought it."""
    cursor: str | None = None
    """Where the next page begins; None is the first."""
    passed: tuple[str, ...] = ()
    """Digests of the cursors that led to a page so far."""
    attempts: int = 0
    """Attempts that went into the pages read."""

    @staticmethod
    def of(op: Operation) -> Progress | None:
        """None if the operation is no paged read."""
        kept = (op.search or {}).get("paging")
        if kept is None:
            return None
        pages, passed = tuple(kept["pages"]), tuple(kept["passed"])
        return Progress(kept["most"], pages, kept["cursor"], passed, kept["attempts"])

    @staticmethod
    def begin(page: Paging, first: Outbound) -> Progress:
        """Before the first page; a cursor that its request already has is not used again."""
        pairs = parse_qsl(first.url.partition("?")[2], keep_blank_values=True)
        stated = tuple(_digest(value) for name, value in pairs if name == page.query)
        return Progress(page.max_pages, passed=stated)

    def kept(self) -> Mapping[str, object]:
        """The form that is stored, plain JSON."""
        return {
            "paging": {
                "most": self.most,
                "pages": list(self.pages),
                "cursor": self.cursor,
                "passed": list(self.passed),
                "attempts": self.attempts,
            }
        }

    @property
    def budget(self) -> Budget:
        return Budget(len(self.pages), self.most)

    def after(self, turn: Turn, op: Operation) -> Turned:
        """What follows after one page more, which the present attempt of `op` brought.

        The end comes first, then a cycle, then the budget: a read is cut only where more would
        have followed.
        """
        read = replace(self, pages=(*self.pages, op.fence), attempts=op.attempts.used)
        cursor = turn.onward.cursor
        if cursor is None:
            return Turned(read, Cut.NO_CURSOR if turn.onward.lost else None)
        digest = _digest(cursor)
        if digest in self.passed:
            return Turned(read, Cut.CYCLE)
        if read.budget.spent:
            return Turned(read, Cut.BUDGET)
        return Turned(replace(read, cursor=cursor, passed=(*self.passed, digest)), goes_on=True)


@dataclass(frozen=True, slots=True)
class Turned:
    """After a page: how far the read is, and whether it goes on."""

    progress: Progress
    cut: Cut | None = None
    """Why the read is over though there is more; None if it has all or goes on."""
    goes_on: bool = False


def _digest(cursor: str) -> str:
    return sha256(cursor.encode()).hexdigest()[:16]


def tried_before(op: Operation) -> int:
    """How often the present request of `op` was tried before; every page begins anew.

    The attempt that was made last, or is made now, is counted already.
    """
    progress = Progress.of(op)
    return max(0, op.attempts.used - 1 - (0 if progress is None else progress.attempts))


def repeats(op: Operation) -> bool:
    """Whether the next request of the action itself would be one that was already tried."""
    progress = Progress.of(op)
    return op.attempts.used > (0 if progress is None else progress.attempts)


def reads_on(op: Operation) -> bool:
    """Whether a read goes for its next page or follows a redirect; no attempt of that failed."""
    if follows(op):
        return True
    progress = Progress.of(op)
    if progress is None or not progress.pages:
        return False
    out = 1 if op.state is State.SENDING else 0
    live = op.state in (State.DELAYED, State.SENDING)
    return live and op.attempts.used == progress.attempts + out


# --- requests and results -------------------------------------------------------------------


def turned(request: Outbound, op: Operation, action: Action) -> Outbound:
    """The stored request of a read, at the page that is next; any other request as it is.

    Everything but the cursor stays what was accepted.

    Raises:
        RenderError: the contract no longer says how the read goes on.
    """
    progress, page = Progress.of(op), paging_of(action)
    if progress is None or progress.cursor is None:
        return request
    if page is None:
        raise RenderError("the contract no longer says how to read further pages")
    address, _, query = request.url.partition("?")
    others = [pair for pair in query.split("&") if pair and _name(pair) != page.query]
    cursor = f"{quote(page.query, safe='')}={quote(progress.cursor, safe='')}"
    return replace(request, url=f"{address}?{'&'.join([*others, cursor])}")


def _name(pair: str) -> str:
    return unquote(pair.partition("=")[0])


def items_text(turn: Turn) -> bytes:
    """The items of one page as a JSON array, every number as the provider wrote it."""
    listed = "[" + ",".join(json_text(item) for item in turn.items) + "]"
    # A lone surrogate is written as the escape that it came as.
    return listed.encode("utf-8", "backslashreplace")


def joined(pages: Iterable[bytes]) -> bytes:
    """One array of the items of all pages, each as `items_text` wrote it."""
    inside = (page[1:-1] for page in pages)
    return b"[" + b",".join(items for items in inside if items) + b"]"
