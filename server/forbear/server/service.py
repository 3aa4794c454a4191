"""The worker as a service of its user: systemd, launchd, or the Task Scheduler of Windows.

Each is one file that its manager reads. What is written for launchd and for Windows follows their
documentation and was not run there.
"""

from __future__ import annotations

import os
import plistlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

MARK = "Written by `forbear install worker`"
"""Stands in each file of ours; a file without it is of somebody else."""

NAME = "forbear-worker"

_SOURCED = 'set -a; if [ -r "$0" ]; then . "$0"; fi; exec "$@"'
"""For launchd, which reads no file of variables: `sh -c` with that file and the program."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service of this user."""

    manager: str
    file: Path
    text: str
    start: tuple[tuple[str, ...], ...]
    """Commands that make the manager read the file and start the worker, now and at log-in."""
    stop: tuple[tuple[str, ...], ...]
    """Commands that end it, before the file is removed."""
    after: tuple[tuple[str, ...], ...]
    """Commands after the file was removed."""
    variables: Path | None
    """The file with the keys; None where the manager takes those of the user."""
    note: str
    """What a person may still want to do."""


def service(
    platform: str,
    environment: Mapping[str, str],
    user: Path,
    words: Sequence[str],
    home: Path,
    *,
    usual: bool,
) -> Service:
    """The worker of a home as a service. `usual`: no variable need say where the home is."""
    stated = {} if usual else {"FORBEAR_HOME": str(home)}
    config = Path(environment.get("XDG_CONFIG_HOME") or user / ".config")
    variables = config / "forbear" / "worker.env"
    match platform:
        case "win32":
            account = f"{environment.get('USERDOMAIN', '.')}\\{environment.get('USERNAME', '')}"
            return _scheduled(words, home, stated, account)
        case "darwin":
            return _launched(user, words, home, variables, stated)
        case _:
            return _unit(config, words, variables, stated)


def variables(names: Sequence[str]) -> str:
    """The first text of the file with the keys: their names, to be filled in."""
    lines = [
        f"# {MARK}: what contracts name as env:…, for the worker.",
        "# One NAME=value in a line; a value with other signs than letters and digits stands in",
        "# single quotes. Restart the worker after a change.",
        *(f"#{name}=" for name in names),
    ]
    return "\n".join(lines) + "\n"


# --- systemd --------------------------------------------------------------------------------


def _unit(
    config: Path, words: Sequence[str], variables: Path, stated: Mapping[str, str]
) -> Service:
    program = " ".join(_quoted(word).replace("$", "$$") for word in (*words, "worker"))
    lines = [
        f"# {MARK}.",
        "[Unit]",
        "Description=Forbear worker",
        "",
        "[Service]",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in stated.items()),
        f"EnvironmentFile=-{str(variables).replace('%', '%%')}",
        f"ExecStart={program}",
        "# Also after exit code 3: a newer program upgraded the store.",
        "Restart=always",
        "RestartSec=5",
        "TimeoutStopSec=30",
        "UMask=0077",
        "NoNewPrivileges=yes",
        "LockPersonality=yes",
        "RestrictSUIDSGID=yes",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    systemctl = ("systemctl", "--user")
    return Service(
        "systemd",
        config / "systemd" / "user" / f"{NAME}.service",
        "\n".join(lines) + "\n",
        ((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", NAME)),
        ((*systemctl, "disable", "--now", NAME),),
        ((*systemctl, "daemon-reload"),),
        variables,
        f"`loginctl enable-linger` lets it go on when you log out; `journalctl --user -u {NAME}` "
        "shows what it says.",
    )


def _quoted(word: str) -> str:
    """A word of a unit file (systemd.syntax(7)): quoted, and no specifier in it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if set(word) & set(" \t'\"\\;") else escaped


# --- launchd --------------------------------------------------------------------------------


def _launched(
    user: Path, words: Sequence[str], home: Path, variables: Path, stated: Mapping[str, str]
) -> Service:
    label = "forbear.worker"
    said = home / "worker.log"
    told = {
        "Label": label,
        "ProgramArguments": ["/bin/sh", "-c", _SOURCED, str(variables), *words, "worker"],
        "EnvironmentVariables": dict(stated),
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 5,
        "ExitTimeOut": 30,
        "Umask": 0o077,
        "StandardErrorPath": str(said),
    }
    text = plistlib.dumps({key: value for key, value in told.items() if value != {}}).decode()
    head, plist, body = text.partition("<plist")
    file = user / "Library" / "LaunchAgents" / f"{label}.plist"
    domain = f"gui/{os.getuid()}" if hasattr(os, "getuid") else "gui"
    return Service(
        "launchd",
        file,
        f"{head}<!-- {MARK}. -->\n{plist}{body}",
        (("launchctl", "bootstrap", domain, str(file)),),
        (("launchctl", "bootout", f"{domain}/{label}"),),
        (),
        variables,
        f"{said} has what it says.",
    )


# --- Task Scheduler -------------------------------------------------------------------------


def _scheduled(
    words: Sequence[str], home: Path, stated: Mapping[str, str], account: str
) -> Service:
    program, *rest = words
    arguments = " ".join((*rest, "worker"))
    text = f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!-- {MARK}. -->
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><UserId>{escape(account)}</UserId></LogonTrigger></Triggers>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>255</Count></RestartOnFailure>
  </Settings>
  <Actions>
    <Exec><Command>{escape(program)}</Command><Arguments>{escape(arguments)}</Arguments></Exec>
  </Actions>
</Task>
"""
    file = home / f"{NAME}.xml"
    homes = "".join(f" `setx FORBEAR_HOME {value}`, and" for value in stated.values())
    return Service(
        "Task Scheduler",
        file,
        text,
        (
            ("schtasks", "/Create", "/TN", NAME, "/XML", str(file), "/F"),
            ("schtasks", "/Run", "/TN", NAME),
        ),
        (("schtasks", "/End", "/TN", NAME), ("schtasks", "/Delete", "/TN", NAME, "/F")),
        (),
        None,
        f"It has the variables of your account:{homes} `setx NAME value` for what contracts name.",
    )
