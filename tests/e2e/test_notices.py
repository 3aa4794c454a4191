"""People are told where they look: a signed webhook on a real socket, and answers that stand."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    PATIENCE,
    STATUS,
    Data,
    Stage,
    furnished,
    process,
)
from tests.support import ManualClock

from forbear.rules.model import Case, Option
from forbear.server.fake import Answer, Arrival, FakeProvider, Step, retry_after
from forbear.server.notify import last

pytestmark = pytest.mark.anyio

SECRET = b"a-signing-key-of-32-bytes-length"
HOOK = "POST /hook"
LIMITS: Data = {
    "max_status_requests": 2,
    "extension": {"by": "15m", "status_requests": 2, "times": 5},
}
STOPS: Data = NO_RESULT | {"limits": LIMITS}
"""A job that asks a person after two checks."""

BEAT = 10_001
SLEEPERS = 3
"""What sleeps in a process that has nothing to do: its pulse, its sign of life, its schedule."""


@dataclass
class Scene:
    """One process that tells a webhook, and its receiver on a socket of its own."""

    on: Stage
    hook: FakeProvider

    async def stopped(self, dataset: str = "sales", **more: str) -> str:
        """A job that a person is asked about."""
        job = await self.on.submit(dataset, **more)
        await self.on.end_of(job)
        return job

    async def case(self, job: str) -> Case:
        found = await self.on.app.store.read.open_case(job)
        assert found is not None
        return found

    async def beat(self, milliseconds: int = BEAT, processes: int = 1) -> None:
        """Let time go by, and see every process through the round that follows."""
        self.on.clock.advance(milliseconds)
        async with asyncio.timeout(PATIENCE):
            await self.on.clock.asleep(SLEEPERS * processes)
        await self.on.settled()

    async def told(self, number: int) -> Arrival:
        """What the receiver got as its `number`th request."""
        async with asyncio.timeout(PATIENCE):
            await self.hook.arrived(HOOK, number)
        return [one for one in self.hook.arrivals if one.path == "/hook"][number - 1]

    async def tried(self) -> None:
        """Wait until no request to the receiver is under way: the clock stands still meanwhile."""
        sending = [task for task in asyncio.all_tasks() if task.get_name().startswith("tell ")]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*sending)

    async def taken(self, job: str) -> None:
        """Wait until it is stored that the telling of a case has arrived."""
        async with asyncio.timeout(PATIENCE):
            while True:
                news = self.on.app.store.news
                at = (await self.case(job)).announce_at
                if at is None or at > self.on.now + 30 * MINUTE:  # no try is that far away
                    return
                await news.wait()


def configured(home: Path, hook: str, more: str = "") -> None:
    secret = home / "webhook.secret"
    secret.write_text("whsec_" + base64.b64encode(SECRET).decode())
    (home / "config.toml").write_text(
        f'console_url = "https://console.example"\n'
        f'[notify]\nwebhook = "{hook}/hook"\nsecret = "file:{secret}"\n{more}'
    )


@asynccontextmanager
async def telling(home: Path, *steps: Step, more: str = "") -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with furnished(home, STOPS, states=FOREVER) as provider, FakeProvider() as hook:
        hook.script(HOOK, *(steps or [Answer(204)] * 20))
        configured(home, hook.base_url, more)
        async with process(provider, home, clock) as on:
            yield Scene(on, hook)


def verified(got: Arrival) -> Data:
    """The body of a telling whose signature was checked as its receiver would."""
    name, at = got.headers["webhook-id"], got.headers["webhook-timestamp"]
    content = f"{name}.{at}.".encode() + got.body
    mac = base64.b64encode(hmac.new(SECRET, content, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{mac}"
    body: Data = json.loads(got.body)
    return body


# --- the webhook ----------------------------------------------------------------------------


@pytest.mark.requirement("E14")
async def test_a_case_reaches_the_webhook_signed_whole_and_once(tmp_path: Path) -> None:
    async with telling(tmp_path) as scene:
        job = await scene.stopped(purpose="month-end \u202e report")
        case = await scene.case(job)
        await scene.beat()
        got = await scene.told(1)

        body = verified(got)
        assert got.headers["webhook-id"] == f"{case.id}.1"
        assert got.headers["content-type"] == "application/json"
        assert body["data"] == {
            "case": case.id,
            "number": 1,
            "operation_id": job,
            "reason": "request_budget_exhausted",
            "urgency": "today",
            "text": case.text,
            "options": ["extend", "check_again", "abandon"],
            "decide_at": f"https://console.example/escalations/{case.id}",
            "opened_at": "2026-11-30T10:30:00Z",
            "times": 1,
            "group": None,
            "alike": 1,
        } | {"opened_at": body["data"]["opened_at"]}
        assert "\u202e" not in body["data"]["text"]
        await scene.taken(job)
        for _ in range(5):
            await scene.beat()
        assert scene.hook.count(HOOK) == 1


@pytest.mark.requirement("E13", "E14")
async def test_people_are_told_again_by_the_contracts_list_until_somebody_decides(
    tmp_path: Path,
) -> None:
    async with telling(tmp_path) as scene:
        job = await scene.stopped()
        case = await scene.case(job)
        for number, after in enumerate((0, HOUR, 24 * HOUR), 1):
            await scene.beat(max(BEAT, case.opened_at + after - scene.on.now))
            assert verified(await scene.told(number))["data"]["times"] == number
            await scene.taken(job)
        assert scene.hook.count(HOOK) == 3
        assert (await scene.on.operation(job)).state == "escalated"
        await scene.on.decide(job, Option.ABANDON)
        await scene.beat(72 * HOUR)
        assert scene.hook.count(HOOK) == 3


@pytest.mark.requirement("E14")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Answer(500), id="fails"),
        pytest.param(Answer(302, headers=(("Location", "/elsewhere"),)), id="redirects"),
        pytest.param(Answer(410), id="gone"),
    ],
)
async def test_a_dead_webhook_is_tried_five_times_under_one_id_and_holds_up_nothing(
    tmp_path: Path, step: Step
) -> None:
    async with telling(tmp_path, *[step] * 20) as scene:
        job = await scene.stopped()
        case = await scene.case(job)
        for _ in range(40):
            await scene.beat(MINUTE)
            await scene.tried()
        await scene.told(5)
        tries = [one for one in scene.hook.arrivals if one.path == "/hook"]
        assert {one.headers["webhook-id"] for one in tries} == {f"{case.id}.1"}
        assert len(tries) == 5
        assert len(scene.hook.arrivals) == 5  # nobody followed a redirect
        assert "failed_at" in last(tmp_path)
        await scene.beat(case.opened_at + HOUR + 1 - scene.on.now)
        assert (await scene.told(6)).headers["webhook-id"] == f"{case.id}.2"


@pytest.mark.requirement("E14")
async def test_a_webhook_that_never_answers_delays_no_operation(tmp_path: Path) -> None:
    async with telling(tmp_path, *[Answer(204, gate="never")] * 20) as scene:
        await scene.stopped()
        await scene.beat()
        await scene.told(1)
        scene.on.provider.job("exp_2", ["queued", "done"])
        other = await scene.on.submit("other")
        assert (await scene.on.end_of(other))["state"] == "succeeded"
        scene.hook.release("never")


@pytest.mark.requirement("E14")
async def test_two_processes_tell_once(tmp_path: Path) -> None:
    async with telling(tmp_path) as scene, process(scene.on.provider, tmp_path, scene.on.clock):
        job = await scene.stopped()
        for _ in range(4):
            await scene.beat(processes=2)
        await scene.told(1)
        await scene.taken(job)
        await scene.beat(processes=2)
        assert scene.hook.count(HOOK) == 1
        events = await scene.on.events(job)
        assert [event.code for event in events].count("announced") == 1


@pytest.mark.requirement("E14", "E15")
async def test_equal_cases_of_one_scope_are_one_message(tmp_path: Path) -> None:
    async with telling(tmp_path) as scene:
        on = scene.on
        on.provider.job("exp_2", list(FOREVER))
        jobs = [await on.submit("one"), await on.submit("two")]
        for route in (STATUS, "GET /exports/exp_2"):
            on.script(retry_after(7_200), route=route)
        await on.at(max([(await on.operation(job)).next_at or 0 for job in jobs]))
        first, second = [await scene.case(job) for job in jobs]
        assert first.group == second.group is not None
        await scene.beat()
        data = verified(await scene.told(1))["data"]
        assert (data["case"], data["group"], data["alike"]) == (first.id, first.group, 2)
        await scene.taken(jobs[0])
        await scene.beat()
        assert scene.hook.count(HOOK) == 1
        assert (await scene.case(jobs[1])).announced == 1


async def test_what_is_less_urgent_than_wanted_is_not_sent(tmp_path: Path) -> None:
    async with telling(tmp_path, more='urgency = "now"\n') as scene:
        job = await scene.stopped()
        await scene.beat()
        await scene.beat()
        assert (await scene.case(job)).announced == 1
        assert scene.hook.count(HOOK) == 0


# --- answers that stand ---------------------------------------------------------------------

STANDING = """
[[standing]]
provider = "exp"
reason = "request_budget_exhausted"
option = "extend"
parameters = { minutes = 10 }
times = 2
until = 2026-12-31
operator = "anna"
"""


@pytest.mark.requirement("E16")
async def test_a_standing_answer_is_given_so_often_and_recorded_as_its_own_channel(
    tmp_path: Path,
) -> None:
    async with telling(tmp_path, more=STANDING) as scene:
        job = await scene.stopped()
        for used in (1, 2):
            await scene.beat()
            assert (await scene.on.operation(job)).extensions.used == used
            await scene.on.end_of(job)
        await scene.beat()
        left = await scene.case(job)
        assert (left.number, left.announced) == (3, 1)
        cases = await scene.on.app.store.read.cases_of(job)
        decision = cases[0].decision
        assert decision is not None
        assert (decision["operator"], decision["channel"]) == ("anna", "standing")
        assert decision["extend_by"] == 10 * MINUTE
        story = (await scene.on.full(job, timeline=True))["timeline"]
        assert any("anna decided extend" in line and "standing" in line for line in story)


@pytest.mark.requirement("E16")
async def test_a_standing_answer_that_ended_or_is_about_something_else_answers_nothing(
    tmp_path: Path,
) -> None:
    ended = STANDING.replace("2026-12-31", "2026-11-29")
    other = STANDING.replace("request_budget_exhausted", "deadline_exceeded")
    async with telling(tmp_path, more=ended + other) as scene:
        job = await scene.stopped()
        await scene.beat()
        await scene.beat()
        assert (await scene.on.operation(job)).extensions.used == 0
