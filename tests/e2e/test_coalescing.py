"""Reads that share an answer, and reads that are answered from the store; counted on the wire."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    KEYED,
    MINUTE,
    PATIENCE,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    call,
    error,
    furnished,
    process,
    stage,
    write_contract,
)
from tests.e2e.harness import contract as contract_text
from tests.support import ManualClock

from forbear.server.fake import Answer, Drop, Step, retry_after

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
CUSTOMER: Data = {"method": "GET", "path": "/customers/{arg.id}", "timeout": "5s"}
SHARED: Data = CUSTOMER | {"coalesce": "2s"}
TWO = 2_000


def reader(home: Path, customer: Data = SHARED, **top: Any) -> Any:
    calls = {"customer": customer, "transfer": TRANSFER | KEYED}
    return stage(home, states=None, calls=calls, **top)


async def customer(on: Stage, **more: Any) -> Data:
    return await on.read("customer", arguments={"id": "c_1"}, **more)


def asking(on: Stage, **more: Any) -> asyncio.Task[Data]:
    """A caller that waits for the answer."""
    passed = {"provider": "exp", "call": "customer", "arguments": {"id": "c_1"}, **more}
    return asyncio.create_task(call(on.client, "read_api", wait_seconds=20, **passed))


async def joiners(on: Stage, operation_id: str, count: int) -> None:
    """Wait until so many tasks share an operation."""
    async with asyncio.timeout(PATIENCE):
        while True:
            news = on.app.store.news
            if len((await on.full(operation_id))["tasks"]) >= count:
                return
            await news.wait()


async def the_only(on: Stage) -> str:
    (known,) = (await on.call("operation_status"))["operations"]
    operation_id: str = known["operation_id"]
    return operation_id


# --- one request for many -------------------------------------------------------------------


@pytest.mark.requirement("R23")
async def test_ten_callers_of_two_processes_share_one_request_and_one_answer(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        reader(tmp_path, clock=clock) as on,
        process(on.provider, tmp_path, clock) as other,
    ):
        on.script(Answer(json={"name": "Ann"}, gate="slow"), route=READ)
        asked = [asking(on if n % 2 else other, task=f"task {n}") for n in range(10)]
        await on.provider.arrived(READ)
        await joiners(on, await the_only(on), 10)
        on.provider.release("slow")
        answers = await asyncio.gather(*asked)

        assert on.count(READ) == 1
        assert len({told["operation_id"] for told in answers}) == 1
        assert sum(told.get("joined", False) for told in answers) == 9
        assert all(told["result"]["inline"] == {"name": "Ann"} for told in answers)


@pytest.mark.requirement("R23")
async def test_an_answer_is_shared_inside_the_window_and_not_after(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(*[Answer(json={"n": n}) for n in range(2)], route=READ)
        first = await customer(on)
        await on.passes(TWO - 10)
        again = await customer(on)
        assert (again["joined"], again["operation_id"]) == (True, first["operation_id"])
        assert "nothing was sent now" in again["next_step"]
        await on.passes(20)
        fresh = await customer(on)

        assert "joined" not in fresh
        assert fresh["result"]["inline"] == {"n": 1}
        assert on.count(READ) == 2


@pytest.mark.requirement("R23")
async def test_reads_whose_freshness_matters_never_share(tmp_path: Path) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        on.script(*[Answer(json={}, gate="slow")] * 2, route=READ)
        asked = [asking(on) for _ in range(2)]
        await on.provider.arrived(READ, 2)
        on.provider.release("slow")
        answers = await asyncio.gather(*asked)

        assert not any(told.get("joined") for told in answers)
        assert on.count(READ) == 2


@pytest.mark.requirement("R23")
async def test_another_item_never_shares(tmp_path: Path) -> None:
    narrow = SHARED | {"identity": ["id"], "query": {"fields": "{arg.fields}"}}
    async with reader(tmp_path, narrow) as on:
        on.script(*[Answer(json={})] * 2, route="GET /customers/c_1")
        for fields in ("name", "address"):
            arguments = {"id": "c_1", "fields": fields}
            told = await on.read("customer", arguments=arguments)
            assert "joined" not in told

        assert on.count(READ) == 2


@pytest.mark.requirement("R23")
@pytest.mark.parametrize("first", ["task", "none"])
async def test_co_01_the_first_caller_goes_and_the_others_get_the_answer(
    tmp_path: Path, first: str
) -> None:
    """CO-01: whoever asked first, and whatever became of that caller."""
    async with reader(tmp_path) as on:
        on.script(Answer(503), Answer(json={"name": "Ann"}), route=READ)
        leader = {"task": "leader"} if first == "task" else {}
        follower = {} if first == "task" else {"task": "leader"}
        told = await customer(on, **leader)
        assert told["state"] == "delayed"
        joined = await customer(on, wait_seconds=0, **follower)
        assert joined["joined"] is True
        await on.call("end_task", task="leader")
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], ended["result"]["inline"]) == ("succeeded", {"name": "Ann"})
        assert on.count(READ) == 2
        await on.passes(TWO)
        on.script(Answer(json={"name": "Eve"}), route=READ)
        assert (await customer(on))["result"]["inline"] == {"name": "Eve"}


@pytest.mark.requirement("R23")
async def test_co_01_a_caller_that_hangs_up_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """CO-01: neither the first caller nor a waiter may take the answer along."""
    async with reader(tmp_path) as on:
        on.script(Answer(json={"name": "Ann"}, gate="slow"), route=READ)
        asked = [asking(on, task=f"task {n}") for n in range(3)]
        await on.provider.arrived(READ)
        await joiners(on, await the_only(on), 3)
        for gone in asked[:2]:
            gone.cancel()
        await asyncio.wait(asked[:2])
        on.provider.release("slow")

        assert (await asked[2])["result"]["inline"] == {"name": "Ann"}
        assert on.count(READ) == 1


@pytest.mark.requirement("R23")
async def test_the_last_task_that_ends_takes_a_read_with_it(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(*[Answer(503)] * 4, route=READ)
        told = await customer(on, task="one")
        await customer(on, task="two", wait_seconds=0)
        for task in ("one", "two"):
            await on.call("end_task", task=task)
        await on.passes(10 * MINUTE)

        assert (await on.full(told["operation_id"]))["state"] == "discarded"
        assert on.count(READ) == 1


# --- what is not shared ---------------------------------------------------------------------


@pytest.mark.requirement("R23")
async def test_co_02_two_keys_of_one_account_are_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CO-02: one user never gets the data that another one's key reads."""
    clock, calls = ManualClock(), {"customer": SHARED}
    async with furnished(tmp_path, states=None, calls=calls, auth="bearer env:EXP_TOKEN") as at:
        at.script(READ, *[Answer(json={"n": n}) for n in range(2)])
        monkeypatch.setenv("EXP_TOKEN", "key of the first")
        async with process(at, tmp_path, clock) as on:
            first = await customer(on)
        monkeypatch.setenv("EXP_TOKEN", "key of the second")
        async with process(at, tmp_path, clock) as on:
            held = on.app.contracts.holding("exp", "customer")
            assert held is not None
            assert held.credential is not None
            accept = partial(
                on.app.store.brakes.accept_credential,
                provider="exp",
                account="default",
                fingerprint=held.credential,
                by={"operator": "anna"},
            )
            await on.app.store.write(accept)
            second = await customer(on)

        assert "joined" not in second
        assert first["operation_id"] != second["operation_id"]
        assert [one.headers["authorization"] for one in at.arrivals] == [
            "Bearer key of the first",
            "Bearer key of the second",
        ]


