"""What is one too many: items of a walk, work of a task, requests that wait in a scope."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    FOREVER,
    MINUTE,
    SUBMIT,
    TRANSFER,
    Data,
    Stage,
    error,
    furnished,
    process,
    says,
    several,
    stage,
)
from tests.support import ManualClock

from forbear.server.fake import Answer, FakeProvider

pytestmark = pytest.mark.anyio

DETAIL: Data = {
    "method": "GET",
    "path": "/customers/{arg.id}",
    "instead_of_many": "customers",
    "walk_limit": 3,
}
CALLS: Data = {
    "customer": DETAIL,
    "customers": {"method": "GET", "path": "/customers"},
    "transfer": TRANSFER,
}
ALL = 'read_api(provider="exp", call="customers", arguments={})'


def details(provider: FakeProvider, count: int) -> None:
    """Let every customer be there, several times."""
    for number in range(count):
        provider.script(f"GET /customers/c_{number}", *[Answer(json={})] * 3)


async def item(on: Stage, number: int, **more: Any) -> Data:
    return await on.read("customer", arguments={"id": f"c_{number}"}, **more)


def limited(home: Path, **task: object) -> None:
    """Bound every task of a home."""
    stated = "".join(f"{name} = {json.dumps(value)}\n" for name, value in task.items())
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f"[task]\n{stated}")


# --- walks ----------------------------------------------------------------------------------


@pytest.mark.requirement("R28")
async def test_a_walk_is_advised_from_its_second_item_and_refused_after_its_limit(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        details(on.provider, 5)
        assert "advice" not in await item(on, 0)
        for number in (1, 2):
            assert ALL in (await item(on, number))["advice"]
        refused = error(await item(on, 3, task="another"))

        assert refused["code"] == "use_instead"
        assert ALL in refused["next_step"]
        assert "3 items one by one" in refused["message"]
        assert len((await on.call("operation_status"))["operations"]) == 3
        assert len(on.provider.arrivals) == 3


@pytest.mark.requirement("R28")
async def test_an_item_that_was_read_before_is_no_new_item(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        details(on.provider, 5)
        for _ in range(3):
            assert "advice" not in await item(on, 0)
        for number in (1, 2, 1, 0):
            if number:
                assert (await item(on, number))["state"] == "succeeded"
        assert error(await item(on, 3))["code"] == "use_instead"
        assert (await item(on, 2))["state"] == "succeeded"


@pytest.mark.requirement("R28")
async def test_a_walk_is_forgotten_after_ten_minutes(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        details(on.provider, 5)
        for number in range(3):
            await item(on, number)
        await on.passes(10 * MINUTE - 10)
        assert error(await item(on, 3))["code"] == "use_instead"
        await on.passes(20)

        told = await item(on, 3)
        assert told["state"] == "succeeded"
        assert "advice" not in told


@pytest.mark.requirement("R28")
async def test_a_call_without_a_better_one_may_be_walked(tmp_path: Path) -> None:
    free = {name: value for name, value in DETAIL.items() if name in ("method", "path")}
    async with stage(tmp_path, calls={"customer": free}) as on:
        details(on.provider, 5)
        for number in range(5):
            assert "advice" not in await item(on, number)


# --- tasks ----------------------------------------------------------------------------------


@pytest.mark.requirement("R05")
async def test_a_task_ends_at_its_requests_however_it_is_split(tmp_path: Path) -> None:
    limited(tmp_path, max_requests=4)
    async with stage(tmp_path, calls=CALLS) as on:
        on.script(Answer(503), Answer(json={}), route="GET /customers/c_0")
        first = await item(on, 0, task="report")
        await on.end_of(first["operation_id"])
        on.script(says("running"), says("running"))
        job = await on.submit(task="report")
        await on.due(job)
        refused = error(await on.read("customers", task="report"))

        assert refused["code"] == "scope_full"
        assert "Task report has used 4 of its 4 requests, sent or waiting." in refused["message"]
        assert "another task name" in refused["next_step"]
        assert error(await on.asked("other", task="report"))["code"] == "scope_full"
        await on.due(job)  # what runs goes on by its own bounds
        assert on.count() == 2
        on.script(Answer(json={}), route="GET /customers")
        assert (await on.read("customers", task="another"))["state"] == "succeeded"


@pytest.mark.requirement("R05")
async def test_a_request_that_provably_never_left_costs_a_task_nothing(tmp_path: Path) -> None:
    limited(tmp_path, max_requests=1)
    async with stage(tmp_path, calls=CALLS) as on:
        await on.provider.stop()
        await on.end_of((await on.read("customers", task="report"))["operation_id"])
        await on.provider.start()
        details(on.provider, 1)

        told = await item(on, 0, task="report", wait_seconds=0)
        assert error(await item(on, 1, task="report"))["code"] == "scope_full"
        assert (await on.end_of(told["operation_id"]))["state"] == "succeeded"
        assert error(await item(on, 1, task="report"))["code"] == "scope_full"


@pytest.mark.requirement("R05")
async def test_a_task_ends_at_its_waited_time(tmp_path: Path) -> None:
    limited(tmp_path, max_wait="30s")
    async with stage(tmp_path, calls=CALLS) as on:
        later = Answer(503, headers=(("Retry-After", "20"),))
        for number in (0, 1):
            route = f"GET /customers/c_{number}"
            on.script(later, Answer(json={}), route=route)
            await on.end_of((await item(on, number, task="report"))["operation_id"])
        refused = error(await item(on, 0, task="report"))

        assert "of its 30 seconds of waiting" in refused["message"]


@pytest.mark.requirement("R05")
async def test_a_task_has_so_many_open_operations_and_no_more(tmp_path: Path) -> None:
    limited(tmp_path, max_open_operations=2)
    async with stage(tmp_path, states=FOREVER) as on:
        on.provider.job("exp_2", list(FOREVER))
        jobs = [await on.submit(name, task="report") for name in ("a", "b")]
        refused = error(await on.asked("c", task="report"))
        assert "Task report has 2 of at most 2 open operations" in refused["message"]
        assert 'operation_status(task="report")' in refused["next_step"]
        assert (await on.asked("a", task="report"))["operation_id"] == jobs[0]
        await on.call("end_task", operation_id=jobs[0])
        on.provider.job("exp_3", list(FOREVER))

        assert (await on.asked("c", task="report"))["state"] == "waiting"
        assert on.count(SUBMIT) == 3


@pytest.mark.requirement("R05", "R23")
async def test_a_shared_read_counts_for_each_of_its_tasks(tmp_path: Path) -> None:
    limited(tmp_path, max_requests=1)
    calls = {"customer": {"method": "GET", "path": "/customers/{arg.id}", "coalesce": "2s"}}
    async with stage(tmp_path, calls=calls) as on:
        details(on.provider, 2)
        for task in ("one", "two"):
            assert (await item(on, 0, task=task))["state"] == "succeeded"
        assert (await item(on, 0, task="one"))["joined"] is True  # no new work of this task
        for task in ("one", "two"):
            assert error(await item(on, 1, task=task))["code"] == "scope_full"
        assert (await item(on, 1, task="three"))["state"] == "succeeded"
        assert error(await item(on, 0, task="three"))["code"] == "scope_full"

        assert len(on.provider.arrivals) == 2


@pytest.mark.requirement("R05")
async def test_bu_01_the_last_request_of_a_task_is_given_once(tmp_path: Path) -> None:
    """BU-01: five calls in two processes see the same one unit left."""
    limited(tmp_path, max_requests=1)
    async with (
        furnished(tmp_path, states=None, calls={"customer": CALLS["customers"]}) as at,
        several(tmp_path, 2) as clients,
    ):
        at.script("GET /customers", *[Answer(json={}, gate="slow")] * 5)
        passed: Data = {"provider": "exp", "call": "customer", "arguments": {}, "task": "one"}
        asked = [clients[n % 2].call_tool("read_api", passed) for n in range(5)]
        running = [asyncio.create_task(one) for one in asked]
        await at.arrived("GET /customers")
        at.release("slow")
        answers = [(await one).structured_content for one in running]

        refused = [told["error"]["code"] for told in answers if told and "error" in told]
        assert refused == ["scope_full"] * 4
        assert at.count("GET /customers") == 1


# --- scopes ---------------------------------------------------------------------------------


def narrow(**scope: object) -> Data:
    return {"account": {"per": "account", "rate": "1/1m", **scope}}


@pytest.mark.requirement("R07")
async def test_what_waits_in_a_scope_is_bounded_and_the_next_is_refused(tmp_path: Path) -> None:
    scopes = narrow(max_delayed_requests=2)
    async with stage(tmp_path, calls=CALLS, scopes=scopes) as on:
        first = await on.submit("a")
        for name in ("b", "c"):
            assert (await on.asked(name, wait_seconds=0))["state"] == "queued"
        read = error(await on.read("customers"))
        job = error(await on.asked("d"))
        for refused in (read, job):
            assert refused["code"] == "scope_full"
            assert "exp/default/account already has 2 requests waiting" in refused["message"]
            assert "until about 10:" in refused["message"]
        assert (await on.asked("b", wait_seconds=0))["joined"] is True
        assert len((await on.call("operation_status"))["operations"]) == 3

        assert (await on.full(first))["state"] == "waiting"
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("R07")
async def test_two_processes_share_the_places_of_a_scope(tmp_path: Path) -> None:
    clock, scopes = ManualClock(), narrow(max_delayed_requests=2)
    async with (
        stage(tmp_path, states=FOREVER, clock=clock, scopes=scopes) as on,
        process(on.provider, tmp_path, clock) as other,
    ):
        await on.submit("a")
        asked = [
            where.call(
                "submit_job",
                provider="exp",
                job="export",
                arguments={"dataset": f"d{n}"},
                wait_seconds=0,
            )
            for n, where in enumerate((on, other) * 3)
        ]
        answers = await asyncio.gather(*asked)

        assert sum("error" in told for told in answers) == 4
        assert len((await on.call("operation_status"))["operations"]) == 3


@pytest.mark.requirement("R07")
async def test_scheduled_checks_and_what_a_person_must_approve_take_no_place(
    tmp_path: Path,
) -> None:
    scopes = narrow(rate="1000/1s", max_delayed_requests=1)
    asked = TRANSFER | {"approval": "per_call"}
    async with stage(tmp_path, states=FOREVER, calls={"transfer": asked}, scopes=scopes) as on:
        for number in (2, 3):
            on.provider.job(f"exp_{number}", list(FOREVER))
        for amount in range(3):
            assert (await on.write(amount))["waiting_for"] == "approval"
        for name in ("a", "b", "c"):
            assert (await on.asked(name))["state"] == "waiting"


@pytest.mark.requirement("R07")
async def test_every_scope_that_names_an_action_counts(tmp_path: Path) -> None:
    scopes = {
        "account": {"per": "account", "rate": "1/1m", "max_delayed_requests": 9},
        "reads": {
            "per": "provider",
            "rate": "1/1m",
            "actions": ["customers"],
            "max_delayed_requests": 1,
        },
    }
    async with stage(tmp_path, calls=CALLS, scopes=scopes, states=FOREVER) as on:
        await on.submit("a")
        assert (await on.read("customers", wait_seconds=0))["state"] == "queued"
        refused = error(await on.read("customers", wait_seconds=0))
        assert "exp/reads already has 1 requests waiting" in refused["message"]
        assert (await on.asked("b", wait_seconds=0))["state"] == "queued"
