"""Field cases of polling: what ends a wait, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    RESULT,
    STATUS,
    SUBMIT,
    Data,
    error,
    says,
    stage,
)

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop, Step

pytestmark = pytest.mark.anyio


FLAGS: Data = NO_RESULT | {
    "state": ["/done", {"at": "/error", "test": "present"}],
    "waiting": [["false", "no"], ["%missing", "no"]],
    "succeeded": [["true", "no"]],
    "failed": [["true", "yes"]],
    "cancelled": [],
    "expired": [],
    "success": {"require": {"/response": "present"}},
    "failure": {"code": "/error/code", "message": "/error/message"},
}
"""Google's long-running operations: `done` with a response or an error."""

GONE: Data = NO_RESULT | {
    "state": ["http", "/state"],
    "waiting": [["200", "DESTROYING"]],
    "succeeded": [["404", "%missing"]],
    "failed": [["200", "FAILED_DESTROYING"]],
    "cancelled": [],
    "expired": [],
}
"""A deletion: the thing is no longer there."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job whose polls are answered so ends in `state`, after so many of them."""

    job: Data
    answers: Sequence[Step]
    polls: int
    state: str
    reason: str | None = None
    code: str | None = None
    transport: int = 0


def gone(state: str) -> Answer:
    return Answer(json={"id": "exp_1", "state": state})


WORDS: Data = NO_RESULT | {
    "waiting": ["PENDING", "RUNNING", "queued"],
    "succeeded": ["SUCCESS"],
    "failed": ["FAILED"],
    "failure": {"code": "/error/code", "message": "/error/message"},
}

CASES: dict[str, Case] = {
    # The case goes on polling past an unknown word; by behaviour.md, section 6, it stops and asks.
    "PO-01 an unknown word": Case(
        WORDS, [says("Provisioning2"), says("SUCCESS")], 1, "escalated", "unknown_state"
    ),
    "PO-02 an unknown word for success": Case(
        WORDS, [says("Completed")] * 9, 1, "escalated", "unknown_state"
    ),
    "PO-03 done with neither response nor error": Case(
        FLAGS,
        [Answer(json={"name": "op/1", "done": True})],
        1,
        "escalated",
        "contradictory_response",
    ),
    "PO-03 done with a response": Case(
        FLAGS,
        [Answer(json={"done": False}), Answer(json={"done": True, "response": {}})],
        2,
        "succeeded",
    ),
    "PO-03 done with an error": Case(
        FLAGS, [Answer(json={"done": True, "error": {"code": 5}})], 1, "failed", code="5"
    ),
    "PO-05 a failure state while waiting for a 404": Case(
        GONE, [gone("DESTROYING"), gone("FAILED_DESTROYING")], 2, "failed"
    ),
    "PO-05 the 404 that was waited for": Case(
        GONE, [gone("DESTROYING"), Answer(404)], 2, "succeeded"
    ),
    "PO-05 a failure state that nobody declared": Case(
        GONE, [gone("FAILED_UNDEPLOYING")], 1, "escalated", "unknown_state"
    ),
    "PO-10 a failure inside a 200": Case(
        WORDS,
        [says("FAILED", error={"code": "X", "message": "no space"})],
        1,
        "failed",
        code="X",
    ),
    "PO-15 a 502 and a reset in a healthy run": Case(
        WORDS,
        [says("RUNNING"), Answer(502), Drop("after", "rst"), says("RUNNING"), says("SUCCESS")],
        5,
        "succeeded",
        transport=2,
    ),
    "PO-17 a word that was not listed, where the contract takes all as waiting": Case(
        WORDS | {"waiting": ["*"], "succeeded": ["COMPLETED"]},
        [says("PENDING"), says("RUNNING"), says("STOPPING"), says("COMPLETED")],
        4,
        "succeeded",
    ),
    "a job that is cancelled over there": Case(
        WORDS | {"cancelled": ["CANCELED"]}, [says("CANCELED")], 1, "cancelled"
    ),
    "a job that expired over there": Case(
        WORDS | {"expired": ["TTL"]}, [says("TTL")], 1, "expired"
    ),
    "a blocked job": Case(
        WORDS | {"blocked": ["ACTION"]}, [says("ACTION")], 1, "escalated", "blocked_state"
    ),
    "an answer about another job": Case(
        WORDS,
        [Answer(json={"id": "exp_2", "state": "SUCCESS"})],
        1,
        "escalated",
        "binding_mismatch",
    ),
    "a success without its result": Case(
        EXPORT, [says("done")], 1, "escalated", "contradictory_response"
    ),
    "a success with a result at another host": Case(
        EXPORT,
        [says("done", result={"url": "https://elsewhere.example/x"})],
        1,
        "escalated",
        "contradictory_response",
    ),
    "a redirect": Case(
        WORDS,
        [Answer(302, headers=(("Location", "/elsewhere"),))],
        1,
        "escalated",
        "integration_failure",
    ),
    "a 403": Case(WORDS, [Answer(403)], 1, "escalated", "authorization_denied"),
    "an empty 200": Case(WORDS, [Answer()], 1, "escalated", "invalid_response"),
}


