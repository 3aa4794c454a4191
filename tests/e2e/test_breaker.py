"""The same failure again and again is stopped here, not at the provider."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import MINUTE, SUBMIT, error, stage

from forbear.server.fake import Answer

pytestmark = pytest.mark.anyio

REFUSED = Answer(422, json={"error": {"code": "bad_dataset", "message": "no such data set"}})


@pytest.mark.requirement("R19")
async def test_mc_03_the_same_rejected_submission_reaches_the_provider_three_times(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        on.script(*[REFUSED] * 10, route=SUBMIT)
        for _ in range(3):
            assert (await on.asked("sales"))["state"] == "failed"
        for attempt in range(7):
            refused = error(await on.asked("sales", task=f"renamed {attempt}"))
            assert refused["code"] == "circuit_open"
            assert "bad_dataset" in refused["message"]
        assert on.count(SUBMIT) == 3

        assert (await on.asked("other"))["state"] == "failed"
        assert on.count(SUBMIT) == 4
        await on.passes(11 * MINUTE)
        assert (await on.asked("sales"))["state"] == "failed"
        assert error(await on.asked("sales"))["code"] == "circuit_open"
        assert on.count(SUBMIT) == 5
