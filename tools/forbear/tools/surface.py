"""The tools as MCP clients see them.

A tool body reads its arguments, makes one call into the desk and writes down the answer. Nothing is
decided here. Whatever goes wrong reaches the client as a result with `isError`, in our own words.
"""

from __future__ import annotations

import difflib
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resources import TextResource
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

from forbear.rules.model import Code, Priority, Refusal, State
from forbear.tools import arguments as given
from forbear.tools.answers import Data, full, operation_schema, page, refusal, short
from forbear.tools.desk_port import DeskPort, Report
from forbear.tools.record import Record
from forbear.tools.texts import instructions
from forbear.tools.untrusted import clip

SCHEMA_URI = "forbear://schema/operation"

GRACE = 5.0
"""Seconds beyond its stated wait after which a call is answered without the desk."""

Lifespan = Callable[[MCPServer[None]], AbstractAsyncContextManager[None]]

_log = logging.getLogger(__name__)


def build(
    desk: DeskPort,
    *,
    version: str,
    client: str = "stdio",
    lifespan: Lifespan | None = None,
    grace: float = GRACE,
) -> MCPServer[None]:
    """The MCP server over a desk.

    `client` names the process that serves one agent. Every call is answered within its
    `wait_seconds` plus `grace` seconds, whatever the desk does. Logging goes to stderr, unless the
    root logger was set up before.
    """
    _log_to_stderr()
    server = _Surface(desk, client=client, version=version, lifespan=lifespan, grace=grace)
    server.add_resource(
        TextResource(
            uri=SCHEMA_URI,
            name="operation",
            title="Operation",
            description="JSON Schema of an operation's full record.",
            mime_type="application/schema+json",
            text=_compact(operation_schema()),
        )
    )
    return server


