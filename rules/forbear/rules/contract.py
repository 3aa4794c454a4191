"""The provider contract, format 1, as frozen values.

A contract says what an API promises; it holds no code and no expression. `contract_file` makes
these values from a file, after which nothing about them can be wrong: every default is filled in,
every pointer is parsed, every template names something that exists. Durations are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from forbear.rules.model import JobClass, RequestClass

# --- sources and templates ------------------------------------------------------------------


class Unit(StrEnum):
    """Units of hints, resets and expiries."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    EPOCH = "epoch"
    EPOCH_MS = "epoch_ms"
    RFC3339 = "rfc3339"
    HTTP_DATE = "http-date"
    RETRY_AFTER = "retry-after"
    GO_DURATION = "go-duration"
    ISO8601 = "iso8601"


@dataclass(frozen=True, slots=True)
class Select:
    """A pointer step `[key=value]`: the first array element whose member `key` reads `value`."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where in a JSON body; RFC 6901 steps or selections."""

    text: str
    steps: tuple[str | Select, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """A response header field; `name` keeps the spelling of the file."""

    name: str


@dataclass(frozen=True, slots=True)
class HttpStatus:
    """The status code itself, as text."""


Source = Pointer | Header | HttpStatus


@dataclass(frozen=True, slots=True)
class Placeholder:
    """`{name}`, `{+name}` or `{name:format}` in a template.

    `name` is one of `arg.x`, `account.x`, `ref`, `key`, `id`, `take.x`, `result.x`, `submitted_at`.
    """

    name: str
    raw: bool = False
    """`{+x}`: keeps slashes in a path."""
    format: str | None = None
    """`rfc3339`, `epoch`, `epoch_ms`, `date`; in labels `minor(currency)`, `bytes`, `time`."""
    offset: int = 0
    """`{submitted_at-60s}`: milliseconds added."""


@dataclass(frozen=True, slots=True)
class Template:
    """Text with placeholders. A template that is one placeholder alone keeps the value's type."""

    text: str
    parts: tuple[str | Placeholder, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(p.name for p in self.parts if isinstance(p, Placeholder))


Tree = Any
"""A JSON tree whose strings are `Template`s: dict, list, Template, int, Decimal, bool or None."""


# --- conditions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """What a source must read. Exactly one member is set."""

    values: tuple[str, ...] | None = None
    """Literals, compared as exact text; `"%null"`, `"%missing"`, `"%none"` for absent values."""
    template: Template | None = None
    contains: str | None = None
    present: bool | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """All of these must hold."""

    terms: tuple[tuple[Source, Condition], ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A field that must be there, and of what type.

    `present`, `url`, `string`, `integer` or `non_empty`.
    """

    at: Source
    type: str


class Means(StrEnum):
    """What a `[[rules]]` row says an answer means."""

    DONE = "done"
    RETRY_LATER = "retry_later"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    IN_FLIGHT = "in_flight"
    ALREADY_EXISTS = "already_exists"
    KEY_REUSED = "key_reused"
    NOT_YET_VISIBLE = "not_yet_visible"
    GONE = "gone"
    EMPTY = "empty"
    ALREADY_TERMINAL = "already_terminal"
    REJECTED = "rejected"
    AUTH = "auth"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of `[[rules]]`; the first that matches decides, before the state table."""

    means: Means
    on: frozenset[str] | None = None
    """Request names (`submit`, `status`, `result`, `cancel`, `lookup`, `call`); None is all."""
    http: frozenset[int] | None = None
    """Status codes; `"5xx"` is written out."""
    age_under: int | None = None
    age_over: int | None = None
    match: Match | None = None
    applied: bool | None = None
    """`applied = false`: such an answer proves that a write was not applied."""


# --- states ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Test:
    """A read that answers `yes` or `no`: `present`, `positive` or `after_submit`."""

    at: Source
    test: str


@dataclass(frozen=True, slots=True)
class Fold:
    """The worst word over an array: the first of `order` found in any element.

    A word outside `order` passes through (and so becomes unknown).
    """

    each: Pointer
    at: Pointer
    order: tuple[str, ...]


Read = Source | Test | Fold


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the state table: as many words as there are reads; `*` is anything."""

    words: tuple[str, ...]
    means: JobClass


@dataclass(frozen=True, slots=True)
class States:
    reads: tuple[Read, ...]
    rows: tuple[Row, ...]
    ignore_case: bool = False
    progress: Source | None = None

    @property
    def reads_http(self) -> bool:
        return any(isinstance(read, HttpStatus) for read in self.reads)

    @property
    def only_http(self) -> bool:
        return all(isinstance(read, HttpStatus) for read in self.reads)


# --- requests -------------------------------------------------------------------------------


class Effect(StrEnum):
    READ = "read"
    BILLED = "billed"
    MUTATING = "mutating"


@dataclass(frozen=True, slots=True)
class Approval:
    """`none`, `session` or `per_call`; `free` frees small amounts."""

    mode: str = "none"
    free: Mapping[str, Any] | None = None
    covers: str = "operation"
    """`operation` or `attempt` (`approval_covers`)."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Where and how the provider takes an idempotency key, and for how long it honours it."""

    place: str
    """`header`, `body`, `query` or `path`."""
    name: str
    format: str = "uuid"
    """`uuid`, `sf-string` or `text`."""
    max_length: int = 255
    window: int = 86_400_000
    stores_errors: bool = False
    on_repeat: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    query: str
    at: Source | None = None
    item: Pointer | None = None
    items: Pointer | None = None
    more: Source | None = None
    max_pages: int = 3


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a contract: how to render it and what a good answer has."""

    name: str
    """`submit`, `status`, `result`, `cancel`, `lookup` or `call`."""
    method: str
    path: Template | None = None
    url: Template | None = None
    """Instead of `path`: an address read from an answer."""
    query: tuple[tuple[str, Template], ...] = ()
    headers: tuple[tuple[str, Template], ...] = ()
    body: Tree = None
    form: tuple[tuple[str, Template], ...] = ()
    merge: tuple[tuple[Pointer, Template], ...] = ()
    ok: frozenset[int] | None = None
    """Statuses that are a success; None is any 2xx."""
    take: tuple[tuple[str, Source], ...] = ()
    require: tuple[Requirement, ...] = ()
    require_any: tuple[Requirement, ...] = ()
    echo: tuple[tuple[Source, Template], ...] = ()
    timeout: int = 30_000
    request_class: RequestClass = RequestClass.READ
    approval: Approval = Approval()
    effect: Effect = Effect.READ
    evidence: str | None = None
    authenticate: bool = True
    secret: str | None = None
    """A narrower credential of its own (`status.secret`), a reference."""
    hosts: tuple[str, ...] = ()
    redirect: str = "none"
    max_bytes: int = 1_000_000
    consequence: str | None = None
    when: tuple[str, ...] = ("succeeded",)
    """Result requests: the job states in which it may run."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """How an unclear write is found again."""

    request: Request
    items: Pointer | None
    match: Match
    take: tuple[tuple[str, Source], ...] = ()
    page: Paging | None = None
    settle: int = 60_000
    absence_proves: bool = False
    max_lookups: int = 6

    def paged(self, cursor: str | None) -> Request:
        """The request of the page that begins at `cursor`; None is the first."""
        if cursor is None or self.page is None:
            return self.request
        turned = (self.page.query, Template(cursor, (cursor,)))
        return replace(self.request, query=(*self.request.query, turned))


@dataclass(frozen=True, slots=True)
class Extension:
    by: int
    status_requests: int
    times: int


@dataclass(frozen=True, slots=True)
class Limits:
    usual: int | None
    deadline: int
    max_status_requests: int
    max_transport_failures: int
    max_rate_limited: int
    useful_for: int | None
    extension: Extension


@dataclass(frozen=True, slots=True)
class Backoff:
    base: int
    max: int
    rate_limited: int = 60_000
    first: int = 5_000
    estimate: tuple[Source, Unit] | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    next: tuple[tuple[Source, Unit], ...]
    floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class Expiry:
    job: tuple[Source, Unit] | None = None
    result: tuple[Source, Unit] | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Success:
    require: tuple[Requirement, ...] = ()
    require_any: tuple[Requirement, ...] = ()
    take: tuple[tuple[str, Source], ...] = ()
    partial: tuple[Test, ...] = ()
    then: tuple[str, ...] = ("fetch_result",)
    when_missing: str = "escalate"


@dataclass(frozen=True, slots=True)
class FailureDetail:
    """Where an error answer, or the status of a failed job, has code and message.

    Of several places the first that has a text counts.
    """

    code: tuple[Source, ...] = ()
    message: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """Numbers of a request class (`[classes.*]`)."""

    max_attempts: int
    max_wait: int
    base: int = 1_000
    max_delay: int = 60_000
    rate_limited: int = 5_000
    retry_statuses: frozenset[int] = frozenset()


CLASSES: Mapping[RequestClass, ClassLimits] = {
    RequestClass.READ: ClassLimits(
        4, 90_000, retry_statuses=frozenset({408, 429, 500, 502, 503, 504})
    ),
    RequestClass.IDEMPOTENT_WRITE: ClassLimits(
        3, 120_000, retry_statuses=frozenset({408, 429, 502, 503, 504})
    ),
    RequestClass.UNCERTAIN_WRITE: ClassLimits(1, 0),
}
"""The built-in numbers of requirement R06."""


@dataclass(frozen=True, slots=True)
class Action:
    """What an agent can name: a job or a call."""

    name: str
    title: str
    description: str
    label: Template | None
    input: Mapping[str, Any]
    """JSON Schema of the agent's arguments."""
    identity: tuple[str, ...] | None
    """Argument names that make the intent; None is all."""
    repeat: str
    """`ask`, `join`, `key` or `free`."""
    repeat_window: int
    on_failure: str
    """`note` or `ask`."""
    rules: tuple[Rule, ...]
    """The action's own rules, then the provider's."""
    failure: FailureDetail
    send: Request
    """The action's own request: the submission of a job, the request of a call."""
    idempotency: Idempotency | None
    lookup: Lookup | None
    approve_within: int
    binding: str
    """Digest of what must not change under a running operation (requirement W08)."""
    section: str
    """Digest of the whole section, to note in a story that a contract changed."""


@dataclass(frozen=True, slots=True)
class Job(Action):
    status: Request
    states: States
    success: Success
    limits: Limits
    backoff: Backoff
    hints: Hints
    expiry: Expiry
    results: Mapping[str, Request]
    """By name; the single `result` has the name `result`."""
    cancel: Request | None


@dataclass(frozen=True, slots=True)
class Call(Action):
    deadline: int
    page: Paging | None
    coalesce: int | None
    instead_of_many: str | None
    walk_limit: int | None


@dataclass(frozen=True, slots=True)
class Scope:
    """A limit shared by every process on the store."""

    name: str
    per: str
    """`provider`, `host`, `account`, `credential` or `account+action`."""
    actions: tuple[str, ...] = ("*",)
    rate: tuple[int, int] = (2, 1_000)
    """Published limit: so many per so many ms; Forbear keeps to 90 % of it."""
    reserve: float = 0.1
    max_concurrent_requests: int = 2
    max_delayed_requests: int = 25
    retry_budget: tuple[int, int] | None = None
    max_block: int = 3_600_000
    wait_until_reset: int = 43_200_000
    remaining: Source | None = None
    reset: tuple[Source, Unit] | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    """References to secrets, never secrets.

    `none`; `bearer`: secret; `basic`: user, password; `header`, `query`, `body`: name, secret, of
    which a header may have a prefix;
    `oauth2_client`: token_url, client_id, client_secret, scope, client_auth, client_id_header.
    """

    scheme: str = "none"
    name: str | None = None
    secret: str | None = None
    user: str | None = None
    password: str | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    exec: tuple[str, ...] | None = None
    """The argument list where the secret is an `exec:` reference."""
    client_auth: str | None = None
    """How a client shows its secret: `basic` (if None) or `post`."""
    client_id_header: str | None = None
    """Header field that takes the client id beside the token."""
    prefix: str | None = None
    """Word before the secret of `header`, with a blank between the two."""

    def narrowed(self, secret: str) -> Auth:
        """The same way in with another secret; `basic` takes it as its password."""
        if self.scheme == "basic":
            return replace(self, password=secret)
        return replace(self, secret=secret)


@dataclass(frozen=True, slots=True)
class Example:
    """An answer with what must be concluded from it; replayed offline."""

    on: str
    """`jobs.export.status`, `calls.transfer`, …"""
    http: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    expect: str
    line: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is kept, ms from its end."""

    payloads: int = 30 * 86_400_000
    """Arguments, answers, results and texts."""
    identities: int = 400 * 86_400_000
    """That there was this operation: its key, intent, reference, provider's id, certainty."""


ACCOUNT_CHECK = "account.check"
"""The name of the action that `[account] check` makes; no file can give this name to another."""


@dataclass(frozen=True, slots=True)
class Contract:
    provider: str
    title: str
    base_url: str
    """Without a trailing slash."""
    allow_hosts: tuple[str, ...]
    console: Template | None
    docs: str | None
    checked: str | None
    """ISO date of the last check against the provider's documentation."""
    auth: Auth
    account: Mapping[str, str]
    """`id` is part of the identity of every operation; the rest is for `{account.x}`."""
    account_check: Call | None
    """The read that shows whose a credential is: `[account] check`."""
    headers: tuple[tuple[str, str], ...]
    scopes: tuple[Scope, ...]
    classes: Mapping[RequestClass, ClassLimits]
    resends_below: int
    """How many more times a layer between us and the provider may send one of our requests."""
    remind: tuple[int, ...]
    abandon_after: int | None
    separate_operator: bool
    """Decisions come only from another user than the one whom the store belongs to."""
    retention: Retention
    jobs: Mapping[str, Job]
    calls: Mapping[str, Call]
    examples: tuple[Example, ...]
    file: str
    """Where it was read from, for messages."""
    digest: str
    """Digest of the file's text."""

    def action(self, name: str) -> Action | None:
        if name == ACCOUNT_CHECK:
            return self.account_check
        return self.jobs.get(name) or self.calls.get(name)

    def attempts(self, request_class: RequestClass) -> int:
        """Attempts of one operation: each counts as all the requests that may come of it below.

        At least one, though that one may then be more requests than the class allows.
        """
        return max(1, self.classes[request_class].max_attempts // (1 + self.resends_below))


@dataclass(frozen=True, slots=True)
class ContractError:
    """One mistake in a contract file: where it is and how to mend it."""

    file: str
    line: int
    key: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.key}: {self.problem} -> {self.fix}"
