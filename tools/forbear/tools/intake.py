"""Where a new operation goes: into the store, or straight to whoever carries it in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from forbear.storage.accepting import Accepted, Draft, NotAccepted
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools.tracing import caused


class Carrier(Protocol):
    """Whoever carries operations of a store."""

    def takes(self, holding: Holding) -> bool:
        """Whether a new operation of this action would be carried here, and now."""
        ...

    async def begin(self, draft: Draft, holding: Holding) -> Accepted | NotAccepted:
        """Accept it and go on with it at once, also when the caller is gone.

        Raises:
            StoreUnavailable, StoreTooNew: nothing was stored.
        """
        ...


class Intake:
    """Takes new operations in. What nobody carries here is found by whoever looks for due ones."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._carrier: Carrier | None = None

    @contextmanager
    def carried_by(self, carrier: Carrier) -> Generator[None]:
        """Let new operations go to a carrier for so long."""
        self._carrier = carrier
        try:
            yield
        finally:
            self._carrier = None

    async def accept(self, draft: Draft, holding: Holding) -> Accepted | NotAccepted:
        """See `accepting.accept`.

        Raises:
            StoreUnavailable, StoreTooNew: nothing was stored.
        """
        caused(draft.operation.id)
        if self._carrier is not None and self._carrier.takes(holding):
            return await self._carrier.begin(draft, holding)
        accept = partial(self._store.ledger.accept, draft=draft, holding=holding)
        return await self._store.write(accept)
