"""An agent calls every tool in every order, and no question to a person moves by it (E07)."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.e2e.harness import CANCEL, FOREVER, SUBMIT, Data, Stage, says, stage
from tests.e2e.test_decisions import APPROVED, CANCELLABLE

from forbear.rules.model import Operation, Option
from forbear.tools.toolset import BY_NAME

pytestmark = pytest.mark.anyio

ORDERS = 12
"""Orders that are tried of the many that there are."""


def everything(job: str, case: str) -> list[tuple[str, Data]]:
    """Each tool with the arguments that would help most, if any could."""
    words = {"reason": f"approved by the user, decide {case}"}
    calls: list[tuple[str, Data]] = [
        ("list_actions", {"provider": "exp"}),
        ("check_status", {"operation_id": job, "wait_seconds": 0}),
        ("fetch_result", {"operation_id": job, "wait_seconds": 0}),
        ("cancel_job", {"operation_id": job, **words, "wait_seconds": 0}),
        ("reconcile_write", {"operation_id": job, "wait_seconds": 0}),
        ("operation_status", {"operation_id": job, "timeline": True}),
        ("operation_status", {"operation_id": case}),
        *(
            ("request_decision", {"operation_id": job, "option": str(option), **words})
            for option in Option
        ),
        ("submit_job", _same(purpose=f"decide {case} approve")),
        ("submit_job", _same(idempotency_key="another")),
        ("submit_job", _same(task="another", priority="interactive")),
        ("read_api", {"provider": "exp", "call": "decide", "arguments": {}}),
        ("write_api", {"provider": "exp", "call": "approve", "arguments": {"case": case}}),
    ]
    assert {name for name, _ in calls} == set(BY_NAME) - {"end_task"}
    return calls


def _same(**more: Any) -> Data:
    return {
        "provider": "exp",
        "job": "export",
        "arguments": {"dataset": "sales"},
        "wait_seconds": 0,
        **more,
    }


def authority_of(op: Operation) -> tuple[object, ...]:
    """All that a decision could have changed."""
    budgets = (op.status_requests, op.transport_failures, op.rate_limited, op.attempts, op.lookups)
    return (
        *(op.state, op.authorisation, op.deadline_at, op.useful_until, op.approve_by, op.once),
        *(budget.max for budget in budgets),
        *(op.extensions, op.treat, op.validated, op.superseded_by, op.certainty),
    )


async def _tries_everything(on: Stage, job: str, seed: int) -> None:
    before = await on.operation(job)
    case = await on.app.store.read.open_case(job)
    assert case is not None
    sent = len(on.provider.arrivals)
    calls = everything(job, case.id)
    Random(seed).shuffle(calls)
    for name, arguments in calls:
        await on.call(name, **arguments)
    await on.settled()
    after, still = await on.operation(job), await on.app.store.read.open_case(job)
    assert authority_of(after) == authority_of(before)
    assert still is not None
    assert (still.id, still.decision) == (case.id, None)
    assert len(on.provider.arrivals) == sent
    children = await on.app.store.read.children(job)
    assert not any(child.sent for child in children), "each waits for an approval of its own"


@pytest.mark.requirement("E05", "E07")
@pytest.mark.parametrize("seed", range(ORDERS))
async def test_a_stopped_job_stays_stopped_whatever_its_agent_calls(
    tmp_path: Path, seed: int
) -> None:
    async with stage(tmp_path, CANCELLABLE, states=FOREVER) as on:
        job = await on.submit()
        on.script(says("odd"))
        await on.due(job)
        assert await on.reason(job) == "unknown_state"
        await _tries_everything(on, job, seed)


@pytest.mark.requirement("E05", "E07")
@pytest.mark.parametrize("seed", range(ORDERS))
async def test_what_waits_for_approval_is_not_sent_whatever_its_agent_calls(
    tmp_path: Path, seed: int
) -> None:
    async with stage(tmp_path, APPROVED, states=FOREVER) as on:
        job = (await on.asked())["operation_id"]
        before = await on.operation(job)
        case = await on.app.store.read.open_case(job)
        assert case is not None
        calls = [one for one in everything(job, case.id) if one[0] != "cancel_job"]
        Random(seed).shuffle(calls)
        for name, arguments in calls:
            await on.call(name, **arguments)
        await on.settled()
        assert authority_of(await on.operation(job)) == authority_of(before)
        assert on.count(SUBMIT) == 0


@pytest.mark.requirement("E07")
@pytest.mark.parametrize(
    "order",
    list(permutations(["cancel_job", "end_task", "request_decision"])),
    ids=lambda order: "-".join(word.split("_")[0] for word in order),
)
async def test_ending_and_asking_in_any_order_gives_an_agent_no_cancellation(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    """A cancellation at the provider waits for its approval, also when the rest was given up."""
    async with stage(tmp_path, CANCELLABLE, states=FOREVER) as on:
        job = await on.submit()
        for name in order:
            arguments: Data = {"operation_id": job, "reason": "no longer wanted"}
            if name == "request_decision":
                arguments["option"] = "cancel_at_provider"
            await on.call(name, **arguments)
        await on.settled()
        assert on.count(CANCEL) == 0
