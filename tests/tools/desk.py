"""A desk in memory: it answers what a test laid out, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from tests.tools.records import record

from forbear.rules.model import Case, Priority, Refusal, State
from forbear.tools import refusals
from forbear.tools.artifact import Artifact
from forbear.tools.caller import Caller
from forbear.tools.desk_port import Page, Report
from forbear.tools.record import Record


@dataclass
class MemoryDesk:
    """Answers every tool with `answer`; `listing` for `list_actions`."""

    answer: Record | Refusal = field(default_factory=record)
    found: Record | Page | Refusal | None = None
    cursor: str | None = None
    """Of the page that `end_task` answers."""
    listing: dict[str, Any] | Refusal = field(default_factory=lambda: {"actions": []})
    news: tuple[Record, ...] = ()
    """Reported while a call waits."""
    crash: Exception | None = None
    hang: bool = False
    """Never answer."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    waiting: anyio.Event = field(default_factory=anyio.Event)
    left: anyio.Event = field(default_factory=anyio.Event)
    """Set once a hanging call was given up by its caller."""

    async def _called(self, tool: str, report: Report | None = None, **passed: Any) -> None:
        self.asked.append((tool, passed))
        if self.crash is not None:
            raise self.crash
        for at_hand in self.news:
            if report is not None:
                await report(at_hand)
        if self.hang:
            self.waiting.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.left.set()

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
        await self._called(
            "list_actions",
            provider=provider,
            action=action,
            query=query,
            cursor=cursor,
            limit=limit,
            caller=caller,
        )
        return self.listing

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
        await self._called(
            "submit_job",
            report,
            provider=provider,
            job=job,
            arguments=arguments,
            purpose=purpose,
            task=task,
            idempotency_key=idempotency_key,
            depends_on=depends_on,
            deadline_seconds=deadline_seconds,
            max_status_requests=max_status_requests,
            useful_for_seconds=useful_for_seconds,
            priority=priority,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

    async def check_status(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal:
        await self._called(
            "check_status",
            report,
            operation_id=operation_id,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

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
        await self._called(
            "fetch_result",
            report,
            operation_id=operation_id,
            name=name,
            offset=offset,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

    async def cancel_job(
        self,
        operation_id: str,
        *,
        reason: str,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal:
        await self._called(
            "cancel_job",
            report,
            operation_id=operation_id,
            reason=reason,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

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
        await self._called(
            "read_api",
            report,
            provider=provider,
            call=call,
            arguments=arguments,
            task=task,
            depends_on=depends_on,
            deadline_seconds=deadline_seconds,
            useful_for_seconds=useful_for_seconds,
            priority=priority,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

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
        await self._called(
            "write_api",
            report,
            provider=provider,
            call=call,
            arguments=arguments,
            purpose=purpose,
            task=task,
            idempotency_key=idempotency_key,
            depends_on=depends_on,
            deadline_seconds=deadline_seconds,
            useful_for_seconds=useful_for_seconds,
            priority=priority,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

    async def reconcile_write(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal:
        await self._called(
            "reconcile_write",
            report,
            operation_id=operation_id,
            wait_seconds=wait_seconds,
            caller=caller,
        )
        return self.answer

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
        await self._called(
            "operation_status",
            operation_id=operation_id,
            state=state,
            provider=provider,
            task=task,
            cursor=cursor,
            limit=limit,
            timeline=timeline,
            caller=caller,
        )
        return self.found if self.found is not None else self.answer

    async def request_decision(
        self,
        operation_id: str,
        *,
        option: str,
        reason: str,
        parameters: Mapping[str, Any],
        caller: Caller,
    ) -> Record | Refusal:
        await self._called(
            "request_decision",
            operation_id=operation_id,
            option=option,
            reason=reason,
            parameters=parameters,
            caller=caller,
        )
        return self.answer

    async def artifact(self, operation_id: str, *, caller: Caller) -> Artifact | Refusal:
        self.asked.append(("artifact", {"operation_id": operation_id, "caller": caller}))
        return refusals.unknown_operation(operation_id)

    async def end_task(
        self, *, task: str | None, operation_id: str | None, reason: str | None, caller: Caller
    ) -> Page | Refusal:
        await self._called(
            "end_task", task=task, operation_id=operation_id, reason=reason, caller=caller
        )
        if isinstance(self.answer, Refusal):
            return self.answer
        return [self.answer], self.cursor

    async def open_cases(self, *, caller: Caller) -> list[Case] | Refusal:
        await self._called("open_cases", caller=caller)
        if isinstance(self.answer, Refusal):
            return self.answer
        return [self.answer.case] if self.answer.case is not None else []

    async def contract(self, provider: str, *, caller: Caller) -> Mapping[str, Any] | Refusal:
        await self._called("contract", provider=provider, caller=caller)
        return self.listing

    async def follow(
        self, records: Collection[Record], providers: Collection[str] = ()
    ) -> AsyncGenerator[Record | str, None]:
        await self._called("follow", records=records, providers=providers)
        for at_hand in self.news:
            yield at_hand
