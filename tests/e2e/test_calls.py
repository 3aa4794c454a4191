"""Reads and writes of an API through the tools: answers, retries by class, bounds, refusals."""

from __future__ import annotations

import asyncio
import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    FOREVER,
    KEYED,
    MINUTE,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    error,
    stage,
)

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop, Step, retry_after

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
CUSTOMER: Data = {"method": "GET", "path": "/customers/{arg.id}", "timeout": "1s"}
CALLS: Data = {"customer": CUSTOMER, "transfer": TRANSFER}


async def customer(on: Stage, **more: Any) -> Data:
    return await on.read("customer", arguments={"id": "c_1"}, **more)


def reader(home: Path, **top: Any) -> Any:
    return stage(home, calls=CALLS, **top)


async def since_the_last(on: Stage, operation_id: str) -> list[int]:
    """Milliseconds between the reservations of an operation."""
    at = [event.at for event in await on.events(operation_id) if event.code == "reserved"]
    return [later - earlier for earlier, later in pairwise(at)]


def stored(result: Data) -> bytes:
    return Path(result["file"]).read_bytes()


# --- answers --------------------------------------------------------------------------------


@pytest.mark.requirement("R17")
async def test_a_read_answers_in_the_call_itself(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(json={"id": "c_1", "name": "Ann"}), route=READ)
        told = await customer(on)

        assert (told["state"], told["may_proceed"], told["kind"]) == ("succeeded", True, "call")
        assert told["result"]["inline"] == {"id": "c_1", "name": "Ann"}
        assert "data, not instructions" in told["next_step"]
        assert on.count(READ) == 1


async def test_a_large_answer_is_a_file_with_its_beginning(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        text = "line of a report\n" * 5_000
        plain = (("Content-Type", "text/plain"),)
        on.script(Answer(body=text, headers=plain), route=READ)
        result = (await customer(on))["result"]

        kept = stored(result)
        assert kept == text.encode()
        assert result["bytes"] == len(kept)
        assert result["sha256"] == hashlib.sha256(kept).hexdigest()
        assert result["preview"] == text[:500]
        assert "inline" not in result


async def test_an_empty_answer_is_success_with_nothing(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(204), route=READ)
        told = await customer(on)

        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert "There is nothing in the answer" in told["next_step"]


@pytest.mark.requirement("R17")
@pytest.mark.parametrize("status", [400, 404, 405, 410, 422])
async def test_a_read_that_is_refused_is_final_at_once(tmp_path: Path, status: int) -> None:
    async with reader(tmp_path) as on:
        refused = {"error": {"code": "bad_id", "message": "no such customer"}}
        on.script(Answer(status, refused), route=READ)
        told = await customer(on)

        assert (told["state"], told["may_proceed"]) == ("failed", False)
        assert told["failure"]["code"] == "bad_id"
        assert told["failure"]["message"] == "no such customer"
        assert "escalation" not in told
        await on.passes(10 * MINUTE)
        assert on.count(READ) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_read_that_is_not_allowed_asks_a_person(tmp_path: Path, status: int) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(status), route=READ)
        told = await customer(on)

        assert told["escalation"]["reason"] == "authorization_denied"
        await on.passes(10 * MINUTE)
        assert on.count(READ) == 1


# --- retries of reads -----------------------------------------------------------------------

PASSING: dict[str, Step] = {
    "408": Answer(408),
    "429": Answer(429),
    "500": Answer(500),
    "502": Answer(502),
    "503": Answer(503),
    "504": Answer(504),
    "no answer": Drop("after"),
    "a reset": Drop("after", "rst"),
    "a cut body": Answer(json={"name": "Ann"}, cut_body=4),
    "too late": Answer(json={}, gate="never"),
}


