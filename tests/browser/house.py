"""A home that people find something in: a provider, agents' work, a worker and a console, each a
process of its own.

    with provider() as api:
        ids = fill(home, api)
        with worker(home), console(home) as link:
            ...  # a browser goes to `link`
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from mcp import Client
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    PATIENCE,
    QUICK,
    TRANSFER,
    call,
    contract,
    stdio,
    write_contract,
)

ROOTS = [str(Path(root).resolve()) for root in ("rules", "storage", "tools", "server", ".")]
LINK = re.compile(r"http://\S+/sign-in/\S+")
HOSTILE = "<script>document.title='owned'</script><b>done</b>\u202eyltnelis\x1b[2J"
"""A state that a provider might send to whoever shows it."""
LONG_NAME = "a-very-long-name-of-a-data-set-without-any-place-to-break-it-2026-11-30-final-v2"

SHORT = {"max_status_requests": 2, "extension": {"by": "5m", "status_requests": 6, "times": 1}}
LIMITED = {"max_status_requests": 40, "extension": {"by": "5m", "status_requests": 4, "times": 1}}


def contract_of(base_url: str) -> str:
    """Jobs and calls that come to each kind of stop."""
    jobs = {
        "export": EXPORT | {"backoff": QUICK, "limits": SHORT},
        "report": EXPORT
        | {
            "label": "Report {arg.dataset}",
            "submit": "POST /reports",
            "status": "GET /reports/{id}",
        }
        | {"backoff": {"base": "30s", "max": "2m", "first": "300ms"}, "limits": LIMITED},
    }
    calls = {
        "transfer": TRANSFER | {"label": "Transfer {arg.amount} EUR to acct_42"},
        "pay": TRANSFER
        | {"path": "/payments", "label": "Pay {arg.amount} EUR", "approval": "per_call"},
        "rates": {"method": "GET", "path": "/rates", "label": "Read the rates"},
    }
    return contract(title="Exports", base_url=base_url, jobs=jobs, calls=calls)


# --- processes ------------------------------------------------------------------------------


def environment(home: Path, **more: str) -> dict[str, str]:
    known = {"FORBEAR_HOME": str(home), "PYTHONPATH": os.pathsep.join(ROOTS), "LANG": "C.UTF-8"}
    return {**os.environ, **known, **more}


@dataclass
class Process:
    """A program and what it has printed."""

    running: subprocess.Popen[str]
    lines: Queue[str]

    def says(self, words: re.Pattern[str]) -> str:
        """Wait until it prints a line with these words; the words."""
        told: list[str] = []
        while True:
            try:
                told.append(self.lines.get(timeout=PATIENCE))
            except Empty:
                raise AssertionError(f"it never said {words.pattern}:\n{''.join(told)}") from None
            if (match := words.search(told[-1])) is not None:
                return match.group()


@contextmanager
def process(*command: str, home: Path, **more: str) -> Iterator[Process]:
    """A Python module as a process, ended with the block."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", *command],
        env=environment(home, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        lines: Queue[str] = Queue()
        stdout = running.stdout
        assert stdout is not None

        def read() -> None:
            for line in stdout:
                lines.put(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield Process(running, lines)
        finally:
            running.terminate()
            running.wait(PATIENCE)
            reader.join(PATIENCE)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def console(home: Path) -> Iterator[str]:
    """`forbear console`; the link that it prints for signing in once."""
    where = f"127.0.0.1:{free_port()}"
    with process("forbear", "console", home=home, FORBEAR_CONSOLE=where) as running:
        yield running.says(LINK)


@contextmanager
def worker(home: Path) -> Iterator[None]:
    """`forbear worker`, which carries out what is decided."""
    with process("forbear", "worker", home=home):
        yield


@dataclass(frozen=True)
class Provider:
    """The fake provider as a process, by its address."""

    base_url: str

    def job(self, id: str, states: list[str], **more: Any) -> None:
        self._post("__job", {"id": id, "states": states, **more})

    def script(self, route: str, *steps: Mapping[str, Any]) -> None:
        self._post("__script", {"route": route, "steps": steps})

    def count(self, route: str) -> int:
        with urllib.request.urlopen(f"{self.base_url}/__arrivals") as answer:
            arrivals = json.load(answer)
        return sum(f"{one['method']} {one['path']}" == route for one in arrivals)

    def _post(self, path: str, body: object) -> None:
        request = urllib.request.Request(
            f"{self.base_url}/{path}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request):
            pass


@contextmanager
def provider(home: Path) -> Iterator[Provider]:
    with process("forbear.server.fake", home=home) as running:
        yield Provider(running.says(re.compile(r"http://\S+")))


# --- what happened before somebody looks ----------------------------------------------------


def fill(home: Path, api: Provider) -> dict[str, str]:
    """Let an agent do its work at a real server until everything has stopped where it stops.

    The ids of operations by what became of them.
    """
    write_contract(home, contract_of(api.base_url))
    write_contract(home, contract_of(api.base_url).replace("Exports", "Others"), "other")
    with ThreadPoolExecutor(1) as pool:  # a browser may be driven by a loop of this thread
        ids = pool.submit(lambda: asyncio.run(_work(home, api))).result()
    paused = subprocess.run(
        [sys.executable, "-m", "forbear", "pause", "other"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert paused.returncode == 0, paused.stderr
    return ids


async def _work(home: Path, api: Provider) -> dict[str, str]:
    async with stdio(home) as client:
        agent = _Agent(client)
        api.job("exp_1", ["queued", "done"], result={"rows": 3})
        done = await agent.job("export", "sales-2025", "succeeded")
        await agent.call("fetch_result", "succeeded", operation_id=done)
        api.job("exp_2", ["queued", "running", "running", "running", "done"], result={"rows": 7})
        stopped = await agent.job("export", "sales-2026", "escalated")
        api.job("exp_3", ["queued", HOSTILE])
        strange = await agent.job("export", LONG_NAME, "escalated")
        api.job("rep_1", list(FOREVER[:40]), collection="/reports")
        api.script("GET /reports/rep_1", {"do": "answer", "status": 503, "json": {}})
        waiting = await agent.job("report", "stock", "waiting")
        api.script("POST /transfers", {"do": "drop", "when": "after", "effect": True})
        unclear = await agent.write("transfer", 125, "escalated")
        asked = await agent.write("pay", 80, "queued")
        api.script(
            "GET /rates",
            {"do": "answer", "status": 429, "json": {}, "headers": [["Retry-After", "80"]]},
        )
        limited = await agent.call(
            "read_api",
            "delayed",
            provider="other",
            call="rates",
            arguments={},
            deadline_seconds=900,
        )
    return {
        "done": done,
        "stopped": stopped,
        "strange": strange,
        "waiting": waiting,
        "unclear": unclear,
        "asked": asked,
        "limited": limited,
    }


@dataclass
class _Agent:
    """What an agent asks for, until its operation is where it is expected."""

    client: Client

    async def job(self, name: str, dataset: str, state: str) -> str:
        passed = {"provider": "exp", "job": name, "arguments": {"dataset": dataset}}
        more = {"purpose": f"month-end report of {dataset}", "task": "month-end"}
        return await self.call("submit_job", state, **passed, **more)

    async def write(self, name: str, amount: int, state: str) -> str:
        passed = {"provider": "exp", "call": name, "arguments": {"amount": amount}}
        return await self.call("write_api", state, **passed, purpose="refund order 8812")

    async def call(self, tool: str, state: str, **arguments: Any) -> str:
        answer = await call(self.client, tool, wait_seconds=2, **arguments)
        assert "error" not in answer, answer
        operation_id: str = answer["operation_id"]
        async with asyncio.timeout(PATIENCE):
            while answer["state"] != state:
                await asyncio.sleep(0.2)
                answer = await call(self.client, "operation_status", operation_id=operation_id)
        return operation_id
