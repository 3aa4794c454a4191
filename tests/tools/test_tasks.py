"""Tasks as the wire shows them: headers, and what a person is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.tools.desk import MemoryDesk
from tests.tools.records import ID, escalated

from forbear.tools.surface import build
from forbear.tools.tasks import TASKS
from forbear.tools.texts import next_step

pytestmark = pytest.mark.requirement("M02")

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ({"Mcp-Name": ID}, None),
        ({}, None),
        ({"Mcp-Name": "op_another"}, -32020),
        ({"Mcp-Name": "=?base64?!?="}, -32020),
    ],
)
def test_a_header_that_names_another_task_is_rejected(
    name: dict[str, str], code: int | None
) -> None:
    desk = MemoryDesk()
    answer = ask(desk, META, name)

    if code is None:
        assert answer["result"]["taskId"] == ID
    else:
        assert answer["error"]["code"] == code
        assert not desk.asked


@pytest.mark.parametrize(
    ("declared", "served", "asked"),
    [
        ({"elicitation": {"url": {}}}, True, True),
        ({"elicitation": {"url": {}}}, False, False),
        ({"elicitation": {"form": {}}}, True, False),
        ({"elicitation": {}}, True, False),
        ({}, True, False),
    ],
)
def test_a_client_that_opens_pages_is_given_the_page_where_a_person_decides(
    declared: dict[str, Any], served: bool, asked: bool
) -> None:
    record = replace(escalated(), console_served=served)
    capabilities = {"extensions": {TASKS: {}}, **declared}
    meta = META | {"io.modelcontextprotocol/clientCapabilities": capabilities}

    task = ask(MemoryDesk(answer=record), meta, {})["result"]

    assert task["status"] == "input_required"
    assert task["statusMessage"] == next_step(record)
    assert record.case is not None
    if asked:
        (key, request), *others = task["inputRequests"].items()
        assert (key, others) == (record.case.id, [])
        assert request["method"] == "elicitation/create"
        assert request["params"]["url"] == record.decide_at
    else:
        assert task["inputRequests"] == {}


def ask(desk: MemoryDesk, meta: dict[str, Any], name: dict[str, str]) -> dict[str, Any]:
    """What `tasks/get` answers over HTTP."""
    app = build(desk, version="0").streamable_http_app()
    body: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": {"taskId": ID, "_meta": meta},
    }
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        "Accept": "application/json, text/event-stream",
        **name,
    }
    with TestClient(app, base_url="http://127.0.0.1:8000") as http:
        answer: dict[str, Any] = http.post("/mcp", json=body, headers=headers).json()
    return answer
