"""The tools through the real MCP client, in both eras of the protocol."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters, stdio_client
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, TextResourceContents
from tests.tools.desk import MemoryDesk
from tests.tools.records import ID, SUCCEEDED, escalated, read, record, write

from forbear.rules.model import Priority, Refusal, State
from forbear.tools import refusals
from forbear.tools.answers import full, operation_schema, refusal, short
from forbear.tools.caller import Caller, only
from forbear.tools.endings import after_end
from forbear.tools.record import Record
from forbear.tools.resources import SCHEMA_URI
from forbear.tools.surface import build

pytestmark = pytest.mark.anyio

TOOLS = (
    "list_actions",
    "submit_job",
    "check_status",
    "fetch_result",
    "cancel_job",
    "read_api",
    "write_api",
    "reconcile_write",
    "operation_status",
    "request_decision",
    "end_task",
)
GOOD_CALLS: dict[str, dict[str, Any]] = {
    "list_actions": {},
    "submit_job": {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}},
    "check_status": {"operation_id": ID},
    "fetch_result": {"operation_id": ID},
    "cancel_job": {"operation_id": ID, "reason": "no longer wanted"},
    "read_api": {"provider": "pay", "call": "customer", "arguments": {"id": "7"}},
    "write_api": {"provider": "pay", "call": "transfer", "arguments": {"amount": 125}},
    "reconcile_write": {"operation_id": ID},
    "operation_status": {"operation_id": ID},
    "request_decision": {"operation_id": ID, "option": "extend", "reason": "nearly done"},
    "end_task": {"task": "month-end"},
}
IN_SHORT = (
    "submit_job",
    "check_status",
    "fetch_result",
    "cancel_job",
    "read_api",
    "write_api",
    "reconcile_write",
)
"""Tools that answer one operation in short."""

STDIO = Caller("local", "stdio", "stdio")


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def connected(desk: MemoryDesk, era: str, **settings: Any) -> AsyncIterator[Client]:
    async with Client(build(desk, version="0.1.0", **settings), mode=era) as client:
        # The client checks structured content against the schemas that it listed.
        await client.list_tools()
        yield client


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def error_of(result: CallToolResult) -> dict[str, Any]:
    assert result.is_error
    assert result.structured_content is not None
    assert json.loads(text_of(result)) == result.structured_content
    error: dict[str, Any] = result.structured_content["error"]
    return error


# --- how the tools are listed ------------------------------------------------------------------


async def listing(era: str) -> list[dict[str, Any]]:
    async with Client(build(MemoryDesk(), version="0.1.0"), mode=era) as client:
        listed = await client.list_tools()
        return [
            tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools
        ]


async def test_the_listing_is_the_one_that_was_reviewed(era: str) -> None:
    # `tools.json` is what every model reads first: look at a difference before writing it there.
    reviewed = json.loads(Path(__file__).with_name("tools.json").read_text())

    assert await listing(era) == reviewed


@pytest.mark.requirement("M10")
async def test_the_listing_stays_under_twelve_kilobytes(era: str) -> None:
    listed = json.dumps({"tools": await listing(era)}, separators=(",", ":"), ensure_ascii=False)

    assert len(listed.encode()) < 12_000


@pytest.mark.requirement("M04")
async def test_each_tool_has_a_title_one_line_and_all_four_annotations(era: str) -> None:
    listed = await listing(era)

    assert tuple(tool["name"] for tool in listed) == TOOLS
    for tool in listed:
        assert tool["title"]
        assert "\n" not in tool["description"]
        assert set(tool["annotations"]) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }


async def test_clients_can_allow_reads_without_allowing_writes(era: str) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in await listing(era)}

    def told(tool: str) -> str:
        """readOnly, destructive, idempotent, openWorld as T or F."""
        names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
        return "".join("T" if hints[tool][name] else "F" for name in names)

    assert {tool: told(tool) for tool in TOOLS} == {
        "list_actions": "TFTF",
        "submit_job": "FFTT",
        "check_status": "FFTT",
        "fetch_result": "FFTT",
        "cancel_job": "FTTT",
        "read_api": "TFTT",
        "write_api": "FTTT",
        "reconcile_write": "FFTT",
        "operation_status": "TFTF",
        "request_decision": "FFTF",
        "end_task": "FTTF",
    }


async def test_no_schema_has_alternatives_at_its_top(era: str) -> None:
    # Some clients refuse a whole listing for it.
    for tool in await listing(era):
        assert not {"oneOf", "anyOf", "allOf"} & set(tool["inputSchema"])


async def test_schemas_have_no_titles_and_no_nulls_and_are_valid(era: str) -> None:
    for tool in await listing(era):
        for schema in (tool["inputSchema"], tool["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert '"title"' not in json.dumps(schema)
            assert "null" not in json.dumps(schema)
        assert tool["inputSchema"]["additionalProperties"] is False
        assert "additionalProperties" not in tool["outputSchema"]


async def test_the_server_says_who_it_is_and_how_to_behave(era: str) -> None:
    async with Client(build(MemoryDesk(), version="0.1.0"), mode=era) as client:
        if era == "legacy":
            assert client.server_info is not None
            assert client.server_info.name == "forbear"
            assert client.server_info.version == "0.1.0"
            assert "Every answer has next_step" in (client.instructions or "")
        assert build(MemoryDesk(), version="0.1.0").instructions


async def test_the_full_schema_is_a_resource(era: str) -> None:
    async with connected(MemoryDesk(), era) as client:
        read = await client.read_resource(SCHEMA_URI)

    (content,) = read.contents
    assert isinstance(content, TextResourceContents)
    assert json.loads(content.text) == operation_schema()


# --- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
async def test_structured_content_is_the_text_and_fits_the_schema(tool: str, era: str) -> None:
    desk = MemoryDesk(answer=escalated(), listing={"actions": [{"name": "exp.export"}]})
    async with connected(desk, era) as client:
        listed = {listed.name: listed for listed in (await client.list_tools()).tools}
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    assert not result.is_error
    output = listed[tool].output_schema
    assert output is not None
    Draft202012Validator(output).validate(result.structured_content)
    assert json.loads(text_of(result)) == result.structured_content
    assert ": " not in text_of(result).split('"next_step"')[0]


@pytest.mark.requirement("W02")
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "list_actions"])
async def test_each_tool_keeps_the_http_fact_and_the_job_fact_apart(tool: str, era: str) -> None:
    async with connected(MemoryDesk(answer=record(http_status=503)), era) as client:
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    answer = result.structured_content
    assert answer is not None
    answer = answer["operations"][0] if tool == "end_task" else answer
    assert answer["http"]["status"] == 503
    assert (answer["state"], answer["may_proceed"]) == ("waiting", False)
    assert answer["provider_job"]["state"] == "running"


@pytest.mark.parametrize("tool", IN_SHORT)
async def test_an_operation_is_answered_in_short(tool: str, era: str) -> None:
    async with connected(MemoryDesk(), era) as client:
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    assert result.structured_content == short(record())


async def test_one_operation_is_found_in_full_with_its_story(era: str) -> None:
    told = replace(record(), timeline=("2026-11-30", "10:18:14Z submitted job exp_71c"))
    desk = MemoryDesk(found=told)
    async with connected(desk, era) as client:
        result = await client.call_tool("operation_status", {"operation_id": ID, "timeline": True})

    assert result.structured_content == full(told)
    assert desk.asked[0][1]["timeline"] is True


async def test_operations_are_found_page_by_page(era: str) -> None:
    desk = MemoryDesk(found=([record(), record(**SUCCEEDED)], "c2"))
    async with connected(desk, era) as client:
        result = await client.call_tool("operation_status", {"state": "waiting", "cursor": "c1"})

    assert result.structured_content == {
        "operations": [short(record()), short(record(**SUCCEEDED))],
        "next_cursor": "c2",
    }
    (asked,) = desk.asked
    assert asked[1]["state"] is State.WAITING
    assert asked[1]["cursor"] == "c1"
    assert asked[1]["limit"] == 10


@pytest.mark.parametrize("named", [{"task": "month-end"}, {"operation_id": ID}], ids=str)
async def test_the_end_of_a_task_is_a_page_that_says_what_to_do_now(
    named: dict[str, str], era: str
) -> None:
    dropped = record(state=State.DISCARDED)
    async with connected(MemoryDesk(answer=dropped, cursor="c2"), era) as client:
        result = await client.call_tool("end_task", named)

    assert result.structured_content == {
        "next_step": after_end([dropped], task="task" in named),
        "operations": [short(dropped)],
        "next_cursor": "c2",
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("call", [read, write], ids=["read", "write"])
async def test_a_call_in_any_state_is_answered_as_its_schema_says(
    call: Callable[..., Record], state: State, era: str
) -> None:
    tool = "read_api" if call is read else "write_api"
    answer = call(state=state)
    async with connected(MemoryDesk(answer=answer), era) as client:
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    assert not result.is_error
    assert result.structured_content == short(answer)


@pytest.mark.requirement("M01", "M04")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("operation_id", [ID, None])
async def test_a_refusal_fits_the_schema_of_every_tool(
    tool: str, operation_id: str | None, era: str
) -> None:
    # The TypeScript SDK 1.32 throws a protocol error at whoever calls, if it does not.
    refused = replace(refusals.not_ready(ID), operation_id=operation_id)
    async with connected(MemoryDesk(answer=refused, listing=refused), era) as client:
        listed = {listed.name: listed for listed in (await client.list_tools()).tools}
        result = await client.call_tool(tool, GOOD_CALLS[tool])
    assert result.is_error
    output = listed[tool].output_schema
    assert output is not None
    Draft202012Validator(output).validate(result.structured_content)
    assert json.loads(text_of(result)) == result.structured_content


async def test_a_refusal_is_an_error_result_with_its_code(era: str) -> None:
    refused = refusals.not_ready(ID)
    async with connected(MemoryDesk(answer=refused), era) as client:
        result = await client.call_tool("fetch_result", GOOD_CALLS["fetch_result"])

    assert error_of(result) == refusal(refused)["error"]
    assert error_of(result)["operation_id"] == ID


@pytest.mark.parametrize("tool", TOOLS)
async def test_every_tool_hands_a_refusal_on(tool: str, era: str) -> None:
    refused: Refusal = refusals.store_unavailable()
    async with connected(MemoryDesk(answer=refused, listing=refused), era) as client:
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    assert error_of(result)["code"] == "store_unavailable"


# --- what reaches the desk ---------------------------------------------------------------------


async def test_a_submission_reaches_the_desk_with_its_defaults(era: str) -> None:
    desk = MemoryDesk()
    async with connected(desk, era, caller_of=only("proc-1")) as client:
        await client.call_tool("submit_job", GOOD_CALLS["submit_job"])

    assert desk.asked == [
        (
            "submit_job",
            {
                "provider": "exp",
                "job": "export",
                "arguments": {"dataset": "sales"},
                "purpose": None,
                "task": None,
                "idempotency_key": None,
                "depends_on": (),
                "deadline_seconds": None,
                "max_status_requests": None,
                "useful_for_seconds": None,
                "priority": Priority.INTERACTIVE,
                "wait_seconds": 20,
                "caller": Caller("local", "proc-1", "proc-1"),
            },
        )
    ]


async def test_a_submission_reaches_the_desk_with_all_its_limits(era: str) -> None:
    limits = {
        "purpose": "month-end report",
        "task": "month-end",
        "idempotency_key": "k1",
        "depends_on": ["op_1", "op_2"],
        "deadline_seconds": 600,
        "max_status_requests": 5,
        "useful_for_seconds": 900,
        "priority": "background",
        "wait_seconds": 0,
    }
    desk = MemoryDesk()
    async with connected(desk, era) as client:
        await client.call_tool("submit_job", {**GOOD_CALLS["submit_job"], **limits})

    (asked,) = desk.asked
    assert {name: asked[1][name] for name in limits} == {
        **limits,
        "depends_on": ("op_1", "op_2"),
        "priority": Priority.BACKGROUND,
    }


async def test_a_write_reaches_the_desk_with_its_defaults(era: str) -> None:
    desk = MemoryDesk()
    async with connected(desk, era, caller_of=only("proc-1")) as client:
        await client.call_tool("write_api", GOOD_CALLS["write_api"])

    assert desk.asked == [
        (
            "write_api",
            {
                "provider": "pay",
                "call": "transfer",
                "arguments": {"amount": 125},
                "purpose": None,
                "task": None,
                "idempotency_key": None,
                "depends_on": (),
                "deadline_seconds": None,
                "useful_for_seconds": None,
                "priority": Priority.INTERACTIVE,
                "wait_seconds": 20,
                "caller": Caller("local", "proc-1", "proc-1"),
            },
        )
    ]


@pytest.mark.parametrize("tool", ["read_api", "write_api"])
async def test_a_call_reaches_the_desk_with_all_its_limits(tool: str, era: str) -> None:
    limits: dict[str, Any] = {
        "task": "month-end",
        "depends_on": ["op_1", "op_2"],
        "deadline_seconds": 60,
        "useful_for_seconds": 90,
        "priority": "background",
        "wait_seconds": 0,
    }
    if tool == "write_api":
        limits |= {"purpose": "refund order 8812", "idempotency_key": "k1"}
    desk = MemoryDesk()
    async with connected(desk, era) as client:
        await client.call_tool(tool, {**GOOD_CALLS[tool], **limits})

    assert desk.asked == [
        (
            tool,
            {
                **GOOD_CALLS[tool],
                **limits,
                "depends_on": ("op_1", "op_2"),
                "priority": Priority.BACKGROUND,
                "caller": STDIO,
            },
        )
    ]


async def test_the_other_tools_reach_the_desk_with_their_arguments(era: str) -> None:
    desk = MemoryDesk()
    async with connected(desk, era) as client:
        await client.call_tool("check_status", {"operation_id": ID})
        await client.call_tool("fetch_result", {"operation_id": ID, "name": "log", "offset": 16})
        await client.call_tool("cancel_job", {"operation_id": ID, "reason": "wrong month"})
        await client.call_tool("reconcile_write", {"operation_id": ID, "wait_seconds": 3})
        asked = {"option": "extend", "reason": "nearly done", "parameters": {"minutes": 15}}
        await client.call_tool("request_decision", {"operation_id": ID, **asked})
        await client.call_tool("end_task", {"task": "month-end", "reason": "done"})
        await client.call_tool("end_task", {"operation_id": ID})
        await client.call_tool("list_actions", {"provider": "exp", "limit": 5})

    assert desk.asked == [
        ("check_status", {"operation_id": ID, "wait_seconds": 25, "caller": STDIO}),
        (
            "fetch_result",
            {
                "operation_id": ID,
                "name": "log",
                "offset": 16,
                "wait_seconds": 20,
                "caller": STDIO,
            },
        ),
        (
            "cancel_job",
            {
                "operation_id": ID,
                "reason": "wrong month",
                "wait_seconds": 20,
                "caller": STDIO,
            },
        ),
        ("reconcile_write", {"operation_id": ID, "wait_seconds": 3, "caller": STDIO}),
        ("request_decision", {"operation_id": ID, **asked, "caller": STDIO}),
        (
            "end_task",
            {"task": "month-end", "operation_id": None, "reason": "done", "caller": STDIO},
        ),
        ("end_task", {"task": None, "operation_id": ID, "reason": None, "caller": STDIO}),
        (
            "list_actions",
            {
                "provider": "exp",
                "action": None,
                "query": None,
                "cursor": None,
                "limit": 5,
                "caller": STDIO,
            },
        ),
    ]


# --- wrong calls -------------------------------------------------------------------------------


@pytest.mark.requirement("M08")
@pytest.mark.parametrize(
    ("tool", "wrong", "said", "call"),
    [
        ("check_status", {"id": ID}, "/id: ", f'check_status(operation_id="{ID}")'),
        ("check_status", {}, "/operation_id: is missing", "check_status(operation_id="),
        (
            "submit_job",
            {"provider": "exp", "job": "export", "arguments": {}, "deadline_seconds": 0},
            "/deadline_seconds: ",
            'submit_job(provider="exp", job="export", arguments={})',
        ),
        (
            "operation_status",
            {"limit": "ten"},
            "/limit: must be a whole number",
            "operation_status()",
        ),
        (
            "write_api",
            {"provider": "pay", "action": "transfer", "amount": 125},
            "/action: is not known here; the right name is `call`",
            'write_api(provider="pay", call="transfer", arguments={"amount":125})',
        ),
        (
            "end_task",
            {"task": "month-end", "operation_id": ID},
            "/task: give either task or operation_id, not both",
            f'end_task(operation_id="{ID}")',
        ),
        (
            "request_decision",
            {"operation_id": ID, "option": "extend"},
            "/reason: is missing",
            "request_decision(operation_id=",
        ),
        ("end_task", {}, "/task: is missing", "end_task(task="),
    ],
)
async def test_a_wrong_call_never_reaches_the_desk_nor_raw_words_the_client(
    tool: str, wrong: dict[str, Any], said: str, call: str, era: str
) -> None:
    desk = MemoryDesk()
    async with connected(desk, era) as client:
        error = error_of(await client.call_tool(tool, wrong))

    assert error["code"] == "invalid_arguments"
    assert said in error["message"]
    assert call in error["next_step"]
    assert "pydantic" not in json.dumps(error)
    assert desk.asked == []


@pytest.mark.requirement("M08")
async def test_bounds_of_an_answer_are_clamped(era: str) -> None:
    desk = MemoryDesk()
    async with connected(desk, era) as client:
        await client.call_tool("check_status", {"operation_id": ID, "wait_seconds": 300})
        await client.call_tool("check_status", {"operation_id": ID, "wait_seconds": -1})
        await client.call_tool("list_actions", {"limit": 5000})
        await client.call_tool("operation_status", {"limit": 0})

    assert [asked.get("wait_seconds", asked.get("limit")) for _, asked in desk.asked] == [
        50,
        0,
        100,
        1,
    ]


@pytest.mark.requirement("M08")
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("submit", "submit_job("),
        ("check-status", "check_status("),
        ("write", "write_api("),
        ("xyzzy", "list_actions("),
    ],
)
async def test_an_unknown_tool_is_answered_with_the_right_one(
    name: str, right: str, era: str
) -> None:
    async with connected(MemoryDesk(), era) as client:
        error = error_of(await client.call_tool(name, {"operation_id": ID}))

    assert error["code"] == "unknown_action"
    assert f"Call {right}" in error["next_step"]
    assert all(tool in error["message"] for tool in TOOLS)


# --- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_crash_says_nothing_of_its_inside_and_goes_to_the_log(
    tool: str, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = MemoryDesk(crash=RuntimeError("SELECT secret FROM /var/forbear.db"))
    async with connected(desk, era) as client:
        result = await client.call_tool(tool, GOOD_CALLS[tool])

    assert result.is_error
    assert "SELECT" not in text_of(result)
    assert "RuntimeError" not in text_of(result)
    assert "do not submit again" in text_of(result)
    assert "SELECT secret" in caplog.text


async def test_an_answer_that_cannot_be_written_down_is_a_crash_too(era: str) -> None:
    async with connected(MemoryDesk(listing={"actions": [object()]}), era) as client:
        result = await client.call_tool("list_actions", {})

    assert result.is_error
    assert "object" not in text_of(result)


@pytest.mark.requirement("M03")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: f"MC-01-{tool}")
async def test_a_desk_that_never_answers_is_not_waited_for(tool: str, era: str) -> None:
    desk = MemoryDesk(hang=True)
    wait = {"wait_seconds": 0} if tool in IN_SHORT else {}
    async with connected(desk, era, grace=0.05) as client:
        with anyio.fail_after(10):
            result = await client.call_tool(tool, {**GOOD_CALLS[tool], **wait})

    assert result.is_error
    assert "did not answer in time" in text_of(result)
    assert desk.left.is_set()


@pytest.mark.requirement("M03")
async def test_a_client_that_gives_up_breaks_nothing(era: str) -> None:
    desk = MemoryDesk(hang=True)
    async with connected(desk, era) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "check_status", GOOD_CALLS["check_status"])
            with anyio.fail_after(10):
                await desk.waiting.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            await desk.left.wait()
        desk.hang = False
        again = await client.call_tool("operation_status", {"operation_id": ID})

    assert again.structured_content == full(record())


@pytest.mark.requirement("M03")
async def test_news_while_waiting_is_reported_as_progress(era: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    both = anyio.Event()

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        if len(heard) == 2:
            both.set()

    desk = MemoryDesk(news=(record(state=State.SENDING, provider_state=None), record()))
    async with connected(desk, era) as client:
        await client.call_tool("check_status", GOOD_CALLS["check_status"], progress_callback=listen)
        with anyio.fail_after(10):
            await both.wait()

    assert heard == [(1, None, "sending"), (2, None, "waiting, provider says running")]


async def test_news_without_a_listener_changes_nothing(era: str) -> None:
    desk = MemoryDesk(news=(record(), record()))
    async with connected(desk, era) as client:
        result = await client.call_tool("check_status", GOOD_CALLS["check_status"])

    assert result.structured_content == short(record())


async def test_a_call_outside_of_a_request_is_answered_too() -> None:
    server: MCPServer[None] = build(MemoryDesk(news=(record(),)), version="0.1.0")

    result = await server.call_tool("check_status", GOOD_CALLS["check_status"])

    assert isinstance(result, CallToolResult)
    assert result.structured_content == short(record())


# --- stdio -------------------------------------------------------------------------------------

NOISY_SERVER = """
import logging
from forbear.tools.surface import build
from tests.tools.desk import MemoryDesk