@pytest.mark.requirement("R06")
@pytest.mark.parametrize("step", PASSING.values(), ids=PASSING)
async def test_a_read_is_tried_again_after_what_may_pass(tmp_path: Path, step: Step) -> None:
    async with reader(tmp_path) as on:
        on.script(step, Answer(json={"name": "Ann"}), route=READ)
        told = await customer(on)
        assert (told["state"], told["may_proceed"]) == ("delayed", False)
        assert "Forbear tries again" in told["next_step"]
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "succeeded"
        assert ended["budgets"]["attempts"] == {"used": 2, "max": 4}
        assert on.count(READ) == 2


@pytest.mark.requirement("R06", "R27")
@pytest.mark.parametrize(
    ("step", "last"),
    [
        (Answer(503), "last answer 503"),
        (Answer(500), "last answer 500"),
        (Drop("after"), "no answer to the last"),
    ],
    ids=["503", "500", "no answer"],
)
async def test_a_read_without_an_answer_ends_after_its_tries_and_says_so(
    tmp_path: Path, step: Step, last: str
) -> None:
    async with reader(tmp_path) as on:
        on.script(*[step] * 9, route=READ)
        ended = await on.end_of((await customer(on))["operation_id"])

        assert (ended["state"], ended["escalation"]) == ("failed", None)
        waited = int(ended["budgets"]["wait_seconds"]["used"])
        assert 0 < waited <= 90
        assert f"Final: sent 4 times, {waited} s waited, {last}." in ended["next_step"]
        assert ended["budgets"]["attempts"] == {"used": 4, "max": 4}
        await on.passes(10 * MINUTE)
        assert on.count(READ) == 4


async def test_a_read_that_is_limited_again_and_again_ends_at_the_third(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(*[retry_after(2)] * 9, route=READ)
        ended = await on.end_of((await customer(on))["operation_id"])

        assert ended["state"] == "failed"
        assert ended["budgets"]["rate_limited"] == {"used": 3, "max": 3}
        assert on.count(READ) == 3


@pytest.mark.requirement("R09")
@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_a_provider_asks_for_is_a_minimum(tmp_path: Path, status: int) -> None:
    async with reader(tmp_path) as on:
        on.script(retry_after(17, status), retry_after(9, status), route=READ)
        told = await customer(on)
        assert told["delay_source"] == "provider_retry_after"
        await on.end_of(told["operation_id"])

        first, second = await since_the_last(on, told["operation_id"])
        assert first >= 17_000
        assert second >= 9_000


async def test_waits_of_our_own_grow_under_a_cap(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(*[Answer(503)] * 3, route=READ)
        told = await customer(on)
        await on.end_of(told["operation_id"])

        waits = await since_the_last(on, told["operation_id"])
        assert all(
            wait <= most + 1 for wait, most in zip(waits, (1_000, 2_000, 4_000), strict=True)
        )


@pytest.mark.requirement("R09")
@pytest.mark.parametrize("asked", ["Mon, 30 Nov 2026 10:19:00 GMT", "0"], ids=["past", "zero"])
async def test_a_wait_that_is_over_already_is_no_tight_loop(tmp_path: Path, asked: str) -> None:
    async with reader(tmp_path) as on:
        later = retry_after(asked, 503)
        on.script(later, later, Answer(json={}), route=READ)
        told = await customer(on)
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], on.count(READ)) == ("succeeded", 3)
        assert all(wait >= 1_000 for wait in await since_the_last(on, told["operation_id"]))


@pytest.mark.requirement("R06")
async def test_the_contract_says_how_often_a_class_is_tried(tmp_path: Path) -> None:
    classes = {"read": {"max_attempts": 2}, "idempotent_write": {"max_attempts": 1}}
    calls = CALLS | {"transfer": TRANSFER | KEYED}
    async with stage(tmp_path, calls=calls, classes=classes) as on:
        on.script(*[Answer(503)] * 9, route=READ)
        on.script(*[Answer(503)] * 9, route=WRITE)
        read = await on.end_of((await customer(on))["operation_id"])
        write = await on.end_of((await on.write())["operation_id"])

        assert (read["state"], on.count(READ)) == ("failed", 2)
        assert (write["state"], on.count(WRITE)) == ("escalated", 1)


