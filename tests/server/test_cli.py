"""The commands as people use them: what they print, what they change, how they exit."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.commanding import (
    RUNNING,
    TIGHT,
    TOKEN,
    Ran,
    Run,
    at_a_terminal,
    child_environment,
    drive,
    ends,
    is_unclear,
    state_of,
    stops,
    waits,
)
from tests.tools.driving import CONTRACT, Driver

from forbear.rules.model import Kind, State
from forbear.rules.taskbudget import TaskLimits
from forbear.server import cli
from forbear.server.cli.terminal import Failure
from forbear.server.cli.trying import pairs
from forbear.server.config import Settings
from forbear.tools.caller import Caller
from forbear.tools.inbox import Entry
from forbear.tools.wishes import BadWish, instant

# --- what there is --------------------------------------------------------------------------


def test_a_new_home_has_nothing_and_is_not_made_by_looking(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "elsewhere"))
    listed = run("ls")
    assert (listed.code, listed.out) == (0, "No operations yet.\n")
    assert "No process is alive that could send" in listed.err
    assert run("inbox").code == 0
    assert run("ls", "--json").json() == {"operations": []}
    assert not (tmp_path / "elsewhere").exists()


def test_ls_lists_active_operations_first_and_filters_by_state(home: Path, run: Run) -> None:
    async def two(job: Driver) -> tuple[str, str]:
        first = await ends(job)
        await job.submit(dataset="other")
        return first, job.op_id

    done, queued = drive(home, two)
    listed = run("ls")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == [queued, done]
    assert "Export sales-2026" in listed.out
    only = run("ls", "--state", "succeeded", "--json").json()["operations"]
    assert [one["operation_id"] for one in only] == [done]
    assert only[0]["may_proceed"] is True


def test_a_state_that_is_none_is_wrong_usage_and_names_those_that_are(run: Run) -> None:
    refused = run("ls", "--state", "running")
    assert refused.code == 2
    assert "queued, sending, waiting" in refused.err


def test_show_tells_the_story_the_case_and_each_option_with_its_command(
    home: Path, run: Run
) -> None:
    op_id = drive(home, stops)
    shown = run("show", op_id)
    assert shown.code == 0
    assert "10:20:00Z submitted job exp_71c" in shown.out
    assert "1 submit · 1 check · 0 repeats" in shown.out
    assert "External job needs a decision" in shown.out
    assert "forbear decide 1 treat_as --as waiting|blocked|failed|cancelled" in shown.out
    assert "forbear decide 1 abandon" in shown.out


def test_show_as_json_is_the_full_record_and_nothing_else_on_stdout(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    told = run("show", op_id, "--json").json()
    assert told["state"] == "escalated"
    assert told["escalation"]["number"] == 1
    assert told["timeline"][0] == "2026-11-30"
    assert told["children"] == []


def test_ids_may_be_shortened_to_a_unique_beginning(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    assert op_id in run("show", op_id[:8]).out
    assert op_id in run("show", op_id.removeprefix("op_")).out


def test_an_ambiguous_beginning_names_the_candidates(home: Path, run: Run) -> None:
    async def two(job: Driver) -> list[str]:
        first = await job.submit(dataset="a")
        second = await job.submit(dataset="b")
        return [first.id, second.id]

    ids = drive(home, two)
    refused = run("show", "op_a")
    assert refused.code == 2
    assert all(one in refused.err for one in ids)


def test_an_unknown_operation_says_where_to_look(run: Run) -> None:
    refused = run("show", "op_nothing")
    assert refused.code == 2
    assert "`forbear ls`" in refused.err


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (waits, "The provider works: it last said 'running'"),
        (stops, "10:21:52Z: unknown_state. Nothing is sent until a person"),
        (ends, "It is over: it succeeded at"),
        (is_unclear, "unclear_write"),
    ],
)
def test_why_says_in_a_paragraph_what_it_waits_for(
    home: Path, run: Run, steps: Callable[[Driver], Awaitable[str]], says: str
) -> None:
    op_id = drive(home, steps)
    told = run("why", op_id)
    assert told.code == 0
    assert says in told.out
    assert len(told.out.splitlines()) == 1


@pytest.mark.parametrize("target", ["exp", "all"])
def test_why_names_the_pause_that_holds_it_and_what_undoes_it(
    home: Path, run: Run, target: str
) -> None:
    op_id = drive(home, waits)
    run("pause", target)
    told = run("why", op_id)
    assert f" paused {target} at " in told.out
    assert f"`forbear resume {target}` lets it go on" in told.out
    run("resume", target)
    assert "The provider works" in run("why", op_id).out


def test_why_says_when_nobody_alive_could_go_on(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    told = run("why", op_id)
    assert (told.out + told.err).count("No process is alive that could send") == 1


def test_why_says_that_the_sender_of_a_request_is_gone_and_nothing_else_of_it(
    home: Path, run: Run
) -> None:
    async def killed(job: Driver) -> str:
        await job.accepted()
        await job.reserve()
        return job.op_id

    told = run("why", drive(home, killed)).out
    assert "A status request left at" in told
    assert "the process that sent it is gone" in told
    assert "is out" not in told


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "https://api.exp.example/v1",
            "https://api.exp.example/v2",
            "It was started at https://api.exp.example, and the contract now says "
            "https://api.exp.example/v2",
        ),
        ('"GET /exports/{id}"', '"GET /jobs/{id}"', "now states other requests"),
        ("acct_17", "acct_18", "It belongs to account acct_17, and the contract now says acct_18"),
        ("[jobs.export", "[jobs.other", "has no export any more"),
        ("contract = 1", "contract = 2", "does not load"),
    ],
)
def test_why_names_what_is_another_in_the_present_contract(
    home: Path, run: Run, old: str, new: str, says: str
) -> None:
    op_id = drive(home, waits)
    text = CONTRACT.replace(old, new)
    (home / "contracts" / "exp.toml").write_text(text, encoding="utf-8")
    told = run("why", op_id).out
    assert says in told
    assert ("offers `rebind`" in told) is ("put back what it was" in told)


def test_why_tells_what_a_failure_was_and_who_discarded_what(
    home: Path, run: Run, operator: None
) -> None:
    async def fails(job: Driver) -> tuple[str, str]:
        await job.accepted()
        error = {"code": "bad_column", "message": "no column x"}
        await job.answer(200, {"id": "exp_71c", "state": "failed", "error": error})
        failed = job.op_id
        job.clock.advance(5_000)
        await job.submit(dataset="other")
        await job.silence()
        return failed, job.op_id

    failed, unclear = drive(home, fails)
    told = run("why", failed).out
    assert "the last answer was 200; code bad_column; no column x" in told
    assert run("decide", "1", "abandon", "--comment", "not needed", "--yes").code == 0
    told = run("why", unclear).out
    assert "decided abandon at" in told
    assert 'saying "not needed"' in told


def test_why_names_a_living_process_that_lacks_the_contract(home: Path, run: Run) -> None:
    async def looked_at(job: Driver) -> Ran:
        await waits(job)
        ledger = job.store.ledger
        await job.store.write(partial(ledger.register, role="serve", pid=1, bindings=["other"]))
        return await asyncio.to_thread(run, "why", job.op_id)

    told = drive(home, looked_at)
    assert "The living process cannot run it. The key of exp is missing there." in told.out
    assert "No process is alive" not in told.err


def test_wait_ends_at_once_for_what_is_over_and_tells_its_story(home: Path, run: Run) -> None:
    op_id = drive(home, ends)
    waited = run("wait", op_id)
    assert waited.code == 0
    assert waited.out.endswith("1 submit · 1 check · 0 repeats · 1 m 52 s\n")


def test_wait_exits_1_where_a_person_is_needed(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    waited = run("wait", op_id)
    assert waited.code == 1
    assert "forbear decide 1" in waited.err


def test_wait_gives_up_after_its_time(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    waited = run("wait", op_id, "--timeout", "0", "--json")
    assert waited.code == 1
    assert waited.json()["state"] == "waiting"
    assert f"forbear why {op_id}" in waited.err


# --- the inbox ------------------------------------------------------------------------------


def test_the_inbox_puts_doubtful_writes_first_in_lines_of_100_columns(home: Path, run: Run) -> None:
    async def two(job: Driver) -> None:
        await stops(job)
        job.clock.advance(5_000)
        await job.submit(dataset="a" * 60)
        await job.silence()

    drive(home, two)
    listed = run("inbox")
    assert listed.code == 1
    first, second, hint = listed.out.splitlines()
    assert first.startswith("2  NOW ")
    assert "sent, no answer" in first
    assert second.startswith("1  today")
    assert "unknown state paused" in second
    assert max(len(first), len(second)) <= 100
    assert hint.startswith("forbear show op_")


def test_the_columns_of_the_inbox_stand_under_each_other(home: Path, run: Run) -> None:
    async def many(job: Driver) -> None:
        for number in range(11):
            job.clock.advance(20_000)  # failures that come faster look like an outage
            await job.submit(dataset="a" * (7 * number % 40 + 1))
            await job.silence()

    drive(home, many)
    *lines, _ = run("inbox").out.splitlines()
    assert len(lines) == 11
    assert len({line.index("sent, no answer") for line in lines}) == 1
    assert len({line.index("mark as done") for line in lines}) == 1
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, 12)]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("past", "says"), [(-240_000, ("today", "4m")), (1, ("LATE", "over"))])
def test_a_case_whose_time_is_over_is_late_and_has_none_left(
    home: Path, past: int, says: tuple[str, str]
) -> None:
    async def stopped(job: Driver) -> Entry:
        op = await job.store.read.operation(await stops(job))
        case = await job.store.read.open_case(job.op_id)
        assert op is not None
        assert op.useful_until is not None
        assert case is not None
        return Entry(case, op, op.useful_until + past)

    limited = CONTRACT.replace("max_status_requests = 12", 'useful_for = "1h"')
    entry = drive(home, stopped, limited)
    assert (entry.cells[1], entry.cells[3]) == says


def test_the_inbox_as_json_has_all_that_a_decision_needs(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    listed = run("inbox", "--json")
    assert listed.code == 1
    [case] = listed.json()["cases"]
    assert (case["number"], case["operation_id"]) == (1, op_id)
    assert next(option["id"] for option in case["options"]) == "treat_as"


def test_an_empty_inbox_exits_0(home: Path, run: Run) -> None:
    drive(home, waits)
    listed = run("inbox")
    assert (listed.code, listed.out) == (0, "Nothing needs a decision.\n")


# --- decisions ------------------------------------------------------------------------------


@pytest.mark.usefixtures("operator")
def test_a_decision_is_carried_out_and_recorded_with_its_person_and_channel(
    home: Path, run: Run
) -> None:
    op_id = drive(home, stops)
    decided = run("decide", "1", "treat_as", "--as", "waiting", "--comment", "seen it", "--yes")
    assert decided.code == 0
    assert f"Decided: treat_as. {op_id} is waiting." in decided.out
    assert "No process is alive that could send" in decided.err
    state, decision = state_of(home, op_id)
    assert state is State.WAITING
    assert decision is not None
    assert decision["option"] == "treat_as"
    assert decision["channel"] == "token"
    assert decision["same_user"] is True
    assert decision["comment"] == "seen it"
    assert decision["operator"]
    assert "decided treat_as (as waiting) with the operator token" in run("show", op_id).out


@pytest.mark.usefixtures("operator")
def test_the_second_of_two_decisions_exits_1_and_shows_the_new_state(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    assert run("decide", "1", "abandon", "--yes").code == 0
    second = run("decide", "1", "treat_as", "--as", "waiting", "--yes")
    assert second.code == 1
    assert f"{op_id} is discarded now. Nothing was decided." in second.err


@pytest.mark.usefixtures("operator")
def test_two_decisions_at_the_same_time_leave_one(home: Path) -> None:
    drive(home, stops)
    command = [sys.executable, "-m", "forbear", "decide", "1"]
    wishes = (["abandon"], ["treat_as", "--as", "waiting"])
    both = [
        subprocess.Popen(
            [*command, *wish, "--yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for wish in wishes
    ]
    ended = [(child.communicate(timeout=60), child.returncode) for child in both]
    assert sorted(code for _, code in ended) == [0, 1], ended


@pytest.mark.usefixtures("operator")
def test_a_dry_run_says_what_would_follow_and_changes_nothing(home: Path, run: Run) -> None:
    async def exhausted(job: Driver) -> str:
        await job.accepted()
        await job.answer(200, RUNNING)
        return job.op_id

    op_id = drive(home, exhausted, TIGHT)
    told = run("decide", "1", "extend", "--requests", "2", "--dry-run")
    assert told.code == 0
    assert told.out.startswith(f"{op_id} would be waiting. Nothing was changed.\n")
    assert "status requests 1 of 3" in told.out
    case = run("inbox", "--json").json()["cases"][0]
    assert case["operation_id"] == op_id


@pytest.mark.usefixtures("operator")
def test_an_extension_grants_what_was_asked_within_the_contract(home: Path, run: Run) -> None:
    async def exhausted(job: Driver) -> None:
        await waits(job)

    drive(home, exhausted, TIGHT)
    decided = run("decide", "1", "extend", "--minutes", "5", "--requests", "99", "--yes", "--json")
    told = decided.json()
    assert decided.code == 0
    assert "--requests lowered to 4, the contract's extension" in decided.err
    assert "--minutes lowered" not in decided.err
    assert told["operation"]["budgets"]["status_requests"] == {"used": 1, "max": 5}
    assert told["decision"]["extend_by"] == 300_000


def test_minutes_above_the_extension_are_lowered_and_it_is_said(home: Path, run: Run) -> None:
    drive(home, waits, TIGHT)
    told = run("decide", "1", "extend", "--minutes", "90", "--dry-run")
    assert "--minutes lowered to 15 minutes, the contract's extension" in told.err


def test_a_dry_run_speaks_of_no_status_requests_where_there_are_none(home: Path, run: Run) -> None:
    async def held(job: Driver) -> str:
        await waits(job)
        caller = Caller("local", "test", "test")
        await job.desk.cancel_job(
            job.op_id, reason="no longer wanted", wait_seconds=0, caller=caller, report=None
        )
        [cancellation] = await job.store.read.children(job.op_id)
        return cancellation.id

    op_id = drive(home, held)
    told = run("decide", "1", "approve", "--dry-run")
    assert told.code == 0, told.err
    assert told.out.startswith(f"{op_id} would be queued. Nothing was changed.\n")
    assert "status requests" not in told.out


def test_an_unknown_case_is_named_before_any_token_is_asked_for(home: Path, run: Run) -> None:
    drive(home, stops)
    assert "There is no case '9'" in run("decide", "9", "abandon", "--yes").err


@pytest.mark.parametrize("command", ["show", "why", "wait"])
def test_an_operation_may_be_named_by_its_number_in_the_inbox(
    home: Path, run: Run, command: str
) -> None:
    drive(home, stops)
    told = run(command, "1")
    assert "exp_71c" in told.out or "unknown_state" in told.out
    assert run(command, "2").code == 2


@pytest.mark.usefixtures("operator")
def test_cancelling_at_the_provider_queues_a_cancellation_that_the_case_allows(
    home: Path, run: Run
) -> None:
    op_id = drive(home, stops)
    decided = run("decide", "1", "cancel_at_provider", "--yes")
    assert decided.code == 0
    assert "The cancellation is op_" in decided.err

    async def children(job: Driver) -> list[tuple[Kind, State, str]]:
        cases = await job.store.read.cases_of(op_id)
        found = await job.store.read.children(op_id)
        assert found[0].authorisation == cases[0].id
        assert found[0].approve_by is None
        return [(one.kind, one.state, one.action) for one in found]

    assert drive(home, children) == [(Kind.CANCEL, State.QUEUED, "export")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("1", "obliterate"), "There is no option 'obliterate'"),
        (("1", "approve"), "choose one of: treat_as"),
        (("1", "treat_as"), "needs --as with one of waiting"),
        (("1", "treat_as", "--as", "succeeded"), "needs --as with one of waiting"),
        (("1", "abandon", "--minutes", "5"), "--minutes belongs to extend"),
        (("1", "hold", "--until", "teatime"), "is no time; write 30m"),
        (("1", "extend", "--minutes", "1e306"), "is no length of time"),
        (("1", "extend", "--minutes", "-5"), "choose one of: treat_as"),
        (("1", "extend", "--minutes", "nan"), "--minutes nan is no length of time"),
        (("1", "extend", "--minutes", "inf"), "--minutes inf is no length of time"),
        (("9" * 19, "abandon"), "There is no case '9999999999999999999'."),
        (("9", "abandon"), "There is no case '9'. `forbear inbox` lists them."),
    ],
)
@pytest.mark.usefixtures("operator")
def test_a_wrong_wish_is_refused_with_the_right_words(
    home: Path, run: Run, arguments: tuple[str, ...], says: str
) -> None:
    op_id = drive(home, stops)
    refused = run("decide", *arguments, "--yes")
    assert refused.code == 2
    assert says in refused.err
    assert state_of(home, op_id)[0] is State.ESCALATED


def test_without_terminal_and_token_nothing_is_decided_and_the_fix_is_named(
    home: Path, run: Run
) -> None:
    op_id = drive(home, stops)
    refused = run("decide", "1", "abandon", "--yes")
    assert refused.code == 2
    assert "set FORBEAR_OPERATOR_TOKEN and add --yes" in refused.err
    assert state_of(home, op_id)[0] is State.ESCALATED


def test_the_first_token_of_a_home_counts_from_then_on(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, stops)
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", "the-first")
    assert run("decide", "1", "hold", "--yes").code == 0
    assert (home / "keys" / "operator").stat().st_mode & 0o777 == 0o600
    assert "the-first" not in (home / "keys" / "operator").read_text()
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", "made-up")
    refused = run("decide", "1", "abandon", "--yes")
    assert refused.code == 2
    assert "is not the operator token" in refused.err
    assert state_of(home, op_id)[0] is State.WAITING


@pytest.mark.usefixtures("operator")
def test_a_wrong_token_or_a_missing_yes_decides_nothing(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_id = drive(home, stops)
    assert "Add --yes" in run("decide", "1", "abandon").err
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", "wrong")
    refused = run("decide", "1", "abandon", "--yes")
    assert refused.code == 2
    assert "is not the operator token" in refused.err
    assert state_of(home, op_id)[0] is State.ESCALATED


@pytest.mark.parametrize(("typed", "code", "state"), [("y", 0, "discarded"), ("", 1, "escalated")])
def test_at_a_terminal_one_y_decides_and_anything_else_does_not(
    home: Path, typed: str, code: int, state: str
) -> None:
    op_id = drive(home, stops)
    with at_a_terminal("decide", "1", "abandon") as terminal:
        terminal.until("[y/N]")
        terminal.type(f"{typed}\n")
        assert terminal.end() == code
    assert b"External job needs a decision" in terminal.seen
    now, decision = state_of(home, op_id)
    assert now == state
    assert decision is None or decision["channel"] == "terminal"


def test_ctrl_c_at_the_question_decides_nothing_whatever_is_typed_next(home: Path) -> None:
    op_id = drive(home, stops)
    with at_a_terminal("decide", "1", "abandon") as terminal:
        terminal.until("[y/N]")
        terminal.type("\x03")
        terminal.until("Nothing was decided.")
        terminal.type("y\n")
        assert terminal.end() == 130
    assert state_of(home, op_id)[0] is State.ESCALATED


# --- the processes that send ----------------------------------------------------------------


def test_a_worker_is_seen_by_the_other_commands_and_stops_when_asked(home: Path, run: Run) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "forbear", "worker"],
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert worker.stderr is not None
    try:
        assert "1 job under contract" in worker.stderr.readline()
        while "No process is alive" in run("ls").err:
            assert worker.poll() is None
        assert f"worker (process {worker.pid}) can send" in run("doctor").out
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert "No process is alive" in run("ls").err


def test_a_decision_that_nobody_alive_can_execute_says_so(
    home: Path, run: Run, operator: None
) -> None:
    async def decided(job: Driver) -> Ran:
        await stops(job)
        ledger = job.store.ledger
        await job.store.write(partial(ledger.register, role="serve", pid=1, bindings=["other"]))
        return await asyncio.to_thread(run, "decide", "1", "treat_as", "--as", "waiting", "--yes")

    ran = drive(home, decided)
    assert ran.code == 0
    assert "The living process cannot run it" in ran.err


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_serve_at_a_terminal_says_what_it_is_and_ends_when_asked(home: Path, how: str) -> None:
    with at_a_terminal("serve") as terminal:
        terminal.until("an MCP client starts this")
        # It has signed on once its sign of life is there.
        while not list((home / "run").glob("own_*")):
            assert terminal.child.poll() is None
        terminal.type("\x03") if how == "Ctrl-C" else terminal.child.terminate()
        assert terminal.end() == 0
    assert b"Traceback" not in terminal.seen
    assert list((home / "run").iterdir()) == []


# --- trying ---------------------------------------------------------------------------------

LOOPBACK = """\
contract = 1
base_url = "{base_url}"
auth = "none"

