"""A store that was set back to before a reservation, while the request was out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests import stores
from tests.storage.house import CONTRACT, House, Said, holding, reply
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Certainty, Notice, Operation, Reason, State
from forbear.rules.ports import TokenAnswer
from forbear.storage import custody
from forbear.storage.reserving import Reserved
from forbear.storage.tokens import TokenReserved

pytestmark = pytest.mark.requirement("D01", "D11")


def opened(home: Path) -> House:
    return House(home, ManualClock(), FixedRandom())


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


def held(home: Path) -> House:
    house = opened(home)
    house.write(lambda c: custody.hold(c, "it was set back", house.clock.now().wall, house.random))
    return house


def told(house: House, op: Operation) -> list[Mapping[str, object]]:
    return [event.body for event in house.events(op) if event.code == "late_evidence"]


def test_the_answer_to_an_attempt_that_it_does_not_know_is_kept_as_evidence(tmp_path: Path) -> None:
    op, out, before = forgotten(tmp_path / "home")
    with closing(held(before)) as house:
        assert house.read(op).state == State.UNCLEAR
        house.settle(out, Said(202, {"id": "exp_7"}))
        after = house.read(op)
        assert (after.state, after.certainty) == (State.UNCLEAR, Certainty.MAYBE_APPLIED)
        assert Notice.LATE_EVIDENCE in after.notices
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
