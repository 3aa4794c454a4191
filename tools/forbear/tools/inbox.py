"""The inbox: one line per open case, in the order in which a person should look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forbear.rules.escalations import URGENT
from forbear.rules.model import Case, Operation, Reason
from forbear.rules.reconciliation import Search
from forbear.storage.store import Store
from forbear.tools.story import TIMES
from forbear.tools.times import rfc3339
from forbear.tools.untrusted import clip

WIDTH = 100
NAME = 30
KNOWN = 32
"""Columns of a line, and of the two in it that a provider or an agent may make long."""


def lines(entries: Sequence[Entry | Together]) -> list[str]:
    """`1  NOW   4m  —  Transfer 125.00 EUR  sent, no answer  look it up again`, columns aligned."""
    rows = [entry.cells for entry in entries]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    number, urgency, age, left, name, known, first = row
    whole = "  ".join(
        (
            f"{number:<{widths[0]}}",
            f"{urgency:<{widths[1]}}",
            f"{age:>{widths[2]}}",
            f"{left:>{widths[3]}}",
            f"{name:<{widths[4]}}",
            f"{known:<{widths[5]}}",
            first,
        )
    )
    return whole if len(whole) <= WIDTH else whole[: WIDTH - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Entry:
    """One open case with its operation, as of `now`."""

    case: Case
    operation: Operation
    now: int

    @property
    def left(self) -> int | None:
        """Milliseconds until the question settles itself or its answer comes too late."""
        op = self.operation
        ends = [at for at in (op.approve_by, op.useful_until) if at is not None]
        return min(ends) - self.now if ends else None

    @property
    def order(self) -> tuple[bool, bool, int, int]:
        """Money in doubt first, then urgent, then least time left, then the oldest."""
        left = self.left
        return (
            self.case.reason not in URGENT,
            self.case.urgency != "now",
            left if left is not None else 10**15,
            self.case.number,
        )

    @property
    def overdue(self) -> bool:
        return self.left is not None and self.left <= 0

    @property
    def cells(self) -> tuple[str, ...]:
        """Number, urgency, age, time left, name, what is known, and the first option."""
        urgency = "NOW" if self.case.urgency == "now" else self.case.urgency
        left = "—" if self.left is None else "over" if self.overdue else _short(self.left)
        return (
            str(self.case.number),
            "LATE" if self.overdue else urgency,
            _short(self.now - self.case.opened_at),
            left,
            clip(self.operation.label or self.operation.action, NAME),
            clip(_known(self.case, self.operation), KNOWN),
            self.asked,
        )

    @property
    def asked(self) -> str:
        """What an agent asks for, or the option with the least effect."""
        labels = {option["id"]: str(option["label"]) for option in self.case.options}
        if self.wish is not None:
            wished = str(self.wish["option"])
            return f"asked for: {labels.get(wished, wished)}"
        return next(iter(labels.values()), "nothing can be done here")

    @property
    def wish(self) -> Mapping[str, Any] | None:
        """What an agent asks for, if one does."""
        wish = self.case.wish
        return wish if wish is not None and wish.get("reason") else None

    def as_json(self) -> dict[str, Any]:
        case = self.case
        return {
            "number": case.number,
            "id": case.id,
            "group": case.group,
            "reason": str(case.reason),
            "urgency": case.urgency,
            "operation_id": case.operation_id,
            "label": self.operation.label,
            "state": str(self.operation.state),
            "opened_at": rfc3339(case.opened_at),
            "seconds_left": None if self.left is None else self.left // 1_000,
            "wish": None if self.wish is None else dict(self.wish),
            "options": [dict(option) for option in case.options],
            "text": case.text,
            "revision": case.revision,
        }


@dataclass(frozen=True, slots=True)
class Together:
    """Several cases of one group as one line: what stands first of them, and how many there are."""

    entries: Sequence[Entry]

    @property
    def case(self) -> Case:
        return self.entries[0].case

    @property
    def cells(self) -> tuple[str, ...]:
        number, urgency, _, left, _, _, first = self.entries[0].cells
        oldest = max(self.entries, key=lambda entry: entry.now - entry.case.opened_at)
        reasons = {str(entry.case.reason).replace("_", " ") for entry in self.entries}
        shared = next((entry.case.about for entry in self.entries if entry.case.about), None)
        known = f"{' or '.join(sorted(reasons))}: {shared or self.entries[0].operation.provider}"
        name = f"{len(self.entries)} cases, {self.case.group}"
        return (number, urgency, oldest.cells[2], left, name, clip(known, KNOWN), first)


def collapsed(entries: Sequence[Entry]) -> list[Entry | Together]:
    """The same lines with each group of several cases as one, where its first case stands."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.case.group or entry.case.id, []).append(entry)
    return [Together(members) if members[1:] else members[0] for members in groups.values()]


async def entries(store: Store, now: int) -> list[Entry]:
    """All open cases in the order in which a person should look at them."""
    found: list[Entry] = []
    for case in await store.read.open_cases():
        op = await store.read.operation(case.operation_id)
        if op is not None:
            found.append(Entry(case, op, now))
    return sorted(found, key=lambda entry: entry.order)


def _known(case: Case, op: Operation) -> str:
    """What is known, in a few words."""
    match case.reason:
        case Reason.UNCLEAR_WRITE:
            told = f"sent, {'no clear answer' if op.answered else 'no answer'}"
            if not op.lookups.used:
                return told
            found = "inconclusive" if Search.of(op).last_empty is None else "not found"
            return f"{told} · {op.lookups.used} {TIMES} {found}"
        case Reason.APPROVAL_REQUIRED:
            return "not sent, to be approved"
        case Reason.REQUEST_BUDGET_EXHAUSTED:
            used = op.status_requests
            return f"{op.provider_state or 'running'} · {used.used} of {used.max} checks"
        case Reason.UNKNOWN_STATE | Reason.BLOCKED_STATE:
            return f"{str(case.reason).replace('_', ' ')} {op.provider_state or ''}"
        case Reason.TRANSPORT_BUDGET_EXHAUSTED:
            return f"{op.transport_failures.used} failures"
        case _:
            return str(case.reason).replace("_", " ")


def _short(ms: int) -> str:
    """`40s`, `4m`, `3h`, `2d`; time that is over is `0s`."""
    seconds = max(0, ms) // 1_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
