"""Rounds of kills, stops and set clocks under load: `python -m tests.crash --minutes 10`.

Each round is a home of its own with three processes and a provider that loses and delays answers.
What happens when is drawn from a seed, which is printed: `--seed` plays it again. Exit code 1 with
the round's home and logs left in place if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from tests import stores
from tests.crash.test_crash import CONTRACT, FINDABLE, KEYED, SUBMIT, no_request_is_hidden
from tests.crash.world import Nursery, World, alive, fast, nursed, world
from tests.opened import histories
from tests.storage.house import rebuilt, told

from forbear.server.fake import Answer, Drop, Step, retry_after
from forbear.storage import verifying

JOBS, PROCESSES = 40, 3

KINDS = {"neither": "", "keyed": KEYED, "findable": FINDABLE, "both": KEYED + FINDABLE}
"""What lets a lost submission be known again, by contract."""


async def one_round(home: Path, nursery: Nursery, random: Random, kind: str) -> str:
    """A round; what there was to see. Raises AssertionError."""
    few = CONTRACT.replace("max_concurrent_requests = 50", "max_concurrent_requests = 8")
    stepped = home.with_name("stepped")
    stepped.write_text("0")
    clock: dict[str, Any] = {**fast(20), "stepped": str(stepped)}
    datasets = [f"set-{number}" for number in range(JOBS)]
    async with world(home, nursery, few + KINDS[kind], JOBS) as on:
        on.provider.script(SUBMIT, *_weather(random))
        for _ in range(PROCESSES):
            on.start(*datasets, **clock)
        await on.until(lambda: len(on.rows("SELECT 1 FROM operations")) == JOBS)
        happened = [await _strike(on, random, stepped, clock) for _ in range(random.randint(4, 12))]
        for pid in on.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        on.start(**clock)
        await on.at_rest(JOBS, patience=4)
        _whole(on, kind)
        states = on.rows("SELECT state, count(*) AS n FROM operations GROUP BY state")
        ends = ", ".join(f"{row['n']} {row['state']}" for row in states)
        return f"{' '.join(happened)}: {len(on.provider.arrivals)} requests, {ends}"


def _weather(random: Random) -> Iterator[Step]:
    """What the provider does to the first submissions."""
    for _ in range(JOBS // 2):
        match random.randrange(5):
            case 0:
                yield Drop(effect=True)
            case 1:
                yield Drop(when="before", how="rst")
            case 2:
                yield retry_after(random.randint(0, 2))
            case 3:
                yield Answer(503, {"error": "later"})
            case _:
                yield Answer(202, {"id": f"own_{random.random()}", "state": "done"}, effect=False)


async def _strike(on: World, random: Random, stepped: Path, clock: dict[str, Any]) -> str:
    """Do one thing to a process or to the clock of all."""
    await asyncio.sleep(random.uniform(0.0, 0.4))
    living = [pid for pid in on.pids if alive(pid)]
    what = random.choice(("kill", "kill", "stop", "clock"))
    match what:
        case "kill" if living:
            os.kill(random.choice(living), signal.SIGKILL)
            on.start(**clock)
        case "stop" if living:
            pid = random.choice(living)
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(random.uniform(0.0, 1.5))
            os.kill(pid, signal.SIGCONT)
        case _:
            _set(stepped, random.randint(-90_000, 90_000))
    return what


def _set(stepped: Path, by: int) -> None:
    draft = stepped.with_suffix(".new")
    draft.write_text(str(int(stepped.read_text()) + by))
    draft.rename(stepped)


def _whole(on: World, kind: str) -> None:
    """What must be true of every home at rest, whatever was done to it."""
    no_request_is_hidden(on)
    effects = [effect.body["dataset"] for effect in on.provider.effects]
    assert len(effects) == len(set(effects)), f"an effect was repeated with {kind}"
    with verifying.read(stores.where(on.home), live=True) as evidence:
        assert verifying.verify(evidence).broken is None
    for op, history in histories(on.home):
        kept = rebuilt(history)
        assert {name: kept.get(name) for name in told(op)} == told(op), op.id
        assert sum(event.code == "reserved" for event in history) == op.fence, op.id


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of kills, stops and set clocks.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else int.from_bytes(os.urandom(3))
    end = monotonic() + asked.minutes * 60
    with nursed() as nursery:
        while True:
            folder = Path(tempfile.mkdtemp(prefix="forbear-crash-"))
            random = Random(seed)
            kind = random.choice(list(KINDS))
            try:
                seen = asyncio.run(one_round(folder / "home", nursery, random, kind))
            except AssertionError as error:
                print(f"seed {seed} {kind}: PROBLEM in {folder}: {error}")
                sys.exit(1)
            print(f"seed {seed} {kind}: {seen}", flush=True)
            shutil.rmtree(folder)
            seed += 1
            if asked.seed is not None or monotonic() > end:
                return


if __name__ == "__main__":
    main()
