"""Requests that are cut, slow, too long, or of nobody that is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.e2e.harness import PATIENCE

from forbear.server.config import Settings
from forbear.server.http.gate import MOST_BODY, Whole
from forbear.server.http.serving import serve_http

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M06")]

TOKEN = "a-token-of-alice-that-is-long-enough"
KNOWN = f"Authorization: Bearer {TOKEN}"


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[int]:
    """The port of MCP over HTTP, which alice may use."""
    (home / "token").write_text(TOKEN)
    (home / "token").chmod(0o600)
    (home / "config.toml").write_text(
        f'[[http.tokens]]\nprincipal = "alice"\ntoken = "file:{home}/token"\n'
    )
    stopped = asyncio.Event()
    at: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = Settings.load({"FORBEAR_HOME": str(home)})
    serving = asyncio.create_task(
        serve_http(settings, "127.0.0.1:0", worker=False, stopped=stopped, ready=at.set_result)
    )
    try:
        port = urlsplit(await at).port
        assert port is not None
        yield port
    finally:
        stopped.set()
        await serving


@asynccontextmanager
async def begun(
    port: int, *fields: str, length: int, path: str = "/mcp", body: bytes = b"{ "
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with the head of a request and the first bytes of its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {length}")
    writer.write("\r\n".join((*head, *fields, "", "")).encode() + body)
    await writer.drain()
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_who_is_not_known_is_answered_before_the_body_came(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        for path, status in (("/mcp", b"401"), ("/sign-out", b"403")):
            async with begun(port, length=MOST_BODY, path=path) as (reader, _):
                async with asyncio.timeout(PATIENCE):
                    assert (await reader.readline()).split()[1] == status


async def test_a_body_that_is_too_long_is_not_awaited_to_its_end(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        much = b" " * (MOST_BODY + 1)
        async with begun(port, KNOWN, length=3 * MOST_BODY, body=much) as (reader, _):
            assert (await reader.readline()).split()[1] == b"413"


async def test_a_client_that_leaves_in_the_middle_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with served(tmp_path) as port:
            for fields in ((KNOWN,), (KNOWN, "MCP-Protocol-Version: 2026-07-28")):
                async with begun(port, *fields, length=90) as (reader, writer):
                    writer.write_eof()
                    await reader.read()

    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_a_request_that_never_ends_is_given_up() -> None:
    told: list[Message] = []

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it must not be met")

    async def drip() -> Message:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        told.append(message)

    await Whole(never, MOST_BODY, within=0.05)({"type": "http", "method": "POST"}, drip, send)

    assert told[0]["status"] == 408
