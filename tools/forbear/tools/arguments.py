"""What an agent may pass to each tool, and the corrected call when it passed something else.

The models are closed and strict: a wrong name or type is refused with the place, the problem and
the whole call as it should be. Numbers that only bound an answer are clamped; null is as absent.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from forbear.rules.model import Refusal
from forbear.tools.phrases import LIMIT
from forbear.tools.refusals import invalid_arguments
from forbear.tools.untrusted import clip, inert

MAX_WAIT = 50
"""Seconds that one call may wait: MCP clients give up at 60."""

LONGEST = 1_000_000_000
"""What a greater bound counts as, seconds (31 years) or requests: more than a store can hold."""

MAX_LIMIT = 100
"""Operations or actions on one page."""


def _clamped(least: int, most: int) -> BeforeValidator:
    """Numbers outside the bounds become the nearest bound; anything else is left to be refused."""

    def clamp(value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return max(least, min(value, most))
        return value

    return BeforeValidator(clamp)


def _at_most(most: int) -> BeforeValidator:
    """A whole number above the bound becomes the bound; anything else is left as it is."""

    def clamp(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return min(value, most)
        return value

    return BeforeValidator(clamp)


Id = Annotated[str, Field(min_length=1, max_length=100)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Words = Annotated[str, Field(min_length=1, max_length=500)]
Cursor = Annotated[str, Field(max_length=500)]
Positive = Annotated[int, Field(ge=1), _at_most(LONGEST)]
Wait = Annotated[
    float,
    _clamped(0, MAX_WAIT),
    Field(description=f"How long this call may wait, at most {MAX_WAIT}."),
]
Limit = Annotated[int, _clamped(1, MAX_LIMIT), Field(description=f"At most {MAX_LIMIT}.")]


Inner = Annotated[dict[str, Any], Field(description="As the input schema of list_actions says.")]
Purpose = Annotated[
    Words | None, Field(description="What this is for, shown to people who decide.")
]
Task = Annotated[Name | None, Field(description="One name for your whole assignment.")]
Key = Annotated[
    Annotated[str, Field(min_length=1, max_length=255)] | None,
    Field(description="Leave out; it makes no repetition safe."),
]
Needed = Annotated[
    Annotated[list[Id], Field(max_length=20)] | None,
    Field(description="operation_ids that must have succeeded."),
]
Deadline = Annotated[Positive | None, Field(description="Only to end sooner than the contract.")]
UsefulFor = Annotated[Positive | None, Field(description="After that nobody needs the result.")]
Urgency = Literal["interactive", "background"]


class Arguments(BaseModel):
    """The input of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    one_of: ClassVar[tuple[str, ...]] = ()
    """Optional arguments of which exactly one must be given. Not said in the schema: several
    clients take no `oneOf` there."""


class ListActions(Arguments):
    provider: Name | None = None
    action: Name | None = None
    query: Annotated[Words | None, Field(description="Words to search for.")] = None
    cursor: Cursor | None = None
    limit: Limit = 50


class SubmitJob(Arguments):
    provider: Name
    job: Annotated[Name, Field(description="Name of an action of kind job.")]
    arguments: Inner
    purpose: Purpose = None
    task: Task = None
    idempotency_key: Key = None
    depends_on: Needed = None
    deadline_seconds: Deadline = None
    max_status_requests: Annotated[
        Positive | None, Field(description="Only to allow fewer than the contract.")
    ] = None
    useful_for_seconds: UsefulFor = None
    priority: Urgency = "interactive"
    wait_seconds: Wait = 20


class ReadApi(Arguments):
    provider: Name
    call: Annotated[Name, Field(description="Name of a call that reads.")]
    arguments: Inner
    task: Task = None
    depends_on: Needed = None
    deadline_seconds: Deadline = None
    useful_for_seconds: UsefulFor = None
    priority: Urgency = "interactive"
    wait_seconds: Wait = 20


class WriteApi(Arguments):
    provider: Name
    call: Annotated[Name, Field(description="Name of a call that writes.")]
    arguments: Inner
    purpose: Purpose = None
    task: Task = None
    idempotency_key: Key = None
    depends_on: Needed = None
    deadline_seconds: Deadline = None
    useful_for_seconds: UsefulFor = None
    priority: Urgency = "interactive"
    wait_seconds: Wait = 20


class CheckStatus(Arguments):
    operation_id: Id
    wait_seconds: Wait = 25


class FetchResult(Arguments):
    operation_id: Annotated[Id, Field(description="The job's.")]
    name: Annotated[Name | None, Field(description="Which result, if there are several.")] = None
    offset: Annotated[
        Annotated[int, Field(ge=0)] | None,
        Field(description="Character of a long text to read on from."),
    ] = None
    wait_seconds: Wait = 20


class CancelJob(Arguments):
    operation_id: Id
    reason: Annotated[Words, Field(description="Shown to the person who approves.")]
    wait_seconds: Wait = 20


class ReconcileWrite(Arguments):
    operation_id: Id
    wait_seconds: Wait = 20


