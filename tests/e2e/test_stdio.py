"""`forbear serve` as agents' programs start it: real processes, real pipes, real time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests import stores
from tests.e2e.harness import (
    FOREVER,
    NO_RESULT,
    PATIENCE,
    QUICK,
    STATUS,
    SUBMIT,
    Data,
    call,
    error,
    forbear,
    furnished,
    serving,
    several,
    stdio,
    write_contract,
)

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

FAST: Data = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}


async def submit(client: Client, dataset: str = "sales", **more: Any) -> Data:
    return await call(
        client, "submit_job", provider="exp", job="export", arguments={"dataset": dataset}, **more
    )


async def status(client: Client, operation_id: str) -> Data:
    """The full record."""
    return await call(client, "operation_status", operation_id=operation_id)


async def ended(client: Client, operation_id: str) -> Data:
    """The short record of an operation at its end, or where a person is asked."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await call(client, "check_status", operation_id=operation_id, wait_seconds=10)
            if answer.get("state") not in ("queued", "sending", "waiting", "delayed"):
                return answer


@pytest.mark.requirement("D05")
async def test_db_01_four_processes_on_one_home_send_nothing_twice_and_never_meet_a_lock(
    tmp_path: Path,
) -> None:
    async with furnished(tmp_path, FAST, states=None) as provider:
        for number in range(12):
            provider.job(f"exp_{number}", ["queued", "running", "running", "done"])
        async with several(tmp_path, 4) as clients:
            asked = [submit(client, f"set-{n}") for n in range(12) for client in clients]
            answers = await asyncio.gather(*asked)
            jobs = {answer["operation_id"] for answer in answers}
            assert len(jobs) == 12
            ends = await asyncio.gather(
                *(ended(clients[n % 4], job) for n, job in enumerate(sorted(jobs)))
            )
            full = [await status(clients[0], job) for job in jobs]

        assert [end["state"] for end in ends] == ["succeeded"] * 12
        assert provider.count(SUBMIT) == len(provider.effects) == 12
        polls = sum(record["budgets"]["status_requests"]["used"] for record in full)
        assert polls == provider.count("GET /exports/") == 48
    told = (tmp_path / "stderr").read_text()
    assert "locked" not in told.lower()
    assert "Traceback" not in told


@pytest.mark.requirement("D06", "D01", "M03")
async def test_a_client_that_leaves_in_the_middle_of_a_submission_loses_nothing(
    tmp_path: Path,
) -> None:
    async with furnished(tmp_path, FAST, states=("queued", "done")) as provider:
        provider.script(
            SUBMIT, Answer(202, {"id": "exp_1", "state": "queued"}, gate="slow", effect=True)
        )
        async with stdio(tmp_path) as client:
            asking = asyncio.create_task(submit(client))
            await provider.arrived(SUBMIT)
            asyncio.get_running_loop().call_later(0.3, provider.release, "slow")
        await asyncio.gather(asking, return_exceptions=True)

        async with stdio(tmp_path) as later:
            (found,) = (await call(later, "operation_status"))["operations"]
            assert found["provider_job"]["id"] == "exp_1"
            assert (await ended(later, found["operation_id"]))["state"] == "succeeded"
        assert provider.count(SUBMIT) == 1


async def pid_of(home: Path) -> int:
    """The process that serves a home alone."""
    (row,) = stores.rows(home, "SELECT pid FROM processes")
    return int(row["pid"])


@pytest.mark.requirement("D01", "D02")
async def test_a_process_killed_in_the_middle_of_a_submission_leaves_it_unclear_and_once(
    tmp_path: Path,
) -> None:
    async with furnished(tmp_path, FAST, states=FOREVER) as provider:
        provider.script(SUBMIT, Answer(202, gate="never", effect=True))
        async with stdio(tmp_path) as client:
            asking = asyncio.create_task(submit(client))
            await provider.arrived(SUBMIT)
            os.kill(await pid_of(tmp_path), signal.SIGKILL)
            await asyncio.gather(asking, return_exceptions=True)
        async with stdio(tmp_path) as later:
            (found,) = (await call(later, "operation_status"))["operations"]
            answer = await ended(later, found["operation_id"])

            assert answer["escalation"]["reason"] == "unclear_write"
            assert error(await submit(later, idempotency_key="x"))["code"] == "possible_duplicate"
        assert provider.count(SUBMIT) == 1


@pytest.mark.requirement("D01", "W17")
async def test_a_process_killed_while_it_waits_is_followed_by_the_next_at_once(
    tmp_path: Path,
) -> None:
    async with furnished(tmp_path, FAST, states=("queued", *["running"] * 4, "done")) as provider:
        async with stdio(tmp_path) as client:
            job = (await submit(client))["operation_id"]
            await provider.arrived(STATUS, 2)
            os.kill(await pid_of(tmp_path), signal.SIGKILL)
        async with stdio(tmp_path) as later:
            assert (await ended(later, job))["state"] == "succeeded"
            full = await status(later, job)

        # A crash may waste a reservation; it can never hide a request.
        assert full["budgets"]["status_requests"]["used"] >= provider.count(STATUS)
        assert provider.count(SUBMIT) == 1


