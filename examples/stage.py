"""What the examples stand on: a provider made from a contract, MCP clients of `forbear serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

FORBEAR = (sys.executable, "-m", "forbear")


class Agent:
    """One MCP client with a `forbear serve` of its own, as every agent's client starts one."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The record that the tool answers with. Raises RuntimeError with what a refusal says."""
        answer = await self._client.call_tool(tool, arguments)
        told = answer.structured_content
        if answer.is_error or not isinstance(told, dict):
            raise RuntimeError(f"{tool}: {told or answer.content}")
        return told

    async def wait(self, record: dict[str, Any]) -> dict[str, Any]:
        """The operation once it is over or a person is asked.

        Each round is one call of a tool, not one request: when the provider is asked is Forbear's
        business.
        """
        while "check_status" in record.get("allowed_actions", ()):
            record = await self.call("check_status", operation_id=record["operation_id"])
            if "escalation" in record:
                break
        return record


class Stage:
    """The home of the simulated provider."""

    def __init__(self, home: Path) -> None:
        self.home = home

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        command, *arguments = FORBEAR
        server = StdioServerParameters(
            command=command, args=[*arguments, "serve"], env=self._environment()
        )
        with (self.home / "serve.log").open("a", encoding="utf-8") as log:
            async with Client(stdio_client(server, errlog=log)) as client:
                yield Agent(client)

    async def forbear(self, *arguments: str) -> str:
        """What a command of a person prints."""
        process = await asyncio.create_subprocess_exec(
            *FORBEAR,
            *arguments,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
        return printed.decode()

    def _environment(self) -> dict[str, str]:
        token = {"FORBEAR_OPERATOR_TOKEN": "the person in this example"}
        return {**os.environ, **token, "FORBEAR_HOME": str(self.home)}


@asynccontextmanager
async def simulated(contract: str, *options: str) -> AsyncIterator[Stage]:
    """A provider that speaks the contract, and a home that points at it.

    `options` are those of `forbear contract simulate`. Prints what the provider counted at the end.
    """
    with tempfile.TemporaryDirectory(prefix="forbear-example-") as folder:
        home = Path(folder) / "home"
        command = (*FORBEAR, "contract", "simulate", contract, "--home", str(home), *options)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            while b"listens on" not in (line := await process.stdout.readline()):
                if not line:
                    raise RuntimeError(f"{' '.join(command)} ended with {await process.wait()}")
            yield Stage(home)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            rest = (await process.stdout.read()).decode()
            await process.wait()
        # The last paragraph is the summary.
        print("\nThe provider counted:")
        print(rest.rstrip().rpartition("\n\n")[2])
