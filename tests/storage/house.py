"""A store with one process on it, driven by hand: no event loop, no worker, no network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from tests import stores
from tests.support import FixedRandom, ManualClock

from forbear.rules import signals
from forbear.rules.contract import Contract, Job
from forbear.rules.contract_file import parse
from forbear.rules.decisions import Wish
from forbear.rules.facts import facts_of
from forbear.rules.model import Attempt, AuditEvent, Case, Kind, Operation, Option, Priority, State
from forbear.rules.model import Refusal as Refusal
from forbear.rules.ports import Reply
from forbear.rules.steps import request_of
from forbear.storage import audit, rows, verifying
from forbear.storage.accepting import Accepted, Draft
from forbear.storage.database import Database
from forbear.storage.deciding import Decided
from forbear.storage.keyfiles import Places
from forbear.storage.ledger import Ledger
from forbear.storage.liveness import Liveness
from forbear.storage.postgres import Postgres
from forbear.storage.reserving import Reserved
from forbear.storage.schema import attempts, cases, events, operations
from forbear.storage.tokens import TokenReserved
from forbear.storage.transitions import Holding, load
from forbear.tools import drafts

T = TypeVar("T")

KEY = b"k" * 52
MINUTE = 60_000

CONTRACT = """\
contract = 1
provider = "exp"
base_url = "https://api.exp.example/v1"
auth = "bearer env:EXP_TOKEN"
account = { id = "acct_17" }

[scopes.account]
per = "account"
rate = "1000/1s"
max_concurrent_requests = 2

[jobs.export]
label = "Export {arg.dataset}"
usual = "10m"
deadline = "40m"
submit = "POST /exports"
body = { dataset = "{arg.dataset}", client_ref = "{ref}" }
id = "/id"
status = "GET /exports/{id}"
state = "/state"
waiting = ["queued", "running"]
succeeded = ["done"]
failed = ["failed"]
cancelled = ["cancelled"]
blocked = ["paused"]

[jobs.export.limits]
max_status_requests = 4
max_transport_failures = 3
max_rate_limited = 2
extension = { by = "15m", status_requests = 4, times = 1 }

[jobs.export.backoff]
base = "5s"
max = "2m"
first = "5s"

[jobs.export.success]
require = { "/result/url" = "url" }
take = { url = "/result/url" }

[jobs.export.result]
method = "GET"
url = "{result.url}"

[jobs.export.cancel]
method = "POST"
path = "/exports/{id}/cancel"
approval = "none"

[jobs.payout]
label = "Pay out {arg.dataset}"
deadline = "40m"
usual = "10m"
repeat = "join"
approve_within = "2h"
body = { dataset = "{arg.dataset}" }
id = "/id"
status = "GET /payouts/{id}"
state = "/state"
waiting = ["running"]
succeeded = ["done"]
failed = ["failed"]

[jobs.payout.submit]
method = "POST"
path = "/payouts"
approval = "per_call"
"""


def contract(text: str = CONTRACT) -> Contract:
    parsed = parse(text, "exp.toml", lambda name: None)
    assert isinstance(parsed, Contract), [str(one) for one in parsed]
    return parsed


def holding(
    job: str = "export",
    *,
    credential: str | None = "fp-1",
    version: str = "v-1",
    text: str = CONTRACT,
) -> Holding:
    """What a process brings that has the contract and a credential."""
    made = contract(text)
    return Holding(made, made.jobs[job], credential, version)


# --- answers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a request: an answer, or how it was lost."""

    status: int | None = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    sent: bool = True
    fault: str | None = None


ACCEPTED = Said(202, {"id": "exp_1", "state": "queued"})
RUNNING = Said(200, {"id": "exp_1", "state": "running"})
DONE = Said(
    200, {"id": "exp_1", "state": "done", "result": {"url": "https://api.exp.example/v1/f"}}
)
FAILED = Said(200, {"id": "exp_1", "state": "failed"})
LOST = Said(None, sent=True, fault="closed")
UNSENT = Said(None, sent=False, fault="connect")
LIMITED = Said(429, {"error": "later"}, (("Retry-After", "30"),))
BUSY = Said(503, {"error": "busy"})
DENIED = Said(401, {"error": "who"})


