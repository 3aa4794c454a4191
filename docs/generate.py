"""The pages that are made from code: `python -m docs.generate` writes them.

They are committed, so that they can be read where the repository is; a test compares them with what
the code says now. `--check` does the same and changes nothing.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from docs import lifecycle_picture
from mcp import Client
from tests.contracts.library import NAMES, contract_of, text_of
from tests.rules.operations import JOB, waiting
from tests.tools.desk import MemoryDesk

from forbear.rules.contract_keys import CONTRACT, TABLES
from forbear.rules.contract_kinds import Table
from forbear.rules.contract_terms import DURATION, POINTER, RATE, SOURCE
from forbear.rules.escalations import OPTIONS, urgency, wording
from forbear.rules.lifecycle import TRANSITIONS, Event
from forbear.rules.model import FINAL, Code, Notice, Option, Reason, State
from forbear.rules.taskbudget import USUAL
from forbear.server import config, keeping, tables
from forbear.server.cli import app as commands
from forbear.server.cli.terminal import EXIT_CODES
from forbear.server.config import Settings
from forbear.server.http import table as http
from forbear.server.providers import asked_of_account
from forbear.tools.answers import operation_schema
from forbear.tools.surface import build
from forbear.tools.texts import REASONS

HERE = Path(__file__).parent
MADE = "*Made from the code by `python -m docs.generate`; a test compares.*"


def pages() -> dict[str, str]:
    """Every generated file below `docs/`, by its path there."""
    return {
        "lifecycle.md": lifecycle(),
        "pictures/lifecycle.svg": lifecycle_picture.svg(),
        "reference/tools.md": tools(),
        "reference/reasons.md": reasons(),
        "reference/contract-keys.md": contract_keys(),
        "reference/providers.md": providers(),
        "reference/commands.md": command_line(),
        "reference/configuration.md": configuration(),
        "reference/metrics.md": metrics(),
    }


# --- how pages are written ------------------------------------------------------------------


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *parts]) + "\n"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar in a cell is written so that it does not end the cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


def code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words)


def told(closed: type[Any]) -> Mapping[str, str]:
    """The text below each member of an enumeration in its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(closed))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        match line, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[str(getattr(closed, name))] = " ".join(text.split())
            case _:
                pass
    return found


# --- life cycle -----------------------------------------------------------------------------


def lifecycle() -> str:
    states, events = list(State), list(Event)
    live = [state for state in states if state not in FINAL]
    about = told(State)
    moves = [
        [f"`{event}`", *(str(TRANSITIONS.get((state, event), "")) for state in live)]
        for event in events
        if event is not Event.NOTED
    ]
    return page(
        "The life of an operation",
        "An operation is one thing that an agent asked for: a job, a call, the fetching of a "
        "result, a cancellation. It is in one state, and one table says which events may change "
        "it. The same table makes the checks of the store, this page and the picture.",
        '<div class="wide" markdown>\n\n![States and the events between them]'
        "(pictures/lifecycle.svg)\n\n</div>",
        "Below the name of a state stand the final states that it can end in. Every state that is "
        "not final can stop and ask a person (`escalated`); from there only a decision leads on.",
        "## States",
        grid(
            ["state", "means"],
            [[f"`{state}`", f"{about[state]}{' Final.' * (state in FINAL)}"] for state in states],
        ),
        "## Events",
        grid(["event", "is"], [[f"`{event}`", told(Event)[event]] for event in events]),
        "## Moves",
        "An empty cell is impossible: the ledger refuses it as a defect. `noted` is possible "
        "everywhere and changes no state; nothing else happens in a final one.",
        grid(["event", *live], moves),
    )


# --- tools ----------------------------------------------------------------------------------

ANNOTATIONS = {
    "readOnlyHint": "only reads",
    "destructiveHint": "may destroy",
    "idempotentHint": "may be called again",
    "openWorldHint": "reaches providers",
}


