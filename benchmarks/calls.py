"""(b) Durable calls end to end against the same client without storage; (h) latency of one call.

The real worker, ledger and sender in this process, a provider in another one.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpcore2
import httpx2

from benchmarks.provider import arrivals, provider
from benchmarks.tables import (
    Figure,
    Row,
    Stopwatch,
    Table,
    Trial,
    Trials,
    cpu_us,
    in_turns,
    percentile,
    rate,
    ratio,
)
from benchmarks.units import CLOCK, CONTRACT
from forbear.rules.contract import Auth
from forbear.rules.model import Priority, Refusal
from forbear.rules.ports import Outbound, Permit
from forbear.server.app import App, running
from forbear.server.config import Settings
from forbear.server.credentials import Credentials
from forbear.server.upstream import Target, Upstream
from forbear.tools.caller import only

CALLS = "forbear: read_api"
POLLS = "forbear: polls of jobs"
SENDER = "forbear's sender, no storage"
HTTPX2 = "httpx2 alone"
HTTPCORE2 = "httpcore2 alone"

NOTES = (
    f"`{CALLS}`: the use case of the tool, from the arguments to the answer: two durable "
    "transactions (accept and reserve; settle), and the answer read again for the caller.",
    f"`{POLLS}`: as many jobs as are at once, each polled until it is done: two durable "
    "transactions a request. Nobody waits for them.",
    f"`{SENDER}`: the same sender with permits made up: guard of addresses, witness, caps, and "
    "its transport on httpcore2. The floor that the bound is about.",
    f"`{HTTPX2}`, `{HTTPCORE2}`: one client, one pool, nothing else.",
    "Every answer is checked, and the provider's own count of requests against what was asked.",
)

_caller = only("bench")(None)
_numbers = itertools.count()


class Lost(Exception):
    """An answer or a request that should be there is not, or is there twice."""


# --- who calls --------------------------------------------------------------------------------

Call = Callable[[int], Awaitable[None]]
"""One GET of one item, whose number it gets."""


@asynccontextmanager
async def forbear(base_url: str) -> AsyncGenerator[App]:
    """A process with a worker on a new home."""
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        home = Path(folder)
        (home / "contracts").mkdir()
        (home / "contracts" / "bench.toml").write_text(CONTRACT.format(base_url=base_url))
        async with running(Settings(home=home), role="serve", worker=True) as app:
            yield app


def reading(app: App) -> Call:
    async def call(number: int) -> None:
        answer = await app.desk.read_api(
            provider="bench",
            call="item",
            arguments={"id": f"{number}"},
            task=None,
            depends_on=(),
            deadline_seconds=None,
            useful_for_seconds=None,
            priority=Priority.INTERACTIVE,
            wait_seconds=600,
            caller=_caller,
            report=None,
        )
        if isinstance(answer, Refusal) or answer.operation.state != "succeeded":
            raise Lost(f"item {number}: {answer}")

    return call


def sending(upstream: Upstream, base_url: str) -> Call:
    async def call(number: int) -> None:
        now = CLOCK.now()
        permit = Permit(
            attempt_id=f"att_{number}",
            operation_id=f"op_{number}",
            fence=1,
            send_by=now.wall + 30_000,
            send_by_boot=now.boot + 30_000,
            boot_id=now.boot_id,
            provider="bench",
            account="default",
        )
        reply = await upstream.send(permit, Outbound("GET", f"{base_url}/items/{number}"))
        if reply.status != 200 or not reply.complete:
            raise Lost(f"item {number}: {reply}")

    return call


@asynccontextmanager
async def bare_sender(base_url: str) -> AsyncGenerator[Call]:
    target = Target(base_url, Auth("none"))
    async with Upstream(CLOCK, lambda _provider, _account: target, Credentials()) as upstream:
        yield sending(upstream, base_url)


@asynccontextmanager
async def bare_httpx2(base_url: str) -> AsyncGenerator[Call]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(limits=limits, trust_env=False) as client:

        async def call(number: int) -> None:
            answer = await client.get(f"{base_url}/items/{number}")
            if answer.status_code != 200 or not answer.content:
                raise Lost(f"item {number}: {answer}")

        yield call


@asynccontextmanager
async def bare_httpcore2(base_url: str) -> AsyncGenerator[Call]:
    async with httpcore2.AsyncConnectionPool(max_connections=None) as pool:

        async def call(number: int) -> None:
            answer = await pool.request("GET", f"{base_url}/items/{number}")
            if answer.status != 200 or not answer.content:
                raise Lost(f"item {number}: {answer}")

        yield call


async def hammer(call: Call, concurrency: int, requests: int) -> Trial:
    """So many calls, so many of them at any time."""
    times: list[float] = []
    left = iter(range(requests))

    async def one() -> None:
        for _ in left:
            began = time.perf_counter()
            await call(next(_numbers))
            times.append((time.perf_counter() - began) * 1_000)

    watch = Stopwatch()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(one())
    return watch.trial(requests, times)


async def chains(app: App, jobs: int, requests: int) -> Trial:
    """So many jobs at once, and so many requests in all, submissions included."""
    looks = max(1, requests // jobs - 1)
    watch = Stopwatch()

    async def submit() -> str:
        answer = await app.desk.submit_job(
            provider="bench",
            job="export",
            arguments={"dataset": f"{next(_numbers)}-{looks}"},
            purpose=None,
            task=None,
            idempotency_key=None,
            depends_on=(),
            deadline_seconds=None,
            max_status_requests=None,
            useful_for_seconds=None,
            priority=Priority.INTERACTIVE,
            wait_seconds=0,
            caller=_caller,
            report=None,
        )
        assert not isinstance(answer, Refusal), answer
        return answer.operation.id

    for job in await asyncio.gather(*(submit() for _ in range(jobs))):
        state = await ended(app, job)
        if state != "succeeded":
            raise Lost(f"{job}: {state}")
    return watch.trial(jobs * (looks + 1))


async def ended(app: App, job: str) -> str:
    """The final state of a job. Looks seldom, so as not to be what is measured."""
    while True:
        op = await app.store.read.operation(job)
        if op is not None and op.final:
            return op.state
        await asyncio.sleep(0.01)


# --- (b) --------------------------------------------------------------------------------------


async def path(base_url: str, concurrency: int, rounds: int, seconds: float) -> Trials:
    async with (
        forbear(base_url) as app,
        bare_sender(base_url) as sender,
        bare_httpx2(base_url) as plain,
        bare_httpcore2(base_url) as core,
    ):
        calls: dict[str, Call] = {
            CALLS: reading(app),
            SENDER: sender,
            HTTPX2: plain,
            HTTPCORE2: core,
        }
        variants: dict[str, Callable[[int], Awaitable[Trial]]] = {
            name: partial(hammer, call, concurrency) for name, call in calls.items()
        }
        variants[POLLS] = partial(chains, app, concurrency)
        sized = {}
        for name, variant in variants.items():
            warm = await variant(2 * concurrency)
            count = max(2 * concurrency, round(warm.rate * seconds))
            sized[name] = partial(checked, base_url, variant, count)
        return await in_turns(sized, rounds)


def _row(concurrency: int, name: str, found: list[Trial], floor: list[Trial]) -> Row:
    times = _times(found)
    return {
        "at once": concurrency,
        "variant": name,
        "requests/s": rate(found),
        "CPU us each": cpu_us(found),
        "p50 ms": median(times) if times else None,
        "p99 ms": percentile(times, 0.99) if times else None,
        "of the floor": ratio(found, floor),
        "in CPU": cpu_us(floor) / cpu_us(found),
    }


def _times(trials: list[Trial]) -> list[float]:
    return [ms for trial in trials for ms in trial.times]


async def checked(base_url: str, variant: Callable[[int], Awaitable[Trial]], count: int) -> Trial:
    """A trial whose requests the provider counted, each once."""
    before = arrivals(base_url)
    trial = await variant(count)
    came = arrivals(base_url)[0] - before[0]
    if came != trial.count:
        raise Lost(f"the provider saw {came} requests of {trial.count}")
    return trial


def table(quick: bool) -> Table:
    rows: list[Row] = []
    figures: list[Figure] = []
    with provider() as base_url:
        for concurrency in (50,) if quick else (50, 500):
            size = (3, 1.0) if quick else (3 if concurrency == 500 else 5, 2.0)
            trials = asyncio.run(path(base_url, concurrency, *size))
            floor = trials[SENDER]
            rows += [_row(concurrency, name, found, floor) for name, found in trials.items()]
            if concurrency == 50:
                figures = [
                    Figure(f"{name}, 50 at once", ratio(trials[name], floor), 0.6, 0.8)
                    for name in (CALLS, POLLS)
                ]
    return Table("calls", "durable calls, end to end", rows, figures, NOTES)


# --- (h) --------------------------------------------------------------------------------------


async def one_by_one(base_url: str, requests: int) -> dict[str, list[float]]:
    """Milliseconds of each call, one at a time, the variants in turns call by call."""
    async with (
        forbear(base_url) as app,
        bare_sender(base_url) as sender,
        bare_httpx2(base_url) as plain,
    ):
        calls = {HTTPX2: plain, SENDER: sender, CALLS: reading(app)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(requests + 20):
            for name, call in calls.items():
                took = (await hammer(call, 1, 1)).times
                if number >= 20:
                    times[name] += took
    return times


def latency(quick: bool) -> Table:
    with provider() as base_url:
        times = asyncio.run(one_by_one(base_url, 200 if quick else 1_000))
    bare = times[HTTPX2]
    rows: list[Row] = [
        {
            "variant": name,
            "p50 ms": median(found),
            "p99 ms": percentile(found, 0.99),
            "added p50 ms": median(found) - median(bare),
            "added p99 ms": percentile(found, 0.99) - percentile(bare, 0.99),
        }
        for name, found in times.items()
    ]
    added = median(times[CALLS]) - median(bare)
    figure = Figure(
        "one durable call over a bare GET, p50", added, 1.5, 1.0, "ms", less_is_better=True
    )
    return Table("latency", "one call at a time", rows, [figure], (*NOTES[:1], *NOTES[2:4]))
