"""The tables, with constraints that make illegal rows impossible.

The CHECK lists are made from the enums of the rules, so that table and store cannot disagree.
Times are integer milliseconds UTC. Indexes on live rows are partial: a store with a million ended
operations schedules as fast as an empty one.
"""

from __future__ import annotations

from enum import StrEnum

import sqlalchemy as sa

from forbear.rules.model import (
    FINAL,
    Certainty,
    DelaySource,
    Kind,
    Option,
    Priority,
    Reason,
    RequestClass,
    State,
    Step,
    Trigger,
    WaitingFor,
)
from forbear.storage.dialects import NUMBER, Digest, partial
from forbear.storage.vault import (
    Sealed,
    SealedJSON,
    SealedList,
    SealedObject,
    SealedText,
    SealedWord,
)

GENERATION = "0013"
"""The schema this program reads and writes: the newest migration."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

JSON = sa.JSON(none_as_null=True)


def _one_of(column: str, values: type[StrEnum]) -> sa.CheckConstraint:
    words = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({words})", name=column)


FINAL_STATES = ", ".join(f"'{state}'" for state in State if state in FINAL)
LIVE = f"state NOT IN ({FINAL_STATES})"
FULL = f"state IN ({FINAL_STATES}) AND emptied_at IS NULL"
UNSENT = "step = 'send' AND state IN ('queued', 'delayed')"
PLAIN_READ = "kind = 'call' AND request_class = 'read'"
WRITES = "request_class <> 'read'"

BUDGETS = (
    "status_requests",
    "transport_failures",
    "rate_limited",
    "attempts",
    "wait",
    "lookups",
    "extensions",
)
"""Budgets of an operation: each has a column `_used` that never falls and a column `_max`."""


def _budget_columns() -> list[sa.Column[int]]:
    return [
        sa.Column(f"{name}_{part}", sa.BigInteger, nullable=False, server_default="0")
        for name in BUDGETS
        for part in ("used", "max")
    ]


operations = sa.Table(
    "operations",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("request_class", sa.Text, nullable=False),
    sa.Column("priority", sa.Text, nullable=False),
    sa.Column("label", SealedText("operations.label")),
    sa.Column("purpose", SealedText("operations.purpose")),
    sa.Column("arguments", SealedObject("operations.arguments"), nullable=False),
    sa.Column("intent", Digest, nullable=False),
    sa.Column("key", sa.Text),
    sa.Column("ref", sa.Text, nullable=False),
    sa.Column("wire_key", sa.Text),
    sa.Column("binding", Digest, nullable=False),
    sa.Column("section", Digest, nullable=False),
    sa.Column("request_digest", Digest, nullable=False),
    sa.Column("parent_id", sa.Text),
    sa.Column("superseded_by", sa.Text),
    sa.Column("result_name", sa.Text),
    sa.Column("authorisation", sa.Text, nullable=False),
    sa.Column("deadline_at", sa.BigInteger, nullable=False),
    sa.Column("useful_until", sa.BigInteger),
    sa.Column("approve_by", sa.BigInteger),
    sa.Column("approve_deadline", sa.BigInteger),
    sa.Column("timeout", sa.BigInteger, nullable=False),
    *_budget_columns(),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("next_at", sa.BigInteger),
    sa.Column("delay", sa.BigInteger),
    sa.Column("delay_source", sa.Text),
    sa.Column("waiting_for", sa.Text),
    sa.Column("sent_at", sa.BigInteger),
    sa.Column("accepted_at", sa.BigInteger),
    sa.Column("observed_at", sa.BigInteger),
    sa.Column("parsed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("provider_job", sa.Text),
    sa.Column("provider_state", SealedText("operations.provider_state")),
    sa.Column("terminal_seen", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("progress", SealedText("operations.progress")),
    sa.Column("progress_at", sa.BigInteger),
    sa.Column("take", SealedObject("operations.take"), nullable=False),
    sa.Column("certainty", sa.Text, nullable=False),
    sa.Column("http_status", sa.Integer),
    sa.Column("http_at", sa.BigInteger),
    sa.Column("provider_request_id", sa.Text),
    sa.Column("sent", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("answered", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("provider_expiry_at", sa.BigInteger),
    sa.Column("expected_at", sa.BigInteger),
    sa.Column("failure", SealedJSON("operations.failure")),
    sa.Column("result", SealedJSON("operations.result")),
    sa.Column("validated", sa.Boolean),
    sa.Column("notices", JSON, nullable=False),
    sa.Column("treat", SealedObject("operations.treat"), nullable=False),
    sa.Column("once", sa.Text),
    sa.Column("pending", SealedJSON("operations.pending")),
    sa.Column("once_until", sa.BigInteger),
    sa.Column("emptied_at", sa.BigInteger),
    sa.Column("search", SealedJSON("operations.search")),
    sa.Column("not_before", sa.BigInteger),
    sa.Column("client", sa.Text),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_boot", sa.Text),
    sa.Column("lease_until", sa.BigInteger),
    sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    _one_of("state", State),
    _one_of("kind", Kind),
    _one_of("step", Step),
    _one_of("request_class", RequestClass),
    _one_of("priority", Priority),
    _one_of("certainty", Certainty),
    _one_of("waiting_for", WaitingFor),
    _one_of("delay_source", DelaySource),
    sa.CheckConstraint(
        f"({LIVE}) OR (next_at IS NULL AND lease_owner IS NULL)", name="final_rests"
    ),
    sa.CheckConstraint(
        "state <> 'escalated' OR (next_at IS NULL AND lease_owner IS NULL)", name="escalated_rests"
    ),
    sa.CheckConstraint(
        f"state = 'escalated' OR ({LIVE}) = (next_at IS NOT NULL)", name="live_is_due"
    ),
    sa.CheckConstraint(
        "state <> 'sending' OR (sent_at IS NOT NULL AND lease_owner IS NOT NULL)",
        name="sending_is_leased",
    ),
    sa.CheckConstraint("(state = 'waiting') <= (accepted_at IS NOT NULL)", name="waiting_has_job"),
    sa.CheckConstraint("state <> 'waiting' OR kind = 'job'", name="only_jobs_wait"),
    sa.CheckConstraint(
        "(lease_owner IS NULL) = (lease_until IS NULL)"
        " AND (lease_owner IS NULL) = (lease_boot IS NULL)",
        name="lease_whole",
    ),
    sa.CheckConstraint("fence >= 0 AND revision >= 1", name="versions_count"),
    *(
        sa.CheckConstraint(f"{name}_used >= 0 AND {name}_max >= 0", name=f"{name}_counts")
        for name in BUDGETS
    ),
)

partial("ix_operations_due", operations.c.next_at, where=LIVE)
partial("ix_operations_written", operations.c.updated_at, where=LIVE)
partial(
    "ix_operations_kept",
    operations.c.provider,
    operations.c.updated_at,
    where=FULL,
)
partial(
    "ix_operations_emptied",
    operations.c.provider,
    operations.c.updated_at,
    where=operations.c.emptied_at.is_not(None),
)
sa.Index("ix_operations_intent", operations.c.intent)
partial(
    "ix_operations_unsent",
    operations.c.provider,
    operations.c.account,
    operations.c.action,
    where=UNSENT,
)
sa.Index("ix_operations_parent", operations.c.parent_id)
partial(
    "ix_operations_walk",
    operations.c.principal,
    operations.c.provider,
    operations.c.action,
    operations.c.created_at,
    where=PLAIN_READ,
)
partial(
    "ix_operations_writes",
    operations.c.provider,
    operations.c.account,
    operations.c.updated_at,
    where=WRITES,
)
partial(
    "uq_operations_key",
    operations.c.principal,
    operations.c.provider,
    operations.c.account,
    operations.c.action,
    operations.c.key,
    where=operations.c.key.is_not(None),
    unique=True,
)
partial(
    "uq_operations_provider_job",
    operations.c.provider,
    operations.c.account,
    operations.c.action,
    operations.c.provider_job,
    where=f"provider_job IS NOT NULL AND kind = 'job' AND {LIVE}",
    unique=True,
)

requests = sa.Table(
    "requests",
    metadata,
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), primary_key=True),
    sa.Column("request", SealedJSON("requests.request"), nullable=False),
    sa.Column("body", Sealed("requests.body")),
    sa.Column("credential", sa.Text),
)
"""The rendered request of each operation, without secrets: what was approved is what runs.

