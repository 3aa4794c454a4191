"""MCP over HTTP: real processes, real sockets, real clients of both eras."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, TextResourceContents
from tests import stores
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    NO_RESULT,
    PATIENCE,
    QUICK,
    SUBMIT,
    TRANSFER,
    Data,
    call,
    error,
    forbear,
    furnished,
    stdio,
)
from tests.e2e.over_http import (
    LEGACY,
    MODERN,
    Served,
    configure,
    free_port,
    rpc,
    rpc_headers,
    served,
)
from tests.e2e.test_stdio import pid_of

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio


def left_behind(home: Path) -> list[Path]:
    """What lies in `run/`. Where hosts share a store, files of processes stay there as proof."""
    return [] if stores.on_server() else list((home / "run").iterdir())


FAST: Data = EXPORT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}
SLOW: Data = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}

ALICE, BOB = "alice-" + "a" * 32, "bob-" + "b" * 32
TOKENS = """\
[[http.tokens]]
principal = "alice"
token = "env:ALICE"

[[http.tokens]]
principal = "bob"
token = "env:BOB"
"""
KNOWN = {"ALICE": ALICE, "BOB": BOB}


@pytest.fixture(params=[LEGACY, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def submit(client: Client, dataset: str = "sales", **more: Any) -> Data:
    return await call(
        client, "submit_job", provider="exp", job="export", arguments={"dataset": dataset}, **more
    )


async def ended(client: Client, operation_id: str) -> Data:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await call(client, "check_status", operation_id=operation_id, wait_seconds=10)
            if answer.get("state") not in ("queued", "sending", "waiting", "delayed"):
                return answer


# --- the tools ----------------------------------------------------------------------------------


@pytest.mark.requirement("M01", "M06")
async def test_a_job_from_the_listing_to_its_large_result(era: str, tmp_path: Path) -> None:
    rows = [{"row": number, "name": f"name-{number}"} for number in range(1_000)]
    async with furnished(tmp_path, FAST, states=None) as provider:
        provider.job("exp_1", ["queued", "done"], result={"rows": rows})
        async with served(tmp_path) as server, server.client(era) as client:
            listed = await call(client, "list_actions")
            assert [action["name"] for action in listed["actions"]] == ["export"]
            asked = await submit(client)
            assert "watched_until_client_closes" not in asked
            job = asked["operation_id"]
            assert (await ended(client, job))["may_proceed"]
            fetched = await call(client, "fetch_result", operation_id=job)
            kept = fetched["result"]
            assert "file" not in kept
            assert str(tmp_path) not in json.dumps(fetched)
            address = f"forbear://artifacts/{fetched['operation_id']}"
            assert kept["resource"] == address
            assert "result.resource" in fetched["next_step"]
            (read,) = (await client.read_resource(address)).contents
            assert isinstance(read, TextResourceContents)
            assert read.mime_type == "application/json"
            assert json.loads(read.text) == {"rows": rows}
            part = await call(
                client, "fetch_result", operation_id=fetched["operation_id"], offset=100
            )
            assert part["result"]["inline"] == read.text[100 : 100 + len(part["result"]["inline"])]
            assert await server.stop() == 0
        assert provider.count(SUBMIT) == 1


async def test_a_result_that_is_no_text_is_read_as_it_is(tmp_path: Path) -> None:
    image = bytes(range(256)) * 100
    async with furnished(tmp_path, FAST, states=("done",)) as provider:
        picture = Answer(200, body=image, headers=(("Content-Type", "image/png"),))
        provider.script("GET /files/exp_1", picture)
        async with served(tmp_path) as server, server.client(MODERN) as client:
            job = (await submit(client))["operation_id"]
            await ended(client, job)
            fetched = await call(client, "fetch_result", operation_id=job)
            (read,) = (await client.read_resource(fetched["result"]["resource"])).contents
            assert isinstance(read, BlobResourceContents)
            assert read.mime_type == "image/png"
            assert len(read.blob) == -(-len(image) // 3) * 4


async def test_a_person_is_asked_at_the_console_of_the_same_port(era: str, tmp_path: Path) -> None:
    async with (
        furnished(tmp_path, SLOW, states=("queued", "odd")),
        served(tmp_path) as server,
        server.client(era) as client,
    ):
        stuck = await ended(client, (await submit(client))["operation_id"])
        case = stuck["escalation"]
        assert case["reason"] == "unknown_state"
        assert case["decide_at"] == f"{server.url}/escalations/{case['id']}"
        async with server.web() as web:
            page = await web.get(case["decide_at"])
            assert page.status_code == 401
            assert (await web.get("/healthz")).text == "ok\n"


@pytest.mark.requirement("M03")
async def test_no_call_waits_longer_than_is_configured(era: str, tmp_path: Path) -> None:
    async with furnished(tmp_path, SLOW, states=FOREVER):
        configure(tmp_path, "[http]\nwait_seconds = 1\n")
        async with served(tmp_path) as server, server.client(era) as client:
            job = (await submit(client, wait_seconds=0))["operation_id"]
            async with asyncio.timeout(PATIENCE):  # far less than the 50 seconds asked for
                for _ in range(2):
                    told = await call(client, "check_status", operation_id=job, wait_seconds=50)
                    assert told["state"] in ("queued", "sending", "waiting")


# --- clients and servers that go ----------------------------------------------------------------


@pytest.mark.requirement("D06", "M03")
async def test_a_client_that_gives_up_in_the_middle_of_a_call_loses_nothing(
    era: str, tmp_path: Path
) -> None:
    async with furnished(tmp_path, SLOW, states=("queued", "done")) as provider:
        provider.script(
            SUBMIT, Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow", effect=True)
        )
        async with served(tmp_path) as server:
            async with server.client(era) as client:
                asking = asyncio.create_task(submit(client))
                await provider.arrived(SUBMIT)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                (known,) = (await call(client, "operation_status"))["operations"]
                assert known["state"] == "sending"
            provider.release("slow")
            async with server.client(era) as later:
                end = await ended(later, known["operation_id"])
                assert end["state"] == "succeeded"
        assert provider.count(SUBMIT) == len(provider.effects) == 1


@pytest.mark.requirement("D06", "M03")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_stopped_answers_its_calls_and_stores_what_was_under_way(
    era: str, tmp_path: Path, how: signal.Signals
) -> None:
    async with furnished(tmp_path, SLOW, states=("queued", "done")) as provider:
        provider.script(
            SUBMIT, Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow", effect=True)
        )
        port = free_port()
        async with (
            served(tmp_path, place=f"127.0.0.1:{port}") as server,
            server.client(era) as client,
        ):
            asking = asyncio.create_task(submit(client))
            await provider.arrived(SUBMIT)
            stopping = asyncio.create_task(server.stop(how))
            answer = await asking
            assert answer["state"] == "sending"
            provider.release("slow")
            assert await stopping == 0
        assert left_behind(tmp_path) == []
        async with (
            served(tmp_path, "--no-worker", place=f"127.0.0.1:{port}") as again,
            again.client(era) as client,
        ):
            found = await call(client, "operation_status", operation_id=answer["operation_id"])
            assert found["state"] in ("waiting", "succeeded")
            assert found["provider_job"]["id"] == "exp_1"
        async with served(tmp_path) as last, last.client(era) as client:
            assert (await ended(client, answer["operation_id"]))["state"] == "succeeded"
        assert provider.count(SUBMIT) == 1
    told = (tmp_path / "stderr").read_text()
    assert "Traceback" not in told
    assert "ERROR" not in told


async def test_streams_that_stay_open_do_not_hold_up_the_end(tmp_path: Path) -> None:
    async with furnished(tmp_path, SLOW, states=FOREVER):
        async with (
            served(tmp_path) as server,
            server.client(LEGACY) as old,
        ):
            job = (await submit(old, wait_seconds=0))["operation_id"]
            body = rpc(
                "subscriptions/listen",
                notifications={"resourceSubscriptions": [f"forbear://operations/{job}"]},
            )
            async with server.web() as web:
                headers = rpc_headers("subscriptions/listen")
                async with web.stream("POST", "/mcp", json=body, headers=headers) as stream:
                    await anext(stream.aiter_lines())
                    assert await server.stop() == 0
        assert left_behind(tmp_path) == []


async def test_what_one_process_began_another_of_the_home_goes_on_with(tmp_path: Path) -> None:
    """A client that was shown a page comes back with state that any process of the home takes."""
    asking = rpc_headers("tools/call", "check_status")
    async with (
        furnished(tmp_path, SLOW, states=("queued", "odd")),
        served(tmp_path) as one,
        served(tmp_path, "--no-worker") as other,
    ):
        async with one.client(MODERN) as client:
            job = (await submit(client))["operation_id"]
            await ended(client, job)
        passed = {"name": "check_status", "arguments": {"operation_id": job}}
        async with one.web() as web:
            first = await web.post("/mcp", json=rpc("tools/call", **passed), headers=asking)
        told = first.json()["result"]
        assert told["resultType"] == "input_required"
        (case,) = told["inputRequests"]
        again = rpc(
            "tools/call",
            **passed,
            inputResponses={case: {"action": "accept"}},
            requestState=told["requestState"],
        )
        async with other.web() as web:
            second = await web.post("/mcp", json=again, headers=asking)
        result = second.json()["result"]
        assert result["structuredContent"]["state"] == "escalated"


@pytest.mark.requirement("D06")
@pytest.mark.parametrize("how", ["SIGTERM", "end of input"])
async def test_over_stdio_too_what_was_under_way_is_stored_at_the_end(
    tmp_path: Path, how: str
) -> None:
    async with furnished(tmp_path, SLOW, states=FOREVER) as provider:
        provider.script(
            SUBMIT, Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow", effect=True)
        )
        async with stdio(tmp_path) as client:
            asking = asyncio.create_task(submit(client))
            await provider.arrived(SUBMIT)
            if how == "SIGTERM":
                os.kill(await pid_of(tmp_path), signal.SIGTERM)
            asyncio.get_running_loop().call_later(0.3, provider.release, "slow")
        await asyncio.gather(asking, return_exceptions=True)
        assert left_behind(tmp_path) == []
        async with served(tmp_path, "--no-worker") as server, server.client(MODERN) as later:
            (found,) = (await call(later, "operation_status"))["operations"]
            assert found["provider_job"]["id"] == "exp_1"


# --- whose it is --------------------------------------------------------------------------------


@pytest.mark.requirement("M06")
async def test_a_principal_sees_joins_awaits_and_ends_nothing_of_another(
    era: str, tmp_path: Path
) -> None:
    async with furnished(tmp_path, FAST, states=None) as provider:
        configure(tmp_path, TOKENS)
        provider.job("exp_1", ["queued", "done"], result={"rows": [{"n": n} for n in range(5000)]})
        provider.job("exp_2", list(FOREVER))
        provider.job("exp_3", list(FOREVER))
        async with (
            served(tmp_path, **KNOWN) as server,
            server.client(era, ALICE) as alice,
            server.client(era, BOB) as bob,
        ):
            done = (await submit(alice, "done", task="month"))["operation_id"]
            await ended(alice, done)
            fetched = await call(alice, "fetch_result", operation_id=done)
            runs = (
                await submit(alice, "runs", task="month", idempotency_key="k", wait_seconds=10)
            )["operation_id"]
            hers = {done, fetched["operation_id"], runs}

            never = "op_" + "a" * 16
            for tool, more in (
                ("check_status", {}),
                ("operation_status", {}),
                ("fetch_result", {}),
                ("cancel_job", {"reason": "no"}),
                ("reconcile_write", {}),
                ("request_decision", {"option": "extend", "reason": "no"}),
                ("end_task", {}),
            ):
                unknown = json.dumps(await call(bob, tool, operation_id=never, **more))
                for operation in hers:
                    told = await call(bob, tool, operation_id=operation, **more)
                    assert error(told)["code"] == "unknown_operation", tool
                    assert json.dumps(told) == unknown.replace(never, operation), tool
            needs = await submit(bob, "needs", depends_on=[done])
            assert error(needs)["code"] == "unknown_operation"

            for uri in (
                "forbear://operations/{}",
                "forbear://operations/{}/story",
                "forbear://artifacts/{}",
            ):
                for operation in (*hers, never):
                    with pytest.raises(MCPError) as missing:
                        await bob.read_resource(uri.format(operation))
                    assert missing.value.code == -32602
            (read,) = (await alice.read_resource(fetched["result"]["resource"])).contents
            assert isinstance(read, TextResourceContents)

            own = await submit(bob, "other", task="month", idempotency_key="k")
            assert "joined" not in own
            same = error(await submit(bob, "runs"))
            assert same["code"] == "possible_duplicate"
            assert "operation_id" not in same
            assert runs not in json.dumps(same)
            page = await call(bob, "operation_status", limit=1)
            assert [one["operation_id"] for one in page["operations"]] == [own["operation_id"]]
            hers_page = await call(alice, "operation_status", limit=1)
            beyond = await call(bob, "operation_status", cursor=hers_page["next_cursor"])
            assert not hers & {one["operation_id"] for one in beyond["operations"]}
            mine = (await call(bob, "operation_status", task="month"))["operations"]
            assert [one["operation_id"] for one in mine] == [own["operation_id"]]

            await call(bob, "end_task", task="month")
            still = await call(alice, "check_status", operation_id=runs, wait_seconds=0)
            assert still["state"] == "waiting"
            found = await call(alice, "operation_status")
            assert {one["operation_id"] for one in found["operations"]} == hers


@pytest.mark.requirement("M06")
async def test_a_session_answers_to_nobody_but_the_principal_that_began_it(tmp_path: Path) -> None:
    async with furnished(tmp_path, SLOW):
        configure(tmp_path, TOKENS)
        async with served(tmp_path, **KNOWN) as server:
            begin = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "by hand", "version": "1"},
                },
            }
            accept = {"Accept": "application/json, text/event-stream"}
            async with server.web(ALICE) as alice, server.web(BOB) as bob:
                begun = await alice.post("/mcp", json=begin, headers=accept)
                session = {**accept, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
                listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                assert (await bob.post("/mcp", json=listing, headers=session)).status_code == 404
                assert (await bob.delete("/mcp", headers=session)).status_code == 404
                hers = await alice.post("/mcp", json=listing, headers=session)
                assert hers.status_code == 200


@pytest.mark.requirement("M06")
async def test_the_approval_of_a_session_is_of_that_session_alone(tmp_path: Path) -> None:
    """Also of two sessions of one principal. Without sessions it is of one request."""
    token = {"FORBEAR_OPERATOR_TOKEN": "a-token-of-the-operator"}
    transfer: Data = TRANSFER | {"approval": "session"}

    async def write(client: Client, amount: int) -> Data:
        arguments = {"amount": amount}
        return await call(client, "write_api", provider="exp", call="transfer", arguments=arguments)

    async with (
        furnished(tmp_path, SLOW, states=None, calls={"transfer": transfer}) as provider,
        served(tmp_path, **token) as server,
        server.client(LEGACY) as one,
        server.client(LEGACY) as other,
        server.client(MODERN) as modern,
    ):
        for number in range(4):
            provider.job(f"tr_{number}", ["done"], collection="/transfers")
        asked = await write(one, 1)
        assert asked.get("waiting_for") == "approval", asked
        case = asked["escalation"]["id"]
        code, said = await forbear(tmp_path, "decide", case, "approve", "--yes", **token)
        assert code == 0, said
        assert (await ended(one, asked["operation_id"]))["state"] == "succeeded"
        assert (await write(one, 2))["state"] == "succeeded"
        assert (await write(other, 3))["waiting_for"] == "approval"
        for amount in (4, 5):
            asked = await write(modern, amount)
            assert asked["waiting_for"] == "approval"
            case = asked["escalation"]["id"]
            code, said = await forbear(tmp_path, "decide", case, "approve", "--yes", **token)
            assert code == 0, said
            assert (await ended(modern, asked["operation_id"]))["state"] == "succeeded"


# --- who is let in ------------------------------------------------------------------------------


@pytest.mark.requirement("M06")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (None, None),
        ("Bearer", "invalid_token"),
        ("Bearer " + "x" * 32, "invalid_token"),
        (f"Bearer {ALICE}x", "invalid_token"),
        (f"Bearer {ALICE[:-1]}", "invalid_token"),
        (f"Basic {ALICE}", "invalid_token"),
        (f"Bearer {ALICE} {BOB}", "invalid_token"),
    ],
)
async def test_without_a_good_token_nothing_is_answered(
    secured: Served, sent: str | None, code: str | None
) -> None:
    headers = rpc_headers("tools/list") | ({} if sent is None else {"Authorization": sent})
    async with secured.web() as web:
        refused = await web.post("/mcp", json=rpc("tools/list"), headers=headers)
        assert refused.status_code == 401
        challenge = refused.headers["www-authenticate"]
        assert challenge.startswith('Bearer realm="forbear"')
        assert (code or "error=") in challenge or code is None
        assert ("error=" in challenge) is (code is not None)
        for method in ("GET", "DELETE", "OPTIONS"):
            assert (await web.request(method, "/mcp", headers=headers)).status_code == 401


async def test_a_token_of_agents_opens_no_page_of_the_console(secured: Served) -> None:
    async with secured.web(ALICE) as web:
        for path in ("/", "/operations.json", "/audit.txt", "/metrics"):
            assert (await web.get(path)).status_code == 401


async def test_who_looks_for_an_authorization_server_hears_that_there_is_none(
    secured: Served,
) -> None:
    names = ("oauth-protected-resource/mcp", "oauth-authorization-server", "openid-configuration")
    async with secured.web() as web:
        for name in names:
            assert (await web.get(f"/.well-known/{name}")).status_code == 404


EVERYWHERE = (
    "/mcp",
    "/",
    "/operations.json",
    "/healthz",
    "/metrics",
    "/sign-in",
    "/static/x.css",
    "/.well-known/oauth-protected-resource/mcp",
    "/nowhere",
)


@pytest.mark.requirement("M06")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.nip.io"])
async def test_another_name_is_answered_on_no_route(secured: Served, host: str) -> None:
    """DNS rebinding: a page of `evil.example` whose name now points to loopback."""
    for method in ("GET", "POST", "OPTIONS"):
        for path in EVERYWHERE:
            async with secured.web(ALICE, Host=host) as web:
                assert (await web.request(method, path)).status_code == 421, path


@pytest.mark.requirement("M06")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_origin_is_answered_on_no_route(
    secured: Served, origin: str
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        for path in EVERYWHERE:
            async with secured.web(ALICE, Origin=origin) as web:
                assert (await web.request(method, path)).status_code == 403, path
    async with secured.web(ALICE, Origin=secured.url) as web:
        headers = rpc_headers("tools/list")
        ours = await web.post("/mcp", json=rpc("tools/list"), headers=headers)
        assert ours.status_code == 200


@pytest.mark.requirement("M06")
@pytest.mark.parametrize("stated", [True, False])
async def test_a_body_that_is_too_long_is_not_read_to_its_end(
    secured: Served, stated: bool
) -> None:
    long = b" " * 2_000_000

    async def chunks() -> Any:
        yield long

    # Of who is not signed in at the console, no body is read at all.
    for path, status in (("/mcp", 413), ("/escalations/esc_1", 401)):
        async with secured.web(ALICE, Origin=secured.url) as web:
            content: Any = long if stated else chunks()
            assert (await web.post(path, content=content)).status_code == status


@pytest.fixture(name="secured", scope="module")
async def _secured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("secured")
    async with furnished(home, SLOW):
        configure(home, TOKENS)
        async with served(home, "--no-worker", **KNOWN) as server:
            yield server
