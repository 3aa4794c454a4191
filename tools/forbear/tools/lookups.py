"""What resources, prompts, subscriptions and tasks read: the desk's answers, or a protocol error.

Everything that is no tool looks up here, and so under the same ownership as the tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from forbear.rules.model import Case, Code, Refusal
from forbear.tools.caller import Caller
from forbear.tools.desk_port import DeskPort
from forbear.tools.record import Record

PAGE = 100
"""Operations that a completion looks through."""

_T = TypeVar("_T")


class Lookups:
    """Reads of one desk for one caller.

    Every method raises `MCPError`: -32602 for what does not exist or is another's, -32603 while the
    store cannot be read.
    """

    def __init__(self, desk: DeskPort, caller: Caller) -> None:
        self._desk = desk
        self._caller = caller

    @property
    def principal(self) -> str:
        """Whose lookups these are."""
        return self._caller.principal

    async def record(self, operation_id: str, *, story: bool = False) -> Record:
        found = await self._desk.operation_status(
            operation_id,
            state=None,
            provider=None,
            task=None,
            cursor=None,
            limit=1,
            timeline=story,
            caller=self._caller,
        )
        if isinstance(found, tuple):
            raise TypeError("the desk answered one id with a page")
        return _or_raise(found)

    async def recent(self) -> list[Record]:
        """Operations, active ones first."""
        found = await self._desk.operation_status(
            None,
            state=None,
            provider=None,
            task=None,
            cursor=None,
            limit=PAGE,
            timeline=False,
            caller=self._caller,
        )
        if isinstance(found, Record):
            raise TypeError("the desk answered a page with one operation")
        return _or_raise(found)[0]

    async def cases(self) -> list[Case]:
        """The open cases, oldest first."""
        return _or_raise(await self._desk.open_cases(caller=self._caller))

    async def contract(self, provider: str) -> Mapping[str, Any]:
        return _or_raise(await self._desk.contract(provider, caller=self._caller))

    async def actions(self) -> list[Mapping[str, Any]]:
        """One line per action that can be run here."""
        answer = await self._desk.list_actions(
            provider=None, action=None, query=None, cursor=None, limit=PAGE, caller=self._caller
        )
        listed: list[Mapping[str, Any]] = _or_raise(answer)["actions"]
        return listed

    async def end(self, operation_id: str) -> None:
        """Drop what has not been sent of an operation."""
        ended = await self._desk.end_task(
            task=None, operation_id=operation_id, reason="tasks/cancel", caller=self._caller
        )
        _or_raise(ended)

    def follow(
        self, records: Collection[Record], providers: Collection[str] = ()
    ) -> AsyncGenerator[Record | str, None]:
        """See `DeskPort.follow`."""
        return self._desk.follow(records, providers)


LookupsOf = Callable[[Context[None, Any] | ServerRequestContext[None, Any]], Lookups]
"""The lookups of whoever made a request."""


def _or_raise(answer: _T | Refusal) -> _T:
    if not isinstance(answer, Refusal):
        return answer
    unreadable = answer.code is Code.STORE_UNAVAILABLE
    raise MCPError(
        INTERNAL_ERROR if unreadable else INVALID_PARAMS,
        f"{answer.message} {answer.next_step}",
        {"code": answer.code.value},
    )
