"""The JSON Schema of a contract file, made from the tables that the loader reads by.

It serves editors: keys, words and notations, with a line about each. What joins parts of a file
(templates that name nothing, tied rows, labels of approvals) only the loader checks.
"""

from __future__ import annotations

from typing import Any

from forbear.rules.contract_keys import CONTRACT, TABLES
from forbear.rules.contract_kinds import Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """A JSON Schema, draft 2020-12, for format 1."""
    return {
        "$schema": DIALECT,
        "title": "Forbear provider contract, format 1",
        **_of(CONTRACT),
        "$defs": {table.name: _of(table) for table in TABLES if table is not CONTRACT},
    }


def _of(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {
            key: {**kind.schema, "description": about} for key, (kind, about) in table.keys.items()
        },
        "additionalProperties": False if table.others is None else dict(table.others[0].schema),
    }
    if table.required:
        found["required"] = list(table.required)
    return found