def tools() -> str:
    async def listed() -> list[dict[str, Any]]:
        async with Client(build(MemoryDesk(), version="0")) as client:
            answer = await client.list_tools()
            return [tool.model_dump(mode="json", by_alias=True) for tool in answer.tools]

    parts = [
        "What an MCP client sees. A call that waits does so for `wait_seconds` at most; nothing is "
        "lost when it ends first. Most tools answer with one [operation](#the-operation), a "
        "refusal with an [error](#refusals)."
    ]
    for tool in asyncio.run(listed()):
        hints = [text for name, text in ANNOTATIONS.items() if tool["annotations"][name]]
        parts += [
            f"## {tool['name']}",
            f"**{tool['title']}.** {tool['description']}",
            f"Annotated: {', '.join(hints)}.",
            _fields(tool["inputSchema"]),
        ]
    schema = operation_schema()
    parts += [
        "## The operation",
        "The short record has the fields that say something; `operation_status` with an "
        "`operation_id` gives all of them. The whole schema is the resource "
        "`forbear://schema/operation`.",
        grid(["field", "is", "about"], list(_members(schema, schema))),
        "## Refusals",
        "A refused call has `isError` and "
        '`{"error": {"code", "message", "next_step", "operation_id"?}}`. Nothing was stored and '
        "nothing was sent.",
        grid(["code", "means"], [[f"`{each}`", told(Code)[each]] for each in Code]),
    ]
    return page("Tools", *parts)


def _fields(schema: Mapping[str, Any]) -> str:
    fields = schema.get("properties", {})
    required = schema.get("required", ())
    if not fields:
        return "No arguments."
    return grid(
        ["argument", "is", "about"],
        [
            [
                f"`{name}`{' (required)' if name in required else ''}",
                in_words(field, schema),
                field.get("description", ""),
            ]
            for name, field in fields.items()
        ],
    )


def _members(
    schema: Mapping[str, Any], whole: Mapping[str, Any], before: str = ""
) -> Iterator[list[str]]:
    for name, member in schema["properties"].items():
        inner = _object(member, whole)
        about = member.get("description", "")
        if inner is None or set(inner["properties"]) == {"used", "max"}:
            yield [f"`{before}{name}`", in_words(member, whole), about]
        else:
            yield [f"`{before}{name}`", "object or null", about or inner.get("description", "")]
            yield from _members(inner, whole, f"{before}{name}.")


