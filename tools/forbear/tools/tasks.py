"""Operations as tasks: the extension `io.modelcontextprotocol/tasks` (SEP-2663).

A task is no thing of its own: `taskId` is the `operation_id`, and everything about it is read from
the store. Nothing here sends, and no answer of a client decides. Everything works without it.

Kept in one module, to be replaced by the SDK's when it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp.types import CallToolRequestParams, CallToolResult
from mcp_types import HEADER_MISMATCH, Notification, RequestParams
from pydantic import Field

from forbear.rules.model import Kind, State, WaitingFor
from forbear.tools.answers import Data, in_result, next_check, short
from forbear.tools.lookups import LookupsOf
from forbear.tools.pointer import page_of
from forbear.tools.record import Record
from forbear.tools.texts import next_step
from forbear.tools.times import rfc3339

TASKS = "io.modelcontextprotocol/tasks"

VERSIONS = frozenset({"2026-07-28"})
"""Protocol versions that have tasks; clients name the extension in older ones too, in vain."""

CREATING = frozenset({"submit_job", "read_api", "write_api"})
"""Tools whose answer may be a task."""

SOONEST = 1_000
"""Least `pollIntervalMs`."""

UNPLANNED = 15_000
"""`pollIntervalMs` while a person or an answer under way is waited for."""


class TaskParams(RequestParams):
    """What `tasks/get`, `tasks/update` and `tasks/cancel` take."""

    task_id: str = Field(alias="taskId", max_length=200)


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A task in full, to whoever subscribed to it."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Tasks(Extension):
    """The extension over the operations that `lookups` finds."""

    identifier = TASKS

    def __init__(self, lookups: LookupsOf) -> None:
        self._lookups = lookups

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", TaskParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        """A task instead of the record of an operation that is not over, where it is declared."""
        result = await call_next(ctx)
        if params.name not in CREATING or not declared(ctx):
            return result
        if not isinstance(result, CallToolResult) or result.is_error:
            return result
        # The tool answered from the store, so the operation is durable.
        operation_id = (result.structured_content or {}).get("operation_id")
        if not isinstance(operation_id, str):
            return result
        record = await self._lookups(ctx).record(operation_id)
        if record.operation.final:
            return result
        return {"resultType": "task", **_base(record)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        return whole(await self._found(ctx, params), ctx)

    async def _update(
        self, ctx: ServerRequestContext[Any, Any], params: TaskParams
    ) -> HandlerResult:
        """Acknowledge and ignore: clients answer by themselves, and only a person decides."""
        await self._found(ctx, params)
        return {}

    async def _cancel(
        self, ctx: ServerRequestContext[Any, Any], params: TaskParams
    ) -> HandlerResult:
        """End our waiting and drop what was not sent; the provider's job is not touched."""
        record = await self._found(ctx, params)
        if not record.operation.final:
            await self._lookups(ctx).end(record.operation.id)
        return {}

    async def _found(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> Record:
        """The operation of a request that may ask for it.

        Raises:
            MCPError: the client did not declare tasks, its header names another, or there is none.
        """
        require_client_extension(ctx, TASKS)
        _agree(ctx, params.task_id)
        return await self._lookups(ctx).record(params.task_id)


def declared(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether this request's client takes tasks."""
    capabilities = ctx.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in VERSIONS and TASKS in (extensions or {})


def wanted(ctx: ServerRequestContext[Any, Any], asked: Mapping[str, Any] | None) -> list[str]:
    """The `taskIds` of a subscription.

    Raises:
        MCPError: the client did not declare tasks.
    """
    ids = (asked or {}).get("taskIds")
    if not ids:
        return []
    require_client_extension(ctx, TASKS)
    named = [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
    return list(dict.fromkeys(named))


def whole(record: Record, ctx: ServerRequestContext[Any, Any]) -> Data:
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


def _agree(ctx: ServerRequestContext[Any, Any], task_id: str) -> None:
    """Refuse a request whose `Mcp-Name` header names another task; some clients send none."""
    headers: Mapping[str, str] = getattr(ctx.request, "headers", None) or {}
    named = headers.get("mcp-name")
    if named is not None and decode_header_value(named) != task_id:
        raise MCPError(HEADER_MISMATCH, "The header Mcp-Name and params.taskId name two tasks")


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
