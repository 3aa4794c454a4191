"""The command line driven by a test: its output, its home, and a terminal that a test types on."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.tools.driving import CONTRACT, Driver, driver

from forbear.rules.model import State

T = TypeVar("T")
RUNNING = {"id": "exp_71c", "state": "running"}
PAUSED = {"id": "exp_71c", "state": "paused"}
DONE = {
    "id": "exp_71c",
    "state": "done",
    "result": {"url": "https://api.exp.example/v1/files/1"},
}
TOKEN = "a-token-of-the-operator"
TIGHT = CONTRACT.replace("max_status_requests = 12", "max_status_requests = 1")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


def drive(home: Path, steps: Callable[[Driver], Awaitable[T]], text: str = CONTRACT) -> T:
    """Do something on the store of a home as its worker would."""

    async def whole() -> T:
        (home / "contracts" / "exp.toml").write_text(text, encoding="utf-8")
        async with driver(home, text) as job:
            return await steps(job)

    return asyncio.run(whole())


async def waits(job: Driver) -> str:
    await job.accepted()
    await job.answer(200, RUNNING)
    return job.op_id


async def stops(job: Driver) -> str:
    await job.accepted()
    await job.answer(200, PAUSED)
    return job.op_id


async def ends(job: Driver) -> str:
    await job.accepted()
    await job.answer(200, DONE)
    return job.op_id


async def is_unclear(job: Driver) -> str:
    await job.submit()
    await job.silence()
    return job.op_id


def state_of(home: Path, op_id: str) -> tuple[State, dict[str, Any] | None]:
    async def read(job: Driver) -> tuple[State, dict[str, Any] | None]:
        op = await job.store.read.operation(op_id)
        cases = await job.store.read.cases_of(op_id)
        assert op is not None
        decision = cases[0].decision
        return op.state, None if decision is None else dict(decision)

    return drive(home, read)


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@dataclass
class Terminal:
    """A command of ours at a terminal that a test types on."""

    child: subprocess.Popen[bytes]
    screen: int
    seen: bytes = b""

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def until(self, text: str) -> None:
        """Read on until the screen shows `text`."""
        quiet = 0
        while text.encode() not in self.seen:
            over = self.child.poll() is not None
            quiet = 0 if self._read(1.0) else quiet + 1
            assert quiet < (1 if over else 60), f"no {text!r} in {self.seen.decode()}"

    def end(self) -> int:
        """The exit code, once it is over and everything that it wrote is seen."""
        code = self.child.wait(timeout=60)
        while self._read(0.0):
            pass
        return code

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self.screen], [], [], patience)
        self.seen += os.read(self.screen, 4096) if ready else b""
        return bool(ready)


@contextmanager
def at_a_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "forbear", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=child_environment() | environment,
        # So that the terminal is the child's own and Ctrl-C reaches it.
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    try:
        yield Terminal(child, ours)
    finally:
        child.kill()
        child.wait()
        # Only now: what a child wrote last is lost where nobody holds its end any more.
        os.close(theirs)
        os.close(ours)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
