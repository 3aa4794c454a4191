"""procrastinate: each request is a job that defers the next one of its chain."""

import asyncio
import logging
import sys
import time

from common import Work, client, serve
from procrastinate import App, PsycopgConnector

http = client()
app = App(connector=PsycopgConnector(conninfo=sys.argv[1], min_size=4, max_size=20))
left = 0
over = asyncio.Event()


@app.task
async def look(urls: list[str]) -> None:
    global left
    (await http.get(urls[0])).raise_for_status()
    if urls[1:]:
        await look.defer_async(urls=urls[1:])
        return
    left -= 1
    if left == 0:
        over.set()


async def trial(work: Work) -> float:
    global left
    left = work.chains
    over.clear()
    began = time.perf_counter()
    for number in range(work.chains):
        await look.defer_async(urls=[work.url(number, step) for step in range(work.length)])
    await over.wait()
    return time.perf_counter() - began


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=50, install_signal_handlers=False)
        )
        await serve(trial)
        worker.cancel()
        await asyncio.wait([worker])


asyncio.run(main())
