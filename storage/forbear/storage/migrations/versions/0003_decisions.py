"""Decisions: what they authorise, session approvals, wishes of agents, announcements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("by", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index(
        "ix_grants_session",
        "grants",
        ["principal", "client", "provider", "account", "action"],
        unique=False,
    )
    op.create_table(
        "authorisations",
        sa.Column("case_id", sa.Text(), nullable=False),
        sa.Column("operation_id", sa.Text(), nullable=False),
        sa.Column("option", sa.Text(), nullable=False),
        sa.Column("parameters", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("case_revision", sa.Integer(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("by", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("consumed_at", sa.BigInteger(), nullable=True),
        sa.Column("attempt_id", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "option IN ('extend', 'hold', 'check_again', 'reconcile', 'resend_same_key', 'cancel_at_provider', 'rebind', 'treat_as', 'retry_with_new_credential', 'send_new', 'resubmit', 'approve', 'reject', 'close_circuit', 'confirm_done', 'confirm_not_done', 'use_unvalidated_result', 'abandon')",
            name=op.f("ck_authorisations_option"),
        ),
        sa.CheckConstraint(
            "(consumed_at IS NULL) = (attempt_id IS NULL)",
            name=op.f("ck_authorisations_consumed_by_an_attempt"),
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_authorisations_case_id")),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_authorisations_operation_id")
        ),
        sa.PrimaryKeyConstraint("case_id", name=op.f("pk_authorisations")),
    )
    op.add_column("cases", sa.Column("wish", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("cases", sa.Column("announce_at", sa.BigInteger(), nullable=True))
    op.add_column("cases", sa.Column("announced", sa.Integer(), server_default="0", nullable=False))
    op.add_column(
        "cases", sa.Column("announce_failures", sa.Integer(), server_default="0", nullable=False)
    )
    op.create_index(
        "ix_cases_announce",
        "cases",
        ["announce_at"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.add_column("operations", sa.Column("client", sa.Text(), nullable=True))
