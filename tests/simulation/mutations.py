"""Deliberate bugs: each breaks one promise, and the simulation has to find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import sqlalchemy as sa

from forbear.rules import admission, pacing, reconciliation, signals
from forbear.rules.model import Budget, Certainty, Kind, Step
from forbear.rules.signals import Signal
from forbear.server import upstream
from forbear.storage import audit, authority, deciding, late, ledger, register, reserving
from forbear.storage import writer as writing
from forbear.storage.ledger import Ledger
from forbear.storage.outcomes import evidence_of, outcome_of
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts
from forbear.storage.transitions import Ids, apply, must_load
from forbear.tools.drafts import Drafter

patched = mock.patch.object


def _reserves(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Reserved)


@contextmanager
def _send_before_commit() -> Iterator[None]:
    """A permit is handed out, and its reservation is never committed."""
    write = writing.FileWriter._write

    def undone(connection: sa.Connection, real: writing.Unit) -> Any:
        value = real.run(connection)
        if _reserves(value):
            connection.exec_driver_sql("ROLLBACK TO unit")
        return value

    def early(self: writing.FileWriter, units: Sequence[writing.Unit]) -> list[writing.Outcome]:
        return write(self, [replace(one, run=partial(undone, real=one)) for one in units])

    with patched(writing.FileWriter, "_write", early):
        yield


def _lease_over(self: Ledger, op: Any, now: Any) -> bool:
    return True


def _dropped(connection: sa.Connection, came: late.Late, *rest: Any) -> Any:
    return must_load(connection, came.reserved.operation.id)


@contextmanager
def _fence_ignored() -> Iterator[None]:
    """Whoever comes back late judges the operation as if it were still its own."""

    def settle(
        connection: sa.Connection, came: late.Late, judge: late.Judge, now: int, ids: Ids
    ) -> Any:
        reserved, code = came.reserved, audit.Code.LATE_EVIDENCE
        facts = evidence_of(reserved.operation, came.reply, came.signal)
        connection.execute(
            sa.update(attempts)
            .where(attempts.c.id == reserved.permit.attempt_id)
            .values(late=True, outcome=outcome_of(came.reply), **facts)
        )
        op = must_load(connection, reserved.operation.id)
        verdict = judge(connection, op, reserved.holding, came.signal, now)
        return apply(connection, op, verdict, code, now, ids, holding=reserved.holding)

    with patched(late, "settle", settle):
        yield


def _sent(self: upstream._Exchange) -> bool:
    """By what came back, in place of what left."""
    return self.status is not None


def _as_refused(read: Callable[..., Any]) -> Callable[..., Any]:
    def reading(*args: Any) -> Any:
        signal = read(*args)
        unknown = signal.certainty is Certainty.MAYBE_APPLIED
        return replace(signal, certainty=Certainty.NOT_SENT) if unknown else signal

    return reading


def _crash_is_not_sent(made: Callable[..., Any]) -> Callable[..., Any]:
    def signal(meaning: Any, certainty: Any, **more: Any) -> Any:
        return made(meaning, Certainty.NOT_SENT, **more)

    return signal


def _without_slot(take: Callable[..., Any]) -> Callable[..., Any]:
    def taking(c: Any, name: Any, admitted: Any, op: Any, host: Any, now: int, until: int) -> Any:
        return take(c, name, admitted, op, host, now, now)

    return taking


def _without_key(request_for: Callable[..., Any]) -> Callable[..., Any]:
    def rendering(connection: Any, op: Any, *rest: Any) -> Any:
        request = request_for(connection, op, *rest)
        if op.attempts.used == 0:
            return request
        kept = (pair for pair in request.headers if pair[0] != "Idempotency-Key")
        return replace(request, headers=tuple(kept))

    return rendering


def _spent(self: Budget) -> bool:
    return self.used > self.max


def _left(self: Budget) -> int:
    return max(0, self.max - self.used + 1)


def _no_end(op: Any, now: int) -> None:
    return None


def _approved(admit: Callable[..., Any]) -> Callable[..., Any]:
    def admitting(op: Any, *rest: Any, **more: Any) -> Any:
        free = op if op.approve_by is None else replace(op, approve_by=None, next_at=1)
        return admit(free, *rest, **more)

    return admitting


def _absent_at_once(empty: Callable[..., Any]) -> Callable[..., Any]:
    def judged(tried: Any, lookup: Any, search: Any, **more: Any) -> Any:
        return empty(tried, replace(lookup, settle=0), search, **more)

    return judged


def _bound_to_its_job(consume: Callable[..., bool]) -> Callable[..., bool]:
    def consuming(connection: sa.Connection, op: Any, *rest: Any) -> bool:
        return consume(connection, replace(op, parent_id=None), *rest)

    return consuming


def _by_wall(search: reconciliation.Search, tried: Any) -> int:
    return 0 if search.first_empty is None else int(tried.now - search.first_empty)


def _any_late(op: Any, asked: Any, *rest: Any) -> Any:
    return reconciliation.found_late(op, replace(asked, step=Step.SEND), *rest)


def _job_again(self: Drafter, op: Any, holding: Any, action: Any, job: Any) -> Any:
    return self.repetition(replace(op, kind=Kind.JOB), holding)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug, by a name and in words."""

    name: str
    what: str
    apply: Callable[[], AbstractContextManager[Any]]


