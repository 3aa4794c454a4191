"""An OpenAPI 3 document: its operations, its references and its schemas, read with bounds.

A document is what somebody downloaded: it may be huge, refer to itself, or be no such document at
all. Every walk through it has a depth and a number of steps, and everything that is not as the
specification has it is passed over. References to other documents are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forbear.rules.exchanges import Unusable
from forbear.rules.ports import Json, Number
from forbear.rules.proposals import Field
from forbear.rules.values import elements, members, text_of

METHODS = ("get", "head", "post", "put", "patch", "delete")
MOST_OPERATIONS = 20_000
_LONGEST_CHAIN = 20
_DEEPEST_INPUT, _MOST_INPUT = 6, 400
_DEEPEST_ANSWER, _MOST_ANSWER = 4, 1_500
LONGEST_DESCRIPTION = 160


@dataclass(frozen=True, slots=True)
class Parameter:
    place: str
    """`path`, `query`, `header` or `cookie`."""
    name: str
    required: bool
    schema: Json
    description: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    id: str
    """The document's own id, else `METHOD /path`."""
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    held: Mapping[str, Json] = field(repr=False)
    around: Mapping[str, Json] = field(repr=False)
    """The path item, which may name servers of its own."""

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def reads(self) -> bool:
        return self.method in ("GET", "HEAD")


class Document:
    """A document and its operations, in their order."""

    def __init__(self, root: Json) -> None:
        held = members(root)
        if held is None:
            raise Unusable("it is no OpenAPI document: its top is no object")
        if "swagger" in held:
            raise Unusable("it is Swagger 2.0; convert it to OpenAPI 3 first")
        version = text_of(held.get("openapi")) or ""
        if not re.match(r"3\.[0-9]", version):
            raise Unusable("it is no OpenAPI document: it does not say openapi: 3.x")
        self.root = held
        self.operations = tuple(self._operations())
        if not self.operations:
            raise Unusable("it has no operations below paths")

    @property
    def title(self) -> str:
        return text_of(self.part(self.root.get("info")).get("title")) or ""

    # --- references -----------------------------------------------------------------------

    def resolved(self, value: Json) -> Json:
        """What a value is, behind its references; None where they lead nowhere or in a circle."""
        for _ in range(_LONGEST_CHAIN):
            held = members(value)
            reference = held.get("$ref") if held is not None else None
            if not isinstance(reference, str):
                return value
            value = self._at(reference)
        return None

    def part(self, value: Json) -> Mapping[str, Json]:
        """The object that a value is, behind its references; empty if it is none."""
        return members(self.resolved(value)) or {}

    def _at(self, reference: str) -> Json:
        if not reference.startswith("#/"):
            return None
        found: Json = self.root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            held, array = members(found), elements(found)
            if held is not None:
                found = held.get(name)
            elif array is not None and re.fullmatch("[0-9]{1,6}", name):
                found = array[int(name)] if int(name) < len(array) else None
            else:
                return None
        return found

    # --- operations -----------------------------------------------------------------------

    def _operations(self) -> Iterator[Operation]:
        count = 0
        for path, item in self.part(self.root.get("paths")).items():
            if not path.startswith("/"):
                continue
            held = self.part(item)
            for method in METHODS:
                operation = members(held.get(method))
                if operation is None:
                    continue
                count += 1
                if count > MOST_OPERATIONS:
                    raise Unusable(f"it has more than {MOST_OPERATIONS:,} operations")
                yield self._operation(method.upper(), path, operation, held)

    def _operation(
        self, method: str, path: str, held: Mapping[str, Json], around: Mapping[str, Json]
    ) -> Operation:
        named: dict[tuple[str, str], Parameter] = {}
        for one in (
            *(elements(around.get("parameters")) or ()),
            *(elements(held.get("parameters")) or ()),
        ):
            parameter = self.part(one)
            place, name = text_of(parameter.get("in")), text_of(parameter.get("name"))
            if place and name:
                schema = parameter.get("schema")
                content = self.part(parameter.get("content"))
                if schema is None and content:
                    schema = self.part(next(iter(content.values()))).get("schema")
                needed = parameter.get("required") is True or place == "path"
                told = text_of(parameter.get("description")) or ""
                named[place, name] = Parameter(place, name, needed, schema, told)
        return Operation(
            method,
            path,
            text_of(held.get("operationId")) or f"{method} {path}",
            text_of(held.get("summary")) or "",
            text_of(held.get("description")) or "",
            tuple(named.values()),
            held,
            around,
        )

    # --- what an operation takes and gives --------------------------------------------------

    def request(self, operation: Operation) -> tuple[str, Json, bool]:
        """The media type of its body, its schema, and whether it is required; JSON before forms."""
        body = self.part(operation.held.get("requestBody"))
        content = self.part(body.get("content"))
        wanted = (r"application/(.*\+)?json", r"application/x-www-form-urlencoded", r"multipart/.*")
        for pattern in wanted:
            for media, one in content.items():
                if re.match(pattern, media.lower()):
                    schema = self.part(one).get("schema")
                    return media.lower(), schema, body.get("required") is True
        return (next(iter(content)) if content else ""), None, False

    def answer(self, operation: Operation) -> tuple[Field, ...]:
        """The scalars of its answer of success, as far as schemas describe them."""
        response = self._success(operation)
        for media, one in self.part(response.get("content")).items():
            if "json" in media.lower():
                return tuple(_Answer(self).fields(self.part(one).get("schema")))
        return ()

    def locates(self, operation: Operation) -> bool:
        """Whether its answer of success has a Location header."""
        names = self.part(self._success(operation).get("headers"))
        return any(name.lower() == "location" for name in names)

    def _success(self, operation: Operation) -> Mapping[str, Json]:
        responses = self.part(operation.held.get("responses"))
        for code in ("202", "201", "200", "2XX", "2xx"):
            if code in responses:
                return self.part(responses[code])
        return {}

    def errors(self, operation: Operation) -> tuple[Field, ...]:
        """The scalars of an error answer."""
        responses = self.part(operation.held.get("responses"))
        for code in ("400", "422", "4XX", "4xx", "default", "404", "500"):
            for media, one in self.part(self.part(responses.get(code)).get("content")).items():
                if "json" in media.lower():
                    return tuple(_Answer(self).fields(self.part(one).get("schema")))
        return ()


