"""Field cases of retries: one layer sends again, and only what may and while there is time."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    KEYED,
    MINUTE,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    stage,
)
from tests.server.sending import certificate

from forbear.server.fake import ON_CONNECT, Answer, Drop, FakeProvider, retry_after

pytestmark = pytest.mark.anyio

READ = "GET /customers/c_1"
CUSTOMER: Data = {"method": "GET", "path": "/customers/{arg.id}", "timeout": "1s"}
NEVER = Answer(json={}, gate="never")


async def customer(on: Stage, **more: Any) -> Data:
    return await on.read("customer", arguments={"id": "c_1"}, **more)


async def sent_at(on: Stage, operation_id: str) -> list[int]:
    return [event.at for event in await on.events(operation_id) if event.code == "reserved"]


@pytest.mark.requirement("R08", "R05")
async def test_re_01_a_budget_of_three_is_three_requests_at_a_provider_that_never_answers(
    tmp_path: Path,
) -> None:
    classes = {"read": {"max_attempts": 3}, "idempotent_write": {"max_attempts": 3}}
    calls = {"customer": CUSTOMER, "transfer": TRANSFER | KEYED | {"timeout": "1s"}}
    async with stage(tmp_path, calls=calls, classes=classes) as on:
        for route in (READ, WRITE):
            on.script(*[NEVER] * 9, route=route)
        read = await on.end_of((await customer(on))["operation_id"])
        write = await on.end_of((await on.write())["operation_id"])
        await on.passes(60 * MINUTE)

        assert (read["state"], on.count(READ)) == ("failed", 3)
        assert (write["state"], on.count(WRITE)) == ("escalated", 3)
        for told in (read, write):
            assert told["budgets"]["attempts"] == {"used": 3, "max": 3}
            assert len(await sent_at(on, told["operation_id"])) == 3
        assert len({one.headers["idempotency-key"] for one in on.provider.arrivals[3:]}) == 1


# --- RE-05: certificates --------------------------------------------------------------------


def expired(folder: Path) -> ssl.SSLContext:
    """A server whose certificate, which the client trusts, was good until yesterday."""
    server, _ = certificate(folder, "IP:127.0.0.1")
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    again = ("-in", cert, "-signkey", key, "-days", "-1", "-out", cert)
    subprocess.run(["openssl", "x509", *again], check=True, capture_output=True)
    server.load_cert_chain(cert, key)
    return server


def foreign(folder: Path) -> ssl.SSLContext:
    return certificate(folder, "DNS:other.example")[0]


@pytest.mark.requirement("R16", "W14")
@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        pytest.param(expired, "certificate has expired", id="RE-05 expired"),
        pytest.param(foreign, "not valid for '127.0.0.1'", id="RE-05 another host"),
    ],
)
async def test_a_certificate_that_is_not_accepted_costs_no_attempt_and_the_write_is_dropped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Path], ssl.SSLContext],
    verdict: str,
) -> None:
    """The case wants one try; by behaviour.md, section 4, what was provably not sent is tried
    until the transport budget is used up, for a certificate may be renewed meanwhile.
    """
    tls = made(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with (
        FakeProvider(tls=tls) as secure,
        stage(
            tmp_path,
            states=None,
            base_url=secure.base_url,
            calls={"transfer": TRANSFER},
        ) as on,
    ):
        told = await on.write()
        assert (told["state"], "nothing was sent" in told["next_step"]) == ("delayed", True)
        ended = await on.end_of(told["operation_id"])
        tried = await on.app.store.read.attempts_of(told["operation_id"])

        assert (ended["state"], ended["wire"]["certainty"]) == ("discarded", "not_sent")
        assert ended["budgets"]["attempts"]["used"] == 0
        assert ended["budgets"]["transport_failures"] == {"used": 5, "max": 5}
        assert len(tried) == 5
        assert all(verdict in (one.note or "") for one in tried)
        await on.passes(60 * MINUTE)
        assert secure.arrivals == []


@pytest.mark.requirement("R16")
async def test_re_05_a_reset_in_the_handshake_sent_nothing_and_the_write_goes_out_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, _ = certificate(tmp_path, "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with FakeProvider() as later:
        base = later.base_url.replace("http:", "https:")
        async with stage(tmp_path, states=None, base_url=base, calls={"transfer": TRANSFER}) as on:
            later.script(ON_CONNECT, Drop("before", "rst"))
            told = await on.write()
            full = await on.full(told["operation_id"])
            assert (told["state"], full["wire"]["certainty"]) == ("delayed", "not_sent")
            await later.stop()
            later.tls = tls
            await later.start()
            ended = await on.end_of(told["operation_id"])

            assert ended["state"] == "succeeded"
            assert ended["budgets"]["attempts"]["used"] == 1
            assert later.count(WRITE) == len(later.effects) == 1


# --- RE-06: the end of the time -------------------------------------------------------------


@pytest.mark.requirement("R12")
async def test_re_06_a_wait_that_would_end_after_the_deadline_is_not_begun(tmp_path: Path) -> None:
    async with stage(tmp_path, calls={"customer": CUSTOMER}) as on:
        on.script(retry_after(3, 503), *[retry_after(8, 503)] * 9, route=READ)
        started = on.now
        told = await customer(on, deadline_seconds=10)
        ended = await on.due(told["operation_id"])

        assert (ended["state"], on.count(READ)) == ("failed", 2)
        assert 3_000 <= on.now - started <= 3_400
        await on.passes(MINUTE)
        assert on.count(READ) == 2


@pytest.mark.requirement("R12")
async def test_re_06_the_last_attempt_has_the_time_that_is_left_and_no_more(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls={"customer": CUSTOMER | {"timeout": "5s"}}) as on:
        on.script(retry_after(9, 503), *[NEVER] * 9, route=READ)
        job = (await customer(on, deadline_seconds=10))["operation_id"]
        ended = await on.end_of(job)

        assert (ended["state"], on.count(READ)) == ("failed", 2)
        last = (await on.app.store.read.attempts_of(job))[-1]
        left = (await on.operation(job)).deadline_at - last.reserved_at
        assert 0 < left < 1_000
        assert last.note == f"no complete response head within {left / 1000:g} s"
