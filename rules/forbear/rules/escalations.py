"""Questions to a person: which options each reason fixes, what they cost, and the case text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from forbear.rules.contract import Action, Contract, Job
from forbear.rules.inert import inert
from forbear.rules.model import (
    Certainty,
    Kind,
    Operation,
    Option,
    Reason,
    RequestClass,
)

O, R = Option, Reason

OPTIONS: Mapping[Reason, tuple[Option, ...]] = {
    R.DEADLINE_EXCEEDED: (O.EXTEND, O.CHECK_AGAIN, O.CANCEL_AT_PROVIDER, O.ABANDON),
    R.USEFUL_UNTIL_PASSED: (O.EXTEND, O.CHECK_AGAIN, O.CANCEL_AT_PROVIDER, O.ABANDON),
    R.REQUEST_BUDGET_EXHAUSTED: (O.EXTEND, O.CHECK_AGAIN, O.CANCEL_AT_PROVIDER, O.ABANDON),
    R.TRANSPORT_BUDGET_EXHAUSTED: (O.CHECK_AGAIN, O.EXTEND, O.ABANDON),
    R.PAST_PROVIDER_EXPIRY: (O.CHECK_AGAIN, O.EXTEND, O.ABANDON),
    R.RATE_LIMITED: (O.HOLD, O.EXTEND, O.ABANDON),
    R.SCOPE_EXHAUSTED: (O.HOLD, O.ABANDON),
    R.QUOTA_EXHAUSTED: (O.HOLD, O.ABANDON),
    R.PROVIDER_UNREACHABLE: (O.HOLD, O.ABANDON),
    R.UNKNOWN_STATE: (O.TREAT_AS, O.HOLD, O.REBIND, O.CANCEL_AT_PROVIDER, O.ABANDON),
    R.BLOCKED_STATE: (O.TREAT_AS, O.HOLD, O.REBIND, O.CANCEL_AT_PROVIDER, O.ABANDON),
    R.CONTRADICTORY_RESPONSE: (
        O.CHECK_AGAIN,
        O.REBIND,
        O.USE_UNVALIDATED_RESULT,
        O.ABANDON,
    ),
    R.INVALID_RESPONSE: (O.CHECK_AGAIN, O.REBIND, O.ABANDON),
    R.BINDING_MISMATCH: (O.REBIND, O.ABANDON),
    R.CONTRACT_CHANGED: (O.REBIND, O.ABANDON),
    R.NOT_FOUND: (O.CHECK_AGAIN, O.CONFIRM_DONE, O.CONFIRM_NOT_DONE, O.ABANDON),
    R.ACCEPTED_UNTRACKED: (O.CONFIRM_DONE, O.CONFIRM_NOT_DONE, O.ABANDON),
    R.AUTHORIZATION_DENIED: (O.RETRY_WITH_NEW_CREDENTIAL, O.ABANDON),
    R.CREDENTIAL_MISSING: (O.RETRY_WITH_NEW_CREDENTIAL, O.ABANDON),
    R.UNCLEAR_WRITE: (
        O.RECONCILE,
        O.RESEND_SAME_KEY,
        O.CONFIRM_DONE,
        O.CONFIRM_NOT_DONE,
        O.SEND_NEW,
        O.ABANDON,
    ),
    R.CONFLICT: (O.RECONCILE, O.CONFIRM_DONE, O.CONFIRM_NOT_DONE, O.ABANDON),
    R.RECONCILIATION_CONFLICT: (
        O.RECONCILE,
        O.CONFIRM_DONE,
        O.CONFIRM_NOT_DONE,
        O.ABANDON,
    ),
    R.REPEATED_FAILURE: (O.CLOSE_CIRCUIT, O.ABANDON),
    R.APPROVAL_REQUIRED: (O.APPROVE, O.REJECT),
    R.REQUESTED: (O.REJECT,),
    R.EGRESS_REFUSED: (O.CHECK_AGAIN, O.ABANDON),
    R.INTEGRATION_FAILURE: (O.CHECK_AGAIN, O.ABANDON),
}
"""Every option a reason may offer, least effect first (interface.md, "Escalations")."""

EXECUTED = frozenset(
    {
        O.EXTEND,
        O.HOLD,
        O.CHECK_AGAIN,
        O.TREAT_AS,
        O.CONFIRM_DONE,
        O.CONFIRM_NOT_DONE,
        O.USE_UNVALIDATED_RESULT,
        O.CANCEL_AT_PROVIDER,
        O.REBIND,
        O.ABANDON,
        O.APPROVE,
        O.REJECT,
    }
)
"""Options this version carries out; nothing else is ever offered."""

TREATABLE = ("waiting", "blocked", "failed", "cancelled")
"""What `treat_as` may say of a word; never `succeeded`."""

LONGEST_HOLD = 86_400_000
DEFAULT_HOLD = 900_000


@dataclass(frozen=True, slots=True)
class Offer:
    """One option of one case: what it does, in words with its cost."""

    option: Option
    label: str
    effect: str
    parameters: Mapping[str, object]


def offers(
    op: Operation,
    reason: Reason,
    contract: Contract | None,
    *,
    contract_changed: bool = False,
) -> tuple[Offer, ...]:
    """The options the reason fixes, less what the contract or the facts rule out.

    `contract` is the one in force now; without it only what needs none is offered.
    `contract_changed` says that it differs from the one the operation stopped under.
    """
    action = contract.action(op.action) if contract is not None else None
    return tuple(
        _offer(op, option, action)
        for option in OPTIONS[reason]
        if option in EXECUTED
        and _possible(op, reason, option, contract, action, contract_changed)
    )


def has_handle(op: Operation) -> bool:
    """Whether the provider took the job and we can ask about it."""
    return op.kind is Kind.JOB and op.accepted_at is not None


def may_send_again(op: Operation) -> bool:
    """Whether the action's own request certainly left no effect."""
    return op.request_class is RequestClass.READ or op.certainty in (
        Certainty.NOT_SENT,
        Certainty.NOT_APPLIED,
    )


