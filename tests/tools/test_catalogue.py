"""What an agent is told it can do, and the call as it should be."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from tests.tools.driving import CONTRACT, Shelf, contract, shelf

from forbear.rules.contract import ContractError
from forbear.rules.model import Code, Refusal
from forbear.tools import catalogue, samples
from forbear.tools.phrases import LIMIT

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


PAYING = (
    CONTRACT
    + """
instead_of_many = "customers"
walk_limit = 20

[calls.customers]
title = "All customers"
method = "GET"
path = "/customers"
page = { query = "cursor", at = "/next", items = "/data", max_pages = 20 }

[calls.transfer]
title = "Transfer money"
label = "Transfer {arg.amount} to {arg.to}"
class = "idempotent_write"
method = "POST"
path = "/transfers"
body = { amount = "{arg.amount}", to = "{arg.to}", reference = "{ref}" }
take = { id = "/id" }
deadline = "10m"
approval = "per_call"

[calls.transfer.idempotency]
at = "header:Idempotency-Key"

[calls.transfer.lookup]
method = "GET"
path = "/transfers"
query = { reference = "{ref}" }
items = "/data"
match = { "/reference" = "{ref}" }
take = { id = "/id" }

[calls.note]
title = "Leave a note"
label = "Note for {arg.to}"
method = "POST"
path = "/notes"
body = { to = "{arg.to}" }
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
                "tool": "read_api",
                "title": "One customer",
                "ready": True,
            },
            {
                "provider": "exp",
                "name": "export",
                "kind": "job",
                "tool": "submit_job",
                "title": "Export a data set",
                "ready": True,
            },
        ]
    }


def test_without_a_key_an_action_is_listed_and_says_what_to_do() -> None:
    for action in listing(shelf(credential=None))["actions"]:
        assert action["ready"] is False
        assert "forbear doctor" in action["note"]


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


def test_the_details_of_a_read_are_a_complete_call_and_its_limits() -> None:
    found = detail(shelf(PAYING), "customer")
    assert found["ready"] is True
    assert found["request_class"] == "read"
    assert found["limits"] == {"deadline_seconds": 300, "walk_limit": 20}
    assert found["instead_of_many"] == "customers"
    assert found["example"] == {
        "tool": "read_api",
        "arguments": {
            "provider": "exp",
            "call": "customer",
            "arguments": {"id": "<id>"},
            "task": "<one name for your whole assignment>",
        },
    }
    assert not {"key", "lookup", "repeat"} & set(found)
    assert detail(shelf(PAYING), "customers")["limits"]["max_pages"] == 20


def test_the_details_of_a_write_say_what_is_done_about_a_lost_answer() -> None:
    found = detail(shelf(PAYING), "transfer")
    assert found["request_class"] == "idempotent_write"
    assert (found["key"], found["lookup"], found["approval"]) == (True, True, "per_call")
    assert found["limits"] == {"deadline_seconds": 600}
    assert found["repeat"]["window_seconds"] == 86_400
    assert found["example"]["tool"] == "write_api"
    assert found["example"]["arguments"]["purpose"] == "<what this is for>"


def test_a_write_that_cannot_be_found_again_says_so() -> None:
    found = detail(shelf(PAYING), "note")
    assert found["request_class"] == "uncertain_write"
    assert (found["key"], found["lookup"]) == (False, False)
    assert found["approval"] == "per_call"


def test_a_job_says_too_what_is_done_about_a_lost_answer() -> None:
    found = detail(shelf(), "export")
    assert (found["key"], found["lookup"]) == (False, False)


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


@pytest.mark.parametrize("wrong", ["custmer", "Customer", "get_customer"])
@pytest.mark.parametrize("tool", ["read_api", "write_api"])
@pytest.mark.requirement("M08")
def test_a_wrong_name_of_a_call_is_answered_with_the_whole_right_call(
    tool: str, wrong: str
) -> None:
    refused = catalogue.no_such_call(contract(), wrong, tool, {"id": "7"})
    assert refused.code is Code.UNKNOWN_ACTION
    assert 'read_api(provider="exp", call="customer", arguments={"id":"7"})' in refused.next_step