def _log_to_stderr() -> None:
    """Stdout belongs to the protocol. The SDK adds no handler of its own where one exists."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


# --- the tools -------------------------------------------------------------------------------

_Model = TypeVar("_Model", bound=given.Arguments)


@dataclass(frozen=True, slots=True)
class _Call:
    """What a tool body gets beside its arguments."""

    desk: DeskPort
    client: str
    report: Report


@dataclass(frozen=True, slots=True)
class _Tool(Generic[_Model]):
    """One tool: how it is listed, what it takes, and its one call into the desk."""

    name: str
    title: str
    description: str
    arguments: type[_Model]
    output: Data
    run: Callable[[_Call, _Model], Awaitable[Data | Refusal]]
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = True

    def listed(self) -> Tool:
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=_slim(self.arguments.model_json_schema()),
            output_schema=self.output,
            annotations=ToolAnnotations(
                read_only_hint=self.read_only,
                destructive_hint=self.destructive,
                idempotent_hint=self.idempotent,
                open_world_hint=self.open_world,
            ),
        )


async def _list_actions(call: _Call, passed: given.ListActions) -> Data | Refusal:
    listed = await call.desk.list_actions(
        provider=passed.provider,
        action=passed.action,
        query=passed.query,
        cursor=passed.cursor,
        limit=passed.limit,
        client=call.client,
    )
    return listed if isinstance(listed, Refusal) else dict(listed)


async def _submit_job(call: _Call, passed: given.SubmitJob) -> Data | Refusal:
    return _in_short(
        await call.desk.submit_job(
            provider=passed.provider,
            job=passed.job,
            arguments=passed.arguments,
            purpose=passed.purpose,
            task=passed.task,
            idempotency_key=passed.idempotency_key,
            depends_on=tuple(passed.depends_on or ()),
            deadline_seconds=passed.deadline_seconds,
            max_status_requests=passed.max_status_requests,
            useful_for_seconds=passed.useful_for_seconds,
            priority=Priority(passed.priority),
            wait_seconds=passed.wait_seconds,
            client=call.client,
            report=call.report,
        )
    )


async def _check_status(call: _Call, passed: given.CheckStatus) -> Data | Refusal:
    return _in_short(
        await call.desk.check_status(
            passed.operation_id,
            wait_seconds=passed.wait_seconds,
            client=call.client,
            report=call.report,
        )
    )


async def _fetch_result(call: _Call, passed: given.FetchResult) -> Data | Refusal:
    return _in_short(
        await call.desk.fetch_result(
            passed.operation_id,
            name=passed.name,
            offset=passed.offset,
            wait_seconds=passed.wait_seconds,
            client=call.client,
            report=call.report,
        )
    )


async def _cancel_job(call: _Call, passed: given.CancelJob) -> Data | Refusal:
    return _in_short(
        await call.desk.cancel_job(
            passed.operation_id,
            reason=passed.reason,
            wait_seconds=passed.wait_seconds,
            client=call.client,
            report=call.report,
        )
    )


async def _operation_status(call: _Call, passed: given.OperationStatus) -> Data | Refusal:
    found = await call.desk.operation_status(
        passed.operation_id,
        state=State(passed.state) if passed.state is not None else None,
        provider=passed.provider,
        task=passed.task,
        cursor=passed.cursor,
        limit=passed.limit,
        timeline=passed.timeline,
        client=call.client,
    )
    match found:
        case Refusal():
            return found
        case Record():
            return full(found)
        case (records, next_cursor):
            return page(records, next_cursor)


def _in_short(answer: Record | Refusal) -> Data | Refusal:
    return answer if isinstance(answer, Refusal) else short(answer)


_FOUR: Data = {
    "operation_id": {"type": "string"},
    "state": {"type": "string"},
    "may_proceed": {"type": "boolean"},
    "next_step": {"type": "string"},
}

_OPERATION: Data = {"type": "object", "properties": _FOUR, "required": list(_FOUR)}
"""Open on purpose: the full schema is the resource `SCHEMA_URI`."""

_FOUND: Data = {
    "type": "object",
    "properties": {
        **_FOUR,
        "operations": {"type": "array", "items": {"type": "object"}},
        "next_cursor": {"type": "string"},
    },
}

_ACTIONS: Data = {
    "type": "object",
    "properties": {
        "actions": {"type": "array", "items": {"type": "object"}},
        "next_cursor": {"type": "string"},
    },
}

_TOOLS: tuple[_Tool[Any], ...] = (
    _Tool(
        "list_actions",
        "List actions",
        "List the jobs you can run. Call it first; give provider to see the input schema and a "
        "ready-to-use example.",
        given.ListActions,
        _ACTIONS,
        _list_actions,
        read_only=True,
        open_world=False,
    ),
    _Tool(
        "submit_job",
        "Submit a job",
        "Start an external job once and get its operation_id. Never submit again to retry: the "
        "same request joins the first; follow next_step.",
        given.SubmitJob,
        _OPERATION,
        _submit_job,
    ),
    _Tool(
        "check_status",
        "Wait for news",
        "Wait up to wait_seconds for news of any operation. Call it again only if next_step says "
        "so; extra calls send nothing.",
        given.CheckStatus,
        _OPERATION,
        _check_status,
    ),
    _Tool(
        "fetch_result",
        "Fetch the result",
        "Get the result of a succeeded job. Refused until may_proceed is true; large results come "
        "as a file or resource with a preview.",
        given.FetchResult,
        _OPERATION,
        _fetch_result,
    ),
    _Tool(
        "cancel_job",
        "Cancel at the provider",
        "Ask the provider to stop a running job; a person may have to approve. To only stop "
        "waiting, end your turn.",
        given.CancelJob,
        _OPERATION,
        _cancel_job,
        destructive=True,
    ),
    _Tool(
        "operation_status",
        "Find operations",
        "Find operations without sending anything. Use it without arguments in a new chat or when "
        "you lost an operation_id; timeline=true tells one operation's story.",
        given.OperationStatus,
        _FOUND,
        _operation_status,
        read_only=True,
        open_world=False,
    ),
)

_BY_NAME: Mapping[str, _Tool[Any]] = {tool.name: tool for tool in _TOOLS}


# --- the server --------------------------------------------------------------------------------


class _Surface(MCPServer[None]):
    """The SDK's server with our own listing and calling of tools."""

    def __init__(
        self,
        desk: DeskPort,
        *,
        client: str,
        version: str,
        lifespan: Lifespan | None,
        grace: float,
    ) -> None:
        super().__init__(
            "forbear",
            title="Forbear",
            version=version,
            instructions=instructions(),
            lifespan=lifespan,
        )
        self._desk = desk
        self._client = client
        self._grace = grace
        self._listed = [tool.listed() for tool in _TOOLS]

    async def list_tools(self) -> list[Tool]:
        return self._listed

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult:
        """Never raises but for cancellation: the agent gets a result that it can read."""
        tool = _BY_NAME.get(name)
        if tool is None:
            return _refused(_unknown_tool(name, arguments))
        passed = given.read(name, tool.arguments, arguments)
        if isinstance(passed, Refusal):
            return _refused(passed)
        call = _Call(self._desk, self._client, _Progress(context).report)
        try:
            with anyio.fail_after(getattr(passed, "wait_seconds", 0) + self._grace):
                answer = await tool.run(call, passed)
            return _refused(answer) if isinstance(answer, Refusal) else _answered(answer)
        except TimeoutError:
            _log.error("%s did not answer in time", name)
            return _broken("Forbear did not answer in time; it goes on by itself.")
        except Exception:
            _log.exception("%s failed", name)
            return _broken("Forbear met an error of its own; it is in its log.")


