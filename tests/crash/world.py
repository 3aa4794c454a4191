"""A provider, a home, and real processes on it that can be killed and stopped at exact points."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import stores
from tests.crash.nursery import Birth

from forbear.server.clock import SystemClock
from forbear.server.fake import FakeProvider
from forbear.storage import verifying

LOOKS = 1_500

COUNTERS = ("attempts", "status_requests", "transport_failures", "rate_limited", "extensions")


@dataclass
class Nursery:
    process: subprocess.Popen[str]

    def bear(self, birth: Birth) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(dataclasses.asdict(birth)) + "\n")
        self.process.stdin.flush()
        pid: int = json.loads(self.process.stdout.readline())["pid"]
        return pid


@contextmanager
def nursed() -> Iterator[Nursery]:
    """A nursery that is over with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    yield Nursery(process)
    process.communicate()


@dataclass
class World:
    """One provider, one home, and the processes on it."""

    provider: FakeProvider
    home: Path
    nursery: Nursery
    pids: list[int] = field(default_factory=list[int])
    notes: Path | None = None
    """Where the logs are; in the home."""
    store: Mapping[str, str] | None = None
    """What tells its processes where the store is; as for the test itself."""

    def start(self, *datasets: str, at: Path | None = None, **how: Any) -> int:
        """Start a process on the home, or on another one that shares its store."""
        log = str((self.notes or self.home) / f"log-{len(self.pids)}")
        store = stores.environment(self.home) if self.store is None else dict(self.store)
        how |= {"datasets": datasets, "store": store}
        pid = self.nursery.bear(Birth(str(at or self.home), log, **how))
        self.pids.append(pid)
        return pid

    def said(self, number: int) -> list[dict[str, Any]]:
        log = (self.notes or self.home) / f"log-{number}"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logs(self) -> str:
        where = self.notes or self.home
        return "\n".join(path.read_text() for path in sorted(where.glob("log-*")))

    def rows(self, query: str) -> list[dict[str, Any]]:
        return stores.rows(self.home, query)

    def operation(self) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM operations")
        return row

    async def until(self, what: Callable[[], object], patience: int = 1) -> None:
        """Look until it is so: other processes tell nobody what they do."""
        for _ in range(LOOKS * patience):
            if what():
                return
            await asyncio.sleep(0.02)
        rows = self.rows("SELECT id, state, next_at, lease_owner FROM operations")
        out = self.rows(
            "SELECT operation_id, number, owner, reserved_at, send_by, hold_until FROM attempts"
            " WHERE closed_at IS NULL"
        )
        raise AssertionError(f"it did not come to that: {rows}\nout: {out}\n{self.logs()}")

    def works(self) -> bool:
        """Whether an operation is neither over nor with a person."""
        return bool(self.rows("SELECT 1 FROM operations WHERE next_at IS NOT NULL LIMIT 1"))

    def goes_on(self, count: int) -> bool:
        """Whether the provider has seen so many requests, or there is nothing more to send."""
        return len(self.provider.arrivals) >= count or not self.works()

    async def dead(self, pid: int) -> None:
        await self.until(lambda: not alive(pid))

    async def at_rest(self, operations: int = 1, patience: int = 1) -> None:
        """Until every operation has ended or asks a person."""
        await self.until(
            lambda: (
                [row["next_at"] for row in self.rows("SELECT next_at FROM operations")]
                == [None] * operations
            ),
            patience,
        )

    def counters(self) -> dict[str, int]:
        row = self.operation()
        return {name: row[f"{name}_used"] for name in COUNTERS}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@asynccontextmanager
async def world(home: Path, nursery: Nursery, contract: str, jobs: int = 1) -> AsyncIterator[World]:
    """A home whose contract `exp` is this text and the provider's address.

    Whatever was killed in it, its audit log is whole at the end.
    """
    async with FakeProvider() as provider:
        for number in range(jobs):
            provider.job(f"exp_{number}", ["queued", "running", "done"])
        (home / "contracts").mkdir(parents=True)
        whole = f'base_url = "{provider.base_url}"\n{contract}'
        (home / "contracts" / "exp.toml").write_text(whole)
        built = World(provider, home, nursery)
        try:
            yield built
        finally:
            for pid in built.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if built.rows("SELECT 1 FROM events"):
            with verifying.read(stores.where(home), live=True) as evidence:
                assert verifying.verify(evidence).broken is None


def fast(speed: int) -> dict[str, Any]:
    """A clock for `World.start` that several processes share."""
    now = SystemClock().now()
    return {"epoch": (now.wall, now.boot), "speed": speed}
