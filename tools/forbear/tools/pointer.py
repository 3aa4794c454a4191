"""The pointer in an agent's client: the page where a person decides, offered to be opened.

It is an elicitation in URL mode (MCP 2025-11-25 and 2026-07-28) and never an authority: a client
may answer it by itself, so what it answers changes nothing. Only the page itself decides.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
from mcp.server.mcpserver import Context
from mcp.types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestURLParams,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from forbear.rules.model import Case
from forbear.tools.caller import Caller
from forbear.tools.record import Record

PATIENCE = 1.0
"""Seconds that an answer waits for a client to take the pointer."""

REMEMBERED = 4_096
"""Pairs of client and case that were pointed at; the oldest are forgotten first."""

REPEATABLE = frozenset({"check_status", "operation_status", "reconcile_write"})
"""Tools that a client may call a second time for one answer: nothing follows from it.

From 2026-07-28 on a client is pointed somewhere by a first answer and calls the tool again for the
second; a tool that submits or writes must not be called twice for that.
"""

_log = logging.getLogger(__name__)


class Pointers:
    """The pointers of a server: each client is pointed at each case once."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], None] = {}

    async def show(
        self, tool: str, record: Record, caller: Caller, context: Context[None, Any] | None
    ) -> InputRequiredResult | None:
        """Point the client at the open case of `record`, if there is one and it takes pointers.

        Returns what to answer first where the protocol wants that, else None. Never raises for what
        a client does or does not do, and takes no longer than `PATIENCE`.
        """
        case, url = record.case, record.decide_at
        if context is None or case is None or url is None or not record.console_served:
            return None
        if (caller.client, case.id) in self._shown or not _opens_pages(context.client_capabilities):
            return None
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if tool not in REPEATABLE or case.id in (context.input_responses or {}):
                return None  # another process of the home may have pointed it there
            self._note(caller, case)
            return InputRequiredResult(
                input_requests={case.id: _page(case, url)}, request_state=case.id
            )
        self._note(caller, case)
        try:
            with anyio.move_on_after(PATIENCE):
                await context.elicit_url(_message(case), url, case.id)
        except Exception as error:
            _log.debug("the client was not pointed at case %s: %s", case.id, error)
        return None

    def _note(self, caller: Caller, case: Case) -> None:
        self._shown[caller.client, case.id] = None
        if len(self._shown) > REMEMBERED:
            del self._shown[next(iter(self._shown))]


def page_of(record: Record, declared: ClientCapabilities | None) -> dict[str, Any]:
    """The page where a person decides, as the input requests of a task.

    Empty for a client that opens no pages, and while no page is served: a form could only be
    answered in vain.
    """
    case, url = record.case, record.decide_at
    if case is None or url is None or not record.console_served or not _opens_pages(declared):
        return {}
    page = _page(case, url)
    return {case.id: page.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _opens_pages(declared: ClientCapabilities | None) -> bool:
    """Whether a client declared `elicitation.url`; an empty `elicitation` means forms alone."""
    elicitation = declared.elicitation if declared is not None else None
    return elicitation is not None and elicitation.url is not None


def _page(case: Case, url: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestURLParams(message=_message(case), url=url))


def _message(case: Case) -> str:
    """The same words each time, with nothing of a provider or an agent in them."""
    return (
        f"A person is asked about {case.operation_id} ({case.reason}). The page shows the facts "
        "and the options; opening it decides nothing."
    )
