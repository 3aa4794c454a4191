"""The official Python SDK, in the era that `INTEROP_ERA` names (`auto` or `legacy`)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from scenario import play, said, where


async def main() -> None:
    at = where()
    server = at["url"] if "url" in at else stdio_client(StdioServerParameters(**at))
    async with Client(server, mode=os.environ["INTEROP_ERA"]) as client:

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            texts = [block.text for block in answer.content if block.type == "text"]
            return said(answer.structured_content, texts)

        listed = await client.list_tools()
        await play([tool.name for tool in listed.tools], call)


asyncio.run(main())
