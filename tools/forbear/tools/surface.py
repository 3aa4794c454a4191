"""The tools as MCP clients see them.

Whatever goes wrong reaches the client as a result with `isError`, in our own words.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, RequestStateSecurity
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    DiscoverResult,
    GetPromptResult,
    InputRequiredResult,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    TextContent,
    Tool,
    UnsubscribeRequestParams,
)
from mcp_types import INVALID_PARAMS, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AnyUrl

from forbear.rules.model import Code, Refusal
from forbear.tools import arguments as given
from forbear.tools import artifact, tracing
from forbear.tools.answers import in_result, refusal
from forbear.tools.caller import CallerOf, only
from forbear.tools.desk_port import DeskPort
from forbear.tools.lookups import Lookups
from forbear.tools.pointer import Pointers
from forbear.tools.prompts import add_prompts
from forbear.tools.record import Record
from forbear.tools.resources import add_resources, complete
from forbear.tools.subscriptions import Subscriptions
from forbear.tools.taskbook import OperationTasks
from forbear.tools.tasks import TaskBook, Tasks
from forbear.tools.texts import instructions
from forbear.tools.toolset import BY_NAME, TOOLS, Invocation
from forbear.tools.untrusted import clip

GRACE = 5.0
"""Seconds beyond its stated wait after which a call is answered without the desk."""

Lifespan = Callable[[MCPServer[None]], AbstractAsyncContextManager[None]]

_log = logging.getLogger(__name__)


def build(
    desk: DeskPort,
    *,
    version: str,
    caller_of: CallerOf | None = None,
    longest_wait: float = given.MAX_WAIT,
    state_keys: Sequence[bytes] = (),
    lifespan: Lifespan | None = None,
    grace: float = GRACE,
) -> MCPServer[None]:
    """The MCP server over a desk.

    `caller_of` says who made a request; without it one client over stdio makes them all. Every call
    is answered within its `wait_seconds`, of which `longest_wait` is the most, plus `grace`
    seconds, whatever the desk does. Processes with the same `state_keys` take each other's request
    state. Logging goes to stderr, unless the root logger was set up before.
    """
    _log_to_stderr()
    return Surface(
        desk,
        caller_of=caller_of or only("stdio"),
        longest_wait=longest_wait,
        state_keys=state_keys,
        version=version,
        lifespan=lifespan,
        grace=grace,
    )


def _log_to_stderr() -> None:
    """Stdout belongs to the protocol. The SDK adds no handler of its own where one exists."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


# --- the server --------------------------------------------------------------------------------


