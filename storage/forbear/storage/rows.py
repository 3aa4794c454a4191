"""Between rows and values: one place that knows how an `Operation` lies in its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from forbear.rules.model import (
    Attempt,
    Budget,
    Case,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Priority,
    Reason,
    RequestClass,
    State,
    Step,
    Trigger,
    WaitingFor,
)
from forbear.storage.schema import BUDGETS

_ENUMS: Mapping[str, type[StrEnum]] = {
    "kind": Kind,
    "request_class": RequestClass,
    "priority": Priority,
    "state": State,
    "step": Step,
    "delay_source": DelaySource,
    "waiting_for": WaitingFor,
    "certainty": Certainty,
}
_PLAIN = tuple(
    field.name
    for field in dataclasses.fields(Operation)
    if field.name not in _ENUMS and field.name not in BUDGETS and field.name != "notices"
)


def operation(row: Mapping[Any, Any]) -> Operation:
    values: dict[str, Any] = {name: row[name] for name in _PLAIN}
    for name, words in _ENUMS.items():
        values[name] = None if row[name] is None else words(row[name])
    for name in BUDGETS:
        values[name] = Budget(row[f"{name}_used"], row[f"{name}_max"])
    values["notices"] = tuple(row["notices"])
    return Operation(**values)


def changed(op: Operation, row: Mapping[Any, Any]) -> Operation:
    """`op` with the columns of `row` as they are stored now; of a budget both are there."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        whole, _, half = name.rpartition("_")
        if name in _ENUMS:
            values[name] = None if value is None else _ENUMS[name](value)
        elif half in _HALVES and whole in BUDGETS:
            values[whole] = Budget(row[f"{whole}_used"], row[f"{whole}_max"])
        else:
            values[name] = tuple(value) if name == "notices" else value
    return dataclasses.replace(op, **values)


_HALVES = ("used", "max")


def columns(changes: Mapping[str, object]) -> dict[str, object]:
    """The column values of changed fields."""
    flat: dict[str, object] = {}
    for name, value in changes.items():
        if isinstance(value, Budget):
            flat[f"{name}_used"], flat[f"{name}_max"] = value.used, value.max
        elif isinstance(value, StrEnum):
            flat[name] = str(value)
        elif name == "notices" and isinstance(value, tuple):
            flat[name] = [str(notice) for notice in cast(tuple[object, ...], value)]
        else:
            flat[name] = value
    return flat


def attempt(row: Mapping[Any, Any]) -> Attempt:
    return Attempt(
        id=row["id"],
        operation_id=row["operation_id"],
        number=row["number"],
        step=Step(row["step"]),
        trigger=Trigger(row["trigger"]),
        authorisation=row["authorisation"],
        owner=row["owner"],
        fence=row["fence"],
        scope=row["scope"],
        reserved_at=row["reserved_at"],
        send_by=row["send_by"],
        hold_until=row["hold_until"],
        request_digest=row["request_digest"],
        closed_at=row["closed_at"],
        outcome=row["outcome"],
        certainty=None if row["certainty"] is None else Certainty(row["certainty"]),
        status=row["status"],
        provider_request_id=row["provider_request_id"],
        note=row["note"],
        late=row["late"],
    )


def case(row: Mapping[Any, Any]) -> Case:
    return Case(
        id=row["id"],
        number=row["number"],
        operation_id=row["operation_id"],
        reason=Reason(row["reason"]),
        urgency=row["urgency"],
        text=row["text"],
        options=tuple(row["options"]),
        opened_at=row["opened_at"],
        revision=row["revision"],
        group=row["group"],
        closed_at=row["closed_at"],
        closed_because=row["closed_because"],
        decision=row["decision"],
        about=row["about"],
        wish=row["wish"],
        announce_at=row["announce_at"],
        announced=row["announced"],
    )
