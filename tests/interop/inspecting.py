"""The Inspector's command line against the shipped server: listing, calling, and an error."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.interop.environments import Environments

Run = Callable[..., Awaitable[tuple[int, str]]]
"""Runs a command with Node first on its path: exit code and what it said."""

ERAS = ("legacy", "auto", "modern")
TOOL_IS_ERROR = 5
ODD_SCHEMA = "warning"


async def inspected(
    made: Environments, server: Mapping[str, Any], era: str, run: Run
) -> str | None:
    """What was wrong, if anything."""
    program = made.npm("inspector") / "node_modules" / ".bin" / "mcp-inspector"
    target = [server["url"], "--transport", "http"] if "url" in server else []
    if not target:
        target = [server["command"], *server["args"]]
        home = server["env"]["FORBEAR_HOME"]
        target += ["-e", f"FORBEAR_HOME={home}"]

    async def ask(method: str, *words: str) -> tuple[int, str]:
        how = ("--protocol-era", era, "--format", "json", "-q", "--method", method)
        return await run(str(program), "--cli", *target, *how, *words)

    code, said = await ask("tools/list", "--strict")
    if code or ODD_SCHEMA in said.lower():
        return f"tools/list: exit {code}: {said[-600:]}"
    arguments = {"provider": "exp", "job": "export", "arguments": {"dataset": era}}
    words = ("--tool-name", "submit_job", "--tool-args-json", json.dumps(arguments))
    code, said = await ask("tools/call", *words)
    if code or '"operation_id"' not in said:
        return f"submit_job: exit {code}: {said[-600:]}"
    code, said = await ask(
        "tools/call", "--tool-name", "check_status", "--tool-arg", "operation_id=op_nothing"
    )
    if code != TOOL_IS_ERROR or "unknown_operation" not in said:
        return f"check_status of nothing: exit {code}: {said[-600:]}"
    return None
