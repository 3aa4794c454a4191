"""Where the next page of operations begins, as the text that a caller hands back."""

from __future__ import annotations

from forbear.rules.model import Operation


def cursor_after(op: Operation) -> str:
    """The cursor of what follows `op`, active ones first."""
    return f"{1 if op.final else 0}.{op.number}"


def read_cursor(cursor: str | None) -> tuple[int, int] | None:
    """Rank and number that a page begins after; None at the beginning, or for no cursor of ours."""
    if not cursor:
        return None
    rank, _, number = cursor.partition(".")
    if rank not in ("0", "1") or not number.isdecimal() or len(number) > 18:  # no such number
        return None
    return int(rank), int(number)
