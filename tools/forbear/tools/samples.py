"""Arguments against a contract's JSON Schema: a sample, what is wrong, and what was meant.

A sample is what a reader fills in: texts stand in angle brackets wherever the schema lets them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError

from forbear.tools import patterns

Schema = Mapping[str, Any]

DEEPEST = 8
"""Nesting at which a sample stops."""


def fault(schema: Schema) -> str | None:
    """What is wrong with a schema itself, in one sentence, or None."""
    return _fault(json.dumps(schema))


@lru_cache(maxsize=256)
def _fault(written: str) -> str | None:
    schema = json.loads(written)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return str(error.message)
    lost = next((one for one in _references(schema) if _resolved(one, schema) is None), None)
    return None if lost is None else f"$ref {lost!r} names nothing in the schema"


def _references(value: Any) -> Iterator[str]:
    match value:
        case Mapping():
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for member in value.values():
                yield from _references(member)
        case list():
            for member in value:
                yield from _references(member)
        case _:
            pass


# --- a sample -------------------------------------------------------------------------------


def of(schema: Schema) -> dict[str, Any]:
    """Arguments with every required member, valid wherever a sample can be."""
    made = _sample(schema, schema, "arguments", 0)
    return made if isinstance(made, dict) else _sample_object(schema, schema, 0)


def _sample(schema: Any, root: Schema, name: str, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return f"<{name}>"
    for candidate in _candidates(schema, root, name, depth):
        if _fits(candidate, schema, root):
            return candidate
    return f"<{name}>"


def _candidates(schema: Schema, root: Schema, name: str, depth: int) -> Iterator[Any]:
    """Values to try, the most telling first."""
    if "const" in schema:
        yield schema["const"]
    for key in ("examples", "enum"):
        values = schema.get(key)
        if isinstance(values, list):
            yield from values
    if "default" in schema:
        yield schema["default"]
    for key in ("anyOf", "oneOf", "allOf"):
        rest = {name: value for name, value in schema.items() if name != key}
        for branch in schema.get(key, ()):
            yield _sample(_joined(rest, branch), root, name, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield _sample(_resolved(reference, root), root, name, depth + 1)
    types = schema.get("type", "object" if "properties" in schema else "string")
    for kind in types if isinstance(types, list) else [types]:
        yield from _of_type(str(kind), schema, root, name, depth)


def _joined(schema: Schema, branch: Schema) -> Schema:
    """A schema that asks for what both ask for, as far as a sample needs it."""
    joined = {**schema, **branch}
    if "required" in schema and "required" in branch:
        joined["required"] = list(dict.fromkeys((*schema["required"], *branch["required"])))
    if "properties" in schema and "properties" in branch:
        joined["properties"] = {**schema["properties"], **branch["properties"]}
    return joined


def _of_type(kind: str, schema: Schema, root: Schema, name: str, depth: int) -> Iterator[Any]:
    match kind:
        case "object":
            yield _sample_object(schema, root, depth)
        case "array":
            items = _sample(schema.get("items", {}), root, name, depth + 1)
            yield [items] * max(1, int(schema.get("minItems", 1)))
            yield []
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            most = schema.get("maximum", 100)
            yield from (1, least, least + 1, most, 0)
            step = schema.get("multipleOf")
            if isinstance(step, int | float):
                yield from (step, step * (least // step + 1))
        case "boolean":
            yield from (False, True)
        case "null":
            yield None
        case _:
            yield from _texts(schema, name)


_BY_FORMAT = {
    "date": "2026-11-30",
    "date-time": "2026-11-30T10:20:00Z",
    "time": "10:20:00Z",
    "email": "name@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _texts(schema: Schema, name: str) -> Iterator[str]:
    given = _BY_FORMAT.get(str(schema.get("format")))
    if given is not None:
        yield given
    yield from (f"<{name}>", name)
    least = int(schema.get("minLength", 1))
    most = int(schema.get("maxLength", 64))
    yield name.ljust(least, "x")[:most]
    yield from ("2026-11-30", "2026-11", "a" * max(1, least), "A" * max(1, least), "1", "")
    yield from ("0" * max(1, least), "EUR", "example", "https://example.com/")
    matching = patterns.example(str(schema["pattern"])) if "pattern" in schema else None
    if matching is not None:
        yield matching


def _sample_object(schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    return {name: _sample(properties.get(name, {}), root, name, depth + 1) for name in required}


def _resolved(reference: str, root: Schema) -> Any:
    """What a `#/…` names in the same document; None if nothing is there."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _fits(value: Any, schema: Schema, root: Schema) -> bool:
    try:
        return bool(Draft202012Validator(root).evolve(schema=schema).is_valid(value))
    except (SchemaError, UnknownType, ValueError, LookupError, TypeError, RecursionError):
        return False


