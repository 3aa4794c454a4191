"""Field cases of the wire and of bodies: what is an answer, and what is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import EXPORT, FOREVER, HOUR, NO_RESULT, STATUS, SUBMIT, Data, says, stage

from forbear.server.fake import Answer, Drop, Raw, Step, gzip_bomb, huge_head

pytestmark = pytest.mark.anyio

BRISK: Data = NO_RESULT | {"status": {"method": "GET", "path": "/exports/{id}", "timeout": "1s"}}
"""A job whose polls must be over within a second; a busy machine connects in less."""

RUNNING = {"id": "exp_1", "state": "running"}
HTML = Answer(headers=(("Content-Type", "text/html"),), body="<html>Maintenance until ten</html>")
CUT = Raw(
    'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"id":"exp_1","state":"done","n":12'
)

LOST: dict[str, Step] = {
    "TR-01 a body that drips": Answer(json=RUNNING, drip="body", pace=0.1),
    "TR-01 a head that drips": Answer(json=RUNNING, drip="head", pace=0.1),
    "TR-05 a body that inflates to 50 MB": gzip_bomb(),
    "TR-06 a compressed body cut in half": Answer(json=RUNNING, gzip=True, shorten=12),
    "TR-06 the same up to the close": Answer(json=RUNNING, gzip=True, shorten=12, framing="close"),
    "BO-10 a body that the close cut": CUT,
    "a body shorter than its length": Answer(json=RUNNING, cut_body=5),
    "a chunked body that stops": Answer(json=RUNNING, framing="chunked", cut_body=9),
    "a head that stops": Answer(json=RUNNING, cut_head=20),
    "a head of 200 kB": huge_head(),
    "no HTTP at all": Raw("hello\r\n\r\n"),
    "a closed connection": Drop(),
    "a reset": Drop("after", "rst"),
}
"""What is no answer to a poll: it is counted as a transport failure and polled again."""


@pytest.mark.requirement("W13", "W14")
@pytest.mark.parametrize("step", LOST.values(), ids=LOST)
async def test_a_poll_without_a_whole_answer_is_a_transport_failure_and_no_verdict(
    tmp_path: Path, step: Step
) -> None:
    async with stage(tmp_path, BRISK, states=FOREVER) as on:
        on.script(step, says("done"))
        job = await on.submit()
        after = await on.due(job)

        assert after["state"] == "waiting"
        assert after["budgets"]["transport_failures"]["used"] == 1
        assert after["budgets"]["status_requests"]["used"] == on.count() == 1
        assert after["provider_job"]["state"] == "queued"
        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count() == 2


READ: dict[str, Step] = {
    "TR-03 three early hints before the answer": Answer(
        json={"id": "exp_1", "state": "done"}, interim=3
    ),
    "BO-04 a byte order mark": Answer(body=b'\xef\xbb\xbf{"id":"exp_1","state":"done"}'),
    "a whole compressed body": Answer(json={"id": "exp_1", "state": "done"}, gzip=True),
    "chunks": Answer(json={"id": "exp_1", "state": "done"}, framing="chunked"),
    "a whole body up to the close": Answer(json={"id": "exp_1", "state": "done"}, framing="close"),
}


@pytest.mark.parametrize("step", READ.values(), ids=READ)
async def test_a_whole_answer_is_read_however_it_comes(tmp_path: Path, step: Step) -> None:
    async with stage(tmp_path, BRISK, states=FOREVER) as on:
        on.script(step)
        job = await on.submit()

        assert (await on.end_of(job))["state"] == "succeeded"
        assert on.count() == 1


@dataclass(frozen=True, slots=True)
class Stop:
    """A complete answer that cannot be believed: a person is asked."""

    step: Step
    reason: str


STOPS: dict[str, Stop] = {
    # The case takes a page of maintenance as a passing error. By behaviour.md, section 6, a
    # complete body that cannot be read asks at once; a contract rule can call it `retry_later`.
    "BO-02 a page of maintenance": Stop(HTML, "invalid_response"),
    "BO-06 NaN": Stop(
        Answer(body='{"id":"exp_1","progress":NaN,"state":"done"}'), "invalid_response"
    ),
    "BO-06 a number beyond all bounds": Stop(
        Answer(body='{"id":"exp_1","state":"done","n":1e999}'), "invalid_response"
    ),
    "BO-08 an error inside a 200": Stop(
        Answer(json={"ok": False, "error": "no_such_job"}), "unknown_state"
    ),
    "BO-08 the errors of GraphQL": Stop(
        Answer(json={"errors": [{"message": "x"}], "data": None}), "unknown_state"
    ),
    "BO-01 an empty 404": Stop(Answer(404), "not_found"),
    "BO-03 another id that doubles would take for ours": Stop(
        Answer(body='{"id":9007199254740992,"state":"done"}'), "binding_mismatch"
    ),
    "the same key twice": Stop(
        Answer(body='{"id":"exp_1","state":"running","state":"done"}'), "invalid_response"
    ),
}


@pytest.mark.requirement("W07", "W16")
@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS)
async def test_a_complete_answer_that_cannot_be_believed_asks_a_person(
    tmp_path: Path, case: Stop
) -> None:
    async with stage(tmp_path, BRISK, states=FOREVER) as on:
        on.script(case.step, says("done"))
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["escalation"]["reason"] == case.reason
        assert ended["may_proceed"] is False
        assert on.count() == 1


@pytest.mark.parametrize(
    ("rule", "budget"),
    [
        ({"match": {"/ok": False}, "means": "rate_limited"}, "rate_limited"),
        (
            {"http": 200, "match": {"header:Content-Type": "text/html"}, "means": "retry_later"},
            "transport_failures",
        ),
    ],
    ids=["BO-08 ok:false", "BO-02 with a rule"],
)
async def test_a_contract_says_what_an_error_inside_a_200_means(
    tmp_path: Path, rule: Data, budget: str
) -> None:
    answer = HTML if budget == "transport_failures" else Answer(json={"ok": False})
    async with stage(tmp_path, BRISK | {"rules": [rule]}, states=FOREVER) as on:
        on.script(answer, says("done"))
        job = await on.submit()
        after = await on.due(job)

        assert (after["state"], after["budgets"][budget]["used"]) == ("waiting", 1)
        assert (await on.end_of(job))["state"] == "succeeded"


@pytest.mark.parametrize(
    "written",
    ["9007199254740993", "12345678901234567890123"],
    ids=["BO-03 an id of 64 bits", "BO-03 an id of more"],
)
async def test_ids_stay_exact_from_the_answer_to_the_next_address(
    tmp_path: Path, written: str
) -> None:
    async with stage(tmp_path, NO_RESULT, states=None) as on:
        on.script(Answer(202, body=f'{{"id":{written},"state":"queued"}}'), route=SUBMIT)
        on.script(Answer(body=f'{{"id":{written},"state":"done"}}'), route="GET /exports/")
        job = await on.submit()
        ended = await on.end_of(job)

        assert ended["provider_job"]["id"] == written
        assert ended["state"] == "succeeded"
        assert on.count(f"GET /exports/{written}") == 1


async def test_bo_03_an_id_with_a_fraction_is_not_turned_into_another(tmp_path: Path) -> None:
    async with stage(tmp_path, NO_RESULT, states=None) as on:
        on.script(Answer(202, body='{"id":9007199254740993.0,"state":"queued"}'), route=SUBMIT)
        answer = await on.asked()

        assert answer["provider_job"]["id"].startswith("9007199254740993")


WRITES: dict[str, Sequence[Step]] = {
    "BO-02 a page of maintenance": [HTML],
    "BO-10 a body that the close cut": [CUT],
    "TR-01 a body that drips": [Answer(202, RUNNING, drip="body", pace=0.1)],
    "TR-05 a body that inflates": [gzip_bomb()],
    "TR-06 half a compressed body": [Answer(202, RUNNING, gzip=True, shorten=12)],
    "BO-06 NaN": [Answer(202, body='{"id":"exp_1","n":NaN}')],
}


@pytest.mark.requirement("R16", "R24")
@pytest.mark.parametrize("steps", WRITES.values(), ids=WRITES)
async def test_a_submission_whose_answer_cannot_be_read_is_unclear_and_never_repeated(
    tmp_path: Path, steps: Sequence[Step]
) -> None:
    submit: dict[str, Any] = {"method": "POST", "path": "/exports", "timeout": "1s"}
    job_of = {name: value for name, value in EXPORT.items() if name != "body"}
    job_of |= {"submit": submit | {"body": EXPORT["body"]}}
    async with stage(tmp_path, job_of, states=FOREVER) as on:
        on.script(*steps, route=SUBMIT)
        answer = await on.asked()
        full = await on.full(answer["operation_id"])

        assert full["state"] in ("unclear", "escalated")
        assert full["wire"]["certainty"] == "maybe_applied"
        await on.passes(2 * HOUR)
        ended = await on.full(answer["operation_id"])
        assert ended["escalation"]["reason"] == "unclear_write"
        assert on.count(SUBMIT) == 1
        assert on.count(STATUS) == 0


async def test_tr_02_a_name_that_is_not_resolved_was_never_sent(tmp_path: Path) -> None:
    async with stage(tmp_path, states=None, base_url="https://forbear.invalid") as on:
        answer = await on.asked()
        full = await on.full(answer["operation_id"])

        assert full["state"] == "delayed"
        assert full["wire"] == {"sent": False, "answered": False, "certainty": "not_sent"}
        assert full["budgets"]["transport_failures"]["used"] == 1
        assert full["budgets"]["attempts"]["used"] == 0
