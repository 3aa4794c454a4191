"""The tasks extension of MCP, `io.modelcontextprotocol/tasks` (SEP-2663): methods, gate, headers.

What the tasks are is a book's to say; ours holds operations (`taskbook`). Kept in one module, to be
replaced by the SDK's when it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp.types import CallToolRequestParams, CallToolResult
from mcp_types import HEADER_MISMATCH, Notification, RequestParams
from pydantic import Field

from forbear.tools.answers import Data

TASKS = "io.modelcontextprotocol/tasks"

VERSIONS = frozenset({"2026-07-28"})
"""Protocol versions that have tasks; clients name the extension in older ones too, in vain."""

Context = ServerRequestContext[Any, Any]


class TaskBook(Protocol):
    """The tasks of a server, as the requests of its clients meet them.

    Only clients that declared tasks get here. A task is the object that the protocol describes.
    Each method but the first raises `MCPError` (-32602) for a task that is not there or not the
    client's.
    """

    async def begun(self, ctx: Context, tool: str, result: CallToolResult) -> Data | CallToolResult:
        """The task that a call began and that is durable by now, or the result where none is."""
        ...

    async def whole(self, ctx: Context, task_id: str) -> Data:
        """The task with its result, its error, or what is asked, for this request's client."""
        ...

    async def answer(self, ctx: Context, task_id: str, responses: Mapping[str, Any]) -> None:
        """Take what a client says to what is asked."""
        ...

    async def end(self, ctx: Context, task_id: str) -> None:
        """End it as far as that is possible; nothing happens to one that is over."""
        ...


class TaskParams(RequestParams):
    """What `tasks/get` and `tasks/cancel` take."""

    task_id: str = Field(alias="taskId", max_length=200)


class UpdateParams(TaskParams):
    """What `tasks/update` takes."""

    input_responses: dict[str, Any] = Field(alias="inputResponses", default_factory=dict[str, Any])


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A task in full, to whoever subscribed to it."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Tasks(Extension):
    """The extension over a book."""

    identifier = TASKS

    def __init__(self, book: TaskBook) -> None:
        self._book = book

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """A task instead of the result of a call that began one, where it is declared."""
        result = await call_next(ctx)
        if not declared(ctx) or not isinstance(result, CallToolResult) or result.is_error:
            return result
        begun = await self._book.begun(ctx, params.name, result)
        return begun if isinstance(begun, CallToolResult) else {"resultType": "task", **begun}

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        _admit(ctx, params)
        return await self._book.whole(ctx, params.task_id)

    async def _update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        _admit(ctx, params)
        await self._book.answer(ctx, params.task_id, params.input_responses)
        return {}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        _admit(ctx, params)
        await self._book.end(ctx, params.task_id)
        return {}


def declared(ctx: Context) -> bool:
    """Whether this request's client takes tasks."""
    capabilities = ctx.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return ctx.protocol_version in VERSIONS and TASKS in (extensions or {})


def wanted(ctx: Context, asked: Mapping[str, Any] | None) -> list[str]:
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


def _admit(ctx: Context, params: TaskParams) -> None:
    """Refuse a request whose client did not declare tasks, or whose header names another."""
    require_client_extension(ctx, TASKS)
    _agree(ctx, params.task_id)


def _agree(ctx: Context, task_id: str) -> None:
    """Refuse a request whose `Mcp-Name` header names another task; some clients send none."""
    headers: Mapping[str, str] = getattr(ctx.request, "headers", None) or {}
    named = headers.get("mcp-name")
    if named is not None and decode_header_value(named) != task_id:
        raise MCPError(HEADER_MISMATCH, "The header Mcp-Name and params.taskId name two tasks")
