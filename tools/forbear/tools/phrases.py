"""The parts of which a next step is made: what happened, one call, and the one thing not to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from forbear.rules.model import Budget, Kind, Operation, RequestClass
from forbear.rules.paging import Cut, Progress
from forbear.tools.record import Record
from forbear.tools.times import clock_time
from forbear.tools.untrusted import clip

LIMIT = 300
"""Most characters of a `next_step`."""

PATIENCE = 4
"""Waits in a row without news after which an agent is told to end its turn."""

LONG_WAIT = 15 * 60 * 1000
"""What is further away than this many ms is not worth waiting for inside a turn."""

END_TURN = "Tell the user and end your turn."


@dataclass(frozen=True, slots=True)
class Advice:
    """The three parts of a text; `brief` stands in for `happened` where names are long."""

    happened: str
    brief: str
    do: str
    never: str


def wait(
    record: Record,
    happened: str,
    never: str = "",
    *,
    brief: str | None = None,
    tool: str = "check_status",
) -> Advice:
    """Wait in one call of `tool`; end the turn where nothing is due soon, or after `PATIENCE`
    waits without news."""
    operation = record.operation
    if patience_is_over(record):
        do = (
            f"No news in {record.spare_waits} waits: give the user the operation_id and end your "
            "turn."
        )
    elif _is_far(record):
        do = "Give the user the operation_id and end your turn; Forbear goes on by itself."
    else:
        do = f"Call {call_text(tool, operation.id)}; it waits for you."
    return Advice(happened, brief or happened, do, f"{again(operation)} {never}".rstrip())


def patience_is_over(record: Record) -> bool:
    return record.spare_waits is not None and record.spare_waits >= PATIENCE


def _is_far(record: Record) -> bool:
    next_at = record.operation.next_at
    return (
        not record.watched_until_client_closes
        and due(record) is not None
        and next_at is not None
        and next_at - record.as_of > LONG_WAIT
    )


# --- calls -----------------------------------------------------------------------------------


def call_text(tool: str, operation_id: str, *, field: str = "operation_id", name: str = "") -> str:
    """A call as an agent would write it; an id too long for a sentence is pointed at by `field`."""
    if not 0 < len(operation_id) <= 48:
        return f"{tool} with the {field} above"
    named = f', name="{name}"' if name else ""
    return f'{tool}(operation_id="{operation_id}"{named})'


def parent_call(operation: Operation, tool: str, purpose: str) -> str:
    call = call_text(tool, operation.parent_id or "", field="parent_operation_id")
    return f"Call {call} {purpose}."


# --- words -----------------------------------------------------------------------------------


def is_read(operation: Operation) -> bool:
    """Whether it is a call that only reads: asking twice costs quota, but changes nothing."""
    return operation.kind is Kind.CALL and operation.request_class is RequestClass.READ


def again(operation: Operation) -> str:
    """The ordinary prohibition."""
    match operation.kind:
        case Kind.JOB:
            return "Do not submit it again."
        case Kind.CALL:
            return "Do not ask for it again." if is_read(operation) else "Do not repeat it."
        case Kind.RESULT:
            return "Do not submit the job again."
        case Kind.CANCEL:
            return "Do not cancel it again."
        case kind:
            assert_never(kind)


def thing(operation: Operation) -> str:
    """What was sent, as a noun."""
    match operation.kind:
        case Kind.JOB:
            return "submission"
        case Kind.CALL:
            return "read" if is_read(operation) else "write"
        case Kind.RESULT:
            return "request for the result"
        case Kind.CANCEL:
            return "cancellation"
        case kind:
            assert_never(kind)


def provider_of(operation: Operation) -> str:
    return clip(operation.provider, 32)


def label_of(operation: Operation) -> str:
    return clip(operation.label or operation.action, 60).replace('"', "'")


def lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def pages_read(operation: Operation) -> Budget | None:
    """Pages that a read has and may have; None if it has none or is no such read."""
    progress = Progress.of(operation)
    return progress.budget if progress is not None and progress.pages else None


def cut_short(operation: Operation) -> str | None:
    """Why a read ended before all its pages were read, as a sentence; None if it did not."""
    cut = (operation.result or {}).get("cut")
    if cut not in set(Cut):
        return None
    pages = (operation.result or {}).get("pages")
    return f"Only a part, {pages} page{'' if pages == 1 else 's'}: {_CUTS[Cut(cut)]}."


_CUTS = {
    Cut.CYCLE: "the provider's next cursor leads back to a page that was read",
    Cut.BUDGET: "the contract allows no more in one read",
    Cut.NO_CURSOR: "the provider says that there is more, but not where",
}


# --- places and times ------------------------------------------------------------------------


def where(record: Record) -> str:
    """Where a person decides."""
    link = record.decide_at
    if link is None or not record.console_served:
        return "with `forbear inbox` in a terminal"
    return f"at {link}" if fits_as_link(link) else "at escalation.decide_at"


def fits_as_link(link: str) -> bool:
    return len(link) <= 90 and link.isprintable() and " " not in link


def due(record: Record) -> str | None:
    """`at 10:20:31Z`, or None where no time is known or it has passed."""
    at = record.operation.next_at
    if at is None or at <= record.as_of or record.operation.lease_owner is not None:
        return None
    return f"at {clock_time(at, record.as_of)}"