def _object(member: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for one in member.get("anyOf", [member]):
        found = _resolved(one, whole)
        if "properties" in found:
            return found
    return None


def _resolved(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = whole["$defs"][reference.rpartition("/")[2]]
    return found


NOTATIONS = {
    DURATION.schema["pattern"]: 'duration, such as `"40m"`',
    RATE.schema["pattern"]: 'rate, such as `"60/1m"`',
    SOURCE.schema["pattern"]: "place in an answer",
    POINTER.schema["pattern"]: "JSON pointer",
}
PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "array": "list",
    "null": "null",
}


def in_words(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """What a JSON Schema takes, in a few words."""
    schema = _resolved(schema, whole)
    if "enum" in schema:
        return code(*map(str, schema["enum"])) + _default(schema)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(in_words(one, whole) for one in schema["anyOf"]))
    if {"used", "max"} == set(schema.get("properties", ())):
        return "`{used, max}`"
    if schema.get("type") == "array":
        return f"list of: {in_words(schema.get('items', {}), whole)}"
    if schema.get("format") == "date-time":
        return "time, RFC 3339 with Z"
    return PLAIN.get(str(schema.get("type")), "anything") + _default(schema)


def _default(schema: Mapping[str, Any]) -> str:
    return f"; default `{schema['default']}`" if schema.get("default") is not None else ""


# --- reasons and options --------------------------------------------------------------------


def reasons() -> str:
    return page(
        "Reasons and options",
        "A case is one question to a person. Its reason fixes which options it may offer, least "
        "effect first; what the contract or the facts rule out is left out. "
        "[Decisions](../decisions.md) tells who may decide.",
        "## Reasons",
        grid(
            ["reason", "stopped because", "urgency", "options"],
            [
                [f"`{reason}`", REASONS[reason], urgency(reason), code(*OPTIONS[reason])]
                for reason in Reason
            ],
        ),
        "`requested` offers what the agent asked for, and `reject`. `resubmit` is reached by "
        "`request_decision`, or on the page of an operation that ended without success.",
        "## Options",
        "In the words of an example: a job whose contract extends by 15 minutes and 4 checks.",
        grid(["option", "says", "effect", "parameters"], [_option(option) for option in Option]),
        "## Notices",
        "A notice is a note on an operation; it asks nothing.",
        grid(["notice", "means"], [[f"`{each}`", told(Notice)[each]] for each in Notice]),
    )


def _option(option: Option) -> list[str]:
    label, effect, parameters = wording(waiting(provider_state="paused"), option, JOB)
    return [f"`{option}`", label, effect, code(*parameters)]


# --- contract keys --------------------------------------------------------------------------


def contract_keys() -> str:
    parts = [
        "Every key of contract format 1, section by section. [The provider contract]"
        "(../contract.md) explains them with examples; `forbear contract schema` prints the same "
        "as a JSON Schema for editors.",
    ]
    for table in (CONTRACT, *(each for each in reversed(TABLES) if each is not CONTRACT)):
        parts.append(f"## {'The file' if table is CONTRACT else table.name}")
        parts.append(grid(["key", "holds", "about"], list(_keys(table))))
    return page("Contract keys", *parts)


def _keys(table: Table) -> Iterator[list[str]]:
    for key, (kind, about) in table.keys.items():
        needed = " (required)" if key in table.required else ""
        yield [f"`{key}`{needed}", holds(kind.schema), about]
    if table.others is not None:
        yield ["any other name", holds(table.others[0].schema), table.others[1]]


def holds(schema: Mapping[str, Any]) -> str:
    """What a key of a contract takes, in a few words."""
    match schema:
        case {"$ref": reference}:
            name = str(reference).rpartition("/")[2]
            return f"section [{name}](#{name})"
        case {"enum": words}:
            return code(*map(str, words))
        case {"anyOf": kinds}:
            return _either([holds(one) for one in kinds])
        case {"pattern": pattern} if pattern in NOTATIONS:
            return NOTATIONS[pattern]
        case {"pattern": pattern} if "GET" in pattern or "bearer" in pattern:
            return "one line"
        case {"type": "array"}:
            return f"list of: {holds(schema.get('items', {}))}"
        case {"type": "object", "additionalProperties": dict(inner)}:
            return f"by name: {holds(inner)}"
        case {"type": "object"}:
            return "table"
        case {"type": "string", "format": "date"}:
            return "day"
        case {"type": "integer", "minimum": least, "maximum": most} if least == most:
            return f"`{least}`"
        case {"type": "integer", "minimum": least, "maximum": most} if most < 1_000:
            return f"whole number, {least} to {most}"
        case {"type": list(types)}:
            return _either([PLAIN[one] for one in types])
        case _:
            return PLAIN.get(str(schema.get("type")), "anything")


def _either(kinds: Sequence[str]) -> str:
    """Alternatives; one that only lists another is told as `, or several`."""
    told = list(dict.fromkeys(kinds))
    several = [one for one in told if f"list of: {one}" in told]
    kept = [one for one in told if one.removeprefix("list of: ") not in several or one in several]
    return " or ".join(f"{one}, or several" if one in several else one for one in kept)


# --- shipped contracts ----------------------------------------------------------------------


def providers() -> str:
    parts = [
        f"{len(NAMES)} contracts come with Forbear. `forbear contract add NAME` switches one on: "
        "it writes a short file that uses it, names where the key is, and takes what is yours of "
        "the account (`KEY=VALUE`). An update of Forbear updates what the file uses.",
        "Each was compared with the provider's documentation on the day that is given, and says in "
        "its first lines from which pages, and what stayed unsure. None was run against the real "
        "provider here.",
        grid(["name", "provider", "jobs", "calls", "of the account", "checked"], map(_one, NAMES)),
    ]
    return page("Shipped contracts", *parts)


def _one(name: str) -> list[str]:
    contract = contract_of(name)
    title = f"[{contract.title}]({contract.docs})" if contract.docs else str(contract.title)
    return [
        f"`{name}`",
        title,
        code(*contract.jobs),
        code(*contract.calls),
        code(*asked_of_account(text_of(name))),
        code(str(contract.checked)) if contract.checked else "",
    ]


# --- command line ---------------------------------------------------------------------------


def command_line() -> str:
    root = typer.main.get_command(commands)
    parts = [
        "`forbear COMMAND --help` tells the same. Every command that reads takes `--json`. Ids may "
        "be shortened to how they begin, cases to their number in the inbox.",
        "## Exit codes",
        grid(["code", "means"], [[str(number), text] for number, text in EXIT_CODES.items()]),
    ]
    context = typer.Context(root, info_name="forbear")
    parts += _command(root, context)
    return page("Commands", *parts)


def _command(command: Any, context: typer.Context) -> Iterator[str]:
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield f"## {context.command_path}"
        yield inspect.cleandoc(command.help or "")
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{context.command_path} {usage}\n```"
        rows = [
            [f"`{name}`", " ".join(about.replace("[required]", "(required)").split())]
            for name, about in _parameters(command, context)
        ]
        if rows:
            yield grid(["parameter", "about"], rows)
    for name, one in inner.items():
        if not one.hidden:
            yield from _command(one, typer.Context(one, info_name=name, parent=context))


def _parameters(command: Any, context: typer.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            yield record


# --- configuration --------------------------------------------------------------------------


def configuration() -> str:
    inner: Mapping[str, Mapping[str, str]] = {
        "[task]": config.TASK,
        "[notify]": tables.NOTIFY,
        "[[standing]]": tables.STANDING,
        "[[handover]]": tables.HANDOVER,
        "[http]": http.HTTP,
        "[[http.tokens]]": http.TOKENS,
        "[http.oauth]": http.OAUTH,
        "[proxy]": tables.PROXY,
        "[audit]": keeping.ACTS,
        "[keys]": keeping.KEYS,
    }
    parts = [
        "Everything has a default: `forbear serve` needs no settings. `config.toml` lies in the "
        "home; the environment wins over it. A key that does not exist is refused at start. "
        "Processes read both when they start.",
        "## Environment",
        grid(
            ["variable", "about"],
            [
                *([f"`{name}`", about] for name, about in config.PLACES.items()),
                *([f"`FORBEAR_{name.upper()}`", about] for name, about in config.TEXTS.items()),
                *(
                    [f"`FORBEAR_NOTIFY_{name.upper()}`", tables.NOTIFY[name]]
                    for name in ("webhook", "secret")
                ),
            ],
        ),
        "Beside these a process needs the keys that contracts and settings name as `env:…`.",
        "## config.toml",
        grid(["key", "about"], [[f"`{name}`", about] for name, about in config.TEXTS.items()]),
    ]
    for name, keys in inner.items():
        table = name.strip("[]")
        parts.append(f"### {name}")
        if table in config.TABLES:
            parts.append(config.TABLES[table])
        rows = [[f"`{key}`", about + _usual(table, key)] for key, about in keys.items()]
        parts.append(grid(["key", "about"], rows))
    return page("Configuration", *parts)


def _usual(table: str, key: str) -> str:
    if table != "task":
        return ""
    value: int = getattr(USUAL, key)
    return f" Default {value // 3_600_000} h." if key == "max_wait" else f" Default {value}."


# --- metrics --------------------------------------------------------------------------------


def metrics() -> str:
    from forbear.server.app import running
    from forbear.server.console.meters import meters

    async def measured(home: Path) -> list[list[str]]:
        async with running(Settings(home=home), role="console", worker=False) as app:
            return [[f"`{meter.name}`", meter.kind, meter.help] for meter in await meters(app)]

    with TemporaryDirectory() as home:
        rows = asyncio.run(measured(Path(home).resolve()))
    return page(
        "Metrics",
        "What `/metrics` of the console gives, in the text format of Prometheus. "
        "[The web console](../console.md#figures-for-monitoring) tells who may read it and what "
        "the labels are; [alerts.yml](../alerts.yml) has alert rules to begin with.",
        grid(["metric", "kind", "about"], rows),
        "`forbear stats` tells how good the waiting was; [its measures](../measures.md#quality) "
        "stand elsewhere.",
    )


def main(arguments: Sequence[str]) -> int:
    different = [
        name
        for name, text in pages().items()
        if not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for name in different:
            print(f"docs/{name} is not what the code says: python -m docs.generate")
        return 1 if different else 0
    for name, text in pages().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text, encoding="utf-8")
    print(f"changed: {', '.join(different) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