[jobs.export]
title = "Export a data set"
deadline = "60s"
submit = "POST /exports"
body = {{ dataset = "{{arg.dataset}}" }}
id = "/id"
status = "GET /exports/{{id}}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
result = "GET {{/result/url}}"

[jobs.export.input]
type = "object"
required = ["dataset"]
properties.dataset = {{ type = "string" }}

[jobs.export.backoff]
first = "100ms"
base = "100ms"
max = "1s"

[calls.customer]
method = "GET"
path = "/customers/{{arg.id}}"

[calls.note]
class = "idempotent_write"
idempotent = "by_nature"
method = "POST"
path = "/notes"
body = {{ text = "{{arg.text}}" }}
"""

FAKE = """
import asyncio, sys
from forbear.server.fake import Answer, FakeProvider

async def main():
    async with FakeProvider() as provider:
        provider.job("exp_1", ["queued", "done"], result={"rows": 3})
        provider.job("exp_2", ["done"], result={"rows": 4})
        provider.script("GET /customers/7", Answer(200, {"name": "Ada"}))
        provider.script("POST /notes", Answer(200, {"id": "note_1"}))
        print(provider.base_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def provider(home: Path) -> Iterator[str]:
    """A fake provider in a process of its own, and its contract in the home."""
    child = subprocess.Popen(
        [sys.executable, "-c", FAKE], stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    assert child.stdout is not None
    base_url = child.stdout.readline().strip()
    text = LOOPBACK.format(base_url=base_url)
    (home / "contracts" / "shop.toml").write_text(text, encoding="utf-8")
    yield base_url
    child.kill()
    child.communicate()


@pytest.mark.usefixtures("provider")
def test_try_submits_watches_and_fetches_as_an_agent_would(run: Run) -> None:
    tried = run("try", "shop.export", "dataset=sales")
    assert tried.code == 0
    assert "submitted job exp_1" in tried.out
    assert "all required fields present: succeeded" in tried.out
    assert "1 submit · 2 checks" in tried.out
    assert 'result: {"rows": 3}' in tried.out


@pytest.mark.usefixtures("provider")
def test_try_as_json_writes_the_result_operation_and_nothing_else(run: Run) -> None:
    told = run("try", "shop.export", "dataset=sales", "--json").json()
    assert told["kind"] == "result"
    assert told["result"]["inline"] == {"rows": 3}


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("shop.export",), "/arguments/dataset: is missing"),
        (("shop.export", "dataset:=5"), "/arguments/dataset: must be text"),
        (("shop.export", "dataset"), "is not KEY=VALUE"),
        (("shop.export", "dataset:=x"), "after := must come JSON"),
        (("shop.exports", "dataset=x"), "nearest: export"),
        (("shopp.export", "dataset=x"), "does not manage shopp"),
        (("shop",), "is not PROVIDER.ACTION"),
    ],
)
def test_a_wrong_try_is_wrong_usage_and_stores_nothing(
    run: Run, arguments: tuple[str, ...], says: str
) -> None:
    refused = run("try", *arguments)
    assert refused.code == 2
    assert says in refused.err
    assert run("ls", "--json").json() == {"operations": []}


