"""Every reason with every option: offered where it may be, refused elsewhere, carried out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from tests.storage.house import CONTRACT, KEY, LOST, UNSENT, House, Said, contract

from forbear.rules.conclusions import stop
from forbear.rules.decisions import Wish
from forbear.rules.escalations import OPTIONS, offers
from forbear.rules.model import Code, Operation, Option, Reason, Refusal, State
from forbear.storage import audit, authority
from forbear.storage.accepting import Draft
from forbear.storage.deciding import REPLACES, Decided
from forbear.storage.schema import operations
from forbear.storage.transitions import Holding, apply, must_load
from forbear.tools import drafts

BY = {"operator": "ann", "channel": "terminal", "same_user": True}
BUDGETS = (
    *("status_requests", "transport_failures", "rate_limited", "attempts", "wait", "lookups"),
    "extensions",
)


def wish(option: Option) -> Wish:
    """The option with the parameters that it cannot do without."""
    return Wish(
        option,
        treat_as="waiting" if option is Option.TREAT_AS else None,
        reference="exp_99" if option is Option.CONFIRM_DONE else None,
    )


class Stopped:
    """Operations that stopped for one reason, by what they left behind at the provider."""

    def __init__(self, house: House, reason: Reason) -> None:
        self.house = house
        self.reason = reason
        self.made = 0
        # A changed contract, so that nothing is ruled out by being the same.
        changed = contract(CONTRACT.replace("GET /exports/{id}", "GET /v2/exports/{id}"))
        self.held = Holding(changed, changed.jobs["export"], "fp-1", "v-2")

    def make(self, left: str) -> Operation:
        self.made += 1
        self.house.clock.advance(20_000)  # failures that come faster look like an outage
        name = f"d{self.made}"
        house = self.house
        match left:
            case "running":
                op = house.send(
                    house.new(name), Said(202, {"id": f"exp_{name}", "state": "queued"})
                )
            case "unsent":
                op = house.send(house.new(name), UNSENT)
            case _:
                op = house.send(house.new(name), LOST)
        if op.state is State.ESCALATED:
            self._again(op)
        return house.write(partial(self._stop, op_id=op.id))

    def _again(self, op: Operation) -> None:
        """Back from the question that it stopped with by itself."""
        row = sa.update(operations).where(operations.c.id == op.id)
        due = {"state": "unclear", "next_at": self.house.clock.now().wall}
        self.house.write(lambda c: c.execute(row.values(**due)))

    def _stop(self, connection: Connection, op_id: str) -> Operation:
        op, now = must_load(connection, op_id), self.house.clock.now().wall
        verdict, random = stop(self.reason), self.house.random
        return apply(connection, op, verdict, audit.Code.ENDED, now, random, holding=self.held)

    def decide(self, op: Operation, option: Option) -> Decided | Refusal:
        case = self.house.case(op)
        assert case is not None
        follow_up: Draft | None = None
        if option in REPLACES:
            made = drafts.Drafter(KEY, self.house.random, "local").repetition(op, self.held)
            assert isinstance(made, Draft)
            follow_up = made
        decide: Callable[[Connection], Decided | Refusal] = partial(
            self.house.ledger.decide,
            case_id=case.id,
            revision=case.revision,
            wish=wish(option),
            holding=self.held,
            by=BY,
            follow_up=follow_up,
        )
        return self.house.write(decide)

    def decide_again(self, case_id: str, revision: int, option: Option) -> Decided | Refusal:
        ledger, held = self.house.ledger, self.held
        return self.house.write(
            lambda c: ledger.decide(c, case_id, revision, wish(option), held, BY)
        )


@pytest.mark.requirement("E01", "E03", "E06")
@pytest.mark.parametrize("left", ["running", "unsent", "unclear"])
@pytest.mark.parametrize(
    "reason", sorted(set(Reason) - {Reason.APPROVAL_REQUIRED, Reason.REQUESTED})
)
def test_every_option_is_carried_out_where_it_is_offered_and_refused_elsewhere(
    house: House, reason: Reason, left: str
) -> None:
    stopped = Stopped(house, reason)
    op = stopped.make(left)
    renewed = reason in (Reason.AUTHORIZATION_DENIED, Reason.CREDENTIAL_MISSING)
    now = op.updated_at
    may = offers(op, reason, stopped.held.contract, now, new_credential=renewed)
    offered = {offer.option for offer in may}
    assert offered, "a person is never left without a choice"
    assert offered <= set(OPTIONS[reason])
    for option in Option:
        op = stopped.make(left)
        case = house.case(op)
        assert case is not None
        found = stopped.decide(op, option)
        after = house.read(op)
        if option not in offered:
            assert isinstance(found, Refusal), (reason, left, option)
            assert found.code is Code.OPTION_NOT_OFFERED
            assert after == op
            continue
        assert isinstance(found, Decided), (reason, left, option, found)
        [closed] = [one for one in house.cases(op) if one.id == case.id]
        assert closed.decision is not None
        assert closed.decision.items() >= {"option": str(option), **BY}.items()
        for name in BUDGETS:
            before, now_there = getattr(op, name), getattr(after, name)
            assert now_there.used >= before.used
            assert now_there.max >= before.max
        kept = house.sql(
            "SELECT option, case_revision FROM authorisations WHERE case_id = ?", case.id
        )
        asks_nobody = reason is Reason.PROVIDER_UNREACHABLE
        allows = option in authority.ALLOWS and not asks_nobody
        assert kept == ([(str(option), case.revision)] if allows else [])
        again = stopped.decide_again(case.id, case.revision, option)
        assert isinstance(again, Refusal), "a decision counts once"
