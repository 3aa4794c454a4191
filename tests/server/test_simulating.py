"""`contract simulate`, `contract test` and `contract explain` as people run them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import IO, Any

import httpx
import pytest
from tests.rules.contracts import SMALL
from tests.server.commanding import Run, child_environment

from forbear.server.simulator import faults, provider
from forbear.server.simulator.copies import copy
from forbear.server.simulator.provider import Simulator
from forbear.server.simulator.source import of_text

SMALLEST = (
    SMALL
    + """
[calls.transfer]
label   = "Transfer {arg.amount}"
method  = "POST"
path    = "/transfers"
body    = { amount = "{arg.amount}", reference = "{ref}" }
take    = { id = "/id" }
require = { "/id" = "non_empty" }
approval = "none"

[calls.transfer.lookup]
method = "GET"
path   = "/transfers"
query  = { reference = "{ref}" }
items  = "/data"
match  = { "/reference" = "{ref}" }
take   = { id = "/id" }
"""
)
HEAD = SMALLEST[: SMALLEST.index("[jobs")]
ONLY_JOB = SMALLEST[: SMALLEST.index("[calls]")]
"""`spec/contract.md` calls the beginning of it the smallest useful contract."""


class Simulation:
    """`forbear contract simulate` in a process of its own, read line by line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, wanted: str) -> str:
        """Read on to the first line with `wanted`."""
        stream: IO[str] | None = self._child.stdout
        assert stream is not None
        for line in stream:
            self.lines.append(line.rstrip("\n"))
            if wanted in line:
                return line
        raise AssertionError(f"no {wanted!r} in {self.text}")

    def call(self, action: str) -> list[str]:
        """The command that it told to run for an action."""
        line = next(one for one in self.lines if f"forbear try {action}" in one)
        return shlex.split(line)

    def end(self) -> str:
        """What it says on Ctrl-C."""
        self._child.send_signal(signal.SIGINT)
        rest, _ = self._child.communicate(timeout=60)
        assert self._child.returncode == 0, rest
        return rest


@contextmanager
def simulated(*arguments: str) -> Iterator[Simulation]:
    child = subprocess.Popen(
        [sys.executable, "-m", "forbear", "contract", "simulate", *arguments],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        simulation = Simulation(child)
        simulation.until("Ctrl-C ends it")
        yield simulation
    finally:
        # It takes its home away with it, if it is asked to end.
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)


