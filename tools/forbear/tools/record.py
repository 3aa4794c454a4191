"""What a use case hands to the surface: one operation with everything a person or agent may see."""

from __future__ import annotations

from dataclasses import dataclass, field

from forbear.rules.contract import Retention
from forbear.rules.model import Case, Operation


@dataclass(frozen=True, slots=True)
class Record:
    """One operation as it stands at `as_of`, with what the store and the contract add to it."""

    operation: Operation
    as_of: int
    tasks: tuple[str, ...] = ()
    case: Case | None = None
    """The open case, if a person is asked."""
    decide_at: str | None = None
    """The case's page on the web console."""
    console_served: bool = False
    """Whether that page answers; a person decides in a terminal as long as it does not."""
    copy: bool = False
    """The store is held as a copy: nothing but lookups is sent before a person adopts it."""
    joined: bool = False
    """This call met an operation that already ran."""
    advice: str | None = None
    allowed_actions: tuple[str, ...] = ()
    """Tools that would do something for this operation now."""
    watched_until_client_closes: bool = False
    results: tuple[str, ...] = ()
    """Names that `fetch_result` takes, once the job succeeded."""
    console: str | None = None
    """The provider's own page for this job."""
    usual_end: int | None = None
    spare_waits: int | None = None
    """Waits without news so far, counted by `check_status` alone."""
    timeline: tuple[str, ...] = field(default_factory=tuple[str, ...])
    receipt: str | None = None
    kept_for: int = Retention().payloads
    """How long what was sent and answered is kept after the end, ms."""
