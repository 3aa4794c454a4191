"""`Mcp-Name` of a request about a task: another name is rejected, none is tolerated."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.tools.desk import MemoryDesk
from tests.tools.records import ID

from forbear.tools.surface import build
from forbear.tools.tasks import TASKS

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
    app = build(desk, version="0").streamable_http_app()
    body: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": {"taskId": ID, "_meta": META},
    }
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        "Accept": "application/json, text/event-stream",
        **name,
    }
    with TestClient(app, base_url="http://127.0.0.1:8000") as http:
        answer = http.post("/mcp", json=body, headers=headers).json()

    if code is None:
        assert answer["result"]["taskId"] == ID
    else:
        assert answer["error"]["code"] == code
        assert not desk.asked
