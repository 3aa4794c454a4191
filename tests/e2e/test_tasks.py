"""Operations as tasks, through a client of the extension; the provider counts what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult
from tests.e2e import tasking
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    MINUTE,
    NO_RESULT,
    QUICK,
    SUBMIT,
    TRANSFER,
    UNHURRIED,
    WRITE,
    Stage,
    bank,
    call,
    furnished,
    serving,
    stage,
)
from tests.e2e.tasking import Task, Tasks, begun, cancel, get, listening, stream, task, update

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop
from forbear.tools.caller import Caller
from forbear.tools.surface import build
from forbear.tools.tasks import TASKS

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M02")]

MODERN = "2026-07-28"
JOB: dict[str, Any] = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}
PAYMENT: dict[str, Any] = {"provider": "exp", "call": "transfer", "arguments": {"amount": 5}}


@asynccontextmanager
async def client(on: Stage, caller: Caller | None = None, **settings: Any) -> AsyncIterator[Client]:
    """Another client of the same process; it declares tasks unless told otherwise."""
    caller_of = None if caller is None else lambda _: caller
    server = build(on.app.desk, version="0", caller_of=caller_of)
    async with Client(server, **{"mode": MODERN, "extensions": [Tasks()], **settings}) as client:
        await client.list_tools()
        yield client


async def refused(asking: Any) -> int:
    with pytest.raises(MCPError) as caught:
        await asking
    return caught.value.error.code


# --- the life of a task ------------------------------------------------------------------------


async def test_a_job_is_a_task_with_the_same_id_from_its_submission_to_its_end(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.settled()

        assert made.status == "working"
        assert (await on.operation(made.task_id)).state == "waiting"
        assert on.count(SUBMIT) == 1

        await on.end_of(made.task_id)
        ended = await get(agent.session, made.task_id)

        assert ended.status == "completed"
        answer = CallToolResult.model_validate(ended.result)
        assert not answer.is_error
        assert answer.structured_content == await short_of(agent, made.task_id)


async def short_of(agent: Client, operation_id: str) -> dict[str, Any]:
    return await call(agent, "check_status", operation_id=operation_id, wait_seconds=0)


@pytest.mark.parametrize("tool", ["submit_job", "read_api", "write_api"])
async def test_the_result_of_a_task_fits_the_schema_of_the_tool_that_made_it(
    tool: str, tmp_path: Path
) -> None:
    calls = {
        "customer": {"method": "GET", "path": "/customers/7"},
        "transfer": TRANSFER | UNHURRIED,
    }
    async with stage(tmp_path, calls=calls) as on, client(on) as agent:
        # What is over before the tool has answered is no task.
        on.script(Answer(200, {"name": "Ada"}, gate="asked"), route="GET /customers/7")
        on.script(Answer(201, {"id": "tr_1"}, effect=True, gate="asked"), route=WRITE)
        asked = {
            "submit_job": JOB,
            "read_api": {"provider": "exp", "call": "customer", "arguments": {}},
            "write_api": PAYMENT,
        }[tool]
        made = await task(agent, tool, **asked, wait_seconds=0)
        on.provider.release("asked")
        await on.end_of(made.task_id)

        ended = await get(agent.session, made.task_id)

        (listed,) = [one for one in (await agent.list_tools()).tools if one.name == tool]
        assert listed.output_schema is not None
        answer = CallToolResult.model_validate(ended.result)
        Draft202012Validator(listed.output_schema).validate(answer.structured_content)
        assert answer.structured_content is not None
        assert answer.structured_content["may_proceed"] is True


async def test_what_is_over_when_the_tool_answers_is_no_task(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER) as on, client(on) as agent:
        on.script(Answer(201, {"id": "tr_1"}, effect=True), route=WRITE)

        answer = await begun(agent, "write_api", **PAYMENT)

        assert isinstance(answer, CallToolResult)
        assert (answer.structured_content or {})["state"] == "succeeded"


class LateLook:
    """A desk that is looked at only once what was asked for is over."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    async def operation_status(self, operation_id: str, **asked: Any) -> Any:
        while True:
            found = await self._desk.operation_status(operation_id, **asked)
            if found.operation.final:
                return found
            await asyncio.sleep(0.01)


async def test_what_ended_after_the_tool_answered_is_no_task_and_not_told_as_open(
    tmp_path: Path,
) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.script(Answer(201, {"id": "tr_1"}, effect=True), route=WRITE)
        late: Any = LateLook(on.app.desk)
        server = build(late, version="0")
        async with Client(server, mode=MODERN, extensions=[Tasks()]) as agent:
            await agent.list_tools()
            answer = await begun(agent, "write_api", **PAYMENT, wait_seconds=0)

        assert isinstance(answer, CallToolResult)
        assert (answer.structured_content or {})["state"] == "succeeded"


