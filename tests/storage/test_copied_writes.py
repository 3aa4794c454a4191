"""What a store that may be behind does with writes that were not finished in it, once adopted.

Whatever its original did since the copy was taken: nothing is done twice, nothing that nobody
approved is sent, and what was not found before may be there since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.storage.calls import BY, MADE, NOTHING, Calls, found, transfers
from tests.storage.house import ACCEPTED, BUSY, CONTRACT, DENIED, LIMITED, LOST, House, Said
from tests.storage.test_setback import copied
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Certainty, Operation, Option, Reason, State, Step
from forbear.storage import custody
from forbear.storage.transitions import Holding

pytestmark = pytest.mark.requirement("D11")

WRITES = CONTRACT + transfers()
TO_APPROVE = CONTRACT + transfers("per_call")
MINUTE = 60_000


class Twins:
    """A home and its copy, one process on each, and one time for both."""

    def __init__(self, home: Path, text: str = WRITES) -> None:
        self.home, self.text = home, text
        self.clock = ManualClock()
        self._copy: Path | None = None

    @contextmanager
    def original(self) -> Iterator[Calls]:
        with closing(House(self.home, self.clock, FixedRandom(), "own_a")) as house:
            yield Calls(house, self.text)

    def part(self) -> None:
        """From here on there are two."""
        self._copy = copied(self.home)

    @contextmanager
    def copy(self, *, adopted: bool = False) -> Iterator[Calls]:
        assert self._copy is not None
        with closing(House(self._copy, self.clock, FixedRandom(), "own_b")) as house:
            now = house.clock.now
            house.write(lambda c: custody.hold(c, "a copy", now().wall, house.random))
            if adopted:
                assert house.write(lambda c: custody.adopt(c, BY, now().wall))
            yield Calls(house, self.text)


def sent_by_itself(calls: Calls, op: Operation) -> bool:
    """Whether the write is sent before a person is asked; every lookup finds nothing."""
    for _ in range(12):
        if calls.house.read(op).next_at is None:
            return False
        calls.house.due(op)
        step = calls.reserve(op)
        if isinstance(step, bool):
            continue
        if step.operation.step is Step.SEND:
            return True
        calls.house.settle(step, NOTHING)
    raise AssertionError(f"{calls.house.read(op)} never ends")


@pytest.mark.requirement("E13")
@pytest.mark.parametrize("call", ["plain", "keyed", "findable", "both"])
def test_what_nobody_approved_is_not_sent_by_itself(tmp_path: Path, call: str) -> None:
    """The original may have had the approval, so it may be done; this store has none."""
    twins = Twins(tmp_path / "home", TO_APPROVE)
    with twins.original() as calls:
        op = calls.new(call, id="9")
    twins.part()
    with twins.copy(adopted=True) as calls:
        assert calls.house.read(op).state is State.UNCLEAR
        assert not sent_by_itself(calls, op)
        case = calls.house.case(op)
        assert case is not None
        assert case.reason is Reason.UNCLEAR_WRITE


def test_what_was_approved_is_sent_once_it_is_proven_that_the_original_did_not(
    tmp_path: Path,
) -> None:
    twins = Twins(tmp_path / "home", TO_APPROVE)
    with twins.original() as calls:
        op = calls.new("findable", id="9")
        calls.decide(op, Option.APPROVE)
    twins.part()
    with twins.copy(adopted=True) as calls:
        assert sent_by_itself(calls, op)


def test_an_approval_of_one_send_is_none_for_a_copy(tmp_path: Path) -> None:
    """The original may have used it."""
    once = TO_APPROVE.replace(
        'approval = "per_call"', 'approval = "per_call"\napproval_covers = "attempt"'
    )
    twins = Twins(tmp_path / "home", once)
    with twins.original() as calls:
        op = calls.new("findable", id="9")
        calls.decide(op, Option.APPROVE)
    twins.part()
    with twins.copy(adopted=True) as calls:
        assert not sent_by_itself(calls, op)
        assert calls.house.read(op).certainty is Certainty.NOT_APPLIED


@pytest.mark.requirement("R13")
@pytest.mark.parametrize(("later", "sent"), [(MINUTE, True), (20 * MINUTE, False)])
def test_a_key_counts_from_when_the_original_may_have_used_it(
    tmp_path: Path, later: int, sent: bool
) -> None:
    """The provider knows it for two minutes, and the copy never sent anything under it."""
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("keyed", id="9")
    twins.part()
    with twins.original() as calls:
        assert calls.send(op, MADE).state is State.SUCCEEDED
    with twins.copy() as calls:
        assert calls.reserve(op) is True, "nothing to look up: it is to be sent again under its key"
        twins.clock.advance(later)
        assert calls.house.write(lambda c: custody.adopt(c, BY, twins.clock.now().wall))
        assert sent_by_itself(calls, op) is sent


@pytest.mark.parametrize("looks", [0, 1], ids=["not looked while held", "looked while held"])
def test_what_was_not_found_before_the_copy_may_be_there_since(tmp_path: Path, looks: int) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("findable", id="9")
        calls.send(op, LOST)
        assert calls.next(op, NOTHING).state is State.UNCLEAR
    twins.part()
    with twins.original() as calls:
        calls.next(op, NOTHING)
        assert calls.permit(op).operation.step is Step.SEND, "the one resend"
    twins.clock.advance(1_000)
    with twins.copy() as calls:
        for _ in range(looks):
            calls.next(op, NOTHING)
        assert calls.house.write(lambda c: custody.adopt(c, BY, twins.clock.now().wall))
        assert calls.next(op, NOTHING).step is Step.LOOKUP, "the first that counts"
        assert calls.next(op, found(op)).state is State.SUCCEEDED


@pytest.mark.parametrize("claimed", ["while held", "once adopted"])
def test_a_lookup_that_was_out_when_the_copy_was_taken_counts_no_more_than_others(
    tmp_path: Path, claimed: str
) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("findable", id="9")
        calls.send(op, LOST)
        calls.next(op, NOTHING)
        calls.permit(op)
    twins.part()
    twins.clock.advance(MINUTE)
    with twins.copy() as calls:
        assert calls.house.read(op).lease_owner == "own_a", "what is out keeps its lease"
        if claimed == "while held":
            assert calls.reserve(op) is True
        assert calls.house.write(lambda c: custody.adopt(c, BY, twins.clock.now().wall))
        if claimed == "once adopted":
            assert calls.reserve(op) is True
        assert calls.next(op, NOTHING).step is Step.LOOKUP, "the first that counts"
        assert calls.house.verified() is None


def test_the_case_of_a_write_that_only_the_original_may_have_sent_says_so(tmp_path: Path) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("plain", id="9")
    twins.part()
    with twins.copy() as calls:
        assert calls.reserve(op) is True
        case = calls.house.case(op)
        assert case is not None
        assert "Sent: perhaps, by the home that this one is a copy of" in case.text


def test_a_search_that_a_person_goes_on_with_begins_anew(tmp_path: Path) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("findable", id="9")
        calls.send(op, LOST)
        for _ in range(6):
            if calls.house.read(op).next_at is not None:
                calls.next(op, NOTHING if calls.house.read(op).lookups.used == 0 else BUSY)
        assert calls.house.read(op).state is State.ESCALATED
    twins.part()
    with twins.copy(adopted=True) as calls:
        calls.decide(op, Option.RECONCILE)
        assert calls.next(op, NOTHING).step is Step.LOOKUP, "the first that counts"


@pytest.mark.parametrize("call", ["plain", "findable"])
def test_a_write_that_a_person_may_have_let_go_on_in_the_original_is_unclear(
    tmp_path: Path, call: str
) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new(call, id="9")
        stopped = calls.send(op, LIMITED)
        assert (stopped.state, stopped.certainty) == (State.ESCALATED, Certainty.NOT_APPLIED)
    twins.part()
    with twins.original() as calls:
        calls.decide(op, Option.HOLD)
        assert calls.next(op, MADE).state is State.SUCCEEDED
    with twins.copy() as calls:
        doubted = calls.house.read(op)
        assert (doubted.state, doubted.certainty) == (State.UNCLEAR, Certainty.MAYBE_APPLIED)
        if call == "findable":
            assert calls.next(op, found(op)).state is State.SUCCEEDED
        else:
            assert calls.reserve(op) is True
            case = calls.house.case(op)
            assert case is not None
            assert case.reason is Reason.UNCLEAR_WRITE
        assert calls.house.verified() is None


@pytest.mark.requirement("E13")
@pytest.mark.parametrize("call", ["plain", "keyed", "findable", "both"])
@pytest.mark.parametrize("stops", [LIMITED, DENIED], ids=["429", "401"])
def test_what_a_person_was_to_decide_is_not_sent_by_itself(
    tmp_path: Path, call: str, stops: Said
) -> None:
    """The original's person may have abandoned it, or let it be sent."""
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new(call, id="9")
        for _ in range(3):
            if calls.house.read(op).state is not State.ESCALATED:
                calls.next(op, stops)
        assert calls.house.read(op).state is State.ESCALATED
    twins.part()
    with twins.copy(adopted=True) as calls:
        held = calls.held(call)
        renewed = Holding(held.contract, held.action, held.credential, "v-2")
        for _ in range(12):
            if calls.house.read(op).next_at is None:
                break
            calls.house.due(op)
            step = calls.house.reserve(op, renewed)
            if not isinstance(step, bool):
                assert step.operation.step is Step.LOOKUP
                calls.house.settle(step, NOTHING)
        assert calls.house.read(op).state is State.ESCALATED