def tried(command: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command as it was printed: settings before it, arguments with it."""
    settings = dict(word.split("=", 1) for word in command[: command.index("forbear")])
    arguments = command[command.index("forbear") + 1 :]
    return subprocess.run(
        [sys.executable, "-m", "forbear", *arguments, *more],
        env=child_environment() | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(SMALLEST, encoding="utf-8")
    return path


# --- simulate -------------------------------------------------------------------------------


def test_what_simulate_prints_can_be_run_and_ctrl_c_tells_what_was_made(
    home: Path, contract: Path
) -> None:
    with simulated(str(contract), "--fault", "transfer:lost", "--polls", "1") as simulation:
        assert "claude mcp add exp-simulated --env FORBEAR_HOME=" in simulation.text
        export = tried(simulation.call("exp.export"))
        assert export.returncode == 0, export.stdout + export.stderr
        assert "1 submit · 2 checks" in export.stdout
        assert '"simulated": true' in export.stdout
        paid = tried(simulation.call("exp.transfer"), "--json")
        operation = json.loads(paid.stdout)
        assert operation["state"] == "succeeded", paid.stdout
        assert operation["receipt"].startswith("1 call · 1 lookup")
        address = simulation.text.partition("listens on ")[2].split(".\n")[0]
        seen = httpx.get(f"{address}/__forbear.json").json()
        assert seen["effects"] == {"export": 1, "transfer": 1}
        told = simulation.end()
    assert "made by transfer: 1" in told
    assert "nothing was made twice" in told
    assert "transfer                     no answer lost: made" in told
    # It was a home of its own, and it is gone; the user's was not even opened.
    assert not (home / "forbear.db").exists()
    assert not Path(simulation.call("exp.export")[0].partition("=")[2]).exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("unknown-state", "unknown_state"),
        ("contradictory", "contradictory_response"),
        ("export.submit:dropped", "unclear_write"),
        ("result:503", "succeeded"),
    ],
)
def test_a_fault_leads_where_it_would_at_the_provider(
    home: Path, contract: Path, fault: str, reason: str
) -> None:
    with simulated(str(contract), "--fault", fault, "--polls", "0") as simulation:
        ran = tried(simulation.call("exp.export"))
        assert ran.returncode == (0 if reason == "succeeded" else 1), ran.stdout + ran.stderr
        assert reason in ran.stdout
        made = 0 if fault.endswith("dropped") else 1
        assert (f"made by export: {made}" in simulation.end()) is bool(made)


def test_a_home_that_holds_something_else_is_not_taken(
    run: Run, home: Path, contract: Path
) -> None:
    before = sorted(home.rglob("*"))
    ran = run("contract", "simulate", str(contract), "--home", str(home))
    assert ran.code == 2
    assert "holds something else" in ran.err
    assert sorted(home.rglob("*")) == before


def test_a_second_simulator_does_not_lead_the_agents_of_the_first_away(
    run: Run, tmp_path: Path, contract: Path
) -> None:
    place = tmp_path / "both"
    with simulated(str(contract), "--home", str(place)):
        copies = place / "contracts"
        before = [one.read_text() for one in copies.iterdir()]
        second = run("contract", "simulate", str(contract), "--home", str(place))
        assert (second.code, "another simulator plays" in second.err) == (2, True)
        assert [one.read_text() for one in copies.iterdir()] == before
    with simulated(str(contract), "--home", str(place)):
        pass  # the lock went with the first


@pytest.mark.parametrize(
    "fault",
    [
        "rubbish",
        f"lost:{'9' * 5000}",
        "submit:lost:0",
        "nowhere:lost",
        "submit:lost:1:2",
        "result:fails",
    ],
)
def test_a_fault_that_is_none_is_refused_with_what_one_looks_like(
    run: Run, contract: Path, fault: str
) -> None:
    ran = run("contract", "simulate", str(contract), "--fault", fault)
    assert ran.code == 2
    assert fault in ran.err


def test_an_unknown_contract_names_those_that_there_are(run: Run) -> None:
    ran = run("contract", "simulate", "nobody")
    assert ran.code == 2
    assert "replicate" in ran.err


# --- on the wire ----------------------------------------------------------------------------

KEYED = """
[calls.transfer.idempotency]
at = "header:Idempotency-Key"
"""


@asynccontextmanager
async def spoken_to(text: str, *wanted: str) -> AsyncIterator[tuple[Simulator, httpx.AsyncClient]]:
    """A simulator of a contract, and a client that asks it with paths alone."""
    source = of_text(text, "exp.toml", "exp.toml")
    plan = faults.parse(wanted, (*source.contract.jobs, *source.contract.calls))
    async with Simulator(polls=1, plan=plan) as simulator:
        copied = of_text(copy(source, simulator.base_url, Path("/dummy")), "exp.toml", "").contract
        simulator.speak(source.contract, copied, lambda: 1_796_040_000_000)
        async with httpx.AsyncClient(base_url=copied.base_url, trust_env=False) as client:
            yield simulator, client


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "statuses", "states"),
    [
        ("stuck", [200, 200, 200], ["queued", "running", "running"]),
        ("gone", [200, 404, 404], ["queued", None, None]),
        ("status:503:2", [503, 503, 200], [None, None, "queued"]),
        ("status:slow", [200, 200, 200], ["queued", "done", "done"]),
    ],
)
async def test_what_a_job_with_a_fault_says_on_the_wire(
    monkeypatch: pytest.MonkeyPatch, fault: str, statuses: list[int], states: list[str | None]
) -> None:
    monkeypatch.setattr(provider, "SLOW", 0.01)
    async with spoken_to(SMALLEST, fault) as (_, client):
        job = (await client.post("/exports", json={"dataset": "sales"})).json()["job_id"]
        seen = [await client.get(f"/exports/{job}") for _ in range(3)]
        assert [one.status_code for one in seen] == statuses
        assert [one.json().get("state") for one in seen] == states


@pytest.mark.anyio
async def test_a_key_makes_a_repetition_the_first_one_and_another_body_a_conflict() -> None:
    async with spoken_to(SMALLEST + KEYED) as (simulator, client):
        headers = {"Idempotency-Key": "k-1"}
        bodies = [{"amount": "5"}, {"amount": "5"}, {"amount": "6"}]
        sent = [await client.post("/transfers", json=body, headers=headers) for body in bodies]
        assert [one.status_code for one in sent] == [200, 200, 409]
        assert sent[0].json() == sent[1].json()
        assert simulator.effects("transfer") == 1
        await client.post("/transfers", json=bodies[0], headers={"Idempotency-Key": "k-2"})
        assert [one.record.key for one in simulator.duplicates()] == ["k-2"]


@pytest.mark.anyio
async def test_what_the_contract_does_not_have_is_not_answered_as_if_it_had() -> None:
    async with spoken_to(SMALLEST) as (simulator, client):
        assert (await client.delete("/exports/sim-1")).status_code == 404
        assert (await client.get("/exports/sim-1")).status_code == 404
        assert simulator.seen[0].request == "DELETE /v1/exports/sim-1"


# --- test -----------------------------------------------------------------------------------


def test_every_action_is_taken_through_and_a_table_says_how_it_ended(
    run: Run, contract: Path
) -> None:
    ran = run("contract", "test", str(contract), "--json")
    assert ran.code == 0, ran.out + ran.err
    ended = {(row["action"], row["scenario"]): row for row in ran.json()["rows"]}
    assert ended["export", "answer lost"]["ended"] == "escalated: unclear_write"
    assert ended["export", "answer lost"]["effects"] == 1
    assert ended["transfer", "answer lost"]["ended"] == "succeeded"
    assert ended["transfer", "answer lost"]["effects"] == 1
    assert ended["customer", "429"]["requests"] == 2
    assert ended["export", "429"]["ended"] == "escalated: rate_limited"
    assert ended["export", "429"]["effects"] == 0


def test_a_lookup_that_cannot_find_what_was_made_is_found_out(run: Run, tmp_path: Path) -> None:
    """Our reference is looked for, and never sent: `contract check` cannot see that."""
    path = tmp_path / "exp.toml"
    blind = SMALLEST.replace(', reference = "{ref}"', "").replace(ONLY_JOB, HEAD)
    blind = blind.replace("items  =", "max_lookups = 2\nitems  =")
    path.write_text(blind, encoding="utf-8")
    ran = run("contract", "test", str(path))
    assert ran.code == 1
    [line] = [one for one in ran.out.splitlines() if "answer lost" in one and "transfer" in one]
    assert "should be succeeded" in line


# --- explain --------------------------------------------------------------------------------


def test_explain_tells_the_numbers_of_the_contract_and_the_ends_of_the_rules(
    run: Run, contract: Path
) -> None:
    [told] = run("contract", "explain", f"{contract}.export", "--json").json()["actions"]
    assert told["While the provider works"]["deadline"].startswith("40 m;")
    events = {(one["in"], one["what"]): one for one in told["events"]}
    lost = events["sending", "no answer"]
    assert (lost["then"], lost["reason"]) == ("escalated", "unclear_write")
    assert "abandon" in lost["options"]
    assert events["waiting", "queued, running"]["then"] == "waiting"
    assert events["waiting", "done with /result/url"]["then"] == "succeeded"
    assert events["waiting", "any other word"]["reason"] == "unknown_state"
    [transfer] = run("contract", "explain", f"{contract}.transfer", "--json").json()["actions"]
    assert "looked up" in transfer["If its answer is lost"]["what follows"]


def test_explain_draws_the_states_as_text_and_for_mermaid(run: Run, contract: Path) -> None:
    text = run("contract", "explain", f"{contract}.export").out
    assert re.search(r"├─ failed +─→ failed", text)
    assert re.search(r"any other word +─→ escalated \(unknown_state\)", text)
    drawn = run("contract", "explain", f"{contract}.export", "--mermaid").out
    assert "stateDiagram-v2" in drawn
    assert "    waiting --> succeeded: done with /result/url" in drawn


def test_explain_refuses_an_action_that_is_not_there(run: Run, contract: Path) -> None:
    ran = run("contract", "explain", f"{contract}.nothing")
    assert ran.code == 2
    assert "export, customer, transfer" in ran.err


# --- check --online -------------------------------------------------------------------------

ACCOUNT = '[account]\nid = "acct_17"\ncheck = { path = "/me", at = "/account/id" }\n\n[jobs.export]'


def online(command: list[str], *more: str) -> tuple[int, Any]:
    place = [word for word in command if "=" in word and word.split("=")[0].isupper()]
    ran = tried([*place, "forbear", "contract", "check", "--online", "--json", *more])
    return ran.returncode, json.loads(ran.stdout)["online"][0]


@pytest.mark.parametrize("stated", ["acct_17", "acct_18"])
def test_one_read_tells_whose_the_key_is(home: Path, tmp_path: Path, stated: str) -> None:
    path = tmp_path / "exp.toml"
    path.write_text(SMALLEST.replace("[jobs.export]", ACCOUNT, 1), encoding="utf-8")
    with simulated(str(path), "--home", str(tmp_path / "sim")) as simulation:
        copied = tmp_path / "sim" / "contracts" / "exp.toml"
        text = copied.read_text(encoding="utf-8")
        copied.write_text(text.replace("acct_17", stated), encoding="utf-8")
        code, told = online(simulation.call("exp.export"), "--account")
        requests = simulation.end()
    assert (code, told["ok"]) == ((0, True) if stated == "acct_17" else (1, False))
    assert (told["status"], told["account"]) == (200, "acct_17")
    assert abs(told["clock_behind_ms"]) <= 2_000
    assert told["request"] == "GET /me"
    assert "1 x account.check" in requests


@pytest.mark.parametrize("status", [302, 401])
def test_an_answer_that_is_no_success_says_nothing_of_the_account(
    tmp_path: Path, status: int
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"account": {"id": "acct_17"}}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as provider:
        Thread(target=provider.serve_forever, daemon=True).start()
        text = SMALLEST.replace("[jobs.export]", ACCOUNT, 1)
        address = f'base_url = "http://127.0.0.1:{provider.server_port}"'
        path = tmp_path / "contracts" / "exp.toml"
        path.parent.mkdir()
        path.write_text(re.sub(r'base_url *= *"[^"]*"', address, text), encoding="utf-8")
        code, told = online([f"FORBEAR_HOME={tmp_path}", "EXP_TOKEN=x", "forbear"])
        provider.shutdown()
    assert (code, told["status"], told["account"]) == (1, status, None)


def test_without_a_harmless_read_nothing_is_sent(
    home: Path, contract: Path, tmp_path: Path
) -> None:
    with simulated(str(contract), "--home", str(tmp_path / "sim")) as simulation:
        code, told = online(simulation.call("exp.export"))
        requests = simulation.end()
    assert (code, told["sent"]) == (0, False)
    assert "no request arrived" in requests


def test_online_asks_only_with_a_contract_of_the_home(run: Run, contract: Path) -> None:
    ran = run("contract", "check", str(contract), "--online")
    assert ran.code == 2
    assert "Copy it to" in ran.err
