"""Operations as tasks: `taskId` is the `operation_id`, and all about it is read from the store.

Nothing here sends, and no answer of a client decides. Everything works without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcp.types import CallToolResult

from forbear.rules.model import Kind, State, WaitingFor
from forbear.tools.answers import Data, in_result, next_check, short
from forbear.tools.lookups import LookupsOf
from forbear.tools.pointer import page_of
from forbear.tools.record import Record
from forbear.tools.tasks import Context
from forbear.tools.texts import next_step
from forbear.tools.times import rfc3339

CREATING = frozenset({"submit_job", "read_api", "write_api"})
"""Tools whose answer may be a task."""

SOONEST = 1_000
"""Least `pollIntervalMs`."""

UNPLANNED = 15_000
"""`pollIntervalMs` while a person or an answer under way is waited for."""


class OperationTasks:
    """The operations that `lookups` finds, as a `TaskBook`."""

    def __init__(self, lookups: LookupsOf) -> None:
        self._lookups = lookups

    async def begun(self, ctx: Context, tool: str, result: CallToolResult) -> Data | CallToolResult:
        """The record's task, unless the operation is over: then the record says it all."""
        answer = result.structured_content or {}
        operation_id = answer.get("operation_id")
        if tool not in CREATING or not isinstance(operation_id, str):
            return result
        # The tool answered from the store, so the operation is durable.
        record = await self._lookups(ctx).record(operation_id)
        operation = record.operation
        if not operation.final:
            return _base(record)
        if answer.get("state") == operation.state:
            return result
        # It ended since the tool answered, and nobody would ask again for what is no task.
        return in_result(short(replace(record, joined=answer.get("joined") is True)))

    async def whole(self, ctx: Context, task_id: str) -> Data:
        return whole(await self._lookups(ctx).record(task_id), ctx)

    async def answer(self, ctx: Context, task_id: str, responses: Mapping[str, Any]) -> None:
        """Ignored: clients answer by themselves, and only a person decides."""
        await self._lookups(ctx).record(task_id)

    async def end(self, ctx: Context, task_id: str) -> None:
        """End our waiting and drop what was not sent; the provider's job is not touched."""
        record = await self._lookups(ctx).record(task_id)
        if not record.operation.final:
            await self._lookups(ctx).end(record.operation.id)


def whole(record: Record, ctx: Context) -> Data:
    """The task with its result, or with what is asked, for this request's client."""
    task = _base(record)
    match task["status"]:
        case "completed":
            # What the tool would answer now, so that it fits the schema of each tool.
            task["result"] = in_result(short(record)).model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
        case "input_required":
            task["inputRequests"] = page_of(record, ctx.session.client_capabilities)
        case _:
            pass
    return task


def _base(record: Record) -> Data:
    operation = record.operation
    return {
        "taskId": operation.id,
        "status": _status(record),
        "statusMessage": next_step(record),
        "createdAt": rfc3339(operation.created_at),
        "lastUpdatedAt": rfc3339(operation.updated_at),
        # From its creation on; it is kept so long from its end, which is never sooner.
        "ttlMs": record.kept_for,
        "pollIntervalMs": _poll_interval(record),
    }


def _status(record: Record) -> str:
    """`failed` is for what the protocol could not do; a failed operation has a result."""
    operation = record.operation
    match operation.state:
        case State.DISCARDED:
            return "cancelled"
        case State.CANCELLED if operation.kind is Kind.JOB:
            return "cancelled"
        case _ if operation.final:
            return "completed"
        case State.ESCALATED:
            return "input_required"
        case _ if operation.waiting_for is WaitingFor.APPROVAL:
            return "input_required"
        case _:
            return "working"


def _poll_interval(record: Record) -> int:
    due = next_check(record)
    return UNPLANNED if due is None else max(SOONEST, due - record.as_of)