def resumable(op: Operation) -> bool:
    """Whether the step that stopped can go on without the risk of a second effect."""
    return has_handle(op) or may_send_again(op)


def _possible(
    op: Operation,
    reason: Reason,
    option: Option,
    contract: Contract | None,
    action: Action | None,
    contract_changed: bool,
) -> bool:
    match option:
        case O.EXTEND:
            return resumable(op) and op.extensions.left > 0 and isinstance(action, Job)
        case O.CHECK_AGAIN if reason in (R.EGRESS_REFUSED, R.INTEGRATION_FAILURE):
            return resumable(op) and contract_changed
        case O.CHECK_AGAIN | O.HOLD:
            return resumable(op)
        case O.TREAT_AS:
            return has_handle(op) and op.provider_state is not None
        case O.CANCEL_AT_PROVIDER:
            return has_handle(op) and isinstance(action, Job) and action.cancel is not None
        case O.REBIND:
            return (
                contract is not None
                and action is not None
                and action.binding != op.binding
                and contract.account.get("id", "default") == op.account
                and resumable(op)
            )
        case O.CONFIRM_NOT_DONE:
            return not has_handle(op) or reason is R.NOT_FOUND
        case _:
            return True


def _offer(op: Operation, option: Option, action: Action | None) -> Offer:
    label, effect, parameters = _words(op, option, action)
    return Offer(option, label, effect, parameters)


def _words(
    op: Operation, option: Option, action: Action | None
) -> tuple[str, str, Mapping[str, object]]:
    job = action if isinstance(action, Job) else None
    match option:
        case O.EXTEND:
            by = job.limits.extension.by if job else 0
            requests = job.limits.extension.status_requests if job else 0
            return (
                f"extend by {length(by)} with {requests} more status requests",
                f"the job is observed again; {op.extensions.left} of {op.extensions.max} left",
                {"minutes": by / 60_000, "requests": requests},
            )
        case O.HOLD:
            return (
                "wait, then look once more",
                "one request at the time you name, within 24 hours",
                {"until": f"default in {length(DEFAULT_HOLD)}"},
            )
        case O.CHECK_AGAIN:
            return ("look once more", "one request now; nothing else changes", {})
        case O.TREAT_AS:
            return (
                f'count "{inert(op.provider_state or "", 60)}" for this job as a class you name',
                "inside the existing deadline; add the word to the contract to keep it",
                {"as": list(TREATABLE)},
            )
        case O.CANCEL_AT_PROVIDER:
            loss = job.cancel.consequence if job and job.cancel else None
            return ("cancel at provider", loss or "the provider is asked to stop the job", {})
        case O.REBIND:
            return (
                "go on under the contract as it is now",
                "the job is observed at the addresses of the present contract",
                {},
            )
        case O.USE_UNVALIDATED_RESULT:
            return (
                "use the result although required fields are missing",
                "the job counts as succeeded, marked as not validated",
                {},
            )
        case O.CONFIRM_DONE:
            return (
                "mark as done with the provider's id",
                "you looked at the provider and it is there; no request",
                {"reference": "the provider's id"},
            )
        case O.CONFIRM_NOT_DONE:
            return (
                "mark as not done",
                "you looked at the provider and nothing is there; no request",
                {},
            )
        case O.APPROVE:
            return ("approve", "the stored request is sent, exactly as shown", {})
        case O.REJECT:
            return ("reject", "nothing is sent", {})
        case _:
            return ("abandon", "nothing more is sent; what runs at the provider goes on", {})