# --- what is wrong --------------------------------------------------------------------------


def problems(schema: Schema, arguments: Mapping[str, Any]) -> list[str]:
    """`/arguments/x: what is wrong`, in the order of the places; `schema` has no `fault`."""
    found = Draft202012Validator(schema).iter_errors(dict(arguments))
    errors = sorted(found, key=lambda one: list(map(str, one.path)))
    return [problem for error in errors for problem in _problems(error)]


def _problems(error: ValidationError) -> Iterator[str]:
    place = "".join(f"/{_escaped(step)}" for step in ("arguments", *error.absolute_path))
    wanted: Any = error.validator_value
    match error.validator:
        case "required":
            given = error.instance if isinstance(error.instance, Mapping) else {}
            missing = [name for name in wanted if name not in given]
            # jsonschema reports each missing name on its own, in this order.
            name = next((name for name in missing if repr(name) in error.message), missing[0])
            yield f"{place}/{_escaped(name)}: is missing"
        case "additionalProperties" if wanted is False:
            known = list(_properties(error))
            given = error.instance if isinstance(error.instance, Mapping) else {}
            for name in given:
                if name not in known:
                    yield f"{place}/{_escaped(name)}: {_unknown(str(name), known)}"
        case "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            yield f"{place}: must be {' or '.join(_TYPES.get(str(one), str(one)) for one in names)}"
        case "enum":
            yield f"{place}: must be one of {', '.join(map(_json, wanted))}"
        case "const":
            yield f"{place}: must be {_json(wanted)}"
        case "minLength":
            yield f"{place}: needs at least {wanted} characters"
        case "maxLength":
            yield f"{place}: may have at most {wanted} characters"
        case "pattern":
            yield f"{place}: must match {wanted}"
        case "minimum":
            yield f"{place}: must be at least {wanted}"
        case "maximum":
            yield f"{place}: may be at most {wanted}"
        case _:
            yield f"{place}: {error.message}"


_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _properties(error: ValidationError) -> Mapping[str, Any]:
    schema: Any = error.schema
    found = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _unknown(name: str, known: list[str]) -> str:
    right = _near(name, known)
    if right is not None:
        return f"is not known here; the right name is `{right}`"
    return f"is not known here; known are {', '.join(known) or 'none'}"


def _near(name: str, known: list[str]) -> str | None:
    plain_names = {one.casefold().replace("_", "").replace("-", ""): one for one in known}
    wanted = name.casefold().replace("_", "").replace("-", "")
    found = difflib.get_close_matches(wanted, plain_names, n=1, cutoff=0.7)
    return plain_names[found[0]] if found else None


def _escaped(step: object) -> str:
    """RFC 6901."""
    return str(step).replace("~", "~0").replace("/", "~1")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# --- what was meant -------------------------------------------------------------------------


def mended(schema: Schema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The nearest arguments that the schema takes.

    Names are put right and values converted where they plainly say what is meant; what is missing
    or cannot be read becomes a sample, and what the schema does not know is left out.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    closed = schema.get("additionalProperties") is False
    meant: dict[str, Any] = {}
    spare: dict[str, Any] = {}
    for name, value in arguments.items():
        (meant if name in properties or not closed else spare)[name] = value
    for name, value in spare.items():
        right = _near(name, [one for one in properties if one not in meant])
        if right is not None:
            meant[right] = value
    required: list[str] = list(schema.get("required", ()))
    for name in (*properties, *(one for one in required if one not in properties)):
        member = properties.get(name, {})
        if name not in meant:
            if name in required:
                meant[name] = _sample(member, schema, name, 1)
        elif not _fits(meant[name], member, schema):
            value = _converted(meant[name], member, schema)
            if value is not None:
                meant[name] = value
            elif name in required:
                meant[name] = _sample(member, schema, name, 1)
            else:
                del meant[name]
    return {name: meant[name] for name in (*properties, *meant) if name in meant}


def _converted(value: Any, schema: Schema, root: Schema) -> Any:
    """The value as the type that is wanted, if it plainly says one; else None."""
    tries: list[Any] = []
    if isinstance(value, str):
        tries += [value.strip(), value.strip().lower(), value.strip().upper()]
        with suppress(ValueError, RecursionError):
            tries.append(json.loads(value))
    elif isinstance(value, bool):
        tries.append(str(value).lower())
    elif isinstance(value, int | float):
        tries.append(str(value))
        if isinstance(value, float) and value.is_integer():
            tries.append(int(value))
    tries.append([value])
    if isinstance(value, list) and len(value) == 1:
        tries.append(value[0])
    return next((one for one in tries if _fits(one, schema, root)), None)
