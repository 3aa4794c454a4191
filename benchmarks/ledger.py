"""How many polls a store takes: transaction 1, a canned answer, transaction 2.

    python benchmarks/ledger.py [--operations 200] [--polls 5] [--concurrency 1 50]

Prints, for each concurrency, polls per second, CPU microseconds per poll, fsyncs per poll and bytes
of disk per operation. There is no network in it: the sender answers at once. Rates depend on the
machine; compare lines of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / layer) for layer in ("rules", "storage", "tools", "server")]

from forbear.rules import signals  # noqa: E402
from forbear.rules.contract import Contract  # noqa: E402
from forbear.rules.contract_file import parse  # noqa: E402
from forbear.rules.facts import facts_of  # noqa: E402
from forbear.rules.model import Priority  # noqa: E402
from forbear.rules.ports import Reply  # noqa: E402
from forbear.rules.steps import request_of  # noqa: E402
from forbear.server.clock import SystemClock, SystemRandom  # noqa: E402
from forbear.storage.accepting import Accepted  # noqa: E402
from forbear.storage.reserving import Reserved  # noqa: E402
from forbear.storage.store import Store  # noqa: E402
from forbear.storage.transitions import Holding  # noqa: E402
from forbear.tools.drafts import Drafter, Given, bounds  # noqa: E402

CONTRACT = """
contract = 1
base_url = "http://127.0.0.1:1"
auth = "none"
[scopes.all]
per = "provider"
rate = "1000000/1s"
max_concurrent_requests = 100000
max_delayed_requests = 100000
[jobs.export]
usual = "10m"
deadline = "10h"
submit = "POST /exports"
body = { dataset = "{arg.dataset}" }
repeat = "free"
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["running"]
succeeded = ["done"]
[jobs.export.backoff]
base = "1ms"
max = "1ms"
first = "1ms"
[jobs.export.limits]
max_status_requests = 1000000
"""


async def polls(store: Store, holding: Holding, drafter: Drafter, number: int, count: int) -> None:
    job = holding.contract.jobs["export"]
    draft = drafter.submission(
        holding,
        job,
        {"dataset": f"{number}"},
        bounds(job, None, None, None),
        Given(purpose=None, key=None, priority=Priority.BACKGROUND, task=None),
    )
    accepted = await store.write(partial(store.ledger.accept, draft=draft, holding=holding))
    assert isinstance(accepted, Accepted), accepted
    operation_id = accepted.operation.id
    for poll in range(count + 1):
        body = f'{{"id":"exp_{number}","state":"{"done" if poll == count else "running"}"}}'
        reserve = partial(store.ledger.reserve, operation_id=operation_id, holding=holding)
        while not isinstance(reserved := await store.write(reserve), Reserved):
            await SystemClock().sleep(0.001)
        now = SystemClock().now().wall
        reply = Reply(True, True, now, now, 200, (("Content-Length", "9"),), body.encode())
        op = reserved.operation
        signal = signals.read(
            reply,
            holding.contract,
            job,
            request_of(op, job),
            facts_of(op, holding.contract),
            now,
        )
        await store.write(
            partial(store.ledger.settle, reserved=reserved, reply=reply, signal=signal)
        )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("forbear.db*"))


async def measure(operations: int, count: int, concurrency: int) -> str:
    contract = parse(CONTRACT, "bench.toml")
    assert isinstance(contract, Contract), contract
    holding = Holding(contract, contract.jobs["export"], "fingerprint")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), SystemClock(), SystemRandom())
        store.liveness.claim()
        drafter = Drafter(store.key, SystemRandom(), "bench")
        gate = asyncio.Semaphore(concurrency)

        async def one(number: int) -> None:
            async with gate:
                await polls(store, holding, drafter, number, count)

        started, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.gather(*(one(number) for number in range(operations)))
        took, spent = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
        done = operations * (count + 1)
        await store.close()
        disk = _size(Path(folder))
    used = spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime
    return (
        f"concurrency {concurrency:4}: {done / took:7.0f} requests/s, "
        f"{used / done * 1e6:6.0f} us CPU each, {disk / operations / 1024:5.1f} kB per operation"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--polls", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 50])
    given = parser.parse_args()
    for concurrency in given.concurrency:
        print(asyncio.run(measure(given.operations, given.polls, concurrency)))


if __name__ == "__main__":
    main()