class Surface(MCPServer[None]):
    """The SDK's server with our own tools, resources, prompts, tasks and subscriptions."""

    def __init__(
        self,
        desk: DeskPort,
        *,
        caller_of: CallerOf,
        longest_wait: float,
        state_keys: Sequence[bytes],
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
            request_state_security=(
                RequestStateSecurity(keys=state_keys)
                if state_keys
                else RequestStateSecurity.ephemeral()
            ),
            extensions=[Tasks(self.task_book())],
            subscriptions=False,
        )
        add_resources(self, self._lookups)
        add_prompts(self, self._lookups)
        self._serve()
        self._desk = desk
        self._caller_of = caller_of
        self._longest_wait = longest_wait
        self._grace = grace
        self._listed = [tool.listed() for tool in TOOLS]
        self._pointers = Pointers()

    def task_book(self) -> TaskBook:
        """The tasks that clients get."""
        return OperationTasks(self._lookups)

    def _lookups(self, asked: Context[None, Any] | ServerRequestContext[None, Any]) -> Lookups:
        """What the one who made a request may look up."""
        if isinstance(asked, ServerRequestContext):
            asked = Context(
                request_context=asked, mcp_server=self, subscriptions=self._subscriptions
            )
        return Lookups(self._desk, self._caller_of(asked))

    def _serve(self) -> None:
        """Completion, and subscriptions in both eras: the SDK's know neither tasks nor owners."""
        subscriptions = Subscriptions(self._lookups)

        async def completed(
            ctx: ServerRequestContext[None, Any], params: CompleteRequestParams
        ) -> CompleteResult:
            found = await complete(self._lookups(ctx), params.argument, params.context)
            return CompleteResult(completion=found)

        async def discovered(
            ctx: ServerRequestContext[None, Any], params: RequestParams
        ) -> DiscoverResult:
            """The SDK takes any subscription for all of them; our lists never change."""
            server = self._lowlevel_server
            can = server.get_capabilities(protocol_version=ctx.protocol_version)
            for listed in (can.tools, can.prompts, can.resources):
                if listed is not None:
                    listed.list_changed = False
            return DiscoverResult(
                supported_versions=list(MODERN_PROTOCOL_VERSIONS),
                capabilities=can,
                instructions=server.instructions,
            )

        add = self._lowlevel_server.add_request_handler
        add("server/discover", RequestParams, discovered)
        add("completion/complete", CompleteRequestParams, completed)
        add("subscriptions/listen", SubscriptionsListenRequestParams, subscriptions.listen)
        add("resources/subscribe", SubscribeRequestParams, subscriptions.subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, subscriptions.unsubscribe)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[None, Any] | None = None,
    ) -> GetPromptResult | InputRequiredResult:
        """Raises `MCPError` (-32602) for an unknown prompt or a missing argument, with the fix."""
        known = {prompt.name: prompt for prompt in await self.list_prompts()}
        if name not in known:
            raise MCPError(
                INVALID_PARAMS, f"There is no prompt {clip(name, 40)}; there are {', '.join(known)}"
            )
        required = {one.name for one in known[name].arguments or () if one.required}
        if missing := sorted(required - (arguments or {}).keys()):
            raise MCPError(INVALID_PARAMS, f"{name} also needs {', '.join(missing)}")
        return await super().get_prompt(name, arguments, context)

    async def list_tools(self) -> list[Tool]:
        return self._listed

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Never raises but for cancellation: the agent gets a result that it can read.

        Where a person is asked, a client that can is first pointed at the page, once.
        """
        tool = BY_NAME.get(name)
        if tool is None:
            return _refused(_unknown_tool(name, arguments))
        passed = given.read(name, tool.arguments, arguments)
        if isinstance(passed, Refusal):
            return _refused(passed)
        passed = given.waiting_at_most(passed, self._longest_wait)
        told: list[Record] = []
        try:
            caller = self._caller_of(context)
            call = Invocation(self._desk, caller, _Progress(context).report, told.append)
            with anyio.fail_after(getattr(passed, "wait_seconds", 0) + self._grace):
                answer = await tool.run(call, passed)
            for record in told:
                tracing.about(record.operation.id)
            if isinstance(answer, Refusal):
                return _refused(answer)
            first = [await self._pointers.show(name, record, caller, context) for record in told]
            return next(filter(None, first), in_result(answer))
        except TimeoutError:
            _log.error("%s did not answer in time", name)
            return _broken("Forbear did not answer in time; it goes on by itself.")
        except Exception:
            _log.exception("%s failed", name)
            return _broken("Forbear met an error of its own; it is in its log.")

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        large = ResourceTemplate(
            uri_template=f"{artifact.URI}{{operation_id}}",
            name="artifact",
            title="Large result",
            description="The whole of a result that is too large to stand in an answer.",
        )
        return [*await super().list_resource_templates(), large]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[None, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """An artifact of the caller, or what is registered. All else was never there."""
        stated = str(uri)
        if not stated.startswith(artifact.URI):
            return await super().read_resource(uri, context)
        name = stated.removeprefix(artifact.URI)
        found = await self._desk.artifact(name, caller=self._caller_of(context))
        if isinstance(found, Refusal):
            if found.code is Code.STORE_UNAVAILABLE:
                raise ResourceError(found.message)
            raise ResourceNotFoundError(f"There is no resource {clip(stated, 120)}.")
        return [ReadResourceContents(content=found.content, mime_type=found.content_type)]


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
    near = difflib.get_close_matches(name.lower().replace("-", "_"), BY_NAME, n=1, cutoff=0.5)
    known = ", ".join(BY_NAME)
    if not near:
        return Refusal(
            Code.UNKNOWN_ACTION,
            f"There is no tool {clip(name, 40)}; there are {known}.",
            "Call list_actions() to see what exists; then submit_job starts a job, read_api reads, "
            "write_api writes.",
        )
    right = BY_NAME[near[0]]
    call = given.written(right.name, given.correct(right.arguments, arguments), arguments)
    return Refusal(
        Code.UNKNOWN_ACTION,
        f"There is no tool {clip(name, 40)}; there are {known}.",
        f"Call {call if len(call) < 250 else right.name}. Do not try other names.",
    )


# --- answers -----------------------------------------------------------------------------------


def _refused(refused: Refusal) -> CallToolResult:
    return in_result(refusal(refused), is_error=True)


def _broken(what: str) -> CallToolResult:
    """A result without a code: a code would promise that nothing was stored."""
    text = (
        f"{what} Call operation_status() to see what is stored; do not submit again or write "
        "before that."
    )
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
