"""Facts for a person's eyes: the lines above the options of a case, and a record in full."""

from __future__ import annotations

import json
from dataclasses import dataclass

from forbear.rules.escalations import length
from forbear.rules.model import Case, Certainty, Operation
from forbear.rules.ports import Outbound
from forbear.tools.record import Record
from forbear.tools.texts import reason_in_words
from forbear.tools.untrusted import told

MOST_LINES = 9
"""Lines above the options: what a tired person reads."""

MOST_RESULT = 2_000
"""Characters of a result on its operation's page; `forbear show` has all of it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled fact: words, or a time in epoch ms, or an address to look at."""

    label: str
    text: str = ""
    at: int | None = None
    link: str | None = None


# --- a case -----------------------------------------------------------------------------------


def case_lines(
    record: Record, case: Case, usual: str, request: Outbound | None = None
) -> list[Fact]:
    """What must be known to decide, in at most `MOST_LINES` lines.

    What the case text states is taken from there, as of the case's revision; how long it takes is
    as of now. `usual` says how long the action takes as a rule; `request` is the stored request of
    the action, named as long as nothing was sent.
    """
    op = record.operation
    told = _labelled(case.text)
    began = op.sent_at if op.sent_at is not None else op.created_at
    until = case.closed_at if case.closed_at is not None else record.as_of
    lines = [
        Fact("Why", _why(record, case, told)),
        Fact("The agent asks", _together(told, "Asked for", "Because", "Then")),
        Fact("Would send", _would_send(op, request)),
        *_known(told),
        Fact("Time", f"{length(until - began)} so far; {usual}"),
        Fact("Purpose", f"“{op.purpose}” (the agent's words)" if op.purpose else ""),
        Fact("If nobody decides", told.get("If nobody decides", "nothing is sent")),
    ]
    if record.console is not None:
        lines.append(Fact("Look there", record.console, link=safe_link(record.console)))
    return [line for line in lines if line.text][:MOST_LINES]


def _would_send(op: Operation, request: Outbound | None) -> str:
    """What an approval lets out: method and address without its query, and for which account."""
    if request is None or op.certainty is not Certainty.NOT_SENT:
        return ""
    return f"{request.method} {request.url.partition('?')[0]}, account {op.account}"


def _labelled(text: str) -> dict[str, str]:
    """The lines of a case text by their labels."""
    parts = (line.partition(": ") for line in text.splitlines())
    return {label: value for label, _, value in parts}


def safe_link(address: str) -> str | None:
    """An address that may be made a link; anything but http and https stays text."""
    return address if address.startswith(("https://", "http://")) else None


def _why(record: Record, case: Case, told: dict[str, str]) -> str:
    more = [told[label] for label in ("Shared", "New evidence") if label in told]
    return "; ".join([f"{reason_in_words(record)} ({case.reason})", *more])


def _known(told: dict[str, str]) -> list[Fact]:
    """What is known of the job, or of a write whose outcome is in question."""
    if "Sent" not in told:
        labels = ("Provider job", "Last state", "Status requests", "Last HTTP result")
        return [Fact("Known", _together(told, *labels))]
    answer = f"; answer: {told['Answer']}" if "Answer" in told else ""
    return [
        Fact("Sent", f"{told['Sent']}{answer}"),
        Fact("Lookup", told.get("Lookup", "")),
        Fact("Key", told.get("Key", "")),
    ]


def _together(told: dict[str, str], *labels: str) -> str:
    """Several lines of the case text as one."""
    return " · ".join(f"{label}: {told[label]}" for label in labels if label in told)


# --- a record ---------------------------------------------------------------------------------


def facts(record: Record) -> list[Fact]:
    """A record as labelled facts; those that say nothing are left out."""
    op = record.operation
    planned = op.next_at if op.lease_owner is None and op.approve_by is None else None
    source = str(op.delay_source).replace("_", " ") if op.delay_source is not None else ""
    found = [
        Fact("Asked for", at=op.created_at),
        Fact("Purpose", f"“{op.purpose}” (the agent's words)" if op.purpose else ""),
        Fact("Tasks", ", ".join(record.tasks)),
        Fact("Action", f"{op.provider}.{op.action}, a {op.kind} of class {op.request_class}"),
        Fact("Account", op.account),
        Fact("Waits for", str(op.waiting_for or "")),
        Fact("Next request", source and f"from {source}", at=planned),
        Fact("Usual end", at=record.usual_end if not op.final else None),
        Fact("Deadline", at=op.deadline_at if op.approve_by is None else None),
        Fact("To be approved before", at=op.approve_by),
        Fact("Useful until", at=op.useful_until),
        Fact("Provider's job", _job(op), at=op.observed_at if op.provider_job else None),
        Fact("Look there", record.console or "", link=safe_link(record.console or "")),
        Fact("Last answer", _answer(op), at=op.http_at if op.http_status is not None else None),
        Fact("Effect", str(op.certainty).replace("_", " ")),
        Fact("Failure", _json(op.failure)),
        Fact("Result", _result(op)),
        Fact("Notices", ", ".join(op.notices).replace("_", " ")),
        Fact("Allowed by", op.authorisation),
        Fact("Superseded by", op.superseded_by or ""),
        Fact("Part of", op.parent_id or ""),
        Fact("Agent's key", op.key or ""),
        Fact("Fingerprint", f"hmac-sha256:{op.intent}"),
        Fact("Last change", f"revision {op.revision}", at=op.updated_at),
    ]
    return [fact for fact in found if fact.text or fact.at is not None]


def budgets(op: Operation) -> list[tuple[str, str, str]]:
    """What is used of what is allowed; budgets that do not apply are left out."""
    counted = {
        "Status requests": op.status_requests,
        "Transport failures": op.transport_failures,
        "Rate limits": op.rate_limited,
        "Attempts": op.attempts,
        "Lookups": op.lookups,
        "Extensions": op.extensions,
    }
    rows = [(name, str(one.used), str(one.max)) for name, one in counted.items() if one.max]
    if op.wait.max:
        rows.append(("Time waited", length(op.wait.used), length(op.wait.max)))
    return rows


def _job(op: Operation) -> str:
    if op.provider_job is None:
        return ""
    return f"{told(op.provider_job)}{f', state {op.provider_state}' if op.provider_state else ''}"


def _answer(op: Operation) -> str:
    if op.http_status is None:
        return ""
    request = f", request {op.provider_request_id}" if op.provider_request_id else ""
    return f"HTTP {op.http_status}{request}"


def _result(op: Operation) -> str:
    result = op.result or {}
    if "inline" in result:
        inline = result["inline"]
        text = inline if isinstance(inline, str) else _json(inline)
        text = told(text)  # before it is cut: half an address is none
        return text if len(text) <= MOST_RESULT else f"{text[:MOST_RESULT]}…"
    if "file" in result:
        return f"{result.get('bytes')} bytes in {result['file']}"
    return told(_json(op.result))


def _json(value: object) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
