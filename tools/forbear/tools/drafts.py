"""New operations as values: every field set, nothing stored, no time read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from forbear.rules import identity
from forbear.rules.contract import Action, Call, Contract, Job, Request
from forbear.rules.facts import Facts, facts_of
from forbear.rules.labels import label
from forbear.rules.model import (
    Budget,
    Certainty,
    Code,
    Kind,
    Operation,
    Priority,
    Refusal,
    RequestClass,
    State,
    Step,
)
from forbear.rules.paging import Progress, paging_of
from forbear.rules.ports import Random
from forbear.rules.requests import RenderError, render
from forbear.storage.accepting import Draft, FreeSum
from forbear.storage.transitions import Holding
from forbear.tools import refusals

OWN_DEADLINE = 900_000
"""Deadline of a result fetch or a cancellation, ms (behaviour.md, section 3)."""

OWN_TRANSPORT_FAILURES = 5
OWN_RATE_LIMITED = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one job: the contract's, tightened by the agent, never widened."""

    deadline: int
    status_requests: int
    useful_for: int | None
    advice: str | None
    asked: tuple[str, ...]
    """Names of the limits that the agent gave."""


def bounds(
    job: Job, deadline: int | None, status_requests: int | None, useful_for: int | None
) -> Bounds:
    """`deadline` and `useful_for` in seconds. What was above the contract's is named in advice."""
    told: list[str] = []
    limits = job.limits

    def tightened(name: str, wanted: int | None, most: int) -> int:
        if wanted is None or wanted <= most:
            return most if wanted is None else wanted
        told.append(f"{name} lowered to the contract's {most}")
        return most

    seconds = tightened("deadline_seconds", deadline, limits.deadline // 1_000)
    requests = tightened("max_status_requests", status_requests, limits.max_status_requests)
    useful = limits.useful_for
    if useful_for is not None:
        most = useful_for if useful is None else useful // 1_000
        useful = tightened("useful_for_seconds", useful_for, most) * 1_000
    given = {
        "deadline_seconds": deadline,
        "max_status_requests": status_requests,
        "useful_for_seconds": useful_for,
    }
    return Bounds(
        deadline=limits.deadline if deadline is None else min(seconds * 1_000, limits.deadline),
        status_requests=requests,
        useful_for=useful,
        advice="; ".join(told) or None,
        asked=tuple(name for name, value in given.items() if value is not None),
    )


def call_bounds(call: Call, deadline: int | None, useful_for: int | None) -> Bounds:
    """`deadline` and `useful_for` in seconds; for a call both are a deadline."""
    asked = {"deadline_seconds": deadline, "useful_for_seconds": useful_for}
    given = [seconds * 1_000 for seconds in asked.values() if seconds is not None]
    above = [name for name, value in asked.items() if value and value * 1_000 > call.deadline]
    told = [f"{name} lowered to the contract's {call.deadline // 1_000}" for name in above]
    return Bounds(
        deadline=min([call.deadline, *given]),
        status_requests=0,
        useful_for=None,
        advice="; ".join(told) or None,
        asked=tuple(name for name, value in asked.items() if value is not None),
    )


def ignored(asked: Bounds) -> str | None:
    """Advice for one who joined: the operation keeps its own limits."""
    if not asked.asked:
        return None
    return f"ignored, the operation keeps its own: {', '.join(asked.asked)}"


@dataclass(frozen=True, slots=True)
class Given:
    """What an agent says about a request beside what it is."""

    purpose: str | None
    key: str | None
    priority: Priority
    task: str | None


class Drafter:
    """Makes drafts for one principal on one store."""

    def __init__(
        self, store_key: bytes, random: Random, principal: str, client: str | None = None
    ) -> None:
        self._store_key = store_key
        self._random = random
        self._principal = principal
        self._client = client

    def submission(
        self,
        holding: Holding,
        job: Job,
        arguments: Mapping[str, Any],
        limits: Bounds,
        given: Given,
    ) -> Draft | Refusal:
        """The draft of a job's submission."""
        contract = holding.contract
        op = _job_operation(self._blank(holding, job.send), contract, job, arguments, limits)
        op = replace(op, purpose=given.purpose, key=given.key, priority=given.priority)
        return self._drafted(holding, job, op, limits, given.task)

    def _drafted(
        self, holding: Holding, action: Action, op: Operation, limits: Bounds, task: str | None
    ) -> Draft | Refusal:
        try:
            intent = identity.intent_digest(
                self._store_key,
                op.provider,
                op.account,
                action.name,
                action.send.method,
                op.arguments,
                action.identity,
            )
            facts = facts_of(op, holding.contract)
            request = render(holding.contract, action.send, facts, timeout=op.timeout)
        except ValueError as error:  # what JSON cannot say, or what the request cannot hold
            return refusals.invalid_arguments([f"/arguments: {error}"], None)
        digest = identity.request_digest(request, action.section)
        asks = _needs_approval(action.send, op.arguments)
        page = paging_of(action)
        if page is not None:
            op = replace(op, search=Progress.begin(page, request).kept())
        return Draft(
            session=asks and action.send.approval.mode == "session",
            free=_free_sum(action.send, op.arguments),
            operation=replace(op, intent=intent, request_digest=digest),
            request=request,
            deadline=limits.deadline,
            useful_for=limits.useful_for,
            approve_within=action.approve_within if asks else None,
            repeat=action.repeat,
            repeat_window=action.repeat_window,
            task=task,
        )

    def call(
        self,
        holding: Holding,
        call: Call,
        arguments: Mapping[str, Any],
        limits: Bounds,
        given: Given,
    ) -> Draft | Refusal:
        """The draft of one call."""
        contract = holding.contract
        budgets = _class_budgets(contract, call.send.request_class)
        lookups = call.lookup.max_lookups if call.lookup is not None else 0
        op = replace(
            self._blank(holding, call.send),
            kind=Kind.CALL,
            label=_label(call, arguments, contract),
            arguments=dict(arguments),
            timeout=max(1, min(call.send.timeout, limits.deadline // 2)),
            lookups=Budget(0, lookups),
            **budgets,
        )
        op = replace(op, purpose=given.purpose, key=given.key, priority=given.priority)
        return self._drafted(holding, call, op, limits, given.task)

    def repetition(
        self, op: Operation, holding: Holding, job: Operation | None = None
    ) -> Draft | Refusal:
        """The draft of the same action once more, under a new key and reference.

        `job` is the one whose result or cancellation `op` is.
        """
        if not op.known:
            return refusals.not_known(op.id)
        action = holding.action
        if op.kind in (Kind.RESULT, Kind.CANCEL):
            return self._follow_up_again(op, holding, action, job)
        given = Given(op.purpose, None, op.priority, None)
        if isinstance(action, Job):
            limits = bounds(action, None, None, None)
            return self.submission(holding, action, op.arguments, limits, given)
        if isinstance(action, Call):
            limits = call_bounds(action, None, None)
            return self.call(holding, action, op.arguments, limits, given)
        raise TypeError(f"{action.name} is neither a job nor a call")

    def _follow_up_again(
        self, op: Operation, holding: Holding, action: Action, job: Operation | None
    ) -> Draft | Refusal:
        if job is None or not isinstance(action, Job):
            return refusals.not_known(op.id)
        cancels, name = op.kind is Kind.CANCEL, op.result_name
        request = action.cancel if cancels else action.results.get(name or "")
        if request is None:
            told = f"the contract of {op.provider} names no such request of {op.action} any more"
            return Refusal(Code.OPTION_NOT_OFFERED, told, f"forbear show {op.id}", op.id)
        return self.follow_up(job, op.kind, request, holding, name=name, purpose=op.purpose)

    def follow_up(
        self,
        job: Operation,
        kind: Kind,
        request: Request,
        holding: Holding,
        *,
        name: str | None = None,
        purpose: str | None = None,
    ) -> Draft | Refusal:
        """The draft of a result fetch or a cancellation of `job`."""
        if not job.known:
            return refusals.not_known(job.id)
        contract, action = holding.contract, holding.action
        what = {Kind.RESULT: "Result of", Kind.CANCEL: "Cancel"}[kind]
        intent = identity.intent_digest(
            self._store_key,
            job.provider,
            job.account,
            f"{what} {job.action}",
            request.method,
            {"job": job.id, "result": name},
            None,
        )
        op = replace(
            self._blank(holding, request),
            kind=kind,
            priority=job.priority,
            purpose=purpose,
            parent_id=job.id,
            result_name=name,
            label=f"{what}: {job.label or job.action}",
            intent=intent,
            timeout=min(request.timeout, OWN_DEADLINE // 2),
            **_class_budgets(contract, request.request_class),
        )
        try:
            facts = facts_of(op, contract, job)
            outbound = render(contract, request, facts, timeout=op.timeout)
        except RenderError as error:
            return Refusal(Code.EGRESS_REFUSED, str(error), "Report it to the user.", job.id)
        digest = identity.request_digest(outbound, action.section)
        return Draft(
            session=False,
            free=None,
            operation=replace(op, request_digest=digest),
            request=outbound,
            deadline=OWN_DEADLINE,
            useful_for=None,
            approve_within=action.approve_within if _needs_approval(request, {}) else None,
            repeat="join",
            repeat_window=action.repeat_window,
            task=None,
        )

    def _blank(self, holding: Holding, request: Request) -> Operation:
        """A new operation with nothing done yet; the ledger sets the times."""
        none = Budget(0, 0)
        idempotency = holding.action.idempotency
        wire_key = None
        if idempotency is not None and request is holding.action.send:
            token = self._random.token(32)
            wire_key = identity.wire_key(idempotency.format, idempotency.max_length, token)
        return Operation(
            id=f"op_{self._random.token(16)}",
            number=0,
            principal=self._principal,
            provider=holding.contract.provider,
            account=holding.contract.account.get("id", "default"),
            action=holding.action.name,
            kind=Kind.JOB,
            request_class=request.request_class,
            priority=Priority.INTERACTIVE,
            label=None,
            purpose=None,
            arguments={},
            intent="",
            key=None,
            ref=f"fb_{self._random.token(16)}",
            wire_key=wire_key,
            binding=holding.action.binding,
            section=holding.action.section,
            request_digest="",
            parent_id=None,
            superseded_by=None,
            result_name=None,
            authorisation="contract",
            deadline_at=0,
            useful_until=None,
            approve_by=None,
            approve_deadline=None,
            timeout=request.timeout,
            status_requests=none,
            transport_failures=none,
            rate_limited=none,
            attempts=none,
            wait=none,
            lookups=none,
            extensions=none,
            state=State.QUEUED,
            step=Step.SEND,
            revision=1,
            created_at=0,
            updated_at=0,
            next_at=None,
            delay=None,
            delay_source=None,
            waiting_for=None,
            sent_at=None,
            accepted_at=None,
            observed_at=None,
            parsed=0,
            provider_job=None,
            provider_state=None,
            terminal_seen=False,
            progress=None,
            progress_at=None,
            take={},
            certainty=Certainty.NOT_SENT,
            http_status=None,
            http_at=None,
            provider_request_id=None,
            sent=False,
            answered=False,
            provider_expiry_at=None,
            expected_at=None,
            failure=None,
            result=None,
            validated=None,
            notices=(),
            treat={},
            once=None,
            pending=None,
            emptied_at=None,
            lease_owner=None,
            lease_boot=None,
            lease_until=None,
            fence=0,
            client=self._client,
        )


def _class_budgets(contract: Contract, request_class: RequestClass) -> dict[str, Any]:
    return {
        "attempts": Budget(0, contract.attempts(request_class)),
        "wait": Budget(0, contract.classes[request_class].max_wait),
        "transport_failures": Budget(0, OWN_TRANSPORT_FAILURES),
        "rate_limited": Budget(0, OWN_RATE_LIMITED),
    }


def _job_operation(
    blank: Operation,
    contract: Contract,
    job: Job,
    arguments: Mapping[str, Any],
    limits: Bounds,
) -> Operation:
    stated = job.limits
    budgets = _class_budgets(contract, job.send.request_class) | {
        "status_requests": Budget(0, limits.status_requests),
        "transport_failures": Budget(0, stated.max_transport_failures),
        "rate_limited": Budget(0, stated.max_rate_limited),
        "lookups": Budget(0, job.lookup.max_lookups if job.lookup is not None else 0),
        "extensions": Budget(0, stated.extension.times),
    }
    return replace(
        blank,
        label=_label(job, arguments, contract),
        arguments=dict(arguments),
        timeout=max(1, min(job.send.timeout, limits.deadline // 2)),
        **budgets,
    )


def _label(action: Action, arguments: Mapping[str, Any], contract: Contract) -> str:
    if action.label is None:
        return action.title
    account = {**contract.account, "id": contract.account.get("id", "default")}
    return label(action.label, Facts(arguments=arguments, account=account))


def _needs_approval(request: Request, arguments: Mapping[str, Any]) -> bool:
    """Whether a person is asked first. A small amount may be free, see also `_free_sum`."""
    free = request.approval.free
    if request.approval.mode == "none":
        return False
    amount = None if free is None else _amount(arguments.get(free["arg"]))
    return free is None or amount is None or "sum" in free or amount > free["max"]


def _free_sum(request: Request, arguments: Mapping[str, Any]) -> FreeSum | None:
    """The sum over time inside which this amount needs no approval."""
    free = request.approval.free
    if request.approval.mode == "none" or free is None or "sum" not in free:
        return None
    amount = _amount(arguments.get(free["arg"]))
    if amount is None or amount > free["max"]:
        return None
    return FreeSum(free["arg"], amount, Decimal(str(free["sum"])), free["per"])


def _amount(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Decimal(str(value))
