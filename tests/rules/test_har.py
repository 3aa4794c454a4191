"""Recorded exchanges: which of their requests are a job, and what never leaves them."""

from __future__ import annotations

import base64
import json
import tomllib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forbear.rules.draft_exchanges import Drafted, draft, provider_of
from forbear.rules.exchanges import Unusable
from forbear.rules.har import Found, job_in
from forbear.server.documents import json_of

BASE = "https://api.exp.example/v1"
KEY = "sk-recorded-71c-secret"
AUTH = {"name": "Authorization", "value": f"Bearer {KEY}"}


def entry(
    method: str, url: str, answer: Any, *, sent: Any = None, status: int = 200, **more: Any
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "method": method,
        "url": url,
        "headers": [{"name": ":authority", "value": "x"}, AUTH],
        "cookies": [{"name": "sid", "value": f"cookie-{KEY}"}],
    }
    if sent is not None:
        request["postData"] = {"mimeType": "application/json", "text": json.dumps(sent)}
    text = answer if isinstance(answer, str) else json.dumps(answer)
    content = {"mimeType": "application/json", "text": text}
    response = {"status": status, "headers": [], "content": content}
    return {"request": request | more, "response": response}


def look(state: str, **more: Any) -> dict[str, Any]:
    return entry("GET", f"{BASE}/exports/exp_71c", {"job": "exp_71c", "state": state, **more})


def recording(*entries: Any) -> Any:
    return json_of(json.dumps({"log": {"version": "1.2", "entries": list(entries)}}).encode())


SUBMIT = entry("POST", f"{BASE}/exports", {"job": "exp_71c"}, sent={"dataset": "sales"}, status=202)
NOISE = (
    entry("GET", "https://app.exp.example/", "<html>", status=200),
    entry("POST", f"{BASE}/events", {"id": "ev_1"}, sent={"page": "x"}),
    entry("GET", f"{BASE}/me", {"id": "u_1", "status": "active"}),
)


def drafted(found: Found) -> Drafted:
    provider = provider_of(found.submit.sent)
    return draft(found.submit, found.status, provider, "a test", job=True)


def test_the_submission_and_the_looks_at_its_state_are_found_among_others() -> None:
    done = look("done", result={"url": "https://files.exp.example/1?sig=x"})
    found = job_in(
        recording(NOISE[0], SUBMIT, NOISE[1], look("queued"), NOISE[2], look("running"), done)
    )
    assert found.others == 2
    made = drafted(found)
    assert made.draft.provider == "exp"
    loaded = tomllib.loads(made.text)
    job = loaded["jobs"]["export"]
    assert job["submit"] == "POST /exports"
    assert job["status"] == "GET /exports/{id}"
    assert job["id"] == "/job"
    assert job["result"] == "GET {/result/url}"
    assert loaded["auth"] == "bearer env:EXP_TOKEN"
    assert loaded["allow_hosts"] == ["files.exp.example"]


def test_state_words_are_listed_each_once_in_the_order_seen_and_in_no_list() -> None:
    looks = [look(word) for word in ("queued", "running", "running", "queued", "done")]
    made = drafted(job_in(recording(SUBMIT, *looks)))
    assert made.draft.jobs[0].words == ("queued", "running", "done")
    job = tomllib.loads(made.text)["jobs"]["export"]
    assert [job[key] for key in ("waiting", "succeeded", "failed")] == [[], [], []]


def test_no_secret_of_the_recording_is_in_the_draft() -> None:
    made = drafted(job_in(recording(SUBMIT, look("done", token=KEY))))
    assert KEY not in made.text
    assert KEY not in "".join(made.draft.left())


def test_of_several_jobs_the_one_that_was_asked_about_most_is_taken() -> None:
    other = entry("POST", f"{BASE}/tasks", {"id": "t_99"}, sent={})
    once = entry("GET", f"{BASE}/tasks/t_99", {"id": "t_99", "state": "on"})
    found = job_in(recording(other, SUBMIT, once, look("a"), look("b")))
    assert found.submit.sent.path == "/v1/exports"


def test_a_status_address_that_the_answer_names_and_a_parameter_are_seen() -> None:
    named = entry("POST", f"{BASE}/runs", {"url": f"{BASE}/any/where"}, sent={})
    polled = entry("GET", f"{BASE}/any/where", {"state": "on"})
    made = drafted(job_in(recording(named, polled)))
    assert tomllib.loads(made.text)["jobs"]["run"]["status"] == "GET {take.status_url}"
    by_query = entry("GET", f"{BASE}/status?job=exp_71c", {"state": "on"})
    job = tomllib.loads(drafted(job_in(recording(SUBMIT, by_query))).text)["jobs"]["export"]
    assert job["status"]["query"] == {"job": "{id}"}


def test_contents_in_base64_and_forms_are_read() -> None:
    text = base64.b64encode(b'{"job": "exp_71c"}').decode()
    submit = entry("POST", f"{BASE}/exports", "")
    submit["response"]["content"] = {"encoding": "base64", "text": text}
    submit["request"]["postData"] = {
        "mimeType": "application/x-www-form-urlencoded",
        "params": [{"name": "dataset", "value": "sales"}],
    }
    made = drafted(job_in(recording(submit, look("done"))))
    job = tomllib.loads(made.text)["jobs"]["export"]
    assert job["submit"]["form"] == {"dataset": "{arg.dataset}"}


@pytest.mark.parametrize(
    ("pasted", "told"),
    [
        ({}, "no HAR file"),
        ([], "no HAR file"),
        ({"log": {"entries": {}}}, "no HAR file"),
        ({"log": {"entries": []}}, "it has no request with a JSON answer"),
        ({"log": {"entries": [SUBMIT]}}, "it has 1 requests with a JSON answer, and no read"),
        ({"log": {"entries": [look("a"), SUBMIT]}}, "no read that carries an id"),
        ({"log": {"entries": [None, 1, {"request": 1}]}}, "no request with a JSON answer"),
        ({"log": {"entries": [0] * 20_001}}, "record only the job"),
    ],
)
def test_a_recording_without_a_job_is_refused_with_the_reason(pasted: Any, told: str) -> None:
    with pytest.raises(Unusable, match=told):
        job_in(json_of(json.dumps(pasted).encode()))


TEXT = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ANSWERS = st.dictionaries(st.sampled_from(["job", "state", "url", "x"]) | TEXT, VALUES, max_size=4)


@settings(max_examples=100, deadline=None)
@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3), TEXT, VALUES)
def test_whatever_was_recorded_the_file_is_toml_and_holds_no_secret(
    submitted: dict[str, Any], looks: list[dict[str, Any]], url: str, sent: Any
) -> None:
    first = entry("POST", f"{BASE}/{url}", {**submitted, "job": "exp_71c"}, sent=sent)
    polls = [
        entry("GET", f"{BASE}/exports/exp_71c", {**one, "state": KEY, "token": KEY})
        for one in looks
    ]
    with suppress(Unusable):
        made = drafted(job_in(recording(first, *polls)))
        assert tomllib.loads(made.text)["contract"] == 1
        assert KEY not in made.text
