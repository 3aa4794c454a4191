"""`forbear demo`: eight stories against a provider on this machine, told as they were recorded.

Everything is real except the provider: an MCP client starts `forbear serve` over stdio, the server
sends over sockets to a fake provider on loopback, and a decision is made with `forbear decide`. At
the end the provider's own counts are compared with what the stories say.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from forbear.server.cli.terminal import say, style_of
from forbear.server.clock import SystemRandom
from forbear.server.fake import Answer, Arrival, Drop, FakeProvider, retry_after

HEAD = """\
contract = 1
base_url = "{base_url}"
auth = "none"
account.id = "demo"
"""

SHOP = """\
[scopes.reports]                       # a 429 makes everything on its scope wait
per = "account+action"
actions = ["report"]
rate = "200/1s"
max_concurrent_requests = 8

[scopes.exports]
per = "account"
actions = ["export"]
rate = "200/1s"
max_concurrent_requests = 8

{jobs}
"""

JOB = """\
[jobs.{name}]
title = "{title}"
label = "{title}: {{arg.dataset}}"
deadline = "60s"
submit = "POST /{name}s"
body = {{ dataset = "{{arg.dataset}}" }}
id = "/id"
status = "GET /{name}s/{{id}}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
result = "GET {{/result/url}}"

[jobs.{name}.limits]
max_status_requests = 8
extension = {{ by = "30s", status_requests = 4, times = 1 }}

[jobs.{name}.backoff]
first = "1s"
base = "500ms"
max = "5s"
rate_limited = "2s"
"""

RATES = """\
calls.rate = "GET /rates/{arg.currency}"

[scopes.account]
per = "account"
rate = "2/1s"                          # half of it after a 429
max_concurrent_requests = 1
"""

OLD_BANK = """\
[calls.transfer]
label = "Transfer {arg.amount} EUR to {arg.to}"
method = "POST"
path = "/transfers"
body = { amount = "{arg.amount}", to = "{arg.to}", client_ref = "{ref}" }
take = { id = "/id" }
require = { "/id" = "non_empty" }
approval = "none"
"""

BANK = f"""\
{OLD_BANK}
[calls.transfer.idempotency]
at = "header:Idempotency-Key"
format = "uuid"
window = "24h"

[calls.transfer.lookup]
method = "GET"
path = "/transfers"
query = {{ client_ref = "{{ref}}" }}
items = "/items"
match = {{ "/client_ref" = "{{ref}}" }}
take = {{ id = "/id" }}
settle = "1s"
"""

READERS = 3
"""Agents that read the same rate at the same time."""

PAUSE = 2
"""Seconds that the 429 to one of them asks for."""

APART = 0.25
"""Seconds between two requests below which they would be one burst. Forbear plans 1.1."""

PATIENCE = 40.0
"""Seconds after which the demonstration gives up."""


@dataclass(slots=True, kw_only=True)
class _Story:
    """What is shown, how it has to end, and what the provider sees of it."""

    title: str
    shows: str
    """What its lines or receipts have to say."""
    ends: str = "succeeded"
    routes: Mapping[str, str]
    """What a receipt counts, in its words, and where that arrives at the provider."""
    body: str = ""
    """What the body of a POST has if it belongs to this story."""
    exactly: Mapping[str, int] = field(default_factory=dict[str, int])
    """Counts at the provider that are known beforehand."""
    spread: bool = False
    """Its first request is told to wait, and the others have to come one by one after that."""
    operations: list[str] = field(default_factory=list[str])
    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Of the operations, in full, once all is over."""
    epilogue: list[str] = field(default_factory=list[str])
    """Lines to be told after them."""

    def sees(self, noun: str, arrival: Arrival) -> bool:
        """Whether a request at the provider is one of those that the receipt counts as `noun`."""
        if f"{arrival.method} {arrival.path}" != self.routes[noun]:
            return False
        return arrival.method != "POST" or self.body.encode() in arrival.body

    def moments(self, provider: FakeProvider) -> list[float]:
        """When its requests arrived at the provider, seconds on the clock of the event loop."""
        return [one.at for one in provider.arrivals if any(self.sees(n, one) for n in self.routes)]

    def told(self, noun: str) -> int:
        """The number before a noun in the receipts: 7 for `check` in `1 submit · 7 checks`."""
        found = (re.search(rf"(\d+) {noun}", record["receipt"]) for record in self.records)
        return sum(int(each[1]) for each in found if each)

    def text(self) -> str:
        return "\n".join(
            line for record in self.records for line in (*record["timeline"], record["receipt"])
        )


