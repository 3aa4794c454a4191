"""The words of the trade as values: operation, attempt, case, and the closed sets they use.

`Operation` is the record the whole program turns on; its fields are the columns of the table
`operations`, one to one. Times are integer milliseconds since the epoch, UTC; durations are integer
milliseconds; every other unit is named in the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class State(StrEnum):
    """Where an operation stands. Each says who moves it in and who moves it out."""

    QUEUED = "queued"
    """Stored, nothing sent. In: the use case that accepts it, or a decision. Out: admission."""
    SENDING = "sending"
    """An effectful request holds a permit. In: admission. Out: the outcome, or the next claim."""
    WAITING = "waiting"
    """The provider works on a job we hold a handle of. In: acceptance. Out: an observation."""
    DELAYED = "delayed"
    """Every attempt so far was certainly not applied, or it is a read; the next is scheduled."""
    UNCLEAR = "unclear"
    """An effectful request may have been applied. Out: a lookup, a keyed resend, or a decision."""
    ESCALATED = "escalated"
    """A person has to choose. In: a stop predicate. Out: a decision only."""
    SUCCEEDED = "succeeded"
    """The outcome is proven. Only now `may_proceed` is true."""
    FAILED = "failed"
    """The provider, or a person who looked there, says that it was not done."""
    CANCELLED = "cancelled"
    """The provider stopped the job."""
    EXPIRED = "expired"
    """The provider ended the job because time ran out."""
    DISCARDED = "discarded"
    """It was dropped here: nothing more is sent; what was sent may go on."""


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED, State.DISCARDED})


class Kind(StrEnum):
    JOB = "job"
    CALL = "call"
    RESULT = "result"
    CANCEL = "cancel"


class Step(StrEnum):
    """Which request an operation would send next, or sent last."""

    SEND = "send"
    """The action itself: a submission, a call, a result fetch, a cancellation."""
    STATUS = "status"
    """An observation of a job."""
    LOOKUP = "lookup"
    """A search for an effect whose answer was lost."""


class RequestClass(StrEnum):
    READ = "read"
    IDEMPOTENT_WRITE = "idempotent_write"
    UNCERTAIN_WRITE = "uncertain_write"


class Certainty(StrEnum):
    """What is known about the effect of everything an operation sent so far."""

    NOT_SENT = "not_sent"
    NOT_APPLIED = "not_applied"
    MAYBE_APPLIED = "maybe_applied"
    APPLIED = "applied"


class WaitingFor(StrEnum):
    PROVIDER = "provider"
    SCOPE = "scope"
    SLOT = "slot"
    APPROVAL = "approval"
    CREDENTIAL = "credential"
    SETTLE = "settle"


class DelaySource(StrEnum):
    PROVIDER_RETRY_AFTER = "provider_retry_after"
    PROVIDER_POLL_HINT = "provider_poll_hint"
    SCOPE_LIMIT = "scope_limit"
    LOCAL_BACKOFF = "local_backoff"
    BUDGET_PACE = "budget_pace"
    MANUAL_EXTENSION = "manual_extension"
    CIRCUIT_OPEN = "circuit_open"


class Reason(StrEnum):
    """Why a person is asked. Closed: each fixes which options may be offered."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    USEFUL_UNTIL_PASSED = "useful_until_passed"
    REQUEST_BUDGET_EXHAUSTED = "request_budget_exhausted"
    TRANSPORT_BUDGET_EXHAUSTED = "transport_budget_exhausted"
    PAST_PROVIDER_EXPIRY = "past_provider_expiry"
    RATE_LIMITED = "rate_limited"
    SCOPE_EXHAUSTED = "scope_exhausted"
    QUOTA_EXHAUSTED = "quota_exhausted"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    UNKNOWN_STATE = "unknown_state"
    BLOCKED_STATE = "blocked_state"
    CONTRADICTORY_RESPONSE = "contradictory_response"
    INVALID_RESPONSE = "invalid_response"
    BINDING_MISMATCH = "binding_mismatch"
    CONTRACT_CHANGED = "contract_changed"
    NOT_FOUND = "not_found"
    ACCEPTED_UNTRACKED = "accepted_untracked"
    AUTHORIZATION_DENIED = "authorization_denied"
    CREDENTIAL_MISSING = "credential_missing"
    UNCLEAR_WRITE = "unclear_write"
    CONFLICT = "conflict"
    RECONCILIATION_CONFLICT = "reconciliation_conflict"
    REPEATED_FAILURE = "repeated_failure"
    APPROVAL_REQUIRED = "approval_required"
    REQUESTED = "requested"
    EGRESS_REFUSED = "egress_refused"
    INTEGRATION_FAILURE = "integration_failure"