@pytest.mark.requirement("D04", "W11")
async def test_cl_01_a_process_stopped_between_two_checks_holds_up_nobody_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    calm = FAST | {"backoff": QUICK | {"base": "1s", "max": "1s"}}
    async with furnished(tmp_path, calm, states=FOREVER) as provider, stdio(tmp_path) as frozen:
        job = (await submit(frozen))["operation_id"]
        await provider.arrived(STATUS)
        async with asyncio.timeout(PATIENCE):
            while (await status(frozen, job))["next_check_at"] is None:
                pass  # an answer is on its way into the store
        pid = await pid_of(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        try:
            async with stdio(tmp_path) as other:
                seen = provider.count(STATUS)
                await provider.arrived(STATUS, seen + 2)
                os.kill(pid, signal.SIGCONT)
                await provider.arrived(STATUS, seen + 4)
                least = provider.count(STATUS)
                full = await status(other, job)
                most = provider.count(STATUS)
        finally:
            os.kill(pid, signal.SIGCONT)

        assert provider.count(SUBMIT) == 1
        # Both processes look at the schedule by now, and still each check is made once; the next
        # one may be counted and not yet there.
        assert least <= full["budgets"]["status_requests"]["used"] <= most + 1


async def started(home: Path, **environment: str) -> asyncio.subprocess.Process:
    """A serve process to speak to line by line."""
    wanted = serving(home, **environment)
    return await asyncio.create_subprocess_exec(
        wanted.command,
        *wanted.args,
        env=wanted.env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


HELLO: Data = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
READY: Data = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def tool(number: int, name: str, **arguments: Any) -> Data:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


async def test_mc_02_every_line_on_stdout_is_a_message_whatever_goes_wrong(
    tmp_path: Path,
) -> None:
    lines = (
        HELLO,
        READY,
        "this is no JSON",
        tool(2, "list_actions"),
        tool(3, "no_such_tool"),
        tool(4, "submit_job", provider="exp", job="export", arguments={"dataset": "x"}),
    )
    async with furnished(tmp_path, FAST, states=None) as provider:
        write_contract(tmp_path, "contract = 1\nnonsense\n", "bad")
        provider.script(SUBMIT, Answer(500))
        running = await started(tmp_path, FORBEAR_LOG="DEBUG")
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        told = asyncio.create_task(running.stderr.read())
        running.stdin.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
        messages: list[Data] = []
        # A client that closes at once takes back what it asked; this one waits for its answers.
        while not {1, 2, 3} <= {message.get("id") for message in messages}:
            line = await asyncio.wait_for(running.stdout.readline(), PATIENCE)
            messages.append(json.loads(line))
        running.stdin.close()
        out = await asyncio.wait_for(running.stdout.read(), PATIENCE)
        await asyncio.wait_for(asyncio.gather(told, running.wait()), PATIENCE)

    messages += [json.loads(line) for line in out.decode().splitlines()]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert running.returncode == 0


@pytest.mark.requirement("M03")
async def test_db_02_a_process_ends_soon_after_its_client_closed_the_pipe(
    tmp_path: Path,
) -> None:
    async with furnished(tmp_path, FAST, states=FOREVER) as provider:
        running = await started(tmp_path)
        assert running.stdin is not None
        long_wait = tool(2, "check_status", operation_id="op_1", wait_seconds=50)
        submission = tool(3, "submit_job", provider="exp", job="export", arguments={"dataset": "x"})
        for line in (HELLO, READY, long_wait, submission):
            running.stdin.write(json.dumps(line).encode() + b"\n")
        await asyncio.wait_for(provider.arrived(STATUS), PATIENCE)
        running.stdin.close()
        async with asyncio.timeout(5):
            code = await running.wait()

        assert code == 0


async def test_a_person_approves_on_the_command_line_and_the_running_process_sends_it(
    tmp_path: Path,
) -> None:
    approved = {name: value for name, value in FAST.items() if name != "body"} | {
        "submit": {
            "method": "POST",
            "path": "/exports",
            "body": FAST["body"],
            "approval": "per_call",
        }
    }
    async with furnished(tmp_path, approved, states=("queued", "done")) as provider:
        token = {"FORBEAR_OPERATOR_TOKEN": "a-token-of-the-operator"}
        async with stdio(tmp_path, **token) as client:
            answer = await submit(client)
            assert answer["waiting_for"] == "approval"
            case = answer["escalation"]["id"]
            code, out = await forbear(tmp_path, "decide", case, "approve", "--yes", **token)
            assert code == 0, out

            assert (await ended(client, answer["operation_id"]))["state"] == "succeeded"
        assert provider.count(SUBMIT) == 1
