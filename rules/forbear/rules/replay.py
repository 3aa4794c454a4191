"""What would be concluded from an answer, offline: for `[[examples]]` and pasted samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from forbear.rules.contract import Action, Contract, Example, Job, Request
from forbear.rules.facts import Facts
from forbear.rules.ports import Reply
from forbear.rules.signals import Meaning, Signal, read

_NOW = 1_796_040_000_000
_AGES = (1_000, 3_600_000, 400 * 86_400_000)
"""Times since submission at which rules about age are tried; the first is the usual one."""
_REF, _KEY = "fb_0123456789abcdef", "0f4a6d6e-5c1e-4b8f-9d55-1c2f9e0b7a11"
"""Our reference and the provider's key: in the body of an example `{ref}` and `{key}` are they."""

FOUND = "found"
"""The conclusion from a page of a lookup that has our effect, with all that is taken of it."""

_WORDS = {
    Meaning.UNTRACKED: "accepted_untracked",
    Meaning.CONTRADICTORY: "contradictory_response",
    Meaning.INVALID: "invalid_response",
    Meaning.MISMATCH: "binding_mismatch",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An example from which something else is concluded than it says."""

    example: Example
    concluded: str


def conclude(
    contract: Contract, on: str, http: int, headers: Iterable[tuple[str, str]], body: bytes
) -> str:
    """The conclusion from one answer to the request `on`, a second after the submission.

    `on` is `jobs.NAME.submit`, `.status`, `.result`, `.results.NAME`, `.cancel`, `.lookup`,
    `calls.NAME` or `calls.NAME.lookup`. The answer is a job class (`waiting`, `succeeded`, …),
    `unknown_state`, `invalid_response`, `contradictory_response`, `binding_mismatch`, `accepted`,
    `accepted_untracked`, `found` for a lookup, or a meaning (`rate_limited`, `auth`, `done`, …).
    Our own id and arguments are not known here, so an echo of them is not compared.

    Raises ValueError if the contract has no such request.
    """
    return word(signal_of(contract, on, http, headers, body))


def signal_of(
    contract: Contract,
    on: str,
    http: int,
    headers: Iterable[tuple[str, str]],
    body: bytes,
    facts: Facts | None = None,
) -> Signal:
    """Everything that is read in one answer to the request `on`; as `conclude`.

    With `facts` of an operation, what it knows is compared too, at the usual age.
    """
    action, request = _find(contract, on)
    reply = _reply(contract, http, headers, body)
    if facts is None:
        return _read(contract, action, request, reply, _AGES[0])
    submitted = facts.submitted_at
    now = _NOW if submitted is None else submitted + _AGES[0]
    timed = replace(reply, started_at=now, ended_at=now)
    return read(timed, contract, action, request, facts, now)


def word(signal: Signal) -> str:
    """What a signal means, in the words of `conclude`."""
    page = signal.page
    if page is not None and not page.readable:
        return _WORDS[Meaning.INVALID]
    if page is not None and page.matches and all(page.matches):
        return FOUND
    return _WORDS.get(signal.meaning, signal.meaning.value)


def replay(contract: Contract) -> tuple[Mismatch, ...]:
    """Every example whose expectation does not come out at any age of the job."""
    return tuple(wrong for one in contract.examples if (wrong := _try(contract, one)))


def _try(contract: Contract, example: Example) -> Mismatch | None:
    try:
        action, request = _find(contract, example.on)
    except ValueError as error:
        return Mismatch(example, str(error))
    body = example.body.replace(b"{ref}", _REF.encode()).replace(b"{key}", _KEY.encode())
    reply = _reply(contract, example.http, example.headers, body)
    concluded = [word(_read(contract, action, request, reply, age)) for age in _AGES]
    return None if example.expect in concluded else Mismatch(example, concluded[0])


def _read(contract: Contract, action: Action, request: Request, reply: Reply, age: int) -> Signal:
    facts = Facts(
        arguments={},
        account=contract.account,
        ref=_REF,
        key=_KEY,
        submitted_at=_NOW - age,
        # So that a rule's `gone` reads as `gone`.
        terminal_seen=True,
    )
    return read(reply, contract, action, request, facts, _NOW)


def _reply(contract: Contract, http: int, headers: Iterable[tuple[str, str]], body: bytes) -> Reply:
    reply = Reply(
        sent=True,
        complete=True,
        started_at=_NOW,
        ended_at=_NOW,
        status=http,
        headers=tuple(headers),
        body=body,
        url=contract.base_url + "/",
    )
    if reply.header("Content-Length") is not None:
        return reply
    # A pasted body is whole; without a length it would count as possibly cut.
    return replace(reply, headers=(*reply.headers, ("Content-Length", str(len(body)))))


def _find(contract: Contract, on: str) -> tuple[Action, Request]:
    group, _, rest = on.partition(".")
    name, _, part = rest.partition(".")
    actions = {"jobs": contract.jobs, "calls": contract.calls}.get(group, {})
    action = actions.get(name)
    if action is None:
        known = [f"jobs.{one}" for one in contract.jobs] + [
            f"calls.{one}" for one in contract.calls
        ]
        raise ValueError(f"{on!r} names no request; there are {', '.join(known)}")
    request = _part(action, part)
    if request is None:
        wanted = (
            part or "part named: write one of submit, status, result, cancel or lookup after it"
        )
        raise ValueError(f"{on!r}: {group}.{name} has no {wanted}")
    return action, request


def _part(action: Action, part: str) -> Request | None:
    if part == "lookup":
        return None if action.lookup is None else action.lookup.request
    if not isinstance(action, Job):
        return action.send if part in ("", "call") else None
    kind, _, name = part.partition(".")
    match kind:
        case "submit":
            return action.send
        case "status":
            return action.status
        case "cancel":
            return action.cancel
        case "result" | "results":
            return action.results.get(name or "result")
        case _:
            return None