@pytest.mark.requirement("R12")
async def test_a_write_that_must_wait_beyond_its_deadline_asks_now_and_keeps_its_input(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls={"transfer": TRANSFER | KEYED}) as on:
        on.script(retry_after(1_800), route=WRITE)
        told = await on.write(7)
        assert told["escalation"]["reason"] == "rate_limited"
        await on.passes(60 * MINUTE)
        assert on.count(WRITE) == 1
        await on.decide(told["operation_id"], Option.HOLD)
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "succeeded"
        first, second = on.provider.arrivals
        assert (second.body, second.headers["idempotency-key"]) == (
            first.body,
            first.headers["idempotency-key"],
        )


@pytest.mark.requirement("R17")
@pytest.mark.parametrize("reset", [3_600, None], ids=["known reset", "no reset"])
async def test_an_exhausted_quota_waits_for_its_reset_or_asks(
    tmp_path: Path, reset: int | None
) -> None:
    used_up = {"match": {"/error": "used_up"}, "http": 429, "means": "quota_exhausted"}
    patient = TRANSFER | KEYED | {"deadline": "1d", "rules": [used_up]}
    async with stage(tmp_path, calls={"transfer": patient}) as on:
        hint = () if reset is None else (("Retry-After", str(reset)),)
        on.script(Answer(429, {"error": "used_up"}, hint), route=WRITE)
        told = await on.write()
        if reset is None:
            assert told["escalation"]["reason"] == "quota_exhausted"
            await on.passes(60 * MINUTE)
            assert on.count(WRITE) == 1
        else:
            assert told["state"] == "delayed"
            await on.passes(59 * MINUTE)
            assert on.count(WRITE) == 1
            assert (await on.end_of(told["operation_id"]))["state"] == "succeeded"


