"""The provider that every variant and every peer calls: a small HTTP server in its own process.

    GET /items/N      an item of 200 bytes
    POST /exports     takes a job; its data set N-P is done at the look P
    GET /exports/ID   one look at it
    GET /__count      how many requests came, and of how many different paths

It parses no more of HTTP than these clients need, so that it is not what is measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from benchmarks import ROOT

FILLER = "x" * 160


class Served(asyncio.Protocol):
    """One connection."""

    def __init__(self, looks: Counter[str]) -> None:
        self._looks = looks
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            found = head.find(b"content-length:")
            length = int(head[found + 15 :].split(b"\r", 1)[0]) if found >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            path = self._buffer[: self._buffer.find(b"\r\n")].split(b" ")[1].decode()
            self._buffer = self._buffer[end + 4 + length :]
            answer = json.dumps(self._answer(path, body)).encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(answer), answer)
            )

    def _answer(self, path: str, body: bytes) -> object:
        if path == "/__count":
            return {"requests": self._looks.total(), "paths": len(self._looks)}
        if path == "/exports":
            data_set = json.loads(body)["dataset"]
            self._looks[f"/exports {data_set}"] += 1
            return {"id": data_set, "state": "running"}
        self._looks[path] += 1
        state = "done"
        if path.startswith("/exports/"):
            state = "done" if self._looks[path] >= int(path.rpartition("-")[2]) else "running"
        return {"id": path.rpartition("/")[2], "state": state, "filler": FILLER}


@contextmanager
def provider() -> Generator[str]:
    """The base URL of a provider that runs until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.provider"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        try:
            yield serving.stdout.readline().strip()
        finally:
            serving.terminate()


def arrivals(base_url: str) -> tuple[int, int]:
    """How many requests came so far, and of how many paths."""
    with urllib.request.urlopen(f"{base_url}/__count") as answer:
        counts = json.load(answer)
    return counts["requests"], counts["paths"]


async def main() -> None:
    looks: Counter[str] = Counter()
    server = await asyncio.get_running_loop().create_server(
        lambda: Served(looks), "127.0.0.1", 0, backlog=4096
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
