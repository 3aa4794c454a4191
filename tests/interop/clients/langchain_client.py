"""langchain-mcp-adapters, which brings the SDK's first generation."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from scenario import play, said, where


async def main() -> None:
    at = where()
    transport = "streamable_http" if "url" in at else "stdio"
    clients = MultiServerMCPClient({"forbear": {"transport": transport, **at}})
    async with clients.session("forbear") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await tools[tool].ainvoke(arguments)
            texts = [answer] if isinstance(answer, str) else [block["text"] for block in answer]
            return said(None, texts)

        await play(list(tools), call)


asyncio.run(main())
