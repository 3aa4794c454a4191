"""What an answer tells whatever it means: values to keep, waits, hints, times, failure details."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forbear.rules import reading, timing
from forbear.rules.contract import Action, Contract, Header, Job, Request, Source, Unit
from forbear.rules.facts import Facts
from forbear.rules.inert import told
from forbear.rules.ports import Reply
from forbear.rules.reading import Answer
from forbear.rules.timing import Hint, Rejection, RetryAfter
from forbear.rules.values import Gap


@dataclass(frozen=True, slots=True)
class View:
    """One answer with everything that is needed to judge it."""

    answer: Answer
    contract: Contract
    action: Action
    request: Request
    facts: Facts
    now: int

    @property
    def reply(self) -> Reply:
        return self.answer.reply

    @property
    def status(self) -> int:
        return self.reply.status or 0

    @property
    def date(self) -> str | None:
        return self.reply.header("Date")

    @property
    def job(self) -> Job | None:
        """The job, where the answer is to its submission or to a status request."""
        about_job = self.request.name in ("submit", "status")
        return self.action if about_job and isinstance(self.action, Job) else None


def taken(
    view: View, take: Iterable[tuple[str, Source]], prefix: str = ""
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Values to keep, and a word on each that is there and of no use."""
    kept: dict[str, str] = {}
    unusable: list[str] = []
    for name, source in take:
        text = reading.text_at(view.answer, source)
        if not text:
            continue
        if isinstance(source, Header) and _is_address(view.action, prefix or "take.", name):
            text = reading.resolve_location(view.reply, text)
        if len(text) > reading.MAX_ADDRESS or not text.isprintable():
            unusable.append(f"{prefix}{name} is too long or has control characters")
        else:
            kept[prefix + name] = text
    return kept, tuple(unusable)


def _is_address(action: Action, prefix: str, name: str) -> bool:
    """Whether some request of a job goes to the address taken under this name."""
    if not isinstance(action, Job):
        return False
    requests = (action.status, action.cancel, *action.results.values())
    return any(
        prefix + name in one.url.names
        for one in requests
        if one is not None and one.url is not None
    )


def failure(view: View) -> tuple[str | None, str | None]:
    """The provider's own error code and message, bounded and inert."""
    detail = view.action.failure
    code, message = _first(view, detail.code), _first(view, detail.message)
    return (told(code, 100) if code else None, told(message, 500) if message else None)


def _first(view: View, sources: tuple[Source, ...]) -> str | None:
    return next((text for one in sources if (text := reading.text_at(view.answer, one))), None)


_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "x-amzn-requestid",
    "x-amz-request-id",
    "x-ms-request-id",
    "x-github-request-id",
    "x-goog-request-id",
    "x-correlation-id",
    "apigw-requestid",
    "traceid",
    "cf-ray",
)


def provider_request_id(reply: Reply) -> str | None:
    """The provider's name for this exchange, from the first field that has one."""
    found = (reply.header(name) for name in _REQUEST_IDS)
    return next((told(value.strip(), 200) for value in found if value and value.strip()), None)


def retry_after(view: View) -> tuple[RetryAfter | None, tuple[str, ...]]:
    """The wait asked for: a vendor's more exact field where the contract names one, else RFC 9110.

    Vendor fields (`retry-after-ms`, `x-amz-retry-after`) are hints of a contract whose header
    names say "retry-after"; their unit is the contract's. An unreadable one counts as absent.
    """
    for source, unit in _vendor_waits(view.action):
        text = reading.text_at(view.answer, source)
        if text is None:
            continue
        delay = timing.read_hint(text, unit, view.now, view.date)
        if delay is Rejection.PAST:
            return RetryAfter(0, past=True), ()
        if not isinstance(delay, Rejection):
            return RetryAfter(delay), ()
    return timing.longest_wait(view.reply.fields("Retry-After"), view.date, view.now)


def _vendor_waits(action: Action) -> tuple[tuple[Source, Unit], ...]:
    if not isinstance(action, Job):
        return ()
    return tuple((source, unit) for source, unit in action.hints.next if _is_wait(source, unit))


def _is_wait(source: Source, unit: Unit) -> bool:
    named = isinstance(source, Header) and "retry-after" in source.name.lower()
    return named or unit is Unit.RETRY_AFTER


def hints(view: View, job: Job) -> tuple[Hint, ...]:
    """Every poll hint that is there, in the contract's order, read or with why it is not."""
    hints: list[Hint] = []
    for source, unit in job.hints.next:
        value = reading.value_at(view.answer, source)
        if _is_wait(source, unit) or value is None or isinstance(value, Gap):
            continue
        text = reading.text_at(view.answer, source) or ""
        named = f"{reading.source_name(source)}: {told(text, 80)}"
        delay = timing.read_hint(text, unit, view.now, view.date)
        if isinstance(delay, Rejection):
            hints.append(Hint(named, None, delay.value))
        else:
            hints.append(Hint(named, delay))
    return tuple(hints)


def progress(view: View, job: Job) -> str | None:
    """The field that the contract calls progress, as bounded text."""
    if job.states.progress is None:
        return None
    text = reading.text_at(view.answer, job.states.progress)
    return None if text is None else told(text, 100)


def instant(view: View, stated: tuple[Source, Unit] | None) -> int | None:
    """A stated time, epoch ms on our clock."""
    if stated is None:
        return None
    text = reading.text_at(view.answer, stated[0])
    return None if text is None else timing.read_instant(text, stated[1], view.now, view.date)


def estimate(view: View, job: Job) -> int | None:
    """The stated time to completion, ms."""
    if job.backoff.estimate is None:
        return None
    source, unit = job.backoff.estimate
    text = reading.text_at(view.answer, source)
    delay = (
        Rejection.UNREADABLE if text is None else timing.read_hint(text, unit, view.now, view.date)
    )
    return None if isinstance(delay, Rejection) else delay
