"""What the desk asks of the process: which contracts it has, and whether it can run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from forbear.rules.contract import Contract, ContractError
from forbear.storage.transitions import Holding


class Book(Protocol):
    """The contracts of the home as they stand now; files are read again when they changed."""

    def contracts(self) -> Mapping[str, Contract]:
        """Every contract that loads, by provider."""
        ...

    def errors(self) -> Mapping[str, Sequence[ContractError]]:
        """The mistakes of those that do not, by provider."""
        ...

    async def arrived(self, provider: str) -> None:
        """Return when every secret of a provider that takes time was fetched once, or failed."""
        ...

    def holding(self, provider: str, action: str) -> Holding | None:
        """What this process brings to run an action; None without a contract for it."""
        ...