def test_what_was_proven_absent_before_the_copy_may_be_done_since(tmp_path: Path) -> None:
    """The original sent it again, by a decision; the copy must not take it for undone."""
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        op = calls.new("both", id="9")
        calls.send(op, BUSY)
        calls.next(op, BUSY)
        calls.next(op, LOST)
        for _ in range(2):
            calls.next(op, NOTHING)
        proven = calls.house.read(op)
        assert (proven.state, proven.certainty) == (State.ESCALATED, Certainty.NOT_APPLIED)
    twins.part()
    with twins.copy(adopted=True) as calls:
        assert calls.house.read(op).certainty is Certainty.MAYBE_APPLIED
        assert calls.house.verified() is None


def test_a_job_that_the_provider_has_is_watched_as_before(tmp_path: Path) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        job = calls.house.new()
        calls.house.send(job, ACCEPTED)
        before = calls.house.read(job)
    twins.part()
    with twins.copy() as calls:
        assert calls.house.read(job) == before


def test_holding_a_store_again_changes_nothing_more(tmp_path: Path) -> None:
    twins = Twins(tmp_path / "home")
    with twins.original() as calls:
        ops = [calls.new(call, id=call) for call in ("plain", "keyed", "findable", "both")]
        calls.send(ops[2], LOST)
        calls.next(ops[2], NOTHING)
        calls.send(ops[0], LIMITED)
    twins.part()
    with twins.copy() as calls:
        house, held = calls.house, calls.house.all()
        assert {op.state for op in held} == {State.UNCLEAR}
        house.write(lambda c: custody.hold(c, "again", house.clock.now().wall, house.random))
        once = [(op.id, op.state, op.step, op.search, op.certainty) for op in held]
        again = [(op.id, op.state, op.step, op.search, op.certainty) for op in house.all()]
        assert again == once
