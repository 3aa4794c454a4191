"""`forbear demo`: five jobs against a provider on this machine, told as they were recorded.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from forbear.server.cli.terminal import say, style_of
from forbear.server.clock import SystemRandom
from forbear.server.fake import Answer, FakeProvider, retry_after

CONTRACT = """\
contract = 1
title = "A provider on this machine"
base_url = "{base_url}"
auth = "none"

[account]
id = "demo"

[scopes.reports]                       # a 429 makes everything on its scope wait
per = "account+action"
actions = ["report"]
rate = "20/1s"

[scopes.exports]
per = "account"
rate = "20/1s"

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

PATIENCE = 28.0
"""Seconds after which the demonstration gives up."""


@dataclass(slots=True)
class _Scene:
    """One job, what it shows, and how it has to end."""

    title: str
    job: str
    dataset: str
    id: str
    states: tuple[str, ...]
    ends: str
    shows: str
    """What its receipt or its story has to say."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    operation_id: str = ""
    result_id: str | None = None


def _scenes() -> list[_Scene]:
    usual = ("queued", "running", "done")
    done = "succeeded"
    return [
        _Scene("A job that just works", "export", "sales", "exp_1", usual, done, "0 repeats"),
        _Scene(
            "A 503 that says Retry-After: 2 is obeyed",
            "export",
            "stock",
            "exp_2",
            usual,
            done,
            "503 obeyed",
        ),
        _Scene(
            "A 429 without a hint makes it back off sharply",
            "report",
            "tax",
            "rep_1",
            usual,
            done,
            "429 backed off",
        ),
        _Scene(
            "A state that the contract does not know stops and asks",
            "export",
            "staff",
            "exp_3",
            ("queued", "paused_by_admin"),
            "escalated",
            "escalated: unknown_state",
        ),
        _Scene(
            "A spent budget stops; a person extends it once, and the job succeeds",
            "export",
            "orders",
            "exp_4",
            ("queued", "running", "running", "done"),
            done,
            "decided extend",
            {"max_status_requests": 2},
        ),
    ]


def show() -> bool:
    """Run it and print it. True if every count at the provider is what the stories say."""
    with tempfile.TemporaryDirectory(prefix="forbear-demo-") as folder:
        try:
            return asyncio.run(asyncio.wait_for(_show(Path(folder)), PATIENCE))
        except TimeoutError:
            say(f"The demonstration did not end within {PATIENCE:.0f} s on this machine.", "red")
            say(_tail(Path(folder) / "serve.log"))
            return False


async def _show(home: Path) -> bool:
    token = SystemRandom().token(32)
    scenes = _scenes()
    async with FakeProvider() as provider:
        _prepare(provider, scenes)
        _furnish(home, provider.base_url, token)
        say(f"A fake provider listens on {provider.base_url}; the home is {home}.")
        with (home / "serve.log").open("w", encoding="utf-8") as log:
            transport = stdio_client(_server(home), errlog=log)
            async with Client(transport) as client:
                await _begin(client, scenes)
                await _carry(client, home, token, scenes)
                told = await _tell(client, scenes)
        return _compare(provider, scenes, told)


# --- the stage ------------------------------------------------------------------------------


def _prepare(provider: FakeProvider, scenes: list[_Scene]) -> None:
    for scene in scenes:
        result = {"dataset": scene.dataset, "rows": 3}
        provider.job(scene.id, scene.states, result, collection=f"/{scene.job}s")
    provider.script("GET /exports/exp_2", retry_after(2, 503))
    provider.script("GET /reports/rep_1", Answer(429, {"error": "slow down"}))


def _furnish(home: Path, base_url: str, token: str) -> None:
    jobs = "\n".join(
        JOB.format(name=name, title=title)
        for name, title in (("export", "Export a data set"), ("report", "Make a report"))
    )
    (home / "contracts").mkdir()
    text = CONTRACT.format(base_url=base_url, jobs=jobs)
    (home / "contracts" / "shop.toml").write_text(text, encoding="utf-8")
    (home / "config.toml").write_text(f'operator_token = "{token}"\n', encoding="utf-8")
    (home / "config.toml").chmod(0o600)


def _environment(home: Path) -> dict[str, str]:
    """So that a child finds the same code, also when nothing is installed."""
    return {"FORBEAR_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _server(home: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "forbear", "serve"], env=_environment(home)
    )


# --- the agent ------------------------------------------------------------------------------


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    told = answer.structured_content
    if answer.is_error or not isinstance(told, dict):
        raise RuntimeError(f"{tool}: {told or answer.content}")
    return told


async def _begin(client: Client, scenes: list[_Scene]) -> None:
    listed = await _call(client, "list_actions")
    names = ", ".join(f"{one['provider']}.{one['name']}" for one in listed["actions"])
    say(f"An MCP client started `forbear serve` and sees {names}; it submits five jobs.")
    for scene in scenes:
        record = await _call(
            client,
            "submit_job",
            provider="shop",
            job=scene.job,
            arguments={"dataset": scene.dataset},
            purpose="demonstration",
            task="demo",
            **scene.more,
        )
        scene.operation_id = record["operation_id"]
    again = await _call(
        client,
        "submit_job",
        provider="shop",
        job=scenes[0].job,
        arguments={"dataset": scenes[0].dataset},
        idempotency_key=None,
    )
    if again["operation_id"] != scenes[0].operation_id:
        raise RuntimeError("the same submission made a second operation")
    say("The first one is submitted once more, as agents do: it joins the job that runs.")


async def _carry(client: Client, home: Path, token: str, scenes: list[_Scene]) -> None:
    for scene in scenes:
        record = await _rest(client, scene)
        reason = record.get("escalation", {}).get("reason")
        if scene.ends == "succeeded" and reason is not None:
            await _decide(home, token, scene, reason)
            record = await _rest(client, scene)
        if record["state"] == "succeeded":
            fetched = await _call(client, "fetch_result", operation_id=scene.operation_id)
            scene.result_id = fetched["operation_id"]


async def _rest(client: Client, scene: _Scene) -> dict[str, Any]:
    """Wait as an agent does, until the job is over or a person is asked."""
    while True:
        record = await _call(
            client, "check_status", operation_id=scene.operation_id, wait_seconds=10
        )
        if record["state"] not in ("queued", "sending", "waiting", "delayed", "unclear"):
            return record


async def _decide(home: Path, token: str, scene: _Scene, reason: str) -> None:
    """What a person does in a terminal: look at the inbox, decide once."""
    say(f"It stopped ({reason}); a person looks at `forbear inbox` and extends it:")
    inbox = await _forbear(home, token, "inbox")
    line = next((one for one in inbox.splitlines() if scene.dataset in one), "")
    number = line.split(" ", 1)[0]
    if not number.isdecimal():
        raise RuntimeError(f"the inbox does not show {scene.operation_id}: {inbox}")
    say(f"  {line}")
    arguments = ("decide", number, "extend", "--requests", "4", "--yes")
    say(f"  $ forbear {' '.join(arguments)}")
    for told in (await _forbear(home, token, *arguments)).splitlines():
        say(f"  {told}")


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


async def _tell(client: Client, scenes: list[_Scene]) -> dict[str, dict[str, Any]]:
    """Print each story as the store has it; the full record of every operation by its id."""
    told: dict[str, dict[str, Any]] = {}
    for number, scene in enumerate(scenes, 1):
        say()
        say(f"{number}. {scene.title}", "bold")
        for operation_id in filter(None, (scene.operation_id, scene.result_id)):
            record = await _call(
                client, "operation_status", operation_id=operation_id, timeline=True
            )
            told[operation_id] = record
            for line in record["timeline"]:
                say(f"   {line}", style_of(line))
            say(f"   {record['receipt']}", "dim")
        if told[scene.operation_id]["escalation"] is not None:
            say()
            for line in told[scene.operation_id]["escalation"]["text"].splitlines():
                say(f"   {line}")
    return told


def _compare(
    provider: FakeProvider, scenes: list[_Scene], told: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether the provider counted exactly what the stories say, and all ended as they should."""
    say()
    say("What the provider counted, and what the stories say:", "bold")
    wrong: list[str] = []
    expected = 0

    def check(what: str, route: str, stated: int) -> None:
        nonlocal expected
        expected += stated
        counted = provider.count(route)
        say(f"   {what:<28} {counted} counted, {stated} told", None if counted == stated else "red")
        if counted != stated:
            wrong.append(what)

    for job in ("export", "report"):
        mine = [scene for scene in scenes if scene.job == job]
        submits = sum(_stated(told[scene.operation_id], "submit") for scene in mine)
        check(f"submissions of {job}s", f"POST /{job}s", submits)
    for scene in scenes:
        record = told[scene.operation_id]
        check(f"checks of {scene.id}", f"GET /{scene.job}s/{scene.id}", _stated(record, "check"))
        fetches = _stated(told[scene.result_id], "fetch") if scene.result_id is not None else 0
        check(f"fetches of {scene.id}", f"GET /files/{scene.id}", fetches)
        if record["state"] != scene.ends:
            wrong.append(f"{scene.id} is {record['state']}, not {scene.ends}")
        if scene.shows not in "\n".join((*record["timeline"], record["receipt"])):
            wrong.append(f"the story of {scene.id} does not say: {scene.shows}")
    if len(provider.arrivals) != expected:
        wrong.append(f"{len(provider.arrivals)} requests arrived, {expected} are told")
    if len(provider.effects) != len(scenes):
        wrong.append(f"{len(provider.effects)} jobs were created, {len(scenes)} were asked for")
    for problem in wrong:
        say(f"   NOT AS TOLD: {problem}", "red")
    if not wrong:
        say(f"   All {expected} requests are told, and no other was sent.", "green")
    return not wrong


def _stated(record: Mapping[str, Any], noun: str) -> int:
    """The number before a noun in the receipt: 7 for `check` in `1 submit · 7 checks`."""
    found = re.search(rf"(\d+) {noun}", str(record["receipt"]))
    return int(found[1]) if found else 0


def _tail(path: Path) -> str:
    return path.read_text(encoding="utf-8")[-2_000:] if path.exists() else ""
