"""Redirects: followed where the contract says so, each hop a counted and checked request."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import (
    FOREVER,
    LOOK,
    LOOKUP,
    MINUTE,
    NO_RESULT,
    RESULT,
    STATUS,
    TRANSFER,
    Data,
    Stage,
    bank,
    furnished,
    process,
    says,
    stage,
)
from tests.support import ManualClock

from forbear.rules.model import Option, State
from forbear.server.fake import Answer, Drop, FakeProvider, Step

pytestmark = pytest.mark.anyio

SECRET = "canary-s3cret-token"
SIGNATURE = "canary-signature"
OURS = {"X-Api-Version": "canary-version", "X-Team": "canary-team"}
BEARER = "bearer env:EXP_TOKEN"

AWAY = "GET /elsewhere"
CUSTOMER = "GET /customers/7"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXP_TOKEN", SECRET)


EXPIRY: Data = {"at": "/ends", "unit": "epoch"}


def to(location: str, status: int = 302, **more: Any) -> Answer:
    """A redirect. Its body tells of a job that is not ours."""
    body = {"id": "exp_9", "state": "done", "ends": 1, "result": {"url": "https://evil.example/x"}}
    return Answer(status, body, (("Location", location), *more.get("headers", ())))


def customer(redirect: str, **more: Any) -> Data:
    return {"customer": {"method": "GET", "path": "/customers/7", "redirect": redirect, **more}}


def polled(redirect: str, **more: Any) -> Data:
    """The export, whose status may be redirected."""
    status = {"method": "GET", "path": "/exports/{id}", "redirect": redirect, **more}
    return NO_RESULT | {"status": status}


def fetched(redirect: str, **more: Any) -> Data:
    """The export, whose result may be redirected; `auth` so that there is something to lose."""
    result = {"method": "GET", "url": "{result.url}", "auth": True, "redirect": redirect, **more}
    success = {"then": ["fetch_result"], "take": {"url": "/result/url"}}
    return NO_RESULT | {"success": success, "results": {"output": result}}


@asynccontextmanager
async def two(home: Path, job: Data = NO_RESULT, **top: Any) -> AsyncIterator[tuple[Stage, Any]]:
    """A stage, and another origin whose host the contract allows."""
    async with FakeProvider() as other:
        passed = {"auth": BEARER, "headers": OURS, "allow_hosts": [f"127.0.0.1:{other.port}"]}
        async with stage(home, job, **{**passed, **top}) as on:
            yield on, other


def arrived(*providers: FakeProvider) -> int:
    return sum(len(one.arrivals) for one in providers)


async def reserved(on: Stage, *operation_ids: str) -> int:
    """Committed attempts of which bytes may have left."""
    found = [await on.app.store.read.attempts_of(one) for one in operation_ids]
    return sum(one.outcome != "not_sent" for each in found for one in each)


# --- on the same origin ---------------------------------------------------------------------


@pytest.mark.requirement("C04", "R08")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_read_is_redirected_on_its_own_origin_and_every_hop_is_counted(
    tmp_path: Path, status: int
) -> None:
    calls = customer("same-origin")
    async with stage(tmp_path, calls=calls, auth=BEARER, headers=OURS) as on:
        on.script(to("/elsewhere?v=2#top", status), route=CUSTOMER)
        on.script(Answer(json={"id": 7}), route=AWAY)
        answer = await on.read("customer")
        first, second = on.provider.arrivals

        assert (answer["state"], answer["result"]["inline"]) == ("succeeded", {"id": 7})
        assert (second.method, second.path, second.query) == ("GET", "/elsewhere", {"v": "2"})
        assert second.headers["authorization"] == f"Bearer {SECRET}"
        assert second.headers["x-team"] == first.headers["x-team"] == OURS["X-Team"]
        full = await on.full(answer["operation_id"], timeline=True)
        assert full["budgets"]["attempts"]["used"] == 2
        assert await reserved(on, answer["operation_id"]) == 2
        told = "\n".join(full["timeline"])
        assert f"called, {status}, redirected to http://127.0.0.1:{on.provider.port}" in told
        assert "v=2" not in told


async def test_a_redirected_poll_is_not_the_state_of_the_job_nor_its_new_address(
    tmp_path: Path,
) -> None:
    job_of = polled("same-origin", take={"mark": "/id"}) | {"expiry": {"job": EXPIRY}}
    async with stage(tmp_path, job_of, states=FOREVER, auth=BEARER) as on:
        job = await on.submit()
        on.script(to("/elsewhere", 308))
        on.script(says("running"), route=AWAY)
        full = await on.due(job)
        op = await on.operation(job)

        assert (full["state"], op.provider_state) == ("waiting", "running")
        assert (op.take, op.provider_job) == ({"id": "exp_1", "mark": "exp_1"}, "exp_1")
        assert (op.terminal_seen, op.provider_expiry_at) == (False, None)
        assert full["budgets"]["status_requests"]["used"] == 2
        assert op.search is None
        await on.due(job)
        assert (on.count(STATUS), on.count(AWAY)) == (2, 1)


async def test_a_wait_that_a_redirect_states_is_kept_also_by_the_process_after_this_one(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, polled("same-origin"), states=FOREVER) as provider:
        provider.script(AWAY, says("running"))
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit()
            on.script(to("/elsewhere", headers=(("Retry-After", "30"),)))
            await on.due(job)
            assert (await on.operation(job)).provider_state != "done"
            await on.passes(20_000)
            assert on.count(AWAY) == 0
        async with process(provider, tmp_path, clock) as on:
            await on.due(job)
            assert (on.count(AWAY), on.count(STATUS)) == (1, 1)


async def test_a_hop_that_fails_is_tried_again_from_the_address_of_the_contract(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, calls=customer("same-origin")) as on:
        on.script(to("/elsewhere"), Answer(json={"id": 7}), route=CUSTOMER)
        on.script(Drop(), route=AWAY)
        answer = await on.read("customer", wait_seconds=0)
        full = await on.end_of(answer["operation_id"])

        assert full["state"] == "succeeded"
        assert [one.path for one in on.provider.arrivals] == [
            "/customers/7",
            "/elsewhere",
            "/customers/7",
        ]
        assert full["budgets"]["attempts"]["used"] == 3


async def test_each_page_of_a_read_may_be_redirected(tmp_path: Path) -> None:
    page = {"query": "cursor", "at": "/next", "items": "/data", "max_pages": 4}
    async with stage(tmp_path, calls=customer("same-origin", page=page)) as on:
        on.script(to("/elsewhere?page=1"), to("/elsewhere?page=2"), route=CUSTOMER)
        on.script(Answer(json={"data": [1], "next": "b"}), Answer(json={"data": [2]}), route=AWAY)
        answer = await on.read("customer")

        assert answer["result"]["inline"] == [1, 2]
        assert [one.query for one in on.provider.arrivals] == [
            {},
            {"page": "1"},
            {"cursor": "b"},
            {"page": "2"},
        ]
        assert await reserved(on, answer["operation_id"]) == 4


async def test_a_redirected_lookup_counts_as_another_and_finds_the_write(tmp_path: Path) -> None:
    lookup = LOOKUP | {"redirect": "same-origin"}
    async with bank(tmp_path, TRANSFER | {"lookup": lookup}) as on:
        on.script(Drop(effect=True), route="POST /transfers")
        on.script(to("/elsewhere"), route=LOOK)
        answer = await on.write()
        ref = (await on.operation(answer["operation_id"])).ref
        on.script(Answer(json={"items": [{"id": "tr_1", "client_ref": ref}]}), route=AWAY)
        full = await on.end_of(answer["operation_id"])

        assert full["state"] == "succeeded"
        assert full["budgets"]["lookups"]["used"] == 2
        assert (on.count(LOOK), on.count(AWAY)) == (1, 1)


@pytest.mark.parametrize(
    ("redirect", "path"), [("same-origin", "/other/7"), ("no-credential", "/v1/other/7")]
)
async def test_the_credential_stays_below_the_path_that_it_is_bound_to(
    tmp_path: Path, redirect: str, path: str
) -> None:
    async with FakeProvider() as provider:
        calls, base_url = customer(redirect), f"{provider.base_url}/v1"
        async with stage(tmp_path, calls=calls, auth=BEARER, base_url=base_url) as on:
            provider.script("GET /v1/customers/7", to(path))
            provider.script(f"GET {path}", Answer(json={"id": 7}))
            answer = await on.read("customer")

            assert answer["state"] == "succeeded"
            sent = [one.headers.get("authorization") for one in provider.arrivals]
            assert sent == [f"Bearer {SECRET}", None]


# --- to another origin ----------------------------------------------------------------------


@pytest.mark.requirement("C04")
@pytest.mark.parametrize("auth", [BEARER, "header X-Api-Key env:EXP_TOKEN"])
async def test_nothing_of_ours_goes_to_another_origin(tmp_path: Path, auth: str) -> None:
    """SE-01."""
    async with two(tmp_path, fetched("no-credential"), states=FOREVER, auth=auth) as (on, other):
        url = f"{on.provider.base_url}/files/exp_1"
        on.script(says("done", result={"url": url}))
        signed = f"{other.base_url}/elsewhere?sig={SIGNATURE}"
        on.script(to(signed), route=RESULT)
        other.script(AWAY, Answer(json={"rows": 9}))
        job = await on.submit()
        await on.end_of(job)
        answer = await on.call("fetch_result", operation_id=job)
        await on.settled()
        shown = await on.full(answer["operation_id"], timeline=True)

        assert answer["result"]["inline"] == {"rows": 9}
        (arrival,) = other.arrivals
        assert set(arrival.headers) == {"host", "accept-encoding", "user-agent"}
        assert "canary" not in repr(arrival.headers)
        assert arrival.query == {"sig": SIGNATURE}
        assert SECRET in repr(on.provider.arrivals[-1].headers), "it had something to lose"
        assert SIGNATURE not in repr((answer, shown))
        assert f"redirected to {other.base_url}" in "\n".join(shown["timeline"])
        assert await reserved(on, job, answer["operation_id"]) == arrived(on.provider, other)


async def test_a_refusal_at_another_origin_says_nothing_about_the_credential(
    tmp_path: Path,
) -> None:
    async with two(tmp_path, calls=customer("no-credential")) as (on, other):
        on.script(to(f"{other.base_url}/elsewhere"), Answer(json={"id": 7}), route=CUSTOMER)
        other.script(AWAY, Answer(401))
        refused = await on.read("customer")
        assert refused["escalation"]["reason"] == "authorization_denied"

        again = await on.read("customer")
        assert again["state"] == "succeeded"


async def test_same_origin_is_scheme_host_and_port(tmp_path: Path) -> None:
    async with two(tmp_path, calls=customer("same-origin")) as (on, other):
        on.script(to(f"{other.base_url}/elsewhere"), route=CUSTOMER)
        answer = await on.read("customer")

        assert answer["escalation"]["reason"] == "integration_failure"
        assert other.connections == 0


# --- what is not followed -------------------------------------------------------------------

HOSTILE: dict[str, tuple[str, ...]] = {
    "missing": (),
    "empty": ("",),
    "several": ("/elsewhere", "/elsewhere"),
    "another scheme": ("ftp://127.0.0.1/x",),
    "a script": ("javascript:alert(1)",),
    "a file": ("file:///etc/passwd",),
    "user information": ("http://127.0.0.1:1@{other}/elsewhere",),
    "user and password": ("http://a:b@{other}/elsewhere",),
    "another host without a scheme": ("//{other}/elsewhere",),
    "three slashes": ("///{other}/elsewhere",),
    "a backslash": ("\\\\{other}/elsewhere",),
    "a backslash in the host": ("http://{own}\\@{other}/elsewhere",),
    "a blank": ("http://{other} /elsewhere",),
    "a tab": ("http://{other}/else\twhere",),
    "no ASCII": ("http://{other}/else\u00e9where",),
    "a dot segment": ("http://{own}/a/%2e%2e/elsewhere",),
    "SE-03 metadata": ("http://169.254.169.254/latest/meta-data",),
    "SE-03 metadata over TLS": ("https://169.254.169.254/latest/meta-data",),
    "SE-03 another host": ("https://evil.example/op/1",),
    "metadata, mapped": ("https://[::ffff:a9fe:a9fe]/latest",),
    "metadata, decimal": ("https://2852039166/latest",),
    "metadata, short": ("https://169.254.43518/latest",),
    "private": ("https://10.0.0.1/x",),
    "plain http": ("http://api.exp.example/x",),
    "itself": ("/customers/7",),
    "a fragment of itself": ("#top",),
    "huge": ("/" + "x" * 9_000,),
}


@pytest.mark.requirement("C04")
@pytest.mark.parametrize("redirect", ["same-origin", "no-credential"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_location_reaches_nobody(tmp_path: Path, name: str, redirect: str) -> None:
    async with (
        FakeProvider() as other,
        stage(tmp_path, calls=customer(redirect), auth=BEARER) as on,
    ):
        own, there = (f"127.0.0.1:{one.port}" for one in (on.provider, other))
        fields = tuple(
            ("Location", each.replace("{own}", own).replace("{other}", there))
            for each in HOSTILE[name]
        )
        on.script(Answer(302, headers=fields), route=CUSTOMER)
        answer = await on.read("customer", wait_seconds=0)
        full = await on.end_of(answer["operation_id"])

        assert full["state"] == "escalated", full
        assert full["escalation"]["reason"] in ("integration_failure", "egress_refused")
        assert other.connections == 0
        assert [one.path for one in on.provider.arrivals] == ["/customers/7"]
        assert await reserved(on, answer["operation_id"]) == 1
        assert SECRET not in repr(full)


@pytest.mark.parametrize(
    ("steps", "requests", "why"),
    [
        pytest.param(
            [f"/elsewhere/{number}" for number in range(9)],
            4,
            "redirected more than 3 times",
            id="too many",
        ),
        pytest.param(["/elsewhere/a", "/elsewhere/b", "/elsewhere/a"], 3, "in a circle", id="loop"),
    ],
)
async def test_redirects_have_an_end_that_is_told(
    tmp_path: Path, steps: list[str], requests: int, why: str
) -> None:
    async with stage(tmp_path, polled("same-origin"), states=FOREVER) as on:
        first, *rest = steps
        job = await on.submit()
        on.script(to(first))
        on.script(*[to(one) for one in rest], route="GET /elsewhere/")
        full = await on.due(job)
        full = await on.full(job, timeline=True)

        assert full["escalation"]["reason"] == "integration_failure"
        assert why in "\n".join(full["timeline"])
        assert full["budgets"]["status_requests"]["used"] == requests
        assert arrived(on.provider) == requests + 1
        assert await reserved(on, job) == requests + 1


@pytest.mark.parametrize("status", [300, 304, 305, 306])
async def test_other_answers_of_the_class_lead_nowhere(tmp_path: Path, status: int) -> None:
    async with stage(tmp_path, calls=customer("same-origin")) as on:
        on.script(Answer(status, headers=(("Location", "/elsewhere"),)), route=CUSTOMER)
        answer = await on.read("customer")

        assert answer["escalation"]["reason"] == "integration_failure"
        assert on.count(AWAY) == 0


async def test_the_rules_of_a_contract_come_before_a_redirect(tmp_path: Path) -> None:
    rules = [{"on": ["status"], "http": 303, "means": "done"}]
    async with stage(tmp_path, polled("same-origin") | {"rules": rules}, states=FOREVER) as on:
        on.script(Answer(303, {"id": "exp_1"}, (("Location", "/elsewhere"),)))
        full = await on.due(await on.submit())

        assert full["state"] == "succeeded"
        assert on.count(AWAY) == 0


# --- budgets, decisions, and the count on the wire ------------------------------------------


async def test_the_last_check_that_is_allowed_leaves_none_for_a_redirect(tmp_path: Path) -> None:
    job_of = polled("same-origin") | {"limits": {"max_status_requests": 1}}
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        job = await on.submit()
        on.script(to("/elsewhere"))
        full = await on.due(job)
        assert full["escalation"]["reason"] == "request_budget_exhausted"
        assert on.count(AWAY) == 0

        on.script(to("/elsewhere"))
        on.script(says("done"), route=AWAY)
        await on.decide(job, Option.CHECK_AGAIN)
        assert (await on.operation(job)).state is State.SUCCEEDED
        assert (on.count(STATUS), on.count(AWAY)) == (2, 1)


@pytest.mark.requirement("R08")
@pytest.mark.parametrize("seed", range(8))
async def test_what_arrives_is_what_was_reserved_and_counted(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    async with two(tmp_path, polled("no-credential"), states=FOREVER) as (on, other):
        origins = (on.provider.base_url, other.base_url)

        def step() -> Step:
            match luck.randrange(8):
                case 0:
                    return Answer(503)
                case 1:
                    return Drop()
                case 2:
                    return says("running")
                case _:
                    return to(f"{luck.choice(origins)}/elsewhere/{luck.randrange(4)}")

        on.script(*[step() for _ in range(200)])
        for provider in (on.provider, other):
            provider.script("GET /elsewhere/", *[step() for _ in range(200)])
        job = await on.submit()
        await on.passes(30 * MINUTE)
        full = await on.full(job)

        assert await reserved(on, job) == arrived(on.provider, other)
        assert full["budgets"]["status_requests"]["used"] == arrived(on.provider, other) - 1
        assert "canary" not in repr([one.headers for one in other.arrivals])
        assert on.provider.count("GET /elsewhere/") or other.arrivals
