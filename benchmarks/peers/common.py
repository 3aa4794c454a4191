"""What every peer does: chains of requests, each request after the answer to the one before.

Runs in the peer's own environment, so it imports nothing of Forbear. One line of input asks for one
trial and gets one line of output: requests a second of the bare client and of the peer.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx2


@dataclass(frozen=True)
class Work:
    base_url: str
    chains: int
    length: int
    trial: int

    @property
    def requests(self) -> int:
        return self.chains * self.length

    def url(self, chain: int, step: int) -> str:
        return f"{self.base_url}/items/{self.trial}-{chain}-{step}"


def client() -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(limits=limits, trust_env=False)


async def floor(work: Work, http: httpx2.AsyncClient) -> None:
    """The same chains without anything that lasts."""

    async def chain(number: int) -> None:
        for step in range(work.length):
            (await http.get(work.url(number, step))).raise_for_status()

    await asyncio.gather(*(chain(number) for number in range(work.chains)))


async def serve(peer: Callable[[Work], Awaitable[float]]) -> None:
    """`peer` does the work once and returns the seconds that it took."""
    http, trial = client(), 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        trial += 1
        began = time.perf_counter()
        await floor(Work(**asked, trial=2 * trial), http)
        bare = time.perf_counter() - began
        work = Work(**asked, trial=2 * trial + 1)
        took = await peer(work)
        print(json.dumps({"floor": work.requests / bare, "peer": work.requests / took}), flush=True)