@pytest.mark.usefixtures("provider")
def test_try_makes_calls_too_and_shows_what_they_brought(run: Run) -> None:
    read = run("try", "shop.customer", "id=7")
    assert (read.code, read.out.splitlines()[-1]) == (0, 'result: {"name": "Ada"}')
    written = run("try", "shop.note", "text=hello", "--json")
    assert written.code == 0
    assert written.json()["kind"] == "call"
    assert written.json()["request_class"] == "idempotent_write"
    assert run("try", "shop.customer", "id=7", "--key", "k").code == 2


@pytest.mark.usefixtures("provider")
def test_the_same_try_again_shows_the_result_that_there_is_and_how_to_go_on(run: Run) -> None:
    first = run("try", "shop.export", "dataset=sales", "--json").json()
    for more in ((), ("--again",)):
        again = run("try", "shop.export", "dataset=sales", *more)
        assert again.code == 1
        assert 'result: {"rows": 3}' in again.out
        assert "and it is succeeded. Nothing was sent now." in again.err
        assert f"`forbear show {first['parent_operation_id']}`" in again.err
        assert "run this at a terminal and answer y" in again.err
    assert len(run("ls", "--json").json()["operations"]) == 2


def test_again_needs_nobody_where_the_contract_lets_it_be_asked_for(
    home: Path, provider: str, run: Run
) -> None:
    text = LOOPBACK.format(base_url=provider).replace("deadline", 'repeat = "key"\ndeadline', 1)
    (home / "contracts" / "shop.toml").write_text(text, encoding="utf-8")
    assert run("try", "shop.export", "dataset=sales").code == 0
    again = run("try", "shop.export", "dataset=sales", "--again")
    assert again.code == 0
    assert 'result: {"rows": 4}' in again.out


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("typed", "code", "rows"), [("y", 0, "4"), ("n", 1, "3"), ("\x03", 130, "")]
)
def test_at_a_terminal_a_person_allows_the_same_to_be_done_again(
    run: Run, typed: str, code: int, rows: str
) -> None:
    assert run("try", "shop.export", "dataset=sales").code == 0
    with at_a_terminal("try", "shop.export", "dataset=sales") as terminal:
        terminal.until("Do it again? [y/N]")
        terminal.type(f"{typed}\n")
        assert terminal.end() == code
    assert (f'{{"rows": {rows}}}' in terminal.seen.decode()) is bool(rows)