@pytest.mark.requirement("W01", "W02", "W05", "W06", "W07", "W14", "W16", "W23")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_wait_ends_as_the_contract_says_and_not_otherwise(
    tmp_path: Path, case: Case
) -> None:
    async with stage(tmp_path, case.job, states=FOREVER) as on:
        on.script(*case.answers)
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["state"] == case.state
        assert (ended["escalation"] or {}).get("reason") == case.reason
        assert (ended["failure"] or {}).get("code") == case.code
        assert ended["may_proceed"] is (case.state == "succeeded")
        assert ended["budgets"]["transport_failures"]["used"] == case.transport
        assert ended["budgets"]["status_requests"]["used"] == on.count() == case.polls
        assert ended["provider_job"]["id"] == "exp_1"
        await on.passes(2 * HOUR)
        assert on.count() == case.polls
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W05", "W06")
@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
async def test_an_end_at_the_provider_is_noted_and_nothing_is_submitted_again_unasked(
    tmp_path: Path, state: str
) -> None:
    async with stage(tmp_path, NO_RESULT, states=(state,)) as on:
        job = await on.submit()
        ended = await on.end_of(job)
        notice = "provider_failure" if state == "failed" else "ended_at_provider"
        assert ended["notices"] == [notice]
        assert ended["escalation"] is None

        refused = error(await on.asked())
        assert (refused["code"], refused["operation_id"]) == ("possible_duplicate", job)
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W03", "W17")
async def test_po_06_a_new_word_is_decided_once_and_the_healthy_job_succeeds(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, WORDS, states=FOREVER) as on:
        on.script(says("PENDING"), says("HELD"), says("HELD"), says("RUNNING"), says("SUCCESS"))
        job = await on.submit()
        assert (await on.end_of(job))["escalation"]["reason"] == "unknown_state"
        used = on.count()
        await on.decide(job, Option.TREAT_AS, treat_as="waiting")
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert ended["budgets"]["status_requests"]["used"] == on.count() == used + 3
        assert ended["authorisation"].startswith("esc_")


