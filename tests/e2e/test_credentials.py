"""Credentials while jobs run: missing, refused, changed, and never shown."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.e2e.harness import (
    CANCEL,
    EXPORT,
    FOREVER,
    MINUTE,
    NO_RESULT,
    RESULT,
    STATUS,
    SUBMIT,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    contract,
    error,
    furnished,
    process,
    stage,
    write_contract,
)
from tests.support import ManualClock

from forbear.rules.model import Option
from forbear.server.fake import Answer, FakeProvider

pytestmark = pytest.mark.anyio

TOKEN = "s3cret-token"
BEARER = "bearer env:EXP_TOKEN"


def sent(provider: FakeProvider) -> list[str | None]:
    return [arrival.headers.get("authorization") for arrival in provider.arrivals]


async def test_without_a_credential_nothing_is_stored_and_the_user_is_told_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXP_TOKEN", raising=False)
    async with stage(tmp_path, auth=BEARER) as on:
        (line,) = (await on.call("list_actions"))["actions"]
        refused = error(await on.asked())

        assert line["ready"] is False
        assert refused["code"] == "credential_missing"
        assert "forbear doctor" in refused["next_step"]
        assert (await on.call("operation_status"))["operations"] == []


@pytest.mark.requirement("W23")
async def test_a_401_blocks_the_credential_for_every_process_under_one_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", TOKEN)
    clock = ManualClock()
    async with (
        furnished(tmp_path, states=FOREVER, auth=BEARER) as provider,
        process(provider, tmp_path, clock) as on,
    ):
        provider.job("exp_2", FOREVER)
        first, second = await on.submit("a"), await on.submit("b")
        provider.script("GET /exports/", *[Answer(401)] * 20)
        await on.passes(5 * MINUTE)
        full = [await on.full(first), await on.full(second)]
        stopped = [one for one in full if one["state"] == "escalated"]
        held = [one for one in full if one["state"] == "waiting"]
        assert [one["escalation"]["reason"] for one in stopped] == ["authorization_denied"]
        assert [one["waiting_for"] for one in held] == ["credential"]
        assert provider.count("GET /exports/") == 1

        async with process(provider, tmp_path, clock) as other:
            third = await other.asked("c")
            assert (third["state"], third["waiting_for"]) == ("queued", "credential")
            assert "forbear doctor" in third["next_step"]
            await other.passes(10 * MINUTE)
        assert provider.count("GET /exports/") == 1
        assert provider.count(SUBMIT) == 2
        offered = [one["id"] for one in stopped[0]["escalation"]["options"]]
        assert "check_again" not in offered


@pytest.mark.requirement("W23")
async def test_what_waits_for_a_credential_still_ends_by_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", TOKEN)
    async with stage(tmp_path, states=FOREVER, auth=BEARER) as on:
        on.provider.job("exp_2", FOREVER)
        await on.submit("a", deadline_seconds=600)
        await on.submit("b", deadline_seconds=600)
        on.script(*[Answer(401)] * 20, route="GET /exports/")
        await on.passes(11 * MINUTE)

        found = (await on.call("operation_status", state="escalated"))["operations"]
        reasons = sorted(one["escalation"]["reason"] for one in found)
        assert reasons == ["authorization_denied", "deadline_exceeded"]
        assert on.count("GET /exports/") == 1


async def test_a_403_stops_one_job_and_leaves_the_credential_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", TOKEN)
    async with stage(tmp_path, NO_RESULT, states=FOREVER, auth=BEARER) as on:
        on.provider.job("exp_2", ["queued", "done"])
        first, second = await on.submit("a"), await on.submit("b")
        on.script(Answer(403))
        assert (await on.end_of(first))["escalation"]["reason"] == "authorization_denied"
        assert (await on.end_of(second))["state"] == "succeeded"


async def test_a_token_that_changes_in_its_file_is_used_from_the_next_request(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with stage(tmp_path, NO_RESULT, states=FOREVER, auth=f"bearer file:{token}") as on:
        job = await on.submit()
        await on.due(job)
        token.write_text("two\n")
        await on.due(job)

        assert sent(on.provider) == ["Bearer one", "Bearer one", "Bearer two"]


async def test_a_token_file_that_goes_missing_is_waited_for_and_comes_back(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    async with stage(tmp_path, NO_RESULT, states=FOREVER, auth=f"bearer file:{token}") as on:
        job = await on.submit()
        token.unlink()
        full = await on.due(job)
        assert (full["state"], full["waiting_for"]) == ("waiting", "credential")
        assert on.count(STATUS) == 0
        token.write_text("two\n")
        await on.due(job)

        assert sent(on.provider) == ["Bearer one", "Bearer two"]
        assert (await on.full(job))["budgets"]["status_requests"]["used"] == 1


async def test_an_environment_token_is_registered_at_its_first_use_and_another_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, NO_RESULT, states=FOREVER, auth=BEARER) as provider:
        monkeypatch.setenv("EXP_TOKEN", TOKEN)
        async with process(provider, tmp_path, clock) as on:
            job = await on.submit()
        monkeypatch.setenv("EXP_TOKEN", "another")
        async with process(provider, tmp_path, clock) as on:
            full = await on.due(job)
            assert (full["state"], full["waiting_for"]) == ("waiting", "credential")
            assert provider.count(STATUS) == 0
        monkeypatch.setenv("EXP_TOKEN", TOKEN)
        async with process(provider, tmp_path, clock) as on:
            await on.due(job)
            assert provider.count(STATUS) == 1
        assert set(sent(provider)) == {f"Bearer {TOKEN}"}


# --- whose a credential is ------------------------------------------------------------------

ME = "GET /me"
CHECKED = {"id": "acct_17", "check": {"path": "/me", "at": "/account/id"}}


def says(account: str) -> Answer:
    return Answer(200, {"account": {"id": account}})


def sent_to(provider: FakeProvider, path: str) -> list[str | None]:
    arrivals = [one for one in provider.arrivals if one.path == path]
    return [one.headers.get("authorization") for one in arrivals]


@asynccontextmanager
async def submitted(
    home: Path, clock: ManualClock, *answers: Answer
) -> AsyncIterator[tuple[FakeProvider, str]]:
    """A job that was submitted with the first key, and what `ME` answers."""
    top: Data = {"auth": BEARER, "account": CHECKED}
    async with furnished(home, NO_RESULT, states=FOREVER, **top) as provider:
        provider.script(ME, *answers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EXP_TOKEN", TOKEN)
            async with process(provider, home, clock) as on:
                job = await on.submit()
        assert provider.count(ME) == 0
        yield provider, job


@asynccontextmanager
async def renewed(
    home: Path, monkeypatch: pytest.MonkeyPatch, *answers: Answer
) -> AsyncIterator[tuple[Stage, str]]:
    """The same in a process that has another key."""
    clock = ManualClock()
    async with submitted(home, clock, *answers) as (provider, job):
        monkeypatch.setenv("EXP_TOKEN", "another")
        async with process(provider, home, clock) as on:
            yield on, job


@pytest.mark.requirement("D10")
async def test_another_key_of_the_stated_account_goes_on_once_the_provider_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with renewed(tmp_path, monkeypatch, says("acct_17")) as (on, job):
        await on.provider.arrived(ME)
        await on.due(job)
        await on.provider.arrived(STATUS)
        assert sent_to(on.provider, "/me") == ["Bearer another"]
        assert set(sent_to(on.provider, "/exports/exp_1")) == {"Bearer another"}
        rows = await on.app.store.read.credentials()
        assert len(rows) == 2
        # An agent neither sees the check nor finds an action for it.
        listed = (await on.call("list_actions"))["actions"]
        assert [line["name"] for line in listed] == ["export"]
        assert len((await on.call("operation_status"))["operations"]) == 1


@pytest.mark.requirement("D10")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(says("acct_18"), "binding_mismatch", id="another-account"),
        pytest.param(Answer(200, {"account": None}), "invalid_response", id="no-account"),
        pytest.param(Answer(401, {}), "authorization_denied", id="refused"),
    ],
)
async def test_a_key_of_another_account_sends_one_check_and_asks_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, reason: str
) -> None:
    async with renewed(tmp_path, monkeypatch, answer) as (on, job):
        await on.provider.arrived(ME)
        await on.due(job)
        await on.due(job)
        full = await on.due(job)
        assert (full["state"], full["waiting_for"]) == ("waiting", "credential")
        assert on.provider.count(STATUS) == 0
        assert on.provider.count(ME) == 1
        (case,) = await on.app.store.read.open_cases()
        assert case.reason == reason
        assert len(await on.app.store.read.credentials()) == 1


@pytest.mark.requirement("D10")
async def test_a_check_is_sent_with_the_key_that_it_is_about_by_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with submitted(tmp_path, clock, Answer(503, {}), says("acct_17")) as (provider, job):
        monkeypatch.setenv("EXP_TOKEN", "another")
        async with process(provider, tmp_path, clock) as on:
            await provider.arrived(ME)
            await on.settled()
            (check,) = [one.id for one in await on.app.store.read.by_prefix("op_") if one.id != job]
        monkeypatch.setenv("EXP_TOKEN", TOKEN)
        async with process(provider, tmp_path, clock) as on:
            for _ in range(3):
                op = await on.operation(check)
                assert op.next_at is not None
                await on.at(op.next_at)
                await on.settled()
            assert provider.count(ME) == 1
        monkeypatch.setenv("EXP_TOKEN", "another")
        async with process(provider, tmp_path, clock) as on:
            op = await on.operation(check)
            await on.at(op.next_at or 0)
            await provider.arrived(ME, 2)
        assert set(sent_to(provider, "/me")) == {"Bearer another"}


@pytest.mark.sqlite  # it reads the files of the store
async def test_a_secret_appears_in_nothing_that_an_agent_or_the_trail_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", TOKEN)
    async with stage(tmp_path, states=FOREVER, auth=BEARER) as on:
        job = await on.submit()
        on.script(Answer(503), Answer(401))
        await on.end_of(job)
        told = [await on.full(job, timeline=True), await on.call("list_actions", provider="exp")]
        trail = await on.events(job)

        assert sent(on.provider)[0] == f"Bearer {TOKEN}"
        assert TOKEN not in repr(told)
        assert TOKEN not in repr(trail)
        assert TOKEN.encode() not in (tmp_path / "forbear.db").read_bytes()


@pytest.mark.requirement("W23")
async def test_another_try_is_offered_once_the_key_changed_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    key.write_text("old")
    async with stage(tmp_path, auth=f"bearer file:{key}") as on:
        job = await on.submit()
        on.script(Answer(401))
        await on.passes(5 * MINUTE)
        case = (await on.full(job))["escalation"]
        assert (case["reason"], [one["id"] for one in case["options"]]) == (
            "authorization_denied",
            ["abandon"],
        )

        key.write_text("new")
        for _ in range(10):
            await on.clock.asleep(3)  # pulse, sign of life and schedule: the next sign can come
            await on.passes(15_000)
            case = (await on.full(job))["escalation"]
            if len(case["options"]) > 1:
                break
        assert [one["id"] for one in case["options"]] == ["retry_with_new_credential", "abandon"]
        await on.decide(job, Option.RETRY_WITH_NEW_CREDENTIAL)
        ended = await on.end_of(job)
        assert ended["state"] == "succeeded"
    assert sent(on.provider)[-1] == "Bearer new"


@pytest.mark.requirement("C01", "C03")
async def test_a_secret_of_the_body_is_added_to_what_leaves_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", TOKEN)
    top: Data = {
        "jobs": {},
        "calls": {"transfer": TRANSFER},
        "auth": {"scheme": "body", "name": "/login/token", "secret": "env:EXP_TOKEN"},
    }
    async with stage(tmp_path, states=None, **top) as on:
        on.script(Answer(400, {"error": {"message": f"no such {TOKEN}"}}), route=WRITE)
        told = await on.write()
        (arrival,) = on.provider.arrivals
        assert arrival.json()["login"] == {"token": TOKEN}
        assert arrival.json()["amount"] == 5
        full = await on.full(told["operation_id"], timeline=True)
        assert TOKEN not in repr((told, full, await on.events(told["operation_id"])))
    assert not holding(tmp_path, TOKEN)


def holding(home: Path, secret: str) -> list[Path]:
    """The files of a home that hold a secret."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return [path for path in files if secret.encode() in path.read_bytes()]


