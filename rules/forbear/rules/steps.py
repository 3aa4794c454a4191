"""Which request of a contract an operation's next step is."""

from __future__ import annotations

from forbear.rules.contract import Action, Job, Request
from forbear.rules.model import Kind, Operation, Step


def request_of(op: Operation, action: Action) -> Request:
    """The contract's request for `op.step`.

    Raises:
        LookupError: the contract no longer has it.
    """
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
