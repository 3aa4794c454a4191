"""What a process does about what was kept long enough: as contracts say, a few times a day."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from forbear.rules.contract import Retention
from forbear.rules.ports import Clock
from forbear.server.artifacts import Artifacts
from forbear.server.providers import Contracts
from forbear.storage.retention import Term
from forbear.storage.store import Store

EVERY = 3_600_000
"""Between two looks of one process, ms."""

BATCH = 100
"""Operations in one transaction: others must be able to write in between."""


class Keeper:
    """Takes away what was kept for as long as its contract says.

    A provider without a contract keeps the usual times.
    """

    def __init__(
        self, store: Store, contracts: Contracts, artifacts: Artifacts, clock: Clock
    ) -> None:
        self._store = store
        self._contracts = contracts
        self._artifacts = artifacts
        self._clock = clock
        self._next = 0

    async def go(self) -> None:
        """Take what is due, if the last look is long enough ago.

        Raises StoreError if the store cannot be used.
        """
        now = self._clock.now()
        if now.boot < self._next:
            return
        self._next = now.boot + EVERY
        for provider, others, kept in self._terms():
            await self._empty(Term(provider, now.wall - kept.payloads, others))
            await self._forget(Term(provider, now.wall - kept.identities, others))

    def _terms(self) -> Iterator[tuple[str | None, tuple[str, ...], Retention]]:
        contracts = self._contracts.contracts()
        for name, contract in contracts.items():
            yield name, (), contract.retention
        if not self._contracts.errors():  # else it is not known whose contract says what
            yield None, tuple(contracts), Retention()

    async def _empty(self, term: Term) -> None:
        while ids := await self._store.read.full(term, BATCH):
            # The files first: whatever happens in between, they are looked for again.
            for operation_id in ids:
                self._artifacts.remove(operation_id)
            await self._store.write(partial(self._store.ledger.empty, term=term, ids=ids))

    async def _forget(self, term: Term) -> None:
        take = partial(self._store.ledger.forget, term=term, most=BATCH)
        while await self._store.write(take):
            pass  # what they came from may follow now
