"""Results: fetched once, from where the provider said, without secrets, and never too early."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.e2e.harness import (
    EXPORT,
    FOREVER,
    HOUR,
    MINUTE,
    NO_RESULT,
    RESULT,
    STATUS,
    Data,
    Stage,
    error,
    says,
    stage,
)

from forbear.server.fake import Answer, FakeProvider

pytestmark = pytest.mark.anyio


async def finished(on: Stage) -> str:
    job = await on.submit()
    assert (await on.end_of(job))["state"] == "succeeded"
    return job


@pytest.mark.requirement("W25", "W26")
async def test_a_result_is_an_operation_of_its_own_and_is_fetched_once(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        job = await finished(on)
        first = await on.call("fetch_result", operation_id=job)
        again = await on.call("fetch_result", operation_id=job)

        assert (first["kind"], first["parent_operation_id"]) == ("result", job)
        assert first["result"]["inline"] == {"rows": 3}
        assert again["operation_id"] == first["operation_id"]
        assert (await on.call("fetch_result", operation_id=first["operation_id"]))["result"] == (
            first["result"]
        )
        assert on.count(RESULT) == 1


async def test_a_large_text_is_a_file_with_a_preview_and_is_paged_from_the_store(
    tmp_path: Path,
) -> None:
    text = "".join(f"line {number}\n" for number in range(5_000))
    async with stage(tmp_path, states=("done",)) as on:
        on.script(Answer(headers=(("Content-Type", "text/csv"),), body=text), route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job)
        result = fetched["result"]
        assert result["bytes"] == len(text)
        assert result["truncated"] is True
        assert result["preview"] == text[:500]
        assert await anyio.Path(result["file"]).read_text() == text
        assert "inline" not in result

        read, pages = "", 0
        while True:
            page = await on.call("fetch_result", operation_id=job, offset=len(read))
            read += page["result"]["inline"]
            pages += 1
            if not page["result"]["truncated"]:
                break
        assert read == text
        assert pages == 4
        assert on.count(RESULT) == 1


async def test_a_result_that_is_no_text_is_a_file_without_a_preview(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        sent = bytes(range(256)) * 4
        on.script(
            Answer(headers=(("Content-Type", "application/parquet"),), body=sent), route=RESULT
        )
        job = await finished(on)
        result = (await on.call("fetch_result", operation_id=job))["result"]

        assert await anyio.Path(result["file"]).read_bytes() == sent
        assert "preview" not in result
        assert "inline" not in result


NAMED: Data = NO_RESULT | {
    "success": {"then": ["fetch_result"], "take": {"url": "/result/url"}},
    "results": {
        "output": {"method": "GET", "url": "{result.url}"},
        "errors": {"method": "GET", "path": "/exports/{id}/errors", "when": ["failed"]},
    },
}


async def test_named_results_are_told_apart_and_an_unknown_one_is_corrected(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NAMED, states=("done",)) as on:
        job = await finished(on)
        wrong = error(await on.call("fetch_result", operation_id=job, name="outputs"))
        early = error(await on.call("fetch_result", operation_id=job, name="errors"))
        right = await on.call("fetch_result", operation_id=job, name="output")

        assert wrong["code"] == "invalid_arguments"
        assert 'name="output"' in wrong["next_step"]
        assert early["code"] == "not_allowed_in_state"
        assert right["result"]["name"] == "output"
        assert on.count(RESULT) == len(on.provider.arrivals) - 1 == 1


async def test_a_result_whose_address_the_provider_did_not_give_is_not_offered(
    tmp_path: Path,
) -> None:
    """A batch without failed lines has no file of errors, and may have nothing but that file."""
    takes = {"rows": "/files/rows", "errors": "/files/errors"}
    files: Data = NO_RESULT | {
        "status": {"method": "GET", "path": "/exports/{id}", "take": takes},
        "results": {
            "rows": {"method": "GET", "path": "/files/{take.rows}"},
            "errors": {"method": "GET", "path": "/files/{take.errors}"},
        },
    }
    done = Answer(json={"id": "exp_1", "state": "done", "files": {"errors": "f_2"}})
    async with stage(tmp_path, files) as on:
        on.script(done)
        on.script(Answer(json=[7]), route="GET /files/f_2")
        job = await on.submit()
        await on.end_of(job)
        assert 'name="rows"' not in (await on.check(job))["next_step"]
        missing = error(await on.call("fetch_result", operation_id=job, name="rows"))
        fetched = await on.call("fetch_result", operation_id=job)

        assert missing["code"] == "invalid_arguments"
        assert 'name="errors"' in missing["next_step"]
        assert fetched["result"]["name"] == "errors"
        assert fetched["result"]["inline"] == [7]


async def test_a_failed_job_gives_the_partial_result_that_the_contract_keeps(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, NAMED, states=("failed",)) as on:
        on.script(Answer(json={"line": 7}), route="GET /exports/exp_1/errors")
        job = await on.submit()
        await on.end_of(job)
        answer = await on.check(job)
        assert "fetch_result" in answer["allowed_actions"]
        fetched = await on.call("fetch_result", operation_id=job, name="errors")

        assert fetched["result"]["inline"] == {"line": 7}


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
async def test_a_job_that_did_not_succeed_has_no_result(tmp_path: Path, state: str) -> None:
    async with stage(tmp_path, states=(state,)) as on:
        job = await on.submit()
        await on.end_of(job)
        refused = error(await on.call("fetch_result", operation_id=job))

        assert refused["code"] == "not_allowed_in_state"
        assert on.count(RESULT) == 0


async def test_a_partial_success_says_so(tmp_path: Path) -> None:
    job_of = EXPORT | {
        "success": {"partial": {"at": "/failed_rows", "test": "positive"}, "then": ["fetch_result"]}
    }
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        url = f"{on.provider.base_url}/files/exp_1"
        on.script(says("done", failed_rows=2, result={"url": url}))
        job = await finished(on)
        assert "only a part succeeded" in (await on.check(job))["next_step"]
        assert (await on.full(job, timeline=True))["timeline"][-1].endswith("succeeded in part")
        fetched = await on.call("fetch_result", operation_id=job)

        assert fetched["result"]["partial"] is True
        assert "only a part" in fetched["next_step"]


async def test_a_result_fetch_is_repeated_after_a_passing_failure(tmp_path: Path) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        on.script(Answer(503), route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job, wait_seconds=0)
        await on.end_of(fetched["operation_id"])

        assert (await on.full(fetched["operation_id"]))["state"] == "succeeded"
        assert on.count(RESULT) == 2


async def test_a_failed_fetch_leaves_the_job_alone_and_may_be_asked_for_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, states=("done",)) as on:
        on.script(*[Answer(503)] * 4, route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job, wait_seconds=0)
        assert (await on.end_of(fetched["operation_id"]))["state"] == "failed"
        assert on.count(RESULT) == 4
        assert (await on.full(job))["state"] == "succeeded"
        again = await on.call("fetch_result", operation_id=job)

        assert again["operation_id"] != fetched["operation_id"]
        assert again["result"]["inline"] == {"rows": 3}


@pytest.mark.requirement("W21")
async def test_no_redirect_is_followed_and_no_secret_leaves_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", "s3cret-token")
    async with (
        FakeProvider() as elsewhere,
        stage(tmp_path, states=("queued", "done"), auth="bearer env:EXP_TOKEN") as on,
    ):
        away = (("Location", f"{elsewhere.base_url}/files/exp_1"),)
        on.script(Answer(302, headers=away), route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job)

        assert fetched["state"] == "escalated"
        assert fetched["escalation"]["reason"] == "integration_failure"
        assert elsewhere.arrivals == []
        sent = {a.path: a.headers.get("authorization") for a in on.provider.arrivals}
        assert sent["/exports"] == sent["/exports/exp_1"] == "Bearer s3cret-token"
        assert sent["/files/exp_1"] is None


async def test_a_result_host_that_the_contract_allows_gets_the_request_and_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_TOKEN", "s3cret-token")
    async with FakeProvider() as files:
        files.job("exp_1", ["done"], result={"rows": 9}, existing=True)
        host = f"127.0.0.1:{files.port}"
        async with stage(
            tmp_path, states=FOREVER, auth="bearer env:EXP_TOKEN", allow_hosts=[host]
        ) as on:
            on.script(says("done", result={"url": f"{files.base_url}/files/exp_1?sig=abc"}))
            job = await finished(on)
            fetched = await on.call("fetch_result", operation_id=job)

            assert fetched["result"]["inline"] == {"rows": 9}
            (arrived,) = files.arrivals
            assert arrived.query == {"sig": "abc"}
            assert "authorization" not in arrived.headers


async def test_an_address_of_an_answer_that_is_not_allowed_is_never_called(
    tmp_path: Path,
) -> None:
    taken = NO_RESULT | {
        "success": {"then": ["fetch_result"], "take": {"url": "/result/url"}},
        "results": {"output": {"method": "GET", "url": "{result.url}"}},
    }
    async with FakeProvider() as elsewhere, stage(tmp_path, taken, states=FOREVER) as on:
        on.script(says("done", result={"url": f"{elsewhere.base_url}/files/exp_1"}))
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job)
        reason = fetched["error"]["code"] if "error" in fetched else fetched["escalation"]["reason"]

        assert reason == "egress_refused"
        await on.passes(HOUR)
        assert elsewhere.connections == 0


async def test_a_status_address_at_another_host_is_never_called(tmp_path: Path) -> None:
    job_of = {name: value for name, value in NO_RESULT.items() if name != "id"} | {
        "submit": {
            "method": "POST",
            "path": "/exports",
            "body": NO_RESULT["body"],
            "take": {"status_url": "header:Location", "id": "/id"},
        },
        "status": {"method": "GET", "url": "{take.status_url}"},
    }
    job_of.pop("body")
    async with FakeProvider() as elsewhere, stage(tmp_path, job_of, states=None) as on:
        away = (("Location", f"{elsewhere.base_url}/exports/exp_1"),)
        on.script(Answer(202, {"id": "exp_1", "state": "queued"}, away), route="POST /exports")
        answer = await on.asked()
        ended = await on.end_of(answer["operation_id"])

        assert ended["escalation"]["reason"] in ("egress_refused", "accepted_untracked")
        assert elsewhere.connections == 0
        assert on.count(STATUS) == 0


async def test_a_result_above_the_stated_size_is_not_kept(tmp_path: Path) -> None:
    job_of = NO_RESULT | {
        "success": {"then": ["fetch_result"], "take": {"url": "/result/url"}},
        "results": {"output": {"method": "GET", "url": "{result.url}", "max_bytes": 1000}},
    }
    async with stage(tmp_path, job_of, states=("done",)) as on:
        on.script(*[Answer(body="x" * 5_000)] * 9, route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job, wait_seconds=0)
        await on.passes(15 * MINUTE)

        assert (await on.full(fetched["operation_id"]))["state"] == "failed"
        assert not list((tmp_path / "artifacts").glob("*"))


@pytest.mark.requirement("W26")
@pytest.mark.parametrize("depth", [64, 65, 300, 700, 950, 5_000])
async def test_no_depth_of_a_result_keeps_an_agent_from_what_is_stored(
    tmp_path: Path, depth: int
) -> None:
    text = "[" * depth + "]" * depth
    json = Answer(headers=(("Content-Type", "application/json"),), body=text)
    async with stage(tmp_path, states=("done",)) as on:
        on.script(json, route=RESULT)
        job = await finished(on)
        fetched = await on.call("fetch_result", operation_id=job)
        listed = (await on.call("operation_status"))["operations"]

        shown = fetched["result"]["inline"]
        assert isinstance(shown, str if depth > 64 else list)
        assert [one["state"] for one in listed] == ["succeeded"] * 2
