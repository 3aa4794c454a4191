"""pydantic-ai's toolset, without a model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset
from scenario import play, where


async def main() -> None:
    at = where()
    toolset = MCPToolset(
        at["url"] if "url" in at else StdioTransport(**at),
        tool_error_behavior="error",
        init_timeout=60,  # a busy machine starts the server in more than the usual 5 s
    )
    async with toolset:

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            try:
                answer = await toolset.direct_call_tool(tool, arguments)
            except Exception as error:
                text = str(error)
                return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))
            return dict(answer if isinstance(answer, dict) else json.loads(answer))

        await play([tool.name for tool in await toolset.list_tools()], call)


asyncio.run(main())
