"""Random histories of shared scopes: many tasks, two processes, and everything that goes wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random, randrange

import pytest
from tests.storage.house import Quarter
from tests.storage.world import ACTIONS, HOUR, MINUTE, PAGES, SECOND, Fate, World

from forbear.rules.model import Option, Priority, State
from forbear.storage import register

HISTORIES = int(os.environ.get("FORBEAR_HISTORIES", "12"))
"""How many histories are tried; thousands when it runs at length."""

FIRST = int(os.environ.get("FORBEAR_SEED") or (0 if os.environ.get("CI") else randrange(10**9)))
"""The seed of the first of them; a failure names its own."""

LENGTH = 25
PARTS = 2
"""Tests that share the histories, so that two cores run them."""

PEOPLE = (
    *(Option.RECONCILE, Option.RESEND_SAME_KEY, Option.CHECK_AGAIN, Option.HOLD, Option.EXTEND),
    *(Option.CONFIRM_DONE, Option.CONFIRM_NOT_DONE, Option.ABANDON),
)


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Quarter:
    return Quarter(tmp_path_factory.mktemp("scope-histories"))


@pytest.fixture
def world(quarter: Quarter) -> Iterator[World]:
    made = World(quarter)
    yield made
    made.close()


# --- what happens ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Some equal requests of one task."""

    action: str
    count: int
    task: int
    priority: Priority
    same: bool
    """Of one and the same thing, that others may want as well."""

    def happens(self, world: World) -> None:
        for _ in range(self.count):
            world.ask(
                self.action,
                task=f"t{self.task}",
                principal=f"p{self.task % 2}",
                priority=self.priority,
                item="same" if self.same else None,
            )


@dataclass(frozen=True, slots=True)
class Run:
    ms: int

    def happens(self, world: World) -> None:
        world.run(self.ms)


@dataclass(frozen=True, slots=True)
class Weather:
    """What becomes of the next requests."""

    fates: tuple[Fate, ...]

    def happens(self, world: World) -> None:
        world.fates = self.fates


@dataclass(frozen=True, slots=True)
class Die:
    """A process dies now, or at the next moment of this kind."""

    who: int
    when: str
    away: int

    def happens(self, world: World) -> None:
        if self.when == "now":
            world.dies(self.who, self.away)
        else:
            world.processes[self.who].dies = self.when
            world.processes[self.who].away = self.away


