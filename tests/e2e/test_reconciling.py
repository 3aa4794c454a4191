"""Unclear writes: looked up, sent again under their key, or put before a person; never doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.e2e.harness import (
    FINDABLE,
    HOUR,
    KEYED,
    LOOK,
    LOOKUP,
    MINUTE,
    NO_RESULT,
    PROVABLE,
    STATUS,
    SUBMIT,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    another_chat,
    bank,
    call,
    error,
    furnished,
    process,
    stage,
)
from tests.support import ManualClock

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop, FakeProvider, Step

pytestmark = pytest.mark.anyio

LOST = Drop("after", effect=True)
"""The provider did it; its answer is lost."""
UNDONE = Drop("after")
"""The provider read the request, did nothing, and closed."""

EVERYTHING = TRANSFER | KEYED | FINDABLE


def wire_keys(provider: FakeProvider) -> list[str | None]:
    return [a.headers.get("idempotency-key") for a in provider.arrivals if a.method == "POST"]


def references(provider: FakeProvider) -> list[str]:
    return [a.json()["client_ref"] for a in provider.arrivals if a.method == "POST"]


async def reserved_at(on: Stage, operation_id: str, step: str) -> list[int]:
    events = await on.events(operation_id)
    return [e.at for e in events if e.code == "reserved" and e.body["step"] == step]


# --- neither key nor lookup -----------------------------------------------------------------


@pytest.mark.requirement("R15", "R24")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(LOST, id="WR-01 done, and the answer lost"),
        pytest.param(UNDONE, id="not done, and no answer"),
        pytest.param(Answer(503, headers=(("Retry-After", "1"),)), id="WR-02 503"),
        pytest.param(Answer(504, effect=True), id="WR-02 504 after the work"),
        pytest.param(Answer(500), id="WR-09 500"),
        pytest.param(Answer(202, {"id": "tr_1"}, gate="never", effect=True), id="WR-03 too late"),
        pytest.param(Answer(202, {"state": "done"}, effect=True), id="WR-11 no id"),
    ],
)
async def test_a_write_that_nobody_can_find_again_is_one_request_and_then_a_person(
    tmp_path: Path, step: Step
) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.script(step, route=WRITE)
        told = await on.write()

        assert (told["state"], told["may_proceed"]) == ("escalated", False)
        assert "tell the user" in told["next_step"]
        assert "Do not repeat it" in told["next_step"]
        options = told["escalation"]["options"]
        assert {"confirm_done", "confirm_not_done"} <= set(options)
        assert not {"reconcile", "resend_same_key", "extend", "check_again"} & set(options)
        await on.passes(24 * HOUR)
        assert on.provider.count(WRITE) == len(on.provider.arrivals) == 1
        for again in (await on.write(idempotency_key="other"), await on.write(task="next")):
            answered = again.get("error", again)
            assert answered["operation_id"] == told["operation_id"]
        assert on.provider.count(WRITE) == 1


async def test_whoever_must_look_at_the_provider_is_told_what_was_sent_and_where_to_look(
    tmp_path: Path,
) -> None:
    account = {"id": "acct_17", "path": "transfers"}
    transfer = TRANSFER | {"path": "/{+account.path}"}
    page = "https://exp.example/{account.path}"
    async with bank(tmp_path, transfer, account=account, console=page) as on:
        on.script(LOST, route=WRITE)
        told = await on.write()
        text = (await on.full(told["operation_id"]))["escalation"]["text"]

        assert "POST /transfers, account acct_17" in text
        assert "Look there: https://exp.example/transfers" in text


async def test_what_a_person_found_there_is_the_outcome_and_marked_as_not_checked(
    tmp_path: Path,
) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        await on.decide(transfer, Option.CONFIRM_DONE, reference="tr_1")
        told = await on.check(transfer)

        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert told["provider_job"]["id"] == "tr_1"
        assert told["next_step"].startswith("Done, as a person said; not checked")
        assert (await on.full(transfer))["validated"] is False
        assert error(await on.write(idempotency_key="x"))["code"] == "possible_duplicate"
        assert on.count(WRITE) == 1


async def test_what_a_person_did_not_find_may_be_asked_for_again(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        await on.decide(transfer, Option.CONFIRM_NOT_DONE)
        told = await on.check(transfer)
        assert (told["state"], told["may_proceed"]) == ("failed", False)
        assert (await on.full(transfer))["wire"]["certainty"] == "not_applied"
        assert on.count(WRITE) == 1

        again = await on.write()
        assert again["state"] == "succeeded"
        assert again["operation_id"] != transfer
        assert on.count(WRITE) == 2
        assert len(on.provider.effects) == 1


async def test_a_write_that_nobody_could_find_again_asks_before_it_is_sent(tmp_path: Path) -> None:
    unstated = {name: value for name, value in TRANSFER.items() if name != "approval"}
    async with bank(tmp_path, unstated) as on:
        told = await on.write()
        assert (told["state"], told["waiting_for"]) == ("queued", "approval")
        assert "Transfer 5" in told["next_step"]
        await on.passes(HOUR)
        assert on.provider.arrivals == []
        await on.decide(told["operation_id"], Option.APPROVE)

        assert (await on.check(told["operation_id"]))["state"] == "succeeded"
        assert on.count(WRITE) == len(on.provider.effects) == 1


# --- a key that the provider recognises -----------------------------------------------------


@pytest.mark.requirement("R13", "R06")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(LOST, id="WR-06 done, and the answer lost"),
        pytest.param(Drop("after", "rst", effect=True), id="WR-06 the same with a reset"),
        pytest.param(UNDONE, id="not done, and no answer"),
        pytest.param(Answer(503, headers=(("Retry-After", "5"),)), id="503"),
        pytest.param(Answer(504, effect=True), id="WR-02 504 after the work"),
        pytest.param(Answer(408), id="408"),
        pytest.param(Answer(429), id="429"),
        pytest.param(Answer(500), id="500 that nobody stores"),
    ],
)
async def test_a_keyed_write_is_sent_again_under_its_key_and_done_once(
    tmp_path: Path, step: Step
) -> None:
    async with bank(tmp_path, TRANSFER | KEYED) as on:
        on.script(step, route=WRITE)
        told = await on.write(idempotency_key="of the agent")
        assert told["state"] in ("unclear", "delayed")
        assert told["may_proceed"] is False
        stored = (await on.operation(told["operation_id"])).wire_key
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], ended["failure"]) == ("succeeded", None)
        assert ended["provider_job"]["id"] == "tr_1"
        assert wire_keys(on.provider) == [stored, stored]
        assert len({arrival.body for arrival in on.provider.arrivals}) == 1
        assert len(on.provider.effects) == 1


async def test_a_keyed_write_is_sent_three_times_at_most_and_then_asks(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER | KEYED) as on:
        on.script(*[UNDONE] * 9, route=WRITE)
        told = await on.write()
        assert "with the same key" in told["next_step"]
        ended = await on.end_of(told["operation_id"])

        assert ended["escalation"]["reason"] == "unclear_write"
        assert ended["budgets"]["attempts"] == {"used": 3, "max": 3}
        assert "Sent: 3 times" in ended["escalation"]["text"]
        assert len(set(wire_keys(on.provider))) == 1
        await on.passes(24 * HOUR)
        assert on.count(WRITE) == 3


async def test_a_person_lets_a_keyed_write_be_sent_once_more_under_its_key(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER | KEYED) as on:
        on.script(LOST, *[Drop("after")] * 2, route=WRITE)
        transfer = (await on.write())["operation_id"]
        await on.end_of(transfer)
        await on.decide(transfer, Option.RESEND_SAME_KEY)
        ended = await on.end_of(transfer)

        assert ended["state"] == "succeeded"
        assert ended["budgets"]["attempts"] == {"used": 4, "max": 4}
        assert len(set(wire_keys(on.provider))) == 1
        assert len(on.provider.effects) == 1


async def test_a_key_that_the_provider_will_have_forgotten_is_not_relied_on(
    tmp_path: Path,
) -> None:
    short = {"idempotency": KEYED["idempotency"] | {"window": "30s"}}
    async with bank(tmp_path, TRANSFER | short) as on:
        on.script(Answer(503, headers=(("Retry-After", "60"),)), route=WRITE)
        told = await on.write()
        assert told["escalation"]["reason"] == "unclear_write"
        assert "resend_same_key" in told["escalation"]["options"]
        await on.passes(HOUR)
        with pytest.raises(AssertionError, match="not offered"):
            await on.decide(told["operation_id"], Option.RESEND_SAME_KEY)

        assert on.count(WRITE) == 1


@pytest.mark.parametrize("case", ["WR-09"])
async def test_an_error_that_the_provider_stores_is_not_asked_for_again(
    tmp_path: Path, case: str
) -> None:
    stores = {"idempotency": KEYED["idempotency"] | {"stores_errors": True}}
    async with bank(tmp_path, TRANSFER | stores) as on:
        on.script(Answer(500, effect=True), route=WRITE)
        told = await on.write()

        assert told["escalation"]["reason"] == "unclear_write"
        await on.passes(HOUR)
        assert on.count(WRITE) == 1


@pytest.mark.parametrize("case", ["WR-09"])
async def test_an_error_that_the_provider_stores_is_settled_by_a_lookup(
    tmp_path: Path, case: str
) -> None:
    stores = {"idempotency": KEYED["idempotency"] | {"stores_errors": True}}
    async with bank(tmp_path, TRANSFER | stores | FINDABLE) as on:
        on.script(Answer(500, effect=True), route=WRITE)
        ended = await on.end_of((await on.write())["operation_id"])

        assert ended["state"] == "succeeded"
        assert (on.count(WRITE), on.count(LOOK)) == (1, 1)


@pytest.mark.parametrize("case", ["WR-16"])
async def test_a_request_that_is_still_running_is_waited_for_under_its_key(
    tmp_path: Path, case: str
) -> None:
    rules = [{"http": 409, "match": {"/error": "in_progress"}, "means": "in_flight"}]
    async with bank(tmp_path, TRANSFER | KEYED | {"rules": rules}) as on:
        on.script(*[Answer(409, {"error": "in_progress"})] * 2, route=WRITE)
        ended = await on.end_of((await on.write())["operation_id"])

        assert ended["state"] == "succeeded"
        assert len(wire_keys(on.provider)) == 3
        assert len(set(wire_keys(on.provider))) == 1


# --- a reference that can be looked up ------------------------------------------------------


@pytest.mark.requirement("R24", "R25")
@pytest.mark.parametrize("keyed", [{}, KEYED], ids=["without a key", "WR-06 with a key"])
async def test_a_lost_write_is_looked_up_and_found_and_not_sent_again(
    tmp_path: Path, keyed: Data
) -> None:
    async with bank(tmp_path, TRANSFER | keyed | FINDABLE) as on:
        on.script(LOST, route=WRITE)
        told = await on.write()
        assert (told["state"], told["waiting_for"]) == ("unclear", "settle")
        assert "reconcile_write" in told["next_step"]
        assert "reconcile_write" in told["allowed_actions"]
        codes = [event.code for event in await on.events(told["operation_id"])]
        assert codes[-1] == "reconciliation_required"
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], ended["validated"]) == ("succeeded", True)
        assert ended["provider_job"]["id"] == "tr_1"
        assert ended["budgets"]["lookups"] == {"used": 1, "max": 6}
        assert [a.method for a in on.provider.arrivals] == ["POST", "GET"]
        assert len(on.provider.effects) == 1


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("others", [3, 4])
async def test_every_page_of_the_list_is_read_and_counts_as_one_lookup(
    tmp_path: Path, others: int
) -> None:
    async with bank(tmp_path, TRANSFER | FINDABLE) as on:
        on.provider.page_size = 2
        for number in range(others):
            on.provider.job(f"of-others-{number}", ["done"], collection="/transfers", existing=True)
        on.script(LOST, route=WRITE)
        ended = await on.end_of((await on.write())["operation_id"])

        assert (ended["state"], ended["provider_job"]["id"]) == ("succeeded", "tr_1")
        assert on.count(LOOK) == (others + 2) // 2
        assert ended["budgets"]["lookups"]["used"] == 1
        assert [a.query.get("cursor") for a in on.provider.arrivals[1:]] == [None, "2", "4"][
            : on.count(LOOK)
        ]


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("page_size", [1, 1_000], ids=["on two pages", "on one page"])
async def test_two_effects_under_one_reference_are_a_conflict(
    tmp_path: Path, page_size: int
) -> None:
    async with bank(tmp_path, EVERYTHING) as on:
        on.provider.page_size = page_size
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        (ref,) = references(on.provider)
        on.provider.job("tr_9", ["done"], collection="/transfers", existing=True, ref=ref)
        ended = await on.end_of(transfer)

        assert ended["escalation"]["reason"] == "reconciliation_conflict"
        told = await on.check(transfer)
        assert "several or different matches" in told["next_step"]
        await on.passes(24 * HOUR)
        assert on.count(WRITE) == 1


async def test_a_match_that_says_something_else_than_we_sent_is_a_conflict(
    tmp_path: Path,
) -> None:
    async with bank(tmp_path, EVERYTHING | {"echo": {"/amount": "{arg.amount}"}}) as on:
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        found = {"id": "tr_1", "client_ref": references(on.provider)[0], "amount": 6}
        on.script(Answer(json={"items": [found], "next": None}), route=LOOK)
        ended = await on.end_of(transfer)

        assert ended["escalation"]["reason"] == "reconciliation_conflict"
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R25", "R15")
@pytest.mark.parametrize("keyed", [{}, KEYED], ids=["without a key", "with a key"])
async def test_proven_absence_allows_exactly_one_more_under_the_same_reference(
    tmp_path: Path, keyed: Data
) -> None:
    async with bank(tmp_path, TRANSFER | keyed | PROVABLE) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        ended = await on.end_of(transfer)

        assert ended["state"] == "succeeded"
        assert [a.method for a in on.provider.arrivals] == ["POST", "GET", "GET", "POST"]
        assert len(set(references(on.provider))) == 1
        assert len(set(wire_keys(on.provider))) == 1
        assert len(on.provider.effects) == 1
        first, second = await reserved_at(on, transfer, "lookup")
        assert second - first >= MINUTE


@pytest.mark.requirement("R25")
@pytest.mark.parametrize("keyed", [{}, KEYED], ids=["without a key", "with a key"])
async def test_after_the_one_resend_a_second_lost_answer_is_for_a_person(
    tmp_path: Path, keyed: Data
) -> None:
    async with bank(tmp_path, TRANSFER | keyed | PROVABLE) as on:
        on.script(UNDONE, UNDONE, UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        ended = await on.end_of(transfer)

        assert ended["escalation"]["reason"] == "unclear_write"
        await on.passes(24 * HOUR)
        assert on.count(WRITE) == 2
        assert len(set(references(on.provider))) == 1


@pytest.mark.requirement("R25")
async def test_absence_that_proves_nothing_uses_up_the_lookups_and_asks(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER | FINDABLE | {"deadline": "1d"}) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        ended = await on.end_of(transfer)

        assert ended["escalation"]["reason"] == "unclear_write"
        assert ended["budgets"]["lookups"] == {"used": 6, "max": 6}
        assert "Lookup: 6 of 6" in ended["escalation"]["text"]
        assert "proves nothing" in ended["escalation"]["text"]
        timeline = (await on.full(transfer, timeline=True))["timeline"]
        assert sum("looked it up, found nothing" in line for line in timeline) == 6
        assert (on.count(WRITE), on.count(LOOK)) == (1, 6)
        await on.passes(24 * HOUR)
        assert (on.count(WRITE), on.count(LOOK)) == (1, 6)


async def test_a_person_has_it_looked_up_again_and_what_came_late_is_found(tmp_path: Path) -> None:
    async with bank(tmp_path, TRANSFER | FINDABLE) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        await on.end_of(transfer)
        (ref,) = references(on.provider)
        on.provider.job("tr_late", ["done"], collection="/transfers", existing=True, ref=ref)
        await on.decide(transfer, Option.RECONCILE)
        ended = await on.end_of(transfer)

        assert (ended["state"], ended["provider_job"]["id"]) == ("succeeded", "tr_late")
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R25")
async def test_what_shows_up_after_the_first_empty_lookup_is_not_made_again(
    tmp_path: Path,
) -> None:
    async with bank(tmp_path, TRANSFER | PROVABLE) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        await on.due(transfer)
        assert on.count(LOOK) == 1
        (ref,) = references(on.provider)
        on.provider.job("tr_late", ["done"], collection="/transfers", existing=True, ref=ref)
        ended = await on.end_of(transfer)

        assert (ended["state"], ended["provider_job"]["id"]) == ("succeeded", "tr_late")
        assert (on.count(WRITE), on.count(LOOK)) == (1, 2)


CUT = Answer(json={"items": []}, cut_body=3)
NO_LIST = Answer(json={"page": "down for maintenance"})


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Answer(404)] * 6, id="404"),
        pytest.param([Answer(503)] * 6, id="503"),
        pytest.param([Answer(429)] * 6, id="429"),
        pytest.param([Drop("after")] * 6, id="no answer"),
        pytest.param([CUT] * 6, id="cut"),
        pytest.param([NO_LIST] * 6, id="no list"),
        pytest.param([Answer(json={"items": [], "next": "2"})] * 20, id="a list without an end"),
    ],
)
async def test_a_lookup_that_cannot_be_read_to_its_end_proves_nothing(
    tmp_path: Path, steps: list[Step]
) -> None:
    async with bank(tmp_path, TRANSFER | PROVABLE | {"deadline": "1d"}) as on:
        on.script(LOST, route=WRITE)
        on.script(*steps, route=LOOK)
        transfer = (await on.write())["operation_id"]
        ended = await on.end_of(transfer)

        assert ended["escalation"]["reason"] == "unclear_write"
        assert ended["budgets"]["lookups"]["used"] == 6
        assert on.count(WRITE) == len(on.provider.effects) == 1


async def test_a_refused_lookup_leaves_the_doubt_to_a_person(tmp_path: Path) -> None:
    async with bank(tmp_path, EVERYTHING) as on:
        on.script(LOST, route=WRITE)
        on.script(Answer(401), route=LOOK)
        ended = await on.end_of((await on.write())["operation_id"])

        assert ended["escalation"]["reason"] == "unclear_write"
        await on.passes(HOUR)
        assert (on.count(WRITE), on.count(LOOK)) == (1, 1)


# --- jobs -----------------------------------------------------------------------------------

FINDABLE_JOB = NO_RESULT | {
    "lookup": LOOKUP | {"path": "/exports", "query": {"client_ref": "{ref}"}}
}


@pytest.mark.requirement("R24", "R25")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(LOST, id="WR-01 the answer lost"),
        pytest.param(Answer(504, effect=True), id="WR-02 504 after the work"),
        pytest.param(Answer(201, effect=True), id="WR-11 201 and nothing"),
        pytest.param(Answer(202, {"state": "queued"}, effect=True), id="WR-11 no id"),
    ],
)
async def test_a_lost_submission_is_found_and_the_job_is_waited_for(
    tmp_path: Path, step: Step
) -> None:
    async with stage(tmp_path, FINDABLE_JOB, states=("queued", "running", "done")) as on:
        on.script(step, route=SUBMIT)
        told = await on.asked()
        assert told["state"] == "unclear"
        found = await on.due(told["operation_id"])
        assert (found["state"], found["provider_job"]["id"]) == ("waiting", "exp_1")
        timeline = (await on.full(told["operation_id"], timeline=True))["timeline"]
        assert any("looked it up, found job exp_1" in line for line in timeline)
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "succeeded"
        assert on.count(SUBMIT) == len(on.provider.effects) == 1
        assert (on.count("GET /exports"), on.count(STATUS)) == (1, 3)


# --- one action, one operation --------------------------------------------------------------


@pytest.mark.requirement("R14")
async def test_the_same_write_of_two_agents_at_once_is_one(tmp_path: Path) -> None:
    async with bank(tmp_path, EVERYTHING) as on, another_chat(on) as other:
        asked: Data = {"provider": "exp", "call": "transfer", "arguments": {"amount": 5}}
        async with asyncio.TaskGroup() as tasks:
            answers = [
                tasks.create_task(call(client, "write_api", **asked, wait_seconds=0, task=task))
                for client, task in ((on.client, "a"), (other, "b"))
            ]
        await on.settled()
        first, second = (one.result() for one in answers)

        assert first["operation_id"] == second["operation_id"]
        assert [first.get("joined"), second.get("joined")].count(True) == 1
        assert (await on.full(first["operation_id"]))["tasks"] == ["a", "b"]
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R14", "R13", "R26")
@pytest.mark.parametrize("steps", [(LOST,), (UNDONE,)], ids=["done", "not done"])
async def test_an_unclear_write_is_asked_for_again_after_a_restart_and_is_still_one(
    tmp_path: Path, steps: tuple[Step, ...]
) -> None:
    clock = ManualClock()
    calls = {"transfer": TRANSFER | KEYED | PROVABLE}
    async with furnished(tmp_path, states=None, calls=calls) as provider:
        provider.job("tr_1", ["done"], collection="/transfers")
        provider.script(WRITE, *steps)
        async with process(provider, tmp_path, clock) as on:
            transfer = (await on.write())["operation_id"]
            stored = (await on.operation(transfer)).wire_key
        assert provider.count(LOOK) == 0
        async with process(provider, tmp_path, clock) as on:
            again = await on.write(task="another", wait_seconds=0)
            assert (again["operation_id"], again["joined"]) == (transfer, True)
            minted = error(await on.write(idempotency_key="minted"))
            assert (minted["code"], minted["operation_id"]) == ("possible_duplicate", transfer)
            ended = await on.end_of(transfer)

        assert ended["state"] == "succeeded"
        assert set(wire_keys(provider)) == {stored}
        assert len(set(references(provider))) == 1
        assert len(provider.effects) == 1
        assert provider.arrivals[1].method == "GET"


@pytest.mark.requirement("R14")
@pytest.mark.parametrize("repeat", ["ask", "join"])
async def test_a_write_that_was_done_is_not_done_again_within_a_day(
    tmp_path: Path, repeat: str
) -> None:
    async with bank(tmp_path, EVERYTHING | {"repeat": repeat}) as on:
        first = await on.write()
        assert first["state"] == "succeeded"
        await on.passes(20 * HOUR)
        again = await on.write(task="tomorrow")
        if repeat == "join":
            assert (again["operation_id"], again["joined"]) == (first["operation_id"], True)
        else:
            refused = error(again)
            assert (refused["code"], refused["operation_id"]) == (
                "possible_duplicate",
                first["operation_id"],
            )
        assert on.count(WRITE) == 1


# --- reconcile_write ------------------------------------------------------------------------


@pytest.mark.requirement("R25")
async def test_asking_for_the_lookup_waits_for_it_and_makes_no_other(tmp_path: Path) -> None:
    async with bank(tmp_path, EVERYTHING) as on:
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        told = await on.call("reconcile_write", operation_id=transfer, wait_seconds=0)
        assert (told["state"], on.count(LOOK)) == ("unclear", 0)
        asked = asyncio.create_task(
            on.call("reconcile_write", operation_id=transfer, wait_seconds=20)
        )
        await on.due(transfer)
        found = await asked

        assert (found["state"], found["may_proceed"]) == ("succeeded", True)
        assert "tr_1" in found["next_step"]
        assert (on.count(WRITE), on.count(LOOK)) == (1, 1)


@pytest.mark.requirement("M09")
async def test_asking_for_the_lookup_again_and_again_is_told_to_stop(tmp_path: Path) -> None:
    async with bank(tmp_path, EVERYTHING) as on:
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        answers = [
            await on.call("reconcile_write", operation_id=transfer, wait_seconds=0)
            for _ in range(10)
        ]
        assert error(answers[-1])["code"] == "nothing_new"
        assert "end your turn" in answers[5]["next_step"]
        assert on.count(LOOK) == 0


async def test_only_an_unclear_write_that_can_be_found_is_looked_up(tmp_path: Path) -> None:
    async with bank(tmp_path, EVERYTHING) as on:
        done = (await on.write())["operation_id"]
        refused = error(await on.call("reconcile_write", operation_id=done))
        assert refused["code"] == "not_allowed_in_state"
        assert "succeeded" in refused["message"]
        unknown = error(await on.call("reconcile_write", operation_id="op_nothing"))
        assert unknown["code"] == "unknown_operation"
        assert on.count(LOOK) == 0


@pytest.mark.parametrize("keyed", [{}, KEYED], ids=["escalated", "unclear"])
async def test_a_write_without_a_lookup_has_none_to_ask_for(tmp_path: Path, keyed: Data) -> None:
    async with bank(tmp_path, TRANSFER | keyed) as on:
        on.script(LOST, route=WRITE)
        transfer = (await on.write())["operation_id"]
        refused = error(await on.call("reconcile_write", operation_id=transfer))

        assert (refused["code"], refused["operation_id"]) == ("not_allowed_in_state", transfer)
        assert on.count(WRITE) == 1


async def test_a_write_whose_lookups_are_used_up_is_for_a_person(tmp_path: Path) -> None:
    lookup = {"lookup": LOOKUP | {"max_lookups": 1}}
    async with bank(tmp_path, TRANSFER | lookup) as on:
        on.script(UNDONE, route=WRITE)
        transfer = (await on.write())["operation_id"]
        assert (await on.end_of(transfer))["escalation"]["reason"] == "unclear_write"
        refused = error(await on.call("reconcile_write", operation_id=transfer))

        assert refused["code"] == "not_allowed_in_state"
        assert on.count(LOOK) == 1
