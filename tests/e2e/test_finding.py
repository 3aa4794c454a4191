"""Operations are found in pages, active ones first, also by a text in what is sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import Stage, stage

from forbear.server.fake import Answer
from forbear.storage import queries

pytestmark = [pytest.mark.anyio]

CALLS = {
    "first": {"method": "GET", "path": "/customers/{arg.id}", "label": "An ODD one"},
    "second": {"method": "GET", "path": "/customers/{arg.id}", "label": "even"},
    "note": {"method": "POST", "path": "/notes", "label": "Note", "approval": "per_call"},
}


async def pages(on: Stage, text: str | None) -> list[str]:
    """Ids as a reader meets them who turns pages of two."""
    found: list[str] = []
    after: tuple[int, int] | None = None
    while page := await on.app.store.read.find(text=text, after=after, limit=2):
        found += [op.id for op in page]
        after = int(page[-1].final), page[-1].number
    return found


async def test_every_operation_is_on_one_page_whatever_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_PAGE", 2)
    async with stage(tmp_path, states=None, calls=CALLS) as on:
        on.provider.script("GET /customers/", *[Answer(json={})] * 9)
        asked = {"provider": "exp", "call": "note", "arguments": {}, "purpose": "even"}
        active = [(await on.call("write_api", **asked, wait_seconds=0))["operation_id"]]
        over: list[str] = []
        for number in range(5):
            read = await on.read("first" if number % 2 else "second", arguments={"id": number})
            over.insert(0, read["operation_id"])
        assert await pages(on, None) == active + over
        assert await pages(on, "odd") == [over[1], over[3]]
        assert await pages(on, "EVEN") == [*active, over[0], over[2], over[4]]
        assert await pages(on, "neither") == []
