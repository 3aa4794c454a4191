"""The composition root: everything is built here, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from forbear.rules.ports import Clock, Random
from forbear.server import operator, tracing
from forbear.server.artifacts import Artifacts
from forbear.server.clock import SystemClock, SystemRandom
from forbear.server.config import Settings
from forbear.server.credentials import Credentials
from forbear.server.feed import standard_input
from forbear.server.keeping import places
from forbear.server.notify import Herald
from forbear.server.providers import Contracts
from forbear.server.retention import Keeper
from forbear.server.rounds import Rounds
from forbear.server.standing import Clerk
from forbear.server.upstream import Upstream
from forbear.server.worker import Worker, listen
from forbear.storage.errors import StoreTooNew
from forbear.storage.store import Store
from forbear.tools.accounts import Accounts
from forbear.tools.caller import only
from forbear.tools.desk import Desk, Setting
from forbear.tools.intake import Intake
from forbear.tools.office import Office

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class App:
    """One running process on a home."""

    settings: Settings
    store: Store
    contracts: Contracts
    desk: Desk
    office: Office
    clock: Clock
    random: Random
    superseded: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a newer program upgraded the store and all that was under way here is stored."""


def program_version() -> str:
    try:
        return version("forbear")
    except PackageNotFoundError:
        return "0"


def open_store(
    settings: Settings, clock: Clock | None = None, random: Random | None = None
) -> Store:
    """The store of a home, made if it is not there. A `clock` that is given rules.

    Raises:
        StoreUnavailable, StoreTooNew
    """
    return Store(
        settings.home,
        clock or SystemClock(),
        random or SystemRandom(),
        url=settings.database,
        task_limits=settings.task,
        places=places(settings),
        own_time=clock is not None,
    )


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    role: str,
    worker: bool,
    clock: Clock | None = None,
    random: Random | None = None,
) -> AsyncIterator[App]:
    """A process on a home, with a worker of its own if `worker`.

    Raises:
        StoreUnavailable, StoreTooNew
    """
    logging.basicConfig(stream=sys.stderr, level=settings.log)
    with tracing.exporting() if worker or role == "serve" else contextlib.nullcontext():
        async with _running(settings, role, worker, clock, random) as app:
            yield app


@asynccontextmanager
async def _running(
    settings: Settings, role: str, worker: bool, clock: Clock | None, random: Random | None
) -> AsyncIterator[App]:
    random = random or SystemRandom()
    store = open_store(settings, clock, random)
    clock = store.clock
    try:
        if role in ("serve", "worker"):
            operator.learn(settings, store.key)
        # A command is over at once and nobody shares its loop: it waits for what it needs.
        credentials = Credentials(clock=clock, waits=role == "cli")
        contracts = Contracts(settings.contracts, credentials, store.key)
        setting = Setting(console=settings.console_url, resident=role == "worker")
        intake = Intake(store)
        desk = Desk(store, contracts, clock, random, setting, intake)
        office = Office(store, contracts, clock, desk)
        app = App(settings, store, contracts, desk, office, clock, random)
        if not worker:
            if role == "serve":  # seen by others, though it sends nothing
                store.liveness.claim()
            async with _supervised(partial(listen, store, clock), app.superseded):
                yield app
            return
        async with Upstream(clock, contracts.target, credentials, proxy=settings.proxy) as upstream:
            artifacts = Artifacts(settings.home / "artifacts")
            async with _rounds(app, upstream, credentials) as rounds:
                keeper = Keeper(store, contracts, artifacts, clock)
                carrier = Worker(
                    store,
                    contracts,
                    upstream,
                    artifacts,
                    clock,
                    role=role,
                    intake=intake,
                    rounds=rounds,
                    keeper=keeper,
                    accounts=Accounts(store, contracts, intake, clock, random),
                )
                async with _supervised(carrier.run, app.superseded, carrier.end):
                    yield app
    finally:
        await store.close()


@asynccontextmanager
async def _rounds(app: App, upstream: Upstream, credentials: Credentials) -> AsyncIterator[Rounds]:
    """The rounds of a process with a worker, and its webhook if the home has one."""
    store, settings, clock = app.store, app.settings, app.clock
    herald = None
    if settings.notify is not None:
        post, console = upstream.post, settings.console_url
        herald = Herald(settings.notify, store, post, credentials, clock, console)
    try:
        clerk = Clerk(settings.standing, store, app.office, clock)
        yield Rounds(store, app.contracts, clock, clerk, herald)
    finally:
        if herald is not None:
            await herald.aclose()


@asynccontextmanager
async def _supervised(
    run: Callable[[], Awaitable[None]],
    superseded: asyncio.Event,
    end: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[None]:
    """Keep a task running beside the body: started again if it fails, stopped at the end.

    Not again where a newer program upgraded the store. `end` does what stopping it does, where it
    has just failed.
    """

    async def keep() -> None:
        while True:
            try:
                await run()
            except StoreTooNew as error:
                _log.error("%s", error)
                superseded.set()
                return
            except Exception:
                _log.exception("the worker failed and starts again")
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    if end is not None:
                        await end()
                    raise

    task = asyncio.create_task(keep(), name="worker")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def first_of(*events: asyncio.Event) -> None:
    """Return once one of them is set."""
    waits = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def serve_stdio(settings: Settings, *, worker: bool, stopped: asyncio.Event) -> None:
    """Speak MCP on standard input and output until the client closes it, or until `stopped`.

    Either way requests under way get the worker's grace, and their outcome is stored.
    """
    from forbear.tools.surface import build

    with standard_input() as feed:
        async with running(settings, role="serve", worker=worker) as app:
            server = build(
                app.desk, version=program_version(), caller_of=only(app.store.liveness.owner)
            )
            serving = asyncio.create_task(server.run_stdio_async(), name="serving")
            asked = asyncio.create_task(stopped.wait(), name="until stopped")
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if not serving.done():
                feed.end()
                serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
