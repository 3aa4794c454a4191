"""Approvals, cancellations and what people are asked: nothing happens before somebody decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import (
    CANCEL,
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    error,
    says,
    stage,
)

from forbear.rules.decisions import Wish
from forbear.rules.model import Kind, Option, State
from forbear.server.fake import Answer, Drop
from forbear.storage.deciding import Decided

pytestmark = pytest.mark.anyio

APPROVED: Data = {name: value for name, value in NO_RESULT.items() if name != "body"} | {
    "submit": {
        "method": "POST",
        "path": "/exports",
        "body": NO_RESULT["body"],
        "approval": "per_call",
    }
}
"""A job that a person must approve before it is submitted."""

CANCELLABLE: Data = NO_RESULT | {
    "cancel": {
        "method": "POST",
        "path": "/exports/{id}/cancel",
        "consequence": "Work so far is lost.",
    }
}
FREELY: Data = NO_RESULT | {"cancel": CANCELLABLE["cancel"] | {"approval": "none"}}
"""A job that its contract lets agents cancel."""


# --- approval -------------------------------------------------------------------------------


@pytest.mark.requirement("E17", "A09")
async def test_a_job_that_needs_approval_waits_unsent_and_goes_out_as_it_was_shown(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, APPROVED) as on:
        answer = await on.asked(purpose="month-end report")
        job = answer["operation_id"]
        assert (answer["state"], answer["waiting_for"]) == ("queued", "approval")
        assert answer["escalation"]["reason"] == "approval_required"
        assert answer["escalation"]["options"] == ["approve", "reject"]
        assert "person must approve" in answer["next_step"]
        case = (await on.full(job))["escalation"]
        assert "Operation: Export sales" in case["text"]
        assert 'For: "month-end report" (agent\'s words)' in case["text"]
        await on.passes(2 * HOUR)
        assert on.provider.arrivals == []

        await on.decide(job, Option.APPROVE)
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert ended["authorisation"] == case["id"]
        assert ended["deadline_at"] == "2026-11-30T13:00:00Z"  # forty minutes from the approval
        assert on.count(SUBMIT) == 1
        (sent,) = [event for event in await on.events(job) if event.body.get("step") == "send"]
        assert sent.body["authorisation"] == case["id"]


async def test_asking_again_does_not_get_past_an_approval(tmp_path: Path) -> None:
    async with stage(tmp_path, APPROVED) as on:
        first = await on.asked()
        again = await on.asked()
        assert (again["operation_id"], again["joined"]) == (first["operation_id"], True)
        assert error(await on.asked(idempotency_key="x"))["code"] == "possible_duplicate"
        for _ in range(20):
            await on.check(first["operation_id"])
        assert on.provider.arrivals == []


async def test_what_was_rejected_is_dropped_and_never_sent(tmp_path: Path) -> None:
    async with stage(tmp_path, APPROVED) as on:
        job = (await on.asked())["operation_id"]
        await on.decide(job, Option.REJECT)
        answer = await on.check(job)

        assert (answer["state"], answer["may_proceed"]) == ("discarded", False)
        await on.passes(HOUR)
        assert on.provider.arrivals == []


async def test_an_approval_that_comes_too_late_is_none(tmp_path: Path) -> None:
    async with stage(tmp_path, APPROVED) as on:
        job = (await on.asked())["operation_id"]
        await on.passes(23 * HOUR)
        assert (await on.full(job))["state"] == "queued"
        await on.passes(2 * HOUR)

        assert (await on.full(job))["state"] == "discarded"
        assert await on.app.store.read.open_case(job) is None
        assert on.provider.arrivals == []


async def test_the_agent_withdraws_what_waits_for_approval_without_a_request(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, APPROVED) as on:
        job = (await on.asked())["operation_id"]
        answer = await on.call("cancel_job", operation_id=job, reason="not needed")

        assert answer["state"] == "discarded"
        assert on.provider.arrivals == []


# --- cancelling -----------------------------------------------------------------------------


@pytest.mark.requirement("W26")
async def test_a_cancellation_is_an_operation_of_its_own_that_a_person_approves(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, CANCELLABLE, states=FOREVER) as on:
        job = await on.submit()
        asked = await on.call("cancel_job", operation_id=job, reason="wrong data set")
        assert (asked["kind"], asked["parent_operation_id"]) == ("cancel", job)
        assert (asked["state"], asked["waiting_for"]) == ("queued", "approval")
        case = (await on.full(asked["operation_id"]))["escalation"]
        assert "wrong data set" in case["text"]
        await on.passes(5 * MINUTE)
        assert on.count(CANCEL) == 0
        assert (await on.full(job))["state"] == "waiting"

        await on.decide(asked["operation_id"], Option.APPROVE)
        assert (await on.full(asked["operation_id"]))["state"] == "succeeded"
        assert (await on.full(job))["state"] == "cancelled"
        assert on.count(CANCEL) == 1
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W06")
async def test_only_the_provider_makes_a_job_cancelled(tmp_path: Path) -> None:
    async with stage(tmp_path, FREELY, states=FOREVER) as on:
        job = await on.submit()
        on.script(says("running"), says("running"))
        on.script(Answer(202, {"id": "exp_1", "state": "running"}), route=CANCEL)
        asked = await on.call("cancel_job", operation_id=job, reason="x")
        await on.settled()
        assert (await on.full(asked["operation_id"]))["state"] == "succeeded"
        assert (await on.full(job))["state"] == "waiting"
        again = await on.call("cancel_job", operation_id=job, reason="x")
        await on.settled()

        assert (again["operation_id"], again["joined"]) == (asked["operation_id"], True)
        assert on.count(CANCEL) == 1
        on.script(says("cancelled"))
        assert (await on.end_of(job))["state"] == "cancelled"


async def test_a_provider_that_documents_no_cancel_is_not_asked_for_one(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        refused = error(await on.call("cancel_job", operation_id=job, reason="x"))

        assert refused["code"] == "not_allowed_in_state"
        assert len(on.provider.arrivals) == 1


async def test_a_delayed_submission_is_dropped_without_a_request(tmp_path: Path) -> None:
    keyed = CANCELLABLE | {"idempotency": {"at": "header:Idempotency-Key", "window": "24h"}}
    async with stage(tmp_path, keyed, states=FOREVER) as on:
        on.script(Answer(429, headers=(("Retry-After", "60"),)), route=SUBMIT)
        job = (await on.asked())["operation_id"]
        answer = await on.call("cancel_job", operation_id=job, reason="x")

        assert answer["state"] == "discarded"
        await on.passes(HOUR)
        assert len(on.provider.arrivals) == 1


async def test_a_submission_on_its_way_cannot_be_cancelled(tmp_path: Path) -> None:
    async with stage(tmp_path, CANCELLABLE, states=FOREVER) as on:
        on.script(Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow"), route=SUBMIT)
        answer = await on.call(
            "submit_job", provider="exp", job="export", arguments={"dataset": "x"}, wait_seconds=0
        )
        await on.provider.arrived(SUBMIT)
        job = answer["operation_id"]
        refused = error(await on.call("cancel_job", operation_id=job, reason="x"))
        assert refused["code"] == "not_allowed_in_state"
        assert "check_status" in refused["next_step"]
        on.provider.release("slow")
        await on.settled()

        assert (await on.full(job))["state"] == "waiting"
        assert on.count(CANCEL) == 0


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
async def test_what_is_over_cannot_be_cancelled(tmp_path: Path, state: str) -> None:
    async with stage(tmp_path, CANCELLABLE, states=(state,)) as on:
        job = await on.submit()
        await on.end_of(job)
        refused = error(await on.call("cancel_job", operation_id=job, reason="x"))

        assert refused["code"] == "not_allowed_in_state"
        assert on.count(CANCEL) == 0


async def test_an_unclear_cancellation_is_not_sent_twice(tmp_path: Path) -> None:
    async with stage(tmp_path, FREELY, states=FOREVER) as on:
        job = await on.submit()
        on.script(Drop("after", effect=True), route=CANCEL)
        asked = await on.call("cancel_job", operation_id=job, reason="x")
        await on.passes(MINUTE)

        assert (await on.full(asked["operation_id"]))["escalation"]["reason"] == "unclear_write"
        await on.passes(HOUR)
        assert on.count(CANCEL) == 1
        assert (await on.full(job))["state"] == "cancelled"


async def test_a_cancellation_sent_anew_cancels_again_and_submits_nothing(tmp_path: Path) -> None:
    """Found by the simulation: the job itself was submitted again, without its arguments."""
    async with stage(tmp_path, FREELY, states=FOREVER) as on:
        job = await on.submit()
        on.script(Drop("after", effect=False), route=CANCEL)
        asked = await on.call("cancel_job", operation_id=job, reason="x")
        await on.passes(MINUTE)
        unclear = await on.operation(asked["operation_id"])
        case = await on.app.store.read.open_case(unclear.id)
        assert case is not None
        by = {"operator": "anna", "channel": "terminal"}
        wish = Wish(Option.SEND_NEW)
        decided = await on.app.office.decide(case, unclear, wish, by)
        assert isinstance(decided, Decided), decided
        await on.settled()

        assert decided.follow_up is not None
        anew = await on.operation(decided.follow_up.id)
        assert (anew.kind, anew.parent_id, anew.state) == (Kind.CANCEL, job, State.SUCCEEDED)
        assert (on.count(SUBMIT), on.count(CANCEL)) == (1, 2)


# --- questions ------------------------------------------------------------------------------


@pytest.mark.requirement("W17")
async def test_an_extension_grants_what_it_says_once_and_no_counter_falls(
    tmp_path: Path,
) -> None:
    limits = {
        "max_status_requests": 4,
        "extension": {"by": "15m", "status_requests": 2, "times": 1},
    }
    async with stage(tmp_path, NO_RESULT | {"limits": limits}, states=FOREVER) as on:
        job = await on.submit(purpose="month-end report")
        ended = await on.end_of(job)
        case = ended["escalation"]
        assert case["reason"] == "request_budget_exhausted"
        assert case["text"].splitlines()[:4] == [
            "External job needs a decision",
            f"Operation: Export sales ({job})",
            'For: "month-end report" (agent\'s words)',
            "Provider job: exp_1",
        ]
        assert "Status requests: 4 of 4" in case["text"]
        assert "Stopped because: request_budget_exhausted" in case["text"]
        assert "extend by 15 minutes with 2 more status requests" in case["text"]
        short = await on.check(job)
        assert short["escalation"]["id"] == case["id"]
        assert "`forbear inbox`" in short["next_step"]

        await on.decide(job, Option.EXTEND)
        assert (await on.full(job))["budgets"]["status_requests"] == {"used": 5, "max": 6}
        ended = await on.end_of(job)
        assert ended["escalation"]["reason"] == "request_budget_exhausted"
        assert on.count(STATUS) == 6
        assert "extend" not in [one["id"] for one in ended["escalation"]["options"]]


async def test_looking_again_is_one_request_and_then_the_same_question(tmp_path: Path) -> None:
    limits = {"max_status_requests": 2}
    async with stage(tmp_path, NO_RESULT | {"limits": limits}, states=FOREVER) as on:
        job = await on.submit()
        first = (await on.end_of(job))["escalation"]
        await on.decide(job, Option.CHECK_AGAIN)
        second = (await on.end_of(job))["escalation"]

        assert on.count(STATUS) == 3
        assert second["reason"] == first["reason"]
        assert second["id"] != first["id"]


async def test_an_abandoned_job_is_watched_no_more_and_says_that_it_may_still_run(
    tmp_path: Path,
) -> None:
    limits = {"max_status_requests": 2}
    async with stage(tmp_path, NO_RESULT | {"limits": limits}, states=FOREVER) as on:
        job = await on.submit()
        await on.end_of(job)
        await on.decide(job, Option.ABANDON)
        answer = await on.check(job)

        assert answer["state"] == "discarded"
        assert answer["notices"] == ["may_still_run"]
        await on.passes(HOUR)
        assert on.count(STATUS) == 2
        assert error(await on.asked())["code"] == "possible_duplicate"


async def test_a_person_lets_the_provider_cancel_an_overdue_job(tmp_path: Path) -> None:
    limits = {"max_status_requests": 2}
    async with stage(tmp_path, CANCELLABLE | {"limits": limits}, states=FOREVER) as on:
        job = await on.submit()
        ended = await on.end_of(job)
        options = [one["id"] for one in ended["escalation"]["options"]]

        assert "cancel_at_provider" in options
        assert "Work so far is lost." in [one["effect"] for one in ended["escalation"]["options"]]
        asked = await on.call("cancel_job", operation_id=job, reason="overdue")
        assert asked["waiting_for"] == "approval"
