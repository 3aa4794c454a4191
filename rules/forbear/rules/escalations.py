"""Questions to a person: which options each reason fixes, what they cost, and the case text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from forbear.rules.contract import Action, Contract, Effect, Job
from forbear.rules.inert import inert, told
from forbear.rules.model import (
    Certainty,
    Kind,
    Operation,
    Option,
    Reason,
    RequestClass,
    State,
    Step,
)
from forbear.rules.reconciliation import Search
from forbear.rules.steps import handles, key_honoured_until, lookup_of

OPTIONS: Mapping[Reason, tuple[Option, ...]] = {
    Reason.DEADLINE_EXCEEDED: (
        Option.EXTEND,
        Option.CHECK_AGAIN,
        Option.CANCEL_AT_PROVIDER,
        Option.ABANDON,
    ),
    Reason.USEFUL_UNTIL_PASSED: (
        Option.EXTEND,
        Option.CHECK_AGAIN,
        Option.CANCEL_AT_PROVIDER,
        Option.ABANDON,
    ),
    Reason.REQUEST_BUDGET_EXHAUSTED: (
        Option.EXTEND,
        Option.CHECK_AGAIN,
        Option.CANCEL_AT_PROVIDER,
        Option.ABANDON,
    ),
    Reason.TRANSPORT_BUDGET_EXHAUSTED: (Option.CHECK_AGAIN, Option.EXTEND, Option.ABANDON),
    Reason.PAST_PROVIDER_EXPIRY: (Option.CHECK_AGAIN, Option.EXTEND, Option.ABANDON),
    Reason.RATE_LIMITED: (Option.HOLD, Option.EXTEND, Option.ABANDON),
    Reason.SCOPE_EXHAUSTED: (Option.HOLD, Option.ABANDON),
    Reason.QUOTA_EXHAUSTED: (Option.HOLD, Option.ABANDON),
    Reason.PROVIDER_UNREACHABLE: (Option.HOLD, Option.ABANDON),
    Reason.UNKNOWN_STATE: (
        Option.TREAT_AS,
        Option.HOLD,
        Option.REBIND,
        Option.CANCEL_AT_PROVIDER,
        Option.ABANDON,
    ),
    Reason.BLOCKED_STATE: (
        Option.TREAT_AS,
        Option.HOLD,
        Option.REBIND,
        Option.CANCEL_AT_PROVIDER,
        Option.ABANDON,
    ),
    Reason.CONTRADICTORY_RESPONSE: (
        Option.CHECK_AGAIN,
        Option.REBIND,
        Option.USE_UNVALIDATED_RESULT,
        Option.ABANDON,
    ),
    Reason.INVALID_RESPONSE: (Option.CHECK_AGAIN, Option.REBIND, Option.ABANDON),
    Reason.BINDING_MISMATCH: (Option.REBIND, Option.ABANDON),
    Reason.CONTRACT_CHANGED: (Option.REBIND, Option.ABANDON),
    Reason.NOT_FOUND: (
        Option.CHECK_AGAIN,
        Option.CONFIRM_DONE,
        Option.CONFIRM_NOT_DONE,
        Option.ABANDON,
    ),
    Reason.ACCEPTED_UNTRACKED: (Option.CONFIRM_DONE, Option.CONFIRM_NOT_DONE, Option.ABANDON),
    Reason.AUTHORIZATION_DENIED: (Option.RETRY_WITH_NEW_CREDENTIAL, Option.ABANDON),
    Reason.CREDENTIAL_MISSING: (Option.RETRY_WITH_NEW_CREDENTIAL, Option.ABANDON),
    Reason.UNCLEAR_WRITE: (
        Option.RECONCILE,
        Option.RESEND_SAME_KEY,
        Option.CONFIRM_DONE,
        Option.CONFIRM_NOT_DONE,
        Option.SEND_NEW,
        Option.ABANDON,
    ),
    Reason.CONFLICT: (
        Option.RECONCILE,
        Option.CONFIRM_DONE,
        Option.CONFIRM_NOT_DONE,
        Option.ABANDON,
    ),
    Reason.RECONCILIATION_CONFLICT: (
        Option.RECONCILE,
        Option.CONFIRM_DONE,
        Option.CONFIRM_NOT_DONE,
        Option.ABANDON,
    ),
    Reason.REPEATED_FAILURE: (Option.CLOSE_CIRCUIT, Option.ABANDON),
    Reason.APPROVAL_REQUIRED: (Option.APPROVE, Option.REJECT),
    Reason.REQUESTED: (Option.REJECT,),
    Reason.EGRESS_REFUSED: (Option.CHECK_AGAIN, Option.ABANDON),
    Reason.INTEGRATION_FAILURE: (Option.CHECK_AGAIN, Option.ABANDON),
}
"""Every option a reason may offer, least effect first (interface.md, "Escalations")."""

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
    now: int,
    *,
    new_credential: bool = False,
    asked: Option | None = None,
) -> tuple[Offer, ...]:
    """The options the reason fixes, less what the contract or the facts rule out.

    `contract` is the one in force now; without it only what needs none is offered.
    `new_credential` says that the key is another one than the provider refused; `asked` is what
    an agent asks for in a case of its own (`requested`).
    """
    action = contract.action(op.action) if contract is not None else None
    fixed = OPTIONS[reason]
    if reason is Reason.REQUESTED and asked is not None:
        fixed = (asked, *fixed)
    return tuple(
        _offer(op, option, action)
        for option in fixed
        if (new_credential or option is not Option.RETRY_WITH_NEW_CREDENTIAL)
        and _possible(op, reason, option, contract, action, now)
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


def may_be_resubmitted(op: Operation) -> bool:
    """Whether the same action may be asked for anew on purpose: one that ended without success."""
    if op.kind not in (Kind.JOB, Kind.CALL) or op.superseded_by is not None or not op.known:
        return False
    if op.state is State.DISCARDED:
        return op.certainty is Certainty.MAYBE_APPLIED
    return op.state in (State.FAILED, State.CANCELLED, State.EXPIRED)


def may_go_beyond(op: Operation, action: Action | None) -> bool:
    """Whether one extension more than the contract allows may be given: one, and no further."""
    spent = op.extensions.used == op.extensions.max
    return isinstance(action, Job) and resumable(op) and spent


def resumable(op: Operation) -> bool:
    """Whether the step that stopped can go on without the risk of a second effect."""
    return has_handle(op) or may_send_again(op)


SESSION = 28_800_000
"""The longest session grant, ms (behaviour.md, section 7)."""


def _session(op: Operation, action: Action | None) -> bool:
    """Whether approving `op` approves a session of its client and not this request alone."""
    if action is None or op.kind not in (Kind.JOB, Kind.CALL) or op.step is not Step.SEND:
        return False
    return action.send.approval.mode == "session" and op.client is not None


def _possible(
    op: Operation,
    reason: Reason,
    option: Option,
    contract: Contract | None,
    action: Action | None,
    now: int,
) -> bool:
    match option:
        case Option.RECONCILE:
            return action is not None and lookup_of(op, action) is not None and not has_handle(op)
        case Option.RESEND_SAME_KEY:
            until = key_honoured_until(op, action) if action is not None else None
            return until is not None and now < until
        case Option.EXTEND:
            return resumable(op) and op.extensions.left > 0 and isinstance(action, Job)
        case Option.CHECK_AGAIN if reason in (Reason.EGRESS_REFUSED, Reason.INTEGRATION_FAILURE):
            return resumable(op) and action is not None and action.section != op.section
        case Option.HOLD if reason is Reason.PROVIDER_UNREACHABLE:
            return True
        case Option.ABANDON if reason is Reason.PROVIDER_UNREACHABLE:
            return not op.final
        case Option.CHECK_AGAIN | Option.HOLD | Option.RETRY_WITH_NEW_CREDENTIAL:
            return resumable(op)
        case Option.TREAT_AS:
            return has_handle(op) and op.provider_state is not None
        case Option.CANCEL_AT_PROVIDER:
            cancels = isinstance(action, Job) and action.cancel is not None
            return has_handle(op) and op.known and cancels
        case Option.REBIND:
            return _rebindable(op, reason, contract, action)
        case Option.CONFIRM_DONE if op.kind is Kind.JOB and isinstance(action, Job):
            return handles(action) <= {"id"} | {f"take.{name}" for name in op.take}
        case Option.SEND_NEW:
            # What can still be looked up is looked up first (requirement E09).
            looks = action is not None and lookup_of(op, action) is not None
            anew = action is not None and op.known and not has_handle(op)
            return anew and (not looks or op.lookups.spent)
        case Option.RESUBMIT:
            return action is not None and may_be_resubmitted(op)
        case Option.CONFIRM_NOT_DONE:
            return not has_handle(op) or reason is Reason.NOT_FOUND
        case _:
            return True


def _rebindable(
    op: Operation, reason: Reason, contract: Contract | None, action: Action | None
) -> bool:
    """Whether the operation can go on under the contract in force.

    After `contract_changed` also where that is the old one again: a file that was broken for a
    while must not cost the job. What was not sent goes on only where its stored request is still
    the one that the contract would make.
    """
    if contract is None or action is None or contract.account.get("id", "default") != op.account:
        return False
    if not has_handle(op):
        unsent = reason is Reason.CONTRACT_CHANGED and may_send_again(op)
        return unsent and action.binding == op.binding
    differs = (action.binding, action.section) != (op.binding, op.section)
    return differs or reason is Reason.CONTRACT_CHANGED


def _offer(op: Operation, option: Option, action: Action | None) -> Offer:
    label, effect, parameters = wording(op, option, action)
    return Offer(option, label, effect, parameters)


def wording(
    op: Operation, option: Option, action: Action | None
) -> tuple[str, str, Mapping[str, object]]:
    """Label, effect and parameters of an option, as people read them before they choose."""
    job = action if isinstance(action, Job) else None
    match option:
        case Option.EXTEND:
            by = job.limits.extension.by if job else 0
            requests = job.limits.extension.status_requests if job else 0
            return (
                f"extend by {length(by)} with {requests} more status requests",
                f"the job is observed again; {op.extensions.left} of {op.extensions.max} left",
                {"minutes": by / 60_000, "requests": requests},
            )
        case Option.HOLD:
            return (
                "look once more at a time you name",
                "one request then; within 24 hours",
                {"until": f"default: the provider's known reset, else {length(DEFAULT_HOLD)}"},
            )
        case Option.CHECK_AGAIN:
            return ("look once more", "one request now; nothing else changes", {})
        case Option.TREAT_AS:
            return (
                f'count "{inert(op.provider_state or "", 60)}" for this job as a class you name',
                "inside the existing deadline; add the word to the contract to keep it",
                {"as": list(TREATABLE)},
            )
        case Option.CANCEL_AT_PROVIDER:
            loss = job.cancel.consequence if job and job.cancel else None
            return ("cancel at provider", loss or "the provider is asked to stop the job", {})
        case Option.REBIND:
            return (
                "go on under the contract as it is now",
                "the job is observed at the addresses of the present contract",
                {},
            )
        case Option.USE_UNVALIDATED_RESULT:
            return (
                "use the result although required fields are missing",
                "the job counts as succeeded, marked as not validated",
                {},
            )
        case Option.CONFIRM_DONE:
            return (
                "mark as done with the provider's id",
                "you looked at the provider and it is there; no request",
                {"reference": "the provider's id"},
            )
        case Option.CONFIRM_NOT_DONE:
            return (
                "mark as not done",
                "you looked at the provider and nothing is there; no request",
                {},
            )
        case Option.RECONCILE:
            return ("look it up again", "up to 3 more lookups; never the write itself", {})
        case Option.RESEND_SAME_KEY:
            return (
                "resend with the same key",
                "one more request; the provider recognises the key and does it once",
                {},
            )
        case Option.RETRY_WITH_NEW_CREDENTIAL:
            return ("try once more with the new key", "one request with the key as it is now", {})
        case Option.SEND_NEW:
            return (
                "send a new one",
                "a SECOND effect is possible: the first may have been done; a new request with a "
                "new key is sent",
                {"confirm": "send_new"},
            )
        case Option.RESUBMIT:
            return (
                "submit it anew",
                "a SECOND effect is possible: a new operation with a new key is made of the "
                "stored request",
                {"confirm": "resubmit"},
            )
        case Option.CLOSE_CIRCUIT:
            return (
                "let the same request be tried again",
                "the failures so far no longer count; no request",
                {},
            )
        case Option.APPROVE if _session(op, action):
            return (
                "approve for this client's session",
                f"this client may use {op.provider}.{op.action} without asking until it closes, "
                f"at most {length(SESSION)}",
                {"until": f"default and at most: {length(SESSION)}"},
            )
        case Option.APPROVE:
            return ("approve", "the stored request is sent, and no other", {})
        case Option.REJECT:
            return ("reject", "nothing is sent", {})
        case _:
            return ("abandon", "nothing more is sent; what runs at the provider goes on", {})


# --- the case text --------------------------------------------------------------------------

URGENT = frozenset(
    {
        Reason.UNCLEAR_WRITE,
        Reason.CONFLICT,
        Reason.RECONCILIATION_CONFLICT,
        Reason.ACCEPTED_UNTRACKED,
    }
)


URGENCIES = ("note", "today", "now")
"""How soon a person should look, least first."""


def urgency(reason: Reason) -> str:
    """`now` where money may be in doubt or an agent waits for approval, else `today`.

    `note` where nothing waits for the answer: a breaker closes itself.
    """
    if reason is Reason.REPEATED_FAILURE:
        return "note"
    return "now" if reason in URGENT or reason is Reason.APPROVAL_REQUIRED else "today"


def case_text(
    op: Operation,
    reason: Reason,
    offered: tuple[Offer, ...],
    now: int,
    *,
    console: str | None = None,
    sent_as: str | None = None,
    action: Action | None = None,
    evidence: str | None = None,
    about: str | None = None,
    wish: Mapping[str, object] | None = None,
    asked_again: int | None = None,
    abandoned_at: int | None = None,
) -> str:
    """The whole question, one labelled line per fact; lines that do not apply are left out.

    `sent_as` is method and path of the action's request, `action` the contract's words on lookup
    and key; `evidence` is what came in late, `about` what the operation shares with others, `wish`
    what the agent asks for, `asked_again` when people are told again if nobody decides, and
    `abandoned_at` when the contract gives it up then.
    """
    job = op.request_class is RequestClass.READ or _is_safe_job(op)
    name = inert(op.label or f"{op.provider}.{op.action}", 120)
    lines = [
        f"External {'job' if job else 'write'} needs a decision",
        f"Operation: {name} ({op.id})",
    ]
    if op.purpose:
        lines.append(f'For: "{inert(op.purpose, 200)}" (agent\'s words)')
    if op.provider_job is not None:
        lines.append(f"Provider job: {told(op.provider_job, 120)}")
    if job and op.provider_state is not None:
        lines.append(f"Last state: {told(op.provider_state, 120)}")
    if not job:
        lines += _write_lines(op, sent_as, action, now)
    lines.append(f"Elapsed time: {length(now - (op.sent_at or op.created_at))}")
    if has_handle(op):
        used, most = op.status_requests.used, op.status_requests.max
        lines.append(f"Status requests: {used} of {most}")
    if op.http_status is not None and op.http_at is not None:
        lines.append(f"Last HTTP result: {op.http_status} at {_minute(op.http_at, now)} UTC")
    if about is not None:
        lines.append(f"Shared: {inert(about, 300)}")
    if wish is not None:
        lines += _wish_lines(op, wish, offered, action, now)
    if evidence is not None:
        lines.append(f"New evidence: {told(evidence, 200)}")
    lines.append(f"Stopped because: {reason}")
    then = _until(op, reason, now, asked_again, abandoned_at)
    lines.append(f"If nobody decides: {_undecided(op, reason)}{then}")
    lines.append(f"Safe options: {', '.join(offer.label for offer in offered)}")
    if console is not None:
        lines.append(f"Look there: {inert(console, 300)}")
    return "\n".join(lines)


def _is_safe_job(op: Operation) -> bool:
    """A job that the provider took, or whose submission certainly did nothing."""
    return has_handle(op) or (op.kind is Kind.JOB and may_send_again(op))


def _undecided(op: Operation, reason: Reason) -> str:
    """What goes on, or does not, while a question is open."""
    if op.final:
        return "it stays as it is"
    beside = reason is Reason.PROVIDER_UNREACHABLE
    if beside or (reason is Reason.REQUESTED and op.state is not State.ESCALATED):
        return "it goes on as before"
    return "nothing is sent"


def _until(
    op: Operation, reason: Reason, now: int, asked_again: int | None, abandoned_at: int | None
) -> str:
    """What time makes of an undecided case."""
    if op.approve_by is not None:
        return f"; discarded {_minute(min(op.approve_by, abandoned_at or op.approve_by), now)}Z"
    told = ""
    if op.useful_until is not None and not op.final:
        told = f"; useful until {_minute(op.useful_until, now)}Z"
    elif asked_again is not None:
        told = f"; asked again {_minute(asked_again, now)}Z"
    if abandoned_at is None:
        return told
    given_up = "question closed" if op.final or reason is Reason.REQUESTED else "abandoned"
    return f"{told}; {given_up} {_minute(abandoned_at, now)}Z"


_AGAIN = re.compile(r"^(If nobody decides: .*); asked again [0-9: -]+Z", re.MULTILINE)


def with_reminder(text: str, asked_again: int | None, now: int) -> str:
    """A case text whose next reminder is another one, or none; all else stays as it was shown."""
    then = "" if asked_again is None else f"; asked again {_minute(asked_again, now)}Z"
    return _AGAIN.sub(lambda found: found[1] + then, text)


def _wish_lines(
    op: Operation,
    wish: Mapping[str, object],
    offered: tuple[Offer, ...],
    action: Action | None,
    now: int,
) -> list[str]:
    """What an agent asks for, why in its words, and what would likely follow."""
    option = str(wish.get("option"))
    label = next((offer.label for offer in offered if str(offer.option) == option), option)
    given = cast(Mapping[str, object], wish.get("parameters") or {})
    parameters = ", ".join(f"{key} {value}" for key, value in given.items())
    lines = [f"Asked for: {label}{f' ({inert(parameters, 80)})' if parameters else ''}"]
    if wish.get("reason"):
        lines.append(f'Because: "{inert(str(wish["reason"]), 200)}" (agent\'s words)')
    follows = consequence(op, Option(option), action, now)
    if follows:
        lines.append(f"Then: {follows}")
    return lines


def consequence(op: Operation, option: Option, action: Action | None, now: int) -> str | None:
    """What would likely follow from an option, where the facts say more than its effect."""
    told: list[str] = []
    if option in (Option.EXTEND, Option.CHECK_AGAIN, Option.HOLD):
        if op.useful_until is not None and op.useful_until <= now:
            told.append(f"the result was useful until {_minute(op.useful_until, now)}Z only")
        if op.provider_expiry_at is not None and op.provider_expiry_at <= now:
            told.append("the provider's own time for it is over")
        if isinstance(action, Job) and action.status.effect is not Effect.READ:
            told.append(f"each check is {action.status.effect} at the provider")
    if option is Option.CANCEL_AT_PROVIDER and isinstance(action, Job) and action.cancel:
        told.append(action.cancel.consequence or "the work so far may be lost")
    if option in (Option.RESUBMIT, Option.SEND_NEW, Option.RESEND_SAME_KEY):
        until = key_honoured_until(op, action) if action is not None else None
        if until is not None and until <= now:
            told.append("the provider no longer recognises the first request by its key")
        if op.certainty in (Certainty.MAYBE_APPLIED, Certainty.APPLIED):
            told.append("the first one may have been done")
    return "; ".join(told) or None


def _write_lines(op: Operation, sent_as: str | None, action: Action | None, now: int) -> list[str]:
    lines: list[str] = []
    if op.sent_at is not None and op.attempts.used:
        times = {1: "once", 2: "twice"}.get(op.attempts.used, f"{op.attempts.used} times")
        what = f", {sent_as}" if sent_as else ""
        lines.append(f"Sent: {times}, {_second(op.sent_at)}Z{what}, account {op.account}")
    elif op.approve_by is None:
        lines.append(
            "Sent: perhaps, by the home that this one is a copy of" if op.sent else "Sent: never"
        )
    if op.sent_at is not None and op.attempts.used:
        answer = (
            f"{op.http_status}"
            if op.answered and op.http_status is not None
            else "none (the request may have arrived)"
        )
        lines.append(f"Answer: {answer}")
        lines.append(f"Lookup: {_lookup_line(op, action, now)}")
        lines.append(f"Key: {_key_line(op, action, now)}")
    return lines


def _lookup_line(op: Operation, action: Action | None, now: int) -> str:
    lookup = lookup_of(op, action) if action is not None else None
    if lookup is None:
        return "none declared"
    told = f"{op.lookups.used} of {op.lookups.max}"
    empty = Search.of(op).last_empty
    if empty is not None:
        told += f", last {_minute(empty, now)}Z, not found"
    elif op.lookups.used:
        told += ", no complete answer"
    proves = "that nothing happened" if lookup.absence_proves else "nothing"
    return f"{told}; absence proves {proves}"


def _key_line(op: Operation, action: Action | None, now: int) -> str:
    until = key_honoured_until(op, action) if action is not None else None
    if op.wire_key is None:
        return "none, the provider cannot recognise a repetition"
    if until is None:
        return "yes, sent with the request"
    if until <= now:
        return f"yes, but the provider honoured it only until {_minute(until, now)}Z"
    return f"yes, the provider honours it until {_minute(until, now)}Z"


def length(milliseconds: int) -> str:
    """A length of time in words: `40 minutes`, `2 hours 5 minutes`, `35 seconds`."""
    seconds = max(0, round(milliseconds / 1_000))
    parts: list[str] = []
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count != 1 else ''}")
    return " ".join(parts[:2]) or "0 seconds"


def _minute(at: int, now: int) -> str:
    """The time of day, with the date where it is another day than `now`."""
    moment, today = (datetime.fromtimestamp(ms / 1_000, UTC) for ms in (at, now))
    return moment.strftime("%H:%M" if moment.date() == today.date() else "%Y-%m-%d %H:%M")


def _second(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).strftime("%H:%M:%S")
