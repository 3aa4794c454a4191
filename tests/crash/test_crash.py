"""Processes that die, stop and meet on one home; the provider's count is the judge."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests import stores
from tests.crash.nursery import (
    AFTER_ANSWER,
    AFTER_OUTCOME,
    BEFORE_FIRST_BYTE,
    BEFORE_OUTCOME,
    BEFORE_RESERVATION,
)
from tests.crash.world import COUNTERS, Nursery, World, fast, nursed, stopped
from tests.crash.world import world as world_with
from tests.opened import histories, opened
from tests.storage.house import rebuilt, told

from forbear.server.fake import Answer
from forbear.storage import verifying
from forbear.storage.schema import attempts, operations

pytestmark = pytest.mark.anyio

SUBMIT = "POST /exports"
STATUS = "GET /exports/"

CONTRACT = """\
contract = 1
auth = "none"

[scopes.account]
per = "account"
rate = "1000/1s"
max_concurrent_requests = 50
max_delayed_requests = 100

[jobs.export]
usual = "10s"
deadline = "10m"
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]

[jobs.export.submit]
method = "POST"
path = "/exports"
body = { dataset = "{arg.dataset}", client_ref = "{ref}" }
timeout = "2s"

[jobs.export.limits]
max_status_requests = 40
max_transport_failures = 10

