"""What the product is for: waiting that costs the provider no more than its schedule."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import pytest
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    another_chat,
    call,
    error,
    furnished,
    process,
    says,
    stage,
)
from tests.support import ManualClock

from forbear.rules.model import Priority
from forbear.server.fake import Answer
from forbear.tools.caller import only

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("W01", "M09")
async def test_five_hundred_checks_in_a_loop_cost_the_provider_not_one_request(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        for _ in range(500):
            await on.check(job)

        assert on.count(STATUS) == 0
        planned = await on.operation(job)
        assert planned.next_at is not None
        await on.at(planned.next_at - 2)
        assert on.count(STATUS) == 0
        await on.at(planned.next_at)
        for _ in range(20):
            await on.check(job)
        assert on.count(STATUS) == 1


@pytest.mark.requirement("M09")
async def test_a_client_that_goes_on_asking_is_told_to_stop_and_then_refused(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        answers = [await on.check(job) for _ in range(10)]

        told = [answer["next_step"] for answer in answers if "error" not in answer]
        assert len(told) == 8
        assert all("end your turn" not in text for text in told[:3])
        assert all("end your turn" in text for text in told[3:])
        refused = error(answers[8])
        assert refused["code"] == "nothing_new"
        assert "end your turn" in refused["next_step"]
        assert error(answers[9])["code"] == "nothing_new"


@pytest.mark.requirement("M09")
async def test_news_gives_a_client_its_patience_back(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        for _ in range(9):
            await on.check(job)
        assert "error" in await on.check(job)
        await on.due(job)
        await on.due(job)
        answer = await on.check(job)

        assert answer["provider_job"]["state"] == "running"
        assert "end your turn" not in answer["next_step"]


@pytest.mark.requirement("M09")
async def test_the_patience_of_one_client_is_not_that_of_another(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        for _ in range(9):
            await on.check(job)
        async with process(on.provider, on.home, on.clock) as other:
            assert (await other.check(job))["state"] == "waiting"
        assert error(await on.check(job))["code"] == "nothing_new"


@pytest.mark.requirement("W01")
async def test_a_running_job_refuses_its_result_and_work_that_needs_it(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()

        fetched = error(await on.call("fetch_result", operation_id=job))
        dependent = error(await on.asked("other", depends_on=[job]))

        assert (fetched["code"], dependent["code"]) == ("not_ready", "not_ready")
        assert job in fetched["next_step"]
        assert on.count(SUBMIT) == 1
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("R14", "W17")
async def test_the_same_job_asked_for_from_everywhere_happens_once(tmp_path: Path) -> None:
    clock = ManualClock()
    same: Data = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}
    async with furnished(tmp_path, states=FOREVER) as provider:
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit(task="one")
            await on.due(job)
            used = (await on.full(job))["budgets"]["status_requests"]["used"]

            again = await on.asked(task="two")
            assert (again["operation_id"], again["joined"]) == (job, True)
            async with another_chat(on) as chat:
                assert (await call(chat, "submit_job", **same))["operation_id"] == job
            async with process(provider, tmp_path, clock) as other:
                assert (await other.asked())["operation_id"] == job
                minted = error(await other.asked(idempotency_key="try-2"))
                assert (minted["code"], minted["operation_id"]) == ("possible_duplicate", job)
            assert sorted((await on.full(job))["tasks"]) == ["one", "two"]
        async with process(provider, tmp_path, clock) as restarted:
            assert (await restarted.asked())["operation_id"] == job
            full = await restarted.full(job)

        assert full["budgets"]["status_requests"]["used"] == used == provider.count(STATUS)
        assert provider.count(SUBMIT) == len(provider.effects) == 1


@pytest.mark.requirement("R14")
async def test_a_job_that_was_done_is_not_done_again_unasked(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        job = await on.submit()
        assert (await on.end_of(job))["state"] == "succeeded"

        again = error(await on.asked())
        assert (again["code"], again["operation_id"]) == ("possible_duplicate", job)
        assert "fetch_result" in again["next_step"]
        await on.passes(11 * MINUTE)
        on.provider.job("exp_2", ["running"])
        assert (await on.asked())["operation_id"] != job
        assert on.count(SUBMIT) == 2


@pytest.mark.requirement("R14")
async def test_where_the_contract_takes_keys_a_job_is_done_again_under_a_new_one(
    tmp_path: Path,
) -> None:
    """A pipeline that failed is run again after a change that its arguments do not show."""
    async with stage(tmp_path, NO_RESULT | {"repeat": "key"}, states=("failed",)) as on:
        job = await on.submit()
        assert (await on.end_of(job))["state"] == "failed"

        again = error(await on.asked())
        assert (again["code"], again["operation_id"]) == ("possible_duplicate", job)
        assert "with an idempotency_key of your own" in again["next_step"]
        on.provider.job("exp_2", ["running"])
        assert (await on.asked(idempotency_key="after the fix"))["operation_id"] != job
        assert on.count(SUBMIT) == 2


async def test_fifty_jobs_of_one_moment_spread_their_polls(tmp_path: Path) -> None:
    scopes = {"account": {"per": "account", "rate": "10/1s", "max_delayed_requests": 50}}
    async with stage(tmp_path, states=None, scopes=scopes) as on:
        for number in range(50):
            on.provider.job(f"exp_{number}", FOREVER)
        jobs = [await on.asked(f"set-{number}", wait_seconds=0) for number in range(50)]
        polls: Counter[int] = Counter()
        seen, end = 0, on.now + 4 * MINUTE
        while on.now < end:
            planned = await on.app.store.read.next_due(on.now)
            assert planned is not None
            await on.at(planned)
            polls[on.now // 1000] += on.count("GET /exports/") - seen
            seen = on.count("GET /exports/")

        assert len({answer["operation_id"] for answer in jobs}) == 50
        assert on.count(SUBMIT) == len(on.provider.effects) == 50
        assert polls.total() >= 75
        assert max(polls.values()) <= 9  # nine tenths of what the provider publishes
        assert sum(count > 0 for count in polls.values()) >= polls.total() / 2


@pytest.mark.requirement("D06")
async def test_a_call_cancelled_in_the_middle_of_a_submission_loses_nothing(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=("running", "done")) as on:
        on.script(
            Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow", effect=True), route=SUBMIT
        )
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as tasks:

                async def submit() -> None:
                    await on.call(
                        "submit_job",
                        provider="exp",
                        job="export",
                        arguments={"dataset": "sales"},
                        wait_seconds=50,
                    )

                tasks.start_soon(submit)
                await on.provider.arrived(SUBMIT)
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        on.provider.release("slow")
        await on.settled()

        (found,) = (await on.call("operation_status"))["operations"]
        assert found["provider_job"]["id"] == "exp_1"
        assert found["state"] == "waiting"
        assert (await on.asked())["operation_id"] == found["operation_id"]
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("D01", "D06")
async def test_a_call_cancelled_at_any_moment_was_never_stored_or_is_carried(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=None) as on:
        moments = 60
        for moment in range(moments):
            on.provider.job(f"exp_{moment + 1}", ["running"])
            asking = asyncio.create_task(
                on.app.desk.submit_job(
                    provider="exp",
                    job="export",
                    arguments={"dataset": f"d{moment}"},
                    purpose=None,
                    task=None,
                    idempotency_key=None,
                    depends_on=(),
                    deadline_seconds=None,
                    max_status_requests=None,
                    useful_for_seconds=None,
                    priority=Priority.INTERACTIVE,
                    wait_seconds=30,
                    caller=only("agent")(None),
                    report=None,
                )
            )
            for _ in range(moment):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await on.settled()

        stored = await on.app.store.read.find(limit=100)
        assert 0 < len(stored) <= moments
        assert {op.state for op in stored} == {"waiting"}
        assert on.count(SUBMIT) == len(on.provider.effects) == len(stored)


@pytest.mark.requirement("W01")
async def test_a_job_that_nobody_asks_about_ends_by_its_deadline(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        await on.passes(HOUR)

        ended = await on.full(job)
        assert ended["state"] == "escalated"
        assert ended["escalation"]["reason"] in ("deadline_exceeded", "request_budget_exhausted")
        used = ended["budgets"]["status_requests"]
        assert on.count() == used["used"] <= used["max"]
        await on.passes(24 * HOUR)
        assert on.count() == used["used"]


@pytest.mark.requirement("W11", "W16")
async def test_a_laptop_that_slept_past_the_deadline_sends_nothing_on_waking(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        on.clock.suspend(3 * HOUR)
        await on.at(on.now)

        assert await on.reason(job) == "deadline_exceeded"
        assert on.count() == 0


@pytest.mark.requirement("W11")
async def test_a_laptop_that_slept_over_many_checks_makes_one_of_them(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        on.clock.suspend(25 * MINUTE)
        await on.at(on.now)

        assert on.count() == 1
        op = await on.operation(job)
        assert op.next_at is not None
        assert op.next_at > on.now + 10_000


@pytest.mark.requirement("W27")
async def test_the_earlier_of_deadline_and_usefulness_ends_the_wait_and_is_named(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        job = await on.submit(useful_for_seconds=600)
        full = await on.full(job)
        ended = await on.end_of(job)

        assert full["useful_until"] < full["deadline_at"]
        assert ended["escalation"]["reason"] == "useful_until_passed"
        assert ended["useful_until"] == full["useful_until"]


@pytest.mark.requirement("W04", "W25", "W26")
async def test_a_finished_job_is_final_before_anything_is_fetched(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        on.script(says("done", result={"url": f"{on.provider.base_url}/files/exp_1"}))
        job = await on.submit()
        await on.end_of(job)

        answer = await on.check(job)
        assert (answer["state"], answer["may_proceed"]) == ("succeeded", True)
        assert answer["allowed_actions"] == ["fetch_result"]
        assert on.count("GET /files/") == 0


@pytest.mark.requirement("W04")
async def test_success_permits_only_what_the_contract_names(tmp_path: Path) -> None:
    job_of = EXPORT | {"success": {"then": []}}
    async with stage(tmp_path, job_of, states=("done",)) as on:
        job = await on.submit()
        await on.end_of(job)

        assert error(await on.call("fetch_result", operation_id=job))["code"] == (
            "not_allowed_in_state"
        )
        assert on.count("GET /files/") == 0