class OperationStatus(Arguments):
    operation_id: Id | None = None
    state: (
        Literal[
            "queued",
            "sending",
            "waiting",
            "delayed",
            "unclear",
            "escalated",
            "succeeded",
            "failed",
            "cancelled",
            "expired",
            "discarded",
        ]
        | None
    ) = None
    provider: Name | None = None
    task: Name | None = None
    cursor: Cursor | None = None
    limit: Limit = 10
    timeline: Annotated[bool, Field(description="True tells the story of one operation.")] = False


class RequestDecision(Arguments):
    operation_id: Id
    option: Annotated[
        Name,
        Field(description="One that its escalation offers; resubmit after it failed."),
    ]
    reason: Annotated[Words, Field(description="Why, shown to the person who decides.")]
    parameters: Annotated[
        dict[str, Any] | None, Field(description="What to propose, such as minutes.")
    ] = None


class EndTask(Arguments):
    one_of: ClassVar[tuple[str, ...]] = ("task", "operation_id")

    task: Annotated[Name | None, Field(description="The task's name, or give operation_id.")] = None
    operation_id: Annotated[Id | None, Field(description="One operation, or give task.")] = None
    reason: Words | None = None


# --- reading ---------------------------------------------------------------------------------

_Model = TypeVar("_Model", bound=Arguments)


def read(tool: str, model: type[_Model], given: Mapping[str, Any]) -> _Model | Refusal:
    """The arguments of a call, or a refusal that shows the call as it should be."""
    present = _present(model, given)
    problems = _choices(model, present)
    try:
        taken = model.model_validate(present)
        if not problems:
            return taken
    except ValidationError as wrong:
        problems += [_problem(model, error) for error in wrong.errors(include_url=False)]
    mended = correct(model, given)
    kept = {name for name, value in mended.items() if name in given and given[name] is value}
    return invalid_arguments(problems, written(tool, mended, kept))


def waiting_at_most(arguments: _Model, seconds: float) -> _Model:
    """The arguments with a wait of no more than that."""
    if getattr(arguments, "wait_seconds", 0) <= seconds:
        return arguments
    return arguments.model_copy(update={"wait_seconds": seconds})


def correct(model: type[Arguments], given: Mapping[str, Any]) -> dict[str, Any]:
    """The nearest arguments that the model takes.

    Names are put right and values converted where they plainly say what is meant. Where not, a
    required argument becomes a sample in angle brackets and an optional one is left out.
    """
    mended = _split(model, _renamed(model, _present(model, given)))
    for name, field in model.model_fields.items():
        if field.is_required() and name not in mended:
            mended[name] = _sample(name)
    for name in _wrong(model, mended):
        value = _converted(model, mended, name)
        if value is not None:
            mended[name] = value
        elif model.model_fields[name].is_required():
            mended[name] = _sample(name)
        else:
            del mended[name]
    _choose(model, mended)
    return {name: mended[name] for name in model.model_fields if name in mended}


def written(tool: str, arguments: Mapping[str, Any], kept: Iterable[str] = ()) -> str:
    """A call as an agent writes it. Values in `kept` are pointed at where it would be too long."""
    whole = _call(tool, arguments)
    if len(whole) <= LIMIT - 60:
        return whole
    return _call(tool, arguments, abridged=frozenset(kept))