def test_a_result_that_cannot_be_fetched_fails_the_try_in_words_for_people(
    home: Path, provider: str, run: Run
) -> None:
    text = LOOPBACK.format(base_url=provider)
    text = text.replace('result = "GET {/result/url}"', "") + (
        '\n[jobs.export.success]\ntake = { link = "/result/link" }\n'
        '\n[jobs.export.result]\nmethod = "GET"\nurl = "{result.link}"\n'
    )
    (home / "contracts" / "shop.toml").write_text(text, encoding="utf-8")
    tried = run("try", "shop.export", "dataset=sales")
    assert tried.code == 1
    assert "succeeded, but its result cannot be fetched" in tried.err
    assert "contract check" in tried.err
    assert "the user" not in tried.err


def test_an_argument_given_twice_is_wrong_usage() -> None:
    with pytest.raises(Failure, match="dataset is given twice"):
        pairs(["dataset=a", "dataset=b"])
    with pytest.raises(Failure, match="rows is given twice"):
        pairs(["rows=a", "rows:=5"])


def test_arguments_are_text_unless_they_say_that_they_are_json() -> None:
    assert pairs(["a=5", "b:=5", "c=x=y", "d:=[true, null]"]) == {
        "a": "5",
        "b": 5,
        "c": "x=y",
        "d": [True, None],
    }


