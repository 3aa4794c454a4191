"""What the MCP registry and Claude Desktop read of this project, made by `.ci/bundle`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

from forbear.server.library import library

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    module = ModuleType("bundle")
    module.__file__ = str(ROOT / ".ci" / "bundle")
    SourceFileLoader("bundle", module.__file__).exec_module(module)
    return module


def test_the_entry_of_the_registry_is_that_of_this_version() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / ".ci" / "bundle", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    told = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", told["name"])
    assert 0 < len(told["description"]) <= 100
    [package] = told["packages"]
    assert package["version"] == told["version"] == PROJECT["version"]
    assert package["identifier"] == PROJECT["name"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- mcp-name: {told['name']} -->" in readme


def test_the_manifest_has_a_field_for_each_key_and_none_without_a_default(
    made: ModuleType,
) -> None:
    manifest = made.manifest()
    assert manifest["manifest_version"] == "0.4"
    assert manifest["server"]["type"] == "uv"
    assert (ROOT / manifest["server"]["entry_point"]).is_file()
    env = manifest["server"]["mcp_config"]["env"]
    needed = {key.removeprefix("env:") for one in library() for key in one.keys if "env:" in key}
    assert set(env) == {"FORBEAR_HOME", *needed}
    fields = manifest["user_config"]
    assert set(env.values()) == {f"${{user_config.{name}}}" for name in fields}
    for name, field in fields.items():
        assert set(field) <= {"type", "title", "description", "required", "sensitive", "default"}
        assert (field["required"], field["default"]) == (False, "")
        assert field.get("sensitive", False) is (name != "home")


def test_the_bundle_holds_the_sources_and_is_the_same_each_time(
    made: ModuleType, tmp_path: Path
) -> None:
    first, again = made.bundle(tmp_path / "a"), made.bundle(tmp_path / "b")
    assert first.name == f"forbear-{PROJECT['version']}.mcpb"
    assert first.read_bytes() == again.read_bytes()
    with ZipFile(first) as archive:
        assert json.loads(archive.read("manifest.json")) == made.manifest()
        archive.extractall(tmp_path / "whole")
    assert not list((tmp_path / "whole").rglob("__pycache__"))
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=tmp_path / "whole",
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"forbear/__main__.py", "forbear/contracts/replicate.toml"} <= names