@pytest.mark.requirement("R23")
async def test_co_02_a_changed_header_of_the_contract_is_another_request(tmp_path: Path) -> None:
    """CO-02: the same for another Accept, body or profile."""
    async with reader(tmp_path) as on:
        on.script(*[Answer(json={"n": n}) for n in range(2)], route=READ)
        await customer(on)
        other = SHARED | {"headers": {"Accept": "text/csv"}}
        changed = contract_text(
            base_url=on.provider.base_url, calls={"customer": other, "transfer": TRANSFER | KEYED}
        )
        write_contract(tmp_path, changed)
        on.clock.advance(1_500)
        on.app.contracts.contracts()
        told = await customer(on)

        assert "joined" not in told
        assert on.count(READ) == 2


@pytest.mark.requirement("R23")
@pytest.mark.parametrize(
    ("answer", "fresh"),
    [
        (Answer(202, {"id": "tr_1"}), True),
        (Drop("after"), True),
        (Answer(503), True),
        (Answer(422), False),
        (Answer(429), False),
    ],
    ids=["done", "lost", "unclear", "rejected", "limited"],
)
async def test_what_was_read_before_a_write_is_not_shared_after_it(
    tmp_path: Path, answer: Step, fresh: bool
) -> None:
    """A write counts as soon as it may have been applied, whoever sent it."""
    async with reader(tmp_path) as on:
        on.script(*[Answer(json={"n": n}) for n in range(2)], route=READ)
        on.script(answer, route=WRITE)
        await customer(on)
        await on.write()
        told = await customer(on)

        assert on.count(READ) == (2 if fresh else 1)
        assert told.get("joined", False) is not fresh