# --- contracts ------------------------------------------------------------------------------


def test_a_good_contract_is_checked_with_its_report_and_examples(home: Path, run: Run) -> None:
    example = """
[[examples]]
on = "jobs.export.status"
http = 200
body = '{"id": "7", "state": "running"}'
expect = "waiting"
"""
    (home / "contracts" / "exp.toml").write_text(CONTRACT + example, encoding="utf-8")
    checked = run("contract", "check")
    assert checked.code == 0
    assert "provider exp, no mistakes" in checked.out
    assert "status requests cover" in checked.out
    assert "1 of 1 examples come out" in checked.out


def test_every_mistake_is_named_with_file_line_and_fix(home: Path, run: Run) -> None:
    bad = CONTRACT.replace('usual = "10m"', 'usual = "10 minutes"').replace('id = "/id"', "")
    (home / "contracts" / "exp.toml").write_text(bad, encoding="utf-8")
    checked = run("contract", "check")
    assert checked.code == 1
    line = bad.splitlines().index('usual = "10 minutes"') + 1
    assert f"exp.toml:{line}: jobs.export" in checked.out
    assert len(checked.out.splitlines()) >= 2
    assert not run("contract", "check", "--json").json()["files"][0]["ok"]


def test_a_contract_of_the_home_is_checked_by_its_name(home: Path, run: Run) -> None:
    (home / "contracts" / "shop.toml").write_text(CONTRACT, encoding="utf-8")
    by_name = run("contract", "check", "shop")
    assert (by_name.code, by_name.out) == (
        0,
        run("contract", "check", str(home / "contracts" / "shop.toml")).out,
    )
    assert "nobody:1: (file): is not there" in run("contract", "check", "nobody").out


def test_an_example_that_does_not_come_out_fails_the_check(home: Path, run: Run) -> None:
    wrong = '[[examples]]\non = "jobs.export.status"\nhttp = 429\nbody = ""\nexpect = "waiting"\n'
    (home / "contracts" / "exp.toml").write_text(CONTRACT + wrong, encoding="utf-8")
    checked = run("contract", "check")
    assert checked.code == 1
    assert "expected waiting, concluded rate_limited" in checked.out


def test_an_input_schema_that_is_none_fails_the_check(home: Path, run: Run) -> None:
    wrong = '\n[jobs.export.input]\ntype = "object"\nproperties.dataset = { type = "texty" }\n'
    (home / "contracts" / "exp.toml").write_text(CONTRACT + wrong, encoding="utf-8")
    checked = run("contract", "check")
    assert checked.code == 1
    assert "jobs.export.input: 'texty'" in checked.out


