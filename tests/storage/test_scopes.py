"""One scope, many tasks: rate, slots, turns, reserve, retry budget, limits and outages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise

import pytest
from tests.storage.house import CONTRACT, House, Said, holding
from tests.storage.traffic import CALLS, MINUTE, SECOND, Arrival, Traffic

from forbear.rules.model import (
    Case,
    DelaySource,
    Operation,
    Option,
    Priority,
    Reason,
    State,
    WaitingFor,
)
from forbear.storage.brakes import Brakes
from forbear.storage.deciding import Decided
from forbear.storage.reserving import Reserved
from forbear.storage.transitions import Holding

STEP = 1_112
"""Spacing of `60/1m` below the published rate with its burst of six, ms (rounded up)."""


def most_in_any(times: list[int], length: int) -> int:
    return max(sum(1 for at in times if start <= at < start + length) for start in times)


def first(said: Said) -> Callable[[Arrival], Said]:
    """A provider that says this once, and that all is well from then on."""
    left = [said]
    return lambda arrival: left.pop() if left else Said(200, {"ok": True})


# --- rate and slots -------------------------------------------------------------------------


@pytest.mark.requirement("R02", "R10")
def test_all_work_of_a_scope_keeps_below_its_published_rate(house: House) -> None:
    traffic = Traffic(house)
    for number in range(100):
        traffic.ask(f"i{number}", task=f"t{number % 7}")
    traffic.run(traffic.now + 5 * MINUTE)
    times = [one.at for one in traffic.arrived]
    assert len(times) == 100
    assert most_in_any(times, MINUTE) <= 54
    assert traffic.most_at_once <= 2


@pytest.mark.requirement("R03")
def test_an_action_counts_in_every_scope_that_names_it(house: House) -> None:
    traffic = Traffic(house)
    for number in range(12):
        traffic.ask(f"s{number}", call="search", task="s")
    for number in range(60):
        traffic.ask(f"i{number}", task="i")
    traffic.run(traffic.now + 4 * MINUTE)
    searches = [one.at for one in traffic.arrived if one.action == "search"]
    assert len(traffic.arrived) == 72
    assert most_in_any(searches, MINUTE) <= 6
    assert most_in_any([one.at for one in traffic.arrived], MINUTE) <= 54


@pytest.mark.requirement("R03")
def test_who_waits_for_a_narrow_scope_holds_up_nobody_in_the_wide_one(house: House) -> None:
    traffic = Traffic(house)
    for number in range(5):
        traffic.ask(f"s{number}", call="search", task="s")
    traffic.run(traffic.now + SECOND)
    start = traffic.now
    for number in range(10):
        traffic.ask(f"i{number}", task="i")
    traffic.run(start + 15 * STEP)
    assert sum(one.action == "item" for one in traffic.arrived) == 10


def test_two_busy_scopes_let_the_request_through_that_needs_both(house: House) -> None:
    """Each scope has its own beat; who is first in both must not miss it for ever."""
    text = CALLS.replace('rate = "6/1m"', 'rate = "17/1m"').replace(
        'actions = ["search"]', 'actions = ["search", "note"]'
    )
    traffic = Traffic(house, text)
    start = traffic.now
    for number in range(200):
        traffic.ask(f"i{number}", task="i")
    both = [traffic.ask(f"s{number}", call="search", task="s") for number in range(5)]
    traffic.run(start + 90 * SECOND)
    assert all(house.read(op).state is State.SUCCEEDED for op in both)


# --- turns ----------------------------------------------------------------------------------


@pytest.mark.requirement("R21")
def test_tasks_take_turns_whoever_came_first(house: House) -> None:
    traffic = Traffic(house)
    for number in range(60):
        traffic.ask(f"a{number}", task="greedy")
    traffic.run(traffic.now + 10 * SECOND)
    served = len(traffic.arrived)
    for number in range(5):
        traffic.ask(f"b{number}", task="late")
        traffic.ask(f"c{number}", task="later")
    traffic.run(traffic.now + 20 * STEP)
    after = [one.task for one in traffic.arrived[served:]]
    # Until the two have nothing left, each window of three has one of each.
    assert Counter(after[:15]) == {"greedy": 5, "late": 5, "later": 5}
    for start in range(0, 12, 3):
        assert len(set(after[start : start + 4])) == 3


@pytest.mark.requirement("R21")
def test_principals_take_turns_before_their_tasks_do(house: House) -> None:
    traffic = Traffic(house)
    for number in range(40):
        traffic.ask(f"a{number}", task=f"t{number}", principal="many")
    traffic.run(traffic.now + 8 * SECOND)
    served = len(traffic.arrived)
    for number in range(6):
        traffic.ask(f"b{number}", task="only", principal="few")
    traffic.run(traffic.now + 14 * STEP)
    after = [one.principal for one in traffic.arrived[served:]]
    assert Counter(after[:12]) == {"many": 6, "few": 6}


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("tasks", [2, 3, 5, 8])
def test_nobody_waits_longer_than_one_round_while_another_has_more_than_its_own(
    house: House, tasks: int
) -> None:
    """The bound: between two requests of a task with work left, each other task has at most one."""
    traffic = Traffic(house)
    for task in range(tasks):
        for number in range(4 + 3 * task):
            traffic.ask(f"{task}-{number}", task=f"t{task}")
    traffic.run(traffic.now + 5 * MINUTE)
    order = [one.task for one in traffic.arrived][10:]
    for name in set(order):
        mine = [place for place, task_name in enumerate(order) if task_name == name]
        for one, next_one in pairwise(mine):
            between = Counter(order[one + 1 : next_one])
            assert max(between.values(), default=0) <= 1, (name, order)


@pytest.mark.requirement("R21")
def test_what_an_agent_waits_for_goes_before_background_work(house: House) -> None:
    traffic = Traffic(house)
    for number in range(20):
        traffic.ask(f"b{number}", task="b", priority=Priority.BACKGROUND)
    traffic.run(traffic.now + 8 * SECOND)
    served = len(traffic.arrived)
    for number in range(5):
        traffic.ask(f"i{number}", task="i")
    traffic.run(traffic.now + 7 * STEP)
    assert [one.task for one in traffic.arrived[served:]][:5] == ["i"] * 5


@pytest.mark.requirement("R21")
def test_what_nobody_can_run_holds_up_nobody(house: House) -> None:
    """The first of the queue belongs to a process that is gone; the others go on."""
    traffic = Traffic(house)
    first = [traffic.ask(f"g{number}", task="gone") for number in range(12)]
    traffic.run(traffic.now + 2 * SECOND)
    gone = {op.id for op in first if not house.read(op).final}
    traffic.nobody_runs |= gone
    others = [traffic.ask(f"o{number}", task="here") for number in range(5)]
    traffic.run(traffic.now + MINUTE)
    assert all(house.read(op).state is State.SUCCEEDED for op in others)


@pytest.mark.requirement("R10")
def test_background_work_leaves_a_reserve(house: House) -> None:
    text = CALLS.replace('rate = "60/1m"', 'rate = "60/1m"\nreserve = 0.5')
    traffic = Traffic(house, text, takes=10 * SECOND)
    for number in range(60):
        traffic.ask(f"b{number}", task="b", priority=Priority.BACKGROUND)
    traffic.run(traffic.now + 3 * MINUTE)
    assert traffic.most_at_once == 1, "half of two slots"
    assert most_in_any([one.at for one in traffic.arrived], MINUTE) <= 27
    start, served = traffic.now, len(traffic.arrived)
    traffic.ask("now", task="i")
    traffic.run(start + STEP)
    assert [one.task for one in traffic.arrived[served:]][:1] == ["i"], "it had a slot at once"


def test_a_queue_is_left_without_a_trace(house: House) -> None:
    traffic = Traffic(house)
    asked = [traffic.ask(f"a{number}", task=f"t{number % 3}") for number in range(30)]
    traffic.run(traffic.now + 8 * SECOND)
    for op in asked[20:]:
        house.write(partial(house.ledger.drop, operation_id=op.id, why="not wanted"))
    traffic.run(traffic.now + 2 * MINUTE)
    for table in ("waits", "turns", "task_turns"):
        assert house.sql(f"SELECT * FROM {table}") == []


# --- limits ---------------------------------------------------------------------------------


@pytest.mark.requirement("R01", "R11", "R18")
def test_a_429_moves_the_scope_with_the_retry_and_a_503_does_not(house: House) -> None:
    for status, waits in ((429, True), (503, False)):
        traffic = Traffic(house, answer=first(Said(status, {}, (("Retry-After", "20"),))))
        limited = traffic.ask(f"first{status}")
        start = traffic.now
        traffic.run(start + SECOND)
        other = traffic.ask(f"other{status}", task="b")
        traffic.run(start + 19 * SECOND)
        assert house.read(limited).state is State.DELAYED
        assert house.read(limited).delay_source is DelaySource.PROVIDER_RETRY_AFTER
        assert house.read(other).final is not waits
        if waits:
            assert house.read(other).waiting_for is WaitingFor.SCOPE
        traffic.run(start + MINUTE)
        assert house.read(limited).state is State.SUCCEEDED
        assert house.read(other).state is State.SUCCEEDED
        assert all(
            one.at >= start + 20 * SECOND for one in traffic.arrived if waits and one.number == 2
        )


@pytest.mark.requirement("R11", "R18")
def test_after_a_429_the_scope_goes_on_spread_and_more_slowly(house: House) -> None:
    traffic = Traffic(house, answer=first(Said(429, {}, (("Retry-After", "30"),))))
    for number in range(20):
        traffic.ask(f"i{number}", task=f"t{number}")
    start = traffic.now
    traffic.run(start + 3 * MINUTE)
    reopened = [one.at for one in traffic.arrived if one.at >= start + 30 * SECOND]
    before = [one.at for one in traffic.arrived if one.at < start + 30 * SECOND]
    assert len(before) <= 2, "those under way when it came"
    spaces = [later - earlier for earlier, later in pairwise(reopened)]
    assert min(spaces[:10]) >= 2 * STEP - 2, "half the rate, and no burst"


@pytest.mark.requirement("R04", "R10")
@pytest.mark.parametrize(
    "headers",
    [
        (("RateLimit", '"default";r=0;t=30'),),
        (("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "30")),
    ],
)
def test_a_quota_that_reads_as_spent_is_waited_for(
    house: House, headers: tuple[tuple[str, str], ...]
) -> None:
    traffic = Traffic(house, answer=lambda arrival: Said(200, {}, headers))
    start = traffic.now
    traffic.ask("a")
    traffic.run(start + SECOND)
    traffic.ask("b")
    traffic.run(start + 29 * SECOND)
    assert len(traffic.arrived) == 1
    traffic.run(start + 32 * SECOND)
    assert len(traffic.arrived) == 2


@pytest.mark.requirement("R04")
def test_what_is_left_of_a_quota_is_spread_over_the_time_that_it_must_last(house: House) -> None:
    headers = (("RateLimit", '"default";r=5;t=50'),)
    left = iter(range(5, 0, -1))

    def answer(arrival: Arrival) -> Said:
        seconds = max(0, (start + 50 * SECOND - arrival.at) // SECOND)
        return Said(200, {}, (("RateLimit", f'"default";r={next(left, 0)};t={seconds}'),))

    traffic = Traffic(house, answer=answer)
    start = traffic.now
    for number in range(6):
        traffic.ask(f"i{number}")
    traffic.run(start + 49 * SECOND)
    later = [one.at for one in traffic.arrived][2:]
    assert all(next_one - one >= 9 * SECOND for one, next_one in pairwise(later)), headers


@pytest.mark.requirement("R04")
def test_a_generous_quota_does_not_undo_a_429(house: House) -> None:
    headers = (("Retry-After", "30"), ("RateLimit", '"default";r=100;t=1'))
    traffic = Traffic(house, answer=first(Said(429, {}, headers)))
    start = traffic.now
    traffic.ask("a")
    traffic.run(start + SECOND)
    traffic.ask("b")
    traffic.run(start + 29 * SECOND)
    assert len(traffic.arrived) == 1


# --- retry budget ---------------------------------------------------------------------------


@pytest.mark.requirement("R05")
def test_ten_tasks_never_repeat_more_than_their_scope_allows(house: House) -> None:
    """Ten times three retries would be thirty; the scope allows five in a minute."""
    text = CALLS + '[[rules]]\nhttp = 423\nmeans = "retry_later"\n'
    traffic = Traffic(house, text, answer=lambda arrival: Said(423, {"error": "x"}))
    asked = [traffic.ask(f"i{number}", task=f"t{number}") for number in range(10)]
    traffic.run(traffic.now + 10 * MINUTE)
    repeats = [one.at for one in traffic.arrived if one.number > 1]
    assert most_in_any(repeats, MINUTE) <= 5
    for op in map(house.read, asked):
        assert op.state is State.FAILED
        assert op.failure is not None
    ended = [op for op in map(house.read, asked) if "retry budget" in _message(op)]
    assert ended
    assert all(op.failure and op.failure["retry_at"] > op.created_at for op in ended)


@pytest.mark.requirement("R05")
def test_a_request_that_never_left_uses_up_no_retry(house: House) -> None:
    traffic = Traffic(house, answer=lambda arrival: Said(None, sent=False, fault="connect"))
    for number in range(4):
        traffic.ask(f"i{number}", task=f"t{number}")
    traffic.run(traffic.now + 30 * SECOND)
    assert len(traffic.arrived) >= 5
    rows = house.sql(
        "SELECT count(*) FROM reservations JOIN attempts ON id = attempt_id"
        " WHERE extra AND outcome <> 'not_sent'"
    )
    assert rows == [(0,)]


def _message(op: Operation) -> str:
    return str((op.failure or {}).get("message", ""))


# --- blocked for long -----------------------------------------------------------------------


@pytest.mark.requirement("R31")
def test_a_scope_that_is_blocked_for_long_has_one_case_and_lets_nobody_past(house: House) -> None:
    traffic = Traffic(
        house, answer=lambda arrival: Said(429, {"error": "x"}, (("Retry-After", "4000"),))
    )
    first = traffic.ask("a")
    traffic.run(traffic.now + SECOND)
    others = [
        traffic.ask("b", task="b"),
        traffic.ask("a2", task="a", call="item"),
        traffic.ask("q", call="search", task="c"),
    ]
    traffic.run(traffic.now + 30 * MINUTE)
    assert len(traffic.arrived) == 1
    stopped = house.read(first)
    assert stopped.state is State.ESCALATED
    case = house.case(first)
    assert case is not None
    assert case.reason is Reason.SCOPE_EXHAUSTED
    assert case.group is not None
    assert "exp/acct_17/account" in case.text
    for op in map(house.read, others):
        assert op.waiting_for is WaitingFor.SCOPE
        assert house.case(op) is None


# --- outages --------------------------------------------------------------------------------


@pytest.mark.requirement("R32")
def test_an_outage_is_one_probe_at_a_time_and_costs_the_others_nothing(house: House) -> None:
    down = [True]
    traffic = Traffic(
        house, answer=lambda arrival: Said(503, {}) if down[0] else Said(200, {"ok": True})
    )
    start = traffic.now
    asked = [traffic.ask(f"i{number}", task=f"t{number}") for number in range(20)]
    traffic.run(start + 10 * SECOND)
    at_opening = len(traffic.arrived)
    assert at_opening <= 8
    traffic.run(start + 5 * MINUTE)
    probes = [one.at for one in traffic.arrived[at_opening:]]
    assert 2 <= len(probes) <= 12
    assert min(later - earlier for earlier, later in pairwise(probes)) >= SECOND
    waiting = [op for op in map(house.read, asked) if not op.final]
    assert len(waiting) >= 10
    untouched = [op for op in waiting if op.attempts.used == 0]
    assert untouched
    assert all(op.delay_source is DelaySource.CIRCUIT_OPEN for op in untouched)
    assert all(op.state is State.DELAYED for op in untouched)
    assert all(op.transport_failures.used == 0 for op in untouched)
    down[0] = False
    traffic.run(traffic.now + 10 * MINUTE)
    assert all(house.read(op).state is State.SUCCEEDED for op in waiting)
    assert house.sql("SELECT * FROM circuits WHERE open_since IS NOT NULL") == []


@pytest.mark.requirement("R32")
def test_what_fails_here_and_there_is_no_outage(house: House) -> None:
    """Every third answer is a 500, and the two between show that the provider is there."""
    said = cycle([Said(500, {}), Said(200, {}), Said(200, {})])
    text = CALLS.replace('retry_budget = "5/1m"', "")
    traffic = Traffic(house, text, answer=lambda arrival: next(said))
    for number in range(60):
        traffic.ask(f"i{number}", task=str(number))
    traffic.run(traffic.now + 4 * MINUTE)
    assert len(traffic.arrived) > 60
    assert house.sql("SELECT * FROM events WHERE header LIKE '%circuit_opened%'") == []


@pytest.mark.requirement("R32")
def test_a_long_outage_pages_once_and_closes_its_case_itself(house: House) -> None:
    down = [True]
    traffic = Traffic(
        house, answer=lambda arrival: Said(503, {}) if down[0] else Said(200, {"ok": True})
    )
    start = traffic.now
    for number in range(60):
        traffic.ask(f"i{number}", task=f"t{number}")
    traffic.run(start + 14 * MINUTE)
    assert _unreachable(house) == []
    traffic.run(start + 40 * MINUTE)
    assert [closed for _, closed in _unreachable(house)] == [None]
    down[0] = False
    traffic.run(start + 60 * MINUTE)
    ends = [closed for _, closed in _unreachable(house)]
    assert len(ends) == 1
    assert ends[0] is not None


def _unreachable(house: House) -> list[tuple[object, ...]]:
    return house.sql("SELECT id, closed_at FROM cases WHERE reason = 'provider_unreachable'")


def _paged(house: House) -> tuple[Traffic, Case]:
    """A provider that has been down for long enough to tell a person."""
    traffic = Traffic(house, answer=lambda arrival: Said(503, {}))
    for number in range(30):
        traffic.ask(f"i{number}", task=f"t{number}")
    traffic.run(traffic.now + 20 * MINUTE)
    [(operation_id,)] = house.sql(
        "SELECT operation_id FROM cases WHERE reason = 'provider_unreachable'"
    )
    case = house.case(str(operation_id))
    assert case is not None
    return traffic, case


@pytest.mark.requirement("R32")
def test_a_person_may_put_off_an_outage_and_nothing_else_changes(house: House) -> None:
    traffic, case = _paged(house)
    assert "api.exp.example has answered nobody since" in case.text
    before, until = house.read(case.operation_id), traffic.now + 2 * 60 * MINUTE
    decided = house.decide(case.operation_id, Option.HOLD, until=until, held=_held(traffic))
    assert isinstance(decided, Decided)
    assert house.read(case.operation_id) == before
    traffic.run(until - MINUTE)
    assert len(_unreachable(house)) == 1
    traffic.run(until + 10 * MINUTE)
    assert len(_unreachable(house)) == 2 or not any(not op.final for op in house.all())


@pytest.mark.requirement("R32")
def test_a_person_may_give_up_one_that_an_outage_holds_up(house: House) -> None:
    traffic, case = _paged(house)
    op = house.read(case.operation_id)
    assert "abandon" in [option["id"] for option in case.options] or op.final
    if not op.final:
        assert isinstance(house.decide(op, Option.ABANDON, held=_held(traffic)), Decided)
        assert house.read(op).state is State.DISCARDED


def _held(traffic: Traffic) -> Holding:
    return traffic.holding(traffic.contract.calls["item"])


@pytest.mark.requirement("R31")
def test_a_person_may_reset_a_scope_and_what_waits_leaves_one_by_one(house: House) -> None:
    traffic = Traffic(house, answer=first(Said(429, {}, (("Retry-After", "4000"),))))
    for number in range(8):
        traffic.ask(f"i{number}", task=f"t{number}")
    traffic.run(traffic.now + MINUTE)
    assert len(traffic.arrived) <= 2
    brakes, by = Brakes(house.clock), {"operator": "ann", "reason": "they raised it"}
    key = "exp/acct_17/account"
    assert house.write(lambda c: brakes.reset_scope(c, key, by)) is True
    assert house.write(lambda c: brakes.reset_scope(c, "exp/none", by)) is False
    start, before = traffic.now, len(traffic.arrived)
    traffic.run(start + MINUTE)
    times = [one.at for one in traffic.arrived[before:]]
    assert len(times) >= 6
    assert times[0] - start <= SECOND


# --- a queue is no bottleneck of its own --------------------------------------------------------

ROOMY = CONTRACT.replace(
    "max_concurrent_requests = 2", "max_concurrent_requests = 10\nmax_delayed_requests = 100"
)


def _over(house: House, reserved: Reserved) -> None:
    """The provider takes it, so that its slot is free again."""
    house.settle(reserved, Said(202, {"id": f"exp_{reserved.operation.number}", "state": "queued"}))


def _rounds(house: House, ops: list[Operation], held: Holding) -> list[list[Reserved]]:
    """Who of these leaves at this moment, in rounds: all that are due are asked together."""
    rounds: list[list[Reserved]] = []
    while due := [op for op in ops if house.read(op).is_due(house.clock.now().wall)]:
        asked = [house.reserve(op, held) for op in due]
        rounds.append([one for one in asked if isinstance(one, Reserved)])
    return rounds


def _leaving(house: House, ops: list[Operation], held: Holding) -> list[Reserved]:
    return [one for together in _rounds(house, ops, held) for one in together]


@pytest.mark.requirement("R21")
def test_as_many_of_a_queue_leave_at_once_as_there_is_room_for(house: House) -> None:
    held = holding(text=ROOMY)
    ops = [house.new(f"q-{number}", held=held) for number in range(40)]
    out = _leaving(house, ops, held)
    assert len(out) == 10

    for served in range(10, 40, 10):
        for one in out:
            _over(house, one)
        rounds = _rounds(house, ops, held)
        assert len(rounds) <= 4  # not one by one, each waiting for the one before it
        out = [one for together in rounds for one in together]
        assert [one.operation.id for one in out] == [op.id for op in ops[served : served + 10]]


@pytest.mark.requirement("R21")
def test_a_newcomer_leaves_at_once_where_there_is_room_for_all_before_it(house: House) -> None:
    held = holding(text=ROOMY)
    ops = [house.new(f"q-{number}", held=held) for number in range(15)]
    out = _leaving(house, ops, held)
    assert len(out) == 10
    for one in out[:7]:
        _over(house, one)

    # Seven slots are free and five wait for them: one more leaves, and then no other.
    late, later, last = (house.new(f"late-{number}", held=held) for number in range(3))
    assert isinstance(house.reserve(late, held), Reserved)
    assert isinstance(house.reserve(later, held), Reserved)
    assert house.reserve(last, held) is False
    assert len(_leaving(house, ops, held)) == 5


@pytest.mark.requirement("R21")
def test_nobody_is_overtaken_for_whom_there_is_no_room(house: House) -> None:
    held = holding(text=ROOMY)
    ops = [house.new(f"q-{number}", held=held) for number in range(15)]
    out = _leaving(house, ops, held)
    for one in out[:3]:
        _over(house, one)
    assert house.reserve(house.new("late", held=held), held) is False
    assert [one.operation.id for one in _leaving(house, ops, held)] == [op.id for op in ops[10:13]]


@pytest.mark.requirement("R21")
def test_a_newcomer_reckons_with_a_turn_of_every_other_between_the_tasks_of_its_own(
    house: House,
) -> None:
    held = holding(text=ROOMY)
    busy = [house.new(f"busy-{number}", held=held) for number in range(10)]
    out = _leaving(house, busy, held)
    others = [house.new(f"other-{n}", held=held, principal="other") for n in range(3)]
    mine = [house.new(f"mine-{task}", held=held, task=task) for task in ("a", "b")]
    assert _leaving(house, [*others, *mine], held) == []
    for one in out[:5]:
        _over(house, one)

    # Two tasks of its principal, and an other before each of the three: five go before it.
    assert house.reserve(house.new("late", held=held, task="c"), held) is False
    assert len(_leaving(house, [*others, *mine], held)) == 5
