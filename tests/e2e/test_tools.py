"""The tools as an agent meets them: names, refusals, limits, waiting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    Stage,
    content,
    error,
    says,
    stage,
    write_contract,
)

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

SAME: Data = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}
BOUNDED: Data = EXPORT | {
    "limits": {"max_status_requests": 12},
    "input": {
        "type": "object",
        "required": ["dataset"],
        "additionalProperties": False,
        "properties": {"dataset": {"type": "string", "maxLength": 10}},
    },
}


async def test_the_tools_have_the_names_that_prompts_and_scripts_use(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        listed = await on.client.list_tools()

        names = {tool.name for tool in listed.tools}
        assert names >= {
            "list_actions",
            "submit_job",
            "check_status",
            "fetch_result",
            "cancel_job",
            "operation_status",
        }


async def test_an_agent_gets_from_the_listing_to_the_result_by_what_it_is_told(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        (line,) = (await on.call("list_actions"))["actions"]
        assert (line["provider"], line["name"], line["kind"]) == ("exp", "export", "job")
        assert line["ready"] is True
        (detail,) = (await on.call("list_actions", provider="exp"))["actions"]
        example = detail["example"]
        assert detail["limits"]["deadline_seconds"] == 2400
        started = await on.call(example["tool"], **example["arguments"])
        job = started["operation_id"]
        assert f'check_status(operation_id="{job}")' in started["next_step"]
        await on.end_of(job)
        done = await on.check(job)
        assert f'fetch_result(operation_id="{job}")' in done["next_step"]
        fetched = await on.call("fetch_result", operation_id=job)

        assert fetched["result"]["inline"] == {"rows": 3}
        assert fetched["parent_operation_id"] == job


REFUSALS: dict[str, tuple[str, Data, str, tuple[str, ...]]] = {
    "an id that does not exist": (
        "check_status",
        {"operation_id": "op_nothing"},
        "unknown_operation",
        ("operation_status",),
    ),
    "a result of nothing": (
        "fetch_result",
        {"operation_id": "op_nothing"},
        "unknown_operation",
        (),
    ),
    "a cancellation of nothing": (
        "cancel_job",
        {"operation_id": "op_nothing", "reason": "x"},
        "unknown_operation",
        (),
    ),
    "one operation that is not there": (
        "operation_status",
        {"operation_id": "op_nothing"},
        "unknown_operation",
        (),
    ),
    "a provider that does not exist": (
        "submit_job",
        {**SAME, "provider": "exq"},
        "unknown_action",
        ("exp",),
    ),
    "a job nearly named": ("submit_job", {**SAME, "job": "exports"}, "unknown_action", ("export",)),
    "a tool nearly named": ("submit-job", SAME, "unknown_action", ("submit_job", "export")),
    "no arguments": (
        "submit_job",
        {"provider": "exp", "job": "export"},
        "invalid_arguments",
        ("/arguments", "submit_job("),
    ),
    "an argument too much": (
        "submit_job",
        {**SAME, "arguments": {"dataset": "sales", "format": "csv"}},
        "invalid_arguments",
        ("format", '"dataset": "sales"'),
    ),
    "a wrong type": (
        "submit_job",
        {**SAME, "arguments": {"dataset": ["sales"]}},
        "invalid_arguments",
        ("/dataset", "submit_job("),
    ),
    "a value too long": (
        "submit_job",
        {**SAME, "arguments": {"dataset": "x" * 11}},
        "invalid_arguments",
        ("/dataset",),
    ),
    "half of a character": (
        "submit_job",
        {**SAME, "arguments": {"dataset": "\ud800"}},
        "invalid_arguments",
        ("/arguments",),
    ),
    "an unknown argument of the tool": (
        "check_status",
        {"operation_id": "op_1", "wait": 3},
        "invalid_arguments",
        ("wait_seconds",),
    ),
    "a limit of nothing": (
        "submit_job",
        {**SAME, "max_status_requests": 0},
        "invalid_arguments",
        ("/max_status_requests",),
    ),
    "a deadline before now": (
        "submit_job",
        {**SAME, "deadline_seconds": -5},
        "invalid_arguments",
        ("/deadline_seconds",),
    ),
    "a wait that is no number": (
        "check_status",
        {"operation_id": "op_1", "wait_seconds": "long"},
        "invalid_arguments",
        ("/wait_seconds",),
    ),
    "a priority of people": (
        "submit_job",
        {**SAME, "priority": "approved"},
        "invalid_arguments",
        ("/priority", "interactive"),
    ),
    "an unknown result": (
        "submit_job",
        {**SAME, "depends_on": ["op_nothing"]},
        "unknown_operation",
        (),
    ),
}


@pytest.mark.requirement("M08")
@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
async def test_a_call_that_cannot_be_meant_stores_nothing_and_names_the_right_one(
    tmp_path: Path, case: tuple[str, Data, str, tuple[str, ...]]
) -> None:
    tool, arguments, code, words = case
    async with stage(tmp_path, BOUNDED) as on:
        refused = error(await on.call(tool, **arguments))

        assert refused["code"] == code
        told = f"{refused['message']} {refused['next_step']}"
        for word in words:
            assert word in told.replace("'", '"').replace('":', '": ').replace("  ", " ")
        assert (await on.call("operation_status"))["operations"] == []
        assert on.provider.arrivals == []


@pytest.mark.requirement("M08")
async def test_a_corrected_call_is_a_call_that_works(tmp_path: Path) -> None:
    async with stage(tmp_path, BOUNDED) as on:
        refused = error(await on.call("submit_job", provider="exp", job="exports", arguments={}))
        assert '"export"' in refused["next_step"]
        refused = error(await on.call("check_status", operation_id="op_1", wait=3))
        assert 'check_status(operation_id="op_1"' in refused["next_step"]


async def test_limits_only_tighten_and_what_was_lowered_is_said(tmp_path: Path) -> None:
    async with stage(tmp_path, BOUNDED, states=FOREVER) as on:
        answer = await on.asked(deadline_seconds=99_999, max_status_requests=500)
        full = await on.full(answer["operation_id"])
        assert "deadline_seconds lowered to the contract's 2400" in answer["advice"]
        assert "max_status_requests lowered to the contract's 12" in answer["advice"]
        assert full["budgets"]["status_requests"]["max"] == 12
        assert full["deadline_at"] == "2026-11-30T11:00:00Z"

        on.provider.job("exp_2", FOREVER)
        tight = await on.asked("other", deadline_seconds=600, max_status_requests=3)
        full = await on.full(tight["operation_id"])
        assert "advice" not in tight
        assert full["budgets"]["status_requests"]["max"] == 3
        assert full["deadline_at"] == "2026-11-30T10:30:00Z"


async def test_one_who_joins_does_not_change_the_limits_and_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path, BOUNDED, states=FOREVER) as on:
        job = await on.submit(max_status_requests=3)
        joined = await on.asked(max_status_requests=9, deadline_seconds=60)

        assert (joined["operation_id"], joined["joined"]) == (job, True)
        assert "max_status_requests" in joined["advice"]
        assert "deadline_seconds" in joined["advice"]
        assert (await on.full(job))["budgets"]["status_requests"]["max"] == 3


@pytest.mark.requirement("M03")
@pytest.mark.parametrize("asked", [300, 1e9, -3], ids="MC-01 {}".format)
async def test_a_wait_is_clamped_to_less_than_clients_wait(tmp_path: Path, asked: float) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        waiting = asyncio.create_task(on.check(job, asked))
        if asked > 0:
            await on.clock.asleep(4)  # the worker has three reasons to sleep
            await _pass_a_wait(on, 49_000)
            assert not waiting.done()
            await _pass_a_wait(on, 1_100)
        answer = await asyncio.wait_for(waiting, 5)

        assert answer["state"] == "waiting"
        assert answer["operation_id"] == job


async def _pass_a_wait(on: Stage, milliseconds: int) -> None:
    on.clock.advance(milliseconds)
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.requirement("M03", "M09")
async def test_a_wait_ends_with_the_news_and_reports_on_the_way(tmp_path: Path) -> None:
    job_of = NO_RESULT | {"backoff": {"base": "5s", "max": "5s", "first": "5s"}}
    async with stage(tmp_path, job_of, states=("queued", "queued", "running", "done")) as on:
        heard: list[str | None] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        job = await on.submit()
        told = asyncio.create_task(
            on.client.call_tool(
                "check_status",
                {"operation_id": job, "wait_seconds": 50},
                progress_callback=hear,
            )
        )
        await on.due(job)
        await on.due(job)
        await on.due(job)
        answer = content(await asyncio.wait_for(told, 10))

        assert answer["provider_job"]["state"] == "running"
        assert heard
        assert all(message and message.startswith("waiting") for message in heard)


async def test_every_answer_of_an_operation_keeps_the_two_facts_apart(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        on.script(says("running"), Answer(503))
        job = await on.submit()
        await on.due(job)
        answer = await on.check(job)
        assert (answer["http"]["status"], answer["may_proceed"]) == (200, False)
        await on.due(job)
        full = await on.full(job)

        assert (full["http"]["status"], full["state"]) == (503, "waiting")
        assert full["provider_job"]["state"] == "running"
        trail = [event for event in await on.events(job) if event.code == "answered"]
        assert [event.body.get("http") for event in trail] == [202, 200, 503]
        assert [event.body.get("state") for event in trail] == ["queued", "running", None]


@pytest.mark.requirement("M10")
async def test_an_ordinary_answer_stays_small(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        result = await on.client.call_tool("check_status", {"operation_id": job, "wait_seconds": 0})

        told = json.dumps(content(result), separators=(",", ":"))
        assert len(told) < 600
        assert list(content(result))[:4] == [
            "operation_id",
            "state",
            "may_proceed",
            "next_step",
        ]


async def test_operations_are_found_again_by_state_task_and_page(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("failed",)) as on:
        ended = await on.submit("a", task="one")
        await on.end_of(ended)
        running = []
        for number in range(3):
            on.provider.job(f"exp_{number + 2}", FOREVER)
            running.append(await on.submit(f"b{number}", task="two"))

        async def find(**by: Any) -> tuple[list[str], str | None]:
            found = await on.call("operation_status", **by)
            return [one["operation_id"] for one in found["operations"]], found.get("next_cursor")

        assert await find(task="one") == ([ended], None)
        assert (await find(state="waiting"))[0] == running[::-1]
        first, cursor = await find(limit=3)
        assert first == running[::-1]
        assert (await find(limit=3, cursor=cursor)) == ([ended], None)
        assert (await find(limit=3, cursor=f"1.{'9' * 30}")) == (first, cursor)
        assert await find(provider="other") == ([], None)


@pytest.mark.requirement("A01", "A03", "A04", "A09")
async def test_the_story_tells_each_decision_to_wait_and_who_caused_each_request(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=("queued", "running", "done")) as on:
        on.script(says("queued"), Answer(503, headers=(("Retry-After", "90"),)), says("running"))
        job = await on.submit()
        await on.end_of(job)
        full = await on.full(job, timeline=True)
        story = "\n".join(full["timeline"])

        assert full["timeline"][0] == "2026-11-30"
        assert "submitted job exp_1" in story
        assert "local backoff" in story
        assert "503" in story
        assert len(full["timeline"]) == 1 + 1 + 1 + on.count(STATUS)
        events = await on.events(job)
        requests = [event.body for event in events if event.code == "reserved"]
        assert [one["number"] for one in requests] == [*range(1, on.count(STATUS) + 2)]
        assert [one["trigger"] for one in requests] == ["agent", *["schedule"] * on.count(STATUS)]
        assert {one["authorisation"] for one in requests} == {"contract"}
        assert len({one["attempt"] for one in requests}) == len(on.provider.arrivals)
        assert "1 submit" in full["receipt"]


@pytest.mark.requirement("M08")
async def test_a_broken_contract_is_named_with_its_place_and_stops_only_its_provider(
    tmp_path: Path,
) -> None:
    write_contract(tmp_path, 'contract = 1\nbase_url = "https://x.example"\nnonsense = 3\n', "bad")
    async with stage(tmp_path, states=FOREVER) as on:
        listed = await on.call("list_actions")
        assert [one["provider"] for one in listed["broken_contracts"]] == ["bad"]
        refused = error(await on.call("submit_job", **{**SAME, "provider": "bad"}))

        assert refused["code"] == "contract_error"
        assert "bad.toml:" in refused["message"]
        assert (await on.asked())["state"] == "waiting"
        assert on.count(SUBMIT) == 1