def test_the_nearest_name_that_the_tool_runs_makes_the_call() -> None:
    near = contract(CONTRACT.replace("[calls.customer]", "[calls.exports]"))
    assert "submit_job(" in catalogue.no_such_job(near, "exporte").next_step
    assert "read_api(" in catalogue.no_such_call(near, "exporte", "read_api").next_step


@pytest.mark.parametrize(
    ("name", "tool", "is_a", "right"),
    [
        ("customer", "write_api", "a read", 'read_api(provider="exp", call="customer", '),
        ("customer", "submit_job", "a read", 'read_api(provider="exp", call="customer", '),
        ("transfer", "read_api", "a write", 'write_api(provider="exp", call="transfer", '),
        ("transfer", "submit_job", "a write", 'write_api(provider="exp", call="transfer", '),
        ("export", "read_api", "a job", 'submit_job(provider="exp", job="export", '),
        ("export", "write_api", "a job", 'submit_job(provider="exp", job="export", '),
    ],
)
@pytest.mark.requirement("M08")
def test_the_wrong_tool_is_answered_with_the_whole_call_of_the_right_one(
    name: str, tool: str, is_a: str, right: str
) -> None:
    paying = contract(PAYING)
    action = paying.action(name)
    assert action is not None
    given = samples.of(action.input)
    if tool == "submit_job":
        refused = catalogue.no_such_job(paying, name, given)
    elif name == "export":
        refused = catalogue.no_such_call(paying, name, tool, given)
    else:
        refused = catalogue.use_other_tool(paying, action, given)
    assert refused.code is Code.USE_INSTEAD
    assert f"exp.{name} is {is_a}, which {tool} does not do." in refused.message
    assert right in refused.next_step
    assert f"Do not try {tool} for it again." in refused.next_step


def test_wrong_arguments_are_mended_on_the_way_to_the_right_tool() -> None:
    paying = contract(PAYING)
    refused = catalogue.use_other_tool(paying, paying.calls["customer"], {"ID": 7})
    assert 'arguments={"id":' in refused.next_step


def test_long_arguments_stay_as_they_were() -> None:
    paying = contract(PAYING)
    refused = catalogue.use_other_tool(paying, paying.calls["customer"], {"id": "7" * 300})
    assert "arguments=<as before>" in refused.next_step
    assert len(refused.next_step) <= LIMIT


def test_a_walk_is_answered_with_the_one_call_for_all_of_them() -> None:
    paying = contract(PAYING)
    refused = catalogue.use_one_call(paying, paying.calls["customer"], 21)
    assert refused.code is Code.USE_INSTEAD
    assert "21 items one by one" in refused.message
    assert 'read_api(provider="exp", call="customers", arguments={})' in refused.next_step


def test_a_walk_without_another_way_is_refused_in_words() -> None:
    found = contract()
    refused = catalogue.use_one_call(found, found.calls["customer"], 21)
    assert "a list, search or export" in refused.next_step


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


def test_where_one_argument_cannot_be_guessed_the_others_are_there_all_the_same() -> None:
    schema = {
        "type": "object",
        "required": ["amount", "currency"],
        "properties": {
            "amount": {"type": "integer", "minimum": 1},
            "currency": {"type": "string", "pattern": "^(?=z)[a-z]{3}$"},
        },
    }
    assert samples.of(schema) == {"amount": 1, "currency": "<currency>"}


def test_a_choice_of_required_arguments_takes_the_first_beside_those_that_always_are() -> None:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "required": ["to"],
        "anyOf": [{"required": ["from"]}, {"required": ["service"]}],
        "properties": {"to": text, "from": text, "service": text},
    }
    assert samples.of(schema) == {"to": "<to>", "from": "<from>"}


def test_a_schema_that_nothing_finite_fits_ends_with_a_placeholder() -> None:
    schema = {
        "type": "object",
        "required": ["next"],
        "properties": {"next": {"$ref": "#"}},
    }
    assert samples.of(schema) == {"next": "<next>"}


def test_a_reference_to_nothing_is_a_fault() -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/gone"}}}
    assert samples.fault(schema) == "$ref '#/$defs/gone' names nothing in the schema"
