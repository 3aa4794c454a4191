"""Calls of one client on a house, by hand."""

from __future__ import annotations

from typing import Any

from tests.storage.house import KEY, House, Said, contract
from tests.storage.world import FINDABLE, KEYED

from forbear.rules.decisions import Wish
from forbear.rules.model import Operation, Option, Priority, Refusal
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.deciding import Decided
from forbear.storage.reserving import Reserved
from forbear.storage.transitions import Holding
from forbear.tools import drafts

BY = {"operator": "ann", "channel": "test"}

TRANSFER = """
[calls.{name}]
label = "Transfer {{arg.id}}"
method = "POST"
path = "/transfers"
body = {{ amount = "{{arg.id}}", reference = "{{ref}}" }}
take = {{ id = "/id" }}
require = {{ "/id" = "non_empty" }}
deadline = "1h"
approval = "{approval}"
"""

MADE = Said(201, {"id": "tr_7"})
NOTHING = Said(200, {"items": []})
"""A lookup that finds nothing."""


def transfers(approval: str = "none") -> str:
    """Calls `plain`, `keyed`, `findable` and `both`."""
    kinds = {"plain": "", "keyed": KEYED, "findable": FINDABLE, "both": KEYED + FINDABLE}
    made = [(TRANSFER + kind).format(name=name, approval=approval) for name, kind in kinds.items()]
    return "".join(made)


def found(op: Operation, effect: str = "tr_7") -> Said:
    """A lookup that finds the effect."""
    return Said(200, {"items": [{"id": effect, "reference": op.ref}]})


class Calls:
    """Calls of one client on a house, each with the draft that its contract makes."""

    def __init__(self, house: House, text: str, client: str = "own_a") -> None:
        self.house = house
        self.client = client
        self.contract = contract(text)

    def held(self, call: str, credential: str = "fp-1") -> Holding:
        return Holding(self.contract, self.contract.calls[call], credential, "v-1")

    def draft(self, call: str, **arguments: Any) -> Draft:
        action = self.contract.calls[call]
        made = drafts.Drafter(KEY, self.house.random, "local", self.client).call(
            self.held(call),
            action,
            arguments,
            drafts.call_bounds(action, None, None),
            drafts.Given("rent", None, Priority.INTERACTIVE, "month-end"),
        )
        assert isinstance(made, Draft), made
        return made

    def new(self, call: str, *, credential: str = "fp-1", **arguments: Any) -> Operation:
        made, held = self.draft(call, **arguments), self.held(call, credential)
        accepted = self.house.write(lambda c: self.house.ledger.accept(c, made, held))
        assert isinstance(accepted, Accepted), accepted
        return accepted.operation

    def reserve(self, op: Operation) -> Reserved | bool:
        return self.house.reserve(op, self.held(op.action))

    def permit(self, op: Operation) -> Reserved:
        """The next request, once it is due."""
        if self.house.read(op).next_at is not None:
            self.house.due(op)
        return self.house.permit(op, self.held(op.action))

    def send(self, op: Operation, said: Said) -> Operation:
        return self.house.settle(self.house.permit(op, self.held(op.action)), said)

    def next(self, op: Operation, said: Said) -> Operation:
        """What comes of the next request, once it is due."""
        return self.house.settle(self.permit(op), said)

    def decide(self, op: Operation, option: Option, **given: Any) -> Decided | Refusal:
        case, held = self.house.case(op), self.held(op.action)
        assert case is not None
        wish = Wish(option, **given)
        follow_up: Draft | None = None
        if option in (Option.SEND_NEW, Option.RESUBMIT):
            drafter = drafts.Drafter(KEY, self.house.random, "somebody else", "own_z")
            made = drafter.repetition(op, held)
            assert isinstance(made, Draft)
            follow_up = made
        ledger = self.house.ledger
        return self.house.write(
            lambda c: ledger.decide(c, case.id, case.revision, wish, held, BY, follow_up=follow_up)
        )
