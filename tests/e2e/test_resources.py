"""Operations, stories and contracts as resources, their news and completion, in both eras."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import Client, MCPDeprecationWarning, stdio_client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    PromptReference,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    TextResourceContents,
)
from tests.e2e.harness import (
    FOREVER,
    NO_RESULT,
    PATIENCE,
    QUICK,
    Stage,
    call,
    furnished,
    serving,
    stage,
    write_contract,
)

from forbear.tools import subscriptions
from forbear.tools.answers import operation_schema
from forbear.tools.caller import Caller
from forbear.tools.resources import CONTRACT_URI, OPERATION_URI, STORY_URI
from forbear.tools.surface import build

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("M05")]

SECRET = "s3cret-value-of-the-key"


@pytest.fixture(params=["legacy", "2026-07-28"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def client(on: Stage, era: str, **settings: Any) -> AsyncIterator[Client]:
    async with Client(build(on.app.desk, version="0"), mode=era, **settings) as client:
        yield client


async def text(client: Client, uri: str) -> str:
    (read,) = (await client.read_resource(uri)).contents
    assert isinstance(read, TextResourceContents)
    return read.text


async def test_what_can_be_read_is_listed(era: str, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on, era) as agent:
        templates = (await agent.list_resource_templates()).resource_templates
        resources = (await agent.list_resources()).resources

        *ours, large = templates
        assert [one.uri_template for one in ours] == [OPERATION_URI, STORY_URI, CONTRACT_URI]
        assert large.uri_template == "forbear://artifacts/{operation_id}"
        assert [one.uri for one in resources] == ["forbear://schema/operation"]
        assert all(one.title and one.description for one in templates)
        assert all(one.mime_type for one in ours)


async def test_an_operation_reads_as_its_full_record(era: str, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on, era) as agent:
        job = await on.submit()
        sent = len(on.provider.arrivals)

        read = json.loads(await text(agent, f"forbear://operations/{job}"))

        Draft202012Validator(operation_schema()).validate(read)
        assert read == await on.full(job)
        assert len(on.provider.arrivals) == sent


async def test_a_story_reads_as_the_lines_of_its_timeline(era: str, tmp_path: Path) -> None:
    async with stage(tmp_path) as on, client(on, era) as agent:
        job = await on.submit()
        await on.end_of(job)

        told = (await text(agent, f"forbear://operations/{job}/story")).splitlines()

        full = await on.full(job, timeline=True)
        assert told == [*full["timeline"], full["receipt"]]


async def test_a_contract_reads_with_its_limits_and_nothing_of_its_keys(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", SECRET)
    scopes = {"account": {"per": "account", "rate": "1000/1s"}}
    async with (
        stage(tmp_path, auth="bearer env:EXP_TOKEN", scopes=scopes) as on,
        client(on, era) as agent,
    ):
        await on.submit()

        told = await text(agent, "forbear://contracts/exp")

        read = json.loads(told)
        assert [one["name"] for one in read["actions"]] == ["export"]
        (limit,) = read["limits"]
        assert (limit["rate"], limit["shared_per"]) == ("1000 requests in 1 second", "account")
        assert limit["now"] == {"exp/default/account": "open"}
        assert SECRET not in told
        assert "EXP_TOKEN" not in told


@pytest.mark.parametrize(
    "uri",
    [
        "forbear://operations/op_nothing",
        "forbear://operations/op_nothing/story",
        "forbear://contracts/nothing",
        "forbear://nothing/here",
        "forbear://operations/..%2F..%2Fetc%2Fpasswd",
    ],
)
async def test_what_does_not_exist_is_an_invalid_parameter(
    uri: str, era: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as on, client(on, era) as agent:
        with pytest.raises(MCPError) as caught:
            await agent.read_resource(uri)

        assert caught.value.error.code == -32602


async def test_names_are_completed_from_the_store(era: str, tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on, client(on, era) as agent:
        job = await on.submit()
        await on.end_of(job)
        case = (await on.full(job))["escalation"]["id"]

        async def completed(ref: Any, name: str, value: str, **given: str) -> list[str]:
            found = await agent.complete(ref, {"name": name, "value": value}, given or None)
            return found.completion.values

        operations = ResourceTemplateReference(uri=OPERATION_URI)
        assert await completed(operations, "operation_id", "") == [job]
        assert await completed(operations, "operation_id", job[:6]) == [job]
        assert await completed(operations, "operation_id", "op_~") == []
        assert await completed(ResourceTemplateReference(uri=CONTRACT_URI), "provider", "e") == [
            "exp"
        ]
        plan = PromptReference(name="plan_calls")
        assert await completed(plan, "action", "", provider="exp") == ["export"]
        assert await completed(plan, "action", "", provider="other") == []
        assert await completed(plan, "goal", "any") == []
        assert await completed(PromptReference(name="investigate_escalation"), "case", "esc_") == [
            case
        ]


async def test_what_belongs_to_another_principal_is_not_there(era: str, tmp_path: Path) -> None:
    stranger = Caller("somebody else", "another client", None)
    async with stage(tmp_path, NO_RESULT, states=FOREVER) as on:
        job = await on.submit()
        await on.end_of(job)
        case = (await on.full(job))["escalation"]["id"]
        server = build(on.app.desk, version="0", caller_of=lambda _: stranger)
        async with Client(server, mode=era) as other:
            for uri in (f"forbear://operations/{job}", f"forbear://operations/{job}/story"):
                with pytest.raises(MCPError):
                    await other.read_resource(uri)
            for prompt, given in (
                ("explain_operation", {"operation_id": job}),
                ("investigate_escalation", {"case": case}),
            ):
                with pytest.raises(MCPError):
                    await other.get_prompt(prompt, given)
            for name in ("operation_id", "case"):
                ref = PromptReference(name="explain_operation")
                found = await other.complete(ref, {"name": name, "value": ""})
                assert found.completion.values == []


# --- news --------------------------------------------------------------------------------------


class Ear:
    """Hears resource updates of a legacy session."""

    def __init__(self) -> None:
        self.updated: list[str] = []
        self._more = asyncio.Event()

    async def __call__(self, message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            self.updated.append(str(message.params.uri))
            self._more.set()

    async def hears(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.updated) < count:
                self._more.clear()
                await self._more.wait()


async def test_a_legacy_session_hears_of_each_change_until_it_unsubscribes(tmp_path: Path) -> None:
    ear = Ear()
    async with stage(tmp_path) as on, client(on, "legacy", message_handler=ear) as agent:
        job, other = await on.submit(), await on.submit("other")
        uri, story = f"forbear://operations/{job}", f"forbear://operations/{job}/story"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await agent.subscribe_resource(uri)
            await agent.subscribe_resource(story)
            await on.due(job)
            await ear.hears(2)
            assert set(ear.updated) == {uri, story}

            await agent.unsubscribe_resource(uri)
            ear.updated.clear()
            await on.end_of(job)
            await on.end_of(other)
            await ear.hears(1)

        assert set(ear.updated) == {story}


async def test_a_legacy_session_subscribes_only_to_what_is_there_and_changes(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on, client(on, "legacy") as agent:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            for uri in (
                *("forbear://operations/op_nothing", "forbear://contracts/nothing"),
                "forbear://schema/operation",
            ):
                with pytest.raises(MCPError) as caught:
                    await agent.subscribe_resource(uri)
                assert caught.value.error.code == -32602


async def test_what_a_legacy_session_followed_ends_with_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        job = await on.submit()
        async with client(on, "legacy") as agent:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await agent.subscribe_resource(f"forbear://operations/{job}")
            assert _following()

        assert not _following()


def _following() -> list[asyncio.Task[Any]]:
    return [one for one in asyncio.all_tasks() if one.get_name().startswith("follow ")]


async def test_a_stream_hears_of_what_it_asked_for_and_is_told_what_that_is(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on, client(on, "2026-07-28") as agent:
        job = await on.submit()
        other = await on.submit("other")
        uri = f"forbear://operations/{job}"
        never = ["forbear://operations/op_nothing", "forbear://contracts/nothing"]
        async with agent.listen(resource_subscriptions=[uri, *never]) as news:
            assert news.honored.resource_subscriptions == [uri]

            await on.end_of(other)
            await on.due(job)
            async with asyncio.timeout(PATIENCE):
                event = await anext(news)

        assert getattr(event, "uri", None) == uri


async def test_whoever_takes_all_its_streams_leaves_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "STREAMS", 1)
    whose = ["alice"]
    async with stage(tmp_path) as on:
        server = build(on.app.desk, version="0", caller_of=lambda _: Caller(whose[0], "x", None))
        async with (
            Client(server, mode="2026-07-28") as agent,
            agent.listen(resource_subscriptions=[]),
        ):
            with pytest.raises(MCPError, match="Too many subscriptions"):
                async with agent.listen(resource_subscriptions=[]):
                    pass
            whose[0] = "bob"
            async with agent.listen(resource_subscriptions=[]):
                pass


async def test_who_follows_a_contract_hears_that_its_file_says_something_else(
    tmp_path: Path, era: str
) -> None:
    uri, ear = "forbear://contracts/exp", Ear()
    async with stage(tmp_path) as on, client(on, era, message_handler=ear) as agent:
        path = tmp_path / "contracts" / "exp.toml"
        text = path.read_text().replace("40m", "41m")

        async def changed() -> None:
            write_contract(tmp_path, text)
            await on.clock.asleep(4)  # three of the worker, one of whoever follows
            on.clock.advance(2_000)

        if era == "legacy":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await agent.subscribe_resource(uri)
            await changed()
            await ear.hears(1)
            assert ear.updated == [uri]
        else:
            async with agent.listen(resource_subscriptions=[uri]) as news:
                assert news.honored.resource_subscriptions == [uri]
                await changed()
                async with asyncio.timeout(PATIENCE):
                    assert getattr(await anext(news), "uri", None) == uri
        assert "41" in str((await agent.read_resource(uri)).contents)


async def test_news_come_from_the_store_and_not_from_the_provider(tmp_path: Path) -> None:
    async with stage(tmp_path, states=FOREVER) as on, client(on, "2026-07-28") as agent:
        job = await on.submit()
        sent = len(on.provider.arrivals)
        uris = [f"forbear://operations/{job}", f"forbear://operations/{job}/story"]
        async with agent.listen(resource_subscriptions=uris) as news:
            await on.settled()
            assert len(on.provider.arrivals) == sent

            await on.due(job)
            async with asyncio.timeout(PATIENCE):
                heard = {getattr(await anext(news), "uri", None) for _ in range(2)}

            assert heard == set(uris)
            assert len(on.provider.arrivals) == sent + 1


async def test_a_legacy_session_over_stdio_hears_of_another_process(tmp_path: Path) -> None:
    quick = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}
    ear = Ear()
    async with furnished(tmp_path, quick, states=FOREVER):
        wanted = serving(tmp_path)
        async with (
            Client(stdio_client(wanted), mode="legacy") as one,
            Client(stdio_client(wanted), mode="legacy", message_handler=ear) as two,
        ):
            answer = await call(
                one, "submit_job", provider="exp", job="export", arguments={"dataset": "sales"}
            )
            uri = f"forbear://operations/{answer['operation_id']}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await two.subscribe_resource(uri)
            await call(one, "end_task", operation_id=answer["operation_id"])
            await ear.hears(1)
            assert set(ear.updated) == {uri}


async def test_changes_made_by_another_process_are_heard_over_stdio(tmp_path: Path) -> None:
    quick = NO_RESULT | {"usual": "2s", "deadline": "60s", "backoff": QUICK}
    async with furnished(tmp_path, quick, states=FOREVER):
        wanted = serving(tmp_path)
        async with (
            Client(stdio_client(wanted), mode="2026-07-28") as one,
            Client(stdio_client(wanted), mode="2026-07-28") as two,
        ):
            answer = await call(
                one, "submit_job", provider="exp", job="export", arguments={"dataset": "sales"}
            )
            uri = f"forbear://operations/{answer['operation_id']}"
            async with two.listen(resource_subscriptions=[uri]) as news:
                await call(one, "end_task", operation_id=answer["operation_id"])
                async with asyncio.timeout(PATIENCE):
                    while json.loads(await text(two, uri))["state"] != "discarded":
                        await anext(news)