def reply(said: Said, at: int) -> Reply:
    return Reply(
        sent=said.sent,
        complete=said.status is not None and said.fault is None,
        started_at=at,
        ended_at=at,
        status=said.status,
        headers=(("Content-Type", "application/json"), *said.headers),
        body=b"" if said.body is None else json.dumps(said.body).encode(),
        url="https://api.exp.example/v1/exports",
        fault=said.fault,
        detail="",
    )


# --- the house ------------------------------------------------------------------------------


class Served:
    """A database on a server, as a `Database` is used here."""

    def __init__(self, url: str, home: Path, clock: ManualClock) -> None:
        opened = Postgres(url, home, Places(home / "keys"), clock, own_time=True)
        self.path: Any = url  # as `verifying.read` takes it
        self.log = opened.log
        self.readers = opened.readers
        self.units = opened.writers.sync_engine
        """Transactions."""
        self.writer = opened.readers.execution_options(audit=opened.log).sync_engine
        """Statements, each by itself."""
        self.close = opened.close
        self.promote = opened.promote
        self.changed_elsewhere = opened.changed_elsewhere
        self.version = opened.version
        self.forget_deleted = opened.forget_deleted


class House:
    """One process on one store. `neighbour` is another process on the same store."""

    @stores.inside
    def __init__(
        self,
        home: Path,
        clock: ManualClock,
        random: FixedRandom,
        owner: str = "own_a",
        *,
        claimed: bool = True,
    ) -> None:
        self.home = home
        self.clock = clock
        self.random = random
        url = stores.url_of(home)
        self.database = Database(home / "forbear.db") if url is None else Served(url, home, clock)
        self.liveness = Liveness(home / "run", owner)
        if claimed:
            self.liveness.claim()
        self.ledger = Ledger(clock, random, self.liveness)

    @stores.inside
    def close(self) -> None:
        """Leave as a process that was told to."""
        stores.finished(self.database.close())
        self.liveness.release()

    @contextmanager
    def neighbour(self, owner: str = "own_b") -> Iterator[House]:
        other = House(self.home, self.clock, self.random, owner)
        try:
            yield other
        finally:
            other.close()

    # --- transactions -----------------------------------------------------------------------

    @stores.inside
    def write(self, unit: Callable[[Connection], T]) -> T:
        if isinstance(self.database, Served):
            with self.database.units.begin() as connection:
                # What goes to the driver without a detour begins no transaction.
                connection.exec_driver_sql("SELECT 1")
                return unit(connection)
        with self.database.lock.held(), self.database.writer.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                value = unit(connection)
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            connection.exec_driver_sql("COMMIT")
            return value

    @stores.inside
    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """One statement, by itself."""
        if isinstance(self.database, Served):
            number = count(1)
            if statement.startswith(("DROP", "ALTER", "CREATE")):
                stores.change(self.home)
            # A trigger belongs to its table, and is not found by its name alone.
            dropped = re.fullmatch(r"DROP TRIGGER (\w+)", statement)
            if dropped is not None:
                statement = f"DROP FUNCTION {dropped[1]} CASCADE"
            statement = re.sub(r"\?", lambda _: f"${next(number)}", statement)
        with self.database.writer.connect() as connection:
            found = connection.exec_driver_sql(statement, parameters)
            return [tuple(row) for row in found] if found.returns_rows else []

    def draft(
        self,
        dataset: str = "sales",
        *,
        job: str = "export",
        key: str | None = None,
        principal: str = "local",
        task: str | None = None,
        held: Holding | None = None,
    ) -> Draft:
        held = held or holding(job)
        action = held.action
        assert isinstance(action, Job)
        made = drafts.Drafter(KEY, self.random, principal).submission(
            held,
            action,
            {"dataset": dataset},
            drafts.bounds(action, None, None, None),
            drafts.Given(purpose=None, key=key, priority=Priority.INTERACTIVE, task=task),
        )
        assert isinstance(made, Draft), made
        return made

    def ask(self, dataset: str = "sales", *, job: str = "export", **wishes: Any) -> Any:
        """Ask for a job: accepted, joined, in conflict or a duplicate."""
        held = wishes.get("held") or holding(job)
        made = self.draft(dataset, job=job, **wishes)
        return self.write(lambda c: self.ledger.accept(c, made, held))

    def new(self, dataset: str = "sales", *, job: str = "export", **wishes: Any) -> Operation:
        accepted = self.ask(dataset, job=job, **wishes)
        assert isinstance(accepted, Accepted), accepted
        assert not accepted.joined, accepted
        return accepted.operation

    def draft_follow_up(self, job: Operation, kind: Kind) -> Draft:
        held = holding(job.action)
        action = held.action
        assert isinstance(action, Job)
        request = action.cancel if kind is Kind.CANCEL else action.results["result"]
        name = None if kind is Kind.CANCEL else "result"
        assert request is not None
        drafter = drafts.Drafter(KEY, self.random, job.principal)
        made = drafter.follow_up(job, kind, request, held, name=name)
        assert isinstance(made, Draft), made
        return made

    def ask_follow_up(self, job: Operation, kind: Kind) -> Accepted:
        """Ask for a job's result or cancellation."""
        made = self.draft_follow_up(job, kind)
        accepted = self.write(lambda c: self.ledger.accept(c, made, holding(job.action)))
        assert isinstance(accepted, Accepted), accepted
        return accepted

    def follow_up(self, job: Operation, kind: Kind) -> Operation:
        return self.ask_follow_up(job, kind).operation

    def reserve(self, op: Operation | str, held: Holding | str | None = "own") -> Reserved | bool:
        operation_id = op if isinstance(op, str) else op.id
        brought = holding(self.read(operation_id).action) if isinstance(held, str) else held
        step = self.write(lambda c: self.ledger.reserve(c, operation_id, brought))
        assert not isinstance(step, TokenReserved)
        return step

    def permit(self, op: Operation | str, held: Holding | str | None = "own") -> Reserved:
        """A reservation, which must be granted."""
        reserved = self.reserve(op, held)
        assert isinstance(reserved, Reserved), (reserved, self.read(op))
        return reserved

    def settle(
        self, reserved: Reserved, said: Said, result: Mapping[str, object] | None = None
    ) -> Operation:
        now = self.clock.now().wall
        came = reply(said, now)
        held, op = reserved.holding, reserved.operation
        signal = signals.read(
            came,
            held.contract,
            held.action,
            request_of(op, held.action),
            facts_of(op, held.contract, reserved.parent),
            now,
        )
        return self.write(lambda c: self.ledger.settle(c, reserved, came, signal, result))

    def send(self, op: Operation | str, said: Said) -> Operation:
        """Reserve and settle one request."""
        return self.settle(self.permit(op), said)

    def due(self, op: Operation | str) -> None:
        """Let time go by until the operation is due."""
        at = self.read(op).next_at
        assert at is not None
        self.clock.advance(max(0, at - self.clock.now().wall))

    def poll(self, op: Operation | str, said: Said) -> Operation:
        self.due(op)
        return self.send(op, said)

    def waiting(self, dataset: str = "sales", job_id: str = "exp_1") -> Operation:
        """A job that the provider took."""
        op = self.new(dataset)
        return self.send(op, Said(202, {"id": job_id, "state": "queued"}))

    def decide(
        self, op: Operation | str, option: Option, *, revision: int | None = None, **given: Any
    ) -> Decided | Refusal:
        case = self.case(op)
        assert case is not None
        held = given.pop("held", None) or holding(self.read(op).action)
        wish = Wish(option, **given)
        seen = case.revision if revision is None else revision
        by = {"by": "operator", "channel": "test"}
        return self.write(lambda c: self.ledger.decide(c, case.id, seen, wish, held, by))

    def cancel_by_decision(self, op: Operation, case: Case) -> Decided | Refusal:
        """Decide as the office does: the case allows the cancellation that it makes."""
        draft = self.draft_follow_up(op, Kind.CANCEL)
        approved = replace(draft.operation, authorisation=case.id)
        draft = replace(draft, operation=approved, approve_within=None)
        wish, by = Wish(Option.CANCEL_AT_PROVIDER), {"by": "operator"}
        return self.write(
            lambda c: self.ledger.decide(
                c, case.id, case.revision, wish, holding(op.action), by, follow_up=draft
            )
        )

    def drop(self, op: Operation) -> Operation:
        left = self.write(
            lambda c: self.ledger.drop(c, op.id, "no longer wanted", holding(op.action))
        )
        assert left is not None
        return left

    def recover(self) -> int:
        return self.write(self.ledger.recover)

    def sign_on(self, *bindings: str) -> None:
        self.write(lambda c: self.ledger.register(c, "serve", 1, bindings))

    @property
    def file(self) -> Path:
        """The file of the store, for tests that are about it."""
        if isinstance(self.database, Served):
            pytest.skip("the store is no file")
        return self.database.path

    # --- what is stored ---------------------------------------------------------------------

    @stores.inside
    def read(self, op: Operation | str) -> Operation:
        operation_id = op if isinstance(op, str) else op.id
        with self.database.writer.connect() as connection:
            found = load(connection, operation_id)
        assert found is not None
        return found

    @stores.inside
    def rows(self, query: sa.Select[*tuple[Any, ...]]) -> list[sa.RowMapping]:
        """What is stored, unsealed."""
        with self.database.writer.connect() as connection:
            return list(connection.execute(query).mappings())

    def all(self) -> list[Operation]:
        return [rows.operation(row) for row in self.rows(sa.select(operations))]

    def attempts(self, op: Operation | str) -> list[Attempt]:
        operation_id = op if isinstance(op, str) else op.id
        query = sa.select(attempts).where(attempts.c.operation_id == operation_id)
        return [rows.attempt(row) for row in self.rows(query.order_by(attempts.c.number))]

    def case(self, op: Operation | str) -> Case | None:
        """The open case."""
        found = [case for case in self.cases(op) if case.closed_at is None]
        assert len(found) <= 1
        return found[0] if found else None

    def cases(self, op: Operation | str) -> list[Case]:
        operation_id = op if isinstance(op, str) else op.id
        query = sa.select(cases).where(cases.c.operation_id == operation_id)
        return [rows.case(row) for row in self.rows(query.order_by(cases.c.number))]

    def events(self, op: Operation | str) -> list[AuditEvent]:
        operation_id = op if isinstance(op, str) else op.id
        query = audit.TOLD.where(audit.of_operation(operation_id))
        return [
            audit.event(row, self.database.log)
            for row in self.rows(query.order_by(events.c.sequence))
        ]

    def trail(self) -> list[AuditEvent]:
        """All events of the store."""
        query = audit.TOLD.order_by(events.c.sequence)
        return [audit.event(row, self.database.log) for row in self.rows(query)]

    def codes(self, op: Operation | str) -> list[str]:
        return [event.code for event in self.events(op)]

    def verified(self) -> int | None:
        """The first broken row of the trail, found with no key; None if it is whole."""
        with verifying.read(self.database.path) as evidence:
            broken = verifying.verify(evidence).broken
        return None if broken is None else broken.row


