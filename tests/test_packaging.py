"""What a user would install, built from this tree and looked into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.architecture import LAYERS

REPOSITORY = Path(__file__).resolve().parent.parent
DECOY = "raise SystemExit('a file of the working directory was imported')\n"


def _built(project: Path, folder: Path, kind: str = "wheel") -> Path:
    """The wheel or sdist of a project, built by the declared backend without a network."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(REPOSITORY, tmp_path_factory.mktemp("wheel"))


def test_what_the_image_copies_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    lines = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "=" not in line]
    for name in (name for names in copied for name in names):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    assert contents(_built(tmp_path, tmp_path / "dist")) == contents(wheel)


def test_the_sdist_is_small_and_makes_the_same_wheel_byte_for_byte(
    wheel: Path, tmp_path: Path
) -> None:
    sdist = _built(REPOSITORY, tmp_path / "sdist", "sdist")
    assert sdist.stat().st_size < 4_000_000
    assert wheel.stat().st_size < 1_500_000
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    again = _built(source, tmp_path / "again")
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())


def contents(wheel: Path) -> set[str]:
    """The wheel's files without its metadata."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path, name: str) -> str:
    with ZipFile(wheel) as archive:
        [entry] = [each for each in archive.namelist() if each.endswith(f".dist-info/{name}")]
        return archive.read(entry).decode()


def test_the_wheel_installs_the_one_name_forbear(wheel: Path) -> None:
    assert {name.partition("/")[0] for name in contents(wheel)} == {"forbear"}


def test_the_wheel_holds_every_source_file_and_no_other(wheel: Path) -> None:
    sources = {
        path.relative_to(REPOSITORY / layer).as_posix()
        for layer in (*LAYERS, "contracts")
        for path in (REPOSITORY / layer).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert contents(wheel) == sources


def test_types_and_migrations_travel_along(wheel: Path) -> None:
    names = contents(wheel)
    assert {f"forbear/{layer}/py.typed" for layer in LAYERS} <= names
    assert any(name.startswith("forbear/storage/migrations/") for name in names)


def test_the_licence_travels_along(wheel: Path) -> None:
    assert metadata(wheel, "licenses/LICENSE") == (REPOSITORY / "LICENSE").read_text("utf-8")


def test_the_console_script_points_at_a_module_of_the_wheel(wheel: Path) -> None:
    scripts = ConfigParser()
    scripts.read_string(metadata(wheel, "entry_points.txt"))
    module, _, function = scripts["console_scripts"]["forbear"].partition(":")
    path = module.replace(".", "/")
    assert {f"{path}.py", f"{path}/__init__.py"} & contents(wheel)
    assert function == "main"


def test_the_program_runs_beside_an_agents_own_tools_and_server(
    wheel: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    project = tmp_path / "project"
    for name in ("tools.py", "server.py", "storage.py", "rules/__init__.py"):
        decoy = project / name
        decoy.parent.mkdir(parents=True, exist_ok=True)
        decoy.write_text(DECOY, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "forbear", "--help"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(installed), "FORBEAR_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "serve" in run.stdout
    assert not (tmp_path / "home").exists()