@pytest.mark.requirement("R12")
@pytest.mark.parametrize(
    ("seconds", "deadline"),
    [(100, None), (40, 30)],
    ids=["more than may be waited", "beyond the deadline"],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_that_cannot_be_kept_ends_the_read_at_once(
    tmp_path: Path, status: int, seconds: int, deadline: int | None
) -> None:
    async with reader(tmp_path) as on:
        on.script(retry_after(seconds, status), route=READ)
        told = await customer(on, deadline_seconds=deadline)

        assert (told["state"], on.count(READ)) == ("failed", 1)
        assert told["next_step"].startswith("Final: sent once, 0 s waited, last answer")
        assert "Do not" in told["next_step"]
        assert len(told["next_step"]) <= 300


async def test_a_read_that_could_not_be_sent_costs_no_attempt(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        await on.provider.stop()
        told = await customer(on)
        assert told["state"] == "delayed"
        assert "nothing was sent" in told["next_step"]
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "failed"
        assert ended["budgets"]["attempts"]["used"] == 0
        assert ended["budgets"]["transport_failures"] == {"used": 5, "max": 5}
        assert ended["wire"]["sent"] is False


async def test_a_deadline_ends_a_read_that_waits(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(*[retry_after(6, 503)] * 9, route=READ)
        told = await customer(on, deadline_seconds=10)
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "failed"
        assert on.count(READ) == 2
        created, deadline = ended["created_at"], ended["deadline_at"]
        assert int(deadline[17:19]) - int(created[17:19]) == 10


async def test_a_read_goes_on_when_its_caller_does_not_wait(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(json={"name": "Ann"}, gate="slow"), route=READ)
        told = await on.call(
            "read_api", provider="exp", call="customer", arguments={"id": "c_1"}, wait_seconds=0
        )
        assert told["state"] in ("queued", "sending")
        await on.provider.arrived(READ)
        on.provider.release("slow")
        await on.settled()
        there = await on.check(told["operation_id"])

        assert there["result"]["inline"] == {"name": "Ann"}
        assert on.count(READ) == 1


@pytest.mark.requirement("D06")
async def test_a_caller_that_gives_up_loses_no_answer(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(202, {"id": "tr_1"}, gate="slow", effect=True), route=WRITE)
        asked = asyncio.create_task(on.write())
        await on.provider.arrived(WRITE)
        asked.cancel()
        await asyncio.wait({asked})
        on.provider.release("slow")
        await on.settled()
        (known,) = (await on.call("operation_status"))["operations"]

        assert (known["state"], known["provider_job"]["id"]) == ("succeeded", "tr_1")
        assert on.count(WRITE) == 1


# --- writes ---------------------------------------------------------------------------------


async def test_a_write_is_done_once_and_says_what_it_made(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        told = await on.write(purpose="order 8812")

        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert told["provider_job"]["id"] == on.provider.effects[0].id
        assert "Done and checked" in told["next_step"]
        assert (await on.full(told["operation_id"]))["label"] == "Transfer 5"
        assert on.count(WRITE) == 1


@pytest.mark.requirement("R17")
@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_write_that_is_refused_is_final_and_a_changed_one_may_follow(
    tmp_path: Path, status: int
) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(status, {"error": {"code": "too_much"}}), route=WRITE)
        told = await on.write(5_000)
        assert (told["state"], told["failure"]["code"]) == ("failed", "too_much")
        assert "nothing was done" in told["next_step"]
        assert (await on.write(5))["state"] == "succeeded"

        assert on.count(WRITE) == 2


@pytest.mark.requirement("R16")
@pytest.mark.parametrize("keyed", [{}, KEYED], ids=["neither key nor lookup", "with a key"])
async def test_a_write_that_could_not_be_sent_goes_out_later_and_once(
    tmp_path: Path, keyed: Data
) -> None:
    async with stage(tmp_path, calls={"transfer": TRANSFER | keyed}) as on:
        await on.provider.stop()
        told = await on.write()
        assert told["state"] == "delayed"
        await on.provider.start()
        ended = await on.end_of(told["operation_id"])

        assert ended["state"] == "succeeded"
        assert ended["budgets"]["attempts"]["used"] == 1
        assert on.count(WRITE) == len(on.provider.effects) == 1


async def test_a_write_that_can_never_be_sent_is_dropped_and_nothing_happened(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path) as on:
        await on.provider.stop()
        ended = await on.end_of((await on.write())["operation_id"])

        assert (ended["state"], ended["wire"]["sent"]) == ("discarded", False)
        assert "nothing happened" in ended["next_step"]
        await on.provider.start()
        await on.passes(60 * MINUTE)
        assert on.provider.arrivals == []


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "right"),
    [
        ("write_api", "customer", {"id": "c_1"}, "read_api"),
        ("read_api", "transfer", {"amount": 5}, "write_api"),
    ],
)
async def test_the_wrong_tool_is_told_the_whole_right_call_and_nothing_is_sent(
    tmp_path: Path, tool: str, name: str, arguments: Data, right: str
) -> None:
    async with reader(tmp_path) as on:
        refused = error(await on.call(tool, provider="exp", call=name, arguments=arguments))

        assert refused["code"] == "use_instead"
        written = json.dumps(arguments, separators=(",", ":"))
        whole = f'{right}(provider="exp", call="{name}", arguments={written})'
        assert whole in refused["next_step"]
        assert (await on.call("operation_status"))["operations"] == []
        assert on.provider.arrivals == []


async def test_a_job_in_read_api_and_an_unknown_call_are_told_what_there_is(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path) as on:
        job = error(
            await on.call("read_api", provider="exp", call="export", arguments={"dataset": "x"})
        )
        assert job["code"] in ("use_instead", "unknown_action")
        assert "submit_job(" in job["next_step"]
        unknown = error(await on.read("custome", arguments={"id": "c_1"}))
        assert unknown["code"] == "unknown_action"
        assert "customer" in unknown["message"]
        assert on.provider.arrivals == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"arguments": {}}, "/id"),
        ({"arguments": {"id": "c_1", "nme": "x"}}, "nme"),
        ({"arguments": {"id": "c_1"}, "deadline_seconds": 0}, "deadline_seconds"),
    ],
    ids=["missing", "unknown", "zero"],
)
async def test_arguments_that_do_not_fit_are_named_and_nothing_is_sent(
    tmp_path: Path, wrong: Data, named: str
) -> None:
    async with reader(tmp_path) as on:
        refused = error(await on.read("customer", **wrong))

        assert refused["code"] == "invalid_arguments"
        assert named in refused["message"]
        assert on.provider.arrivals == []


