"""A client of the tasks extension, as SEP-2663 describes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from mcp import Client, ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.types import (
    CallToolResult,
    EmptyResult,
    Result,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from mcp_types import Request, RequestParams
from pydantic import ConfigDict, Field

from forbear.tools.tasks import TASKS

Data = dict[str, Any]


class Task(Result):
    """A task as it stands; what it holds beyond the common fields is in `model_extra`."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    result_type: Literal["task"] = Field(default="task", alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    status_message: str = Field(alias="statusMessage")
    ttl_ms: int = Field(alias="ttlMs")
    poll_interval_ms: int = Field(alias="pollIntervalMs")


class State(Task):
    """What `tasks/get` answers."""

    result_type: Literal["complete"] = Field(default="complete", alias="resultType")  # type: ignore[assignment]
    result: Data | None = None
    input_requests: Data | None = Field(default=None, alias="inputRequests")


class TaskRequest(Request[Any, Any]):
    """Any request about one task."""

    name_param = "taskId"


class TaskParams(RequestParams):
    model_config = ConfigDict(extra="allow")

    task_id: str = Field(alias="taskId")


class Tasks(ClientExtension):
    """Declares tasks, keeps what `tools/call` answers, and hears of news."""

    identifier = TASKS

    def __init__(self) -> None:
        self.news: list[State] = []
        self.heard = asyncio.Event()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [
            NotificationBinding(method="notifications/tasks", params_type=State, handler=self._note)
        ]

    async def _resolve(self, task: Task, context: ClaimContext) -> CallToolResult:
        """Follow a task to its end, as a client does that hides it."""
        while True:
            state = await get(context.session, task.task_id)
            if state.status not in ("working", "input_required"):
                return CallToolResult.model_validate(state.result)
            await asyncio.sleep(min(state.poll_interval_ms, 200) / 1000)

    async def _note(self, state: State) -> None:
        self.news.append(state)
        self.heard.set()

    async def hears(self, status: str) -> State:
        """Wait for news with a status."""
        async with asyncio.timeout(20):
            while True:
                self.heard.clear()
                for state in self.news:
                    if state.status == status:
                        return state
                await self.heard.wait()


async def begun(client: Client, tool: str, **arguments: Any) -> Task | CallToolResult:
    """What a call of a tool answers, without following it."""
    answer = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(answer, Task | CallToolResult)
    return answer


async def task(client: Client, tool: str, **arguments: Any) -> Task:
    answer = await begun(client, tool, **arguments)
    assert isinstance(answer, Task), answer
    return answer


async def get(session: ClientSession, task_id: str) -> State:
    state: State = await _ask(session, "tasks/get", State, task_id)
    return state


async def update(session: ClientSession, task_id: str, answers: Data) -> None:
    await _ask(session, "tasks/update", EmptyResult, task_id, inputResponses=answers)


async def cancel(session: ClientSession, task_id: str) -> None:
    await _ask(session, "tasks/cancel", EmptyResult, task_id)


async def _ask(session: ClientSession, method: str, answer: Any, task_id: str, **more: Any) -> Any:
    request = TaskRequest(method=method, params=TaskParams(taskId=task_id, **more))
    return await session.send_request(request, answer)


async def stream(session: ClientSession, *task_ids: str) -> SubscriptionsListenResult:
    """Listen to the news of tasks until the server ends it."""
    asked = SubscriptionFilter.model_validate({"taskIds": list(task_ids)})
    request = SubscriptionsListenRequest(
        params=SubscriptionsListenRequestParams(notifications=asked)
    )
    return await session.send_request(request, SubscriptionsListenResult)


@asynccontextmanager
async def listening(session: ClientSession, *task_ids: str) -> AsyncIterator[None]:
    """Subscribed to the news of tasks, as long as the body runs."""
    listened = asyncio.create_task(stream(session, *task_ids))
    try:
        yield
    finally:
        listened.cancel()
        await asyncio.gather(listened, return_exceptions=True)
