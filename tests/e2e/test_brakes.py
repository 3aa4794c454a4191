"""What stops work: the end of a task, and a person's pause. Nothing is sent past either."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests import stores
from tests.e2e.harness import (
    EXPORT,
    FINDABLE,
    FOREVER,
    KEYED,
    LOOK,
    LOOKUP,
    MINUTE,
    PROVABLE,
    SUBMIT,
    TRANSFER,
    UNHURRIED,
    WRITE,
    Data,
    Stage,
    bank,
    error,
    stage,
)

from forbear.rules.model import Option
from forbear.server import cli
from forbear.server.fake import Answer, Drop, retry_after

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
CALLS: Data = {
    "customer": {"method": "GET", "path": "/customers/{arg.id}", "timeout": "1s"},
    "transfer": TRANSFER | KEYED,
}

LOST = Drop("after", effect=True)
UNDONE = Drop("after")


async def end(on: Stage, task: str = "month-end") -> Data:
    ended = await on.call("end_task", task=task, reason="the user said stop")
    assert "error" not in ended, ended
    await on.settled()
    return ended


@pytest.fixture
def forbear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"FORBEAR_HOME": str(tmp_path), **stores.environment(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


async def typed(on: Stage, *words: str) -> None:
    """What an operator types in a terminal, while the process runs."""
    assert await asyncio.to_thread(cli.run, words) == 0
    on.app.store.look_elsewhere()
    await on.settled()


# --- end_task -------------------------------------------------------------------------------


@pytest.mark.requirement("R22")
async def test_what_a_task_has_not_sent_is_dropped_and_never_wakes(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        on.script(retry_after(10), route=READ)
        on.script(retry_after(10), route=WRITE)
        read = await on.read("customer", arguments={"id": "c_1"}, task="month-end")
        write = await on.write(task="month-end", wait_seconds=0)
        ended = await end(on)

        assert {one["state"] for one in ended["operations"]} == {"discarded"}
        assert {one["operation_id"] for one in ended["operations"]} == {
            read["operation_id"],
            write["operation_id"],
        }
        assert ended["next_step"].startswith("Ended: nothing of it will be sent any more.")
        before = len(on.provider.arrivals)
        await on.passes(60 * MINUTE)
        assert len(on.provider.arrivals) == before
        assert on.provider.effects == []


@pytest.mark.requirement("R22")
async def test_a_task_that_ended_takes_no_new_work_and_another_name_does(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        await end(on)
        for refused in (
            error(await on.read("customer", arguments={"id": "c_1"}, task="month-end")),
            error(await on.write(task="month-end")),
            error(await on.asked(task="month-end")),
        ):
            assert refused["code"] == "task_ended"
            assert "new task name" in refused["next_step"]
        assert on.provider.arrivals == []
        assert (await on.write(task="quarter-end"))["state"] == "succeeded"


@pytest.mark.requirement("R22", "D06")
async def test_what_is_on_its_way_when_its_task_ends_keeps_its_outcome(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        on.script(Answer(202, {"id": "tr_1"}, gate="slow", effect=True), route=WRITE)
        write = await on.call(
            "write_api",
            provider="exp",
            call="transfer",
            arguments={"amount": 5},
            task="month-end",
            wait_seconds=0,
        )
        await on.provider.arrived(WRITE)
        ended = await on.call("end_task", task="month-end")
        assert "kept until the outcome is known" in ended["next_step"]
        assert ended["operations"][0]["state"] == "sending"
        on.provider.release("slow")
        await on.settled()

        assert (await on.full(write["operation_id"]))["state"] == "succeeded"
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R22")
@pytest.mark.parametrize("lost", [LOST, UNDONE, Answer(503)], ids=["done", "not done", "503"])
async def test_what_is_on_its_way_when_its_task_ends_is_not_sent_again(
    tmp_path: Path, lost: Drop | Answer
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        slow = (
            Answer(503, gate="slow")
            if isinstance(lost, Answer)
            else Drop(effect=lost.effect, gate="slow")
        )
        on.script(slow, route=WRITE)
        asked = asyncio.create_task(on.write(task="month-end"))
        await on.provider.arrived(WRITE)
        await on.call("end_task", task="month-end")
        on.provider.release("slow")
        told = await asked

        assert (await on.full(told["operation_id"]))["escalation"]["reason"] == "unclear_write"
        await on.passes(60 * MINUTE)
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R22")
async def test_a_repetition_under_its_key_is_not_made_once_the_task_has_ended(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        on.script(LOST, route=WRITE)
        write = await on.write(task="month-end")
        assert write["state"] == "unclear"
        (ended,) = (await end(on))["operations"]

        assert ended["escalation"]["reason"] == "unclear_write"
        await on.passes(60 * MINUTE)
        assert on.count(WRITE) == 1
        await on.decide(write["operation_id"], Option.RESEND_SAME_KEY)
        assert (await on.full(write["operation_id"]))["state"] == "succeeded"
        assert len(on.provider.effects) == 1


@pytest.mark.requirement("R22", "R24")
@pytest.mark.parametrize(
    ("step", "state"), [(LOST, "succeeded"), (UNDONE, "discarded")], ids=["done", "not done"]
)
async def test_an_unclear_write_of_an_ended_task_is_looked_up_on_and_not_made_again(
    tmp_path: Path, step: Drop, state: str
) -> None:
    async with bank(tmp_path, TRANSFER | KEYED | PROVABLE) as on:
        on.script(step, route=WRITE)
        write = await on.write(task="month-end")
        (kept,) = (await end(on))["operations"]
        assert (kept["operation_id"], kept["state"]) == (write["operation_id"], "unclear")
        ended = await on.end_of(write["operation_id"])

        assert ended["state"] == state
        assert on.count(LOOK) >= 1
        await on.passes(60 * MINUTE)
        assert on.count(WRITE) == 1


async def test_a_running_job_of_an_ended_task_is_left_alone_and_it_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit(task="month-end")
        (ended,) = (await end(on))["operations"]

        assert (ended["operation_id"], ended["state"]) == (job, "discarded")
        assert ended["notices"] == ["may_still_run"]
        before = len(on.provider.arrivals)
        await on.passes(60 * MINUTE)
        assert len(on.provider.arrivals) == before


async def test_what_another_task_needs_too_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit(task="month-end")
        assert (await on.submit(task="audit")) == job
        assert (await end(on))["operations"] == []
        await on.due(job)
        assert (await on.full(job))["state"] == "waiting"
        (ended,) = (await end(on, "audit"))["operations"]

        assert ended["state"] == "discarded"


async def test_one_operation_is_ended_by_its_id(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        on.script(retry_after(10), route=READ)
        read = (await on.read("customer", arguments={"id": "c_1"}))["operation_id"]
        ended = await on.call("end_task", operation_id=read)
        assert ended["operations"][0]["state"] == "discarded"
        refused = error(await on.call("end_task", operation_id="op_nothing"))

        assert refused["code"] == "unknown_operation"
        await on.passes(60 * MINUTE)
        assert on.count(READ) == 1


# --- pause ----------------------------------------------------------------------------------


@pytest.mark.requirement("D12")
@pytest.mark.parametrize("target", ["exp", "all"])
async def test_a_pause_stops_checks_and_new_work_until_it_is_undone(
    forbear: Path, target: str
) -> None:
    async with stage(forbear, states=FOREVER, calls=CALLS) as on:
        job = await on.submit()
        await typed(on, "pause", target)
        for refused in (
            error(await on.asked("other")),
            error(await on.write()),
            error(await on.read("customer", arguments={"id": "c_1"})),
        ):
            assert refused["code"] == "paused"
            assert target in refused["message"]
            assert "forbear resume" in refused["next_step"]
        await on.passes(5 * MINUTE)
        assert len(on.provider.arrivals) == 1
        assert (await on.check(job))["state"] == "waiting"
        await typed(on, "resume", target)
        await on.passes(MINUTE)

        assert on.count() > 0
        assert (await on.write())["state"] == "succeeded"


@pytest.mark.requirement("D12")
async def test_a_pause_of_another_provider_stops_nothing_here(forbear: Path) -> None:
    async with stage(forbear, states=FOREVER) as on:
        other = (forbear / "contracts" / "exp.toml").read_text()
        (forbear / "contracts" / "other.toml").write_text(other)
        job = await on.submit()
        await typed(on, "pause", "other")
        await on.due(job)

        assert on.count() == 1


@pytest.mark.requirement("D12")
async def test_a_pause_outlasts_processes_and_deadlines_fall_meanwhile(forbear: Path) -> None:
    async with stage(forbear, EXPORT | {"deadline": "10m", "usual": "2m"}, states=FOREVER) as on:
        job = await on.submit()
        await typed(on, "pause", "exp")
        await on.passes(11 * MINUTE)

        assert await on.reason(job) == "deadline_exceeded"
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("D12", "R24")
async def test_lookups_go_on_in_a_pause_and_the_resend_waits_for_its_end(forbear: Path) -> None:
    quick = {"lookup": LOOKUP | {"absence_proves": True, "settle": "10s"}}
    async with bank(forbear, TRANSFER | quick) as on:
        on.script(UNDONE, route=WRITE)
        write = (await on.write())["operation_id"]
        await typed(on, "pause", "exp")
        await on.passes(2 * MINUTE)
        assert (on.count(WRITE), on.count(LOOK)) == (1, 2)
        assert (await on.full(write))["state"] == "unclear"
        await typed(on, "resume", "exp")
        await on.passes(MINUTE)

        assert (await on.full(write))["state"] == "succeeded"
        assert on.count(WRITE) == 2
        assert len(on.provider.effects) == 1


async def test_a_resend_that_a_pause_keeps_past_the_keys_time_is_not_made(forbear: Path) -> None:
    short = {"idempotency": KEYED["idempotency"] | {"window": "30s"}}
    async with bank(forbear, TRANSFER | short) as on:
        on.script(Answer(503, headers=(("Retry-After", "60"),)), route=WRITE)
        write = (await on.write())["operation_id"]
        await typed(on, "pause", "exp")
        await on.decide(write, Option.RESEND_SAME_KEY)
        await on.passes(2 * MINUTE)
        await typed(on, "resume", "exp")
        await on.passes(MINUTE)
        told = await on.full(write)

        assert told["escalation"]["reason"] == "unclear_write"
        assert "resend_same_key" not in [one["id"] for one in told["escalation"]["options"]]
        assert on.count(WRITE) == 1


async def test_what_is_on_its_way_when_a_pause_comes_is_recorded(forbear: Path) -> None:
    async with bank(forbear, TRANSFER | FINDABLE | UNHURRIED) as on:
        on.script(Answer(202, {"id": "tr_1"}, gate="slow", effect=True), route=WRITE)
        asked = asyncio.create_task(on.write(wait_seconds=50))
        await on.provider.arrived(WRITE)
        assert await asyncio.to_thread(cli.run, ("pause", "exp")) == 0
        on.provider.release("slow")
        told = await asked

        assert (told["state"], told["provider_job"]["id"]) == ("succeeded", "tr_1")
        assert on.count(SUBMIT) == 0
