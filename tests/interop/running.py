"""Plays the scenario through every client and compares what each saw."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forbear.server.fake import FakeProvider
from tests.e2e.harness import EXPORT, QUICK, SUBMIT, furnished
from tests.interop.environments import Environments

PATIENCE = 120.0
"""Real seconds for one client."""

EXPECTED: dict[str, Any] = {
    "tools": 11,
    "actions": ["export"],
    "job": "succeeded",
    "may_proceed": True,
    "result": {"rows": 3},
    "again": "possible_duplicate",
    "known": True,
    "stuck": "escalated",
    "reason": "unknown_state",
    "unknown": "unknown_operation",
}

STDIO, HTTP = "stdio", "http"


@dataclass(frozen=True, slots=True)
class Client:
    """One client, and how it is started."""

    name: str
    environment: str
    script: str
    era: str = "auto"
    transports: tuple[str, ...] = (STDIO, HTTP)

    def command(self, made: Environments) -> list[str]:
        if self.script.endswith(".py"):
            return [str(made.python(self.environment)), str(CLIENTS / self.script)]
        home = made.npm(self.environment)
        for path in CLIENTS.glob("*.mjs"):  # modules are looked for beside the script
            shutil.copy(path, home)
        return [str(made.node() / "node"), str(home / self.script)]


CLIENTS = Path(__file__).parent / "clients"
ALL = (
    Client("sdk-auto", "sdk", "sdk.py"),
    Client("sdk-legacy", "sdk", "sdk.py", era="legacy"),
    Client("fastmcp", "fastmcp", "fastmcp_client.py"),
    Client("langchain", "langchain", "langchain_client.py"),
    Client("agents", "agents", "agents_client.py"),
    Client("pydantic-ai", "pydantic_ai", "pydantic_ai_client.py"),
    Client("ts1", "ts1", "ts1.mjs"),
    Client("ts2-auto", "ts2", "ts2.mjs"),
    Client("ts2-legacy", "ts2", "ts2.mjs", era="legacy"),
)


def main(root: Path, words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/interop/run", description=__doc__)
    parser.add_argument("--only", default="", help="clients whose name begins so")
    parser.add_argument("--over", choices=(STDIO, HTTP), help="only this transport")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    chosen = parser.parse_args(words)
    names = [client for client in ALL if client.name.startswith(chosen.only)]
    if chosen.list:
        print("\n".join(client.name for client in names))
        return 0
    made = Environments(root / ".interop")
    failed = 0
    for client in names:
        for transport in client.transports:
            if chosen.over not in (None, transport):
                continue
            began = time.monotonic()
            problem = asyncio.run(_play(client, transport, made))
            took = f"{time.monotonic() - began:5.1f} s"
            print(
                f"{client.name:14} {transport:6} {took}  {problem or 'as the others'}", flush=True
            )
            failed += problem is not None
    return 1 if failed else 0


async def _play(client: Client, transport: str, made: Environments) -> str | None:
    """Play the scenario through one client; what was wrong, if anything."""
    command = client.command(made)
    with tempfile.TemporaryDirectory(prefix="forbear-interop-") as folder:
        home = Path(folder)
        async with furnished(home, EXPORT | {"backoff": QUICK}) as provider:
            provider.job("exp_2", ["queued", "resting"])
            async with _served(home, transport) as server:
                ran = await asyncio.create_subprocess_exec(
                    *command,
                    env={
                        **os.environ,
                        "INTEROP_SERVER": json.dumps(server),
                        "INTEROP_ERA": client.era,
                    },
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                try:
                    out, err = await asyncio.wait_for(ran.communicate(), PATIENCE)
                except TimeoutError:
                    ran.kill()
                    return f"no end within {PATIENCE:.0f} s"
            if ran.returncode:
                return f"exit {ran.returncode}: {err.decode()[-1500:]}"
            return _compared(json.loads(out.decode().splitlines()[-1]), provider)


def _compared(outcome: dict[str, Any], provider: FakeProvider) -> str | None:
    if outcome != EXPECTED:
        other = {
            name: outcome.get(name) for name in EXPECTED if outcome.get(name) != EXPECTED[name]
        }
        return f"saw {other}"
    if provider.count(SUBMIT) != 2 or len(provider.effects) != 2:
        return f"the provider got {provider.count(SUBMIT)} submissions"
    return None


@asynccontextmanager
async def _served(home: Path, transport: str) -> AsyncIterator[dict[str, Any]]:
    """How a client reaches a server on this home; over HTTP it runs already."""
    command = [sys.executable, "-m", "forbear", "serve"]
    env = {**os.environ, "FORBEAR_HOME": str(home)}
    if transport == STDIO:
        yield {"command": command[0], "args": command[1:], "env": env}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with (home / "serve.log").open("w") as log:
        serving = await asyncio.create_subprocess_exec(
            *command, "--http", place, env=env, stdout=log, stderr=log
        )
    try:
        await _listens(place)
        yield {"url": f"http://{place}/mcp"}
    finally:
        if serving.returncode is None:
            serving.terminate()
        await serving.wait()


async def _listens(place: str) -> None:
    host, _, port = place.partition(":")
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
