"""A person at the command line: cases as plans, one decision each, and nothing by accident."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from tests.server.commanding import (
    DONE,
    RUNNING,
    Run,
    at_a_terminal,
    drive,
    ends,
    is_unclear,
    state_of,
    stops,
    waits,
)
from tests.server.test_tables import STANDING
from tests.tools.driving import CONTRACT, Driver

from forbear.rules.decisions import Wish
from forbear.rules.model import Kind, Option, Refusal, State
from forbear.storage.audit import Code
from forbear.tools.office import Office
from forbear.tools.story import TIMES

ONE_429 = CONTRACT.replace("max_status_requests = 12", "max_rate_limited = 1")
"""The first 429 of a job asks a person."""


async def two_limited(job: Driver) -> list[str]:
    """Two jobs of one scope that a 429 stopped, one after the other."""
    ids: list[str] = []
    for dataset in ("first", "second"):
        await job.submit(dataset=dataset)
        await job.answer(202, {"id": f"exp_{dataset}", "state": "queued"})
        job.clock.advance(5_000)
        ids.append(job.op_id)
    for op_id in ids:
        job.op_id = op_id
        await job.answer(429)
        job.clock.advance(600_000)
    return ids


async def asks(job: Driver) -> str:
    """A job that goes on, and an agent that asks for more time."""
    op_id = await waits(job)
    held = job.book.holding("exp", "export")
    ask = partial(
        job.store.ledger.ask,
        operation_id=op_id,
        option=Option.EXTEND,
        reason="the report is due tonight",
        parameters={"minutes": 10},
        holding=held,
    )
    await job.store.write(ask)
    return op_id


# --- the inbox ------------------------------------------------------------------------------


@pytest.mark.requirement("E15")
def test_cases_of_one_group_are_one_line_that_says_how_many_and_for_what(
    home: Path, run: Run
) -> None:
    drive(home, two_limited, ONE_429)
    listed = run("inbox")
    assert listed.code == 1
    line, hint, how = listed.out.splitlines()
    assert "2 cases, grp_" in line
    assert "rate limited: exp" in line
    assert len(line) <= 100
    assert "forbear show op_" in hint
    assert "forbear inbox --all" in how
    each = run("inbox", "--all").out.splitlines()
    assert [one.split()[0] for one in each[:2]] == ["1", "2"]
    assert "Export first" in each[0]
    groups = {one["group"] for one in run("inbox", "--json").json()["cases"]}
    [group] = groups
    assert "`forbear inbox --all`" in run("show", group).err


@pytest.mark.requirement("E12")
def test_the_inbox_and_the_plan_show_what_an_agent_asks_for_and_why(home: Path, run: Run) -> None:
    op_id = drive(home, asks)
    [line, _] = run("inbox").out.splitlines()
    assert "asked for: extend by 15 minutes" in line
    shown = run("show", "1").out
    assert 'Because: "the report is due tonight" (agent\'s words)' in shown
    assert "Asked for: extend by 15 minutes with 4 more status requests (minutes 10)" in shown
    wish = run("inbox", "--json").json()["cases"][0]["wish"]
    assert wish["reason"] == "the report is due tonight"
    assert state_of(home, op_id)[0] is State.WAITING


def test_a_write_that_was_looked_up_says_so_in_its_line(home: Path, run: Run) -> None:
    text = CONTRACT + LOOKUP

    async def not_found(job: Driver) -> None:
        await is_unclear(job)
        for _ in range(2):
            await job.answer(200, {"items": []})

    drive(home, not_found, text)
    listed = run("inbox").out.splitlines()[0]
    assert f"sent, no answer · 2 {TIMES} not found" in listed


LOOKUP = """
[jobs.export.lookup]
method = "GET"
path = "/exports"
items = "/items"
match = { "/dataset" = "{arg.dataset}" }
max_lookups = 2
"""


# --- the plan -------------------------------------------------------------------------------


@pytest.mark.requirement("E02", "E03")
def test_show_is_a_plan_sent_known_and_each_option_with_effect_cost_and_rest(
    home: Path, run: Run
) -> None:
    drive(home, stops)
    shown = run("show", "1").out
    assert "sent: POST https://api.exp.example/v1/exports, once, first at 10:20:00Z" in shown
    assert "known: the provider took it, last answer 200 at 10:21:52Z" in shown
    for line in (
        "Operation: Export sales-2026 (op_",
        'For: "month-end report" (agent\'s words)',
        "Provider job: exp_71c",
        "Last state: paused",
        "Elapsed time: 1 minute 52 seconds",
        "Status requests: 1 of 12",
        "Last HTTP result: 200 at 10:21 UTC",
        "Stopped because: unknown_state",
        "If nobody decides: nothing is sent",
    ):
        assert line in shown
    plan = shown[shown.index("\n1  ") :].splitlines()
    costs = [line for line in plan if line.startswith("   cost: ")]
    rests = [line for line in plan if line.startswith("   then: ")]
    commands = [line for line in plan if line.startswith("   forbear decide 1 ")]
    assert len(costs) == len(rests) == len(commands) == 4
    assert "   cost: 1 request to cancel, up to 2 more status requests" in costs
    assert "continue?" not in shown
    assert "secret-of-exp" not in shown
    assert '"state": "paused"' not in shown


@pytest.mark.requirement("E10")
def test_the_plan_of_a_write_has_its_target_its_attempts_and_the_means_of_lookup(
    home: Path, run: Run
) -> None:
    async def unclear_after_503(job: Driver) -> None:
        await job.submit()
        await job.answer(503, {}, Retry_After="30", X_RateLimit_Remaining="0")

    drive(home, unclear_after_503)
    shown = run("show", "1").out
    for line in (
        "exp.export (job), account acct_17",
        "/v1/exports, once, first at 10:20:00Z, no idempotency key\n",
        "fingerprint: hmac-sha256:",
        "known: it may have had its effect, last answer 503 at 10:20:00Z\n",
        "limits it stated: Retry-After 30, X-RateLimit-Remaining 0\n",
        "attempts 1 of 1\n",
        "10:20:00Z submitted, 503",
        "Operation: Export sales-2026 (op_",
        "Sent: once, 10:20:00Z, POST /exports, account acct_17\n",
        "Answer: 503\n",
        "Lookup: none declared\n",
        "Key: none, the provider cannot recognise a repetition\n",
        "Safe options: mark as done with the provider's id, mark as not done",
    ):
        assert line in shown


def test_show_takes_the_id_of_a_case_and_the_beginning_of_one(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    case = run("inbox", "--json").json()["cases"][0]["id"]
    assert op_id in run("show", case).out
    assert op_id in run("show", case[:12]).out
    assert "There is no case 'esc_none'" in run("show", "esc_none").err


# --- word for word --------------------------------------------------------------------------


@pytest.mark.requirement("E11")
def test_raw_bodies_are_shown_for_a_reason_that_is_kept_and_only_then(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    refused = run("show", op_id, "--raw")
    assert refused.code == 2
    assert "add --reason TEXT" in refused.err
    assert run("show", op_id, "--raw", "--reason", "  ").code == 2
    looked = run("show", op_id, "--raw", "--reason", "the provider disputes it")
    assert looked.code == 0
    assert '{"dataset":"sales-2026"}' in looked.out
    assert '{"id": "exp_71c", "state": "paused"}' in looked.out
    assert "secret-of-exp" not in looked.out
    told = run("show", op_id, "--raw", "--reason", "again", "--json").json()
    assert json.loads(told["request"]["body"]) == {"dataset": "sales-2026"}
    assert [one["status"] for one in told["attempts"]] == [202, 200]

    async def looks(job: Driver) -> list[tuple[object, object]]:
        events = await job.store.read.events_of(op_id)
        mine = [event.body for event in events if event.code == Code.RAW_SHOWN]
        assert all(body["operator"] for body in mine)
        return [(body["reason"], body["channel"]) for body in mine]

    channel = "command line"
    assert drive(home, looks) == [("the provider disputes it", channel), ("again", channel)]
    assert 'looked at the raw requests and answers: "again"' in run("show", op_id).out


# --- groups ---------------------------------------------------------------------------------


@pytest.mark.requirement("E15")
@pytest.mark.usefixtures("operator")
def test_a_group_is_decided_at_once_and_recorded_with_each_operation(home: Path, run: Run) -> None:
    ids = drive(home, two_limited, ONE_429)
    group = run("inbox", "--json").json()["cases"][0]["group"]
    tried = run("decide", group[:8], "hold", "--dry-run")
    assert f"hold for {group}: 2 of 2 could be decided. Nothing was changed." in tried.out
    assert run("inbox").code == 1
    decided = run("decide", group[:8], "hold", "--yes", "--comment", "wait for them")
    assert decided.code == 0
    assert decided.out.splitlines() == [
        f"hold for {group}: 2 of 2 decided.",
        f"1  {ids[0]}  waiting",
        f"2  {ids[1]}  waiting",
    ]
    assert decided.err.count("No process is alive that could send") == 1
    for op_id in ids:
        state, decision = state_of(home, op_id)
        assert state is State.WAITING
        assert decision is not None
        assert (decision["option"], decision["group"]) == ("hold", group)
        assert decision["comment"] == "wait for them"


@pytest.mark.requirement("E15")
@pytest.mark.usefixtures("operator")
def test_a_group_decision_says_where_it_was_not_possible_and_leaves_that_open(
    home: Path, run: Run
) -> None:
    async def one_extended_before(job: Driver) -> list[str]:
        ids = await two_limited(job)
        job.op_id = ids[0]
        await job.decide(Option.EXTEND)
        await job.answer(429)
        return ids

    ids = drive(home, one_extended_before, ONE_429)
    group = run("inbox", "--json").json()["cases"][0]["group"]
    decided = run("decide", group, "extend", "--yes", "--json")
    assert decided.code == 1
    told = {one["operation_id"]: one for one in decided.json()["operations"]}
    assert told[ids[1]]["decided"] is True
    assert told[ids[0]]["decided"] is False
    assert "extend is not offered for rate_limited" in told[ids[0]]["because"]
    assert [one["operation_id"] for one in run("inbox", "--json").json()["cases"]] == [ids[0]]


@pytest.mark.requirement("E15")
@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("option", ["cancel_at_provider", "treat_as", "send_new", "approve"])
def test_what_has_an_effect_outside_is_never_decided_for_a_group(
    home: Path, run: Run, option: str
) -> None:
    ids = drive(home, two_limited, ONE_429)
    refused = run("decide", "grp_", option, "--yes")
    assert refused.code == 2
    assert "is decided one by one; a group takes abandon, check_again, extend, hold" in refused.err
    assert [state_of(home, op_id)[0] for op_id in ids] == [State.ESCALATED] * 2


@pytest.mark.requirement("E15")
def test_no_channel_decides_more_for_a_group_than_a_group_takes(home: Path) -> None:
    by = {"operator": "anna", "channel": "console"}

    async def tried(job: Driver) -> list[State]:
        ids = await two_limited(job)
        [group] = {one.group for one in await job.store.read.open_cases()}
        assert group is not None
        office = Office(job.store, job.book, job.clock, job.desk)
        outcomes = await office.decide_group(group, Wish(Option.CANCEL_AT_PROVIDER), by)
        why = [outcome.message for _, outcome in outcomes if isinstance(outcome, Refusal)]
        assert why == ["cancel_at_provider is decided one by one"] * 2
        found = [await job.store.read.operation(op_id) for op_id in ids]
        return [op.state for op in found if op is not None]

    assert drive(home, tried, ONE_429) == [State.ESCALATED, State.ESCALATED]


@pytest.mark.usefixtures("operator")
def test_an_unknown_group_is_named(home: Path, run: Run) -> None:
    drive(home, stops)
    assert "There is no open group 'grp_zz'" in run("decide", "grp_zz", "hold", "--yes").err


# --- decisions that may repeat an effect ----------------------------------------------------


@pytest.mark.requirement("E09")
@pytest.mark.usefixtures("operator")
def test_sending_anew_needs_its_name_twice_without_a_terminal(home: Path, run: Run) -> None:
    op_id = drive(home, is_unclear)
    refused = run("decide", "1", "send_new", "--yes")
    assert refused.code == 2
    assert "add --confirm send_new" in refused.err
    assert "is not what you decide" in run("decide", "1", "send_new", "--confirm", "yes").err
    assert state_of(home, op_id)[0] is State.ESCALATED
    decided = run("decide", "1", "send_new", "--yes", "--confirm", "send_new")
    assert decided.code == 0
    assert "The new operation is op_" in decided.err
    assert state_of(home, op_id)[0] is State.DISCARDED


@pytest.mark.parametrize(
    ("written", "code", "state"), [("send_new", 0, State.DISCARDED), ("y", 1, State.ESCALATED)]
)
def test_at_a_terminal_sending_anew_is_typed_out(
    home: Path, written: str, code: int, state: State
) -> None:
    op_id = drive(home, is_unclear)
    with at_a_terminal("decide", "1", "send_new", "--yes") as terminal:
        terminal.until("Type send_new to mean it:")
        terminal.type(f"{written}\n")
        assert terminal.end() == code
    assert state_of(home, op_id)[0] is state


async def fails(job: Driver) -> str:
    await job.accepted()
    await job.answer(200, {"id": "exp_71c", "state": "failed"})
    return job.op_id


@pytest.mark.requirement("E06")
@pytest.mark.usefixtures("operator")
def test_what_is_over_is_resubmitted_by_an_operator_in_one_go(home: Path, run: Run) -> None:
    op_id = drive(home, fails)
    assert f"forbear decide {op_id} resubmit" in run("show", op_id).out
    tried = run("decide", op_id, "resubmit", "--dry-run")
    assert f"{op_id} would stay failed, and a new operation would take its place" in tried.out
    assert "add --confirm resubmit" in run("decide", op_id, "resubmit", "--yes").err

    async def cases(job: Driver) -> int:
        return len(await job.store.read.cases_of(op_id))

    assert drive(home, cases) == 0
    done = run("decide", op_id, "resubmit", "--yes", "--confirm", "resubmit", "--json")
    assert done.code == 0
    new = done.json()["follow_up"]
    assert done.json()["decision"]["channel"] == "token"

    async def made(job: Driver) -> tuple[State, str | None, str, str]:
        old = await job.store.read.operation(op_id)
        anew = await job.store.read.operation(new)
        [case] = await job.store.read.cases_of(op_id)
        assert old is not None
        assert anew is not None
        assert anew.authorisation == case.id
        assert anew.request_digest == old.request_digest
        return old.state, old.superseded_by, anew.state, case.closed_because or ""

    assert drive(home, made) == (State.FAILED, new, State.QUEUED, "decided")
    again = run("decide", op_id, "resubmit", "--yes", "--confirm", "resubmit")
    assert again.code == 2
    assert "resubmit is not possible" in again.err


@pytest.mark.usefixtures("operator")
def test_what_succeeded_is_not_resubmitted_and_leaves_no_case(home: Path, run: Run) -> None:
    op_id = drive(home, ends)
    refused = run("decide", op_id, "resubmit", "--yes", "--confirm", "resubmit")
    assert refused.code == 2
    assert f"resubmit is not possible: {op_id} is succeeded" in refused.err
    assert run("decide", op_id, "abandon", "--yes").code == 1

    async def cases(job: Driver) -> int:
        return len(await job.store.read.cases_of(op_id))

    assert drive(home, cases) == 0


@pytest.mark.requirement("E06")
def test_a_case_that_changed_since_it_was_shown_is_not_decided(home: Path) -> None:
    op_id = drive(home, asks)

    async def ends_now(job: Driver) -> None:
        job.op_id = op_id
        await job.answer(200, DONE)

    with at_a_terminal("decide", "1", "extend") as terminal:
        terminal.until("[y/N]")
        drive(home, ends_now)
        terminal.type("y\n")
        assert terminal.end() == 1
    assert f"{op_id} is succeeded now. Nothing was decided".encode() in terminal.seen


@pytest.mark.usefixtures("operator")
def test_until_is_refused_where_one_request_is_approved(home: Path, run: Run) -> None:
    text = CONTRACT.replace(
        'submit = "POST /exports"\nbody = { dataset = "{arg.dataset}" }',
        'submit = { method = "POST", path = "/exports", body = { dataset = "{arg.dataset}" }, '
        'approval = "per_call" }',
    )

    async def held(job: Driver) -> None:
        await job.submit()

    drive(home, held, text)
    refused = run("decide", "1", "approve", "--until", "1h", "--yes")
    assert refused.code == 2
    assert "--until belongs to the approval of a session" in refused.err
    assert run("decide", "1", "approve", "--yes").code == 0


# --- cancel ---------------------------------------------------------------------------------


async def is_queued(job: Driver) -> str:
    return (await job.submit()).id


@pytest.mark.usefixtures("operator")
def test_cancel_drops_what_was_not_sent_without_a_request(home: Path, run: Run) -> None:
    op_id = drive(home, is_queued)
    tried = run("cancel", op_id, "--dry-run")
    assert tried.out == f"{op_id} would be discarded. Nothing was changed.\n"
    dropped = run("cancel", op_id, "--yes", "--comment", "wrong month")
    assert dropped.out == f"{op_id} is discarded. Nothing of it was sent.\n"
    [story] = [line for line in run("show", op_id).out.splitlines() if "dropped, " in line]
    assert "cancelled by" in story
    assert story.endswith(": wrong month")


@pytest.mark.requirement("E05")
@pytest.mark.usefixtures("operator")
def test_cancel_asks_the_provider_with_the_operators_authority(home: Path, run: Run) -> None:
    op_id = drive(home, waits)
    cancelled = run("cancel", op_id, "--yes", "--comment", "wrong month")
    assert cancelled.code == 0
    assert f"{op_id} is waiting" in cancelled.out
    assert "The cancellation is op_" in cancelled.err

    async def children(job: Driver) -> list[tuple[Kind, State, bool]]:
        [case] = await job.store.read.cases_of(op_id)
        assert case.decision is not None
        assert case.decision["comment"] == "wrong month"
        found = await job.store.read.children(op_id)
        return [(one.kind, one.state, one.authorisation == case.id) for one in found]

    assert drive(home, children) == [(Kind.CANCEL, State.QUEUED, True)]
    again = run("cancel", op_id, "--yes")
    assert again.code == 2
    assert "asks the provider to cancel it already" in again.err
    assert len(drive(home, children)) == 1


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("steps", "says"),
    [(ends, "is over: succeeded"), (is_unclear, "the provider's id of it is not known")],
)
def test_cancel_says_what_cannot_be_cancelled(
    home: Path, run: Run, steps: Callable[[Driver], Awaitable[str]], says: str
) -> None:
    op_id = drive(home, steps)
    refused = run("cancel", op_id, "--yes")
    assert refused.code == 2
    assert says in refused.err


@pytest.mark.parametrize(("written", "state"), [("y", State.DISCARDED), ("n", State.QUEUED)])
def test_cancel_asks_first_at_a_terminal(home: Path, written: str, state: State) -> None:
    op_id = drive(home, is_queued)
    with at_a_terminal("cancel", op_id) as terminal:
        terminal.until(f"Drop Export sales-2026 ({op_id})? Nothing of it was sent. [y/N]")
        terminal.type(f"{written}\n")
        terminal.end()

    async def now(job: Driver) -> State:
        found = await job.store.read.operation(op_id)
        assert found is not None
        return found.state

    assert drive(home, now) is state


@pytest.mark.requirement("E06")
def test_a_job_that_moved_on_since_it_was_shown_is_not_cancelled(home: Path) -> None:
    op_id = drive(home, waits)

    async def polled(job: Driver) -> None:
        job.op_id = op_id
        await job.answer(200, RUNNING)

    async def traces(job: Driver) -> tuple[int, int]:
        read = job.store.read
        return len(await read.children(op_id)), len(await read.cases_of(op_id))

    with at_a_terminal("cancel", op_id) as terminal:
        terminal.until("[y/N]")
        assert b"Ask the provider to cancel Export sales-2026" in terminal.seen
        assert b"Work so far is lost." in terminal.seen
        drive(home, polled)
        terminal.type("y\n")
        assert terminal.end() == 1
    assert b"changed since it was shown" in terminal.seen
    assert drive(home, traces) == (0, 0)


@pytest.mark.requirement("E07")
def test_no_command_decides_for_somebody_without_terminal_and_token(home: Path, run: Run) -> None:
    op_id = drive(home, stops)
    for command in (("decide", "1", "abandon"), ("cancel", op_id), ("decide", op_id, "resubmit")):
        refused = run(*command, "--yes")
        assert refused.code == 2
        assert "set FORBEAR_OPERATOR_TOKEN" in refused.err
    assert "review needs a terminal" in run("review").err
    assert state_of(home, op_id)[0] is State.ESCALATED


# --- review ---------------------------------------------------------------------------------


@pytest.mark.requirement("E03")
def test_from_the_notification_to_the_executed_decision_in_three_actions(home: Path) -> None:
    op_id = drive(home, is_unclear)
    actions = 1  # the command itself, as a notification names it
    with at_a_terminal("review") as terminal:
        terminal.until("q quits (the last one):")
        assert b"2  mark as not done" in terminal.seen
        for shown, key in (("", "2"), ("[y/N]", "y")):
            terminal.until(shown)
            terminal.type(f"{key}\n")
            actions += 1
        assert terminal.end() == 0
    assert actions == 3
    state, decision = state_of(home, op_id)
    assert state is State.FAILED
    assert decision is not None
    assert (decision["option"], decision["channel"]) == ("confirm_not_done", "terminal")


def test_review_changes_parameters_refuses_wrong_ones_and_goes_on(home: Path) -> None:
    async def two(job: Driver) -> list[str]:
        first = await stops(job)
        job.clock.advance(60_000)
        await job.submit(dataset="other")
        await job.answer(202, {"id": "exp_2", "state": "queued"})
        await job.answer(200, {"id": "exp_2", "state": "paused"})
        return [first, job.op_id]

    first, second = drive(home, two)
    with at_a_terminal("review") as terminal:
        terminal.until("1 more after it):")
        terminal.type("9\n")
        terminal.until("'9' is none of them.")
        terminal.type("w\n")
        terminal.until("submitted job exp_71c")
        terminal.type("2\n")
        terminal.until("look once more at a time you name? [y/N/c to change it]")
        terminal.type("c\n")
        terminal.until("Until, ")
        terminal.type("teatime\n")
        terminal.until("(until teatime)? [y/N/c to change it]")
        terminal.type("y\n")
        terminal.until("'teatime' is no time")
        terminal.seen = terminal.seen.partition(b"is no time")[2]
        terminal.until("1 more after it):")
        terminal.type("s\n")
        terminal.until("the last one):")
        terminal.type("1\n")
        terminal.until("Count it as (waiting, blocked, failed, cancelled):")
        terminal.type("blocked\n")
        terminal.until("(as blocked)?")
        terminal.type("y\n")
        terminal.until("That was the last one.")
        assert terminal.end() == 1
    assert state_of(home, first)[0] is State.ESCALATED
    decision = state_of(home, second)[1]
    assert decision is not None
    assert decision["treat_as"] == "blocked"


@pytest.mark.parametrize(("keys", "code"), [("q\n", 1), ("\x04", 1), ("\x03", 130)])
def test_review_is_left_without_a_decision(home: Path, keys: str, code: int) -> None:
    op_id = drive(home, stops)
    with at_a_terminal("review") as terminal:
        terminal.until("the last one):")
        terminal.type(keys)
        assert terminal.end() == code
    assert b"Traceback" not in terminal.seen
    assert state_of(home, op_id)[0] is State.ESCALATED


# --- watch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_watch_shows_what_is_active_at_a_terminal_until_ctrl_c(home: Path, plain: bool) -> None:
    op_id = drive(home, stops)
    screen = {"NO_COLOR": "1" if plain else "", "TERM": "xterm", "COLUMNS": "80"}
    with at_a_terminal("watch", **screen) as terminal:
        terminal.until(f"{op_id}  escalated")
        terminal.until("needs you")
        terminal.until("1 active")
        terminal.type("\x03")
        assert terminal.end() == 0
    assert b"Traceback" not in terminal.seen
    assert (b"33m" in terminal.seen) is not plain


@pytest.mark.requirement("E16")
def test_the_inbox_names_the_answers_that_stand(home: Path, run: Run) -> None:
    drive(home, waits)
    (home / "config.toml").write_text(STANDING)
    for told in (run("inbox"), run("inbox", "--json")):
        assert "anna" in told.out + told.err
        assert "rate_limited" in told.out + told.err


def test_watching_an_empty_home_makes_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "none"))
    watched = run("watch")
    assert watched.code == 0
    assert "Nothing is active" in watched.out
    assert not (tmp_path / "none").exists()


def test_a_piped_watch_writes_a_line_for_each_change(home: Path) -> None:
    async def watched() -> list[dict[str, str]]:
        import sys

        from tests.server.commanding import child_environment

        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "forbear", "watch", "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(),
        )
        assert child.stdout is not None
        lines = [json.loads(await child.stdout.readline())]
        await asyncio.to_thread(drive, home, ends_it)
        lines.append(json.loads(await child.stdout.readline()))
        child.send_signal(2)
        assert await child.wait() == 0
        return lines

    op_id = drive(home, waits)

    async def ends_it(job: Driver) -> None:
        job.op_id = op_id
        await job.answer(200, DONE)

    first, second = asyncio.run(watched())
    assert (first["operation_id"], first["state"]) == (op_id, "waiting")
    assert (second["operation_id"], second["state"]) == (op_id, "succeeded")


# --- completion -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "at", "found"),
    [
        ("forbear show op_", 2, "{op_id}"),
        ("forbear decide ", 2, "1"),
        ("forbear decide 1 ", 3, "treat_as"),
        ("forbear rev", 1, "review"),
    ],
)
def test_a_shell_completes_ids_numbers_and_options_from_the_store(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: str, at: int, found: str
) -> None:
    op_id = drive(home, stops)
    monkeypatch.setenv("_FORBEAR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(at))
    assert found.format(op_id=op_id) in run().out.splitlines()


def test_completion_makes_no_home_and_says_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORBEAR_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("_FORBEAR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "forbear show ")
    monkeypatch.setenv("COMP_CWORD", "2")
    told = run()
    assert (told.out.strip(), told.err) == ("", "")
    assert not (tmp_path / "none").exists()


def test_the_shells_completion_can_be_installed(run: Run) -> None:
    assert "--install-completion" in run("--help").out
