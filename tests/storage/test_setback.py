"""A store that was set back to before a reservation, while the request was out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests import stores
from tests.storage.calls import MADE, Calls, found, transfers
from tests.storage.house import CONTRACT, UNSENT, House, Said, holding, reply
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Certainty, Operation, Reason, State, Step
from forbear.rules.ports import TokenAnswer
from forbear.storage import custody
from forbear.storage.reserving import Reserved
from forbear.storage.tokens import TokenReserved

pytestmark = pytest.mark.requirement("D01", "D11")


def opened(home: Path, owner: str = "own_a", clock: ManualClock | None = None) -> House:
    return House(home, clock or ManualClock(), FixedRandom(), owner)


def copied(home: Path) -> Path:
    """The store as it is now, whatever becomes of it. Nobody has it open."""
    target = home.with_name("before")
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("run", "*.lock"))
    stores.copy(home, target)
    return target


def out_from(home: Path, op: Operation | None = None) -> Reserved:
    """A request that is out, of a new operation if none is named."""
    with closing(opened(home)) as living:
        return living.permit(living.new() if op is None else op)


def forgotten(home: Path) -> tuple[Operation, Reserved, Path]:
    """An operation, its request that is out, and the store as it was before the reservation."""
    with closing(opened(home)) as living:
        op = living.new()
    before = copied(home)
    return op, out_from(home, op), before


def held(home: Path, owner: str = "own_b") -> House:
    house = opened(home, owner)
    house.write(lambda c: custody.hold(c, "it was set back", house.clock.now().wall, house.random))
    return house


def told(house: House, op: Operation) -> list[Mapping[str, object]]:
    return [event.body for event in house.events(op) if event.code == "late_evidence"]


def test_the_answer_to_an_attempt_that_it_does_not_know_is_as_good_as_a_lookup(
    tmp_path: Path,
) -> None:
    op, out, before = forgotten(tmp_path / "home")
    with closing(held(before)) as house:
        assert house.read(op).state == State.UNCLEAR
        house.settle(out, Said(202, {"id": "exp_7"}))
        after = house.read(op)
        assert (after.state, after.certainty) == (State.WAITING, Certainty.APPLIED)
        assert after.provider_job == "exp_7"
        [event] = told(house, op)
        assert event["attempt"] == out.permit.attempt_id
        assert (event["outcome"], event["http"]) == ("answered", 202)
        assert event["take"] == {"id": "exp_7"}
        assert house.verified() is None


def test_whoever_decides_is_told_of_it(tmp_path: Path) -> None:
    op, out, before = forgotten(tmp_path / "home")
    with closing(held(before)) as house:
        house.reserve(op)
        case = house.case(op)
        assert case is not None
        assert case.reason is Reason.UNCLEAR_WRITE
        house.settle(out, Said(202, {"id": "exp_7"}))
        again = house.case(op)
        assert again is not None
        assert "late answer 202, provider id exp_7" in again.text
        assert again.revision == case.revision + 1


def test_the_answer_for_an_operation_that_it_does_not_know_stands_in_the_log(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    opened(home).close()
    before = copied(home)
    out = out_from(home)

    with closing(held(before)) as house:
        assert house.settle(out, Said(202, {"id": "exp_7"})).id == out.operation.id
        [event] = told(house, out.operation)
        assert (event["attempt"], event["http"]) == (out.permit.attempt_id, 202)
        assert house.all() == []
        assert house.verified() is None


WITH_TOKENS = CONTRACT.replace(
    '"bearer env:EXP_TOKEN"',
    '{ scheme = "oauth2_client", token_url = "https://id.exp.example/token", client_id = "app",'
    ' client_secret = "env:EXP_SECRET" }',
)
LACKING = replace(holding(text=WITH_TOKENS), lacks_token=lambda: True)
"""Every request needs a token first, and there is none."""


def token_out_from(home: Path, op: Operation | None = None) -> TokenReserved:
    """A token request that is out, for a new operation if none is named."""
    with closing(opened(home)) as living:
        asks = living.new(held=LACKING) if op is None else op
        step = living.write(lambda c: living.ledger.reserve(c, asks.id, LACKING))
        assert isinstance(step, TokenReserved)
        return step


@pytest.mark.parametrize(
    ("said", "token", "event"),
    [
        (Said(200), TokenAnswer(""), {"outcome": "answered", "http": 200}),
        (
            Said(401),
            TokenAnswer("invalid_client"),
            {"outcome": "answered", "http": 401, "why": "invalid_client"},
        ),
        (Said(None, fault="timeout"), None, {"outcome": "no_answer", "why": "timeout"}),
    ],
    ids=["a token", "a refusal", "nothing"],
)
@pytest.mark.parametrize("known", [True, False], ids=["operation known", "operation unknown"])
def test_what_comes_of_a_token_request_that_it_does_not_know_stands_in_the_log(
    tmp_path: Path, said: Said, token: TokenAnswer | None, event: Mapping[str, object], known: bool
) -> None:
    home = tmp_path / "home"
    with closing(opened(home)) as living:
        op = living.new(held=LACKING) if known else None
    before = copied(home)
    out = token_out_from(home, op)

    with closing(held(before)) as house:
        came = replace(reply(said, house.clock.now().wall), token=token)
        house.write(lambda c: house.ledger.settle_token(c, out, came))
        [settled] = [e for e in house.events(out.operation) if e.code == "token_settled"]
        expected = {"token_request": out.permit.attempt_id, "host": "id.exp.example", "late": True}
        assert dict(settled.body) == {**expected, **event}
        assert house.verified() is None


# --- the same attempt once more -------------------------------------------------------------

SEARCHED = CONTRACT + transfers()


def test_an_answer_from_before_is_not_that_of_the_attempt_in_its_place(tmp_path: Path) -> None:
    """Both are the first of their operation, and only one of them is stored here."""
    home = tmp_path / "home"
    with closing(opened(home)) as living:
        op = Calls(living, SEARCHED).new("findable", id="9")
    before = copied(home)
    with closing(opened(home)) as living:
        lost = Calls(living, SEARCHED).permit(op)
    with closing(held(before)) as house:
        calls = Calls(house, SEARCHED)
        look = calls.permit(op)
        assert (look.operation.step, look.permit.fence) == (Step.LOOKUP, lost.permit.fence)
        house.settle(lost, MADE)
        assert house.attempts(op)[-1].closed_at is None, "its own answer is still to come"
        [event] = told(house, op)
        assert (event["attempt"], event["take"]) == (lost.permit.attempt_id, {"id": "tr_7"})
        assert house.settle(look, found(op)).state is State.SUCCEEDED
        assert house.verified() is None


def test_what_another_host_never_sent_says_nothing_of_what_this_one_sent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with closing(opened(home)) as living:
        op = Calls(living, SEARCHED).new("plain", id="9")
    before = copied(home)
    with closing(opened(home)) as living:
        lost = Calls(living, SEARCHED).permit(op)
    with closing(opened(before, "own_b")) as house:
        mine = Calls(house, SEARCHED).permit(op)
        house.settle(lost, UNSENT)
        assert house.read(op).state is State.SENDING
        assert house.settle(mine, MADE).state is State.SUCCEEDED


def test_a_process_whose_store_was_set_back_under_it_makes_another_attempt(tmp_path: Path) -> None:
    """No permit is used twice, so it must not be taken for the one that was used."""
    home, clock = tmp_path / "home", ManualClock()
    with closing(opened(home, clock=clock)) as living:
        op = living.new()
    before = copied(home)
    names = []
    for place in (home, before):
        clock.advance(1)
        with closing(opened(place, clock=clock)) as house:
            names.append(house.permit(op).permit.attempt_id)
    assert len(set(names)) == 2


# --- late answers to requests for a token ---------------------------------------------------

GRANTED, DENIED = (Said(200), TokenAnswer("")), (Said(401), TokenAnswer("invalid_client"))


def settle_token(house: House, out: TokenReserved, said: Said, token: TokenAnswer) -> None:
    came = replace(reply(said, house.clock.now().wall), token=token)
    house.write(lambda c: house.ledger.settle_token(c, out, came))


def token_request(house: House, op: Operation) -> TokenReserved:
    for _ in range(4):
        house.due(op)
        step = house.write(lambda c: house.ledger.reserve(c, op.id, LACKING))
        if isinstance(step, TokenReserved):
            return step
    raise AssertionError(house.read(op))


@pytest.mark.requirement("D02")
def test_a_late_refusal_of_a_token_blocks_nothing_that_was_granted_since(tmp_path: Path) -> None:
    """The request was given up, and others got a token with the same secret."""
    with closing(opened(tmp_path / "home")) as house:
        op = house.new(held=LACKING)
        first = token_request(house, op)
        house.clock.advance(120_000)
        with house.neighbour() as other:
            settle_token(other, token_request(other, op), *GRANTED)
            third = token_request(other, other.new("third", held=LACKING))
            settle_token(house, first, *DENIED)
            [late] = [e for e in house.events(op) if e.body.get("late")]
            assert late.body["why"] == "invalid_client"
            assert [one.state for one in house.all()] == [State.QUEUED, State.QUEUED]
            settle_token(other, third, *GRANTED)
            has = replace(LACKING, lacks_token=lambda: False)
            assert isinstance(other.permit(op, has), Reserved)
