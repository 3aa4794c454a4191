"""What an agent is told it can do, and the call as it should be."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from tests.tools.driving import CONTRACT, Shelf, contract, shelf

from forbear.rules.contract import ContractError
from forbear.rules.model import Code, Refusal
from forbear.tools import catalogue, samples

TYPED = (
    CONTRACT.replace(
        'body = { dataset = "{arg.dataset}" }',
        'body = { dataset = "{arg.dataset}", rows = "{arg.rows}", format = "{arg.format}" }',
    )
    + """
[jobs.export.input]
type = "object"
required = ["dataset", "format"]
properties.dataset = { type = "string", maxLength = 8 }
properties.rows = { type = "integer", minimum = 1, maximum = 500 }
properties.format = { enum = ["csv", "json"] }
"""
)


def typed() -> Shelf:
    return shelf(TYPED)


def export(book: Shelf) -> Any:
    return book.held["exp"].jobs["export"]


def refusal(book: Shelf, **arguments: Any) -> Refusal:
    found = catalogue.objections(book.held["exp"], export(book), arguments)
    assert found is not None
    return found


def listing(book: Shelf, **wish: Any) -> dict[str, Any]:
    return catalogue.listing(book, **{"query": None, "cursor": None, "limit": 50, **wish})


# --- listing --------------------------------------------------------------------------------


def test_the_listing_has_one_line_per_action_and_says_what_is_ready() -> None:
    assert listing(shelf()) == {
        "actions": [
            {
                "provider": "exp",
                "name": "customer",
                "kind": "call",
                "title": "One customer",
                "ready": False,
                "note": "Calls are not carried out by this version.",
            },
            {
                "provider": "exp",
                "name": "export",
                "kind": "job",
                "title": "Export a data set",
                "ready": True,
            },
        ]
    }


def test_without_a_key_a_job_is_listed_and_says_what_to_do() -> None:
    [_, export] = listing(shelf(credential=None))["actions"]
    assert export["ready"] is False
    assert "forbear doctor" in export["note"]


def test_pages_follow_one_another_without_gap_or_overlap() -> None:
    names: list[str] = []
    cursor = None
    for _ in range(2):
        page = listing(shelf(), limit=1, cursor=cursor)
        names += [one["name"] for one in page["actions"]]
        cursor = page.get("next_cursor")
    assert names == ["customer", "export"]
    assert cursor is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("export", ["export"]),
        ("DATA set", ["export"]),
        ("one customer", ["customer"]),
        ("reports", ["customer", "export"]),
        ("export customer", []),
    ],
)
def test_every_word_of_a_query_must_occur(query: str, found: list[str]) -> None:
    text = CONTRACT.replace("Report exports", "All reports").replace("an export;", "it;")
    assert [one["name"] for one in listing(shelf(text), query=query)["actions"]] == found


def test_a_query_without_a_match_says_how_to_go_on() -> None:
    assert "without it" in listing(shelf(), query="nothing like it")["advice"]


def test_an_empty_home_says_how_to_begin() -> None:
    assert "forbear init" in listing(Shelf({}))["advice"]


def test_a_broken_contract_is_named_with_its_line_beside_those_that_load() -> None:
    error = ContractError("pay.toml", 7, "auth", "is a literal secret", "write env:NAME")
    answer = listing(shelf(broken={"pay": [error, error]}))
    assert len(answer["actions"]) == 2
    [broken] = answer["broken_contracts"]
    assert broken["provider"] == "pay"
    assert broken["errors"] == 2
    assert broken["error"].startswith("pay.toml:7: auth: is a literal secret")


# --- details --------------------------------------------------------------------------------


def detail(book: Shelf, action: str) -> dict[str, Any]:
    answer = catalogue.details(book, book.held["exp"], action=action, query=None)
    assert not isinstance(answer, Refusal)
    [found] = answer["actions"]
    assert isinstance(found, dict)
    return found


def test_the_details_of_a_job_are_all_that_is_needed_to_start_it() -> None:
    found = detail(typed(), "export")
    assert found["request_class"] == "uncertain_write"
    assert found["limits"] == {
        "usual_seconds": 600,
        "deadline_seconds": 2400,
        "max_status_requests": 12,
    }
    assert found["budget"] == (
        "12 status requests until the deadline of 40 minutes; a person may extend it once"
    )
    assert found["approval"] == "none"
    assert found["results"] == ["result"]
    assert found["cancel"] == {"approval": "per_call", "consequence": "Work so far is lost."}
    assert found["input"]["required"] == ["dataset", "format"]


def test_the_example_is_a_complete_call_that_the_schema_takes() -> None:
    book = typed()
    example = detail(book, "export")["example"]
    assert example["tool"] == "submit_job"
    assert example["arguments"]["provider"] == "exp"
    assert example["arguments"]["job"] == "export"
    jsonschema.validate(example["arguments"]["arguments"], dict(export(book).input))


def test_a_call_is_described_but_has_no_example_to_copy() -> None:
    found = detail(shelf(), "customer")
    assert found["kind"] == "call"
    assert found["ready"] is False
    assert "example" not in found


def test_many_actions_of_one_provider_come_as_lines_that_say_how_to_go_on() -> None:
    calls = "".join(f'\n[calls.c{n}]\nmethod = "GET"\npath = "/c{n}"\n' for n in range(9))
    book = shelf(CONTRACT + calls)
    answer = catalogue.details(book, book.held["exp"], action=None, query=None)
    assert not isinstance(answer, Refusal)
    assert len(answer["actions"]) == 11
    assert all("input" not in one for one in answer["actions"])
    assert 'list_actions(provider="exp", action="…")' in answer["advice"]


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["exports", "Export", "run_export", "export-job"])
@pytest.mark.requirement("M08")
def test_a_wrong_name_is_answered_with_the_whole_right_call(wrong: str) -> None:
    refused = catalogue.no_such_job(contract(), wrong)
    assert refused.code is Code.UNKNOWN_ACTION
    assert "nearest: export" in refused.message
    assert 'submit_job(provider="exp", job="export", arguments={"dataset":"<dataset>"})' in (
        refused.next_step
    )


def test_a_call_named_as_a_job_is_told_so() -> None:
    refused = catalogue.no_such_job(contract(), "customer")
    assert refused.code is Code.UNKNOWN_ACTION
    assert "is a call, not a job" in refused.message


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"format": "csv"}, "/arguments/dataset: is missing"),
        ({"dataset": 7, "format": "csv"}, "/arguments/dataset: must be text"),
        (
            {"dataset": "a" * 9, "format": "csv"},
            "/arguments/dataset: may have at most 8 characters",
        ),
        ({"dataset": "a", "format": "pdf"}, '/arguments/format: must be one of "csv", "json"'),
        ({"dataset": "a", "format": "csv", "rows": 0}, "/arguments/rows: must be at least 1"),
        (
            {"data_set": "a", "format": "csv"},
            "/arguments/data_set: is not known here; the right name is `dataset`",
        ),
        (
            {"dataset": "a", "format": "csv", "zzz": 1},
            "/arguments/zzz: is not known here; known are dataset, rows, format",
        ),
    ],
)
@pytest.mark.requirement("M08")
def test_each_mistake_is_named_by_its_place(given: dict[str, Any], problem: str) -> None:
    refused = refusal(typed(), **given)
    assert refused.code is Code.INVALID_ARGUMENTS
    assert problem in refused.message


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"dataset": 7, "format": "CSV"}, '{"dataset":"7","format":"csv"}'),
        (
            {"data-set": "a", "format": "csv", "rows": "5"},
            '{"dataset":"a","rows":5,"format":"csv"}',
        ),
        ({}, '{"dataset":"dataset","format":"csv"}'),
        ({"dataset": "a", "format": ["json"], "zzz": 1}, '{"dataset":"a","format":"json"}'),
        ({"dataset": "a", "format": "csv", "rows": 900}, '{"dataset":"a","format":"csv"}'),
    ],
)
@pytest.mark.requirement("M08")
def test_the_corrected_call_says_what_was_meant(given: dict[str, Any], meant: str) -> None:
    refused = refusal(typed(), **given)
    assert f'submit_job(provider="exp", job="export", arguments={meant})' in refused.next_step


def test_good_arguments_meet_no_objection() -> None:
    book = typed()
    good = {"dataset": "a", "format": "csv"}
    assert catalogue.objections(book.held["exp"], export(book), good) is None


def test_a_schema_that_is_none_is_the_contracts_fault_and_no_crash() -> None:
    book = shelf(TYPED.replace('type = "integer"', 'type = "whole"'))
    assert refusal(book, dataset="a", format="csv").code is Code.CONTRACT_ERROR


# --- samples --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "member",
    [
        {"type": "string"},
        {"type": "string", "minLength": 30},
        {"type": "string", "maxLength": 2},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "^[A-Z]{3}$", "minLength": 3},
        {"type": "integer", "minimum": 10},
        {"type": "integer", "minimum": 10, "multipleOf": 7},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": [3, 4]},
        {"const": "x"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"const": 5}, {"const": 6}]},
        {"$ref": "#/$defs/money"},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
        {},
    ],
)
def test_a_sample_is_valid_wherever_one_can_be_made(member: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "required": ["x"],
        "properties": {"x": member},
        "additionalProperties": False,
        "$defs": {"money": {"type": "integer", "minimum": 1}},
    }
    jsonschema.Draft202012Validator(schema).validate(samples.of(schema))


def test_a_schema_that_nothing_finite_fits_ends_without_a_sample() -> None:
    schema = {
        "type": "object",
        "required": ["next"],
        "properties": {"next": {"$ref": "#"}},
    }
    assert samples.of(schema) == {}


def test_a_reference_to_nothing_is_a_fault() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}}
    assert samples.fault(schema) == "$ref '#/$defs/gone' names nothing in the schema"