def _call(tool: str, arguments: Mapping[str, Any], abridged: frozenset[str] = frozenset()) -> str:
    def shown(name: str, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return "<as before>" if name in abridged and len(text) > 24 else inert(text)

    listed = ", ".join(f"{name}={shown(name, value)}" for name, value in arguments.items())
    return f"{tool}({listed})"


def _present(model: type[Arguments], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was passed, without the nulls that some clients send for absent arguments."""
    return {
        name: value
        for name, value in given.items()
        if value is not None
        or (name in model.model_fields and model.model_fields[name].is_required())
    }


def _choices(model: type[Arguments], present: Mapping[str, Any]) -> list[str]:
    """What is wrong with the choice of an argument of which exactly one is needed."""
    named = {_right_name(model, name) for name in present} & set(model.one_of)
    if not model.one_of or len(named) == 1:
        return []
    either = " or ".join(model.one_of)
    if named:
        return [f"/{model.one_of[0]}: give either {either}, not both"]
    return [f"/{model.one_of[0]}: is missing; give either {either}"]


def _choose(model: type[Arguments], mended: dict[str, Any]) -> None:
    """Keep the last of several: it names less, so that the wrong one does less."""
    named = [name for name in model.one_of if name in mended]
    for name in named[:-1]:
        del mended[name]
    if model.one_of and not named:
        mended[model.one_of[0]] = _sample(model.one_of[0])


# --- saying what is wrong ----------------------------------------------------------------------


def _problem(model: type[Arguments], error: ErrorDetails) -> str:
    where = _pointer(error["loc"])
    name = str(error["loc"][0]) if error["loc"] else ""
    match error["type"]:
        case "missing":
            return f"{where}: is missing"
        case "extra_forbidden":
            right = _right_name(model, name)
            if right is not None:
                return f"{where}: is not known here; the right name is `{right}`"
            if "arguments" in model.model_fields:
                whose = "job" if "job" in model.model_fields else "call"
                return (
                    f"{where}: is not known here; the {whose}'s own arguments go into `arguments`"
                )
            return f"{where}: is not known here; known are {', '.join(model.model_fields)}"
        case kind:
            expected = _EXPECTED.get(kind)
            if expected is not None:
                return f"{where}: must be {expected}"
            return f"{where}: {error['msg'][:1].lower()}{error['msg'][1:]}"


_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "dict_type": "an object",
    "list_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
}


def _pointer(location: tuple[int | str, ...]) -> str:
    """RFC 6901."""
    steps = (clip(str(step), 40).replace("~", "~0").replace("/", "~1") for step in location)
    return "".join(f"/{step}" for step in steps)


# --- names -----------------------------------------------------------------------------------

_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "operation_id": ("id", "op", "op_id", "job_id", "operation", "task_id"),
    "job": ("action", "call", "name", "job_name", "tool", "kind", "type"),
    "call": ("action", "job", "name", "call_name", "endpoint", "tool", "kind", "type"),
    "action": ("job", "name", "call"),
    "arguments": ("args", "params", "parameters", "input", "inputs", "body", "payload"),
    "wait_seconds": ("timeout", "wait", "seconds", "timeout_seconds", "max_wait"),
    "deadline_seconds": ("deadline",),
    "max_status_requests": ("max_polls", "max_requests", "polls"),
    "useful_for_seconds": ("useful_for", "useful_until"),
    "idempotency_key": ("key", "request_id"),
    "task": ("task_id", "task_name"),
    "purpose": ("reason", "why", "description"),
    "reason": ("purpose", "why", "comment"),
    "query": ("search", "q", "text", "filter"),
    "state": ("status", "states"),
    "limit": ("count", "max", "page_size", "per_page"),
    "cursor": ("next_cursor", "page", "page_token"),
    "depends_on": ("after", "needs", "dependencies"),
    "timeline": ("history", "story", "verbose"),
}
"""Names that models use for an argument of ours."""


def _right_name(model: type[Arguments], wrong: str) -> str | None:
    """The argument that a wrong name most likely means."""
    plain = wrong.lower().replace("-", "_")
    known = list(model.model_fields)
    if plain in known:
        return plain
    for name in known:
        if plain in _SYNONYMS.get(name, ()):
            return name
    near = difflib.get_close_matches(plain.replace("_", ""), known, n=1, cutoff=0.75)
    return near[0] if near else None


def _renamed(model: type[Arguments], given: Mapping[str, Any]) -> dict[str, Any]:
    """Right names; an action's own arguments moved to where they belong; the rest dropped."""
    known = {name: value for name, value in given.items() if name in model.model_fields}
    moved: dict[str, Any] = {}
    for name, value in given.items():
        if name in model.model_fields:
            continue
        right = _right_name(model, name)
        if right is not None:
            known.setdefault(right, value)
        else:
            moved[name] = value
    if moved and "arguments" in model.model_fields:
        inner = known.get("arguments", {})
        if isinstance(inner, Mapping):
            known["arguments"] = {**moved, **inner}
    return known


def _split(model: type[Arguments], given: dict[str, Any]) -> dict[str, Any]:
    """`exp.export`, as people and texts name an action, as its provider and its name."""
    for name in ("job", "call"):
        whole = given.get(name)
        if name in model.model_fields and "provider" not in given and isinstance(whole, str):
            provider, dot, action = whole.partition(".")
            if provider and dot and action:
                return {**given, "provider": provider, name: action}
    return given


# --- values ----------------------------------------------------------------------------------

_SAMPLES: Mapping[str, Any] = {
    "provider": "<provider from list_actions>",
    "job": "<job from list_actions>",
    "call": "<call from list_actions>",
    "arguments": {},
    "task": "<your task's name>",
}


def _sample(name: str) -> Any:
    return _SAMPLES.get(name, f"<{name}>")


def _wrong(model: type[Arguments], given: Mapping[str, Any]) -> list[str]:
    """Names of the arguments whose values the model does not take."""
    try:
        model.model_validate(given)
    except ValidationError as wrong:
        return list(dict.fromkeys(str(error["loc"][0]) for error in wrong.errors()))
    return []


def _converted(model: type[Arguments], given: Mapping[str, Any], name: str) -> Any:
    """The value as the type that is wanted, if it plainly says one; else None."""
    for convert in _CONVERSIONS:
        try:
            value = convert(given[name])
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        if name not in _wrong(model, {**given, name: value}):
            return value
    return None


def _parsed(value: Any) -> Any:
    """A JSON text read as JSON: `"20"`, `"true"`, `"{…}"`."""
    return json.loads(value) if isinstance(value, str) else value


def _rounded(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError
    return round(float(value))


def _spelled(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


def _lowered(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value]


def _only(value: Any) -> Any:
    """The one member of a list."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    raise ValueError


_CONVERSIONS: tuple[Callable[[Any], Any], ...] = (
    _parsed,
    _lowered,
    _rounded,
    _spelled,
    _listed,
    _only,
)