[jobs.export.backoff]
base = "100ms"
max = "300ms"
first = "100ms"
"""

KEYED = """
[jobs.export.idempotency]
at = "header:Idempotency-Key"
format = "uuid"
window = "24h"
"""

FINDABLE = """
[jobs.export.lookup]
method = "GET"
path = "/exports"
items = "/items"
match = { "/client_ref" = "{ref}" }
take = { id = "/id" }
settle = "1s"
absence_proves = true
"""
LOOK = "GET /exports"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with nursed() as nursery:
        yield nursery


def world(
    home: Path, nursery: Nursery, jobs: int = 1, also: str = ""
) -> AbstractAsyncContextManager[World]:
    """`also` is what the contract says beside `CONTRACT`."""
    return world_with(home, nursery, CONTRACT + also, jobs)


def no_request_is_hidden(on: World) -> None:
    """Arrivals ≤ reservations, per kind of request, and counters equal reservations."""
    for route, step in ((SUBMIT, "send"), (STATUS, "status")):
        reserved = on.rows(f"SELECT count(*) AS n FROM attempts WHERE step = '{step}'")[0]["n"]
        assert on.provider.count(route) <= reserved
    statuses = on.rows("SELECT count(*) AS n FROM attempts WHERE step = 'status'")[0]["n"]
    counted = on.rows("SELECT sum(status_requests_used) AS n FROM operations")[0]["n"]
    assert counted == statuses
    assert "locked" not in on.logs()
    assert "Traceback" not in on.logs(), on.logs()


# --- kill -9 --------------------------------------------------------------------------------


@pytest.mark.requirement("D01", "D02", "W15", "W17", "R24")
@pytest.mark.parametrize(
    ("point", "state", "arrivals"),
    [
        (BEFORE_RESERVATION, "succeeded", 1),
        (BEFORE_FIRST_BYTE, "escalated", 0),
        (AFTER_ANSWER, "escalated", 1),
        (BEFORE_OUTCOME, "escalated", 1),
        (AFTER_OUTCOME, "succeeded", 1),
    ],
)
async def test_a_submission_that_is_killed_anywhere_has_at_most_one_effect(
    tmp_path: Path, nursery: Nursery, point: str, state: str, arrivals: int
) -> None:
    async with world(tmp_path, nursery) as on:
        await on.dead(on.start("sales", point=point, step="send"))
        # What is new is stored with its first reservation, or its caller asks again.
        never = point == BEFORE_RESERVATION
        before = {} if never else on.counters()
        assert on.rows("SELECT count(*) AS n FROM operations") == [{"n": int(not never)}]
        on.start(*(["sales"] if never else []))
        await on.at_rest()
        after = on.operation()
        assert after["state"] == state
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == arrivals
        assert all(on.counters()[name] >= count for name, count in before.items())
        if state == "escalated":
            (case,) = on.rows("SELECT reason FROM cases")
            assert case["reason"] == "unclear_write"
            (attempt,) = on.rows("SELECT outcome FROM attempts")
            assert attempt["outcome"] == "unknown"
        no_request_is_hidden(on)


@pytest.mark.requirement("D01", "R24")
async def test_a_submission_that_is_killed_between_its_bytes_and_the_answer_asks(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path, nursery) as on:
        body = {"id": "exp_0", "state": "queued"}
        on.provider.script(SUBMIT, Answer(202, body, gate="never", effect=True))
        pid = on.start("sales")
        await on.provider.arrived(SUBMIT)
        os.kill(pid, signal.SIGKILL)
        await on.dead(pid)
        on.start()
        await on.at_rest()
        assert on.operation()["state"] == "escalated"
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == 1
        no_request_is_hidden(on)


@pytest.mark.requirement("D01", "D03", "W13", "W15", "W17")
@pytest.mark.parametrize(
    "point", [BEFORE_RESERVATION, BEFORE_FIRST_BYTE, AFTER_ANSWER, BEFORE_OUTCOME, AFTER_OUTCOME]
)
async def test_a_job_whose_poll_is_killed_anywhere_is_observed_to_its_end(
    tmp_path: Path, nursery: Nursery, point: str
) -> None:
    async with world(tmp_path, nursery) as on:
        await on.dead(on.start("sales", point=point, step="status"))
        before = on.counters()
        on.start()
        await on.at_rest()
        assert on.operation()["state"] == "succeeded"
        assert all(on.counters()[name] >= count for name, count in before.items())
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == 1
        unknown = on.rows("SELECT count(*) AS n FROM attempts WHERE outcome = 'unknown'")[0]["n"]
        assert unknown == (0 if point in (BEFORE_RESERVATION, AFTER_OUTCOME) else 1)
        no_request_is_hidden(on)


@pytest.mark.requirement("D01", "W17")
async def test_a_process_that_is_killed_again_and_again_comes_to_the_end_with_every_poll_counted(
    tmp_path: Path, nursery: Nursery
) -> None:
    points = [AFTER_OUTCOME, BEFORE_OUTCOME, BEFORE_FIRST_BYTE, AFTER_ANSWER]
    async with world(tmp_path, nursery) as on:
        on.provider.script("GET /exports/exp_0", *[Answer(503)] * 2)
        pid = on.start("sales", point=AFTER_OUTCOME, step="send")
        seen: list[dict[str, int]] = []
        for point in points:
            await on.dead(pid)
            seen.append(on.counters())
            pid = on.start("sales", point=point, step="status")
        await on.dead(pid)
        on.start("sales")
        await on.at_rest()
        seen.append(on.counters())
        assert on.operation()["state"] == "succeeded"
        for name in COUNTERS:
            counts = [one[name] for one in seen]
            assert counts == sorted(counts)
        assert len(on.provider.effects) == 1
        no_request_is_hidden(on)


def sent_as(on: World) -> list[tuple[str, str]]:
    """Key and reference of every submission that arrived."""
    submitted = [one for one in on.provider.arrivals if one.method == "POST"]
    return [(one.headers["idempotency-key"], one.json()["client_ref"]) for one in submitted]


@pytest.mark.requirement("R26", "R13", "R24", "D01")
@pytest.mark.parametrize("later", [None, BEFORE_FIRST_BYTE, AFTER_ANSWER, BEFORE_OUTCOME])
@pytest.mark.parametrize("point", [BEFORE_FIRST_BYTE, AFTER_ANSWER, BEFORE_OUTCOME])
async def test_a_killed_submission_is_looked_up_after_the_restart_under_its_own_key(
    tmp_path: Path, nursery: Nursery, point: str, later: str | None
) -> None:
    async with world(tmp_path, nursery, also=KEYED + FINDABLE) as on:
        await on.dead(on.start("sales", point=point, step="send"))
        stored = on.operation()
        arrived = on.provider.count(SUBMIT)
        if later is not None:  # and the next process dies at its lookup
            step = "lookup" if later == BEFORE_OUTCOME else "status"
            await on.dead(on.start(point=later, step=step))
        on.start("sales")
        await on.at_rest()

        assert on.operation()["state"] == "succeeded"
        assert on.provider.arrivals[arrived].path == "/exports"
        assert on.provider.arrivals[arrived].method == "GET"
        assert sent_as(on) == [(stored["wire_key"], stored["ref"])]
        assert len(on.provider.effects) == 1
        assert on.operation()["lookups_used"] >= on.provider.count(LOOK)
        no_request_is_hidden(on)


@pytest.mark.requirement("R13", "D01")
@pytest.mark.parametrize("point", [BEFORE_FIRST_BYTE, AFTER_ANSWER, BEFORE_OUTCOME])
async def test_a_killed_submission_that_cannot_be_looked_up_is_sent_again_under_its_own_key(
    tmp_path: Path, nursery: Nursery, point: str
) -> None:
    async with world(tmp_path, nursery, also=KEYED) as on:
        await on.dead(on.start("sales", point=point, step="send"))
        stored = on.operation()
        on.start("sales")
        await on.at_rest()

        assert on.operation()["state"] == "succeeded"
        assert set(sent_as(on)) == {(stored["wire_key"], stored["ref"])}
        assert on.provider.count(SUBMIT) == (1 if point == BEFORE_FIRST_BYTE else 2)
        assert len(on.provider.effects) == 1
        no_request_is_hidden(on)


# --- a read of several pages ----------------------------------------------------------------

LISTED = """
[calls.listed]
method = "GET"
path = "/rows"
page = { query = "cursor", at = "/next", items = "/rows", max_pages = 5 }
timeout = "2s"
"""
ROWS = "GET /rows"


@pytest.mark.requirement("R29", "D01")
@pytest.mark.parametrize("pages", [1, 2, 3], ids=lambda number: f"page {number}")
@pytest.mark.parametrize(
    "point", [BEFORE_RESERVATION, BEFORE_FIRST_BYTE, AFTER_ANSWER, BEFORE_OUTCOME, AFTER_OUTCOME]
)
async def test_a_read_that_is_killed_at_a_page_has_every_page_once(
    tmp_path: Path, nursery: Nursery, point: str, pages: int
) -> None:
    async with world(tmp_path, nursery, also=LISTED) as on:
        by_cursor = {None: ([1, 2], "b"), "b": ([3], "c"), "c": ([4, 5], None)}
        killed_before = point in (BEFORE_RESERVATION, BEFORE_FIRST_BYTE)
        again = point in (AFTER_ANSWER, BEFORE_OUTCOME)
        order = [None, "b", "c"]
        asked = [*order[:pages], *order[pages - 1 :]] if again else order
        for cursor in asked:
            rows, following = by_cursor[cursor]
            on.provider.script(ROWS, Answer(json={"rows": rows, "next": following}))
        # The nursery takes a GET at the wire for a poll.
        step = "status" if point in (BEFORE_FIRST_BYTE, AFTER_ANSWER) else "send"
        await on.dead(on.start(reads=("listed",), point=point, step=step, spared=pages - 1))
        never = point == BEFORE_RESERVATION and pages == 1  # nothing is stored: asked again
        before = {} if never else on.counters()
        assert on.provider.count(ROWS) == pages - killed_before
        on.start(reads=("listed",) if never else ())
        await on.at_rest()

        assert [one.query.get("cursor") for one in on.provider.arrivals] == asked
        operation = on.operation()
        [stored] = opened(on.home, sa.select(operations.c.result))
        result = stored["result"]
        assert (operation["state"], result["inline"]) == ("succeeded", [1, 2, 3, 4, 5])
        assert (result["pages"], result["truncated"]) == (3, False)
        assert all(on.counters()[name] >= count for name, count in before.items())
        (reserved,) = on.rows("SELECT count(*) AS n FROM attempts")
        assert operation["attempts_used"] == reserved["n"]
        assert "Traceback" not in on.logs(), on.logs()


# --- SIGSTOP --------------------------------------------------------------------------------


@pytest.mark.requirement("D02", "D01")
@pytest.mark.parametrize("case", ["CL-01"])
async def test_a_process_that_stops_before_its_first_byte_sends_nothing_when_it_goes_on(
    tmp_path: Path, nursery: Nursery, case: str
) -> None:
    clock = fast(10)
    async with world(tmp_path, nursery) as on:
        frozen = on.start(
            "sales", point=BEFORE_FIRST_BYTE, step="send", signal=signal.SIGSTOP, **clock
        )
        await on.until(lambda: stopped(frozen))
        on.start(**clock)
        await on.at_rest()
        assert on.operation()["state"] == "escalated"
        os.kill(frozen, signal.SIGCONT)
        await on.until(lambda: on.rows("SELECT 1 FROM attempts WHERE late"))
        (attempt,) = opened(on.home, sa.select(attempts.c.outcome, attempts.c.note))
        assert attempt["outcome"] == "not_sent"
        assert re.search("time to send", attempt["note"])
        after = on.operation()
        assert (after["state"], after["attempts_used"]) == ("escalated", 1)
        assert on.provider.arrivals == []
        no_request_is_hidden(on)


@pytest.mark.requirement("D02", "W13")
@pytest.mark.parametrize("case", ["CL-01"])
async def test_a_poll_that_stops_before_its_first_byte_is_made_by_another_process(
    tmp_path: Path, nursery: Nursery, case: str
) -> None:
    clock = fast(10)
    async with world(tmp_path, nursery) as on:
        frozen = on.start(
            "sales", point=BEFORE_FIRST_BYTE, step="status", signal=signal.SIGSTOP, **clock
        )
        await on.until(lambda: stopped(frozen))
        assert on.provider.count(STATUS) == 0
        on.start(**clock)
        await on.at_rest()
        assert on.operation()["state"] == "succeeded"
        polls = on.provider.count(STATUS)
        os.kill(frozen, signal.SIGCONT)
        await on.until(lambda: on.rows("SELECT 1 FROM attempts WHERE late"))
        assert on.provider.count(STATUS) == polls
        assert on.operation()["status_requests_used"] == polls + 1
        assert len(on.provider.effects) == 1
        no_request_is_hidden(on)


@pytest.mark.requirement("R25", "D02")
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL], ids=["goes on", "dies"])
async def test_absence_is_not_believed_while_a_stopped_process_could_still_send(
    tmp_path: Path, nursery: Nursery, end: int
) -> None:
    clock = fast(20)
    async with world(tmp_path, nursery, also=FINDABLE) as on:
        frozen = on.start(
            "sales", point=BEFORE_FIRST_BYTE, step="send", signal=signal.SIGSTOP, **clock
        )
        await on.until(lambda: stopped(frozen))
        on.start(**clock)
        await on.until(lambda: on.operation()["lookups_used"] >= 3)
        assert on.provider.count(SUBMIT) == 0
        if end == signal.SIGKILL:  # then nobody can, and two more lookups prove it
            os.kill(frozen, end)
            await on.at_rest()
            assert on.operation()["state"] == "succeeded"
            assert on.provider.count(SUBMIT) == len(on.provider.effects) == 1
            return
        await on.at_rest()
        assert on.operation()["state"] == "escalated"
        os.kill(frozen, end)
        await on.until(lambda: on.rows("SELECT 1 FROM attempts WHERE late"))
        assert on.rows("SELECT reason FROM cases") == [{"reason": "unclear_write"}]
        assert on.provider.effects == []
        no_request_is_hidden(on)


# --- several processes ----------------------------------------------------------------------


@pytest.mark.requirement("D05", "R14", "W15")
async def test_four_processes_with_forty_operations_make_each_once(
    tmp_path: Path, nursery: Nursery
) -> None:
    datasets = [f"set-{number}" for number in range(40)]
    async with world(tmp_path, nursery, jobs=40) as on:
        pids = [on.start(*datasets) for _ in range(4)]
        await on.until(lambda: len(on.rows("SELECT id FROM operations")) == 40)
        await on.at_rest(40)
        await on.until(lambda: all({"ready": True} in on.said(n) for n in range(4)))
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for pid in pids:
            await on.dead(pid)
        said = [line for n in range(4) for line in on.said(n) if "operation" in line]
        assert len(said) == 160
        assert len({line["operation"] for line in said}) == 40
        assert sum(line["joined"] for line in said) == 120
        rows = on.rows("SELECT * FROM operations")
        assert {row["state"] for row in rows} == {"succeeded"}
        assert on.provider.count(SUBMIT) == len(on.provider.effects) == 40
        assert {row["attempts_used"] for row in rows} == {1}
        reserved = on.rows("SELECT count(*) AS n FROM attempts WHERE step = 'status'")[0]["n"]
        assert on.provider.count(STATUS) == reserved
        assert {effect.body["dataset"] for effect in on.provider.effects} == set(datasets)
        no_request_is_hidden(on)


@pytest.mark.requirement("D01", "D05")
async def test_what_one_of_several_leaves_behind_another_finishes(
    tmp_path: Path, nursery: Nursery
) -> None:
    async with world(tmp_path, nursery, jobs=10) as on:
        datasets = [f"set-{number}" for number in range(10)]
        first = on.start(*datasets)
        await on.provider.arrived(STATUS, 5)
        on.start()
        os.kill(first, signal.SIGKILL)
        await on.at_rest(10)
        states = [row["state"] for row in on.rows("SELECT state FROM operations")]
        assert states == ["succeeded"] * 10
        assert len(on.provider.effects) == 10
        no_request_is_hidden(on)


@pytest.mark.requirement("A05", "A02", "D01", "D05")
async def test_writers_that_are_killed_under_load_leave_a_chain_that_says_what_is_stored(
    tmp_path: Path, nursery: Nursery
) -> None:
    datasets = [f"set-{number}" for number in range(60)]
    few = CONTRACT.replace("max_concurrent_requests = 50", "max_concurrent_requests = 8")
    clock = fast(20)  # slots of the dead are held until their requests can no longer be under way
    async with world_with(tmp_path, nursery, few, 60) as on:
        alive = [on.start(*datasets, **clock) for _ in range(3)]
        under_load = 0
        await on.until(on.works)
        for number in range(6):
            await on.until(partial(on.goes_on, len(on.provider.arrivals) + 6))
            under_load += on.works()
            os.kill(alive.pop(0), signal.SIGKILL)
            alive.append(on.start(*(datasets if number < 3 else ()), **clock))
            with verifying.read(stores.where(on.home)) as evidence:
                assert verifying.verify(evidence).broken is None
        await on.at_rest(60)
        for pid in alive:
            os.kill(pid, signal.SIGTERM)
        for pid in alive:
            await on.dead(pid)

        with verifying.read(stores.where(on.home)) as evidence:
            report = verifying.verify(evidence)
        assert report.broken is None
        assert report.head.sequence > 500
        assert under_load > 2
        for op, history in histories(on.home):
            kept = rebuilt(history)
            assert {name: kept.get(name) for name in told(op)} == told(op)
            assert sum(event.code == "reserved" for event in history) == op.fence
        assert len(on.provider.effects) <= 60
        no_request_is_hidden(on)