@dataclass(frozen=True, slots=True)
class Jump:
    ms: int

    def happens(self, world: World) -> None:
        world.jump(self.ms)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody decides, drops, ends a task, stops work or lets it go."""

    does: str
    pick: int

    def happens(self, world: World) -> None:
        match self.does:
            case "decide":
                world.decide(self.pick, PEOPLE)
            case "drop":
                world.drop(self.pick)
            case "end_task":
                world.end_task(f"p{self.pick % 2}", f"t{self.pick % 4}")
            case "pause":
                world.pause(["all", "exp", "exp/acct_17/search"][self.pick % 3])
            case _:
                world.resume()


Happening = Ask | Run | Weather | Die | Jump | Person

FATES = (
    *("done", "done", "lost", "undone", "unsent", "unsent", "busy", "error", "later", "later"),
    *("limited", "limited_20", "limited_20", "limited_4000", "r=3", "r=0"),
)
LATE = (0, 0, 0, 2 * SECOND, 8 * SECOND, 11 * SECOND)
TAKES = (200, 200, 3 * SECOND, 25 * SECOND, MINUTE)
STEADY = tuple((Fate(what),) for what in ("done", "later", "later", "busy", "unsent", "undone"))

RUNS = (300, 2 * SECOND, 10 * SECOND, 40 * SECOND, 3 * MINUTE)
JUMPS = (-26 * HOUR, -HOUR, -5 * SECOND, 5 * SECOND, MINUTE, 10 * MINUTE)
WHENS = ("now", "reserved", "sent", "answered")
DOES = ("decide", "decide", "decide", "drop", "end_task", "pause", "resume")
PRIORITIES = (Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BACKGROUND)


def ask(random: Random) -> Happening:
    action = random.choice((*ACTIONS, "item", "item", "search"))
    count, task, priority = random.randint(1, 6), random.randrange(4), random.choice(PRIORITIES)
    return Ask(action, count, task, priority, random.random() < 0.15)


def weather(random: Random) -> Happening:
    if random.random() < 0.4:
        return Weather(random.choice(STEADY))
    drawn = [
        Fate(random.choice(FATES), random.choice(LATE), random.choice(TAKES))
        if random.random() < 0.6
        else Fate()
        for _ in range(random.randint(1, 5))
    ]
    return Weather(tuple(drawn))


def death(random: Random) -> Happening:
    away = random.choice((0, SECOND, 20 * SECOND, 2 * MINUTE))
    return Die(random.randrange(2), random.choice(WHENS), away)


KINDS: tuple[Callable[[Random], Happening], ...] = (
    *(ask, ask, weather, death),
    *(lambda random: Run(random.choice(RUNS)),) * 3,
    lambda random: Jump(random.choice(JUMPS)),
    lambda random: Person(random.choice(DOES), random.randrange(100)),
)


def history(seed: int) -> list[Happening]:
    """The history of a seed."""
    random = Random(seed)
    return [random.choice(KINDS)(random) for _ in range(LENGTH)]


# --- how it ends ----------------------------------------------------------------------------


def all_is_well(world: World) -> None:
    world.fates = (Fate(),)
    world.resume()
    for process in world.processes:
        process.dies = None


def comes_to_rest(world: World) -> None:
    """Left to itself, everything ends or asks, and leaves no trace in any queue."""
    all_is_well(world)
    for _ in range(72):
        if all(op.final or op.state is State.ESCALATED for op in world.all()):
            break
        world.run(10 * MINUTE)
        world.holds()
    else:
        stuck = [(op.action, op.state, op.waiting_for) for op in world.all() if op.next_at]
        raise AssertionError(f"no end: {stuck[:2]}")
    for table in ("waits", "turns", "task_turns"):
        assert world.any.sql(f"SELECT * FROM {table}") == []


def serves_in_turn(world: World) -> None:
    """What is asked for now is served, and nobody waits longer than one round for it."""
    world.run(75 * MINUTE)
    world.ask(task="probe")  # an outage is over when somebody finds out
    world.run(5 * MINUTE)
    start = len(world.permits)
    lanes = {"x0": "p0", "x1": "p0", "x2": "p1", "x3": "p1"}
    asked = [
        world.ask(task=task, principal=principal)
        for task, principal in lanes.items()
        for _ in range(4)
    ]
    low = world.ask(task="x4", priority=Priority.BACKGROUND)
    world.run(17 * 4 * SECOND)
    world.holds()
    for op in (*asked, low):
        assert op is not None
        assert world.any.read(op).state is State.SUCCEEDED, "what was asked for is not served"
    served = [one.task for one in world.permits[start:]]
    assert served[-1] == "x4", "background work goes last"
    order = served[3:-1]
    takes_turns([lanes[task] for task in order])
    for principal in ("p0", "p1"):
        takes_turns([task for task in order if lanes[task] == principal])


def leaves_a_reserve(world: World) -> None:
    """Background work alone keeps below its share, and loses no time within it."""
    start = world.true
    asked = [world.ask(task="x5", priority=Priority.BACKGROUND) for _ in range(18)]
    world.run(18 * 5 * SECOND)
    world.holds()
    assert len([one for one in world.permits if one.at >= start]) == len(asked)


def takes_turns(order: Sequence[str]) -> None:
    """While one has something to do, each other goes at most once before it goes again."""
    for name in set(order):
        mine = [-1, *(place for place, other in enumerate(order) if other == name)]
        for one, following in pairwise(mine):
            between = Counter(order[one + 1 : following])
            assert max(between.values(), default=0) <= 1, order


def happen(world: World, happenings: Sequence[Happening]) -> None:
    for one in happenings:
        one.happens(world)
        world.holds()
    comes_to_rest(world)
    serves_in_turn(world)
    leaves_a_reserve(world)
    world.verified()


@pytest.mark.requirement(
    "R02", "R05", "R10", "R11", "R13", "R15", "R21", "R22", "D01", "W11", "W17"
)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_shared_scope_keeps_its_limits_whatever_happens(quarter: Quarter, part: int) -> None:
    for seed in range(FIRST + part, FIRST + HISTORIES, PARTS):
        world = World(quarter, seed)
        try:
            happen(world, history(seed))
        except BaseException as error:
            error.add_note(f"run it again: FORBEAR_SEED={seed} FORBEAR_HISTORIES=1")
            raise
        finally:
            world.close()


# --- what was found -------------------------------------------------------------------------


def test_who_waits_long_for_a_narrow_scope_holds_up_nobody_in_a_wide_one(world: World) -> None:
    """The first of both queues waits twenty minutes for the narrow one."""
    for _ in range(12):
        world.ask("item", task="wide")
    for _ in range(4):
        world.ask("rare", task="narrow")
    world.run(MINUTE)
    served = Counter(one.op.action for one in world.permits)
    assert served == {"item": 12, "rare": 1}
    world.run(2 * HOUR)
    assert sum(one.op.action == "rare" for one in world.permits) >= 3


@pytest.mark.requirement("R05", "R29")
def test_the_pages_of_a_read_are_no_repetitions(world: World) -> None:
    """Six pages, where a scope allows four repetitions in a minute."""
    op = world.ask("pages")
    assert op is not None
    world.run(MINUTE)
    assert world.any.read(op).state is State.SUCCEEDED
    assert len(world.permits) == PAGES


@pytest.mark.requirement("R07")
def test_a_slot_that_is_free_again_is_used_at_once(world: World) -> None:
    world.fates = (Fate(takes=20 * SECOND),)
    start = world.true
    for _ in range(4):
        world.ask()
    world.run(MINUTE)
    assert [one.at - start < 20 * SECOND for one in world.permits] == [True, True, True, False]
    assert world.permits[3].at - start == 20 * SECOND


def test_an_outage_is_probed_in_time_though_the_clock_was_set_back(world: World) -> None:
    world.fates = (Fate("busy"),)
    for number in range(6):
        world.ask("item", task=f"t{number}")
    world.run(20 * SECOND)
    world.fates = (Fate(),)
    world.jump(-26 * HOUR)
    world.run(3 * MINUTE)
    assert all(op.final for op in world.all())
    assert world.any.sql("SELECT * FROM circuits WHERE open_since IS NOT NULL") == []


@pytest.mark.parametrize("busy", [True, False])
def test_background_work_goes_on_though_the_clock_was_set_back(world: World, busy: bool) -> None:
    """Whether a request or somebody who notices the clock comes first."""
    for _ in range(2):
        world.ask(task="low", priority=Priority.BACKGROUND)
    world.run(10 * SECOND)
    world.jump(-26 * HOUR)
    if busy:
        world.ask(task="other")
    world.run(MINUTE)
    op = world.ask(task="low", priority=Priority.BACKGROUND)
    assert op is not None
    world.run(MINUTE)
    assert world.any.read(op).state is State.SUCCEEDED


@pytest.mark.requirement("R05")
@pytest.mark.parametrize("busy", [True, False])
def test_a_retry_budget_comes_back_though_the_clock_was_set_back(world: World, busy: bool) -> None:
    world.fates = (Fate("later"),)
    for number in range(4):
        world.ask(task=f"t{number}")
    world.run(MINUTE)
    assert sum(one.repeats for one in world.permits) == 4
    for number in range(4):
        world.end_task("local", f"t{number}")
    world.jump(-26 * HOUR)
    if busy:
        world.ask(task="other")
    world.run(2 * MINUTE)
    op = world.ask(task="again")
    assert op is not None
    world.run(200)
    world.fates = (Fate(),)
    world.run(MINUTE)
    done = world.any.read(op)
    assert done.state is State.SUCCEEDED
    assert done.attempts.used > 1


def test_what_a_provider_said_of_its_quota_is_forgotten_for_background_work_too(
    world: World,
) -> None:
    """One request a day, it said; somebody has bought more."""
    world.fates = (Fate("r=1"),)
    for _ in range(2):
        world.ask(task="low", priority=Priority.BACKGROUND)
        world.run(MINUTE)
    world.fates = (Fate(),)
    world.any.write(lambda c: register.forget(c, "exp/acct_17/account", world.clock.now().wall))
    op = world.ask(task="low", priority=Priority.BACKGROUND)
    assert op is not None
    world.run(MINUTE)
    assert world.any.read(op).state is State.SUCCEEDED
