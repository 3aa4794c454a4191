"""What a picture of one operation shows: requests, waits, lines and decisions, each at its time.

The events are read as the story reads them (`forbear.tools.story`). The stored attempts add what
one event cannot know: when the request left, and an answer that came late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from forbear.rules.model import (
    Attempt,
    AuditEvent,
    DelaySource,
    Operation,
    Option,
    State,
    WaitingFor,
)
from forbear.storage.audit import Code
from forbear.tools.story import TIMES, Scene, scenes_of, sentence, span
from forbear.tools.untrusted import clip


class Outcome(StrEnum):
    """What came of a request, as far as HTTP tells."""

    OK = "2xx"
    LIMITED = "429"
    REFUSED = "other 3xx, 4xx"
    BROKEN = "5xx"
    SILENT = "no answer"
    UNSENT = "never sent"
    OPEN = "no outcome yet"


class Source(StrEnum):
    """Why nothing was sent for a while: where a delay comes from, or what was waited for."""

    RETRY_AFTER = "Retry-After"
    HINT = "provider's hint"
    LIMIT = "scope limit"
    BACKOFF = "local backoff"
    PACE = "budget pace"
    DECISION = "a decision"
    CIRCUIT = "open circuit"
    SLOT = "for a slot"
    QUOTA = "for the scope"
    APPROVAL = "for approval"
    CREDENTIAL = "for a credential"
    MINIMUM = "minimum pause"
    SETTLE = "to settle"
    PERSON = "for a person"
    OTHER = "to be sent"


class Rule(StrEnum):
    """A line across the picture."""

    ASKED = "asked for"
    USUAL = "usual end"
    USEFUL = "useful until"
    APPROVE = "approve before"
    DEADLINE = "deadline"
    BEFORE = "deadline before"
    EXTENDED = "extended deadline"
    NOW = "now"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Request:
    at: int
    """When it left, or was about to."""
    outcome: Outcome
    words: str


@dataclass(frozen=True, slots=True)
class Wait:
    begin: int
    end: int
    source: Source
    count: int = 1
    """How many waits of one source in a row this stands for."""
    total: int = 0
    """Milliseconds that were waited in them."""

    @property
    def words(self) -> str:
        many = f" {TIMES}{self.count}" if self.count > 1 else ""
        return f"{self.source}{many}, {span(self.total) if self.total >= 1_000 else 'under 1 s'}"


@dataclass(frozen=True, slots=True)
class Line:
    at: int
    rule: Rule
    words: str


@dataclass(frozen=True, slots=True)
class Decision:
    at: int
    words: str


@dataclass(frozen=True, slots=True)
class Moments:
    """All that happened in the order of time; `begin` to `end` holds every time in it."""

    requests: tuple[Request, ...]
    waits: tuple[Wait, ...]
    lines: tuple[Line, ...]
    decisions: tuple[Decision, ...]

    @property
    def times(self) -> list[int]:
        """Each time at which something is shown, sorted; never empty."""
        marks: list[Request | Decision | Line] = [*self.requests, *self.decisions, *self.lines]
        ends = {at for wait in self.waits for at in (wait.begin, wait.end)}
        return sorted(ends.union(each.at for each in marks))


def moments(
    op: Operation, events: Sequence[AuditEvent], attempts: Sequence[Attempt], now: int
) -> Moments:
    """What the trail of an operation holds. Times are milliseconds since the epoch.

    `events` and `attempts` are all of this operation, in their order; `now` counts only while it
    runs.
    """
    known = {attempt.id: attempt for attempt in attempts}
    scenes = list(scenes_of(events))
    last = max([op.created_at, *(scene.at for scene in scenes)])
    if not op.final:
        last = max(last, now)
    requests = [_request(scene, known) for scene in scenes if scene.step is not None]
    return Moments(
        requests=tuple(sorted(requests, key=lambda each: each.at)),
        waits=tuple(_waits(op, scenes, known, last)),
        lines=tuple(sorted(_lines(op, scenes, last), key=lambda each: each.at)),
        decisions=tuple(
            Decision(scene.at, _chosen(scene)) for scene in scenes if scene.code is Code.DECIDED
        ),
    )


def _left_at(scene: Scene, attempts: dict[str, Attempt]) -> int:
    attempt = attempts.get(str(scene.body.get("attempt")))
    return scene.at if attempt is None or scene.step is None else attempt.reserved_at


def _request(scene: Scene, attempts: dict[str, Attempt]) -> Request:
    attempt = attempts.get(str(scene.body.get("attempt")))
    late = attempt is not None and attempt.late
    status = attempt.status if attempt is not None and late else scene.body.get("http")
    words = f"{sentence(scene)}; answered late" if late else sentence(scene)
    return Request(_left_at(scene, attempts), _outcome(scene, status), words)


def _outcome(scene: Scene, status: object) -> Outcome:
    if isinstance(status, int):
        if status == 429:
            return Outcome.LIMITED
        return {2: Outcome.OK, 5: Outcome.BROKEN}.get(status // 100, Outcome.REFUSED)
    return {Code.NOT_SENT: Outcome.UNSENT, Code.RESERVED: Outcome.OPEN}.get(
        scene.code or Code.LOST, Outcome.SILENT
    )


# --- waits ----------------------------------------------------------------------------------

_BY_SOURCE = {
    DelaySource.PROVIDER_RETRY_AFTER: Source.RETRY_AFTER,
    DelaySource.PROVIDER_POLL_HINT: Source.HINT,
    DelaySource.SCOPE_LIMIT: Source.LIMIT,
    DelaySource.LOCAL_BACKOFF: Source.BACKOFF,
    DelaySource.BUDGET_PACE: Source.PACE,
    DelaySource.MANUAL_EXTENSION: Source.DECISION,
    DelaySource.CIRCUIT_OPEN: Source.CIRCUIT,
}
_BY_NEED = {
    WaitingFor.SLOT: Source.SLOT,
    WaitingFor.SCOPE: Source.QUOTA,
    WaitingFor.APPROVAL: Source.APPROVAL,
    WaitingFor.CREDENTIAL: Source.CREDENTIAL,
    WaitingFor.SETTLE: Source.SETTLE,
}
_AT_REST = frozenset(
    {State.SENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED, State.DISCARDED}
)


def _source(scene: Scene) -> Source | None:
    """For what an operation waits after a scene; None if it does not."""
    state = scene.after.get("state")
    if state in _AT_REST or scene.code is Code.RESERVED:
        return None
    if state == State.ESCALATED:
        return Source.PERSON
    need, source = scene.after.get("waiting_for"), scene.after.get("delay_source")
    if need in _BY_NEED:
        return _BY_NEED[WaitingFor(need)]
    if source in _BY_SOURCE:
        return _BY_SOURCE[DelaySource(source)]
    if need == WaitingFor.PROVIDER and state == State.QUEUED:
        return Source.MINIMUM
    return Source.OTHER if scene.after.get("next_at") is not None else None


def _waits(
    op: Operation, scenes: Sequence[Scene], attempts: dict[str, Attempt], last: int
) -> Iterator[Wait]:
    """Times without a request under way: each ends where a request leaves or its source changes.

    A delay that is planned is shown to its end; how long others take nobody knows.
    """
    begin, source = 0, None
    for scene in scenes:
        until = _left_at(scene, attempts)
        follows = _source(scene)
        if source is not None and (scene.step is not None or follows is not source):
            yield from _wait(begin, until, source)
            source = None
        if source is None:
            begin, source = scene.at, follows
    if source is not None and not op.final:
        planned = op.next_at if source in _BY_SOURCE.values() else None
        yield from _wait(begin, max(last, planned or last), source)


def _wait(begin: int, end: int, source: Source) -> Iterator[Wait]:
    if end - begin >= 1_000 or (end > begin and source is not Source.OTHER):
        yield Wait(begin, end, source, total=end - begin)


def joined(first: Wait, second: Wait) -> Wait:
    """Two waits of one source as one that stands for both."""
    return replace(
        first,
        end=second.end,
        count=first.count + second.count,
        total=first.total + second.total,
    )


# --- lines and decisions --------------------------------------------------------------------


def _lines(op: Operation, scenes: Sequence[Scene], last: int) -> Iterator[Line]:
    yield _line(op.created_at, Rule.ASKED)
    if op.expected_at is not None:
        yield _line(op.expected_at, Rule.USUAL)
    if op.useful_until is not None:
        yield _line(op.useful_until, Rule.USEFUL)
    if op.approve_by is None:
        before = _deadlines(scenes)
        yield from (_line(at, Rule.BEFORE) for at in before)
        yield _line(op.deadline_at, Rule.EXTENDED if before else Rule.DEADLINE)
    elif not op.final:
        yield _line(op.approve_by, Rule.APPROVE)
    yield Line(last, Rule.ENDED, str(op.state)) if op.final else _line(last, Rule.NOW)


def _line(at: int, rule: Rule) -> Line:
    return Line(at, rule, str(rule))


def _deadlines(scenes: Sequence[Scene]) -> list[int]:
    """Deadlines that a person moved; approval starts a deadline, it does not move one."""
    moved: list[int] = []
    stood: int | None = None
    for scene in scenes:
        at = scene.body.get("set", {}).get("deadline_at")
        if not isinstance(at, int) or at == stood:
            continue
        decided = scene.code is Code.DECIDED and scene.body.get("option") != Option.APPROVE
        if stood is not None and decided:
            moved.append(stood)
        stood = at
    return moved


def _chosen(scene: Scene) -> str:
    who = clip(str(scene.body.get("operator") or "a person"), 20)
    option = clip(str(scene.body.get("option") or "decided"), 30).replace("_", " ")
    longer = scene.body.get("extend_by")
    return f"{who}: {option}{f' {span(longer)}' if isinstance(longer, int) and longer else ''}"
