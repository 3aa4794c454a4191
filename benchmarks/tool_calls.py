"""(i) What a tool call that sends nothing costs, beside a trivial tool of the same SDK.

The trivial tool gives back its argument; ours is `operation_status` on a store with operations in
it. Each runs in a server process of its own, and they are called in turns.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server import MCPServer
from tests.e2e.harness import EXPORT, QUICK, furnished
from tests.interop.running import listens

from benchmarks import LAYERS, ROOT
from benchmarks.tables import Figure, Row, Table

OPERATIONS = 20
ERAS = ("auto", "legacy")


def trivial() -> MCPServer[None]:
    """A server with one tool that gives back what it got."""
    server: MCPServer[None] = MCPServer("trivial")

    @server.tool()
    async def echo(text: str) -> str:
        return text

    return server


def serve_trivial(place: str) -> None:
    if place == "stdio":
        trivial().run("stdio")
        return
    host, _, port = place.partition(":")
    trivial().run("streamable-http", host=host, port=int(port))


async def rows(calls: int, eras: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
        home = Path(folder)
        async with furnished(home, EXPORT | {"backoff": QUICK}):
            for transport in ("stdio", "http"):
                for era in eras:
                    plain, ours = await measured(home, transport, era, calls)
                    found.append(
                        {
                            "transport": transport,
                            "protocol": era,
                            "trivial ms": plain,
                            "forbear ms": ours,
                            "ratio": ours / plain,
                        }
                    )
    return found


def table(quick: bool) -> Table:
    found = asyncio.run(rows(40, ERAS[:1]) if quick else rows(300, ERAS))
    worst = max(float(str(row["ratio"])) for row in found)
    bound = Figure(
        "a tool call against a trivial one, the worst", worst, 2.0, 1.5, less_is_better=True
    )
    title = f"a tool call that sends nothing, {OPERATIONS} operations stored; median"
    return Table("tool_calls", title, found, [bound])


async def measured(home: Path, transport: str, era: str, calls: int) -> tuple[float, float]:
    """Median times of a call, ms: of the trivial tool, and of ours."""
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(trivial_client(transport, era))
        ours = await stack.enter_async_context(forbear_client(home, transport, era))
        for number in range(OPERATIONS):
            asked: dict[str, Any] = {"dataset": f"set-{number}"}
            await ours.call_tool(
                "submit_job", {"provider": "exp", "job": "export", "arguments": asked}
            )
        (newest,) = (await ours.call_tool("operation_status", {"limit": 1})).structured_content[
            "operations"
        ]
        named = {"operation_id": newest["operation_id"]}
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(calls):
            times[0].append(await timed(plain, "echo", {"text": str(number)}))
            times[1].append(await timed(ours, "operation_status", named))
        return statistics.median(times[0]), statistics.median(times[1])


async def timed(client: Client, tool: str, arguments: dict[str, Any]) -> float:
    began = time.perf_counter()
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer
    return (time.perf_counter() - began) * 1_000


@asynccontextmanager
async def trivial_client(transport: str, era: str) -> AsyncIterator[Client]:
    command = [sys.executable, "-m", "benchmarks.tool_calls"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *LAYERS])}
    async with reached(transport, era, command, env, mcp_only=True) as client:
        yield client


@asynccontextmanager
async def forbear_client(home: Path, transport: str, era: str) -> AsyncIterator[Client]:
    env = {**os.environ, "FORBEAR_HOME": str(home), "PYTHONPATH": os.pathsep.join(LAYERS)}
    command = [sys.executable, "-m", "forbear", "serve"]
    async with reached(transport, era, command, env, mcp_only=False) as client:
        yield client


@asynccontextmanager
async def reached(
    transport: str, era: str, command: list[str], env: dict[str, str], *, mcp_only: bool
) -> AsyncIterator[Client]:
    """A client of a server that runs in a process of its own."""
    if transport == "stdio":
        words = [*command, "stdio"] if mcp_only else command
        started = StdioServerParameters(command=words[0], args=words[1:], env=env)
        with open_nowhere() as nowhere:
            async with Client(stdio_client(started, errlog=nowhere), mode=era) as client:
                yield client
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = [*command, place] if mcp_only else [*command, "--http", place]
    serving = await asyncio.create_subprocess_exec(
        *words, env=env, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await listens(place)
        async with Client(f"http://{place}/mcp", mode=era) as client:
            yield client
    finally:
        if serving.returncode is None:
            serving.terminate()
        await serving.wait()


def open_nowhere() -> TextIO:
    return Path(os.devnull).open("w")


if __name__ == "__main__":
    serve_trivial(sys.argv[1])
