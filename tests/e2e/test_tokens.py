"""OAuth 2.0 client credentials: tokens are fetched like everything else that leaves, and once."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from mcp import Client
from tests import stores
from tests.e2e.harness import (
    FOREVER,
    MINUTE,
    NO_RESULT,
    PATIENCE,
    STATUS,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    call,
    contract,
    furnished,
    process,
    stage,
    stdio,
    write_contract,
)
from tests.server.test_redaction import BASED, FORMS
from tests.support import ManualClock

from forbear.server.cli.reasons import reason_of
from forbear.server.fake import Answer, Drop, FakeProvider, Step, retry_after

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("C03")]

CLIENT, SECRET = "app 17", "cl13nt+s3cret/&="
FIRST, SECOND, THIRD = "t0ken/one+aaaa==", "t0ken/two+bbbb==", "t0ken/three+cc=="
TOKEN, READ = "POST /oauth/token", "GET /customers/"
CALLS: Data = {
    "customer": {"method": "GET", "path": "/customers/{arg.id}"},
    "transfer": TRANSFER,
}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXP_SECRET", SECRET)


def grant(token: str, **more: object) -> Answer:
    told = {"access_token": token, "token_type": "bearer", "expires_in": 3600, **more}
    return Answer(json=told)


def auth(issuer: FakeProvider, **more: str) -> Data:
    return {
        "scheme": "oauth2_client",
        "token_url": f"{issuer.base_url}/oauth/token",
        "client_id": CLIENT,
        "client_secret": "env:EXP_SECRET",
        **more,
    }


@asynccontextmanager
async def issued(
    home: Path, *steps: Step, states: tuple[str, ...] | None = None, **more: str
) -> AsyncIterator[tuple[Stage, FakeProvider]]:
    """A stage whose provider takes tokens of another host, which answers with `steps`."""
    async with FakeProvider() as issuer:
        issuer.script(TOKEN, *steps)
        async with stage(
            home, NO_RESULT, states=states, auth=auth(issuer, **more), calls=CALLS
        ) as on:
            on.provider.script(READ, *[Answer(json={"name": "Ann"})] * 20)
            yield on, issuer


async def asked(on: Stage, id: object = 1, wait_seconds: float = 0, **more: object) -> Data:
    passed: Data = {"provider": "exp", "call": "customer", "arguments": {"id": id}, **more}
    return await on.call("read_api", wait_seconds=wait_seconds, **passed)


async def read(on: Stage, id: object = 1) -> Data:
    """The record of a read once nothing is under way any more."""
    told = await asked(on, id)
    await on.settled()
    return await on.full(told["operation_id"])


def bearers(provider: FakeProvider) -> list[str | None]:
    return [one.headers.get("authorization") for one in provider.arrivals]


# --- lives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", ["1e-5", "0.4", '"0.1"', "0"])
async def test_a_token_that_is_over_at_once_is_not_fetched_again_and_again(
    tmp_path: Path, life: str
) -> None:
    told = f'{{"access_token": "{FIRST}", "token_type": "bearer", "expires_in": {life}}}'
    async with issued(tmp_path, *[Answer(body=told)] * 50) as (on, issuer):
        await read(on)
        assert issuer.count(TOKEN) == 1
        await on.passes(MINUTE)
        assert issuer.count(TOKEN) < 10


async def test_a_token_that_took_longer_than_it_lives_waits_like_a_failure(tmp_path: Path) -> None:
    late = Answer(json={"access_token": FIRST, "expires_in": 5}, gate="token")
    async with issued(tmp_path, late, grant(SECOND)) as (on, issuer):
        told = await asked(on)
        await issuer.arrived(TOKEN)
        on.clock.advance(6_000)
        issuer.release("token")
        await on.settled()
        held = await on.full(told["operation_id"])
        assert (held["state"], issuer.count(TOKEN)) == ("queued", 1)
        await on.passes(MINUTE)
        assert (issuer.count(TOKEN), bearers(on.provider)) == (2, [f"Bearer {SECOND}"])


# --- one request for all ----------------------------------------------------------------------


async def test_ten_operations_at_once_cause_one_token_request(tmp_path: Path) -> None:
    answer = Answer(json={"access_token": FIRST, "token_type": "Bearer"}, gate="token")
    async with issued(tmp_path, answer) as (on, issuer):
        for id in range(10):
            assert (await asked(on, id))["state"] == "queued"
        await issuer.arrived(TOKEN)
        assert on.provider.arrivals == []
        issuer.release("token")
        await on.passes(MINUTE)
        assert (issuer.count(TOKEN), on.count(READ)) == (1, 10)
        assert set(bearers(on.provider)) == {f"Bearer {FIRST}"}


async def test_the_client_shows_its_secret_as_the_standard_says(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST), scope="read write") as (on, issuer):
        told = await read(on)
        assert told["state"] == "succeeded"
        (arrival,) = issuer.arrivals
        kind, _, pair = str(arrival.headers["authorization"]).partition(" ")
        encoded = f"{quote_plus(CLIENT)}:{quote_plus(SECRET)}"
        assert (kind, base64.b64decode(pair).decode()) == ("Basic", encoded)
        assert arrival.body == b"grant_type=client_credentials&scope=read+write"
        assert arrival.headers["content-type"] == "application/x-www-form-urlencoded"
        assert "idempotency-key" not in arrival.headers


async def test_a_client_may_show_its_secret_in_the_body_where_the_contract_says(
    tmp_path: Path,
) -> None:
    async with issued(tmp_path, grant(FIRST), client_auth="post") as (on, issuer):
        await read(on)
        (arrival,) = issuer.arrivals
        assert "authorization" not in arrival.headers
        told = f"&client_id={quote_plus(CLIENT)}&client_secret={quote_plus(SECRET)}"
        assert arrival.body.decode() == f"grant_type=client_credentials{told}"
        assert bearers(on.provider) == [f"Bearer {FIRST}"]


async def test_a_client_may_show_its_id_beside_the_token_and_not_for_it(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST), client_id_header="X-Api-Key") as (on, issuer):
        await read(on)
        assert [one.headers["x-api-key"] for one in on.provider.arrivals] == [CLIENT]
        assert "x-api-key" not in issuer.arrivals[0].headers


@pytest.mark.parametrize(("life", "used"), [(3600, 3_539), (100, 89), ("100", 89), (0, 269)])
async def test_a_token_is_renewed_before_its_end_and_not_sooner(
    tmp_path: Path, life: object, used: int
) -> None:
    first = grant(FIRST, expires_in=life)
    async with issued(tmp_path, first, grant(SECOND)) as (on, issuer):
        await read(on, 1)
        await on.passes(used * 1_000)
        await read(on, 2)
        assert issuer.count(TOKEN) == 1
        await on.passes(1_000)
        await read(on, 3)
        assert issuer.count(TOKEN) == 2
        assert bearers(on.provider) == [f"Bearer {one}" for one in (FIRST, FIRST, SECOND)]


async def test_processes_fetch_their_tokens_one_after_the_other(tmp_path: Path) -> None:
    clock = ManualClock()
    async with FakeProvider() as issuer:
        issuer.script(TOKEN, grant(FIRST), grant(SECOND))
        issuer.script(TOKEN)
        top: Data = {"auth": auth(issuer), "calls": CALLS}
        async with (
            furnished(tmp_path, NO_RESULT, states=None, **top) as provider,
            process(provider, tmp_path, clock) as one,
            process(provider, tmp_path, clock) as other,
        ):
            provider.script(READ, *[Answer(json={})] * 9)
            await read(one, 1)
            await read(other, 2)
            await read(one, 3)
            assert issuer.count(TOKEN) <= 2
            assert set(bearers(provider)) <= {f"Bearer {FIRST}", f"Bearer {SECOND}"}
            assert issuer.most_open == 1


# --- refusals of the API ----------------------------------------------------------------------


async def test_after_a_401_one_new_token_is_tried(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST), grant(SECOND)) as (on, issuer):
        await read(on, 1)
        on.provider.script("GET /customers/2", Answer(401), Answer(json={"name": "Bob"}))
        told = await read(on, 2)
        assert told["state"] == "succeeded"
        assert issuer.count(TOKEN) == 2
        assert bearers(on.provider)[1:] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]


@pytest.mark.requirement("W23")
async def test_a_second_401_blocks_the_credential_under_one_question(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST), grant(SECOND)) as (on, issuer):
        on.provider.script("GET /customers/2", *[Answer(401)] * 9)
        told = await read(on, 2)
        assert told["escalation"]["reason"] == "authorization_denied"
        held = await read(on, 3)
        assert (held["state"], held["waiting_for"]) == ("queued", "credential")
        await on.passes(10 * MINUTE)
        assert (issuer.count(TOKEN), on.count(READ)) == (2, 2)


async def test_a_write_that_a_401_refused_is_sent_once_more_with_another_token(
    tmp_path: Path,
) -> None:
    async with issued(tmp_path, grant(FIRST), grant(SECOND)) as (on, _):
        on.provider.job("tr_1", ["done"], collection="/transfers")
        on.script(Answer(401), route=WRITE)
        told = await on.full((await on.write())["operation_id"])
        assert told["state"] == "succeeded"
        assert (on.count(WRITE), len(on.provider.effects)) == (2, 1)


async def test_a_job_under_way_goes_on_with_another_token(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST), grant(SECOND), states=FOREVER) as (on, issuer):
        job = await on.submit()
        on.script(Answer(401))
        full = await on.due(job)
        assert (full["state"], full["waiting_for"]) == ("waiting", "provider")
        assert (on.count(STATUS), issuer.count(TOKEN)) == (2, 2)


# --- failures of the endpoint -----------------------------------------------------------------

DEFINITE: dict[str, tuple[Answer, str]] = {
    "a wrong client": (Answer(400, {"error": "invalid_client"}), "400 invalid_client"),
    "a 401": (Answer(401, {"error": "invalid_client"}), "401 invalid_client"),
    "a scope": (Answer(400, {"error": "invalid_scope"}), "400 invalid_scope"),
    "another type": (grant(FIRST, token_type="mac"), "token_type other than Bearer"),
    "no token": (Answer(json={"token_type": "bearer"}), "without an access_token"),
    "no JSON": (Answer(body=b"<html>"), "without an access_token"),
    "a redirect": (Answer(302, headers=(("Location", "/x"),)), "correct token_url"),
}


@pytest.mark.requirement("W23")
@pytest.mark.parametrize(("answer", "why"), DEFINITE.values(), ids=DEFINITE)
async def test_a_refused_client_is_one_question_and_no_further_request(
    tmp_path: Path, answer: Answer, why: str
) -> None:
    async with issued(tmp_path, answer, grant(SECOND)) as (on, issuer):
        ids = [(await asked(on, id))["operation_id"] for id in range(3)]
        await on.settled()
        full = [await on.full(one) for one in ids]
        (stopped,) = [one for one in full if one["state"] == "escalated"]
        assert stopped["escalation"]["reason"] == "authorization_denied"
        case = await on.app.store.read.open_case(stopped["operation_id"])
        assert case is not None
        assert why in case.text
        waiting = [one for one in full if one["state"] == "queued"]
        assert [one["waiting_for"] for one in waiting] == ["credential"] * 2
        await on.passes(MINUTE)
        assert (len(issuer.arrivals), on.count(READ)) == (1, 0)
        op = await on.operation(waiting[0]["operation_id"])
        assert why in await reason_of(on.app.store, op, on.app.contracts)

        held = on.app.contracts.holding("exp", "customer")
        assert held is not None
        assert held.credential is not None
        named = ("exp", "default", held.credential, {"operator": "anna"})
        await on.app.store.write(lambda c: on.app.store.brakes.accept_credential(c, *named))
        await on.passes(MINUTE)
        assert (len(issuer.arrivals), on.count(READ)) == (2, 2)


async def test_a_client_whose_secret_changed_goes_on_by_itself(tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.write_text("old-secret")
    refused = Answer(400, {"error": "invalid_client"})
    client_secret = f"file:{vault}"
    async with issued(tmp_path, refused, grant(FIRST), client_secret=client_secret) as (on, issuer):
        first = await read(on, 1)
        second = await read(on, 2)
        assert (first["state"], second["waiting_for"]) == ("escalated", "credential")
        vault.write_text("new-secret")
        await on.passes(MINUTE)
        assert (await on.full(second["operation_id"]))["state"] == "succeeded"
        assert issuer.count(TOKEN) == 2


@pytest.mark.parametrize(
    "failure", [Answer(503), Answer(500, {"error": "x"}), Drop(), Answer(cut_body=0, body=b"x")]
)
async def test_a_failing_endpoint_is_asked_less_and_less_whoever_waits(
    tmp_path: Path, failure: Step
) -> None:
    async with issued(tmp_path, *[failure] * 100) as (on, issuer):
        ids = [(await asked(on, id))["operation_id"] for id in range(5)]
        await on.settled()
        full = await on.full(ids[0])
        assert (full["state"], full["waiting_for"]) == ("queued", "scope")
        assert full["delay_source"] == "local_backoff"
        assert "allows the next request" in full["next_step"]
        op = await on.operation(ids[0])
        told = await reason_of(on.app.store, op, on.app.contracts)
        assert f"no token for exp yet, from {issuer.host}:{issuer.port}: " in told
        await on.passes(6 * MINUTE)
        ended = [await on.full(one) for one in ids]
        assert {one["state"] for one in ended} == {"failed"}
        assert 5 <= issuer.count(TOKEN) <= 10
        assert on.provider.arrivals == []


async def test_an_endpoint_that_asks_for_patience_gets_it(tmp_path: Path) -> None:
    async with issued(tmp_path, retry_after(90), grant(FIRST)) as (on, issuer):
        told = await asked(on)
        await on.settled()
        full = await on.full(told["operation_id"])
        assert full["delay_source"] == "provider_retry_after"
        await on.passes(89_000)
        assert issuer.count(TOKEN) == 1
        await on.passes(20_000)
        assert (await on.full(told["operation_id"]))["state"] == "succeeded"
        assert (issuer.count(TOKEN), on.count(READ)) == (2, 1)


async def test_a_paused_provider_fetches_no_token(tmp_path: Path) -> None:
    async with issued(tmp_path, grant(FIRST)) as (on, issuer):
        by = {"operator": "anna"}
        await on.app.store.write(lambda c: on.app.store.brakes.pause(c, "exp", by))
        await asked(on)
        await on.passes(MINUTE)
        assert issuer.arrivals == []


async def test_a_deadline_falls_while_the_endpoint_is_silent(tmp_path: Path) -> None:
    async with issued(tmp_path, Answer(gate="never")) as (on, issuer):
        told = await asked(on, deadline_seconds=5)
        await issuer.arrived(TOKEN)
        on.clock.advance(5_001)
        on.app.store.wake()
        await on.becomes(told["operation_id"], "failed")
        issuer.release("never")
        await on.settled()
        assert on.provider.arrivals == []


# --- limits and places ------------------------------------------------------------------------


async def test_on_the_providers_own_host_a_token_request_counts_in_its_limits(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NO_RESULT, states=None) as on:
        limits = {"account": {"per": "account", "rate": "6/1m", "max_concurrent_requests": 1}}
        text = contract(
            NO_RESULT,
            base_url=on.provider.base_url,
            auth=auth(on.provider),
            calls=CALLS,
            scopes=limits,
        )
        write_contract(tmp_path, text)
        on.provider.script(READ, Answer(json={}))
        on.provider.script(TOKEN, grant(FIRST))
        told = await asked(on)
        await on.settled()
        assert (on.count(TOKEN), on.count(READ)) == (1, 0)
        assert (await on.full(told["operation_id"]))["waiting_for"] == "scope"
        await on.passes(12_000)
        assert on.count(READ) == 1


async def test_a_request_that_takes_no_credential_needs_no_token(tmp_path: Path) -> None:
    async with FakeProvider() as issuer:
        open_call = {"customer": CALLS["customer"] | {"auth": False}}
        top: Data = {"auth": auth(issuer), "calls": open_call}
        async with stage(tmp_path, NO_RESULT, states=None, **top) as on:
            on.provider.script(READ, Answer(json={}))
            assert (await read(on))["state"] == "succeeded"
            assert (issuer.arrivals, bearers(on.provider)) == ([], [None])


async def test_the_story_tells_of_the_token_and_of_its_failure(tmp_path: Path) -> None:
    async with issued(tmp_path, Answer(503), grant(FIRST)) as (on, _):
        told = await asked(on)
        await on.passes(MINUTE)
        full = await on.full(told["operation_id"], timeline=True)
        story = "\n".join(full["timeline"])
        assert story.count("for a token") == 2
        assert "no token: 503" in story
        assert "got a token" in story
        assert token_requests(tmp_path) == [("answered", 503), ("answered", 200)]


def token_requests(home: Path) -> list[tuple[Any, ...]]:
    """What came of each, in their order."""
    query = "SELECT outcome, status FROM token_requests ORDER BY reserved_at"
    return [tuple(row.values()) for row in stores.rows(home, query)]


# --- crashes and secrecy ----------------------------------------------------------------------


def kill_server(home: Path) -> None:
    (row,) = stores.rows(home, "SELECT pid FROM processes")
    os.kill(row["pid"], signal.SIGKILL)


async def rests(client: Client, operation_id: str) -> Data:
    async with asyncio.timeout(3 * PATIENCE):
        while True:
            passed: Data = {"operation_id": operation_id, "wait_seconds": 10}
            answer = await call(client, "check_status", **passed)
            if answer["state"] not in ("queued", "sending", "delayed"):
                return answer


NEEDLES = {
    form(word).encode()
    for word in (SECRET, quote_plus(SECRET), FIRST, SECOND, THIRD)
    for form in FORMS.values()
} | {base64.b64encode(f"{quote_plus(CLIENT)}:{quote_plus(SECRET)}".encode())}


@pytest.mark.requirement("A08", "C01")
async def test_a_crash_while_a_token_is_fetched_is_on_record_and_nothing_tells_a_secret(
    tmp_path: Path,
) -> None:
    def reflected(*words: str) -> str:
        return " ".join(form(one) for one in words for form in (*FORMS.values(), *BASED.values()))

    read_: Data = {"provider": "exp", "call": "customer", "arguments": {"id": 1}}
    environment = {"EXP_SECRET": SECRET, "FORBEAR_LOG": "debug"}
    said: list[str] = []
    async with FakeProvider() as issuer:
        top: Data = {"auth": auth(issuer), "calls": CALLS}
        async with furnished(tmp_path, NO_RESULT, states=None, **top) as provider:
            issuer.script(TOKEN, Answer(json={}, gate="never"))
            async with stdio(tmp_path, **environment) as client:
                told = await call(client, "read_api", **read_, wait_seconds=0)
                await asyncio.wait_for(issuer.arrived(TOKEN), PATIENCE)
                kill_server(tmp_path)
            denied = Answer(400, {"error": f"{SECRET}", "error_description": reflected(SECRET)})
            issuer.script(
                TOKEN, Answer(503, {"error": reflected(SECRET, FIRST)}), grant(FIRST), grant(SECOND)
            )
            provider.script(
                READ,
                Answer(401, {"error": reflected(SECRET, FIRST)}),
                Answer(
                    400, {"error": {"code": FIRST, "message": reflected(SECRET, FIRST, SECOND)}}
                ),
            )
            async with stdio(tmp_path, **environment) as client:
                answer = await rests(client, told["operation_id"])
                assert answer["state"] == "failed"
                passed: Data = {"operation_id": told["operation_id"], "timeline": True}
                said += [repr(answer), repr(await call(client, "operation_status", **passed))]
            assert issuer.count(TOKEN) == 4
            issuer.script(TOKEN, denied)
            async with stdio(tmp_path, **environment) as client:
                again = read_ | {"arguments": {"id": 2}}
                said.append(repr(await call(client, "read_api", **again, wait_seconds=20)))
                said.append(repr(await call(client, "operation_status")))
            assert "no token: its process is gone" in "".join(said)
            assert bearers(provider) == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
    assert token_requests(tmp_path) == [
        ("unknown", None),
        ("answered", 503),
        ("answered", 200),
        ("answered", 200),
        ("answered", 400),
    ]
    places = [text.encode() for text in said]
    places += [path.read_bytes() for path in files_of(tmp_path)]
    assert not [needle for needle in NEEDLES for place in places if needle in place]


def files_of(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]
