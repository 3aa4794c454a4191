"""The use cases behind the tools: each writes one short transaction and waits for news.

Nothing is sent from here. A worker of this or another process carries what is due, also when the
caller is gone; cancelling a call loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forbear.rules.contract import Action, Contract, Job, Request, Retention
from forbear.rules.facts import facts_of
from forbear.rules.model import (
    Case,
    Kind,
    Operation,
    Option,
    Priority,
    Refusal,
    RequestClass,
    State,
)
from forbear.rules.ports import Clock, Random
from forbear.rules.requests import link
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.errors import StoreError
from forbear.storage.queries import Dossier, Process
from forbear.storage.store import Store
from forbear.storage.transitions import Holding
from forbear.tools import artifact, catalogue, declined, drafts, refusals, scopes, states, story
from forbear.tools.artifact import Artifact
from forbear.tools.book import Book
from forbear.tools.caller import Caller
from forbear.tools.cursors import cursor_after, read_cursor
from forbear.tools.desk_port import Page, Report
from forbear.tools.drafts import Drafter, Given
from forbear.tools.feed import Feed
from forbear.tools.intake import Intake
from forbear.tools.looks import Looks
from forbear.tools.record import Record
from forbear.tools.watch import Patience, Waiting, Watch

OWN_DEADLINE = 900_000
"""Deadline of a result fetch or a cancellation, ms (behaviour.md, section 3)."""

PATIENCE = 8
"""Waits in a row without news after which the answer is `nothing_new`."""

PAGE = 16_000
"""Characters of a stored text result in one answer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is true of every call that a process answers."""

    console: str = "http://127.0.0.1:8377"
    """Where people decide."""
    resident: bool = False
    """This process goes on when its client closes."""
    remote: bool = False
    """Callers may be on another machine, so a file of this one is shown as a resource."""


class Desk:
    """The tools' use cases on one store. Each call sees what belongs to its caller, and no more."""

    def __init__(
        self,
        store: Store,
        book: Book,
        clock: Clock,
        random: Random,
        setting: Setting,
        intake: Intake | None = None,
    ) -> None:
        self._store = store
        self._intake = intake or Intake(store)
        self._book = book
        self._clock = clock
        self._random = random
        self._setting = setting
        looks = Looks(store)
        self._watch = Watch(store, clock, self.record, looks)
        self._feed = Feed(store, book, clock, self.record, looks, self._watch.leaving)
        self._seen: Sequence[Process] = ()
        self._seen_at: object = None

    def for_remote_callers(self, *, resident: bool) -> Desk:
        """This desk as it answers over a network."""
        setting = replace(self._setting, remote=True, resident=resident)
        return Desk(self._store, self._book, self._clock, self._random, setting, self._intake)

    def let_go(self) -> None:
        """Answer every call that waits as things stand, for the process is about to end."""
        self._watch.let_go()

    # --- reading ----------------------------------------------------------------------------

    async def list_actions(
        self,
        *,
        provider: str | None,
        action: str | None,
        query: str | None,
        cursor: str | None,
        limit: int,
        caller: Caller,
    ) -> Mapping[str, Any] | Refusal:
        del caller
        if provider is None:
            return catalogue.listing(self._book, query=query, cursor=cursor, limit=limit)
        found = self._contract(provider)
        if isinstance(found, Refusal):
            return found
        return catalogue.details(self._book, found, action=action, query=query)

    async def operation_status(
        self,
        operation_id: str | None,
        *,
        state: State | None,
        provider: str | None,
        task: str | None,
        cursor: str | None,
        limit: int,
        timeline: bool,
        caller: Caller,
    ) -> Record | Page | Refusal:
        try:
            if operation_id is not None:
                known = await self._store.read.dossier(operation_id)
                if known is None or known.operation.principal != caller.principal:
                    return refusals.unknown_operation(operation_id)
                return await self.record(known.operation, story_told=timeline, known=known)
            after = read_cursor(cursor)
            found = await self._store.read.find(
                principal=caller.principal,
                state=None if state is None else str(state),
                provider=provider,
                task=task,
                after=after,
                limit=limit + 1,
            )
            records = [await self.record(op) for op in found[:limit]]
            return records, cursor_after(found[limit - 1]) if len(found) > limit else None
        except StoreError as error:
            return refusals.store_unavailable(error)

    async def record(
        self,
        op: Operation,
        *,
        joined: bool = False,
        advice: str | None = None,
        story_told: bool = False,
        spare_waits: int | None = None,
        known: Dossier | None = None,
    ) -> Record:
        """Everything there is to show of an operation now, in part as `known` already."""
        read = self._store.read
        known = known or await read.dossier(op.id)
        case = known.case if known is not None else None
        contract = self._book.contracts().get(op.provider)
        action = contract.action(op.action) if contract is not None else None
        job = action if isinstance(action, Job) else None
        console = None
        if contract is not None and contract.console is not None and op.provider_job is not None:
            console = link(contract.console, facts_of(op, contract))
        events = await read.events_of(op.id) if story_told else []
        served = None if case is None else self._store.console()
        decides_at = served or self._setting.console
        return Record(
            operation=artifact.as_resource(op) if self._setting.remote else op,
            as_of=self._clock.now().wall,
            tasks=known.tasks if known is not None else (),
            case=case,
            decide_at=None if case is None else f"{decides_at}/escalations/{case.id}",
            console_served=served is not None,
            copy=known is not None and known.copy,
            joined=joined,
            advice=advice,
            allowed_actions=states.allowed_actions(op, job),
            watched_until_client_closes=not op.final and not await self._watched(op),
            results=states.results_of(op, job) if job is not None and op.kind is Kind.JOB else (),
            console=console,
            usual_end=op.expected_at,
            kept_for=(Retention() if contract is None else contract.retention).payloads,
            spare_waits=spare_waits,
            timeline=story.lines(events),
            receipt=story.receipt(events) if story_told else None,
        )

    async def artifact(self, operation_id: str, *, caller: Caller) -> Artifact | Refusal:
        """The whole of a large result; `unknown_operation` where the caller has none there."""
        try:
            op = await self._own(operation_id, caller)
        except StoreError as error:
            return refusals.store_unavailable(error)
        if isinstance(op, Refusal):
            return op
        found = await asyncio.to_thread(artifact.read, op)
        return refusals.unknown_operation(operation_id) if found is None else found

    async def _watched(self, op: Operation) -> bool:
        if self._setting.resident:
            return True
        now, news = self._clock.now(), self._store.news
        if self._seen_at is not news:  # asked for with every answer, and few changes are between
            self._seen, self._seen_at = await self._store.read.processes(), news
        return any(
            process.role == "worker"
            and op.binding in process.bindings
            and now.wall - process.seen_at < 60_000
            for process in self._seen
        )

    async def _own(self, operation_id: str, caller: Caller) -> Operation | Refusal:
        op = await self._store.read.operation(operation_id)
        if op is None or op.principal != caller.principal:
            return refusals.unknown_operation(operation_id)
        return op

    async def open_cases(self, *, caller: Caller) -> list[Case] | Refusal:
        try:
            asked = await self._store.read.open_cases()
            whose = [await self._store.read.operation(case.operation_id) for case in asked]
        except StoreError as error:
            return refusals.store_unavailable(error)
        pairs = zip(asked, whose, strict=True)
        return [case for case, op in pairs if op is not None and op.principal == caller.principal]

    async def contract(self, provider: str, *, caller: Caller) -> Mapping[str, Any] | Refusal:
        del caller
        found = self._contract(provider)
        if isinstance(found, Refusal):
            return found
        try:
            standing = await scopes.known(self._store, self._clock.now().wall)
        except StoreError as error:
            return refusals.store_unavailable(error)
        return catalogue.described(self._book, found, standing)

    def follow(
        self, records: Collection[Record], providers: Collection[str] = ()
    ) -> AsyncGenerator[Record | str, None]:
        return self._feed.changes(records, providers)

    # --- waiting ----------------------------------------------------------------------------

    async def check_status(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal:
        """Wait for news; never causes a request that the schedule would not make."""
        try:
            op = await self._own(operation_id, caller)
            if isinstance(op, Refusal):
                return op
            known = self._watch.known(caller, op)
            if known is not None and await self._watch.news(op) == known.news:
                if known.waits >= PATIENCE and not op.final:
                    return self._nothing_new(op, known)
                if not op.final and op.state is not State.ESCALATED:
                    waiting = Waiting(wait_seconds, caller, report)
                    op = await self._watch.for_news(op, known.news, waiting)
            return await self._answer(op, caller)
        except StoreError as error:
            return refusals.store_unavailable(error)

    async def _answer(
        self, op: Operation, caller: Caller, *, joined: bool = False, advice: str | None = None
    ) -> Record:
        """The record, counting the waits of this client that brought no news."""
        patience = self._watch.answered(caller, op, await self._watch.news(op))
        return await self.record(op, joined=joined, advice=advice, spare_waits=patience.waits)

    def _nothing_new(self, op: Operation, known: Patience) -> Refusal:
        now = self._clock.now().wall
        minutes = max(1, round((now - known.since) / 60_000))
        # While a request is out, `next_at` is the end of its lease and no time of a check.
        due = op.next_at if op.lease_owner is None else None
        return refusals.nothing_new(op.id, known.waits + 1, minutes, due, now)

    # --- jobs -------------------------------------------------------------------------------

    async def submit_job(
        self,
        *,
        provider: str,
        job: str,
        arguments: Mapping[str, Any],
        purpose: str | None,
        task: str | None,
        idempotency_key: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        max_status_requests: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        """Store, check and queue a job once; then wait for the submission's answer."""
        contract = self._contract(provider)
        if isinstance(contract, Refusal):
            return contract
        action = contract.jobs.get(job)
        if action is None:
            return catalogue.no_such_job(contract, job, arguments)
        wrong = catalogue.objections(contract, action, arguments)
        if wrong is not None:
            return wrong
        limits = drafts.bounds(action, deadline_seconds, max_status_requests, useful_for_seconds)
        given = Given(purpose, idempotency_key, priority, task)
        return await self._begin(
            action,
            contract,
            lambda by, holding: by.submission(holding, action, arguments, limits, given),
            limits,
            depends_on,
            states.submission_answered,
            Waiting(wait_seconds, caller, report),
        )

    async def _begin(
        self,
        action: Action,
        contract: Contract,
        draft_with: Callable[[Drafter, Holding], Draft | Refusal],
        limits: drafts.Bounds,
        depends_on: tuple[str, ...],
        done: Callable[[Operation], bool],
        waiting: Waiting,
    ) -> Record | Refusal:
        """Store one new operation, or join the one that it is, and wait for what it brings."""
        try:
            for needed in depends_on:
                other = await self._own(needed, waiting.caller)
                if isinstance(other, Refusal):
                    return other
                if other.state is not State.SUCCEEDED:
                    return refusals.not_ready(other.id)
            await self._book.arrived(contract.provider)
            holding = self._book.holding(contract.provider, action.name)
            if holding is None or holding.credential is None:
                return refusals.credential_missing(contract.provider)
            by = waiting.caller
            draft = draft_with(self._drafter(by.principal, by.session), holding)
            if isinstance(draft, Refusal):
                return draft
            accepted = await self._accept(draft, holding)
            if isinstance(accepted, Refusal):
                return accepted
            op = await self._watch.until(accepted.operation, done, waiting)
            of_limits = drafts.ignored(limits) if accepted.joined else limits.advice
            of_walk = catalogue.better_call(contract, action, accepted.items)
            advice = "; ".join(filter(None, (of_limits, of_walk))) or None
            return await self._answer(op, waiting.caller, joined=accepted.joined, advice=advice)
        except StoreError as error:
            return refusals.store_unavailable(error)

    # --- calls ------------------------------------------------------------------------------

    async def read_api(
        self,
        *,
        provider: str,
        call: str,
        arguments: Mapping[str, Any],
        task: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        """One call of class `read`, under its scope and budgets."""
        limits = deadline_seconds, useful_for_seconds
        given = Given(None, None, priority, task)
        waiting = Waiting(wait_seconds, caller, report)
        return await self._call(
            "read_api", provider, call, arguments, limits, given, depends_on, waiting
        )

    async def write_api(
        self,
        *,
        provider: str,
        call: str,
        arguments: Mapping[str, Any],
        purpose: str | None,
        task: str | None,
        idempotency_key: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        """One write, once, under its class, key, scope and budgets."""
        limits = deadline_seconds, useful_for_seconds
        given = Given(purpose, idempotency_key, priority, task)
        waiting = Waiting(wait_seconds, caller, report)
        return await self._call(
            "write_api", provider, call, arguments, limits, given, depends_on, waiting
        )

    async def _call(
        self,
        tool: str,
        provider: str,
        name: str,
        arguments: Mapping[str, Any],
        asked: tuple[int | None, int | None],
        given: Given,
        depends_on: tuple[str, ...],
        waiting: Waiting,
    ) -> Record | Refusal:
        contract = self._contract(provider)
        if isinstance(contract, Refusal):
            return contract
        call = contract.calls.get(name)
        if call is None:
            return catalogue.no_such_call(contract, name, tool, arguments)
        reads = call.send.request_class is RequestClass.READ
        if reads is not (tool == "read_api"):
            return catalogue.use_other_tool(contract, call, arguments)
        wrong = catalogue.objections(contract, call, arguments)
        if wrong is not None:
            return wrong
        limits = drafts.call_bounds(call, *asked)
        return await self._begin(
            call,
            contract,
            lambda by, holding: by.call(holding, call, arguments, limits, given),
            limits,
            depends_on,
            states.call_answered,
            waiting,
        )

    async def reconcile_write(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal:
        """Wait for what the lookups of an unclear write find; never a write."""
        try:
            op = await self._own(operation_id, caller)
            if isinstance(op, Refusal):
                return op
            if not await self._can_be_looked_up(op):
                return self._not_allowed("reconcile_write", op, None)
        except StoreError as error:
            return refusals.store_unavailable(error)
        # The worker looks by schedule; asking only waits for what it finds, and counts as waiting.
        return await self.check_status(
            operation_id, wait_seconds=wait_seconds, caller=caller, report=report
        )

    async def _can_be_looked_up(self, op: Operation) -> bool:
        """Whether a lookup is declared, left, and what the operation is about (section 5)."""
        if op.state is State.UNCLEAR:
            return op.lookups.max > 0
        case = await self._store.read.open_case(op.id)
        return case is not None and case.reason in states.SEARCHED and op.lookups.left > 0

    async def request_decision(
        self,
        operation_id: str,
        *,
        option: str,
        reason: str,
        parameters: Mapping[str, Any],
        caller: Caller,
    ) -> Record | Refusal:
        """Put a wish before a person; nothing else changes."""
        if option not in set(Option):
            return refusals.unknown_option(operation_id, option, reason)
        try:
            op = await self._own(operation_id, caller)
            if isinstance(op, Refusal):
                return op
            ask = partial(
                self._store.ledger.ask,
                operation_id=op.id,
                option=Option(option),
                reason=reason,
                parameters=parameters,
                holding=self._book.holding(op.provider, op.action),
            )
            case = await self._store.write(ask)
            return case if isinstance(case, Refusal) else await self._answer(op, caller)
        except StoreError as error:
            return refusals.store_unavailable(error)

    async def end_task(
        self, *, task: str | None, operation_id: str | None, reason: str | None, caller: Caller
    ) -> Page | Refusal:
        """Drop what has not been sent of a task, or of one operation."""
        why = f"ended by the agent: {reason}" if reason else "ended by the agent"
        ledger, principal = self._store.ledger, caller.principal
        try:
            if operation_id is not None:
                op = await self._own(operation_id, caller)
                if isinstance(op, Refusal):
                    return op
                dropped = await self._store.write(partial(ledger.drop, operation_id=op.id, why=why))
                ended = [] if dropped is None else [dropped]
            else:
                end = partial(ledger.end_task, principal=principal, task=task or "", why=why)
                ended = await self._store.write(end)
            return [await self.record(op) for op in ended], None
        except StoreError as error:
            return refusals.store_unavailable(error)

    # --- results and cancellations ----------------------------------------------------------

    async def fetch_result(
        self,
        operation_id: str,
        *,
        name: str | None,
        offset: int | None,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        """An operation of its own, refused before the job's validated success."""
        try:
            op = await self._own(operation_id, caller)
            if isinstance(op, Refusal):
                return op
            if op.kind is Kind.RESULT:
                return await self._page(op, offset, wait_seconds, caller, report)
            fetch = self._result_request(op, name)
            if isinstance(fetch, Refusal):
                return fetch
            holding, request, result_name = fetch
            draft = self._drafter_for(op).follow_up(
                op, Kind.RESULT, request, holding, name=result_name
            )
            if isinstance(draft, Refusal):
                return draft
            accepted = await self._accept(draft, holding)
            if isinstance(accepted, Refusal):
                return accepted
            op, joined = accepted.operation, accepted.joined
            return await self._page(op, offset, wait_seconds, caller, report, joined=joined)
        except StoreError as error:
            return refusals.store_unavailable(error)

    def _result_request(
        self, op: Operation, name: str | None
    ) -> tuple[Holding, Request, str] | Refusal:
        """The contract's request for a result of this job, if its state allows one."""
        holding = self._book.holding(op.provider, op.action)
        action = holding.action if holding is not None else None
        if op.kind is not Kind.JOB or not op.final:
            return refusals.not_ready(op.id)
        if op.emptied_at is not None:
            return refusals.no_longer_kept(op.id, op.emptied_at, self._clock.now().wall)
        if holding is None or not isinstance(action, Job) or not action.results:
            return self._not_allowed("fetch_result", op, None)
        if op.state is State.SUCCEEDED and "fetch_result" not in action.success.then:
            return self._not_allowed("fetch_result", op, action)
        if not op.known:
            return refusals.not_known(op.id)
        there = states.results_of(op, action)
        chosen = name or (*there, *action.results)[0]
        if chosen in there:
            return holding, action.results[chosen], chosen
        known = action.results.get(chosen)
        if there and (known is None or str(op.state) in known.when):
            return refusals.no_such_result(op.id, chosen, there)
        return self._not_allowed("fetch_result", op, action)

    async def _page(
        self,
        op: Operation,
        offset: int | None,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
        *,
        joined: bool = False,
    ) -> Record:
        op = await self._watch.until(op, states.at_rest, Waiting(wait_seconds, caller, report))
        if op.result is not None and offset is not None:
            op = replace(op, result=await self._text_from(op, op.result, offset))
        return await self._answer(op, caller, joined=joined)

    async def _text_from(
        self, op: Operation, result: Mapping[str, Any], offset: int
    ) -> Mapping[str, Any]:
        """The stored text from a character on, at most one page of it."""
        # All of it, for a page may begin inside an address.
        whole = await asyncio.to_thread(artifact.read, op)
        if whole is None or not isinstance(whole.content, str):
            return result
        text = whole.content
        rest = {key: value for key, value in result.items() if key != "preview"}
        more = offset + PAGE < len(text)
        part = text[offset : offset + PAGE]
        return {**rest, "inline": part, "offset": offset, "truncated": more}

    async def cancel_job(
        self,
        operation_id: str,
        *,
        reason: str,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        """Ask the provider to stop a job; one not sent yet is dropped without a request."""
        try:
            op = await self._own(operation_id, caller)
            if isinstance(op, Refusal):
                return op
            holding = self._book.holding(op.provider, op.action)
            job = holding.action if holding is not None else None
            if op.state in states.UNSENT:
                why = f"cancelled by the agent: {reason}"
                left = partial(self._store.ledger.drop, operation_id=op.id, why=why)
                drop = partial(left, only=states.UNSENT)
                # Another process may have sent it since it was read; then it is a running job.
                op = await self._store.write(drop) or op
                if op.state is State.DISCARDED:
                    return await self._answer(op, caller)
            if not states.cancellable(op) or holding is None or not isinstance(job, Job):
                return self._not_allowed("cancel_job", op, job if isinstance(job, Job) else None)
            if job.cancel is None:
                return self._not_allowed("cancel_job", op, job)
            draft = self.cancellation(op, holding, job.cancel, reason)
            if isinstance(draft, Refusal):
                return draft
            accepted = await self._accept(draft, holding)
            if isinstance(accepted, Refusal):
                return accepted
            asked = await self._watch.until(
                accepted.operation, states.at_rest, Waiting(wait_seconds, caller, report)
            )
            return await self._answer(asked, caller, joined=accepted.joined)
        except StoreError as error:
            return refusals.store_unavailable(error)

    async def repetition(self, op: Operation, holding: Holding) -> Draft | Refusal:
        """The draft of the same action once more, which only a decision lets be stored."""
        job = None if op.parent_id is None else await self._store.read.operation(op.parent_id)
        return self._drafter_for(op).repetition(op, holding, job)

    def cancellation(
        self,
        op: Operation,
        holding: Holding,
        request: Request,
        reason: str,
        *,
        approved_by: str | None = None,
    ) -> Draft | Refusal:
        """The draft of a job's cancel operation; `approved_by` is the case that allowed it."""
        draft = self._drafter_for(op).follow_up(op, Kind.CANCEL, request, holding, purpose=reason)
        if isinstance(draft, Refusal) or approved_by is None:
            return draft
        approved = replace(draft.operation, authorisation=approved_by)
        return replace(draft, operation=approved, approve_within=None)

    # --- making operations ------------------------------------------------------------------

    def _drafter(self, principal: str, session: str | None) -> Drafter:
        return Drafter(self._store.key, self._random, principal, session)

    def _drafter_for(self, op: Operation) -> Drafter:
        """Of what follows from an operation, and belongs to its owner whoever asks for it."""
        return self._drafter(op.principal, op.client)

    def _contract(self, provider: str) -> Contract | Refusal:
        contracts = self._book.contracts()
        if provider in contracts:
            return contracts[provider]
        errors = self._book.errors().get(provider)
        if errors:
            return refusals.contract_error(provider, f"{errors[0].file}:{errors[0].line}")
        return refusals.unknown_provider(provider, sorted(contracts))

    def _not_allowed(self, tool: str, op: Operation, job: Job | None) -> Refusal:
        return refusals.not_allowed_in_state(tool, op.id, op.state, states.allowed_actions(op, job))

    async def _accept(self, draft: Draft, holding: Holding) -> Accepted | Refusal:
        if isinstance(outcome := await self._intake.accept(draft, holding), Accepted):
            return outcome
        return declined.because(outcome, holding, self._clock.now().wall)
