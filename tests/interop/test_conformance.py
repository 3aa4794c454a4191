"""What the official conformance suite meets here, as far as the ordinary tests can see it.

The suite is a package for Node. Where `tests/interop/run` has installed it, it runs here too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError

from forbear.tools.surface import build
from forbear.tools.toolset import BY_NAME
from tests.e2e.tasking import State, Tasks, cancel, get, task, update
from tests.interop.conforming import harness_only
from tests.interop.fixtures.kit import TOOLS
from tests.interop.fixtures.surface import Fixtures
from tests.interop.inspecting import ERAS
from tests.tools.desk import MemoryDesk

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M07")]

ROOT = Path(__file__).parents[2]
STEPS = {"conformance-2025", "conformance-2026", "conformance-tasks", "conformance-shipped"}


def interop(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/interop/run"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client with tasks of the product's surface with the fixtures."""
    monkeypatch.setattr("forbear.tools.surface.Surface", Fixtures)
    async with Client(build(MemoryDesk(), version="0"), extensions=[Tasks()]) as one:
        yield one


async def over(client: Client, task_id: str) -> State:
    with anyio.fail_after(20):
        while True:
            state = await get(client.session, task_id)
            if state.status != "working":
                return state
            await anyio.sleep(state.poll_interval_ms / 1000)


def test_the_one_command_runs_the_suite_and_the_inspector() -> None:
    listed = set(interop("--list").stdout.split())

    assert listed >= STEPS | {f"inspector-{era}" for era in ERAS}


def test_the_suite_passes_where_it_is_installed() -> None:
    if not all((ROOT / ".interop" / name / "made").exists() for name in ("node", "conformance")):
        pytest.skip("tests/interop/run has not installed the suite")

    ran = interop("--only", "conformance-20")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(" 0 failed") == 2


async def test_the_fixtures_stand_beside_the_tools_of_the_product(client: Client) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]

    assert names == [*BY_NAME, *TOOLS]


async def test_what_is_excused_is_what_only_the_fixtures_have(client: Client) -> None:
    served = set(TOOLS)
    served |= {prompt.name for prompt in (await client.list_prompts()).prompts}
    served |= {str(one.uri) for one in (await client.list_resources()).resources}
    served |= {
        one.uri_template for one in (await client.list_resource_templates()).resource_templates
    }
    served |= {"test://watched-resource", "x-mcp-header", "logging"}

    for check, needs in harness_only().items():
        assert served & set(re.split(r"[ ,]+", needs)), f"{check}: {needs}"


async def test_a_task_of_any_book_ends_with_its_result_or_its_error(client: Client) -> None:
    computed = await task(client, "slow_compute", seconds=0.1, label="sum")
    broken = await task(client, "protocol_error_job")

    good, bad = await over(client, computed.task_id), await over(client, broken.task_id)

    assert (good.status, bad.status) == ("completed", "failed")
    assert good.result is not None
    assert good.result["content"][0]["text"] == "Computed sum."
    assert bad.result is None
    assert (bad.model_extra or {})["error"]["code"] == -32603


async def test_a_task_goes_on_when_all_that_is_asked_is_answered(client: Client) -> None:
    asked = await task(client, "multi_input")
    said: Any = {"action": "accept", "content": {"name": "A"}}

    await update(client.session, asked.task_id, {"name": said, "unknown": said})
    half = await get(client.session, asked.task_id)
    await update(client.session, asked.task_id, {"confirm": said})
    whole = await get(client.session, asked.task_id)

    assert (half.status, list(half.input_requests or {})) == ("input_required", ["confirm"])
    assert (whole.status, whole.input_requests) == ("completed", None)


async def test_an_ended_task_stays_ended(client: Client) -> None:
    slow = await task(client, "slow_compute", seconds=600)

    for _ in range(2):
        await cancel(client.session, slow.task_id)
        assert (await get(client.session, slow.task_id)).status == "cancelled"


async def test_a_tool_that_is_always_a_task_refuses_clients_without_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forbear.tools.surface.Surface", Fixtures)
    async with Client(build(MemoryDesk(), version="0")) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("failing_job", {})

    assert caught.value.error.code == -32021