class Option(StrEnum):
    EXTEND = "extend"
    HOLD = "hold"
    CHECK_AGAIN = "check_again"
    RECONCILE = "reconcile"
    RESEND_SAME_KEY = "resend_same_key"
    CANCEL_AT_PROVIDER = "cancel_at_provider"
    REBIND = "rebind"
    TREAT_AS = "treat_as"
    RETRY_WITH_NEW_CREDENTIAL = "retry_with_new_credential"
    SEND_NEW = "send_new"
    RESUBMIT = "resubmit"
    APPROVE = "approve"
    REJECT = "reject"
    CLOSE_CIRCUIT = "close_circuit"
    CONFIRM_DONE = "confirm_done"
    CONFIRM_NOT_DONE = "confirm_not_done"
    USE_UNVALIDATED_RESULT = "use_unvalidated_result"
    ABANDON = "abandon"


class Notice(StrEnum):
    """A note on an operation that asks nothing and pages nobody."""

    PROVIDER_FAILURE = "provider_failure"
    """The job failed at the provider; the reason is in `failure`."""
    ENDED_AT_PROVIDER = "ended_at_provider"
    """Somebody else ended the job at the provider, or time ran out there."""
    MAY_STILL_RUN = "may_still_run"
    """It was dropped here, and may go on at the provider."""
    LATE_EVIDENCE = "late_evidence"
    """An answer came when it no longer counted; it is kept as evidence in the story."""


class Code(StrEnum):
    """Why a tool call was refused. A refusal stored nothing."""

    UNKNOWN_OPERATION = "unknown_operation"
    """There is no such operation, or it belongs to somebody else."""
    UNKNOWN_ACTION = "unknown_action"
    """No contract has such a provider, job or call."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments do not fit; the message names each and often the right call."""
    KEY_CONFLICT = "key_conflict"
    """The idempotency key was used for another request."""
    POSSIBLE_DUPLICATE = "possible_duplicate"
    """The same was done before; a repetition must be asked for on purpose."""
    NOT_READY = "not_ready"
    """It needs something that has not succeeded yet."""
    NOTHING_NEW = "nothing_new"
    """It was asked for again and again, and nothing changed."""
    NOT_ALLOWED_IN_STATE = "not_allowed_in_state"
    """The operation is in a state in which this makes no sense."""
    OPTION_NOT_OFFERED = "option_not_offered"
    """The case does not offer this option."""
    ALREADY_ASKED = "already_asked"
    """A person is asked about it already."""
    SCOPE_FULL = "scope_full"
    """Too much waits for this shared limit, or the task has used up its budget."""
    CIRCUIT_OPEN = "circuit_open"
    """This request kept failing and is blocked for a while."""
    USE_INSTEAD = "use_instead"
    """Another tool or call does it; the message has the whole call."""
    PAUSED = "paused"
    """A person paused it."""
    TASK_ENDED = "task_ended"
    """The task was ended; it takes no new work."""
    EGRESS_REFUSED = "egress_refused"
    """The contract does not allow the address."""
    CREDENTIAL_MISSING = "credential_missing"
    """The key is missing or refused."""
    CONTRACT_ERROR = "contract_error"
    """The contract of this provider does not load."""
    STORE_UNAVAILABLE = "store_unavailable"
    """The store cannot be used now."""


class Priority(StrEnum):
    APPROVED = "approved"
    INTERACTIVE = "interactive"
    BACKGROUND = "background"


class Trigger(StrEnum):
    """Who caused an attempt."""

    AGENT = "agent"
    SCHEDULE = "schedule"
    OPERATOR = "operator"


