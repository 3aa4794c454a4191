"""Answers that operators gave in advance, carried out like those of a person (requirement E16)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from forbear.rules.model import Case, Operation, Refusal
from forbear.rules.ports import Clock
from forbear.server import operator
from forbear.server.tables import Standing
from forbear.storage.store import Store
from forbear.tools.office import Office

CHANNEL = "standing"

_log = logging.getLogger(__name__)


class Clerk:
    """Gives the standing answers of one home."""

    def __init__(
        self, standing: Sequence[Standing], store: Store, office: Office, clock: Clock
    ) -> None:
        self._standing = standing
        self._store = store
        self._office = office
        self._clock = clock
        self._refused: set[tuple[str, int]] = set()
        """Cases, by id and revision, that were decided in vain: nothing about them has changed."""

    @property
    def idle(self) -> bool:
        return not self._standing

    async def answers(self, case: Case, op: Operation) -> bool:
        """Decide a case if an answer stands for it; whether one was carried out.

        Raises StoreError if the store cannot be used.
        """
        now = self._clock.now().wall
        if (case.id, case.revision) in self._refused:
            return False
        for one in self._standing:
            if one.answers(case, op, now) and await self._used(one, op) < one.times:
                return await self._give(one, case, op, now)
        return False

    async def _used(self, standing: Standing, op: Operation) -> int:
        """How often an answer of its kind was given to this operation."""
        given = [case.decision or {} for case in await self._store.read.cases_of(op.id)]
        mine = {"channel": CHANNEL, "option": str(standing.option), "answers": str(standing.reason)}
        return sum(mine.items() <= dict(decision).items() for decision in given)

    async def _give(self, standing: Standing, case: Case, op: Operation, now: int) -> bool:
        by = operator.signature(self._store.path, CHANNEL) | {
            "operator": standing.operator,
            "answers": str(standing.reason),
        }
        try:
            outcome = await self._office.decide(case, op, standing.wish(now), by)
        except ValueError as error:  # a time of day that has become more than a day away
            _log.warning("standing answer %s: %s", standing.title(), error)
            self._refused.add((case.id, case.revision))
            return False
        if isinstance(outcome, Refusal):
            _log.info("standing answer to case %s: %s", case.id, outcome.message)
            self._refused.add((case.id, case.revision))
            return False
        return True


def listed(standing: Sequence[Standing], now: int) -> list[str]:
    """The answers that still stand, one line each, for `forbear inbox` and the console."""
    return [one.title() for one in standing if now < one.until]