@pytest.mark.requirement("W16", "W17")
async def test_po_04_a_job_that_runs_for_ever_costs_exactly_its_budget_and_keeps_its_handle(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit(max_status_requests=10)
        ended = await on.end_of(job)

        assert on.count() == 10
        assert ended["escalation"]["reason"] == "request_budget_exhausted"
        assert ended["provider_job"] == {
            "id": "exp_1",
            "state": "running",
            "observed_at": ended["provider_job"]["observed_at"],
        }
        assert "extend" in [option["id"] for option in ended["escalation"]["options"]]


@pytest.mark.requirement("W28")
async def test_po_09_a_submission_that_is_already_done_is_not_polled(tmp_path: Path) -> None:
    async with stage(tmp_path, WORDS, states=FOREVER) as on:
        done = {"id": "exp_1", "state": "SUCCESS"}
        on.script(Answer(200, done, (("Operation-Location", "/op/1"),)), route=SUBMIT)
        answer = await on.asked()

        assert (answer["state"], answer["may_proceed"]) == ("succeeded", True)
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("W28", "W07")
async def test_a_submission_that_is_done_without_its_result_is_not_believed(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, EXPORT, states=FOREVER) as on:
        on.script(Answer(200, {"id": "exp_1", "state": "done"}), route=SUBMIT)
        answer = await on.asked()

        assert answer["escalation"]["reason"] == "contradictory_response"
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("W07")
async def test_a_contract_may_wait_for_a_result_that_appears_a_little_later(
    tmp_path: Path,
) -> None:
    job_of = EXPORT | {"success": {"when_missing": "wait"}}
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        on.script(says("done"), says("done", result={"url": f"{on.provider.base_url}/files/exp_1"}))
        job = await on.submit()
        assert (await on.due(job))["state"] == "waiting"
        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count() == 2


@pytest.mark.requirement("W22")
async def test_po_11_a_job_that_is_not_yet_visible_is_waited_for_and_not_made_again(
    tmp_path: Path,
) -> None:
    job_of = NO_RESULT | {"backoff": {"base": "3s", "max": "2m", "first": "3s"}}
    async with stage(tmp_path, job_of, states=("queued", "done")) as on:
        on.script(Answer(404), Answer(404), says("done"))
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert (on.count(SUBMIT), on.count()) == (1, 3)
        assert ended["budgets"]["transport_failures"]["used"] == 0


@pytest.mark.requirement("W22")
async def test_a_job_that_is_not_there_after_its_grace_is_a_question(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(Answer(404))
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["escalation"]["reason"] == "not_found"
        assert "Provider job: exp_1" in ended["escalation"]["text"]
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W22")
async def test_a_contract_states_how_long_a_404_is_not_yet_visible(tmp_path: Path) -> None:
    rules = [{"on": ["status"], "http": 404, "age_under": "10m", "means": "not_yet_visible"}]
    async with stage(tmp_path, NO_RESULT | {"rules": rules}, states=FOREVER) as on:
        on.script(Answer(404), says("done"))
        job = await on.submit()

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count() == 2


async def test_po_12_a_result_that_is_no_longer_kept_is_expired_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        on.script(*[Answer(404)] * 9, route=RESULT)
        job = await on.submit()
        await on.end_of(job)
        await on.passes(8 * 24 * HOUR)

        fetched = await on.call("fetch_result", operation_id=job)
        assert (fetched["state"], fetched["may_proceed"]) == ("expired", False)
        again = await on.call("fetch_result", operation_id=job)
        assert again["operation_id"] == fetched["operation_id"]
        await on.passes(2 * HOUR)
        assert on.count(RESULT) == 1
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W21")
async def test_po_19_an_acceptance_without_any_handle_is_a_question_and_nothing_is_sent_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(Answer(202), route=SUBMIT)
        answer = await on.asked()

        assert (answer["state"], answer["may_proceed"]) == ("escalated", False)
        assert answer["escalation"]["reason"] == "accepted_untracked"
        await on.passes(2 * HOUR)
        assert (await on.asked())["operation_id"] == answer["operation_id"]
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("W21")
async def test_po_19_a_relative_location_is_read_from_the_final_request_url(
    tmp_path: Path,
) -> None:
    job_of = {name: value for name, value in NO_RESULT.items() if name != "id"} | {
        "submit": {
            "method": "POST",
            "path": "/v1/exports",
            "body": {"dataset": "{arg.dataset}"},
            "take": {"status_url": "header:Location"},
        },
        "status": {"method": "GET", "url": "{take.status_url}"},
    }
    job_of.pop("body")
    async with stage(tmp_path, job_of, states=None) as on:
        on.script(Answer(202, headers=(("Location", "../ops/9"),)), route="POST /v1/exports")
        on.script(Answer(json={"state": "done"}), route="GET /ops/9")
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert [arrival.path for arrival in on.provider.arrivals] == ["/v1/exports", "/ops/9"]


@pytest.mark.requirement("W07")
async def test_waiting_past_the_providers_own_expiry_is_a_question(tmp_path: Path) -> None:
    job_of = NO_RESULT | {"expiry": {"job": {"at": "/expires_at", "unit": "rfc3339"}}}
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        on.script(*[says("running", expires_at="2026-11-30T10:25:00Z")] * 50)
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["escalation"]["reason"] == "past_provider_expiry"
        assert ended["as_of"] < "2026-11-30T10:26:00Z"


@pytest.mark.requirement("W13", "W14", "W24")
async def test_lost_polls_count_and_end_as_unreachable_and_not_as_a_failed_job(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        refused = Answer(503, {"error": "busy"}, (("X-Request-Id", "req_7"),))
        on.script(Drop(), Drop("after", "rst"), Answer(500), Answer(408), refused)
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["escalation"]["reason"] == "transport_budget_exhausted"
        assert "could not be reached" in ended["next_step"]
        assert ended["failure"] is None
        assert ended["http"]["status"] == 503
        assert ended["http"]["provider_request_id"] == "req_7"
        budgets = ended["budgets"]
        assert budgets["transport_failures"] == {"used": 5, "max": 5}
        assert budgets["status_requests"]["used"] == on.count() == 5


@pytest.mark.requirement("W29")
async def test_progress_is_shown_and_extends_nothing(tmp_path: Path) -> None:
    job_of = NO_RESULT | {"states": {"progress": "/percent"}}
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        on.script(*[says("running", percent=number) for number in range(99)])
        job = await on.submit()
        deadline = (await on.full(job))["deadline_at"]
        await on.due(job)
        await on.due(job)
        assert (await on.operation(job)).progress == "1"
        assert (await on.full(job))["deadline_at"] == deadline
        ended = await on.end_of(job)

        assert ended["state"] == "escalated"
        assert ended["as_of"] <= "2026-11-30T11:00:01Z"


@pytest.mark.requirement("W16")
async def test_an_answer_that_came_before_the_deadline_is_judged_before_it(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        on.script(Answer(200, {"id": "exp_1", "state": "done"}, gate="late"))
        job = await on.submit()
        op = await on.operation(job)
        assert op.next_at is not None
        on.clock.advance(op.next_at - on.now + 1)
        on.app.store.wake()
        await on.provider.arrived(STATUS)
        on.clock.jump(50 * MINUTE)
        on.provider.release("late")
        await on.settled()

        assert (await on.full(job))["state"] == "succeeded"
