"""An agent that does everything wrong, against the whole product and the demonstration's provider.

It has no model: it calls whatever is allowed, ignores every advice, repeats each call that is
refused, and makes up a new key and a new task for each repetition. It cannot make the provider see
a request too many or a second effect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.e2e.harness import stdio

from forbear.server import demo
from forbear.server.fake import FakeProvider

pytestmark = pytest.mark.anyio

Data = dict[str, Any]

ROUNDS = 5
"""Times that the whole call is made again, at least; and on until nothing moves by itself."""

REPEATED = 3
"""Times that a refused call is made again at once, word for word and then under another key."""

MOVING = ("queued", "sending", "waiting", "delayed", "unclear")

STATUS_REQUESTS = {"exp_1": 8, "exp_2": 8, "rep_1": 8, "exp_3": 8, "exp_4": 2}
"""What the agent and its contract allow."""

_numbers = count(1)


@dataclass
class Naive:
    """One agent with one wish."""

    client: Client
    tool: str
    wish: Data
    heard: list[Data] = field(default_factory=list[Data])

    async def insist(self) -> None:
        """Make the call again and again, and do all that is allowed in between."""
        rounds = 0
        while rounds < ROUNDS or self._moves():
            rounds += 1
            answer = await self._call(self.tool, self.wish | self._made_up())
            told = answer.get("error", answer)
            operation_id = told.get("operation_id")
            if operation_id is not None:
                await self._meddle(operation_id)

    async def _meddle(self, operation_id: str) -> None:
        """Call each allowed tool, and then those that nobody offered."""
        answer = await self._call("check_status", {"operation_id": operation_id, "wait_seconds": 2})
        for tool in (*answer.get("allowed_actions", ()), "fetch_result", "reconcile_write"):
            await self._call(tool, {"operation_id": operation_id, **self._guess(tool, answer)})

    async def _call(self, tool: str, arguments: Data) -> Data:
        """One call; where it is refused, the same again, and again under other names."""
        told = await self._once(tool, arguments)
        for _ in range(REPEATED):
            if "error" not in told:
                break
            await self._once(tool, arguments)
            if tool == self.tool:
                await self._once(tool, arguments | self._made_up())
        return told

    async def _once(self, tool: str, arguments: Data) -> Data:
        told: Data | None = (await self.client.call_tool(tool, arguments)).structured_content
        assert told is not None
        self.heard.append(told)
        return told

    def _made_up(self) -> Data:
        number = next(_numbers)
        named: Data = {"task": f"try {number}", "wait_seconds": 1}
        if self.tool != "read_api":
            named |= {"idempotency_key": f"key-{number}", "purpose": f"try {number}"}
        return named

    def _guess(self, tool: str, answer: Data) -> Data:
        match tool:
            case "request_decision":
                options = answer.get("escalation", {}).get("options") or ["resubmit"]
                return {"option": options[0], "reason": "please"}
            case "cancel_job":
                return {"reason": "it takes long"}
            case _:
                return {"wait_seconds": 1}

    def _moves(self) -> bool:
        states = [told["state"] for told in self.heard if told.get("state") in _ALL]
        return not states or states[-1] in MOVING


_ALL = (*MOVING, "escalated", "succeeded", "failed", "cancelled", "expired", "discarded")


def agents(client: Client, jobs: list[demo._Job]) -> list[Naive]:
    """One for each scenario of the demonstration, and three for its shared quota."""
    wishes: list[tuple[str, Data]] = [
        (
            "submit_job",
            {"provider": "shop", "job": job.job, "arguments": {"dataset": job.dataset}, **job.more},
        )
        for job in jobs
    ]
    read: Data = {"provider": "rates", "call": "rate", "arguments": {"currency": "eur"}}
    wishes += [("read_api", read)] * demo.READERS
    wishes += [("write_api", {"provider": bank, **demo.PAYMENT}) for bank in ("bank", "oldbank")]
    return [Naive(client, tool, wish) for tool, wish in wishes]


@pytest.mark.requirement("M08", "R08", "R14", "W17")
async def test_a_naive_agent_causes_no_request_too_many_and_no_second_effect(
    tmp_path: Path,
) -> None:
    jobs = demo._jobs()
    async with FakeProvider() as provider:
        demo._prepare(provider, jobs)
        demo._furnish(tmp_path, provider.base_url, "unused")
        async with asyncio.timeout(180), stdio(tmp_path) as client:
            naive = agents(client, jobs)
            await asyncio.gather(*(agent.insist() for agent in naive))
            told = await receipts(client)

    made = Counter(effect.collection for effect in provider.effects)
    assert made == demo.EFFECTS
    for job in jobs:
        submits = [one for one in provider.arrivals if job.sees("submit", one)]
        assert len(submits) == 1, job.title
        checks = provider.count(job.routes["check"])
        assert checks <= STATUS_REQUESTS[job.id], job.title
    assert provider.count("POST /transfers") == 1
    assert provider.count("GET /transfers") == 1
    assert provider.count("POST /old/transfers") == 1
    first, *later = [one.at for one in provider.arrivals if one.path == "/rates/eur"]
    assert all(at - first >= demo.PAUSE for at in later)
    assert all(after - before >= demo.APART for before, after in pairwise(later))
    assert len(provider.arrivals) == told
    refused = sum("error" in one for agent in naive for one in agent.heard)
    assert refused > 100, "it was naive indeed"


async def receipts(client: Client) -> int:
    """All requests that the stories of all operations tell of."""
    total, cursor = 0, None
    while True:
        page: Data = {"limit": 100} | ({"cursor": cursor} if cursor else {})
        found = (await client.call_tool("operation_status", page)).structured_content
        assert found is not None
        for one in found["operations"]:
            asked = {"operation_id": one["operation_id"], "timeline": True}
            full = (await client.call_tool("operation_status", asked)).structured_content
            assert full is not None, json.dumps(one)
            total += sum(
                map(int, re.findall(r"(\d+) (?:submit|check|fetch|call|lookup)", full["receipt"]))
            )
        cursor = found.get("next_cursor")
        if cursor is None:
            return total
