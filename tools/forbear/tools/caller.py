"""Who makes one call: it comes with the call, since one process may serve many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

LOCAL = "local"
"""The principal of whoever may start programs on this machine as the home's user."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of what a call makes, and all that the call may see."""

    principal: str
    client: str
    """Waits without news, and which cases were pointed at, are counted by this name."""
    session: str | None
    """What an approval of a client's session covers; None: the call belongs to no session, so such
    an approval is of one request."""


CallerOf = Callable[["Context[None, Any] | None"], Caller]
"""Finds the caller in what came with a request; None where there was no request."""


def only(name: str) -> CallerOf:
    """The one caller of a process that serves one client, `name`."""
    caller = Caller(LOCAL, name, name)
    return lambda _: caller