`credential` is the keyed fingerprint of the one that the asking process held.
"""

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Index("ix_tasks_task", "task"),
)
"""Who wants an operation: each task that asked for it, `NO_TASK` for whoever named none."""

NO_TASK = ""
"""What holds an operation for a caller without a task: the end of no task ends it."""

ended_tasks = sa.Table(
    "ended_tasks",
    metadata,
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("ended_at", sa.BigInteger, nullable=False),
    sa.Column("why", SealedWord("ended_tasks.why"), nullable=False),
)
"""Tasks that their agent ended: they take no new work."""

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("trigger", sa.Text, nullable=False),
    sa.Column("authorisation", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("reserved_at", sa.BigInteger, nullable=False),
    sa.Column("reserved_boot", sa.BigInteger),
    sa.Column("boot_id", sa.Text),
    sa.Column("send_by", sa.BigInteger, nullable=False),
    sa.Column("hold_until", sa.BigInteger, nullable=False),
    sa.Column("request_digest", Digest, nullable=False),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("outcome", sa.Text),
    sa.Column("certainty", sa.Text),
    sa.Column("status", sa.Integer),
    sa.Column("provider_request_id", sa.Text),
    sa.Column("note", SealedText("attempts.note")),
    sa.Column("late", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("headers", SealedJSON("attempts.headers")),
    sa.Column("body", Sealed("attempts.body")),
    _one_of("step", Step),
    _one_of("trigger", Trigger),
    _one_of("certainty", Certainty),
    sa.CheckConstraint("(closed_at IS NULL) = (outcome IS NULL)", name="closed_has_outcome"),
    sa.CheckConstraint(
        "outcome IN ('answered', 'no_answer', 'not_sent', 'unknown')", name="outcome"
    ),
    sa.UniqueConstraint("operation_id", "number"),
    sa.UniqueConstraint("operation_id", "fence"),
)
partial(
    "uq_attempts_open",
    attempts.c.operation_id,
    where=attempts.c.closed_at.is_(None),
    unique=True,
)
cases = sa.Table(
    "cases",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("urgency", sa.Text, nullable=False),
    sa.Column("text", SealedWord("cases.text"), nullable=False),
    sa.Column("options", SealedList("cases.options"), nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("group", sa.Text),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("closed_because", sa.Text),
    sa.Column("decision", SealedJSON("cases.decision")),
    sa.Column("about", SealedText("cases.about")),
    sa.Column("wish", SealedJSON("cases.wish")),
    sa.Column("announce_at", sa.BigInteger),
    sa.Column("announced", sa.Integer, nullable=False, server_default="0"),
    sa.Column("announce_failures", sa.Integer, nullable=False, server_default="0"),
    _one_of("reason", Reason),
    sa.CheckConstraint("decision IS NULL OR closed_at IS NOT NULL", name="decided_is_closed"),
)
partial(
    "uq_cases_open",
    cases.c.operation_id,
    where=cases.c.closed_at.is_(None),
    unique=True,
)

partial(
    "ix_cases_announce",
    cases.c.announce_at,
    where=cases.c.closed_at.is_(None),
)

authorisations = sa.Table(
    "authorisations",
    metadata,
    sa.Column("case_id", sa.Text, sa.ForeignKey("cases.id"), primary_key=True),
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), nullable=False),
    sa.Column("option", sa.Text, nullable=False),
    sa.Column("parameters", SealedObject("authorisations.parameters"), nullable=False),
    sa.Column("case_revision", sa.Integer, nullable=False),
    sa.Column("request_digest", sa.Text, nullable=False),
    sa.Column("by", SealedObject("authorisations.by"), nullable=False),
    sa.Column("granted_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("consumed_at", sa.BigInteger),
    sa.Column("attempt_id", sa.Text),
    _one_of("option", Option),
    sa.CheckConstraint(
        "(consumed_at IS NULL) = (attempt_id IS NULL)", name="consumed_by_an_attempt"
    ),
)
"""What a decision allows, bound to what was shown; the first permit consumes it."""

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("credential", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("case_id", sa.Text, nullable=False),
    sa.Column("by", SealedObject("grants.by"), nullable=False),
    sa.Column("granted_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.BigInteger),
    sa.Index("ix_grants_session", "principal", "client", "provider", "account", "action"),
)
"""Session approvals: continued access of one client to one action, with a stated end."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("operation_id", sa.Text),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("header", "body", "previous", "hash")),
    sa.Column("sealed", sa.LargeBinary),
    sa.Column("operation", NUMBER),
    *(sa.Column(name, sa.Integer) for name in ("code", "minute", "epoch")),
    sa.Column("digest", sa.LargeBinary),
    sqlite_autoincrement=True,
)
"""The audit log: only ever appended to (triggers refuse anything else).

A row has what is sealed, its hash in `digest`, and columns that its header is made of
(`audit.header_text`): the number of its operation, of its code (`audit.CODES`), of its minute since
the epoch, of its key. Its texts are empty, but for a header that says more. A row of an older
program has the texts instead, and nonce and ciphertext in `sealed`, or a plain `body`.
"""
partial(
    "ix_events_operation",
    events.c.operation_id,
    events.c.sequence,
    where=events.c.operation_id.is_not(None),
)
partial("ix_events_of", events.c.operation, where=events.c.operation.is_not(None))

