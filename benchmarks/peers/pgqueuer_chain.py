"""pgqueuer: each request is a job that enqueues the next one of its chain."""

import asyncio
import json
import logging
import sys
import time
from datetime import timedelta

import asyncpg
from common import Work, client, serve
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with asyncpg.create_pool(sys.argv[1], min_size=4, max_size=20) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        queue = PgQueuer(driver)
        http = client()
        left = 0
        over = asyncio.Event()

        @queue.entrypoint("look")
        async def look(job: Job) -> None:
            nonlocal left
            assert job.payload is not None
            urls = json.loads(job.payload)
            (await http.get(urls[0])).raise_for_status()
            if urls[1:]:
                await queries.enqueue(["look"], [json.dumps(urls[1:]).encode()], [0])
                return
            left -= 1
            if left == 0:
                over.set()

        async def trial(work: Work) -> float:
            nonlocal left
            left = work.chains
            over.clear()
            began = time.perf_counter()
            for number in range(work.chains):
                urls = [work.url(number, step) for step in range(work.length)]
                await queries.enqueue(["look"], [json.dumps(urls).encode()], [0])
            await over.wait()
            return time.perf_counter() - began

        worker = asyncio.create_task(queue.run(batch_size=50, dequeue_timeout=timedelta(seconds=1)))
        await serve(trial)
        worker.cancel()
        await asyncio.wait([worker])


asyncio.run(main())