# --- secrets that take time -------------------------------------------------------------------


def printed(path: Path) -> Data:
    """A credential that a command prints from a file."""
    script = "import sys; print(open(sys.argv[1]).read())"
    return {
        "scheme": "bearer",
        "secret": "exec:",
        "exec": [sys.executable, "-c", script, str(path)],
    }


async def fetched() -> None:
    """Wait in real time until no secret is being fetched."""
    for _ in range(2_000):
        if not any(thread.name == "forbear-secret" for thread in threading.enumerate()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a secret is still being fetched")


@pytest.mark.requirement("W23", "C01")
async def test_after_a_401_a_rotated_secret_of_a_command_goes_on_by_itself(
    tmp_path: Path,
) -> None:
    vault = tmp_path / "vault"
    vault.write_text("old")
    async with stage(tmp_path, NO_RESULT, states=FOREVER, auth=printed(vault)) as on:
        on.provider.job("exp_2", ["queued", "done"])
        first, second = await on.submit("a"), await on.submit("b")
        on.script(*[Answer(401)] * 5)
        while (await on.operation(first)).state != "escalated":
            await on.due(first)
        used = on.count(STATUS)
        await on.passes(2 * MINUTE)
        held = await on.full(second)
        assert (held["state"], held["waiting_for"]) == ("waiting", "credential")
        assert on.count("GET /exports/exp_2") == 0

        vault.write_text("new")
        await on.passes(MINUTE)
        await fetched()
        await on.due(second)
        assert sent(on.provider)[-1] == "Bearer new"
        ended = await on.end_of(second)

        assert ended["state"] == "succeeded"
        assert on.count(STATUS) == used == 1
    assert sent(on.provider) == ["Bearer old"] * 3 + ["Bearer new"] * 2


async def test_a_command_that_fails_is_a_missing_key_and_what_it_said_reaches_no_agent(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, auth=printed(tmp_path / "none")) as on:
        refused = error(await on.asked())
        assert refused["code"] == "credential_missing"
        assert "No such file" not in repr(refused)
        assert on.provider.arrivals == []
        (tmp_path / "none").write_text("there")
        on.clock.advance(MINUTE)
        await on.call("list_actions")
        await fetched()
        await on.submit()
    assert sent(on.provider)[0] == "Bearer there"


async def test_a_process_that_starts_waits_for_its_secret_before_it_goes_on_with_a_job(
    tmp_path: Path,
) -> None:
    pipe, clock = tmp_path / "pipe", ManualClock()
    os.mkfifo(pipe)
    async with furnished(tmp_path, NO_RESULT, states=FOREVER, auth=printed(pipe)) as provider:
        async with process(provider, tmp_path, clock) as on:
            giving = asyncio.create_task(asyncio.to_thread(pipe.write_text, "one\n"))
            job = await on.submit()
            await giving
        async with process(provider, tmp_path, clock) as on:
            going = asyncio.create_task(on.due(job))
            await carried(job)
            await asyncio.to_thread(pipe.write_text, "two\n")
            full = await going
            assert (full["state"], full["waiting_for"]) == ("waiting", "provider")
        assert sent(provider) == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("tool", ["fetch_result", "cancel_job"])
async def test_what_follows_from_a_job_waits_for_the_secret_of_a_process_that_starts(
    tmp_path: Path, tool: str
) -> None:
    pipe, clock = tmp_path / "pipe", ManualClock()
    os.mkfifo(pipe)
    cancel = {"method": "POST", "path": "/exports/{id}/cancel", "approval": "none"}
    job = EXPORT | {"cancel": cancel}
    route = {"fetch_result": RESULT, "cancel_job": CANCEL}[tool]
    states = {"fetch_result": ["done"], "cancel_job": FOREVER}[tool]
    async with furnished(tmp_path, job, states=states, auth=printed(pipe)) as provider:
        async with process(provider, tmp_path, clock) as on:
            giving = asyncio.create_task(asyncio.to_thread(pipe.write_text, "one\n"))
            whose = await on.submit()
            await giving
            if tool == "fetch_result":
                await on.end_of(whose)
        async with process(provider, tmp_path, clock) as on:
            more = {"reason": "not wanted"} if tool == "cancel_job" else {}
            asked = await on.call(tool, operation_id=whose, wait_seconds=0, **more)
            await carried(asked["operation_id"])
            await asyncio.to_thread(pipe.write_text, "two\n")
            await on.settled()
            assert on.count(route) == 1


async def carried(job: str) -> None:
    """Wait in real time until a worker has an operation in hand."""
    for _ in range(500):
        if any(task.get_name() == job for task in asyncio.all_tasks()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no worker goes on with it")


@pytest.mark.requirement("C01")
async def test_a_command_that_hangs_holds_up_its_own_provider_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with stage(tmp_path, NO_RESULT, states=["done"]) as on:
        on.provider.job("exp_2", ["done"])
        text = contract(NO_RESULT, base_url=on.provider.base_url, auth=printed(pipe))
        write_contract(tmp_path, text, "slow")
        asked = {"provider": "slow", "job": "export", "arguments": {"dataset": "late"}}
        hanging = asyncio.create_task(on.call("submit_job", **asked, wait_seconds=20))
        ended = await on.end_of(await on.submit())

        assert ended["state"] == "succeeded"
        assert not hanging.done()
        await asyncio.to_thread(pipe.write_text, "at last\n")
        assert "error" not in await hanging
        await on.settled()
    assert sent(on.provider) == [None, "Bearer at last"]
