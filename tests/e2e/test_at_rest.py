"""What agents, people and providers said is found in plain in no file of a home."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
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

from forbear.server.fake import Answer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A06")]

ARGUMENT, PURPOSE, COMMENT, WORD, ANSWER, HEADER = CANARIES = (
    "canary-argument-7f1",
    "canary-purpose-7f2",
    "canary-comment-7f3",
    "canary-state-7f4",
    "canary-answer-7f5",
    "canary-header-7f6",
)
JOB = EXPORT | {"usual": "2s", "deadline": "5m", "backoff": QUICK}
CUSTOMER: Data = {"method": "GET", "path": "/customers/{arg.id}", "require": {"/name": "non_empty"}}
PAY = TRANSFER | {"approval": "per_call", "label": "Transfer {arg.amount} to {arg.to}"}
CALLS: Data = {"customer": CUSTOMER, "transfer": PAY}
ENVIRONMENT = {"FORBEAR_OPERATOR_TOKEN": "a-token-of-the-operator", "FORBEAR_LOG": "debug"}


def found(home: Path) -> list[tuple[str, str]]:
    """Where a canary lies in a file that no person put there."""
    return [(str(path), canary) for path in _files(home) for canary in _canaries(path)]


def _files(home: Path) -> Iterator[Path]:
    for path in home.rglob("*"):
        if path.is_file() and path.parent.name != "contracts":
            yield path


def _canaries(path: Path) -> list[str]:
    data = path.read_bytes()
    return [canary for canary in CANARIES if canary.encode() in data]


@pytest.mark.sqlite  # it reads the files of the store
async def test_no_word_of_agent_person_or_provider_lies_in_plain_in_any_file(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with furnished(home, JOB, states=None, calls=CALLS) as provider:
        told = {"X-Request-Id": "req_1", "X-Echo": HEADER}
        queued, stuck = {"id": "exp_9", "state": "queued"}, {"id": "exp_9", "state": WORD}
        provider.script(SUBMIT, Answer(202, json=queued))
        provider.script("GET /exports/exp_9", Answer(200, json=stuck, headers=tuple(told.items())))
        provider.script(
            f"GET /customers/{ARGUMENT}",
            Answer(200, json={"name": ANSWER}, headers=tuple(told.items())),
        )
        provider.script(WRITE, Answer(422, json={"error": {"code": WORD, "message": ANSWER}}))
        async with stdio(home, **ENVIRONMENT) as client:
            asked: Data = {"provider": "exp"}
            read = await call(
                client, "read_api", call="customer", arguments={"id": ARGUMENT}, **asked
            )
            assert "error" not in read, read
            read = await call(
                client, "check_status", operation_id=read["operation_id"], wait_seconds=20
            )
            assert "result" in read, read
            assert read["result"]["inline"] == {"name": ANSWER}
            job = await call(
                client,
                "submit_job",
                job="export",
                arguments={"dataset": ARGUMENT},
                purpose=PURPOSE,
                **asked,
            )
            stopped = await call(
                client, "check_status", operation_id=job["operation_id"], wait_seconds=20
            )
            assert stopped["provider_job"]["state"] == WORD
            write = {"amount": "5.00", "to": ARGUMENT}
            held = await call(
                client,
                "write_api",
                call="transfer",
                arguments=write,
                idempotency_key="k-1",
                purpose=PURPOSE,
                **asked,
            )
            case, operation = held["escalation"]["id"], held["operation_id"]
            code, said = await forbear(
                home, "decide", case, "approve", "--yes", "--comment", COMMENT, **ENVIRONMENT
            )
            assert code == 0, said
            failed = await call(client, "check_status", operation_id=operation, wait_seconds=20)
            assert ANSWER in failed["failure"]["message"]
            assert found(home) == []
            with closing(sqlite3.connect(home / "forbear.db")) as store:
                ((pid,),) = store.execute("SELECT pid FROM processes").fetchall()
            os.kill(pid, signal.SIGKILL)
        assert found(home) == []

        # It is there, for whoever has the keys of the home.
        _, shown = await forbear(home, "show", operation, **ENVIRONMENT)
        assert ANSWER in shown
        shutil.rmtree(home / "keys")
        code, shown = await forbear(home, "show", operation, **ENVIRONMENT)
        assert (code, ANSWER in shown) == (3, False)