# --- answers --------------------------------------------------------------------------------

_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "boolean"}


class _Answer:
    """One walk through the schema of an answer."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = _MOST_ANSWER

    def fields(self, schema: Json) -> Iterator[Field]:
        found: dict[tuple[str, ...], Field] = {}
        for one in self._walk(schema, (), ()):
            found.setdefault(one.steps, one)
        yield from found.values()

    def _walk(
        self, schema: Json, steps: tuple[str, ...], known: tuple[int, ...]
    ) -> Iterator[Field]:
        self.left -= 1
        held = self.document.part(schema)
        if self.left < 0 or not held or id(held) in known:
            return
        known = (*known, id(held))
        for key in ("allOf", "oneOf", "anyOf"):
            for branch in elements(held.get(key)) or ():
                yield from self._walk(branch, steps, known)
        properties = self.document.part(held.get("properties"))
        if len(steps) < _DEEPEST_ANSWER:
            for name, one in properties.items():
                if 0 < len(name) <= 64 and name.isprintable():
                    yield from self._walk(one, (*steps, name), known)
        kind = _KINDS.get(_first_type(held))
        if kind is not None and steps:
            yield self._field(held, steps, kind)

    def _field(self, held: Mapping[str, Json], steps: tuple[str, ...], kind: str) -> Field:
        description = text_of(held.get("description")) or ""
        listed = (text_of(one) for one in elements(held.get("enum")) or ())
        words = tuple(dict.fromkeys(one for one in listed if one))
        return Field(
            steps,
            kind,
            words=words,
            format=text_of(held.get("format")) or "",
            description=description,
        )


def _first_type(held: Mapping[str, Json]) -> str:
    stated = held.get("type")
    several = elements(stated)
    if several is not None:
        return next((str(one) for one in several if isinstance(one, str) and one != "null"), "")
    if isinstance(stated, str):
        return stated
    return "string" if elements(held.get("enum")) else ""


def words_in(description: str, but: Sequence[str]) -> tuple[str, ...]:
    """Words that a description puts into backticks or quotes, without names of other fields."""
    found = re.findall(r"[`\"']([A-Za-z][\w-]{1,39})[`\"']", description[:2_000])
    return tuple(dict.fromkeys(one for one in found if one not in but))


# --- input schemas --------------------------------------------------------------------------

_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_WIDEST = 2**53


class Input:
    """One walk through the schemas of a request: JSON Schema 2020-12 without references.

    What goes deeper, on for too long, or into itself takes anything.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = _MOST_INPUT

    def schema(self, schema: Json, known: tuple[int, ...] = ()) -> dict[str, Json]:
        self.left -= 1
        held = self.document.part(schema)
        if self.left < 0 or not held or id(held) in known or len(known) >= _DEEPEST_INPUT:
            return {}
        known = (*known, id(held))
        made: dict[str, Json] = {}
        self._type(held, made)
        self._scalars(held, made)
        for key in ("allOf", "oneOf", "anyOf"):
            branches = [self.schema(one, known) for one in elements(held.get(key)) or ()]
            if branches and all(branches):
                made[key] = branches
        if (items := members(held.get("items"))) is not None:
            made["items"] = self.schema(items, known)
        self._members(held, made, known)
        description = plain(text_of(held.get("description")) or "")
        if description:
            made["description"] = description
        return made

    def _type(self, held: Mapping[str, Json], made: dict[str, Json]) -> None:
        stated = held.get("type")
        listed = elements(stated) or (stated,)
        names = [one for one in listed if isinstance(one, str) and one in _TYPES]
        if held.get("nullable") is True and names and "null" not in names:
            names.append("null")
        if names:
            made["type"] = names[0] if len(names) == 1 else names
        allowed = [one for one in elements(held.get("enum")) or () if _is_scalar(one)]
        if allowed:
            made["enum"] = allowed

    def _scalars(self, held: Mapping[str, Json], made: dict[str, Json]) -> None:
        for key in _COUNTS:
            if (number := _whole(held.get(key))) is not None and number >= 0:
                made[key] = held[key]
        bounds = {key: held[key] for key in _BOUNDS if _is_number(held.get(key))}
        # OpenAPI 3.0 has a flag where JSON Schema has a number.
        for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if held.get(flag) is True and bound in bounds:
                bounds[flag] = bounds.pop(bound)
        made.update(bounds)
        if _is_scalar(held.get("const")):
            made["const"] = held["const"]
        pattern = text_of(held.get("pattern"))
        if pattern is not None and _is_pattern(pattern):
            made["pattern"] = pattern
        format_ = text_of(held.get("format"))
        if format_ is not None and re.fullmatch(r"[a-z0-9-]{1,30}", format_):
            made["format"] = format_

    def _members(
        self, held: Mapping[str, Json], made: dict[str, Json], known: tuple[int, ...]
    ) -> None:
        properties = {
            name: self.schema(one, known)
            for name, one in self.document.part(held.get("properties")).items()
            if self.document.part(one).get("readOnly") is not True
        }
        if properties:
            made["properties"] = properties
        needed = [
            one for one in texts_in(held.get("required")) if one in properties or not properties
        ]
        if needed:
            made["required"] = list(dict.fromkeys(needed))
        if held.get("additionalProperties") is False and properties:
            made["additionalProperties"] = False


