"""Why nothing was stored, in the words that the agent reads."""

from __future__ import annotations

from typing import assert_never

from forbear.rules.breaker import Tripped
from forbear.rules.contract import Call
from forbear.rules.model import Refusal
from forbear.rules.sameness import Duplicate, KeyConflict
from forbear.rules.taskbudget import TaskFull
from forbear.storage.accepting import NotAccepted
from forbear.storage.brakes import COPY, Paused
from forbear.storage.caps import ScopeFull, WalkOver
from forbear.storage.intents import EndedTask
from forbear.storage.transitions import Holding
from forbear.tools import catalogue, refusals


def because(outcome: NotAccepted, holding: Holding, now: int) -> Refusal:
    """The refusal that an outcome of `Ledger.accept` means."""
    match outcome:
        case Paused(target) if target == COPY:
            return refusals.copied()
        case Paused(target):
            return refusals.paused(target)
        case EndedTask(task, at):
            return refusals.task_ended(task, at, now)
        case WalkOver(items):
            return _walk_over(holding, items)
        case KeyConflict(known):
            return refusals.key_conflict(known.id)
        case Duplicate(known, own, keyed):
            shown = known.id if own else None
            return refusals.possible_duplicate(
                shown, known.state, known.created_at, now, known.kind, keyed=keyed
            )
        case Tripped(_, code, times, until):
            return refusals.circuit_open(times, code, until, now)
        case TaskFull(task, what, used, most):
            return refusals.task_full(task, what, used, most)
        case ScopeFull(scope, waiting, first_at):
            return refusals.scope_full(scope, waiting, first_at, now)
        case _:
            assert_never(outcome)


def _walk_over(holding: Holding, items: int) -> Refusal:
    if not isinstance(holding.action, Call):
        raise TypeError(f"{holding.action.name} is no call")
    return catalogue.use_one_call(holding.contract, holding.action, items)
