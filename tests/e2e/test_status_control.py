"""Status addresses that cost money or change something, and secrets of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    stage,
)

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop

pytestmark = pytest.mark.anyio


def observed(**status: str) -> Data:
    return NO_RESULT | {
        "status": {"method": "GET", "path": "/exports/{id}", **status},
        "limits": {"max_status_requests": 6},
    }


@pytest.mark.requirement("W18")
@pytest.mark.parametrize("step", [Drop(), Answer(500), Answer(504)], ids=["lost", "500", "504"])
@pytest.mark.parametrize("effect", ["billed", "mutating"])
async def test_a_check_that_costs_something_is_not_repeated_after_an_unknown_outcome(
    tmp_path: Path, effect: str, step: Drop | Answer
) -> None:
    job_of = observed(effect=effect, **({"approval": "session"} if effect == "mutating" else {}))
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        on.script(step)
        job = await on.submit()
        if effect == "mutating":
            await on.decide(job, Option.APPROVE)
        ended = await on.end_of(job)

        assert ended["state"] == "escalated"
        assert ended["escalation"]["reason"] == "transport_budget_exhausted"
        await on.passes(HOUR)
        assert on.count(STATUS) == 1


@pytest.mark.requirement("W18")
async def test_a_check_that_costs_something_and_was_answered_goes_on_inside_its_budget(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, observed(effect="billed"), states=FOREVER) as on:
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["escalation"]["reason"] == "request_budget_exhausted"
        assert on.count(STATUS) == 6


@pytest.mark.requirement("W31", "W18")
async def test_a_status_address_with_an_approval_of_its_own_is_asked_about_before_each_check(
    tmp_path: Path,
) -> None:
    job_of = observed(effect="mutating", approval="per_call")
    async with stage(tmp_path, job_of, states=("queued", "running", "done")) as on:
        job = await on.submit()
        for number in range(3):
            answer = await on.check(job)
            assert answer["waiting_for"] == "approval"
            assert answer["escalation"]["options"] == ["approve", "reject"]
            assert on.count(STATUS) == number
            await on.decide(job, Option.APPROVE)

        assert (await on.full(job))["state"] == "succeeded"
        assert on.count(STATUS) == 3
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W31")
async def test_a_session_approval_of_a_status_address_is_asked_for_once(tmp_path: Path) -> None:
    job_of = observed(effect="mutating", approval="session")
    async with stage(tmp_path, job_of, states=("queued", "running", "done")) as on:
        job = await on.submit()
        assert (await on.check(job))["waiting_for"] == "approval"
        await on.decide(job, Option.APPROVE)

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count(STATUS) == 3


@pytest.mark.requirement("W31")
async def test_checks_that_nobody_approves_are_never_made_and_the_deadline_still_falls(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, observed(approval="per_call"), states=FOREVER) as on:
        job = await on.submit()
        await on.passes(HOUR)

        full = await on.full(job)
        assert (full["state"], full["escalation"]["reason"]) == ("escalated", "deadline_exceeded")
        assert on.count(STATUS) == 0


@pytest.mark.requirement("W31")
async def test_checks_go_with_the_narrower_secret_and_everything_else_with_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", "wide")
    monkeypatch.setenv("EXP_READER", "narrow")
    job_of = observed(secret="env:EXP_READER") | {
        "cancel": {"method": "POST", "path": "/exports/{id}/cancel", "approval": "none"}
    }
    async with stage(tmp_path, job_of, states=FOREVER, auth="bearer env:EXP_TOKEN") as on:
        job = await on.submit()
        await on.due(job)
        await on.call("cancel_job", operation_id=job, reason="x")
        await on.settled()

        used = {(a.method, a.headers.get("authorization")) for a in on.provider.arrivals}
        assert used == {("GET", "Bearer narrow"), ("POST", "Bearer wide")}


@pytest.mark.requirement("W31", "W23")
async def test_a_refused_narrower_secret_stops_the_checks_and_leaves_submissions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", "wide")
    monkeypatch.setenv("EXP_READER", "narrow")
    job_of = observed(secret="env:EXP_READER")
    async with stage(tmp_path, job_of, states=FOREVER, auth="bearer env:EXP_TOKEN") as on:
        on.provider.job("exp_2", FOREVER)
        on.script(Answer(401))
        job = await on.submit("a")
        assert (await on.end_of(job))["escalation"]["reason"] == "authorization_denied"
        other = await on.asked("b")

        assert other["state"] == "waiting"
        assert on.count(SUBMIT) == 2