@dataclass(slots=True, kw_only=True)
class _Job(_Story):
    """A story of one job."""

    job: str
    dataset: str
    id: str
    states: tuple[str, ...]
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _job(
    title: str,
    shows: str,
    id: str,
    dataset: str,
    states: tuple[str, ...] = ("queued", "running", "done"),
    *,
    job: str = "export",
    ends: str = "succeeded",
    **more: Any,
) -> _Job:
    return _Job(
        title=title,
        shows=shows,
        ends=ends,
        routes={
            "submit": f"POST /{job}s",
            "check": f"GET /{job}s/{id}",
            "fetch": f"GET /files/{id}",
        },
        body=dataset,
        job=job,
        dataset=dataset,
        id=id,
        states=states,
        more=more,
    )


def _jobs() -> list[_Job]:
    return [
        _job("A job that just works", "0 repeats", "exp_1", "sales"),
        _job("A 503 that says Retry-After: 2 is obeyed", "503 obeyed", "exp_2", "stock"),
        _job(
            "A 429 without a hint makes it back off sharply",
            "429 backed off",
            "rep_1",
            "tax",
            job="report",
        ),
        _job(
            "A state that the contract does not know stops and asks",
            "escalated: unknown_state",
            "exp_3",
            "staff",
            ("queued", "paused_by_admin"),
            ends="escalated",
        ),
        _job(
            "A spent budget stops; a person extends it once, and the job succeeds",
            "decided extend",
            "exp_4",
            "orders",
            ("queued", "running", "running", "done"),
            max_status_requests=2,
        ),
    ]


def _reads() -> _Story:
    return _Story(
        title="One of three agents gets a 429: all three wait, and go on one by one",
        shows="429 obeyed",
        routes={"call": "GET /rates/eur"},
        exactly={"call": READERS + 1},
        spread=True,
    )


def _found() -> _Story:
    return _Story(
        title="A payment whose answer is lost is looked up, not made again",
        shows="looked it up, succeeded",
        routes={"call": "POST /transfers", "lookup": "GET /transfers"},
        exactly={"call": 1, "lookup": 1},
    )


def _asked() -> _Story:
    return _Story(
        title="The same at a bank without keys and lookups: sent once, then a person decides",
        shows="escalated: unclear_write",
        ends="escalated",
        routes={"call": "POST /old/transfers"},
        exactly={"call": 1},
    )


EFFECTS = {"/exports": 4, "/reports": 1, "/transfers": 1, "/old/transfers": 1}
"""What the provider has to have made when all is over."""


def show() -> bool:
    """Run it and print it. True if every count at the provider is what the stories say."""
    with tempfile.TemporaryDirectory(prefix="forbear-demo-") as folder:
        try:
            return asyncio.run(asyncio.wait_for(play(Path(folder)), PATIENCE))
        except TimeoutError:
            say(f"The demonstration did not end within {PATIENCE:.0f} s on this machine.", "red")
            say(_tail(Path(folder) / "serve.log"))
            return False


async def play(home: Path) -> bool:
    """The whole of it in a home that is there and empty, which is left as it is at the end."""
    token = SystemRandom().token(32)
    jobs, reads, found, asked = _jobs(), _reads(), _found(), _asked()
    stories = [*jobs, reads, found, asked]
    async with FakeProvider() as provider:
        _prepare(provider, jobs)
        _furnish(home, provider.base_url, token)
        say(f"A fake provider listens on {provider.base_url}; the home is {home}.")
        with (home / "serve.log").open("w", encoding="utf-8") as log:
            transport = stdio_client(_server(home), errlog=log)
            async with Client(transport) as client:
                await _begin(client, jobs)
                await asyncio.gather(
                    *(_carry(client, home, token, job) for job in jobs),
                    _read_together(client, reads),
                    _pay(client, found, asked),
                )
                for story in stories:
                    story.records = [await _record(client, each) for each in story.operations]
                again = await _ask_again(client, asked)
                case = await _case(home, token, asked)
        reads.epilogue = [_paced(reads.moments(provider))]
        asked.epilogue = [again, "", *case]
        for number, story in enumerate(stories, 1):
            _tell(number, story)
        return _compare(provider, stories)


# --- the stage ------------------------------------------------------------------------------


def _prepare(provider: FakeProvider, jobs: list[_Job]) -> None:
    for job in jobs:
        result = {"dataset": job.dataset, "rows": 3}
        provider.job(job.id, job.states, result, collection=f"/{job.job}s")
    provider.script("GET /exports/exp_2", retry_after(2, 503))
    provider.script("GET /reports/rep_1", Answer(429, {"error": "slow down"}))
    provider.job("eur", ["current"], collection="/rates", existing=True)
    provider.script("GET /rates/eur", retry_after(PAUSE))
    lost = Drop("after", effect=True)
    provider.script("POST /transfers", lost)
    provider.script("POST /old/transfers", lost)


