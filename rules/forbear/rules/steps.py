"""Which request of a contract an operation's next step is, and what that request needs."""

from __future__ import annotations

from urllib.parse import urlsplit

from forbear.rules.contract import Action, Contract, Idempotency, Job, Lookup, Request, Scope
from forbear.rules.facts import Facts, plain
from forbear.rules.model import Kind, Operation, Step


def request_of(op: Operation, action: Action) -> Request:
    """The contract's request for `op.step`.

    Raises:
        LookupError: the contract no longer has it.
    """
    if op.step is Step.LOOKUP:
        if action.lookup is None:
            raise LookupError(f"{action.name} declares no lookup")
        return action.lookup.request
    if not isinstance(action, Job):
        return action.send
    match op.kind:
        case Kind.RESULT:
            return action.results[op.result_name or "result"]
        case Kind.CANCEL:
            if action.cancel is None:
                raise LookupError(f"{action.name} documents no cancel")
            return action.cancel
        case _:
            return action.status if op.step is Step.STATUS else action.send


def lookup_of(op: Operation, action: Action) -> Lookup | None:
    """How an effect of `op` is found again. A result or a cancellation is not the action itself."""
    return action.lookup if op.kind in (Kind.JOB, Kind.CALL) else None


def key_of(op: Operation, action: Action) -> Idempotency | None:
    """How the provider recognises a repetition of `op` by its key, if it promised to."""
    return action.idempotency if op.kind in (Kind.JOB, Kind.CALL) else None


def key_honoured_until(op: Operation, action: Action) -> int | None:
    """When the provider forgets the key of `op`, which runs from the first permit; None if none."""
    promise = key_of(op, action)
    if promise is None or op.wire_key is None or op.sent_at is None:
        return None
    return op.sent_at + promise.window


def handles(job: Job) -> frozenset[str]:
    """What a status request needs of the submission's answer: `id`, `take.x`."""
    templates = (job.status.path, job.status.url, *(value for _, value in job.status.query))
    names = frozenset(name for one in templates if one is not None for name in one.names)
    return frozenset(name for name in names if name == "id" or name.startswith("take."))


def reachable(request: Request, op: Operation) -> bool:
    """Whether the provider's answers to `op` gave all that the address of `request` is made of."""
    addresses = (one for one in (request.path, request.url) if one is not None)
    names = (name for one in addresses for name in one.names)
    needed = (name for name in names if name == "id" or name.startswith(("take.", "result.")))
    return all(op.take.get(name.removeprefix("take.")) for name in needed)


def scopes_of(scopes: tuple[Scope, ...], action: str) -> tuple[Scope, ...]:
    """The scopes that an action counts in: all that name it, in the order of the contract."""
    named = tuple(one for one in scopes if "*" in one.actions or action in one.actions)
    return named or (Scope("account", "account"),)


def host_of(contract: Contract, request: Request, facts: Facts) -> str:
    """The host that a request goes to, lower case and with its port where that is stated."""
    stated = plain(request.url, facts) if request.url is not None else None
    return urlsplit(stated or contract.base_url).netloc.lower()
