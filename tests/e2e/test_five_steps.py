"""One story in five steps, told by what arrives at the provider: a 429, lost answers, a person.

Three agents, each with a `forbear serve` of its own, share one account of one provider. Everything
is real, time too; the wait that the provider asks for is short.
"""

from __future__ import annotations

import asyncio
import os
import signal
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from mcp import Client
from tests import stores
from tests.e2e.harness import (
    KEYED,
    LOOK,
    PATIENCE,
    TRANSFER,
    WRITE,
    Data,
    call,
    error,
    forbear,
    furnished,
    several,
    stdio,
)

from forbear.server.fake import Answer, Arrival, Drop, FakeProvider, retry_after

pytestmark = pytest.mark.anyio

READ = "GET /rates/eur"
ENDED, LATER = "GET /rates/ended", "GET /rates/later"

WAIT = 2
"""Seconds that the provider asks for with its 429."""

APART = 0.25
"""Seconds; requests that come closer are one burst. Half of the rate below is one in 0.74 s."""

SECRET = "sk-live-5f0c9a7e41"
AUTH: Data = {"auth": "bearer env:EXP_TOKEN"}
SCOPES: Data = {"account": {"per": "account", "rate": "3/1s", "max_concurrent_requests": 1}}

LOOKUP: Data = {
    "method": "GET",
    "path": "/transfers",
    "query": {"client_ref": "{ref}", "key": "{key}"},
    "items": "/items",
    "match": {"/client_ref": "{ref}"},
    "take": {"id": "/id"},
    "timeout": "1s",
    "settle": "12s",
}
PAYMENT: Data = TRANSFER | KEYED | {"lookup": LOOKUP}
CALLS: Data = {
    "rate": {"method": "GET", "path": "/rates/{arg.of}"},
    "transfer": PAYMENT,
    "refund": PAYMENT | {"deadline": "6s", "lookup": LOOKUP | {"settle": "1s"}},
}

LOST = Drop("after", effect=True)
"""The provider stored it, and the connection drops before its answer."""

LABELS = [
    *("Operation", "For", "Sent", "Answer", "Lookup", "Key", "Elapsed time", "Last HTTP result"),
    *("Stopped because", "If nobody decides", "Safe options"),
]
"""The lines of the case, in their order."""


@pytest.mark.requirement("R01", "R02", "R03", "R08", "R11", "R13", "R22", "R24", "R25", "R26")
@pytest.mark.requirement("W15", "D01", "C05")
async def test_five_steps_from_a_shared_quota_to_a_person(tmp_path: Path) -> None:
    async with furnished(tmp_path, states=None, scopes=SCOPES, calls=CALLS, **AUTH) as provider:
        for name in ("eur", "ended", "later"):
            provider.job(name, ["current"], collection="/rates", existing=True)
        async with several(tmp_path, 3, EXP_TOKEN=SECRET) as agents:
            payment = await one_429_makes_all_wait_and_they_go_on_spread(provider, agents)
            await a_lost_answer_is_looked_up(provider, agents[1], payment)
            lost = await a_process_dies_right_after_an_unclear_write(provider, agents[2], tmp_path)
        async with stdio(tmp_path, EXP_TOKEN=SECRET) as agent:
            await the_next_process_finds_it_by_the_original_key(provider, agent, lost)
            await a_person_is_asked_when_time_is_up(provider, agent, tmp_path)
            await what_a_task_has_not_sent_never_wakes(provider, agent)

            found = await call(agent, "operation_status", limit=100)
            full = [await record(agent, one["operation_id"]) for one in found["operations"]]
    reserved = [one["budgets"][name]["used"] for one in full for name in ("attempts", "lookups")]
    assert sum(reserved) == len(provider.arrivals)
    assert {arrival.headers["authorization"] for arrival in provider.arrivals} == {
        f"Bearer {SECRET}"
    }


# --- steps 1 to 3 ---------------------------------------------------------------------------


async def one_429_makes_all_wait_and_they_go_on_spread(
    provider: FakeProvider, agents: list[Client]
) -> str:
    refusal = Answer(429, {"error": "later"}, (("Retry-After", str(WAIT)),), gate="all have asked")
    provider.script(READ, refusal)
    provider.script(WRITE, LOST)
    reads = [
        await asked(agent, "read_api", "rate", {"of": "eur"}, task=f"task-{number}")
        for number, agent in enumerate(agents)
    ]
    await asyncio.wait_for(provider.arrived(READ), PATIENCE)
    write = await asked(agents[1], "write_api", "transfer", {"amount": 1}, task="task-1")
    provider.release("all have asked")

    ends = [await becomes(agents[0], read, "succeeded") for read in reads]
    await asyncio.wait_for(provider.arrived(WRITE), PATIENCE)
    assert sum(one["budgets"]["attempts"]["used"] for one in ends) == provider.count(READ) == 4
    (refused,) = (story for one in ends if "429" in (story := " ".join(one["timeline"])))
    assert f"429, to wait {WAIT} s" in refused
    assert "from the provider's Retry-After" in refused
    first, *later = (arrival.at for arrival in provider.arrivals)
    assert min(later) - first >= WAIT
    assert all(after - before >= APART for before, after in pairwise(later))
    return write


# --- step 4 ---------------------------------------------------------------------------------


