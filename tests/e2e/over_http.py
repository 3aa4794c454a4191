"""`forbear serve --http` as a process, and clients of it over real sockets."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.e2e.harness import PATIENCE, serving

LEGACY, MODERN = "legacy", "2026-07-28"


@dataclass
class Served:
    """One process and where it answers."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @asynccontextmanager
    async def client(self, era: str, token: str | None = None) -> AsyncIterator[Client]:
        async with self.web(token) as web:
            transport = streamable_http_client(f"{self.url}/mcp", http_client=web)
            async with Client(transport, mode=era) as client:
                await client.list_tools()
                yield client

    def web(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """Plain requests, as a browser or a script makes them."""
        stated = headers if token is None else {"Authorization": f"Bearer {token}", **headers}
        return httpx2.AsyncClient(base_url=self.url, headers=stated, timeout=PATIENCE)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end: its exit code."""
        self.process.send_signal(how)
        return await asyncio.wait_for(self.process.wait(), PATIENCE)


@asynccontextmanager
async def served(
    home: Path, *words: str, place: str = "127.0.0.1:0", **environment: str
) -> AsyncIterator[Served]:
    """A process on a home; what is left of it at the end is killed."""
    wanted = serving(home, **environment)
    with (home / "stderr").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(wanted.command, *wanted.args, "--http", place, *words),
            env=wanted.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=errors,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        told = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
        assert "is at http://" in told, told

        async def copy() -> None:
            assert process.stderr is not None
            while line := await process.stderr.readline():
                errors.write(line)

        copying = asyncio.create_task(copy())
        try:
            yield Served(told.partition(" is at ")[2].partition("/mcp")[0], process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await copying


def configure(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text, encoding="utf-8")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def rpc(method: str, **params: Any) -> dict[str, Any]:
    """One request of the 2026-07-28 protocol, for those who write it by hand."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def rpc_headers(method: str, name: str | None = None) -> dict[str, str]:
    fields = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
    }
    return fields if name is None else {**fields, "Mcp-Name": name}
