"""Contracts that change while their jobs run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    Stage,
    contract,
    error,
    furnished,
    process,
    says,
    stage,
    write_contract,
)
from tests.support import ManualClock

from forbear.rules.model import Option
from forbear.server.fake import FakeProvider

pytestmark = pytest.mark.anyio


def rewrite(on: Stage, job: Data = NO_RESULT, **top: str) -> None:
    write_contract(on.home, contract(job, **{"base_url": on.provider.base_url, **top}))


@pytest.mark.requirement("W08")
async def test_changed_states_count_from_the_next_observation(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        rewrite(on, NO_RESULT | {"succeeded": ["done", "complete"]})
        on.script(says("complete"))

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count() == 1


@pytest.mark.requirement("W08")
async def test_changed_limits_apply_to_new_operations_only(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        before = (await on.full(job))["budgets"]["status_requests"]["max"]
        rewrite(on, NO_RESULT | {"limits": {"max_status_requests": 3}})
        await on.due(job)
        on.provider.job("exp_2", FOREVER)
        other = await on.submit("other")

        assert (await on.full(job))["budgets"]["status_requests"]["max"] == before
        assert (await on.full(other))["budgets"]["status_requests"]["max"] == 3


@pytest.mark.requirement("W08")
async def test_a_job_is_never_asked_about_at_another_address(tmp_path: Path) -> None:
    async with FakeProvider() as elsewhere, stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        elsewhere.job("exp_1", ["done"], existing=True)
        job = await on.submit()
        rewrite(on, base_url=elsewhere.base_url)
        op = await on.operation(job)
        assert op.next_at is not None
        due = op.next_at
        await on.until(job, due + 50_000)
        assert (await on.full(job))["state"] == "waiting"
        await on.until(job, due + 90_000)

        full = await on.full(job)
        assert (full["state"], full["escalation"]["reason"]) == ("escalated", "contract_changed")
        assert "rebind" in [option["id"] for option in full["escalation"]["options"]]
        assert elsewhere.arrivals == []
        assert on.count() == 0


@pytest.mark.requirement("W08")
async def test_a_person_may_take_a_job_over_to_the_changed_contract(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=("queued", "done")) as on:
        job = await on.submit()
        rewrite(on, NO_RESULT | {"status": "GET /exports/{id}/"})
        op = await on.operation(job)
        assert op.next_at is not None
        await on.until(job, op.next_at + 2 * MINUTE)
        await on.decide(job, Option.REBIND)

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count("GET /exports/exp_1/") >= 1


async def test_a_contract_that_breaks_stops_its_own_provider_and_no_other(
    tmp_path: Path,
) -> None:
    async with FakeProvider() as second, stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        second.job("exp_1", ["queued", "done"])
        write_contract(tmp_path, contract(NO_RESULT, base_url=second.base_url), "two")
        job = await on.submit()
        other = await on.submit(provider="two")
        write_contract(tmp_path, "contract = 1\nnonsense = true\n")
        assert error(await on.asked("more"))["code"] == "contract_error"

        await on.until(other, on.now + 10 * MINUTE)
        assert (await on.full(other))["state"] == "succeeded"
        assert on.count(STATUS) == 0
        await on.until(job, on.now + HOUR)
        assert (await on.full(job))["state"] == "escalated"
        assert on.count(STATUS) == 0


async def test_a_contract_that_is_mended_in_time_costs_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=("queued", "done")) as on:
        job = await on.submit()
        whole = (tmp_path / "contracts" / "exp.toml").read_text()
        write_contract(tmp_path, "contract = 1\n")
        op = await on.operation(job)
        assert op.next_at is not None
        await on.until(job, op.next_at + 30_000)
        assert on.count(STATUS) == 0
        write_contract(tmp_path, whole)
        await on.until(job, on.now + 20 * MINUTE)

        assert (await on.full(job))["state"] == "succeeded"


@pytest.mark.requirement("W08", "D10")
async def test_another_account_is_another_job(tmp_path: Path) -> None:
    clock = ManualClock()
    account = {"account": {"id": "acct_17"}}
    async with furnished(tmp_path, NO_RESULT, states=FOREVER, **account) as provider:
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit()
            assert (await on.full(job))["account"] == "acct_17"
            write_contract(
                tmp_path,
                contract(NO_RESULT, base_url=provider.base_url, account={"id": "acct_18"}),
            )
            op = await on.operation(job)
            assert op.next_at is not None
            await on.until(job, op.next_at + 2 * MINUTE)
            full = await on.full(job)

            assert full["escalation"]["reason"] == "contract_changed"
            assert "rebind" not in [option["id"] for option in full["escalation"]["options"]]
            assert provider.count(STATUS) == 0
            assert (await on.asked())["operation_id"] != job
        assert provider.count(SUBMIT) == 2
