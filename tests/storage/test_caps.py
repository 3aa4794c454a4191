"""What shares an answer and what is one too many, on stored rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.storage.house import (
    ACCEPTED,
    CONTRACT,
    DONE,
    KEY,
    LOST,
    RUNNING,
    House,
    Said,
    contract,
)
from tests.storage.plans import plans
from tests.support import FixedRandom, ManualClock

from forbear.rules.model import Kind, Operation, Priority, State
from forbear.rules.taskbudget import REQUESTS, TaskFull, TaskLimits
from forbear.storage.accepting import Accepted, Draft, NotAccepted
from forbear.storage.caps import ScopeFull, WalkOver
from forbear.storage.ledger import Ledger
from forbear.storage.transitions import Holding
from forbear.tools import drafts

TEXT = f"""{CONTRACT}
[calls.customer]
path = "/customers/{{arg.id}}"
method = "GET"
coalesce = "2s"
instead_of_many = "customers"
walk_limit = 3

[calls.customers]
path = "/customers"
method = "GET"
"""
FOUND = Said(200, {"id": "c_1"})


def reading(credential: str | None = "fp-1") -> Holding:
    found = contract(TEXT)
    return Holding(found, found.calls["customer"], credential, "v-1")


def ask(
    house: House,
    item: str = "c_1",
    *,
    task: str | None = None,
    principal: str = "local",
    credential: str | None = "fp-1",
) -> Accepted | NotAccepted:
    held = reading(credential)
    call = held.contract.calls["customer"]
    made = drafts.Drafter(KEY, house.random, principal).call(
        held,
        call,
        {"id": item},
        drafts.call_bounds(call, None, None),
        drafts.Given(None, None, Priority.INTERACTIVE, task),
    )
    assert isinstance(made, Draft), made
    return house.write(lambda c: house.ledger.accept(c, made, held))


def new(answer: Accepted | NotAccepted) -> Operation:
    assert isinstance(answer, Accepted), answer
    assert not answer.joined
    return answer.operation


def joined(answer: Accepted | NotAccepted) -> Operation:
    assert isinstance(answer, Accepted), answer
    assert answer.joined
    return answer.operation


def send(house: House, op: Operation, said: Said = FOUND) -> Operation:
    return house.settle(house.permit(op, reading()), said)


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[House]:
    """A process whose tasks have little."""
    house = House(tmp_path, ManualClock(), FixedRandom())
    limits = TaskLimits(max_requests=3, max_open_operations=2)
    house.ledger = Ledger(house.clock, house.random, house.liveness, limits)
    yield house
    house.close()


def rows_of(house: House) -> list[tuple[int, ...]]:
    tables = ("operations", "requests", "tasks", "events")
    return [house.sql(f"SELECT count(*) FROM {table}")[0] for table in tables]


# --- sharing --------------------------------------------------------------------------------


@pytest.mark.requirement("R23")
def test_an_equal_read_of_the_same_principal_joins_in_every_state_and_notes_who_asks(
    house: House,
) -> None:
    op = new(ask(house, task="one"))
    assert joined(ask(house, task="two")).id == op.id
    send(house, op)
    assert joined(ask(house)).state is State.SUCCEEDED
    assert house.sql("SELECT task FROM tasks ORDER BY task") == [("",), ("one",), ("two",)]
    assert house.codes(op).count("joined") == 2
    assert len(house.all()) == 1


@pytest.mark.requirement("R23")
@pytest.mark.parametrize("other", [{"principal": "agent-2"}, {"credential": "fp-2"}], ids=str)
def test_co_02_nobody_shares_what_another_principal_or_key_reads(
    house: House, other: dict[str, str]
) -> None:
    """CO-02, before the answer and after it."""
    op = new(ask(house))
    assert new(ask(house, **other)).id != op.id
    send(house, op)
    assert joined(ask(house, **other)).id != op.id


@pytest.mark.requirement("R23")
def test_a_job_of_the_account_counts_as_a_write_also_for_others(house: House) -> None:
    op = new(ask(house))
    send(house, op)
    assert joined(ask(house)).id == op.id
    job = house.new(principal="agent-2")
    assert joined(ask(house)).id == op.id
    reserved = house.permit(job)
    fresh = new(ask(house))
    house.clock.advance(1)
    house.settle(reserved, ACCEPTED)
    house.clock.advance(1)
    send(house, fresh)
    assert joined(ask(house)).id == fresh.id


@pytest.mark.requirement("R23")
def test_a_check_of_a_job_writes_nothing(house: House) -> None:
    job = house.waiting()
    house.due(job)
    op = new(ask(house))
    send(house, op)
    house.clock.advance(1)
    house.send(job, RUNNING)
    assert joined(ask(house)).id == op.id


@pytest.mark.requirement("R23")
def test_a_write_that_may_still_take_effect_forbids_to_share(house: House) -> None:
    house.send(house.new(), LOST)
    house.clock.advance(60_000)
    op = new(ask(house))
    assert joined(ask(house)).id == op.id  # nothing was read yet
    send(house, op)
    house.clock.advance(1)
    assert new(ask(house)).id != op.id


@pytest.mark.requirement("R23", "R22")
def test_what_was_asked_for_without_a_task_outlives_every_task(house: House) -> None:
    op = new(ask(house))
    joined(ask(house, task="one"))
    for task in ("one", ""):
        end = partial(house.ledger.end_task, principal="local", task=task, why="over")
        assert house.write(end) == []
    assert house.read(op).state is State.QUEUED


# --- one too many ---------------------------------------------------------------------------


@pytest.mark.requirement("R28", "R05", "R07")
def test_what_is_refused_leaves_nothing_behind(bounded: House) -> None:
    for item in ("c_1", "c_2", "c_3"):
        send(bounded, new(ask(bounded, item)))
    before = rows_of(bounded)
    assert ask(bounded, "c_4") == WalkOver(3)
    assert rows_of(bounded) == before


@pytest.mark.requirement("R28")
def test_a_walk_is_one_principals_own(house: House) -> None:
    for item in ("c_1", "c_2", "c_3"):
        new(ask(house, item))
    assert isinstance(ask(house, "c_4"), WalkOver)
    other = ask(house, "c_4", principal="agent-2")
    assert isinstance(other, Accepted)
    assert other.items == 1


@pytest.mark.requirement("R05")
def test_a_task_counts_what_left_and_what_waits_to_leave(bounded: House) -> None:
    job = bounded.new("a", task="one")
    bounded.send(job, ACCEPTED)
    bounded.poll(job, RUNNING)
    assert isinstance(bounded.ask("b", task="one"), Accepted)
    before = rows_of(bounded)
    assert ask(bounded, task="one") == TaskFull("one", REQUESTS, 3, 3)
    assert rows_of(bounded) == before
    assert isinstance(ask(bounded, task="one", principal="agent-2"), Accepted)
    assert isinstance(ask(bounded), Accepted)


@pytest.mark.requirement("R05")
def test_the_result_of_a_job_counts_in_the_tasks_of_the_job(bounded: House) -> None:
    job = bounded.new("a", task="one")
    bounded.send(job, ACCEPTED)
    bounded.poll(job, DONE)
    result = bounded.follow_up(bounded.read(job), Kind.RESULT)
    assert ask(bounded, task="one") == TaskFull("one", REQUESTS, 3, 3)
    bounded.send(result, Said(200, {"rows": 3}))
    assert ask(bounded, task="one") == TaskFull("one", REQUESTS, 3, 3)


@pytest.mark.requirement("R05", "R14")
def test_a_task_without_budget_still_learns_that_its_job_is_there(bounded: House) -> None:
    jobs = [bounded.new(name, task="one") for name in ("a", "b")]
    other = bounded.new("c", task="two")
    assert bounded.ask("d", task="one") == TaskFull("one", "open operations", 2, 2)
    for name, op in (("a", jobs[0]), ("c", other)):
        answer = bounded.ask(name, task="one")
        assert isinstance(answer, Accepted)
        assert answer.operation.id == op.id


@pytest.mark.requirement("R07")
def test_the_last_place_of_a_scope_is_given_once(house: House) -> None:
    with house.neighbour() as other:
        for number in range(25):
            (house, other)[number % 2].new(f"d{number}")
        first_at = house.clock.now().wall
        house.clock.advance(-1)
        full = ScopeFull("exp/acct_17/account", 25, first_at)
        assert other.ask("one more") == full
        assert house.ask("one more") == full
        assert isinstance(house.ask("d3"), Accepted)  # to join takes no place


# --- speed ----------------------------------------------------------------------------------


@pytest.mark.sqlite
def test_no_question_of_accepting_reads_a_whole_table(house: House) -> None:
    send(house, new(ask(house, task="one")))
    house.clock.advance(2_000)
    with plans(house) as seen:
        new(ask(house, task="one"))
    steps = [step for plan in seen.values() for step in plan]
    for index in ("walk", "unsent", "writes", "intent", "parent"):
        assert any(f"INDEX ix_operations_{index}" in step for step in steps), (index, steps)
    large = "SCAN (operations|attempts|tasks|requests)"
    assert not [step for step in steps if re.match(large, step)]
