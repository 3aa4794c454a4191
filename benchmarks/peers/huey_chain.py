"""huey on SQLite: each request is a task that enqueues the next one of its chain."""

import asyncio
import logging
import sys
import threading
import time

import httpx2
from common import Work, serve
from huey import SqliteHuey

huey = SqliteHuey(filename=f"{sys.argv[1]}/huey.db", fsync=True, results=False)
local = threading.local()
lock = threading.Lock()
left = 0
over = threading.Event()


@huey.task()
def look(urls: list[str]) -> None:
    global left
    if not hasattr(local, "http"):
        local.http = httpx2.Client(trust_env=False)
    local.http.get(urls[0]).raise_for_status()
    if urls[1:]:
        look(urls[1:])
        return
    with lock:
        left -= 1
        if left == 0:
            over.set()


def chains(work: Work) -> float:
    global left
    left = work.chains
    over.clear()
    began = time.perf_counter()
    for number in range(work.chains):
        look([work.url(number, step) for step in range(work.length)])
    over.wait()
    return time.perf_counter() - began


async def trial(work: Work) -> float:
    return await asyncio.to_thread(chains, work)


async def main() -> None:
    logging.disable(logging.CRITICAL)
    consumer = huey.create_consumer(
        workers=50, periodic=False, initial_delay=0.01, max_delay=0.1, check_worker_health=False
    )
    consumer.start()
    await serve(trial)
    consumer.stop(graceful=False)


asyncio.run(main())
