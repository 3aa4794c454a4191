"""The clients that `forbear install` knows: their files, by platform, and the form of an entry.

Looked up in November 2026 in the documentation of each client; docs/install.md names the places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from forbear.server.clients.jsonc import Jsonc
from forbear.server.clients.splices import Notation
from forbear.server.clients.toml_table import Toml

NAME = "forbear"
"""The name of our entry in every client."""


class Keys(StrEnum):
    """How the variables that contracts name (`env:NAME`) reach a server of a client."""

    INHERITED = "inherited"
    """A server has the environment of its client."""
    REFERENCES = "references"
    """The entry refers to variables of the client, as `${env:NAME}`."""
    NAMES = "names"
    """The entry lists their names; nothing else of the environment is passed on."""
    VALUES = "values"
    """Nothing is passed on but the values that stand in the entry: a person fills them in."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a client starts."""

    command: str
    args: tuple[str, ...]
    fixed: Mapping[str, str]
    """Variables with their values, which are no secrets."""
    needed: tuple[str, ...]
    """Names of the variables that hold what contracts refer to."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program that starts MCP servers which a file of it names."""

    id: str
    title: str
    notation: Notation
    table: str
    keys: Keys
    project: str
    """The file in a project's folder."""
    typed: bool = False
    """Whether an entry says that it is of type `stdio`."""
    begin: str = "Restart it."
    """What makes the client read the file again."""

    def entry(self, server: Server) -> dict[str, Any]:
        """The entry of a server as it stands in the file. It never has the value of a key."""
        entry: dict[str, Any] = {"type": "stdio"} if self.typed else {}
        entry |= {"command": server.command, "args": list(server.args)}
        env = dict(server.fixed)
        match self.keys:
            case Keys.REFERENCES:
                env |= {name: f"${{env:{name}}}" for name in server.needed}
            case Keys.VALUES:
                env |= dict.fromkeys(server.needed, "")
            case Keys.NAMES if server.needed:
                entry["env_vars"] = list(server.needed)
            case _:
                pass
        if env:
            entry["env"] = env
        return entry

    def places(
        self, platform: str, environment: Mapping[str, str], home: str
    ) -> tuple[PurePath, ...]:
        """Where the user's file may be, the likeliest first; a `*` stands for any name.

        `platform` is that of `sys.platform`, `home` the folder of the user.
        """
        return tuple(_PLACES[self.id](_Layout.of(platform, environment, home)))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The folders of a user on a platform."""

    home: PurePath
    config: PurePath
    """Of settings: XDG, Application Support, or AppData that roams."""
    local: PurePath
    """AppData that stays, on Windows."""
    windows: bool
    environment: Mapping[str, str]

    @staticmethod
    def of(platform: str, environment: Mapping[str, str], home: str) -> _Layout:
        path = PureWindowsPath if platform == "win32" else PurePosixPath
        user = path(home)
        local = path(environment.get("LOCALAPPDATA") or user / "AppData" / "Local")
        match platform:
            case "win32":
                config = path(environment.get("APPDATA") or user / "AppData" / "Roaming")
            case "darwin":
                config = user / "Library" / "Application Support"
            case _:
                config = path(environment.get("XDG_CONFIG_HOME") or user / ".config")
        return _Layout(user, config, local, platform == "win32", environment)

    def stated(self, variable: str, otherwise: PurePath) -> PurePath:
        value = self.environment.get(variable)
        return type(self.home)(value) if value else otherwise


def _claude_code(of: _Layout) -> Iterator[PurePath]:
    yield of.stated("CLAUDE_CONFIG_DIR", of.home) / ".claude.json"


def _claude_desktop(of: _Layout) -> Iterator[PurePath]:
    file = "claude_desktop_config.json"
    if of.windows:  # the two folders of the packaged app, before that of the installer
        yield of.local / "Claude-Data" / "claude*" / file
        yield of.local / "Packages" / "Claude_*" / "LocalCache" / "Roaming" / "Claude" / file
    yield of.config / "Claude" / file


def _cursor(of: _Layout) -> Iterator[PurePath]:
    yield of.home / ".cursor" / "mcp.json"


def _vscode(of: _Layout) -> Iterator[PurePath]:
    for product in ("Code", "Code - Insiders", "VSCodium"):
        yield of.config / product / "User" / "mcp.json"


def _codex(of: _Layout) -> Iterator[PurePath]:
    yield of.stated("CODEX_HOME", of.home / ".codex") / "config.toml"


_PLACES = {
    "claude-code": _claude_code,
    "claude-desktop": _claude_desktop,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
}

_STRICT, _COMMENTED = Jsonc(comments=False), Jsonc(comments=True)

CLIENTS = {
    client.id: client
    for client in (
        Client(
            *("claude-code", "Claude Code", _STRICT, "mcpServers", Keys.INHERITED, ".mcp.json"),
            typed=True,
            begin="A new session has it; /mcp shows it.",
        ),
        Client(
            *("claude-desktop", "Claude Desktop", _STRICT, "mcpServers", Keys.VALUES, ""),
            begin="Quit Claude Desktop and open it again.",
        ),
        Client(
            *("cursor", "Cursor", _COMMENTED, "mcpServers", Keys.REFERENCES, ".cursor/mcp.json"),
            begin="Cursor Settings, MCP, shows it; restart Cursor if it does not.",
        ),
        Client(
            *("vscode", "VS Code", _COMMENTED, "servers", Keys.INHERITED, ".vscode/mcp.json"),
            typed=True,
            begin="`MCP: List Servers` in VS Code starts it.",
        ),
        Client(
            *("codex", "Codex", Toml(), "mcp_servers", Keys.NAMES, ".codex/config.toml"),
            begin="A new session has it; /mcp shows it.",
        ),
    )
}