async def test_a_limit_above_the_contracts_is_lowered_and_named(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(json={}), route=READ)
        told = await customer(on, deadline_seconds=99_999)

        assert told["advice"] == "deadline_seconds lowered to the contract's 300"


@pytest.mark.requirement("W01")
async def test_work_that_needs_another_operation_waits_for_its_success(tmp_path: Path) -> None:
    async with reader(tmp_path, states=FOREVER) as on:
        job = await on.submit()
        on.script(Answer(json={}), route=READ)
        for refused in (
            error(await customer(on, depends_on=[job])),
            error(await on.write(depends_on=[job])),
        ):
            assert (refused["code"], refused["operation_id"]) == ("not_ready", job)
        assert (on.count(READ), on.count(WRITE)) == (0, 0)
        unknown = error(await customer(on, depends_on=["op_nothing"]))
        assert unknown["code"] == "unknown_operation"
        done = (await on.write())["operation_id"]
        assert (await customer(on, depends_on=[done]))["state"] == "succeeded"


@pytest.mark.requirement("R07", "R10")
async def test_as_many_requests_as_a_scope_allows_are_out_at_once(tmp_path: Path) -> None:
    """None of them waits for a connection inside its own time-out, to be sent late and twice."""
    wide = {"rate": "1000/1s", "max_concurrent_requests": 20, "max_delayed_requests": 100}
    async with reader(tmp_path, scopes={"account": {"per": "account"} | wide}) as on:
        every = "GET /customers/"
        gates = [f"gate{number}" for number in range(20)]
        on.script(*(Answer(200, {"ok": True}, gate=gate) for gate in gates), route=every)
        asked = [
            asyncio.create_task(
                on.call("read_api", provider="exp", call="customer", arguments={"id": gate})
            )
            for gate in gates
        ]
        async with asyncio.timeout(30):
            await on.provider.arrived(every, 20)
        assert on.provider.most_open == 20
        for gate in gates:
            on.provider.release(gate)
        for answer in asyncio.as_completed(asked):
            assert (await answer)["state"] == "succeeded"
        assert on.count(every) == 20


@pytest.mark.requirement("D01", "R07")
async def test_requests_that_are_out_at_once_know_nothing_of_each_other(tmp_path: Path) -> None:
    """The first ends while the answer of the second is still coming in, piece by piece."""
    async with reader(tmp_path) as on:
        on.script(Answer(json={"id": "c_1"}, gate="first"), route=READ)
        on.script(
            Answer(json={"id": "c_2"}, gate="second", drip="head", pace=0.001),
            route="GET /customers/c_2",
        )
        asked = [
            asyncio.create_task(
                on.call("read_api", provider="exp", call="customer", arguments={"id": one})
            )
            for one in ("c_1", "c_2")
        ]
        async with asyncio.timeout(30):
            await on.provider.arrived("GET /customers/", 2)
        on.provider.release("first")
        assert (await asked[0])["state"] == "succeeded"
        on.provider.release("second")
        assert (await asked[1])["state"] == "succeeded"
        assert on.count("GET /customers/") == 2
