"""The fake provider keeps count of what really happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.sending import permit, upstream
from tests.support import ManualClock

from forbear.rules.contract import Auth
from forbear.rules.ports import Outbound, Reply
from forbear.server.fake import Answer, Drop, FakeProvider, retry_after
from forbear.server.upstream import Upstream

pytestmark = pytest.mark.anyio


class Client:
    """Requests to one place, a permit each."""

    def __init__(self, clock: ManualClock, sender: Upstream, base_url: str) -> None:
        self._clock = clock
        self._sender = sender
        self._base = base_url

    async def ask(self, route: str, body: object = None, key: str | None = None) -> Reply:
        method, _, path = route.partition(" ")
        fields = () if key is None else (("Idempotency-Key", key),)
        content = None if body is None else json.dumps(body).encode()
        wish = Outbound(method, self._base + path, fields, content)
        return await self._sender.send(permit(self._clock), wish)

    async def read(self, route: str, body: object = None, key: str | None = None) -> Any:
        reply = await self.ask(route, body, key)
        assert reply.complete, reply
        return json.loads(reply.body)


async def test_a_job_moves_with_each_look_and_ends_with_its_result(clock: ManualClock) -> None:
    async with FakeProvider() as fake, upstream(clock, fake.base_url) as sender:
        client = Client(clock, sender, fake.base_url)
        fake.job("exp_1", ["queued", "running", "done"], result={"rows": 3})
        reply = await client.ask("POST /exports", {"client_ref": "r1"})
        assert (reply.status, reply.header("location")) == (202, "/exports/exp_1")
        looks = [await client.read("GET /exports/exp_1") for _ in range(4)]
        assert [look["state"] for look in looks] == ["queued", "running", "done", "done"]
        assert "result" not in looks[1]
        assert looks[2]["result"]["url"] == f"{fake.base_url}/files/exp_1"
        assert await client.read("GET /files/exp_1") == {"rows": 3}
        found = await client.read("GET /exports?client_ref=r1")
        assert [item["id"] for item in found["items"]] == ["exp_1"]
        assert (await client.read("GET /exports?client_ref=r2"))["items"] == []
        assert (fake.count("GET /exports/"), fake.count("POST /exports")) == (4, 1)
        assert [effect.ref for effect in fake.effects] == ["r1"]


async def test_a_cancelled_job_says_so_and_an_ended_one_stays(clock: ManualClock) -> None:
    async with FakeProvider() as fake, upstream(clock, fake.base_url) as sender:
        client = Client(clock, sender, fake.base_url)
        fake.job("a", ["running", "done"], existing=True)
        fake.job("b", ["done"], existing=True)
        assert (await client.read("POST /exports/a/cancel"))["state"] == "cancelled"
        assert (await client.read("POST /exports/b/cancel"))["state"] == "done"
        assert (await client.read("GET /exports/a"))["state"] == "cancelled"
        assert (await client.ask("GET /exports/c")).status == 404


@pytest.mark.parametrize(("honours", "effects"), [(True, 1), (False, 2)])
async def test_a_lost_answer_hides_an_effect_that_a_key_may_save(
    clock: ManualClock, honours: bool, effects: int
) -> None:
    async with FakeProvider(honours_keys=honours) as fake, upstream(clock, fake.base_url) as sender:
        client = Client(clock, sender, fake.base_url)
        fake.script("POST /transfers", Drop("after", effect=True))
        lost = await client.ask("POST /transfers", {"amount": 5}, "k1")
        assert (lost.sent, lost.complete) == (True, False)
        assert len(fake.effects) == 1
        again = await client.ask("POST /transfers", {"amount": 5}, "k1")
        assert again.header("idempotency-replayed") == ("true" if honours else None)
        assert len(fake.effects) == effects
        if honours:
            assert (await client.ask("POST /transfers", {"amount": 6}, "k1")).status == 422


async def test_a_script_is_played_in_order_and_the_longest_route_first(clock: ManualClock) -> None:
    async with FakeProvider() as fake, upstream(clock, fake.base_url) as sender:
        client = Client(clock, sender, fake.base_url)
        fake.job("a", ["done"], existing=True)
        fake.script("GET /exports/", retry_after(7), Answer(500, effect=True))
        fake.script("GET /exports/a", Answer(404))
        replies = [await client.ask("GET /exports/a") for _ in range(4)]
        assert [reply.status for reply in replies] == [404, 429, 500, 200]
        assert replies[1].header("retry-after") == "7"


@pytest.fixture
def process() -> Iterator[str]:
    """The address of a fake provider that runs as a process of its own."""
    running = subprocess.Popen(
        [sys.executable, "-m", "forbear.server.fake"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert running.stdout is not None
    yield running.stdout.readline().strip()
    running.terminate()
    running.communicate(timeout=10)


async def test_a_process_serves_several_and_tells_what_arrived(
    clock: ManualClock, process: str
) -> None:
    async with upstream(clock, process, auth=Auth()) as sender:
        client = Client(clock, sender, process)
        await client.ask("POST /__job", {"id": "exp_1", "states": ["queued", "done"]})
        steps = [
            {"do": "drop", "effect": True, "gate": "go"},
            {"do": "answer", "status": 429, "headers": [["Retry-After", "3"]]},
        ]
        await client.ask("POST /__script", {"route": "POST /exports", "steps": steps})
        assert (await client.ask("POST /__release", {"gate": "go"})).status == 204
        assert (await client.ask("POST /exports", {"n": 1}, "k")).fault == "closed"
        assert (await client.ask("POST /exports", {"n": 1}, "k")).status == 429
        assert (await client.ask("POST /exports", {"n": 1}, "k")).status == 202
        arrivals = await client.read("GET /__arrivals")
        assert [arrival["path"] for arrival in arrivals] == ["/exports"] * 3
        assert json.loads(arrivals[0]["body"]) == {"n": 1}
        effects = await client.read("GET /__effects")
        assert [(effect["id"], effect["key"]) for effect in effects] == [("exp_1", "k")]
