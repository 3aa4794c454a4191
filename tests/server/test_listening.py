"""A process without a worker of its own hears of what others do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import furnished

from forbear.rules.model import Priority, State
from forbear.server.app import running
from forbear.server.config import Settings
from forbear.tools.caller import Caller
from forbear.tools.record import Record

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("D05")
async def test_a_server_without_a_worker_hears_what_the_resident_one_did(tmp_path: Path) -> None:
    async with (
        furnished(tmp_path) as provider,
        running(Settings(tmp_path), role="serve", worker=False) as ours,
        running(Settings(tmp_path), role="worker", worker=True),
    ):
        answer = await ours.desk.submit_job(
            provider="exp",
            job="export",
            arguments={"dataset": "sales"},
            purpose=None,
            task=None,
            idempotency_key=None,
            depends_on=(),
            deadline_seconds=None,
            max_status_requests=None,
            useful_for_seconds=None,
            priority=Priority.INTERACTIVE,
            wait_seconds=20,
            caller=Caller("local", "ours", "ours"),
            report=None,
        )
        assert isinstance(answer, Record)
        assert answer.operation.state is State.WAITING
        assert provider.count("POST /exports") == 1
