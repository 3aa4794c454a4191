"""Reads of several pages: one operation, a request per page, nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    HOUR,
    MINUTE,
    Data,
    Stage,
    call,
    furnished,
    process,
    several,
    stage,
    write_contract,
)
from tests.support import ManualClock

from forbear.rules.model import Option
from forbear.server.fake import Answer, Drop, FakeProvider, Step, retry_after
from forbear.storage.errors import StoreUnavailable

pytestmark = pytest.mark.anyio

LIST = "GET /customers"
PAGE: Data = {"query": "cursor", "at": "/next", "items": "/data", "max_pages": 4}
CUSTOMERS: Data = {
    "method": "GET",
    "path": "/customers",
    "query": {"limit": "2"},
    "page": PAGE,
    "timeout": "1s",
}
NEVER_ENDING = "the provider says that there is more, but not where"


def lister(home: Path, customers: Data = CUSTOMERS, **top: Any) -> Any:
    return stage(home, calls={"customers": customers}, **top)


def paged(*ids: int, next: Any = None, **more: Any) -> Answer:
    """One page with these ids; `next` is the cursor of the page after it."""
    return Answer(json={"data": [{"id": one} for one in ids], "next": next}, **more)


def ids(answer: Data) -> list[int]:
    return [item["id"] for item in answer["result"]["inline"]]


def cursors(provider: FakeProvider) -> list[str | None]:
    """The cursor of every request that arrived, in order."""
    return [one.query.get("cursor") for one in provider.arrivals if one.path == "/customers"]


def stored(result: Data) -> Any:
    return json.loads(Path(result["file"]).read_bytes())


async def reserved_at(on: Stage, operation_id: str) -> list[int]:
    """When each request of an operation was reserved, ms."""
    return [event.at for event in await on.events(operation_id) if event.code == "reserved"]


async def story(on: Stage, operation_id: str) -> list[str]:
    told: list[str] = (await on.full(operation_id, timeline=True))["timeline"]
    return told


# --- the whole list -------------------------------------------------------------------------


@pytest.mark.requirement("R29")
async def test_all_pages_are_one_result_in_their_order(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, 2, next="b"), paged(3, 4, next="c"), paged(5), route=LIST)
        told = await on.read("customers")
        full = await on.full(told["operation_id"], timeline=True)

        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert ids(told) == [1, 2, 3, 4, 5]
        assert told["result"]["content_type"] == "application/json"
        assert (told["result"]["truncated"], told["result"]["pages"]) == (False, 3)
        assert cursors(on.provider) == [None, "b", "c"]
        assert [one.query["limit"] for one in on.provider.arrivals] == ["2"] * 3
        assert full["budgets"]["pages"] == {"used": 3, "max": 4}
        assert full["advice"] is None
        assert full["receipt"].startswith("3 calls · 3 pages · 0 repeats")
        assert "read page 2 of at most 4, next page" in full["timeline"][3]
        assert "read page 3 of at most 4, succeeded" in full["timeline"][4]


@pytest.mark.requirement("R29")
async def test_every_page_has_a_reservation_of_its_own(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), paged(2, next="c"), paged(3), route=LIST)
        told = await on.read("customers")

        codes = [event.code for event in await on.events(told["operation_id"])]
        assert codes == ["accepted", *["reserved", "answered"] * 3]
        events = await on.events(told["operation_id"])
        assert [e.body["event"] for e in events[2::2]] == ["postponed", "postponed", "succeeded"]
        for moved in events[2:5:2]:
            assert (moved.body["set"]["state"], moved.body["set"]["next_at"]) == (
                "delayed",
                moved.at,
            )


async def test_a_list_of_one_page_is_one_request(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(7), route=LIST)
        told = await on.read("customers")

        assert (ids(told), on.count(LIST)) == ([7], 1)
        assert told["result"]["pages"] == 1


@pytest.mark.requirement("R29")
async def test_po_20_an_empty_cursor_is_a_cursor(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next=""), paged(2), route=LIST)
        told = await on.read("customers")

        assert ids(told) == [1, 2]
        assert cursors(on.provider) == [None, ""]


@pytest.mark.parametrize(
    "cursor", ["a b&limit=9#x", "=/?%2F+", "naïve·頁", 9_007_199_254_740_993], ids=str
)
async def test_a_cursor_arrives_as_it_was_given(tmp_path: Path, cursor: str | int) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next=cursor), paged(2), route=LIST)
        told = await on.read("customers")

        assert ids(told) == [1, 2]
        assert cursors(on.provider) == [None, str(cursor)]
        assert on.provider.arrivals[1].query["limit"] == "2"


async def test_a_cursor_takes_the_place_of_the_first_one(tmp_path: Path) -> None:
    start = CUSTOMERS | {"query": {"cursor": "start", "limit": "2"}}
    async with lister(tmp_path, start) as on:
        on.script(paged(1, next="b"), paged(2, next="start"), route=LIST)
        told = await on.read("customers")

        assert cursors(on.provider) == ["start", "b"]
        assert told["result"]["cut"] == "cursor_cycle", "back to the first page"


@pytest.mark.parametrize(
    ("page", "bodies", "sent"),
    [
        (
            {"query": "after", "item": "/id", "items": "/data", "more": "/has_more"},
            [
                {"data": [{"id": 1}, {"id": 2}], "has_more": True},
                {"data": [{"id": 3}], "has_more": False},
            ],
            [None, "2"],
        ),
        (
            {"query": "after", "item": "/id", "items": ""},
            [[{"id": 1}, {"id": 2}], [{"id": 3}], []],
            [None, "2", "3"],
        ),
    ],
    ids=["by the last item and a word", "by the last item alone"],
)
async def test_a_page_may_be_named_by_the_last_item_before_it(
    tmp_path: Path, page: Data, bodies: list[Any], sent: list[str | None]
) -> None:
    async with lister(tmp_path, CUSTOMERS | {"page": page}) as on:
        on.script(*[Answer(json=body) for body in bodies], route=LIST)
        told = await on.read("customers")

        assert ids(told) == [1, 2, 3]
        assert [one.query.get("after") for one in on.provider.arrivals] == sent


async def test_without_items_each_answer_is_one_element(tmp_path: Path) -> None:
    page = {"query": "cursor", "at": "header:X-Next"}
    async with lister(tmp_path, CUSTOMERS | {"page": page}) as on:
        first = Answer(json={"rows": [1]}, headers=(("X-Next", "b"),))
        on.script(first, Answer(json=[2]), route=LIST)
        told = await on.read("customers")

        assert told["result"]["inline"] == [{"rows": [1]}, [2]]


async def test_numbers_and_texts_stay_as_the_provider_wrote_them(tmp_path: Path) -> None:
    first = b'{"data": [12345678901234567891, 1.10, 1e5], "next": "b"}'
    second = '{"data": [-0, "é\\ud800"]}'.encode()
    async with lister(tmp_path) as on:
        on.script(Answer(body=first), Answer(body=second), route=LIST)
        told = await on.read("customers")

        # What another JSON writer would change stands there as text.
        assert told["result"]["inline"] == '[12345678901234567891,1.10,1e5,-0,"é\\ud800"]'


async def test_a_long_list_is_a_file(tmp_path: Path) -> None:
    many = [{"id": one, "note": "x" * 90} for one in range(400)]
    async with lister(tmp_path) as on:
        for start in (0, 200):
            following = "b" if start == 0 else None
            body = {"data": many[start : start + 200], "next": following}
            on.script(Answer(json=body), route=LIST)
        result = (await on.read("customers"))["result"]

        assert stored(result) == many
        assert (result["pages"], result["partial"]) == (2, False)
        assert "inline" not in result


async def test_what_was_read_is_not_kept_twice(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), paged(2), route=LIST)
        told = await on.read("customers")

        op = await on.operation(told["operation_id"])
        assert await on.app.store.read.pages_of(op) == [b"", b""]


# --- cut short ------------------------------------------------------------------------------


@pytest.mark.requirement("R29")
@pytest.mark.parametrize(
    "following",
    [["b", "b"], ["b", "c", "b"]],
    ids=["PO-20 at once", "PO-20 after a while"],
)
async def test_a_cursor_that_comes_again_ends_the_read_as_truncated(
    tmp_path: Path, following: list[str]
) -> None:
    async with lister(tmp_path) as on:
        steps = [paged(number, next=after) for number, after in enumerate(following)]
        on.script(*steps, route=LIST)
        told = await on.read("customers")

        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert (told["result"]["truncated"], told["result"]["cut"]) == (True, "cursor_cycle")
        assert ids(told) == list(range(len(following)))
        assert "leads back to a page that was read" in told["advice"]
        assert "leads back to a page that was read" in told["next_step"]
        assert "cursor was used before" in (await story(on, told["operation_id"]))[-1]
        await on.passes(HOUR)
        assert on.count(LIST) == len(following)


@pytest.mark.requirement("R29")
async def test_a_read_ends_with_its_budget_of_pages(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(*[paged(number, next=f"c{number}") for number in range(9)], route=LIST)
        told = await on.read("customers")

        assert told["state"] == "succeeded"
        assert (told["result"]["truncated"], told["result"]["cut"]) == (True, "page_budget")
        assert ids(told) == [0, 1, 2, 3]
        assert told["advice"] == "Only a part, 4 pages: the contract allows no more in one read."
        assert told["advice"] in told["next_step"]
        assert "the last that is allowed" in (await story(on, told["operation_id"]))[-1]
        full = await on.full(told["operation_id"])
        assert full["budgets"]["pages"] == {"used": 4, "max": 4}
        assert on.count(LIST) == 4


async def test_a_list_that_ends_with_its_budget_is_whole(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(*[paged(1, next=f"c{number}") for number in range(3)], paged(4), route=LIST)
        told = await on.read("customers")

        assert (told["result"]["truncated"], told["result"]["partial"]) == (False, False)
        assert "advice" not in told


async def test_more_without_a_way_to_it_is_told(tmp_path: Path) -> None:
    page = PAGE | {"more": "/has_more"}
    async with lister(tmp_path, CUSTOMERS | {"page": page}) as on:
        on.script(Answer(json={"data": [{"id": 1}], "has_more": True}), route=LIST)
        told = await on.read("customers")

        assert (told["result"]["truncated"], told["result"]["cut"]) == (True, "no_cursor")
        assert NEVER_ENDING in told["advice"]


# --- pages that fail ------------------------------------------------------------------------


@pytest.mark.requirement("R29", "R06")
@pytest.mark.parametrize("step", [Answer(503), Answer(429), Drop("after")], ids=str)
async def test_a_page_is_tried_again_and_the_ones_before_it_are_not(
    tmp_path: Path, step: Step
) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), step, step, paged(2, next="c"), paged(3), route=LIST)
        told = await on.read("customers")
        assert told["state"] == "delayed"
        assert "Forbear tries again" in told["next_step"]
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], ids(ended)) == ("succeeded", [1, 2, 3])
        assert cursors(on.provider) == [None, "b", "b", "b", "c"]


@pytest.mark.requirement("R29")
async def test_every_page_has_attempts_of_its_own_and_waits_begin_anew(tmp_path: Path) -> None:
    patient = CUSTOMERS | {"deadline": "1h"}
    async with lister(tmp_path, patient, classes={"read": {"max_wait": "1h"}}) as on:
        for cursor in ("b", "c", None):
            on.script(*[Answer(503)] * 3, paged(1, next=cursor), route=LIST)
        ended = await on.end_of((await on.read("customers"))["operation_id"])

        assert (ended["state"], on.count(LIST)) == ("succeeded", 12)
        assert ended["budgets"]["attempts"]["used"] == 12
        at = await reserved_at(on, ended["operation_id"])
        for first in (1, 5, 9):
            assert at[first] - at[first - 1] <= 1_001, "the first retry of a page"
        receipt = (await on.full(ended["operation_id"], timeline=True))["receipt"]
        assert receipt.startswith(
            "12 calls · 3 pages · 9 \N{MULTIPLICATION SIGN} 503 backed off · 9 repeats"
        )


@pytest.mark.requirement("R29")
async def test_a_page_without_an_answer_ends_the_read_and_says_how_far_it_came(
    tmp_path: Path,
) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), paged(2, next="c"), *[Answer(503)] * 9, route=LIST)
        ended = await on.end_of((await on.read("customers"))["operation_id"])

        assert (ended["state"], ended["may_proceed"], ended["result"]) == ("failed", False, None)
        assert ended["failure"]["pages_read"] == 2
        assert "2 pages read, then no usable answer" in ended["next_step"]
        assert ended["budgets"]["pages"] == {"used": 2, "max": 4}
        assert on.count(LIST) == 2 + 4
        op = await on.operation(ended["operation_id"])
        assert await on.app.store.read.pages_of(op) == [b'[{"id":1}]', b'[{"id":2}]']


async def test_a_page_that_is_refused_is_final_at_once(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), Answer(400, {"error": {"code": "stale"}}), route=LIST)
        told = await on.read("customers")

        assert told["state"] == "failed"
        assert (told["failure"]["code"], told["failure"]["pages_read"]) == ("stale", 1)
        assert "refused page 2 with 400" in told["next_step"]


@pytest.mark.parametrize(
    "body",
    [{"data": {"id": 1}}, {}, {"data": None}, [], {"data": [], "next": {"after": 1}}, "none"],
    ids=["no list", "nothing", "null", "another shape", "no plain cursor", "a text"],
)
async def test_a_page_that_cannot_be_read_asks_a_person(tmp_path: Path, body: Any) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), Answer(json=body), route=LIST)
        told = await on.read("customers")

        assert told["escalation"]["reason"] == "invalid_response"
        await on.passes(HOUR)
        assert on.count(LIST) == 2


async def test_a_person_lets_a_read_go_on_where_it_stopped(tmp_path: Path) -> None:
    async with lister(tmp_path, CUSTOMERS | {"deadline": "1h"}) as on:
        on.script(paged(1, next="b"), Answer(json={}), paged(2, next="c"), paged(3), route=LIST)
        told = await on.read("customers")
        await on.decide(told["operation_id"], Option.CHECK_AGAIN)
        ended = await on.end_of(told["operation_id"])

        assert (ended["state"], ids(ended)) == ("succeeded", [1, 2, 3])
        assert cursors(on.provider) == [None, "b", "b", "c"]


async def test_an_end_at_the_deadline_says_how_far_it_came(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), *[retry_after(60, 503)] * 9, route=LIST)
        ended = await on.end_of((await on.read("customers", deadline_seconds=90))["operation_id"])

        assert (ended["state"], ended["failure"]["pages_read"]) == ("failed", 1)


async def test_who_waits_for_a_read_hears_of_its_end_and_not_of_each_page(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), paged(2, next="c", gate="b"), paged(3, gate="c"), route=LIST)
        told = await on.call(
            "read_api", provider="exp", call="customers", arguments={}, wait_seconds=0
        )
        await on.provider.arrived(LIST, 2)
        assert (
            "1 of at most 4 pages are read" in (await on.check(told["operation_id"]))["next_step"]
        )
        waiting = asyncio.create_task(on.check(told["operation_id"], wait_seconds=20))
        on.provider.release("b")
        await on.provider.arrived(LIST, 3)
        on.provider.release("c")

        assert (await waiting)["state"] == "succeeded"


async def test_a_result_is_whole_though_its_commit_was_not_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lister(tmp_path) as on:
        many = [{"id": one, "note": "x" * 200} for one in range(100)]
        on.script(paged(1, next="b"), Answer(json={"data": many}, gate="slow"), route=LIST)
        told = await on.call(
            "read_api", provider="exp", call="customers", arguments={}, wait_seconds=0
        )
        await on.provider.arrived(LIST, 2)
        write, failures = on.app.store.write, ["once"]

        async def deaf(unit: Any, **how: Any) -> Any:
            done = await write(unit, **how)
            if failures:
                raise StoreUnavailable(failures.pop())
            return done

        monkeypatch.setattr(on.app.store, "write", deaf)
        on.provider.release("slow")
        await on.becomes(told["operation_id"], "succeeded")
        settled = asyncio.create_task(on.settled())
        while not settled.done():  # it is stored again after a pause
            on.clock.advance(250)
            await asyncio.sleep(0.01)
        await settled

        ended = await on.full(told["operation_id"])
        assert stored(ended["result"]) == [{"id": 1}, *many]


# --- pace, pause, end -----------------------------------------------------------------------


@pytest.mark.requirement("R29")
async def test_pages_keep_to_the_pace_of_their_scope(tmp_path: Path) -> None:
    scopes = {"account": {"per": "account", "rate": "1/10s"}}
    async with lister(tmp_path, scopes=scopes) as on:
        on.script(paged(1, next="b"), paged(2, next="c"), paged(3), route=LIST)
        told = await on.read("customers", wait_seconds=0)
        told = await on.check(told["operation_id"])
        assert (told["state"], on.count(LIST)) == ("delayed", 1)
        assert "1 of at most 4 pages are read; Forbear reads on at " in told["next_step"]
        ended = await on.end_of(told["operation_id"])

        assert ids(ended) == [1, 2, 3]
        at = await reserved_at(on, ended["operation_id"])
        assert all(later - earlier >= 10_000 for earlier, later in pairwise(at))


async def test_an_end_between_two_pages_drops_the_read(tmp_path: Path) -> None:
    scopes = {"account": {"per": "account", "rate": "1/10s"}}
    async with lister(tmp_path, scopes=scopes) as on:
        on.script(paged(1, next="b"), paged(2), route=LIST)
        told = await on.read("customers", wait_seconds=0, task="list")
        assert (await on.check(told["operation_id"]))["state"] == "delayed"
        await on.call("end_task", task="list")

        ended = await on.full(told["operation_id"])
        assert (ended["state"], ended["notices"]) == ("discarded", [])
        assert ended["next_step"].startswith("Dropped (failure.message says why) after 1 page")
        await on.passes(10 * MINUTE)
        assert on.count(LIST) == 1


async def test_an_end_while_a_page_is_out_reads_no_other(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, next="b"), paged(2, next="c", gate="slow"), paged(3), route=LIST)
        told = await on.call(
            "read_api", provider="exp", call="customers", arguments={}, wait_seconds=0, task="list"
        )
        await on.provider.arrived(LIST, 2)
        await on.call("end_task", task="list")
        on.provider.release("slow")
        await on.settled()

        assert (await on.full(told["operation_id"]))["state"] == "discarded"
        assert on.count(LIST) == 2


# --- processes ------------------------------------------------------------------------------


@pytest.mark.requirement("R29", "D01")
async def test_a_restart_between_two_pages_goes_on_at_the_cursor(tmp_path: Path) -> None:
    clock = ManualClock()
    scopes = {"account": {"per": "account", "rate": "1/10s"}}
    calls = {"customers": CUSTOMERS}
    async with furnished(tmp_path, states=None, calls=calls, scopes=scopes) as provider:
        provider.script(LIST, paged(1, 2, next="b"), paged(3, next="c"), paged(4))
        async with process(provider, tmp_path, clock) as on:
            read = (await on.read("customers", wait_seconds=0))["operation_id"]
            assert (await on.check(read))["state"] == "delayed"
        async with process(provider, tmp_path, clock) as on:
            ended = await on.end_of(read)

        assert (ended["state"], ids(ended)) == ("succeeded", [1, 2, 3, 4])
        assert cursors(provider) == [None, "b", "c"]


@pytest.mark.requirement("R29", "D02")
async def test_a_page_that_comes_after_another_process_took_over_is_not_counted_twice(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    calls = {"customers": CUSTOMERS | {"timeout": "30s"}}
    async with (
        furnished(tmp_path, states=None, calls=calls) as provider,
        process(provider, tmp_path, clock) as first,
    ):
        many = [{"id": one, "note": "x" * 200} for one in range(100)]
        last = Answer(json={"data": many, "next": None})
        provider.script(LIST, paged(1, next="b"), replace(last, gate="slow"), last)
        told = await first.call(
            "read_api", provider="exp", call="customers", arguments={}, wait_seconds=0
        )
        await provider.arrived(LIST, 2)
        async with process(provider, tmp_path, clock) as second:
            for moment, state in ((2 * MINUTE, "delayed"), (MINUTE // 10, "succeeded")):
                clock.advance(moment)  # beyond the lease of the first, then to the next try
                second.app.store.wake()
                await second.becomes(told["operation_id"], state)
            ended = await second.full(told["operation_id"])
            provider.release("slow")
            await first.settled()
            attempts = await second.app.store.read.attempts_of(told["operation_id"])
            assert [(one.outcome, one.late) for one in attempts] == [
                ("answered", False),
                ("answered", True),
                ("answered", False),
            ]
            after = await second.full(told["operation_id"])

        assert (ended["state"], after["result"]) == ("succeeded", ended["result"])
        assert stored(after["result"]) == [{"id": 1}, *many]
        assert cursors(provider) == [None, "b", "b"]


@pytest.mark.requirement("R29", "D03")
async def test_two_processes_read_each_page_once(tmp_path: Path) -> None:
    quick = {"account": {"per": "account", "rate": "1000/1s"}}
    calls = {"customers": CUSTOMERS | {"page": PAGE | {"max_pages": 20}}}
    async with furnished(tmp_path, states=None, calls=calls, scopes=quick) as provider:
        for number in range(12):
            following = f"c{number}" if number < 11 else None
            provider.script(LIST, paged(number, next=following))
        async with several(tmp_path, 2) as (one, _):
            told = await call(one, "read_api", provider="exp", call="customers", arguments={})

        assert (told["state"], ids(told)) == ("succeeded", list(range(12)))
        assert cursors(provider) == [None, *[f"c{number}" for number in range(11)]]


async def test_a_contract_that_stops_paging_stops_the_read(tmp_path: Path) -> None:
    scopes = {"account": {"per": "account", "rate": "1/10s"}}
    async with lister(tmp_path, scopes=scopes) as on:
        on.script(paged(1, next="b"), paged(2), route=LIST)
        told = await on.read("customers", wait_seconds=0)
        path = tmp_path / "contracts" / "exp.toml"
        kept = path.read_text()
        start, end = kept.index('"page" = {'), kept.index("}", kept.index('"page" = {')) + 3
        write_contract(tmp_path, kept[:start] + kept[end:])
        await on.due(told["operation_id"])

        assert await on.reason(told["operation_id"]) == "integration_failure"
        assert on.count(LIST) == 1
