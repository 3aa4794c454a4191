"""The same failure again and again is stopped here, not at the provider; so is an outage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.e2e.harness import (
    MINUTE,
    PATIENCE,
    SUBMIT,
    Data,
    Stage,
    another_chat,
    call,
    error,
    stage,
)

from forbear.server.fake import Answer, Drop, Step

pytestmark = pytest.mark.anyio

REFUSED = Answer(422, json={"error": {"code": "bad_dataset", "message": "no such data set"}})


@pytest.mark.requirement("R19")
async def test_mc_03_the_same_rejected_submission_reaches_the_provider_three_times(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        on.script(*[REFUSED] * 10, route=SUBMIT)
        for _ in range(3):
            assert (await on.asked("sales"))["state"] == "failed"
        for attempt in range(7):
            refused = error(await on.asked("sales", task=f"renamed {attempt}"))
            assert refused["code"] == "circuit_open"
            assert "bad_dataset" in refused["message"]
        assert on.count(SUBMIT) == 3

        assert (await on.asked("other"))["state"] == "failed"
        assert on.count(SUBMIT) == 4
        await on.passes(11 * MINUTE)
        assert (await on.asked("sales"))["state"] == "failed"
        assert error(await on.asked("sales"))["code"] == "circuit_open"
        assert on.count(SUBMIT) == 5


# --- one caller's faults --------------------------------------------------------------------

CUSTOMERS = "GET /customers/"
CALLS: Data = {"customer": {"method": "GET", "path": "/customers/{arg.id}", "timeout": "1s"}}
BAD = Answer(400, json={"error": {"code": "bad_id", "message": "no such id"}})
GOOD = Answer(json={"name": "Ann"})


async def customer(on: Stage, name: str, wait_seconds: float = 20) -> Data:
    """What `read_api` says of one customer at once, or when nothing is under way any more."""
    return await on.read("customer", wait_seconds, arguments={"id": name})


async def tripped(on: Stage, name: str = "bad") -> None:
    on.script(*[BAD] * 3, route=f"GET /customers/{name}")
    for _ in range(3):
        assert (await customer(on, name))["state"] == "failed"


@pytest.mark.requirement("R19")
async def test_cb_03_an_open_breaker_refuses_without_a_trace_and_says_until_when(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        await tripped(on)
        known = (await on.call("operation_status"))["operations"]
        for _ in range(5):
            refused = error(await customer(on, "bad"))
            assert refused["code"] == "circuit_open"
            assert "it is blocked until 10:30" in refused["message"]
            assert "Do not repeat the same request." in refused["next_step"]
            assert "operation_id" not in refused
        assert (await on.call("operation_status"))["operations"] == known
        await on.passes(9 * MINUTE)
        assert on.count(CUSTOMERS) == 3


@pytest.mark.requirement("R19", "R32")
async def test_cb_04_what_one_caller_asks_wrongly_stops_nobody_else(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on, another_chat(on) as other:
        await tripped(on)
        for number in range(10):
            on.script(BAD, route=f"GET /customers/bad{number}")
            assert (await customer(on, f"bad{number}"))["state"] == "failed"
        on.script(GOOD, route="GET /customers/good")
        passed = {"provider": "exp", "call": "customer", "arguments": {"id": "good"}}
        told = await call(other, "read_api", **passed, wait_seconds=20)

        assert told["state"] == "succeeded"
        assert error(await customer(on, "bad"))["code"] == "circuit_open"
        assert await on.app.store.read.outages() == []


@pytest.mark.requirement("R19")
async def test_cb_01_after_its_time_a_breaker_lets_one_attempt_go_and_not_five(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        await tripped(on)
        await on.passes(11 * MINUTE)
        on.script(*[replace(BAD, gate="slow")] * 5, route=CUSTOMERS)
        passed: Data = {"provider": "exp", "call": "customer", "arguments": {"id": "bad"}}
        asked = [await on.call("read_api", **passed, wait_seconds=0) for _ in range(5)]
        on.provider.release("slow")
        await on.settled()

        assert [one.get("error", {}).get("code") for one in asked] == [None, *["circuit_open"] * 4]
        assert on.count(CUSTOMERS) == 4
        assert "until 10:41" in error(await customer(on, "bad"))["message"]


# --- outages --------------------------------------------------------------------------------

DOWN = Answer(503)


async def outage(on: Stage) -> list[str]:
    """Reads that met an outage and others that came after; all of them wait for its end."""
    on.script(*[DOWN] * 5, route=CUSTOMERS)
    asked = [await customer(on, f"c_{number}", wait_seconds=0) for number in range(8)]
    assert on.count(CUSTOMERS) == 5
    assert len(await on.app.store.read.outages()) == 1
    return [one["operation_id"] for one in asked]


async def probe_due(on: Stage) -> None:
    """Go to the time of the next probe, which is never in the past."""
    (circuit,) = await on.app.store.read.outages()
    assert circuit["probe_at"] >= on.now
    on.clock.advance(circuit["probe_at"] - on.now + 1)
    on.app.store.wake()  # the worker may not be asleep yet


@pytest.mark.requirement("R32")
@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(Drop("after", "rst"), id="CB-01 a reset"),
        pytest.param(DOWN, id="CB-01 a 503"),
        pytest.param(Answer(gate="never"), id="CB-01 no answer in time"),
    ],
)
async def test_a_probe_that_fails_makes_room_for_a_later_one(tmp_path: Path, probe: Step) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        asked = await outage(on)
        for number in range(6, 9):
            on.script(probe, route=CUSTOMERS)
            await probe_due(on)
            await on.settled()
            assert on.count(CUSTOMERS) == number
        on.script(*[GOOD] * 9, route=CUSTOMERS)
        ended = [await on.end_of(one) for one in asked]

        # One of them paid for the probes with its own attempts; the others paid nothing.
        assert sorted(one["state"] for one in ended) == ["failed", *["succeeded"] * 7]
        assert {one["budgets"]["attempts"]["used"] for one in ended[5:]} == {1}
        assert await on.app.store.read.outages() == []


@pytest.mark.requirement("R32")
async def test_cb_01_a_probe_that_cannot_connect_makes_room_for_a_later_one(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        asked = await outage(on)
        await on.provider.stop()
        for failed in range(1, 4):
            await probe_due(on)
            await on.settled()
            (circuit,) = await on.app.store.read.outages()
            assert circuit["probes"] == failed
        await on.provider.start()
        on.script(*[GOOD] * 9, route=CUSTOMERS)
        ended = [await on.end_of(one) for one in asked]

        assert {one["state"] for one in ended} == {"succeeded"}
        assert on.count(CUSTOMERS) == 13
        assert await on.app.store.read.outages() == []


@pytest.mark.requirement("R32")
async def test_cb_01_failures_of_requests_already_out_are_no_probes(tmp_path: Path) -> None:
    scopes = {"account": {"per": "account", "rate": "1000/1s", "max_concurrent_requests": 8}}
    patient = {"customer": CALLS["customer"] | {"timeout": "30s"}}
    async with stage(tmp_path, calls=patient, scopes=scopes) as on:
        on.script(*[replace(DOWN, gate="slow")] * 8, *[GOOD] * 10, route=CUSTOMERS)
        asked = [
            await on.call(
                "read_api",
                provider="exp",
                call="customer",
                arguments={"id": f"c_{number}"},
                wait_seconds=0,
            )
            for number in range(8)
        ]
        with anyio.fail_after(PATIENCE):
            await on.provider.arrived(CUSTOMERS, 8)
        on.provider.release("slow")
        await on.settled()

        (circuit,) = await on.app.store.read.outages()
        assert on.count(CUSTOMERS) == 8
        assert circuit["probes"] == 0
        assert circuit["probe_at"] <= circuit["open_since"] + 2_000
        await on.passes(900)  # beyond the first delay of each, and before the first probe
        held = await on.full(asked[0]["operation_id"], timeline=True)
        assert "held because the provider cannot be reached" in held["timeline"][-1]
        ended = [await on.end_of(one["operation_id"]) for one in asked]
        assert {one["state"] for one in ended} == {"succeeded"}


@pytest.mark.requirement("R32")
async def test_cb_01_a_probe_that_is_refused_reached_a_provider_that_works(tmp_path: Path) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        asked = await outage(on)
        on.script(Answer(404), *[GOOD] * 9, route=CUSTOMERS)
        await probe_due(on)
        await on.settled()
        assert await on.app.store.read.outages() == []
        ended = [await on.end_of(one) for one in asked]

        assert sorted(one["state"] for one in ended) == ["failed", *["succeeded"] * 7]


@pytest.mark.requirement("R32", "R22")
async def test_cb_01_a_probe_that_is_no_longer_wanted_makes_room_for_a_later_one(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=CALLS) as on:
        asked = await outage(on)
        on.script(replace(DOWN, gate="slow"), route=CUSTOMERS)
        await probe_due(on)
        with anyio.fail_after(PATIENCE):
            await on.provider.arrived(CUSTOMERS, 6)
        (probing,) = (await on.call("operation_status", state="sending"))["operations"]
        await on.call("end_task", operation_id=probing["operation_id"])
        on.provider.release("slow")
        await on.settled()
        on.script(*[GOOD] * 9, route=CUSTOMERS)
        ended = {one: (await on.end_of(one))["state"] for one in asked}

        assert ended.pop(probing["operation_id"]) == "discarded"
        assert {*ended.values()} == {"succeeded"}
        assert await on.app.store.read.outages() == []