def _furnish(home: Path, base_url: str, token: str) -> None:
    jobs = "\n".join(
        JOB.format(name=name, title=title)
        for name, title in (("export", "Export a data set"), ("report", "Make a report"))
    )
    (home / "contracts").mkdir()
    for name, base, text in (
        ("shop", base_url, SHOP.format(jobs=jobs)),
        ("rates", base_url, RATES),
        ("bank", base_url, BANK),
        ("oldbank", f"{base_url}/old", OLD_BANK),
    ):
        contract = HEAD.format(base_url=base) + text
        (home / "contracts" / f"{name}.toml").write_text(contract, encoding="utf-8")
    (home / "config.toml").write_text(f'operator_token = "{token}"\n', encoding="utf-8")
    (home / "config.toml").chmod(0o600)


def _environment(home: Path) -> dict[str, str]:
    """So that a child finds the same code, also when nothing is installed."""
    return {"FORBEAR_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _server(home: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "forbear", "serve"], env=_environment(home)
    )


# --- the agents -----------------------------------------------------------------------------


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    told = answer.structured_content
    if answer.is_error or not isinstance(told, dict):
        raise RuntimeError(f"{tool}: {told or answer.content}")
    return told


async def _begin(client: Client, jobs: list[_Job]) -> None:
    actions = (await _call(client, "list_actions"))["actions"]
    say(f"An MCP client started `forbear serve`, which lists {len(actions)} actions.")
    say("Five jobs are submitted; meanwhile two payments are made, and three agents read a rate.")
    for job in jobs:
        job.operations.append(await _submit(client, job, "demo", **job.more))
    if await _submit(client, jobs[0], "another chat") != jobs[0].operations[0]:
        raise RuntimeError("the same submission made a second operation")
    say("The first job is submitted once more, as agents do: it joins the one that runs.")


async def _submit(client: Client, job: _Job, task: str, **more: Any) -> str:
    record = await _call(
        client,
        "submit_job",
        provider="shop",
        job=job.job,
        arguments={"dataset": job.dataset},
        purpose="demonstration",
        task=task,
        **more,
    )
    return str(record["operation_id"])


async def _carry(client: Client, home: Path, token: str, job: _Job) -> None:
    """What the agent does until a job is over, and the person who is asked on the way."""
    (job_id,) = job.operations
    record = await _rest(client, job_id)
    reason = record.get("escalation", {}).get("reason")
    if job.ends == "succeeded" and reason is not None:
        await _decide(home, token, job, reason)
        record = await _rest(client, job_id)
    if record["state"] == "succeeded":
        fetched = await _call(client, "fetch_result", operation_id=job_id)
        job.operations.append(fetched["operation_id"])


async def _read_together(client: Client, story: _Story) -> None:
    """Three agents at once, each for a task of its own, and one quota."""

    async def read(number: int) -> str:
        record = await _call(
            client,
            "read_api",
            provider="rates",
            call="rate",
            arguments={"currency": "eur"},
            task=f"agent-{number}",
        )
        operation_id: str = record["operation_id"]
        await _rest(client, operation_id)
        return operation_id

    story.operations += await asyncio.gather(*map(read, range(1, READERS + 1)))


PAYMENT = {"call": "transfer", "arguments": {"amount": 125, "to": "acct_42"}}


async def _pay(client: Client, found: _Story, asked: _Story) -> None:
    for provider, story in (("bank", found), ("oldbank", asked)):
        record = await _call(
            client,
            "write_api",
            provider=provider,
            purpose="refund order 8812",
            task="refunds",
            **PAYMENT,
        )
        story.operations.append(record["operation_id"])
    await _call(client, "reconcile_write", operation_id=found.operations[0])
    await _rest(client, found.operations[0])


async def _ask_again(client: Client, story: _Story) -> str:
    """The agent tries the unclear payment once more under a key that it made up."""
    answer = await client.call_tool(
        "write_api", {"provider": "oldbank", "idempotency_key": "second-try", **PAYMENT}
    )
    told = answer.structured_content or {}
    if told.get("error", {}).get("operation_id") != story.operations[0]:
        raise RuntimeError(f"a second payment was not refused: {told}")
    return f"The agent tries again under a new key: {told['error']['code']}, nothing is sent."


async def _rest(client: Client, operation_id: str) -> dict[str, Any]:
    """Wait as an agent does, until it is over or a person is asked."""
    while True:
        record = await _call(client, "check_status", operation_id=operation_id, wait_seconds=10)
        if record["state"] not in ("queued", "sending", "waiting", "delayed", "unclear"):
            return record


async def _record(client: Client, operation_id: str) -> dict[str, Any]:
    return await _call(client, "operation_status", operation_id=operation_id, timeline=True)


# --- a person -------------------------------------------------------------------------------


