"""What is over is kept as long as its contract says: then what was said goes, then all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa
from tests.e2e.harness import (
    KEYED,
    PATIENCE,
    RESULT,
    SUBMIT,
    TRANSFER,
    WRITE,
    Stage,
    error,
    forbear,
    stage,
    write_contract,
)
from tests.opened import opened
from tests.rules.contracts import errors_of

from forbear.rules.model import Operation, Option
from forbear.server.fake import Answer
from forbear.storage.schema import attempts, cases, operations, requests

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A06")]

DAY = 86_400_000
CALLS = {"transfer": TRANSFER | KEYED}
LARGE = "".join(f"row {number}\n" for number in range(5_000))


async def fetched(on: Stage) -> tuple[str, str]:
    """A job that succeeded, and the fetch of its result, which became a file."""
    on.script(Answer(headers=(("Content-Type", "text/csv"),), body=LARGE), route=RESULT)
    job = await on.submit()
    assert (await on.end_of(job))["state"] == "succeeded"
    result = await on.call("fetch_result", operation_id=job, wait_seconds=20)
    return job, result["operation_id"]


async def later(on: Stage, milliseconds: int) -> None:
    await on.settled()
    await on.clock.asleep(3)  # pulse, sign of life and schedule: none of them misses what comes
    await on.at(on.now + milliseconds)


async def until_emptied(on: Stage, operation_id: str) -> Operation:
    async with asyncio.timeout(PATIENCE):
        while True:
            news = on.app.store.news
            op = await on.operation(operation_id)
            if op.emptied_at is not None:
                return op
            await news.wait()


async def until_forgotten(on: Stage, operation_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            news = on.app.store.news
            if await on.app.store.read.operation(operation_id) is None:
                return
            await news.wait()


async def test_what_was_said_goes_after_thirty_days_and_who_it_was_stays(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",), calls=CALLS) as on:
        job, result = await fetched(on)
        file = anyio.Path((await on.full(result))["result"]["file"])
        on.provider.script(WRITE, Answer(200, json={"id": "tr_1"}))
        write = (await on.write(idempotency_key="k-1"))["operation_id"]
        await later(on, 29 * DAY)
        before = [await on.operation(one) for one in (job, result, write)]
        assert await file.read_text() == LARGE

        await later(on, 2 * DAY)
        after = [await until_emptied(on, one) for one in (job, result, write)]
        assert not await file.exists()
        kept = ("id", "state", "certainty", "intent", "key", "ref", "wire_key", "provider_job")
        for old, new in zip(before, after, strict=True):
            assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
            assert (new.arguments, new.take, new.label, new.purpose) == ({}, {}, None, None)
        assert after[1].result is not None
        assert after[1].result["bytes"] == len(LARGE)
        assert "preview" not in after[1].result
        assert opened(tmp_path, sa.select(requests)) == []
        for row in opened(tmp_path, sa.select(attempts)):
            assert (row["headers"], row["body"], row["note"]) == (None, None, None)

        told = await on.full(job)
        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert "no longer kept" in told["next_step"]
        assert told["allowed_actions"] == []
        refused = error(await on.call("fetch_result", operation_id=job))
        assert refused["code"] == "not_allowed_in_state"
        assert "no longer kept" in refused["message"]
        # The same key still meets the same operation, and nothing leaves.
        again = await on.write(idempotency_key="k-1")
        assert (again["operation_id"], again["joined"]) == (write, True)
        assert (on.provider.count(WRITE), on.provider.count(SUBMIT)) == (1, 1)
        code, said = await forbear(tmp_path, "audit", "verify")
        assert code == 0, said
        code, said = await forbear(tmp_path, "show", job)
        assert code == 0, said
        assert "removed" in said


async def test_that_it_was_done_goes_after_four_hundred_days(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        job, result = await fetched(on)
        await later(on, 31 * DAY)
        await until_emptied(on, job)
        await later(on, 370 * DAY)
        for one in (job, result):
            await until_forgotten(on, one)
        assert error(await on.call("operation_status", operation_id=job))["code"] == (
            "unknown_operation"
        )
        for table in (operations, attempts, cases):
            assert opened(tmp_path, sa.select(table)) == []
        code, said = await forbear(tmp_path, "audit", "verify")
        assert code == 0, said


async def test_a_contract_states_its_own_times(tmp_path: Path) -> None:
    own = {"payloads": "1d", "identities": "3d"}
    async with stage(tmp_path, states=("done",), retention=own) as on:
        job, _ = await fetched(on)
        await later(on, DAY + DAY // 12)
        await until_emptied(on, job)
        await later(on, 2 * DAY)
        await until_forgotten(on, job)


async def test_what_a_person_is_asked_about_is_kept_until_it_is_decided(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",), calls={"transfer": TRANSFER}) as on:
        other, _ = await fetched(on)
        on.provider.script(WRITE, Answer(500))
        write = (await on.write(idempotency_key="k-1"))["operation_id"]
        assert (await on.operation(write)).state == "escalated"
        await later(on, 450 * DAY)
        await until_emptied(on, other)
        kept = await on.operation(write)
        assert (kept.emptied_at, dict(kept.arguments)) == (None, {"amount": 5})
        await on.decide(write, Option.CONFIRM_NOT_DONE)
        await later(on, 31 * DAY)
        await until_emptied(on, write)


async def test_a_contract_that_cannot_be_read_takes_nothing_away(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",), retention={"payloads": "90d"}) as on:
        job, _ = await fetched(on)
        path = tmp_path / "contracts" / "exp.toml"
        text = path.read_text()
        write_contract(tmp_path, text + "\nnonsense")
        await later(on, 61_000)
        assert "exp" in on.app.contracts.errors()
        await later(on, 60 * DAY)
        write_contract(tmp_path, text)
        await later(on, 20 * DAY)
        assert (await on.operation(job)).emptied_at is None
        await later(on, 11 * DAY)
        await until_emptied(on, job)


def test_identities_are_kept_longer_than_a_repetition_could_come() -> None:
    text = """contract = 1
provider = "x"
base_url = "https://x.example"
[retention]
payloads = "2d"
identities = "1d"
[calls.pay]
method = "POST"
path = "/p"
class = "idempotent_write"
idempotency = { at = "header:Idempotency-Key", window = "7d" }
"""
    told = [str(one) for one in errors_of(text)]
    assert any("shorter than payloads" in one for one in told), told
    assert any("key window of pay" in one and "7d" in one for one in told), told