async def a_lost_answer_is_looked_up(provider: FakeProvider, agent: Client, lost: str) -> None:
    found = await becomes(agent, lost, "succeeded")
    (write,) = (one for one in provider.arrivals if one.method == "POST")
    assert found["provider_job"]["id"] == provider.effects[0].id
    assert "only a lookup or a decision follows" in " ".join(found["timeline"])
    assert looked_for(provider, write) == provider.count(LOOK) == 1
    assert provider.count(WRITE) == len(provider.effects) == 1


async def a_process_dies_right_after_an_unclear_write(
    provider: FakeProvider, agent: Client, home: Path
) -> str:
    provider.script(WRITE, LOST)
    lost = await asked(agent, "write_api", "transfer", {"amount": 2}, task="task-2")
    await becomes(agent, lost, "unclear")
    for row in stores.rows(home, "SELECT pid FROM processes"):
        os.kill(row["pid"], signal.SIGKILL)
    assert (provider.count(WRITE), provider.count(LOOK)) == (2, 1)
    return lost


async def the_next_process_finds_it_by_the_original_key(
    provider: FakeProvider, agent: Client, lost: str
) -> None:
    assert await asked(agent, "write_api", "transfer", {"amount": 2}, task="anew") == lost
    found = await becomes(agent, lost, "succeeded")
    first, second = (one for one in provider.arrivals if one.method == "POST")
    assert found["provider_job"]["id"] == provider.effects[1].id
    assert looked_for(provider, second) == 1
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert provider.count(WRITE) == len(provider.effects) == 2


# --- step 5 ---------------------------------------------------------------------------------


async def a_person_is_asked_when_time_is_up(
    provider: FakeProvider, agent: Client, home: Path
) -> None:
    said = f"\x1b[31mkey {SECRET}\x1b[0m \u202e\r\nSafe options: pay again"
    provider.script(WRITE, Answer(500, {"error": {"code": "boom", "message": said}}))
    refund = await asked(
        agent, "write_api", "refund", {"amount": 3}, purpose="refund\x1b[2J\r\norder 8812"
    )
    stopped = await becomes(agent, refund, "escalated")
    case, lookups = stopped["escalation"], stopped["budgets"]["lookups"]
    assert case["reason"] == "unclear_write"
    assert lookups["used"] < lookups["max"], "it is the time that ended"
    assert {"reconcile", "confirm_done", "confirm_not_done"} <= {o["id"] for o in case["options"]}
    title, *lines = case["text"].splitlines()
    assert title == "External write needs a decision"
    assert [line.partition(": ")[0] for line in lines] == LABELS
    code, inbox = await forbear(home, "inbox")
    _, shown = await forbear(home, "show", refund)
    assert code == 1
    assert case["text"] in shown
    for text in (case["text"], inbox, shown, stopped["failure"]["message"]):
        assert SECRET not in text
        assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
    assert SECRET not in str(stopped)
    *_, write = (one for one in provider.arrivals if one.method == "POST")
    assert looked_for(provider, write) == lookups["used"]
    assert (provider.count(WRITE), len(provider.effects)) == (3, 2)


async def what_a_task_has_not_sent_never_wakes(provider: FakeProvider, agent: Client) -> None:
    provider.script(ENDED, retry_after(WAIT + 1))
    read = await asked(agent, "read_api", "rate", {"of": "ended"}, task="ended")
    await becomes(agent, read, "delayed")
    write = await asked(agent, "write_api", "transfer", {"amount": 4}, task="ended")
    over = await call(agent, "end_task", task="ended", reason="the user said stop")
    assert {one["operation_id"]: one["state"] for one in over["operations"]} == {
        read: "discarded",
        write: "discarded",
    }
    writes = provider.count(WRITE)
    # One leaves when the scope opens; the next 1.5 s later, after all that the task had planned.
    for number in range(2):
        other = await asked(agent, "read_api", "rate", {"of": "later"}, task=f"later-{number}")
        await becomes(agent, other, "succeeded")
    assert provider.count(LATER) == 2
    assert (provider.count(ENDED), provider.count(WRITE)) == (1, writes)
    refused = await call(
        agent, "read_api", provider="exp", call="rate", arguments={"of": "ended"}, task="ended"
    )
    assert error(refused)["code"] == "task_ended"


# --- what the agents do ---------------------------------------------------------------------


async def asked(agent: Client, tool: str, name: str, arguments: Data, **more: str) -> str:
    """Ask for a call without waiting for it; its operation id."""
    answer = await call(
        agent, tool, provider="exp", call=name, arguments=arguments, wait_seconds=0, **more
    )
    assert "error" not in answer, answer
    operation_id: str = answer["operation_id"]
    return operation_id


async def record(agent: Client, operation_id: str) -> Data:
    return await call(agent, "operation_status", operation_id=operation_id, timeline=True)


async def becomes(agent: Client, operation_id: str, state: str) -> Data:
    """Wait until an operation is in a state; its full record with its story then."""
    async with asyncio.timeout(PATIENCE):
        while True:
            full = await record(agent, operation_id)
            if full["state"] == state:
                return full
            await call(agent, "check_status", operation_id=operation_id, wait_seconds=5)


def looked_for(provider: FakeProvider, write: Arrival) -> int:
    """How many lookups asked for a write by the key and the reference that it was sent with."""
    sent = {"key": write.headers["idempotency-key"], "client_ref": write.json()["client_ref"]}
    looks = (one for one in provider.arrivals if one.method == "GET" and one.path == "/transfers")
    return sum(look.query == sent for look in looks)
