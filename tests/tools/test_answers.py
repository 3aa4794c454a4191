"""The records that an agent gets, in full and in short."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from tests.tools.records import (
    ANSWERED,
    AS_OF,
    DONE,
    ESCALATED,
    ID,
    MINUTE,
    NOT_SENT,
    SUCCEEDED,
    UNCLEAR,
    case,
    escalated,
    read,
    record,
    write,
)
from tests.tools.test_texts import records

from forbear.rules.model import (
    Budget,
    Certainty,
    Code,
    DelaySource,
    Kind,
    Reason,
    Refusal,
    State,
    WaitingFor,
)
from forbear.tools.answers import after_end, full, operation_schema, page, refusal, short
from forbear.tools.record import Record

SCHEMA = Draft202012Validator(operation_schema())


def compact(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def test_the_full_record_has_the_documented_shape() -> None:
    answer = full(
        replace(
            record(key="month-end-1", wait=Budget(1_500, 120_000)),
            tasks=("month-end",),
            timeline=("2026-11-30", "10:18:14Z submitted job exp_71c"),
            receipt="1 submit · 2 checks",
        )
    )

    assert answer == {
        "operation_id": ID,
        "state": "waiting",
        "may_proceed": False,
        "next_step": answer["next_step"],
        "as_of": "2026-11-30T10:20:14Z",
        "kind": "job",
        "provider": "exp",
        "action": "export",
        "account": "acct_17",
        "label": "Export sales-2026",
        "request_class": "uncertain_write",
        "tasks": ["month-end"],
        "joined": False,
        "parent_operation_id": None,
        "superseded_by": None,
        "waiting_for": "provider",
        "allowed_actions": ["check_status", "cancel_job"],
        "next_check_at": "2026-11-30T10:20:31Z",
        "poll_after_seconds": 16.8,
        "delay_source": "local_backoff",
        "expected_at": None,
        "deadline_at": "2026-11-30T11:00:14Z",
        "useful_until": None,
        "watched_until_client_closes": False,
        "budgets": {
            "status_requests": {"used": 2, "max": 12},
            "transport_failures": {"used": 0, "max": 3},
            "rate_limited": {"used": 0, "max": 3},
            "attempts": {"used": 1, "max": 1},
            "wait_seconds": {"used": 1.5, "max": 120},
            "lookups": {"used": 0, "max": 6},
            "pages": None,
        },
        "provider_job": {
            "id": "exp_71c",
            "state": "running",
            "observed_at": "2026-11-30T10:20:09Z",
        },
        "http": {
            "status": 200,
            "at": "2026-11-30T10:20:09Z",
            "provider_request_id": "req_9",
        },
        "wire": {"sent": True, "answered": True, "certainty": "applied"},
        "result": None,
        "failure": None,
        "escalation": None,
        "notices": [],
        "advice": None,
        "validated": None,
        "idempotency_key": "month-end-1",
        "fingerprint": "hmac-sha256:" + "5f2c" * 16,
        "authorisation": "contract",
        "created_at": "2026-11-30T10:18:14Z",
        "updated_at": "2026-11-30T10:20:09Z",
        "revision": 7,
        "timeline": ["2026-11-30", "10:18:14Z submitted job exp_71c"],
        "receipt": "1 submit · 2 checks",
    }
    assert list(answer)[:5] == ["operation_id", "state", "may_proceed", "next_step", "as_of"]


@given(records())
def test_every_full_record_is_what_its_schema_says(any_record: Record) -> None:
    SCHEMA.validate(full(any_record))


def test_the_full_case_has_its_text_and_options() -> None:
    answer = full(escalated())

    assert answer["escalation"] == {
        "id": "esc_h2n8c4",
        "reason": "request_budget_exhausted",
        "urgency": "today",
        "text": "External job needs a decision",
        "options": [
            {
                "id": "check_again",
                "label": "look once more",
                "effect": "one status request now",
                "parameters": {},
            },
            {"id": "abandon", "label": "abandon", "effect": "no request", "parameters": {}},
        ],
        "decide_at": "http://127.0.0.1:8377/escalations/esc_h2n8c4",
        "opened_at": "2026-11-30T10:20:13Z",
        "revision": 1,
        "group": None,
        "decision": None,
    }


def test_the_short_case_names_its_options_only() -> None:
    assert short(escalated())["escalation"] == {
        "id": "esc_h2n8c4",
        "reason": "request_budget_exhausted",
        "decide_at": "http://127.0.0.1:8377/escalations/esc_h2n8c4",
        "options": ["check_again", "abandon"],
    }


def test_the_short_record_begins_with_what_matters_and_leaves_out_what_says_nothing() -> None:
    answer = short(record())

    assert list(answer) == [
        "operation_id",
        "state",
        "may_proceed",
        "next_step",
        "as_of",
        "waiting_for",
        "next_check_at",
        "delay_source",
        "deadline_at",
        "provider_job",
        "http",
        "allowed_actions",
        "kind",
    ]


@given(records())
def test_the_short_record_always_has_its_first_four_and_nothing_empty(any_record: Record) -> None:
    answer = short(any_record)

    assert list(answer)[:4] == ["operation_id", "state", "may_proceed", "next_step"]
    rest = [answer[name] for name in list(answer)[4:]]
    assert not [value for value in rest if value is None or value in (False, "", [], {})]
    compact(answer)


RESULT = {
    "name": "result",
    "content_type": "application/json",
    "bytes": 13,
    "inline": {"id": "tr_9"},
}


@pytest.mark.requirement("M10")
@pytest.mark.parametrize(
    "ordinary",
    [
        record(),
        replace(record(), usual_end=AS_OF + 10 * MINUTE),
        replace(record(), usual_end=AS_OF + 90 * MINUTE),
        replace(record(), spare_waits=5),
        record(**NOT_SENT),
        record(**{**NOT_SENT, "state": State.SENDING, "waiting_for": None}),
        record(**{**NOT_SENT, "waiting_for": WaitingFor.SCOPE}),
        record(**SUCCEEDED),
        replace(record(**SUCCEEDED, allowed=("fetch_result",)), results=("result",)),
        record(state=State.FAILED, failure={"code": "E7", "message": "No such data set."}),
        record(state=State.CANCELLED, waiting_for=None),
        *(
            call(**changes)
            for call in (read, write)
            for changes in (
                {},
                {"waiting_for": WaitingFor.SCOPE, "delay_source": DelaySource.SCOPE_LIMIT},
                {"state": State.SENDING, "waiting_for": None},
                {**ANSWERED, "state": State.DELAYED, "waiting_for": None, "http_status": 429},
                UNCLEAR,
                DONE,
                {**DONE, "result": RESULT},
                {**ANSWERED, "state": State.FAILED, "http_status": 503, "next_at": None},
                {"state": State.DISCARDED, "failure": {"message": "task month-end ended"}},
            )
        ),
    ],
    ids=lambda ordinary: f"{ordinary.operation.kind}-{ordinary.operation.state}",
)
def test_an_ordinary_short_answer_is_under_600_bytes(ordinary: Record) -> None:
    assert len(compact(short(ordinary))) < 600


@pytest.mark.requirement("W02")
def test_a_good_answer_about_a_running_job_is_two_facts() -> None:
    for answer in (full(record()), short(record())):
        assert answer["http"]["status"] == 200
        assert answer["provider_job"]["state"] == "running"
        assert answer["may_proceed"] is False


@pytest.mark.requirement("W02")
def test_a_bad_answer_about_a_job_is_not_the_job_failing() -> None:
    for answer in (full(record(http_status=503)), short(record(http_status=503))):
        assert answer["http"]["status"] == 503
        assert answer["state"] == "waiting"
        assert answer["provider_job"]["state"] == "running"


@pytest.mark.requirement("W02")
def test_a_failed_job_with_a_good_answer_is_two_facts() -> None:
    failed = record(state=State.FAILED, waiting_for=None, provider_state="failed")

    for answer in (full(failed), short(failed)):
        assert answer["http"]["status"] == 200
        assert answer["state"] == "failed"
        assert answer["may_proceed"] is False


@pytest.mark.requirement("W02")
def test_no_answer_leaves_the_http_fact_out_and_may_not_proceed() -> None:
    unsent = record(**NOT_SENT)

    assert full(unsent)["http"] is None
    assert full(unsent)["wire"] == {"sent": False, "answered": False, "certainty": "not_sent"}
    assert "http" not in short(unsent)
    assert short(unsent)["may_proceed"] is False


@pytest.mark.parametrize("state", State)
def test_only_success_may_proceed(state: State) -> None:
    assert full(record(state=state))["may_proceed"] is (state is State.SUCCEEDED)


@pytest.mark.parametrize(
    "unplanned",
    [
        record(lease_owner="p1"),
        record(state=State.SENDING),
        record(**{**NOT_SENT, "waiting_for": WaitingFor.APPROVAL}),
        record(**{**NOT_SENT, "waiting_for": WaitingFor.CREDENTIAL}),
        replace(record(**ESCALATED), case=case()),
    ],
    ids=["claimed", "sending", "approval", "credential", "escalated"],
)
def test_a_check_that_is_not_planned_has_no_time(unplanned: Record) -> None:
    answer = full(unplanned)

    assert answer["next_check_at"] is None
    assert answer["poll_after_seconds"] is None
    assert answer["delay_source"] is None


def test_a_check_that_is_due_is_zero_seconds_away() -> None:
    assert full(record(next_at=AS_OF - 5_000))["poll_after_seconds"] == 0


def test_the_deadline_of_an_unapproved_operation_has_not_begun() -> None:
    assert full(record(approve_by=AS_OF + MINUTE))["deadline_at"] is None
    assert "deadline_at" not in short(record(approve_by=AS_OF + MINUTE))


def test_the_usual_end_is_expected_unless_the_provider_said_better() -> None:
    usual = replace(record(), usual_end=AS_OF + MINUTE)

    assert full(usual)["expected_at"] == "2026-11-30T10:21:14Z"
    stated = replace(usual, operation=record(expected_at=AS_OF + 2 * MINUTE).operation)
    assert full(stated)["expected_at"] == "2026-11-30T10:22:14Z"


def test_a_result_is_given_as_it_was_stored() -> None:
    stored = {"name": "result", "content_type": "application/json", "inline": {"rows": [1, "2"]}}
    fetched = record(**SUCCEEDED, kind=Kind.RESULT, parent_id="op_parent", result=stored)

    assert full(fetched)["result"] == stored
    assert short(fetched)["result"] == stored
    assert short(fetched)["parent_operation_id"] == "op_parent"


def test_what_a_call_made_at_the_provider_is_named_by_its_id() -> None:
    for answer in (full(write(**DONE)), short(write(**DONE))):
        assert answer["provider_job"]["id"] == "tr_9"
    assert full(write())["provider_job"] is None


def test_a_call_is_answered_with_its_result_in_short_and_in_full() -> None:
    done = read(**{**DONE, "result": RESULT})

    assert short(done)["result"] == RESULT
    assert full(done)["result"] == RESULT
    assert full(done)["request_class"] == "read"
    assert short(done)["kind"] == "call"


def test_the_end_of_a_task_is_a_page_with_a_next_step() -> None:
    dropped = write(state=State.DISCARDED)

    answer = after_end([dropped], None, task=True)

    assert list(answer) == ["next_step", "operations"]
    assert answer["operations"] == [short(dropped)]
    assert after_end([dropped], "c1", task=True)["next_cursor"] == "c1"


def test_words_of_a_provider_are_inert_data() -> None:
    answer = short(
        record(
            state=State.FAILED,
            provider_state="fail\x1b[2Jed",
            failure={"code": "E\u202e1", "message": "half a pair \ud83d"},
        )
    )

    assert answer["provider_job"]["state"] == "fail\\u001b[2Jed"
    assert answer["failure"] == {"code": "E\\u202e1", "message": "half a pair \\ud83d"}
    compact(answer)


def test_an_operation_without_a_watcher_says_so_in_short() -> None:
    alone = replace(record(), watched_until_client_closes=True)

    assert short(alone)["watched_until_client_closes"] is True


def test_a_page_has_short_records_and_a_cursor_only_if_more_follows() -> None:
    assert page([record()], "c1") == {"operations": [short(record())], "next_cursor": "c1"}
    assert page([], None) == {"operations": []}


def test_a_refusal_has_its_code_message_and_next_step() -> None:
    about = Refusal(Code.NOT_READY, "Not yet.", "Wait.", ID)

    assert refusal(about) == {
        "error": {
            "code": "not_ready",
            "message": "Not yet.",
            "next_step": "Wait.",
            "operation_id": ID,
        },
        "operation_id": ID,
        "state": "refused",
        "may_proceed": False,
        "next_step": "Wait.",
    }
    assert "operation_id" not in refusal(replace(about, operation_id=None))["error"]


def test_closed_sets_of_the_schema_are_those_of_the_model() -> None:
    sets = operation_schema()["$defs"]

    for name, members in {
        "State": State,
        "Reason": Reason,
        "WaitingFor": WaitingFor,
        "DelaySource": DelaySource,
        "Certainty": Certainty,
        "Kind": Kind,
    }.items():
        assert sets[name]["enum"] == [member.value for member in members]
