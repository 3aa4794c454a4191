"""`python -m tests.simulation --seeds 1:10000 [--jobs 2]`, `--seed 42 --trace`, `--mutations`."""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import Ground, Outcome, run

BLOCK = 25
"""Seeds that one worker runs in a row."""


@contextmanager
def place() -> Iterator[Path]:
    """A folder for seeds, in memory where the system has one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="forbear-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ground() -> Iterator[Ground]:
    """A ground for seeds that this process runs."""
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle of a step costs more than the step
    try:
        with place() as folder:
            yield Ground(folder)
    finally:
        if collecting:
            gc.enable()


_here: list[Ground] = []
"""The ground of a process that does nothing else: what was made for one block serves the next."""


def settle(folder: Path) -> None:
    gc.disable()
    _here.append(Ground(Path(tempfile.mkdtemp(dir=folder))))


def block(seeds: range) -> list[tuple[int, tuple[str, ...], int, int]]:
    """Run some seeds in this process; of each its number, what broke, requests and commits."""
    told: list[tuple[int, tuple[str, ...], int, int]] = []
    for seed in seeds:
        outcome = run(seed, _here[0])
        told.append((seed, outcome.broken, outcome.requests, outcome.commits))
    gc.collect()
    return told


def many(seeds: range, jobs: int) -> int:
    blocks = [seeds[at : at + BLOCK] for at in range(0, len(seeds), BLOCK)]
    began, done, requests, commits = time.monotonic(), 0, 0, 0
    bad: list[int] = []
    with place() as folder, ProcessPoolExecutor(jobs, None, settle, (folder,)) as pool:
        for told in pool.map(block, blocks):
            for seed, broken, sent, stored in told:
                done, requests, commits = done + 1, requests + sent, commits + stored
                if broken:
                    bad.append(seed)
                    print(f"seed {seed}: {broken[0][:300]}", flush=True)
            if done % 100 == 0:
                print(f"{done} seeds, {len(bad)} broken", flush=True)
    took = time.monotonic() - began
    print(
        f"{done} seeds, {requests} requests, {commits} commits in {took:.0f} s "
        f"({done / took:.1f} a second): {len(bad)} broken {bad[:50]}"
    )
    return 1 if bad else 0


def first_found(name: str, seeds: Iterable[int], here: Ground) -> Outcome | None:
    """The first of these seeds that finds a mutation."""
    mutation = next(one for one in MUTATIONS if one.name == name)
    with mutation.apply():
        for seed in seeds:
            outcome = run(seed, here)
            if outcome.broken:
                return outcome
    return None


def hunted(name: str, seeds: range) -> tuple[int | None, str]:
    """The first seed that finds a mutation, and the law that it broke."""
    with ground() as here:
        found = first_found(name, seeds, here)
        return (None, "") if found is None else (found.seed, found.broken[0])


def mutated(seeds: range, jobs: int) -> int:
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        names = [one.name for one in MUTATIONS]
        hunts = pool.map(hunted, names, [seeds] * len(names))
        for mutation, (seed, law) in zip(MUTATIONS, hunts, strict=True):
            missed += seed is None
            told = f"not in {len(seeds)}" if seed is None else f"seed {seed}"
            print(f"{mutation.name:20} {mutation.what:44} {told:12} {law[:100]}", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1:200", help="from:to, the last one included")
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--trace", action="store_true", help="print what happens in it")
    parser.add_argument("--mutation", choices=[one.name for one in MUTATIONS])
    parser.add_argument("--mutations", action="store_true", help="look for every deliberate bug")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    begin, _, end = given.seeds.partition(":")
    seeds = range(int(begin), int(end or begin) + 1)
    if given.mutations:
        return mutated(seeds, given.jobs)
    if given.seed is None:
        return many(seeds, given.jobs)
    with ground() as here:
        if given.mutation:
            found = first_found(given.mutation, [given.seed], here)
            outcome = found or run(given.seed, here)
        else:
            outcome = run(given.seed, here)
    if given.trace:
        print("\n".join(outcome.trace))
    print(f"seed {outcome.seed}: {outcome.broken or 'all laws hold'}")
    print(f"{outcome.steps} steps, {outcome.requests} requests, {outcome.commits} commits")
    print(f"trace {outcome.digest}")
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
