"""What people decide, whatever the channel: a terminal, the console, a standing answer.

No tool of an agent reaches this: it is handed to the operator's channels alone (requirement E07).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from forbear.rules.contract import Job
from forbear.rules.decisions import Wish
from forbear.rules.escalations import has_handle, resumable
from forbear.rules.model import Case, Code, Kind, Operation, Option, Refusal, State
from forbear.rules.ports import Clock, Outbound
from forbear.storage import audit, unasked
from forbear.storage.accepting import Draft
from forbear.storage.deciding import Decided
from forbear.storage.queries import Exchange
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools.book import Book
from forbear.tools.desk import Desk
from forbear.tools.inbox import Entry, entries

TOGETHER = frozenset({Option.HOLD, Option.EXTEND, Option.CHECK_AGAIN, Option.ABANDON})
"""Options that may be decided for a whole group of cases (behaviour.md, section 7)."""


UNSENT = frozenset({State.QUEUED, State.DELAYED})
"""States in which nothing of an operation can have had an effect."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What went over the wire for one operation, as it was kept: secrets were never part of it."""

    request: Outbound | None
    """The action's own request, as it was rendered and approved."""
    exchanges: Sequence[Exchange]


class Office:
    """The operator's use cases on one store.

    Every method raises `StoreUnavailable` if the store cannot be used.
    """

    def __init__(self, store: Store, book: Book, clock: Clock, desk: Desk) -> None:
        self._store = store
        self._book = book
        self._clock = clock
        self._desk = desk

    async def inbox(self) -> Sequence[Entry]:
        """All open cases, money in doubt first, then least time left."""
        return await entries(self._store, self._clock.now().wall)

    async def decide(
        self,
        case: Case,
        op: Operation,
        wish: Wish,
        by: Mapping[str, object],
        *,
        dry_run: bool = False,
    ) -> Decided | Refusal:
        """Carry out an option of a case, once, on the facts as they were shown (`case.revision`).

        `by` says who decides and through which channel (`operator`, `channel`, maybe `comment`).
        A `dry_run` says what would come of it and changes nothing.
        """
        holding = self._book.holding(op.provider, op.action)
        follow_up = await self._follow_up(
            op, wish, holding, f"decided in case {case.number}", case.id
        )
        if isinstance(follow_up, Refusal):
            return follow_up
        decide = partial(
            self._store.ledger.decide,
            case_id=case.id,
            revision=case.revision,
            wish=wish,
            holding=holding,
            by=by,
            follow_up=follow_up,
            dry_run=dry_run,
        )
        return await self._store.write(decide)

    async def decide_group(
        self, group: str, wish: Wish, by: Mapping[str, object], *, dry_run: bool = False
    ) -> list[tuple[Entry, Decided | Refusal]]:
        """Carry out one option on each open case of a group, recorded with each of them.

        A case that does not allow it is left open, and its refusal says why.
        """
        told: list[tuple[Entry, Decided | Refusal]] = []
        for entry in await self.inbox():
            if entry.case.group != group:
                continue
            if wish.option in TOGETHER:
                signed = {**by, "group": group}
                case, op = entry.case, entry.operation
                told.append((entry, await self.decide(case, op, wish, signed, dry_run=dry_run)))
            else:
                told.append((entry, _not_together(entry.operation, wish.option)))
        return told

    async def decide_unasked(
        self, op: Operation, wish: Wish, by: Mapping[str, object], *, dry_run: bool = False
    ) -> Decided | Refusal:
        """Carry out what no case asks about: `resubmit` what is over, `cancel_at_provider` a job.

        The case that records it is opened and decided in one; `op` is as it was shown.
        """
        holding = self._book.holding(op.provider, op.action)
        follow_up = await self._follow_up(op, wish, holding, "decided by an operator", "")
        if isinstance(follow_up, Refusal):
            return follow_up
        decide = partial(
            unasked.decide,
            ledger=self._store.ledger,
            operation_id=op.id,
            revision=op.revision,
            wish=wish,
            holding=holding,
            by=by,
            follow_up=follow_up,
            dry_run=dry_run,
        )
        return await self._store.write(decide)

    async def cancel(
        self, op: Operation, by: Mapping[str, object], *, dry_run: bool = False
    ) -> Decided | Operation | Refusal:
        """Stop an operation: dropped if nothing of it was sent, else the provider is asked to.

        Returns the operation alone where it was dropped.
        """
        if op.state in UNSENT:
            comment = f": {by['comment']}" if by.get("comment") else ""
            why = f"cancelled by {by.get('operator', 'an operator')}{comment}"
            drop = partial(self._store.ledger.drop, operation_id=op.id, why=why, only=UNSENT)
            dropped = None if dry_run else await self._store.write(drop)
            return dropped or op
        case = await self._store.read.open_case(op.id)
        stopped = op.state is State.ESCALATED and not has_handle(op) and resumable(op)
        if case is not None and stopped:
            return await self.decide(case, op, Wish(Option.ABANDON), by, dry_run=dry_run)
        refusal = await self._not_cancellable(op)
        if refusal is not None:
            return refusal
        wish = Wish(Option.CANCEL_AT_PROVIDER)
        if case is not None:
            return await self.decide(case, op, wish, by, dry_run=dry_run)
        return await self.decide_unasked(op, wish, by, dry_run=dry_run)

    async def _not_cancellable(self, op: Operation) -> Refusal | None:
        """Why the provider cannot be asked to cancel, in more words than that it is not offered."""
        holding = self._book.holding(op.provider, op.action)
        job = holding.action if holding is not None else None
        cancels = await self._store.read.children(op.id, Kind.CANCEL)
        asked = next((one.id for one in cancels if not one.final), None)
        if op.final:
            why = f"{op.id} is over: {op.state}"
        elif not has_handle(op):
            why = f"{op.id} is {op.state}, and the provider's id of it is not known"
        elif not isinstance(job, Job) or job.cancel is None:
            why = f"the contract of {op.provider} names no way to cancel {op.action}"
        elif asked is not None:
            why = f"{asked} asks the provider to cancel it already"
        else:
            return None
        look = f"forbear show {asked or op.id} tells more"
        return Refusal(Code.OPTION_NOT_OFFERED, why, look, op.id)

    async def raw(self, op: Operation, reason: str, by: Mapping[str, object]) -> Raw:
        """What was sent and answered, word for word; that somebody looked is recorded first."""
        at = self._clock.now().wall
        look = partial(
            audit.append,
            operation_id=op.id,
            at=at,
            code=audit.Code.RAW_SHOWN,
            body={**by, "reason": reason},
        )
        await self._store.write(look)
        read = self._store.read
        return Raw(await read.request_of(op.id), await read.exchanges_of(op.id))

    async def _follow_up(
        self,
        op: Operation,
        wish: Wish,
        holding: Holding | None,
        reason: str,
        approved_by: str,
    ) -> Draft | Refusal | None:
        """The operation that is queued in the transaction of the decision, if it makes one."""
        if not op.known:
            return None  # nothing that makes a new operation is offered
        if wish.option in (Option.SEND_NEW, Option.RESUBMIT) and holding is not None:
            return await self._desk.repetition(op, holding)
        job = holding.action if holding is not None else None
        if wish.option is not Option.CANCEL_AT_PROVIDER or not isinstance(job, Job):
            return None
        if job.cancel is None or holding is None:
            return None
        return self._desk.cancellation(op, holding, job.cancel, reason, approved_by=approved_by)


def _not_together(op: Operation, option: Option) -> Refusal:
    return Refusal(
        Code.OPTION_NOT_OFFERED,
        f"{option} is decided one by one",
        f"a group takes {', '.join(sorted(TOGETHER))}",
        op.id,
    )
