"""The terms of a draft: names, arguments and templates made of paths and bodies, credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from forbear.rules.contract_draft import Told
from forbear.rules.exchanges import (
    Secret,
    Sent,
    Unusable,
    is_constant,
    looks_secret,
    names_a_secret,
    words_of,
)
from forbear.rules.ports import Json, Number
from forbear.rules.values import elements, members, text_of

LONGEST_ARGUMENT = 1_000

# --- names ----------------------------------------------------------------------------------

_VERSION = re.compile(r"(api|rest|v\d+([._]\d+)*((alpha|beta)\d*)?|\d{4}-\d\d(-\d\d)?)", re.I)
_PLACEHOLDER = re.compile(
    r"\{\{?(\w[\w.-]*)\}?\}|:([A-Za-z_]\w*)|<([\w -]+)>|\$\{?([A-Za-z_]\w*)\}?"
    r"|([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|OWNER|REPO|ORG|USERNAME|NAME|ID|UUID)"
)
_PLURALS = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", ""))
_KEPT = frozenset({"status", "news", "series", "analysis", "address", "access", "process", "s3"})


def singular(noun: str) -> str:
    """`exports` is `export`, `batches` is `batch`, `analyses` is `analysis`."""
    if noun in _KEPT or noun.endswith(("ss", "us", "is")):
        return noun
    if noun.endswith("yses"):
        return f"{noun[:-2]}is"
    return next((noun[: -len(end)] + other for end, other in _PLURALS if noun.endswith(end)), noun)


def name_of(text: str, otherwise: str) -> str:
    """A name that a contract may use, made of any text."""
    plain = words_of(text)[:48].strip("_")
    if not plain or not plain.isascii():
        return otherwise
    return plain if not plain[0].isdigit() else f"_{plain}"


_GENERIC = frozenset({"job", "task", "run", "operation", "request", "action", "item", "execution"})


def action_name(segments: Sequence[str], otherwise: str, *, plural: bool = False) -> str:
    """A name for what a path with these literal segments starts, makes or, in plural, lists.

    A noun that says nothing alone has the one before it: `fine_tuning/jobs` is `fine_tuning_job`.
    """
    named = [one for one in segments if _VERSION.fullmatch(one) is None]
    if not named:
        return otherwise
    last = name_of(named[-1], otherwise)
    one = singular(last)
    if one in _GENERIC and len(named) > 1:
        before = name_of(named[-2], otherwise)
        one, last = f"{singular(before)}_{one}", f"{singular(before)}_{last}"
    return (last if plural else one)[:60]


def title_of(name: str) -> str:
    return name.replace("_", " ").strip().capitalize()


def is_value(segment: str) -> bool:
    """Whether a segment of a path is data (an id) rather than the name of a resource."""
    text = unquote(segment)
    return (
        _PLACEHOLDER.fullmatch(text) is not None
        or looks_secret(text)
        or re.fullmatch(r"\d+|[0-9a-fA-F-]{16,}", text) is not None
        or (len(text) > 40)
        or (bool(re.search(r"\d{2}|\d.*\d", text)) and len(text) >= 6)
        or re.fullmatch(r"[A-Za-z]{2,6}[_-](?=\w*\d)\w{2,}", text) is not None
        or re.search(r"[^A-Za-z0-9._~:@-]", text) is not None
    ) and _VERSION.fullmatch(text) is None


# --- the pieces -----------------------------------------------------------------------------


class Arguments:
    """The arguments of one action while its request is turned into templates."""

    def __init__(self) -> None:
        self.properties: dict[str, dict[str, Json]] = {}
        self.required: list[str] = []
        self.samples: dict[str, Json] = {}
        self._values: dict[str, str] = {}

    def of(
        self,
        name: str,
        value: Json,
        schema: Mapping[str, Json] | None = None,
        *,
        required: bool = True,
    ) -> str:
        """The template of an argument that takes the place of a value."""
        wanted = name_of(name, "value")
        chosen, number = wanted, 2
        while chosen in self.properties:
            chosen, number = f"{wanted}_{number}", number + 1
        self.properties[chosen] = dict(schema if schema is not None else schema_of(value))
        if required:
            self.required.append(chosen)
            self.samples[chosen] = value
        if (text := text_of(value)) is not None:
            self._values.setdefault(text, chosen)
        return f"{{arg.{chosen}}}"

    def same(self, text: str) -> str | None:
        """The template of the argument that had this value."""
        known = self._values.get(text)
        return None if known is None else f"{{arg.{known}}}"

    def schema(self) -> Mapping[str, Json]:
        if not self.properties:
            return {}
        return {
            "type": "object",
            "required": self.required,
            "additionalProperties": False,
            "properties": self.properties,
        }


def schema_of(value: Json) -> dict[str, Json]:
    """What an argument like this value may be."""
    if members(value) is not None:
        return {"type": "object"}
    if elements(value) is not None:
        return {"type": "array"}
    match value:
        case bool():
            return {"type": "boolean"}
        case Number():
            whole = re.fullmatch(r"-?\d+", str(value)) is not None
            return {"type": "integer" if whole else "number"}
        case str():
            return {"type": "string", "maxLength": LONGEST_ARGUMENT}
        case _:
            return {"type": ["string", "number", "boolean"], "maxLength": LONGEST_ARGUMENT}


def body_of(tree: Json, arguments: Arguments) -> Json:
    """The body with an argument for every value, two levels deep; deeper objects come whole."""
    held = members(tree)
    if held is None or any(map(looks_secret, held)):
        return None if tree is None else arguments.of("body", tree)
    return {name: _member(name, one, arguments, 1) for name, one in held.items()}


def _member(name: str, value: Json, arguments: Arguments, depth: int) -> Json:
    held = members(value)
    whole = names_a_secret(name) or any(map(looks_secret, held or ()))
    if held and depth < 2 and not whole:
        return {key: _member(key, one, arguments, depth + 1) for key, one in held.items()}
    return arguments.of(name, value)


def path_of(
    segments: Sequence[str], arguments: Arguments, job_id: str | None = None
) -> Iterator[str]:
    before = "item"
    for segment in segments:
        text = unquote(segment)
        if job_id is not None and text == job_id:
            yield "{id}"
        elif job_id is not None and len(job_id) > 3 and job_id in text:
            yield (
                "{id}".join(text.split(job_id))
                if not is_value(text.replace(job_id, ""))
                else "{id}"
            )
        elif (known := arguments.same(text)) is not None:
            yield known
        elif is_value(segment):
            named = _PLACEHOLDER.fullmatch(text)
            told = next((one for one in named.groups() if one), None) if named else None
            yield arguments.of(
                told or f"{singular(before)}_id", text, schema_of("") if told else None
            )
        else:
            before = name_of(text, "item")
            yield segment


def _constant(name: str) -> bool:
    return "version" in words_of(name)


def query_of(sent: Sent, arguments: Arguments, job_id: str | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in sent.query:
        if job_id is not None and text == job_id:
            found[name] = "{id}"
        elif _constant(name) and is_fixed(text):
            found[name] = text
        elif name not in found:
            found[name] = arguments.same(text) or arguments.of(name, text)
    return found


def is_fixed(text: str) -> bool:
    """Whether a value may stand in the file as a constant: words, versions and dates alone."""
    return len(text) <= 100 and is_constant(text) and not looks_secret(text)


def base_of(requests: Sequence[Sent]) -> tuple[str, int]:
    """Where all paths start, and how many segments of them that takes."""
    first = requests[0]
    length = 0
    for at, segment in enumerate(first.segments[:-1]):
        same = all(
            one.origin == first.origin and one.segments[at : at + 1] == (segment,)
            for one in requests
        )
        if not same or _VERSION.fullmatch(segment) is None:
            break
        length = at + 1
    return "/".join((first.origin, *first.segments[:length])), length


# --- credentials ----------------------------------------------------------------------------


def variable_of(provider: str, what: str) -> str:
    """The variable of the environment that holds a secret of a provider."""
    name = re.sub(r"[^A-Z0-9]+", "_", f"{provider}_{what}".upper())
    return name if not name[0].isdigit() else f"_{name}"


@dataclass(frozen=True, slots=True)
class Credential:
    """The line `auth`, and what a person must put into the environment."""

    auth: Told
    variables: Mapping[str, str]
    remarks: tuple[str, ...] = ()


def credential(secrets: Sequence[Secret], provider: str) -> Credential:
    """References for the secrets of a request. A contract has room for one credential."""
    if not secrets:
        return Credential(Told("none", "no key was in the request"), {})
    order = ("bearer", "basic", "header", "query", "body")
    cookie = [one for one in secrets if one.name.lower() != "cookie"]
    chosen = min(cookie or secrets, key=lambda one: order.index(one.place))
    token = chosen.variable or variable_of(provider, "TOKEN")
    variables: dict[str, str] = {}
    if chosen.place == "basic" and chosen.user is not None:
        user = variable_of(provider, "USER")
        words = ["basic", f"env:{user}", f"env:{token}"]
        variables = {user: "the user of -u", token: "the password of -u"}
    elif chosen.place in ("bearer", "basic"):
        words = [chosen.place, f"env:{token}"]
        variables = {token: "the key of the request"}
    else:
        words = [chosen.place, chosen.name, f"env:{token}"]
        what = f"the whole value of {chosen.name}"
        if chosen.prefix:
            what += f", beginning with the word {chosen.prefix!r}"
        variables = {token: what}
    long = len(words[1].split()) != 1
    value: Json = " ".join(words)
    if long:
        raise Unusable("the field that carries its key has blanks in its name; write auth yourself")
    others = sorted({one.told for one in secrets if one != chosen})
    remarks = [
        f"auth: {name} was taken out too, and a contract holds one credential: see whether the "
        "API works without it"
        for name in others
    ]
    return Credential(Told(value, "the key stays in the environment"), variables, tuple(remarks))