audit_operations = sa.Table(
    "audit_operations",
    metadata,
    sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sqlite_autoincrement=True,
)
"""The operations that rows of the log name by a number. They outlive what retention takes."""

audit_logs = sa.Table(
    "audit_logs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.Text, nullable=False),
)
"""The one log of this store, and the key that its checkpoints are verified with (hex)."""

audit_epochs = sa.Table(
    "audit_epochs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("wrapped_key", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("first", NUMBER, nullable=False, server_default="1"),
)
"""The keys that bodies are sealed with, each wrapped with the sealing key (hex): when an epoch
began, ms, and its first row. The newest is the one in use; one that was destroyed is not here."""

data_keys = sa.Table(
    "data_keys",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("wrapped_key", sa.Text, nullable=False),
)
"""The keys that columns are sealed with (`vault`), each wrapped with the sealing key (hex)."""

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("sequence", NUMBER, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("next_key", sa.Text),
    sa.Index("ix_checkpoints_sequence", "sequence"),
)
partial(
    "ix_checkpoints_next_key",
    checkpoints.c.number,
    where=checkpoints.c.next_key.is_not(None),
)
"""Signed statements about heads of the audit log; see `sealing.Checkpoint`."""

prunings = sa.Table(
    "prunings",
    metadata,
    sa.Column("sequence", NUMBER, primary_key=True),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("row", NUMBER, nullable=False),
)
"""Up to which row the audit log may be deleted: always a signed checkpoint, and `row` is the later
row of the log that says so. Triggers see to all of it."""

