"""What a process does for open cases with every sign of life: answers that stand, then telling."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from functools import partial

from forbear.rules import reminders
from forbear.rules.model import Case
from forbear.rules.ports import Clock
from forbear.server.notify import Herald
from forbear.server.providers import Contracts
from forbear.server.standing import Clerk
from forbear.storage.brakes import COPY
from forbear.storage.errors import StoreError
from forbear.storage.store import Store

DEFERENCE = 30_000
"""How long a short-lived process leaves a telling to a resident worker, ms: it tells of the case
in its own settings, and is there when a try must be made again."""


_log = logging.getLogger(__name__)


class Rounds:
    """The rounds of one process. `herald` is None where no webhook is set."""

    def __init__(
        self,
        store: Store,
        contracts: Contracts,
        clock: Clock,
        clerk: Clerk,
        herald: Herald | None,
    ) -> None:
        self._store = store
        self._contracts = contracts
        self._clock = clock
        self._clerk = clerk
        self._herald = herald

    async def go(self, elsewhere: Collection[str]) -> None:
        """Do what is due for every open case.

        `elsewhere` are the bindings that a living resident worker holds. Raises StoreError if the
        store cannot be used.
        """
        if any(one["target"] == COPY for one in await self._store.read.pauses()):
            return  # the home that this is a copy of tells people itself
        contracts = self._contracts.contracts().values()
        may_end = any(contract.abandon_after is not None for contract in contracts)
        now = self._clock.now().wall
        cases = await self._store.read.open_cases()
        alike = Counter(case.group or case.id for case in cases)
        for case in cases:
            # Of equal cases the first is sent and speaks for all.
            many = alike.pop(case.group or case.id, 0)
            if may_end or not self._clerk.idle or reminders.is_due(case, None, now):
                try:
                    await self._see(case, elsewhere, many)
                except StoreError:
                    raise
                except Exception:  # operations go on whatever is wrong with one case
                    _log.exception("case %s could not be told or answered", case.id)

    async def _see(self, case: Case, elsewhere: Collection[str], alike: int) -> None:
        """See to one case; `alike` is for how many it speaks, 0 where another speaks for it."""
        op = await self._store.read.operation(case.operation_id)
        if op is None or await self._clerk.answers(case, op):
            return
        now = self._clock.now().wall
        holding = self._contracts.holding(op.provider, op.action)
        contract = holding.contract if holding is not None else None
        if not reminders.is_due(case, contract, now):
            return
        since = case.announce_at if case.announce_at is not None else now
        if op.binding in elsewhere and now - since < DEFERENCE:
            return
        herald = self._herald_of(case) if alike else None
        if herald is not None and not herald.free:
            return
        announce = partial(
            self._store.ledger.announce,
            case_id=case.id,
            holding=holding,
            sends=herald is not None,
        )
        telling = await self._store.write(announce)
        if telling is not None and herald is not None:
            herald.tell(telling, holding, alike)

    def _herald_of(self, case: Case) -> Herald | None:
        return self._herald if self._herald is not None and self._herald.wants(case) else None
