"""The first schema: operations, attempts, cases, scopes, credentials, processes, audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "credentials",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("accepted_at", sa.BigInteger(), nullable=False),
        sa.Column("refused_at", sa.BigInteger(), nullable=True),
        sa.Column("refused_version", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("provider", "account", "fingerprint", name=op.f("pk_credentials")),
    )
    op.create_table(
        "ended_tasks",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "task", name=op.f("pk_ended_tasks")),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=True),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_operation", "events", ["operation_id", "sequence"], unique=False)
    op.create_table(
        "operations",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("request_class", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=True),
        sa.Column("arguments", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("intent", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("wire_key", sa.Text(), nullable=True),
        sa.Column("binding", sa.Text(), nullable=False),
        sa.Column("section", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("superseded_by", sa.Text(), nullable=True),
        sa.Column("result_name", sa.Text(), nullable=True),
        sa.Column("authorisation", sa.Text(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.Column("useful_until", sa.BigInteger(), nullable=True),
        sa.Column("approve_by", sa.BigInteger(), nullable=True),
        sa.Column("approve_deadline", sa.BigInteger(), nullable=True),
        sa.Column("timeout", sa.BigInteger(), nullable=False),
        sa.Column("status_requests_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("status_requests_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("transport_failures_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("transport_failures_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rate_limited_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rate_limited_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wait_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wait_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lookups_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lookups_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("extensions_used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("extensions_max", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("delay", sa.BigInteger(), nullable=True),
        sa.Column("delay_source", sa.Text(), nullable=True),
        sa.Column("waiting_for", sa.Text(), nullable=True),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("accepted_at", sa.BigInteger(), nullable=True),
        sa.Column("observed_at", sa.BigInteger(), nullable=True),
        sa.Column("parsed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("provider_job", sa.Text(), nullable=True),
        sa.Column("provider_state", sa.Text(), nullable=True),
        sa.Column("terminal_seen", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("progress_at", sa.BigInteger(), nullable=True),
        sa.Column("take", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("certainty", sa.Text(), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=True),
        sa.Column("http_at", sa.BigInteger(), nullable=True),
        sa.Column("provider_request_id", sa.Text(), nullable=True),
        sa.Column("sent", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("answered", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("provider_expiry_at", sa.BigInteger(), nullable=True),
        sa.Column("expected_at", sa.BigInteger(), nullable=True),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("validated", sa.Boolean(), nullable=True),
        sa.Column("notices", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("treat", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("once", sa.Text(), nullable=True),
        sa.Column("pending", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("once_until", sa.BigInteger(), nullable=True),
        sa.Column("search", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_boot", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "(state = 'waiting') <= (accepted_at IS NOT NULL)",
            name=op.f("ck_operations_waiting_has_job"),
        ),
        sa.CheckConstraint(
            "(state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')) OR (next_at IS NULL AND lease_owner IS NULL)",
            name=op.f("ck_operations_final_rests"),
        ),
        sa.CheckConstraint(
            "certainty IN ('not_sent', 'not_applied', 'maybe_applied', 'applied')",
            name=op.f("ck_operations_certainty"),
        ),
        sa.CheckConstraint(
            "delay_source IN ('provider_retry_after', 'provider_poll_hint', 'scope_limit', 'local_backoff', 'budget_pace', 'manual_extension', 'circuit_open')",
            name=op.f("ck_operations_delay_source"),
        ),
        sa.CheckConstraint(
            "kind IN ('job', 'call', 'result', 'cancel')", name=op.f("ck_operations_kind")
        ),
        sa.CheckConstraint(
            "priority IN ('approved', 'interactive', 'background')",
            name=op.f("ck_operations_priority"),
        ),
        sa.CheckConstraint(
            "request_class IN ('read', 'idempotent_write', 'uncertain_write')",
            name=op.f("ck_operations_request_class"),
        ),
        sa.CheckConstraint(
            "state <> 'escalated' OR (next_at IS NULL AND lease_owner IS NULL)",
            name=op.f("ck_operations_escalated_rests"),
        ),
        sa.CheckConstraint(
            "state <> 'sending' OR (sent_at IS NOT NULL AND lease_owner IS NOT NULL)",
            name=op.f("ck_operations_sending_is_leased"),
        ),
        sa.CheckConstraint(
            "state <> 'waiting' OR kind = 'job'", name=op.f("ck_operations_only_jobs_wait")
        ),
        sa.CheckConstraint(
            "state = 'escalated' OR (state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')) = (next_at IS NOT NULL)",
            name=op.f("ck_operations_live_is_due"),
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'sending', 'waiting', 'delayed', 'unclear', 'escalated', 'succeeded', 'failed', 'cancelled', 'expired', 'discarded')",
            name=op.f("ck_operations_state"),
        ),
        sa.CheckConstraint("step IN ('send', 'status', 'lookup')", name=op.f("ck_operations_step")),
        sa.CheckConstraint(
            "waiting_for IN ('provider', 'scope', 'slot', 'approval', 'credential', 'settle')",
            name=op.f("ck_operations_waiting_for"),
        ),
        sa.CheckConstraint(
            "(lease_owner IS NULL) = (lease_until IS NULL) AND (lease_owner IS NULL) = (lease_boot IS NULL)",
            name=op.f("ck_operations_lease_whole"),
        ),
        sa.CheckConstraint(
            "attempts_used >= 0 AND attempts_max >= 0", name=op.f("ck_operations_attempts_counts")
        ),
        sa.CheckConstraint(
            "extensions_used >= 0 AND extensions_max >= 0",
            name=op.f("ck_operations_extensions_counts"),
        ),
        sa.CheckConstraint(
            "fence >= 0 AND revision >= 1", name=op.f("ck_operations_versions_count")
        ),
        sa.CheckConstraint(
            "lookups_used >= 0 AND lookups_max >= 0", name=op.f("ck_operations_lookups_counts")
        ),
        sa.CheckConstraint(
            "rate_limited_used >= 0 AND rate_limited_max >= 0",
            name=op.f("ck_operations_rate_limited_counts"),
        ),
        sa.CheckConstraint(
            "status_requests_used >= 0 AND status_requests_max >= 0",
            name=op.f("ck_operations_status_requests_counts"),
        ),
        sa.CheckConstraint(
            "transport_failures_used >= 0 AND transport_failures_max >= 0",
            name=op.f("ck_operations_transport_failures_counts"),
        ),
        sa.CheckConstraint(
            "wait_used >= 0 AND wait_max >= 0", name=op.f("ck_operations_wait_counts")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_operations")),
        sa.UniqueConstraint("id", name=op.f("uq_operations_id")),
    )
    op.create_index(
        "ix_operations_due",
        "operations",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text(
            "state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')"
        ),
        postgresql_where=sa.text(
            "state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')"
        ),
    )
    op.create_index("ix_operations_intent", "operations", ["intent"], unique=False)
    op.create_index("ix_operations_parent", "operations", ["parent_id"], unique=False)
    op.create_index(
        "ix_operations_queue",
        "operations",
        ["provider", "account", "waiting_for", "next_at"],
        unique=False,
        sqlite_where=sa.text("waiting_for IS NOT NULL"),
        postgresql_where=sa.text("waiting_for IS NOT NULL"),
    )
    op.create_index(
        "uq_operations_key",
        "operations",
        ["principal", "provider", "account", "action", "key"],
        unique=True,
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_index(
        "uq_operations_provider_job",
        "operations",
        ["provider", "account", "action", "provider_job"],
        unique=True,
        sqlite_where=sa.text(
            "provider_job IS NOT NULL AND kind = 'job' AND state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')"
        ),
        postgresql_where=sa.text(
            "provider_job IS NOT NULL AND kind = 'job' AND state NOT IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded')"
        ),
    )
    op.create_table(
        "pauses",
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("target", name=op.f("pk_pauses")),
    )
    op.create_table(
        "processes",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("bindings", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_processes")),
    )
    op.create_table(
        "scopes",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("next_allowed_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("theoretical_arrival", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("remaining", sa.BigInteger(), nullable=True),
        sa.Column("reset_at", sa.BigInteger(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_scopes")),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("authorisation", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("reserved_boot", sa.BigInteger(), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("send_by", sa.BigInteger(), nullable=False),
        sa.Column("hold_until", sa.BigInteger(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("certainty", sa.Text(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("provider_request_id", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("late", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("headers", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "certainty IN ('not_sent', 'not_applied', 'maybe_applied', 'applied')",
            name=op.f("ck_attempts_certainty"),
        ),
        sa.CheckConstraint(
            "outcome IN ('answered', 'no_answer', 'not_sent', 'unknown')",
            name=op.f("ck_attempts_outcome"),
        ),
        sa.CheckConstraint("step IN ('send', 'status', 'lookup')", name=op.f("ck_attempts_step")),
        sa.CheckConstraint(
            "trigger IN ('agent', 'schedule', 'operator')", name=op.f("ck_attempts_trigger")
        ),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (outcome IS NULL)", name=op.f("ck_attempts_closed_has_outcome")
        ),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_attempts_operation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("operation_id", "fence", name=op.f("uq_attempts_operation_id_fence")),
        sa.UniqueConstraint("operation_id", "number", name=op.f("uq_attempts_operation_id_number")),
    )
    op.create_index(
        "ix_attempts_scope_open",
        "attempts",
        ["scope"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "uq_attempts_open",
        "attempts",
        ["operation_id"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "cases",
        sa.Column("number", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("urgency", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("group", sa.Text(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_because", sa.Text(), nullable=True),
        sa.Column("decision", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint(
            "reason IN ('deadline_exceeded', 'useful_until_passed', 'request_budget_exhausted', 'transport_budget_exhausted', 'past_provider_expiry', 'rate_limited', 'scope_exhausted', 'quota_exhausted', 'provider_unreachable', 'unknown_state', 'blocked_state', 'contradictory_response', 'invalid_response', 'binding_mismatch', 'contract_changed', 'not_found', 'accepted_untracked', 'authorization_denied', 'credential_missing', 'unclear_write', 'conflict', 'reconciliation_conflict', 'repeated_failure', 'approval_required', 'requested', 'egress_refused', 'integration_failure')",
            name=op.f("ck_cases_reason"),
        ),
        sa.CheckConstraint(
            "decision IS NULL OR closed_at IS NOT NULL", name=op.f("ck_cases_decided_is_closed")
        ),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_cases_operation_id")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_cases")),
        sa.UniqueConstraint("id", name=op.f("uq_cases_id")),
    )
    op.create_index(
        "uq_cases_open",
        "cases",
        ["operation_id"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "requests",
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_requests_operation_id")
        ),
        sa.PrimaryKeyConstraint("operation_id", name=op.f("pk_requests")),
    )
    op.create_table(
        "tasks",
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_tasks_operation_id")
        ),
        sa.PrimaryKeyConstraint("operation_id", "task", name=op.f("pk_tasks")),
    )
    op.create_index("ix_tasks_task", "tasks", ["task"], unique=False)
    op.execute(
        "CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END"
    )
    op.execute(
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the audit trail is only appended to'); END"
    )
    op.execute(
        "CREATE TRIGGER counters_never_fall BEFORE UPDATE ON operations WHEN NEW.status_requests_used < OLD.status_requests_used OR NEW.transport_failures_used < OLD.transport_failures_used OR NEW.rate_limited_used < OLD.rate_limited_used OR NEW.wait_used < OLD.wait_used OR NEW.lookups_used < OLD.lookups_used OR NEW.extensions_used < OLD.extensions_used OR NEW.attempts_used < OLD.attempts_used - 1 OR (NEW.attempts_used < OLD.attempts_used AND NEW.transport_failures_used <= OLD.transport_failures_used) OR NEW.fence < OLD.fence BEGIN SELECT RAISE(ABORT, 'a counter never falls'); END"
    )
    op.execute(
        'CREATE TRIGGER identity_stays BEFORE UPDATE ON operations WHEN NEW."number" IS NOT OLD."number" OR NEW."id" IS NOT OLD."id" OR NEW."principal" IS NOT OLD."principal" OR NEW."provider" IS NOT OLD."provider" OR NEW."account" IS NOT OLD."account" OR NEW."action" IS NOT OLD."action" OR NEW."kind" IS NOT OLD."kind" OR NEW."intent" IS NOT OLD."intent" OR NEW."key" IS NOT OLD."key" OR NEW."ref" IS NOT OLD."ref" OR NEW."wire_key" IS NOT OLD."wire_key" OR NEW."request_digest" IS NOT OLD."request_digest" OR NEW."parent_id" IS NOT OLD."parent_id" OR NEW."created_at" IS NOT OLD."created_at" BEGIN SELECT RAISE(ABORT, \'what an operation is never changes\'); END'
    )
    op.execute(
        "CREATE TRIGGER ended_stays BEFORE UPDATE OF state ON operations WHEN OLD.state IN ('succeeded', 'failed', 'cancelled', 'expired', 'discarded') AND NEW.state <> OLD.state BEGIN SELECT RAISE(ABORT, 'an operation that is over is over'); END"
    )
    op.execute(
        "CREATE TRIGGER closed_attempts_stay BEFORE UPDATE ON attempts WHEN OLD.closed_at IS NOT NULL AND (NEW.closed_at IS NOT OLD.closed_at OR (NEW.outcome IS NOT OLD.outcome AND (OLD.outcome <> 'unknown' OR NOT NEW.late))) BEGIN SELECT RAISE(ABORT, 'an attempt is closed once'); END"
    )
    op.execute(
        "CREATE TRIGGER operations_stay BEFORE DELETE ON operations BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END"
    )
    op.execute(
        "CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts BEGIN SELECT RAISE(ABORT, 'a row that counts requests stays'); END"
    )
