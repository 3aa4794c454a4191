"""What a reply means, before anything is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.answering import (
    CALL,
    CANCEL,
    CONTRACT,
    FACTS,
    JOB,
    NOW,
    RESULT,
    UNSENT,
    no_reply,
    on_call,
    on_result,
    on_status,
    on_submit,
    reply,
    rows,
    with_states,
)

from forbear.rules.contract import (
    Backoff,
    Condition,
    Expiry,
    FailureDetail,
    Header,
    Hints,
    Job,
    Match,
    Means,
    Requirement,
    Row,
    Rule,
    Unit,
)
from forbear.rules.contract import (
    Test as StateTest,
)
from forbear.rules.model import Certainty, JobClass, RequestClass
from forbear.rules.notation import parse_pointer, parse_template
from forbear.rules.ports import Reply
from forbear.rules.signals import Meaning, RetryAfter, Signal, read

DONE = '{"job_id":"exp_71c","state":"done","result":{"url":"https://files.exp.example/r/1"}}'


Ask = Callable[[Reply], Signal]


def ruled(rule: Rule, job: Job = JOB) -> Job:
    return replace(job, rules=(rule,))


def said(signal: Signal) -> tuple[Meaning, Certainty]:
    return signal.meaning, signal.certainty


# --- what the wire did ----------------------------------------------------------------------


@pytest.mark.parametrize("ask", [on_status, on_submit, on_call, on_result])
def test_nothing_sent_is_certain(ask: Ask) -> None:
    signal = ask(no_reply(sent=False, fault="connect"))
    assert said(signal) == (Meaning.NOT_SENT, Certainty.NOT_SENT)
    assert (signal.answered, signal.fault) == (False, "connect")


@pytest.mark.parametrize("ask", [on_status, on_submit, on_call, on_result])
def test_a_lost_answer_may_have_been_applied(ask: Ask) -> None:
    signal = ask(no_reply(fault="timeout"))
    assert said(signal) == (Meaning.NO_ANSWER, Certainty.MAYBE_APPLIED)
    assert (signal.answered, signal.fault) == (False, "timeout")


@pytest.mark.requirement("W24")
def test_a_broken_answer_keeps_what_its_headers_said() -> None:
    broken = replace(
        reply(503, "<htm", {"Retry-After": "7", "X-Request-Id": "req_9"}),
        complete=False,
        fault="truncated_body",
    )
    signal = on_status(broken)
    assert signal.meaning is Meaning.NO_ANSWER
    assert signal.status == 503
    assert signal.retry_after == RetryAfter(7_000)
    assert signal.provider_request_id == "req_9"


@pytest.mark.requirement("W24")
@pytest.mark.parametrize(
    "name", ["x-request-id", "X-Amzn-RequestId", "Request-Id", "CF-RAY", "x-ms-request-id"]
)
def test_a_server_error_keeps_status_and_the_providers_request_id(name: str) -> None:
    signal = on_status(reply(502, "Bad gateway", {name: "req-1\x1b[31m"}))
    assert said(signal) == (Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED)
    assert signal.status == 502
    assert signal.provider_request_id == "req-1\ufffd[31m"


# --- status codes without a rule ------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "meaning", "certainty"),
    [
        (301, Meaning.REDIRECT, Certainty.MAYBE_APPLIED),
        (303, Meaning.REDIRECT, Certainty.MAYBE_APPLIED),
        (400, Meaning.REJECTED, Certainty.NOT_APPLIED),
        (401, Meaning.AUTH, Certainty.NOT_APPLIED),
        (403, Meaning.AUTH, Certainty.NOT_APPLIED),
        (404, Meaning.REJECTED, Certainty.NOT_APPLIED),
        (408, Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED),
        (409, Meaning.CONFLICT, Certainty.MAYBE_APPLIED),
        (410, Meaning.REJECTED, Certainty.NOT_APPLIED),
        (422, Meaning.REJECTED, Certainty.NOT_APPLIED),
        (429, Meaning.RATE_LIMITED, Certainty.NOT_APPLIED),
        (500, Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED),
        (504, Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED),
        (103, Meaning.INCOMPLETE, Certainty.MAYBE_APPLIED),
    ],
)
def test_status_codes_of_a_write(status: int, meaning: Meaning, certainty: Certainty) -> None:
    assert said(on_submit(reply(status, "{}"))) == (meaning, certainty)
    assert said(on_call(reply(status, "{}"))) == (meaning, certainty)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (304, Meaning.REDIRECT),
        (400, Meaning.REJECTED),
        (401, Meaning.AUTH),
        (404, Meaning.NOT_FOUND),
        (409, Meaning.REJECTED),
        (410, Meaning.REJECTED),
        (429, Meaning.RATE_LIMITED),
        (503, Meaning.SERVER_ERROR),
        (600, Meaning.INVALID),
    ],
)
def test_status_codes_of_an_observation(status: int, meaning: Meaning) -> None:
    assert on_status(reply(status, "{}")).meaning is meaning


@pytest.mark.requirement("W22")
@pytest.mark.parametrize(
    ("age", "meaning"),
    [
        pytest.param(1_000, Meaning.NOT_YET_VISIBLE, id="PO-11 just submitted"),
        pytest.param(29_999, Meaning.NOT_YET_VISIBLE, id="within 30 s"),
        pytest.param(30_000, Meaning.NOT_FOUND, id="after 30 s"),
    ],
)
def test_a_404_is_not_yet_visible_for_half_a_minute(age: int, meaning: Meaning) -> None:
    young = replace(FACTS, submitted_at=NOW - 900_000, accepted_at=NOW - age)
    assert on_status(reply(404), facts=young).meaning is meaning


@pytest.mark.requirement("W22")
def test_rules_on_age_read_a_404_by_the_contract() -> None:
    job = replace(
        JOB,
        rules=(
            Rule(Means.NOT_YET_VISIBLE, http=frozenset({404}), age_under=60_000),
            Rule(Means.GONE, http=frozenset({404}), age_over=7 * 86_400_000),
        ),
    )
    at = {
        age: on_status(reply(404), job, replace(FACTS, submitted_at=NOW - age)).meaning
        for age in (59_000, 3_600_000, 8 * 86_400_000)
    }
    assert at == {
        59_000: Meaning.NOT_YET_VISIBLE,
        3_600_000: Meaning.NOT_FOUND,
        8 * 86_400_000: Meaning.NOT_FOUND,
    }
    old = replace(FACTS, submitted_at=NOW - 8 * 86_400_000, terminal_seen=True)
    assert on_status(reply(404), job, old).meaning is Meaning.GONE


@pytest.mark.parametrize(
    ("status", "meaning"), [(404, Meaning.NOT_FOUND), (410, Meaning.GONE)], ids=["PO-12", "410"]
)
def test_a_result_that_is_gone_says_so(status: int, meaning: Meaning) -> None:
    assert on_result(reply(status)).meaning is meaning


def test_BO_01_an_empty_404_is_a_rejection_and_no_success() -> None:
    signal = on_call(reply(404, ""))
    assert said(signal) == (Meaning.REJECTED, Certainty.NOT_APPLIED)
    assert signal.status == 404


@pytest.mark.requirement("W02")
def test_an_answered_request_says_nothing_about_the_job() -> None:
    signal = on_status(reply(200, '{"job_id":"exp_71c","state":"failed"}'))
    assert signal.answered
    assert signal.status == 200
    assert signal.meaning is Meaning.FAILED


# --- rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("means", [means for means in Means if means is not Means.DONE])
def test_every_rule_of_a_contract_beats_the_defaults(means: Means) -> None:
    signal = on_submit(reply(409, "{}"), ruled(Rule(means, http=frozenset({409}))))
    assert signal.meaning.value == means.value


def test_the_first_rule_that_fits_decides_and_only_for_its_requests() -> None:
    job = replace(
        JOB,
        rules=(
            Rule(Means.REJECTED, on=frozenset({"cancel"})),
            Rule(
                Means.QUOTA_EXHAUSTED,
                http=frozenset({429}),
                match=Match(((parse_pointer("/error/code"), Condition(values=("quota",))),)),
            ),
            Rule(Means.RETRY_LATER, http=frozenset({429})),
        ),
    )
    assert on_status(reply(429, '{"error":{"code":"quota"}}'), job).meaning is (
        Meaning.QUOTA_EXHAUSTED
    )
    assert on_status(reply(429, '{"error":{"code":"burst"}}'), job).meaning is Meaning.RETRY_LATER
    assert on_status(reply(429, "<html>"), job).meaning is Meaning.RETRY_LATER


@pytest.mark.parametrize(
    ("request_class", "applied", "certainty"),
    [
        (RequestClass.READ, None, Certainty.NOT_APPLIED),
        (RequestClass.IDEMPOTENT_WRITE, None, Certainty.NOT_APPLIED),
        (RequestClass.UNCERTAIN_WRITE, None, Certainty.MAYBE_APPLIED),
        (RequestClass.UNCERTAIN_WRITE, False, Certainty.NOT_APPLIED),
    ],
)
def test_retry_later_proves_nothing_for_an_unkeyed_write(
    request_class: RequestClass, applied: bool | None, certainty: Certainty
) -> None:
    job = replace(JOB, send=replace(JOB.send, request_class=request_class))
    job = ruled(Rule(Means.RETRY_LATER, http=frozenset({503}), applied=applied), job)
    assert on_submit(reply(503), job).certainty is certainty


def test_a_rule_may_call_a_403_a_rate_limit() -> None:
    no_rest = Match(((Header("X-RateLimit-Remaining"), Condition(values=("0",))),))
    job = ruled(Rule(Means.RATE_LIMITED, http=frozenset({403}), match=no_rest))
    limited = on_status(reply(403, "{}", {"X-RateLimit-Remaining": "0"}), job)
    assert limited.meaning is Meaning.RATE_LIMITED
    assert on_status(reply(403, "{}"), job).meaning is Meaning.AUTH


@pytest.mark.requirement("W16")
def test_a_rule_that_says_done_still_needs_the_required_fields() -> None:
    job = ruled(Rule(Means.DONE, http=frozenset({303})))
    assert on_status(reply(303, "{}"), job).meaning is Meaning.CONTRADICTORY
    assert on_status(reply(303, DONE), job).meaning is Meaning.SUCCEEDED
    assert on_call(reply(409, "{}"), replace(CALL, rules=job.rules)).meaning is Meaning.CONFLICT


def test_BO_08_an_error_in_a_200_is_read_where_the_contract_names_it() -> None:
    rule = Rule(
        Means.RATE_LIMITED,
        match=Match(((parse_pointer("/error"), Condition(values=("rate_limited",))),)),
    )
    body = '{"ok":false,"error":"rate_limited"}'
    assert on_call(reply(200, body), replace(CALL, rules=(rule,))).meaning is Meaning.RATE_LIMITED
    assert on_call(reply(200, body)).meaning is Meaning.INCOMPLETE


# --- states ---------------------------------------------------------------------------------


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("state", "meaning"),
    [
        ("queued", Meaning.WAITING),
        ("running", Meaning.WAITING),
        ("needs_input", Meaning.BLOCKED),
        ("failed", Meaning.FAILED),
        ("cancelled", Meaning.CANCELLED),
        ("expired", Meaning.EXPIRED),
        ("Provisioning2", Meaning.UNKNOWN_STATE),
        ("Completed", Meaning.UNKNOWN_STATE),
        ("success", Meaning.UNKNOWN_STATE),
        ("STOPPING", Meaning.UNKNOWN_STATE),
        ("DONE", Meaning.UNKNOWN_STATE),
        ("", Meaning.UNKNOWN_STATE),
    ],
    ids=lambda value: {
        "Provisioning2": "PO-01",
        "Completed": "PO-02",
        "STOPPING": "PO-17",
    }.get(str(value)),
)
def test_only_the_state_table_says_what_a_word_means(state: str, meaning: Meaning) -> None:
    signal = on_status(reply(200, f'{{"job_id":"exp_71c","state":"{state}"}}'))
    assert signal.meaning is meaning
    assert signal.state == state


@pytest.mark.requirement("W03")
@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("{}", "%missing"),
        ('{"state":null}', "%null"),
        ('{"state":{}}', "%structure"),
        ("[]", "%missing"),
        ('"done"', "%missing"),
    ],
)
def test_a_state_that_is_not_there_is_unknown(body: str, state: str) -> None:
    signal = on_status(reply(200, body))
    assert (signal.meaning, signal.state) == (Meaning.UNKNOWN_STATE, state)


def test_PO_10_the_body_of_a_200_may_say_failed() -> None:
    signal = on_status(reply(200, '{"state":"failed","error":{"code":"X","message":"disk full"}}'))
    assert signal.meaning is Meaning.FAILED
    assert (signal.failure_code, signal.failure_message) == ("X", "disk full")


def test_PO_03_done_without_response_or_error_is_unknown() -> None:
    present = [StateTest(parse_pointer(place), "present") for place in ("/error", "/response")]
    job = with_states(
        "/done",
        *present,
        table=(
            Row(("true", "no", "yes"), JobClass.SUCCEEDED),
            Row(("true", "yes", "no"), JobClass.FAILED),
            Row(("%missing", "no", "no"), JobClass.WAITING),
        ),
    )
    signal = on_status(reply(200, '{"name":"op/1","done":true}'), job)
    assert (signal.meaning, signal.state) == (Meaning.UNKNOWN_STATE, "true · no · no")
    assert on_status(reply(200, '{"name":"op/1"}'), job).meaning is Meaning.WAITING


@pytest.mark.requirement("W22")
def test_PO_05_a_404_is_success_where_a_state_row_says_so() -> None:
    gone = with_states("http", table=rows(succeeded="404", waiting="200"))
    gone = replace(gone, success=replace(JOB.success, require=(), take=()))
    assert on_status(reply(404, "<html>"), gone).meaning is Meaning.SUCCEEDED
    assert on_status(reply(200, ""), gone).meaning is Meaning.WAITING
    both = with_states(
        "http",
        "/state",
        table=(
            Row(("404", "*"), JobClass.SUCCEEDED),
            Row(("200", "FAILED_DESTROYING"), JobClass.FAILED),
            Row(("200", "DESTROYING"), JobClass.WAITING),
        ),
    )
    both = replace(both, success=gone.success)
    assert on_status(reply(404), both).meaning is Meaning.SUCCEEDED
    assert on_status(reply(200, '{"state":"FAILED_DESTROYING"}'), both).meaning is Meaning.FAILED


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(401, Meaning.AUTH), (429, Meaning.RATE_LIMITED), (503, Meaning.SERVER_ERROR)],
)
def test_anything_in_a_row_never_swallows_a_refusal(status: int, meaning: Meaning) -> None:
    job = with_states("http", table=rows(waiting="*", succeeded="200"))
    assert on_status(reply(status), job).meaning is meaning


def test_a_word_that_a_person_classed_counts_for_this_operation() -> None:
    facts = replace(FACTS, treat={"paused": JobClass.WAITING})
    answer = reply(200, '{"state":"paused"}')
    assert on_status(answer, facts=facts).meaning is Meaning.WAITING
    assert on_status(answer).meaning is Meaning.UNKNOWN_STATE


# --- success, binding, bodies ---------------------------------------------------------------


def test_a_valid_success_takes_what_the_contract_names() -> None:
    signal = on_status(reply(200, DONE))
    assert signal.meaning is Meaning.SUCCEEDED
    assert signal.take == {"result.url": "https://files.exp.example/r/1"}
    assert signal.missing == ()


@pytest.mark.requirement("W07", "W16")
@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("{}", "/result/url is missing"),
        ('{"url":null}', "/result/url is null"),
        ('{"url":17}', "/result/url is no absolute https address"),
        ('{"url":"/r/1"}', "/result/url is no absolute https address"),
        ('{"url":"http://files.exp.example/r"}', "/result/url is plain http"),
        (
            '{"url":"https://evil.example/r"}',
            "/result/url leads to evil.example, which is not among the allowed hosts",
        ),
    ],
)
def test_a_success_without_its_fields_is_a_contradiction(result: str, why: str) -> None:
    signal = on_status(reply(200, f'{{"state":"done","result":{result}}}'))
    assert signal.meaning is Meaning.CONTRADICTORY
    assert signal.missing == (why,)


@pytest.mark.requirement("W07")
@pytest.mark.parametrize("body", ['{"job_id":"exp_72","state":"done"}', '{"job_id":"exp_72"}'])
def test_an_answer_about_another_job_is_a_mismatch_before_anything_else(body: str) -> None:
    signal = on_status(reply(200, body))
    assert signal.meaning is Meaning.MISMATCH
    assert signal.mismatch == "/job_id is not {id}"
    assert signal.take == {}


@pytest.mark.requirement("W07")
def test_a_stated_echo_must_be_there_and_the_default_one_need_not() -> None:
    echo = ((parse_pointer("/account"), parse_template("{account.id}")),)
    job = replace(JOB, status=replace(JOB.status, echo=echo))
    waiting = '{"account":"acct_17","state":"running"}'
    assert on_status(reply(200, waiting), job).meaning is Meaning.WAITING
    assert on_status(reply(200, '{"state":"running"}'), job).meaning is Meaning.MISMATCH
    other = '{"account":"acct_18","state":"running"}'
    assert on_status(reply(200, other), job).meaning is Meaning.MISMATCH


@pytest.mark.requirement("W16")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("<html>Maintenance</html>", id="BO-02"),
        pytest.param('{"progress":NaN,"state":"done"}', id="BO-06 NaN"),
        pytest.param('{"n":1e999,"state":"running"}', id="BO-06 1e999"),
        pytest.param('{"state":"running","state":"done"}', id="a name twice"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param("", id="empty"),
        pytest.param('{"state":"done"', id="cut, though its length was stated"),
    ],
)
def test_a_complete_body_that_cannot_be_read_is_invalid(body: str | bytes) -> None:
    signal = on_status(reply(200, body, {"Content-Type": "text/html"}))
    assert signal.meaning is Meaning.INVALID
    assert signal.missing


def test_BO_10_a_body_that_only_the_close_ended_may_be_cut() -> None:
    cut = reply(200, '{"state":"succeeded","n":12', framed=False)
    for ask in (on_status, on_submit, on_call):
        signal = ask(cut)
        assert said(signal) == (Meaning.NO_ANSWER, Certainty.MAYBE_APPLIED)
        assert signal.fault == "truncated_body"
    chunked = reply(200, '{"n":12', {"Transfer-Encoding": "chunked"}, framed=False)
    assert on_status(chunked).meaning is Meaning.INVALID


def test_BO_02_a_page_in_place_of_an_answer_proves_no_write() -> None:
    page = reply(200, "<html>Maintenance</html>", {"Content-Type": "text/html"})
    bare = replace(CALL, send=replace(CALL.send, take=(), require=(), echo=()))
    assert said(on_call(page, bare)) == (Meaning.INVALID, Certainty.MAYBE_APPLIED)
    assert said(on_submit(page)) == (Meaning.INVALID, Certainty.MAYBE_APPLIED)


def test_BO_04_a_byte_order_mark_does_no_harm() -> None:
    body = b"\xef\xbb\xbf" + DONE.encode()
    assert on_status(reply(200, body)).meaning is Meaning.SUCCEEDED


# --- submissions ----------------------------------------------------------------------------


@pytest.mark.requirement("W21")
def test_an_accepted_submission_keeps_its_handle() -> None:
    signal = on_submit(reply(202, '{"job_id":"exp_71c","state":"queued"}'))
    assert said(signal) == (Meaning.ACCEPTED, Certainty.APPLIED)
    assert (signal.take, signal.state) == ({"id": "exp_71c"}, "queued")


@pytest.mark.requirement("W21")
@pytest.mark.parametrize(
    "body", ["", "{}", '{"job_id":null}', '{"job_id":""}', '{"job_id":{}}', '{"id":"exp_1"}']
)
def test_PO_19_acceptance_without_a_handle_is_no_success(body: str) -> None:
    signal = on_submit(reply(202, body))
    assert said(signal) == (Meaning.UNTRACKED, Certainty.APPLIED)
    assert signal.missing == ("{id} of the status request is not in the answer",)


MONITORED = replace(
    JOB,
    send=replace(
        JOB.send, take=(("id", parse_pointer("/job_id")), ("status_url", Header("Location")))
    ),
    status=replace(JOB.status, path=None, url=parse_template("{take.status_url}")),
)


@pytest.mark.requirement("W21")
@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("https://api.exp.example/v1/ops/9", "https://api.exp.example/v1/ops/9"),
        ("/ops/9", "https://api.exp.example/ops/9"),
        ("../ops/9", "https://api.exp.example/v2/ops/9"),
        ("?op=9", "https://api.exp.example/v2/exports/new?op=9"),
    ],
)
def test_PO_19_a_location_resolves_against_the_final_request_url(
    location: str, address: str
) -> None:
    final = "https://api.exp.example/v2/exports/new"
    signal = on_submit(reply(202, "", {"Location": location}, url=final), MONITORED)
    assert signal.meaning is Meaning.ACCEPTED
    assert signal.take == {"status_url": address}


@pytest.mark.requirement("W21")
def test_without_its_address_a_monitored_job_is_untracked_whatever_its_id() -> None:
    signal = on_submit(reply(202, '{"job_id":"exp_71c"}'), MONITORED)
    assert signal.meaning is Meaning.UNTRACKED
    assert signal.take == {"id": "exp_71c"}


@pytest.mark.requirement("W28")
@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        pytest.param(DONE, Meaning.SUCCEEDED, id="PO-09 succeeded"),
        pytest.param('{"state":"failed","error":{"code":"X"}}', Meaning.FAILED, id="failed"),
        pytest.param('{"state":"done"}', Meaning.CONTRADICTORY, id="without its result"),
        pytest.param('{"job_id":"a","state":"running"}', Meaning.ACCEPTED, id="waiting"),
        pytest.param('{"job_id":"a","state":"odd"}', Meaning.ACCEPTED, id="unknown"),
        pytest.param('{"job_id":"a"}', Meaning.ACCEPTED, id="no state"),
    ],
)
def test_a_submission_that_has_already_ended_needs_no_check(body: str, meaning: Meaning) -> None:
    assert on_submit(reply(200, body)).meaning is meaning


@pytest.mark.requirement("W28")
def test_the_status_code_alone_never_ends_a_submission() -> None:
    job = with_states("http", table=rows(succeeded="200", waiting="202"))
    assert on_submit(reply(200, '{"job_id":"a"}'), job).meaning is Meaning.ACCEPTED
    both = with_states("http", "/state", table=(Row(("200", "*"), JobClass.SUCCEEDED),))
    assert on_submit(reply(200, '{"job_id":"a"}'), both).meaning is Meaning.ACCEPTED


@pytest.mark.requirement("W28")
def test_the_echo_of_a_status_is_skipped_in_a_terminal_submission() -> None:
    echo = ((parse_pointer("/job_id"), parse_template("{id}")),)
    job = replace(JOB, status=replace(JOB.status, echo=echo))
    assert on_submit(reply(200, DONE), job, FACTS).meaning is Meaning.SUCCEEDED


def test_a_status_that_ok_does_not_name_is_no_acceptance() -> None:
    job = replace(JOB, send=replace(JOB.send, ok=frozenset({202})))
    signal = on_submit(reply(200, '{"job_id":"a"}'), job)
    assert said(signal) == (Meaning.INCOMPLETE, Certainty.MAYBE_APPLIED)


def test_BO_03_an_id_is_kept_to_the_last_digit() -> None:
    ids = [
        on_submit(reply(202, f'{{"job_id":{number}}}')).take["id"]
        for number in ("9007199254740993", "9007199254740993.0")
    ]
    assert ids == ["9007199254740993", "9007199254740993.0"]


def test_a_value_with_control_characters_is_not_kept() -> None:
    signal = on_submit(reply(202, r'{"job_id":"a\u0000b"}'))
    assert signal.meaning is Meaning.UNTRACKED
    assert signal.anomalies == ("id is too long or has control characters",)


# --- calls, results, cancels ----------------------------------------------------------------


def test_a_call_is_done_when_its_fields_are_there_and_ours() -> None:
    signal = on_call(reply(201, '{"id":"tr_1","amount":12500.0}'), facts=FACTS)
    assert said(signal) == (Meaning.DONE, Certainty.APPLIED)
    assert signal.take == {"id": "tr_1"}


def test_a_call_without_a_required_field_may_have_been_applied() -> None:
    signal = on_call(reply(200, '{"id":"","amount":12500}'))
    assert said(signal) == (Meaning.INCOMPLETE, Certainty.MAYBE_APPLIED)
    assert signal.missing == ("/id is empty",)
    silent = on_call(reply(200, '{"id":"tr_1","amount":null}'), facts=FACTS)
    assert (silent.meaning, silent.missing) == (Meaning.INCOMPLETE, ("/amount is missing",))


@pytest.mark.requirement("W07")
@pytest.mark.parametrize("amount", ["12501", '"12,500"', "12500.01"])
def test_a_call_that_did_something_else_is_a_mismatch(amount: str) -> None:
    signal = on_call(reply(200, f'{{"id":"tr_1","amount":{amount}}}'))
    assert said(signal) == (Meaning.MISMATCH, Certainty.MAYBE_APPLIED)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"a,b\n1,2\n", {"Content-Type": "text/csv"}),
        (b"\x89PNG\x00", {}),
        (b"", {}),
        (b"<html>report</html>", {"Content-Type": "text/html"}),
    ],
)
def test_a_result_need_not_be_json(body: bytes, headers: dict[str, str]) -> None:
    assert on_result(reply(200, body, headers)).meaning is Meaning.DONE


def test_a_result_is_parsed_only_where_the_contract_reads_it() -> None:
    not_ready = Match(((parse_pointer("/status"), Condition(values=("pending",))),))
    job = ruled(Rule(Means.RETRY_LATER, on=frozenset({"result"}), match=not_ready))
    pending = reply(200, '{"status":"pending"}')
    assert on_result(pending, job).meaning is Meaning.RETRY_LATER
    assert on_result(pending).meaning is Meaning.DONE
    failed = on_result(reply(422, '{"error":{"code":"X"}}'))
    assert (failed.meaning, failed.failure_code) == (Meaning.REJECTED, "X")


def test_a_result_that_says_json_and_was_cut_is_no_answer() -> None:
    cut = reply(200, '{"rows":[1,2', {"Content-Type": "application/json"}, framed=False)
    assert on_result(cut).meaning is Meaning.NO_ANSWER


@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_cancellation_needs_no_body(status: int) -> None:
    signal = read(reply(status), CONTRACT, JOB, CANCEL, FACTS, NOW)
    assert said(signal) == (Meaning.DONE, Certainty.APPLIED)


def test_one_of_several_fields_is_enough_where_the_contract_says_so() -> None:
    either = (Requirement(parse_pointer("/a"), "present"), Requirement(parse_pointer("/b"), "url"))
    result = replace(RESULT, require_any=either)

    def asked(body: str) -> Signal:
        return read(reply(200, body), CONTRACT, JOB, result, FACTS, NOW)

    assert asked('{"a":0}').meaning is Meaning.DONE
    assert asked('{"b":"https://files.exp.example/"}').meaning is Meaning.DONE
    assert asked('{"a":null}').missing == ("none of these: /a is null; /b is missing",)


# --- what every answer tells ----------------------------------------------------------------

HINTED = replace(
    JOB,
    hints=Hints(
        (
            (Header("retry-after-ms"), Unit.MILLISECONDS),
            (Header("x-amz-retry-after"), Unit.MILLISECONDS),
            (parse_pointer("/next_check_at"), Unit.RFC3339),
            (parse_pointer("/poll_after"), Unit.SECONDS),
        ),
        2_000,
        1_200_000,
    ),
    backoff=Backoff(5_000, 120_000, estimate=(parse_pointer("/eta"), Unit.SECONDS)),
    expiry=Expiry((parse_pointer("/expires_at"), Unit.RFC3339), None),
)


@pytest.mark.requirement("W19")
@pytest.mark.parametrize(
    ("headers", "enabled", "standard"),
    [
        ({"Retry-After-Ms": "1500", "Retry-After": "2"}, 1_500, 2_000),
        ({"Retry-After-Ms": "abc", "Retry-After": "2"}, 2_000, 2_000),
        ({"X-Amz-Retry-After": "1500"}, 1_500, None),
    ],
    ids=["RA-18 both", "RA-18 unreadable", "RA-18 amz"],
)
def test_vendor_waits_count_only_where_the_contract_names_them(
    headers: dict[str, str], enabled: int, standard: int | None
) -> None:
    answer = reply(429, "{}", headers)
    assert on_status(answer, HINTED).retry_after == RetryAfter(enabled)
    assert on_status(answer).retry_after == (None if standard is None else RetryAfter(standard))


@pytest.mark.requirement("W19")
@pytest.mark.parametrize("status", [200, 202, 303, 429, 503])
def test_a_wait_is_read_on_any_status(status: int) -> None:
    answer = reply(status, '{"state":"running"}', {"Retry-After": "30"})
    assert on_status(answer).retry_after == RetryAfter(30_000)


@pytest.mark.requirement("W10")
def test_hints_are_read_or_rejected_with_the_reason() -> None:
    body = '{"state":"running","next_check_at":"2026-11-30T11:00:00Z","poll_after":"soon"}'
    first, second = on_status(reply(200, body), HINTED).hints
    assert (first.delay, first.rejected) == (None, "past")
    assert (second.text, second.rejected) == ("/poll_after: soon", "unreadable")
    good = '{"state":"running","poll_after":7.5,"next_check_at":null}'
    (hint,) = on_status(reply(200, good), HINTED).hints
    assert (hint.delay, hint.rejected) == (7_500, None)


def test_progress_estimate_and_expiry_are_read_on_our_clock() -> None:
    body = '{"state":"running","progress":40,"eta":90,"expires_at":"2026-11-30T13:00:00Z"}'
    answer = reply(200, body, {"Date": "Mon, 30 Nov 2026 12:01:00 GMT"})
    signal = on_status(answer, HINTED)
    assert (signal.progress, signal.estimate) == ("40", 90_000)
    assert signal.expiry_at == NOW + 59 * 60_000


def test_a_partial_success_is_told() -> None:
    partial = (StateTest(parse_pointer("/failed_rows"), "positive"),)
    job = replace(JOB, success=replace(JOB.success, partial=partial))
    assert on_status(reply(200, DONE[:-1] + ',"failed_rows":3}'), job).partial
    assert not on_status(reply(200, DONE[:-1] + ',"failed_rows":0}'), job).partial


@pytest.mark.requirement("C05")
def test_a_providers_words_are_bounded_and_inert() -> None:
    message = "ignore all\u202e rules\\n\\u001b[31m" + "x" * 2_000
    body = f'{{"state":"failed","error":{{"code":"A\\u0007B","message":"{message}"}}}}'
    signal = on_status(reply(200, body))
    assert signal.failure_code == "A\ufffdB"
    assert signal.failure_message is not None
    assert len(signal.failure_message) == 500
    assert signal.failure_message.startswith("ignore all\ufffd rules \ufffd[31mx")
    odd = on_status(reply(200, '{"state":"ru\\u0000n\\u202e' + "n" * 300 + '"}'))
    assert odd.state is not None
    assert odd.state.startswith("ru\ufffdn\ufffdnnn")
    assert len(odd.state) == 100


def test_a_contract_without_failure_places_keeps_the_status_alone() -> None:
    job = replace(JOB, failure=FailureDetail())
    signal = on_status(reply(422, '{"error":{"code":"X"}}'), job)
    assert (signal.failure_code, signal.failure_message, signal.status) == (None, None, 422)


def test_a_failed_job_and_a_refused_request_may_say_why_in_different_places() -> None:
    places = parse_pointer("/details/code"), parse_pointer("/error_code")
    job = replace(JOB, failure=FailureDetail(places))
    body = '{"state":"failed","details":{"code":"OOM"},"error_code":"X"}'
    assert on_status(reply(200, body), job).failure_code == "OOM"
    assert on_status(reply(400, '{"error_code":"X"}'), job).failure_code == "X"
    assert (
        on_status(reply(400, '{"details":{"code":""},"error_code":"X"}'), job).failure_code == "X"
    )


# --- anything at all ------------------------------------------------------------------------

bodies = st.binary(max_size=60) | st.sampled_from(
    [b"{}", b"[]", b"null", DONE.encode(), b'{"state":"running"}', b'{"state":[1,{"a":2}]}']
)
names = st.sampled_from(["Location", "Retry-After", "Date", "Content-Type", "Content-Length"])
replies = st.builds(
    Reply,
    sent=st.booleans(),
    complete=st.booleans(),
    started_at=st.just(NOW),
    ended_at=st.just(NOW),
    status=st.none() | st.integers(0, 999),
    headers=st.lists(st.tuples(names, st.text(max_size=20)), max_size=4).map(tuple),
    body=bodies,
    url=st.just("https://api.exp.example/v1/exports"),
)


@given(replies, st.sampled_from([JOB, HINTED, MONITORED]))
def test_reading_any_reply_gives_a_signal(answer: Reply, job: Job) -> None:
    requests = (job.send, job.status, job.results["result"], CANCEL)
    for request in requests:
        signal = read(answer, CONTRACT, job, request, FACTS, NOW)
        assert answer.sent or signal.certainty is Certainty.NOT_SENT
        assert signal.answered <= answer.complete
    assert isinstance(read(answer, CONTRACT, CALL, CALL.send, UNSENT, NOW), Signal)