class _Progress:
    """Progress notifications of one call; without a token of the client they go nowhere."""

    def __init__(self, context: Context[None, Any] | None) -> None:
        self._context = context
        self._count = 0

    async def report(self, record: Record) -> None:
        if self._context is None:
            return
        self._count += 1
        operation = record.operation
        word = f", provider says {operation.provider_state}" if operation.provider_state else ""
        try:
            await self._context.report_progress(
                self._count, message=clip(f"{operation.state}{word}", 100)
            )
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The client is gone; the operation is not.
            _log.debug("progress of %s reached nobody", operation.id)


def _unknown_tool(name: str, arguments: Mapping[str, Any]) -> Refusal:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), _BY_NAME, n=1, cutoff=0.5)
    known = ", ".join(_BY_NAME)
    if not near:
        return Refusal(
            Code.UNKNOWN_ACTION,
            f"There is no tool {clip(name, 40)}; there are {known}.",
            "Call list_actions() to see what exists; a job is started with submit_job.",
        )
    right = _BY_NAME[near[0]]
    call = given.written(right.name, given.correct(right.arguments, arguments), arguments)
    return Refusal(
        Code.UNKNOWN_ACTION,
        f"There is no tool {clip(name, 40)}; there are {known}.",
        f"Call {call if len(call) < 250 else right.name}. Do not try other names.",
    )


# --- answers -----------------------------------------------------------------------------------


def _answered(answer: Data) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=_compact(answer))], structured_content=answer
    )


def _refused(refused: Refusal) -> CallToolResult:
    error = refusal(refused)
    return CallToolResult(
        content=[TextContent(type="text", text=_compact(error))],
        structured_content=error,
        is_error=True,
    )


def _broken(what: str) -> CallToolResult:
    """A result without a code: a code would promise that nothing was stored."""
    text = f"{what} Call operation_status() to see what is stored; do not submit again before that."
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _compact(value: Data) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_UNLISTED = frozenset({"title", "minLength", "maxLength", "maxItems"})
"""Left out of listed schemas: bounds too wide to be met by chance, named when they are."""


def _slim(schema: Any) -> Any:
    """A schema in few bytes: no titles, and optional means absent instead of null."""
    match schema:
        case {"anyOf": [only, {"type": "null"}], **rest}:
            return _slim({**only, **{name: rest[name] for name in rest if name != "default"}})
        case {"properties": properties, **rest}:
            slimmed = {name: _slim(member) for name, member in properties.items()}
            return {**_slim(rest), "properties": slimmed}
        case dict():
            return {name: _slim(schema[name]) for name in schema if name not in _UNLISTED}
        case _:
            return schema
