"""What the surface asks of the desk: one method per tool, and what resources and prompts show.

Every method answers from the store after at most `wait_seconds`, does nothing that its caller's
cancellation could break, and returns a `Refusal` (nothing was stored) instead of raising for
anything an agent can cause.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

from forbear.rules.model import Case, Priority, Refusal, State
from forbear.tools.artifact import Artifact
from forbear.tools.caller import Caller
from forbear.tools.record import Record

Report = Callable[[Record], Awaitable[None]]
"""Called with the record on news while a call waits."""

Page = tuple[list[Record], str | None]
"""Operations, active ones first, and the cursor of the next page."""


class DeskPort(Protocol):
    """The use cases behind the tools.

    A caller sees, joins, awaits and ends what its principal owns. All else is `unknown_operation`,
    in the same words as what never was.
    """

    async def list_actions(
        self,
        *,
        provider: str | None,
        action: str | None,
        query: str | None,
        cursor: str | None,
        limit: int,
        caller: Caller,
    ) -> Mapping[str, Any] | Refusal: ...

    async def submit_job(
        self,
        *,
        provider: str,
        job: str,
        arguments: Mapping[str, Any],
        purpose: str | None,
        task: str | None,
        idempotency_key: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        max_status_requests: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal: ...

    async def check_status(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal: ...

    async def fetch_result(
        self,
        operation_id: str,
        *,
        name: str | None,
        offset: int | None,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal: ...

    async def cancel_job(
        self,
        operation_id: str,
        *,
        reason: str,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal: ...

    async def read_api(
        self,
        *,
        provider: str,
        call: str,
        arguments: Mapping[str, Any],
        task: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal: ...

    async def write_api(
        self,
        *,
        provider: str,
        call: str,
        arguments: Mapping[str, Any],
        purpose: str | None,
        task: str | None,
        idempotency_key: str | None,
        depends_on: tuple[str, ...],
        deadline_seconds: int | None,
        useful_for_seconds: int | None,
        priority: Priority,
        wait_seconds: float,
        caller: Caller,
        report: Report | None,
    ) -> Record | Refusal: ...

    async def reconcile_write(
        self, operation_id: str, *, wait_seconds: float, caller: Caller, report: Report | None
    ) -> Record | Refusal:
        """The lookup now if it is due; never a write."""
        ...

    async def operation_status(
        self,
        operation_id: str | None,
        *,
        state: State | None,
        provider: str | None,
        task: str | None,
        cursor: str | None,
        limit: int,
        timeline: bool,
        caller: Caller,
    ) -> Record | Page | Refusal:
        """One operation if its id is given, else a page of them."""
        ...

    async def request_decision(
        self,
        operation_id: str,
        *,
        option: str,
        reason: str,
        parameters: Mapping[str, Any],
        caller: Caller,
    ) -> Record | Refusal:
        """Ask a person for an option; never decides."""
        ...

    async def artifact(self, operation_id: str, *, caller: Caller) -> Artifact | Refusal:
        """The whole of a large result."""
        ...

    async def end_task(
        self, *, task: str | None, operation_id: str | None, reason: str | None, caller: Caller
    ) -> Page | Refusal:
        """What the end concerns, as it now stands. Exactly one of the two names is given."""
        ...

    # --- what resources, prompts and subscriptions show --------------------------------------

    async def open_cases(self, *, caller: Caller) -> list[Case] | Refusal:
        """The questions that a person is asked about the caller's operations, oldest first."""
        ...

    async def contract(self, provider: str, *, caller: Caller) -> Mapping[str, Any] | Refusal:
        """A provider's contract in words for an agent: limits and actions, nothing of its keys."""
        ...

    def follow(
        self, records: Collection[Record], providers: Collection[str] = ()
    ) -> AsyncGenerator[Record | str, None]:
        """Each of these operations whenever it differs from what was last told of it, and the name
        of each of these providers whenever its contract's file says something else.

        Fed by the store alone: it sends nothing and counts as no waiting. It never ends.
        """
        ...
