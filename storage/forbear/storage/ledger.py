"""The deep transactions: each is one plain function of a connection and stands or falls whole.

    accept    insert, join or refuse by the identity rules
    reserve   transaction 1: close what an owner left open, or admit and make a permit
    settle    transaction 2: the outcome of an attempt, always; the verdict, if the fence is ours
    decide    a person's option, bound to the case revision
    drop      end what has not been sent, or leave that wish to the open attempt
    recover   make the operations of dead owners due at once

Between the commit of `reserve` and the commit of `settle` an operation is uncertain: whoever finds
it there later closes the attempt as unknown and never repeats it on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy import Connection

from forbear.rules import admission, sameness
from forbear.rules.decisions import Wish
from forbear.rules.escalations import may_send_again
from forbear.rules.lifecycle import Event
from forbear.rules.model import (
    Attempt,
    Case,
    Certainty,
    Code,
    DelaySource,
    Operation,
    Option,
    Reason,
    Refusal,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.ports import Clock, Moment, Permit, Random, Reply
from forbear.rules.requests import RenderError
from forbear.rules.signals import Meaning, Signal
from forbear.rules.steps import request_of
from forbear.rules.taskbudget import USUAL, TaskLimits
from forbear.rules.verdicts import Verdict, after_attempt, stop, without_lookup
from forbear.storage import (
    accepting,
    announcing,
    asking,
    audit,
    authority,
    deciding,
    late,
    limits,
    queueing,
    register,
    reserving,
    retention,
    roster,
    tokens,
)
from forbear.storage.accepting import Accepted, Draft, NotAccepted
from forbear.storage.announcing import Telling
from forbear.storage.brakes import is_copy, paused
from forbear.storage.deciding import Decided
from forbear.storage.intents import judge, same_intent
from forbear.storage.liveness import Liveness
from forbear.storage.outcomes import (
    after_cancel,
    evidence_of,
    let_go,
    outcome_of,
    watched_already,
    with_pending,
    with_result,
    without_contract,
)
from forbear.storage.reserving import Reserved
from forbear.storage.retention import Term
from forbear.storage.schema import operations
from forbear.storage.tokens import TokenReserved
from forbear.storage.transitions import (
    Holding,
    apply,
    as_now,
    load,
    move_next,
    open_attempt,
)

STRANDED_AFTER = 60_000
"""How long an operation may be due without any living process that holds its binding, ms."""


class Ledger:
    """The transactions of one process on one store.

    Every method is a unit for the writer: it takes the connection of a running transaction, reads
    the clock inside it, and may be run again if nothing of it was committed.
    """

    def __init__(
        self, clock: Clock, random: Random, liveness: Liveness, task_limits: TaskLimits = USUAL
    ) -> None:
        self._clock = clock
        self._random = random
        self._liveness = liveness
        self._task_limits = task_limits
        self.ended = False
        """Nobody is left here who would send: nothing more is reserved."""

    @property
    def owner(self) -> str:
        return self._liveness.owner

    # --- accept -----------------------------------------------------------------------------

    def accept(
        self, connection: Connection, draft: Draft, holding: Holding
    ) -> Accepted | NotAccepted:
        """See `accepting.accept`."""
        now, ids = self._clock.now().wall, self._random
        return accepting.accept(connection, draft, holding, self._task_limits, now, ids)

    def begin(
        self, connection: Connection, draft: Draft, holding: Holding
    ) -> tuple[Accepted | NotAccepted, Reserved | TokenReserved | bool]:
        """`accept`, and `reserve` for what is new, which would be due at once."""
        accepted = self.accept(connection, draft, holding)
        if not isinstance(accepted, Accepted) or accepted.joined:
            return accepted, False
        op, now = accepted.operation, self._clock.now()
        if op.next_at is None or op.next_at > now.wall:
            return accepted, False
        step = self._next_request(connection, op, holding, now)
        after = step.operation if isinstance(step, Reserved) else as_now(connection, op)
        return replace(accepted, operation=after), step

    # --- transaction 1 ----------------------------------------------------------------------

    def reserve(
        self, connection: Connection, operation_id: str, holding: Holding | None
    ) -> Reserved | TokenReserved | bool:
        """Admit the next request of an operation, or do what is due instead.

        Returns a `Reserved` if a request may leave after the commit, a `TokenReserved` if that is
        to be the one for a token that it lacks, True if something changed and the operation should
        be looked at again now, False if there is nothing to do here.
        """
        now = self._clock.now()
        op = load(connection, operation_id)
        if op is None or op.final or op.next_at is None:
            return False
        left = open_attempt(connection, operation_id)
        if left is not None:
            return self._take_over(connection, op, left, holding, now)
        if op.next_at > now.wall:
            return False
        if holding is None or holding.action.binding != op.binding:
            return self._stranded(connection, op, holding, now.wall)
        return self._next_request(connection, op, holding, now)

    def _next_request(
        self, connection: Connection, op: Operation, holding: Holding, now: Moment
    ) -> Reserved | TokenReserved | bool:
        """See `reserve`: `op` is due, and nothing of it is out."""
        if self.ended:
            return False
        u = self._random.uniform() if op.step is Step.LOOKUP else 0.0
        unfound = without_lookup(op, holding.contract, holding.action, now.wall, u)
        if unfound is not None:
            code = audit.Code.RECONCILIATION_REQUIRED
            judged = with_pending(op, unfound, holding.action, now.wall)
            self._apply(connection, op, judged, code, now.wall, holding)
            return True
        parent = load(connection, op.parent_id) if op.parent_id is not None else None
        known = reserving.with_age_of_key(connection, op, now)
        extra = admission.is_extra(op)
        host = reserving.host_of(op, holding, parent)
        scopes = register.shared(connection, holding, op, host, now.wall, extra=extra)
        lacks_token = request_of(op, holding.action).authenticate and holding.lacks_token()
        token = None
        if lacks_token:
            token = tokens.wait_for(connection, op, holding, self._liveness, now)
        match admission.admit(
            known,
            holding.action,
            scopes,
            now.wall,
            credential_ready=register.credential_ready(connection, op, holding, now.wall),
            paused=paused(connection, op.provider, *(one.key for one in scopes)) is not None,
            token=token,
        ):
            case admission.Hold() as hold:
                if not roster.left_to_others(
                    connection, op, hold.waiting_for, self._liveness, now.wall
                ):
                    self._hold(connection, op, hold, now.wall)
                return False
            case Verdict() as verdict:
                ended = with_pending(op, verdict, holding.action, now.wall)
                self._apply(connection, op, ended, audit.Code.ENDED, now.wall, holding)
                return True
            case admission.Admit() as admitted if lacks_token:
                return self._fetch_token(connection, op, admitted, holding, now)
            case admission.Admit() as admitted:
                return self._permit(connection, op, admitted, holding, parent, now, host)

    def attend(
        self, connection: Connection, operation_id: str, holding: Holding | None
    ) -> tuple[Reserved | TokenReserved | bool, bool]:
        """`reserve`, and whether the operation is still due though nothing can be done for it here.

        In one transaction: what another makes due right afterwards is to be looked at again.
        """
        step = self.reserve(connection, operation_id, holding)
        op = load(connection, operation_id) if step is False else None
        return step, op is not None and op.is_due(self._clock.now().wall)

    def _fetch_token(
        self,
        connection: Connection,
        op: Operation,
        admitted: admission.Admit,
        holding: Holding,
        now: Moment,
    ) -> TokenReserved | bool:
        """Let the request for a token go first; `op` waits for it like any other that needs it."""
        reserved = tokens.reserve(connection, op, admitted, holding, now, self.owner, self._random)
        wait = admission.Hold(reserved.hold_until, WaitingFor.SLOT)
        match admission.awaiting_token(op, now.wall, wait):
            case admission.Hold() as hold:
                self._hold(connection, op, hold, now.wall)
            case Verdict() as verdict:
                self._apply(connection, op, verdict, audit.Code.ENDED, now.wall, holding)
        return reserved

    def settle_token(self, connection: Connection, reserved: TokenReserved, reply: Reply) -> None:
        """See `tokens.settle`."""
        tokens.settle(connection, reserved, reply, self._clock.now().wall, self._random)

    def _permit(
        self,
        connection: Connection,
        op: Operation,
        admitted: admission.Admit,
        holding: Holding,
        parent: Operation | None,
        now: Moment,
        host: str,
    ) -> Reserved | bool:
        try:
            request = reserving.request_for(connection, op, admitted, holding, parent)
        except RenderError as error:
            stopped = stop(Reason.INTEGRATION_FAILURE, why=str(error))
            self._apply(connection, op, stopped, audit.Code.ENDED, now.wall, holding)
            return True
        number = reserving.attempts_so_far(connection, op.id) + 1
        trigger = reserving.trigger_of(op, number)
        changes: dict[str, object] = {"fence": op.fence + 1, "next_at": now.wall + admitted.lease}
        if op.section != holding.action.section:
            changes["section"] = holding.action.section
            body = {"section": holding.action.section}
            audit.append(connection, op.id, now.wall, audit.Code.CONTRACT_NOTED, body)
        changes |= reserving.counted(op, admitted.step, now.wall)
        event = Event.ADMITTED if admitted.step is Step.SEND else Event.NOTED
        attempt_id = reserving.name_of(op, self.owner, now)
        if not authority.consume(connection, op, attempt_id, now.wall):
            stopped = stop(Reason.CONTRACT_CHANGED, why="what was decided is over or about another")
            self._apply(connection, op, stopped, audit.Code.ENDED, now.wall, holding)
            return True
        lease = {
            "lease_owner": self.owner,
            "lease_boot": now.boot_id,
            "lease_until": now.boot + admitted.lease,
        }
        after = self._apply(
            connection,
            op,
            Verdict(event, changes),
            audit.Code.RESERVED,
            now.wall,
            holding,
            lease=lease,
            body={
                "attempt": attempt_id,
                "number": number,
                "step": str(admitted.step),
                "trigger": str(trigger),
                "authorisation": op.authorisation,
                "send_by": admitted.send_by,
                "scope": [one.key for one in admitted.taken],
            },
        )
        hold_until = admitted.send_by + admitted.timeout + admission.SETTLING
        reserving.OPEN.run(
            connection,
            id=attempt_id,
            operation_id=op.id,
            number=number,
            step=str(admitted.step),
            trigger=str(trigger),
            authorisation=op.authorisation,
            owner=self.owner,
            fence=after.fence,
            scope=admitted.taken[0].key,
            reserved_at=now.wall,
            reserved_boot=now.boot,
            boot_id=now.boot_id,
            send_by=admitted.send_by,
            hold_until=hold_until,
            request_digest=reserving.digest_of(request, admitted.step, holding.action),
        )
        register.take(connection, attempt_id, admitted, op, host, now.wall, hold_until)
        permit = Permit(
            attempt_id=attempt_id,
            operation_id=op.id,
            fence=after.fence,
            send_by=admitted.send_by,
            send_by_boot=now.boot + (admitted.send_by - now.wall),
            boot_id=now.boot_id,
            provider=op.provider,
            account=op.account,
        )
        return Reserved(after, permit, request, holding, parent, host, number)

    def _hold(self, connection: Connection, op: Operation, hold: admission.Hold, now: int) -> None:
        until = max(hold.until, now + 1)
        if hold.queue is not None:
            queueing.hold(connection, hold.queue, op, now, firm=hold.firm)
        elif op.waiting_for in (WaitingFor.SCOPE, WaitingFor.SLOT):
            queueing.leave(connection, op.id, now)
        if op.waiting_for is hold.waiting_for and op.delay_source is hold.source:
            move_next(connection, op, until, now, hold.waiting_for)
            return
        changes = {
            "next_at": until,
            "waiting_for": hold.waiting_for,
            "delay": until - now,
            "delay_source": hold.source,
        }
        unreachable = hold.source is DelaySource.CIRCUIT_OPEN and op.state is State.QUEUED
        event = Event.POSTPONED if unreachable and may_send_again(op) else Event.HELD
        held = Verdict(event, changes)
        self._apply(connection, op, held, audit.Code.HELD, now, None)

    def _take_over(
        self,
        connection: Connection,
        op: Operation,
        attempt: Attempt,
        holding: Holding | None,
        now: Moment,
    ) -> bool:
        """An operation with an open attempt: leave it to its owner, or close it as unknown."""
        if not self._lease_over(op, now):
            if op.is_due(now.wall):
                left = max(1_000, (op.lease_until or now.boot) - now.boot)
                connection.execute(
                    sa.update(operations)
                    .where(operations.c.id == op.id)
                    .values(next_at=now.wall + left)
                )
            return False
        ours = holding is not None and holding.action.binding == op.binding
        fresh = op.next_at is not None and now.wall - op.next_at < STRANDED_AFTER
        if not ours and fresh and roster.holds(connection, op.binding, self._liveness, now.wall):
            return False  # who can read what comes of it takes it over
        told = {"certainty": str(Certainty.MAYBE_APPLIED), "note": "its owner is gone"}
        reserving.close(connection, attempt.id, now.wall, "unknown", told)
        signal = Signal(Meaning.NO_ANSWER, Certainty.MAYBE_APPLIED, fault="crash")
        verdict = self._verdict(connection, op, holding, signal, now.wall)
        action = holding.action if ours and holding is not None else None
        verdict = with_pending(op, verdict, action, now.wall)
        self._apply(
            connection,
            op,
            watched_already(connection, op, verdict),
            audit.Code.LOST,
            now.wall,
            holding,
            body={"attempt": attempt.id},
        )
        if holding is not None:
            for key, _ in register.keyed(holding, op):
                queueing.call_next(connection, key, now.wall, now.wall)
        return True

    def _lease_over(self, op: Operation, now: Moment) -> bool:
        if op.lease_owner is None or op.lease_boot != now.boot_id:
            return True
        if op.lease_until is not None and now.boot >= op.lease_until:
            return True
        return not self._liveness.alive(op.lease_owner)

    def _stranded(
        self, connection: Connection, op: Operation, holding: Holding | None, now: int
    ) -> bool:
        """What can be done for an operation that this process cannot run: only its end."""
        ended = admission.overdue(op, now)
        if ended is not None:
            self._apply(connection, op, ended, audit.Code.ENDED, now, holding)
            return True
        if op.next_at is None or now - op.next_at < STRANDED_AFTER:
            return False
        if roster.holds(connection, op.binding, self._liveness, now):
            return False
        reason = stop(Reason.CONTRACT_CHANGED)
        self._apply(connection, op, reason, audit.Code.STRANDED, now, holding)
        return True

    # --- transaction 2 ----------------------------------------------------------------------

    def settle(
        self,
        connection: Connection,
        reserved: Reserved,
        reply: Reply,
        signal: Signal,
        result: Mapping[str, object] | None = None,
    ) -> Operation:
        """Store the outcome of an attempt, whatever happened to its owner meanwhile.

        The fence guards the decision, never the evidence: a late answer goes into its own row.
        `result` describes the fetched result of a success.
        Safe to run again: an outcome that is already stored is left alone.
        """
        now = self._clock.now().wall
        permit = reserved.permit
        outcome = outcome_of(reply)
        facts = evidence_of(reserved.operation, reply, signal)
        if not reserving.close(connection, permit.attempt_id, now, outcome, facts):
            came = late.Late(reserved, reply, signal, result)
            return late.settle(connection, came, self._verdict, now, self._random)
        op = as_now(connection, reserved.operation)
        code = {
            "answered": audit.Code.ANSWERED,
            "not_sent": audit.Code.NOT_SENT,
        }.get(outcome, audit.Code.NO_ANSWER)
        renews = tokens.may_renew(connection, op, permit.attempt_id, reserved.holding, reply)
        judged = self._verdict(connection, op, reserved.holding, signal, now, new_token=renews)
        verdict = with_pending(op, with_result(judged, result), reserved.holding.action, now)
        verdict = watched_already(connection, op, verdict)
        verdict = limits.exhausted(connection, op, reserved, verdict, signal, now)
        after = self._apply(
            connection,
            op,
            verdict,
            code,
            now,
            reserved.holding,
            body={"attempt": permit.attempt_id, "elapsed_ms": reply.ended_at - reply.started_at},
        )
        let_go(connection, after)
        if verdict.block_credential and reserved.holding.credential is not None:
            register.refuse_credential(connection, after, reserved.holding, now)
        limits.learn(connection, after, reserved, verdict, signal, reply, now, self._random)
        after_cancel(connection, after, now)
        announcing.tell_of_breaker(connection, after, reserved.holding, now, self._random)
        return after

    # --- decisions and ends on request ------------------------------------------------------

    def decide(
        self,
        connection: Connection,
        case_id: str,
        revision: int,
        wish: Wish,
        holding: Holding | None,
        by: Mapping[str, object],
        *,
        follow_up: Draft | None = None,
        dry_run: bool = False,
    ) -> Decided | Refusal:
        """See `deciding.decide`. `follow_up` is accepted in the same transaction, or neither is."""
        now = self._clock.now().wall
        replaces = wish.option in deciding.REPLACES
        if follow_up is not None and not replaces:
            op, earlier = follow_up.operation, same_intent(connection, follow_up.operation)
            window = follow_up.repeat_window
            match judge(connection, op, follow_up.repeat, window, earlier, now):
                case sameness.KeyConflict(known) | sameness.Duplicate(known):
                    told = f"{known.id} did or may have done that already"
                    look = f"forbear show {known.id}"
                    return Refusal(Code.POSSIBLE_DUPLICATE, told, look, known.id)
                case sameness.Join(known) if known.state is State.ESCALATED:
                    told = f"{known.id} asks for that already, and waits for a decision of its own"
                    look = f"forbear show {known.id}"
                    return Refusal(Code.NOT_ALLOWED_IN_STATE, told, look, known.id)
                case _:
                    pass
        decided = deciding.decide(
            connection,
            case_id,
            revision,
            wish,
            holding,
            by,
            now,
            self._random,
            replacement=follow_up.operation.id if follow_up is not None and replaces else None,
            dry_run=dry_run,
        )
        if isinstance(decided, Refusal) or follow_up is None or holding is None or dry_run:
            return decided
        if replaces:
            new = accepting.replace_by(
                connection, decided, follow_up, wish, holding, by, now, self._random
            )
            return replace(decided, follow_up=new)
        made = accepting.follow(connection, follow_up, holding, now, self._random)
        return replace(decided, follow_up=made)

    def ask(
        self,
        connection: Connection,
        operation_id: str,
        option: Option,
        reason: str,
        parameters: Mapping[str, object],
        holding: Holding | None,
    ) -> Case | Refusal:
        """See `asking.ask`."""
        now, ids = self._clock.now().wall, self._random
        return asking.ask(connection, operation_id, option, reason, parameters, holding, now, ids)

    def ask_oneself(
        self,
        connection: Connection,
        operation_id: str,
        option: Option,
        revision: int,
        holding: Holding | None,
    ) -> Case | Refusal:
        """See `asking.ask_oneself`."""
        now, ids = self._clock.now().wall, self._random
        return asking.ask_oneself(connection, operation_id, option, revision, holding, now, ids)

    def reoffer(self, connection: Connection, case_id: str, holding: Holding | None) -> bool:
        """See `deciding.reoffer`."""
        return deciding.reoffer(connection, case_id, holding, self._clock.now().wall)

    def announce(
        self, connection: Connection, case_id: str, holding: Holding | None, *, sends: bool
    ) -> Telling | None:
        """See `announcing.announce`."""
        now, ids = self._clock.now().wall, self._random
        return announcing.announce(connection, case_id, holding, now, ids, sends=sends)

    def drop(
        self,
        connection: Connection,
        operation_id: str,
        why: str,
        holding: Holding | None = None,
        *,
        only: Collection[State] = frozenset(State),
    ) -> Operation | None:
        """See `deciding.drop`."""
        now, ids = self._clock.now().wall, self._random
        return deciding.drop(connection, operation_id, why, holding, now, ids, only=only)

    def end_task(
        self, connection: Connection, principal: str, task: str, why: str
    ) -> list[Operation]:
        """See `deciding.end_task`."""
        now, ids = self._clock.now().wall, self._random
        return deciding.end_task(connection, principal, task, why, now, ids)

    # --- processes --------------------------------------------------------------------------

    def register(
        self, connection: Connection, role: str, pid: int, bindings: Sequence[str]
    ) -> None:
        """See `roster.register`; also `recover`, and events that nothing followed are signed."""
        now = self._clock.now().wall
        roster.register(connection, self.owner, role, pid, bindings, now)
        audit.sign(connection, now)
        self.recover(connection)

    def unregister(self, connection: Connection) -> None:
        roster.unregister(connection, self.owner)
        audit.sign(connection, self._clock.now().wall, at_once=True)

    def recover(self, connection: Connection) -> int:
        """See `roster.recover`; also `roster.rewind` and `tokens.recover`."""
        now = self._clock.now()
        left = tokens.recover(connection, self._liveness, now)
        moved = roster.rewind(connection, now.wall)
        return left + moved + roster.recover(connection, self._liveness, now.wall)

    def empty(self, connection: Connection, term: Term, ids: Collection[str]) -> None:
        """See `retention.empty`."""
        retention.empty(connection, term, ids, self._clock.now().wall)

    def forget(self, connection: Connection, term: Term, most: int) -> int:
        """See `retention.forget`."""
        return retention.forget(connection, term, most, self._clock.now().wall)

    # --- shared -----------------------------------------------------------------------------

    def _verdict(
        self,
        connection: Connection,
        op: Operation,
        holding: Holding | None,
        signal: Signal,
        now: int,
        *,
        new_token: bool = False,
    ) -> Verdict:
        if holding is None or holding.action.binding != op.binding:
            return without_contract(op, signal, now)
        return after_attempt(
            op,
            holding.contract,
            holding.action,
            signal,
            now,
            self._random.uniform(),
            can_still_send=reserving.can_still_send(connection, op, self._liveness)
            or is_copy(connection),
            new_token=new_token,
            clocks=self._clock.now(),
        )

    def _apply(
        self,
        connection: Connection,
        op: Operation,
        verdict: Verdict,
        code: audit.Code,
        now: int,
        holding: Holding | None,
        *,
        body: Mapping[str, object] | None = None,
        lease: Mapping[str, object] | None = None,
    ) -> Operation:
        return apply(
            connection,
            op,
            verdict,
            code,
            now,
            self._random,
            holding=holding,
            body=body,
            lease=lease,
        )
