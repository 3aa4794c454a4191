"""The supervised task that carries operations: claims what is due, sends, and stores the outcome.

Tool calls never do this work, so a client that goes away loses nothing. Holds only the next due
time: a thousand waiting operations cost it nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from forbear.rules import signals
from forbear.rules.facts import facts_of
from forbear.rules.model import Kind
from forbear.rules.ports import Clock, Reply, Sender
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import request_of
from forbear.server.artifacts import Artifacts
from forbear.server.providers import Contracts
from forbear.storage.errors import StoreError
from forbear.storage.ledger import Reserved
from forbear.storage.queries import Due
from forbear.storage.store import Store

PULSE = 0.25
"""Seconds between two looks for what other processes committed."""

HEARTBEAT = 10.0
"""Seconds between two signs of life in the store."""

SAFETY = 30.0
"""Seconds after which the schedule is looked at in any case."""

COOLING = 5_000
"""How long an operation that could not be run here is left alone, ms."""

GRACE = 3.0
"""Seconds that requests under way get when the process stops."""

DEFERENCE = 5_000
"""How long a short-lived process leaves due work to a resident worker that holds it, ms."""

_log = logging.getLogger(__name__)


class Worker:
    """Runs until cancelled. One per process.

    `role` is `worker` for a resident process, else what the process is for; short-lived processes
    leave work to a living resident one that can do it.
    """

    def __init__(
        self,
        store: Store,
        contracts: Contracts,
        sender: Sender,
        artifacts: Artifacts,
        clock: Clock,
        *,
        role: str,
    ) -> None:
        self._store = store
        self._contracts = contracts
        self._sender = sender
        self._artifacts = artifacts
        self._clock = clock
        self._role = role
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._cooling: dict[str, int] = {}
        self._unstored = 0
        self._elsewhere: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Carry what is due, for ever. On cancellation, requests under way get a short grace."""
        self._store.liveness.claim()
        self._store.liveness.sweep()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_pulse())
                tasks.create_task(self._keep_alive())
                tasks.create_task(self._schedule())
        finally:
            await self._finish()

    async def _finish(self) -> None:
        if self._busy:
            _, late = await asyncio.wait(self._busy.values(), timeout=GRACE)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            await self._store.write(self._store.ledger.unregister)
        except StoreError as error:
            _log.warning("could not sign off: %s", error)

    # --- signs of life ----------------------------------------------------------------------

    async def _keep_pulse(self) -> None:
        while True:
            self._store.look_elsewhere()
            await self._clock.sleep(PULSE)

    async def _keep_alive(self) -> None:
        while True:
            try:
                self._contracts.refresh()
                bindings = self._contracts.bindings()
                ledger = self._store.ledger
                await self._store.write(
                    lambda c, held=bindings: ledger.register(c, self._role, os.getpid(), held)
                )
                await self._store.write(ledger.recover)
                await self._find_residents()
            except StoreError as error:
                _log.warning("the store cannot be written: %s", error)
            await self._clock.sleep(HEARTBEAT)

    async def _find_residents(self) -> None:
        if self._role == "worker":
            return
        now = self._clock.now().wall
        self._elsewhere = frozenset(
            binding
            for process in await self._store.read.processes()
            if process.role == "worker"
            and now - process.seen_at < 3 * HEARTBEAT * 1_000
            and self._store.liveness.alive(process.owner)
            for binding in process.bindings
        )

    # --- the schedule -----------------------------------------------------------------------

    async def _schedule(self) -> None:
        while True:
            news = asyncio.ensure_future(self._store.news.wait())
            pause = SAFETY
            try:
                pause = await self._start_due()
            except StoreError as error:
                _log.warning("the store cannot be read: %s", error)
                pause = 1.0
            sleep = asyncio.ensure_future(self._clock.sleep(pause))
            try:
                await asyncio.wait({news, sleep}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                sleep.cancel()

    async def _start_due(self) -> float:
        """Start what is due and return the seconds until anything else can be."""
        now = self._clock.now().wall
        if self._unstored:
            return 1.0
        for due in await self._store.read.due(now):
            if due.id in self._busy or self._cooling.get(due.id, 0) > now:
                continue
            if due.binding in self._elsewhere and now - due.next_at < DEFERENCE:
                self._cooling[due.id] = due.next_at + DEFERENCE
                continue
            task = asyncio.create_task(self._carry(due), name=due.id)
            self._busy[due.id] = task
            task.add_done_callback(lambda _done, done_id=due.id: self._busy.pop(done_id, None))
        self._cooling = {key: at for key, at in self._cooling.items() if at > now}
        first = await self._store.read.next_due(now)
        times = [at for at in (first, min(self._cooling.values(), default=None)) if at is not None]
        return min(SAFETY, max(0.0, (min(times, default=now + 60_000) - now) / 1_000))

    async def _carry(self, due: Due) -> None:
        """Do what is due for one operation until nothing more is due at once."""
        try:
            while True:
                # A changed contract or credential counts from the very next request.
                self._contracts.refresh()
                holding = self._contracts.holding(due.provider, due.action)
                ledger = self._store.ledger
                step = await self._store.write(
                    lambda c, held=holding: ledger.reserve(c, due.id, held)
                )
                if isinstance(step, Reserved):
                    await self._send(step)
                elif not step:
                    await self._cool_if_stuck(due)
                    return
        except StoreError as error:
            _log.warning("%s: %s", due.id, error)
            self._cooling[due.id] = self._clock.now().wall + 1_000
        except Exception:
            _log.exception("%s could not be carried", due.id)
            self._cooling[due.id] = self._clock.now().wall + COOLING

    async def _cool_if_stuck(self, due: Due) -> None:
        """Leave alone what is still due though nothing could be done for it here."""
        now = self._clock.now().wall
        op = await self._store.read.operation(due.id)
        if op is not None and op.next_at is not None and op.next_at <= now:
            self._cooling[due.id] = now + COOLING

    # --- one request ------------------------------------------------------------------------

    async def _send(self, reserved: Reserved) -> None:
        """Use a permit and store what came of it, whatever that is."""
        reply = await self._sender.send(reserved.permit, reserved.request)
        signal = self._read(reserved, reply)
        result = None
        if reserved.operation.kind is Kind.RESULT and signal.meaning in _RESULTS:
            result = await self._keep_result(reserved, reply)
        await self._store_outcome(reserved, reply, signal, result)

    def _read(self, reserved: Reserved, reply: Reply) -> Signal:
        holding, op = reserved.holding, reserved.operation
        return signals.read(
            reply,
            holding.contract,
            holding.action,
            request_of(op, holding.action),
            facts_of(op, holding.contract, reserved.parent),
            self._clock.now().wall,
        )

    async def _keep_result(self, reserved: Reserved, reply: Reply) -> Mapping[str, object]:
        op, parent = reserved.operation, reserved.parent
        partial = bool(parent is not None and (parent.result or {}).get("partial"))
        return await asyncio.to_thread(
            self._artifacts.keep,
            op.id,
            op.result_name or "result",
            reply.header("content-type"),
            reply.body,
            partial=partial,
        )

    async def _store_outcome(
        self,
        reserved: Reserved,
        reply: Reply,
        signal: Signal,
        result: Mapping[str, object] | None,
    ) -> None:
        """Transaction 2, again and again until it is stored; until then no new permit is made."""
        ledger, pause = self._store.ledger, 0.25
        self._unstored += 1
        try:
            while True:
                try:
                    await self._store.write(
                        lambda c: ledger.settle(c, reserved, reply, signal, result)
                    )
                    return
                except StoreError as error:
                    _log.error(
                        "the outcome of %s is not stored yet: %s", reserved.operation.id, error
                    )
                await self._clock.sleep(pause)
                pause = min(5.0, pause * 2)
        finally:
            self._unstored -= 1


_RESULTS = frozenset({Meaning.DONE, Meaning.EMPTY, Meaning.SUCCEEDED})