class JobClass(StrEnum):
    """What a provider's state word means, as the contract's state table says."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Budget:
    """A total that only grows: `used` never falls, and at `max` the work ends."""

    used: int
    max: int

    @property
    def left(self) -> int:
        return max(0, self.max - self.used)

    @property
    def spent(self) -> bool:
        return self.used >= self.max


LOST: Final[Mapping[str, Any]] = dict[str, Any]()
"""This very object stands for values that nobody can read any more: their key is lost."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical intent and all that is known about it."""

    # who and what
    id: str
    number: int
    """Order of creation on this store."""
    principal: str
    provider: str
    account: str
    action: str
    kind: Kind
    request_class: RequestClass
    priority: Priority
    label: str | None
    purpose: str | None
    arguments: Mapping[str, Any]
    intent: str
    """HMAC of the canonical intent under the store key, lower-case hex."""
    key: str | None
    """The agent's local name; never on the wire."""
    ref: str
    """Our client reference, `{ref}` in templates."""
    wire_key: str | None
    """The provider's idempotency key, made once before the first request."""
    binding: str
    """Digest of what must not change under a running operation: addresses, account, templates."""
    request_digest: str
    parent_id: str | None
    superseded_by: str | None
    result_name: str | None

    # authority
    authorisation: str
    """`contract`, or the id of the case whose decision allowed it."""
    deadline_at: int
    useful_until: int | None
    approve_by: int | None
    """Set while a person must approve; the deadline starts at approval."""
    approve_deadline: int | None
    """The length of time in ms that the deadline gets at approval."""
    timeout: int
    status_requests: Budget
    transport_failures: Budget
    rate_limited: Budget
    attempts: Budget
    wait: Budget
    """Waited milliseconds between attempts of a call or submission."""
    lookups: Budget
    extensions: Budget

    # where it stands
    state: State
    step: Step
    revision: int
    created_at: int
    updated_at: int
    next_at: int | None
    """When something is due: the next request, or the deadline. Lease expiry while claimed."""
    delay: int | None
    """The planned wait before `next_at`, ms."""
    delay_source: DelaySource | None
    waiting_for: WaitingFor | None
    sent_at: int | None
    """First permit of the action's own request."""
    accepted_at: int | None
    observed_at: int | None
    parsed: int
    """Status answers whose state could be read: the exponent of the backoff."""
    provider_job: str | None
    provider_state: str | None
    terminal_seen: bool
    progress: str | None
    progress_at: int | None
    take: Mapping[str, str]
    """Values taken from answers: `id`, `status_url`, and `result.x` for results."""
    certainty: Certainty
    http_status: int | None
    http_at: int | None
    provider_request_id: str | None
    sent: bool
    answered: bool
    provider_expiry_at: int | None
    expected_at: int | None
    failure: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    validated: bool | None
    notices: tuple[str, ...]
    treat: Mapping[str, str]
    """Provider words that a person classed for this operation alone."""
    once: str | None
    """A decision's single permit: the reason to stop again with; ignores spent maxima."""
    pending: Mapping[str, Any] | None
    """What waits for the open attempt to close: `end`, why it is to end, and `effect`, what a late
    answer to an earlier attempt told of."""
    emptied_at: int | None
    """When retention took what was sent and answered; who it was and how it ended stay."""

    # ownership
    lease_owner: str | None
    lease_boot: str | None
    lease_until: int | None
    """Milliseconds of CLOCK_BOOTTIME on the boot `lease_boot`."""
    fence: int
    once_until: int | None = None
    """Until when that permit may be used; after it the person is asked again."""
    search: Mapping[str, Any] | None = None
    """How far the reconciliation of an unclear write is, or the pages of a read."""
    section: str = ""
    """Digest of the contract's section that the operation was last run under."""
    not_before: int | None = None
    """The provider's own minimum (Retry-After): no request of this operation before it."""
    client: str | None = None
    """Which client asked: the process that serves it, or the subject of its token."""

    @property
    def final(self) -> bool:
        return self.state in FINAL

    def is_due(self, now: int) -> bool:
        """Whether something is to be done for it at `now` (ms)."""
        return self.next_at is not None and self.next_at <= now

    @property
    def paused(self) -> bool:
        """A person's pause holds its next request: no limit, and nothing says until when."""
        return self.waiting_for is WaitingFor.SCOPE and self.delay_source is None

    @property
    def known(self) -> bool:
        """Whether it is still known what was asked for and what was taken from answers.

        If not, no new request may be made of it: what is missing would be left out.
        """
        return self.emptied_at is None and self.arguments is not LOST and self.take is not LOST

    @property
    def end_asked(self) -> str | None:
        """Why it is to end once the open attempt is closed; None: nobody asked for that."""
        if self.pending is None or ("effect" in self.pending and "end" not in self.pending):
            return None
        return str(self.pending.get("end", "ended on request"))

    @property
    def may_proceed(self) -> bool:
        return self.state is State.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at sending: reserved before the send, closed once, by evidence or as unknown."""

    id: str
    operation_id: str
    number: int
    step: Step
    trigger: Trigger
    authorisation: str
    owner: str
    fence: int
    scope: str
    reserved_at: int
    send_by: int
    """Wall clock ms after which the first byte must not leave."""
    hold_until: int
    """Until then an open attempt occupies a slot of its scope."""
    request_digest: str
    closed_at: int | None = None
    outcome: str | None = None
    """`answered`, `no_answer`, `not_sent` or `unknown`; None while open."""
    certainty: Certainty | None = None
    status: int | None = None
    provider_request_id: str | None = None
    note: str | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """An escalation: one question with bounded options, bound to a revision of the facts."""

    id: str
    number: int
    operation_id: str
    reason: Reason
    urgency: str
    """`now`, `today` or `note`."""
    text: str
    options: tuple[Mapping[str, Any], ...]
    """`{id, label, effect, parameters}`, least effect first."""
    opened_at: int
    revision: int
    group: str | None = None
    closed_at: int | None = None
    closed_because: str | None = None
    decision: Mapping[str, Any] | None = None
    about: str | None = None
    """What it is about beside its operation: a scope or a host that others share."""
    wish: Mapping[str, Any] | None = None
    """What is asked for: `{option, reason, parameters, at}`; an agent's wish has a reason."""
    announce_at: int | None = None
    """When people are told of it again."""
    announced: int = 0
    """How often they were told."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One row of the audit trail: a public header and a body."""

    sequence: int
    operation_id: str
    at: int
    code: str
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unreadable: str | None = None
    """Why the body is not known: its key was destroyed or lost. `at` is the minute then."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that was refused: nothing was stored and nothing was sent."""

    code: Code
    message: str
    next_step: str
    operation_id: str | None = None
