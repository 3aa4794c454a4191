"""What every client does: list, submit, wait, fetch, ask again, escalate, and read an error.

Standard library only: it runs inside the environment of each client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a tool and gives the JSON object that it said, also where it is an error."""

EXPORT = {"provider": "exp", "job": "export"}
OVER = ("succeeded", "failed", "cancelled", "expired", "discarded", "escalated")


async def play(tools: list[str], call: Call) -> None:
    """Play the scenario and print what came of it, as one line of JSON."""
    actions = await call("list_actions", {"provider": "exp"})
    job = await over(call, await call("submit_job", {**EXPORT, "arguments": {"dataset": "sales"}}))
    fetched = await call("fetch_result", {"operation_id": job["operation_id"]})
    again = await call("submit_job", {**EXPORT, "arguments": {"dataset": "sales"}})
    stuck = await over(call, await call("submit_job", {**EXPORT, "arguments": {"dataset": "odd"}}))
    unknown = await call("check_status", {"operation_id": "op_nothing"})
    outcome = {
        "tools": len(tools),
        "actions": sorted(one["name"] for one in actions["actions"]),
        "job": job["state"],
        "may_proceed": job["may_proceed"],
        "result": fetched["result"]["inline"],
        "again": again["error"]["code"],
        "known": again["operation_id"] == job["operation_id"],
        "stuck": stuck["state"],
        "reason": stuck["escalation"]["reason"],
        "unknown": unknown["error"]["code"],
    }
    print(json.dumps(outcome, sort_keys=True), flush=True)


async def over(call: Call, said: dict[str, Any]) -> dict[str, Any]:
    """Wait until an operation has ended or a person is asked."""
    for _ in range(20):
        if said["state"] in OVER:
            return said
        said = await call("check_status", {"operation_id": said["operation_id"]})
    raise AssertionError(f"it did not end: {said}")


def where() -> dict[str, Any]:
    """How to reach the server: `url`, or `command`, `args` and `env`."""
    found: dict[str, Any] = json.loads(os.environ["INTEROP_SERVER"])
    return found


def said(structured: Any, texts: list[str]) -> dict[str, Any]:
    """The object of an answer; text and structured content must say the same."""
    told = json.loads("".join(texts))
    if structured is not None and structured != told:
        raise AssertionError(f"text and structured content differ: {told} {structured}")
    return dict(told)
