"""What people decide, whatever the channel: a terminal, the console, a standing answer.

No tool of an agent reaches this: it is handed to the operator's channels alone (requirement E07).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from forbear.rules.contract import Job
from forbear.rules.decisions import Wish
from forbear.rules.model import Case, Operation, Option, Refusal
from forbear.rules.ports import Clock
from forbear.storage.accepting import Draft
from forbear.storage.deciding import Decided
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools import inbox
from forbear.tools.book import Book
from forbear.tools.desk import Desk


class Office:
    """The operator's use cases on one store.

    Every method raises `StoreUnavailable` if the store cannot be used.
    """

    def __init__(self, store: Store, book: Book, clock: Clock, desk: Desk) -> None:
        self._store = store
        self._book = book
        self._clock = clock
        self._desk = desk

    async def inbox(self) -> Sequence[inbox.Entry]:
        """All open cases, money in doubt first, then least time left."""
        return await inbox.entries(self._store, self._clock.now().wall)

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
        follow_up = self._follow_up(case, op, wish, holding)
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

    def _follow_up(
        self, case: Case, op: Operation, wish: Wish, holding: Holding | None
    ) -> Draft | Refusal | None:
        """The operation that is queued in the transaction of the decision, if it makes one."""
        if wish.option in (Option.SEND_NEW, Option.RESUBMIT) and holding is not None:
            return self._desk.repetition(op, holding)
        job = holding.action if holding is not None else None
        if wish.option is not Option.CANCEL_AT_PROVIDER or not isinstance(job, Job):
            return None
        if job.cancel is None or holding is None:
            return None
        reason = f"decided in case {case.number}"
        return self._desk.cancellation(op, holding, job.cancel, reason, approved_by=case.id)
