"""openai-agents, without a model: its MCP servers alone."""

from __future__ import annotations

import asyncio
from typing import Any

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from scenario import play, said, where


async def main() -> None:
    at = where()
    kind = MCPServerStreamableHttp if "url" in at else MCPServerStdio
    async with kind(params=at, client_session_timeout_seconds=60) as server:

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await server.call_tool(tool, arguments)
            structured = getattr(answer, "structuredContent", None) or getattr(
                answer, "structured_content", None
            )
            return said(structured, [block.text for block in answer.content])

        await play([tool.name for tool in await server.list_tools()], call)


asyncio.run(main())