@pytest.mark.requirement("R23")
async def test_a_write_that_is_out_forbids_to_share_what_was_read_and_not_what_was_not(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path) as on:
        on.script(*[Answer(json={"n": n}) for n in range(4)], route=READ)
        await customer(on)
        on.script(Answer(202, {"id": "tr_1"}, gate="slow"), route=WRITE)
        writing = asyncio.create_task(
            on.call("write_api", provider="exp", call="transfer", arguments={"amount": 5})
        )
        await on.provider.arrived(WRITE)
        passed = {"provider": "exp", "call": "customer", "arguments": {"id": "c_1"}}
        second = await on.call("read_api", **passed)
        third = await on.call("read_api", **passed)
        on.provider.release("slow")
        await writing
        await on.settled()

        assert not second.get("joined")
        assert not third.get("joined")
        await on.passes(10)  # what was read in the very moment of a write may be older than it
        assert not (await customer(on)).get("joined")
        assert (await customer(on))["joined"] is True
        assert on.count(READ) == 4


# --- each passes its own admission ----------------------------------------------------------


@pytest.mark.requirement("R23")
async def test_who_may_not_ask_does_not_share_either(tmp_path: Path) -> None:
    async with reader(tmp_path) as on:
        on.script(Answer(json={}), route=READ)
        told = await customer(on, task="over")
        await on.call("end_task", task="over")
        assert error(await customer(on, task="over"))["code"] == "task_ended"
        brakes = on.app.store.brakes
        await on.app.store.write(lambda c: brakes.pause(c, "exp", {"operator": "anna"}))
        assert error(await customer(on))["code"] == "paused"

        assert (await on.full(told["operation_id"]))["tasks"] == ["over"]
        assert on.count(READ) == 1


# --- answered from the store ----------------------------------------------------------------


@pytest.mark.requirement("R30", "R27")
async def test_a_read_that_ran_out_answers_its_task_until_its_time_and_sends_nothing(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        on.script(*[Answer(503)] * 4, Answer(json={"name": "Ann"}), route=READ)
        told = await customer(on, task="report")
        ended = await on.end_of(told["operation_id"])
        assert (ended["state"], on.count(READ)) == ("failed", 4)
        assert ended["failure"]["retry_at"] > ended["as_of"]
        assert f"sends nothing before {ended['failure']['retry_at'][11:]}" in ended["next_step"]

        for asker in ({"task": "report"}, {}):
            again = await customer(on, **asker)
            assert (again["joined"], again["operation_id"]) == (True, told["operation_id"])
            assert again["failure"]["retry_at"] == ended["failure"]["retry_at"]
            assert len(again["next_step"]) <= 300
        await on.passes(59_000)
        assert (await customer(on, task="report"))["joined"] is True
        assert on.count(READ) == 4
        await on.passes(2_000)

        assert (await customer(on, task="report"))["result"]["inline"] == {"name": "Ann"}
        assert on.count(READ) == 5


@pytest.mark.requirement("R30")
async def test_the_wait_that_the_provider_stated_counts_if_it_is_longer(tmp_path: Path) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        on.script(retry_after(400, 503), Answer(json={}), route=READ)
        told = await customer(on)
        assert (told["state"], on.count(READ)) == ("failed", 1)
        await on.passes(399_000)
        assert (await customer(on))["joined"] is True
        await on.passes(1_500)

        assert (await customer(on))["state"] == "succeeded"
        assert on.count(READ) == 2


@pytest.mark.requirement("R30")
async def test_another_task_may_try_and_its_success_ends_the_wait_of_the_first(
    tmp_path: Path,
) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        on.script(*[Answer(503)] * 4, *[Answer(json={})] * 2, route=READ)
        await on.end_of((await customer(on, task="one"))["operation_id"])
        other = await customer(on, task="two")
        assert (other["state"], other.get("joined")) == ("succeeded", None)
        first = await customer(on, task="one")

        assert (first["state"], first.get("joined")) == ("succeeded", None)
        assert on.count(READ) == 6


@pytest.mark.requirement("R30")
async def test_a_read_that_was_refused_for_what_it_is_states_no_time(tmp_path: Path) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        on.script(*[Answer(404)] * 2, route=READ)
        told = await customer(on)
        await customer(on)

        assert "retry_at" not in told.get("failure", {})
        assert on.count(READ) == 2


@pytest.mark.requirement("R27", "R30")
async def test_a_read_that_never_left_says_so_and_when_to_ask_again(tmp_path: Path) -> None:
    async with reader(tmp_path, CUSTOMER) as on:
        await on.provider.stop()
        ended = await on.end_of((await customer(on))["operation_id"])
        again = await customer(on)

        assert "Final: never sent in 5 tries; nothing happened." in ended["next_step"]
        assert (again["joined"], again["operation_id"]) == (True, ended["operation_id"])
