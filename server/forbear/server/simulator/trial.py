"""Every job and call of a contract taken through the simulator, on the way that real ones go.

A store, a worker and a sender as anywhere else, sockets to a provider on this machine; what the
rules say beforehand (`outlook`) is compared with where each operation ended, and with what the
provider counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from forbear.rules.contract import Action, Contract, Job
from forbear.rules.decisions import Wish
from forbear.rules.model import (
    JobClass,
    Operation,
    Option,
    Reason,
    Refusal,
    RequestClass,
    State,
    Step,
)
from forbear.rules.signals import Signal
from forbear.server.app import App, running
from forbear.server.cli.wanted import Wanted
from forbear.server.config import Settings
from forbear.server.outlook import NO_ANSWER, REFUSED, Outlook
from forbear.server.simulator import faults, homes
from forbear.server.simulator.copies import TESTING
from forbear.server.simulator.making import pages_of
from forbear.server.simulator.provider import Simulator
from forbear.server.simulator.source import Source
from forbear.tools import samples
from forbear.tools.caller import LOCAL, Caller

PATIENCE = 240.0
"""Seconds after which an operation that did not come to rest counts as lost."""
POLLS = 1
LOOK = 0.2
"""Seconds between two looks at the store."""
BY = {"operator": "forbear contract test", "channel": "test"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to an action, and how that has to end."""

    name: str
    faults: tuple[str, ...]
    state: State
    reason: Reason | None
    sent: int
    """Requests of the action's own that have to arrive."""
    made: int | None
    """Effects at the provider; None for reads."""


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario of one action, and what came of it."""

    action: str
    scenario: str
    expected: str
    ended: str
    requests: int
    """All that arrived."""
    effects: int
    told: str = ""
    """What is wrong, or why it could not be simulated."""
    ok: bool = True
    simulated: bool = True


async def trial(source: Source, home: Path) -> list[Row]:
    """All scenarios of all actions of a contract, in a home of their own.

    Raises `NotSimulated` if the folder is used for something else.
    """
    homes.take(home)
    contract = source.contract
    async with AsyncExitStack() as stack:
        stages = [
            await stack.enter_async_context(_Stage(source, home, action, scenario))
            for action in (*contract.jobs.values(), *contract.calls.values())
            for scenario in scenarios(contract, action)
        ]
        settings = Settings(home=home, console="", log="ERROR")
        app = await stack.enter_async_context(running(settings, role="test", worker=True))
        for stage in stages:
            stage.speak(app)
        return list(await asyncio.gather(*(stage.play(app) for stage in stages)))


def scenarios(contract: Contract, action: Action) -> Iterator[Scenario]:
    """What is tried with an action, with the ends that the rules say."""
    outlook = Outlook(contract, action)
    read = action.send.request_class is RequestClass.READ
    one = None if read else 1
    none = None if read else 0
    yield Scenario("success", (), State.SUCCEEDED, None, pages_of(action), one)
    if isinstance(action, Job) and _fails(action):
        yield Scenario("the job fails", ("fails",), State.FAILED, None, 1, one)
    name = "submit" if isinstance(action, Job) else "call"
    refused = outlook.on_sending(REFUSED)
    yield Scenario("refused", (f"{name}:refused",), refused.state, refused.reason, 1, none)
    yield _after(outlook, "429", f"{name}:429", outlook.limited(name), read=read, applied=False)
    if isinstance(action, Job):
        limited = outlook.on_status(outlook.limited("status"))
        ends = State.SUCCEEDED if limited.state is State.WAITING else limited.state
        yield Scenario("429 on a check", ("status:429",), ends, limited.reason, 1, one)
    yield _after(outlook, "answer lost", f"{name}:lost", NO_ANSWER, read=read, applied=True)
    if isinstance(action, Job) and not _waits_for_anything(action):
        yield Scenario(
            "unknown state", ("unknown-state",), State.ESCALATED, Reason.UNKNOWN_STATE, 1, one
        )


def _fails(job: Job) -> bool:
    return any(row.means is JobClass.FAILED for row in job.states.rows)


def _waits_for_anything(job: Job) -> bool:
    """No word is unknown then."""
    return any(set(row.words) == {"*"} for row in job.states.rows)


def _after(
    outlook: Outlook, name: str, fault: str, signal: Signal, *, read: bool, applied: bool
) -> Scenario:
    """A request that did not come to a good answer: ended there, or on to success."""
    outcome = outlook.on_sending(signal)
    if outcome.state is State.ESCALATED or outcome.state in (State.FAILED, State.DISCARDED):
        made = None if read else int(applied)
        return Scenario(name, (fault,), outcome.state, outcome.reason, 1, made)
    again = pages_of(outlook.action) + (outcome.step is not Step.LOOKUP)
    return Scenario(name, (fault,), State.SUCCEEDED, None, again, None if read else 1)


class _Stage:
    """One scenario of one action: a provider and a copy of the contract of its own."""

    def __init__(self, source: Source, home: Path, action: Action, scenario: Scenario) -> None:
        self._source, self._home, self._action = source, home, action
        self._scenario = scenario
        names = (*source.contract.jobs, *source.contract.calls)
        self.simulator = Simulator(polls=POLLS, plan=faults.parse(scenario.faults, names))
        word = scenario.name.replace(" ", "-")
        self._provider = f"{source.contract.provider}-{action.name}-{word}"

    async def __aenter__(self) -> _Stage:
        await self.simulator.start()
        address = self.simulator.base_url
        homes.furnish(self._home, self._source, address, TESTING, self._provider, self._action.name)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.simulator.stop()

    def speak(self, app: App) -> None:
        copied = homes.furnished(app.contracts, self._provider)
        self.simulator.speak(self._source.contract, copied, lambda: app.clock.now().wall)

    async def play(self, app: App) -> Row:
        """Ask for it as an agent would, wait for its end, and look at what arrived."""
        unfit = samples.problems(self._action.input, samples.of(self._action.input))
        if unfit:
            told = f"no sample of its arguments is known: {unfit[0]} -> add examples to its input"
            return self._row("not tried", told, simulated=False)
        try:
            async with asyncio.timeout(PATIENCE):
                op = await self._ended(app)
        except TimeoutError:
            return self._row("did not come to rest", f"not at rest after {PATIENCE:.0f} s")
        if isinstance(op, str):
            return self._row("refused", op)
        case = await app.store.read.open_case(op.id)
        ended = str(op.state) if case is None else f"{op.state}: {case.reason}"
        wrong = self._wrong(ended)
        if op.state is State.SUCCEEDED and wrong is None:
            wrong = await self._results(app, op)
        return self._row(ended, wrong or "")

    async def _ended(self, app: App) -> Operation | str:
        wanted = Wanted(self._provider, self._action.name, samples.of(self._action.input))
        record = await wanted.once(app)
        if isinstance(record, Refusal):
            return record.message
        op = record.operation
        while not op.final:
            op = await app.store.read.operation(op.id) or op
            if op.state is State.ESCALATED:
                return op
            if op.approve_by is not None:
                await self._approve(app, op)
            await app.clock.sleep(LOOK)
        return op

    async def _approve(self, app: App, op: Operation) -> None:
        case = await app.store.read.open_case(op.id)
        if case is not None and case.reason is Reason.APPROVAL_REQUIRED:
            await app.office.decide(case, op, Wish(Option.APPROVE), BY)

    async def _results(self, app: App, op: Operation) -> str | None:
        """Fetch every result of a job that succeeded; what went wrong, if anything did."""
        action = self._action
        if not isinstance(action, Job) or "fetch_result" not in action.success.then:
            return None
        caller = Caller(LOCAL, "test", app.store.liveness.owner)
        for name, request in action.results.items():
            if "succeeded" not in request.when:
                continue
            fetched = await app.desk.fetch_result(
                op.id, name=name, offset=None, wait_seconds=20, caller=caller, report=None
            )
            if isinstance(fetched, Refusal):
                return f"result {name}: {fetched.message}"
            if fetched.operation.state is not State.SUCCEEDED:
                return f"result {name} ended {fetched.operation.state}"
        return None

    # --- what is compared -----------------------------------------------------------------

    @property
    def _expected(self) -> str:
        scenario = self._scenario
        return str(scenario.state) + (f": {scenario.reason}" if scenario.reason else "")

    @property
    def _counts(self) -> tuple[int, int]:
        """The action's own requests that arrived, and effects."""
        name = self._action.name
        own = f"{name}.submit" if isinstance(self._action, Job) else name
        return self.simulator.count(own), self.simulator.effects(name)

    def _wrong(self, ended: str) -> str | None:
        sent, made = self._counts
        scenario = self._scenario
        if ended != self._expected:
            return f"should be {self._expected}"
        if sent != scenario.sent:
            return f"sent {sent} times, should be {scenario.sent}"
        if scenario.made is not None and made != scenario.made:
            return f"made {made} times, should be {scenario.made}"
        return None

    def _row(self, ended: str, wrong: str, *, simulated: bool = True) -> Row:
        unable = [one.note for one in self.simulator.seen if one.status == 501]
        simulated = simulated and not unable
        return Row(
            self._action.name,
            self._scenario.name,
            self._expected,
            ended,
            len(self.simulator.seen),
            self._counts[1],
            unable[0] if unable else wrong,
            ok=not simulated or not wrong,
            simulated=simulated,
        )


def failed(rows: Sequence[Row]) -> bool:
    """Whether anything ended where it should not."""
    return not all(row.ok for row in rows)
