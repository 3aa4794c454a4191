"""Which connection a request rides, and what a layer below that sends again costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import (
    CANCEL,
    EXPORT,
    FOREVER,
    KEYED,
    LOOK,
    PROVABLE,
    STATUS,
    SUBMIT,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    stage,
)

from forbear.server.fake import Answer, Drop

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
PAY = "POST /payments"
NOTE = "PUT /notes/n_1"
CALLS: Data = {
    "customer": {"method": "GET", "path": "/customers/{arg.id}"},
    "transfer": TRANSFER,
    "pay": TRANSFER | KEYED | {"path": "/payments"},
    "note": {
        "method": "PUT",
        "path": "/notes/n_1",
        "idempotent": "by_nature",
        "body": {"text": "x"},
    },
}
CANCELLABLE: Data = EXPORT | {
    "cancel": {"method": "POST", "path": "/exports/{id}/cancel", "approval": "none"}
}


async def customer(on: Stage) -> Data:
    return await on.read("customer", arguments={"id": "c_1"})


@pytest.mark.requirement("R34")
async def test_a_write_without_a_key_has_a_connection_to_itself_and_others_share_one(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, CANCELLABLE, states=FOREVER, calls=CALLS) as on:
        for route in (READ, READ, READ, NOTE):
            on.script(Answer(json={"id": "c_1"}), route=route)
        await customer(on)
        await on.write(5)
        await on.write(6)
        await on.write(call="note", arguments={})
        await customer(on)
        job = await on.submit()
        await on.due(job)
        await on.call("cancel_job", operation_id=job, reason="not needed", wait_seconds=20)
        await on.settled()
        await on.write(7, call="pay")
        await customer(on)

        rode: dict[str, list[int]] = {}
        for one in on.provider.arrivals:
            rode.setdefault(f"{one.method} {one.path}", []).append(one.connection)
        apart = [*rode[WRITE], *rode[NOTE], *rode[SUBMIT], *rode[CANCEL]]
        shared = [*rode[READ], *rode[STATUS], *rode[PAY]]
        assert len(rode[WRITE]) == 2
        assert len(set(apart)) == len(apart) == 5
        assert not set(apart) & set(shared)
        # Time went by before the first check of the job, so its connection is another one.
        assert rode[READ][0] == rode[READ][1]
        assert {rode[STATUS][-1]} == {*rode[PAY]} == {rode[READ][2]} != {rode[READ][0]}


# --- layers below that send again -----------------------------------------------------------


@pytest.mark.requirement("R33")
async def test_RE_02_an_attempt_counts_as_all_that_a_declared_layer_makes_of_it(
    tmp_path: Path,
) -> None:
    classes = {"read": {"max_attempts": 7}}
    async with stage(tmp_path, calls=CALLS, resends_below=2, classes=classes) as on:
        sent_thrice = Answer(503, headers=(("x-envoy-attempt-count", "3"),))
        for route in (READ, PAY, SUBMIT):
            on.script(*[sent_thrice] * 9, route=route)
        read = await on.end_of((await customer(on))["operation_id"])
        pay = await on.end_of((await on.write(call="pay"))["operation_id"])
        job = await on.end_of((await on.asked())["operation_id"])

        assert (read["state"], on.count(READ)) == ("failed", 7 // 3)
        assert (pay["state"], on.count(PAY)) == ("escalated", 1)
        assert (job["state"], on.count(SUBMIT)) == ("escalated", 1)


@pytest.mark.requirement("R33")
async def test_what_only_looks_at_a_job_or_a_write_keeps_its_own_number(tmp_path: Path) -> None:
    job, calls = EXPORT | {"limits": {"max_status_requests": 5}}, {"transfer": TRANSFER | PROVABLE}
    async with stage(tmp_path, job, states=FOREVER, calls=calls, resends_below=10) as on:
        await on.end_of(await on.submit())
        on.script(Drop("after"), route=WRITE)
        lost = (await on.write())["operation_id"]
        await on.due(lost)
        await on.due(lost)

        assert on.count(STATUS) == 5
        assert on.count(LOOK) == 2
