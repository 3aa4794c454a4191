"""A secret and a provider that writes it back wherever it can: it is found nowhere afterwards."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from mcp import Client
from tests.e2e.harness import (
    EXPORT,
    QUICK,
    SUBMIT,
    TRANSFER,
    WRITE,
    Data,
    call,
    forbear,
    furnished,
    stdio,
)
from tests.server.test_redaction import BASED, FORMS

from forbear.server.app import running
from forbear.server.clock import SystemClock
from forbear.server.config import Settings
from forbear.server.console.sessions import Sessions
from forbear.server.console.site import build
from forbear.server.fake import Answer, FakeProvider, Raw

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A08")]

SECRET = 'cAn4ry/+"&<%tOk3n='
REFLECTED = " ".join(form(SECRET) for form in (*FORMS.values(), *BASED.values()))
NEEDLES = {
    *(form(SECRET).encode() for form in FORMS.values()),
    *(base64.b64encode(bytes(n) + SECRET.encode())[4:-4] for n in range(3)),
    *(base64.b64encode(f"svc:{SECRET}".encode()), b"cAn4ry", b"tOk3n", b"63416e347279"),
}

KINDS = {
    "bearer": "bearer env:EXP_TOKEN",
    "basic": "basic env:EXP_USER env:EXP_TOKEN",
    "header": "header X-Api-Key env:EXP_TOKEN",
    "query": "query key env:EXP_TOKEN",
}
PATIENCE = 60.0
"""Real seconds: many processes start and end here."""
ORIGIN = "http://127.0.0.1:8377"
JOB = EXPORT | {"usual": "2s", "deadline": "5m", "backoff": QUICK}
CALLS: Data = {
    "customer": {"method": "GET", "path": "/customers/1", "require": {"/name": "non_empty"}},
    "transfer": TRANSFER | {"approval": "per_call"},
}
STATUSES = "GET /exports/"


def hostile(
    status: int, body: Data | str, *, length: int | None = None, start: str = "HTTP/1.1"
) -> Raw:
    """An answer whose every part has the secret in every form."""
    mime = "text/plain" if isinstance(body, str) else "application/json"
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    head = [
        f"{start} {status} {REFLECTED}",
        f"Location: /elsewhere?key={quote(SECRET, safe='')}",
        f"X-Request-Id: {REFLECTED}",
        f"Retry-After: {SECRET}",
        f"WWW-Authenticate: Bearer error={REFLECTED}",
        f"Set-Cookie: session={REFLECTED}",
        f"Content-Type: {mime}; note={base64.b64encode(SECRET.encode()).decode()}",
        f"Content-Length: {len(data) if length is None else length}",
        "Connection: close",
    ]
    return Raw("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + data)


def error(status: int) -> Raw:
    return hostile(status, {"error": {"code": SECRET, "message": REFLECTED}})


def job_says(dataset: str, state: str, **more: Any) -> Raw:
    return hostile(200, {"id": f"{dataset}-{SECRET}", "state": state, "note": REFLECTED, **more})


class Scene:
    """Agents, people and a webhook of one home, and everything that they were told."""

    def __init__(self, home: Path, provider: FakeProvider, hook: FakeProvider) -> None:
        self.home, self.provider, self.hook = home, provider, hook
        self.said: list[str] = []
        self.environment = {
            "EXP_USER": "svc",
            "EXP_TOKEN": SECRET,
            "FORBEAR_LOG": "debug",
            "FORBEAR_OPERATOR_TOKEN": "a-token-of-the-operator",
            "FORBEAR_NOTIFY_WEBHOOK": f"{hook.base_url}/hook",
            "FORBEAR_NOTIFY_SECRET": "a key of signatures that is long enough",
        }

    async def tell(self, client: Client, tool: str, **arguments: Any) -> Data:
        told = await call(client, tool, **arguments)
        self.said.append(json.dumps(told, ensure_ascii=False))
        return told

    async def submit(self, client: Client, dataset: str) -> str:
        self.provider.script(SUBMIT, hostile(202, {"id": f"{dataset}-{SECRET}", "state": "queued"}))
        passed: Data = {"provider": "exp", "job": "export", "arguments": {"dataset": dataset}}
        answer = await self.tell(client, "submit_job", **passed)
        operation_id: str = answer["operation_id"]
        return operation_id

    async def rests(self, client: Client, operation_id: str) -> Data:
        """The full record at the end, or where a person is asked."""
        async with asyncio.timeout(PATIENCE):
            while True:
                passed: Data = {"operation_id": operation_id, "wait_seconds": 10}
                answer = await self.tell(client, "check_status", **passed)
                if answer["state"] not in ("queued", "sending", "waiting", "delayed"):
                    passed = {"operation_id": operation_id, "timeline": True}
                    return await self.tell(client, "operation_status", **passed)

    async def person(self, *words: str) -> str:
        _, out = await forbear(self.home, *words, **self.environment)
        self.said.append(out)
        return out

    async def pages(self, operations: list[str]) -> None:
        """Look at every page of the console in each of its forms."""
        settings = Settings.load({"FORBEAR_HOME": str(self.home)})
        clock = SystemClock()
        async with running(settings, role="console", worker=False, clock=clock) as app:
            site = build(app, port=8377, url=ORIGIN)
            link = Sessions(self.home, app.store.key, clock, app.random).new_link()
            cases = [f"/escalations/{case.id}" for case in await app.store.read.open_cases()]
            transport = httpx.ASGITransport(app=site)
            headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
            async with httpx.AsyncClient(
                transport=transport, base_url=ORIGIN, headers=headers
            ) as browser:
                assert (await browser.post(f"/sign-in/{link}")).status_code == 303
                for path in (
                    *("/", "/inbox", "/operations", "/audit", "/metrics", "/healthz"),
                    *(f"/operations/{one}" for one in operations),
                    *cases,
                ):
                    for form in ("", ".txt", ".json"):
                        page = await browser.get(path.rstrip("/") + form or "/")
                        assert page.status_code in (200, 404), path
                        self.said.append(page.text)
            assert cases

    def places(self) -> Iterator[tuple[str, bytes]]:
        """Everything that was written or said, with a name."""
        for number, text in enumerate(self.said):
            yield f"said {number}", text.encode()
        for arrival in self.hook.arrivals:
            yield "webhook", arrival.body + repr(arrival.headers).encode()
        for path in self.home.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


def kill_server(home: Path) -> None:
    """End the one `serve` process of a home as a crash would."""
    with closing(sqlite3.connect(home / "forbear.db")) as store:
        ((pid,),) = store.execute("SELECT pid FROM processes").fetchall()
    os.kill(pid, signal.SIGKILL)


async def first_process(on: Scene, client: Client) -> list[str]:
    """Failures of every kind, a write that a person approves, and a request cut off by a crash."""
    provider = on.provider
    read: Data = {"provider": "exp", "call": "customer", "arguments": {}}
    provider.script("GET /customers/1", error(400))
    refused = await on.tell(client, "read_api", **read, wait_seconds=20)
    assert refused["failure"]["message"].startswith("[redacted]"), refused
    cut = hostile(200, {"name": REFLECTED}, length=100_000)
    provider.script("GET /customers/1", cut, hostile(200, {"name": REFLECTED}))
    again = await on.tell(client, "read_api", **read)
    assert (await on.rests(client, again["operation_id"]))["state"] == "succeeded"

    job = await on.submit(client, "strange")
    provider.script(STATUSES, error(503), error(429), job_says("strange", f"resting {SECRET}"))
    stopped = await on.rests(client, job)
    assert stopped["provider_job"] == stopped["provider_job"] | {
        "id": "strange-[redacted]",
        "state": "resting [redacted]",
    }
    await on.person("decide", stopped["escalation"]["id"], "abandon", "--yes", "--comment", "no")

    passed: Data = {"provider": "exp", "call": "transfer", "arguments": {"amount": 5}}
    asked = await on.tell(client, "write_api", **passed)
    provider.script(WRITE, hostile(200, {"id": SECRET}, start=f"HTTP/1.1{SECRET}"))
    await on.person("decide", asked["escalation"]["id"], "approve", "--yes")
    unclear = await on.rests(client, asked["operation_id"])
    assert unclear["escalation"]["reason"] == "unclear_write"

    moved = await on.submit(client, "moved")
    provider.script(STATUSES, hostile(302, REFLECTED))
    assert (await on.rests(client, moved))["state"] == "escalated"

    crashed = await on.submit(client, "crashed")
    before = provider.count(STATUSES)
    provider.script(STATUSES, Answer(200, {"note": REFLECTED}, gate="never"))
    await asyncio.wait_for(provider.arrived(STATUSES, before + 1), PATIENCE)
    return [refused["operation_id"], job, unclear["operation_id"], moved, crashed]


async def second_process(on: Scene, client: Client, crashed: str) -> list[str]:
    """The crashed job to its result, which is a file, and a credential that is refused."""
    signed = f"{on.provider.base_url}/files/1?key={quote(SECRET, safe='')}&part=1"
    on.provider.script(STATUSES, job_says("crashed", "done", result={"url": signed}))
    assert (await on.rests(client, crashed))["state"] == "succeeded"
    on.provider.script("GET /files/1", hostile(200, REFLECTED * 60))
    passed: Data = {"operation_id": crashed, "wait_seconds": 20}
    fetched = await on.tell(client, "fetch_result", **passed)
    assert (fetched["state"], fetched["result"]["truncated"]) == ("succeeded", True)
    await on.tell(client, "fetch_result", operation_id=crashed, offset=100)

    denied = await on.submit(client, "denied")
    on.provider.script(STATUSES, error(401))
    reason = (await on.rests(client, denied))["escalation"]["reason"]
    assert reason == "authorization_denied"
    await asyncio.wait_for(on.hook.arrived("POST /hook"), PATIENCE)
    return [fetched["operation_id"], denied]


@pytest.mark.sqlite  # it reads the files of the store
@pytest.mark.parametrize("kind", KINDS)
async def test_a_reflected_secret_is_found_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with (
        furnished(tmp_path, JOB, states=None, auth=KINDS[kind], calls=CALLS) as provider,
        FakeProvider() as hook,
    ):
        on = Scene(tmp_path, provider, hook)
        hook.script("POST /hook", *[Answer(204)] * 20)
        async with stdio(tmp_path, **on.environment) as client:
            operations = await first_process(on, client)
            kill_server(tmp_path)
        crashed = list(on.places())
        assert any(name.endswith("-wal") for name, _ in crashed)
        async with stdio(tmp_path, **on.environment) as client:
            operations += await second_process(on, client, operations[-1])

        raw = ("--raw", "--reason", "a canary")
        for name in operations if kind == "bearer" else operations[-2:]:
            await on.person("show", name, *raw)
        await on.person("show", operations[0], *raw, "--json")
        for words in (["why", operations[-1]], ["ls"], ["inbox"], ["doctor"]):
            await on.person(*words)
        for name, value in on.environment.items():
            monkeypatch.setenv(name, value)
        await on.pages(operations)

        pair = base64.b64encode(f"svc:{SECRET}".encode()).decode()
        wire = pair if kind == "basic" else SECRET
        sent = [(*one.headers.values(), *one.query.values()) for one in provider.arrivals]
        assert sum(any(wire in value for value in each) for each in sent) >= 12
        assert sum("[redacted]" in text for text in on.said) > 20
        found = {
            (place, needle)
            for place, data in (*crashed, *on.places())
            for needle in NEEDLES
            if needle in data
        }
        assert not found
