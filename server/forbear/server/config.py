"""Settings: environment over `config.toml` over defaults, checked once at start."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from platformdirs import user_data_path

from forbear.rules.notation import parse_duration
from forbear.rules.taskbudget import USUAL, TaskLimits

if TYPE_CHECKING:
    from forbear.server.http.table import Http
    from forbear.server.keeping import Access, References
    from forbear.server.proxy import Proxy
    from forbear.server.tables import Handover, Notify, Standing

DEFAULT_CONSOLE = "127.0.0.1:8377"


TEXTS: Mapping[str, str] = {
    "console": f"host:port of the web console and of `serve --http`; {DEFAULT_CONSOLE}.",
    "console_url": "The public address used in links; default: http:// and `console`.",
    "database_url": "postgresql://user@host/database; without it the store is a file in the home.",
    "log": "What is told on standard error: debug, info, warning or error; default warning.",
    "operator_token": "What a script shows to decide without a terminal.",
}
"""Settings of one text; in the environment each is FORBEAR_ and its name in capitals."""

TABLES: Mapping[str, str] = {
    "audit": "Which accounts of the machine may look into the audit log.",
    "handover": "Workflows that may decide what their list holds.",
    "http": "Who may use MCP over HTTP, and how long a call waits there.",
    "keys": "Where the keys of the audit log live, if not in the home.",
    "notify": "The signed webhook that is told of open cases.",
    "proxy": "What requests go through; variables such as HTTPS_PROXY are never used.",
    "standing": "Answers that an operator gives in advance.",
    "task": "What one task of an agent may use in all.",
}
"""Tables of `config.toml`. Of these only notify.webhook and notify.secret are in the environment
too, as FORBEAR_NOTIFY_WEBHOOK and FORBEAR_NOTIFY_SECRET."""

KNOWN: Mapping[str, str] = {**TEXTS, **TABLES}
"""Every key of `config.toml` and one line about it."""

TASK: Mapping[str, str] = {
    "max_requests": "Requests that left or wait to leave.",
    "max_wait": "Waited time between attempts, summed over the operations.",
    "max_open_operations": "Operations that are not over.",
}
"""The keys of `[task]`."""

PLACES: Mapping[str, str] = {
    "FORBEAR_HOME": "The folder of contracts, store and keys; default: the platform's for user "
    "data. `forbear doctor` shows it.",
    "FORBEAR_PRINCIPAL_TOKEN": "Of a workflow: the token that `forbear handover` printed, for "
    "`decide --as-principal`.",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "Where spans of tool calls and requests go; other OTEL_ "
    "variables count too.",
}
"""Variables of the environment that are no setting of the file."""


class BadSettings(ValueError):
    """A setting that cannot be used; the message names it and the fix."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things lie and how this process is reached."""

    home: Path
    console: str = DEFAULT_CONSOLE
    """`host:port` of the web console."""
    console_url: str = f"http://{DEFAULT_CONSOLE}"
    """The public address used in links."""
    database: str | None = field(default=None, repr=False)
    """The address of a PostgreSQL database; None: the store is a file in the home."""
    operator_token: str | None = field(default=None, repr=False)
    log: str = "WARNING"
    task: TaskLimits = USUAL
    """What each task of an agent may use in all."""
    notify: Notify | None = None
    standing: tuple[Standing, ...] = ()
    handover: tuple[Handover, ...] = ()
    http: Http | None = None
    """Who may use MCP over HTTP; None: no `[http]` says so."""
    proxy: Proxy | None = None
    """What leads out; None is the direct way, whatever the environment says of proxies."""
    access: Access | None = None
    """Who may look into the audit log; None: no `[audit]` says so."""
    keys: References | None = None
    """Where the keys of the audit log live; None: in the home."""

    @property
    def contracts(self) -> Path:
        return self.home / "contracts"

    @staticmethod
    def load(environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings of this process.

        Raises:
            BadSettings: an unreadable `config.toml` or a value out of its form.
        """
        home = Path(environment.get("FORBEAR_HOME") or user_data_path("forbear")).expanduser()
        file = _read(home / "config.toml")

        for name in file:
            if name not in KNOWN:
                near = get_close_matches(name, list(KNOWN), 1, 0.6)
                fix = f"write {near[0]}" if near else f"there are {', '.join(KNOWN)}"
                raise BadSettings(f"{home / 'config.toml'}: {name} is no setting; {fix}")

        def setting(name: str) -> str | None:
            value = environment.get(f"FORBEAR_{name.upper()}") or file.get(name)
            if value is not None and not isinstance(value, str):
                raise BadSettings(f"{home / 'config.toml'}: {name} must be a string")
            return value

        console = setting("console") or DEFAULT_CONSOLE
        try:
            host_and_port(console)
        except ValueError as error:
            raise BadSettings(f"FORBEAR_CONSOLE: {error}") from error
        return Settings(
            home=home.absolute(),
            database=_database(setting("database_url")),
            console=console,
            console_url=(setting("console_url") or f"http://{console}").rstrip("/"),
            operator_token=setting("operator_token"),
            log=_level(setting("log")),
            task=_task_limits(file.get("task", {}), home / "config.toml"),
            **_tables(file, environment, home / "config.toml"),
            **_spoken(file, home / "config.toml"),
            **_kept(file, home / "config.toml"),
        )


def host_and_port(place: str) -> tuple[str, int]:
    """The two parts of `host:port`. Raises ValueError for anything else."""
    host, colon, port = place.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"{place!r} is not host:port, such as {DEFAULT_CONSOLE}")
    return host, int(port)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadSettings(f"{path}: {error}; let this user read it") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"{path}: {error}; mend this line, or put a # before it") from error


class _Speaking(TypedDict, total=False):
    http: Http


def _spoken(file: Mapping[str, Any], path: Path) -> _Speaking:
    """`[http]`, which few homes have."""
    if "http" not in file:
        return {}
    from forbear.server.http.table import read_http

    try:
        return {"http": read_http(file["http"])}
    except ValueError as error:
        raise BadSettings(f"{path}: {error}") from error


class _Keeping(TypedDict, total=False):
    access: Access
    keys: References


def _kept(file: Mapping[str, Any], path: Path) -> _Keeping:
    """`[audit]` and `[keys]`, which few homes have."""
    found: _Keeping = {}
    try:
        if "audit" in file:
            from forbear.server.keeping import read_access

            found["access"] = read_access(file["audit"])
        if "keys" in file:
            from forbear.server.keeping import read_references

            found["keys"] = read_references(file["keys"])
    except ValueError as error:
        raise BadSettings(f"{path}: {error}") from error
    return found


class _Tables(TypedDict, total=False):
    notify: Notify | None
    standing: tuple[Standing, ...]
    handover: tuple[Handover, ...]
    proxy: Proxy | None


def _tables(file: Mapping[str, Any], environment: Mapping[str, str], path: Path) -> _Tables:
    """`[notify]`, `[[standing]]`, `[[handover]]` and `[proxy]`, which few homes have."""
    webhook = environment.get("FORBEAR_NOTIFY_WEBHOOK") or None
    secret = environment.get("FORBEAR_NOTIFY_SECRET") or None
    if not (webhook or secret or {"notify", "standing", "handover", "proxy"} & set(file)):
        return {}
    # Only then: most commands start faster without.
    from forbear.server.tables import read_handover, read_notify, read_proxy, read_standing

    if secret is not None and not secret.startswith(("env:", "file:")):
        secret = "env:FORBEAR_NOTIFY_SECRET"  # it is the secret itself
    try:
        return {
            "notify": read_notify(file.get("notify"), webhook, secret),
            "standing": read_standing(file.get("standing")),
            "handover": read_handover(file.get("handover")),
            "proxy": read_proxy(file.get("proxy")),
        }
    except ValueError as error:
        raise BadSettings(f"{path}: {error}") from error


def _database(url: str | None) -> str | None:
    if url is not None and not url.startswith(("postgresql://", "postgres://")):
        raise BadSettings(
            "FORBEAR_DATABASE_URL: write postgresql://user@host/database; "
            "unset it, and the store is a file in FORBEAR_HOME"
        )
    return url


def _level(name: str | None) -> str:
    level = (name or "WARNING").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadSettings(f"FORBEAR_LOG: {name!r} is none of debug, info, warning, error")
    return level


def _task_limits(section: object, path: Path) -> TaskLimits:
    """`[task]`: `max_requests` and `max_open_operations` as numbers, `max_wait` as `"2h"`."""
    if not isinstance(section, dict):
        raise BadSettings(f"{path}: task must be a table: [task]")
    stated = cast(dict[str, object], section)
    limits: dict[str, int] = {}
    for name, value in stated.items():
        if name not in TASK:
            known = ", ".join(TASK)
            raise BadSettings(f"{path}: task.{name} is no setting; there are {known}")
        try:
            limits[name] = parse_duration(str(value)) if name == "max_wait" else _count(value)
        except ValueError as error:
            raise BadSettings(f"{path}: task.{name}: {error}") from error
    return TaskLimits(**limits)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of 1 or more")
    return value
