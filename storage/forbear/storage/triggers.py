"""Triggers as SQLite and PostgreSQL spell them: what they say is said once, in `guards` and
`counters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Spelling(Protocol):
    """How one database spells a trigger and what stands in it."""

    differs: str
    """That two values, of which either may be NULL, are not the same."""
    most: str
    """The function that gives the larger of two numbers."""
    each: str
    """Joins each row with each."""
    grown: str
    """The value of a count that is there already, where one more is added."""

    def field(self, text: str, *path: str) -> str:
        """A member of an object that is stored as a text of JSON."""
        ...

    def number(self, field: str) -> str:
        """A member that is a number."""
        ...

    def array(self, texts: Sequence[str]) -> str:
        """The JSON of an array of texts, without a space in it."""
        ...

    def refusing(self, name: str, event: str, table: str, when: str, says: str) -> Sequence[str]:
        """The statements that make a trigger refuse a change; always, if `when` is empty."""
        ...

    def counting(self, name: str, event: str, table: str, when: str, does: str) -> Sequence[str]:
        """The statements that make a trigger do more after a change."""
        ...


class _SQLite:
    differs = "IS NOT"
    most = "max"
    each = "JOIN"
    grown = "value"

    def field(self, text: str, *path: str) -> str:
        return f"json_extract({text}, '$.{'.'.join(path)}')"

    def number(self, field: str) -> str:
        return field

    def array(self, texts: Sequence[str]) -> str:
        return f"json_array({', '.join(texts)})"

    def refusing(self, name: str, event: str, table: str, when: str, says: str) -> Sequence[str]:
        condition = f"WHEN {when} " if when else ""
        return (
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} {condition}"
            f"BEGIN SELECT RAISE(ABORT, '{says}'); END",
        )

    def counting(self, name: str, event: str, table: str, when: str, does: str) -> Sequence[str]:
        condition = f"WHEN {when} " if when else ""
        return (f"CREATE TRIGGER {name} AFTER {event} ON {table} {condition}BEGIN {does}END",)


class _PostgreSQL:
    differs = "IS DISTINCT FROM"
    most = "greatest"
    each = "CROSS JOIN"
    grown = "tallies.value"

    def field(self, text: str, *path: str) -> str:
        *above, last = (f"'{step}'" for step in path)
        return f"({' -> '.join((f'{text}::json', *above))} ->> {last})"

    def number(self, field: str) -> str:
        return f"{field}::bigint"

    def array(self, texts: Sequence[str]) -> str:
        if not texts:
            return "'[]'"
        listed = " || ',' || ".join(f"to_json({text})::text" for text in texts)
        return f"'[' || {listed} || ']'"

    def refusing(self, name: str, event: str, table: str, when: str, says: str) -> Sequence[str]:
        refuse = f"RAISE EXCEPTION '{says}' USING ERRCODE = 'integrity_constraint_violation';"
        checks = f"IF {when} THEN {refuse} END IF;" if when else refuse
        row = "OLD" if event == "DELETE" else "NEW"
        return (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN {checks} RETURN {row}; END$$",
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION {name}()",
        )

    def counting(self, name: str, event: str, table: str, when: str, does: str) -> Sequence[str]:
        condition = f"WHEN ({when}) " if when else ""
        return (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN {does}RETURN NULL; END$$",
            f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {condition}"
            f"EXECUTE FUNCTION {name}()",
        )


SQLITE: Spelling = _SQLite()
POSTGRESQL: Spelling = _PostgreSQL()
