"""(c) Other systems on the same work: chains of requests, 50 at once, over the same provider.

Each peer is installed in an environment of its own under `.bench/`, at the first use, and runs with
its defaults, except where a line below says so. Each trial is a process of its own, and measures
the bare client too: what is compared is the share that each leaves of its own floor.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.calls import bare_httpx2, chains, forbear, hammer
from benchmarks.environments import Missing, environment, postgres, process_of, version
from benchmarks.provider import arrivals, provider
from benchmarks.tables import Figure, Row, Table

HERE = Path(__file__).parent
AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    package: str
    """What pip installs, beside the client."""
    script: str
    on_postgres: bool
    guarantees: str
    at_least: float
    aim: float

    @property
    def distribution(self) -> str:
        return self.package.partition("[")[0].partition(">")[0]


PEERS = (
    Peer(
        "DBOS on SQLite",
        "dbos>=3,<4",
        "dbos_chain",
        False,
        "result stored after the call; none that it started: a lost answer is sent again",
        6,
        8,
    ),
    Peer("DBOS on PostgreSQL", "dbos>=3,<4", "dbos_chain", True, "the same", 5, 7),
    Peer(
        "procrastinate",
        "procrastinate>=3,<4",
        "procrastinate_chain",
        True,
        "marked `doing` before the call; after a crash it stays so until swept",
        4,
        5,
    ),
    Peer(
        "pgqueuer",
        "pgqueuer[asyncpg]>=1,<2",
        "pgqueuer_chain",
        True,
        "at least once: run again after a crash; its log is written in batches",
        1.9,
        2.5,
    ),
    Peer(
        "huey on SQLite",
        "huey>=3,<4",
        "huey_chain",
        False,
        "at most once: deleted before it runs, a crash loses it (fsync, 50 threads, no results)",
        1.4,
        2,
    ),
)

OURS = "stored before it leaves and after: a crash is known, nothing is sent again unasked"


# --- trials -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """One trial: requests a second of the bare client, and of what stood on top of it."""

    floor: float
    rate: float

    @property
    def share(self) -> float:
        return self.rate / self.floor


def tried(peer: Peer, python: Path, store: str, base_url: str, length: int) -> Shared:
    """A process of the peer: a short trial to warm up, then the one that counts.

    Raises:
        Missing: it does not run here.
    """
    with process_of([python, HERE / f"{peer.script}.py", store]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for steps in (2, length):
            asked = {"base_url": base_url, "chains": AT_ONCE, "length": steps}
            before = arrivals(base_url)[0]
            try:
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise Missing(f"{peer.name} did not start") from None
            line = process.stdout.readline()
            if not line:
                raise Missing(f"{peer.name} ended before its work was done")
            came = arrivals(base_url)[0] - before
            if came != 2 * AT_ONCE * steps:
                raise Missing(f"{peer.name} made {came} requests of {2 * AT_ONCE * steps}")
        answer = json.loads(line)
        return Shared(answer["floor"], answer["peer"])


async def _ours(base_url: str, length: int) -> Shared:
    async with bare_httpx2(base_url) as plain:
        await hammer(plain, AT_ONCE, 2 * AT_ONCE)
        floor = await hammer(plain, AT_ONCE, AT_ONCE * length)
    async with forbear(base_url) as app:
        await chains(app, AT_ONCE, 2 * AT_ONCE)
        return Shared(floor.rate, (await chains(app, AT_ONCE, AT_ONCE * length)).rate)


# --- the table --------------------------------------------------------------------------------


def table(quick: bool) -> Table:
    rounds, length = (1, 6) if quick else (3, 20)
    trials: dict[str, list[Shared]] = {"forbear": []}
    missing: dict[str, str] = {}
    versions = {"forbear": ""}
    with ExitStack() as stack:
        base_url = stack.enter_context(provider())
        address: str | Missing
        try:
            address = stack.enter_context(postgres())
        except Missing as error:
            address = error
        pythons: dict[str, Path] = {}
        for peer in PEERS:
            try:
                if peer.on_postgres and isinstance(address, Missing):
                    raise address
                python = environment(peer.distribution, peer.package, "httpx2>=2.16,<3")
                pythons[peer.name] = python
                versions[peer.name] = version(python, peer.distribution)
                trials[peer.name] = []
            except Missing as error:
                missing[peer.name] = str(error)
        for _ in range(rounds):
            trials["forbear"].append(asyncio.run(_ours(base_url, length)))
            for peer in PEERS:
                if peer.name in missing:
                    continue
                with tempfile.TemporaryDirectory(prefix="forbear-bench-") as folder:
                    store = address if peer.on_postgres else folder
                    assert isinstance(store, str)
                    try:
                        found = tried(peer, pythons[peer.name], store, base_url, length)
                    except Missing as error:
                        missing[peer.name] = str(error)
                    else:
                        trials[peer.name].append(found)
    ours = trials["forbear"]
    rows: list[Row] = [_row("forbear", versions["forbear"], ours, ours, OURS)]
    figures: list[Figure] = []
    for peer in PEERS:
        theirs = [] if peer.name in missing else trials[peer.name]
        told = f"not measured: {missing[peer.name]}" if peer.name in missing else peer.guarantees
        rows.append(_row(peer.name, versions.get(peer.name, "-"), ours, theirs, told))
        value = rows[-1]["forbear is"]
        assert not isinstance(value, str)
        figures.append(
            Figure(f"durable chains against {peer.name}", value, peer.at_least, peer.aim)
        )
    notes = (
        "Guarantees as their documentation and sources have them; no peer was killed here.",
        f"{AT_ONCE} chains of {length} requests each; a chain of Forbear is a job that is polled. "
        "`floor` is httpx2 alone, in the same process just before.",
    )
    return Table("peers", "other durable systems on the same work", rows, figures, notes)


def _row(name: str, version: str, ours: list[Shared], theirs: list[Shared], guarantees: str) -> Row:
    pairs = list(zip(ours, theirs, strict=False))
    return {
        "system": f"{name} {version}".strip(),
        "floor/s": median(one.floor for one in theirs) if theirs else None,
        "requests/s": median(one.rate for one in theirs) if theirs else None,
        "of its floor": median(one.share for one in theirs) if theirs else None,
        "forbear is": median(a.share / b.share for a, b in pairs) if pairs else None,
        "guarantees": guarantees,
    }