def _of(place: Any, name: str, new: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patched(place, name, new)


MUTATIONS = (
    Mutation("send_before_commit", "a permit before its reservation", _send_before_commit),
    Mutation(
        "lease_ignored", "a living owner loses its attempt", _of(Ledger, "_lease_over", _lease_over)
    ),
    Mutation("fence_ignored", "a late owner decides", _fence_ignored),
    Mutation("late_dropped", "late evidence is thrown away", _of(late, "settle", _dropped)),
    Mutation(
        "sent_by_answer",
        "no answer counts as not sent",
        _of(upstream._Exchange, "sent", property(_sent)),
    ),
    Mutation(
        "unclear_resent",
        "an unclear write is sent again",
        lambda: patched(signals, "read", _as_refused(signals.read)),
    ),
    Mutation(
        "crash_resent",
        "what a crash left open is sent again",
        lambda: mock.patch("forbear.storage.ledger.Signal", _crash_is_not_sent(Signal)),
    ),
    Mutation(
        "slot_forgotten",
        "a request takes no slot",
        lambda: patched(register, "take", _without_slot(register.take)),
    ),
    Mutation(
        "no_key_on_resend",
        "a repetition goes without its key",
        lambda: patched(reserving, "request_for", _without_key(reserving.request_for)),
    ),
    Mutation(
        "budget_off_by_one", "a maximum of 3 allows 4", _of(Budget, "spent", property(_spent))
    ),
    Mutation("pause_ignored", "a pause stops nothing", _of(ledger, "paused", lambda *_: None)),
    Mutation(
        "decided_twice",
        "a closed case can be decided again",
        _of(deciding, "_not_decidable", lambda *_: None),
    ),
    Mutation(
        "send_by_ignored",
        "a permit has no end",
        _of(upstream._Exchange, "check_time", lambda _: None),
    ),
    Mutation("deadline_ignored", "an operation has no end", _of(admission, "overdue", _no_end)),
    Mutation(
        "approval_ignored",
        "nobody is asked before",
        lambda: patched(admission, "admit", _approved(admission.admit)),
    ),
    Mutation(
        "absence_at_once",
        "one empty lookup proves absence",
        lambda: patched(reconciliation, "_empty", _absent_at_once(reconciliation._empty)),
    ),
    Mutation(
        "rate_ignored", "requests leave as fast as they can", _of(pacing, "pace", lambda _: 1)
    ),
    Mutation(
        "settled_by_wall",
        "a clock set forward proves absence",
        _of(reconciliation, "_since_first", _by_wall),
    ),
    Mutation(
        "late_lookup",
        "a late lookup that found nothing is a success",
        _of(late, "found_late", _any_late),
    ),
    Mutation(
        "cancel_refused",
        "a decided cancellation is taken for another",
        lambda: patched(authority, "consume", _bound_to_its_job(authority.consume)),
    ),
    Mutation(
        "cancel_submits",
        "a cancellation sent anew submits its job",
        _of(Drafter, "_follow_up_again", _job_again),
    ),
)
"""The last four were bugs of Forbear that the simulation found."""

FOUND_BY = {
    "send_before_commit": 2,
    "lease_ignored": 7,
    "fence_ignored": 163,
    "late_dropped": 281,
    "sent_by_answer": 4,
    "unclear_resent": 9,
    "crash_resent": 58,
    "slot_forgotten": 11,
    "no_key_on_resend": 4,
    "budget_off_by_one": 3,
    "pause_ignored": 1,
    "decided_twice": 25,
    "send_by_ignored": 26,
    "late_lookup": 23070,
}
"""A seed that found each. What changes the order of reads and writes changes what a seed does, so
the next ones are tried where it finds nothing any more."""