@dataclass
class Quarter:
    """Houses by the dozen: a store made once and copied."""

    folder: Path
    _made: int = field(default=0)

    def build(self) -> House:
        template = self.folder / "template"
        if not template.exists():
            House(template, ManualClock(), FixedRandom()).close()
        stores.drop(self.folder / f"home-{self._made}")
        self._made += 1
        home = self.folder / f"home-{self._made}"
        shutil.copytree(template, home, ignore=shutil.ignore_patterns("run", "*.lock"))
        stores.copy(template, home)
        return House(home, ManualClock(), FixedRandom())


BUDGETS = (
    "status_requests",
    "transport_failures",
    "rate_limited",
    "attempts",
    "wait",
    "lookups",
    "extensions",
)


def used(op: Operation) -> dict[str, int]:
    return {name: getattr(op, name).used for name in BUDGETS}


def rebuilt(history: list[AuditEvent]) -> dict[str, Any]:
    """State and budgets as the events alone tell them."""
    columns: dict[str, Any] = {}
    for event in history:
        columns |= event.body.get("set", {})
    return columns


def told(op: Operation) -> dict[str, Any]:
    """State and budgets as the row has them, under the names that the events use."""
    fields = {name: getattr(op, name) for name in (*BUDGETS, *_TOLD)}
    return rows.columns(fields)


_TOLD = ("state", "step", "certainty", "parsed", "deadline_at", "useful_until", "provider_job")


def is_due_or_asks(house: House, op: Operation) -> bool:
    """Whether an operation that is not over has its next moment, or a person who is asked."""
    return op.final or op.next_at is not None or house.case(op) is not None


def kinds(ops: list[Operation], kind: Kind) -> list[Operation]:
    return [op for op in ops if op.kind is kind]


def states(ops: list[Operation]) -> list[State]:
    return [op.state for op in ops]


def with_id(op: Operation, operation_id: str) -> Operation:
    return replace(op, id=operation_id)
