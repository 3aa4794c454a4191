"""Field cases of writes, as far as the submission of a job is one: what is never sent twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    STATUS,
    SUBMIT,
    Data,
    error,
    furnished,
    process,
    says,
    stage,
)
from tests.support import ManualClock

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop, FakeProvider, Raw, Step

pytestmark = pytest.mark.anyio

SLOW: Data = {name: value for name, value in NO_RESULT.items() if name != "body"} | {
    "submit": {
        "method": "POST",
        "path": "/exports",
        "timeout": "2s",
        "body": NO_RESULT["body"],
    }
}
"""A submission that must be answered within 2 s; a busy machine connects in less."""

KEYED: Data = NO_RESULT | {
    "idempotency": {"at": "header:Idempotency-Key", "format": "uuid", "window": "24h"}
}

ACCEPTED = {"id": "exp_1", "state": "queued"}


def frame(kind: int, stream: int, *fields: int) -> bytes:
    """A frame of HTTP/2 with 32-bit fields (RFC 9113, section 4.1)."""
    head = (len(fields) * 4).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4)
    return head + b"".join(field.to_bytes(4) for field in fields)


UNCLEAR: dict[str, Sequence[Step]] = {
    "WR-01 committed and closed without a byte": [Drop("after", effect=True)],
    "WR-01 the same with a reset": [Drop("after", "rst", effect=True)],
    "WR-02 a 504 after the work was done": [Answer(504, effect=True)],
    "WR-02 a 502": [Answer(502)],
    "WR-02 a 503 that promises nothing": [Answer(503, headers=(("Retry-After", "5"),))],
    "WR-03 a server that answers too late": [Answer(202, ACCEPTED, gate="never", effect=True)],
    # The case takes a 408 as refused before any work; by behaviour.md, section 4, it is as a 504.
    "WR-03 a 408": [Answer(408)],
    "WR-09 a 500": [Answer(500, effect=True)],
    # Only HTTP/1.1 is spoken, where the frame that would prove "not processed" proves nothing.
    "WR-19 REFUSED_STREAM": [Raw(frame(3, 1, 7))],
    "WR-19 GOAWAY that names our stream": [Raw(frame(7, 0, 1, 0))],
    "WR-19 CANCEL": [Raw(frame(3, 1, 8))],
    "a head that stops": [Answer(202, ACCEPTED, cut_head=12, effect=True)],
}


@pytest.mark.requirement("R15", "R16", "R24")
@pytest.mark.parametrize("steps", UNCLEAR.values(), ids=UNCLEAR)
async def test_an_unclear_submission_waits_for_a_person_and_is_sent_once(
    tmp_path: Path, steps: Sequence[Step]
) -> None:
    async with stage(tmp_path, SLOW, states=FOREVER) as on:
        on.script(*steps, route=SUBMIT)
        answer = await on.asked()

        assert (answer["state"], answer["may_proceed"]) == ("escalated", False)
        assert answer["escalation"]["reason"] == "unclear_write"
        full = await on.full(answer["operation_id"])
        assert full["wire"]["certainty"] == "maybe_applied"
        assert full["budgets"]["attempts"] == {"used": 1, "max": 1}
        codes = [event.code for event in await on.events(answer["operation_id"])]
        # People are told of the question whenever the next round comes.
        assert [code for code in codes if code != "announced"][-1] == "reconciliation_required"
        assert "Stopped because: unclear_write" in full["escalation"]["text"]
        await on.passes(24 * HOUR)
        assert len(on.provider.arrivals) == 1


@pytest.mark.requirement("R14")
async def test_wr_05_neither_repetition_nor_a_minted_key_goes_past_an_unclear_submission(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(Drop("after", effect=True), route=SUBMIT)
        first = await on.asked(idempotency_key="one")

        again = error(await on.asked(idempotency_key="two"))
        assert (again["code"], again["operation_id"]) == (
            "possible_duplicate",
            first["operation_id"],
        )
        assert (await on.asked(idempotency_key="one"))["operation_id"] == first["operation_id"]
        assert (await on.asked())["operation_id"] == first["operation_id"]
        assert len(on.provider.effects) == on.count(SUBMIT) == 1


@pytest.mark.requirement("R24")
async def test_wr_01_a_person_who_found_the_lost_job_gives_its_id_and_it_is_watched(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=("queued", "done")) as on:
        on.script(Drop("after", effect=True), route=SUBMIT)
        job = (await on.asked())["operation_id"]
        await on.decide(job, Option.CONFIRM_DONE, reference="exp_1")
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert (on.count(SUBMIT), on.count(STATUS)) == (1, 2)


async def test_wr_01_a_name_that_is_taken_is_a_conflict_and_no_failure(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(Answer(409, {"error": {"code": "name_taken"}}), route=SUBMIT)
        answer = await on.asked()

        assert answer["escalation"]["reason"] == "conflict"
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("R14")
async def test_wr_04_the_same_job_three_minutes_later_joins_the_first(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        first = await on.submit()
        await on.passes(3 * MINUTE)
        again = await on.asked()

        assert (again["operation_id"], again["joined"]) == (first, True)
        assert on.count(SUBMIT) == 1


def keys(provider: FakeProvider) -> list[str | None]:
    return [a.headers.get("idempotency-key") for a in provider.arrivals if a.method == "POST"]


@pytest.mark.requirement("R13", "R16")
async def test_wr_06_every_send_of_one_job_carries_the_key_that_was_stored_before_the_first(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, KEYED, states=FOREVER) as provider:
        provider.script(SUBMIT, Answer(429, headers=(("Retry-After", "30"),)))
        async with process(provider, tmp_path, clock) as on:
            job = (await on.asked(idempotency_key="month-end"))["operation_id"]
            stored = (await on.operation(job)).wire_key
            assert keys(provider) == [stored]
            assert stored not in (None, "month-end")
            assert (await on.full(job))["state"] == "delayed"
        async with process(provider, tmp_path, clock) as restarted:
            await restarted.passes(MINUTE)
            assert (await restarted.full(job))["state"] == "waiting"

        assert keys(provider) == [stored, stored]
        assert len(provider.effects) == 1


async def test_wr_08_a_key_of_another_request_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        first = await on.submit("a", idempotency_key="K")
        refused = error(await on.asked("b", idempotency_key="K"))

        assert (refused["code"], refused["operation_id"]) == ("key_conflict", first)
        assert on.count(SUBMIT) == 1


async def test_wr_08_a_provider_that_knows_the_key_otherwise_is_a_conflict(
    tmp_path: Path,
) -> None:
    rules = [{"http": 422, "match": {"/error": "key_reused"}, "means": "key_reused"}]
    async with stage(tmp_path, KEYED | {"rules": rules}, states=FOREVER) as on:
        on.script(Answer(422, {"error": "key_reused"}), route=SUBMIT)
        answer = await on.asked()

        assert answer["escalation"]["reason"] == "conflict"
        await on.passes(HOUR)
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W21")
@pytest.mark.parametrize(
    "answer",
    [Answer(201), Answer(200, {}), Answer(201, {"id": None}), Answer(201, {"id": ""})],
    ids=["WR-11 201 and nothing", "WR-11 no id", "WR-11 null", "WR-11 an empty id"],
)
async def test_a_success_without_the_id_is_committed_and_not_failed(
    tmp_path: Path, answer: Answer
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(answer, route=SUBMIT)
        told = await on.asked()

        assert told["escalation"]["reason"] == "accepted_untracked"
        full = await on.full(told["operation_id"])
        assert full["wire"]["certainty"] == "applied"
        assert error(await on.asked(idempotency_key="x"))["code"] == "possible_duplicate"
        await on.passes(2 * HOUR)
        assert on.count(SUBMIT) == 1


async def test_wr_12_a_limited_read_back_repeats_the_read_and_never_the_write(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        on.script(Answer(429), Answer(503), says("done"))
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["state"] == "succeeded"
        assert (on.count(SUBMIT), on.count(STATUS)) == (1, 3)


async def test_wr_16_a_409_without_a_rule_is_a_conflict_and_not_repeated(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, KEYED, states=FOREVER) as on:
        on.script(Answer(409), Answer(409), route=SUBMIT)
        answer = await on.asked()

        assert answer["escalation"]["reason"] == "conflict"
        await on.passes(HOUR)
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("R16")
async def test_wr_17_a_kept_connection_that_closes_on_the_write_leaves_it_unclear(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.provider.job("exp_2", FOREVER)
        await on.submit("first")
        on.script(Drop("after"), route=SUBMIT)
        second = await on.asked("second")

        assert second["escalation"]["reason"] == "unclear_write"
        assert on.count(SUBMIT) == 2


@pytest.mark.parametrize("how", ["fin", "rst"], ids="WR-18 {}".format)
async def test_the_provider_sees_as_many_requests_as_the_trail_shows(
    tmp_path: Path, how: Any
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(says("running"), Drop("after", how), says("running"), Answer(500))
        job = await on.submit()
        for _ in range(4):
            await on.due(job)

        reserved = [event for event in await on.events(job) if event.code == "reserved"]
        assert len(reserved) == len(on.provider.arrivals) == 5


@pytest.mark.requirement("R16", "W14")
async def test_a_provider_that_cannot_be_reached_was_sent_nothing_and_gets_it_later(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=("done",)) as on:
        await on.provider.stop()
        answer = await on.asked()
        full = await on.full(answer["operation_id"])
        assert answer["state"] == "delayed"
        assert full["wire"] == {"sent": False, "answered": False, "certainty": "not_sent"}
        assert full["budgets"]["attempts"]["used"] == 0
        await on.provider.start()
        ended = await on.end_of(answer["operation_id"])

        assert ended["state"] == "succeeded"
        assert on.count(SUBMIT) == len(on.provider.effects) == 1
        assert ended["budgets"]["transport_failures"]["used"] >= 1


@pytest.mark.requirement("R16", "W14")
async def test_a_provider_that_stays_away_is_a_question_and_then_a_person_may_try_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=("done",)) as on:
        await on.provider.stop()
        job = (await on.asked())["operation_id"]
        ended = await on.end_of(job)
        assert ended["escalation"]["reason"] == "transport_budget_exhausted"
        assert ended["budgets"]["transport_failures"] == {"used": 5, "max": 5}
        await on.provider.start()
        await on.decide(job, Option.CHECK_AGAIN)

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count(SUBMIT) == 1


@pytest.mark.requirement("W05")
@pytest.mark.parametrize("status", [400, 404, 405, 413, 422])
async def test_a_submission_that_was_refused_is_final_and_a_changed_one_may_follow(
    tmp_path: Path, status: int
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        refused = {"error": {"code": "bad_name", "message": "no such data set"}}
        on.script(Answer(status, refused), route=SUBMIT)
        answer = await on.asked("sale")
        assert answer["state"] == "failed"
        assert answer["failure"]["code"] == "bad_name"
        assert answer["failure"]["message"] == "no such data set"

        assert (await on.asked("sales"))["state"] == "waiting"
        assert on.count(SUBMIT) == 2


@pytest.mark.requirement("W20")
async def test_a_limited_submission_of_the_class_that_is_never_repeated_asks_a_person(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=("done",)) as on:
        on.script(Answer(429, headers=(("Retry-After", "30"),)), route=SUBMIT)
        job = (await on.asked())["operation_id"]
        full = await on.full(job)
        assert full["escalation"]["reason"] == "rate_limited"
        assert full["wire"]["certainty"] == "not_applied"
        await on.passes(10 * MINUTE)
        assert on.count(SUBMIT) == 1
        await on.decide(job, Option.HOLD)

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count(SUBMIT) == 2


@pytest.mark.requirement("W23")
@pytest.mark.parametrize("status", [401, 403])
async def test_a_submission_that_is_not_allowed_asks_and_is_not_repeated(
    tmp_path: Path, status: int
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        on.script(Answer(status), route=SUBMIT)
        answer = await on.asked()

        assert answer["escalation"]["reason"] == "authorization_denied"
        assert "check_again" not in answer["escalation"]["options"]
        await on.passes(HOUR)
        assert on.count(SUBMIT) == 1


async def test_a_submission_that_returns_a_watched_job_is_not_a_second_one(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=FOREVER) as on:
        first = await on.submit("a")
        on.script(Answer(202, ACCEPTED), route=SUBMIT)
        second = await on.asked("b")

        assert second["escalation"]["reason"] == "binding_mismatch"
        assert (await on.full(first))["state"] == "waiting"
