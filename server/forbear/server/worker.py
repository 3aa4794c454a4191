"""The supervised task that carries operations: claims what is due, sends, and stores the outcome.

Tool calls never do this work, so a client that goes away loses nothing. Holds only the next due
time: a thousand waiting operations cost it nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from forbear.rules import signals
from forbear.rules.facts import facts_of
from forbear.rules.model import Kind, Operation, Step
from forbear.rules.paging import Progress, Turn, items_text, joined
from forbear.rules.ports import Clock, Reply, Sender
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import request_of
from forbear.server import tracing
from forbear.server.artifacts import Artifacts
from forbear.server.providers import Contracts
from forbear.server.retention import Keeper
from forbear.server.rounds import Rounds
from forbear.storage.accepting import Accepted, Draft, NotAccepted
from forbear.storage.errors import StoreError, StoreTooNew
from forbear.storage.reserving import Reserved
from forbear.storage.store import Store
from forbear.storage.tokens import TokenReserved
from forbear.storage.transitions import Holding
from forbear.storage.writer import UPGRADED
from forbear.tools.accounts import Accounts
from forbear.tools.intake import Intake

T = TypeVar("T")

PULSE = 0.25
"""Seconds between two looks for what other processes committed."""

CALM = 60_000
"""How long nothing must have gone on, ms, until those looks are `SELDOM` seconds apart."""

SELDOM = 1.0

HEARTBEAT = 10.0
"""Seconds between two signs of life in the store."""

SAFETY = 30.0
"""Seconds after which the schedule is looked at in any case."""

COOLING = 5_000
"""How long an operation that could not be run here is left alone, ms."""

GRACE = 3.0
"""Seconds that requests under way get when the process stops."""

SET_BACK = 1_000
"""A wall clock that fell this far behind, ms, was set back; less is a clock being steered."""

DEFERENCE = 5_000
"""How long a short-lived process leaves due work to a resident worker that holds it, ms."""

_log = logging.getLogger(__name__)


async def listen(store: Store, clock: Clock) -> None:
    """Hear of what other processes commit, for a process that carries nothing itself."""
    while True:
        store.look_elsewhere()
        await clock.sleep(PULSE)


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
        intake: Intake | None = None,
        rounds: Rounds | None = None,
        keeper: Keeper | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._store = store
        self._contracts = contracts
        self._sender = sender
        self._artifacts = artifacts
        self._clock = clock
        self._role = role
        self._intake = intake or Intake(store)
        self._rounds = rounds
        self._keeper = keeper
        self._accounts = accounts
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._flights: set[asyncio.Task[None]] = set()
        """Token requests under way."""
        self._released = asyncio.Event()
        """Something left `_busy`: it may have become due while it was passed over there."""
        self._stirred = clock.now().boot
        """When anything went on, here or elsewhere, ms on the boot clock."""
        self._cooling: dict[str, int] = {}
        """Operations to leave alone until a time on the boot clock, which nobody sets back."""
        self._unstored = 0
        self._too_new = asyncio.Event()
        self._signature: object = None
        self._context = copy_context()
        """What tasks run in copies of: whoever asks for an operation ends, or is cancelled, before
        it. One copy for each, so that no request takes another for its own."""
        self._elsewhere: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Carry what is due, for ever. On cancellation, requests under way get a short grace.

        Raises:
            StoreTooNew: a newer program upgraded the store. Nothing was sent since this was seen,
                and what came of the requests under way is stored.
        """
        self._store.liveness.claim()
        self._context = copy_context()
        try:
            with self._intake.carried_by(self):
                await self._tasks()
        except asyncio.CancelledError:
            # Only then: requests under way outlive a worker that fails and starts again.
            await self.end()
            raise
        except BaseExceptionGroup as failed:
            if failed.subgroup(StoreTooNew) is None:
                raise
            await self._finish(None)  # their time-outs bound this
            raise StoreTooNew(UPGRADED) from failed

    async def _tasks(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_pulse())
            tasks.create_task(self._keep_alive())
            tasks.create_task(self._schedule())

    async def end(self) -> None:
        """Give requests under way a short grace; for who ends it between a failure and a start."""
        await self._finish(GRACE)

    async def _finish(self, grace: float | None) -> None:
        under_way = {*self._busy.values(), *self._flights}
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=grace)
            # Who still waits for the store is gone once it comes to a unit of theirs.
            self._store.ledger.ended = True
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            await self._store.write(self._store.ledger.unregister, outcome=True)
        except StoreError as error:
            _log.warning("could not sign off: %s", error)

    # --- signs of life ----------------------------------------------------------------------

    async def _keep_pulse(self) -> None:
        """Notice what others commit, that one of them died, and a clock that is set back."""
        lead = self._lead()
        while True:
            try:
                if self._store.look_elsewhere() or self._busy:
                    self._stirred = self._clock.now().boot
                before, lead = lead, self._lead()
                if self._store.liveness.sweep() or lead < before - SET_BACK:
                    await self._store.write(self._store.ledger.recover)
            except StoreTooNew:
                raise
            except (StoreError, OSError) as error:
                _log.warning("%s", error)
            calm = self._clock.now().boot - self._stirred > CALM
            await self._clock.sleep(SELDOM if calm else PULSE)

    def _lead(self) -> int:
        """How far the wall clock is ahead of the one that only goes on."""
        now = self._clock.now()
        return now.wall - now.boot

    async def _keep_alive(self) -> None:
        while True:
            try:
                self._contracts.refresh()
                bindings = self._contracts.bindings()
                ledger, pid = self._store.ledger, os.getpid()
                sign = partial(ledger.register, role=self._role, pid=pid, bindings=bindings)
                await self._store.sign_of_life(sign)
                await self._find_residents()
                await self._renew_cases()
                if self._accounts is not None:
                    await self._accounts.check()
                if self._rounds is not None:
                    await self._rounds.go(self._elsewhere)
                if self._keeper is not None:
                    await self._keeper.go()
            except StoreTooNew:
                raise
            except StoreError as error:
                _log.warning("the store cannot be written: %s", error)
            await self._clock.sleep(HEARTBEAT)

    async def _renew_cases(self) -> None:
        """Offer in open cases what a changed contract or key makes possible."""
        signature = self._contracts.signature()
        if signature == self._signature:
            return
        for case in await self._store.read.open_cases():
            op = await self._store.read.operation(case.operation_id)
            held = None if op is None else self._contracts.holding(op.provider, op.action)
            if held is not None:
                renew = partial(self._store.ledger.reoffer, case_id=case.id, holding=held)
                await self._store.write(renew)
        self._signature = signature

    async def _find_residents(self) -> None:
        if self._role == "worker":
            return
        now = self._clock.now().wall
        self._elsewhere = frozenset(
            binding
            for process in await self._store.read.processes()
            if process.role == "worker"
            and now - process.seen_at < 3 * HEARTBEAT * 1_000
            and self._store.liveness.answers(process.owner, now - process.seen_at)
            for binding in process.bindings
        )

    # --- the schedule -----------------------------------------------------------------------

    async def _schedule(self) -> None:
        while not self._too_new.is_set():
            news = asyncio.ensure_future(self._store.news.wait())
            self._released.clear()
            released = asyncio.ensure_future(self._released.wait())
            try:
                pause = await self._start_due()
            except StoreError as error:
                _log.warning("%s", error)
                pause = 1.0
            sleep = asyncio.ensure_future(self._clock.sleep(pause))
            try:
                await asyncio.wait({news, released, sleep}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                released.cancel()
                sleep.cancel()
        raise StoreTooNew(UPGRADED)

    async def _start_due(self) -> float:
        """Start what is due and return the seconds until anything else can be."""
        if self._unstored:
            return 1.0
        now = self._clock.now()
        self._cooling = {key: at for key, at in self._cooling.items() if at > now.boot}
        in_hand = (*self._busy, *self._cooling)
        for due in await self._store.read.due(now.wall, without=in_hand):
            late = now.wall - due.next_at
            if due.binding in self._elsewhere and late < DEFERENCE:
                self._cool(due.id, DEFERENCE - late)
            elif due.id not in self._busy:
                self._take(due.id, self._carry(due.id, due.provider, due.action))
        waits = [at - now.boot for at in self._cooling.values()]
        first = await self._store.read.next_due(now.wall)
        if first is not None:
            waits.append(first - now.wall)
        return min(SAFETY, max(0.0, min(waits, default=60_000) / 1_000))

    def _cool(self, operation_id: str, ms: int) -> None:
        self._cooling[operation_id] = self._clock.now().boot + ms

    def _release(self, operation_id: str, task: asyncio.Task[None]) -> None:
        self._busy.pop(operation_id, None)
        self._released.set()
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s could not be carried", operation_id, exc_info=task.exception())

    # --- new operations ---------------------------------------------------------------------

    def takes(self, holding: Holding) -> bool:
        """See `Carrier`. What comes of requests is stored first; resident workers go first; a
        credential that may still arrive is waited for once the operation is stored."""
        if holding.credential is None or holding.action.binding in self._elsewhere:
            return False
        return not (self._unstored or self._too_new.is_set())

    async def begin(self, draft: Draft, holding: Holding) -> Accepted | NotAccepted:
        """See `Carrier`. It is carried by a task of its own, which nobody's cancellation ends."""
        begin = partial(self._store.ledger.begin, draft=draft, holding=holding)
        begun = asyncio.create_task(self._store.write(begin), context=self._context.copy())
        op = draft.operation
        self._take(op.id, self._carry_new(op, begun))
        accepted, _ = await asyncio.shield(begun)
        return accepted

    async def _carry_new(
        self,
        op: Operation,
        begun: asyncio.Task[tuple[Accepted | NotAccepted, Reserved | TokenReserved | bool]],
    ) -> None:
        try:
            accepted, step = await asyncio.shield(begun)
        except Exception:  # its caller is told
            return
        if isinstance(accepted, Accepted) and not accepted.joined and step:
            await self._carry(op.id, op.provider, op.action, step)

    # --- one operation ----------------------------------------------------------------------

    def _take(self, operation_id: str, carrying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(carrying, name=operation_id, context=self._context.copy())
        self._busy[operation_id] = task
        task.add_done_callback(partial(self._release, operation_id))

    async def _carry(
        self,
        operation_id: str,
        provider: str,
        action: str,
        step: Reserved | TokenReserved | bool = True,
    ) -> None:
        """Do what is due for one operation until nothing more is due at once. `step` is what was
        done for it just now: True is to be followed by another look."""
        try:
            idle = False
            while True:
                if isinstance(step, Reserved):
                    after = await self._send(step)
                    if after is None or not after.is_due(self._clock.now().wall):
                        return
                elif isinstance(step, TokenReserved):
                    self._fetch_token(step)
                    return
                elif not step:
                    if idle:
                        self._cool(operation_id, COOLING)
                    return
                await self._contracts.arrived(provider)
                holding = self._contracts.holding(provider, action)
                attend = partial(
                    self._store.ledger.attend, operation_id=operation_id, holding=holding
                )
                step, idle = await self._store.write(attend)
        except StoreTooNew:
            self._too_new.set()
        except StoreError as error:
            _log.warning("%s: %s", operation_id, error)
            self._cool(operation_id, 1_000)
        except Exception:
            _log.exception("%s could not be carried", operation_id)
            self._cool(operation_id, COOLING)

    def _fetch_token(self, reserved: TokenReserved) -> None:
        """Fetch a token beside everything else: nothing but the store makes anybody wait for it."""
        name = f"{reserved.operation.id}/token"
        task = asyncio.create_task(self._token(reserved), name=name)
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    async def _token(self, reserved: TokenReserved) -> None:
        with tracing.token_request(reserved.permit, reserved.request) as span:
            reply = await self._sender.send(reserved.permit, reserved.request)
            span.came(reply)
        settle = partial(self._store.ledger.settle_token, reserved=reserved, reply=reply)
        await self._until_stored(
            f"token request of {reserved.operation.id}",
            partial(self._store.write, settle, outcome=True),
        )

    # --- one request ------------------------------------------------------------------------

    async def _send(self, reserved: Reserved) -> Operation | None:
        """Use a permit and store what came of it, whatever that is; see `_store_outcome`."""
        with tracing.attempt(reserved) as span:
            reply = await self._sender.send(reserved.permit, reserved.request)
            signal = self._read(reserved, reply)
            span.came(reply, signal)
        return await self._store_outcome(reserved, reply, signal)

    @staticmethod
    def _brought_something(reserved: Reserved, reply: Reply, signal: Signal) -> bool:
        """Whether the answer completes what was asked for: a result, or what a call answered."""
        op, progress = reserved.operation, Progress.of(reserved.operation)
        answers = op.kind is Kind.RESULT or (op.kind is Kind.CALL and reply.body != b"")
        if progress is not None:
            answers = not progress.after(signal.turn or Turn(), op).goes_on
        return answers and op.step is Step.SEND and signal.meaning in _RESULTS

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

    async def _keep_result(
        self, reserved: Reserved, reply: Reply, signal: Signal
    ) -> Mapping[str, object]:
        op, parent = reserved.operation, reserved.parent
        progress = Progress.of(op)
        if progress is not None:
            return await self._keep_pages(reserved, progress, signal.turn or Turn())
        partial = bool(parent is not None and (parent.result or {}).get("partial"))
        return await self._artifacts.keep(
            _file_of(reserved),
            op.result_name or ("result" if op.kind is Kind.RESULT else "response"),
            reply.header("content-type"),
            reply.body,
            partial=partial,
        )

    async def _keep_pages(
        self, reserved: Reserved, progress: Progress, last: Turn
    ) -> Mapping[str, object]:
        """The items of all pages as one result; the last page is the answer that just came."""
        op = reserved.operation
        turned = progress.after(last, op)
        body = joined((*await self._store.read.pages_of(op), items_text(last)))
        result = await self._artifacts.keep(
            _file_of(reserved), "response", "application/json", body, partial=turned.cut is not None
        )
        told: dict[str, object] = {**result, "pages": len(turned.progress.pages)}
        return told if turned.cut is None else {**told, "truncated": True, "cut": str(turned.cut)}

    async def _store_outcome(
        self, reserved: Reserved, reply: Reply, signal: Signal
    ) -> Operation | None:
        """Transaction 2, again and again until it is stored; until then no new permit is made.

        Returns the operation as it is then; None if a newer program took the store over.
        """
        is_result = self._brought_something(reserved, reply, signal)
        result: Mapping[str, object] | None = None
        settle = partial(self._store.ledger.settle, reserved=reserved, reply=reply, signal=signal)

        async def store() -> Operation:
            nonlocal result
            if is_result and result is None:
                result = await self._keep_result(reserved, reply, signal)
            return await self._store.write(partial(settle, result=result), outcome=True)

        return await self._until_stored(reserved.operation.id, store)

    async def _until_stored(self, what: str, store: Callable[[], Awaitable[T]]) -> T | None:
        pause = 0.25
        self._unstored += 1
        try:
            while True:
                try:
                    return await store()
                except StoreTooNew as error:
                    _log.error("outcome of %s cannot be stored: %s", what, error)
                    return None
                except (StoreError, OSError) as error:
                    _log.error("outcome of %s not stored yet: %s", what, error)
                await self._clock.sleep(pause)
                pause = min(5.0, pause * 2)
        finally:
            self._unstored -= 1


def _file_of(reserved: Reserved) -> str:
    """The name of the file for what an attempt brings: no other attempt ever writes it."""
    return f"{reserved.operation.id}.{reserved.permit.attempt_id.split('_', 2)[2]}"


_RESULTS = frozenset({Meaning.DONE, Meaning.EMPTY, Meaning.SUCCEEDED})
