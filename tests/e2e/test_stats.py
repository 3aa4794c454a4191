"""`forbear stats`: the quality of a real run, measured from what is stored of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.e2e.harness import (
    HOUR,
    MINUTE,
    NO_RESULT,
    TRANSFER,
    WRITE,
    Data,
    forbear,
    says,
    stage,
)
from tests.opened import rewrite

from forbear.rules.model import Option
from forbear.server.cli.stats import measure
from forbear.server.fake import Answer, Drop, retry_after
from forbear.storage.schema import attempts

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("A07")]

EVER = ("--since", "2020-01-01")
HINTED: Data = NO_RESULT | {"hints": {"next": [{"at": "/next_in", "unit": "s"}]}}


async def stats(home: Path, *options: str) -> Data:
    code, said = await forbear(home, "stats", "--json", *options)
    assert code == 0, said
    told: Data = json.loads(said[said.index("{") : said.rindex("}") + 1])
    return told


async def test_the_quality_of_a_run_is_measured(tmp_path: Path) -> None:
    calls = {"transfer": TRANSFER, "asked": TRANSFER | {"approval": "per_call"}}
    async with stage(tmp_path, HINTED, calls=calls) as on:
        on.script(
            says("queued", next_in=20),
            retry_after("90", 503),
            says("running", next_in=-1),
            says("done"),
        )
        job = await on.submit()
        await on.submit()
        assert (await on.end_of(job))["state"] == "succeeded"
        on.provider.script(WRITE, Drop(), Drop(), Drop(), Answer(422))
        for minutes, amount in ((2, 1), (10, 2), (180, 3)):
            write = (await on.write(amount))["operation_id"]
            on.clock.advance(minutes * MINUTE)
            if minutes < 180:
                await on.decide(write, Option.CONFIRM_NOT_DONE)
        dropped = await on.write(9, call="asked", wait_seconds=0)
        # This closes its case, and decides nothing.
        await on.call("end_task", operation_id=dropped["operation_id"])
        await on.settled()
        assert (await on.write(4))["state"] == "failed"
        requests = len(on.provider.arrivals)
        await on.settled()
    told = await stats(tmp_path, *EVER)
    ended = {"discarded": 1, "succeeded": 1, "failed": 3}
    assert told["operations"] == {
        "accepted": 6,
        "ended": ended,
        "with_a_person": 1,
        "overdue": 0,
        "under_way": 0,
        "concluded_share": 1.0,
    }
    guidance = told["guidance"]
    assert guidance == {"honoured": 2, "not_honoured": 0, "declined": 1, "honoured_share": 1.0}
    assert told["requests_saved"] == {"joined": 1, "coalesced": 0, "stored": 0, "total": 1}
    decisions = told["decisions"]
    assert decisions["count"] == 2
    assert 120 <= decisions["median_seconds"] < 130
    assert 600 <= decisions["p90_seconds"] < 610
    assert told["providers"] == [
        {
            "provider": "exp",
            "operations": 6,
            "requests": requests,
            "requests_per_operation": requests / 6,
        }
    ]
    code, said = await forbear(tmp_path, "stats", *EVER)
    assert code == 0
    assert "operations      6: 1 discarded, 3 failed, 1 succeeded, 1 with a person" in said
    assert "concluded       100.0 %\n" in said
    assert "guidance        100.0 % obeyed (2 of 2), 1 unusable or overruled" in said
    assert "median 2 m, nine in ten within 10 m" in said
    # What lies before the time that is asked for does not count.
    assert (await stats(tmp_path, "--since", "2999-01-01"))["operations"]["accepted"] == 0


async def test_a_request_before_its_time_is_told_whatever_was_planned(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT) as on:
        on.script(retry_after("300", 503), says("done"))
        job = await on.submit()
        await on.end_of(job)
    assert (await stats(tmp_path, *EVER))["guidance"]["honoured"] == 1
    early = sa.update(attempts).where(attempts.c.number == 3)
    rewrite(tmp_path, early.values(reserved_at=attempts.c.reserved_at - MINUTE))
    guidance = (await stats(tmp_path, *EVER))["guidance"]
    assert (guidance["honoured"], guidance["not_honoured"]) == (0, 1)
    assert guidance["honoured_share"] == 0


async def test_what_is_beyond_its_deadline_and_with_nobody_lowers_the_share(tmp_path: Path) -> None:
    calls = {"transfer": TRANSFER | {"approval": "per_call"}}
    async with stage(tmp_path, NO_RESULT, calls=calls) as on:
        await on.submit()
        await on.write()
        store, now = on.app.store, on.now
        within = await measure(store, 0, now)
        assert (within.overdue, within.asked, within.concluded) == (0, 1, 1.0)
        beyond = await measure(store, 0, now + HOUR)
        assert (beyond.overdue, beyond.asked, beyond.concluded) == (1, 1, 0.5)


@pytest.mark.sqlite  # a database is opened with the keys of a home, so that is made
async def test_an_empty_home_has_nothing_to_measure_and_stays_empty(tmp_path: Path) -> None:
    home = tmp_path / "home"
    told = await stats(home)
    assert told["operations"]["concluded_share"] is None
    assert told["providers"] == []
    assert not home.exists()
    code, said = await forbear(home, "stats")
    assert (code, "operations      0:" in said) == (0, True)
    assert "No process is alive" in said
    assert (await forbear(home, "stats", "--since", "soon"))[0] == 2