async def test_a_refusal_is_no_task(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        answer = await begun(agent, "submit_job", **{**JOB, "job": "nothing"})

        assert isinstance(answer, CallToolResult)
        assert answer.is_error


async def test_the_same_submission_again_is_the_same_task_and_one_request(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        first = await task(agent, "submit_job", **JOB)
        second = await task(agent, "submit_job", **JOB)

        assert first.task_id == second.task_id
        assert on.count(SUBMIT) == 1


async def test_looking_at_a_task_sends_nothing_and_its_interval_is_the_schedule_s(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.settled()
        op = await on.operation(made.task_id)
        assert op.next_at is not None

        states = [await get(agent.session, made.task_id) for _ in range(20)]

        assert {one.poll_interval_ms for one in states} == {max(1_000, op.next_at - on.now)}
        assert len(on.provider.arrivals) == on.count(SUBMIT) == 1
        assert (await on.operation(made.task_id)).revision == op.revision


@pytest.mark.parametrize(("stated", "days"), [({}, 30), ({"retention": {"payloads": "3d"}}, 3)])
async def test_a_task_is_kept_as_long_as_the_contract_keeps_payloads(
    stated: dict[str, Any], days: int, tmp_path: Path
) -> None:
    async with stage(tmp_path, **stated) as on, client(on) as agent:
        assert (await task(agent, "submit_job", **JOB)).ttl_ms == days * 24 * 60 * MINUTE


async def test_a_failed_job_is_a_completed_task_that_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("queued", "failed")) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.end_of(made.task_id)

        ended = await get(agent.session, made.task_id)

        assert ended.status == "completed"
        assert ended.result is not None
        assert ended.result["structuredContent"]["state"] == "failed"
        assert ended.result["structuredContent"]["may_proceed"] is False


# --- a person is asked -------------------------------------------------------------------------


async def test_an_open_case_asks_for_input_and_no_answer_of_a_client_decides(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.end_of(made.task_id)
        asked = await get(agent.session, made.task_id)
        assert asked.status == "input_required"
        assert "forbear inbox" in asked.status_message
        before = await on.operation(made.task_id)
        case = await on.app.store.read.open_case(made.task_id)
        assert case is not None
        sent = len(on.provider.arrivals)

        for key in (case.id, "decision", "anything"):
            answer = {key: {"action": "accept", "content": {"option": "abandon"}}}
            await update(agent.session, made.task_id, answer)

        assert await on.operation(made.task_id) == before
        after = await on.app.store.read.open_case(made.task_id)
        assert after is not None
        # The notice of the case goes out by itself, before or after the answers of the client.
        assert replace(after, announced=case.announced, announce_at=case.announce_at) == case
        assert len(on.provider.arrivals) == sent

        await on.decide(made.task_id, Option.ABANDON)
        assert (await get(agent.session, made.task_id)).status == "cancelled"


async def test_a_write_that_needs_approval_asks_for_input_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    async with bank(tmp_path, TRANSFER | {"approval": "per_call"}) as on, client(on) as agent:
        made = await task(agent, "write_api", **PAYMENT)

        assert made.status == "input_required"
        assert len(on.provider.arrivals) == 0


# --- cancelling --------------------------------------------------------------------------------


async def test_cancelling_a_task_ends_our_waiting_and_asks_nothing_of_the_provider(
    tmp_path: Path,
) -> None:
    job = EXPORT | {"cancel": {"method": "POST", "path": "/exports/{id}/cancel"}}
    async with stage(tmp_path, job, states=FOREVER) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.settled()

        for _ in range(3):
            await cancel(agent.session, made.task_id)
        await on.passes(60 * MINUTE)

        op = await on.operation(made.task_id)
        assert (op.state, len(on.provider.arrivals)) == ("discarded", on.count(SUBMIT))
        assert "may_still_run" in op.notices
        assert (await get(agent.session, made.task_id)).status == "cancelled"


async def test_cancelling_what_was_not_sent_drops_it(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER | {"approval": "per_call"}) as on, client(on) as agent:
        made = await task(agent, "write_api", **PAYMENT)

        await cancel(agent.session, made.task_id)

        assert (await on.operation(made.task_id)).state == "discarded"
        assert len(on.provider.arrivals) == 0


async def test_cancelling_what_is_over_changes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.end_of(made.task_id)
        before = await on.operation(made.task_id)

        await cancel(agent.session, made.task_id)

        assert await on.operation(made.task_id) == before
        assert (await get(agent.session, made.task_id)).status == "completed"


async def test_cancelling_does_not_forget_a_write_that_may_have_happened(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER) as on, client(on) as agent:
        on.script(Drop(effect=True), route=WRITE)
        made = await task(agent, "write_api", **PAYMENT)
        await on.settled()

        await cancel(agent.session, made.task_id)

        assert (await on.operation(made.task_id)).state == "escalated"
        assert (await get(agent.session, made.task_id)).status == "input_required"


# --- who may ask -------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [get, cancel, lambda session, one: update(session, one, {})])
async def test_an_unknown_task_is_an_invalid_parameter(ask: Any, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        assert await refused(ask(agent.session, "op_nothing")) == -32602


@pytest.mark.parametrize("ask", [get, cancel, lambda session, one: update(session, one, {})])
async def test_a_client_that_declares_no_tasks_gets_operations_and_no_task(
    ask: Any, tmp_path: Path
) -> None:
    async with stage(tmp_path) as on, client(on, extensions=[]) as agent:
        answer = await begun(agent, "submit_job", **JOB)
        assert isinstance(answer, CallToolResult)
        operation_id = (answer.structured_content or {})["operation_id"]

        assert await refused(ask(agent.session, operation_id)) == -32021
        assert (await on.operation(operation_id)).state == "waiting"


async def test_a_legacy_client_that_names_the_extension_gets_no_task(tmp_path: Path) -> None:
    async with (
        stage(tmp_path) as on,
        client(on, mode="legacy", extensions=[advertise(TASKS)]) as agent,
    ):
        answer = await agent.call_tool("submit_job", JOB)
        operation_id = (answer.structured_content or {})["operation_id"]

        assert await refused(get(agent.session, operation_id)) == -32601


@pytest.mark.parametrize("other", ["tasks/list", "tasks/result"])
async def test_what_the_extension_does_not_have_is_not_there(other: str, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on) as agent:
        made = await task(agent, "submit_job", **JOB)
        asked = tasking.TaskRequest(method=other, params=tasking.TaskParams(taskId=made.task_id))

        assert await refused(agent.session.send_request(asked, Task)) == -32601


async def test_a_task_of_another_principal_is_not_there(tmp_path: Path) -> None:
    ears = Tasks()
    stranger = Caller("somebody else", "another client", None)
    async with (
        stage(tmp_path, states=FOREVER) as on,
        client(on) as owner,
        client(on, stranger, extensions=[ears]) as other,
    ):
        made = await task(owner, "submit_job", **JOB)
        await on.settled()

        assert await refused(get(other.session, made.task_id)) == -32602
        assert await refused(update(other.session, made.task_id, {})) == -32602
        assert await refused(cancel(other.session, made.task_id)) == -32602
        async with listening(other.session, made.task_id):
            await on.due(made.task_id)
        assert (await on.operation(made.task_id)).state == "waiting"
        assert not ears.news


# --- news --------------------------------------------------------------------------------------


async def test_a_subscriber_hears_of_its_task_until_the_end(tmp_path: Path) -> None:
    ears = Tasks()
    async with stage(tmp_path) as on, client(on, extensions=[ears]) as agent:
        made = await task(agent, "submit_job", **JOB)
        async with listening(agent.session, made.task_id, "op_nothing"):
            await ears.hears("working")
            await on.end_of(made.task_id)
            told = await ears.hears("completed")

        assert {one.task_id for one in ears.news} == {made.task_id}
        assert told.result is not None
        assert told.result["structuredContent"]["state"] == "succeeded"


async def test_one_who_subscribes_after_the_end_hears_of_it(tmp_path: Path) -> None:
    ears = Tasks()
    async with stage(tmp_path) as on, client(on, extensions=[ears]) as agent:
        made = await task(agent, "submit_job", **JOB)
        await on.end_of(made.task_id)

        async with listening(agent.session, made.task_id):
            await ears.hears("completed")


async def test_only_a_client_that_declares_tasks_subscribes_to_them(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on, extensions=[]) as agent:
        operation_id = await on.submit()

        assert await refused(stream(agent.session, operation_id)) == -32021


# --- a process of its own ----------------------------------------------------------------------


async def test_a_client_over_stdio_follows_a_task_to_its_end_and_finds_it_after_a_restart(
    tmp_path: Path,
) -> None:
    quick = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}
    async with furnished(tmp_path, quick) as provider:
        async with over_stdio(serving(tmp_path)) as agent:
            answer = await agent.call_tool("submit_job", JOB)
            told = answer.structured_content or {}
            assert told["state"] == "succeeded"
        async with over_stdio(serving(tmp_path)) as again:
            ended = await get(again.session, told["operation_id"])

        assert ended.status == "completed"
        assert provider.count(SUBMIT) == 1


@asynccontextmanager
async def over_stdio(wanted: StdioServerParameters) -> AsyncIterator[Client]:
    async with Client(stdio_client(wanted), mode=MODERN, extensions=[Tasks()]) as client:
        await client.list_tools()
        yield client
