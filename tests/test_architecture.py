"""The guards hold on this repository, and each fails on a planted violation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture import (
    LAYERS,
    LONGEST_MODULE,
    broken_namespace,
    forged_permits,
    hidden_clocks,
    imports_to_the_right,
    impure_rules,
    long_modules,
    modules,
    suppressions,
    trespasses,
)

Guard = Callable[[Path], list[str]]

REPOSITORY = Path(__file__).resolve().parent.parent

GUARDS: tuple[Guard, ...] = (
    imports_to_the_right,
    impure_rules,
    trespasses,
    hidden_clocks,
    forged_permits,
    broken_namespace,
    long_modules,
    suppressions,
)

CLEAN = {
    "rules/forbear/rules/pace.py": "import math\nimport http_sf\nfrom forbear.rules import model\n",
    "storage/forbear/storage/ledger.py": (
        "import sqlalchemy\nfrom forbear.rules.ports import Permit\npermit = Permit()\n"
    ),
    "storage/forbear/storage/migrations/first.py": "import time\nimport alembic\n",
    "tools/forbear/tools/desk.py": "import mcp\nfrom forbear.storage import ledger\n",
    "server/forbear/server/upstream.py": "import httpx\nimport httpcore2\n",
    "server/forbear/server/clock.py": "import time\nnow = datetime.now\n",
    "server/forbear/server/app.py": "from datetime import time\nmoment = clock.now()  # noqa\n",
    "server/forbear/__main__.py": "from forbear.server.cli import main\n",
}

RULES = "rules/forbear/rules/pace.py"
STORAGE = "storage/forbear/storage/ledger.py"
TOOLS = "tools/forbear/tools/desk.py"
SERVER = "server/forbear/server/app.py"

PLANTED: tuple[tuple[Guard, str, str], ...] = (
    (imports_to_the_right, RULES, "from forbear.storage import ledger"),
    (imports_to_the_right, RULES, "from forbear import server"),
    (imports_to_the_right, STORAGE, "import forbear.tools.desk"),
    (imports_to_the_right, TOOLS, "def later():\n    from forbear.server import app"),
    (imports_to_the_right, TOOLS, "import_module('forbear.server.app')"),
    (imports_to_the_right, SERVER, "from . import config"),
    (impure_rules, RULES, "import pydantic"),
    (impure_rules, RULES, "import os.path"),
    (impure_rules, RULES, "from urllib import request"),
    (impure_rules, RULES, "async def wait(x):\n    await x"),
    (impure_rules, RULES, "open('contract.toml')"),
    (trespasses, SERVER, "import httpx"),
    (trespasses, TOOLS, "from httpcore2 import AsyncConnectionPool"),
    (trespasses, SERVER, "import urllib.request"),
    (trespasses, TOOLS, "from sqlalchemy import select"),
    (trespasses, SERVER, "import sqlite3"),
    (trespasses, SERVER, "import aiosqlite"),
    (trespasses, RULES, "import time"),
    (trespasses, STORAGE, "import random"),
    (trespasses, TOOLS, "from secrets import token_hex"),
    (trespasses, STORAGE, "import mcp"),
    (hidden_clocks, TOOLS, "datetime.now(UTC)"),
    (hidden_clocks, STORAGE, "datetime.datetime.utcnow()"),
    (hidden_clocks, SERVER, "date.today()"),
    (hidden_clocks, SERVER, "from uuid import uuid4"),
    (hidden_clocks, SERVER, "os.urandom(8)"),
    (forged_permits, TOOLS, "permit = Permit(attempt_id='x')"),
    (forged_permits, SERVER, "permit = ports.Permit()"),
    (broken_namespace, "tools/forbear/__init__.py", ""),
    (broken_namespace, "server/main.py", ""),
    (broken_namespace, "storage/forbear/ledger.py", ""),
    (long_modules, STORAGE, "x = 1\n" * (LONGEST_MODULE + 1)),
    (suppressions, RULES, "x: int = ''  # type: ignore[assignment]"),
    (suppressions, STORAGE, "import os  # noqa: F401"),
    (suppressions, STORAGE, "# pyright: basic"),
)


def tree(top: Path, files: dict[str, str]) -> Path:
    for layer in LAYERS:
        portion = top / layer / "forbear" / layer
        portion.mkdir(parents=True)
        (portion / "py.typed").touch()
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return top


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_the_repository_keeps_the_rule(guard: Guard) -> None:
    findings = guard(REPOSITORY)
    assert not findings, "\n" + "\n".join(findings)


def test_the_guards_see_every_layer() -> None:
    assert {module.layer for module in modules(REPOSITORY)} == set(LAYERS)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_a_tree_that_keeps_the_rules_has_no_findings(guard: Guard, tmp_path: Path) -> None:
    assert guard(tree(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(
    ("guard", "file", "text"),
    PLANTED,
    ids=[f"{guard.__name__}-{number}" for number, (guard, _, _) in enumerate(PLANTED)],
)
def test_a_planted_violation_is_found_where_it_stands(
    guard: Guard, file: str, text: str, tmp_path: Path
) -> None:
    findings = guard(tree(tmp_path, {**CLEAN, file: text}))
    assert findings
    assert all(finding.startswith(file) for finding in findings)


def test_a_portion_without_its_type_marker_is_found(tmp_path: Path) -> None:
    top = tree(tmp_path, CLEAN)
    (top / "rules/forbear/rules/py.typed").unlink()
    assert broken_namespace(top) == ["rules/forbear/rules/py.typed is missing; create it empty"]


def test_every_guard_has_been_seen_to_fail() -> None:
    assert {guard for guard, _, _ in PLANTED} == set(GUARDS)
