"""Reads of several pages: one operation, a request per page, nothing lost and nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    Data,
    Stage,
    furnished,
    process,
    stage,
)
from tests.support import ManualClock

from forbear.server.fake import Answer, Drop, retry_after

pytestmark = pytest.mark.anyio

LIST = "GET /customers"
CUSTOMERS: Data = {
    "method": "GET",
    "path": "/customers",
    "query": {"limit": "2"},
    "page": {"query": "cursor", "at": "/next", "items": "/data", "max_pages": 4},
    "timeout": "1s",
}


def lister(home: Path, customers: Data = CUSTOMERS, **top: Any) -> Any:
    return stage(home, calls={"customers": customers}, **top)


def paged(*items: int, next: Any = None, **more: Any) -> Answer:
    """One page with these ids; `next` is the cursor of the page after it."""
    return Answer(json={"data": [{"id": one} for one in items], "next": next}, **more)


def ids(result: Data) -> list[int]:
    return [item["id"] for item in result["inline"]]


def cursors(on: Stage) -> list[str | None]:
    """The cursor of every request that arrived, in order."""
    return [one.query.get("cursor") for one in on.provider.arrivals if one.path == "/customers"]


@pytest.mark.requirement("R29")
async def test_all_pages_are_one_result_in_their_order(tmp_path: Path) -> None:
    async with lister(tmp_path) as on:
        on.script(paged(1, 2, next="b"), paged(3, 4, next="c"), paged(5), route=LIST)
        told = await on.read("customers")

        print(json.dumps(told, indent=1))
        full = await on.full(told["operation_id"], timeline=True)
        print(json.dumps(full, indent=1))
        assert (told["state"], told["may_proceed"]) == ("succeeded", True)
        assert ids(told["result"]) == [1, 2, 3, 4, 5]
        assert told["result"]["content_type"] == "application/json"
        assert told["result"]["truncated"] is False
        assert cursors(on) == [None, "b", "c"]
