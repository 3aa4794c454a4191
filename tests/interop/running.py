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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forbear.server.fake import FakeProvider
from tests.e2e.harness import EXPORT, QUICK, SUBMIT, furnished
from tests.interop.conforming import REVISIONS, Suite, conforms, shipped_conforms
from tests.interop.environments import Environments
from tests.interop.inspecting import ERAS, inspected

PATIENCE = 300.0
"""Real seconds for one step, on a busy machine too."""

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

SHIPPED, FIXTURES = "forbear", "tests.interop.fixtures"
"""What is served: the product, or the product with the conformance suite's fixtures."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client, and how it is started."""

    name: str
    environment: str
    script: str
    era: str = "auto"

    def command(self, made: Environments) -> list[str]:
        if self.script.endswith(".py"):
            return [str(made.python(self.environment)), str(CLIENTS / self.script)]
        home = made.npm(self.environment)
        for path in CLIENTS.glob("*.mjs"):  # modules are looked for beside the script
            shutil.copy(path, home)
        return [str(made.node() / "node"), str(home / self.script)]


CLIENTS = Path(__file__).parent / "clients"
ROOT = Path(__file__).parents[2]
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
    made = Environments(root / ".interop")
    steps = [step for step in _steps(made) if step.name.startswith(chosen.only)]
    if chosen.list:
        print("\n".join(dict.fromkeys(step.name for step in steps)))
        return 0
    failed = 0
    for step in steps:
        if chosen.over not in (None, step.transport):
            continue
        began = time.monotonic()
        problem = asyncio.run(_staged(step))
        took = f"{time.monotonic() - began:5.1f} s"
        print(f"{step.name:20} {step.transport:6} {took}  {problem or 'good'}", flush=True)
        failed += problem is not None
    return 1 if failed else 0


Play = Callable[[Mapping[str, Any], FakeProvider], Awaitable[str | None]]
"""Plays against a server that is reached so; what was wrong, if anything."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    transport: str
    play: Play
    module: str = SHIPPED


def _steps(made: Environments) -> Iterator[Step]:
    for transport in (STDIO, HTTP):
        for client in ALL:
            yield Step(client.name, transport, partial(_play, client, made))
        for era in ERAS:
            yield Step(f"inspector-{era}", transport, partial(_inspect, era, made))
    for what in (*REVISIONS, "tasks"):
        name = f"conformance-{what[:4] if what in REVISIONS else what}"
        yield Step(name, HTTP, partial(_conform, what, made), FIXTURES)
    yield Step("conformance-shipped", HTTP, partial(_conform, None, made))


async def _staged(step: Step) -> str | None:
    """Play a step on a home and a provider of its own."""
    with tempfile.TemporaryDirectory(prefix="forbear-interop-") as folder:
        home = Path(folder)
        async with furnished(home, EXPORT | {"backoff": QUICK}) as provider:
            provider.job("exp_2", ["queued", "resting"])
            async with _served(home, step.transport, step.module) as server:
                try:
                    return await asyncio.wait_for(step.play(server, provider), PATIENCE)
                except TimeoutError:
                    return f"no end within {PATIENCE:.0f} s"


async def _play(
    client: Client, made: Environments, server: Mapping[str, Any], provider: FakeProvider
) -> str | None:
    told = {"INTEROP_SERVER": json.dumps(server), "INTEROP_ERA": client.era}
    code, out, err = await _run(*client.command(made), **told)
    if code:
        return f"exit {code}: {err[-1500:]}"
    return _compared(json.loads(out.splitlines()[-1]), provider)


async def _inspect(
    era: str, made: Environments, server: Mapping[str, Any], provider: FakeProvider
) -> str | None:
    return await inspected(made, server, era, partial(_run_node, made))


async def _conform(
    what: str | None, made: Environments, server: Mapping[str, Any], provider: FakeProvider
) -> str | None:
    """Run the scenarios of a revision or of tasks; None are those that the product can pass."""
    suite = Suite(made, partial(_run_node, made), server["url"])
    return await (shipped_conforms(suite) if what is None else conforms(suite, what))


async def _run_node(made: Environments, *words: str) -> tuple[int, str]:
    path = f"{made.node()}{os.pathsep}{os.environ.get('PATH', '')}"
    code, out, err = await _run(*words, PATH=path)
    return code, out + err


async def _run(*words: str, **environment: str) -> tuple[int, str, str]:
    """A command: its exit code, and what it said on both outputs."""
    ran = await asyncio.create_subprocess_exec(
        *words,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await ran.communicate()
    except BaseException:
        ran.kill()
        raise
    return ran.returncode or 0, out.decode(), err.decode()


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
async def _served(home: Path, transport: str, module: str) -> AsyncIterator[dict[str, Any]]:
    """How a client reaches a server on this home; over HTTP it runs already."""
    command = [sys.executable, "-m", module, "serve"]
    env = {**os.environ, "FORBEAR_HOME": str(home)}
    if transport == STDIO:
        yield {"command": command[0], "args": command[1:], "env": env}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with (home / "serve.log").open("w") as log:
        serving = await asyncio.create_subprocess_exec(
            *command, "--http", place, env=env, cwd=ROOT, stdout=log, stderr=log
        )
    try:
        try:
            await listens(place)
        except TimeoutError:
            told = (home / "serve.log").read_text()[-1500:]
            raise SystemExit(f"{module} does not listen at {place}: {told}") from None
        yield {"url": f"http://{place}/mcp"}
    finally:
        if serving.returncode is None:
            serving.terminate()
        await serving.wait()


async def listens(place: str) -> None:
    """Return once somebody listens at `host:port`."""
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
