"""From what came back to what it means: the only reading of a provider's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forbear.rules.model import Certainty


class Meaning(StrEnum):
    NOT_SENT = "not_sent"
    NO_ANSWER = "no_answer"
    """Sent, and no complete answer: closed, timed out, truncated, unreadable without framing."""
    ACCEPTED = "accepted"
    """A submission was taken and we hold a handle."""
    UNTRACKED = "untracked"
    """A submission was taken and there is no handle."""
    WAITING = "waiting"
    BLOCKED = "blocked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN_STATE = "unknown_state"
    CONTRADICTORY = "contradictory"
    """A success state without a required field, or past a stated contradiction."""
    INVALID = "invalid"
    """A complete body that cannot be read."""
    MISMATCH = "mismatch"
    """Another job id or account than ours."""
    DONE = "done"
    """A call, result or cancellation succeeded and its required fields are there."""
    INCOMPLETE = "incomplete"
    """A 2xx of a call, result or cancellation without a required field."""
    EMPTY = "empty"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    RETRY_LATER = "retry_later"
    SERVER_ERROR = "server_error"
    """5xx or 408, answered."""
    REJECTED = "rejected"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    NOT_YET_VISIBLE = "not_yet_visible"
    GONE = "gone"
    CONFLICT = "conflict"
    """409 without a rule."""
    IN_FLIGHT = "in_flight"
    ALREADY_EXISTS = "already_exists"
    KEY_REUSED = "key_reused"
    ALREADY_TERMINAL = "already_terminal"
    UNCLEAR = "unclear"
    REDIRECT = "redirect"


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """A minimum wait the provider asked for on this answer."""

    delay: int
    """Milliseconds from the receipt of the answer; 0 if the stated time is past."""
    past: bool = False
    """A date in the past, or zero: a floor counts, not an immediate repeat."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One poll hint as read: accepted values carry `delay`, unreadable ones the reason."""

    text: str
    """Source and value, for the story; bounded."""
    delay: int | None
    rejected: str | None = None
    """`unreadable`, `negative`, `past`."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What one attempt told us, before anything is decided."""

    meaning: Meaning
    certainty: Certainty
    """Of this attempt's effect; for reads always what the wire says."""
    status: int | None = None
    answered: bool = False
    state: str | None = None
    """The provider's word or words, joined with ` · ` in the order of the reads."""
    retry_after: RetryAfter | None = None
    hints: tuple[Hint, ...] = ()
    take: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values to keep: `id`, what `take` names, and `result.x` from `success.take`."""
    missing: tuple[str, ...] = ()
    """Required fields that were absent or of the wrong type, with why."""
    failure_code: str | None = None
    failure_message: str | None = None
    progress: str | None = None
    expiry_at: int | None = None
    """The provider's own expiry of the job, epoch ms, corrected for clock skew."""
    estimate: int | None = None
    """Stated time to completion, ms."""
    partial: bool = False
    mismatch: str | None = None
    provider_request_id: str | None = None
    anomalies: tuple[str, ...] = ()
    """What was odd and ignored: an unreadable Retry-After, a malformed field."""
    fault: str | None = None
    """The sender's fault word where there was no complete answer."""