async def _decide(home: Path, token: str, job: _Job, reason: str) -> None:
    """What a person does in a terminal: look at the inbox, decide once."""
    line = await _inbox_line(home, token, job.dataset)
    number = line.split(" ", 1)[0]
    say(f"One job stopped ({reason}); a person looks at `forbear inbox` and extends it:")
    say(f"  {line}")
    arguments = ("decide", number, "extend", "--requests", "4", "--yes")
    say(f"  $ forbear {' '.join(arguments)}")
    decided, _, _ = (await _forbear(home, token, *arguments)).partition("\n")
    say(f"  {decided}")


async def _case(home: Path, token: str, story: _Story) -> list[str]:
    """What the inbox and the case say of a write that nobody but a person can settle."""
    line, shown = await asyncio.gather(
        _inbox_line(home, token, "Transfer"), _forbear(home, token, "show", story.operations[0])
    )
    _, title, case = shown.partition("External write needs a decision")
    if not title:
        raise RuntimeError(f"no case is shown: {shown}")
    return ["$ forbear inbox", line, "", *f"{title}{case}".rstrip().splitlines()]


async def _inbox_line(home: Path, token: str, about: str) -> str:
    inbox = await _forbear(home, token, "inbox")
    line = next((one for one in inbox.splitlines() if about in one), "")
    if not line[:1].isdecimal():
        raise RuntimeError(f"the inbox does not show {about}: {inbox}")
    return line


async def _forbear(home: Path, token: str, *arguments: str) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "forbear",
        *arguments,
        env={**os.environ, **_environment(home), "FORBEAR_OPERATOR_TOKEN": token},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await child.communicate()
    if child.returncode not in (0, 1):
        raise RuntimeError(f"forbear {' '.join(arguments)}: {errors.decode()}")
    return output.decode()


# --- the stories ----------------------------------------------------------------------------


def _tell(number: int, story: _Story) -> None:
    """Print a story as the store has it, without what its title says already."""
    say()
    say(f"{number}. {story.title}", "bold")
    asked = [record for record in story.records if record["kind"] != "result"]
    for record in story.records:
        for line in record["timeline"]:
            begins = "Z asked for" in line and "again" not in line
            if "Z " in line and not (begins and (len(asked) == 1 or record not in asked)):
                say(f"   {line}", style_of(line))
    say(f"   {' | '.join(record['receipt'] for record in asked)}", "dim")
    for line in story.epilogue:
        say(f"   {line}".rstrip())


def _paced(moments: list[float]) -> str:
    """When the requests came that had to wait for a 429."""
    first, *later = moments
    times = ", ".join(f"{at - first:.1f} s" for at in later)
    return f"At the provider: 0.0 s, answered with 429 and Retry-After: {PAUSE}; then {times}."


def _compare(provider: FakeProvider, stories: list[_Story]) -> bool:
    """Whether the provider counted exactly what the stories say, and all ended as they should."""
    say()
    say("What the provider counted:", "bold")
    wrong: list[str] = []
    for number, story in enumerate(stories, 1):
        counted = {
            noun: sum(story.sees(noun, one) for one in provider.arrivals) for noun in story.routes
        }
        told = {noun: story.told(noun) for noun in story.routes}
        if told != counted:
            wrong.append(f"story {number} says {told}")
        if counted != {**counted, **story.exactly}:
            wrong.append(f"story {number} needs {dict(story.exactly)}")
        numbers = " · ".join(_some(count, noun) for noun, count in counted.items() if count)
        say(f"   {number}. {numbers}")
        if any(record["state"] != story.ends for record in story.records):
            wrong.append(f"the end of story {number}, which is {story.ends}")
        if story.shows not in story.text():
            wrong.append(f"story {number} does not say: {story.shows}")
        if story.spread:
            wrong += _rush(story.moments(provider))
    everything = sum(story.told(noun) for story in stories for noun in story.routes)
    if len(provider.arrivals) != everything:
        wrong.append(f"{len(provider.arrivals)} requests arrived, {everything} are told")
    effects = Counter(effect.collection for effect in provider.effects)
    if effects != EFFECTS:
        wrong.append(f"the provider made {dict(effects)}, and {EFFECTS} was asked for")
    for problem in wrong:
        say(f"   NOT AS TOLD: {problem}", "red")
    if not wrong:
        say(f"   All {everything} requests are told, and no other was sent.", "green")
        say("   Each job and each payment is there exactly once.", "green")
    return not wrong


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _rush(moments: list[float]) -> list[str]:
    """What is wrong with the pace of the reads after the 429."""
    first, *later = moments
    wrong: list[str] = []
    if any(at - first < PAUSE for at in later):
        wrong.append("a read left before the time that the 429 had named")
    if any(after - before < APART for before, after in pairwise(later)):
        wrong.append("the reads went on in one burst")
    return wrong


def _tail(path: Path) -> str:
    return path.read_text(encoding="utf-8")[-2_000:] if path.exists() else ""