def test_a_pasted_answer_is_concluded_from(home: Path, run: Run, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text('{"id": "7", "state": "paused"}', encoding="utf-8")
    file = str(home / "contracts" / "exp.toml")
    told = run("contract", "check", file, "--sample", str(answer))
    assert told.out.splitlines() == [
        "jobs.export.status, 200: unknown_state",
        "  read the state 'paused'",
        "  no row has it -> add it to one of waiting, succeeded, failed",
    ]
    assert run("contract", "check", file, "--sample", "nowhere.json").code == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"id": "7", "state": "done"}, "missing: /result/url"),
        ({"id": "7"}, "there is no word where the contract reads the state"),
        ({"id": "7", "state": "failed", "error": {"code": "x"}}, "read the failure 'x'"),
    ],
)
def test_a_pasted_answer_tells_what_was_read_and_what_is_missing(
    home: Path, run: Run, tmp_path: Path, answer: dict[str, Any], says: str
) -> None:
    sample = tmp_path / "answer.json"
    sample.write_text(json.dumps(answer), encoding="utf-8")
    file = str(home / "contracts" / "exp.toml")
    assert says in run("contract", "check", file, "--sample", str(sample)).out


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ("export", "'export' names no request; there are jobs.export, calls.customer"),
        ("jobs.export", "has no part named: write one of submit, status"),
    ],
)
def test_a_request_that_is_none_is_named_with_those_that_are(
    home: Path, run: Run, tmp_path: Path, on: str, says: str
) -> None:
    sample = tmp_path / "answer.json"
    sample.write_text("{}", encoding="utf-8")
    file = str(home / "contracts" / "exp.toml")
    refused = run("contract", "check", file, "--sample", str(sample), "--on", on)
    assert refused.code == 2
    assert says in refused.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"contract = 1\n# caf\xe9\n", ":2: (file): is not UTF-8 text (byte 0xe9)"),
        (b"\xef\xbb\xbfcontract = 1\n", ":1: (file): begins with a byte order mark"),
        (b"contract = 1\ncontract = 1\n", ":2: contract: is there twice"),
        (None, ":1: (file): is not there"),
        ("folder", ":1: (file): is a folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_words(
    run: Run, tmp_path: Path, content: bytes | str | None, says: str
) -> None:
    file = tmp_path / "one.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "folder":
        file.mkdir()
    checked = run("contract", "check", str(file))
    assert checked.code == 1
    assert says in checked.out
    assert " -> " in checked.out


def test_a_home_without_contracts_says_how_to_begin(home: Path, run: Run) -> None:
    (home / "contracts" / "exp.toml").unlink()
    checked = run("contract", "check")
    assert checked.code == 2
    assert "forbear init" in checked.err


def test_the_schema_of_contracts_is_json(run: Run) -> None:
    assert run("contract", "schema").json()["title"].startswith("Forbear provider contract")


