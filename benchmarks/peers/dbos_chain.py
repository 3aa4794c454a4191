"""DBOS: a workflow for each chain, a step for each request."""

import asyncio
import logging
import sys
import time

from common import Work, client, serve
from dbos import DBOS, DBOSConfig

http = client()


@DBOS.step()
async def look(url: str) -> int:
    return (await http.get(url)).raise_for_status().status_code


@DBOS.workflow()
async def chain(urls: list[str]) -> int:
    for url in urls:
        await look(url)
    return len(urls)


async def trial(work: Work) -> float:
    began = time.perf_counter()
    handles = [
        await DBOS.start_workflow_async(
            chain, [work.url(number, step) for step in range(work.length)]
        )
        for number in range(work.chains)
    ]
    done = [await handle.get_result() for handle in handles]
    took = time.perf_counter() - began
    assert sum(done) == work.requests
    return took


def address(store: str) -> str:
    return store if store.startswith("postgresql") else f"sqlite:///{store}/dbos.sqlite"


async def main() -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": address(sys.argv[1]),
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    logging.disable(logging.CRITICAL)
    DBOS(config=config)
    DBOS.launch()
    try:
        await serve(trial)
    finally:
        DBOS.destroy()


asyncio.run(main())