def texts_in(value: Json) -> list[str]:
    """The texts in an array; a number is none, whatever it is read as."""
    listed = elements(value) or ()
    return [one for one in listed if isinstance(one, str) and not isinstance(one, Number)]


def _is_scalar(value: Json) -> bool:
    if isinstance(value, Number):
        return _is_number(value)
    return isinstance(value, str | bool)


def _is_number(value: Json) -> bool:
    try:
        return isinstance(value, Number) and abs(float(value)) <= _WIDEST
    except ValueError:
        return False


def _whole(value: Json) -> int | None:
    text = str(value) if isinstance(value, Number) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _is_pattern(text: str) -> bool:
    """Whether Python reads a pattern, and none that could take long to match."""
    if len(text) > 200 or re.search(r"[+*}]\)*[+*{]|\(\?|\\[pPdD]{0}\\p", text):
        return False
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def plain(text: str, longest: int = LONGEST_DESCRIPTION) -> str:
    """The first sentences of a description, without mark-up, on one line."""
    bare = re.sub(r"<[^<>]{0,200}>", "", text[:4_000])
    bare = re.sub(r"\[([^\[\]]{1,200})\]\([^()]{0,400}\)", r"\1", bare)
    bare = " ".join("".join(one if one.isprintable() else " " for one in bare).split())
    if len(bare) <= longest:
        return bare
    cut = bare[:longest]
    end = max(cut.rfind(". "), cut.rfind("; "))
    return cut[: end + 1] if end > longest // 3 else f"{cut[: longest - 1].rstrip()}…"