class Noisy(MemoryDesk):
    async def check_status(self, operation_id, **rest):
        print("a stray line on stdout")
        logging.getLogger("some.library").warning("a line of the log")
        raise RuntimeError("an error in the desk")

build(Noisy(), version="0.1.0").run("stdio")
"""


@pytest.mark.parametrize("case", ["MC-02"])
async def test_stray_prints_and_errors_leave_the_protocol_alone(case: str, tmp_path: Path) -> None:
    path = [entry for entry in sys.path if entry]
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-c", NOISY_SERVER],
        env={"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin"},
    )
    with (tmp_path / "stderr").open("w+") as stderr:
        async with Client(stdio_client(parameters, errlog=stderr), mode="legacy") as client:
            crashed = await client.call_tool("check_status", {"operation_id": ID})
            fine = await client.call_tool("operation_status", {"operation_id": ID})
        log = (tmp_path / "stderr").read_text()

    assert crashed.is_error
    assert fine.structured_content == full(record())
    assert "a line of the log" in log
    assert "RuntimeError: an error in the desk" in log
    assert "a stray line" not in text_of(crashed)


def test_a_log_that_was_set_up_before_is_kept() -> None:
    before = list(logging.getLogger().handlers)

    build(MemoryDesk(), version="0.1.0")

    assert logging.getLogger().handlers == before
