"""What will happen to an action, asked of the rules themselves: nothing here decides anything.

An operation is drafted as an agent's call would draft it, and the rules are asked for their verdict
on one event at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forbear.rules.admission import overdue
from forbear.rules.contract import Action, Call, Contract, Job
from forbear.rules.escalations import Offer, offers
from forbear.rules.lifecycle import advance
from forbear.rules.model import Certainty, Operation, Priority, Reason, State, Step, WaitingFor
from forbear.rules.replay import signal_of
from forbear.rules.retries import RESENT_BY
from forbear.rules.signals import Meaning, Signal
from forbear.rules.verdicts import Verdict, after_attempt
from forbear.storage.accepting import Draft
from forbear.storage.transitions import Holding
from forbear.tools import samples
from forbear.tools.drafts import Drafter, Given, bounds, call_bounds

NOW = 1_796_040_000_000
"""When the imagined operation was sent; nothing depends on it."""
MIDDLE = 0.5

TOO_MANY = b'{"error": "too many requests"}'
"""What a 429 says, where no contract has an example of one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from one event."""

    state: State
    step: Step
    reason: Reason | None
    """Why a person is asked, if one is."""
    options: Sequence[Offer]
    wait: int | None
    """Until the next request, ms, in the middle of its jitter."""
    verdict: Verdict

    @property
    def words(self) -> str:
        """In a few words."""
        match self.state:
            case State.ESCALATED if self.reason is not None:
                return f"stops and asks a person ({self.reason})"
            case State.UNCLEAR if self.step is Step.LOOKUP:
                return "unclear: looked up, never sent again blindly"
            case State.UNCLEAR:
                return "unclear: sent again under the same key"
            case State.DELAYED:
                return "tried again"
            case State.WAITING:
                return "goes on waiting"
            case _:
                return f"over: {self.state}"


class Outlook:
    """One action of a contract before anything of it happened."""

    def __init__(self, contract: Contract, action: Action) -> None:
        """Raises ValueError if no operation of it can be imagined."""
        self.contract, self.action = contract, action
        self.drafted = _drafted(contract, action)

    def sent(self) -> Operation:
        """The operation while its own request is on its way for the first time."""
        op = self.drafted
        return replace(
            op,
            state=State.SENDING,
            step=Step.SEND,
            attempts=replace(op.attempts, used=1),
            sent_at=NOW,
            sent=True,
        )

    def waiting(self) -> Operation:
        """A job that the provider took, while its state is asked for."""
        op = self.drafted
        return replace(
            op,
            state=State.WAITING,
            step=Step.STATUS,
            attempts=replace(op.attempts, used=1),
            status_requests=replace(op.status_requests, used=1),
            sent_at=NOW,
            sent=True,
            accepted_at=NOW,
            certainty=Certainty.APPLIED,
            take=_Everything(),
            provider_state="WORD",
            waiting_for=WaitingFor.PROVIDER,
        )

    def limited(self, request: str) -> Signal:
        """What a 429 with a Retry-After to a request (`submit`, `status`, `call`) means here."""
        group = "jobs" if isinstance(self.action, Job) else "calls"
        on = f"{group}.{self.action.name}" + ("" if request == "call" else f".{request}")
        return signal_of(self.contract, on, 429, (("Retry-After", "1"),), TOO_MANY)

    def on_sending(self, signal: Signal) -> Outcome:
        """What follows from an answer to its own request, or from none."""
        return self._after(self.sent(), signal)

    def on_status(self, signal: Signal) -> Outcome:
        """What follows from an answer to a status request, or from none."""
        return self._after(self.waiting(), signal)

    def too_late(self) -> Outcome | None:
        """What follows where its deadline passes before it could be sent."""
        op = replace(self.drafted, state=State.DELAYED)
        verdict = overdue(op, op.deadline_at)
        return None if verdict is None else self._outcome(op, verdict)

    def asked_for(self, reason: Reason, op: Operation) -> Sequence[Offer]:
        """The options of a case with this reason, as the contract allows them.

        That of a new credential is among them, though it is offered only once there is one.
        """
        stopped = replace(op, state=State.ESCALATED)
        return offers(stopped, reason, self.contract, NOW, new_credential=True)

    def _after(self, op: Operation, signal: Signal) -> Outcome:
        return self._outcome(op, after_attempt(op, self.contract, self.action, signal, NOW, MIDDLE))

    def _outcome(self, op: Operation, verdict: Verdict) -> Outcome:
        changes: dict[str, Any] = dict(verdict.changes)
        state = advance(op.state, verdict.event)
        after = replace(op, **changes, state=state)
        asks = state is State.ESCALATED and verdict.reason is not None
        told = self.asked_for(verdict.reason, after) if asks and verdict.reason else ()
        wait = None if after.next_at is None or after.final else after.next_at - NOW
        return Outcome(state, after.step, verdict.reason, told, wait, verdict)


class _Everything(dict[str, str]):
    """Whatever answers are read for is known."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "…"


# --- events ---------------------------------------------------------------------------------

NO_ANSWER = Signal(Meaning.NO_ANSWER, Certainty.MAYBE_APPLIED, fault="closed")
NOT_SENT = Signal(Meaning.NOT_SENT, Certainty.NOT_SENT, fault="connect")


def answered(meaning: Meaning, certainty: Certainty, status: int) -> Signal:
    """An answer with this meaning."""
    return Signal(meaning, certainty, status=status, answered=True, state="WORD")


UNAVAILABLE = answered(Meaning.SERVER_ERROR, Certainty.MAYBE_APPLIED, min(RESENT_BY - {408, 502}))
REFUSED = answered(Meaning.REJECTED, Certainty.NOT_APPLIED, 422)


class _Fixed:
    """In place of randomness: nothing that is imagined leaves this process."""

    def uniform(self) -> float:
        return MIDDLE

    def token(self, size: int) -> str:
        return "a" * size


def _drafted(contract: Contract, action: Action) -> Operation:
    drafter = Drafter(b"outlook", _Fixed(), "local")
    holding, given = Holding(contract, action, None), Given(None, None, Priority.INTERACTIVE, None)
    arguments: Mapping[str, Any] = samples.of(action.input)
    if isinstance(action, Job):
        limits = bounds(action, None, None, None)
        draft = drafter.submission(holding, action, arguments, limits, given)
    elif isinstance(action, Call):
        limits = call_bounds(action, None, None)
        draft = drafter.call(holding, action, arguments, limits, given)
    else:
        raise TypeError(f"{action.name} is neither a job nor a call")
    if not isinstance(draft, Draft):
        raise ValueError(draft.message)
    return replace(
        draft.operation, number=1, created_at=NOW, updated_at=NOW, deadline_at=NOW + draft.deadline
    )
