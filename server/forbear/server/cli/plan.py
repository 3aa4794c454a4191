"""An operation and its case as a plan: what was sent, what is known, and what each option does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forbear.server.cli.terminal import say

if TYPE_CHECKING:
    from forbear.rules.model import Case, Operation
    from forbear.rules.ports import Outbound
    from forbear.storage.queries import Exchange
    from forbear.tools.office import Raw


# --- what was sent, what is known -----------------------------------------------------------


def facts(
    op: Operation, request: Outbound | None, headers: Sequence[Sequence[str]] = ()
) -> list[str]:
    """The action's own request and what is known of its effect; `headers`: of the last answer."""
    from forbear.tools.times import clock_time
    from forbear.tools.untrusted import clip

    lines: list[str] = []
    if request is not None:
        address = request.url.partition("?")[0]
        times = {0: "not sent", 1: "once"}.get(op.attempts.used, f"{op.attempts.used} times")
        first = f", first at {clock_time(op.sent_at, op.updated_at)}" if op.sent_at else ""
        key = "with an idempotency key" if op.wire_key is not None else "no idempotency key"
        lines.append(f"sent: {request.method} {address}, {times}{first}, {key}")
        lines.append(f"fingerprint: hmac-sha256:{op.intent}")
    known = [_effect(op)]
    if op.http_status is not None and op.http_at is not None:
        at = clock_time(op.http_at, op.updated_at)
        named = f" (request {clip(op.provider_request_id, 60)})" if op.provider_request_id else ""
        known.append(f"last answer {op.http_status} at {at}{named}")
    lines.append(f"known: {', '.join(known)}")
    limits = [f"{name} {clip(value, 80)}" for name, value in headers if _limits(name)]
    if limits:
        lines.append(f"limits it stated: {', '.join(limits)}")
    return lines


def _limits(name: str) -> bool:
    plain = name.lower().replace("-", "")
    return plain == "retryafter" or "ratelimit" in plain


def _effect(op: Operation) -> str:
    from forbear.rules.model import Certainty, RequestClass

    if op.request_class is RequestClass.READ:
        return "a read, which has no effect"
    return {
        Certainty.NOT_SENT: "nothing has reached the provider",
        Certainty.NOT_APPLIED: "it certainly had no effect",
        Certainty.MAYBE_APPLIED: "it may have had its effect",
        Certainty.APPLIED: "the provider took it",
    }[op.certainty]


# --- a case ---------------------------------------------------------------------------------


def show_case(
    case: Case, op: Operation, now: int, *, only: str | None = None, commands: bool = True
) -> None:
    """A case as a person decides on it: the text, then each option with its command.

    With `only` just the option that is about to be decided.
    """
    from forbear.rules.escalations import length

    group = f", one of {case.group}" if case.group is not None else ""
    asked = f"asked {length(now - case.opened_at)} ago"
    say(f"Case {case.number} ({case.id}), {asked}{group}", "bold yellow")
    say(case.text)
    say()
    _options(case, op, only=only, commands=commands)


def _options(case: Case, op: Operation, *, only: str | None, commands: bool) -> None:
    """Each option with what it does, costs and leaves over, numbered as `forbear review` does."""
    from forbear.server.console.choices import choices

    for number, choice in enumerate(choices(case, op), 1):
        if only not in (None, choice.id):
            continue
        say(f"{f'{number}  ' if only is None else ''}{choice.label}: {choice.effect}", "bold")
        say(f"   cost: {choice.cost}")
        say(f"   then: {choice.afterwards}")
        if commands and only is None:
            say(f"   forbear decide {case.number} {choice.id}{_needed(choice.id)}", "cyan")


def _needed(option: str) -> str:
    return {
        "treat_as": " --as waiting|blocked|failed|cancelled",
        "confirm_done": " --reference ID",
        "hold": " [--until TIME]",
        "extend": " [--minutes N] [--requests N]",
    }.get(option, "")


# --- word for word --------------------------------------------------------------------------


def show_raw(op: Operation, raw: Raw) -> None:
    """Requests and answers word for word; the caller has recorded who looks, and why."""
    from forbear.tools.times import clock_time

    if raw.request is not None:
        say(f"{raw.request.method} {raw.request.url}", "bold")
        _message(raw.request.headers, raw.request.body or b"")
    for one in raw.exchanges:
        attempt = one.attempt
        at = clock_time(attempt.reserved_at, op.updated_at)
        came = f"answered {attempt.status}" if attempt.status is not None else attempt.outcome
        say()
        say(f"{attempt.number}  {attempt.step}, {at}, {came or 'no outcome yet'}", "bold")
        _message([(name, value) for name, value in one.headers], one.body)


def _message(headers: Sequence[tuple[str, str]], body: bytes) -> None:
    for name, value in headers:
        say(f"{name}: {value}", "dim")
    if body:
        say()
        say(_text(body) or f"({len(body)} bytes that are no text)")


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def raw_json(op: Operation, raw: Raw) -> dict[str, Any]:
    """The same for programs; a body that is no text is in base64."""
    request = raw.request
    return {
        "operation_id": op.id,
        "request": None
        if request is None
        else {
            "method": request.method,
            "url": request.url,
            "headers": [list(pair) for pair in request.headers],
            **_body(request.body or b""),
        },
        "attempts": [_exchange(one) for one in raw.exchanges],
    }


def _exchange(one: Exchange) -> dict[str, Any]:
    from forbear.tools.times import rfc3339

    attempt = one.attempt
    return {
        "id": attempt.id,
        "step": str(attempt.step),
        "number": attempt.number,
        "at": rfc3339(attempt.reserved_at),
        "outcome": attempt.outcome,
        "status": attempt.status,
        "headers": one.headers,
        **_body(one.body),
    }


def _body(body: bytes) -> dict[str, str]:
    import base64

    text = _text(body)
    return {"body_base64": base64.b64encode(body).decode()} if text is None else {"body": text}