def test_the_schema_is_written_with_the_lines_that_editors_need(
    home: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "a folder" / "contract.schema.json"
    refused = run("contract", "schema", "--out", str(out))
    assert refused.code == 2
    assert str(out) in refused.err
    out.parent.mkdir()
    told = run("contract", "schema", "--out", str(out)).out
    assert json.loads(out.read_text(encoding="utf-8")) == run("contract", "schema").json()
    [line] = [each for each in told.splitlines() if "schema.associations" in each]
    (pattern, where), *_ = json.loads(f"{{{line}}}")["evenBetterToml.schema.associations"].items()
    assert where == out.as_uri()
    assert re.match(pattern, (home / "contracts" / "exp.toml").as_uri())
    assert not re.match(pattern, (home / "config.toml").as_uri())
    assert f"#:schema {out.as_uri()}" in told


def test_contracts_are_listed_with_their_keys_and_the_broken_ones_too(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXP_TOKEN")
    (home / "contracts" / "pay.toml").write_text("contract = 2\n", encoding="utf-8")
    exp, pay = run("contract", "list", "--json").json()["contracts"]
    assert exp["jobs"] == ["export"]
    assert "EXP_TOKEN is not set" in exp["credential_missing"]
    assert pay["errors"]
    assert "secret" not in run("contract", "list").out


# --- beginning and looking after ------------------------------------------------------------


def test_init_makes_a_home_whose_sample_passes_the_check_and_changes_nothing_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "new"
    monkeypatch.setenv("FORBEAR_HOME", str(home))
    first = run("init")
    assert first.code == 0
    assert "forbear try" in first.out
    sample = home / "contracts" / "first.sample"
    assert run("contract", "check", str(sample)).code == 0
    assert run("contract", "list").code == 0
    sample.write_text("# mine now\n", encoding="utf-8")
    again = run("init")
    assert again.code == 0
    assert "it was already there" in again.out
    assert sample.read_text("utf-8") == "# mine now\n"
    copy = f"cp {sample} {home / 'contracts' / 'NAME.toml'}"
    for command in (("doctor",), ("contract", "list"), ("contract", "check")):
        told = run(*command)
        assert copy in told.out + told.err


def test_doctor_finds_nothing_wrong_with_a_good_home(home: Path, run: Run) -> None:
    looked = run("doctor")
    assert looked.code == 0
    assert "contract exp: 1 job," in looked.out
    assert "schema 0" in looked.out
    assert "secret-of-exp" not in looked.out
    assert run("doctor", "--json").json()["ok"] is True


def test_doctor_names_a_missing_key_and_a_broken_contract_with_their_fixes(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXP_TOKEN")
    (home / "contracts" / "pay.toml").write_text("contract = 2\n", encoding="utf-8")
    looked = run("doctor")
    assert looked.code == 1
    assert (
        "env:EXP_TOKEN: EXP_TOKEN is not set -> set it and start this program again" in looked.out
    )
    assert "contract pay: 1 mistake: " in looked.out
    assert "-> write contract = 1" in looked.out


def test_doctor_says_of_a_command_whether_it_gives_a_key_and_never_the_key(
    home: Path, run: Run
) -> None:
    path = home / "contracts" / "exp.toml"
    text = path.read_text(encoding="utf-8")

    def looked(script: str) -> Ran:
        words = json.dumps([sys.executable, "-c", script])
        auth = f'auth = {{ scheme = "bearer", secret = "exec:", exec = {words} }}'
        path.write_text(text.replace('auth = "bearer env:EXP_TOKEN"', auth), encoding="utf-8")
        assert run("contract", "check", str(path)).code == 0
        return run("doctor")

    fine = looked("print('s3cr3t-T0ken')")
    assert fine.code == 0
    assert "key present" in fine.out
    wrong = looked("import sys; print('s3cr3t-T0ken'); sys.exit('locked: s3cr3t-T0ken')")
    assert wrong.code == 1
    assert "key of exp: exec: " in wrong.out
    assert "ended with 1, saying 'locked: [redacted]' -> run it yourself" in wrong.out
    assert "s3cr3t" not in fine.out + wrong.out


def test_a_key_that_only_a_living_process_has_is_a_note(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looked_at(job: Driver) -> Ran:
        held = job.book.holding("exp", "export")
        assert held is not None
        sign = partial(
            job.store.ledger.register, role="serve", pid=77, bindings=[held.action.binding]
        )
        await job.store.write(sign)
        return await asyncio.to_thread(run, "doctor")

    monkeypatch.delenv("EXP_TOKEN")
    looked = drive(home, looked_at)
    assert looked.code == 0
    assert "EXP_TOKEN is not set here; serve (process 77) has it" in looked.out


def test_doctor_names_what_others_can_read_and_how_to_close_it(home: Path, run: Run) -> None:
    drive(home, waits)
    home.chmod(0o755)
    (home / "keys").chmod(0o755)
    (home / "keys" / "store.key").chmod(0o644)
    (home / "config.toml").write_text(f'operator_token = "{TOKEN}"\n', encoding="utf-8")
    (home / "config.toml").chmod(0o644)
    looked = run("doctor")
    assert looked.code == 1
    for fix in ("chmod 700 {}/keys\n", "chmod 600 {}/keys/store.key", "chmod 600 {}/config.toml"):
        assert fix.format(home) in looked.out
    assert f"note     home: {home} has mode 0755" in looked.out


def test_doctor_looks_for_the_operator_token_in_the_file_that_states_it(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(home, waits)
    monkeypatch.setenv("FORBEAR_OPERATOR_TOKEN", TOKEN)
    (home / "config.toml").write_text("[task]\nmax_requests = 9\n", encoding="utf-8")
    (home / "config.toml").chmod(0o644)
    assert "config.toml can be read" not in run("doctor").out


@pytest.mark.requirement("R33")
def test_doctor_tells_of_proxies_that_are_never_used_by_name_alone(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert "proxy" not in run("doctor").out
    monkeypatch.setenv("https_proxy", "http://user:hidden@proxy.example")
    monkeypatch.setenv("NO_PROXY", "localhost")
    looked = run("doctor")
    assert looked.code == 0
    assert "note     proxy: NO_PROXY, https_proxy set, and never used: " in looked.out
    assert "-> none needed, unless only the proxy leads out" in looked.out
    assert "hidden" not in looked.out


@pytest.mark.requirement("R33")
def test_doctor_tells_of_the_proxy_that_is_used_and_what_it_lacks(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.toml").write_text(
        '[proxy]\nurl = "http://proxy.internal:3128"\nuser = "a"\npassword = "env:PROXY_PASSWORD"\n'
    )
    looked = run("doctor")
    assert looked.code == 1
    told = "PROBLEM  proxy: requests go through proxy.internal:3128, which resolves the names"
    assert told in looked.out
    assert "env:PROXY_PASSWORD: PROXY_PASSWORD is not set" in looked.out
    monkeypatch.setenv("PROXY_PASSWORD", "hidden-secret")
    looked = run("doctor")
    assert looked.code == 0
    assert "proxy: requests go through proxy.internal:3128" in looked.out
    assert "hidden-secret" not in looked.out


@pytest.mark.requirement("R33")
@pytest.mark.parametrize(
    ("declared", "fields", "code", "told", "fix"),
    [
        pytest.param(0, {}, 0, "", "", id="nothing"),
        pytest.param(0, {"x_envoy_attempt_count": "1"}, 0, "", "", id="sent once"),
        pytest.param(0, {"x_envoy_attempt_count": "some"}, 0, "", "", id="no number"),
        pytest.param(
            *(0, {"X_Envoy_Attempt_Count": "3"}, 1, "was sent 3 times below us"),
            "resends_below = 2 at the top of the file",
            id="RE-02 sent again",
        ),
        pytest.param(
            *(1, {"x_envoy_attempt_count": "3"}, 1, "declares 2"),
            "let that layer send nothing again",
            id="more than declared",
        ),
        pytest.param(
            *(2, {"x_envoy_attempt_count": "3"}, 0, "one request may arrive 3 times"),
            "remove resends_below from",
            id="as declared",
        ),
        pytest.param(
            *(0, {"Via": "1.1 gateway"}, 0, "through a proxy or gateway (Via)"),
            "write resends_below = N",
            id="a gateway",
        ),
    ],
)
def test_doctor_tells_of_layers_that_may_send_again(
    home: Path,
    run: Run,
    declared: int,
    fields: dict[str, str],
    code: int,
    told: str,
    fix: str,
) -> None:
    async def answered(job: Driver) -> None:
        await job.accepted()
        await job.answer(200, RUNNING, **fields)
        await job.answer(200, RUNNING)

    drive(home, answered, f"resends_below = {declared}\n{CONTRACT}")
    looked = run("doctor")
    lines = [line for line in looked.out.splitlines() if " layers of exp: " in line]
    assert looked.code == code
    assert len(lines) == bool(told)
    for line in lines:
        assert line.startswith("PROBLEM" if code else "note")
        assert told in line
        assert fix in line.partition(" -> ")[2]


def test_doctor_warns_of_a_relative_home(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("FORBEAR_HOME", "home")
    looked = run("doctor")
    assert looked.code == 0
    assert "'home' is relative: started elsewhere, the same setting is another" in looked.out
    assert f"-> set it to {home}\n" in looked.out


@pytest.mark.parametrize("command", [("ls",), ("doctor",), ("init",), ("serve",), ("try", "a.b")])
def test_a_home_that_is_a_file_is_a_sentence_and_exit_3(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("FORBEAR_HOME", str(file))
    refused = run(*command)
    assert refused.code == 3
    assert f"{file} is a file. Set it to a folder of yours." in refused.err


def test_a_missing_key_is_exit_3(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXP_TOKEN")
    refused = run("try", "exp.export", "dataset=sales")
    assert refused.code == 3
    assert "EXP_TOKEN is not set -> set it" in refused.err


def test_a_setting_that_is_none_is_wrong_usage_with_the_nearest_one(home: Path, run: Run) -> None:
    (home / "config.toml").write_text('operator_tokn = "x"\n', encoding="utf-8")
    refused = run("ls")
    assert refused.code == 2
    assert "operator_tokn is no setting; write operator_token" in refused.err


@pytest.mark.requirement("R05")
@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("task = 5", "task must be a table: [task]"),
        ("[task]\nmax_request = 5", "task.max_request is no setting; there are max_requests"),
        ("[task]\nmax_requests = 0", "task.max_requests: 0 is no number of 1 or more"),
        ("[task]\nmax_requests = true", "task.max_requests: True is no number of 1 or more"),
        ("[task]\nmax_wait = 7200", "task.max_wait: '7200' is no duration"),
    ],
)
def test_a_budget_of_tasks_that_is_none_is_wrong_usage(
    home: Path, run: Run, stated: str, said: str
) -> None:
    (home / "config.toml").write_text(stated, encoding="utf-8")
    refused = run("ls")
    assert refused.code == 2
    assert said in refused.err


@pytest.mark.requirement("R05")
def test_the_budget_of_tasks_is_what_the_settings_state(home: Path) -> None:
    stated = '[task]\nmax_requests = 7\nmax_wait = "10m"\n'
    (home / "config.toml").write_text(stated, encoding="utf-8")
    assert Settings.load().task == TaskLimits(7, 600_000, 200)


@pytest.mark.parametrize("command", [("ls",), ("show", "op_1"), ("inbox",), ("doctor",)])
def test_a_store_that_cannot_be_read_is_a_clear_sentence_and_exit_3(
    home: Path, run: Run, command: tuple[str, ...]
) -> None:
    (home / "forbear.db").write_bytes(b"this is no database" * 1_000)
    refused = run(*command)
    assert refused.code == 3
    assert "forbear.db" in refused.out + refused.err


def test_settings_that_cannot_be_read_are_wrong_usage(home: Path, run: Run) -> None:
    (home / "config.toml").write_text("operator_token = [", encoding="utf-8")
    refused = run("ls")
    assert refused.code == 2
    assert "config.toml" in refused.err


@pytest.mark.requirement("M06")
def test_http_that_anybody_could_use_is_refused_with_the_fix(home: Path, run: Run) -> None:
    for place in ("0.0.0.0:0", "[::]:0", "192.0.2.1:8377", "forbear.example:80"):
        refused = run("serve", "--http", place)
        assert refused.code == 2
        assert "http.tokens" in refused.err
    assert run("serve", "--http", "8377").code == 2
    assert not (home / "forbear.db").exists()


def test_http_through_a_proxy_asks_for_tokens_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORBEAR_CONSOLE_URL", "https://forbear.example")
    refused = run("serve", "--http", "127.0.0.1:0")
    assert refused.code == 2
    assert "http.tokens" in refused.err


def test_tokens_that_others_could_read_or_guess_are_refused(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.toml").write_text(
        '[[http.tokens]]\nprincipal = "alice"\ntoken = "env:TOKEN_OF_ALICE"\n', encoding="utf-8"
    )
    assert "TOKEN_OF_ALICE is not set" in run("serve", "--http", "127.0.0.1:0").err
    monkeypatch.setenv("TOKEN_OF_ALICE", "short")
    assert "openssl rand" in run("serve", "--http", "127.0.0.1:0").err
    monkeypatch.setenv("TOKEN_OF_ALICE", "a" * 32)
    in_the_clear = run("serve", "--http", "0.0.0.0:0")
    assert in_the_clear.code == 2
    assert "FORBEAR_CONSOLE_URL" in in_the_clear.err


def test_wrong_usage_exits_2(run: Run) -> None:
    assert run("show").code == 2
    assert run("no-such-command").code == 2
    assert run("version").out == run("--version").out


# --- output that cannot be written, and errors of our own ------------------------------------


def shell(command: str, **environment: str) -> Ran:
    ran = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; {command.replace('forbear', f'{sys.executable} -m forbear')}",
        ],
        env=child_environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_a_full_disk_behind_the_output_is_one_clear_sentence(home: Path) -> None:
    drive(home, waits)
    ran = shell("forbear ls > /dev/full")
    assert ran.code == 1
    told = [line for line in ran.err.splitlines() if "No process is alive" not in line]
    assert told == [
        "The output cannot be written: No space left on device. Nothing else went wrong."
    ]


def test_a_terminal_without_the_characters_gets_escapes(home: Path) -> None:
    op = drive(home, ends)
    ran = shell(f"forbear show {op}", PYTHONIOENCODING="ascii")
    assert ran.code == 0, ran.err
    assert "1 submit \\xb7 1 check" in ran.out
    told = shell(f"forbear show {op} --json", PYTHONIOENCODING="ascii")
    assert "·" in json.loads(told.out)["receipt"]


@pytest.mark.parametrize("command", ["demo", "contract schema"])
def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word(command: str) -> None:
    ran = shell(f"forbear {command} | head -1")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 1
    assert ran.err == ""


def test_an_error_of_our_own_shows_where_if_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "keys").mkdir()
    (home / "keys" / "store.key").mkdir()
    assert cli.run(["ls"]) == 0
    (home / "forbear.db").write_bytes(b"")
    capsys.readouterr()
    code = cli.run(["ls"])
    quiet = capsys.readouterr().err
    monkeypatch.setenv("FORBEAR_LOG", "debug")
    assert cli.run(["ls"]) == code != 0
    shown = capsys.readouterr().err
    assert "Traceback" not in quiet
    assert "Traceback" in shown
    assert shown.endswith(quiet)


# --- times as people write them -------------------------------------------------------------

NOON = 1_796_040_000_000  # 2026-11-30 12:00:00 UTC


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("14:30", 9_000_000),
        ("11:00Z", 23 * 3_600_000),
        ("2026-11-30T12:00:01Z", 1_000),
    ],
)
def test_a_time_is_a_wait_a_clock_time_or_a_full_time(text: str, later: int) -> None:
    assert instant(text, NOON) - NOON == later


@pytest.mark.parametrize("text", ["teatime", "25:00", "12", "", "30 m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadWish, match="is no time"):
        instant(text, NOON)
