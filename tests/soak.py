"""A long run of two processes with ever more waits: `python -m tests.soak --minutes 60`.

Every few seconds something new is asked for, and each round leaves one job that its provider never
finishes. A line is printed every twentieth of the time. At the end the run is judged: memory and
file handles stay flat, the file of changes stays bounded, work never stands still, the audit log
verifies, and it tells of every operation what the store says. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic

from forbear.server.fake import Answer
from forbear.storage import verifying
from tests import stores
from tests.crash.world import World, nursed, world
from tests.opened import histories
from tests.storage.house import rebuilt, told

CONTRACT = """\
contract = 1
auth = "none"

[scopes.account]
per = "account"
rate = "1000/1s"
max_concurrent_requests = 50
max_delayed_requests = 100000

[jobs.export]
usual = "10s"
deadline = "10m"
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
submit = "POST /exports"
body = { dataset = "{arg.dataset}" }

[jobs.export.backoff]
base = "500ms"
max = "2s"
first = "500ms"

[jobs.wait]
usual = "24h"
deadline = "72h"
id = "/id"
status = "GET /waits/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
submit = "POST /waits"
body = { dataset = "{arg.dataset}" }

[jobs.wait.limits]
max_status_requests = 100000

[jobs.wait.backoff]
base = "10s"
max = "2m"
first = "5s"

[calls.rows]
method = "GET"
path = "/rows"

[calls.note]
method = "POST"
path = "/notes"
approval = "none"
repeat = "free"
"""

MEMORY = 1.25
"""Memory at the end against that after a quarter of the run, at the most."""

HANDLES = 8
"""How many more file handles than after a quarter of the run."""

CHANGES = 16 * 1024 * 1024
"""Bytes of the file of changes beside the store, at the most."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment; of the processes the worst of them."""

    seconds: float
    queued: int
    """Not sent yet, or to be sent again."""
    waiting: int
    ended: int
    outages: int
    """Circuits that are open."""
    requests: int
    memory: int
    """Resident, kB."""
    handles: int
    cpu: float
    """Seconds of all processes so far."""
    changes: int
    store: int

    HEAD = (
        "   time   queued  waiting    ended  outages  requests  memory kB  handles   cpu s  "
        "changes kB  store kB"
    )

    def __str__(self) -> str:
        return (
            f"{self.seconds:6.0f}s {self.queued:8} {self.waiting:8} {self.ended:8} "
            f"{self.outages:8} {self.requests:9} "
            f"{self.memory:10} {self.handles:8} {self.cpu:7.1f} {self.changes // 1024:11} "
            f"{self.store // 1024:9}"
        )


def sampled(on: World, began: float) -> Sample:
    [row] = on.rows(
        "SELECT sum(state IN ('queued', 'delayed')) AS queued, sum(state = 'waiting') AS waiting, "
        "sum(next_at IS NULL) AS ended FROM operations"
    )
    [circuits] = on.rows("SELECT count(*) AS open FROM circuits WHERE open_since IS NOT NULL")
    memory, handles, cpu = 0, 0, 0.0
    for pid in on.pids:
        status = Path(f"/proc/{pid}/status").read_text()
        memory = max(memory, int(status.partition("VmRSS:")[2].split()[0]))
        handles = max(handles, len(os.listdir(f"/proc/{pid}/fd")))
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    store = on.home / "forbear.db"
    return Sample(
        monotonic() - began,
        row["queued"] or 0,
        row["waiting"] or 0,
        row["ended"] or 0,
        circuits["open"],
        len(on.provider.arrivals),
        memory,
        handles,
        cpu,
        store.with_name("forbear.db-wal").stat().st_size,
        store.stat().st_size,
    )


async def run(home: Path, seconds: float, every: float) -> list[str]:
    """Run for so long; what was wrong."""
    with nursed() as nursery:
        async with world(home, nursery, CONTRACT, jobs=0) as on:
            feeding = asyncio.create_task(_feed(on))
            began = monotonic()
            for _ in range(2):
                on.start(every=every)
            samples: list[Sample] = []
            print(Sample.HEAD, flush=True)
            while monotonic() - began < seconds:
                await asyncio.sleep(seconds / 20)
                samples.append(sampled(on, began))
                print(samples[-1], flush=True)
            for pid in on.pids:
                os.kill(pid, signal.SIGTERM)
            for pid in on.pids:
                await on.dead(pid)
            feeding.cancel()
            return [*_judged(samples), *_drift(on)]


async def _feed(on: World) -> None:
    """Keep the provider in jobs: some that end soon, and some that never do."""
    planned = 0
    with suppress(asyncio.CancelledError):
        while True:
            if planned - on.provider.count("POST /waits") < 200:
                for number in range(planned, planned + 200):
                    on.provider.job(f"exp_{number}", ["queued", "running", "done"])
                    on.provider.job(f"wait_{number}", ["running"], collection="/waits")
                planned += 200
                on.provider.script("GET /rows", *[Answer(json={"n": 1})] * 200)
                on.provider.script("POST /notes", *[Answer(201, {"id": "n"})] * 200)
            await asyncio.sleep(0.5)


def _judged(samples: list[Sample]) -> list[str]:
    first, last = samples[len(samples) // 4], samples[-1]
    problems: list[str] = []
    if last.memory > first.memory * MEMORY:
        problems.append(f"memory grew from {first.memory} to {last.memory} kB")
    if last.handles > first.handles + HANDLES:
        problems.append(f"file handles grew from {first.handles} to {last.handles}")
    if max(one.changes for one in samples) > CHANGES:
        problems.append("the file of changes was not bounded")
    for before, after in pairwise(samples):
        if after.ended == before.ended:
            problems.append(f"nothing ended between {before.seconds:.0f} and {after.seconds:.0f} s")
    if last.waiting <= first.waiting:
        problems.append("the waits did not grow, so this run shows nothing")
    return problems


def _drift(on: World) -> list[str]:
    """What the trail and the store, or the store and the provider, say differently."""
    problems: list[str] = []
    with verifying.read(stores.where(on.home)) as evidence:
        report = verifying.verify(evidence)
    if report.broken is not None:
        problems.append(f"the audit log is broken: {report.broken}")
    for op, history in histories(on.home):
        kept = rebuilt(history)
        if {name: kept.get(name) for name in told(op)} != told(op):
            problems.append(f"the trail of {op.id} tells of another state")
        if sum(event.code == "reserved" for event in history) != op.fence:
            problems.append(f"{op.id} has other reservations than its trail")
    [row] = on.rows("SELECT count(*) AS n FROM attempts")
    if len(on.provider.arrivals) > row["n"]:
        problems.append(f"{len(on.provider.arrivals)} requests arrived, {row['n']} were reserved")
    if "Traceback" in on.logs():
        problems.append(on.logs()[-2_000:])
    print(f"audit log: {report.head.sequence} rows; requests: {len(on.provider.arrivals)}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two rounds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forbear-soak-") as folder:
        problems = asyncio.run(run(Path(folder) / "home", asked.minutes * 60, asked.every))
    for problem in problems:
        print(f"PROBLEM  {problem}")
    print("not flat" if problems else "flat, and no drift")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
