"""The JSON Schema for editors says what the loader accepts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.contracts.library import FOLDER
from tests.rules.contracts import FULL, SMALL, changed, errors_of

from forbear.rules.contract_keys import TABLES
from forbear.rules.contract_schema import schema

SURVEY = Path(__file__).parent.parent / "survey"
FILES = (*SURVEY.glob("*.toml"), *FOLDER.glob("*.toml"))
VALIDATOR = Draft202012Validator(schema())
PARENTS = {
    "auth": "[auth]", "check": "[account.check]", "scope": "[scopes.s]",
    "class": "[classes.read]", "classes": "[classes]", "escalation": "[escalation]",
    "retention": "[retention]",
    "extension": "[jobs.export.limits.extension]", "limits": "[jobs.export.limits]",
    "backoff": "[jobs.export.backoff]", "hints": "[jobs.export.hints]",
    "expiry": "[jobs.export.expiry]", "states": "[jobs.export.states]",
    "success": "[jobs.export.success]", "failure": "[jobs.export.failure]", "rule": "[[rules]]",
    "page": "[calls.x.page]", "idempotency": "[jobs.export.idempotency]",
    "example": "[[examples]]", "submit": "[jobs.y.submit]", "status": "[jobs.y.status]",
    "result": "[jobs.y.result]", "cancel": "[jobs.export.cancel]",
    "lookup": "[jobs.export.lookup]", "job": "[jobs.y]", "call": "[calls.x]", "contract": "",
}  # fmt: skip


def plain(text: str) -> Any:
    """A TOML text as JSON values, as editors see it."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def test_the_schema_is_a_valid_schema() -> None:
    Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()


@pytest.mark.parametrize(
    "text",
    [SMALL, FULL, *(path.read_text(encoding="utf-8") for path in sorted(FILES))],
)
def test_every_good_contract_is_valid(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(plain(text))] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('usual     = "10m"', 'usualy = "10m"'),
        ('"40m"', '"40 minutes"'),
        ('"GET /exports/{id}"', '"/exports/{id}"'),
        ("contract = 1", "contract = 2"),
        ('"bearer env:EXP_TOKEN"', '"sk_live_1"'),
        ('"/state"', '"state"'),
        ("[calls]", '[jobs.export.hints]\nnext = { at = "/x" }\n[calls]'),
    ],
)
def test_what_the_schema_can_see_it_refuses(old: str, new: str) -> None:
    assert list(VALIDATOR.iter_errors(plain(changed(SMALL, old, new))))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_keys_of_the_schema_are_the_keys_that_the_loader_accepts(table: Any) -> None:
    made = schema()
    said = made if table.name == "contract" else made["$defs"][table.name]
    assert set(said["properties"]) == set(table.keys)
    if table.others is not None:
        return
    header = PARENTS[table.name]
    unknown = f"{header}\nno_such_key = 1\n" + "".join(
        f"{key} = 1\n" for key in table.keys if key != "use"
    )
    text = unknown if table.name == "contract" else f"contract = 1\n{unknown}"
    refused = {
        error.key.rpartition(".")[2]
        for error in errors_of(text)
        if error.problem == "is no known key here"
    }
    assert refused == {"no_such_key"}


def test_every_key_has_a_line_for_the_editor() -> None:
    for table in TABLES:
        for key, (_, about) in table.keys.items():
            assert about.endswith((".", ":", "…")), f"{table.name}.{key}"
