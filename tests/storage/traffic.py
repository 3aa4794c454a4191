"""Calls of many tasks through one store on a virtual clock, with a provider that answers by rule.

Drives the real ledger: what is due is reserved in the order of its time, each request is under way
for a while, and its answer is settled. Everything that reached the provider is on the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import sqlalchemy as sa
from tests.storage.house import KEY, House, Said, contract

from forbear.rules.contract import Call, Contract
from forbear.rules.model import Operation, Priority
from forbear.storage import rows
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.reserving import Reserved
from forbear.storage.schema import LIVE, operations
from forbear.storage.transitions import Holding
from forbear.tools import drafts

SECOND = 1_000
MINUTE = 60_000

CALLS = """\
contract = 1
provider = "exp"
base_url = "https://api.exp.example/v1"
auth = "bearer env:EXP_TOKEN"
account = { id = "acct_17" }

[scopes.account]
per = "account"
rate = "60/1m"
max_concurrent_requests = 2
max_delayed_requests = 1000
retry_budget = "5/1m"

[scopes.search]
per = "account"
actions = ["search"]
rate = "6/1m"
max_delayed_requests = 1000

[calls.item]
path = "/items/{arg.id}"
method = "GET"
deadline = "2h"

[calls.search]
path = "/search"
method = "GET"
query = { q = "{arg.id}" }
deadline = "2h"

[calls.note]
method = "POST"
path = "/notes"
body = { text = "{arg.id}" }
approval = "none"
deadline = "2h"
"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as the provider saw it."""

    at: int
    operation: str
    task: str
    principal: str
    action: str
    number: int


class Traffic:
    """Asks for calls and carries them. `answer` says what the provider says to an arrival."""

    def __init__(
        self,
        house: House,
        text: str = CALLS,
        *,
        answer: Callable[[Arrival], Said] = lambda arrival: Said(200, {"ok": True}),
        takes: int = 100,
    ) -> None:
        self.house = house
        self.contract: Contract = contract(text)
        self.answer = answer
        self.takes = takes
        """How long a request is under way, ms."""
        self.nobody_runs: set[str] = set()
        """Operations whose process is gone: they are never looked at."""
        self.arrived: list[Arrival] = []
        self.most_at_once = 0
        self._under_way: list[tuple[int, int, Reserved, Said]] = []
        self._tasks: dict[str, str] = {}

    @property
    def now(self) -> int:
        return self.house.clock.now().wall

    def ask(
        self,
        item: str,
        *,
        call: str = "item",
        task: str = "a",
        principal: str = "local",
        priority: Priority = Priority.INTERACTIVE,
    ) -> Operation:
        action = self.contract.calls[call]
        held = self.holding(action)
        made = drafts.Drafter(KEY, self.house.random, principal).call(
            held,
            action,
            {"id": item},
            drafts.call_bounds(action, None, None),
            drafts.Given(purpose=None, key=None, priority=priority, task=task),
        )
        assert isinstance(made, Draft), made
        accepted = self.house.write(lambda c: self.house.ledger.accept(c, made, held))
        assert isinstance(accepted, Accepted), accepted
        self._tasks[accepted.operation.id] = task
        return accepted.operation

    def holding(self, action: Call) -> Holding:
        return Holding(self.contract, action, "fp-1", "v-1")

    def run(self, until: int) -> None:
        """Carry what is due until a time; the clock stands there afterwards."""
        while True:
            due = self._next_due()
            ends = self._under_way[0][0] if self._under_way else None
            at = min((one for one in (due, ends) if one is not None), default=None)
            if at is None or at > until:
                break
            self.house.clock.advance(max(0, at - self.now))
            if ends is not None and ends <= self.now:
                self._settle()
            else:
                self._carry()
        self.house.clock.advance(max(0, until - self.now))

    def _live(self) -> list[Operation]:
        with self.house.database.writer.connect() as connection:
            query = sa.select(operations).where(sa.text(LIVE), operations.c.next_at.is_not(None))
            found = connection.execute(
                query.order_by(operations.c.next_at, operations.c.number)
            ).mappings()
            return [rows.operation(row) for row in found if row["id"] not in self.nobody_runs]

    def _next_due(self) -> int | None:
        flying = {reserved.operation.id for _, _, reserved, _ in self._under_way}
        due = [op.next_at for op in self._live() if op.id not in flying and op.next_at is not None]
        return min(due, default=None)

    def _carry(self) -> None:
        flying = {reserved.operation.id for _, _, reserved, _ in self._under_way}
        for op in self._live():
            if op.id in flying or op.next_at is None or op.next_at > self.now:
                continue
            held = self.holding(self.contract.calls[op.action])
            found = self.house.reserve(op, held)
            if not isinstance(found, Reserved):
                continue
            arrival = Arrival(
                self.now,
                op.id,
                self._tasks[op.id],
                op.principal,
                op.action,
                found.operation.attempts.used,
            )
            self.arrived.append(arrival)
            ends = self.now + self.takes
            heappush(self._under_way, (ends, len(self.arrived), found, self.answer(arrival)))
            self.most_at_once = max(self.most_at_once, len(self._under_way))

    def _settle(self) -> None:
        _, _, reserved, said = heappop(self._under_way)
        self.house.settle(reserved, said)
