"""Guards of the architecture: functions from a source tree to what is wrong with it.

Each reads files and imports nothing, and each finding names the place and the rule. They run on
the repository, and once each on a planted violation, in `test_architecture.py`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYERS = ("rules", "storage", "tools", "server")
"""Each may import itself and what stands to its left."""

LONGEST_MODULE = 700

SENDERS = ("server/forbear/server/upstream.py", "server/forbear/server/egress.py")
CLOCKS = ("server/forbear/server/clock.py", "storage/forbear/storage/migrations/")
STORES = ("storage/",)

OWNERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2"), SENDERS),
    **dict.fromkeys(("http.client", "urllib.request", "requests", "aiohttp", "urllib3"), SENDERS),
    **dict.fromkeys(("sqlalchemy", "sqlite3", "aiosqlite", "alembic", "asyncpg"), STORES),
    **dict.fromkeys(("time", "random", "secrets"), CLOCKS),
    **dict.fromkeys(("mcp", "mcp_types"), ("tools/", "server/")),
}
"""Who alone may import a module, as files or folders."""

CLOCK_CALLS = frozenset(
    {
        *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
        *("uuid.uuid1", "uuid.uuid4", "os.urandom"),
    }
)
"""Reading the wall clock or drawing randomness without importing `time`, `random` or `secrets`."""

IMPURE = frozenset(
    {
        *(
            "asyncio",
            "concurrent",
            "ctypes",
            "fcntl",
            "ftplib",
            "http.client",
            "http.server",
            "logging",
        ),
        *("multiprocessing", "os", "pathlib", "queue", "sched", "selectors", "shutil", "signal"),
        *("smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile"),
        *("threading", "urllib.request"),
    }
)
"""Standard modules that act or wait; the rules only compute."""

PURE = ("http_sf",)
"""Libraries that the rules may import: they parse text, and neither act nor wait."""

SUPPRESSION = re.compile(r"#.*\b(type:\s*ignore|noqa\b|pyright:|mypy:|pragma:\s*no)")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file under one of the four roots."""

    file: str
    """Path from the top of the repository, with slashes."""
    layer: str
    text: str
    tree: ast.Module


def modules(top: Path) -> list[Module]:
    found: list[Module] = []
    for layer in LAYERS:
        for path in sorted((top / layer).rglob("*.py")):
            file = path.relative_to(top).as_posix()
            text = path.read_text(encoding="utf-8")
            found.append(Module(file, layer, text, ast.parse(text, file)))
    return found


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, at any depth and by any spelling.

    `from a import b` yields `a.b`, since `b` may be a module. A relative import yields its dots.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, each.name) for each in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from ((node.lineno, f"{module}.{each.name}") for each in names)
            case ast.ImportFrom(module=module, level=level):
                yield node.lineno, "." * level + (module or "")
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module
            case _:
                pass


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def owned(file: str, owners: tuple[str, ...]) -> bool:
    """Whether `file` is one of the owners or lies in a folder that is."""
    return any(file.startswith(owner) if owner.endswith("/") else file == owner for owner in owners)


def imports_to_the_right(top: Path) -> list[str]:
    """Layers that import what stands to their right, and imports that hide their layer."""
    findings: list[str] = []
    for module in modules(top):
        right = LAYERS[LAYERS.index(module.layer) + 1 :]
        for line, name in imports(module.tree):
            if name.startswith("."):
                findings.append(f"{module.file}:{line} imports relatively; name the layer")
            findings.extend(
                f"{module.file}:{line} imports {name}; {module.layer} must not know {layer}"
                for layer in right
                if within(name, f"forbear.{layer}")
            )
    return findings


def impure_rules(top: Path) -> list[str]:
    """Rules that import more than what is pure, wait, or open files."""
    findings: list[str] = []
    for module in modules(top):
        if module.layer != "rules":
            continue
        for line, name in imports(module.tree):
            first = name.partition(".")[0]
            allowed = first in (*sys.stdlib_module_names, *PURE, "forbear")
            if not allowed or any(within(name, banned) for banned in IMPURE):
                findings.append(f"{module.file}:{line} imports {name}; rules only compute")
        for node in ast.walk(module.tree):
            match node:
                case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                    findings.append(f"{module.file}:{node.lineno} awaits; rules only compute")
                case ast.Call(func=ast.Name(id="open" | "input" | "print" as name)):
                    findings.append(f"{module.file}:{node.lineno} calls {name}; rules only compute")
                case _:
                    pass
    return findings


def trespasses(top: Path) -> list[str]:
    """Modules imported outside their owners: HTTP, SQL, clock, randomness, MCP."""
    return [
        f"{module.file}:{line} imports {name}; only {' and '.join(owners)} may"
        for module in modules(top)
        for line, name in imports(module.tree)
        for owned_name, owners in OWNERS.items()
        if within(name, owned_name) and not owned(module.file, owners)
    ]


def hidden_clocks(top: Path) -> list[str]:
    """Calls that read the wall clock or draw randomness outside the clock module."""
    findings: list[str] = []
    for module in modules(top):
        if owned(module.file, CLOCKS):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(
                    value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name
                ) if f"{owner}.{name}" in CLOCK_CALLS:
                    findings.append(
                        f"{module.file}:{node.lineno} uses {owner}.{name}; take it from the clock"
                    )
                case ast.ImportFrom(module="uuid" | "os" as owner, names=names):
                    findings.extend(
                        f"{module.file}:{node.lineno} uses {owner}.{each.name}; "
                        "take it from the clock"
                        for each in names
                        if f"{owner}.{each.name}" in CLOCK_CALLS
                    )
                case _:
                    pass
    return findings


def forged_permits(top: Path) -> list[str]:
    """Permits made anywhere but in storage, where a committed reservation makes them."""
    findings: list[str] = []
    for module in modules(top):
        if module.layer == "storage":
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="Permit") | ast.Attribute(attr="Permit")):
                    findings.append(
                        f"{module.file}:{node.lineno} makes a Permit; "
                        "only a committed reservation may"
                    )
                case _:
                    pass
    return findings


def broken_namespace(top: Path) -> list[str]:
    """Whatever would hide a portion of `forbear`, hide its types, or install another name."""
    findings: list[str] = []
    for layer in LAYERS:
        portion = top / layer / "forbear"
        if (portion / "__init__.py").exists():
            findings.append(f"{layer}/forbear/__init__.py hides the other portions; delete it")
        if not (portion / layer / "py.typed").is_file():
            findings.append(f"{layer}/forbear/{layer}/py.typed is missing; create it empty")
        findings.extend(
            f"{path.relative_to(top).as_posix()} lies outside {layer}/forbear/{layer}; move it in"
            for path in sorted((top / layer).rglob("*.py"))
            if portion / layer not in path.parents
            and path not in (portion / "__init__.py", top / "server/forbear/__main__.py")
        )
    return findings


def long_modules(top: Path) -> list[str]:
    """Modules so long that they hold more than one idea."""
    return [
        f"{module.file} has {length} lines, {LONGEST_MODULE} are allowed; split it by idea"
        for module in modules(top)
        if (length := len(module.text.splitlines())) > LONGEST_MODULE
    ]


def suppressions(top: Path) -> list[str]:
    """Comments in rules and storage that tell a checker to look away."""
    return [
        f"{module.file}:{token.start[0]} suppresses a checker: {token.string}"
        for module in modules(top)
        if module.layer in ("rules", "storage")
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT and SUPPRESSION.search(token.string)
    ]
