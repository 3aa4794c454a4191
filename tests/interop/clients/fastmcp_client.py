"""fastmcp's client."""

from __future__ import annotations

import asyncio
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from scenario import play, said, where


async def main() -> None:
    at = where()
    async with Client(at["url"] if "url" in at else StdioTransport(**at)) as client:

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments, raise_on_error=False)
            texts = [block.text for block in answer.content if block.type == "text"]
            return said(answer.structured_content, texts)

        await play([tool.name for tool in await client.list_tools()], call)


asyncio.run(main())
