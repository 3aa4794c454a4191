"""Conclusions from pasted answers, and the examples of a contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rules.answering import CONTRACT, JOB
from tests.rules.contracts import FULL, changed, loaded

from forbear.rules.contract import Example, Means, Rule
from forbear.rules.replay import conclude, replay

DONE = b'{"job_id":"exp_71c","state":"done","result":{"url":"https://files.exp.example/r"}}'


@pytest.mark.parametrize(
    ("on", "http", "body", "conclusion"),
    [
        (
            "jobs.export.status",
            200,
            b'{"job_id":"exp_71c","state":"done"}',
            "contradictory_response",
        ),
        ("jobs.export.status", 200, DONE, "succeeded"),
        ("jobs.export.status", 200, b'{"state":"running"}', "waiting"),
        ("jobs.export.status", 200, b'{"state":"odd"}', "unknown_state"),
        ("jobs.export.status", 200, b"<html>", "invalid_response"),
        ("jobs.export.status", 404, b"", "not_yet_visible"),
        ("jobs.export.status", 429, b"", "rate_limited"),
        ("jobs.export.status", 401, b"", "auth"),
        ("jobs.export.submit", 202, b'{"job_id":7}', "accepted"),
        ("jobs.export.submit", 202, b"{}", "accepted_untracked"),
        ("jobs.export.submit", 200, DONE, "succeeded"),
        ("jobs.export.result", 200, b"a,b", "done"),
        ("jobs.export.results.result", 410, b"", "gone"),
        ("jobs.export.cancel", 202, b"", "done"),
        ("calls.transfer", 201, b'{"id":"tr_1","amount":5}', "done"),
        ("calls.transfer", 201, b"{}", "incomplete"),
        ("calls.transfer", 409, b"{}", "conflict"),
    ],
)
def test_an_answer_has_one_conclusion(on: str, http: int, body: bytes, conclusion: str) -> None:
    assert conclude(CONTRACT, on, http, (), body) == conclusion


@pytest.mark.parametrize(
    "on",
    [
        "jobs.export",
        "jobs.none.status",
        "calls.transfer.status",
        "export.status",
        "other.export.status",
        "jobs.export.lookup",
    ],
)
def test_a_request_that_does_not_exist_is_named(on: str) -> None:
    with pytest.raises(ValueError, match=on):
        conclude(CONTRACT, on, 200, (), b"")


def test_examples_are_replayed_and_only_wrong_ones_come_back() -> None:
    right = Example("jobs.export.status", 404, (), b"", "not_found", 10)
    young = Example("jobs.export.status", 404, (), b"", "not_yet_visible", 20)
    wrong = Example("jobs.export.status", 200, (), DONE, "failed", 30)
    lost = Example("jobs.nothing.status", 200, (), b"", "waiting", 40)
    contract = replace(CONTRACT, examples=(right, young, wrong, lost))
    found = [(one.example.line, one.concluded) for one in replay(contract)]
    assert found[0] == (30, "succeeded")
    assert found[1][0] == 40
    assert len(found) == 2


@pytest.mark.parametrize(
    ("body", "conclusion"),
    [
        (b'{"data":[{"client_ref":"x"},{"client_ref":"{ref}","job_id":"exp_71c"}]}', "found"),
        (b'{"data":[{"client_ref":"x","job_id":"exp_71c"}]}', "done"),
        (b'{"data":[{"client_ref":"{ref}"}]}', "done"),
        (b'{"exports":[]}', "invalid_response"),
    ],
)
def test_an_example_of_a_lookup_says_whether_it_finds_our_reference(
    body: bytes, conclusion: str
) -> None:
    contract = loaded(FULL)
    example = Example("jobs.export.lookup", 200, (), body, conclusion, 1)
    assert replay(replace(contract, examples=(example,))) == ()


@pytest.mark.parametrize(("id", "conclusion"), [("{key}", "found"), ("x", "done")])
def test_an_example_of_a_lookup_says_whether_it_finds_our_key(id: str, conclusion: str) -> None:
    text = changed(FULL, 'query = { reference = "{ref}" }', 'query = { key = "{key}" }')
    contract = loaded(changed(text, '{ "/reference" = "{ref}" }', '{ "/reference" = "{key}" }'))
    body = f'{{"data":[{{"reference":"{id}","id":"tr_1"}}]}}'.encode()
    example = Example("calls.transfer.lookup", 200, (), body, conclusion, 1)
    assert replay(replace(contract, examples=(example,))) == ()


def test_rules_about_age_are_tried_at_every_age() -> None:
    job = replace(JOB, rules=(Rule(Means.GONE, http=frozenset({404}), age_over=7 * 86_400_000),))
    gone = Example("jobs.export.status", 404, (), b"", "gone", 1)
    assert replay(replace(CONTRACT, jobs={"export": job}, examples=(gone,))) == ()
