"""What an agent gets back: one operation in full, in short, or the reason why a call was refused.

The short record carries what the next step needs; whatever is null or says nothing is left out.
Both keep two facts apart: `http` (and `wire`) say whether the provider answered, `state` and
`may_proceed` say whether the work may go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from forbear.rules import model
from forbear.rules.model import Certainty, DelaySource, Kind, Reason, State, WaitingFor
from forbear.rules.paging import Progress
from forbear.tools import endings
from forbear.tools.phrases import cut_short, pages_read
from forbear.tools.record import Record
from forbear.tools.texts import next_step
from forbear.tools.times import rfc3339, whole_second
from forbear.tools.untrusted import inert, inert_tree, told, told_tree

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339 with Z, to the second."""

Text = Annotated[str, BeforeValidator(inert)]
"""Text with no character that hides or controls."""

Data = dict[str, Any]
"""A JSON object."""

InertData = Annotated[Data, BeforeValidator(inert_tree)]
"""A JSON object whose members come from a contract or a provider."""


Told = Annotated[str, BeforeValidator(told)]
"""A provider's own text: no query of an address stands in it."""

ToldData = Annotated[Data, BeforeValidator(told_tree)]
"""A JSON object out of a provider's answer."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Used(_Closed):
    """A budget: a total that only grows, and where the work ends."""

    used: int
    max: int


class UsedSeconds(_Closed):
    """A budget of waited time, in seconds."""

    used: int | float
    max: int | float


class Budgets(_Closed):
    status_requests: Used
    transport_failures: Used
    rate_limited: Used
    attempts: Used
    wait_seconds: UsedSeconds
    lookups: Used
    pages: Annotated[Used | None, Field(description="Of a read of several pages.")]


class ProviderJob(_Closed):
    """The job as the provider last described it; of a call, what it made there."""

    id: Told | None
    state: Told | None
    observed_at: Time | None


class Http(_Closed):
    """The last answer of the provider to any request of this operation."""

    status: int
    at: Time | None
    provider_request_id: Told | None


class Wire(_Closed):
    """What is known about everything that was sent."""

    sent: bool
    answered: bool
    certainty: Certainty


class Escalation(_Closed):
    """The question that a person is asked."""

    id: Text
    reason: Reason
    urgency: Text
    text: Text
    options: list[InertData]
    """`{id, label, effect, parameters}`, least effect first."""
    decide_at: Text | None
    opened_at: Time
    revision: int
    group: Text | None
    decision: InertData | None


class Operation(_Closed):
    """One operation and all that is known about it."""

    operation_id: Text
    state: State
    may_proceed: Annotated[
        bool, Field(description="True once the outcome is proven; only then go on with the work.")
    ]
    next_step: Annotated[str, Field(description="What to do now. Do exactly that.")]
    as_of: Annotated[Time, Field(description="When this was read from the store.")]
    kind: Kind
    provider: Text
    action: Text
    account: Text
    label: Text | None
    request_class: model.RequestClass
    tasks: list[Text]
    joined: bool
    parent_operation_id: Text | None
    superseded_by: Text | None
    waiting_for: WaitingFor | None
    allowed_actions: list[Text]
    next_check_at: Time | None
    poll_after_seconds: float | None
    delay_source: DelaySource | None
    expected_at: Time | None
    deadline_at: Annotated[
        Time | None, Field(description="Null while a person must approve: it starts at approval.")
    ]
    useful_until: Time | None
    watched_until_client_closes: bool
    budgets: Budgets
    provider_job: ProviderJob | None
    http: Annotated[Http | None, Field(description="Null while the provider has answered nothing.")]
    wire: Wire
    result: ToldData | None
    failure: ToldData | None
    escalation: Escalation | None
    notices: list[Text]
    advice: Text | None
    validated: bool | None
    idempotency_key: Text | None
    fingerprint: Text
    authorisation: Text
    created_at: Time
    updated_at: Time
    revision: int
    timeline: list[Text]
    receipt: Text | None


_SHORT = (
    "operation_id",
    "state",
    "may_proceed",
    "next_step",
    "as_of",
    "waiting_for",
    "next_check_at",
    "delay_source",
    "deadline_at",
    "watched_until_client_closes",
    "provider_job",
    "http",
    "allowed_actions",
    "joined",
    "result",
    "failure",
    "escalation",
    "notices",
    "advice",
    "kind",
    "parent_operation_id",
)
"""Members of the short record, in their order."""


_ALWAYS = _SHORT[:4]


def full(record: Record) -> Data:
    """The full record, every member present, exactly as the schema of `Operation` says."""
    return _describe(record).model_dump(mode="json")


def short(record: Record) -> Data:
    """The record of ordinary answers: `_SHORT` without what is null or says nothing."""
    operation = _describe(record)
    whole = operation.model_dump(mode="json")
    if operation.escalation is not None:
        case = operation.escalation
        whole["escalation"] = _said(
            {
                "id": case.id,
                "reason": case.reason.value,
                "decide_at": case.decide_at,
                "options": [str(option["id"]) for option in case.options],
            }
        )
    if operation.http is not None:
        whole["http"] = {"status": operation.http.status}
    if operation.provider_job is not None:
        whole["provider_job"] = _said(whole["provider_job"])
    if record.operation.final:
        whole["deadline_at"] = None
    return {name: whole[name] for name in _SHORT if name in _ALWAYS or _says(whole[name])}


def page(records: list[Record], next_cursor: str | None) -> Data:
    """Several operations in short, and the cursor of the next page if there is one."""
    answer: Data = {"operations": [short(record) for record in records]}
    if next_cursor is not None:
        answer["next_cursor"] = next_cursor
    return answer


def after_end(records: list[Record], next_cursor: str | None, *, task: bool) -> Data:
    """What `end_task` ended, a whole task or one operation, and what to do now."""
    return {"next_step": endings.after_end(records, task=task), **page(records, next_cursor)}


def refusal(refused: model.Refusal) -> Data:
    """`{"error": {code, message, next_step, operation_id?}, …}` with what every operation says.

    The TypeScript SDK (1.32) fails a call whose error does not match the tool's output schema, and
    its agent never reads it. `refused` is the state of no operation.
    """
    error = {
        "code": refused.code.value,
        "message": refused.message,
        "next_step": refused.next_step,
        "operation_id": refused.operation_id,
    }
    return {
        "error": inert_tree(_said(error)),
        "operation_id": refused.operation_id or "",
        "state": "refused",
        "may_proceed": False,
        "next_step": error["next_step"],
    }


def in_result(answer: Data, *, is_error: bool = False) -> CallToolResult:
    """What a tool returns: the same as text and as structured content."""
    return CallToolResult(
        content=[TextContent(type="text", text=compact(answer))],
        structured_content=answer,
        is_error=is_error,
    )


def compact(value: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def operation_schema() -> Data:
    """The JSON Schema of the full record."""
    return Operation.model_json_schema(mode="serialization")


def _describe(record: Record) -> Operation:
    operation = record.operation
    check = next_check(record)
    return Operation(
        operation_id=operation.id,
        state=operation.state,
        may_proceed=operation.may_proceed,
        next_step=next_step(record),
        as_of=rfc3339(record.as_of),
        kind=operation.kind,
        provider=operation.provider,
        action=operation.action,
        account=operation.account,
        label=operation.label,
        request_class=operation.request_class,
        tasks=list(record.tasks),
        joined=record.joined,
        parent_operation_id=operation.parent_id,
        superseded_by=operation.superseded_by,
        waiting_for=operation.waiting_for,
        allowed_actions=list(record.allowed_actions),
        next_check_at=_time(check),
        poll_after_seconds=max(0, check - record.as_of) / 1000 if check is not None else None,
        delay_source=operation.delay_source if check is not None else None,
        expected_at=_time(
            operation.expected_at if operation.expected_at is not None else record.usual_end
        ),
        deadline_at=_time(operation.deadline_at if operation.approve_by is None else None),
        useful_until=_time(operation.useful_until),
        watched_until_client_closes=record.watched_until_client_closes,
        budgets=_budgets(operation),
        provider_job=_provider_job(operation),
        http=_http(operation),
        wire=Wire(sent=operation.sent, answered=operation.answered, certainty=operation.certainty),
        result=dict(operation.result) if operation.result is not None else None,
        failure=_failure(operation),
        escalation=_escalation(record.case, record.decide_at) if record.case else None,
        notices=list(operation.notices),
        advice=" ".join(filter(None, (record.advice, cut_short(operation)))) or None,
        validated=operation.validated,
        idempotency_key=operation.key,
        fingerprint=f"hmac-sha256:{operation.intent}",
        authorisation=operation.authorisation,
        created_at=rfc3339(operation.created_at),
        updated_at=rfc3339(operation.updated_at),
        revision=operation.revision,
        timeline=list(record.timeline),
        receipt=record.receipt,
    )


_CHECKED = frozenset({State.QUEUED, State.WAITING, State.DELAYED, State.UNCLEAR})
_NO_TIME_KNOWN = frozenset({WaitingFor.APPROVAL, WaitingFor.CREDENTIAL})


def next_check(record: Record) -> int | None:
    """When the next request is due, ms. A claimed operation has a lease expiry there, no plan."""
    operation = record.operation
    planned = (
        operation.state in _CHECKED
        and operation.waiting_for not in _NO_TIME_KNOWN
        and operation.lease_owner is None
    )
    return operation.next_at if planned else None


def _budgets(operation: model.Operation) -> Budgets:
    progress = Progress.of(operation)
    return Budgets(
        status_requests=_used(operation.status_requests),
        transport_failures=_used(operation.transport_failures),
        rate_limited=_used(operation.rate_limited),
        attempts=_used(operation.attempts),
        wait_seconds=UsedSeconds(
            used=_seconds(operation.wait.used), max=_seconds(operation.wait.max)
        ),
        lookups=_used(operation.lookups),
        pages=None if progress is None else _used(progress.budget),
    )


def _used(budget: model.Budget) -> Used:
    return Used(used=budget.used, max=budget.max)


def _seconds(milliseconds: int) -> int | float:
    whole, rest = divmod(milliseconds, 1000)
    return milliseconds / 1000 if rest else whole


def _failure(operation: model.Operation) -> Data | None:
    """What is stored of a failure, with its time as text, and how many pages came before it."""
    failure, pages = operation.failure, pages_read(operation)
    if failure is None:
        return None
    told, at = dict(failure), failure.get("retry_at")
    if pages is not None:
        told["pages_read"] = pages.used
    if isinstance(at, int):
        told["retry_at"] = rfc3339(whole_second(at))
    return told


def _provider_job(operation: model.Operation) -> ProviderJob | None:
    known = operation.provider_job
    if operation.kind is Kind.CALL:
        known = operation.take.get("id")
    if known is None and operation.provider_state is None:
        return None
    return ProviderJob(
        id=known,
        state=operation.provider_state,
        observed_at=_time(operation.observed_at),
    )


def _http(operation: model.Operation) -> Http | None:
    if operation.http_status is None:
        return None
    return Http(
        status=operation.http_status,
        at=_time(operation.http_at),
        provider_request_id=operation.provider_request_id,
    )


def _escalation(case: model.Case, decide_at: str | None) -> Escalation:
    return Escalation(
        id=case.id,
        reason=case.reason,
        urgency=case.urgency,
        text=case.text,
        options=[dict(option) for option in case.options],
        decide_at=decide_at,
        opened_at=rfc3339(case.opened_at),
        revision=case.revision,
        group=case.group,
        decision=dict(case.decision) if case.decision is not None else None,
    )


def _time(at: int | None) -> str | None:
    return rfc3339(at) if at is not None else None


def _said(members: Data) -> Data:
    return {name: value for name, value in members.items() if _says(value)}


def _says(value: object) -> bool:
    """Whether a member says anything: not null, not false, not empty."""
    return value is not None and value is not False and value not in ("", [], {})