scopes = sa.Table(
    "scopes",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("next_allowed_at", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("theoretical_arrival", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("background_arrival", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("remaining", sa.BigInteger),
    sa.Column("reset_at", sa.BigInteger),
    sa.Column("source", sa.Text),
    sa.Column("slowed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("slowed_at", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("exhausted_case", sa.Text),
    sa.Column("turn", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)
"""What is known of each shared limit; slots are not here: they are the open attempts."""

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("attempt_id", sa.Text, sa.ForeignKey("attempts.id"), primary_key=True),
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("reserved_at", sa.BigInteger, nullable=False),
    sa.Column("hold_until", sa.BigInteger, nullable=False),  # 0 once its attempt is closed
    sa.Column("extra", sa.Boolean, nullable=False),
    sa.Index("ix_reservations_slots", "scope", "hold_until"),
)
partial(
    "ix_reservations_extra",
    reservations.c.scope,
    reservations.c.reserved_at,
    where="extra = 1",
    postgresql="extra",
)
"""The scopes that an open attempt counts in. `extra` ones repeat a request of their operation, and
stay when it is closed."""

waits = sa.Table(
    "waits",
    metadata,
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), primary_key=True),
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("number", NUMBER, nullable=False),
    sa.Column("parked", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_waits_queue", "scope", "rank", "principal", "task", "number"),
)
partial(
    "ix_waits_ready",
    waits.c.scope,
    waits.c.rank,
    waits.c.principal,
    waits.c.task,
    waits.c.number,
    where="parked = 0",
    postgresql="NOT parked",
)
"""The queue of each scope: operations that wait for its next request to leave.

A parked place is kept by one that also waits elsewhere, and does not hold up those behind it.
"""

turns = sa.Table(
    "turns",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True),
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("turn", sa.BigInteger, nullable=False),
    sa.Index("ix_turns_next", "scope", "rank", "turn", unique=True),
)
"""Principals with work in a queue, by when it is their turn."""

task_turns = sa.Table(
    "task_turns",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True),
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("turn", sa.BigInteger, nullable=False),
    sa.Index("ix_task_turns_next", "scope", "rank", "principal", "turn", unique=True),
)
"""Tasks of a principal with work in a queue, by when it is their turn."""

circuits = sa.Table(
    "circuits",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("failures", JSON, nullable=False),
    sa.Column("open_since", sa.BigInteger),
    sa.Column("probe_at", sa.BigInteger),
    sa.Column("probes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("page_at", sa.BigInteger),
    sa.Column("case_id", sa.Text),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)
"""Outages: what failed lately of a scope and host, and since when only probes go out."""

credentials = sa.Table(
    "credentials",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("accepted_at", sa.BigInteger, nullable=False),
    sa.Column("refused_at", sa.BigInteger),
    sa.Column("refused_version", sa.Text),
    sa.Column("token_failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("token_failed_at", sa.BigInteger),
    sa.Column("token_next_at", sa.BigInteger),
    sa.Column("token_source", sa.Text),
    sa.Column("token_note", SealedText("credentials.token_note")),
)
"""Credentials by keyed fingerprint, never by value; a refused one is blocked for every process."""

token_requests = sa.Table(
    "token_requests",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("operation_id", sa.Text, sa.ForeignKey("operations.id"), nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("credential", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("boot_id", sa.Text, nullable=False),
    sa.Column("reserved_at", sa.BigInteger, nullable=False),
    sa.Column("send_by", sa.BigInteger, nullable=False),
    sa.Column("hold_until", sa.BigInteger, nullable=False),
    sa.Column("hold_until_boot", sa.BigInteger, nullable=False),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("outcome", sa.Text),
    sa.Column("status", sa.Integer),
    sa.Column("note", SealedText("token_requests.note")),
    sa.CheckConstraint("(closed_at IS NULL) = (outcome IS NULL)", name="closed_has_outcome"),
    sa.CheckConstraint(
        "outcome IN ('answered', 'no_answer', 'not_sent', 'unknown')", name="outcome"
    ),
    sa.Index("ix_token_requests_operation", "operation_id"),
)
partial(
    "uq_token_requests_open",
    token_requests.c.provider,
    token_requests.c.account,
    token_requests.c.credential,
    where=token_requests.c.closed_at.is_(None),
    unique=True,
)
"""Requests for tokens, one at a time for each credential; `operation_id` is who needed it first."""

token_slots = sa.Table(
    "token_slots",
    metadata,
    sa.Column("request_id", sa.Text, sa.ForeignKey("token_requests.id"), primary_key=True),
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("hold_until", sa.BigInteger, nullable=False),
    sa.Index("ix_token_slots_scope", "scope", "hold_until"),
)
"""The scopes in which an open token request holds a slot."""

pauses = sa.Table(
    "pauses",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("by", SealedObject("pauses.by"), nullable=False),
)
"""What a person stopped: `all`, a provider, or a scope by its key. Read before every request."""

whereabouts = sa.Table("whereabouts", metadata, sa.Column("database", sa.Text, primary_key=True))
"""What the server calls the database of the store, at most one row; see `servermark`."""

processes = sa.Table(
    "processes",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("bindings", JSON, nullable=False),
)

tallies = sa.Table(
    "tallies",
    metadata,
    sa.Column("day", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("labels", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""What happened on each day (since the epoch, UTC), counted: see `tallies`."""
