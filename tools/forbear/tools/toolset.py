"""The tools one by one: how each is listed, what it takes, and its one call into the desk.

Nothing is decided here: a body hands its arguments on and writes the answer down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from mcp.types import Tool, ToolAnnotations

from forbear.rules.model import Priority, Refusal, State
from forbear.tools import arguments as given
from forbear.tools.answers import Data, after_end, full, page, short
from forbear.tools.caller import Caller
from forbear.tools.desk_port import DeskPort, Report
from forbear.tools.record import Record

_Model = TypeVar("_Model", bound=given.Arguments)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a tool body gets beside its arguments."""

    desk: DeskPort
    caller: Caller
    report: Report
    tell: Callable[[Record], None]
    """Called with the one operation that the answer is about."""


@dataclass(frozen=True, slots=True)
class AgentTool(Generic[_Model]):
    """One tool: how it is listed, what it takes, and its one call into the desk."""

    name: str
    title: str
    description: str
    arguments: type[_Model]
    output: Data
    run: Callable[[Invocation, _Model], Awaitable[Data | Refusal]]
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = True

    def listed(self) -> Tool:
        """The entry of `tools/list`."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=_input_schema(self.arguments),
            output_schema=self.output,
            annotations=ToolAnnotations(
                read_only_hint=self.read_only,
                destructive_hint=self.destructive,
                idempotent_hint=self.idempotent,
                open_world_hint=self.open_world,
            ),
        )


@cache
def _input_schema(arguments: type[given.Arguments]) -> Data:
    """Made once: a process may serve over many surfaces, and none changes it."""
    slim: Data = _slim(arguments.model_json_schema())
    return slim


async def _list_actions(call: Invocation, passed: given.ListActions) -> Data | Refusal:
    listed = await call.desk.list_actions(
        provider=passed.provider,
        action=passed.action,
        query=passed.query,
        cursor=passed.cursor,
        limit=passed.limit,
        caller=call.caller,
    )
    return listed if isinstance(listed, Refusal) else dict(listed)


async def _submit_job(call: Invocation, passed: given.SubmitJob) -> Data | Refusal:
    return _in_short(
        call,
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
            caller=call.caller,
            report=call.report,
        ),
    )


async def _check_status(call: Invocation, passed: given.CheckStatus) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.check_status(
            passed.operation_id,
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _fetch_result(call: Invocation, passed: given.FetchResult) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.fetch_result(
            passed.operation_id,
            name=passed.name,
            offset=passed.offset,
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _cancel_job(call: Invocation, passed: given.CancelJob) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.cancel_job(
            passed.operation_id,
            reason=passed.reason,
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _read_api(call: Invocation, passed: given.ReadApi) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.read_api(
            provider=passed.provider,
            call=passed.call,
            arguments=passed.arguments,
            task=passed.task,
            depends_on=tuple(passed.depends_on or ()),
            deadline_seconds=passed.deadline_seconds,
            useful_for_seconds=passed.useful_for_seconds,
            priority=Priority(passed.priority),
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _write_api(call: Invocation, passed: given.WriteApi) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.write_api(
            provider=passed.provider,
            call=passed.call,
            arguments=passed.arguments,
            purpose=passed.purpose,
            task=passed.task,
            idempotency_key=passed.idempotency_key,
            depends_on=tuple(passed.depends_on or ()),
            deadline_seconds=passed.deadline_seconds,
            useful_for_seconds=passed.useful_for_seconds,
            priority=Priority(passed.priority),
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _reconcile_write(call: Invocation, passed: given.ReconcileWrite) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.reconcile_write(
            passed.operation_id,
            wait_seconds=passed.wait_seconds,
            caller=call.caller,
            report=call.report,
        ),
    )


async def _operation_status(call: Invocation, passed: given.OperationStatus) -> Data | Refusal:
    found = await call.desk.operation_status(
        passed.operation_id,
        state=State(passed.state) if passed.state is not None else None,
        provider=passed.provider,
        task=passed.task,
        cursor=passed.cursor,
        limit=passed.limit,
        timeline=passed.timeline,
        caller=call.caller,
    )
    match found:
        case Refusal():
            return found
        case Record():
            call.tell(found)
            return full(found)
        case (records, next_cursor):
            return page(records, next_cursor)


async def _request_decision(call: Invocation, passed: given.RequestDecision) -> Data | Refusal:
    return _in_short(
        call,
        await call.desk.request_decision(
            passed.operation_id,
            option=passed.option,
            reason=passed.reason,
            parameters=passed.parameters or {},
            caller=call.caller,
        ),
    )


async def _end_task(call: Invocation, passed: given.EndTask) -> Data | Refusal:
    ended = await call.desk.end_task(
        task=passed.task,
        operation_id=passed.operation_id,
        reason=passed.reason,
        caller=call.caller,
    )
    return ended if isinstance(ended, Refusal) else after_end(*ended, task=passed.task is not None)


def _in_short(call: Invocation, answer: Record | Refusal) -> Data | Refusal:
    if isinstance(answer, Refusal):
        return answer
    call.tell(answer)
    return short(answer)


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

TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool(
        "list_actions",
        "List actions",
        "List the jobs and calls you can run. Call it first; give provider to see the input schema "
        "and a ready-to-use example.",
        given.ListActions,
        _ACTIONS,
        _list_actions,
        read_only=True,
        open_world=False,
    ),
    AgentTool(
        "submit_job",
        "Submit a job",
        "Start an external job once and get its operation_id. Never submit again to retry: the "
        "same request joins the first; follow next_step.",
        given.SubmitJob,
        _OPERATION,
        _submit_job,
    ),
    AgentTool(
        "check_status",
        "Wait for news",
        "Wait up to wait_seconds for news of one operation, job or call. Call it again only if "
        "next_step says so; extra calls send nothing.",
        given.CheckStatus,
        _OPERATION,
        _check_status,
    ),
    AgentTool(
        "fetch_result",
        "Fetch the result",
        "Get the result of a succeeded job. Refused until may_proceed is true; large results come "
        "as a file or resource with a preview.",
        given.FetchResult,
        _OPERATION,
        _fetch_result,
    ),
    AgentTool(
        "cancel_job",
        "Cancel at the provider",
        "Ask the provider to stop a running job; a person may have to approve. To only stop "
        "waiting, use end_task.",
        given.CancelJob,
        _OPERATION,
        _cancel_job,
        destructive=True,
    ),
    AgentTool(
        "read_api",
        "Read from an API",
        "Make one API read. Waiting, pacing and retries are done for you; for many items use the "
        "list, search or export action instead.",
        given.ReadApi,
        _OPERATION,
        _read_api,
        read_only=True,
    ),
    AgentTool(
        "write_api",
        "Write to an API",
        "Make one API write, once. Never repeat it, not even after a time-out or an error: follow "
        "next_step; if it is not finished, use check_status.",
        given.WriteApi,
        _OPERATION,
        _write_api,
        destructive=True,
    ),
    AgentTool(
        "reconcile_write",
        "Look up an unclear write",
        "Find out whether a write in state unclear took effect. Only looks, never sends it again.",
        given.ReconcileWrite,
        _OPERATION,
        _reconcile_write,
    ),
    AgentTool(
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
    AgentTool(
        "request_decision",
        "Ask a person",
        "Ask a person for one offered option, such as extend. This does not decide: tell the user "
        "where to decide and go on with other work.",
        given.RequestDecision,
        _OPERATION,
        _request_decision,
        open_world=False,
    ),
    AgentTool(
        "end_task",
        "End a task",
        "End a task or one operation when the work is finished or no longer wanted: what was not "
        "sent is dropped, running jobs are no longer watched. To stop one, use cancel_job.",
        given.EndTask,
        _FOUND,
        _end_task,
        destructive=True,
        open_world=False,
    ),
)

BY_NAME: Mapping[str, AgentTool[Any]] = {tool.name: tool for tool in TOOLS}


# --- listing -----------------------------------------------------------------------------------

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
