"""What an agent passes, and the corrected call when it passed something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.model import Code, Refusal
from forbear.tools import arguments
from forbear.tools.phrases import LIMIT

pytestmark = pytest.mark.requirement("M08")

MODELS: dict[str, type[arguments.Arguments]] = {
    "list_actions": arguments.ListActions,
    "submit_job": arguments.SubmitJob,
    "check_status": arguments.CheckStatus,
    "fetch_result": arguments.FetchResult,
    "cancel_job": arguments.CancelJob,
    "read_api": arguments.ReadApi,
    "write_api": arguments.WriteApi,
    "reconcile_write": arguments.ReconcileWrite,
    "operation_status": arguments.OperationStatus,
    "end_task": arguments.EndTask,
}
JOB: dict[str, Any] = {"provider": "exp", "job": "export", "arguments": {"dataset": "sales"}}

known = {name for model in MODELS.values() for name in model.model_fields}
near = {"id", "action", "dataset", "timeout", "Provider", "wait-seconds"}
names = st.sampled_from(sorted(known | near)) | st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def refused(tool: str, given_: dict[str, Any]) -> Refusal:
    answer = arguments.read(tool, MODELS[tool], given_)
    assert isinstance(answer, Refusal)
    assert answer.code is Code.INVALID_ARGUMENTS
    return answer


@given(st.sampled_from(sorted(MODELS)), st.dictionaries(names, values, max_size=6))
def test_the_corrected_call_of_anything_at_all_is_accepted(
    tool: str, anything: dict[str, Any]
) -> None:
    model = MODELS[tool]
    answer = arguments.read(tool, model, anything)

    if isinstance(answer, Refusal):
        assert len(answer.next_step) <= LIMIT
        assert answer.message.startswith("/")
        assert isinstance(arguments.read(tool, model, arguments.correct(model, anything)), model)


@pytest.mark.parametrize(
    ("tool", "wrong", "said", "call"),
    [
        (
            "check_status",
            {"id": "op_1"},
            "/id: is not known here; the right name is `operation_id`",
            'check_status(operation_id="op_1")',
        ),
        (
            "check_status",
            {"operationId": "op_1"},
            "/operationId: is not known here; the right name is `operation_id`",
            'check_status(operation_id="op_1")',
        ),
        (
            "check_status",
            {"operation_id": "op_1", "timeout": 30},
            "/timeout: is not known here; the right name is `wait_seconds`",
            'check_status(operation_id="op_1", wait_seconds=30)',
        ),
        (
            "check_status",
            {},
            "/operation_id: is missing",
            'check_status(operation_id="<operation_id>")',
        ),
        (
            "check_status",
            {"operation_id": "op_1", "wait_seconds": "20"},
            "/wait_seconds: must be a number",
            'check_status(operation_id="op_1", wait_seconds=20)',
        ),
        (
            "submit_job",
            {"provider": "exp", "job": "export", "dataset": "sales"},
            "the job's own arguments go into `arguments`",
            'submit_job(provider="exp", job="export", arguments={"dataset":"sales"})',
        ),
        (
            "submit_job",
            {**JOB, "arguments": '{"dataset": "sales"}'},
            "/arguments: must be an object",
            'submit_job(provider="exp", job="export", arguments={"dataset":"sales"})',
        ),
        (
            "submit_job",
            {"provider": "exp", "action": "export", "args": {"dataset": "sales"}},
            "/args: is not known here; the right name is `arguments`",
            'submit_job(provider="exp", job="export", arguments={"dataset":"sales"})',
        ),
        (
            "submit_job",
            {**JOB, "depends_on": "op_1"},
            "/depends_on: must be a list",
            'depends_on=["op_1"]',
        ),
        (
            "submit_job",
            {**JOB, "priority": "approved"},
            "/priority: input should be 'interactive' or 'background'",
            'submit_job(provider="exp", job="export", arguments={"dataset":"sales"})',
        ),
        (
            "operation_status",
            {"state": "Waiting", "colour": "red"},
            "/colour: is not known here; known are operation_id, state",
            'operation_status(state="waiting")',
        ),
        (
            "operation_status",
            {"operation_id": "op_1", "timeline": "true"},
            "/timeline: must be true or false",
            'operation_status(operation_id="op_1", timeline=true)',
        ),
        (
            "fetch_result",
            {"operation_id": "op_1", "offset": -1},
            "/offset: input should be greater than or equal to 0",
            'fetch_result(operation_id="op_1")',
        ),
        (
            "cancel_job",
            {"operation_id": "op_1"},
            "/reason: is missing",
            'cancel_job(operation_id="op_1", reason="<reason>")',
        ),
        (
            "read_api",
            {"provider": "pay", "call": "customer", "id": "7"},
            "the call's own arguments go into `arguments`",
            'read_api(provider="pay", call="customer", arguments={"id":"7"})',
        ),
        (
            "write_api",
            {"provider": "pay", "job": "transfer", "params": {"amount": 1}, "key": "k1"},
            "/job: is not known here; the right name is `call`",
            'write_api(provider="pay", call="transfer", arguments={"amount":1}, '
            'idempotency_key="k1")',
        ),
        (
            "submit_job",
            {"action": "exp.export", "arguments": {"a": 1}},
            "/provider: is missing",
            'submit_job(provider="exp", job="export", arguments={"a":1})',
        ),
        (
            "write_api",
            {},
            "/call: is missing",
            'write_api(provider="<provider from list_actions>", '
            'call="<call from list_actions>", arguments={})',
        ),
        (
            "read_api",
            {"provider": "pay", "call": "customer", "arguments": {}, "purpose": "x"},
            "/purpose: is not known here",
            'read_api(provider="pay", call="customer", arguments={"purpose":"x"})',
        ),
        (
            "reconcile_write",
            {"id": "op_1"},
            "/id: is not known here; the right name is `operation_id`",
            'reconcile_write(operation_id="op_1")',
        ),
        (
            "end_task",
            {},
            "/task: is missing; give either task or operation_id",
            'end_task(task="<your task\'s name>")',
        ),
        (
            "end_task",
            {"task": None, "reason": "done"},
            "/task: is missing; give either task or operation_id",
            'end_task(task="<your task\'s name>", reason="done")',
        ),
        (
            "end_task",
            {"task": "month-end", "operation_id": "op_1"},
            "/task: give either task or operation_id, not both",
            'end_task(operation_id="op_1")',
        ),
        (
            "end_task",
            {"task_id": "month-end"},
            "/task_id: is not known here; the right name is `task`",
            'end_task(task="month-end")',
        ),
        (
            "end_task",
            {"task": 7},
            "/task: must be text",
            'end_task(task="7")',
        ),
    ],
)
def test_a_wrong_call_is_answered_with_the_place_and_the_right_call(
    tool: str, wrong: dict[str, Any], said: str, call: str
) -> None:
    answer = refused(tool, wrong)

    assert said in answer.message
    assert call in answer.next_step


@pytest.mark.parametrize("named", [{"task": "month-end"}, {"operation_id": "op_1"}], ids=str)
def test_the_end_of_one_thing_is_taken(named: dict[str, Any]) -> None:
    taken = arguments.read("end_task", arguments.EndTask, {**named, "reason": None})

    assert isinstance(taken, arguments.EndTask)
    assert {name: getattr(taken, name) for name in named} == named


def test_a_wrong_name_is_not_also_a_missing_one() -> None:
    assert "missing" not in refused("end_task", {"task_id": "month-end"}).message


@pytest.mark.parametrize("limit", [0, -1, -3600])
@pytest.mark.parametrize("name", ["deadline_seconds", "max_status_requests", "useful_for_seconds"])
def test_a_limit_of_nothing_is_an_error_and_left_out_of_the_corrected_call(
    name: str, limit: int
) -> None:
    answer = refused("submit_job", {**JOB, name: limit})

    assert f"/{name}: input should be greater than or equal to 1" in answer.message
    assert name not in answer.next_step


@pytest.mark.requirement("M08")
@pytest.mark.parametrize("name", ["deadline_seconds", "max_status_requests", "useful_for_seconds"])
def test_a_limit_that_no_store_can_hold_counts_as_a_very_long_one(name: str) -> None:
    taken = arguments.read("submit_job", arguments.SubmitJob, {**JOB, name: 2**70})

    assert isinstance(taken, arguments.SubmitJob)
    assert getattr(taken, name) == arguments.LONGEST


@pytest.mark.parametrize(
    ("asked", "granted"),
    [(-1, 0), (0, 0), (7.5, 7.5), (50, 50), (51, 50), (300, 50), (10**400, 50), (float("inf"), 50)],
    ids=str,
)
def test_a_wait_is_clamped_not_refused(asked: float, granted: float) -> None:
    taken = arguments.read(
        "check_status", arguments.CheckStatus, {"operation_id": "op_1", "wait_seconds": asked}
    )

    assert isinstance(taken, arguments.CheckStatus)
    assert taken.wait_seconds == granted


@pytest.mark.parametrize(("asked", "granted"), [(-5, 1), (0, 1), (10, 10), (100, 100), (101, 100)])
@pytest.mark.parametrize("tool", ["list_actions", "operation_status"])
def test_a_page_is_clamped_not_refused(tool: str, asked: int, granted: int) -> None:
    taken = arguments.read(tool, MODELS[tool], {"limit": asked})

    assert isinstance(taken, arguments.ListActions | arguments.OperationStatus)
    assert taken.limit == granted


def test_null_is_as_good_as_absent() -> None:
    taken = arguments.read("submit_job", arguments.SubmitJob, {**JOB, "task": None, "limit": None})

    assert isinstance(taken, arguments.SubmitJob)
    assert taken.task is None


def test_a_missing_value_given_as_null_is_named() -> None:
    assert "/operation_id" in refused("check_status", {"operation_id": None}).message


def test_the_words_of_the_validator_never_reach_the_agent() -> None:
    answer = refused("submit_job", {**JOB, "arguments": 7, "deadline_seconds": "soon", "x": 1})

    for raw in ("pydantic", "http", "input_value", "validation error", "SubmitJob", "dict"):
        assert raw not in answer.message + answer.next_step


def test_a_long_call_points_at_what_stays_as_it_was() -> None:
    answer = refused("submit_job", {**JOB, "arguments": {"text": "x" * 900}, "priority": "high"})

    assert answer.next_step == (
        'Call again exactly so: submit_job(provider="exp", job="export", arguments=<as before>)'
    )


def test_a_name_in_a_pointer_is_escaped() -> None:
    assert "/a~1b~0c: " in refused("check_status", {"operation_id": "op_1", "a/b~c": 1}).message


@given(st.dictionaries(st.text(max_size=8), values, max_size=3))
def test_the_arguments_of_a_job_are_passed_on_unchanged(inner: dict[str, Any]) -> None:
    taken = arguments.read("submit_job", arguments.SubmitJob, {**JOB, "arguments": inner})

    assert isinstance(taken, arguments.SubmitJob)
    assert json.dumps(taken.arguments) == json.dumps(inner)
