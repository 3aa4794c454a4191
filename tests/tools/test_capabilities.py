"""A server declares the news that it sends, and no other."""

from __future__ import annotations

import pytest
from mcp import Client
from tests.tools.desk import MemoryDesk

from forbear.tools.surface import build

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M02")]


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_operations_have_news_and_lists_have_none(era: str) -> None:
    async with Client(build(MemoryDesk(), version="0"), mode=era) as client:
        can = client.server_capabilities

    assert can.resources is not None
    assert can.tools is not None
    assert can.prompts is not None
    assert can.resources.subscribe
    assert not any(listed.list_changed for listed in (can.resources, can.tools, can.prompts))
