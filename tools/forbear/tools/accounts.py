"""Whose a credential is: asked of the provider, once for each that the store does not know yet."""

from __future__ import annotations

import logging

from forbear.rules.contract import ACCOUNT_CHECK, Call
from forbear.rules.model import Operation, Priority, Refusal
from forbear.rules.ports import Clock, Random
from forbear.storage.accepting import Accepted, NotAccepted
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools import declined
from forbear.tools.book import Book
from forbear.tools.drafts import Drafter, Given, call_bounds
from forbear.tools.intake import Intake

PRINCIPAL = "forbear"
"""Whose the checks are: no agent sees or decides them."""

_log = logging.getLogger(__name__)


class Accounts:
    """Checks the credentials of one process where a contract states `[account] check`.

    A check is a read like any other, with its scope, budgets, story and case; only the very
    credential that it is about may send it. Its success accepts that credential.
    """

    def __init__(
        self, store: Store, book: Book, intake: Intake, clock: Clock, random: Random
    ) -> None:
        self._store = store
        self._book = book
        self._intake = intake
        self._clock = clock
        self._random = random

    async def check(self) -> None:
        """Ask once for each credential here that the store does not accept and that has no row.

        The first credential of an account is registered by its first use and needs no check.
        Raises StoreError if the store cannot be used.
        """
        contracts = self._book.contracts().values()
        stated = [(one, one.account_check) for one in contracts if one.account_check is not None]
        if not stated:
            return
        known: dict[tuple[str, str], set[str]] = {}
        for row in await self._store.read.credentials():
            known.setdefault((row["provider"], row["account"]), set()).add(row["fingerprint"])
        for contract, call in stated:
            accepted = known.get((contract.provider, contract.account["id"]))
            holding = self._book.holding(contract.provider, ACCOUNT_CHECK)
            if accepted and holding is not None and holding.credential not in {None, *accepted}:
                await self._ask(call, holding)

    async def ask(self, provider: str) -> Operation | Refusal:
        """Ask whose the credential of a provider is, now, whether or not it is accepted.

        Raises LookupError if its contract has no `[account] check`, StoreError if the store cannot
        be used.
        """
        holding = self._book.holding(provider, ACCOUNT_CHECK)
        if holding is None or not isinstance(holding.action, Call):
            raise LookupError(f"the contract of {provider} has no [account] check")
        outcome = await self._asked(holding.action, holding, None)
        return outcome if isinstance(outcome, Refusal) else outcome.operation

    async def _ask(self, call: Call, holding: Holding) -> None:
        """Store the check; one operation for each credential, however often this is called."""
        outcome = await self._asked(call, holding, holding.credential)
        if isinstance(outcome, Refusal):
            provider = holding.contract.provider
            _log.warning("the account of %s is not checked: %s", provider, outcome.message)

    async def _asked(self, call: Call, holding: Holding, key: str | None) -> Accepted | Refusal:
        given = Given(None, key, Priority.INTERACTIVE, None)
        drafter = Drafter(self._store.key, self._random, PRINCIPAL, None)
        about = {"credential": holding.credential}
        draft = drafter.call(holding, call, about, call_bounds(call, None, None), given)
        outcome = draft if isinstance(draft, Refusal) else await self._intake.accept(draft, holding)
        if isinstance(outcome, NotAccepted):
            outcome = declined.because(outcome, holding, self._clock.now().wall)
        return outcome
