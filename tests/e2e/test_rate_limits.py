"""Field cases of limits on calls: which scope an answer pauses, for whom and for how long."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.e2e.harness import MINUTE, Data, Stage, process, stage

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
ORDERS = "GET /orders"
CALLS: Data = {
    "customer": {"method": "GET", "path": "/customers/{arg.id}"},
    "orders": {"method": "GET", "path": "/orders"},
}

MARKED: Data = {
    "http": [403, 429],
    "match": {"/message": {"contains": "secondary rate limit"}},
    "means": "rate_limited",
}
HINTED: Data = {
    "http": 403,
    "match": {"header:Retry-After": {"present": True}},
    "means": "rate_limited",
}
PATIENT: Data = {"read": {"base": "15s", "rate_limited": "60s", "max_wait": "10m"}}

SECONDARY = Answer(
    403,
    {
        "message": "You have exceeded a secondary rate limit. "
        "Please wait a few minutes before you try again."
    },
)


async def customer(on: Stage) -> Data:
    return await on.read("customer", arguments={"id": "c_1"})


async def sent_at(on: Stage, operation_id: str) -> list[int]:
    return [event.at for event in await on.events(operation_id) if event.code == "reserved"]


@pytest.mark.requirement("R01", "R17", "W23")
async def test_rl_05_a_limit_that_only_the_body_tells_pauses_the_scope_longer_each_time(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS, rules=[MARKED], classes=PATIENT) as on:
        on.script(SECONDARY, SECONDARY, Answer(json={"name": "Ann"}), route=READ)
        on.script(Answer(json=[]), route=ORDERS)
        limited = await customer(on)
        other = await on.read("orders", wait_seconds=0)
        assert (limited["state"], "escalation" in limited) == ("delayed", False)
        waits = await on.full(other["operation_id"])
        assert (waits["state"], waits["waiting_for"]) == ("queued", "scope")
        ended = await on.end_of(limited["operation_id"])
        assert ended["state"] == (await on.end_of(other["operation_id"]))["state"] == "succeeded"
        (ordered,) = await sent_at(on, other["operation_id"])

        sent = await sent_at(on, limited["operation_id"])
        first, second = (later - earlier for earlier, later in pairwise(sent))
        assert 60_000 <= first <= 76_000
        assert 120_000 <= second <= 151_000
        assert ordered - sent[0] >= 60_000
        assert ended["budgets"]["rate_limited"] == {"used": 2, "max": 3}
        assert (on.count(READ), on.count(ORDERS)) == (3, 1)


@pytest.mark.requirement("R17", "R09")
async def test_rl_06_a_403_that_asks_for_a_pause_is_a_limit_whatever_is_said_to_remain(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS, rules=[HINTED]) as on:
        fields = (("Retry-After", "60"), ("X-RateLimit-Remaining", "4990"))
        on.script(Answer(403, headers=fields), Answer(json={"name": "Ann"}), route=READ)
        limited = await customer(on)
        assert (limited["state"], limited["delay_source"]) == ("delayed", "provider_retry_after")
        ended = await on.end_of(limited["operation_id"])

        assert ended["state"] == "succeeded"
        first, second = await sent_at(on, limited["operation_id"])
        assert 60_000 <= second - first <= 66_001
        assert on.count(READ) == 2


@pytest.mark.requirement("R17", "W23")
@pytest.mark.parametrize("rule", [MARKED, HINTED], ids=["RL-05", "RL-06"])
async def test_a_403_without_the_mark_of_a_limit_is_a_denial(tmp_path: Path, rule: Data) -> None:
    async with stage(tmp_path, calls=CALLS, rules=[rule]) as on:
        on.script(Answer(403, {"message": "Resource not accessible"}), route=READ)
        denied = await customer(on)

        assert denied["escalation"]["reason"] == "authorization_denied"
        await on.passes(10 * MINUTE)
        assert on.count(READ) == 1


BUCKETS: Data = {
    "account": {"per": "account", "rate": "1000/1s"},
    "customers": {
        "per": "account",
        "actions": ["customer"],
        "rate": "1000/1s",
        "remaining": "header:X-RateLimit-Remaining",
        "reset": {"at": "header:X-RateLimit-Reset-After", "unit": "s"},
    },
}
ROUTE = Answer(
    429,
    {"retry_after": 0.64, "global": False},
    (
        ("X-RateLimit-Bucket", "abcd"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset-After", "0.64"),
        ("X-RateLimit-Scope", "user"),
    ),
)
GLOBAL = Answer(429, {"retry_after": 1.337, "global": True}, (("X-RateLimit-Global", "true"),))


@pytest.mark.requirement("R01", "R02", "R03")
@pytest.mark.parametrize(
    ("answer", "least", "passes"),
    [
        pytest.param(ROUTE, 640, True, id="RL-10 one bucket"),
        pytest.param(GLOBAL, 1_337, False, id="RL-10 the whole account"),
    ],
)
async def test_a_limit_pauses_its_own_scope_in_every_process(
    tmp_path: Path, answer: Answer, least: int, passes: bool
) -> None:
    """RL-10: a bucket is a scope that the contract names, and never found out at run time."""
    async with stage(tmp_path, calls=CALLS, scopes=BUCKETS) as on:
        on.script(answer, route=READ)
        for route in ("GET /customers/", ORDERS):
            on.script(*[Answer(json={})] * 3, route=route)
        limited = await customer(on)
        assert limited["state"] == "delayed"
        async with process(on.provider, on.home, on.clock) as another:
            same = await another.read("customer", arguments={"id": "c_2"}, wait_seconds=0)
            other = await another.read("orders", wait_seconds=0)
            await another.settled()

            assert (await another.full(same["operation_id"]))["waiting_for"] == "scope"
            assert ((await another.full(other["operation_id"]))["state"] == "succeeded") is passes
            await another.end_of(same["operation_id"])
            (later,) = await sent_at(another, same["operation_id"])

        assert later - (await sent_at(on, limited["operation_id"]))[0] >= least
