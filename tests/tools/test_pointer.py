"""A client is pointed at the page of a case, in both eras; whatever it answers decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from mcp import Client, ClientSession
from mcp.client import ClientRequestContext
from mcp.types import (
    ClientCapabilities,
    ElicitationCapability,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
)
from tests.tools.desk import MemoryDesk
from tests.tools.records import ID, escalated, record

from forbear.tools.record import Record
from forbear.tools.surface import build

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("E14")]

URL = "http://127.0.0.1:8377/escalations/esc_h2n8c4"
LEGACY, MODERN = "legacy", "2026-07-28"


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Person:
    """Who sits at the client and is shown pages."""

    answer: ElicitResult | ErrorData | None = field(
        default_factory=lambda: ElicitResult(action="accept")
    )
    """None: never answers."""
    shown: list[ElicitRequestURLParams] = field(default_factory=list[ElicitRequestURLParams])

    async def asked(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        del context
        assert isinstance(params, ElicitRequestURLParams)
        self.shown.append(params)
        if self.answer is None:
            await anyio.sleep_forever()
        assert self.answer is not None
        return self.answer


@asynccontextmanager
async def chat(desk: MemoryDesk, era: str, person: Person | None) -> AsyncIterator[Client]:
    asked = None if person is None else person.asked
    server = build(desk, version="0.1.0")
    async with Client(server, mode=era, elicitation_callback=asked) as client:
        await client.list_tools()
        yield client


async def check(client: Client, tool: str = "check_status", **passed: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, passed or {"operation_id": ID})
    assert not result.is_error
    told: dict[str, Any] | None = result.structured_content
    assert told is not None
    return told


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
async def test_a_client_that_can_is_shown_the_page_once_and_gets_the_same_answer(
    era: str, action: Any
) -> None:
    desk, person = MemoryDesk(escalated()), Person(ElicitResult(action=action))
    async with chat(desk, era, None) as client:
        plain = await check(client)
    async with chat(desk, era, person) as client:
        for _ in range(3):
            assert await check(client) == plain
    assert [one.url for one in person.shown] == [URL]
    assert "opening it decides nothing" in person.shown[0].message
    assert {tool for tool, _ in desk.asked} == {"check_status"}


async def test_another_case_is_another_pointer(era: str) -> None:
    desk, person = MemoryDesk(escalated()), Person()
    async with chat(desk, era, person) as client:
        await check(client)
        case = desk.answer.case if isinstance(desk.answer, Record) else None
        assert case is not None
        assert isinstance(desk.answer, Record)
        desk.answer = replace(desk.answer, case=replace(case, id="esc_other"))
        await check(client)
    assert len(person.shown) == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(record(), id="nothing is asked"),
        pytest.param(replace(escalated(), console_served=False), id="no console is served"),
    ],
)
async def test_without_a_page_to_open_nobody_is_pointed_anywhere(era: str, answer: Record) -> None:
    person = Person()
    async with chat(MemoryDesk(answer), era, person) as client:
        await check(client)
    assert person.shown == []


async def test_a_client_without_the_capability_gets_state_and_link_in_the_answer(era: str) -> None:
    async with chat(MemoryDesk(escalated()), era, None) as client:
        told = await check(client)
    assert told["state"] == "escalated"
    assert told["escalation"]["decide_at"] == URL
    assert URL in told["next_step"]


async def test_an_empty_elicitation_capability_means_forms_alone(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forms(self: ClientSession, version: str) -> ClientCapabilities:
        del self, version
        return ClientCapabilities(elicitation=ElicitationCapability())

    monkeypatch.setattr(ClientSession, "_build_capabilities", forms)
    person = Person()
    async with chat(MemoryDesk(escalated()), era, person) as client:
        assert (await check(client))["state"] == "escalated"
    assert person.shown == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ErrorData(code=-32600, message="no"), id="fails"),
        pytest.param(None, id="never"),
    ],
)
async def test_a_client_that_does_not_take_the_pointer_gets_its_answer_all_the_same(
    answer: ErrorData | None,
) -> None:
    person = Person(answer)
    async with chat(MemoryDesk(escalated()), LEGACY, person) as client:
        with anyio.fail_after(20):
            assert (await check(client))["state"] == "escalated"
    assert len(person.shown) == 1


async def test_a_tool_that_may_send_is_never_called_twice_for_a_pointer() -> None:
    desk, person = MemoryDesk(escalated()), Person()
    async with chat(desk, MODERN, person) as client:
        await check(client, "submit_job", provider="exp", job="export", arguments={"dataset": "s"})
        assert [tool for tool, _ in desk.asked] == ["submit_job"]
        assert person.shown == []
        await check(client)
    assert len(person.shown) == 1
