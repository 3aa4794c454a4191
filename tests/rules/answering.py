"""A small job and call as contract values, and replies to them, for the tests of reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forbear.rules.contract import (
    CLASSES,
    Auth,
    Backoff,
    Call,
    Contract,
    Expiry,
    Extension,
    FailureDetail,
    Header,
    Hints,
    Idempotency,
    Job,
    Limits,
    Read,
    Request,
    Requirement,
    Retention,
    Row,
    States,
    Success,
    Unit,
)
from forbear.rules.facts import Facts
from forbear.rules.model import JobClass, RequestClass
from forbear.rules.notation import parse_pointer, parse_source, parse_template
from forbear.rules.ports import Reply
from forbear.rules.signals import Signal, read

NOW = 1_796_040_000_000
"""2026-11-30 12:00:00 UTC."""

WAITING = JobClass.WAITING


def rows(**words: str | tuple[str, ...]) -> tuple[Row, ...]:
    """`rows(waiting=("queued", "running"), succeeded="done")` for a single read."""
    return tuple(
        Row((word,), JobClass(means))
        for means, found in words.items()
        for word in ((found,) if isinstance(found, str) else found)
    )


STATES = States(
    (parse_pointer("/state"),),
    rows(
        waiting=("queued", "running"),
        blocked="needs_input",
        succeeded="done",
        failed="failed",
        cancelled="cancelled",
        expired="expired",
    ),
    progress=parse_pointer("/progress"),
)

SUBMIT = Request(
    "submit",
    "POST",
    path=parse_template("/exports"),
    body={"dataset": parse_template("{arg.dataset}"), "client_ref": parse_template("{ref}")},
    take=(("id", parse_pointer("/job_id")),),
    request_class=RequestClass.UNCERTAIN_WRITE,
)
STATUS = Request("status", "GET", path=parse_template("/exports/{id}"))
RESULT = Request(
    "result",
    "GET",
    url=parse_template("{result.url}"),
    authenticate=False,
    hosts=("files.exp.example",),
)
CANCEL = Request(
    "cancel",
    "POST",
    path=parse_template("/exports/{id}/cancel"),
    request_class=RequestClass.UNCERTAIN_WRITE,
)
FAILURE = FailureDetail((parse_pointer("/error/code"),), (parse_pointer("/error/message"),))

JOB = Job(
    name="export",
    title="Export",
    description="",
    label=parse_template("Export {arg.dataset}"),
    input={},
    identity=None,
    repeat="ask",
    repeat_window=600_000,
    on_failure="note",
    rules=(),
    failure=FAILURE,
    send=SUBMIT,
    idempotency=None,
    lookup=None,
    approve_within=86_400_000,
    binding="b",
    section="s",
    status=STATUS,
    states=STATES,
    success=Success(
        require=(Requirement(parse_pointer("/result/url"), "url"),),
        take=(("url", parse_pointer("/result/url")),),
    ),
    limits=Limits(600_000, 2_400_000, 12, 3, 3, None, Extension(900_000, 4, 1)),
    backoff=Backoff(5_000, 120_000),
    hints=Hints(((Header("Retry-After"), Unit.RETRY_AFTER),), 2_000, 1_200_000),
    expiry=Expiry(),
    results={"result": RESULT},
    cancel=CANCEL,
)

TRANSFER = Request(
    "call",
    "POST",
    path=parse_template("/transfers"),
    body={"amount": parse_template("{arg.amount}"), "reference": parse_template("{ref}")},
    take=(("id", parse_pointer("/id")),),
    require=(Requirement(parse_pointer("/id"), "non_empty"),),
    echo=((parse_pointer("/amount"), parse_template("{arg.amount}")),),
    request_class=RequestClass.IDEMPOTENT_WRITE,
)
CALL = Call(
    name="transfer",
    title="Transfer",
    description="",
    label=None,
    input={},
    identity=None,
    repeat="ask",
    repeat_window=600_000,
    on_failure="note",
    rules=(),
    failure=FAILURE,
    send=TRANSFER,
    idempotency=Idempotency("header", "Idempotency-Key"),
    lookup=None,
    approve_within=86_400_000,
    binding="b",
    section="s",
    deadline=900_000,
    page=None,
    coalesce=None,
    instead_of_many=None,
    walk_limit=None,
)

CONTRACT = Contract(
    provider="exp",
    title="Exports",
    base_url="https://api.exp.example/v1",
    allow_hosts=("files.exp.example", "*.blob.example"),
    console=parse_template("https://exp.example/jobs/{id}"),
    docs=None,
    checked=None,
    auth=Auth(),
    account={"id": "acct_17"},
    account_check=None,
    headers=(("Exp-Version", "2026-01-01"),),
    scopes=(),
    classes=CLASSES,
    resends_below=0,
    separate_operator=False,
    retention=Retention(),
    remind=(),
    abandon_after=None,
    jobs={"export": JOB},
    calls={"transfer": CALL},
    examples=(),
    file="exp.toml",
    digest="d",
)

FACTS = Facts(
    arguments={"dataset": "sales-2026", "amount": 12500, "currency": "EUR", "to": "acct_42"},
    account={"id": "acct_17"},
    ref="fb-ref-1",
    take={"id": "exp_71c"},
    submitted_at=NOW - 600_000,
)
UNSENT = replace(FACTS, take={}, submitted_at=None)


def reply(
    status: int,
    body: str | bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    framed: bool = True,
    url: str = "https://api.exp.example/v1/exports",
) -> Reply:
    """A complete answer; `framed` states its length, as most providers do."""
    octets = body.encode() if isinstance(body, str) else body
    fields = dict(headers or {})
    if framed:
        fields.setdefault("Content-Length", str(len(octets)))
    return Reply(
        sent=True,
        complete=True,
        started_at=NOW - 100,
        ended_at=NOW,
        status=status,
        headers=tuple(fields.items()),
        body=octets,
        url=url,
    )


def no_reply(*, sent: bool = True, fault: str = "timeout") -> Reply:
    return Reply(sent=sent, complete=False, started_at=NOW - 100, ended_at=NOW, fault=fault)


def on_status(answer: Reply, job: Job = JOB, facts: Facts = FACTS) -> Signal:
    return read(answer, CONTRACT, job, job.status, facts, NOW)


def on_submit(answer: Reply, job: Job = JOB, facts: Facts = UNSENT) -> Signal:
    return read(answer, CONTRACT, job, job.send, facts, NOW)


def on_call(answer: Reply, call: Call = CALL, facts: Facts = UNSENT) -> Signal:
    return read(answer, CONTRACT, call, call.send, facts, NOW)


def on_result(answer: Reply, job: Job = JOB, facts: Facts = FACTS) -> Signal:
    return read(answer, CONTRACT, job, job.results["result"], facts, NOW)


def with_states(*reads: Read | str, table: tuple[Row, ...], ignore_case: bool = False) -> Job:
    sources = tuple(parse_source(one) if isinstance(one, str) else one for one in reads)
    return replace(JOB, states=States(sources, table, ignore_case))
