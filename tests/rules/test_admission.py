"""Whether a request may leave now: the order of the questions, and what paces the answers."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.operations import (
    CONTRACT,
    DEADLINE,
    FINDABLE,
    HOUR,
    JOB,
    MINUTE,
    NOW,
    SECOND,
    after,
    queued,
    told,
    waiting,
)
from tests.support import ManualClock

from forbear.rules import admission
from forbear.rules.admission import (
    Admit,
    Hold,
    admit,
    overdue,
)
from forbear.rules.contract import Idempotency, Scope
from forbear.rules.lifecycle import Event, advance
from forbear.rules.model import (
    Budget,
    Certainty,
    DelaySource,
    Kind,
    Operation,
    Reason,
    RequestClass,
    State,
    Step,
    WaitingFor,
)
from forbear.rules.pacing import ScopeState, Shared, burst, pace, scope_key
from forbear.rules.schedule import last_start
from forbear.rules.signals import Meaning
from forbear.rules.steps import scopes_of
from forbear.rules.verdicts import Verdict, after_attempt

READ, UNCERTAIN = RequestClass.READ, RequestClass.UNCERTAIN_WRITE
SCOPE = Scope("account", "account", rate=(60, MINUTE))
FREE = ScopeState()
DUE: dict[str, Any] = {"next_at": NOW}


QUEUE = "exp/acct_17/account"


def shared(scope: Scope = SCOPE, seen: ScopeState = FREE) -> list[Shared]:
    return [Shared(QUEUE, scope, seen)]


def ask(
    op: Operation,
    *,
    seen: ScopeState = FREE,
    now: int = NOW,
    ready: bool = True,
    scope: Scope = SCOPE,
) -> Admit | Hold | Verdict:
    return admit(op, JOB, shared(scope, seen), now, credential_ready=ready)


def admitted(op: Operation, **context: Any) -> Admit:
    found = ask(op, **context)
    assert isinstance(found, Admit)
    return found


def held(op: Operation, **context: Any) -> Hold:
    found = ask(op, **context)
    assert isinstance(found, Hold)
    return found


def ended(op: Operation, **context: Any) -> Verdict:
    found = ask(op, **context)
    assert isinstance(found, Verdict)
    assert advance(op.state, found.event)
    return found


# --- the order of the questions -------------------------------------------------------------

BUSY = ScopeState(next_allowed_at=NOW + HOUR, open_attempts=9, next_free_at=NOW + SECOND)
EVERYTHING: dict[str, Any] = {
    "approve_by": NOW + HOUR,
    "deadline_at": NOW,
    "status_requests": Budget(12, 12),
    "next_at": NOW + SECOND,
    "not_before": NOW + MINUTE,
}


@pytest.mark.requirement("W11", "W15")
def test_the_questions_come_in_their_order() -> None:
    """Everything is wrong at once; one obstacle after the other is taken away."""
    op = waiting(**EVERYTHING)
    context: dict[str, Any] = {"seen": BUSY, "ready": False}
    assert held(op, **context).waiting_for is WaitingFor.APPROVAL
    op = replace(op, approve_by=None)
    assert ended(op, **context).reason is Reason.DEADLINE_EXCEEDED
    op = replace(op, deadline_at=DEADLINE)
    assert ended(op, **context).reason is Reason.REQUEST_BUDGET_EXHAUSTED
    op = replace(op, status_requests=Budget(2, 12))
    assert held(op, **context) == Hold(NOW + SECOND, WaitingFor.PROVIDER, None)
    op = replace(op, next_at=NOW)
    assert held(op, **context).source is DelaySource.PROVIDER_RETRY_AFTER
    op = replace(op, not_before=NOW)
    assert held(op, **context).waiting_for is WaitingFor.CREDENTIAL
    context["ready"] = True
    assert held(op, **context).waiting_for is WaitingFor.SCOPE
    context["seen"] = replace(BUSY, next_allowed_at=NOW)
    assert held(op, **context).waiting_for is WaitingFor.SLOT
    context["seen"] = FREE
    assert admitted(op, **context).step is Step.STATUS


def test_an_approval_that_nobody_gave_in_time_drops_the_operation() -> None:
    op = queued(approve_by=NOW, **DUE)
    verdict = ended(op)
    assert verdict.event is Event.DISCARDED
    assert verdict.changes["failure"] == {"message": "not approved in time"}
    assert verdict.changes["approve_by"] is None


@pytest.mark.requirement("W15")
@pytest.mark.parametrize(
    ("op", "event", "reason"),
    [
        (waiting(), Event.STOPPED, Reason.DEADLINE_EXCEEDED),
        (waiting(useful_until=DEADLINE - 1), Event.STOPPED, Reason.USEFUL_UNTIL_PASSED),
        (queued(), Event.STOPPED, Reason.DEADLINE_EXCEEDED),
        (queued(state=State.DELAYED), Event.STOPPED, Reason.DEADLINE_EXCEEDED),
        (queued(Kind.CANCEL, UNCERTAIN), Event.DISCARDED, None),
        (queued(Kind.RESULT, READ), Event.FAILED, None),
        (queued(Kind.CALL, READ, state=State.DELAYED), Event.FAILED, None),
        (queued(Kind.CALL, UNCERTAIN), Event.DISCARDED, None),
        (
            queued(Kind.CALL, UNCERTAIN, state=State.UNCLEAR, certainty=Certainty.MAYBE_APPLIED),
            Event.STOPPED,
            Reason.UNCLEAR_WRITE,
        ),
    ],
)
def test_how_an_operation_ends_whose_time_is_over(
    op: Operation, event: Event, reason: Reason | None
) -> None:
    verdict = ended(op, now=DEADLINE)
    assert (verdict.event, verdict.reason) == (event, reason)
    assert verdict.changes["next_at"] is None


@pytest.mark.requirement("W11")
def test_a_late_wake_up_looks_at_the_deadline_before_anything_is_sent() -> None:
    op = waiting(next_at=NOW)
    assert ended(op, now=DEADLINE + 8 * HOUR).reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.requirement("W11")
def test_a_late_wake_up_inside_the_deadline_sends_one_request() -> None:
    op = waiting(next_at=NOW)
    first = admitted(op, now=NOW + 20 * MINUTE)
    assert first.send_by <= NOW + 20 * MINUTE + admission.HANDOVER
    # The lease is what is due next: nothing is owed for the time that was slept away.
    counted = replace(op, next_at=NOW + 20 * MINUTE + first.lease)
    assert held(counted, now=NOW + 20 * MINUTE).until == counted.next_at


def test_a_write_starts_only_with_its_whole_timeout_left() -> None:
    op = queued(**DUE)
    last = DEADLINE - op.timeout
    assert admitted(op, now=last).send_by == last
    assert ended(op, now=last + 1).reason is Reason.DEADLINE_EXCEEDED
    assert isinstance(ask(queued(Kind.RESULT, READ, **DUE), now=DEADLINE - 1), Admit)


@pytest.mark.parametrize(
    ("op", "event", "reason"),
    [
        (
            waiting(transport_failures=Budget(3, 3), status_requests=Budget(12, 12)),
            Event.STOPPED,
            Reason.TRANSPORT_BUDGET_EXHAUSTED,
        ),
        (
            waiting(status_requests=Budget(12, 12)),
            Event.STOPPED,
            Reason.REQUEST_BUDGET_EXHAUSTED,
        ),
        (queued(attempts=Budget(1, 1)), Event.STOPPED, Reason.TRANSPORT_BUDGET_EXHAUSTED),
        (queued(Kind.RESULT, READ, attempts=Budget(4, 4)), Event.FAILED, None),
        (queued(Kind.CANCEL, UNCERTAIN, attempts=Budget(1, 1)), Event.DISCARDED, None),
        (
            queued(Kind.CALL, UNCERTAIN, attempts=Budget(1, 1), state=State.UNCLEAR),
            Event.STOPPED,
            Reason.UNCLEAR_WRITE,
        ),
    ],
)
def test_a_spent_maximum_forbids_the_next_request(
    op: Operation, event: Event, reason: Reason | None
) -> None:
    verdict = ended(op)
    assert (verdict.event, verdict.reason) == (event, reason)


# --- what may have been applied -------------------------------------------------------------

DOUBT: dict[str, Any] = {"certainty": Certainty.MAYBE_APPLIED, "attempts": Budget(1, 3)}
LOOKING: dict[str, Any] = {**DOUBT, **DUE, "state": State.UNCLEAR, "step": Step.LOOKUP}


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("kind", [Kind.JOB, Kind.CALL, Kind.CANCEL])
@pytest.mark.parametrize("state", [State.UNCLEAR, State.QUEUED])
@pytest.mark.parametrize(
    ("changes", "now"), [({}, DEADLINE), ({"attempts": Budget(3, 3)}, NOW)], ids=["late", "spent"]
)
def test_doubt_ends_with_a_person_and_is_never_dropped(
    kind: Kind, state: State, changes: dict[str, Any], now: int
) -> None:
    for certainty in (Certainty.MAYBE_APPLIED, Certainty.APPLIED):
        op = queued(kind, UNCERTAIN, **DOUBT | {"state": state, "certainty": certainty} | changes)
        verdict = ended(op, now=now)
        assert (verdict.event, verdict.reason) == (Event.STOPPED, Reason.UNCLEAR_WRITE)


@pytest.mark.requirement("R25")
@given(left=st.integers(1, 2 * MINUTE))
def test_a_lookup_has_its_timeout_or_the_time_that_is_left(left: int) -> None:
    op = replace(queued(**LOOKING), deadline_at=NOW + left)
    permit = admit(op, FINDABLE, shared(), NOW, credential_ready=True)
    assert isinstance(permit, Admit)
    assert permit.step is Step.LOOKUP
    assert permit.timeout == min(30 * SECOND, left)


@pytest.mark.requirement("R25")
def test_spent_lookups_ask_unless_one_is_under_way() -> None:
    spent = queued(**LOOKING, lookups=Budget(6, 6))
    assert ended(spent).reason is Reason.UNCLEAR_WRITE
    for cursor in ("p2", ""):
        assert admitted(replace(spent, search={"cursor": cursor})).step is Step.LOOKUP


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("changes", "leaves"),
    [
        ({"sent_at": NOW - HOUR + 1}, True),
        ({"sent_at": NOW - HOUR}, False),
        ({"sent_at": NOW - HOUR, "state": State.QUEUED}, False),
        ({"sent_at": NOW - HOUR, "certainty": Certainty.NOT_APPLIED}, False),
        ({"sent_at": NOW, "wire_key": None}, False),
        ({"sent_at": NOW - HOUR, "kind": Kind.CANCEL, "wire_key": None}, True),
        (
            {
                "sent_at": NOW - HOUR,
                "state": State.DELAYED,
                "certainty": Certainty.NOT_APPLIED,
            },
            True,
        ),
    ],
    ids=["inside", "over", "approved", "after-proof", "no-key", "cancellation", "no-doubt"],
)
def test_a_repetition_leaves_only_while_its_key_is_honoured(
    changes: dict[str, Any], leaves: bool
) -> None:
    job = replace(FINDABLE, idempotency=Idempotency("header", "Key", window=HOUR))
    own = {**LOOKING, "step": Step.SEND, "wire_key": "k"} | changes
    found = admit(queued(**own), job, shared(), NOW, credential_ready=True)
    if leaves:
        assert isinstance(found, Admit)
    else:
        assert isinstance(found, Verdict)
        assert found.reason is Reason.UNCLEAR_WRITE


def test_a_repetition_may_not_be_handed_over_after_its_key_was_forgotten() -> None:
    job = replace(FINDABLE, idempotency=Idempotency("header", "Key", window=HOUR))
    own = {**LOOKING, "step": Step.SEND, "wire_key": "k", "sent_at": NOW - HOUR + 3 * SECOND}
    found = admit(queued(**own), job, shared(), NOW, credential_ready=True)
    assert isinstance(found, Admit)
    assert found.send_by == NOW + 3 * SECOND


# --- what a permit allows -------------------------------------------------------------------


@pytest.mark.requirement("W15")
@given(timeout=st.integers(1, 10 * MINUTE))
def test_a_lease_is_the_timeout_and_fifteen_seconds(timeout: int) -> None:
    permit = admitted(queued(timeout=timeout, **DUE))
    assert permit.timeout == timeout
    assert permit.send_by == NOW + 10 * SECOND
    assert permit.lease == timeout + 15 * SECOND
    # The slot is held until `send_by` + timeout + 5 s: just as long as the lease.
    assert permit.send_by + permit.timeout + admission.SETTLING == NOW + permit.lease


@given(left=st.integers(1, 2 * MINUTE))
def test_an_observation_has_its_timeout_or_the_time_that_is_left(left: int) -> None:
    permit = admitted(waiting(deadline_at=NOW + left))
    assert permit.timeout == min(JOB.status.timeout, left)
    assert permit.send_by == NOW + min(10 * SECOND, left - 1)


@pytest.mark.requirement("R12")
@given(left=st.integers(1, 2 * MINUTE))
def test_a_read_has_its_timeout_or_the_time_that_is_left(left: int) -> None:
    """RE-06."""
    read = queued(Kind.CALL, READ, deadline_at=NOW + left, timeout=30 * SECOND, **DUE)
    assert admitted(read).timeout == min(30 * SECOND, left)


def test_no_first_byte_of_a_write_leaves_when_its_timeout_no_longer_fits() -> None:
    op = queued(deadline_at=NOW + 33 * SECOND, **DUE)
    assert admitted(op).send_by == NOW + 3 * SECOND


# --- a decision's single permit -------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [waiting(), queued(Kind.CALL, READ), queued(**LOOKING)],
    ids=["status", "read", "lookup"],
)
def test_a_single_permit_has_its_whole_timeout_after_the_end(op: Operation) -> None:
    """RE-06: nothing is ever sent with a time-out of zero or less."""
    late = replace(op, deadline_at=NOW - HOUR, once=Reason.INVALID_RESPONSE, next_at=NOW)
    permit = admit(late, FINDABLE, shared(), NOW, credential_ready=True)
    assert isinstance(permit, Admit)
    assert permit.timeout == 30 * SECOND


def test_a_single_permit_ignores_ends_and_maxima() -> None:
    op = waiting(
        once=str(Reason.DEADLINE_EXCEEDED),
        deadline_at=NOW - HOUR,
        useful_until=NOW - HOUR,
        status_requests=Budget(12, 12),
        transport_failures=Budget(3, 3),
    )
    permit = admitted(op)
    assert (permit.timeout, permit.send_by) == (JOB.status.timeout, NOW + 10 * SECOND)


def test_a_single_permit_keeps_to_the_providers_minimum() -> None:
    op = waiting(once=str(Reason.RATE_LIMITED), deadline_at=NOW - HOUR, not_before=NOW + HOUR)
    assert held(op).until == NOW + HOUR


@pytest.mark.parametrize(
    ("op", "seen"),
    [
        (waiting(once="rate_limited", not_before=NOW + 25 * HOUR), FREE),
        (waiting(once="rate_limited"), ScopeState(next_allowed_at=NOW + 10**15)),
    ],
)
def test_a_single_permit_that_could_not_be_used_for_a_day_asks_again(
    op: Operation, seen: ScopeState
) -> None:
    assert ended(op, seen=seen).reason is Reason.RATE_LIMITED


# --- holds ----------------------------------------------------------------------------------


@given(until=st.integers(NOW + 1, NOW + 10**15))
def test_no_hold_outlives_the_operation(until: int) -> None:
    for op, seen in (
        (waiting(), ScopeState(next_allowed_at=until)),
        (waiting(), ScopeState(open_attempts=2, next_free_at=until)),
        (waiting(not_before=until), FREE),
        (queued(**DUE), ScopeState(open_attempts=2, next_free_at=until)),
    ):
        hold = held(op, seen=seen)
        assert hold.until == min(until, last_start(op) + 1)
        again = ask(replace(op, next_at=hold.until), seen=seen, now=hold.until)
        assert hold.until == until or isinstance(again, Verdict)


@pytest.mark.requirement("R12")
@pytest.mark.parametrize(
    ("op", "event"),
    [
        (queued(**DUE), Event.STOPPED),
        (queued(**DUE, kind=Kind.CALL, request_class=READ), Event.FAILED),
        (queued(**DUE, kind=Kind.CALL), Event.DISCARDED),
    ],
    ids=["submission", "read", "write"],
)
def test_what_a_limit_is_known_to_outlast_ends_at_once(op: Operation, event: Event) -> None:
    until = last_start(op) + 1
    for seen in (
        ScopeState(next_allowed_at=until),
        ScopeState(remaining=0, reset_at=until),
    ):
        verdict = ended(op, seen=seen)
        assert verdict.event is event
        if event is not Event.STOPPED:
            failure: Any = verdict.changes["failure"]
            assert failure["retry_at"] == until
        # Its turn, which it can only guess, is no reason to end.
        assert isinstance(ask(op, seen=replace(seen, first=False, ahead=1)), Hold)
        assert isinstance(ask(op, seen=replace(seen, next_allowed_at=0, reset_at=NOW)), Admit)
    assert (
        held(waiting(), seen=ScopeState(next_allowed_at=10**15)).until == last_start(waiting()) + 1
    )


@given(busy=st.integers(0, 6), slots=st.integers(1, 4))
def test_a_slot_is_free_or_waited_for(busy: int, slots: int) -> None:
    scope = replace(SCOPE, max_concurrent_requests=slots)
    seen = ScopeState(open_attempts=busy, next_free_at=NOW + 7 * SECOND)
    found = ask(waiting(), scope=scope, seen=seen)
    if busy < slots:
        assert isinstance(found, Admit)
    else:
        expected = Hold(NOW + 7 * SECOND, WaitingFor.SLOT, DelaySource.SCOPE_LIMIT, QUEUE)
        assert found == expected


# --- pace -----------------------------------------------------------------------------------

RATES = st.tuples(st.integers(1, 5_000), st.sampled_from([SECOND, MINUTE, HOUR, 24 * HOUR]))


def departures(scope: Scope, wishes: list[int]) -> list[int]:
    """When requests leave that want to at these times: each is held until it may."""
    arrival, left = 0, list[int]()
    waiting_line = sorted(wishes)
    while waiting_line:
        now = heappop(waiting_line)
        op = waiting(deadline_at=10**16, next_at=None)
        found = ask(op, seen=ScopeState(theoretical_arrival=arrival), now=now, scope=scope)
        if isinstance(found, Admit):
            arrival = found.taken[0].arrival
            left.append(now)
        else:
            assert isinstance(found, Hold)
            assert found.until > now
            heappush(waiting_line, found.until)
    return left


@given(
    rate=RATES,
    gaps=st.lists(st.integers(0, 3_000), min_size=1, max_size=120),
    unit=st.integers(1, 500),
)
def test_no_window_of_the_published_length_has_more_than_nine_tenths_of_the_rate(
    rate: tuple[int, int], gaps: list[int], unit: int
) -> None:
    scope = Scope("account", "account", rate=rate)
    wish, wishes = NOW, list[int]()
    for gap in gaps:
        wish += gap * unit // 100
        wishes.append(wish)
    left = departures(scope, wishes)
    assert len(left) == len(wishes), "what is held leaves later"
    allowed = ceil(rate[0] * 9 / 10)
    for first, last in zip(left, left[allowed:], strict=False):
        assert last - first >= rate[1], f"{allowed + 1} requests in {last - first} ms"


@given(RATES)
def test_a_burst_is_a_tenth_and_the_pace_leaves_room_for_it(rate: tuple[int, int]) -> None:
    scope = Scope("account", "account", rate=rate)
    assert burst(scope) == max(1, rate[0] // 10)
    in_a_window = burst(scope) - 1 + ceil(rate[1] * 1_000 / pace(scope))
    assert in_a_window <= ceil(rate[0] * 9 / 10)
    assert in_a_window >= rate[0] * 0.8 - 1


def test_a_pause_lets_a_burst_go_and_no_more() -> None:
    left = departures(SCOPE, [NOW] * 8)
    assert left[:6] == [NOW] * 6
    assert left[6] > NOW
    assert left[7] - left[6] >= pace(SCOPE) // 1_000


class Sharing:
    """Operations of one scope under an injected clock, claimed in the order they are due."""

    def __init__(self, scope: Scope, seed: int) -> None:
        self.clock = ManualClock()
        self.scope = scope
        self.random = Random(seed)
        self.due: list[tuple[int, int, Operation]] = []
        self.arrival = 0
        self.next_allowed_at = 0
        self.sent: list[tuple[int, Step]] = []
        self.woken: list[int] = []

    @property
    def now(self) -> int:
        return self.clock.now().wall

    def add(self, op: Operation) -> None:
        assert op.next_at is not None
        heappush(self.due, (op.next_at, op.number, op))

    def run(self, until: int) -> None:
        while self.due and self.due[0][0] <= until:
            at, _, op = heappop(self.due)
            if at > self.now:
                self.clock.advance(at - self.now)
            self._claim(op)

    def _claim(self, op: Operation) -> None:
        held_back = sum(1 for _, _, other in self.due if other.waiting_for is WaitingFor.SCOPE)
        seen = ScopeState(self.next_allowed_at, self.arrival, ahead=held_back)
        found = ask(op, seen=seen, now=self.now, scope=self.scope)
        match found:
            case Hold(until, waiting_for):
                self.woken.append(until)
                self.add(replace(op, next_at=until, waiting_for=waiting_for))
            case Admit():
                self.arrival = found.taken[0].arrival
                self.sent.append((self.now, op.step))
                self._answer(replace(op, waiting_for=None))
            case Verdict():
                pass

    def _answer(self, op: Operation) -> None:
        if op.step is Step.SEND:
            op = replace(op, state=State.SENDING, sent_at=self.now)
            signal = told(Meaning.ACCEPTED)
        else:
            used = op.status_requests.used + 1
            op = replace(op, status_requests=replace(op.status_requests, used=used))
            signal = told(Meaning.WAITING)
        verdict = after_attempt(op, CONTRACT, JOB, signal, self.now, self.random.random())
        if verdict.event in (Event.ACCEPTED, Event.OBSERVED):
            changes: dict[str, Any] = dict(verdict.changes)
            self.add(replace(op, **changes, state=State.WAITING))


def crowd(count: int) -> list[Operation]:
    """Jobs submitted together."""
    start = ManualClock().now().wall
    return [
        queued(number=number, next_at=start, deadline_at=start + 40 * MINUTE)
        for number in range(count)
    ]


@pytest.mark.requirement("W09")
@pytest.mark.parametrize("seed", range(5))
def test_fifty_jobs_submitted_together_never_crowd_a_second(seed: int) -> None:
    scope = Scope("account", "account")
    world = Sharing(scope, seed)
    for op in crowd(50):
        world.add(op)
    world.run(world.now + 20 * MINUTE)
    times = [at for at, _ in world.sent]
    assert sum(step is Step.SEND for _, step in world.sent) == 50
    assert len(times) > 200
    count, per = scope.rate
    for first, last in zip(times, times[count:], strict=False):
        assert last - first >= per, "more than its share in one second"


@pytest.mark.parametrize("seed", [pytest.param(7, id="RA-14")])
def test_a_scope_that_reopens_is_not_stormed(seed: int) -> None:
    """RA-14: twenty workers wait for ten seconds that the provider asked for."""
    world = Sharing(Scope("account", "account"), seed)
    start = world.now
    signal = told(Meaning.RATE_LIMITED, retry_after=after(10 * SECOND))
    verdict = after_attempt(waiting(), CONTRACT, JOB, signal, start, 0.3)
    assert verdict.scope_until == start + 10 * SECOND
    world.next_allowed_at = start + 10 * SECOND
    for op in crowd(20):
        world.add(op)
    world.run(start + 5 * MINUTE)
    times = [at for at, step in world.sent if step is Step.SEND]
    assert len(times) == 20
    assert times[0] >= start + 10 * SECOND
    assert len(set(world.woken[:20])) == 20, "their wake-ups are spread"
    assert min(later - earlier for earlier, later in pairwise(times)) >= 555


# --- names ----------------------------------------------------------------------------------


def test_an_account_is_one_scope_unless_the_contract_says_otherwise() -> None:
    scopes = (
        Scope("exports", "account+action", actions=("export",)),
        Scope("host", "host", actions=("ping",)),
        Scope("rest", "account"),
    )
    assert [scope.name for scope in scopes_of(scopes, "export")] == ["exports", "rest"]
    assert [scope.name for scope in scopes_of(scopes, "anything")] == ["rest"]
    assert scopes_of((), "anything") == (Scope("account", "account"),)
    keys = [scope_key(scope, "exp", "acct", "export") for scope in scopes]
    assert keys == ["exp/acct/export/exports", "exp/host", "exp/acct/rest"]


def test_a_waiting_approval_is_not_overdue_with_the_old_deadline() -> None:
    assert overdue(queued(approve_by=NOW + 1, deadline_at=NOW - HOUR), NOW) is None
