"""What was asked for and is not known any more is never asked for anew: something would be missing.

Every argument here is optional, so that a request made without them would be one that can be sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.harness import (
    CANCEL,
    EXPORT,
    FOREVER,
    RESULT,
    TRANSFER,
    WRITE,
    Data,
    Stage,
    error,
    forbear,
    furnished,
    process,
)
from tests.e2e.test_retention import DAY, later, until_emptied
from tests.support import ManualClock

from forbear.server.fake import Answer

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A05", "A06")]

OPERATOR = {"FORBEAR_OPERATOR_TOKEN": "a-token-of-the-operator"}
OPTIONAL: Data = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "dataset": {"type": "string"}},
}
CALLS = {"transfer": TRANSFER | {"input": OPTIONAL, "label": "Transfer"}}
JOB = EXPORT | {
    "label": "Export",
    "input": OPTIONAL,
    "result": {"method": "GET", "path": "/files/{id}", "query": {"of": "{arg.dataset}"}},
    "cancel": {
        "method": "POST",
        "path": "/exports/{id}/cancel",
        "body": {"of": "{arg.dataset}"},
        "approval": "none",
        "consequence": "Work so far is lost.",
    },
}


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OPERATOR.items():
        monkeypatch.setenv(name, value)


async def lose_the_sealing_key(home: Path) -> None:
    (home / "keys" / "audit-seal.key").unlink()
    code, said = await forbear(home, "keys", "replace", "sealing", "--lost", "--yes", **OPERATOR)
    assert code == 0, said


async def decided(on: Stage, operation_id: str, option: str) -> str:
    """What is said of a decision that must not be possible."""
    named = ("decide", operation_id, option, "--yes", "--confirm", option)
    code, said = await forbear(on.home, *named, **OPERATOR)
    assert code != 0, said
    await on.passes(1)
    return said


@pytest.mark.parametrize("how", ["emptied", "lost"])
async def test_a_write_is_not_done_anew_without_what_it_said(tmp_path: Path, how: str) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, states=None, calls=CALLS) as provider:
        provider.script(WRITE, Answer(422), Answer(500))
        async with process(provider, tmp_path, clock) as on:
            rejected, unclear = [(await on.write(sum))["operation_id"] for sum in (7, 8)]
            if how == "emptied":
                await later(on, 31 * DAY)
                await until_emptied(on, rejected)
        if how == "lost":
            await lose_the_sealing_key(tmp_path)
        sent = provider.count(WRITE)
        async with process(provider, tmp_path, clock) as on:
            assert "request_decision" not in (await on.full(rejected))["allowed_actions"]
            wish = {"option": "resubmit", "reason": "again"}
            asked = error(await on.call("request_decision", operation_id=rejected, **wish))
            assert asked["code"] == "option_not_offered"
            assert "resubmit is not possible" in await decided(on, rejected, "resubmit")
            _, told = await forbear(tmp_path, "show", rejected)
            assert "anew on purpose" not in told
            if how == "lost":
                options = (await on.full(unclear))["escalation"]["options"]
                assert "send_new" not in [one["id"] for one in options]
                assert "send_new is not offered" in await decided(on, unclear, "send_new")
            assert provider.count(WRITE) == sent


async def test_a_job_whose_key_is_lost_is_neither_cancelled_nor_fetched(tmp_path: Path) -> None:
    clock = ManualClock()
    async with furnished(tmp_path, JOB, states=("done",)) as provider:
        async with process(provider, tmp_path, clock) as on:
            done = await on.submit("a")
            assert (await on.end_of(done))["state"] == "succeeded"
            provider.job("exp_2", FOREVER)
            running = await on.submit("b")
        await lose_the_sealing_key(tmp_path)
        sent = len(provider.arrivals)
        async with process(provider, tmp_path, clock) as on:
            refused = error(await on.call("fetch_result", operation_id=done))
            assert "not known any more" in refused["message"]
            refused = error(await on.call("cancel_job", operation_id=running, reason="enough"))
            assert "not known any more" in refused["message"]
            assert "not possible" in await decided(on, running, "cancel_at_provider")
            assert (await on.due(running))["state"] == "escalated"
            assert len(provider.arrivals) == sent
            assert (provider.count(CANCEL), provider.count(RESULT)) == (0, 0)