# --- the case text --------------------------------------------------------------------------

URGENT = frozenset(
    {R.UNCLEAR_WRITE, R.CONFLICT, R.RECONCILIATION_CONFLICT, R.ACCEPTED_UNTRACKED}
)


def urgency(reason: Reason) -> str:
    """`now` where money may be in doubt or an agent waits for approval, else `today`."""
    return "now" if reason in URGENT or reason is R.APPROVAL_REQUIRED else "today"


def case_text(
    op: Operation,
    reason: Reason,
    offered: tuple[Offer, ...],
    now: int,
    *,
    console: str | None = None,
    sent_as: str | None = None,
    lookup: bool = False,
    evidence: str | None = None,
) -> str:
    """The whole question, one labelled line per fact; lines that do not apply are left out.

    `sent_as` is method and path of the action's request; `evidence` is what came in late.
    """
    job = has_handle(op) or (op.kind is Kind.JOB and may_send_again(op))
    name = inert(op.label or f"{op.provider}.{op.action}", 120)
    lines = [
        f"External {'job' if job else 'write'} needs a decision",
        f"Operation: {name} ({op.id})",
    ]
    if op.purpose:
        lines.append(f'For: "{inert(op.purpose, 200)}" (agent\'s words)')
    if op.provider_job is not None:
        lines.append(f"Provider job: {inert(op.provider_job, 120)}")
    if job and op.provider_state is not None:
        lines.append(f"Last state: {inert(op.provider_state, 120)}")
    if not job:
        lines += _write_lines(op, sent_as, lookup)
    lines.append(f"Elapsed time: {length(now - (op.sent_at or op.created_at))}")
    if has_handle(op):
        used, most = op.status_requests.used, op.status_requests.max
        lines.append(f"Status requests: {used} of {most}")
    if op.http_status is not None and op.http_at is not None:
        lines.append(f"Last HTTP result: {op.http_status} at {_minute(op.http_at)} UTC")
    if evidence is not None:
        lines.append(f"New evidence: {inert(evidence, 200)}")
    lines.append(f"Stopped because: {reason}")
    useful = f"; useful until {_minute(op.useful_until)}Z" if op.useful_until else ""
    lines.append(f"If nobody decides: nothing is sent{useful}")
    lines.append(f"Safe options: {', '.join(offer.label for offer in offered)}")
    if console is not None:
        lines.append(f"Look there: {inert(console, 300)}")
    return "\n".join(lines)


def _write_lines(op: Operation, sent_as: str | None, lookup: bool) -> list[str]:
    lines: list[str] = []
    if op.sent_at is not None and op.attempts.used:
        times = {1: "once", 2: "twice"}.get(op.attempts.used, f"{op.attempts.used} times")
        what = f", {sent_as}" if sent_as else ""
        lines.append(f"Sent: {times}, {_second(op.sent_at)}Z{what}, account {op.account}")
    elif op.approve_by is None:
        lines.append("Sent: never")
    if op.sent_at is not None and op.attempts.used:
        answer = (
            f"{op.http_status}"
            if op.answered and op.http_status is not None
            else "none (the request may have arrived)"
        )
        lines.append(f"Answer: {answer}")
        lines.append(f"Lookup: {'the contract declares one' if lookup else 'none declared'}")
        if op.wire_key is None:
            lines.append("Key: none, the provider cannot recognise a repetition")
        else:
            lines.append("Key: yes, sent with the request")
    return lines


def length(milliseconds: int) -> str:
    """A length of time in words: `40 minutes`, `2 hours 5 minutes`, `35 seconds`."""
    seconds = max(0, round(milliseconds / 1_000))
    parts: list[str] = []
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count != 1 else ''}")
    return " ".join(parts[:2]) or "0 seconds"


def _minute(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).strftime("%H:%M")


def _second(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).strftime("%H:%M:%S")
