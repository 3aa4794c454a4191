"""A store that was set back to before a reservation, while the request was out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests import stores
from tests.storage.house import House, Said
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Certainty, Notice, Operation, Reason, State
from forbear.storage import custody
from forbear.storage.reserving import Reserved

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
